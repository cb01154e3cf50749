/* Tests that a stage's workspace, its KV blocks and its recurrent states take the bytes that the
 * plan prints, on every layout of these ranks. */
#include "model/stage_private.h"
#include "mpi/util_mpi.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 37, HEAD_ROWS = 64, SLOTS = 3 };

/* Configs of models about as small as models/demo. The third has norms over all of q and of k,
 * whose sums need memory too. The fourth has Mamba-2 scans of four heads, the fifth of two, so that
 * two of four ranks have none. The last one has an index of sparse attention in three of six
 * layers. */
static const char *const configs[] = {
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":128,\"intermediate_size\":320,"
    "\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_value_heads\":4,"
    "\"vocab_size\":512,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5}",
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"hidden_size\":128,\"intermediate_size\":320,"
    "\"moe_intermediate_size\":64,\"num_experts\":8,\"num_experts_per_tok\":2,\"head_dim\":32,"
    "\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_value_heads\":4,"
    "\"vocab_size\":512,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-6}",
    "{\"architectures\":[\"OlmoeForCausalLM\"],\"hidden_size\":128,\"intermediate_size\":64,\"num_"
    "experts\":8,"
    "\"num_experts_per_tok\":2,\"num_hidden_layers\":4,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":8,\"vocab_size\":512,\"max_position_embeddings\":512,"
    "\"rope_theta\":1e4,\"rms_norm_eps\":1e-5}",
    "{\"architectures\":[\"GraniteMoeHybridForCausalLM\"],\"attention_multiplier\":0.125,"
    "\"embedding_multiplier\":12,\"hidden_size\":128,\"intermediate_size\":64,\"layer_types\":["
    "\"mamba\",\"mamba\",\"attention\",\"mamba\"],\"logits_scaling\":6,\"mamba_conv_bias\":true,"
    "\"mamba_d_conv\":4,\"mamba_d_head\":64,\"mamba_d_state\":32,\"mamba_expand\":2,"
    "\"mamba_n_groups\":1,\"mamba_n_heads\":4,\"mamba_proj_bias\":false,"
    "\"max_position_embeddings\":512,\"num_attention_heads\":8,\"num_experts_per_tok\":2,"
    "\"num_hidden_layers\":4,\"num_key_value_heads\":4,\"num_local_experts\":8,"
    "\"position_embedding_type\":\"nope\",\"residual_multiplier\":0.22,\"rms_norm_eps\":1e-5,"
    "\"shared_intermediate_size\":64,\"vocab_size\":512}",
    "{\"architectures\":[\"NemotronHForCausalLM\"],\"conv_kernel\":4,\"expand\":2,"
    "\"head_dim\":16,\"hidden_size\":128,\"hybrid_override_pattern\":\"MM-*M-\","
    "\"intermediate_size\":320,\"layer_norm_epsilon\":1e-5,\"mamba_head_dim\":128,"
    "\"mamba_num_heads\":2,\"max_position_embeddings\":512,\"n_groups\":2,"
    "\"num_attention_heads\":8,\"num_hidden_layers\":6,\"num_key_value_heads\":4,"
    "\"ssm_state_size\":32,\"time_step_min\":0.001,\"use_conv_bias\":true,\"vocab_size\":512}",
    "{\"architectures\":[\"GlmMoeDsaForCausalLM\"],\"first_k_dense_replace\":1,"
    "\"hidden_size\":128,\"index_head_dim\":32,\"index_n_heads\":4,\"index_topk\":8,"
    "\"index_topk_pattern\":\"FSFFSS\",\"intermediate_size\":320,\"kv_lora_rank\":32,"
    "\"max_position_embeddings\":512,\"moe_intermediate_size\":64,\"n_routed_experts\":8,"
    "\"n_shared_experts\":1,\"norm_topk_prob\":true,\"num_attention_heads\":8,"
    "\"num_experts_per_tok\":2,\"num_hidden_layers\":6,\"q_lora_rank\":32,"
    "\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":16,\"rms_norm_eps\":1e-5,\"rope_theta\":1e4,"
    "\"routed_scaling_factor\":1.0,\"v_head_dim\":16,\"vocab_size\":512}",
};

/* The plan's workspace also counts the hidden rows and the logits of the head; the stage's also
 * counts the sums, which the plan lists as exchanged. */
