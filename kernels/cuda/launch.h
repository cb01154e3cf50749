/* The list of a device's kernels, and the arguments of each. All pointers point to device memory
 * unless said otherwise. Each *.cu beside this file has a few kernels. Their bodies are both C11
 * and CUDA, so that tests run them on the CPU. The C files beside them fill the arguments, and a
 * cuda_driver launches. */
#ifndef SHOAL_KERNELS_CUDA_LAUNCH_H
#define SHOAL_KERNELS_CUDA_LAUNCH_H

#include "kernels/device_limits.h"
#include "kernels/device_ops.h"
#include "kernels/ops.h"

/* Columns: name, argument struct */
#define CUDA_KERNELS(X)                                                                            \
    X(embed, embed_work)                                                                           \
    X(gather_rows, gather_work)                                                                    \
    X(rmsnorm, norm_work)                                                                          \
    X(rope_table, rope_table_args)                                                                 \
    X(rope_kv, rope_kv_work)                                                                       \
    X(kv_write, kv_write_work)                                                                     \
    X(attention_rows, attention_work_cuda)                                                         \
    X(attention_tiles, attention_work_cuda)                                                        \
    X(attention_fold, attention_work_cuda)                                                         \
    X(attention_few_64, attention_mma_work)                                                        \
    X(attention_few_96, attention_mma_work)                                                        \
    X(attention_few_128, attention_mma_work)                                                       \
    X(attention_few_192, attention_mma_work)                                                       \
    X(attention_few_256, attention_mma_work)                                                       \
    X(attention_many_64, attention_mma_work)                                                       \
    X(attention_many_96, attention_mma_work)                                                       \
    X(attention_many_128, attention_mma_work)                                                      \
    X(attention_mma_fold, attention_mma_work)                                                      \
    X(swiglu, swiglu_args)                                                                         \
    X(swiglu_clamped, swiglu_clamped_work)                                                         \
    X(sigmoid_rows, sigmoid_rows_work)                                                             \
    X(rope_tails, rope_tails)                                                                      \
    X(square_sums, square_sums_args)                                                               \
    X(norm_whole, norm_whole)                                                                      \
    X(place_rows, place_args)                                                                      \
    X(fill, fill_work)                                                                             \
    X(add, add_work)                                                                               \
    X(axpy, add_work)                                                                              \
    X(scale, add_work)                                                                             \
    X(clamp, add_work)                                                                             \
    X(softcap, add_work)                                                                           \
    X(xielu, xielu_work)                                                                           \
    X(add_bias, add_work)                                                                          \
    X(grid, grid_args)                                                                             \
    X(grid_words, grid_words_args)                                                                 \
    X(take_words, take_words_args)                                                                 \
    X(quantize, quantize_work)                                                                     \
    X(router, router_args)                                                                         \
    X(scatter_rows, scatter_args)                                                                  \
    X(combine_choices, combine_choices)                                                            \
    X(take_marks, marks_work)                                                                      \
    X(move_rows, move_work)                                                                        \
    X(linear, linear_work)                                                                         \
    X(linear_leaf, linear_work)                                                                    \
    X(linear_quant, linear_work)                                                                   \
    X(linear_quant_leaf, linear_work)                                                              \
    X(argmax, argmax_args)                                                                         \
    X(score, score_args)                                                                           \
    X(change_logits, change_logits_args)                                                           \
    X(pick, pick_args)                                                                             \
    X(linear_few, linear_work)                                                                     \
    X(linear_few_leaf, linear_work)                                                                \
    X(linear_groups, linear_work)                                                                  \
    X(linear_groups_leaf, linear_work)                                                             \
    X(linear_groups_list, linear_list_work)                                                        \
    X(linear_mma, linear_work)                                                                     \
    X(linear_mma_mid, linear_work)                                                                 \
    X(linear_mma_few, linear_work)                                                                 \
    X(linear_mma_fold, linear_work)                                                                \
    X(linear_half, linear_work)                                                                    \
    X(linear_half_mid, linear_work)                                                                \
    X(linear_half_few, linear_work)                                                                \
    X(linear_codes, linear_work)                                                                   \
    X(linear_codes_mid, linear_work)                                                               \
    X(linear_codes_few, linear_work)                                                               \
    X(half_rows, half_rows_work)                                                                   \
    X(gemm_few, gemm_few_work)                                                                     \
    X(gemm_round, gemm_round_work)                                                                 \
    X(gemm_leaves, gemm_leaves_work)                                                               \
    X(gemm_sums, gemm_sums_work)                                                                   \
    X(gemm_take, gemm_take_work)                                                                   \
    X(gemm_differ, gemm_differ_work)                                                               \
    X(gemm_pattern, gemm_pattern_work)                                                             \
    X(pack_rows, pack_work)                                                                        \
    X(pack_columns, pack_work)                                                                     \
    X(pack_quant, pack_work)

