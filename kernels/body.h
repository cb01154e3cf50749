/* Small inlined functions that the kernels of every instruction set share, so that these cannot
 * differ: loading an element, rounding to the integer grid, the router's key, the positions that a
 * row sees, the places of keys and values. */
#ifndef SHOAL_KERNELS_BODY_H
#define SHOAL_KERNELS_BODY_H

#include "kernels/elementary_body.h"
#include "kernels/kern.h"

/* Returns element i of an array of a constant type t, in f32 (exact). */
DEVICE_INLINE float kern_load(enum dtype t, const void *data, size_t i)
{
    if (t == DTYPE_F16) return f32_from_f16(((const uint16_t *)data)[i]);
    if (t == DTYPE_BF16) return f32_from_bf16(((const uint16_t *)data)[i]);
    return ((const float *)data)[i];
}

/* Returns 2^e, as a double and as a float, for exponents of normal numbers. */
DEVICE_INLINE double kern_pow2(int e)
{
    const uint64_t u = (uint64_t)(1023 + e) << 52;
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

DEVICE_INLINE float kern_pow2f(int e)
{
    return f32_from_bits((uint32_t)(127 + e) << 23);
}

/* Returns the limit that the magnitude of a leaf's f32 partial sum must stay below on the grid
 * 2^-g. */
DEVICE_INLINE float kern_grid_limit(uint32_t grid_bits)
{
    return kern_pow2f(51 - (int)grid_bits);
}

/* Half of kern_grid_limit, in steps of the grid (weighted_*.c). */
#define WEIGHTED_HALF ((int64_t)1 << 50)

/* Returns a weighted value on the grid: llrint(v * 2^g) with v = weight * y, which is exact in
 * double. If v is too large or NaN, returns 0 and adds 1 to *n_bad. */
DEVICE_INLINE int64_t kern_weigh(float weight, float y, uint32_t grid_bits, int64_t *n_bad)
{
    const double v = (double)weight * (double)y;
    if (fabs(v) < (double)kern_grid_limit(grid_bits)) return llrint(v * kern_pow2((int)grid_bits));
    (*n_bad)++;
    return 0;
}

/* Returns the sum of column i of the weighted rows, on the grid; adds to *n_bad how many of its
 * values are NaN or too large. */
static inline int64_t kern_weighted_column(const struct weighted_rows *a, size_t i, int64_t *n_bad)
{
    int64_t sum = 0;
    for (size_t r = 0; r < a->n_rows; r++)
        sum += kern_weigh(a->weights[r], a->rows[r][i], a->grid_bits, n_bad);
    return sum;
}

/* Adds a row's number of bad leaves to its counter, atomically: several threads may hold parts of
 * the row. */
static inline void kern_count_bad(int64_t *counter, int64_t n_bad)
{
    if (n_bad != 0) __atomic_fetch_add(counter, n_bad, __ATOMIC_RELAXED);
}

/* Does what kern_count_bad does for the 32-bit counter of a row whose integer sums are not kept. A
 * row's leaves times its outputs are far fewer than 2^31. */
static inline void kern_mark_bad(int32_t *bad, int64_t n_bad)
{
    if (n_bad != 0) __atomic_fetch_add(bad, (int32_t)n_bad, __ATOMIC_RELAXED);
}

/* Returns a key in the router's order: a larger key is better. -0 equals +0; a NaN comes last,
 * whatever its bits. */
DEVICE_INLINE uint64_t kern_router_key(float score, uint32_t id)
{
    const uint32_t ordered = score != score ? 0 : kern_ordered_bits(score + 0.0f);
    return (uint64_t)ordered << 32 | (uint32_t)~id;
}

/* Returns the first position that position p sees; window as in attn_args. */
DEVICE_INLINE size_t kern_first_visible(size_t p, uint32_t window)
{
    if ((window & KERN_CHUNKS) != 0) return p - p % (window & ~KERN_CHUNKS);
    return window > 0 && p >= window ? p - window + 1 : 0;
}

/* Returns the last position that row `row` of a sequence sees. */
DEVICE_INLINE size_t kern_last_visible(const struct attn_args *a, const struct seq_rows *seq,
                                       size_t row)
{
    const size_t p = seq->pos0 + row, last = seq->pos0 + seq->n_rows - 1;
    if (!a->ahead) return p;
    return a->window > 0 && last - p >= a->window ? p + a->window - 1 : last;
}

/* Returns the divisor of a row's output. A sink far above all scores makes the divisor infinite,
 * and the output 0. */
DEVICE_INLINE float kern_attention_sum(const struct attn_args *a, size_t head, float max, float sum)
{
    return a->sinks != NULL ? sum + el_exp_body(a->sinks[head] - max) : sum;
}

/* Returns the number of floats of attn_slice.parts for one tile and head: whole cache lines. */
DEVICE_INLINE size_t kern_part_floats(size_t head_dim)
{
    return head_dim + 16;
}

/* Returns the address of a block's keys (what = 0) or values (1) of kv head g, from slot 0 on. */
DEVICE_INLINE void *kern_kv_half(const struct kv_view *kv, int32_t block, int what, size_t g)
{
    const size_t part = kv->latent ? (size_t)block : (size_t)block * 2 + (size_t)what;
    const size_t half = part * kv->n_kv_heads + g;
    return (char *)kv->base + half * (kv_half_bytes(kv->dtype, kv->head_dim) + kv->beside_bytes);
}

/* Returns the address of the scales [slot] of a block's int8 keys or values (kern_kv_half). */
DEVICE_INLINE float *kern_kv_scales(const void *half, size_t head_dim)
{
    return (float *)((uintptr_t)half + KV_BLOCK_TOKENS * head_dim);
}

/* Returns element d of slot j, in f32; t is constant. */
DEVICE_INLINE float kern_kv_load(enum dtype t, const void *half, size_t head_dim, size_t j,
                                 size_t d)
{
    const size_t i = j * head_dim + d;
    if (t == DTYPE_F8_E4M3) return f32_from_e4m3(((const uint8_t *)half)[i]);
    if (t == DTYPE_I8) return (float)((const int8_t *)half)[i] * kern_kv_scales(half, head_dim)[j];
    return kern_load(t, half, i);
}

#endif
