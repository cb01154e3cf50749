/* shoal bench --machine: measures read bandwidth, arithmetic peaks and collective latencies of this
 * machine, and writes them as a table and as JSON. Nothing here knows a model. */
#include "bench/bench.h"

#include "arch/arch.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "bench/bench_node.h"
#include "job/job_paths.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    READ_BYTES = 512 << 20, /* bytes read on a host; more if its caches are large */
    READ_BYTES_MIN = 64 << 20,
    CACHE_TIMES = 2, /* bytes read are this many times the capacity of the caches, so that cached
                        bytes hardly count */
    PROBE_NS = 150000000,
    PASSES_MIN = 5,
    THREAD_ROWS_MAX = 16,
    SUM_ROUNDS = 2000,
    SUM_WARMUP = 100,
    N_SUMS = 2,
};

static const size_t sum_bytes[N_SUMS] = {4096, 65536};
static const size_t read_bytes_max = (size_t)4
                                     << 30; /* limit for a CPU that reports absurdly large caches */

/* One pass: arithmetic (its amount in operations), or a read of memory (in bytes). */
struct probe {
    struct team *team;
    const struct peak_memory *memory; /* NULL: arithmetic */
    int which;                        /* variant of a read, or enum peak_kind */
};

static double pass(const struct probe *p)
{
    return p->memory != NULL ? peak_read(p->memory, p->team, p->which)
                             : peak_run(p->team, (enum peak_kind)p->which);
}

/* **Collective (world)**. Returns the rate of the fastest pass in units of 1e9 per second. All
 * ranks run together, and a pass takes as long as its slowest rank. */
static double best_rate(struct comm *c, const struct probe *p)
{
    uint64_t best = UINT64_MAX, total = 0;
    int64_t amount = 0;
    for (int i = 0; i < PASSES_MIN || total < PROBE_NS; i++) {
        comm_barrier(c, COMM_WORLD);
        const uint64_t since = clock_ns();
        amount = (int64_t)pass(p);
        uint64_t ns = clock_ns() - since;
        comm_max_u64(c, COMM_WORLD, &ns, 1);
        if (ns < best) best = ns;
        total += ns + 1;
    }
    comm_sum_i64(c, COMM_WORLD, &amount, 1);
    return (double)amount / (double)best;
}

size_t bench_read_bytes(const struct topo *t, size_t least)
{
    const size_t cache = peak_cache_bytes();
    size_t most = least;
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const size_t n_caches = t->nodes[i].n_l3 > 0 ? t->nodes[i].n_l3 : 1;
        const bool fits = cache <= read_bytes_max / CACHE_TIMES / n_caches;
        const size_t n = fits ? CACHE_TIMES * n_caches * cache : read_bytes_max;
        if (n > most) most = n;
    }
    return most;
}

struct status bench_machine_measure(struct comm *c, const struct topo *t, struct team *team,
                                    bool with_ops, struct bench_machine *out)
{
    *out = (struct bench_machine){.n_threads = team_size(team)};
    struct peak_memory memory;
    size_t n_bytes = bench_read_bytes(t, READ_BYTES) / (size_t)comm_size(c, COMM_HOST);
    if (n_bytes < READ_BYTES_MIN) n_bytes = READ_BYTES_MIN;
    const struct status mine = peak_memory_init(&memory, team, n_bytes);
    const struct status st = comm_agree(c, mine);
    if (status_failed(&st)) {
        if (!status_failed(&mine)) peak_memory_fini(&memory);
        return st;
    }
    for (int variant = 0; variant < PEAK_READS; variant++) {
        const struct probe p = {.team = team, .memory = &memory, .which = variant};
        const double rate = best_rate(c, &p);
        if (rate > out->read_gbs) out->read_gbs = rate;
    }
    peak_memory_fini(&memory);
    for (int kind = 0; kind < PEAK_COUNT; kind++) {
        if (!with_ops && kind != PEAK_FMA_AVX2 && kind != PEAK_FMA_AVX512) continue;
        const struct probe p = {.team = team, .which = kind};
        out->gops[kind] = best_rate(c, &p);
    }
    return st;
}

double bench_machine_fma(const struct bench_machine *m)
{
    const double a = m->gops[PEAK_FMA_AVX2], b = m->gops[PEAK_FMA_AVX512];
    return a > b ? a : b;
}

