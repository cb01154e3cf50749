/* The table of a model's tensors. weights_list visits those of a layer in this order. */
#include "arch/arch_tensors.h"

#include <stdio.h>
#include <string.h>

#define MATRIX(class_, role_, part_, name_, rows_, cols_)                                          \
    .class = (class_), .role = (role_), .part = (part_), .name = (name_), .rows = (rows_),         \
    .cols = (cols_)
#define VECTOR(role_, part_, name_, cols_)                                                         \
    .role = (role_), .part = (part_), .name = (name_), .rows = DIM_ONE, .cols = (cols_),           \
    .is_vector = true
#define FLOATS(role_, part_, name_, rows_, cols_)                                                  \
    .role = (role_), .part = (part_), .name = (name_), .rows = (rows_), .cols = (cols_),           \
    .is_vector = true
#define OF(member) .is_named = true, .prefix = offsetof(struct arch_names, member)

static const struct arch_tensor tensors[] = {
    {MATRIX(CLASS_EMBED, WEIGHT_EMBED, PART_EMBED, "model.embed_tokens.weight", DIM_V, DIM_D)},
    {FLOATS(WEIGHT_POSITIONS, PART_PLACES, "model.embed_positions.weight", DIM_POSITIONS, DIM_D)},
    {FLOATS(WEIGHT_TYPES, PART_PLACES, "model.embed_types.weight", DIM_TYPES, DIM_D)},
    /* a prediction layer, beside the tensors of any layer */
    {VECTOR(WEIGHT_PREDICT_TOKEN_NORM, PART_PREDICT, "enorm.weight", DIM_D)},
    {VECTOR(WEIGHT_PREDICT_ROW_NORM, PART_PREDICT, "hnorm.weight", DIM_D)},
    {MATRIX(CLASS_ROUTER, WEIGHT_PREDICT_JOIN, PART_PREDICT, "eh_proj.weight", DIM_D, DIM_PAIR)},
    {VECTOR(WEIGHT_PREDICT_NORM, PART_PREDICT, "shared_head.norm.weight", DIM_D)},
    /* attention */
    {VECTOR(WEIGHT_ATTN_NORM, PART_IN_NORMS, "input_layernorm.weight", DIM_D)},
    {VECTOR(WEIGHT_ATTN_OUT_NORM, PART_AFTER_NORMS, "post_self_attn_layernorm.weight", DIM_D)},
    {VECTOR(WEIGHT_ATTN_NORM, PART_BEFORE_NORMS, "input_layernorm.weight", DIM_D)},
    {VECTOR(WEIGHT_ATTN_OUT_NORM, PART_OUT_NORMS, "post_attention_layernorm.weight", DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_Q, PART_ANY_HEADS, "self_attn.q_proj.weight", DIM_Q, DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_Q, PART_FULL_QUERIES, "self_attn.q_proj.weight", DIM_FULL_Q,
            DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_K, PART_USUAL_KV, "self_attn.k_proj.weight", DIM_KV, DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_V, PART_USUAL_KV, "self_attn.v_proj.weight", DIM_VALUES,
            DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_K, PART_FULL_HEADS, "self_attn.k_proj.weight", DIM_FULL_KV,
            DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_V, PART_FULL_HEADS, "self_attn.v_proj.weight", DIM_FULL_VALUES,
            DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_Q, PART_TYPED_HEADS, "self_attn.q_proj.weight", DIM_TYPED_Q,
            DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_K, PART_TYPED_HEADS, "self_attn.k_proj.weight", DIM_TYPED_KV,
            DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_V, PART_TYPED_VALUES, "self_attn.v_proj.weight", DIM_TYPED_KV,
            DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_O, PART_TYPED_HEADS, "self_attn.o_proj.weight", DIM_D,
            DIM_TYPED_Q),
     .has_leaves = true},
    {VECTOR(WEIGHT_Q_NORM, PART_TYPED_HEADS, "self_attn.q_norm.weight", DIM_TYPED_HEAD)},
    {VECTOR(WEIGHT_K_NORM, PART_TYPED_HEADS, "self_attn.k_norm.weight", DIM_TYPED_HEAD)},
    {VECTOR(WEIGHT_Q_BIAS, PART_QKV_BIAS, "self_attn.q_proj.bias", DIM_Q)},
    {VECTOR(WEIGHT_K_BIAS, PART_QKV_BIAS, "self_attn.k_proj.bias", DIM_KV)},
    {VECTOR(WEIGHT_V_BIAS, PART_QKV_BIAS, "self_attn.v_proj.bias", DIM_VALUES)},
    {VECTOR(WEIGHT_O_BIAS, PART_O_BIAS, "self_attn.o_proj.bias", DIM_D)},
    {VECTOR(WEIGHT_Q_NORM, PART_QK_NORM_WHOLE, "self_attn.q_norm.weight", DIM_Q)},
    {VECTOR(WEIGHT_K_NORM, PART_QK_NORM_WHOLE, "self_attn.k_norm.weight", DIM_KV)},
    {VECTOR(WEIGHT_SINKS, PART_SINKS, "self_attn.sinks", DIM_H)},
    {VECTOR(WEIGHT_SINKS, PART_SINK_BIAS, "self_attn.attention_sink_bias", DIM_H)},
    {VECTOR(WEIGHT_Q_NORM, PART_QK_NORM, "self_attn.q_norm.weight", DIM_HEAD)},
    {VECTOR(WEIGHT_K_NORM, PART_QK_NORM, "self_attn.k_norm.weight", DIM_HEAD)},
    /* latent attention */
    {MATRIX(CLASS_ATTENTION, WEIGHT_Q_A, PART_Q_STEPS, "self_attn.q_a_proj.weight", DIM_Q_LORA,
            DIM_D)},
    {VECTOR(WEIGHT_Q_A_NORM, PART_Q_STEPS, "self_attn.q_a_layernorm.weight", DIM_Q_LORA)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_Q, PART_Q_STEPS, "self_attn.q_b_proj.weight", DIM_Q,
            DIM_Q_LORA)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_Q, PART_Q_STEP, "self_attn.q_proj.weight", DIM_Q, DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_KV_A, PART_LATENT, "self_attn.kv_a_proj_with_mqa.weight",
            DIM_KV_LORA, DIM_D),
     .behind = {DIM_ROTARY}},
    {MATRIX(CLASS_ATTENTION, WEIGHT_K_ROPE, PART_LATENT, "self_attn.kv_a_proj_with_mqa.weight",
            DIM_ROTARY, DIM_D),
     .before = {DIM_KV_LORA}},
    {VECTOR(WEIGHT_KV_A_NORM, PART_LATENT, "self_attn.kv_a_layernorm.weight", DIM_KV_LORA)},
    {MATRIX(CLASS_LATENT, WEIGHT_KV_B, PART_LATENT, "self_attn.kv_b_proj.weight", DIM_KV_B,
            DIM_KV_LORA)},
    {MATRIX(CLASS_ROUTER, WEIGHT_HEAD_GATE, PART_HEAD_GATES, "self_attn.g_proj.weight", DIM_H,
            DIM_D)},
    {MATRIX(CLASS_ROUTER, WEIGHT_HEAD_GATE, PART_FULL_QUERIES, "self_attn.g_proj.weight",
            DIM_FULL_H, DIM_D)},
    /* the index of sparse attention */
    {MATRIX(CLASS_ATTENTION, WEIGHT_INDEX_Q, PART_ANY_INDEX, "self_attn.indexer.wq_b.weight",
            DIM_INDEX_Q, DIM_Q_LORA)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_INDEX_K, PART_INDEX, "self_attn.indexer.wk.weight", DIM_INDEX,
            DIM_D)},
    {VECTOR(WEIGHT_INDEX_K_NORM, PART_INDEX, "self_attn.indexer.k_norm.weight", DIM_INDEX)},
    {VECTOR(WEIGHT_INDEX_K_NORM_BIAS, PART_INDEX, "self_attn.indexer.k_norm.bias", DIM_INDEX)},
    {MATRIX(CLASS_ROUTER, WEIGHT_INDEX_MIX, PART_ANY_INDEX, "self_attn.indexer.weights_proj.weight",
            DIM_INDEX_H, DIM_D)},
    /* an index that chooses blocks */
    {MATRIX(CLASS_ATTENTION, WEIGHT_INDEX_Q, PART_BLOCK_INDEX, "self_attn.index_q_proj.weight",
            DIM_INDEX_KV, DIM_D)},
    {VECTOR(WEIGHT_INDEX_Q_NORM, PART_BLOCK_INDEX, "self_attn.index_q_norm.weight", DIM_INDEX)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_INDEX_K, PART_BLOCK_INDEX, "self_attn.index_k_proj.weight",
            DIM_INDEX, DIM_D)},
    {VECTOR(WEIGHT_INDEX_K_NORM, PART_BLOCK_INDEX, "self_attn.index_k_norm.weight", DIM_INDEX)},
    /* compressed attention */
    {MATRIX(CLASS_ATTENTION, WEIGHT_KV_A, PART_SHARED_KV, "self_attn.kv_proj.weight", DIM_KV_LORA,
            DIM_D)},
    {VECTOR(WEIGHT_KV_A_NORM, PART_SHARED_KV, "self_attn.kv_norm.weight", DIM_KV_LORA)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_POOL_KV, PART_POOL_FULL, "self_attn.compressor.kv_proj.weight",
            DIM_KV_LORA, DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_POOL_GATE, PART_POOL_FULL,
            "self_attn.compressor.gate_proj.weight", DIM_KV_LORA, DIM_D)},
    {FLOATS(WEIGHT_POOL_BIAS, PART_POOL_FULL, "self_attn.compressor.position_bias", DIM_FULL_RATE,
            DIM_KV_LORA)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_POOL_KV, PART_POOL_SPARSE,
            "self_attn.compressor.kv_proj.weight", DIM_POOLS, DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_POOL_GATE, PART_POOL_SPARSE,
            "self_attn.compressor.gate_proj.weight", DIM_POOLS, DIM_D)},
    {FLOATS(WEIGHT_POOL_BIAS, PART_POOL_SPARSE, "self_attn.compressor.position_bias",
            DIM_SPARSE_RATE, DIM_POOLS)},
    {VECTOR(WEIGHT_POOL_NORM, PART_ANY_POOL, "self_attn.compressor.norm.weight", DIM_KV_LORA)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_INDEX_POOL_KV, PART_POOL_SPARSE,
            "self_attn.indexer.kv_proj.weight", DIM_INDEX_POOLS, DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_INDEX_POOL_GATE, PART_POOL_SPARSE,
            "self_attn.indexer.gate_proj.weight", DIM_INDEX_POOLS, DIM_D)},
    {FLOATS(WEIGHT_INDEX_POOL_BIAS, PART_POOL_SPARSE, "self_attn.indexer.position_bias",
            DIM_SPARSE_RATE, DIM_INDEX_POOLS)},
    {VECTOR(WEIGHT_INDEX_POOL_NORM, PART_POOL_SPARSE, "self_attn.indexer.norm.weight", DIM_INDEX)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_O_A, PART_SHARED_KV, "self_attn.o_a_proj.weight", DIM_O,
            DIM_GROUP)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_O, PART_SHARED_KV, "self_attn.o_b_proj.weight", DIM_D, DIM_O),
     .has_leaves = true},
    {VECTOR(WEIGHT_O_IN_NORM, PART_SUB_NORMS, "self_attn.attn_sub_norm.weight", DIM_O)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_O, PART_ATTENTION, "self_attn.o_proj.weight", DIM_D, DIM_O),
     .has_leaves = true},
    {MATRIX(CLASS_ATTENTION, WEIGHT_O, PART_FULL_QUERIES, "self_attn.o_proj.weight", DIM_D,
            DIM_FULL_Q),
     .has_leaves = true},
    /* a gated delta rule */
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_QKVZ, PART_DELTA, "linear_attn.in_proj_qkvz.weight",
            DIM_DELTA_QKVZ, DIM_D)},
    {MATRIX(CLASS_ROUTER, WEIGHT_DELTA_BA, PART_DELTA, "linear_attn.in_proj_ba.weight",
            DIM_DELTA_BA, DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_Q, PART_APART, "linear_attn.in_proj_qkv.weight",
            DIM_DELTA_K, DIM_D),
     .behind = {DIM_DELTA_K, DIM_DELTA_V}},
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_K, PART_APART, "linear_attn.in_proj_qkv.weight",
            DIM_DELTA_K, DIM_D),
     .before = {DIM_DELTA_K}, .behind = {DIM_DELTA_V}},
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_V, PART_APART, "linear_attn.in_proj_qkv.weight",
            DIM_DELTA_V, DIM_D),
     .before = {DIM_DELTA_K, DIM_DELTA_K}},
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_Z, PART_APART, "linear_attn.in_proj_z.weight",
            DIM_DELTA_V, DIM_D)},
    {MATRIX(CLASS_ROUTER, WEIGHT_DELTA_B, PART_APART, "linear_attn.in_proj_b.weight", DIM_DELTA_H,
            DIM_D)},
    {MATRIX(CLASS_ROUTER, WEIGHT_DELTA_A, PART_APART, "linear_attn.in_proj_a.weight", DIM_DELTA_H,
            DIM_D)},
    {FLOATS(WEIGHT_CONV_Q, PART_RECURRENT, "linear_attn.conv1d.weight", DIM_DELTA_K,
            DIM_DELTA_TAPS),
     .behind = {DIM_DELTA_K, DIM_DELTA_V}},
    {FLOATS(WEIGHT_CONV_K, PART_RECURRENT, "linear_attn.conv1d.weight", DIM_DELTA_K,
            DIM_DELTA_TAPS),
     .before = {DIM_DELTA_K}, .behind = {DIM_DELTA_V}},
    {FLOATS(WEIGHT_CONV_V, PART_RECURRENT, "linear_attn.conv1d.weight", DIM_DELTA_V,
            DIM_DELTA_TAPS),
     .before = {DIM_DELTA_K, DIM_DELTA_K}},
    {VECTOR(WEIGHT_DECAY_LOG, PART_ANY_DELTA, "linear_attn.A_log", DIM_DELTA_H)},
    {VECTOR(WEIGHT_STEP_BIAS, PART_RECURRENT, "linear_attn.dt_bias", DIM_DELTA_H)},
    {VECTOR(WEIGHT_DELTA_NORM, PART_ANY_DELTA, "linear_attn.norm.weight", DIM_DELTA_HEAD)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_O, PART_ANY_DELTA, "linear_attn.out_proj.weight", DIM_D,
            DIM_DELTA_V),
     .has_leaves = true},
    /* a delta rule with a decay for each channel; the linears of its betas and decays, and narrow
     * ones, are of the router's class, which is quantized only if --policy says so */
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_Q, PART_CHANNELS, "linear_attn.q_proj.weight",
            DIM_DELTA_K, DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_K, PART_CHANNELS, "linear_attn.k_proj.weight",
            DIM_DELTA_K, DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_V, PART_CHANNELS, "linear_attn.v_proj.weight",
            DIM_DELTA_V, DIM_D)},
    {MATRIX(CLASS_ROUTER, WEIGHT_DELTA_B, PART_CHANNELS, "linear_attn.b_proj.weight", DIM_DELTA_H,
            DIM_D)},
    {MATRIX(CLASS_ROUTER, WEIGHT_DELTA_A_LOW, PART_LOW_GATES, "linear_attn.f_a_proj.weight",
            DIM_DELTA_HEAD, DIM_D)},
    {MATRIX(CLASS_ROUTER, WEIGHT_DELTA_A, PART_LOW_GATES, "linear_attn.f_b_proj.weight",
            DIM_DELTA_V, DIM_DELTA_HEAD)},
    {MATRIX(CLASS_ROUTER, WEIGHT_DELTA_Z_LOW, PART_LOW_GATES, "linear_attn.g_a_proj.weight",
            DIM_DELTA_HEAD, DIM_D)},
    {MATRIX(CLASS_ROUTER, WEIGHT_DELTA_Z, PART_LOW_GATES, "linear_attn.g_b_proj.weight",
            DIM_DELTA_V, DIM_DELTA_HEAD)},
    {MATRIX(CLASS_ROUTER, WEIGHT_DELTA_A, PART_DIRECT_GATES, "linear_attn.f_proj.weight",
            DIM_DELTA_V, DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_Z, PART_DIRECT_GATES, "linear_attn.g_proj.weight",
            DIM_DELTA_V, DIM_D)},
    {FLOATS(WEIGHT_CONV_Q, PART_CHANNELS, "linear_attn.q_conv1d.weight", DIM_DELTA_K,
            DIM_DELTA_TAPS)},
    {FLOATS(WEIGHT_CONV_K, PART_CHANNELS, "linear_attn.k_conv1d.weight", DIM_DELTA_K,
            DIM_DELTA_TAPS)},
    {FLOATS(WEIGHT_CONV_V, PART_CHANNELS, "linear_attn.v_conv1d.weight", DIM_DELTA_V,
            DIM_DELTA_TAPS)},
    {VECTOR(WEIGHT_STEP_BIAS, PART_CHANNELS, "linear_attn.dt_bias", DIM_DELTA_V)},
    /* a Mamba-2 scan */
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_Q, PART_MAMBA, "mamba.c_proj.weight", DIM_GROUPS, DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_K, PART_MAMBA, "mamba.b_proj.weight", DIM_GROUPS, DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_V, PART_MAMBA, "mamba.x_proj.weight", DIM_DELTA_V,
            DIM_D)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_Z, PART_MAMBA, "mamba.z_proj.weight", DIM_DELTA_V,
            DIM_D)},
    {MATRIX(CLASS_ROUTER, WEIGHT_DELTA_A, PART_MAMBA, "mamba.dt_proj.weight", DIM_DELTA_H, DIM_D)},
    {FLOATS(WEIGHT_CONV_Q, PART_MAMBA, "mamba.conv1d.weight", DIM_GROUPS, DIM_DELTA_TAPS),
     .before = {DIM_DELTA_V, DIM_GROUPS}},
    {FLOATS(WEIGHT_CONV_K, PART_MAMBA, "mamba.conv1d.weight", DIM_GROUPS, DIM_DELTA_TAPS),
     .before = {DIM_DELTA_V}, .behind = {DIM_GROUPS}},
    {FLOATS(WEIGHT_CONV_V, PART_MAMBA, "mamba.conv1d.weight", DIM_DELTA_V, DIM_DELTA_TAPS),
     .behind = {DIM_GROUPS, DIM_GROUPS}},
    {VECTOR(WEIGHT_CONV_BIAS_Q, PART_CONV_BIAS, "mamba.conv1d_c.bias", DIM_GROUPS)},
    {VECTOR(WEIGHT_CONV_BIAS_K, PART_CONV_BIAS, "mamba.conv1d_b.bias", DIM_GROUPS)},
    {VECTOR(WEIGHT_CONV_BIAS_V, PART_CONV_BIAS, "mamba.conv1d_x.bias", DIM_DELTA_V)},
    {VECTOR(WEIGHT_DECAY_LOG, PART_MAMBA, "mamba.A_log", DIM_DELTA_H)},
    {VECTOR(WEIGHT_STEP_BIAS, PART_MAMBA, "mamba.dt_bias", DIM_DELTA_H)},
    {VECTOR(WEIGHT_SKIP, PART_MAMBA, "mamba.D", DIM_DELTA_H)},
    {VECTOR(WEIGHT_DELTA_NORM, PART_MAMBA, "mamba.norm.weight", DIM_DELTA_V)},
    {MATRIX(CLASS_ATTENTION, WEIGHT_DELTA_O, PART_MAMBA, "mamba.out_proj.weight", DIM_D,
            DIM_DELTA_V),
     .has_leaves = true},
    /* layers with only a mixer or only an FFN; FFNs of other names or without a gate */
    {VECTOR(WEIGHT_ATTN_NORM, PART_LONE_MIXER, "input_layernorm.weight", DIM_D)},
    {VECTOR(WEIGHT_FFN_NORM, PART_LONE_FFN, "input_layernorm.weight", DIM_D)},
    {MATRIX(CLASS_FFN, WEIGHT_GATE, PART_RELU2, "mlp.up_proj.weight", DIM_F, DIM_D)},
    {MATRIX(CLASS_FFN, WEIGHT_DOWN, PART_RELU2, "mlp.down_proj.weight", DIM_D, DIM_F),
     .has_leaves = true},
    {VECTOR(WEIGHT_GATE_BIAS, PART_RELU2_BIAS, "mlp.up_proj.bias", DIM_F)},
    {VECTOR(WEIGHT_DOWN_BIAS, PART_RELU2_BIAS, "mlp.down_proj.bias", DIM_D)},
    {MATRIX(CLASS_FFN, WEIGHT_GATE, PART_LONE_SHARED, "shared_mlp.gate_proj.weight", DIM_F, DIM_D)},
    {MATRIX(CLASS_FFN, WEIGHT_UP, PART_LONE_SHARED, "shared_mlp.up_proj.weight", DIM_F, DIM_D)},
    {MATRIX(CLASS_FFN, WEIGHT_DOWN, PART_LONE_SHARED, "shared_mlp.down_proj.weight", DIM_D, DIM_F),
     .has_leaves = true},
    /* hyper-connections */
    {MATRIX(CLASS_ROUTER, WEIGHT_ATTN_STREAMS, PART_STREAMS, "attn_hc.fn", DIM_STREAM_WEIGHTS,
            DIM_STREAM_ROW)},
    {VECTOR(WEIGHT_ATTN_STREAMS_BASE, PART_STREAMS, "attn_hc.base", DIM_STREAM_WEIGHTS)},
    {VECTOR(WEIGHT_ATTN_STREAMS_SCALE, PART_STREAMS, "attn_hc.scale", DIM_THREE)},
    {MATRIX(CLASS_ROUTER, WEIGHT_FFN_STREAMS, PART_STREAMS, "ffn_hc.fn", DIM_STREAM_WEIGHTS,
            DIM_STREAM_ROW)},
    {VECTOR(WEIGHT_FFN_STREAMS_BASE, PART_STREAMS, "ffn_hc.base", DIM_STREAM_WEIGHTS)},
    {VECTOR(WEIGHT_FFN_STREAMS_SCALE, PART_STREAMS, "ffn_hc.scale", DIM_THREE)},
    /* a dense FFN */
    {VECTOR(WEIGHT_FFN_NORM, PART_IN_NORMS, "post_attention_layernorm.weight", DIM_D)},
    {VECTOR(WEIGHT_FFN_OUT_NORM, PART_AFTER_NORMS, "post_mlp_layernorm.weight", DIM_D)},
    {VECTOR(WEIGHT_FFN_NORM, PART_BEFORE_NORMS, "pre_feedforward_layernorm.weight", DIM_D)},
    {VECTOR(WEIGHT_FFN_OUT_NORM, PART_OUT_NORMS, "post_feedforward_layernorm.weight", DIM_D)},
    {VECTOR(WEIGHT_LAYER_SCALE, PART_LAYER_SCALE, "layer_scalar", DIM_ONE)},
    {VECTOR(WEIGHT_SHARED_OUT_NORM, PART_JOINED, "post_feedforward_layernorm_1.weight", DIM_D)},
    {VECTOR(WEIGHT_EXPERT_NORM, PART_JOINED, "pre_feedforward_layernorm_2.weight", DIM_D)},
    {VECTOR(WEIGHT_EXPERT_OUT_NORM, PART_JOINED, "post_feedforward_layernorm_2.weight", DIM_D)},
    {VECTOR(WEIGHT_ROUTER_NORM, PART_JOINED, "router.scale", DIM_D)},
    {VECTOR(WEIGHT_EXPERT_SCALE, PART_JOINED, "router.per_expert_scale", DIM_E)},
    {MATRIX(CLASS_FFN, WEIGHT_GATE, PART_DENSE, "mlp.gate_proj.weight", DIM_F, DIM_D)},
    {MATRIX(CLASS_FFN, WEIGHT_UP, PART_DENSE, "mlp.up_proj.weight", DIM_F, DIM_D)},
    {VECTOR(WEIGHT_DOWN_IN_NORM, PART_SUB_NORMS, "mlp.ffn_sub_norm.weight", DIM_F)},
    {MATRIX(CLASS_FFN, WEIGHT_DOWN, PART_DENSE, "mlp.down_proj.weight", DIM_D, DIM_F),
     .has_leaves = true},
    {VECTOR(WEIGHT_GATE_BIAS, PART_FFN_BIAS, "mlp.gate_proj.bias", DIM_F)},
    {VECTOR(WEIGHT_UP_BIAS, PART_FFN_BIAS, "mlp.up_proj.bias", DIM_F)},
    {VECTOR(WEIGHT_DOWN_BIAS, PART_FFN_BIAS, "mlp.down_proj.bias", DIM_D)},
    /* a dense FFN without a gate: its activation is applied where the gate would be */
    {MATRIX(CLASS_FFN, WEIGHT_GATE, PART_UNGATED, "mlp.up_proj.weight", DIM_F, DIM_D)},
    {MATRIX(CLASS_FFN, WEIGHT_DOWN, PART_UNGATED, "mlp.down_proj.weight", DIM_D, DIM_F),
     .has_leaves = true},
    {VECTOR(WEIGHT_XIELU_P, PART_UNGATED, "mlp.act_fn.alpha_p", DIM_ONE)},
    {VECTOR(WEIGHT_XIELU_N, PART_UNGATED, "mlp.act_fn.alpha_n", DIM_ONE)},
    {VECTOR(WEIGHT_XIELU_BETA, PART_UNGATED, "mlp.act_fn.beta", DIM_ONE)},
    {VECTOR(WEIGHT_XIELU_EPS, PART_UNGATED, "mlp.act_fn.eps", DIM_ONE)},
    /* layer norms */
    {VECTOR(WEIGHT_ATTN_NORM_BIAS, PART_NORM_BIAS, "input_layernorm.bias", DIM_D)},
    {VECTOR(WEIGHT_FFN_NORM_BIAS, PART_NORM_BIAS, "post_attention_layernorm.bias", DIM_D)},
    /* experts and shared experts */
    {MATRIX(CLASS_ROUTER, WEIGHT_ROUTER, PART_MOE, ".weight", DIM_E, DIM_D), OF(router)},
    {VECTOR(WEIGHT_SELECT_BIAS, PART_SELECT_BIAS, "", DIM_E), OF(select_bias)},
    {FLOATS(WEIGHT_ROUTER_TABLE, PART_HASHED, ".tid2eid", DIM_TOKENS, DIM_CHOSEN), OF(router)},
    {MATRIX(CLASS_FFN, WEIGHT_SHARED_GATE, PART_SHARED_UP, "gate_proj.weight", DIM_SHARED_F, DIM_D),
     OF(shared)},
    {MATRIX(CLASS_FFN, WEIGHT_SHARED_UP, PART_SHARED_UP, "up_proj.weight", DIM_SHARED_F, DIM_D),
     OF(shared)},
    {MATRIX(CLASS_FFN, WEIGHT_SHARED_GATE, PART_SHARED_RELU2, "up_proj.weight", DIM_SHARED_F,
            DIM_D),
     OF(shared)},
    {MATRIX(CLASS_FFN, WEIGHT_SHARED_DOWN, PART_SHARED, "down_proj.weight", DIM_D, DIM_SHARED_F),
     OF(shared), .has_leaves = true},
    {MATRIX(CLASS_ROUTER, WEIGHT_SHARED_MIX, PART_SHARED_MIX, "", DIM_ONE, DIM_D), OF(shared_mix)},
    {VECTOR(WEIGHT_ROUTER_BIAS, PART_EXPERT_BIAS, ".bias", DIM_E), OF(router)},
    {VECTOR(WEIGHT_EXPERT_GATE_BIAS, PART_EXPERT_BIAS, ".bias", DIM_EXPERT_F), OF(gate),
     .is_expert = true},
    {VECTOR(WEIGHT_EXPERT_UP_BIAS, PART_EXPERT_BIAS, ".bias", DIM_EXPERT_F), OF(up),
     .is_expert = true},
    {VECTOR(WEIGHT_EXPERT_DOWN_BIAS, PART_EXPERT_BIAS, ".bias", DIM_D), OF(down),
     .is_expert = true},
    {MATRIX(CLASS_EXPERTS, WEIGHT_EXPERT_GATE, PART_MOE, ".weight", DIM_EXPERT_F, DIM_D), OF(gate),
     .is_expert = true, .behind = {DIM_EXPERT_F}},
    {MATRIX(CLASS_EXPERTS, WEIGHT_EXPERT_UP, PART_MOE_UP, ".weight", DIM_EXPERT_F, DIM_D), OF(up),
     .is_expert = true, .before = {DIM_EXPERT_F}},
    {MATRIX(CLASS_EXPERTS, WEIGHT_EXPERT_DOWN, PART_MOE, ".weight", DIM_D, DIM_EXPERT_F), OF(down),
     .is_expert = true, .has_leaves = true},
    /* after the last layer */
    {MATRIX(CLASS_ROUTER, WEIGHT_FINAL_STREAMS, PART_FINAL_STREAMS, "model.hc_head.hc_fn",
            DIM_STREAMS, DIM_STREAM_ROW)},
    {VECTOR(WEIGHT_FINAL_STREAMS_BASE, PART_FINAL_STREAMS, "model.hc_head.hc_base", DIM_STREAMS)},
    {VECTOR(WEIGHT_FINAL_STREAMS_SCALE, PART_FINAL_STREAMS, "model.hc_head.hc_scale", DIM_ONE)},
    {VECTOR(WEIGHT_FINAL_NORM, PART_FINAL, "model.norm.weight", DIM_D)},
    {VECTOR(WEIGHT_FINAL_NORM_BIAS, PART_FINAL_BIAS, "model.norm.bias", DIM_D)},
    {VECTOR(WEIGHT_HEAD_BIAS, PART_HEAD_BIAS, "lm_head.bias", DIM_V)},
    {MATRIX(CLASS_HEAD, WEIGHT_HEAD, PART_HEAD, "lm_head.weight", DIM_V, DIM_D)},
    {MATRIX(CLASS_HEAD, WEIGHT_HEAD, PART_HEAD_TIED, "model.embed_tokens.weight", DIM_V, DIM_D)},
};

