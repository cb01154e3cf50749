/* Stands in for the kernels of AVX-512 and AMX in builds for tests that leave them out
 * (cmake/shoal_room.cmake). */
#include "kernels/kern.h"

void kern_fill_avx512(struct kern_table *t)
{
    kern_fill_avx2(t);
}

void kern_fill_amx(struct kern_table *t)
{
    kern_fill_avx2(t);
}
