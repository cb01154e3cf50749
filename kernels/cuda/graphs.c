/* Holds launches back as a run, recognizes runs that it has seen before, and replays them as CUDA
 * graphs. Knows no op. */
#include "kernels/cuda/graphs.h"

#include "base/log.h"
#include "base/mem.h"
#include "kernels/cuda/device_state.h"

#include <string.h>

enum work_kind { WORK_LAUNCH, WORK_PRODUCT };

struct work {
    enum work_kind kind;
    enum cuda_kernel kernel;
    struct cuda_grid grid;
    uint32_t at, n_bytes; /* offset and size of the arguments in run.bytes */
};

struct run {
    struct work *works;
    char *bytes;
    size_t n, n_bytes;
};

/* A run that was seen before. */
struct known_run {
    struct run run; /* as its graph holds it now; empty before the graph is made */
    void **nodes;   /* [run.n] graph nodes; NULL for products */
    void *graph;    /* NULL: seen once, no graph yet */
    uint64_t used;
};

enum {
    PRODUCT_WORDS = 14,
    PRODUCTS_MAX = 512,
    /* A graph is changed when at most CHANGE_FEW + n / CHANGE_PART of a run's n launches differ;
     * otherwise another graph is made, up to GRAPHS_ALIKE. */
    CHANGE_FEW = 2,
    CHANGE_PART = 8,
};

struct graphs {
    bool on;
    struct run run;         /* the run being held back */
    uint64_t place, n_rows; /* runs since the step began; rows of the step */
    uint64_t clock, waited; /* runs so far; how many of them have ended */
    struct graphs_count count;
    uint64_t keys[GRAPHS_MAX];
    struct known_run known[GRAPHS_MAX];
    size_t n_known, n_nodes;
    uint64_t products[PRODUCTS_MAX][PRODUCT_WORDS]; /* product shapes that the library accepted */
};

static const size_t args_bytes[CUDA_KERNEL_COUNT] = {
#define X(name, args) sizeof(struct args),
    CUDA_KERNELS(X)
#undef X
};

/* --- creating and destroying -------------------------------------------------------------- */

struct status graphs_open(struct device *d, bool on)
{
    TRY(mem_alloc(&d->graphs, 1, sizeof *d->graphs, "launches"));
    struct graphs *g = d->graphs;
    g->on = on && d->driver->graph_begin != NULL;
    TRY(mem_alloc(&g->run.works, RUN_WORKS, sizeof *g->run.works, "launches"));
    return mem_alloc(&g->run.bytes, RUN_BYTES, 1, "launches");
}

static void forget(struct device *d, size_t i)
{
    struct graphs *g = d->graphs;
    struct known_run *k = &g->known[i];
    if (k->graph != NULL) {
        (void)d->driver->graph_destroy(k->graph);
        g->n_nodes -= k->run.n;
    }
    mem_free(&k->run.works);
    mem_free(&k->run.bytes);
    mem_free(&k->nodes);
    g->n_known--;
    g->known[i] = g->known[g->n_known];
    g->keys[i] = g->keys[g->n_known];
    g->known[g->n_known] = (struct known_run){.used = 0};
}

void graphs_close(struct device *d)
{
    struct graphs *g = d->graphs;
    if (g == NULL) return;
    if (!device_is_lost(d) && g->waited < g->clock) device_wait_stream(d);
    while (g->n_known > 0) forget(d, g->n_known - 1);
    mem_free(&g->run.works);
    mem_free(&g->run.bytes);
    mem_free(&d->graphs);
}

/* Switches graphs off. Graphs only save time, so after any failure with them launches are put on
 * the stream one by one. */
static void switch_off(struct device *d, int error, const char *what)
{
    struct graphs *g = d->graphs;
    g->on = false;
    log_line(LOG_WARN, "GPU %d: %s: %s: no graphs from now on, each kernel is launched by itself",
             d->index, what, d->driver->error_text(error));
}

struct graphs_count graphs_counted(const struct device *d)
{
    return d->graphs != NULL ? d->graphs->count : (struct graphs_count){.n_made = 0};
}

void graphs_step(struct device *d, size_t n_rows)
{
    d->graphs->place = 0;
    d->graphs->n_rows = n_rows;
}

void graphs_waited(struct device *d)
{
    d->graphs->waited = d->graphs->clock;
}

/* --- products -------------------------------------------------------------------------------- */