/* Linears with 16-bit operands. Columns: name, rows and outputs of a block, bytes of its shared
 * memory. */
#define CUDA_HALF_SHAPES(X)                                                                        \
    X(linear_half, 128, 128, 48 << 10)                                                             \
    X(linear_half_mid, 64, 64, 80 << 10)                                                           \
    X(linear_half_few, 16, 32, 72 << 10)                                                           \
    X(linear_codes, 64, 128, 40 << 10)                                                             \
    X(linear_codes_mid, 64, 64, 60 << 10)                                                          \
    X(linear_codes_few, 16, 32, 80 << 10)

/* Linears with quantized weights and rows, from the largest tile to the smallest; and the tile of
 * blocks that compute all leaves (K-blocks). */
#define CUDA_MMA_FOLD(X) X(linear_mma_fold, 64, 64, 54 << 10)
#define CUDA_MMA_SHAPES(X)                                                                         \
    X(linear_mma, 64, 128, 68 << 10)                                                               \
    X(linear_mma_mid, 64, 64, 54 << 10)                                                            \
    X(linear_mma_few, 32, 32, 62 << 10)

enum {
#define X(name, rows, outputs, shared_bytes)                                                       \
    CUDA_ROWS_##name = rows, CUDA_OUTPUTS_##name = outputs, CUDA_SHARED_##name = shared_bytes,
    CUDA_HALF_SHAPES(X) CUDA_MMA_SHAPES(X) CUDA_MMA_FOLD(X)
#undef X
};

enum cuda_kernel {
#define X(name, args) CUDA_KERNEL_##name,
    CUDA_KERNELS(X)
#undef X
        CUDA_KERNEL_COUNT
};

