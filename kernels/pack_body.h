/* Makes the table entry pack_words from one inlined function: chooses the kind of words once,
 * outside the loops. Included by the pack_*.c of each instruction set. */
#ifndef SHOAL_KERNELS_PACK_BODY_H
#define SHOAL_KERNELS_PACK_BODY_H

#include "kernels/kern.h"

/* Defines pack_words of struct kern_table. `put` takes the same arguments, with a constant kind. */
#define PACK_WORDS(name, put)                                                                      \
    void name(enum pack_words_kind kind, const void *rows, size_t row_stride_bytes, size_t n,      \
              void *panel)                                                                         \
    {                                                                                              \
        if (kind == PACK_WORDS_SIGNED)                                                             \
            put(PACK_WORDS_SIGNED, rows, row_stride_bytes, n, panel);                              \
        else if (kind == PACK_WORDS_NIBBLES)                                                       \
            put(PACK_WORDS_NIBBLES, rows, row_stride_bytes, n, panel);                             \
        else                                                                                       \
            put(PACK_WORDS_PLAIN, rows, row_stride_bytes, n, panel);                               \
    }

#endif
