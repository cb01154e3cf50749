/* One part of a large input, for job arrays: part K of N has the lines whose first byte lies in the
 * K-th of N equal byte ranges. Lines keep the numbers that they have in the whole input, so that
 * ids, seeds and error sentences are those of one job over all of it. Called by the job at its
 * start, by merge.c and by `shoal status`.
 *
 *   input    |line 1|line 2   |line 3|line 4     |line 5|        N = 2
 *   cuts     0                   ^ size / 2
 *   part 1   |line 1|line 2   |line 3|                         its cut moves to the next line
 *   part 2                           |line 4     |line 5| */
#ifndef SHOAL_SERVE_INPUT_INPUT_PART_H
#define SHOAL_SERVE_INPUT_INPUT_PART_H

#include "base/strbuf.h"
#include "serve/input/input_files.h"

#include <stdbool.h>
#include <stdint.h>

enum { INPUT_PARTS_MAX = 1000000 };

struct input_part {
    uint32_t index, n;      /* part `index` of `n`, from 1; n 0: the whole input */
    uint64_t begin, end;    /* offsets in the decompressed bytes; each is the start of a line or the
                               input's end */
    uint64_t n_before;      /* lines before `begin` */
    uint64_t n_before_file; /* lines in the files before the one that contains `begin`; not used if
                               `begin` is the start of a file, where n_before is this number */
    uint64_t size;          /* decompressed bytes of the whole input */
};

/* Local. Parses "K/N", 1 <= K <= N <= INPUT_PARTS_MAX, and sets only index and n. False for any
 * other text. */
bool input_part_parse(const char *text, struct input_part *out);

/* Local. Sets the other members. Reads the files up to `end` to count lines; before that, reads
 * compressed files to their ends to learn their sizes. Errors: STATUS_USAGE (not a regular file),
 * STATUS_INPUT, STATUS_IO, STATUS_MEMORY. */
struct status input_part_find(const struct input_files *files, struct input_part *part);

/* Local. Sets *out to the number of decompressed bytes of all files. Errors: as byte_source_length.
 */
struct status input_part_size(const struct input_files *files, uint64_t *out);

/* Local. Returns the offset at which part `index` begins before the cut is moved to the next start
 * of a line. index counts from 1; n + 1 gives the end of the last part. */
uint64_t input_part_cut(uint64_t size, uint32_t index, uint32_t n);

/* Local. Appends the journal's setting of a part, "--input-part=K/N ...", to `out`. It has the byte
 * range too, so that a job with another cut does not resume. */
void input_part_setting(const struct input_part *part, struct strbuf *out);

/* Local. Reads a part's index and n, but not its range, from a journal's settings; false if they
 * name no part. *at and *n_bytes: the position and length of the setting's line in `settings`, with
 * the newline. */
bool input_part_of_settings(const char *settings, struct input_part *out, size_t *at,
                            size_t *n_bytes);

#endif
