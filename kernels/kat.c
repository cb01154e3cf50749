/* Known answers: runs the entries of a table on fixed inputs and hashes the results, so that a
 * compiler flag, a library or a CPU that changes one bit is noticed before the first request. When
 * a contract in kern.h changes, the new constant is the reference's hash; the error message prints
 * it. kat_sequence.c runs the ops that read a sequence's past, this file the others. */
#include "kernels/kat.h"

#include "kernels/elementary.h"
#include "kernels/fpenv.h"
#include "kernels/kat_private.h"
#include "kernels/ops.h"
#include "kernels/quant_body.h"

#include <assert.h>
#include <string.h>

enum {
    LEAF = 32,
    GRID_BITS = 32,
    EXPERTS = 19,
    CHOSEN = 3,
    QUANT_INS = 203,    /* inputs of quantized weights: every group size has a short last group */
    QUANT_FEW_ROWS = 7, /* rows of the kernel's first call; its second has the others: two tiles of
                           16, and a row */
    QUANT_MAX_GROUPS = 8, /* with 32 inputs in a group; larger groups are fewer */
};
static_assert(QUANT_ROWS == QUANT_FEW_ROWS + 33, "the rest has two tiles of 16, and one row");
static_assert(CACHE >= OUTS_PADDED * INS, "the packed weight fits");
static_assert(CACHE >= OUTS_PADDED * QUANT_MAX_GROUPS * 8, "quantized: a quarter of its floats");
static_assert(CACHE >= QUANT_ROWS * QUANT_INS, "rows for quantized weights fit");

uint64_t kat_hash(uint64_t h, const void *data, size_t n_bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n_bytes; i++) h = (h ^ p[i]) * 0x100000001B3u; /* FNV-1a */
    return h;
}

void kat_fill(uint64_t seed, float *x, size_t n, float magnitude)
{
    uint64_t s = seed;
    for (size_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(int32_t)(s >> 32) * 0x1p-31f * magnitude;
    }
}

/* Hashes the linear of one type: first one row, then all rows. */
static uint64_t linear(struct kat_bench *b, enum dtype t, uint32_t leaf)
{
    uint64_t h = kat_hash_start;
    kat_fill(1, b->x, ROWS * INS, 3.0f);
    kat_fill(2, b->w, OUTS_PADDED * INS, 1.0f);
    dtype_from_f32(t, b->w, OUTS_PADDED * INS, b->data);
    const struct packed w = {.dtype = t,
                             .n_out = OUTS,
                             .n_in = INS,
                             .leaf = leaf,
                             .grid_bits = GRID_BITS,
                             .data = b->data};
    for (size_t n_rows = 1; n_rows <= ROWS; n_rows += ROWS - 1) {
        const struct linear_group group = {&w, 0, n_rows};
        const struct linear_args a = {.groups = &group,
                                      .n_groups = 1,
                                      .x = b->x,
                                      .x_stride = INS,
                                      .y = b->y,
                                      .y_stride = OUTS_PADDED,
                                      .sums = b->sums};
        memset(b->y, 0, sizeof b->y);
        memset(b->sums, 0, sizeof b->sums);
        const struct linear_slice all = {.panel1 = OUTS_PADDED / 16, .row1 = n_rows};
        (leaf > 0 ? b->t->linear_leaf : b->t->linear)[t](&a, &all);
        h = kat_hash(h, b->y, ROWS * OUTS_PADDED * sizeof *b->y);
        h = kat_hash(h, b->sums, ROWS * (OUTS + 1) * sizeof *b->sums);
    }
    return h;
}

static uint64_t kat_linear(struct kat_bench *b, enum dtype t)
{
    return linear(b, t, 0);
}

static uint64_t kat_linear_leaf(struct kat_bench *b, enum dtype t)
{
    return linear(b, t, LEAF);
}

