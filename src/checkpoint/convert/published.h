/* Translates checkpoints as their families publish them into shoal's tensors: linears stored as one
 * tensor, heads whose rotated elements are pairs, norms stored minus 1, other names, and the text
 * model inside a multimodal checkpoint. Reads no file. Called by source.c, source_texts.c,
 * convert.c, peft.c and plan_model.c. */
#ifndef SHOAL_CHECKPOINT_CONVERT_PUBLISHED_H
#define SHOAL_CHECKPOINT_CONVERT_PUBLISHED_H

#include "arch/arch.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "checkpoint/file/ckpt.h"

enum { PUBLISHED_PARTS_MAX = 5 };

/* One of shoal's tensors: rows (of a vector: elements) [row0, row0 + dims[0]) of a source tensor.
 */
struct published_part {
    char name[CKPT_NAME_MAX];
    uint32_t n_dims;
    uint64_t dims[CKPT_DIMS_MAX];
    uint64_t row0;
    uint32_t head_rows, rotated; /* in each head_rows rows the first `rotated` are pairs 2i, 2i + 1,
                                    which shoal has at i and i + rotated / 2; 0: none */
    bool adds_one;               /* shoal's values are the stored ones plus 1 */
};

struct published;

/* Local. Replaces the config.json of a multimodal checkpoint by the config of its text model, and
 * sets *is_text; leaves any other config unchanged. Errors: STATUS_INPUT names a field that is not
 * implemented; STATUS_MEMORY. */
struct status published_text_config(struct strbuf *config, const char *what, bool *is_text);

/* Local. Gives the config.json of a base model without a head ("Qwen3Model"), or with a head for
 * classes, or of an encoder with the head of its training, the name of the architecture whose
 * layers it has; leaves any other config unchanged.
 * published_base_name: writes the tensor's name in that architecture to out [n]. Errors:
 * STATUS_INPUT, STATUS_MEMORY. */
struct status published_base_config(struct strbuf *config, const char *what);
void published_base_name(const char *name, char *out, size_t n);

/* Local. Replaces the bare word Infinity, which Python writes as a number and JSON does not know,
 * by the object that transformers writes for it; changes nothing else. Errors: STATUS_MEMORY. */
struct status published_finite_config(struct strbuf *config);

/* Local. Sets *out to the rules for the architecture that config.json names; NULL: its files hold
 * shoal's tensors, but for fused experts. Errors: STATUS_INPUT, as from arch_parse; STATUS_MEMORY.
 */
struct status published_open(const struct strbuf *config, struct published **out);
void published_close(struct published **p);

/* Local. For a multimodal checkpoint: published_is_vision is true when a tensor belongs to the
 * vision or audio part; published_text_name writes the name of a tensor of the text model to
 * out [n]. */
bool published_is_vision(const char *name);
void published_text_name(const char *name, char *out, size_t n);

/* Local. Sets the parts [*n] of a source tensor. p NULL: *n = 0, the tensor is one of shoal's.
 * Errors: STATUS_INPUT names the tensor and its shape. */
struct status published_parts(const struct published *p, const char *name, uint32_t n_dims,
                              const uint64_t *dims,
                              struct published_part parts[PUBLISHED_PARTS_MAX], size_t *n);

/* published_encoder.c. Local. Writes shoal's name of an encoder's tensor to out [n]; a tensor for
 * which shoal has no name keeps its own without the prefix "bert.", "roberta." or "model.".
 * published_encoder_is_unread: true when nothing reads the tensor that was given this name: it
 * belongs to the pooler, or to a head that only pretraining uses. has_classes: the checkpoint has a
 * head for classes. */
void published_encoder_name(const struct arch *m, const char *name, char *out, size_t n);
bool published_encoder_is_unread(const char *name, bool has_classes);

/* Local. True when a quantized tensor that has one part can be taken under the part's name. If
 * false, published_splits tells which quantized tensors cannot be taken. p may be NULL. */
bool published_only_renames(const struct published *p);

/* Local. True when the rules split the tensor, reorder its rows or rename it. Call it only where
 * published_only_renames is false. p may be NULL. */
bool published_splits(const struct published *p, const char *name);

#endif
