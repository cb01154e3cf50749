/* The floating-point environment that the numerics law assumes: round to nearest, subnormals kept,
 * no traps. Any library that was loaded may have changed it in any thread. */
#ifndef SHOAL_KERNELS_FPENV_H
#define SHOAL_KERNELS_FPENV_H

#if defined(__x86_64__)
#include <xmmintrin.h>

/* Local. Sets this thread's environment; cheap when it is already right. */
static inline void fpenv_set(void)
{
    const unsigned flags = 0x3Fu, wanted = 0x1F80u; /* all exceptions masked, no FTZ, no DAZ */
    if ((_mm_getcsr() & ~flags) != wanted) _mm_setcsr(wanted);
}
#else
#include <fenv.h>

static inline void fpenv_set(void)
{
    fesetenv(FE_DFL_ENV);
}
#endif

#endif