/* The formats of quantized weights that are checked. */
static const struct quant_format quant_formats[] = {
    {QUANT_INT8, false, DTYPE_F16, 0},   {QUANT_INT8, true, DTYPE_F32, 32},
    {QUANT_INT4, false, DTYPE_F16, 32},  {QUANT_INT4, true, DTYPE_F16, 64},
    {QUANT_MXFP4, false, DTYPE_F16, 32}, {QUANT_FP8, false, DTYPE_F32, 128},
    {QUANT_FP8, false, DTYPE_F16, 32},
};

/* Replaces the NaN codes of an fp8 weight and, in every second line of 64 bytes, the codes with
 * exponent 0. Lines with such codes and lines without take different conversion paths. */
static void usual_values(char *codes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if ((codes[i] & 0x7F) == 0x7F) codes[i] ^= 1;
        if (i / 64 % 2 == 0 && (codes[i] & 0x78) == 0) codes[i] |= 0x20;
    }
}

/* Fills a weight of any format with pseudo-random quantized values, scales and zero points. */
static void quant_weight(struct kat_bench *b, struct quant_format f, void *scales, uint8_t *zeros)
{
    const size_t n = OUTS_PADDED * kern_quant_groups(f, QUANT_INS);
    kat_fill(19, b->w, n, 0.05f);
    for (size_t i = 0; i < sizeof b->data; i++) b->data[i] = (char)(i * i * 7 + i / 3);
    if (f.kind == QUANT_FP8 && f.scale_dtype == DTYPE_F16) usual_values(b->data, sizeof b->data);
    for (size_t i = 0; i < n; i++) zeros[i] = (uint8_t)(i * 5 % 17);
    if (f.kind == QUANT_MXFP4)
        for (size_t i = 0; i < n; i++) ((uint8_t *)scales)[i] = (uint8_t)(115 + i % 9);
    else
        dtype_from_f32(f.scale_dtype, b->w, n, scales);
}

/* Returns whether linears of one to three float rows give the same outputs when they do not look at
 * the codes of w, which is fp8 without NaN. */
static bool plain_agrees(struct kat_bench *b, const struct packed *w)
{
    struct packed plain_w = *w;
    plain_w.fp8_plain = true;
    bool agrees = true;
    for (size_t n_rows = 1; n_rows <= 3; n_rows++) {
        uint64_t h[2];
        for (int plain = 0; plain < 2; plain++) {
            const struct linear_group g = {plain ? &plain_w : w, 0, n_rows};
            const struct linear_args a = {.groups = &g,
                                          .n_groups = 1,
                                          .x = b->kv,
                                          .x_stride = QUANT_INS,
                                          .y = b->y,
                                          .y_stride = OUTS_PADDED,
                                          .sums = b->sums};
            const struct linear_slice all = {.panel1 = OUTS_PADDED / 16, .row1 = n_rows};
            memset(b->y, 0, sizeof b->y);
            memset(b->sums, 0, sizeof b->sums);
            (w->leaf > 0 ? b->t->linear_quant_leaf : b->t->linear_quant)[QUANT_FP8](&a, &all);
            h[plain] = kat_hash(kat_hash_start, b->y, sizeof b->y);
            h[plain] = kat_hash(h[plain], b->sums, sizeof b->sums);
        }
        agrees &= h[0] == h[1];
    }
    return agrees;
}

/* Hashes linears with quantized weights of one format, for int8 and for float activations, with
 * and without leaves. */
