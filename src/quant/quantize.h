/* Quantizes floats group by group, and dequantizes them. Pure functions over row-major f32
 * matrices; the result never depends on the number of threads. Knows no files, no models and no
 * calibration. Called by the quantizing methods, `shoal quantize` and `shoal convert`.
 *
 * Scales, codes and values are computed in f32, rounded to nearest even; a code is computed from
 * x / scale, with the scale as stored. Losses are summed in f64. */
#ifndef SHOAL_QUANT_QUANTIZE_H
#define SHOAL_QUANT_QUANTIZE_H

#include "base/status.h"
#include "base/team.h"
#include "tensor/quant_format.h"

/* A group's scale, exactly as stored, and its zero point (in formats without zero points: 8 for
 * int4, 0 for all others). */
struct quant_param {
    float scale; /* mxfp4: 2^(e - 127) */
    int32_t zero;
};

/* Local. Returns the scale and zero point for rounding the values x[n] of one group to nearest
 * ("RTN"). Values that are not finite are ignored. lo and hi are the smallest and the largest of
 * the values and 0; rne rounds to the nearest integer, ties to even.
 *     int8        max|x| / 127
 *     int8-asym   (hi - lo) / 255, zero point rne(-lo / scale)
 *     int4        (x of largest magnitude) / -8
 *     int4-asym   (hi - lo) / 15, zero point rne(-lo / scale)
 *     fp8         max|x| / 448
 *     mxfp4       2^(floor(log2 max|x|) - 2)     (OCP Microscaling Formats 1.0, section 6.3)
 * The scale of int4 may be negative, so that the value of largest magnitude becomes -8 times the
 * scale: -8 (code 0) has a larger magnitude than 7 (code 15). */
struct quant_param quant_fit(struct quant_format f, const float *x, size_t n);

/* Local. Returns the parameters for a given scale and zero point: rounds the scale to the stored
 * type (mxfp4: its magnitude, down to a power of two), and clamps `zero` to the format's range; a
 * format without zero points gets its fixed one. */
struct quant_param quant_param_of(struct quant_format f, float scale, int32_t zero);

/* Local. quant_encode returns the nearest code of a value, saturating, as stored (nibbles: 0..15);
 * with a scale of 0, or for a value that is not finite, it returns the code of zero. quant_decode
 * returns the value of a code, rounded once. */
uint8_t quant_encode(struct quant_format f, struct quant_param p, float x);
float quant_decode(struct quant_format f, struct quant_param p, uint8_t code);

/* Local. Write and read one element of a stored block with rows of n_in inputs: input k of row
 * `row`. quant_put_code changes only its own half of a byte that holds two codes. */
void quant_put_code(struct quant_format f, const struct quant_block *b, size_t n_in, size_t row,
                    size_t k, uint8_t code);
uint8_t quant_get_code(struct quant_format f, const struct quant_block *b, size_t n_in, size_t row,
                       size_t k);
/* Local. Write and read the parameters of group g of a row. */
void quant_put_param(struct quant_format f, const struct quant_block *b, size_t n_in, size_t row,
                     size_t g, struct quant_param p);
struct quant_param quant_get_param(struct quant_format f, const struct quant_block *b, size_t n_in,
                                   size_t row, size_t g);

/* Local. Allocates a zeroed block for n_rows rows of n_in inputs. quant_block_destroy frees a block
 * and also accepts a zeroed struct. Errors: STATUS_MEMORY. */
struct status quant_block_create(struct quant_format f, size_t n_rows, size_t n_in,
                                 struct quant_block *out);
void quant_block_destroy(struct quant_block *b);

/* Local; the team's threads divide the rows. Quantizes rows [n_rows, n_in] into a block by RTN.
 * Returns how many values were not finite: if there are any, the weight cannot be quantized. */
uint64_t quant_rtn_rows(struct team *team, struct quant_format f, const float *rows, size_t n_rows,
                        size_t n_in, const struct quant_block *out);

/* The loss of rounding values to codes: sums of squares over the values. */
struct quant_loss {
    double error;    /* of the differences between quantized and original values */
    double energy;   /* of the original values */
    uint64_t n_rows; /* rows in the sums; 0: nothing was rounded */
};

/* The original values: rows [n_rows, n_in]. */
struct quant_values {
    const float *rows;
    size_t n_rows, n_in;
};

/* Local; the team's threads divide the rows. Adds to *loss the loss of rounding the values `from`
 * to the block b. The sums do not depend on the number of threads. Errors: STATUS_MEMORY. */
struct status quant_loss_add(struct team *team, struct quant_format f,
                             const struct quant_values *from, const struct quant_block *b,
                             struct quant_loss *loss);

/* Local. Returns the relative root mean square error sqrt(error / energy); 0 for values that are
 * all 0. */
double quant_loss_rms(const struct quant_loss *loss);

/* Local; the team's threads divide the rows. out [n_rows, n_in] = the values of a block, bit for
 * bit those that the kernels' weight-only arithmetic uses. */
void quant_dequantize_rows(struct team *team, struct quant_format f, const struct quant_block *b,
                           size_t n_rows, size_t n_in, float *out);

#endif
