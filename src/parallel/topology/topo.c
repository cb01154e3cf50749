/* Makes a topology from a description, or from the entries that the ranks of a running job
 * gathered. */
#include "parallel/topology/topo.h"

#include "base/file.h"
#include "base/mem.h"
#include "parallel/topology/topo_private.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const uint64_t default_memory_bytes = 256ull << 30;

void topo_destroy(struct topo **t)
{
    if (*t == NULL) return;
    mem_free(&(*t)->nodes);
    mem_free(&(*t)->ranks);
    mem_free(t);
}

static struct status topo_create(uint32_t n_nodes, uint32_t n_ranks, struct topo **out)
{
    struct topo *t = NULL;
    struct status st;
    *out = NULL;
    TRY_GOTO(st, mem_alloc(&t, 1, sizeof *t, "topology"), done);
    TRY_GOTO(st, mem_alloc(&t->nodes, n_nodes, sizeof *t->nodes, "nodes"), destroy);
    TRY_GOTO(st, mem_alloc(&t->ranks, n_ranks, sizeof *t->ranks, "ranks"), destroy);
    t->n_nodes = n_nodes;
    t->n_ranks = n_ranks;
    *out = t;
    return st;
destroy:
    topo_destroy(&t);
done:
    return st;
}

/* Numbers the ranks within each host, in the launcher's order. */
static struct status count_local(struct topo *t)
{
    uint32_t *n = NULL;
    TRY(mem_alloc(&n, t->n_nodes, sizeof *n, "ranks per host"));
    for (uint32_t r = 0; r < t->n_ranks; r++) t->ranks[r].local_rank = n[t->ranks[r].host]++;
    for (uint32_t r = 0; r < t->n_ranks; r++) t->ranks[r].n_local_ranks = n[t->ranks[r].host];
    mem_free(&n);
    return status_ok();
}

/* --- gathered from a running job ---------------------------------------------------------- */

static uint32_t find_node(const struct topo *t, uint32_t n_nodes, const char *name)
{
    for (uint32_t i = n_nodes; i-- > 0;) {
        /* begins with the last node, because launchers place ranks host by host */
        if (strcmp(t->nodes[i].name, name) == 0) return i;
    }
    return n_nodes;
}

struct status topo_join(const struct topo_self *selves, uint32_t n_ranks, struct topo **out)
{
    struct topo *t;
    *out = NULL;
    TRY(topo_create(n_ranks, n_ranks, &t));
    uint32_t n_nodes = 0;
    for (uint32_t r = 0; r < n_ranks; r++) {
        struct topo_node node = selves[r].node;
        node.name[sizeof node.name - 1] = '\0';
        const uint32_t host = find_node(t, n_nodes, node.name);
        if (host == n_nodes) t->nodes[n_nodes++] = node;
        t->ranks[r] = selves[r].rank;
        t->ranks[r].host = host;
    }
    t->n_nodes = n_nodes;
    const struct status st = count_local(t);
    if (status_failed(&st)) topo_destroy(&t);
    *out = t;
    return st;
}

/* --- described ---------------------------------------------------------------------------- */

enum { SYNTHETIC_THREADS_MAX = 4096 }; /* hwloc takes minutes for 16,000 */

/* A parsed description: a list of XML files, or one synthetic machine many times. */
struct description {
    uint32_t n_nodes;
    char *synthetic; /* owned; NULL: XML files */
    char **files;    /* owned, [n_nodes], sorted */
};

static void description_fini(struct description *d)
{
    if (d->files != NULL) {
        for (uint32_t i = 0; i < d->n_nodes; i++) mem_free(&d->files[i]);
    }
    mem_free(&d->files);
    mem_free(&d->synthetic);
}

/* Returns the hardware threads of a synthetic machine: the product of its levels' numbers; text in
 * brackets does not count. */
static double threads_of(const char *levels)
{
    double product = 1;
    int depth = 0;
    for (const char *c = levels; *c != '\0'; c++) {
        depth += (*c == '(' || *c == '[') - (*c == ')' || *c == ']');
        const bool begins = c == levels || c[-1] == ' ' || c[-1] == ':';
        const double n = depth == 0 && begins && *c >= '0' && *c <= '9' ? strtod(c, NULL) : 1;
        if (n > 1) product *= n;
    }
    return product;
}

