/* AWQ: before rounding, the weights of each input of a linear are multiplied by a scale that grows
 * with the activations of that input, and the operation that produces the input divides by it (Lin
 * et al. 2023, "AWQ: Activation-aware Weight Quantization for On-Device LLM Compression"). First
 * the exponent of the scales is chosen, by the smallest output error; then the clipping range of
 * each group (quant/fit.h). The caller folds the scales into norms and weights. Pure functions;
 * called by calibrate. */
#ifndef SHOAL_QUANT_AWQ_H
#define SHOAL_QUANT_AWQ_H

#include "base/status.h"
#include "base/team.h"
#include "tensor/quant_format.h"

#include <stddef.h>
#include <stdint.h>

/* Exponents that are tried: 0 (all scales 1), 1/16, ... 1. */
enum { AWQ_TRIED = 17 };

/* Local. Sets the scales s[n] of try `step`: mean(|x_k|)^(step / 16), at least 1e-4, divided by
 * sqrt(largest * smallest) over all k. The mean of input k is sum_abs[k] / n_tokens; 1 if there are
 * no tokens. */
void awq_scales(const double *sum_abs, uint64_t n_tokens, uint32_t n, int step, float *s);

/* The linear with which scales are tried. */
struct awq_linear {
    struct quant_format format;
    const float *rows; /* borrowed [n_rows, n] */
    size_t n_rows;
    uint32_t n;         /* inputs */
    const double *full; /* borrowed [n, n]: H, the second moments of the input */
};

/* Local; the team's threads divide the rows. *error = the output error of the rows when they are
 * quantized by RTN with scales s [n]: the sum over the rows w of d^T H d, with d = Q(w s) / s - w.
 * Errors: STATUS_MEMORY. */
struct status awq_error(struct team *team, const struct awq_linear *l, const float *s,
                        double *error);

/* Local. Returns the step with the least error; of equal errors, the smaller step. */
int awq_best(const double errors[AWQ_TRIED]);

/* Local. Turns H into that of the scaled input x / s: full [n, n] becomes H_ij / (s_i s_j). */
void awq_scale_moments(double *full, uint32_t n, const float *s);

#endif
