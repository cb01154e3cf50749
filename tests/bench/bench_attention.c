/* Times attention over caches of several types, in decoding and in prefill. One head of the first
 * sequence is compared with the reference's bits before a case is timed. */
#include "bench_attention.h"

#include "base/mem.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct attention_bench {
    const struct kern_table *k;
    struct attn_args args;
};

static void attention_run(const void *job)
{
    const struct attention_bench *b = job;
    op_attention(b->k, &b->args);
}

/* n_seqs sequences of n_rows rows each, at position pos0. */
struct attention_case {
    const char *name;
    uint32_t n_heads, n_kv, head_dim;
    enum dtype type;
    size_t n_seqs, pos0, n_rows;
    bool latent;
};

enum { PART_FLOATS = 1 << 18 };

/* Fills n_halves half blocks (keys or values) with random elements. */
static void fill_cache(const struct kern_table *k, const struct kv_view *kv, size_t n_halves)
{
    const size_t hd = kv->head_dim, n_codes = KV_BLOCK_TOKENS * hd;
    float *x = bench_random_floats(hd);
    for (size_t i = 0; i < n_halves * KV_BLOCK_TOKENS; i++) {
        char *half =
            (char *)kv->base + i / KV_BLOCK_TOKENS * kv_half_bytes(kv->dtype, kv->head_dim);
        const size_t slot = i % KV_BLOCK_TOKENS;
        for (size_t d = 0; d < hd; d++) x[d] = bench_random_float();
        k->kv_store[kv->dtype](x, hd, half + slot * hd * dtype_bytes(kv->dtype),
                               kv->dtype == DTYPE_I8 ? (float *)(half + n_codes) + slot : NULL);
    }
    mem_free(&x);
}

/* Compares one head of the first sequence with the reference. */
static void attention_check(struct attention_bench *b, const struct attention_case *c, float *check)
{
    const size_t n = (size_t)c->n_heads * c->head_dim;
    float *out = b->args.out;
    struct kern_table ref;
    kern_fill_ref(&ref);
    b->args.out = check;
    ref.attention[c->type](&b->args, &(struct attn_slice){.head1 = 1, .row1 = c->n_rows});
    b->args.out = out;
    attention_run(b);
    for (size_t i = 0; i < c->n_rows; i++) {
        if (memcmp(out + i * n, check + i * n, c->head_dim * sizeof *out) == 0) continue;
        fprintf(stderr, "attention row %zu differs from the reference\n", i);
        exit(70);
    }
}

static void attention_print(const struct attention_case *c, struct bench_machine m, double s)
{
    double seen = 0;
    for (size_t i = 0; i < c->n_rows; i++) seen += (double)((c->pos0 + i + 1) * c->n_seqs);
    const double bytes = (double)kv_half_bytes(c->type, c->head_dim) / KV_BLOCK_TOKENS;
    const double gflops = 4e-9 * seen * c->head_dim * c->n_heads / s;
    const double gbs = c->n_rows > 1 ? 0 : 1e-9 * seen * bytes * (c->latent ? 1 : 2) * c->n_kv / s;
    printf("%-28s %10.1f us %8.1f GB/s %4.0f %%read %8.1f GFLOP/s %4.0f %%fma\n", c->name, s * 1e6,
           gbs, 100 * gbs / m.read_gbs, gflops, 100 * gflops / m.gflops);
}

