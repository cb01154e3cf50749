/* Launches attention: chooses the kernels and their grids. attention_mma.cu runs on tensor cores;
 * attention.cu runs in the CPU's arithmetic (DEVICE_EXACT), and wherever the tensor cores do not
 * fit (width_of). */
#include "base/mem.h"
#include "kernels/cuda/device_state.h"
#include "kernels/cuda/ops_cuda.h"

#include <assert.h>
#include <string.h>

enum {
    BLOCKS_ENOUGH = 1024, /* with fewer blocks than this, each tile gets its own block */
    SPLIT_BLOCKS = 8,     /* blocks per processor when tiles are divided among blocks */
    TILES_LEAST = 8,      /* tiles are divided only when the states of this many fit */
    TILES_MOST = 1024,    /* most tiles in one pass */
};

/* Returns the most tiles that any row of the step may see. */
static uint32_t most_tiles(const struct device *d, const struct attn_args *a)
{
    const uint32_t in_window = a->window / KV_BLOCK_TOKENS + 2;
    return a->window > 0 && in_window < d->n_tiles_max ? in_window : d->n_tiles_max;
}

/* Runs each tile of the rows as its own block, then folds the tiles' states row by row. */
static void attention_split(struct device *d, struct attention_work_cuda *w, uint32_t n_tiles)
{
    const uint32_t n_rows = (uint32_t)w->n_rows;
    w->n_tiles = n_tiles;
    const uint32_t shared = (KV_BLOCK_TOKENS + 2 * LANES) * sizeof(float);
    device_launch(d, CUDA_KERNEL_attention_tiles,
                  (struct cuda_grid){n_tiles, w->n_heads, n_rows, shared}, w);
    device_launch(d, CUDA_KERNEL_attention_fold, (struct cuda_grid){w->n_heads, n_rows, 1, shared},
                  w);
}

static void attention_as_cpu(struct device *d, const struct attn_args *a)
{
    struct attention_work_cuda w = {.q = a->q,
                                    .out = a->out,
                                    .kv = a->kv,
                                    .rows = d->rows,
                                    .n_rows = d->n_rows,
                                    .n_heads = a->n_heads,
                                    .window = a->window,
                                    .scale = a->scale,
                                    .softcap = a->softcap,
                                    .sinks = a->sinks,
                                    .states = d->states};
    memcpy(w.kv_of_head, a->kv_of_head, a->n_heads);
    const uint32_t n_tiles = most_tiles(d, a);
    const size_t state_bytes =
        (size_t)a->n_heads * n_tiles * (a->kv.head_dim + 2) * sizeof(float) * d->n_rows;
    const size_t n_blocks =
        (d->n_rows + CUDA_ATTENTION_ROWS - 1) / CUDA_ATTENTION_ROWS * a->n_heads;
    if (n_blocks < BLOCKS_ENOUGH && state_bytes <= STATES_BYTES && d->n_rows < UINT16_MAX &&
        n_tiles < UINT16_MAX) {
        attention_split(d, &w, n_tiles);
        return;
    }
    const uint32_t per_row = KV_BLOCK_TOKENS + 2 * LANES + 2;
    device_launch(d, CUDA_KERNEL_attention_rows,
                  (struct cuda_grid){
                      (uint32_t)((d->n_rows + CUDA_ATTENTION_ROWS - 1) / CUDA_ATTENTION_ROWS),
                      a->n_heads, 1, (uint32_t)(CUDA_ATTENTION_ROWS * per_row * sizeof(float))},
                  &w);
}

/* --- on tensor cores ------------------------------------------------------------------------- */

/* The kernels, by the widest head that they take. There is no `many` kernel beyond 128: its rows
 * would not fit into registers. */
struct width {
    uint32_t width;
    enum cuda_kernel few, many;
};
static const struct width widths[] = {
    {64, CUDA_KERNEL_attention_few_64, CUDA_KERNEL_attention_many_64},
    {96, CUDA_KERNEL_attention_few_96, CUDA_KERNEL_attention_many_96},
    {128, CUDA_KERNEL_attention_few_128, CUDA_KERNEL_attention_many_128},
    {192, CUDA_KERNEL_attention_few_192, CUDA_KERNEL_COUNT},
    {256, CUDA_KERNEL_attention_few_256, CUDA_KERNEL_COUNT},
};

