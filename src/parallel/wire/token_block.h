/* The tokens that a rank sends to the experts of one host, as bytes: the inputs of their first
 * linear, then each token's choices there. A pure format, so that `shoal plan` counts the bytes
 * that the exchange sends.
 *
 *     head | rows: int8 values, or floats | scales | choices of each row | places | weights
 *     | adapters
 *
 * Each part begins at a multiple of 64 bytes; the sizes follow from the counts in the head. A token
 * is in a block once, with one or more choices. Called by exchange_hosts.c and by the plan. */
#ifndef SHOAL_PARALLEL_WIRE_TOKEN_BLOCK_H
#define SHOAL_PARALLEL_WIRE_TOKEN_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The format of a row. */
struct token_format {
    size_t width;      /* D */
    uint32_t group;    /* values are int8 in groups of this size, each with a scale; 0: values are
                          floats */
    bool has_adapters; /* each row has an adapter's number */
};

struct token_block {
    size_t n_rows, n_choices, n_bytes;
    void *rows;         /* [n_rows, groups * group] int8 values, or [n_rows, D] floats */
    float *scales;      /* [n_rows, groups] */
    uint16_t *n_chosen; /* [n_rows] choices of each row */
    uint16_t *places;   /* [n_choices] of the experts */
    float *weights;     /* [n_choices] */
    uint32_t *adapters; /* [n_rows] 1 + the number of the row's adapter, 0: none; if has_adapters */
};

/* Local. Returns the number of values of a row, with the last group padded; and of its groups (0
 * for floats). */
size_t token_row_values(const struct token_format *f);
size_t token_row_groups(const struct token_format *f);

/* Local. Bytes of a row of the format: its values and scales. */
size_t token_row_bytes(const struct token_format *f);

/* Local. Lays out a block of n_rows rows with n_choices choices at `at`; NULL: only counts
 * n_bytes. Writes nothing. */
struct token_block token_block_at(const struct token_format *f, size_t n_rows, size_t n_choices,
                                  void *at);

/* Local. token_block_write_head writes the head of a block at `at`. token_block_read reads the
 * block that begins at `at`, of which at most n_bytes may be read; false: it is damaged, because
 * counts or sizes do not fit. */
void token_block_write_head(const struct token_block *b, void *at);
bool token_block_read(const struct token_format *f, const void *at, size_t n_bytes,
                      struct token_block *out);

#endif
