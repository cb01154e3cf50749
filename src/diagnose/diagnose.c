/* The command: gathers the facts of all ranks, applies the rules, and prints the findings. */
#include "diagnose/diagnose.h"

#include "base/log.h"
#include "base/mem.h"
#include "diagnose/measure.h"
#include "diagnose/rules.h"
#include "kernels/peak.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct diagnosis {
    struct comm *comm;
    struct topo *topo;        /* owned */
    struct team *team;        /* owned */
    struct facts_rank *ranks; /* [n_ranks], owned */
    uint32_t *first;          /* [n_nodes], owned: the first rank of each host */
    struct finding *findings; /* [FINDINGS_MAX], owned */
    size_t n_findings;
};

/* Checks the folder of --directory before all else is measured. */
static struct status check_directory(const char *directory)
{
    struct stat info;
    if (directory == NULL) return status_ok();
    if (stat(directory, &info) == 0 && !S_ISDIR(info.st_mode))
        return status_make(STATUS_IO, "--directory %s: expected a folder, found a file", directory);
    if (access(directory, W_OK | X_OK) == 0) return status_ok();
    return status_make(STATUS_IO, "--directory %s: cannot be written: %s", directory,
                       strerror(errno));
}

static struct status gather_facts(struct diagnosis *d, const struct diagnose_flags *f)
{
    TRY(comm_agree(d->comm, check_directory(f->directory)));
    TRY(comm_gather_topo(d->comm, &d->topo));
    const uint32_t rank = (uint32_t)comm_rank(d->comm, COMM_WORLD);
    struct facts_rank mine = {.n_threads =
                                  f->threads > 0 ? f->threads : topo_threads(d->topo, rank)};
    TRY(comm_agree(d->comm, team_create(mine.n_threads, &d->team)));
    topo_bind_threads(d->topo, rank, d->team);
    peak_cpu_name(mine.cpu);
    facts_read_system(f->root != NULL ? f->root : "", &mine.system);
    TRY(comm_agree(d->comm, mem_alloc(&d->first, d->topo->n_nodes, sizeof *d->first, "hosts")));
    facts_first_ranks(d->topo, d->first);
    const struct machine machine = {d->comm, d->topo, d->team, d->first};
    TRY(diagnose_measure(&machine, f->directory, &mine.measured));
    TRY(comm_agree(d->comm, mem_alloc(&d->ranks, d->topo->n_ranks, sizeof mine, "facts")));
    comm_gather_bytes(d->comm, COMM_WORLD, &mine, sizeof mine, d->ranks);
    return status_ok();
}

/* --- the report ----------------------------------------------------------------------------- */

static void print_host(const struct diagnosis *d, uint32_t host, struct strbuf *s)
{
    const struct topo_node *node = &d->topo->nodes[host];
    const struct facts_rank *r = &d->ranks[d->first[host]];
    const struct facts_measured *m = &r->measured;
    strbuf_printf(s, "%s: %s, %u cores, %u NUMA nodes, %.1f GiB; reads %.1f GB/s", node->name,
                  r->cpu, node->n_cores, node->n_numa, (double)node->memory_bytes / (1 << 30),
                  m->read_gbs);
    if (r->system.n_modules > 0 && r->system.modules_gbs > 0)
        strbuf_printf(s, " of at most %.0f by %u memory modules", r->system.modules_gbs,
                      r->system.n_modules);
    if (m->link_gbit > 0)
        strbuf_printf(s, "; to the first host %.1f Gbit/s, %.1f us", m->link_gbit, m->link_us);
    if (m->read_mbs > 0)
        strbuf_printf(s, "; the folder reads %.0f, writes %.0f MB/s", m->read_mbs, m->write_mbs);
    strbuf_puts(s, "\n");
}

static void print_findings(const struct diagnosis *d, struct strbuf *s)
{
    for (uint32_t h = 0; h < d->topo->n_nodes; h++) print_host(d, h, s);
    size_t n_problems = 0;
    for (size_t i = 0; i < d->n_findings; i++) {
        const struct finding *f = &d->findings[i];
        n_problems += f->kind == FINDING_PROBLEM;
        strbuf_printf(s, "%s %s, %s: %s\n    remedy: %s\n",
                      f->kind == FINDING_PROBLEM ? "problem" : "hint", f->rule, f->host, f->text,
                      f->remedy);
    }
    strbuf_printf(s, "%u hosts, %u ranks: %zu problems, %zu hints\n", d->topo->n_nodes,
                  d->topo->n_ranks, n_problems, d->n_findings - n_problems);
}

static void write_json_string(struct strbuf *s, const char *key, const char *value)
{
    strbuf_printf(s, "\"%s\":", key);
    strbuf_json_string(s, value, strlen(value));
}

