/* Takes AVX-512's entries, except linears with int8 and int4 weights, which AMX has itself. */
#include "kernels/amx/amx.h"

void kern_fill_amx(struct kern_table *t)
{
    kern_fill_avx512(t);
    t->name = "amx";
    fill_linear_quant_amx(t);
}
