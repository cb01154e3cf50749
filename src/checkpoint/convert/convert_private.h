/* The state of a conversion, shared by convert.c (which tensors, in which form) and convert_run.c
 * (rows, shared by the ranks). */
#ifndef SHOAL_CHECKPOINT_CONVERT_CONVERT_PRIVATE_H
#define SHOAL_CHECKPOINT_CONVERT_CONVERT_PRIVATE_H

#include "checkpoint/convert/convert.h"
#include "checkpoint/convert/source.h"
#include "checkpoint/file/ckpt_writer.h"
#include "parallel/comm/comm.h"

/* A source tensor, with its name in the checkpoint and its expert; -1: a tensor of its own. */
struct convert_part {
    char name[CKPT_NAME_MAX];
    int64_t expert;
    size_t source;
};

/* A tensor to be written: parts [first, first + n_parts) stacked. */
struct convert_tensor {
    size_t first, n_parts;
    struct ckpt_tensor_spec spec; /* its name is borrowed from the first part */
};

struct convert {
    const struct convert_options *options;
    struct comm *comm; /* borrowed; NULL: one rank, without MPI */
    int rank, n_ranks;
    struct source *source;
    struct ckpt_writer *writer; /* rank 0's */
    struct convert_part *parts; /* owned [n_parts], sorted by name, then expert */
    size_t n_parts;
    struct convert_tensor *tensors; /* owned [n_tensors] */
    size_t n_tensors;
    uint32_t head_dim; /* 0: unknown */
    uint32_t group;    /* the largest group of kept codes, in inputs; 0: no codes are kept */
    char *scratch;     /* owned */
    size_t n_scratch_bytes;
    uint64_t done_bytes, total_bytes; /* rank 0's */
    struct convert_result result;
};

/* **Collective (world)**. Writes all tensors' rows; rank 0 has begun the file. Errors, the same on
 * all ranks: STATUS_INPUT (a source that cannot be read), STATUS_IO, STATUS_MEMORY. */
struct status convert_rows(struct convert *c);

#endif
