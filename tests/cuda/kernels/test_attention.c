/* Tests cache and attention on the device against the reference: each cache type, windows, sinks,
 * latents, few rows (a tile per block) and many (rows walk their tiles). The CPU's arithmetic must
 * agree bit for bit. On tensor cores the error must stay within attention_mma.cu's bound, and a
 * row's bits must not depend on how rows, chunks, heads and tiles are divided. */
#include "util_device.h"

#include "kernels/body.h"
#include "kernels/cuda/launch.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQS = 3 };
#define WORST_SHARE 0.1 /* of the allowed error; most cases stay below 0.03 */

struct shape {
    uint32_t head_dim, n_kv, n_heads, window;
    size_t rows, past; /* of the longest sequence */
    bool latent, sinks;
};

/* Makes sequences of different lengths over blocks in random order. Returns the number of blocks.
 */
static size_t make_sequences(struct both *b, const struct shape *s, struct seq_rows *seqs,
                             int32_t *blocks, size_t *n_rows)
{
    size_t n_blocks = 0;
    *n_rows = 0;
    for (size_t i = 0; i < SEQS; i++) {
        seqs[i] = (struct seq_rows){*n_rows, 1 + (s->rows - 1) / (i + 1), s->past / (i + 1),
                                    blocks + n_blocks, 0};
        *n_rows += seqs[i].n_rows;
        n_blocks += (seqs[i].pos0 + seqs[i].n_rows + 63) / 64;
    }
    for (size_t i = 0; i < n_blocks; i++) blocks[i] = (int32_t)i;
    for (size_t i = n_blocks - 1; i > 0; i--) {
        const size_t j = rng_below(&b->rng, i + 1);
        const int32_t other = blocks[j];
        blocks[j] = blocks[i];
        blocks[i] = other;
    }
    return n_blocks;
}

/* Fills both caches with keys and values of all positions of each sequence, then begins the step of
 * `seqs` on the device. */
static void fill_cache(struct both *b, const struct shape *s, const struct seq_rows *seqs,
                       size_t n_rows, size_t specials, struct kv_view *cpu, struct kv_view *gpu)
{
    struct seq_rows all[SEQS];
    size_t n = 0;
    for (size_t i = 0; i < SEQS; i++) {
        all[i] = (struct seq_rows){n, seqs[i].pos0 + seqs[i].n_rows, 0, seqs[i].blocks, 0};
        n += all[i].n_rows;
    }
    const size_t width = (size_t)s->n_kv * s->head_dim;
    struct twin key = twin_floats(b, n * width, 1.5f, specials),
                value = twin_floats(b, n * width, 2, specials / 2);
    op_kv_write(&b->cpu, key.host, value.host, cpu, all, SEQS);
    op_step_begin(&b->gpu, all, SEQS, n);
    op_kv_write(&b->gpu, key.device, value.device, gpu, all, SEQS);
    op_step_begin(&b->gpu, seqs, SEQS, n_rows);
    twin_free(b, &key);
    twin_free(b, &value);
}

static void check(struct both *b, const struct shape *s, enum dtype t)
{
    static int32_t blocks[4096];
    struct seq_rows seqs[SEQS];
    size_t n_rows;
    const size_t n_blocks = make_sequences(b, s, seqs, blocks, &n_rows);
    const size_t width = (size_t)s->n_heads * s->head_dim;
    struct twin cache =
        twin_zeros(b, n_blocks * (s->latent ? 1 : 2) * s->n_kv * kv_half_bytes(t, s->head_dim));
    struct kv_view cpu = {cache.host, t, s->n_kv, s->head_dim, s->latent, 0}, gpu = cpu;
    gpu.base = cache.device;
    fill_cache(b, s, seqs, n_rows, 5000, &cpu, &gpu);
    twin_same(b, &cache, "cache");
    struct twin q = twin_floats(b, n_rows * width, 2.0f, 0);
    struct twin out = twin_zeros(b, n_rows * width * sizeof(float));
    struct twin sinks = twin_floats(b, s->n_heads, 6.0f, 0);
    uint8_t kv_of_head[256];
    for (uint32_t h = 0; h < s->n_heads; h++) kv_of_head[h] = (uint8_t)(h / (s->n_heads / s->n_kv));
    struct attn_args a = {.q = q.host,
                          .out = out.host,
                          .kv = cpu,
                          .kv_of_head = kv_of_head,
                          .n_heads = s->n_heads,
                          .scale = 0.2f,
                          .sinks = s->sinks ? sinks.host : NULL,
                          .softcap = s->sinks && t == DTYPE_BF16 ? 3.0f : 0,
                          .window = s->window,
                          .seqs = seqs,
                          .n_seqs = SEQS};
    op_attention(&b->cpu, &a);
    a.q = q.device;
    a.out = out.device;
    a.kv = gpu;
    if (s->sinks) a.sinks = sinks.device;
    op_attention(&b->gpu, &a);
    twin_same_floats(b, &out, "attention");
    struct twin *all[] = {&cache, &q, &out, &sinks};
    for (size_t i = 0; i < 4; i++) twin_free(b, all[i]);
}

