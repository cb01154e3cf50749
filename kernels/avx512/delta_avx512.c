/* Recurrent layers with AVX-512: the gated delta rule, its convolution, and sigmoid gates. */
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/vec.h"

enum { DELTA_VECTORS = 4 };

#include "kernels/delta_body.h"

static void k_sigmoid_mul_f32_avx512(const float *gate, size_t n, float *x)
{
    delta_sigmoid_mul(gate, n, x);
}

static void k_conv_silu_f32_avx512(const float *const *x, size_t n_taps, const float *w,
                                   size_t w_stride, size_t n, float *y)
{
    delta_conv_silu(x, n_taps, w, w_stride, n, y);
}

static void k_delta_rule_f32_avx512(const struct state_run *r)
{
    delta_rule(r);
}

void fill_delta_avx512(struct kern_table *t)
{
    t->sigmoid_mul = k_sigmoid_mul_f32_avx512;
    t->conv_silu = k_conv_silu_f32_avx512;
    t->delta_rule = k_delta_rule_f32_avx512;
}
