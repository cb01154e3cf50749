/* How an FFN computes its inner rows from its gate and up projections: a part of a model's
 * description, where other members add a few more ways (struct arch). Of the ways below, devices
 * compute GATE_SWIGLU and GATE_GEGLU only. */
#ifndef SHOAL_TENSOR_GATE_KIND_H
#define SHOAL_TENSOR_GATE_KIND_H

enum gate_kind {
    GATE_SWIGLU,      /* silu(gate) * up */
    GATE_GEGLU,       /* gelu(gate) * up, GELU in its tanh form */
    GATE_RELU2,       /* max(gate, 0)^2; there is no up */
    GATE_GELU,        /* gelu(gate), GELU in its exact form; there is no up */
    GATE_GEGLU_EXACT, /* gelu(gate) * up, GELU in its exact form */
};

#endif