/* Parses `16x"pack:2 ..."`, `16 x pack:2 ...` or `pack:2 ...`. */
static struct status parse_synthetic(const char *spec, struct description *out)
{
    char *end;
    const char *text = spec;
    const unsigned long n = strtoul(spec, &end, 10);
    end += strspn(end, " ");
    out->n_nodes = 1;
    if (end != spec && (*end == 'x' || *end == 'X' || *end == '*')) {
        if (spec[strspn(spec, " ")] == '-' || n == 0 || n > TOPO_RANKS_MAX) {
            return status_make(STATUS_USAGE, "topology \"%.200s\": expected 1 to %d nodes", spec,
                               TOPO_RANKS_MAX);
        }
        out->n_nodes = (uint32_t)n;
        text = end + 1;
    }
    text += strspn(text, " \"'");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \"'\n", text[length - 1]) != NULL) length--;
    if (threads_of(text) > SYNTHETIC_THREADS_MAX)
        return status_make(STATUS_USAGE,
                           "topology \"%.200s\": expected at most %d hardware threads a node", spec,
                           SYNTHETIC_THREADS_MAX);
    return mem_strndup(&out->synthetic, text, length);
}

static int topo_compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_xml(const char *name)
{
    const size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".xml") == 0;
}

/* Adds the folder's *.xml files; refuses *.xml entries that are not regular files. */
static struct status add_files(const char *folder, DIR *dir, struct description *out)
{
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        if (!is_xml(entry->d_name)) continue;
        if (out->n_nodes == TOPO_RANKS_MAX) {
            return status_make(STATUS_USAGE, "%s: more than %d XML files", folder, TOPO_RANKS_MAX);
        }
        TRY(mem_grow(&out->files, out->n_nodes, out->n_nodes + 1, sizeof *out->files, folder));
        TRY(file_join(folder, entry->d_name, &out->files[out->n_nodes]));
        out->n_nodes++;
        if (!file_exists(out->files[out->n_nodes - 1])) {
            return status_make(STATUS_USAGE, "%s: expected a regular file",
                               out->files[out->n_nodes - 1]);
        }
    }
    if (out->n_nodes == 0) {
        return status_make(STATUS_USAGE,
                           "%s: expected hwloc XML files (*.xml), one per node, found "
                           "none",
                           folder);
    }
    qsort(out->files, out->n_nodes, sizeof *out->files, topo_compare_names);
    return status_ok();
}

static struct status parse_folder(const char *folder, struct description *out)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) return status_make(STATUS_USAGE, "%s: the folder cannot be read", folder);
    const struct status st = add_files(folder, dir, out);
    closedir(dir);
    return st;
}

/* Returns the number of ranks on node i: its share of n_ranks, or one per GPU or NUMA node when
 * n_ranks is 0. */
static uint32_t ranks_on(uint32_t n_ranks, uint32_t n_nodes, uint32_t i, const struct topo_node *n)
{
    if (n_ranks > 0) return n_ranks / n_nodes + (i < n_ranks % n_nodes);
    if (n->n_gpus > 0) return n->n_gpus;
    return n->n_numa > 0 ? n->n_numa : 1;
}

struct describe_job {
    const struct description *d;
    uint32_t n_ranks, gpus_per_node;
    uint64_t memory_bytes;
};

/* Replaces the node's GPUs by job->gpus_per_node GPUs at unknown places. */
static void forget_gpus(struct topo_node *node, const struct describe_job *job)
{
    node->n_gpus = job->gpus_per_node;
    memset(node->gpus, 0, sizeof node->gpus);
    for (int i = 0; i < TOPO_GPUS_MAX; i++) node->gpus[i].numa = -1;
}

static struct status load_node(const struct describe_job *job, uint32_t i, hwloc_topology_t *h,
                               struct topo_node *node)
{
    const struct description *d = job->d;
    TRY(topo_load(d->synthetic, d->files != NULL ? d->files[i] : NULL, h));
    topo_read_node(*h, node);
    snprintf(node->name, sizeof node->name, "node%u", i);
    /* whether the description gives the memory's size; for a synthetic machine without it, hwloc
     * assumes 1 GiB for each NUMA node */
    const bool said =
        d->synthetic == NULL ? node->memory_bytes > 0 : strstr(d->synthetic, "memory=") != NULL;
    node->memory_is_assumed = !said && job->memory_bytes == 0;
    if (!said) node->memory_bytes = default_memory_bytes;
    if (job->memory_bytes > 0) node->memory_bytes = job->memory_bytes;
    if (job->gpus_per_node > 0 && job->gpus_per_node != node->n_gpus) forget_gpus(node, job);
    return status_ok();
}