static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_F8_E4M3};

static void few_rows(void)
{
    static const struct shape shapes[] = {
        {16, 1, 1, 0, 1, 0, false, false},    {16, 2, 6, 0, 5, 70, false, true},
        {64, 1, 4, 5, 9, 200, false, false},  {80, 3, 3, 64, 3, 130, false, true},
        {96, 1, 8, 0, 2, 63, true, false},    {576, 1, 2, 0, 3, 65, true, false},
        {128, 2, 4, 129, 1, 400, false, true}};
    struct both b = both_open(31);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) check(&b, &shapes[i], types[t]);
    both_close(&b);
}

/* So many rows that a block walks all tiles of its rows, instead of one tile. */
static void many_rows(void)
{
    static const struct shape shapes[] = {{16, 16, 32, 0, 75, 90, false, true},
                                          {32, 1, 64, 40, 40, 30, false, false},
                                          {48, 1, 64, 0, 40, 0, true, false}};
    struct both b = both_open(32);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check(&b, &shapes[i], types[2 * i]);
        check(&b, &shapes[i], types[3 - i]);
    }
    both_close(&b);
}

/* --- on tensor cores ------------------------------------------------------------------------- */

/* A step: rows and cache on both sides. Slots that no row has written are NaN in every type. */
struct step {
    const struct shape *s;
    enum dtype t;
    int32_t blocks[4096];
    struct seq_rows seqs[SEQS];
    size_t n_rows, n_blocks;
    struct twin cache, q, out, sinks;
    struct kv_view cpu, gpu;
    uint8_t kv_of_head[DEVICE_HEADS_MAX];
};

static void step_open(struct both *b, struct step *x, const struct shape *s, enum dtype t,
                      size_t specials)
{
    x->s = s;
    x->t = t;
    x->n_blocks = make_sequences(b, s, x->seqs, x->blocks, &x->n_rows);
    const size_t width = (size_t)s->n_heads * s->head_dim;
    x->cache =
        twin_zeros(b, x->n_blocks * (s->latent ? 1 : 2) * s->n_kv * kv_half_bytes(t, s->head_dim));
    memset(x->cache.host, 0xFF, x->cache.n_bytes);
    mem_ops_put(&b->gpu, x->cache.device, x->cache.host, x->cache.n_bytes);
    x->cpu = (struct kv_view){x->cache.host, t, s->n_kv, s->head_dim, s->latent, 0};
    x->gpu = x->cpu;
    x->gpu.base = x->cache.device;
    fill_cache(b, s, x->seqs, x->n_rows, specials, &x->cpu, &x->gpu);
    x->q = twin_floats(b, x->n_rows * width, 2.0f, 0);
    x->out = twin_zeros(b, x->n_rows * width * sizeof(float));
    x->sinks = twin_floats(b, s->n_heads, 6.0f, 0);
    for (uint32_t h = 0; h < s->n_heads; h++)
        x->kv_of_head[h] = (uint8_t)(h / (s->n_heads / s->n_kv));
}

