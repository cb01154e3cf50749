/* The dialect of the kernels in this folder: C11 that nvcc compiles for the GPU, and a C compiler
 * for the tests. A block is a function of its arguments, its index in the grid and its shared
 * memory. It is written in phases: FOR_THREADS runs a phase for each thread of the block,
 * BLOCK_SYNC ends it. Values that outlive a phase are in shared memory or in arrays of
 * THREAD_SLOTS. Included only by the *.cu and headers of this folder. */
#ifndef SHOAL_KERNELS_CUDA_DIALECT_H
#define SHOAL_KERNELS_CUDA_DIALECT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/body.h"
#include "kernels/cuda/launch.h"

struct cuda_block {
    uint32_t x, y, z;
};

/* One lane's share (fragment) of c [16, 8] += a [16, 32] * b [32, 8] in int8, four inputs to a
 * word. With r = lane / 4 and q = lane % 4:
 *     a.v[0]  row r,     inputs 4q to 4q + 3       a.v[2]  row r,     inputs 16 + 4q to 19 + 4q
 *     a.v[1]  row r + 8, inputs as a.v[0]          a.v[3]  row r + 8, inputs as a.v[2]
 *     b.v[0]  output r,  inputs 4q to 4q + 3       b.v[1]  output r,  inputs 16 + 4q to 19 + 4q
 *     c.v[0], c.v[1]  row r, outputs 2q, 2q + 1    c.v[2], c.v[3]  row r + 8, outputs 2q, 2q + 1 */
enum { WARP_THREADS = 32, MMA_M = 16, MMA_N = 8, MMA_K = 32 };
struct mma_a {
    uint32_t v[4];
};
struct mma_b {
    uint32_t v[2];
};
struct mma_c {
    int32_t v[4];
};

#ifdef __CUDACC__
#include <cuda_fp16.h>

#define BLOCK_INLINE   static __device__ __forceinline__
#define BLOCK_UNROLL   _Pragma("unroll")
#define BLOCK_UNROLL4  _Pragma("unroll 4")
#define BLOCK_UNROLL16 _Pragma("unroll 16")
#define BLOCK_ROLLED   _Pragma("unroll 1")
#define FOR_THREADS(t) for (uint32_t t = threadIdx.x, once_ = 1; once_ != 0; once_ = 0)
#define BLOCK_SYNC()   __syncthreads()

BLOCK_INLINE void block_add_i64(int64_t *sum, int64_t x)
{
    atomicAdd((unsigned long long *)sum, (unsigned long long)x);
}

BLOCK_INLINE void block_add_i32(int32_t *sum, int32_t x)
{
    atomicAdd(sum, x);
}

BLOCK_INLINE void block_max_u32(uint32_t *max, uint32_t x)
{
    atomicMax(max, x);
}

BLOCK_INLINE void block_or_u32(uint32_t *bits, uint32_t x)
{
    atomicOr(bits, x);
}

BLOCK_INLINE void block_max_u64(uint64_t *max, uint64_t x)
{
    atomicMax((unsigned long long *)max, (unsigned long long)x);
}

BLOCK_INLINE int64_t block_round(double x)
{
    return __double2ll_rn(x);
}

BLOCK_INLINE int32_t block_round_f32(float x)
{
    return __float2int_rn(x);
}

BLOCK_INLINE float block_load_f16(const void *data, size_t i)
{
    return __half2float(((const __half *)data)[i]);
}

/* Returns sum plus the four products of the signed bytes of a and b. */
BLOCK_INLINE int32_t block_dot4(uint32_t a, uint32_t b, int32_t sum)
{
    return __dp4a((int)a, (int)b, sum);
}

/* Loads 16 bytes, aligned, that no thread writes during the launch. */
BLOCK_INLINE void block_load16(uint32_t *to, const void *from)
{
    const uint4 v = __ldg((const uint4 *)from);
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

/* Copy to shared memory while the thread continues. block_fetch16 starts a copy of 16 bytes; both
 * addresses are multiples of 16. block_fetch_end closes a group of copies. BLOCK_FETCH_WAIT(n)
 * waits until at most n of the thread's groups are still under way. */
BLOCK_INLINE void block_fetch16(void *shared, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(from)
                 : "memory");
}

BLOCK_INLINE void block_fetch_end(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
#define BLOCK_FETCH_WAIT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

/* FOR_THREADS, with i as the thread's index in arrays of THREAD_SLOTS. Such arrays keep a thread's
 * values from phase to phase: in registers on the GPU, one element per thread in tests. */
#define THREAD_SLOTS         1
#define FOR_THREADS_AT(t, i) for (uint32_t t = threadIdx.x, i = 0; i < 1; i++)

/* FOR_WARPS runs a phase for each warp, FOR_LANES runs a part of it for each lane of the warp. i
 * is the lane's index in arrays of WARP_LANES, which hold values that a lane keeps in registers. */
#define WARP_LANES 1
#define FOR_WARPS(w)                                                                               \
    for (uint32_t w = threadIdx.x / WARP_THREADS, once_w_ = 1; once_w_ != 0; once_w_ = 0)
#define FOR_LANES(lane, i) for (uint32_t lane = threadIdx.x % WARP_THREADS, i = 0; i < 1; i++)

/* c += a * b, with a and b in int8 and c in int32, computed by all lanes of a warp together (PTX
 * ISA, mma.m16n8k32). */
BLOCK_INLINE void warp_mma_s8(struct mma_c *c, const struct mma_a *a, const struct mma_b *b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c->v[0]), "+r"(c->v[1]), "+r"(c->v[2]), "+r"(c->v[3])
        : "r"(a->v[0]), "r"(a->v[1]), "r"(a->v[2]), "r"(a->v[3]), "r"(b->v[0]), "r"(b->v[1]));
}