/* The latency of integer sums over the ranks of a host, called one after another. */
struct sum_latency {
    size_t n_bytes;
    struct latency calls; /* as this rank measured them; the lead's are reported */
};

/* **Collective (host)**. Measures sums of out->n_bytes. */
static void measure_sum(struct comm *c, int64_t *buf, struct sum_latency *out)
{
    for (int i = 0; i < SUM_WARMUP + SUM_ROUNDS; i++) {
        const uint64_t since = clock_ns();
        comm_sum_i64(c, COMM_HOST, buf, out->n_bytes / sizeof *buf);
        const uint64_t ns = clock_ns() - since;
        if (i >= SUM_WARMUP) latency_add(&out->calls, ns);
    }
}

struct machine_report {
    struct comm *comm;
    struct topo *topo;
    struct bench_split split;
    uint32_t n_threads;
    struct team *team;
    struct bench_machine rows[THREAD_ROWS_MAX];
    size_t n_rows;
    int64_t *sum_buf; /* zeros, so that the sums stay zero */
    struct sum_latency sums[N_SUMS];
};

struct status bench_split_init(struct bench_split *s, struct comm *c)
{
    const uint32_t n_ranks = (uint32_t)comm_size(c, COMM_WORLD);
    s->arch = (struct arch){.family = arch_family_at(0),
                            .n_layers = 1,
                            .width = 64,
                            .attn.n_heads = n_ranks,
                            .attn.n_kv_heads = n_ranks,
                            .attn.head_dim = 64,
                            .attn.query_dim = 64,
                            .attn.value_dim = 64,
                            .ffn = 64,
                            .vocab = 64,
                            .context = 64};
    const struct layout_model model = {
        .arch = &s->arch, .name = "none", .o_leaf = 64, .ffn_leaf = 64, .weight_bytes = 4};
    const struct layout_flags flags = {.tp = n_ranks, .pp = 1, .dp = 1};
    TRY(layout_build(&model, n_ranks, &flags, &s->layout));
    TRY(mem_alloc(&s->order, n_ranks, sizeof *s->order, "rank order"));
    for (uint32_t i = 0; i < n_ranks; i++) s->order[i] = i;
    return comm_split(c, &s->layout, s->order);
}

void bench_split_fini(struct bench_split *s)
{
    mem_free(&s->order);
}

/* Measures with 1, 2, 4, ... and all threads of a rank. */
static struct status measure_threads(struct machine_report *r)
{
    uint32_t n = 1;
    while (r->n_rows < THREAD_ROWS_MAX) {
        team_use(r->team, n);
        TRY(bench_machine_measure(r->comm, r->topo, r->team, true, &r->rows[r->n_rows]));
        r->n_rows++;
        if (n == r->n_threads) break;
        n = 2 * n > r->n_threads ? r->n_threads : 2 * n;
    }
    return status_ok();
}

static struct status measure(struct machine_report *r, uint32_t n_threads)
{
    TRY(comm_gather_topo(r->comm, &r->topo));
    TRY(comm_agree(r->comm, bench_split_init(&r->split, r->comm)));
    const uint32_t rank = (uint32_t)comm_rank(r->comm, COMM_WORLD);
    uint64_t most = n_threads > 0 ? n_threads : topo_threads(r->topo, rank);
    comm_min_u64(r->comm, COMM_WORLD, &most, 1); /* all ranks take part in every row */
    r->n_threads = (uint32_t)most;
    TRY(comm_agree(r->comm, team_create(r->n_threads, &r->team)));
    topo_bind_threads(r->topo, rank, r->team);
    comm_use_team(r->comm, r->team);
    TRY(measure_threads(r));
    TRY(comm_agree(r->comm, mem_alloc(&r->sum_buf, sum_bytes[N_SUMS - 1], 1, "buffer of sums")));
    for (size_t i = 0; i < N_SUMS; i++) {
        r->sums[i].n_bytes = sum_bytes[i];
        measure_sum(r->comm, r->sum_buf, &r->sums[i]);
    }
    return status_ok();
}

