/* DEVICE_INLINE marks small functions that run on the CPU and on a GPU with the same bits: the same
 * source is compiled as C11 and, in kernels/cuda, as CUDA. They use no mutable static data, no
 * compound literals, and no built-ins that one of the two compilers lacks. */
#ifndef SHOAL_TENSOR_INLINE_H
#define SHOAL_TENSOR_INLINE_H

#ifdef __CUDACC__
#define DEVICE_INLINE static __host__ __device__ inline
#else
#define DEVICE_INLINE static inline
#endif

#endif
