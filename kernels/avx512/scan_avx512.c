/* The Mamba-2 scan, and the sums of compressed entries, with AVX-512. */
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/vec.h"

#include <math.h>

enum { SCAN_VECTORS = 4, SCAN_ROWS = 2 };

#include "kernels/pool_body.h"
#include "kernels/scan_body.h"

static void k_scan_f32_avx512(const struct state_run *r)
{
    scan_all(r);
}

static void k_pool_add_f32_avx512(const struct pool_sums *p, const float *z, const float *bias,
                                  const float *v, size_t n)
{
    pool_all(p, z, bias, v, n);
}

void fill_scan_avx512(struct kern_table *t)
{
    t->scan = k_scan_f32_avx512;
    t->pool_add = k_pool_add_f32_avx512;
}
