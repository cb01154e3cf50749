/* The floating-point environment of a thread (numerics law, rule 8), set by share_run for every
 * piece of a loop, and how this room's loops over doubles are compiled: for any CPU and for wider
 * ones. Never with FMA: contraction is off, and clones must agree in every bit. */
#ifndef SHOAL_QUANT_FP_RESET_H
#define SHOAL_QUANT_FP_RESET_H

#if defined(__x86_64__)
#include <xmmintrin.h>

/* Local. Round to nearest, subnormals kept, nothing trapped. */
static inline void fp_reset(void)
{
    _mm_setcsr(0x1F80);
}
#else
#include <fenv.h>

static inline void fp_reset(void)
{
    fesetenv(FE_DFL_ENV);
}
#endif

#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&                \
    !defined(__SANITIZE_THREAD__)
#define QUANT_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define QUANT_CLONES
#endif

#endif
