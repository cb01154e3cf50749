/* Decides how `shoal quantize` and `shoal convert` store each tensor: turns a policy, given per
 * class of tensor, into a format and leaves for every tensor of a file. Reads no weights. */
#ifndef SHOAL_CALIBRATE_QUANTIZE_PLAN_H
#define SHOAL_CALIBRATE_QUANTIZE_PLAN_H

#include "arch/arch.h"
#include "checkpoint/file/ckpt_writer.h"
#include "weights/weights.h"

/* The classes that a policy may name. QUANTIZE_OTHER is for tensors that are always kept: norms and
 * other vectors, latent attention's kv_b, and tensors that the model does not read. */
#define QUANTIZE_CLASS_LIST(X)                                                                     \
    X(EMBEDDING, "embedding")                                                                      \
    X(ATTENTION, "attention")                                                                      \
    X(FFN, "ffn")                                                                                  \
    X(EXPERTS, "experts")                                                                          \
    X(ROUTER, "router")                                                                            \
    X(HEAD, "head")

enum quantize_class {
#define X(id, name) QUANTIZE_##id,
    QUANTIZE_CLASS_LIST(X)
#undef X
        QUANTIZE_CLASS_COUNT,
    QUANTIZE_OTHER = QUANTIZE_CLASS_COUNT
};

/* The decision for one tensor. */
struct quantize_choice {
    enum quantize_class class;
    enum weight_role role;          /* undefined for QUANTIZE_OTHER */
    bool keep;                      /* the tensor is copied as it is */
    bool again;                     /* not kept: quantized from another quantized format */
    struct quant_format format;     /* if not kept; QUANT_NONE: converted to dtype */
    enum dtype dtype;               /* if not kept and format is QUANT_NONE */
    uint32_t leaf_elems, grid_bits; /* stored with the tensor; 0: not row-parallel */
};

/* A choice for each class: `keep`, or one of the formats. */
struct quantize_policy {
    struct quantize_choice classes[QUANTIZE_CLASS_COUNT];
};

/* Local. Makes the policy of --format F, changed by `policy`.
 *   - Attention, ffn and experts get F. "int8" without a group means groups of 32 for attention and
 *     of 64 for ffn and experts (also with -asym): activations are quantized in the same groups as
 *     the weights, and after a norm short groups gain most (bench/README.md, "Quality").
 *   - Embedding and head get F if F is a float type or fp8; else int8, in groups of 32 if F is
 *     int8, and of 128 if F has 4 bits and so a larger error itself. They matter most for rare
 *     tokens and are a small part of all bytes.
 *   - The router is kept, because it is small and chooses experts.
 *   - A float type converts the tensors of every class to that type, quantized ones too.
 * `policy` ("class=format,..."; NULL: none) sets the format of single classes, or "keep"; its
 * "int8" means one scale per output. Errors: STATUS_USAGE names the word, what was expected and
 * what was found. */
struct status quantize_policy_parse(const char *format, const char *policy,
                                    struct quantize_policy *out);

/* Local. Applies a policy: *out [ckpt_tensor_count], freed with mem_free. A row-parallel tensor
 * that would have fewer than 4 leaves (2 in experts) gets smaller groups. A tensor that already
 * has the wanted quantized format is kept; one in another quantized format is quantized again.
 * Leaves are set as by quantize_leaves. Errors: STATUS_INPUT, STATUS_MEMORY. */
struct status quantize_choose(const struct ckpt *c, const struct arch *m,
                              const struct quantize_policy *policy, struct quantize_choice **out);

/* Local. Sets the leaves (K-blocks) of all choices from their formats. All row-parallel tensors of
 * a role have leaves of the same length (in o_proj: of the same number of heads), a multiple of the
 * largest group among them and, in o_proj, of value_dim: 256 to 512 columns if the tensor is long
 * enough, else fewer columns, so that there are at least 4 leaves (2 in experts) for ranks to
 * divide. A role whose tensors are all kept or plain keeps its stored leaves. Call this function
 * again after changing a choice. Errors: STATUS_INPUT. */
struct status quantize_leaves(const struct ckpt *c, const struct arch *m,
                              struct quantize_choice *choices);

/* Local. Gives the spec of each tensor of `list` the format, leaves and method that the policy
 * chooses for rounding to nearest; the specs [ckpt_tensor_count] keep their names and shapes. The
 * config of `list` says which model it is. Errors: as quantize_choose; STATUS_INPUT for a config
 * that shoal does not run. */
struct status quantize_specs(struct ckpt *list, const struct quantize_policy *policy,
                             struct ckpt_tensor_spec *specs);

/* Local. Returns the description, for the writer, of a tensor with this choice. `method` names the
 * quantization method of a tensor that is quantized now; a kept tensor keeps its own method. */
struct ckpt_tensor_spec quantize_spec(const struct ckpt_tensor *t,
                                      const struct quantize_choice *choice, const char *method);

#endif
