/* The kernels for AMX with 8-bit integers (AMX-TILE and AMX-INT8); everything else comes from
 * AVX-512. */
#ifndef SHOAL_KERNELS_AMX_H
#define SHOAL_KERNELS_AMX_H

#include "kernels/kern.h"

/* Replaces entries of the table with the kernels of linear_quant_amx.c. */
void fill_linear_quant_amx(struct kern_table *t);

#endif
