/* Overrides the AVX-512 set's entries with what AMX makes faster: linears with quantized weights.
 */
#include "kernels/amx/amx.h"

void kern_fill_amx(struct kern_table *t)
{
    static const enum quant_kind kinds[] = {QUANT_INT8, QUANT_INT4};
    kern_fill_avx512(t);
    t->name = "amx";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        t->linear_quant[kinds[i]] = k_linear_quant_amx;
        t->linear_quant_leaf[kinds[i]] = k_linear_quant_leaf_amx;
    }
}
