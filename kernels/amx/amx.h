/* The kernels for AMX with 8-bit integers (AMX-TILE and AMX-INT8) beside AVX-512. */
#ifndef SHOAL_KERNELS_AMX_H
#define SHOAL_KERNELS_AMX_H

#include "kernels/kern.h"

/* Each file sets the entries of its kernels. */
void fill_linear_quant_amx(struct kern_table *t);

#endif
