/* The rules, one function each, and their table. A rule says nothing if it lacks the facts. */
#include "diagnose/rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define GIB ((double)(1 << 30))

/* The thresholds beyond which rules report a finding. */
static const double OTHERS_LEAST_CORES = 0.5, OTHERS_LEAST_PART = 0.05, STOLEN_LEAST_PART = 0.05,
                    MEMORY_LIMIT_PART = 0.9, SWAP_LEAST_GIB = 1, NUMA_FREE_PART = 0.5,
                    MHZ_LEAST_PART = 0.6, MODULES_LEAST_PART = 0.4, LINK_LEAST_PART = 0.5,
                    LIKE_OTHERS_PART = 0.6, DISK_LEAST_MBS = 100, SHM_LEAST_MIB_A_RANK = 16,
                    LOCKED_LEAST_GIB = 1;

/* One host, as the rules see it. */
struct host {
    const struct facts *f;
    const struct topo_node *node;
    const struct facts_rank *first; /* its first rank */
    uint32_t index;
};

/* Fills a finding's sentences. Always true, so that a rule can return it. */
static bool say(struct finding *out, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool say(struct finding *out, const char *remedy, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(out->text, sizeof out->text, format, list);
    va_end(list);
    snprintf(out->remedy, sizeof out->remedy, "%s", remedy);
    return true;
}

/* --- cores ---------------------------------------------------------------------------------- */

/* Returns how many threads the ranks that share the cores of rank r have; *n_ranks = the number of
 * these ranks. */
static uint32_t threads_on_cores_of(const struct facts *f, uint32_t r, uint32_t *n_ranks)
{
    uint32_t n_threads = 0;
    *n_ranks = 0;
    for (uint32_t i = 0; i < f->topo->n_ranks; i++) {
        const struct topo_rank *a = &f->topo->ranks[r], *b = &f->topo->ranks[i];
        if (a->host != b->host || a->cpuset_hash != b->cpuset_hash) continue;
        n_threads += f->ranks[i].n_threads;
        (*n_ranks)++;
    }
    return n_threads;
}

static bool cores_shared(const struct host *h, struct finding *out)
{
    for (uint32_t r = 0; r < h->f->topo->n_ranks; r++) {
        const struct topo_rank *rank = &h->f->topo->ranks[r];
        uint32_t n_ranks;
        if (rank->host != h->index) continue;
        const uint32_t n_threads = threads_on_cores_of(h->f, r, &n_ranks);
        if (n_threads <= rank->n_cores) continue;
        return say(out,
                   "give each rank cores of its own: mpirun --map-by ppr:R:node:pe=N, or srun "
                   "--cpus-per-task=N; or fewer --threads",
                   "%u ranks, the first is rank %u, compute with %u threads on %u cores", n_ranks,
                   r, n_threads, rank->n_cores);
    }
    return false;
}

/* Finds cores without threads: Open MPI gives each of one or two ranks a single core unless told
 * otherwise. */
static bool cores_idle(const struct host *h, struct finding *out)
{
    uint32_t n_threads = 0;
    for (uint32_t r = 0; r < h->f->topo->n_ranks; r++)
        if (h->f->topo->ranks[r].host == h->index) n_threads += h->f->ranks[r].n_threads;
    if (n_threads >= h->node->n_cores) return false;
    return say(out,
               "let the ranks have all cores: mpirun --bind-to none for one rank a host, --map-by "
               "ppr:1:numa:pe=N for one a NUMA node, or srun --cpus-per-task=N",
               "the ranks compute with %u threads, and the host has %u cores", n_threads,
               h->node->n_cores);
}

static bool numa_spanned(const struct host *h, struct finding *out)
{
    for (uint32_t r = 0; r < h->f->topo->n_ranks; r++) {
        const struct topo_rank *rank = &h->f->topo->ranks[r];
        if (rank->host != h->index || rank->numa >= 0 || h->node->n_numa < 2) continue;
        return say(out,
                   "start one rank a NUMA node: mpirun --map-by ppr:1:numa:pe=N, or srun "
                   "--ntasks-per-socket with --cpu-bind=ldoms",
                   "rank %u may run in several of %u NUMA nodes, so half of its reads or more go "
                   "to memory that is far away",
                   r, h->node->n_numa);
    }
    return false;
}

static bool others_run(const struct host *h, struct finding *out)
{
    const double busy = h->first->measured.others_cores;
    if (busy < OTHERS_LEAST_CORES || busy < OTHERS_LEAST_PART * h->node->n_cores) return false;
    return say(out,
               "look for left-over processes with top; ask for whole nodes (sbatch --exclusive)",
               "other processes keep %.1f of %u cores busy", busy, h->node->n_cores);
}

static bool cores_stolen(const struct host *h, struct finding *out)
{
    const double stolen = h->first->measured.stolen_cores;
    if (stolen < STOLEN_LEAST_PART * h->node->n_cores) return false;
    return say(out, "this is a virtual machine on a host that promised its cores twice",
               "the hypervisor keeps %.2f of %u cores from this host", stolen, h->node->n_cores);
}

static bool governor_saves(const struct host *h, struct finding *out)
{
    const struct facts_system *s = &h->first->system;
    const bool is_own =
        strstr(s->driver, "pstate") != NULL; /* to these drivers the word means something else */
    if (strcmp(s->governor, "powersave") != 0 || is_own) return false;
    return say(out, "cpupower frequency-set -g performance, or srun --cpu-freq=Performance",
               "the cores' governor is powersave: they stay at their lowest frequency");
}

static bool frequency_low(const struct host *h, struct finding *out)
{
    const double part = h->first->measured.mhz_part;
    if (part <= 0 || part >= MHZ_LEAST_PART) return false;
    return say(out, "look for a power cap or heat: turbostat, ipmitool dcmi power reading",
               "under load a core runs at %.0f %% of its highest frequency", 100 * part);
}

/* --- memory --------------------------------------------------------------------------------- */

static bool memory_limited(const struct host *h, struct finding *out)
{
    const double all = (double)h->first->system.memory_bytes, mine = (double)h->node->memory_bytes;
    if (all == 0 || mine >= MEMORY_LIMIT_PART * all) return false;
    return say(out, "ask for all of it: sbatch --mem=0, docker run without --memory",
               "the job may use %.1f of the host's %.1f GiB", mine / GIB, all / GIB);
}

static bool swap_used(const struct host *h, struct finding *out)
{
    const double used = (double)h->first->system.swap_used_bytes / GIB;
    if (used < SWAP_LEAST_GIB) return false;
    return say(out, "free memory, or swapoff: a page that comes back from disk stops a step",
               "%.1f GiB are swapped out", used);
}

static bool numa_uneven(const struct host *h, struct finding *out)
{
    const struct facts_system *s = &h->first->system;
    double sum = 0;
    uint32_t least = 0;
    for (uint32_t i = 0; i < s->n_numa; i++) {
        sum += (double)s->numa_free_bytes[i];
        if (s->numa_free_bytes[i] < s->numa_free_bytes[least]) least = i;
    }
    const double mean = s->n_numa > 0 ? sum / s->n_numa : 0;
    const bool is_large = (double)s->numa_bytes[least] > mean; /* a small node may be intended */
    if (s->n_numa < 2 || !is_large || (double)s->numa_free_bytes[least] >= NUMA_FREE_PART * mean)
        return false;
    return say(out, "end what holds it (ipcs, /dev/shm, /tmp in memory), or reboot the node",
               "NUMA node %u has %.1f GiB free, the mean of its host is %.1f", least,
               (double)s->numa_free_bytes[least] / GIB, mean / GIB);
}

static bool pages_small(const struct host *h, struct finding *out)
{
    if (h->first->system.pages != PAGES_NEVER) return false;
    return say(out, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
               "transparent huge pages are off: weights will miss the TLB");
}

static bool reads_slow(const struct host *h, struct finding *out)
{
    const double can = h->first->system.modules_gbs, gives = h->first->measured.read_gbs;
    if (can <= 0 || gives >= MODULES_LEAST_PART * can) return false;
    return say(out, "look for missing modules, a socket without ranks, or others at work",
               "reads reach %.1f GB/s, and the %u memory modules give up to %.0f", gives,
               h->first->system.n_modules, can);
}

static bool shm_small(const struct host *h, struct finding *out)
{
    const struct facts_system *s = &h->first->system;
    uint32_t n = 0;
    for (uint32_t r = 0; r < h->f->topo->n_ranks; r++) n += h->f->topo->ranks[r].host == h->index;
    const double mib = (double)s->shm_free_bytes / (1 << 20);
    if (s->shm_bytes == 0 || mib >= SHM_LEAST_MIB_A_RANK * n) return false;
    return say(out, "remove old files there; docker run --shm-size=1g or --ipc=host",
               "/dev/shm has %.0f MiB free for %u ranks; MPI keeps its buffers there", mib, n);
}

/* --- networks ------------------------------------------------------------------------------- */

/* Returns the fastest active port; NULL: none. */
static const struct facts_port *best_port(const struct facts_system *s)
{
    const struct facts_port *best = NULL;
    for (uint32_t i = 0; i < s->n_ports; i++)
        if (s->ports[i].is_active && (best == NULL || s->ports[i].gbit > best->gbit))
            best = &s->ports[i];
    return best;
}

static bool link_slow(const struct host *h, struct finding *out)
{
    const struct facts_port *port = best_port(&h->first->system);
    const double gbit = h->first->measured.link_gbit;
    const double can = port != NULL ? port->gbit : h->first->system.ethernet_mbit / 1e3;
    if (gbit <= 0 || can <= 0 || gbit >= LINK_LEAST_PART * can) return false;
    return say(out,
               port != NULL ? "MPI may use TCP: check that it has UCX (ompi_info | grep ucx) and "
                              "that no OMPI_MCA_pml or OMPI_MCA_btl forbids it"
                            : "look for a shaped or shared link, and for the interface that MPI "
                              "uses (--mca btl_tcp_if_include)",
               "one message stream from the first host reaches %.1f Gbit/s, and %s gives %.0f",
               gbit, port != NULL ? port->name : "Ethernet", can);
}

static bool port_down(const struct host *h, struct finding *out)
{
    const struct facts_system *s = &h->first->system;
    for (uint32_t i = 0; i < s->n_ports; i++)
        if (!s->ports[i].is_active)
            return say(out, "ibstat; tell the centre's engineers", "the port of %s is not active",
                       s->ports[i].name);
    return false;
}

/* True when the host's measurement at `offset` is far below that of most other hosts; *mean is the
 * mean of the others. */
static bool below_others(const struct host *h, size_t offset, double *mine, double *mean)
{
    uint32_t n = 0, n_far_above = 0;
    double sum = 0;
    *mine = *(const double *)((const char *)&h->first->measured + offset);
    for (uint32_t i = 0; i < h->f->topo->n_nodes; i++) {
        const struct facts_rank *r = &h->f->ranks[h->f->first[i]];
        const double x = *(const double *)((const char *)&r->measured + offset);
        if (i == h->index || x <= 0) continue;
        n++;
        sum += x;
        n_far_above += *mine < LIKE_OTHERS_PART * x;
    }
    *mean = n > 0 ? sum / n : 0;
    return *mine > 0 && n >= 2 && 2 * n_far_above > n;
}

static bool link_uneven(const struct host *h, struct finding *out)
{
    double mine, others;
    if (!below_others(h, offsetof(struct facts_measured, link_gbit), &mine, &others)) return false;
    return say(out, "look at its cable and port; leave the node out (--exclude)",
               "its link gives %.1f Gbit/s, the others' mean is %.1f", mine, others);
}

static bool memory_uneven(const struct host *h, struct finding *out)
{
    double mine, others;
    if (!below_others(h, offsetof(struct facts_measured, read_gbs), &mine, &others)) return false;
    return say(out, "every step waits for it: leave the node out (--exclude)",
               "its memory gives %.1f GB/s, the others' mean is %.1f", mine, others);
}

static bool locking_limited(const struct host *h, struct finding *out)
{
    const struct facts_system *s = &h->first->system;
    if (best_port(s) == NULL || (double)s->locked_bytes_max >= LOCKED_LEAST_GIB * GIB) return false;
    return say(out, "ulimit -l unlimited, or PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
               "a process may lock %.1f MiB; the fast network needs more",
               (double)s->locked_bytes_max / (1 << 20));
}

/* --- disks and GPUs ------------------------------------------------------------------------- */

static bool disk_slow(const struct host *h, struct finding *out)
{
    const struct facts_measured *m = &h->first->measured;
    const double least = m->read_mbs < m->write_mbs ? m->read_mbs : m->write_mbs;
    if (h->f->directory == NULL || least <= 0 || least >= DISK_LEAST_MBS) return false;
    return say(out, "put checkpoints on the parallel file system or a local NVMe",
               "the folder reads %.0f and writes %.0f MB/s", m->read_mbs, m->write_mbs);
}

static bool disk_uneven(const struct host *h, struct finding *out)
{
    double mine, others;
    if (!below_others(h, offsetof(struct facts_measured, read_mbs), &mine, &others)) return false;
    return say(out, "look at its disk or mount; leave the node out (--exclude)",
               "the folder reads %.0f MB/s here, the other hosts' mean is %.0f", mine, others);
}

static bool gpus_hidden(const struct host *h, struct finding *out)
{
    if (h->node->n_gpus <= h->first->system.n_gpu_files) return false;
    return say(out, "ask for them (sbatch --gres=gpu:N), or load the driver (nvidia-smi)",
               "the host has %u GPUs, and %u can be opened here", h->node->n_gpus,
               h->first->system.n_gpu_files);
}

static bool hosts_differ(const struct host *h, struct finding *out)
{
    const struct topo *t = h->f->topo;
    const struct facts_rank *lead = &h->f->ranks[h->f->first[0]];
    const bool same_cpu = strcmp(lead->cpu, h->first->cpu) == 0;
    if (same_cpu && t->nodes[0].n_cores == h->node->n_cores) return false;
    return say(out, "ask for equal nodes (--constraint): a step takes as long as its slowest host",
               "%s with %u cores; the first host is %s with %u", h->first->cpu, h->node->n_cores,
               lead->cpu, t->nodes[0].n_cores);
}

/* --- the table ------------------------------------------------------------------------------ */

struct rule {
    const char *name;
    enum finding_kind kind;
    bool (*applies)(const struct host *h, struct finding *out);
};

static const struct rule rules[] = {
    {"cores-shared", FINDING_PROBLEM, cores_shared},
    {"cores-idle", FINDING_HINT, cores_idle},
    {"numa-spanned", FINDING_HINT, numa_spanned},
    {"others-run", FINDING_PROBLEM, others_run},
    {"cores-stolen", FINDING_PROBLEM, cores_stolen},
    {"governor-saves", FINDING_PROBLEM, governor_saves},
    {"frequency-low", FINDING_HINT, frequency_low},
    {"memory-limited", FINDING_HINT, memory_limited},
    {"swap-used", FINDING_PROBLEM, swap_used},
    {"numa-uneven", FINDING_HINT, numa_uneven},
    {"pages-small", FINDING_PROBLEM, pages_small},
    {"reads-slow", FINDING_HINT, reads_slow},
    {"memory-uneven", FINDING_PROBLEM, memory_uneven},
    {"shm-small", FINDING_PROBLEM, shm_small},
    {"link-slow", FINDING_PROBLEM, link_slow},
    {"link-uneven", FINDING_PROBLEM, link_uneven},
    {"port-down", FINDING_HINT, port_down},
    {"locking-limited", FINDING_PROBLEM, locking_limited},
    {"disk-slow", FINDING_PROBLEM, disk_slow},
    {"disk-uneven", FINDING_PROBLEM, disk_uneven},
    {"gpus-hidden", FINDING_HINT, gpus_hidden},
    {"hosts-differ", FINDING_HINT, hosts_differ},
};

size_t rules_count(void)
{
    return sizeof rules / sizeof rules[0];
}

const char *rules_name(size_t i)
{
    return rules[i].name;
}

size_t rules_apply(const struct facts *f, struct finding *out, size_t most)
{
    size_t n = 0;
    for (size_t i = 0; i < rules_count(); i++) {
        for (uint32_t host = 0; host < f->topo->n_nodes && n < most; host++) {
            const struct host h = {.f = f,
                                   .node = &f->topo->nodes[host],
                                   .first = &f->ranks[f->first[host]],
                                   .index = host};
            struct finding *found = &out[n];
            *found = (struct finding){.kind = rules[i].kind, .rule = rules[i].name};
            snprintf(found->host, sizeof found->host, "%s", h.node->name);
            n += rules[i].applies(&h, found);
        }
    }
    return n;
}
