/* fp_reset sets a thread's floating-point environment (docs/numerics.md, rule 8); share_run calls
 * it before each part of a loop. QUANT_CLONES compiles a function of src/quant for any x86-64 CPU,
 * for AVX2 and for AVX-512 (only with GCC and without the address and thread sanitizers). All
 * versions must give the same bits, so none uses FMA. */
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
