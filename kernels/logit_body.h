/* Applies bans, bias and penalties to one logit. The sampler and the device compile this same
 * source. Each step is one f32 operation, rounded once. */
#ifndef SHOAL_KERNELS_LOGIT_BODY_H
#define SHOAL_KERNELS_LOGIT_BODY_H

#include "kernels/ops.h"

#include <float.h>

DEVICE_INLINE float kern_changed_logit(const struct logit_change *c, float logit)
{
    if ((c->flags & LOGIT_FORBIDDEN) != 0) return -FLT_MAX;
    float x = logit + c->bias;
    if ((c->flags & LOGIT_REPEATED) != 0) x = x > 0 ? x / c->repetition : x * c->repetition;
    if ((c->flags & LOGIT_SAMPLED) != 0) {
        x = x - c->often;
        x = x - c->presence;
    }
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

#endif
