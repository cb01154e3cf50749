/* shoal's own elementary functions: fixed sequences of IEEE operations, the same bits on every CPU.
 * None comes from libm, whose results change with the CPU. f32 exp is also written in every
 * instruction set with the same sequence; the double functions are scalar only. */
#ifndef SHOAL_KERNELS_ELEMENTARY_H
#define SHOAL_KERNELS_ELEMENTARY_H

/* exp(x): exp(0) = 1 exactly, x < -87 gives +0, x > 88 gives +infinity, NaN stays NaN.
 * Error below 1 ulp (measured over all floats by tests/kernels/test_elementary.c). */
float el_expf(float x);

/* sin and cos of a finite |x| < 2^24, rounded to f32 from double. */
void el_sincosf(float x, float *sin, float *cos);

/* Natural logarithm of a positive finite double, error below 2 ulp. */
double el_log(double x);

#endif