static void step_close(struct both *b, struct step *x)
{
    struct twin *all[] = {&x->cache, &x->q, &x->out, &x->sinks};
    for (size_t i = 0; i < 4; i++) twin_free(b, all[i]);
}

static struct attn_args step_args(const struct step *x)
{
    return (struct attn_args){.q = x->q.device,
                              .out = x->out.device,
                              .kv = x->gpu,
                              .kv_of_head = x->kv_of_head,
                              .n_heads = x->s->n_heads,
                              .scale = 0.2f,
                              .sinks = x->s->sinks ? x->sinks.device : NULL,
                              .window = x->s->window,
                              .seqs = x->seqs,
                              .n_seqs = SEQS};
}

static float *run_all(struct both *b, const struct step *x)
{
    const struct attn_args a = step_args(x);
    op_step_begin(&b->gpu, a.seqs, a.n_seqs, x->n_rows);
    op_attention(&b->gpu, &a);
    return twin_found(b, &x->out);
}

/* Computes the same rows in steps of up to at_once rows of one sequence, into zeroed memory. */
static float *run_chunks(struct both *b, const struct step *x, size_t at_once)
{
    const size_t width = (size_t)x->s->n_heads * x->s->head_dim;
    mem_ops_fill(&b->gpu, x->out.device, 0, x->out.n_bytes);
    for (size_t i = 0; i < SEQS; i++) {
        for (size_t r = 0; r < x->seqs[i].n_rows; r += at_once) {
            const size_t left = x->seqs[i].n_rows - r, n = left < at_once ? left : at_once;
            const struct seq_rows seq = {0, n, x->seqs[i].pos0 + r, x->seqs[i].blocks, 0};
            struct attn_args a = step_args(x);
            a.q += (x->seqs[i].row0 + r) * width;
            a.out += (x->seqs[i].row0 + r) * width;
            a.seqs = &seq;
            a.n_seqs = 1;
            op_step_begin(&b->gpu, &seq, 1, n);
            op_attention(&b->gpu, &a);
        }
    }
    return twin_found(b, &x->out);
}

/* The elements of heads [h0, h1) of rows [T, H, Hd], without gaps. */
static float *heads_of(const struct step *x, const float *rows, uint32_t h0, uint32_t h1)
{
    const size_t hd = x->s->head_dim, n = (h1 - h0) * hd;
    float *out = test_floats(x->n_rows * n);
    for (size_t r = 0; r < x->n_rows; r++)
        memcpy(out + r * n, rows + (r * x->s->n_heads + h0) * hd, n * sizeof *out);
    return out;
}

/* Checks a rank that has only heads [h0, h1), which may begin and end inside a kv head. */
static void check_heads(struct both *b, const struct step *x, const float *want, uint32_t h0,
                        uint32_t h1)
{
    const uint32_t n = h1 - h0, first_kv = x->kv_of_head[h0];
    const size_t bytes = x->n_rows * n * x->s->head_dim * sizeof(float);
    float *q = heads_of(x, x->q.host, h0, h1), *expected = heads_of(x, want, h0, h1);
    struct twin part = twin_of(b, q, bytes), out = twin_of(b, expected, bytes);
    uint8_t kv_of_head[DEVICE_HEADS_MAX];
    struct attn_args a = step_args(x);
    for (uint32_t h = h0; h < h1; h++) kv_of_head[h - h0] = (uint8_t)(x->kv_of_head[h] - first_kv);
    a.kv.base = (char *)a.kv.base + first_kv * kv_half_bytes(x->t, x->s->head_dim);
    a.kv_of_head = kv_of_head;
    a.n_heads = n;
    a.q = part.device;
    a.out = out.device;
    if (a.sinks != NULL) a.sinks += h0;
    mem_ops_fill(&b->gpu, out.device, 0, bytes);
    op_step_begin(&b->gpu, a.seqs, a.n_seqs, x->n_rows);
    op_attention(&b->gpu, &a);
    twin_same_floats(b, &out, "some heads");
    twin_free(b, &part);
    twin_free(b, &out);
    free(q);
    free(expected);
}

