/* shoal's own elementary functions: fixed sequences of IEEE operations, with the same bits on
 * every CPU. None comes from libm, whose results change with the CPU. Every instruction set also
 * has its own f32 exp, with the same sequence; the double functions are scalar only. */
#ifndef SHOAL_KERNELS_ELEMENTARY_H
#define SHOAL_KERNELS_ELEMENTARY_H

/* Returns exp(x): exp(0) = 1 exactly, x < -87 gives +0, x > 88 gives +infinity, NaN stays NaN. The
 * error is below 1 ulp (measured over all floats by tests/kernels/test_elementary.c). */
float el_expf(float x);

/* Computes sin and cos of x, |x| < 2^24, in double and rounds them to f32. */
void el_sincosf(float x, float *sin, float *cos);

/* Returns the natural logarithm of a positive finite double, with an error below 2 ulp. */
double el_log(double x);

/* Returns log(1 + el_expf(x)), rounded to f32; above 20: x. */
float el_softplusf(float x);

/* Returns GELU(x), x times the normal distribution function; the error is below 2e-7 (1 + |x|). */
float el_geluf(float x);

#endif
