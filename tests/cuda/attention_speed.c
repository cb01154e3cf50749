/* Measures the speed of a prompt's attention on this machine's GPU, for gpu.sh: one sequence,
 * causal, an f16 cache. usage: attention_speed ROWS HEADS KV_HEADS HEAD_DIM [SECONDS]; SECONDS is
 * the time that another program took for the same. Prints one line. Exit status: 77 no GPU, 1 a
 * failure. */
#include "base/clock.h"
#include "kernels/device.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <stdlib.h>

enum { REPETITIONS = 20, SKIPPED = 77, ARGUMENTS = 4 };

struct run {
    struct kern_table k;
    struct seq_rows seq;
    struct attn_args a;
    float *q, *out, *key;
    char *cache;
};

static void fill(const struct run *r, float *to, size_t n)
{
    float *x = calloc(n, sizeof *x);
    uint32_t state = 1;
    for (size_t i = 0; x != NULL && i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)state * 0x1p-31f;
    }
    if (x != NULL) mem_ops_put(&r->k, to, x, n * sizeof *x);
    free(x);
}

static struct status make(struct run *r, size_t rows, uint32_t heads, uint32_t kv, uint32_t hd)
{
    const size_t width = (size_t)heads * hd, n_blocks = (rows + 63) / 64;
    TRY(mem_ops_alloc(&r->k, &r->q, rows * width, sizeof(float), "queries"));
    TRY(mem_ops_alloc(&r->k, &r->out, rows * width, sizeof(float), "outputs"));
    TRY(mem_ops_alloc(&r->k, &r->key, rows * kv * hd, sizeof(float), "keys"));
    TRY(mem_ops_alloc(&r->k, &r->cache, n_blocks * 2 * kv, kv_half_bytes(DTYPE_F16, hd), "cache"));
    fill(r, r->q, rows * width);
    fill(r, r->key, rows * kv * hd);
    r->a.q = r->q;
    r->a.out = r->out;
    r->a.kv = (struct kv_view){r->cache, DTYPE_F16, kv, hd, false, 0};
    op_step_begin(&r->k, &r->seq, 1, rows);
    op_kv_write(&r->k, r->key, r->key, &r->a.kv, &r->seq, 1);
    return device_status(r->k.device);
}

static double least_s(struct run *r)
{
    double least = 0;
    for (int i = 0; i < REPETITIONS; i++) {
        device_wait(r->k.device);
        const uint64_t begin = clock_ns();
        op_attention(&r->k, &r->a);
        device_wait(r->k.device);
        const double s = (double)(clock_ns() - begin) * 1e-9;
        if (i > 0 && (least == 0 || s < least)) least = s;
    }
    return least;
}

static int measure(struct run *r, const long *n, double other_s)
{
    int32_t *blocks = calloc((size_t)n[0] / 64 + 1, sizeof *blocks);
    uint8_t kv_of_head[256];
    if (blocks == NULL) return 1;
    for (long i = 0; i <= n[0] / 64; i++) blocks[i] = (int32_t)i;
    for (long h = 0; h < n[1]; h++) kv_of_head[h] = (uint8_t)(h / (n[1] / n[2]));
    r->seq = (struct seq_rows){0, (size_t)n[0], 0, blocks, 0};
    r->a = (struct attn_args){.kv_of_head = kv_of_head,
                              .n_heads = (uint32_t)n[1],
                              .scale = 0.1f,
                              .seqs = &r->seq,
                              .n_seqs = 1};
    struct status st = make(r, (size_t)n[0], (uint32_t)n[1], (uint32_t)n[2], (uint32_t)n[3]);
    const double s = status_failed(&st) ? 0 : least_s(r);
    if (!status_failed(&st)) st = device_status(r->k.device);
    mem_ops_free(&r->k, &r->q);
    mem_ops_free(&r->k, &r->out);
    mem_ops_free(&r->k, &r->key);
    mem_ops_free(&r->k, &r->cache);
    free(blocks);
    if (status_failed(&st)) {
        printf("%s\n", st.text);
        return 1;
    }
    const double flops = 2.0 * (double)n[0] * (double)n[0] * (double)n[1] * (double)n[3];
    printf("%.3f ms, %.1f TFLOP/s", s * 1e3, flops / s * 1e-12);
    if (other_s > 0)
        printf(", torch %.3f ms: %.0f %% of its speed\n", other_s * 1e3, 100 * other_s / s);
    else
        printf("; no torch here to compare with\n");
    return 0;
}

int main(int argc, char **argv)
{
    long n[ARGUMENTS] = {0};
    for (int i = 0; i < ARGUMENTS && i + 1 < argc; i++) n[i] = atol(argv[i + 1]);
    if (n[0] < 1 || n[2] < 1 || n[1] < n[2] || n[1] > 256 || n[1] % n[2] != 0 || n[3] < 16 ||
        n[3] % 16 != 0) {
        fprintf(stderr, "usage: attention_speed ROWS HEADS KV_HEADS HEAD_DIM [SECONDS]\n");
        return 1;
    }
    const struct device_options o = {.name = "cuda", .n_local_ranks = 1};
    struct run r = {0};
    const struct status st = device_open(&o, &r.k.device);
    if (status_failed(&st)) {
        printf("%s\n", st.text);
        return st.code == STATUS_USAGE ? SKIPPED : 1;
    }
    const int status = measure(&r, n, argc > ARGUMENTS + 1 ? atof(argv[ARGUMENTS + 1]) : 0);
    device_close(&r.k.device);
    return status;
}
