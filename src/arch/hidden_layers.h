/* The layers whose hidden rows --save-hidden saves. Read by the job, which gives them to the stages
 * that compute the rows and to the writer of the file. */
#ifndef SHOAL_ARCH_HIDDEN_LAYERS_H
#define SHOAL_ARCH_HIDDEN_LAYERS_H

#include "base/status.h"
#include "tensor/dtype.h"

enum { HIDDEN_LAYERS_MAX = 64 };

struct hidden_layers {
    uint32_t n;                     /* 0: no rows are saved */
    uint32_t at[HIDDEN_LAYERS_MAX]; /* [n] in the order given: a layer of the model, whose output is
                                       saved; the model's n_layers: the row after the last norm */
    enum dtype type;                /* of a saved value: a float type, rounded to nearest even */
};

/* Local. Reads layers separated by commas: a number from 0, a number from -1 (the last layer)
 * downwards, or `final`. Does not set out->type. Errors: STATUS_USAGE for other words, a layer that
 * the model does not have or that is named twice, or too many layers. */
struct status hidden_layers_parse(const char *text, uint32_t n_layers, struct hidden_layers *out);

/* Local. Sets entries [n] to the indices in l->at of the layers in [begin, end), ascending. Returns
 * n. */
uint32_t hidden_layers_within(const struct hidden_layers *l, uint32_t begin, uint32_t end,
                              uint32_t entries[HIDDEN_LAYERS_MAX]);

/* Local. Returns the bytes of one token's rows, [n, width] values; 0 if l->n is 0. */
static inline size_t hidden_layers_bytes(const struct hidden_layers *l, size_t width)
{
    return l->n == 0 ? 0 : l->n * width * dtype_bytes(l->type);
}

#endif
