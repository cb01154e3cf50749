/* The state of a conversion, shared by convert.c (which tensors, in which formats), convert_run.c
 * (rows, shared among the ranks), convert_make.c (changes of format) and convert_predict.c (a
 * prediction layer that is incomplete). */
#ifndef SHOAL_CHECKPOINT_CONVERT_CONVERT_PRIVATE_H
#define SHOAL_CHECKPOINT_CONVERT_CONVERT_PRIVATE_H

#include "checkpoint/convert/convert.h"
#include "checkpoint/convert/source.h"
#include "checkpoint/file/ckpt_writer.h"
#include "parallel/comm/comm.h"

/* A source tensor and its name in the checkpoint. `expert` is the number of its expert, or -1 when
 * the source tensor makes a tensor by itself. */
struct convert_part {
    char name[CKPT_NAME_MAX];
    int64_t expert;
    size_t source;
};

/* A tensor to be written: parts [first, first + n_parts), one after the other. */
struct convert_tensor {
    size_t first, n_parts;
    struct ckpt_tensor_spec spec;  /* the tensor as written; its name is borrowed from the first
                                      part */
    struct ckpt_tensor_spec taken; /* the tensor as read from the source */
    bool is_made;                  /* whether the rows of `spec` are made from the values of the
                                      rows of `taken` */
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
    uint32_t value_dim; /* inputs of o_proj from one head, or one group of heads; 0: unknown */
    uint32_t full_dim;  /* the same in Gemma-4's layers without a window; 0: as value_dim */
    uint64_t n_heads;   /* for which o_proj's leaves are chosen in all layers; 0: a layer's own */
    uint32_t group;     /* the largest kernel group (quant_kernel_group) of the tensors whose
                           quantized values are kept, in inputs; 0: none are kept */
    char *scratch;      /* owned; scratch memory for source_rows and source_codes */
    size_t n_scratch_bytes;
    char *taken; /* owned; rows as read from the source, before they become values */
    size_t n_taken_bytes;
    float *values; /* owned; the values of `taken` */
    size_t n_values_bytes;
    uint64_t done_bytes, total_bytes; /* of weights in the file; rank 0, which writes, counts
                                         done_bytes and tells the other ranks at the end */
    struct convert_result result;
};

/* **Collective (world)**. Writes all tensors' rows; rank 0 has begun the file. Errors, the same on
 * all ranks: STATUS_INPUT (a source that cannot be read), STATUS_IO, STATUS_LOST (a failed
 * message), STATUS_MEMORY. */
struct status convert_all_rows(struct convert *c);

/* Local, after the parts are listed and sorted. Leaves out all tensors of a prediction layer if one
 * of them is missing; rank 0 warns. Errors: STATUS_MEMORY. */
struct status convert_check_prediction(struct convert *c);

/* Some rows of a tensor in memory: its datasets (codes, scales, zeros; floats: one) in this order,
 * each from the start of a cache line. */
struct convert_rows {
    const struct ckpt_tensor_spec *spec;
    uint64_t n_rows;
    char *bytes; /* [convert_rows_bytes] */
};

/* Local. Return the bytes of n_rows rows, and where each dataset lies (floats: in `codes`). */
uint64_t convert_rows_bytes(const struct ckpt_tensor_spec *spec, uint64_t n_rows);
struct quant_block convert_rows_block(const struct convert_rows *r);

/* Local. Makes *buffer at least n_wanted bytes long; a buffer that grows loses its content. Errors:
 * STATUS_MEMORY. */
struct status convert_reserve(void *buffer, size_t *n_bytes, size_t n_wanted);

/* Local. Changes the format or type of rows: makes `to` from the values of `from`. to->bytes
 * belongs to the caller. Adds to the loss and overflows in c->result. `row0` is for messages.
 * Errors: STATUS_INPUT (values that are not finite cannot be quantized), STATUS_MEMORY. */
struct status convert_make(struct convert *c, const struct convert_rows *from, uint64_t row0,
                           const struct convert_rows *to);

#endif
