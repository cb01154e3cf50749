/* A hook in the forward pass that gives the inputs of a layer's linears (enum tap_site) to the
 * calibration of quantizers. The stage and the MoE block call it unless it is NULL, as it is in all
 * other jobs. */
#ifndef SHOAL_TENSOR_TAP_H
#define SHOAL_TENSOR_TAP_H

#include <stddef.h>
#include <stdint.h>

/* The linear whose input is passed to the hook, and the input's shape. */
enum tap_site {
    TAP_ATTENTION,   /* q, k and v, or the projections to latents: [T, D] */
    TAP_Q_LATENT,    /* q of latent attention, from its own latent: [T, q_lora] */
    TAP_O,           /* [T, H value_dim] */
    TAP_FFN,         /* gate and up, dense or shared, and the router: [T, D] */
    TAP_DOWN,        /* dense or shared: [T, F] */
    TAP_EXPERT,      /* gate and up of an expert: the rows of its tokens, in token order */
    TAP_EXPERT_DOWN, /* the same rows as inputs of the down projection, [rows, F] */
    TAP_SITE_COUNT
};

/* x [n_rows, n] is borrowed for the call. `expert` is the expert's number in the model, 0 for
 * other sites. */
struct tap {
    void (*see)(void *ctx, enum tap_site site, uint32_t expert, const float *x, size_t n_rows,
                size_t n);
    void *ctx;
};

#endif