static void json_host(const struct diagnosis *d, uint32_t host, struct strbuf *s)
{
    const struct topo_node *node = &d->topo->nodes[host];
    const struct facts_rank *r = &d->ranks[d->first[host]];
    const struct facts_measured *m = &r->measured;
    strbuf_puts(s, host > 0 ? ",{" : "{");
    write_json_string(s, "host", node->name);
    strbuf_puts(s, ",");
    write_json_string(s, "cpu", r->cpu);
    strbuf_printf(s,
                  ",\"cores\":%u,\"numa_nodes\":%u,\"gpus\":%u,\"memory_bytes\":%llu,"
                  "\"read_gbs\":%.3f,\"modules\":%u,\"modules_gbs\":%.3f,\"others_cores\":%.3f,"
                  "\"stolen_cores\":%.3f,\"frequency_part\":%.3f,\"link_gbit\":%.3f,"
                  "\"link_us\":%.3f,\"directory_read_mbs\":%.1f,\"directory_write_mbs\":%.1f}",
                  node->n_cores, node->n_numa, node->n_gpus, (unsigned long long)node->memory_bytes,
                  m->read_gbs, r->system.n_modules, r->system.modules_gbs, m->others_cores,
                  m->stolen_cores, m->mhz_part, m->link_gbit, m->link_us, m->read_mbs,
                  m->write_mbs);
}

static void print_findings_json(const struct diagnosis *d, struct strbuf *s)
{
    strbuf_printf(s, "{\"shoal\":\"%s\",\"ranks\":%u,\"hosts\":[", SHOAL_VERSION, d->topo->n_ranks);
    for (uint32_t h = 0; h < d->topo->n_nodes; h++) json_host(d, h, s);
    strbuf_puts(s, "],\"findings\":[");
    for (size_t i = 0; i < d->n_findings; i++) {
        const struct finding *f = &d->findings[i];
        strbuf_puts(s, i > 0 ? ",{" : "{");
        write_json_string(s, "kind", f->kind == FINDING_PROBLEM ? "problem" : "hint");
        strbuf_puts(s, ",");
        write_json_string(s, "rule", f->rule);
        strbuf_puts(s, ",");
        write_json_string(s, "host", f->host);
        strbuf_puts(s, ",");
        write_json_string(s, "text", f->text);
        strbuf_puts(s, ",");
        write_json_string(s, "remedy", f->remedy);
        strbuf_puts(s, "}");
    }
    strbuf_puts(s, "]}\n");
}

static struct status write_out(const char *path, const struct strbuf *s)
{
    TRY(strbuf_status(s));
    const bool is_stdout = path == NULL || strcmp(path, "-") == 0;
    FILE *f = is_stdout ? stdout : fopen(path, "we");
    bool written = f != NULL && fwrite(s->data, 1, s->n, f) == s->n;
    if (f != NULL && (is_stdout ? fflush(f) : fclose(f)) != 0) written = false;
    if (written) return status_ok();
    return status_make(STATUS_IO, "%s: %s", is_stdout ? "stdout" : path, strerror(errno));
}

static struct status report(const struct diagnosis *d, const char *json)
{
    struct strbuf s;
    struct status st = status_ok();
    strbuf_init(&s);
    if (json == NULL || strcmp(json, "-") != 0) {
        print_findings(d, &s);
        st = write_out(NULL, &s);
        strbuf_clear(&s);
    }
    if (json != NULL && !status_failed(&st)) {
        print_findings_json(d, &s);
        st = write_out(json, &s);
    }
    strbuf_fini(&s);
    return st;
}

static struct status diagnose(struct diagnosis *d, const struct diagnose_flags *f)
{
    TRY(gather_facts(d, f));
    if (comm_rank(d->comm, COMM_WORLD) != 0) return comm_agree(d->comm, status_ok());
    struct status st = mem_alloc(&d->findings, FINDINGS_MAX, sizeof *d->findings, "findings");
    if (!status_failed(&st)) {
        const struct facts facts = {d->topo, d->ranks, d->first, f->directory};
        d->n_findings = rules_apply(&facts, d->findings, FINDINGS_MAX);
        st = report(d, f->json);
    }
    return comm_agree(d->comm, st);
}

int diagnose_run(const struct diagnose_flags *f, int *argc, char ***argv)
{
    struct diagnosis d = {.comm = NULL};
    struct status st = comm_start(argc, argv, &d.comm);
    if (!status_failed(&st)) {
        log_init(comm_rank(d.comm, COMM_WORLD), LOG_INFO, false);
        st = diagnose(&d, f);
    }
    if (status_failed(&st) && (d.comm == NULL || comm_rank(d.comm, COMM_WORLD) == 0))
        fprintf(stderr, "shoal diagnose: %s\n", st.text);
    topo_destroy(&d.topo);
    team_destroy(&d.team);
    mem_free(&d.ranks);
    mem_free(&d.first);
    mem_free(&d.findings);
    comm_stop(&d.comm);
    return status_exit(st.code);
}
