/* Shared by kat.c and kat_sequence.c: the memory of a check, its pseudo-random inputs, the hash,
 * and the answers of kat_sequence.c. */
#ifndef SHOAL_KERNELS_KAT_PRIVATE_H
#define SHOAL_KERNELS_KAT_PRIVATE_H

#include "kernels/kern.h"

enum {
    ROWS = 7,
    OUTS = 40,
    OUTS_PADDED = 48,
    INS = 83,
    N = 45, /* elements of a row of the row ops: no multiple of any vector register's elements */
    HEAD_DIM = 32,
    BLOCKS = 2,
    QUANT_ROWS = 40, /* of linears with quantized weights */
    CACHE = BLOCKS * 2 * KV_BLOCK_TOKENS * HEAD_DIM,
};

/* All inputs and outputs of one check. */
struct kat_bench {
    const struct kern_table *t;
    float x[ROWS * INS], w[OUTS_PADDED * INS];
    float kv[CACHE];
    char data[CACHE * sizeof(float)] __attribute__((aligned(64))); /* a weight, or a cache */
    float y[QUANT_ROWS * OUTS_PADDED];
    int64_t sums[QUANT_ROWS * (OUTS + 1)];
};

static const uint64_t kat_hash_start = 0xCBF29CE484222325u; /* the hash of no data */

/* Local. Returns the hash that continues h over n_bytes of data. */
uint64_t kat_hash(uint64_t h, const void *data, size_t n_bytes);

/* Local. x [n] = pseudo-random values from -magnitude to magnitude. */
void kat_fill(uint64_t seed, float *x, size_t n, float magnitude);

/* kat_sequence.c. Local. Each returns the hash of an op's results. t is the element type of the
 * cache; ops without a cache do not read it. */
uint64_t kat_attention(struct kat_bench *b, enum dtype t);
uint64_t kat_shared(struct kat_bench *b, enum dtype t);
uint64_t kat_parts(struct kat_bench *b, enum dtype t);
uint64_t kat_sinks(struct kat_bench *b, enum dtype t);
uint64_t kat_ahead(struct kat_bench *b, enum dtype t);
uint64_t kat_softcap(struct kat_bench *b, enum dtype t);
uint64_t kat_index(struct kat_bench *b, enum dtype t);
uint64_t kat_delta(struct kat_bench *b, enum dtype t);
uint64_t kat_delta_channels(struct kat_bench *b, enum dtype t);
uint64_t kat_scan(struct kat_bench *b, enum dtype t);
uint64_t kat_pool(struct kat_bench *b, enum dtype t);
uint64_t kat_conv(struct kat_bench *b, enum dtype t);

#endif
