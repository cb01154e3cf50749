/* The table of GGUF's architectures: each one's names of tensors and metadata, and Hugging Face's
 * names for these. Reads no file. Called by gguf_model.c. Names and keys are those of llama.cpp's
 * converters. */
#ifndef SHOAL_CHECKPOINT_CONVERT_GGUF_FAMILY_H
#define SHOAL_CHECKPOINT_CONVERT_GGUF_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gguf_arch {
    GGUF_LLAMA,
    GGUF_MIXTRAL,
    GGUF_QWEN2,
    GGUF_QWEN3,
    GGUF_QWEN3_MOE,
    GGUF_GPT_OSS,
    GGUF_GEMMA2,
    GGUF_GEMMA3,
    GGUF_GRANITE,
    GGUF_GRANITE_MOE,
    GGUF_GRANITE_MOE_SHARED,
    GGUF_LLAMA4,
    GGUF_OLMOE,
    GGUF_GLM4_MOE,
    GGUF_DEEPSEEK2,
    GGUF_QWEN3_NEXT,
    GGUF_ARCH_COUNT
};

enum gguf_member_kind { GGUF_MEMBER_INT, GGUF_MEMBER_FLOAT, GGUF_MEMBER_BOOL };

/* A metadata key that becomes a member of config.json. */
struct gguf_member {
    const char *key; /* after the architecture's prefix; NULL ends the list */
    const char *hf;  /* the member's name */
    enum gguf_member_kind kind;
    const char *otherwise; /* JSON for a file without the key; NULL: the key is required; "": the
                              member is left out */
};

/* A tensor's name in GGUF and in a Hugging Face checkpoint. */
struct gguf_name {
    const char *gguf, *hf; /* NULL ends a list */
};

struct gguf_family {
    const char *gguf;         /* general.architecture, the prefix of its keys */
    const char *architecture; /* Hugging Face's class */
    const char *model_type;
    const char *experts; /* the module, within a layer, that holds router and experts; NULL: there
                            are none, or `names` has them */
    const char *gate_proj, *up_proj, *down_proj; /* an expert's linears */
    const char *router;                          /* the router, within `experts` */
    const char *joined_experts; /* the tensor, within a layer, that gguf_experts.c joins from gate
                                   and up; NULL: gate and up are tensors of their own */
    bool paired;                /* rows of q and k are stored in pairs (interleaved rotation) */
    bool partial;               /* rope.dimension_count may be less than a head */
    bool latent;                /* multi-head latent attention */
    bool delta;                 /* a gated delta rule in some layers */
    bool states_gating;  /* files may have the keys expert_gating_func and nextn_predict_layers */
    bool implies_bias;   /* config.json has no attention_bias */
    bool may_not_rotate; /* the key rope.scaling.finetuned may say that no layer rotates */
    const struct gguf_member *members; /* the keys of this architecture alone */
    const struct gguf_name *names;     /* tensors of a layer, tried before the common names */
    const char *fixed;                 /* members that the architecture implies, as JSON */
};

/* The tensor of a layer whose values are -exp(A_log). */
#define GGUF_DECAYS "ssm_a"

/* The tensors of a layer that joined_experts joins: those of gate and of up. */
extern const char *const gguf_expert_halves[2];

const struct gguf_family *gguf_family_at(enum gguf_arch arch);

/* Lists the known architectures for messages: "llama, qwen2, ...". */
#define GGUF_ARCHITECTURES                                                                         \
    "llama, llama4, qwen2, qwen3, qwen3moe, gpt-oss, gemma2, gemma3, granite, granitemoe, olmoe, " \
    "glm4moe, deepseek2 or qwen3next"

/* Local. Returns a tensor's Hugging Face name within a layer, from the family's list or the common
 * one; NULL: both lack it (gguf_model.c names most families' experts and routers). */
const char *gguf_family_name(const struct gguf_family *f, const char *suffix);

/* Local. Returns how many dimensions Hugging Face's tensor has, where GGUF leaves out those of size
 * 1 before the last; 0: as many as the file's. */
uint32_t gguf_family_dims(const char *suffix);

#endif
