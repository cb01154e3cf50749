/* GPTQ: quantizes column by column, and corrects each column's error in the columns that follow
 * (Frantar, Ashkboos, Hoefler, Alistarh 2022, "GPTQ: Accurate Post-Training Quantization for
 * Generative Pre-trained Transformers", algorithm 1).
 *
 * Outputs are independent of each other once H is factored, so ranks and threads divide outputs.
 * Corrections are computed in f64; a corrected value is rounded to f32 before it is quantized. An
 * output's updates are made in the order of the columns. Working in blocks of columns changes when
 * an update is made, but never its bits.
 *
 * With act_order, columns are quantized by descending H_kk, ties by number. Groups still consist
 * of neighbouring columns and are fitted before any column is quantized ("static groups"), so the
 * file needs no permutation and a group's inputs stay side by side (numerics law, rule 4). Without
 * act_order, a group is fitted when its first column is reached, to the values as corrected so
 * far. */
#ifndef SHOAL_QUANT_GPTQ_H
#define SHOAL_QUANT_GPTQ_H

#include "base/status.h"
#include "base/team.h"
#include "tensor/quant_format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gptq_options {
    double damping; /* lambda / mean of H's diagonal; 0.01 in the paper; 0 stands for 1e-8 */
    bool act_order;
    bool clip; /* fit groups by quant_fit_clipped instead of quant_fit */
};

/* H factored for one linear. */
struct gptq {
    struct gptq_options options;
    struct team *team; /* borrowed */
    uint32_t n;        /* inputs */
    uint32_t *order;   /* owned [n]: the i-th column to be quantized */
    bool *dead;        /* owned [n]: the input was 0 in every token; its weights become 0 */
    double *moments;   /* owned [n, n]: H as given, for fitting; NULL without options.clip */
    double *u;         /* owned [n, n]: upper, inverse(H + lambda I) = U^T U, in `order` */
    double damped;     /* the lambda used: doubled until H + lambda I is positive definite */
};

/* Local, on the team's threads. Factors H, the second moments full [n, n] (both triangles), and
 * leaves `full` unchanged. gptq_destroy also accepts the result of a failed create. Errors:
 * STATUS_MEMORY; STATUS_INPUT when H is not finite, or not positive definite with any lambda
 * tried. */
struct status gptq_create(struct team *team, const double *full, uint32_t n,
                          const struct gptq_options *options, struct gptq *out);
void gptq_destroy(struct gptq *g);

/* Local; the team's threads divide the outputs. Quantizes the weights rows [n_rows, n] into the
 * rows of `out`. Errors: STATUS_MEMORY. */
struct status gptq_rows(const struct gptq *g, struct quant_format f, const float *rows,
                        size_t n_rows, const struct quant_block *out);

#endif