const struct arch_tensor *arch_tensor_at(size_t i)
{
    return i < sizeof tensors / sizeof tensors[0] ? &tensors[i] : NULL;
}

/* Returns the family's prefix of the name; NULL: the family has no such tensor. */
static const char *prefix_of(const struct arch_tensor *t, const struct arch_family *family)
{
    const char *prefix = NULL;
    if (!t->is_named) return "";
    if (family->names != NULL)
        memcpy(&prefix, (const char *)family->names + t->prefix, sizeof prefix);
    return prefix;
}

void arch_tensor_name(const struct arch_tensor *t, const struct arch_family *family, uint32_t layer,
                      char *out, size_t n)
{
    const char *prefix = prefix_of(t, family);
    char place[32] = "";
    if ((t->part & PARTS_OUTSIDE) == 0) snprintf(place, sizeof place, "model.layers.%u.", layer);
    snprintf(out, n, "%s%s%s", place, prefix == NULL ? "" : prefix, t->name);
}

/* Removes `end` from the end of name[0, *n); false when name[0, *n) does not end with it. */
static bool take_end(const char *name, size_t *n, const char *end)
{
    const size_t m = strlen(end);
    if (*n < m || memcmp(name + *n - m, end, m) != 0) return false;
    *n -= m;
    return true;
}

