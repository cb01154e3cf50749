/* The part of --save-logprobs, shared by logprobs_part.c (records of lines) and
 * logprobs_part_rows.c (hidden rows). Private to this room. */
#ifndef SHOAL_SERVE_OUTPUT_LOGPROBS_PART_PRIVATE_H
#define SHOAL_SERVE_OUTPUT_LOGPROBS_PART_PRIVATE_H

#include "base/strbuf.h"
#include "serve/output/logprobs_part.h"

#include <stdatomic.h>

struct logprobs_part {
    struct logprobs_options o;
    char *path;          /* FILE.h5.part; owned */
    int fd, index;       /* index: a file without a name; its u64 number `line` is the line's entry
                            (index_set), or 0 */
    uint64_t n;          /* end of the last whole record, or of the rows after it */
    uint64_t n_lines;    /* 1 + the highest line that has a record */
    atomic_bool is_lost; /* a sync has failed */
    struct strbuf record;
    float *numbers; /* [k] scratch */
    char *bytes;    /* scratch: the record read last */
    size_t bytes_capacity;
    char *rows; /* scratch: hidden rows */
    size_t rows_capacity;
};

/* logprobs_part.c. All Local. Errors: STATUS_IO. part_error makes the error that `what`, such as
 * "writing", failed at byte `at` of the file; `error` is an errno. part_write writes n bytes at
 * `at`. */
struct status part_error(const char *path, const char *what, uint64_t at, int error);
struct status part_write(const char *path, int fd, const void *bytes, size_t n, uint64_t at);

/* Reads n bytes from byte `at` on; fewer only at the end of the file. */
struct status part_read(const char *path, int fd, void *bytes, size_t n, uint64_t at,
                        size_t *n_read);

/* logprobs_part_rows.c. All Local. Moves *at past the hidden rows of all steps that follow there,
 * up to a record, the file's end, or a step whose rows are not whole. Errors: STATUS_IO. */
struct status part_skip_rows(const struct logprobs_part *p, uint64_t *at);

/* Appends to p->record the places of the hidden rows of answer c to the prompt of `first`, and
 * returns how many rows these are. */
uint64_t part_add_places(struct logprobs_part *p, const struct request *c,
                         const struct request *first);

/* Copies the hidden rows of an answer to f. The list of their places begins at *at of p->bytes
 * [n_bytes]; *at is moved past the list. *fits is false if the list does not end within these bytes
 * or a row is damaged. Errors: STATUS_IO, STATUS_MEMORY. */
struct status part_copy_rows(struct logprobs_part *p, struct logprobs_file *f, size_t n_bytes,
                             size_t *at, bool *fits);

#endif