static uint64_t kat_linear_quant(struct kat_bench *b, enum dtype which)
{
    const struct quant_format f = quant_formats[which];
    const uint32_t group = quant_kernel_group(f);
    uint64_t h = kat_hash_start;
    float scales[OUTS_PADDED * QUANT_MAX_GROUPS] __attribute__((aligned(64)));
    uint8_t zeros[OUTS_PADDED * QUANT_MAX_GROUPS] __attribute__((aligned(64)));
    int8_t codes[QUANT_ROWS * QUANT_MAX_GROUPS * 32] __attribute__((aligned(64)));
    float x_scales[QUANT_ROWS * QUANT_MAX_GROUPS];
    int32_t sums[QUANT_ROWS * QUANT_MAX_GROUPS];
    const struct quant_rows xq = {group, kern_quant_groups(f, QUANT_INS), codes, x_scales, sums};
    quant_weight(b, f, scales, zeros);
    kat_fill(20, b->kv, QUANT_ROWS * QUANT_INS, 3.0f);
    for (size_t row = 0; row < QUANT_ROWS; row++)
        b->t->quantize_row(b->kv + row * QUANT_INS, QUANT_INS, &xq, row);
    h = kat_hash(h, codes, QUANT_ROWS * xq.n_groups * group);
    h = kat_hash(h, x_scales, QUANT_ROWS * xq.n_groups * sizeof(float));
    h = kat_hash(h, sums, QUANT_ROWS * xq.n_groups * sizeof(int32_t));
    for (size_t run = 0; run < 8; run++) {
        const struct packed w = {.n_out = OUTS,
                                 .n_in = QUANT_INS,
                                 .leaf = run % 2 ? group : 0,
                                 .grid_bits = GRID_BITS,
                                 .data = b->data,
                                 .quant = f,
                                 .scales = scales,
                                 .zeros = zeros};
        const size_t n_rows = run / 2 % 2 ? QUANT_ROWS : 1;
        const struct linear_group g = {&w, 0, n_rows};
        const struct linear_args a = {.groups = &g,
                                      .n_groups = 1,
                                      .x = b->kv,
                                      .x_stride = QUANT_INS,
                                      .xq = run / 4 ? NULL : &xq,
                                      .y = b->y,
                                      .y_stride = OUTS_PADDED,
                                      .sums = b->sums};
        memset(b->y, 0, sizeof b->y);
        memset(b->sums, 0, sizeof b->sums);
        const size_t n_few = n_rows == 1 ? 1 : QUANT_FEW_ROWS;
        linear_slice_fn *run_slice =
            (w.leaf > 0 ? b->t->linear_quant_leaf : b->t->linear_quant)[f.kind];
        const struct linear_slice few = {.panel1 = OUTS_PADDED / 16, .row1 = n_few};
        const struct linear_slice rest = {
            .panel1 = OUTS_PADDED / 16, .row0 = n_few, .row1 = n_rows};
        run_slice(&a, &few);
        if (n_rows > n_few) run_slice(&a, &rest);
        h = kat_hash(kat_hash(h, b->y, sizeof b->y), b->sums, sizeof b->sums);
        /* the last two runs: float rows, without and with leaves; usual_values left no NaN */
        const bool has_plain = f.kind == QUANT_FP8 && f.scale_dtype == DTYPE_F16 && run >= 6;
        if (has_plain && !plain_agrees(b, &w)) h = ~h;
    }
    return h;
}

static uint64_t kat_kv_store(struct kat_bench *b, enum dtype t)
{
    kat_fill(5, b->x, N, 70000.0f);
    kat_fill(6, b->x + N, N, 0x1p-14f);
    float scale = 0.0f;
    b->t->kv_store[t](b->x, 2 * N, b->data, &scale);
    const uint64_t h = kat_hash(kat_hash_start, b->data, 2 * N * dtype_bytes(t));
    return t == DTYPE_I8 ? kat_hash(h, &scale, sizeof scale) : h;
}

static uint64_t kat_grid(struct kat_bench *b, enum dtype t)
{
    (void)t;
    uint64_t s = 7;
    for (size_t i = 0; i < N; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        b->sums[i] = (int64_t)s >> (i % 50);
    }
    kat_fill(8, b->y + N, N, 9.0f);
    b->t->grid_to_f32(b->sums, N, GRID_BITS, b->y);
    b->t->grid_add(b->sums, N, GRID_BITS, b->y + N);
    return kat_hash(kat_hash_start, b->y, 2 * N * sizeof(float));
}