/* Places n ranks on a machine so that they share its cores evenly, in the order of the cores. */
static struct status place_ranks(hwloc_topology_t h, uint32_t n, struct topo_rank *out)
{
    hwloc_cpuset_t set = hwloc_bitmap_alloc();
    if (set == NULL) return status_make(STATUS_MEMORY, "hwloc: no memory for a CPU set");
    const hwloc_const_cpuset_t all = hwloc_topology_get_topology_cpuset(h);
    struct topo_rank whole;
    struct status st;
    TRY_GOTO(st, topo_read_place(h, all, &whole), free_set);
    uint32_t at = 0;
    hwloc_obj_t core = topo_next_core(h, all, NULL);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t begin, end;
        topo_share(whole.n_cores, n, i, &begin, &end);
        for (; at < begin; at++) core = topo_next_core(h, all, core);
        hwloc_bitmap_zero(set);
        hwloc_obj_t o = core;
        for (uint32_t c = begin; c < end && o != NULL; c++, o = topo_next_core(h, all, o)) {
            hwloc_bitmap_or(set, set, o->cpuset);
        }
        TRY_GOTO(st, topo_read_place(h, set, &out[i]), free_set);
    }
free_set:
    hwloc_bitmap_free(set);
    return st;
}

static struct status count_ranks(const struct describe_job *job, const struct topo_node *nodes,
                                 uint32_t *out)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < job->d->n_nodes; i++) {
        n += ranks_on(job->n_ranks, job->d->n_nodes, i, &nodes[i]);
    }
    if (n > TOPO_RANKS_MAX) {
        return status_make(STATUS_USAGE, "%llu ranks, expected at most %d", (unsigned long long)n,
                           TOPO_RANKS_MAX);
    }
    *out = (uint32_t)n;
    return status_ok();
}

/* Reads nodes[n_nodes] one after the other; a synthetic machine is read once and copied. */
static struct status read_nodes(const struct describe_job *job, struct topo_node *nodes)
{
    for (uint32_t i = 0; i < job->d->n_nodes; i++) {
        if (i > 0 && job->d->synthetic != NULL) {
            nodes[i] = nodes[0];
            snprintf(nodes[i].name, sizeof nodes[i].name, "node%u", i);
            continue;
        }
        hwloc_topology_t h;
        TRY(load_node(job, i, &h, &nodes[i]));
        hwloc_topology_destroy(h);
    }
    return status_ok();
}

/* Fills t->ranks, node after node. Copies the ranks of the node before when both nodes are
 * synthetic and have equally many ranks. */
static struct status read_ranks(const struct describe_job *job, struct topo *t)
{
    uint32_t at = 0, n_before = 0;
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const uint32_t n = ranks_on(job->n_ranks, t->n_nodes, i, &t->nodes[i]);
        if (n == 0) continue;
        if (i > 0 && job->d->synthetic != NULL && n == n_before) {
            memcpy(&t->ranks[at], &t->ranks[at - n], n * sizeof *t->ranks);
        } else {
            hwloc_topology_t h;
            struct topo_node node;
            TRY(load_node(job, i, &h, &node));
            const struct status st = place_ranks(h, n, &t->ranks[at]);
            hwloc_topology_destroy(h);
            if (status_failed(&st)) return st;
        }
        for (uint32_t k = 0; k < n; k++) t->ranks[at + k].host = i;
        n_before = n;
        at += n;
    }
    return count_local(t);
}

static struct status describe(const struct describe_job *job, struct topo **out)
{
    struct topo_node *nodes = NULL;
    struct topo *t = NULL;
    uint32_t n_ranks = 0;
    struct status st;
    TRY_GOTO(st, mem_alloc(&nodes, job->d->n_nodes, sizeof *nodes, "nodes"), done);
    TRY_GOTO(st, read_nodes(job, nodes), free_nodes);
    TRY_GOTO(st, count_ranks(job, nodes, &n_ranks), free_nodes);
    TRY_GOTO(st, topo_create(job->d->n_nodes, n_ranks, &t), free_nodes);
    memcpy(t->nodes, nodes, t->n_nodes * sizeof *nodes);
    st = read_ranks(job, t);
    if (status_failed(&st)) topo_destroy(&t);
free_nodes:
    mem_free(&nodes);
done:
    *out = t;
    return st;
}

struct status topo_describe(const char *spec, uint32_t n_ranks, uint32_t gpus_per_node,
                            uint64_t memory_per_node_bytes, struct topo **out)
{
    struct description d = {0};
    struct stat info;
    *out = NULL;
    const bool is_folder = stat(spec, &info) == 0 && S_ISDIR(info.st_mode);
    struct status st = is_folder ? parse_folder(spec, &d) : parse_synthetic(spec, &d);
    if (!status_failed(&st)) {
        const struct describe_job job = {&d, n_ranks, gpus_per_node, memory_per_node_bytes};
        st = describe(&job, out);
    }
    description_fini(&d);
    return st;
}