static void print_sums(const struct machine_report *r)
{
    const int n_ranks = comm_size(r->comm, COMM_HOST);
    if (n_ranks == 1) {
        printf("\nsums over ranks: one rank, nothing to measure (start it under mpirun)\n");
        return;
    }
    printf("\nsum of int64 over the %d ranks of a host, us\n%8s %8s %8s %8s %8s\n", n_ranks,
           "bytes", "min", "mean", "P50", "P99");
    for (size_t i = 0; i < N_SUMS; i++) {
        const struct latency *l = &r->sums[i].calls;
        printf("%8zu %8.2f %8.2f %8.2f %8.2f\n", r->sums[i].n_bytes, (double)l->min_ns * 1e-3,
               latency_mean_s(l) * 1e6, latency_percentile_s(l, 0.5) * 1e6,
               latency_percentile_s(l, 0.99) * 1e6);
    }
}

static void print_table(const struct machine_report *r)
{
    char cpu[PEAK_CPU_NAME_BYTES];
    peak_cpu_name(cpu);
    printf("%s; %u hosts, %d ranks\n", cpu, r->topo->n_nodes, comm_size(r->comm, COMM_WORLD));
    printf("all ranks together; peaks in GFLOP/s (f32) and GOP/s (int8), - where the CPU lacks the "
           "instructions\n\n%16s %10s",
           "threads a rank", "read GB/s");
    for (int k = 0; k < PEAK_COUNT; k++) printf(" %10s", peak_title((enum peak_kind)k));
    printf("\n");
    for (size_t i = 0; i < r->n_rows; i++) {
        printf("%16u %10.1f", r->rows[i].n_threads, r->rows[i].read_gbs);
        for (int k = 0; k < PEAK_COUNT; k++) {
            if (r->rows[i].gops[k] > 0)
                printf(" %10.1f", r->rows[i].gops[k]);
            else
                printf(" %10s", "-");
        }
        printf("\n");
    }
    print_sums(r);
}

static void write_json(const struct machine_report *r, struct strbuf *s)
{
    char cpu[PEAK_CPU_NAME_BYTES];
    peak_cpu_name(cpu);
    strbuf_printf(s, "{\"shoal\":\"%s\",\"cpu\":", SHOAL_VERSION);
    strbuf_json_string(s, cpu, strlen(cpu));
    strbuf_printf(s, ",\"hosts\":%u,\"ranks\":%d,\"machine\":[", r->topo->n_nodes,
                  comm_size(r->comm, COMM_WORLD));
    for (size_t i = 0; i < r->n_rows; i++) {
        strbuf_puts(s, i > 0 ? "," : "");
        bench_machine_json(&r->rows[i], s);
    }
    strbuf_puts(s, "],\"sums\":[");
    const int n_ranks = comm_size(r->comm, COMM_HOST);
    for (size_t i = 0; n_ranks > 1 && i < N_SUMS; i++) {
        const struct latency *l = &r->sums[i].calls;
        strbuf_printf(s,
                      "%s{\"axis\":\"host\",\"ranks\":%d,\"type\":\"int64\",\"bytes\":%zu,"
                      "\"calls\":%llu,\"min_us\":%.3f,\"mean_us\":%.3f,\"p50_us\":%.3f,"
                      "\"p99_us\":%.3f}",
                      i > 0 ? "," : "", n_ranks, r->sums[i].n_bytes, (unsigned long long)l->n,
                      (double)l->min_ns * 1e-3, latency_mean_s(l) * 1e6,
                      latency_percentile_s(l, 0.5) * 1e6, latency_percentile_s(l, 0.99) * 1e6);
    }
    strbuf_puts(s, "]}\n");
}

void bench_machine_json(const struct bench_machine *m, struct strbuf *s)
{
    strbuf_printf(s, "{\"threads\":%u,\"read_gbs\":%.3f", m->n_threads, m->read_gbs);
    for (int k = 0; k < PEAK_COUNT; k++) {
        strbuf_printf(s, ",\"%s\":%.3f", peak_name((enum peak_kind)k), m->gops[k]);
    }
    strbuf_puts(s, "}");
}

struct status bench_check_json(const struct comm *c, const char *flag, const char *path)
{
    if (comm_rank(c, COMM_WORLD) != 0 || path == NULL || strcmp(path, "-") == 0) return status_ok();
    return job_paths_check_written(flag, path);
}