static const struct arch_tensor *find_in(const struct arch_family *family, const char *name)
{
    for (size_t i = 0; arch_tensor_at(i) != NULL; i++) {
        const char *prefix = prefix_of(&tensors[i], family);
        size_t n = strlen(name);
        if (prefix == NULL || !take_end(name, &n, tensors[i].name) || !take_end(name, &n, prefix))
            continue;
        if (n == 0 || name[n - 1] == '.') return &tensors[i];
    }
    return NULL;
}

const struct arch_tensor *arch_tensor_find(const char *name)
{
    const struct arch_tensor *found = NULL;
    for (size_t f = 0; found == NULL && arch_family_at(f) != NULL; f++) {
        found = find_in(arch_family_at(f), name);
    }
    return found;
}

bool arch_tensor_is_joined(const struct arch_tensor *t, const struct arch_family *family)
{
    if (t->before[0] == DIM_NONE && t->behind[0] == DIM_NONE) return false;
    if (!t->is_expert) return true;
    return family->names->up != NULL && strcmp(family->names->gate, family->names->up) == 0;
}

enum arch_axis arch_dim_axis(enum arch_dim dim)
{
    static const enum arch_axis axes[DIM_COUNT] = {[DIM_V] = AXIS_VOCAB,
                                                   [DIM_H] = AXIS_HEADS,
                                                   [DIM_Q] = AXIS_HEADS,
                                                   [DIM_O] = AXIS_HEADS,
                                                   [DIM_KV_B] = AXIS_HEADS,
                                                   [DIM_FULL_H] = AXIS_FULL_HEADS,
                                                   [DIM_FULL_Q] = AXIS_FULL_HEADS,
                                                   [DIM_KV] = AXIS_KV_HEADS,
                                                   [DIM_VALUES] = AXIS_KV_HEADS,
                                                   [DIM_INDEX_KV] = AXIS_KV_HEADS,
                                                   [DIM_FULL_KV] = AXIS_FULL_KV_HEADS,
                                                   [DIM_FULL_VALUES] = AXIS_FULL_KV_HEADS,
                                                   [DIM_TYPED_Q] = AXIS_HEADS,
                                                   [DIM_TYPED_KV] = AXIS_FULL_KV_HEADS,
                                                   [DIM_F] = AXIS_FFN,
                                                   [DIM_SHARED_F] = AXIS_SHARED_FFN,
                                                   [DIM_EXPERT_F] = AXIS_EXPERT_FFN,
                                                   [DIM_DELTA_K] = AXIS_DELTA,
                                                   [DIM_DELTA_V] = AXIS_DELTA,
                                                   [DIM_DELTA_H] = AXIS_DELTA,
                                                   [DIM_DELTA_QKVZ] = AXIS_DELTA,
                                                   [DIM_DELTA_BA] = AXIS_DELTA};
    return axes[dim];
}