/* Covers whole and short tiles of every instruction set; ties, values beyond the grid and a NaN. */
static uint64_t kat_weighted(struct kat_bench *b, enum dtype t)
{
    enum { COLUMNS = 125, N_ROWS = 4 };
    static const float weights[N_ROWS] = {0.3f, 1.0f, -2.5f, 0x1p-14f};
    const float *rows[N_ROWS];
    (void)t;
    kat_fill(23, b->x, COLUMNS * N_ROWS, 3.0f);
    for (size_t i = 0; i < N_ROWS; i++) rows[i] = b->x + i * COLUMNS;
    for (size_t i = 0; i < COLUMNS; i += 3) b->x[COLUMNS + i] = (float)(2 * i + 1) * 0x1p-33f;
    b->x[2 * COLUMNS + 7] = -0x1.9p20f;
    b->x[COLUMNS + 70] = 0x1p19f;
    b->x[COLUMNS + 71] = -0x1.FFFFFEp18f;
    b->x[3 * COLUMNS + 120] = NAN;
    const struct weighted_rows a = {rows, weights, N_ROWS, COLUMNS, GRID_BITS};
    b->sums[COLUMNS] = b->t->weighted_to_f32(&a, b->y);
    for (size_t i = 0; i < COLUMNS; i++) b->sums[i] = (int64_t)i << 40;
    b->sums[COLUMNS + 1] = b->t->weighted_add(&a, b->sums);
    const uint64_t h = kat_hash(kat_hash_start, b->sums, (COLUMNS + 2) * sizeof *b->sums);
    return kat_hash(h, b->y, COLUMNS * sizeof(float));
}

static uint64_t kat_rmsnorm(struct kat_bench *b, enum dtype t)
{
    (void)t;
    kat_fill(9, b->x, N, 5.0f);
    kat_fill(10, b->w, N, 2.0f);
    b->t->rmsnorm(b->x, b->w, N, 1e-5f, b->y);
    b->y[N] = b->t->square_sum(b->x, N);
    return kat_hash(kat_hash_start, b->y, (N + 1) * sizeof(float));
}

static uint64_t kat_rope(struct kat_bench *b, enum dtype t)
{
    (void)t;
    enum { HALF = 11 };
    static const int32_t positions[1] = {12345};
    float inv_freq[HALF], cos[HALF], sin[HALF];
    for (size_t i = 0; i < HALF; i++) inv_freq[i] = el_expf(-(float)i);
    op_rope_table(b->t, &(struct rope_table_args){.positions = positions,
                                                  .n_rows = 1,
                                                  .inv_freq = inv_freq,
                                                  .rot = 2 * HALF,
                                                  .scale = 1.25f,
                                                  .cos = cos,
                                                  .sin = sin});
    kat_fill(11, b->x, 2 * HALF, 3.0f);
    b->t->rope(b->x, cos, sin, 2 * HALF);
    return kat_hash(kat_hash_start, b->x, 2 * HALF * sizeof(float));
}

static uint64_t kat_swiglu(struct kat_bench *b, enum dtype t)
{
    (void)t;
    kat_fill(12, b->x, N, 100.0f);
    kat_fill(13, b->w, N, 3.0f);
    b->t->swiglu(b->x, b->w, N, b->y);
    return kat_hash(kat_hash_start, b->y, N * sizeof(float));
}

static uint64_t kat_swiglu_clamped(struct kat_bench *b, enum dtype t)
{
    (void)t;
    kat_fill(12, b->x, N, 20.0f);
    kat_fill(13, b->w, N, 12.0f);
    b->t->swiglu_clamped(b->x, b->w, N, 1.702f, 7.0f, b->y);
    return kat_hash(kat_hash_start, b->y, N * sizeof(float));
}

