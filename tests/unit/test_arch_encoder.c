/* Encoders: the sizes of published models, what their layers have, and configs that are refused. */
#include "arch/arch_tensors.h"
#include "util_arch.h"

#include <string.h>

/* Values of bert-base-uncased's config.json. The fields that are left out, as layer_norm_eps, have
 * the defaults of BERT. */
#define BERT(fields)                                                                               \
    "\"architectures\":[\"BertModel\"],\"attention_probs_dropout_prob\":0.1,"                      \
    "\"gradient_checkpointing\":false,\"hidden_dropout_prob\":0.1,\"hidden_size\":768,"            \
    "\"initializer_range\":0.02,\"intermediate_size\":3072,\"max_position_embeddings\":512,"       \
    "\"model_type\":\"bert\",\"num_attention_heads\":12,\"num_hidden_layers\":12,"                 \
    "\"pad_token_id\":0,\"vocab_size\":30522" fields

static void the_published_model_has_its_sizes(void)
{
    CU_ASSERT_EQUAL_FATAL(
        parse(BERT(",\"hidden_act\":\"gelu\",\"layer_norm_eps\":1e-05,"
                   "\"position_embedding_type\":\"absolute\",\"pooler_type\":\"x\""))
            .code,
        STATUS_OK);
    CU_ASSERT(m.norm_eps == 1e-5f && m.context == 512 && m.n_positions == 512);
    CU_ASSERT_EQUAL_FATAL(parse(BERT("")).code, STATUS_OK);
    CU_ASSERT(m.norm_eps == 1e-12f && m.n_types == 2 && m.encoder && m.gate == GATE_GELU);
    CU_ASSERT(m.attn.qkv_bias && m.attn.o_bias && m.attn.query_dim == 64);
    /* bert-base without the 590,592 parameters of its pooler */
    CU_ASSERT_EQUAL(arch_params(&m), 109482240 - 590592);
    const uint64_t parts = arch_layer_parts(&m, 0);
    CU_ASSERT((parts & PART_DENSE) == 0 && (parts & PART_RELU2_BIAS) != 0 &&
              (parts & PART_NORM_BIAS) != 0);
    CU_ASSERT(m.layer.is_unrotated[0] && m.layer.is_unrotated[11]);
}

/* XLM-RoBERTa's base model, without its pooler: 514 positions, of which a text has 512. */
static void positions_begin_behind_the_padding(void)
{
#define XLM_ROBERTA                                                                                \
    "\"architectures\":[\"XLMRobertaModel\"],\"hidden_size\":768,\"intermediate_size\":3072,"      \
    "\"layer_norm_eps\":1e-05,\"max_position_embeddings\":514,\"num_attention_heads\":12,"         \
    "\"num_hidden_layers\":12,\"output_past\":true,\"type_vocab_size\":1,\"vocab_size\":250002"
    CU_ASSERT_EQUAL_FATAL(parse(XLM_ROBERTA ",\"pad_token_id\":1").code, STATUS_OK);
    CU_ASSERT(m.context == 512 && m.n_positions == 514 && m.pad_id == 1 && m.n_types == 1);
    CU_ASSERT_EQUAL(arch_params(&m), 277453056);
    CU_ASSERT_EQUAL_FATAL(parse(XLM_ROBERTA).code, STATUS_OK);
    CU_ASSERT(m.context == 512 && m.pad_id == 1);
    CU_ASSERT_EQUAL_FATAL(parse(XLM_ROBERTA ",\"pad_token_id\":0").code, STATUS_OK);
    CU_ASSERT(m.context == 513 && m.pad_id == 0);
    refuse(XLM_ROBERTA ",\"pad_token_id\":513", "pad_token_id");
    CU_ASSERT_EQUAL_FATAL(parse(BERT("")).code, STATUS_OK);
    CU_ASSERT_EQUAL(m.pad_id, -1);
}

/* Refuses fields that would change what transformers computes, and fields of other families that
 * BERT does not have. */
static void other_configs_are_refused(void)
{
    static const char *const fields[] = {
        ",\"hidden_act\":\"relu\"",      ",\"hidden_act\":\"gelu_new\"",
        ",\"is_decoder\":true",          ",\"position_embedding_type\":\"relative_key\"",
        ",\"num_key_value_heads\":4",    ",\"head_dim\":32",
        ",\"add_cross_attention\":true", ",\"type_vocab_size\":0",
        ",\"use_sliding_window\":true"};
    static const char *const names[] = {"hidden_act",          "hidden_act",
                                        "is_decoder",          "position_embedding_type",
                                        "num_attention_heads", "num_attention_heads",
                                        "add_cross_attention", "type_vocab_size",
                                        "use_sliding_window"};
    char text[1536];
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        snprintf(text, sizeof text, "%s%s", BERT(""), fields[i]);
        refuse(text, names[i]);
    }
}

