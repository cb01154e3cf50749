/* SmoothQuant: makes large activations smaller and their weights larger, so that both can be
 * rounded to 8 bits (Xiao et al. 2022, "SmoothQuant: Accurate and Efficient Post-Training
 * Quantization for Large Language Models", equation 4). The caller folds the scales into the
 * preceding norm. Pure functions; called by calibrate. */
#ifndef SHOAL_QUANT_SMOOTHQUANT_H
#define SHOAL_QUANT_SMOOTHQUANT_H

#include <stddef.h>
#include <stdint.h>

/* Local. Sets the scales s [n] of the inputs: s_k = max|x_k|^alpha / max|w_k|^(1 - alpha), at least
 * 1e-5; alpha in units of 1/64. An input whose activations or weights are all 0 gets 1. */
void smoothquant_scales(const float *max_x, const float *max_w, uint32_t n, unsigned alpha_64ths,
                        float *s);

/* Local. Raises each max_w[k] to the largest |w_k| of rows [n_rows, n], if that is larger. */
void smoothquant_see_weights(const float *rows, size_t n_rows, uint32_t n, float *max_w);

#endif