enum {
    CUDA_THREADS = 128,    /* threads of every block */
    CUDA_LINEAR_ROWS = 8,  /* rows of a block of linear, linear_quant, linear_few, linear_groups */
    CUDA_FEW_OUTPUTS = 32, /* linear_few: outputs of a block */
    CUDA_FEW_BYTES = 4096, /* linear_few: bytes of a panel (packed tile) fetched per step */
    CUDA_FEW_STAGES = 5,   /* linear_few: steps held in shared memory */
    CUDA_FEW_STRIDE = CUDA_FEW_BYTES + 32, /* bytes from panel to panel, so that banks differ */
    CUDA_FEW_SHARED = CUDA_FEW_STAGES * (CUDA_FEW_OUTPUTS / PANEL_COLUMNS) * CUDA_FEW_STRIDE,
    CUDA_GROUPS_SLICE = 32,  /* linear_groups: inputs of a slice, which one thread adds up */
    CUDA_GROUPS_SLOTS = 256, /* most slots in shared memory; slots: slices times rows */
    CUDA_GROUPS_SLOT = PANEL_COLUMNS * 12,  /* bytes of a slot: an i32 and two floats per output */
    CUDA_ROPE_HEADS = CUDA_THREADS / LANES, /* heads of a block of rope_kv */
    CUDA_LIST = 4,                          /* most linears of one launch */
    CUDA_ROUND_RUN = 4,                     /* gemm_round: elements of a thread */
    CUDA_GEMM_FEW_ROWS = 16,                /* gemm_few: most rows of a block */
    CUDA_GEMM_FEW_OUTPUTS = 32,             /* gemm_few: outputs of a block */
    CUDA_GEMM_FEW_STAGES = 8,               /* gemm_few: steps of 64 inputs held in shared memory */
    CUDA_GEMM_FEW_SHARED =
        CUDA_GEMM_FEW_STAGES * (CUDA_GEMM_FEW_ROWS + CUDA_GEMM_FEW_OUTPUTS) * 128,
    CUDA_HALF_RUN = 32,           /* 16-bit operands: leaves (K-blocks) are multiples of this */
    CUDA_ATTENTION_ROWS = 4,      /* rows of one block of attention_rows */
    CUDA_ATTENTION_HEADS = 64,    /* most heads of a block of attention_few and attention_many */
    CUDA_FEW_ROWS = 64,           /* attention_few: rows times heads, 16 for each of four warps */
    CUDA_MANY_ROWS = 128,         /* attention_many: rows times heads, 32 for each warp */
    CUDA_ARGMAX_SPAN = 4096,      /* logits of one block of argmax or score */
    CUDA_FILL_SPAN = 2048,        /* bytes of one block of fill */
    CUDA_NORM_MAX = 16 << 10,     /* width up to which rmsnorm holds a row in shared memory */
    CUDA_QUANTIZE_SPAN = 512,     /* elements of one block of quantize */
    CUDA_SHARED_MAX = 99 << 10,   /* shared memory of a block on every architecture from 8.0 on */
    CUDA_SHARED_PLAIN = 48 << 10, /* shared memory that a kernel may use without asking for more */
};

/* Bytes from one row of f16 to the next in shared memory. Eight neighbouring rows begin in
 * different banks. */
#define CUDA_ATTENTION_STRIDE(width) ((width)*2 + 16)

#define CUDA_LOG2_E 0x1.715476p+0f

/* The blocks of a launch, each of CUDA_THREADS threads. y < 2^31, and most kernels count rows by
 * it; x, z < 65536. CUDA allows so many blocks only in its x, so the driver and CUDA_KERNEL swap x
 * and y. */
struct cuda_grid {
    uint32_t x, y, z;
    uint32_t shared_bytes;
};

/* Positions and block tables of a step's rows. position and first_block are [T]. Filled once per
 * step. */
struct cuda_rows {
    const int32_t *position;    /* absolute */
    const int32_t *first_block; /* index in `blocks` where the row's block table begins */
    const int32_t *blocks;
};

/* h[T, D] = one row for each token: rows of w for tokens in [vocab0, vocab1), zeros for the
 * others. */
struct embed_work {
    struct packed w;
    const int32_t *tokens;
    uint32_t vocab0, vocab1;
    size_t n_rows;
    float *h;
};

struct gather_work { /* to[i] = from[rows[i]] */
    const float *from;
    const int32_t *rows;
    size_t n_rows, width;
    float *to;
};

/* The norm of a row; with codes.group > 0 its result is also quantized. */
struct norm_work {
    struct norm_args norm; /* `codes` is not read */
    struct quant_rows codes;
};

struct rope_kv_work {
    struct rope_kv_args args; /* `seqs` is not read */
    struct cuda_rows rows;
};

struct kv_write_work {
    const float *key, *value; /* value is NULL for latents */
    struct kv_view kv;
    struct cuda_rows rows;
    size_t n_rows;
};

/* Attention for rows [row0, row0 + n_rows) of the step. attention_tiles stores one state (m, l,
 * o[Hd]) for each row, head and tile; attention_fold folds a row's states from left to right. */
