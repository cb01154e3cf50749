/* Shared by quantize.c, quantize_rows.c and quant_loss.c. */
#ifndef SHOAL_QUANT_QUANTIZE_PRIVATE_H
#define SHOAL_QUANT_QUANTIZE_PRIVATE_H

#include "quant/quantize.h"

/* The extreme values of a group. */
struct quant_extremes {
    float least, most; /* least <= 0 <= most */
    float largest;     /* the value of largest magnitude, with its sign; the first of equals */
};

/* Local. Returns scale and zero point for a group with these extremes, as quant_fit does. */
struct quant_param quant_fit_extremes(struct quant_format f, struct quant_extremes e);

/* The values of all codes, before the zero point is subtracted and the scale multiplied. */
struct quant_table {
    float bytes[256];      /* fp8 */
    float nibbles[256][2]; /* int4, mxfp4: of the low and of the high half of a byte */
};
void quant_table_init(struct quant_format f, struct quant_table *out);

/* Quantized rows, and the table that dequantizes them. */
struct quant_decoder {
    struct quant_format f;
    size_t n_in; /* inputs of a row */
    const struct quant_block *block;
    struct quant_table table;
};

/* Local. Writes the values of inputs [begin, end) of a row to out [end - begin]; begin is a
 * multiple of QUANT_CODE_ALIGN. */
void quant_dequantize_span(const struct quant_decoder *d, size_t row, size_t begin, size_t end,
                           float *out);

#endif