uint32_t arch_dim_unit(const struct arch *m, enum arch_dim dim)
{
    switch (dim) {
    case DIM_Q:
        return m->attn.gated_heads ? 2 * m->attn.query_dim : m->attn.query_dim;
    case DIM_KV:
    case DIM_FULL_KV:
    case DIM_FULL_Q:
        return m->attn.query_dim;
    case DIM_VALUES:
    case DIM_FULL_VALUES:
    case DIM_O:
        return m->attn.value_dim;
    case DIM_TYPED_Q:
    case DIM_TYPED_KV:
        return m->attn.full_dim;
    case DIM_KV_B:
        return m->attn.query_dim - m->attn.rotary + m->attn.value_dim;
    case DIM_INDEX_Q:
    case DIM_INDEX_KV:
        return m->index.dim;
    case DIM_DELTA_K:
        return m->delta.key_dim;
    case DIM_DELTA_V:
        return arch_delta_per_unit(m) * m->delta.value_dim;
    case DIM_DELTA_H:
        return arch_delta_per_unit(m);
    case DIM_DELTA_QKVZ:
        return 2 * m->delta.key_dim + 2 * arch_delta_per_key(m) * m->delta.value_dim;
    case DIM_DELTA_BA:
        return 2 * arch_delta_per_key(m);
    default:
        return 1;
    }
}

