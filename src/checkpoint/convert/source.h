/* The source of a conversion, a Hugging Face folder (of a model, or of an adapter: peft.h) or a
 * GGUF file: gives its texts, and its tensors under the checkpoint's names, with rows in the wanted
 * float type or as quantized values. Called by convert. */
#ifndef SHOAL_CHECKPOINT_CONVERT_SOURCE_H
#define SHOAL_CHECKPOINT_CONVERT_SOURCE_H

#include "base/json.h"
#include "base/strbuf.h"
#include "checkpoint/file/ckpt.h"

struct source_tensor {
    const char *name; /* borrowed; the name in the checkpoint; if the source has an expert's matrix
                         as a tensor of its own, with the expert's number behind ".experts." */
    enum dtype dtype; /* the type to store unless the user names one */
    uint32_t n_dims;  /* 1..CKPT_DIMS_MAX */
    uint64_t dims[CKPT_DIMS_MAX];
    uint64_t n_rows, n_cols;
    uint32_t row_group;        /* rows are read in multiples of this */
    struct quant_format quant; /* the format of source_codes; QUANT_NONE: only floats can be read */
    bool needs_f32;            /* no narrower type may round its values */
    const char *method;        /* quantization method as the file names it; borrowed; NULL when the
                                  tensor is not quantized */
};

struct source;

/* Local. Opens a directory or a .gguf file, reads its texts and the list of its tensors. Errors:
 * STATUS_INPUT, STATUS_MEMORY. */
struct status source_open(const char *path, struct source **out);
void source_close(struct source **s);

/* Local. Returns the kind of source, for the checkpoint's root attribute `source`. */
const char *source_kind(const struct source *s);
/* Local. True for an adapter, whose tensors belong to no family. */
bool source_is_adapter(const struct source *s);
/* Local. Returns a text, empty (n = 0) when the source has none; borrowed. */
const struct strbuf *source_text(const struct source *s, enum ckpt_text which);
/* Local. Returns the parsed config.json; borrowed. */
const struct js_node *source_config(const struct source *s);

/* Local. Return the number of tensors, and a tensor by its index; borrowed. */
size_t source_count(const struct source *s);
const struct source_tensor *source_at(const struct source *s, size_t i);

/* Local. Returns the bytes of scratch that source_rows and source_codes need for this many rows. */
size_t source_scratch_bytes(const struct source *s, size_t i, uint64_t n_rows);
/* Local. Reads rows [row0, row0 + n_rows) of tensor i as `dtype` into out [n_rows][n_cols]; row0
 * and n_rows are multiples of row_group. Adds to *n_overflowed the number of finite values that
 * became infinite. scratch [source_scratch_bytes]. Errors: STATUS_INPUT names file and tensor;
 * STATUS_MEMORY. */
struct status source_rows(const struct source *s, size_t i, uint64_t row0, uint64_t n_rows,
                          enum dtype dtype, void *scratch, void *out, uint64_t *n_overflowed);

/* Local. Reads rows like source_rows, as the source's quantized values; nothing is rounded.
 * `format` is tensor i's `quant`, or the same with smaller groups, to which the scale of a larger
 * group is copied. Errors: STATUS_INPUT names the tensor when a value does not fit the format;
 * STATUS_MEMORY. */
struct status source_codes(const struct source *s, size_t i, struct quant_format format,
                           uint64_t row0, uint64_t n_rows, void *scratch,
                           const struct quant_block *out);

#endif
