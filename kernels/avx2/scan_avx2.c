/* The Mamba-2 scan with AVX2. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/vec.h"

#include <math.h>

enum { SCAN_VECTORS = 1, SCAN_ROWS = 2 };

#include "kernels/scan_body.h"

static void k_scan_f32_avx2(const struct state_run *r)
{
    scan_all(r);
}

void fill_scan_avx2(struct kern_table *t)
{
    t->scan = k_scan_f32_avx2;
}