static void compare(const struct layout *l, void *ctx)
{
    const struct arch *m = ctx;
    struct kern_table kern;
    CU_ASSERT_EQUAL_FATAL(kern_select(NULL, &kern).code, STATUS_OK);
    struct comm *c = util_comm(l, 0);
    const struct layout_place at = layout_place_of(l, (uint32_t)comm_rank(c, COMM_WORLD));
    struct weights w = {.place = at,
                        .layers = layout_layers(l, at.pp),
                        .heads = layout_heads(l, at.tp),
                        .kv_heads = layout_kv_heads(l, at.tp),
                        .delta_heads = layout_delta_heads(l, at.tp)};
    w.stage_layers = calloc(range_count(w.layers), sizeof *w.stage_layers);
    for (uint32_t i = w.layers.begin, n_kv = 0; i < w.layers.end; i++) {
        struct layer *layer = &w.stage_layers[i - w.layers.begin];
        layer->index = i;
        layer->has_kv = arch_layer_has_kv(m, i);
        if (layer->has_kv) layer->in_cache = n_kv++;
    }
    static const struct model_flags flags = {.kv_dtype = DTYPE_F32};
    static const struct capacity_flags dropless = {.policy = CAPACITY_DROPLESS};
    const struct stage_options o = {.model = m,
                                    .layout = l,
                                    .weights = &w,
                                    .kern = &kern,
                                    .comm = c,
                                    .rank = (uint32_t)comm_rank(c, COMM_WORLD),
                                    .max_rows = ROWS,
                                    .n_kv_blocks = 1,
                                    .n_state_slots = SLOTS,
                                    .flags = &flags,
                                    .capacity = &dropless};
    struct stage *s = NULL;
    CU_ASSERT_EQUAL_FATAL(stage_create(&o, &s).code, STATUS_OK);
    const struct layout_memory plan = layout_memory_of(l, at, (struct layout_kv){4, 0}, ROWS);
    const uint64_t d = m->width, room = grid_sum_room(0, d, c, COMM_TP);
    const bool has_sums = comm_size(c, COMM_TP) > 1; /* otherwise they are rounded at once */
    const uint64_t sums = has_sums ? 8 * (ROWS * (d + 1) + STAGE_PARTS * room) : 0;
    const uint64_t n_head = at.pp + 1 == l->pp ? range_count(layout_vocab(l, at.tp)) : 0;
    CU_ASSERT_EQUAL(stage_workspace_bytes(s) - sums,
                    plan.workspace_bytes - 4 * (ROWS * d + HEAD_ROWS * n_head));
    /* what is left without the MoE block and the rows to or from another stage are the sums; a rank
     * that is its whole tp group has none */
    const uint64_t exchanged = plan.exchange_bytes - layout_moe_bytes(l, at, ROWS) - 4 * ROWS * d;
    CU_ASSERT(has_sums ? exchanged >= 8 * ROWS * (d + 1) : exchanged == 0);
    CU_ASSERT_EQUAL(stage_kv_bytes(s), plan.kv_block_bytes);
    CU_ASSERT_EQUAL(stage_state_bytes(s), SLOTS * plan.state_bytes);
    stage_destroy(&s);
    comm_stop(&c);
    free(w.stage_layers);
}

static void the_plan_prints_what_a_stage_allocates(void)
{
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        static struct arch m;
        static struct layout_model lm;
        CU_ASSERT_EQUAL_FATAL(arch_parse(configs[i], strlen(configs[i]), "test", &m).code,
                              STATUS_OK);
        layout_describe(&m, 4, &lm);
        CU_ASSERT(util_each_layout(&lm, compare, &m) > 0);
    }
}

/* A layer counts as quantized if any of its linears is. Otherwise a stage of this layer alone would
 * have no memory for quantized rows, and would compute other bytes. */
static void any_quantized_linear_counts(void)
{
    static struct layer l;
    struct latent_weights *w = &l.attention.latent;
    struct index_weights *index = &l.attention.index;
    struct packed *const all[] = {
        &w->q_a,     &w->kv_a,      &index->q,      &index->k,         &index->pool.kv,
        &w->pool.kv, &w->pool.gate, &l.attention.q, &index->pool.gate, &w->o_a,
        &l.ffn.gate, &l.ffn.down,   &l.attention.v,
    };
    CU_ASSERT_FALSE(stage_layer_is_quantized(&l));
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        all[i]->quant.kind = QUANT_INT8;
        CU_ASSERT_TRUE(stage_layer_is_quantized(&l));
        all[i]->quant.kind = QUANT_NONE;
    }
}

void suite_stage(CU_pSuite suite);
void suite_stage(CU_pSuite suite)
{
    CU_add_test(suite, "the plan prints what a stage allocates",
                the_plan_prints_what_a_stage_allocates);
    CU_add_test(suite, "any quantized linear counts", any_quantized_linear_counts);
}
