/* Tensor-core products of one warp with 16-bit operands and f32 sums, and the loads of their
 * fragments. The tests' build emulates both in C. The order in which a GPU adds within a product
 * is not documented, but it is the same for every row, output and place in a tile. The emulation
 * has its own order. */
#ifndef SHOAL_KERNELS_CUDA_MMA_H
#define SHOAL_KERNELS_CUDA_MMA_H

#include "kernels/cuda/dialect.h"

/* One lane's share (fragment) of sums [16, 8] += a [16, 16] * b [16, 8], two elements to a word,
 * the first in the low half (PTX ISA, mma.m16n8k16). With r = lane / 4 and i = 2 (lane % 4):
 *     a.v[0]  row r,     inputs i, i + 1      a.v[2]  row r,     inputs i + 8, i + 9
 *     a.v[1]  row r + 8, inputs i, i + 1      a.v[3]  row r + 8, inputs i + 8, i + 9
 *     b.v[0]  output r,  inputs i, i + 1      b.v[1]  output r,  inputs i + 8, i + 9
 *     sums.v[0], v[1]  row r, outputs i, i + 1     v[2], v[3]  row r + 8, outputs i, i + 1 */
enum { HALF_K = 16 };
struct half_a {
    uint32_t v[4];
};
struct half_b {
    uint32_t v[2];
};
struct half_sums {
    float v[4];
};

#ifdef __CUDACC__

/* FOR_WARPS, with s as the warp's index in arrays of WARP_SLOTS. Such arrays keep the values of
 * the warp's lanes from phase to phase. */
#define WARP_SLOTS         1
#define FOR_WARPS_AT(w, s) for (uint32_t w = threadIdx.x / WARP_THREADS, s = 0; s < WARP_SLOTS; s++)

/* c += a * b, computed by all lanes of a warp together. t is a compile-time constant, DTYPE_F16 or
 * DTYPE_BF16. */
BLOCK_INLINE void warp_mma_half(enum dtype t, struct half_sums *c, const struct half_a *a,
                                const struct half_b *b)
{
    if (t == DTYPE_F16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c->v[0]), "+f"(c->v[1]), "+f"(c->v[2]), "+f"(c->v[3])
            : "r"(a->v[0]), "r"(a->v[1]), "r"(a->v[2]), "r"(a->v[3]), "r"(b->v[0]), "r"(b->v[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c->v[0]), "+f"(c->v[1]), "+f"(c->v[2]), "+f"(c->v[3])
            : "r"(a->v[0]), "r"(a->v[1]), "r"(a->v[2]), "r"(a->v[3]), "r"(b->v[0]), "r"(b->v[1]));
}

/* Load four 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row
 * l % 8 of matrix l / 8 (16 bytes, aligned). out->v[m] of lane l gets two consecutive elements of
 * matrix m, from element 2 (l % 4) on: of row l / 4, or with warp_load_turned of column l / 4. */
BLOCK_INLINE void warp_load_matrices(struct half_a *out, const void *const *rows)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out->v[0]), "=r"(out->v[1]), "=r"(out->v[2]), "=r"(out->v[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(rows[0]))
                 : "memory");
}

BLOCK_INLINE void warp_load_turned(struct half_a *out, const void *const *rows)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out->v[0]), "=r"(out->v[1]), "=r"(out->v[2]), "=r"(out->v[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(rows[0]))
                 : "memory");
}

/* Does what block_fetch16 does; without `has`, writes 16 zero bytes and reads nothing. */
BLOCK_INLINE void block_fetch16_or_zeros(void *shared, const void *from, bool has)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(from), "r"(has ? 16 : 0)
                 : "memory");
}

/* Does what block_fetch16 does with 4 bytes; both addresses are multiples of 4. */
BLOCK_INLINE void block_fetch4(void *shared, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(from)
                 : "memory");
}

