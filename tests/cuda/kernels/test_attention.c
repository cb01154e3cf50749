/* Cache and attention, on the device and the reference: every type of cache, windows, sinks,
 * latents, few rows (a tile a block) and many (rows walk their tiles). */
#include "util_device.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>

enum { SEQS = 3 };

struct shape {
    uint32_t head_dim, n_kv, n_heads, window;
    size_t rows, past; /* of the longest sequence */
    bool latent, sinks;
};

/* Sequences of different lengths over blocks in disorder; returns the blocks of the pool. */
static size_t make_sequences(struct both *b, const struct shape *s, struct seq_rows *seqs,
                             int32_t *blocks, size_t *n_rows)
{
    size_t n_blocks = 0;
    *n_rows = 0;
    for (size_t i = 0; i < SEQS; i++) {
        seqs[i] = (struct seq_rows){*n_rows, 1 + (s->rows - 1) / (i + 1), s->past / (i + 1),
                                    blocks + n_blocks};
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

/* Fills the cache: all positions of each sequence, then the step's rows alone again. */
static void fill_cache(struct both *b, const struct shape *s, const struct seq_rows *seqs,
                       size_t n_rows, struct kv_view *cpu, struct kv_view *gpu)
{
    struct seq_rows all[SEQS];
    size_t n = 0;
    for (size_t i = 0; i < SEQS; i++) {
        all[i] = (struct seq_rows){n, seqs[i].pos0 + seqs[i].n_rows, 0, seqs[i].blocks};
        n += all[i].n_rows;
    }
    const size_t width = (size_t)s->n_kv * s->head_dim;
    struct twin key = twin_floats(b, n * width, 1.5f, 5000),
                value = twin_floats(b, n * width, 2, 0);
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
    struct kv_view cpu = {cache.host, t, s->n_kv, s->head_dim, s->latent}, gpu = cpu;
    gpu.base = cache.device;
    fill_cache(b, s, seqs, n_rows, &cpu, &gpu);
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

/* So many rows that each block walks a few of them. */
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

void suite_attention(CU_pSuite suite);
void suite_attention(CU_pSuite suite)
{
    CU_ADD_TEST(suite, few_rows);
    CU_ADD_TEST(suite, many_rows);
}
