/* Checkpoints as their families publish them, in the terms of shoal's tensors: linears stored as
 * one tensor, heads whose rotated elements are pairs, norms stored less 1, other names, and the
 * text model inside a multimodal checkpoint. Reads no file. Called by source.c. */
#ifndef SHOAL_CHECKPOINT_CONVERT_PUBLISHED_H
#define SHOAL_CHECKPOINT_CONVERT_PUBLISHED_H

#include "arch/arch.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "checkpoint/file/ckpt.h"

enum { PUBLISHED_PARTS_MAX = 3 };

/* One of shoal's tensors: rows [row0, row0 + dims[0]) of a source tensor. */
struct published_part {
    char name[CKPT_NAME_MAX];
    uint32_t n_dims;
    uint64_t dims[CKPT_DIMS_MAX];
    uint64_t row0;
    uint32_t head_rows, rotated; /* of each head_rows rows the first `rotated` are pairs 2i, 2i + 1,
                                    which shoal has at i and i + rotated / 2; 0: none */
    bool adds_one;               /* shoal's values are 1 more */
};

struct published;

/* Local. Replaces the config.json of a multimodal checkpoint by that of its text model, and sets
 * *is_text; leaves any other as it is. Errors: STATUS_INPUT names a field that is not implemented;
 * STATUS_MEMORY. */
struct status published_text_config(struct strbuf *config, const char *what, bool *is_text);

/* Local. The rules of the architecture that config.json names; NULL: files hold shoal's tensors.
 * Errors: STATUS_INPUT, as arch_parse gives them; STATUS_MEMORY. */
struct status published_open(const struct strbuf *config, struct published **out);
void published_close(struct published **p);

/* Local. For a multimodal checkpoint: whether a tensor belongs to the vision part; and the name, in
 * out [n], of one of the text model. */
bool published_is_vision(const char *name);
void published_text_name(const char *name, char *out, size_t n);

/* Local. The parts [*n] of a source tensor; *n = 0: it is shoal's as it is. p may be NULL. Errors:
 * STATUS_INPUT names the tensor and its shape. */
struct status published_parts(const struct published *p, const char *name, uint32_t n_dims,
                              const uint64_t *dims,
                              struct published_part parts[PUBLISHED_PARTS_MAX], size_t *n);

/* Local. Whether the tensor's rows are split, reordered or renamed. p may be NULL. */
bool published_splits(const struct published *p, const char *name);

#endif