static uint64_t kat_geglu(struct kat_bench *b, enum dtype t)
{
    (void)t;
    kat_fill(23, b->x, N, 7.0f);
    kat_fill(24, b->w, N, 3.0f);
    b->t->geglu(b->x, b->w, N, b->y);
    b->t->softcap(b->x, N, 2.5f);
    return kat_hash(kat_hash(kat_hash_start, b->y, N * sizeof(float)), b->x, N * sizeof(float));
}

static uint64_t kat_xielu(struct kat_bench *b, enum dtype t)
{
    (void)t;
    kat_fill(25, b->x, N, 3.0f);
    kat_fill(26, b->w, 2 * N, 2.0f);
    b->t->layernorm(b->x, b->w, b->w + N, N, 1e-5f, b->y);
    b->t->xielu(b->x, N, (const float[4]){0.7f, 1.1f, 0.5f, -1e-6f});
    return kat_hash(kat_hash(kat_hash_start, b->y, N * sizeof(float)), b->x, N * sizeof(float));
}

static uint64_t kat_gelu(struct kat_bench *b, enum dtype t)
{
    (void)t;
    kat_fill(27, b->x, N, 6.0f);
    b->t->gelu(b->x, N);
    return kat_hash(kat_hash_start, b->x, N * sizeof(float));
}

static uint64_t kat_sums(struct kat_bench *b, enum dtype t)
{
    (void)t;
    kat_fill(14, b->x, N, 1.0f);
    kat_fill(15, b->y, N, 1.0f);
    b->t->add(b->y, b->x, N);
    b->t->axpy(0.7f, b->x, N, b->y);
    return kat_hash(kat_hash_start, b->y, N * sizeof(float));
}

static uint64_t kat_router(struct kat_bench *b, enum dtype t)
{
    (void)t;
    int32_t ids[ROWS * CHOSEN];
    float weights[ROWS * CHOSEN];
    uint64_t h = kat_hash_start;
    kat_fill(16, b->x, ROWS * EXPERTS, 4.0f);
    b->x[4] = b->x[2] = 5.0f; /* a tie */
    kat_fill(21, b->w, EXPERTS, 0.5f);
    for (int run = 0; run < 2 * ROUTER_COUNT; run++) { /* without and with groups, bias, scale */
        const struct router_rule plain = {.kind = (enum router_kind)(run / 2)};
        const struct router_rule grouped = {plain.kind, 3, 2, 2.5f};
        const struct router_args a = {.logits = b->x,
                                      .ids = ids,
                                      .weights = weights,
                                      .n_experts = run % 2 ? EXPERTS - 1 : EXPERTS,
                                      .n_chosen = CHOSEN,
                                      .rule = run % 2 ? grouped : plain,
                                      .bias = run % 2 ? b->w : NULL};
        for (size_t row = 0; row < ROWS; row++) b->t->router(&a, row);
        h = kat_hash(kat_hash(h, ids, sizeof ids), weights, sizeof weights);
    }
    return h;
}

static uint64_t kat_choice(struct kat_bench *b, enum dtype t)
{
    (void)t;
    uint64_t mass[N], n_bad;
    kat_fill(17, b->x, N, 20.0f);
    b->x[3] = b->x[40] = 20.0f;
    const uint64_t best = b->t->argmax(b->x, N, 1000, &n_bad);
    const uint64_t sum = b->t->mass(b->x, N, 20.0f, 1.5f, mass);
    uint64_t h = kat_hash(kat_hash_start, &best, sizeof best);
    h = kat_hash(kat_hash(h, &n_bad, sizeof n_bad), &sum, sizeof sum);
    return kat_hash(h, mass, sizeof mass);
}

static uint64_t kat_log(struct kat_bench *b, enum dtype t)
{
    (void)t;
    double y[N];
    kat_fill(18, b->x, N, 60.0f);
    for (size_t i = 0; i < N; i++) y[i] = el_log((double)el_expf(b->x[i]));
    return kat_hash(kat_hash_start, y, sizeof y);
}