/* Returns the number of attention's outputs for one group of heads. */
static uint32_t group_inputs(const struct arch *m)
{
    const uint32_t n = m->compression.o_groups;
    return n > 0 ? m->attn.n_heads / n * m->attn.head_dim : 0;
}

uint32_t arch_dim_size(const struct arch *m, enum arch_dim dim)
{
    const uint32_t sizes[DIM_COUNT] = {[DIM_ONE] = 1,
                                       [DIM_D] = m->width,
                                       [DIM_PAIR] = 2 * m->width,
                                       [DIM_V] = m->vocab,
                                       [DIM_HEAD] = m->attn.query_dim,
                                       [DIM_H] = m->attn.n_heads,
                                       [DIM_Q] = m->attn.n_heads,
                                       [DIM_O] = m->attn.n_heads,
                                       [DIM_KV_B] = m->attn.n_heads,
                                       [DIM_FULL_H] = m->attn.n_full_heads,
                                       [DIM_FULL_Q] = m->attn.n_full_heads,
                                       [DIM_KV] = m->attn.n_kv_heads,
                                       [DIM_VALUES] = m->attn.n_kv_heads,
                                       [DIM_FULL_KV] = m->attn.n_full_kv_heads,
                                       [DIM_FULL_VALUES] = m->attn.n_full_kv_heads,
                                       [DIM_TYPED_HEAD] = m->attn.full_dim,
                                       [DIM_TYPED_Q] = m->attn.n_heads,
                                       [DIM_TYPED_KV] = m->attn.n_full_kv_heads,
                                       [DIM_Q_LORA] = m->attn.q_lora,
                                       [DIM_KV_LORA] = m->attn.kv_lora,
                                       [DIM_ROTARY] = m->attn.rotary,
                                       [DIM_INDEX] = m->index.dim,
                                       [DIM_INDEX_H] = m->index.n_heads,
                                       [DIM_INDEX_Q] = m->index.n_heads,
                                       [DIM_INDEX_KV] = m->index.n_heads,
                                       [DIM_F] = m->ffn,
                                       [DIM_SHARED_F] = m->moe.shared_ffn,
                                       [DIM_EXPERT_F] = m->moe.ffn,
                                       [DIM_E] = arch_n_routed(m),
                                       [DIM_DELTA_K] = m->delta.n_key_heads,
                                       [DIM_DELTA_V] = arch_delta_units(m),
                                       [DIM_DELTA_H] = arch_delta_units(m),
                                       [DIM_DELTA_QKVZ] = m->delta.n_key_heads,
                                       [DIM_DELTA_BA] = m->delta.n_key_heads,
                                       [DIM_DELTA_HEAD] = m->delta.value_dim,
                                       [DIM_DELTA_TAPS] = m->delta.n_taps,
                                       [DIM_POSITIONS] = m->n_positions,
                                       [DIM_TYPES] = m->n_types,
                                       [DIM_GROUPS] = m->delta.n_key_heads * m->delta.key_dim,
                                       [DIM_GROUP] = group_inputs(m),
                                       [DIM_POOLS] = 2 * m->attn.kv_lora,
                                       [DIM_SPARSE_RATE] = m->compression.sparse_rate,
                                       [DIM_FULL_RATE] = m->compression.full_rate,
                                       [DIM_INDEX_POOLS] = 2 * m->index.dim,
                                       [DIM_TOKENS] = m->vocab,
                                       [DIM_CHOSEN] = m->moe.n_chosen,
                                       [DIM_STREAM_ROW] = arch_row_width(m),
                                       [DIM_STREAMS] = m->streams.n,
                                       [DIM_STREAM_WEIGHTS] = (2 + m->streams.n) * m->streams.n,
                                       [DIM_THREE] = 3};
    return sizes[dim] * arch_dim_unit(m, dim);
}

