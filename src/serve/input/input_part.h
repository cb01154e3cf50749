/* One part of a big input, for job arrays: part K of N holds the lines whose first byte lies in the
 * K-th of N equal ranges of bytes. Lines keep the numbers that they have in the whole input, so
 * that ids, seeds and sentences are those of a job over all of it. Called by main and by merge.c.
 */
#ifndef SHOAL_SERVE_INPUT_INPUT_PART_H
#define SHOAL_SERVE_INPUT_INPUT_PART_H

#include "base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

enum { INPUT_PARTS_MAX = 1000000 };

struct input_part {
    uint32_t index, n;   /* part `index` of `n`, from 1; n 0: the whole input */
    uint64_t begin, end; /* bytes; both at the start of a line or the input's end */
    uint64_t n_before;   /* lines before `begin` */
    uint64_t size;       /* of the input, bytes */
};

/* Local. "K/N" with 1 <= K <= N; false when it is something else. Sets index and n alone. */
bool input_part_parse(const char *text, struct input_part *out);

/* Local. Fills the rest from the file: reads it up to `end`, to count lines. Errors: STATUS_USAGE
 * (no regular file), STATUS_INPUT, STATUS_IO, STATUS_MEMORY. */
struct status input_part_find(const char *path, struct input_part *part);

/* Local. The first byte of part `index` (from 1; n + 1: behind the last), before it is moved to the
 * next start of a line. */
uint64_t input_part_cut(uint64_t size, uint32_t index, uint32_t n);

/* Local. The journal's setting of a part, "--input-part=K/N ...": names the bytes too, so that a
 * job never goes on over another cut. Appended to `out`. */
void input_part_setting(const struct input_part *part, struct strbuf *out);

/* Local. The part that a journal's settings name; false when they name none. *at and *n_bytes:
 * where in `settings` its line stands. */
bool input_part_of_settings(const char *settings, struct input_part *out, size_t *at,
                            size_t *n_bytes);

#endif
