/* What `shoal quantize` makes of each tensor: a policy per class of tensor, turned into a format
 * and leaves for every tensor of a file. Pure but for reading the checkpoint's list of tensors. */
#ifndef SHOAL_CALIBRATE_QUANTIZE_PLAN_H
#define SHOAL_CALIBRATE_QUANTIZE_PLAN_H

#include "checkpoint/file/ckpt_writer.h"
#include "model/model_config.h"
#include "model/weights.h"

/* Classes that a policy may name, and what is quantized in none: norms, tensors that no model
 * reads.
 */
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

/* What is done with a tensor. */
struct quantize_choice {
    enum quantize_class class;
    enum weight_role role;      /* meaningless for QUANTIZE_OTHER */
    bool keep;                  /* codes or elements are copied as they are */
    struct quant_format format; /* not kept: QUANT_NONE, then elements of dtype */
    enum dtype dtype;
    uint32_t leaf_elems, grid_bits; /* to be stored; 0: not row-parallel */
};

/* A choice for each class; `keep` or one of the formats. */
struct quantize_policy {
    struct quantize_choice classes[QUANTIZE_CLASS_COUNT];
};

/* Local. The policy that --format F alone means: attention, ffn and experts get F, where int8
 * without a group means groups of 32 for attention and of 64 for ffn and experts: activations are
 * rounded in the groups of the weights that they meet, and behind a norm short groups gain most
 * (bench/README.md, "Quality"). Embedding and head get int8, in groups of 32 beside int8 and of 128
 * beside 4-bit formats, whose own rounding is larger; or F where F is a float type or fp8. They
 * decide about rare tokens and are a small part of all bytes. Router and norms stay as they are,
 * for they are small and choose. A float type turns everything, codes too, into that type. Then
 * `policy` ("class=format,..." with "keep" among the formats, where int8 means one scale for each
 * output; NULL: none) changes classes.
 * Errors: STATUS_USAGE names the word, what was expected and what was found. */
struct status quantize_policy_parse(const char *format, const char *policy,
                                    struct quantize_policy *out);

/* Local. choices [ckpt_tensor_count] from a policy. Where a format's groups do not give a
 * row-parallel tensor at least 4 leaves (2 in experts) the tensor gets smaller groups. Leaves are
 * as in quantize_leaves. *out: mem_free. Errors: STATUS_USAGE (codes that would be quantized
 * again), STATUS_MEMORY. */
struct status quantize_choose(const struct ckpt *c, const struct model_config *m,
                              const struct quantize_policy *policy, struct quantize_choice **out);

/* Local. Sets the leaves of all choices from their formats: the row-parallel tensors of one role
 * are cut alike, at multiples of head_dim and of the largest group among them; leaves of 256 to 512
 * where the tensor is long enough, else at least 4 leaves (2 in experts) so that ranks can divide
 * them. Roles in which all is kept or plain keep their stored leaves. To be called again after a
 * choice was changed. Errors: STATUS_INPUT. */
struct status quantize_leaves(const struct ckpt *c, const struct model_config *m,
                              struct quantize_choice *choices);

/* Local. What the writer is to be told of a tensor with this choice; `method` is for codes that are
 * made, kept ones keep theirs. */
struct ckpt_tensor_spec quantize_spec(const struct ckpt_tensor *t,
                                      const struct quantize_choice *choice, const char *method);

#endif