/* The sizes of ModernBERT-base, and the rest of its config.json. */
#define MODERN_SIZES                                                                               \
    "\"architectures\":[\"ModernBertModel\"],\"hidden_size\":768,\"intermediate_size\":1152,"      \
    "\"max_position_embeddings\":8192,\"num_attention_heads\":12,\"num_hidden_layers\":22,"        \
    "\"pad_token_id\":50283,\"vocab_size\":50368"
#define MODERN_BERT                                                                                \
    MODERN_SIZES                                                                                   \
    ",\"attention_bias\":false,\"decoder_bias\":true,\"classifier_pooling\":\"mean\","             \
    "\"deterministic_flash_attn\":false,\"global_attn_every_n_layers\":3,"                         \
    "\"global_rope_theta\":160000.0,\"layer_norm_eps\":1e-05,\"hidden_activation\":\"gelu\","      \
    "\"initializer_cutoff_factor\":2.0,\"local_attention\":128,\"local_rope_theta\":10000.0,"      \
    "\"mlp_bias\":false,\"norm_bias\":false,\"norm_eps\":1e-05,"                                   \
    "\"position_embedding_type\":\"absolute\""

static void modern_bert_has_its_sizes(void)
{
    CU_ASSERT_EQUAL_FATAL(parse(MODERN_BERT).code, STATUS_OK);
    CU_ASSERT_EQUAL(arch_params(&m), 149014272);
    CU_ASSERT(m.encoder && m.n_positions == 0 && m.n_types == 0 && m.context == 8192);
    CU_ASSERT(m.norm_eps == 1e-5f && m.rope_theta == 160000 && m.local_rope && !m.norm_bias);
    CU_ASSERT(m.gate == GATE_GEGLU_EXACT && !m.attn.qkv_bias && !m.attn.o_bias && !m.ffn_bias);
    CU_ASSERT_EQUAL(m.attn.window, 65); /* 64 positions before a row, and 64 after it */
    for (uint32_t l = 0; l < 22; l++)
        CU_ASSERT(m.layer.has_window[l] == (l % 3 != 0) && !m.layer.is_unrotated[l]);
    CU_ASSERT((arch_layer_parts(&m, 1) & PART_NORM_BIAS) == 0);
    CU_ASSERT_EQUAL_FATAL(parse(MODERN_SIZES
                                ",\"norm_bias\":true,\"layer_types\":null,\"mlp_bias\":true,"
                                "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":9000},"
                                "\"sliding_attention\":{\"rope_theta\":7000}}")
                              .code,
                          STATUS_OK);
    CU_ASSERT(m.rope_theta == 9000 && (arch_layer_parts(&m, 1) & PART_NORM_BIAS) != 0);
    CU_ASSERT((arch_layer_parts(&m, 1) & PART_FFN_BIAS) != 0 && m.attn.window == 65);
    CU_ASSERT(m.layer.has_window[1] && m.norm_eps == 1e-5f);
}

static void other_configs_of_modern_bert_are_refused(void)
{
    refuse(MODERN_SIZES ",\"hidden_activation\":\"silu\"", "hidden_activation");
    refuse(MODERN_SIZES ",\"sliding_window\":64", "sliding_window");
    refuse(MODERN_SIZES ",\"sliding_window\":0", "sliding_window");
    refuse(MODERN_SIZES ",\"use_sliding_window\":true", "sliding_window");
    refuse(MODERN_SIZES ",\"local_attention\":0", "local_attention");
    refuse(MODERN_SIZES ",\"global_attn_every_n_layers\":0", "global_attn_every_n_layers");
    refuse(MODERN_SIZES ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2}",
           "rope_scaling");
    refuse(MODERN_SIZES ",\"rope_parameters\":{\"rope_theta\":9000}", "rope_parameters");
    refuse(MODERN_SIZES ",\"num_key_value_heads\":4", "num_attention_heads");
    refuse(MODERN_SIZES ",\"head_dim\":32", "num_attention_heads");
    refuse(BERT(",\"norm_bias\":true"), "norm_bias");
    refuse(BERT(",\"local_attention\":128"), "local_attention");
}

void suite_arch_encoder(CU_pSuite suite);
void suite_arch_encoder(CU_pSuite suite)
{
    CU_add_test(suite, "the published model has its sizes", the_published_model_has_its_sizes);
    CU_add_test(suite, "positions begin behind the padding", positions_begin_behind_the_padding);
    CU_add_test(suite, "other configs are refused", other_configs_are_refused);
    CU_add_test(suite, "ModernBERT has its sizes", modern_bert_has_its_sizes);
    CU_add_test(suite, "other configs of ModernBERT are refused",
                other_configs_of_modern_bert_are_refused);
}