struct attention_work_cuda {
    const float *q;
    float *out;
    struct kv_view kv;
    struct cuda_rows rows;
    size_t row0, n_rows;
    uint32_t n_heads, window;
    float scale, softcap;
    const float *sinks; /* [H] or NULL */
    float *states;      /* [n_rows, H, n_tiles, Hd + 2] */
    uint32_t n_tiles;
    uint8_t kv_of_head[DEVICE_HEADS_MAX];
};

/* Consecutive rows of one sequence. */
struct attention_run {
    uint32_t row0, n_rows;
};

/* Attention on tensor cores (attention_mma.cu), for caches of f16, i8 or f8_e4m3 and head
 * dimensions up to the kernel's width. Heads of one kv head are consecutive: head h has kv head (h
 * + skipped_heads) / heads_per_kv. The heads of a kv head are divided into n_chunks chunks of up
 * to CUDA_ATTENTION_HEADS heads. Grid: x is 1, y is (run * kv heads + kv_head) * n_chunks + chunk,
 * so that the first runs of all kv heads begin first; z is a part of `span` tiles. With n_tiles >
 * 0, attention_few stores a state (m, l, o[Hd]) for each of n_tiles tiles per row, from tile0 on,
 * and attention_mma_fold folds these states into `totals`. */
struct attention_mma_work {
    const float *q;
    float *out;
    struct kv_view kv;
    struct cuda_rows rows;
    const struct attention_run *runs; /* NULL: each row from row0 on is a run of its own */
    size_t row0;
    uint32_t q_rows; /* rows of queries in a block's shared memory */
    uint32_t n_heads, heads_per_kv, skipped_heads, n_chunks, window;
    float scale_log2;   /* scale times log2(e) */
    const float *sinks; /* [H] or NULL */
    uint32_t n_tiles, tile0, span;
    float *states; /* [rows, H, n_tiles, Hd + 2] */
    float *totals; /* [rows, H, Hd + 2], folded from the tiles before tile0 */
};

/* gate = swiglu_clamped(gate, up), n elements. */
struct swiglu_clamped_work {
    float *gate;
    const float *up;
    size_t n;
    float alpha, limit;
};

struct xielu_work {
    float *x;
    size_t n;
    float law[4];
};

struct sigmoid_rows_work {
    float *x;
    const float *gate;
    size_t n_rows, n;
};

struct fill_work {
    void *p; /* a multiple of 4 */
    size_t n_bytes;
    int byte;
};

/* add: h += x. axpy: h = fma(w, x, h). scale: h *= w. clamp: h is clamped to [-w, w]. softcap: h =
 * w tanh(h / w). add_bias: x [width] is added to each row of h. */
struct add_work {
    float *h;
    const float *x;
    size_t n, width;
    float w;
};

struct quantize_work {
    const float *x;
    size_t x_stride, n_rows, n;
    struct quant_rows out;
};

struct marks_work {
    const int32_t *marks; /* [T, 2] */
    size_t n;
    int32_t *bad, *dropped;
};

/* Moves rows of `width` words: to[to_row[i]] = from[from_row[i]]. With `extra`, the word
 * extra[from_row[i]] follows each row of `to`. */
struct move_work {
    const uint32_t *from;
    const int32_t *from_row, *to_row;
    size_t n_rows, width, to_stride;
    const int32_t *extra;
    uint32_t *to;
};

/* Consecutive rows of one group, at most as many as one block of the kernel takes. */
struct linear_tile {
    uint32_t group, row0, n_rows;
};