/* Makes the values of every second position as large as f16 allows and the others tiny, so that
 * values which a row does not see are the largest. */
static void make_values_huge(struct both *b, struct step *x)
{
    const size_t half = KV_BLOCK_TOKENS * x->s->head_dim;
    uint16_t *values = x->cache.host;
    for (size_t i = 0; i < x->cache.n_bytes / sizeof *values; i++) {
        if (i / half / x->s->n_kv % 2 == 1)
            values[i] = i % half / x->s->head_dim % 2 == 1 ? 0x7BFF : 0x0400;
    }
    mem_ops_put(&b->gpu, x->cache.device, x->cache.host, x->cache.n_bytes);
}

static void check_law(struct both *b, const struct shape *s, enum dtype t, size_t specials,
                      bool huge)
{
    static struct step x;
    static const size_t chunks[] = {1, 3, 33};
    step_open(b, &x, s, t, specials);
    if (huge) make_values_huge(b, &x);
    float *want = run_all(b, &x);
    const size_t n = x.n_rows * s->n_heads * s->head_dim;
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        float *found = run_chunks(b, &x, chunks[i]);
        const size_t n_different = count_different(found, want, n);
        if (n_different > 0)
            printf("\n  heads of %u, %s, chunks of %zu: %zu of %zu differ\n", s->head_dim,
                   dtype_name(t), chunks[i], n_different, n);
        CU_ASSERT_EQUAL(n_different, 0);
        free(found);
    }
    check_heads(b, &x, want, 0, (s->n_heads + 1) / 2);
    check_heads(b, &x, want, s->n_heads / 3, s->n_heads);
    free(want);
    step_close(b, &x);
}

/* The error that attention_mma.cu allows for a row. */
static double allowed(const struct step *x, size_t seq, size_t r, uint32_t head)
{
    const size_t hd = x->s->head_dim, p = x->seqs[seq].pos0 + r;
    const float *q = twin_host(&x->q) + ((x->seqs[seq].row0 + r) * x->s->n_heads + head) * hd;
    double most = 0, value = 0;
    for (size_t j = kern_first_visible(p, x->s->window); j <= p; j++) {
        const int32_t block = x->seqs[seq].blocks[j / 64];
        const void *keys = kern_kv_half(&x->cpu, block, 0, x->kv_of_head[head]);
        const void *values = kern_kv_half(&x->cpu, block, 1, x->kv_of_head[head]);
        double sum = 0;
        for (size_t d = 0; d < hd; d++) {
            sum += fabs((double)q[d] * kern_kv_load(x->t, keys, hd, j % 64, d));
            value = fmax(value, fabs(kern_kv_load(x->t, values, hd, j % 64, d)));
        }
        most = fmax(most, sum);
    }
    return value * (1 + 0.2 * most) / 1024 * (x->t == DTYPE_I8 ? 2 : 1);
}

static void check_close(struct both *b, const struct shape *s, enum dtype t)
{
    static struct step x;
    step_open(b, &x, s, t, 0);
    struct attn_args a = step_args(&x);
    float *found = run_all(b, &x);
    a.q = x.q.host;
    a.out = x.out.host;
    a.kv = x.cpu;
    if (s->sinks) a.sinks = x.sinks.host;
    op_attention(&b->cpu, &a);
    const float *want = x.out.host;
    size_t at = 0, n_same = 0;
    double worst = 0;
    for (size_t i = 0; i < SEQS; i++) {
        for (size_t row = 0; row < x.seqs[i].n_rows * s->n_heads; row++) {
            const double most = allowed(&x, i, row / s->n_heads, (uint32_t)(row % s->n_heads));
            for (size_t d = 0; d < s->head_dim; d++, at++) {
                const double error = fabs((double)found[at] - want[at]);
                worst = error <= worst * most ? worst : error / most; /* keeps a NaN */
                n_same += found[at] == want[at];
            }
        }
    }
    if (!(worst <= WORST_SHARE))
        printf("\n  heads of %u, %s: %.3f of the allowed error\n", s->head_dim, dtype_name(t),
               worst);
    CU_ASSERT_TRUE(worst <= WORST_SHARE);
    CU_ASSERT_TRUE(s->past == 0 || n_same < at / 2); /* it is really not the CPU's arithmetic */
    free(found);
    step_close(b, &x);
}