struct status bench_write_json(const char *flag, const char *path, const struct strbuf *text)
{
    TRY(strbuf_status(text));
    const bool is_stdout = strcmp(path, "-") == 0;
    FILE *f = is_stdout ? stdout : fopen(path, "we");
    bool written = f != NULL && fwrite(text->data, 1, text->n, f) == text->n;
    if (f != NULL && (is_stdout ? fflush(f) : fclose(f)) != 0) written = false;
    if (written) return status_ok();
    return status_make(STATUS_IO, "--%s %s: %s", flag, path, strerror(errno));
}

static struct status bench_machine_report(const struct machine_report *r, const char *json)
{
    if (comm_rank(r->comm, COMM_WORLD) != 0) return status_ok();
    if (json == NULL || strcmp(json, "-") != 0) print_table(r);
    if (json == NULL) return status_ok();
    struct strbuf s;
    strbuf_init(&s);
    write_json(r, &s);
    const struct status st = bench_write_json("json", json, &s);
    strbuf_fini(&s);
    return st;
}

/* Measures the curves that forecasts need and writes them to `path`. Measured peaks are those of
 * all hosts together; a node's curve gets one host's share. */
static struct status save_node(struct machine_report *r, const char *path)
{
    struct bench_node b = {.comm = r->comm, .topo = r->topo, .team = r->team};
    struct node *node = NULL;
    const double hosts = r->topo->n_nodes, ranks = comm_size(r->comm, COMM_HOST);
    const struct topo_node *here = &r->topo->nodes[0];
    TRY(comm_agree(r->comm, kern_select(NULL, &b.kern)));
    b.kern.team = r->team;
    b.n_cache_bytes = peak_cache_bytes() * (here->n_l3 > 0 ? here->n_l3 : 1);
    TRY(comm_agree(r->comm, mem_alloc(&node, 1, sizeof *node, "curves of the node")));
    struct status st = bench_node_measure(&b, node);
    for (size_t i = 0; i < r->n_rows && !status_failed(&st); i++) {
        const double n = r->rows[i].n_threads * ranks;
        st = curve_add(&node->read, n, r->rows[i].read_gbs * 1e9 / hosts);
        if (!status_failed(&st))
            st = curve_add(&node->flops, n, bench_machine_fma(&r->rows[i]) * 1e9 / hosts);
    }
    struct strbuf text;
    strbuf_init(&text);
    bench_node_see_reads(node);
    if (!status_failed(&st) && comm_rank(r->comm, COMM_WORLD) == 0) {
        st = node_write(node, &text);
        if (!status_failed(&st)) st = bench_write_json("save", path, &text);
    }
    strbuf_fini(&text);
    mem_free(&node);
    return comm_agree(r->comm, st);
}

static struct status run_machine(struct machine_report *r, const struct bench_options *o)
{
    TRY(comm_agree(r->comm, bench_check_json(r->comm, "json", o->flags.json)));
    TRY(comm_agree(r->comm, bench_check_json(r->comm, "save", o->flags.save)));
    TRY(measure(r, o->job.run.threads));
    TRY(comm_agree(r->comm, bench_machine_report(r, o->flags.json)));
    return o->flags.save != NULL ? save_node(r, o->flags.save) : status_ok();
}

int bench_machine_run(const struct bench_options *o, int *argc, char ***argv)
{
    struct comm *comm = NULL;
    struct machine_report *r = NULL;
    struct status st = comm_start(argc, argv, &comm);
    if (!status_failed(&st)) {
        st = comm_agree(comm, mem_alloc(&r, 1, sizeof *r, "report"));
        log_init(comm_rank(comm, COMM_WORLD), LOG_INFO, false);
    }
    if (!status_failed(&st)) {
        r->comm = comm;
        st = run_machine(r, o);
    }
    if (status_failed(&st) && (comm == NULL || comm_rank(comm, COMM_WORLD) == 0)) {
        fprintf(stderr, "shoal bench: %s\n", st.text);
    }
    if (r != NULL) {
        topo_destroy(&r->topo);
        comm_use_team(comm, NULL);
        team_destroy(&r->team);
        bench_split_fini(&r->split);
        mem_free(&r->sum_buf);
    }
    mem_free(&r);
    comm_stop(&comm);
    return status_exit(st.code);
}
