/* Finds a group's scale by trials: its values are clipped to smaller and smaller ranges, and the
 * scale with the smallest output error is kept (Lin et al. 2023, "AWQ: Activation-aware Weight
 * Quantization", section on clipping). Called by gptq.c and calib_quantize.c. */
#ifndef SHOAL_QUANT_FIT_H
#define SHOAL_QUANT_FIT_H

#include "quant/quantize.h"

/* The search tries ranges of 1, 1 - 1/20, ... 1/2 of the largest magnitude. */
enum { FIT_STEPS = 20, FIT_TRIED = 11, FIT_BLOCK = 128 };

/* Local. Returns the best parameters for the values x[n] of one group: those with the smallest
 * output error d^T H d (computed in f64), where d = decoded - x; ties go to the wider range. h has
 * H, the second moments of the group's inputs, in rows of `stride`. With more than FIT_BLOCK inputs
 * (a scale per channel), only H's diagonal blocks of FIT_BLOCK inputs count. */
struct quant_param quant_fit_clipped(struct quant_format f, const float *x, size_t n,
                                     const double *h, size_t stride);

/* Local; the team's threads divide the rows. Rounds rows [n_rows, n_in] to nearest, with the scales
 * that quant_fit_clipped finds; h [n_in, n_in] has the second moments of the inputs. */
void quant_clipped_rows(struct team *team, struct quant_format f, const float *rows, size_t n_rows,
                        size_t n_in, const double *h, const struct quant_block *out);

#endif