/* Returns the tensor-core kernels for this head width; NULL if attention.cu must be used: with
 * DEVICE_EXACT, with a softcap, with a scale of 0 or less, with caches of f32 and bf16 (f16
 * operands would lose precision or range), and with heads wider than 256, such as latents (576). */
static const struct width *width_of(const struct device *d, const struct attn_args *a)
{
    const enum dtype t = a->kv.dtype;
    if (d->arithmetic == DEVICE_EXACT || a->softcap > 0 || !(a->scale > 0)) return NULL;
    if (t != DTYPE_F16 && t != DTYPE_I8 && t != DTYPE_F8_E4M3) return NULL;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        if (a->kv.head_dim <= widths[i].width) return &widths[i];
    return NULL;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Fills in heads_per_kv, skipped_heads and n_chunks. With tensor parallelism, the first and the
 * last kv head of a rank may have only some of their query heads here. */
static void find_heads(const struct attn_args *a, struct attention_mma_work *w)
{
    uint32_t run = 0, first_run = 0;
    w->heads_per_kv = 1;
    for (uint32_t h = 0; h < a->n_heads; h++) {
        run = h > 0 && a->kv_of_head[h] == a->kv_of_head[h - 1] ? run + 1 : 1;
        if (a->kv_of_head[h] == a->kv_of_head[0]) first_run = run;
        if (run > w->heads_per_kv) w->heads_per_kv = run;
    }
    w->skipped_heads = first_run < a->n_heads ? w->heads_per_kv - first_run : 0;
    for (uint32_t h = 0; h < a->n_heads; h++)
        assert(a->kv_of_head[h] == (h + w->skipped_heads) / w->heads_per_kv);
    w->n_chunks = (w->heads_per_kv + CUDA_ATTENTION_HEADS - 1) / CUDA_ATTENTION_HEADS;
}

/* Returns the number of blocks over heads: kv heads times the chunks of each kv head. */
static uint32_t kv_blocks(const struct attention_mma_work *w)
{
    return (w->n_heads + w->skipped_heads + w->heads_per_kv - 1) / w->heads_per_kv * w->n_chunks;
}

static uint32_t shared_bytes(const struct attention_mma_work *w, const struct width *width)
{
    return (w->q_rows + 2 * KV_BLOCK_TOKENS) * CUDA_ATTENTION_STRIDE(width->width);
}

/* Returns the rows of a block's query tile, a multiple of 16: positions times the heads that share
 * the block. */
static uint32_t q_rows(const struct attention_mma_work *w, uint32_t n_positions)
{
    const uint32_t n = n_positions * smaller(w->heads_per_kv, CUDA_ATTENTION_HEADS);
    return (n + 15) / 16 * 16;
}

/* Returns the number of tiles whose states fit for every row at once, besides the rows' totals; at
 * most TILES_MOST. */
static uint32_t tiles_that_fit(const struct device *d, const struct attention_mma_work *w)
{
    const size_t bytes = w->n_heads * (w->kv.head_dim + 2) * sizeof(float) * d->n_rows;
    const size_t n = STATES_BYTES / bytes;
    return n > 1 ? smaller((uint32_t)(n - 1), TILES_MOST) : 0;
}

/* Divides each row's tiles among several blocks and then folds the tiles' states. Each pass takes
 * as many tiles as fit into the memory for states. */
static void split_tiles(struct device *d, struct attention_mma_work *w, const struct width *width,
                        uint32_t n_tiles)
{
    const uint32_t n_rows = (uint32_t)d->n_rows, fit = tiles_that_fit(d, w);
    const uint32_t wanted = SPLIT_BLOCKS * d->facts.n_processors / (kv_blocks(w) * n_rows) + 1;
    w->q_rows = q_rows(w, 1);
    w->totals = d->states;
    w->states = d->states + (size_t)n_rows * w->n_heads * (w->kv.head_dim + 2);
    w->span = (n_tiles + wanted - 1) / wanted;
    for (uint32_t tile0 = 0; tile0 < n_tiles; tile0 += w->n_tiles) {
        w->tile0 = tile0;
        w->n_tiles = smaller(fit, n_tiles - tile0);
        const uint32_t z = (w->n_tiles + w->span - 1) / w->span;
        device_launch(d, width->few,
                      (struct cuda_grid){1, n_rows * kv_blocks(w), z, shared_bytes(w, width)}, w);
        device_launch(d, CUDA_KERNEL_attention_mma_fold,
                      (struct cuda_grid){w->n_heads, n_rows, 1, 3 * sizeof(float)}, w);
    }
}

/* Divides each sequence's rows into runs of up to `most` rows and returns the number of runs.
 * Within a sequence the last run comes first, because it sees the most tiles and takes longest.
 * With `runs` NULL it only counts. */
static size_t list_runs(const struct attn_args *a, uint32_t most, struct attention_run *runs)
{
    size_t n = 0;
    for (size_t s = 0; s < a->n_seqs; s++) {
        const struct seq_rows *q = &a->seqs[s];
        for (size_t left = q->n_rows; left > 0; n++) {
            const size_t n_rows = (left - 1) % most + 1;
            left -= n_rows;
            if (runs != NULL)
                runs[n] = (struct attention_run){(uint32_t)(q->row0 + left), (uint32_t)n_rows};
        }
    }
    return n;
}

static void put_runs(struct device *d, const struct attn_args *a, uint32_t most, size_t n,
                     struct attention_mma_work *w)
{
    struct attention_run *runs = NULL;
    const struct status st = mem_alloc(&runs, n, sizeof *runs, "rows of attention");
    if (status_failed(&st)) {
        if (!device_is_lost(d)) d->failed = st;
        return;
    }
    (void)list_runs(a, most, runs);
    w->runs = device_call(d, runs, n * sizeof *runs);
    mem_free(&runs);
}

/* Launches one block for each run of rows and chunk of heads; it walks all tiles of its rows. */
static void walk_tiles(struct device *d, const struct attn_args *a, struct attention_mma_work *w,
                       const struct width *width)
{
    const uint32_t heads = smaller(w->heads_per_kv, CUDA_ATTENTION_HEADS);
    size_t most = 0;
    for (size_t s = 0; s < a->n_seqs; s++)
        most = a->seqs[s].n_rows > most ? a->seqs[s].n_rows : most;
    const bool many = width->many != CUDA_KERNEL_COUNT && most * heads > CUDA_FEW_ROWS;
    const uint32_t rows = (many ? CUDA_MANY_ROWS : CUDA_FEW_ROWS) / heads;
    const size_t n = list_runs(a, rows, NULL);
    if (most > 1) put_runs(d, a, rows, n, w);
    w->q_rows = q_rows(w, most < rows ? (uint32_t)most : rows);
    device_launch(d, many ? width->many : width->few,
                  (struct cuda_grid){1, (uint32_t)n * kv_blocks(w), 1, shared_bytes(w, width)}, w);
}

static void attention_on_mma(struct device *d, const struct attn_args *a, const struct width *width)
{
    struct attention_mma_work w = {.q = a->q,
                                   .out = a->out,
                                   .kv = a->kv,
                                   .rows = d->rows,
                                   .n_heads = a->n_heads,
                                   .window = a->window,
                                   .scale_log2 = a->scale * CUDA_LOG2_E,
                                   .sinks = a->sinks};
    find_heads(a, &w);
    const uint32_t n_tiles = most_tiles(d, a);
    if (d->n_rows * kv_blocks(&w) < 2 * (size_t)d->facts.n_processors && n_tiles > 2 &&
        tiles_that_fit(d, &w) >= TILES_LEAST)
        split_tiles(d, &w, width, n_tiles);
    else
        walk_tiles(d, a, &w, width);
}

void op_attention_cuda(struct device *d, const struct attn_args *a)
{
    const struct width *width = width_of(d, a);
    assert(a->n_heads <= DEVICE_HEADS_MAX && a->kv.head_dim <= DEVICE_HEAD_DIM_MAX);
    if (a->n_heads == 0 || d->n_rows == 0 || device_is_lost(d)) return;
    d->rows_in_use = true;
    if (width != NULL)
        attention_on_mma(d, a, width);
    else
        attention_as_cpu(d, a);
}