static void bench_attention_case(const struct kern_table *k, struct bench_machine m,
                                 const struct attention_case *c)
{
    const size_t per_seq = (c->pos0 + c->n_rows + 63) / 64;
    const size_t n_q = c->n_seqs * c->n_rows * c->n_heads * c->head_dim;
    const size_t n_halves = c->n_seqs * per_seq * (c->latent ? 1 : 2) * c->n_kv;
    float *q = bench_random_floats(n_q), *out = bench_memory(n_q * sizeof *out);
    float *check = bench_memory(n_q * sizeof *check);
    int32_t *blocks = bench_memory(c->n_seqs * per_seq * sizeof *blocks);
    struct seq_rows *seqs = bench_memory(c->n_seqs * sizeof *seqs);
    uint8_t kv_of_head[64];
    const struct kv_view kv = {bench_memory(n_halves * kv_half_bytes(c->type, c->head_dim)),
                               c->type,
                               c->n_kv,
                               c->head_dim,
                               c->latent,
                               0};
    void *cache = kv.base;
    fill_cache(k, &kv, n_halves);
    for (size_t i = 0; i < c->n_seqs * per_seq; i++) blocks[i] = (int32_t)i;
    for (size_t s = 0; s < c->n_seqs; s++)
        seqs[s] = (struct seq_rows){s * c->n_rows, c->n_rows, c->pos0, blocks + s * per_seq, 0};
    for (uint32_t h = 0; h < c->n_heads; h++) kv_of_head[h] = (uint8_t)(h * c->n_kv / c->n_heads);
    struct attention_bench b = {k,
                                {.q = q,
                                 .out = out,
                                 .kv = kv,
                                 .kv_of_head = kv_of_head,
                                 .n_heads = c->n_heads,
                                 .scale = 0.125f,
                                 .seqs = seqs,
                                 .n_seqs = c->n_seqs}};
    b.args.parts = bench_memory(PART_FLOATS * sizeof(float));
    b.args.n_part_floats = PART_FLOATS;
    attention_check(&b, c, check);
    attention_print(c, m, bench_best_seconds(attention_run, &b));
    mem_free(&b.args.parts);
    mem_free(&q);
    mem_free(&out);
    mem_free(&check);
    mem_free(&cache);
    mem_free(&blocks);
    mem_free(&seqs);
}

void bench_attention(const struct kern_table *k, struct bench_machine m)
{
    static const struct attention_case cases[] = {
        {"SmolLM2 decode 8 x 1024", 9, 3, 64, DTYPE_F16, 8, 1024, 1, false},
        {"SmolLM2 decode 1 x 8000", 9, 3, 64, DTYPE_F16, 1, 8000, 1, false},
        {"SmolLM2 prefill 512", 9, 3, 64, DTYPE_F16, 1, 0, 512, false},
        {"SmolLM2 chunk 64 at 4096", 9, 3, 64, DTYPE_F16, 1, 4096, 64, false},
        {"TinyLlama decode 8 x 1024", 32, 4, 64, DTYPE_F16, 8, 1024, 1, false},
        {"TinyLlama decode 1 x 512", 32, 4, 64, DTYPE_F16, 1, 511, 1, false},
        {"TinyLlama decode 1 x 2048", 32, 4, 64, DTYPE_F16, 1, 2047, 1, false},
        {"TinyLlama decode 1 x 8192", 32, 4, 64, DTYPE_F16, 1, 8191, 1, false},
        {"one kv head, decode 1 x 512", 8, 1, 64, DTYPE_F16, 1, 511, 1, false},
        {"one kv head, decode 1 x 8192", 8, 1, 64, DTYPE_F16, 1, 8191, 1, false},
        {"TinyLlama prefill 512", 32, 4, 64, DTYPE_F16, 1, 0, 512, false},
        {"the same, int8 cache", 32, 4, 64, DTYPE_I8, 1, 0, 512, false},
        {"the same, fp8 cache", 32, 4, 64, DTYPE_F8_E4M3, 1, 0, 512, false},
        {"decode 1 x 2048, int8 cache", 32, 4, 64, DTYPE_I8, 1, 2047, 1, false},
        {"decode 1 x 2048, fp8 cache", 32, 4, 64, DTYPE_F8_E4M3, 1, 2047, 1, false},
        {"16 heads of 128, prefill 512", 16, 16, 128, DTYPE_F16, 1, 0, 512, false},
        {"16 latent heads, prefill 128", 16, 1, 576, DTYPE_F16, 1, 0, 128, true},
        {"16 latent heads, 1 x 2048", 16, 1, 576, DTYPE_F16, 1, 2047, 1, true},
    };
    printf("attention; f16 cache where nothing is said\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        bench_attention_case(k, m, &cases[i]);
}
