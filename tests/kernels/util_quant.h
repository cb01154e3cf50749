/* Helpers of the tests of quantized kernels: random weights in the checkpoint's form and packed,
 * random quantized activations, and all instruction sets of this CPU. */
#ifndef SHOAL_TESTS_UTIL_QUANT_H
#define SHOAL_TESTS_UTIL_QUANT_H

#include "util_kernels.h"

#include "kernels/ops.h"

/* A weight in the checkpoint's form, and packed from it. */
struct quant_weight {
    struct packed w;
    uint8_t *codes, *scales, *zeros; /* owned; rows as the checkpoint stores them */
    void *data, *packed_scales, *packed_zeros;
};

/* Makes random rows and packs them. With `every` > 0 about one scale in `every` is unusual,
 * and fp8 values may be NaN. */
struct quant_weight quant_weight_make(struct rng *r, struct quant_format f, size_t n_out,
                                      size_t n_in, size_t leaf, size_t every);
void quant_weight_free(struct quant_weight *q);

/* Weight (n, k) from the stored form, exact in double. */
double quant_weight_at(const struct quant_weight *q, size_t n, size_t k);

/* Memory for n_rows quantized rows of n inputs. */
struct quant_rows quant_rows_make(size_t n_rows, size_t n, struct quant_format f);
void quant_rows_free(struct quant_rows *q);

/* The formats under test: index in [0, QUANT_TEST_FORMATS). */
enum { QUANT_TEST_FORMATS = 18 };
struct quant_format quant_test_format(size_t i);

/* Lists the instruction sets of this CPU other than the reference, and returns their number. */
enum { FAST_SETS = 3 };
size_t tables_fast(struct kern_table out[FAST_SETS]);

#endif
