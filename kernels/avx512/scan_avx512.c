/* The Mamba-2 scan with AVX-512. */
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/vec.h"

#include <math.h>

enum { SCAN_VECTORS = 4, SCAN_ROWS = 2 };

#include "kernels/scan_body.h"

static void k_scan_f32_avx512(const struct state_run *r)
{
    scan_all(r);
}

void fill_scan_avx512(struct kern_table *t)
{
    t->scan = k_scan_f32_avx512;
}
