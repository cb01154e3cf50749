/* Configs of small models, and their parsing, for the suites of arch. Included once by each. */
#ifndef SHOAL_TESTS_UTIL_ARCH_H
#define SHOAL_TESTS_UTIL_ARCH_H

#include "arch/arch.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

#define LLAMA OF("LlamaForCausalLM")
#define OF(architecture)                                                                           \
    "\"architectures\":[\"" architecture "\"],\"hidden_size\":64,\"num_hidden_layers\":2,"         \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,"                \
    "\"vocab_size\":100,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5"
#define MIXTRAL                                                                                    \
    "\"architectures\":[\"MixtralForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"       \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,"                \
    "\"vocab_size\":100,\"max_position_embeddings\":128,\"num_local_experts\":4,"                  \
    "\"rope_theta\":1e6,\"rms_norm_eps\":1e-5,\"num_experts_per_tok\":2"
#define QWEN3                                                                                      \
    "\"architectures\":[\"Qwen3MoeForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":4,"      \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,"                         \
    "\"intermediate_size\":96,\"moe_intermediate_size\":48,\"vocab_size\":100,"                    \
    "\"max_position_embeddings\":128,\"num_experts\":8,\"num_experts_per_tok\":2"

static struct arch m;

static struct status parse(const char *body)
{
    char json[2048];
    snprintf(json, sizeof json, "{%s}", body);
    return arch_parse(json, strlen(json), "config.json", &m);
}

/* Parses a config that must be refused with an error that contains `word`. */
static void refuse(const char *body, const char *word)
{
    const struct status st = parse(body);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    if (strstr(st.text, word) == NULL) printf("[%s lacks %s] ", st.text, word);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, word));
}

/* Returns one digit per layer, such as "1100": 1 if the layer has a sliding window. */
static inline const char *windows(void)
{
    static char text[ARCH_LAYERS_MAX + 1];
    for (uint32_t l = 0; l < m.n_layers; l++) text[l] = m.layer.has_window[l] ? '1' : '0';
    text[m.n_layers] = '\0';
    return text;
}

#endif