static uint64_t attention_parts(const struct arch *m, uint32_t layer)
{
    if (m->compression.o_groups > 0)
        return PART_SHARED_KV | PART_Q_STEPS | PART_SINKS |
               (m->layer.compression[layer] == COMPRESSION_SPARSE ? PART_POOL_SPARSE
                : m->layer.compression[layer] == COMPRESSION_FULL ? PART_POOL_FULL
                                                                  : 0);
    if (m->attn.kv_lora > 0)
        return PART_LATENT | (arch_has_index(m, layer) ? PART_INDEX : 0) |
               (m->attn.q_lora > 0 ? PART_Q_STEPS : PART_Q_STEP) |
               (m->attn.head_gates ? PART_HEAD_GATES : 0);
    const bool is_local = m->layer.has_window[layer];
    if (m->attn.full_dim > 0 && !is_local)
        return PART_TYPED_HEADS | (m->attn.full_k_is_v ? 0 : PART_TYPED_VALUES);
    const uint64_t sinks = !m->attn.sinks          ? 0
                           : !m->family->hybrid_kv ? PART_SINKS
                           : is_local              ? PART_SINK_BIAS
                                                   : 0;
    if (m->attn.n_full_heads > 0 && !is_local) return PART_FULL_QUERIES | PART_QK_NORM;
    return (arch_shares_keys(m, layer) > 1 ? PART_FULL_HEADS : PART_HEADS) |
           (m->attn.head_gates ? PART_HEAD_GATES : 0) |
           (m->attn.qkv_bias ? PART_QKV_BIAS : 0) | (m->attn.o_bias ? PART_O_BIAS : 0) |
           (arch_has_index(m, layer) ? PART_BLOCK_INDEX : 0) |
           (m->attn.qk_norm ? PART_QK_NORM : 0) | (m->attn.qk_norm_whole ? PART_QK_NORM_WHOLE : 0) |
           sinks;
}