/* Returns a * b + c for each half (bf16), rounded once. */
BLOCK_INLINE uint32_t block_fma2_bf16(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

/* to[lane] = from[lane ^ bit] */
BLOCK_INLINE void warp_exchange(float *to, const float *from, uint32_t bit)
{
    to[0] = __shfl_xor_sync(0xFFFFFFFFu, from[0], (int)bit);
}

/* Returns 2^x with a relative error below 2^-22; results below 2^-126 are zero (PTX ISA,
 * ex2.approx). */
BLOCK_INLINE float block_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Returns two floats rounded to f16 (nearest even), the first in the low half. */
BLOCK_INLINE uint32_t block_halves(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

#else

#define WARP_SLOTS         (CUDA_THREADS / WARP_THREADS)
#define FOR_WARPS_AT(w, s) for (uint32_t w = 0, s = 0; w < WARP_SLOTS; s = ++w)

BLOCK_INLINE float half_element(enum dtype t, uint32_t two, uint32_t i)
{
    const uint16_t bits = (uint16_t)(two >> 16 * i);
    return t == DTYPE_F16 ? f32_from_f16(bits) : f32_from_bf16(bits);
}

/* Adds eight products as a tree, then adds their sum to c; first for inputs 0 to 7, then for 8 to
 * 15. */
BLOCK_INLINE void warp_mma_half(enum dtype t, struct half_sums *c, const struct half_a *a,
                                const struct half_b *b)
{
    float rows[MMA_M][HALF_K], outputs[MMA_N][HALF_K];
    for (uint32_t lane = 0; lane < WARP_THREADS; lane++) {
        const uint32_t r = lane / 4, i = lane % 4 * 2;
        for (uint32_t j = 0; j < 4; j++) {
            for (uint32_t e = 0; e < 2; e++)
                rows[r + j % 2 * 8][i + j / 2 * 8 + e] = half_element(t, a[lane].v[j], e);
        }
        for (uint32_t j = 0; j < 2; j++) {
            for (uint32_t e = 0; e < 2; e++)
                outputs[r][i + j * 8 + e] = half_element(t, b[lane].v[j], e);
        }
    }
    for (uint32_t r = 0; r < MMA_M; r++) {
        for (uint32_t n = 0; n < MMA_N; n++) {
            float *sum = &c[r % 8 * 4 + n / 2].v[r / 8 * 2 + n % 2];
            for (uint32_t k = 0; k < HALF_K; k += 8) {
                float p[8];
                for (uint32_t i = 0; i < 8; i++) p[i] = rows[r][k + i] * outputs[n][k + i];
                *sum += ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
            }
        }
    }
}

BLOCK_INLINE uint32_t half_two(const void *const *rows, uint32_t r0, uint32_t i0, uint32_t r1,
                               uint32_t i1)
{
    return (uint32_t)((const uint16_t *)rows[r1])[i1] << 16 | ((const uint16_t *)rows[r0])[i0];
}

BLOCK_INLINE void warp_load_matrices(struct half_a *out, const void *const *rows)
{
    for (uint32_t lane = 0; lane < WARP_THREADS; lane++) {
        const uint32_t r = lane / 4, i = lane % 4 * 2;
        for (uint32_t m = 0; m < 4; m++)
            out[lane].v[m] = half_two(rows, m * 8 + r, i, m * 8 + r, i + 1);
    }
}

BLOCK_INLINE void warp_load_turned(struct half_a *out, const void *const *rows)
{
    for (uint32_t lane = 0; lane < WARP_THREADS; lane++) {
        const uint32_t r = lane / 4, i = lane % 4 * 2;
        for (uint32_t m = 0; m < 4; m++)
            out[lane].v[m] = half_two(rows, m * 8 + i, r, m * 8 + i + 1, r);
    }
}

BLOCK_INLINE void block_fetch4(void *shared, const void *from)
{
    memcpy(shared, from, 4);
}

BLOCK_INLINE void block_fetch16_or_zeros(void *shared, const void *from, bool has)
{
    if (has)
        memcpy(shared, from, 16);
    else
        memset(shared, 0, 16);
}

BLOCK_INLINE uint32_t block_fma2_bf16(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t y = 0;
    for (uint32_t i = 0; i < 2; i++) {
        const float one = half_element(DTYPE_BF16, a, i), other = half_element(DTYPE_BF16, b, i);
        y |= (uint32_t)bf16_from_f32(fmaf(one, other, half_element(DTYPE_BF16, c, i))) << 16 * i;
    }
    return y;
}

BLOCK_INLINE void warp_exchange(float *to, const float *from, uint32_t bit)
{
    for (uint32_t lane = 0; lane < WARP_THREADS; lane++) to[lane] = from[lane ^ bit];
}

BLOCK_INLINE float block_exp2(float x)
{
    return exp2f(x);
}

BLOCK_INLINE uint32_t block_halves(float low, float high)
{
    return f16_from_f32(low) | (uint32_t)f16_from_f32(high) << 16;
}

#endif

#endif