static const enum dtype mma_types[] = {DTYPE_F16, DTYPE_I8, DTYPE_F8_E4M3};
static const struct shape mma_shapes[] = {{16, 1, 1, 0, 1, 0, false, false},
                                          {16, 2, 6, 0, 5, 70, false, true},
                                          {64, 1, 4, 5, 9, 200, false, false},
                                          {80, 3, 3, 64, 3, 130, false, true},
                                          {96, 1, 8, 0, 2, 63, true, false},
                                          {128, 2, 14, 129, 40, 400, false, true},
                                          {112, 1, 71, 0, 3, 200, false, false},
                                          {192, 2, 4, 0, 20, 64, false, true},
                                          {256, 1, 8, 70, 9, 190, false, false},
                                          {64, 2, 2, 0, 150, 0, false, false},
                                          {48, 1, 16, 0, 30, 130, true, true},
                                          /* so many rows that they walk their tiles on a GPU too */
                                          {96, 4, 8, 100, 80, 40, false, false},
                                          {128, 4, 8, 0, 90, 70, false, true},
                                          {256, 6, 6, 0, 30, 130, false, false}};

static void on_tensor_cores(void)
{
    struct both b = both_open_as(33, DEVICE_LAW);
    for (size_t i = 0; i < sizeof mma_shapes / sizeof mma_shapes[0]; i++)
        for (size_t t = 0; t < 3; t++) check_close(&b, &mma_shapes[i], mma_types[t]);
    both_close(&b);
}

/* Also with keys and values that are not finite: a row's bits depend only on what the row sees. */
static void law_on_tensor_cores(void)
{
    struct both b = both_open_as(34, DEVICE_LAW);
    for (size_t i = 0; i < sizeof mma_shapes / sizeof mma_shapes[0]; i++) {
        check_law(&b, &mma_shapes[i], DTYPE_F16, i % 2 == 0 ? 3000 : 0, false);
        check_law(&b, &mma_shapes[i], mma_types[1 + i % 2], i % 2 == 1 ? 3000 : 0, false);
    }
    for (size_t i = 0; i < sizeof mma_shapes / sizeof mma_shapes[0]; i += 3)
        check_law(&b, &mma_shapes[i], DTYPE_F16, 0, true);
    both_close(&b);
}

/* A context with more tiles than a pass has states for. */
static void passes_of_tiles(void)
{
    static const struct shape s = {16, 1, 2, 0, 1, 66000, false, true};
    struct both b = both_open_as(35, DEVICE_LAW);
    check_close(&b, &s, DTYPE_F16);
    both_close(&b);
}

/* The tensor-core kernels need a positive scale. With any other scale, attention has the CPU's
 * bits.
 */
static void scales_that_are_not_positive(void)
{
    static const struct shape s = {64, 1, 4, 0, 3, 100, false, false};
    static struct step x;
    struct both b = both_open_as(36, DEVICE_LAW);
    step_open(&b, &x, &s, DTYPE_F16, 0);
    struct attn_args a = step_args(&x);
    a.scale = -0.2f;
    op_step_begin(&b.gpu, a.seqs, a.n_seqs, x.n_rows);
    op_attention(&b.gpu, &a);
    a.q = x.q.host;
    a.out = x.out.host;
    a.kv = x.cpu;
    op_attention(&b.cpu, &a);
    twin_same_floats(&b, &x.out, "a negative scale");
    step_close(&b, &x);
    both_close(&b);
}

void suite_attention(CU_pSuite suite);
void suite_attention(CU_pSuite suite)
{
    CU_ADD_TEST(suite, few_rows);
    CU_ADD_TEST(suite, many_rows);
    CU_ADD_TEST(suite, on_tensor_cores);
    CU_ADD_TEST(suite, law_on_tensor_cores);
    CU_ADD_TEST(suite, passes_of_tiles);
    CU_ADD_TEST(suite, scales_that_are_not_positive);
}