static uint64_t recurrent_parts(const struct arch *m)
{
    if (m->delta.is_mamba) return PART_MAMBA | (m->delta.conv_bias ? PART_CONV_BIAS : 0);
    if (m->delta.by_channel)
        return PART_CHANNELS | (m->family->ling ? PART_DIRECT_GATES : PART_LOW_GATES);
    return m->family->delta_apart ? PART_APART : PART_DELTA;
}

static uint64_t moe_parts(const struct arch *m, uint32_t layer)
{
    const bool is_hashed = m->layer.is_hashed[layer];
    const bool is_gated = m->gate != GATE_RELU2;
    const uint64_t shared = PART_SHARED | (is_gated ? PART_SHARED_UP : PART_SHARED_RELU2);
    return PART_MOE | (is_gated ? PART_MOE_UP : 0) | (m->moe.joins ? PART_JOINED : 0) |
           (is_hashed            ? PART_HASHED
            : m->moe.select_bias ? PART_SELECT_BIAS
                                 : 0) |
           (m->moe.shared_ffn > 0 ? shared : 0) | (m->moe.shared_mix ? PART_SHARED_MIX : 0) |
           (m->moe.bias ? PART_EXPERT_BIAS : 0);
}

static uint64_t dense_parts(const struct arch *m)
{
    if (m->family->xielu) return PART_UNGATED;
    if (m->gate == GATE_RELU2) return PART_RELU2;
    if (m->gate == GATE_GELU) return PART_RELU2 | PART_RELU2_BIAS;
    if (m->moe.lone_shared) return PART_LONE_SHARED;
    return PART_DENSE | (m->ffn_bias ? PART_FFN_BIAS : 0);
}

