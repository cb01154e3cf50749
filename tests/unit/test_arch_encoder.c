/* Encoders: the sizes of published models, what their layers have, and configs that are refused. */
#include "arch/arch_tensors.h"
#include "util_arch.h"

#include <string.h>

/* The values of bert-base-uncased's config.json. */
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
    CU_ASSERT(m.qkv_bias && m.o_bias && m.query_dim == 64);
    /* bert-base without its pooler of 590,592 */
    CU_ASSERT_EQUAL(arch_params(&m), 109482240 - 590592);
    const uint64_t parts = arch_layer_parts(&m, 0);
    CU_ASSERT((parts & PART_DENSE) == 0 && (parts & PART_RELU2_BIAS) != 0 &&
              (parts & PART_NORM_BIAS) != 0);
    CU_ASSERT(m.layer_is_unrotated[0] && m.layer_is_unrotated[11]);
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

/* Fields that would change what transformers computes; and fields that BERT does not have, but
 * other families do. */
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

void suite_arch_encoder(CU_pSuite suite);
void suite_arch_encoder(CU_pSuite suite)
{
    CU_add_test(suite, "the published model has its sizes", the_published_model_has_its_sizes);
    CU_add_test(suite, "positions begin behind the padding", positions_begin_behind_the_padding);
    CU_add_test(suite, "other configs are refused", other_configs_are_refused);
}
