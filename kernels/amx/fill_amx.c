/* Replaces those of AVX-512's entries that AMX makes faster: linears with quantized weights. */
#include "kernels/amx/amx.h"

void kern_fill_amx(struct kern_table *t)
{
    kern_fill_avx512(t);
    t->name = "amx";
    fill_linear_quant_amx(t);
}