uint64_t arch_final_parts(const struct arch *m)
{
    return PART_FINAL | (m->streams.n > 0 ? PART_FINAL_STREAMS : 0) |
           (m->norm_bias ? PART_FINAL_BIAS : 0) | (m->head_bias ? PART_HEAD_BIAS : 0);
}

uint64_t arch_layer_parts(const struct arch *m, uint32_t layer)
{
    const struct arch_family *f = m->family;
    const uint64_t norms = f->out_norms     ? PART_OUT_NORMS
                           : f->both_norms  ? PART_BEFORE_NORMS | PART_OUT_NORMS
                           : f->after_norms ? PART_IN_NORMS | PART_AFTER_NORMS
                                            : PART_IN_NORMS;
    const uint64_t mixer =
        m->layer.is_delta[layer] ? recurrent_parts(m) : attention_parts(m, layer);
    const uint64_t ffn = (m->layer.is_moe[layer] ? moe_parts(m, layer) : 0) |
                         (m->layer.is_moe[layer] && !m->shortcut ? 0 : dense_parts(m));
    if (m->layer.lacks_mixer[layer]) return PART_LONE_FFN | ffn;
    if (m->layer.lacks_ffn[layer]) return PART_LONE_MIXER | mixer;
    return (layer >= m->n_layers ? PART_PREDICT : 0) | norms | (m->norm_bias ? PART_NORM_BIAS : 0) |
           (m->streams.n > 0 ? PART_STREAMS : 0) | (m->layer_scale ? PART_LAYER_SCALE : 0) |
           (m->sub_norms ? PART_SUB_NORMS : 0) | mixer | ffn;
}

/* Returns the number of elements of a tensor; for experts, one expert's times n_experts. */
static uint64_t elements_of(const struct arch *m, const struct arch_tensor *t, uint32_t n_experts)
{
    return (uint64_t)arch_dim_size(m, t->rows) * arch_dim_size(m, t->cols) *
           (t->is_expert ? n_experts : 1);
}

static uint64_t all_elements(const struct arch *m, uint64_t parts)
{
    uint64_t n = 0;
    for (size_t i = 0; arch_tensor_at(i) != NULL; i++) {
        if ((tensors[i].part & parts) != 0) n += elements_of(m, &tensors[i], m->moe.n_experts);
    }
    return n;
}

uint64_t arch_params(const struct arch *m)
{
    const uint64_t outer =
        PART_EMBED | (m->n_positions > 0 ? PART_PLACES : 0) | arch_final_parts(m);
    uint64_t n = all_elements(m, outer | (m->tied ? 0 : PART_HEAD));
    for (uint32_t l = 0; l < m->n_layers; l++) n += all_elements(m, arch_layer_parts(m, l));
    return n;
}

/* Returns the elements of the layers' matrices by which one token is multiplied: of all matrices,
 * or only of experts'. */
static uint64_t token_elements(const struct arch *m, bool of_experts)
{
    uint64_t n = 0;
    for (uint32_t l = 0; l < m->n_layers; l++) {
        const uint64_t parts = arch_layer_parts(m, l);
        for (size_t i = 0; arch_tensor_at(i) != NULL; i++) {
            const struct arch_tensor *t = &tensors[i];
            const bool counts = !t->is_vector && (t->is_expert || !of_experts);
            if ((t->part & parts) != 0 && counts) n += elements_of(m, t, m->moe.n_chosen);
        }
    }
    return n;
}

uint64_t arch_token_params(const struct arch *m)
{
    return token_elements(m, false);
}

uint64_t arch_token_expert_params(const struct arch *m)
{
    return token_elements(m, true);
}
