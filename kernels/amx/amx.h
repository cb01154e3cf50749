/* The kernels for AMX with 8-bit integers (AMX-TILE and AMX-INT8) beside AVX-512. Used by
 * amx/fill_amx.c only. */
#ifndef SHOAL_KERNELS_AMX_H
#define SHOAL_KERNELS_AMX_H

#include "kernels/kern.h"

void k_linear_quant_amx(const struct linear_args *a, size_t group, size_t panel0, size_t panel1,
                        size_t row0, size_t row1);
void k_linear_quant_leaf_amx(const struct linear_args *a, size_t group, size_t panel0,
                             size_t panel1, size_t row0, size_t row1);

#endif
