/* Assigns the GPUs of a host to its ranks. */
#include "parallel/topology/gpu_place.h"

#include "base/mem.h"

#include <string.h>
#include <strings.h>

int32_t gpu_numa_of(const struct topo_node *n, const char *pci)
{
    for (uint32_t i = 0; i < n->n_gpus && i < TOPO_GPUS_MAX; i++) {
        if (strcasecmp(n->gpus[i].pci, pci) == 0) return n->gpus[i].numa;
    }
    return -1;
}

/* The state of the assignment. */
struct deal {
    const int32_t *gpu_numa;
    uint32_t n_gpus, least; /* ranks that every GPU gets at least */
    uint32_t n_more;        /* GPUs that may still get one rank more than `least` */
    uint32_t *load;         /* [n_gpus] */
};

/* Returns the GPU with the fewest ranks among those that may take another rank; with numa >= 0,
 * only among those on that NUMA node. Returns n_gpus when there is none. */
static uint32_t emptiest(const struct deal *d, int32_t numa)
{
    uint32_t found = d->n_gpus;
    for (uint32_t g = 0; g < d->n_gpus; g++) {
        const bool may = d->load[g] < d->least || (d->load[g] == d->least && d->n_more > 0);
        if (!may || (numa >= 0 && d->gpu_numa[g] != numa)) continue;
        if (found == d->n_gpus || d->load[g] < d->load[found]) found = g;
    }
    return found;
}

static void gpu_place_take(struct deal *d, uint32_t g)
{
    if (d->load[g]++ == d->least) d->n_more--;
}

struct status gpu_place(const int32_t *gpu_numa, uint32_t n_gpus, const int32_t *rank_numa,
                        uint32_t n_ranks, uint32_t *gpu_of)
{
    struct deal d = {.gpu_numa = gpu_numa,
                     .n_gpus = n_gpus,
                     .least = n_ranks / n_gpus,
                     .n_more = n_ranks % n_gpus};
    TRY(mem_alloc(&d.load, n_gpus, sizeof *d.load, "GPUs"));
    for (uint32_t r = 0; r < n_ranks; r++) {
        gpu_of[r] = rank_numa[r] >= 0 ? emptiest(&d, rank_numa[r]) : n_gpus;
        if (gpu_of[r] < n_gpus) gpu_place_take(&d, gpu_of[r]);
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (gpu_of[r] < n_gpus) continue;
        gpu_of[r] = emptiest(&d, -1);
        gpu_place_take(&d, gpu_of[r]);
    }
    mem_free(&d.load);
    return status_ok();
}

/* --- the plan's section --------------------------------------------------------------------- */

/* The ranks of one node, in the launcher's order. */
struct crew {
    int32_t *numa;    /* [n] a rank's NUMA node; below 0: unknown */
    uint32_t *rank;   /* [n] a rank's number in the layout */
    uint32_t *gpu_of; /* [n] the GPU that a rank gets */
    uint32_t n;
};

static void crew_fini(struct crew *c)
{
    mem_free(&c->numa);
    mem_free(&c->rank);
    mem_free(&c->gpu_of);
}

static struct status crew_fill(const struct topo *t, const uint32_t *order, uint32_t node,
                               struct crew *c)
{
    TRY(mem_alloc(&c->numa, t->n_ranks, sizeof *c->numa, "plan"));
    TRY(mem_alloc(&c->rank, t->n_ranks, sizeof *c->rank, "plan"));
    TRY(mem_alloc(&c->gpu_of, t->n_ranks, sizeof *c->gpu_of, "plan"));
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        const struct topo_rank *launched = &t->ranks[order[r]];
        if (launched->host != node) continue;
        c->numa[launched->local_rank] = launched->numa;
        c->rank[launched->local_rank] = r;
        c->n++;
    }
    return status_ok();
}

static void add_gpu(const struct topo_gpu *g, uint32_t number, const struct crew *c,
                    struct strbuf *out)
{
    const char *before = "";
    strbuf_printf(out, "  %3u  %-12s  ", number, g->pci[0] != '\0' ? g->pci : "-");
    if (g->numa >= 0) strbuf_printf(out, "%9d  ", g->numa);
    if (g->numa < 0) strbuf_printf(out, "%9s  ", "-");
    if (g->memory_bytes > 0)
        strbuf_printf(out, "%6.1f GiB  ", (double)g->memory_bytes / (double)(1ull << 30));
    if (g->memory_bytes == 0) strbuf_printf(out, "%10s  ", "-");
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->gpu_of[i] != number) continue;
        strbuf_printf(out, "%s%u", before, c->rank[i]);
        before = ", ";
    }
    strbuf_puts(out, before[0] == '\0' ? "-\n" : "\n");
}

static struct status add_node(const struct topo *t, const uint32_t *order, uint32_t node,
                              struct strbuf *out)
{
    const struct topo_node *n = &t->nodes[node];
    const uint32_t n_gpus = n->n_gpus < TOPO_GPUS_MAX ? n->n_gpus : TOPO_GPUS_MAX;
    int32_t gpu_numa[TOPO_GPUS_MAX];
    struct crew c = {.n = 0};
    struct status st;
    for (uint32_t g = 0; g < n_gpus; g++) gpu_numa[g] = n->gpus[g].numa;
    TRY_GOTO(st, crew_fill(t, order, node, &c), done);
    TRY_GOTO(st, gpu_place(gpu_numa, n_gpus, c.numa, c.n, c.gpu_of), done);
    strbuf_printf(out,
                  "\nGPUs of %s with --device cuda (a rank that sees only one GPU takes it)\n"
                  "  GPU  PCI bus id    NUMA node      memory  ranks\n",
                  n->name);
    for (uint32_t g = 0; g < n_gpus; g++) add_gpu(&n->gpus[g], g, &c, out);
done:
    crew_fini(&c);
    return st;
}

struct status gpu_report(const struct topo *t, const uint32_t *order, struct strbuf *out)
{
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const struct topo_node *n = &t->nodes[i];
        bool seen = n->n_gpus == 0;
        for (uint32_t k = 0; k < i && !seen; k++)
            seen = t->nodes[k].n_gpus == n->n_gpus &&
                   memcmp(t->nodes[k].gpus, n->gpus, sizeof n->gpus) == 0;
        if (!seen) TRY(add_node(t, order, i, out));
    }
    return status_ok();
}