struct linear_work {
    struct packed one;               /* the first group's weight; with weights NULL the only one */
    const struct packed *weights;    /* [groups] */
    const struct linear_tile *tiles; /* with weights; else blocks take rows from row0 on */
    size_t row0, n_rows;
    const float *x;
    size_t x_stride;
    struct quant_rows xq; /* x quantized; unused where x is multiplied as floats */
    uint32_t leaf0;       /* the leaf (K-block) of blocks with b.z = 0 */
    float *y;
    size_t y_stride;
    int64_t *sums;        /* zeroed before the launch; NULL (linear_mma_fold only): the values of
                             the sums go to y, and the rows' counters to bad */
    int32_t *bad;         /* with sums NULL: [rows] counters, added to */
    bool adds;            /* with sums NULL: the values are added to y */
    const uint16_t *half; /* x as 16-bit operands: rows from half_row0 on */
    size_t half_stride, half_row0;
    bool leafy;     /* tensor cores: the linear has leaves, which b.z counts (linear_mma_fold: a
                       block computes all of them) */
    uint32_t slots; /* linear_groups: slices times rows in shared memory */
};

/* Linears side by side: blocks with b.x from first[i] on compute part[i]. */
struct linear_list_work {
    uint32_t n, first[CUDA_LIST];
    struct linear_work part[CUDA_LIST];
};

/* to[row] = the n inputs of x[row], rounded to a 16-bit type and ordered for weights of this kind
 * (half_rows.cu), followed by zeros up to `stride`. */
struct half_rows_work {
    const float *x;
    size_t x_stride, n;
    enum dtype dtype;
    enum quant_kind kind;
    uint16_t *to;
    size_t stride; /* a multiple of CUDA_HALF_RUN */
};

/* The products of several linears with the same 16-bit rows: y[row][output] = the f32 sum over k
 * inputs. Product b.z of a batch begins b.z steps (x_step, w_step, y_step) after the first one. */
struct gemm_few_part {
    const void *w; /* [n_out, w_stride] */
    size_t w_stride, y_stride;
    float *y;
    uint32_t n_out, first; /* blocks with b.x from `first` on */
};

struct gemm_few_work {
    const void *x; /* [n_rows, x_stride] */
    size_t x_stride, k, x_step, w_step, y_step;
    uint32_t n_rows, n;
    enum dtype dtype;
    struct gemm_few_part part[CUDA_LIST];
};

/* Rounds rows of n floats to a type (to nearest even; beyond f16's range, to infinity), for a
 * library's product. */
struct gemm_round_work {
    const float *x;
    size_t x_stride, n;
    enum dtype dtype;
    void *to;
    size_t to_stride;
};

/* sums[row][o] += the grid integers of n_parts partial sums, which are `step` floats apart, with
 * rows `stride` apart. A partial sum beyond the grid adds 1 to sums[row][n_out] instead. */
struct gemm_leaves_work {
    const float *parts;
    size_t n_parts, step, stride, n_out;
    uint32_t grid_bits;
    int64_t *sums;
};

/* y = the value of the sum of n_parts partial sums (see gemm_leaves_work), or with `adds` y += it.
 * A partial sum beyond the grid adds 1 to bad[row] instead. */
struct gemm_sums_work {
    const float *parts;
    size_t n_parts, step, stride, n_out;
    uint32_t grid_bits;
    bool adds;
    float *y; /* rows n_out apart */
    int32_t *bad;
};

struct gemm_take_work { /* copies rows of n floats to another stride */
    const float *from;
    float *to;
    size_t from_stride, to_stride, n;
};

struct gemm_differ_work { /* *count += the words that differ between rows of a and b, n each */
    const uint32_t *a, *b;
    size_t a_stride, b_stride, n;
    int32_t *count;
};

struct gemm_pattern_work { /* fills rows of n elements with hashed values of both signs */
    void *to;
    enum dtype dtype;
    size_t stride, n;
    uint32_t seed;
};

/* Packs rows [row0, row0 + n_rows), each an output (pack_columns: an input), from `rows`. `part`
 * says which of the checkpoint's arrays they are from: quantized values, scales or zeros. */
struct pack_work {
    struct packed w; /* its memory is written */
    int part;        /* enum packed_part */
    size_t row0, n_rows, row_stride_bytes, n_columns;
    const void *rows;
};

#endif
