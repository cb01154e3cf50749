/* The bytes that a rank sends back to a host for that host's tokens: for each token the integer
 * sums of the experts on the rank's own host and a counter of bad leaves, packed
 * (parallel/wire/wire_ints.h). A pure format.
 *
 *     head | end of each row's bytes | packed rows: D sums and a counter each
 *
 * Several threads pack the rows, each a run of them, and write their ends; the head comes last. */
#ifndef SHOAL_PARALLEL_WIRE_RESULT_BLOCK_H
#define SHOAL_PARALLEL_WIRE_RESULT_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct result_block {
    size_t n_rows, n_bytes;
    const uint64_t *ends; /* [n_rows] counted from `rows` */
    const char *rows;
};

/* Local. Bytes of head and ends, a multiple of 64; the packed rows follow. */
size_t result_head_bytes(size_t n_rows);

/* Local. Returns where the ends [n_rows] of a block that begins at `at` are, for its writer. */
uint64_t *result_block_ends(void *at);

/* Local. Writes the head. n_bytes: of the whole block, a multiple of 64. */
void result_block_write_head(size_t n_rows, size_t n_bytes, void *at);

/* Local. Reads the block that begins at `at`; at most n_bytes may be read. False: it is damaged. */
bool result_block_read(const void *at, size_t n_bytes, struct result_block *out);

#endif
