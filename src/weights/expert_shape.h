/* The offsets of one expert's arrays in its bytes: gate, up and down, each as codes (or elements),
 * scales and zeros, aligned for the kernels. The packed copy of the experts
 * (checkpoint/file/expert_file.h) has this form, and so has the memory that it is read into.
 * Private to src/weights. */
#ifndef SHOAL_WEIGHTS_EXPERT_SHAPE_H
#define SHOAL_WEIGHTS_EXPERT_SHAPE_H

#include "kernels/kern.h"

enum expert_matrix { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_MATRIX_COUNT };

struct expert_shape {
    struct packed matrix[EXPERT_MATRIX_COUNT]; /* without memory */
    size_t data[EXPERT_MATRIX_COUNT], scales[EXPERT_MATRIX_COUNT], zeros[EXPERT_MATRIX_COUNT];
    size_t n_bytes; /* a multiple of EXPERT_FILE_ALIGN */
};

/* Local. Places the arrays of the three matrices, whose shapes are set. Errors: STATUS_MEMORY (a
 * size overflows). */
struct status expert_shape_place(struct expert_shape *s);

/* Local. Returns the matrix with its arrays in an expert's bytes at `base`. */
struct packed expert_shape_at(const struct expert_shape *s, enum expert_matrix which,
                              const char *base);

#endif
