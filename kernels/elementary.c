/* Exports the elementary functions. They use polynomials instead of tables: the argument is reduced
 * until a few terms suffice. */
#include "kernels/elementary.h"

#include "kernels/elementary_body.h"
#include "kernels/ref/ref.h"

REF_CLONES float el_expf(float x)
{
    return el_exp_body(x);
}

REF_CLONES void el_sincosf(float x, float *sin, float *cos)
{
    el_sincos_body(x, sin, cos);
}

REF_CLONES double el_log(double x)
{
    return el_log_body(x);
}

REF_CLONES float el_softplusf(float x)
{
    return el_softplus_body(x);
}

REF_CLONES float el_geluf(float x)
{
    return el_gelu_body(x);
}
