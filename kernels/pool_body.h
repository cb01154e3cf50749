/* The sums of compressed entries (struct pool_sums) on vectors of 16 lanes. The file that includes
 * this has included its instruction set's vec.h. */
#ifndef SHOAL_KERNELS_POOL_BODY_H
#define SHOAL_KERNELS_POOL_BODY_H

#include "kernels/elementary_body.h"

enum { POOL_LANES = 16 };

/* Adds a row to the sums of channel i. */
static void pool_one(const struct pool_sums *p, float x, float v, size_t i)
{
    const float old = p->m[i], m = old > x ? old : x;
    const float a = el_exp_body(old - m), b = el_exp_body(x - m);
    p->l[i] = fmaf(p->l[i], a, b);
    p->s[i] = fmaf(p->s[i], a, b * v);
    p->m[i] = m;
}

static void pool_all(const struct pool_sums *p, const float *z, const float *bias, const float *v,
                     size_t n)
{
    size_t i = 0;
    for (; i + POOL_LANES <= n; i += POOL_LANES) {
        const struct v16 x = v16_add(v16_load(DTYPE_F32, z, i), v16_load(DTYPE_F32, bias, i));
        const struct v16 old = v16_load(DTYPE_F32, p->m, i), m = v16_above(old, x, old, x);
        const struct v16 a = v16_exp(v16_sub(old, m)), b = v16_exp(v16_sub(x, m));
        const struct v16 own = v16_mul(b, v16_load(DTYPE_F32, v, i));
        v16_store(p->l + i, v16_madd(v16_load(DTYPE_F32, p->l, i), a, b));
        v16_store(p->s + i, v16_madd(v16_load(DTYPE_F32, p->s, i), a, own));
        v16_store(p->m + i, m);
    }
    for (; i < n; i++) pool_one(p, z[i] + bias[i], v[i], i);
}

#endif
