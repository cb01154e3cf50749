/* A hook into the forward pass: hands the input of each linear of a layer to the calibration of
 * quantizers. Stage and MoE call it when a tap is given to them; a running job gives none. */
#ifndef SHOAL_TENSOR_TAP_H
#define SHOAL_TENSOR_TAP_H

#include <stddef.h>
#include <stdint.h>

/* The linear whose input is passed to the hook. */
enum tap_site {
    TAP_ATTENTION,   /* q, k and v, or the projections to latents: [T, D] */
    TAP_Q_LATENT,    /* q of latent attention, from its own latent: [T, q_lora] */
    TAP_O,           /* [T, H value_dim] */
    TAP_FFN,         /* gate and up, dense or shared, and the router: [T, D] */
    TAP_DOWN,        /* dense or shared: [T, F] */
    TAP_EXPERT,      /* gate and up of an expert: its tokens' rows, in the tokens' order */
    TAP_EXPERT_DOWN, /* the same rows as inputs of the down projection, [rows, F] */
    TAP_SITE_COUNT
};

/* x [n_rows, n] is borrowed for the call; expert counts in the whole model, 0 elsewhere. */
struct tap {
    void (*see)(void *ctx, enum tap_site site, uint32_t expert, const float *x, size_t n_rows,
                size_t n);
    void *ctx;
};

#endif