/* Writes a product's fields as words, so that padding between the fields is not compared. */
static void words_of(const struct cuda_gemm *g, bool with_arrays, uint64_t words[PRODUCT_WORDS])
{
    const uint64_t all[PRODUCT_WORDS] = {(uint64_t)g->dtype + 1,
                                         g->rows,
                                         g->n,
                                         g->k,
                                         g->x_stride,
                                         g->w_stride,
                                         g->y_stride,
                                         g->batch,
                                         g->x_step,
                                         g->w_step,
                                         ((uint64_t)g->algorithm << 32) ^ g->y_step,
                                         with_arrays ? (uintptr_t)g->x : 0,
                                         with_arrays ? (uintptr_t)g->w : 0,
                                         with_arrays ? (uintptr_t)g->y : 0};
    memcpy(words, all, sizeof all);
}

static uint64_t mixed(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_words(uint64_t hash, const uint64_t *words, size_t n)
{
    for (size_t i = 0; i < n; i++) hash = mixed(hash, words[i]);
    return hash;
}

/* Returns the table entry for products of this shape, whether it is filled or not; fills `words`
 * with the shape. */
static uint64_t *product_place(struct graphs *g, const struct cuda_gemm *p,
                               uint64_t words[PRODUCT_WORDS])
{
    words_of(p, false, words);
    return g->products[hash_words(0, words, PRODUCT_WORDS) % PRODUCTS_MAX];
}

static bool same_product(const void *a, const void *b)
{
    uint64_t x[PRODUCT_WORDS], y[PRODUCT_WORDS];
    struct cuda_gemm p, q;
    memcpy(&p, a, sizeof p);
    memcpy(&q, b, sizeof q);
    words_of(&p, true, x);
    words_of(&q, true, y);
    return memcmp(x, y, sizeof x) == 0;
}

/* --- runs ------------------------------------------------------------------------------------ */

static void hold(struct device *d, struct work w, const void *args)
{
    struct run *r = &d->graphs->run;
    if (r->n == RUN_WORKS || r->n_bytes + w.n_bytes > RUN_BYTES) graphs_flush(d);
    w.at = (uint32_t)r->n_bytes;
    memcpy(r->bytes + r->n_bytes, args, w.n_bytes);
    r->n_bytes += (w.n_bytes + 15u) / 16 * 16;
    r->works[r->n++] = w;
    if (!d->graphs->on) graphs_flush(d);
}

void device_launch(struct device *d, enum cuda_kernel kernel, struct cuda_grid grid,
                   const void *args)
{
    if (device_is_lost(d) || grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    hold(d,
         (struct work){.kind = WORK_LAUNCH,
                       .kernel = kernel,
                       .grid = grid,
                       .n_bytes = (uint32_t)args_bytes[kernel]},
         args);
}

void device_fill(struct device *d, void *p, int byte, size_t n_bytes)
{
    const struct fill_work w = {p, n_bytes, byte};
    const size_t n_blocks = (n_bytes + CUDA_FILL_SPAN - 1) / CUDA_FILL_SPAN;
    device_launch(d, CUDA_KERNEL_fill, (struct cuda_grid){1, (uint32_t)n_blocks, 1, 0}, &w);
}

/* Holds a product back like a launch if the library accepted its shape before. Runs a product of a
 * new shape at once, because the caller must learn whether the library has it. */
bool device_product(struct device *d, const struct cuda_gemm *p)
{
    uint64_t words[PRODUCT_WORDS];
    if (device_is_lost(d)) return true;
    uint64_t *place = product_place(d->graphs, p, words);
    if (memcmp(place, words, sizeof words) == 0) {
        hold(d, (struct work){.kind = WORK_PRODUCT, .n_bytes = sizeof *p}, p);
        return true;
    }
    graphs_flush(d);
    if (device_is_lost(d)) return true;
    const int error = d->driver->gemm_run(d->gemm.library, p);
    if (error == CUDA_GEMM_NONE) return false;
    if (!device_failed(d, error, "a product")) memcpy(place, words, sizeof words);
    return true;
}

static int put(struct device *d, const struct run *r, const struct work *w)
{
    const void *args = r->bytes + w->at;
    if (w->kind == WORK_LAUNCH) return d->driver->launch(w->kernel, w->grid, args, d->stream);
    struct cuda_gemm p;
    memcpy(&p, args, sizeof p);
    return d->driver->gemm_run(d->gemm.library, &p);
}

static void put_all(struct device *d, const struct run *r)
{
    for (size_t i = 0; i < r->n && !device_is_lost(d); i++) {
        const int error = put(d, r, &r->works[i]);
        if (error == CUDA_GEMM_NONE)
            d->failed = status_make(STATUS_LOST, "GPU %d (%s): %s takes a product no more",
                                    d->index, d->facts.name, d->gemm.name);
        else
            (void)device_failed(
                d, error, r->works[i].kind == WORK_LAUNCH ? "starting a kernel" : "a product");
    }
    d->graphs->count.n_plain += r->n;
}

/* --- graphs ---------------------------------------------------------------------------------- */

/* Returns a hash of the step's number of rows and of the run: its place in the step, its kernels
 * and the shapes of its products, but not of grids, arguments or array addresses. */
static uint64_t key_of(const struct graphs *g)
{
    const struct run *r = &g->run;
    uint64_t words[PRODUCT_WORDS];
    uint64_t key = mixed(mixed(g->place, g->n_rows), r->n);
    for (size_t i = 0; i < r->n; i++) {
        key = mixed(key, (uint64_t)r->works[i].kind << 32 | (uint64_t)r->works[i].kernel);
        if (r->works[i].kind != WORK_PRODUCT) continue;
        struct cuda_gemm p;
        memcpy(&p, r->bytes + r->works[i].at, sizeof p);
        words_of(&p, false, words);
        key = hash_words(key, words, PRODUCT_WORDS);
    }
    return key;
}

static bool same_args(const struct run *a, const struct work *x, const struct run *b,
                      const struct work *y)
{
    return memcmp(&x->grid, &y->grid, sizeof x->grid) == 0 &&
           memcmp(a->bytes + x->at, b->bytes + y->at, x->n_bytes) == 0;
}

/* Returns the number of launches that differ in grid or arguments. SIZE_MAX: a graph of run a
 * cannot be changed into one of run b. */
static size_t count_different(const struct run *a, const struct run *b)
{
    size_t n = 0;
    if (a->n != b->n) return SIZE_MAX;
    for (size_t i = 0; i < a->n; i++) {
        const struct work *x = &a->works[i], *y = &b->works[i];
        if (x->kind != y->kind || x->kernel != y->kernel) return SIZE_MAX;
        const bool same = x->kind == WORK_PRODUCT ? same_product(a->bytes + x->at, b->bytes + y->at)
                                                  : same_args(a, x, b, y);
        if (!same && x->kind != WORK_LAUNCH) return SIZE_MAX;
        n += !same;
    }
    return n;
}

/* The known runs that have the key of the run that is held back. */
struct found {
    struct known_run *seen, *nearest, *oldest; /* seen: without a graph yet; nearest: fewest
                                                  differences; oldest: least recently used */
    size_t n_different, n_alike;
};

static struct found find_run(struct graphs *g, uint64_t key)
{
    struct found f = {.n_different = SIZE_MAX};
    for (size_t i = 0; i < g->n_known; i++) {
        if (g->keys[i] != key) continue;
        struct known_run *k = &g->known[i];
        if (k->graph == NULL) {
            f.seen = k;
            continue;
        }
        const size_t n = count_different(&g->run, &k->run);
        f.n_alike++;
        if (f.oldest == NULL || k->used < f.oldest->used) f.oldest = k;
        if (n < f.n_different ||
            (n == f.n_different && n != SIZE_MAX && k->used < f.nearest->used)) {
            f.nearest = k;
            f.n_different = n;
        }
    }
    return f;
}

/* Drops a known run; waits first if its graph may still be running. */
static void let_go(struct device *d, struct known_run *k)
{
    if (k->graph != NULL && k->used > d->graphs->waited) device_wait_put(d);
    forget(d, (size_t)(k - d->graphs->known));
}

/* Makes room for one more run of n nodes by dropping the least recently used runs. */
static void make_room(struct device *d, size_t n)
{
    struct graphs *g = d->graphs;
    while (g->n_known == GRAPHS_MAX || (g->n_known > 0 && g->n_nodes + n > GRAPH_NODES_MAX)) {
        struct known_run *oldest = &g->known[0];
        for (size_t i = 1; i < g->n_known; i++)
            if (g->known[i].used < oldest->used) oldest = &g->known[i];
        let_go(d, oldest);
    }
}

static struct known_run *remember(struct device *d, uint64_t key)
{
    struct graphs *g = d->graphs;
    make_room(d, 0);
    g->keys[g->n_known] = key;
    struct known_run *k = &g->known[g->n_known++];
    *k = (struct known_run){.used = g->clock + 1};
    return k;
}

static struct status copy_run(struct known_run *k, const struct run *r)
{
    TRY(mem_alloc(&k->nodes, r->n, sizeof *k->nodes, "a graph"));
    TRY(mem_alloc(&k->run.works, r->n, sizeof *k->run.works, "a graph"));
    TRY(mem_alloc(&k->run.bytes, r->n_bytes, 1, "a graph"));
    memcpy(k->run.works, r->works, r->n * sizeof *r->works);
    memcpy(k->run.bytes, r->bytes, r->n_bytes);
    k->run.n = r->n;
    k->run.n_bytes = r->n_bytes;
    return status_ok();
}

/* Captures the run as a graph. */
static int record(struct device *d, struct known_run *k)
{
    int error = d->driver->graph_begin(d->stream);
    if (error != 0) return error;
    for (size_t i = 0; i < k->run.n && error == 0; i++) {
        error = put(d, &k->run, &k->run.works[i]);
        if (error == 0 && k->run.works[i].kind == WORK_LAUNCH)
            error = d->driver->graph_node(d->stream, &k->nodes[i]);
    }
    const int ended = d->driver->graph_end(d->stream, &k->graph);
    if (error != 0 && k->graph != NULL) (void)d->driver->graph_destroy(k->graph);
    if (error != 0) k->graph = NULL;
    return error != 0 ? error : ended;
}

/* Makes the graph of the run that is held back, for its entry k. False: there is no graph, and k
 * was dropped. */
static bool make_graph(struct device *d, struct known_run *k)
{
    struct graphs *g = d->graphs;
    const struct status st = copy_run(k, &g->run);
    const int error = status_failed(&st) ? 0 : record(d, k);
    if (k->graph == NULL) {
        if (error != 0) switch_off(d, error, "making a graph");
        forget(d, (size_t)(k - g->known));
        return false;
    }
    g->n_nodes += k->run.n;
    g->count.n_made++;
    return true;
}

/* Changes the launches in k's graph to those of the run that is held back. */
static bool change(struct device *d, struct known_run *k)
{
    struct graphs *g = d->graphs;
    for (size_t i = 0; i < k->run.n; i++) {
        const struct work *now = &g->run.works[i];
        struct work *then = &k->run.works[i];
        if (now->kind != WORK_LAUNCH || same_args(&g->run, now, &k->run, then)) continue;
        const int error = d->driver->graph_change(k->graph, k->nodes[i], now->kernel, now->grid,
                                                  g->run.bytes + now->at);
        if (error != 0) {
            switch_off(d, error, "changing a graph");
            return false;
        }
        then->grid = now->grid;
        memcpy(k->run.bytes + then->at, g->run.bytes + now->at, now->n_bytes);
        g->count.n_changed++;
    }
    return true;
}

/* Returns the graph for the run that is held back; NULL: none, or not yet. A run becomes a graph
 * when it is seen for the second time: its kernels have then run once, and capturing loads no
 * code. */
static struct known_run *graph_for(struct device *d)
{
    struct graphs *g = d->graphs;
    const uint64_t key = key_of(g);
    const struct found f = find_run(g, key);
    const bool is_full = f.n_alike >= GRAPHS_ALIKE;
    if (f.nearest != NULL && (is_full || f.n_different <= CHANGE_FEW + g->run.n / CHANGE_PART))
        return change(d, f.nearest) ? f.nearest : NULL;
    if (is_full) let_go(d, f.oldest);
    if (is_full || (f.seen == NULL && f.n_alike == 0)) {
        (void)remember(d, key);
        return NULL;
    }
    if (f.seen != NULL) forget(d, (size_t)(f.seen - g->known));
    make_room(d, g->run.n);
    struct known_run *k = remember(d, key);
    return make_graph(d, k) ? k : NULL;
}

static bool run_graph(struct device *d)
{
    struct graphs *g = d->graphs;
    if (!g->on || g->n_rows == 0 || g->run.n < GRAPH_WORKS_LEAST) return false;
    struct known_run *k = graph_for(d);
    if (k == NULL) return false;
    k->used = g->clock + 1;
    const int error = d->driver->graph_launch(k->graph, d->stream);
    if (error != 0) {
        switch_off(d, error, "launching a graph");
        return false;
    }
    g->count.n_replayed++;
    g->count.n_in_graphs += g->run.n;
    return true;
}

void graphs_flush(struct device *d)
{
    struct graphs *g = d->graphs;
    if (g == NULL || g->run.n == 0) return;
    device_send_calls(d);
    if (!device_is_lost(d) && !run_graph(d)) put_all(d, &g->run);
    g->clock++; /* counted only now, so that a wait before this run does not count for it */
    g->place++;
    g->run.n = g->run.n_bytes = 0;
}