static uint64_t kat_pack(struct kat_bench *b, enum dtype t)
{
    enum { STRIDE = 160, HALVES = 45, WORDS = 39 }; /* leaves a rest in every instruction set */
    (void)t;
    kat_fill(22, b->w, PANEL_COLUMNS * STRIDE / sizeof(float), 1.0f);
    b->t->pack_halves(b->w, STRIDE, HALVES, b->data);
    uint64_t h = kat_hash(kat_hash_start, b->data, (size_t)PANEL_COLUMNS * HALVES * 2);
    for (int kind = PACK_WORDS_PLAIN; kind <= PACK_WORDS_NIBBLES; kind++) {
        b->t->pack_words((enum pack_words_kind)kind, b->w, STRIDE, WORDS, b->data);
        h = kat_hash(h, b->data, (size_t)PANEL_COLUMNS * WORDS * 4);
    }
    return h;
}

static const struct {
    const char *op;
    uint64_t (*run)(struct kat_bench *b, enum dtype t);
    enum dtype dtype;
    uint64_t want;
} answers[] = {
    {"linear f32", kat_linear, DTYPE_F32, 0x0CC77716E1FE3488u},
    {"linear f16", kat_linear, DTYPE_F16, 0xC64810CC97723B6Cu},
    {"linear bf16", kat_linear, DTYPE_BF16, 0x89ACA275450B83E9u},
    {"linear_leaf f32", kat_linear_leaf, DTYPE_F32, 0x9859866D710A4608u},
    {"linear_leaf f16", kat_linear_leaf, DTYPE_F16, 0x05DF9B73D9BF9F7Du},
    {"linear_leaf bf16", kat_linear_leaf, DTYPE_BF16, 0xF3938603CFCA6326u},
    {"linear_quant int8", kat_linear_quant, (enum dtype)0, 0xB5504AC7D9BA1BF8u},
    {"linear_quant int8 asymmetric", kat_linear_quant, (enum dtype)1, 0xFFB7ECE6B3B88686u},
    {"linear_quant int4", kat_linear_quant, (enum dtype)2, 0x25F6354F2F124707u},
    {"linear_quant int4 asymmetric", kat_linear_quant, (enum dtype)3, 0x0D00FDD451CAC679u},
    {"linear_quant mxfp4", kat_linear_quant, (enum dtype)4, 0xA6F7D20FC122383Eu},
    {"linear_quant fp8", kat_linear_quant, (enum dtype)5, 0xD14DD749F7469210u},
    {"linear_quant fp8 in groups of 32", kat_linear_quant, (enum dtype)6, 0x4E39EFA4E341E6F4u},
    {"attention f32", kat_attention, DTYPE_F32, 0x49DC164506B5D4E9u},
    {"attention f16", kat_attention, DTYPE_F16, 0x91CEF685EA6BED4Du},
    {"attention bf16", kat_attention, DTYPE_BF16, 0x70B772576537AC35u},
    {"attention i8", kat_attention, DTYPE_I8, 0x75C57FDFF1A4F8FDu},
    {"attention fp8", kat_attention, DTYPE_F8_E4M3, 0x606D71D6D60C6765u},
    {"attention of shared tiles f32", kat_shared, DTYPE_F32, 0xCCBD7ED9542B37EEu},
    {"attention of shared tiles f16", kat_shared, DTYPE_F16, 0x1F414277DD7500E7u},
    {"attention of shared tiles bf16", kat_shared, DTYPE_BF16, 0xCFFAE24E52E30FC6u},
    {"attention of shared tiles i8", kat_shared, DTYPE_I8, 0x8249DC2160C04DA7u},
    {"attention of shared tiles fp8", kat_shared, DTYPE_F8_E4M3, 0x84E95B5A30737ADCu},
    {"attention in parts, attention_fold", kat_parts, DTYPE_F16, 0x02C04DC8FFECD3EAu},
    {"kv_store f32", kat_kv_store, DTYPE_F32, 0xB988E64744765189u},
    {"kv_store f16", kat_kv_store, DTYPE_F16, 0x1AAF5317AE864FC7u},
    {"kv_store bf16", kat_kv_store, DTYPE_BF16, 0x3B4D9AD4C557A732u},
    {"kv_store i8", kat_kv_store, DTYPE_I8, 0xF9417F4D3A07F330u},
    {"kv_store fp8", kat_kv_store, DTYPE_F8_E4M3, 0xE1DF541D6ECB7BF8u},
    {"grid_to_f32, grid_add", kat_grid, DTYPE_F32, 0x17FDA3D87D7376E9u},
    {"weighted_to_f32, weighted_add", kat_weighted, DTYPE_F32, 0xE09AA454827438EFu},
    {"rmsnorm, square_sum", kat_rmsnorm, DTYPE_F32, 0xCADFD5844FCFED6Du},
    {"rope", kat_rope, DTYPE_F32, 0xE4F4E5E9295720C3u},
    {"swiglu", kat_swiglu, DTYPE_F32, 0x01ECA85FEFE9B1C9u},
    {"attention with sinks", kat_sinks, DTYPE_F16, 0xCE8FE6BDA93B669Fu},
    {"swiglu, clamped", kat_swiglu_clamped, DTYPE_F32, 0x2BF5898A320B61C4u},
    {"geglu, softcap", kat_geglu, DTYPE_F32, 0x1C6169C6C9CB5012u},
    {"xielu, layernorm", kat_xielu, DTYPE_F32, 0xAA017DB8CA236943u},
    {"gelu", kat_gelu, DTYPE_F32, 0xF8663D5A69E60382u},
    {"attention ahead", kat_ahead, DTYPE_F16, 0x0A4D5C07165C217Du},
    {"attention with sinks and a softcap", kat_softcap, DTYPE_BF16, 0x9A6A64607B24FBF5u},
    {"add, axpy", kat_sums, DTYPE_F32, 0x92657AC27F971FC9u},
    {"delta_rule", kat_delta, DTYPE_F32, 0x2FEBF7E2F8AD94E2u},
    {"delta_rule by channel", kat_delta_channels, DTYPE_F32, 0xEC0938A103EFA987u},
    {"scan", kat_scan, DTYPE_F32, 0x2712FE254E250CEDu},
    {"sums of entries", kat_pool, DTYPE_F32, 0xBC4595104FE73B6Cu},
    {"conv_silu, sigmoid_mul", kat_conv, DTYPE_F32, 0xB0615097F487BF0Cu},
    {"index f32", kat_index, DTYPE_F32, 0xE1FCB8D59E9279D9u},
    {"index f16", kat_index, DTYPE_F16, 0x95362999E25B6744u},
    {"index bf16", kat_index, DTYPE_BF16, 0xE4DA8D72DDC61FFFu},
    {"index i8", kat_index, DTYPE_I8, 0x9368167A9129AD29u},
    {"index fp8", kat_index, DTYPE_F8_E4M3, 0xCAB08E2F18DDE7D9u},
    {"router", kat_router, DTYPE_F32, 0x975567949905E95Fu},
    {"mass, argmax", kat_choice, DTYPE_F32, 0x0D61EF8CC1223AC2u},
    {"pack_halves, pack_words", kat_pack, DTYPE_F32, 0xADE85DA884A1C948u},
    {"log", kat_log, DTYPE_F32, 0x826657538AEE6F2Du},
};

struct status kern_check(const struct kern_table *t)
{
    struct kat_bench b = {.t = t};
    fpenv_set();
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        const uint64_t found = answers[i].run(&b, answers[i].dtype);
        if (found == answers[i].want) continue;
        return status_make(STATUS_BUG,
                           "kernel set '%s' does not give the known answer for %s: hash expected "
                           "%016llx, found %016llx",
                           t->name, answers[i].op, (unsigned long long)answers[i].want,
                           (unsigned long long)found);
    }
    return status_ok();
}