#define CUDA_KERNEL(name, args)                                                                    \
    __global__ void __launch_bounds__(CUDA_THREADS)                                                \
        kernel_##name(const __grid_constant__ struct args a)                                       \
    {                                                                                              \
        extern __shared__ uint64_t shared_[];                                                      \
        struct cuda_block b;                                                                       \
        b.x = blockIdx.y;                                                                          \
        b.y = blockIdx.x;                                                                          \
        b.z = blockIdx.z;                                                                          \
        name##_block(&a, b, shared_);                                                              \
    }                                                                                              \
    extern "C" const void *cuda_entry_##name(void)                                                 \
    {                                                                                              \
        return (const void *)kernel_##name;                                                        \
    }
#else
#define BLOCK_INLINE static inline
#define BLOCK_UNROLL
#define BLOCK_UNROLL4
#define BLOCK_UNROLL16
#define BLOCK_ROLLED
#define FOR_THREADS(t)      for (uint32_t t = 0; t < CUDA_THREADS; t++)
#define BLOCK_SYNC()        ((void)0)

BLOCK_INLINE void block_add_i64(int64_t *sum, int64_t x)
{
    *sum += x;
}

BLOCK_INLINE void block_add_i32(int32_t *sum, int32_t x)
{
    *sum += x;
}

BLOCK_INLINE void block_max_u32(uint32_t *max, uint32_t x)
{
    if (x > *max) *max = x;
}

BLOCK_INLINE void block_or_u32(uint32_t *bits, uint32_t x)
{
    *bits |= x;
}

BLOCK_INLINE void block_max_u64(uint64_t *max, uint64_t x)
{
    if (x > *max) *max = x;
}

BLOCK_INLINE int64_t block_round(double x)
{
    return llrint(x);
}

BLOCK_INLINE int32_t block_round_f32(float x)
{
    return (int32_t)lrintf(x);
}

BLOCK_INLINE float block_load_f16(const void *data, size_t i)
{
    return kern_load(DTYPE_F16, data, i);
}

BLOCK_INLINE int32_t block_dot4(uint32_t a, uint32_t b, int32_t sum)
{
    for (int i = 0; i < 4; i++) sum += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return sum;
}

BLOCK_INLINE void block_load16(uint32_t *to, const void *from)
{
    memcpy(to, from, 16);
}

BLOCK_INLINE void block_fetch16(void *shared, const void *from)
{
    memcpy(shared, from, 16);
}

BLOCK_INLINE void block_fetch_end(void) {}
#define BLOCK_FETCH_WAIT(n) ((void)(n))

#define THREAD_SLOTS         CUDA_THREADS
#define FOR_THREADS_AT(t, i) for (uint32_t t = 0, i = 0; t < CUDA_THREADS; i = ++t)

#define WARP_LANES         WARP_THREADS
#define FOR_WARPS(w)       for (uint32_t w = 0; w < CUDA_THREADS / WARP_THREADS; w++)
#define FOR_LANES(lane, i) for (uint32_t lane = 0, i = 0; lane < WARP_THREADS; i = ++lane)

BLOCK_INLINE void warp_mma_s8(struct mma_c *c, const struct mma_a *a, const struct mma_b *b)
{
    for (uint32_t row = 0; row < MMA_M; row++) {
        for (uint32_t n = 0; n < MMA_N; n++) {
            int32_t *sum = &c[row % 8 * 4 + n / 2].v[row / 8 * 2 + n % 2];
            for (uint32_t q = 0; q < 4; q++) {
                *sum = block_dot4(a[row % 8 * 4 + q].v[row / 8], b[n * 4 + q].v[0], *sum);
                *sum = block_dot4(a[row % 8 * 4 + q].v[row / 8 + 2], b[n * 4 + q].v[1], *sum);
            }
        }
    }
}

/* The tests' driver calls these functions, one block after the other. */
#define CUDA_KERNEL(name, args)                                                                    \
    void cuda_run_##name(const void *a, struct cuda_block b, void *shared);                        \
    void cuda_run_##name(const void *a, struct cuda_block b, void *shared)                         \
    {                                                                                              \
        name##_block((const struct args *)a, b, shared);                                           \
    }
#endif

/* Returns element i of an array of a constant type t, in f32 (exact). */
BLOCK_INLINE float block_load(enum dtype t, const void *data, size_t i)
{
    return t == DTYPE_F16 ? block_load_f16(data, i) : kern_load(t, data, i);
}

/* Returns the sum of x[LANES] in the order of the numerics law: a tree 8-4-2-1. */
BLOCK_INLINE float block_tree(const float *x)
{
    float a[LANES / 2];
    BLOCK_UNROLL
    for (int i = 0; i < LANES / 2; i++) a[i] = x[i] + x[i + LANES / 2];
    BLOCK_UNROLL
    for (int i = 0; i < 4; i++) a[i] += a[i + 4];
    BLOCK_UNROLL
    for (int i = 0; i < 2; i++) a[i] += a[i + 2];
    return a[0] + a[1];
}

#endif
