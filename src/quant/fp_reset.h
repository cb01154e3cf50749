/* The floating-point environment of a thread (numerics law, rule 8), which share_run sets for
 * every part of a loop; and QUANT_CLONES, which compiles this room's loops over doubles for any
 * CPU and for CPUs with wider vectors. FMA is never used, because all clones must agree in every
 * bit. */
#ifndef SHOAL_QUANT_FP_RESET_H
#define SHOAL_QUANT_FP_RESET_H

#if defined(__x86_64__)
#include <xmmintrin.h>

/* Local. Sets round to nearest, subnormals kept, no traps. */
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

#define QUANT_INLINE static inline __attribute__((always_inline))

#endif
