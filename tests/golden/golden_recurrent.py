"""The models of the goldens with recurrent layers."""
import torch
from transformers import (BailingHybridConfig, BailingHybridForCausalLM, GraniteMoeHybridConfig,
                          GraniteMoeHybridForCausalLM, KimiLinearConfig, KimiLinearForCausalLM,
                          NemotronHConfig, NemotronHForCausalLM, Qwen3_5ForCausalLM,
                          Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig,
                          Qwen3NextConfig, Qwen3NextForCausalLM)

from golden_common import COMMON, LONGER, LONGEST, LONG_CONTEXT, OVER_BORDERS, SHORTEST

# fields that transformers writes although no layer has experts
NO_EXPERTS = dict(n_routed_experts=None, num_experts_per_tok=None, n_shared_experts=None)
# transformers writes a dense FFN under the name of experts
DENSE_AS_PUBLISHED = (r"\.block_sparse_moe\.(gate|up|down)_proj\.", r".mlp.\1_proj.")
KIMI_COMMON = {**{key: value for key, value in COMMON.items() if key != "max_position_embeddings"},
               "model_max_length": 1024}
MODELS = {
    # a gated delta rule in three layers of four, as published: two value heads for each key head
    "qwen3-next": dict(
        cls=Qwen3NextForCausalLM, dtype=torch.bfloat16, prompts=(70, 200), less_one=True,
        fields=dict(layer_types=None, full_attention_interval=4),
        config=lambda: Qwen3NextConfig(
            vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6,
            rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25),
            linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
            linear_value_head_dim=32, linear_conv_kernel_dim=4, num_experts=8, num_experts_per_tok=3,
            moe_intermediate_size=32, shared_expert_intermediate_size=48, norm_topk_prob=True,
            tie_word_embeddings=False, **LONG_CONTEXT)),
    # its layers in another order, one dense; padded heads, biases, three taps, odd sizes, tied
    "qwen3-next-odd": dict(
        cls=Qwen3NextForCausalLM, dtype=torch.float16, prompts=LONGER, less_one=True,
        generated=True, tokenizer="qwen3-next", every=11,
        config=lambda: Qwen3NextConfig(
            vocab_size=272, hidden_size=80, intermediate_size=112, num_hidden_layers=5,
            num_attention_heads=6, num_key_value_heads=3, head_dim=24, rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
            layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention",
                         "linear_attention"],
            linear_num_key_heads=4, linear_num_value_heads=4, linear_key_head_dim=24,
            linear_value_head_dim=40, linear_conv_kernel_dim=3, num_experts=5, num_experts_per_tok=2,
            moe_intermediate_size=48, shared_expert_intermediate_size=32, norm_topk_prob=False,
            mlp_only_layers=[1], attention_bias=True, tie_word_embeddings=True, **LONG_CONTEXT)),
    # the same rule with projections apart, and dense FFNs; prompts over two borders of 64 positions
    "qwen3_5": dict(
        cls=Qwen3_5ForCausalLM, dtype=torch.bfloat16, prompts=OVER_BORDERS, less_one=True,
        config=lambda: Qwen3_5TextConfig(
            vocab_size=260, hidden_size=48, intermediate_size=64, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6,
            rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25,
                                 mrope_section=[2, 1, 1]),
            linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
            linear_value_head_dim=16, linear_conv_kernel_dim=4, tie_word_embeddings=False, **LONG_CONTEXT)),
    # the text model of a multimodal checkpoint: listed layers, biases, padded heads, three taps, tied
    "qwen3_5-text": dict(
        cls=Qwen3_5ForCausalLM, dtype=torch.float16, prompts=OVER_BORDERS, less_one=True,
        wrapped=dict(architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5", image_token_id=257,
                     video_token_id=258, vision_start_token_id=255, vision_end_token_id=256,
                     tie_word_embeddings=True, vision_config=dict(hidden_size=16)),
        config=lambda: Qwen3_5TextConfig(
            vocab_size=260, hidden_size=40, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=3, num_key_value_heads=1, head_dim=24, rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5,
                                 mrope_section=[2, 2, 2]),
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=24,
            linear_value_head_dim=16, linear_conv_kernel_dim=3, attention_bias=True,
            tie_word_embeddings=True, **LONG_CONTEXT)),
    # with experts, gate and up in one tensor, beside a shared one with a sigmoid gate
    "qwen3_5-moe": dict(
        cls=Qwen3_5MoeForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST, less_one=True, joined=True,
        config=lambda: Qwen3_5MoeTextConfig(
            vocab_size=260, hidden_size=32, num_hidden_layers=4, num_attention_heads=2,
            num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-6, num_experts=6, num_experts_per_tok=3,
            moe_intermediate_size=16, shared_expert_intermediate_size=32,
            rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25,
                                 mrope_section=[2, 1, 1]),
            linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
            linear_value_head_dim=8, linear_conv_kernel_dim=4, tie_word_embeddings=False, **LONG_CONTEXT)),
    # a delta rule with a decay for each channel in three layers of four, latent attention without RoPE in the fourth;
    # config and names as published
    "kimi-linear": dict(
        cls=KimiLinearForCausalLM, dtype=torch.bfloat16, prompts=LONGEST, generated=True, tokenizer="qwen3-next",
        every=11, floats=("A_log", "dt_bias", "e_score_correction_bias"), renames=[DENSE_AS_PUBLISHED],
        fields=dict(layer_types=None, mlp_layer_types=None, linear_head_dim=None, linear_num_heads=None,
                    linear_conv_kernel_dim=None, qk_head_dim=None, first_k_dense_replace=1, head_dim=18,
                    moe_layer_freq=1, mla_use_nope=True, moe_router_activation_func="sigmoid", use_grouped_topk=True,
                    num_nextn_predict_layers=0, rope_scaling=None, rope_theta=10000.0),
        config=lambda: KimiLinearConfig(
            vocab_size=272, hidden_size=72, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=32,
            qk_rope_head_dim=16, v_head_dim=32, num_local_experts=8, num_experts_per_tok=3, n_shared_experts=1,
            n_group=1, topk_group=1, routed_scaling_factor=2.446, norm_topk_prob=True, rms_norm_eps=1e-5,
            linear_attn_config=dict(full_attn_layers=[4], head_dim=32, kda_layers=[1, 2, 3], num_heads=4,
                                    short_conv_kernel_size=4), tie_word_embeddings=False, **KIMI_COMMON)),
    # as transformers writes it: lists of layers, attention first, q in two steps, odd heads, three taps, two groups of
    # experts, weights not renormalised, another norm's eps
    "kimi-linear-odd": dict(
        cls=KimiLinearForCausalLM, dtype=torch.float32, prompts=(5, 300), generated=True, tokenizer="qwen3-next",
        every=11,
        config=lambda: KimiLinearConfig(
            vocab_size=272, hidden_size=56, intermediate_size=80, moe_intermediate_size=24, num_hidden_layers=4,
            num_attention_heads=3, num_key_value_heads=3, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=24,
            qk_rope_head_dim=32, v_head_dim=40, num_local_experts=6, num_experts_per_tok=2, n_shared_experts=2,
            n_group=2, topk_group=1, routed_scaling_factor=1.3, norm_topk_prob=False, rms_norm_eps=1e-2,
            layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"],
            mlp_layer_types=["sparse", "dense", "sparse", "sparse"], linear_head_dim=24, linear_num_heads=5,
            linear_conv_kernel_dim=3, tie_word_embeddings=False, **KIMI_COMMON)),
    # the same rule with one linear for decays, which are bounded, and one for gates; latent attention with RoPE and a
    # gate for each head; two groups of experts; config and names as published
    "ling3": dict(
        cls=BailingHybridForCausalLM, dtype=torch.bfloat16, prompts=LONGEST, generated=True, tokenizer="qwen3-next",
        every=11, floats=("A_log", "dt_bias", "expert_bias"),
        fields=dict(architectures=["BailingMoeV3ForCausalLM"], layer_types=None, mlp_layer_types=None,
                    linear_head_dim=None, linear_num_heads=None, linear_conv_kernel_dim=None, head_dim=32,
                    model_max_length=None, max_position_embeddings=1024, moe_renormalize=None, norm_topk_prob=True,
                    num_expert_group=None, n_group=2, num_experts_per_token=None, num_experts_per_tok=3,
                    rope_parameters=None, rope_scaling=None, partial_rotary_factor=0.5, rotary_dim=16,
                    rope_interleave=True, gated_attention_proj_granularity_type="head_wise", no_kda_lora=True,
                    moe_router_enable_expert_bias=True, moe_shared_expert_intermediate_size=32, router_dtype="fp32",
                    score_function="sigmoid", scoring_func="sigmoid", topk_method="noaux_tc", group_norm_size=1,
                    linear_silu=True, max_window_layers=20, use_qk_norm=True, seq_aux=True, use_bias=False,
                    use_mla_nope=False, expert_swiglu_limit_list=None),
        config=lambda: BailingHybridConfig(
            vocab_size=272, hidden_size=72, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=32,
            qk_rope_head_dim=16, v_head_dim=32, head_dim=32, num_local_experts=8, num_experts_per_tok=3,
            n_shared_experts=1, n_group=2, topk_group=1, routed_scaling_factor=2.5, norm_topk_prob=True,
            rms_norm_eps=1e-6, rope_theta=6000000.0, layer_group_size=4, first_k_dense_replace=2,
            short_conv_kernel_size=4, kda_safe_gate=True, kda_lower_bound=-5.0, tie_word_embeddings=False,
            **KIMI_COMMON)),
    # as transformers writes it: lists of layers, attention first, q in one step, other heads in the delta rule, three
    # taps, decays without a bound, weights not renormalised, YaRN, another norm's eps
    "ling3-odd": dict(
        cls=BailingHybridForCausalLM, dtype=torch.float32, prompts=(5, 300), generated=True, tokenizer="qwen3-next",
        every=11, fields=dict(first_k_dense_replace=None, rope_theta=None),
        config=lambda: BailingHybridConfig(
            vocab_size=272, hidden_size=56, intermediate_size=80, moe_intermediate_size=24, num_hidden_layers=4,
            num_attention_heads=3, num_key_value_heads=3, q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=24,
            qk_rope_head_dim=32, v_head_dim=40, num_local_experts=6, num_experts_per_tok=2, n_shared_experts=2,
            n_group=3, topk_group=2, routed_scaling_factor=1.3, norm_topk_prob=False, rms_norm_eps=1e-2,
            layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"],
            mlp_layer_types=["sparse", "dense", "sparse", "sparse"], linear_head_dim=24, linear_num_heads=5,
            linear_conv_kernel_dim=3, kda_safe_gate=False, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, mscale=1.0, mscale_all_dim=0.7,
                                 original_max_position_embeddings=256), **KIMI_COMMON)),
    # Mamba-2 in three layers of four, as published: one group, no RoPE, the shared MLP alone, multipliers, tied
    "granite4": dict(
        cls=GraniteMoeHybridForCausalLM, dtype=torch.bfloat16, prompts=(5, 200),
        fields=dict(layer_types=["mamba", "mamba", "attention", "mamba"], position_embedding_type="nope",
                    time_step_limit=None, init_method="mup", normalization_function="rmsnorm", mamba_chunk_size=256),
        config=lambda: GraniteMoeHybridConfig(
            vocab_size=260, hidden_size=32, intermediate_size=48, shared_intermediate_size=48, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, num_local_experts=0, num_experts_per_tok=0,
            layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
            mamba_n_heads=4, mamba_n_groups=1, mamba_d_state=16, mamba_d_head=16, mamba_d_conv=4, mamba_expand=2,
            embedding_multiplier=2.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=1.5,
            tie_word_embeddings=True, **LONG_CONTEXT)),
    # experts beside the shared MLP, RoPE, three groups, odd heads, no bias of the convolution, attention first
    "granite4-moe": dict(
        cls=GraniteMoeHybridForCausalLM, dtype=torch.float16, prompts=OVER_BORDERS,
        config=lambda: GraniteMoeHybridConfig(
            vocab_size=260, hidden_size=24, intermediate_size=16, shared_intermediate_size=32, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6, num_local_experts=5, num_experts_per_tok=2,
            position_embedding_type="rope", rope_parameters=dict(rope_type="default", rope_theta=50000.0),
            layer_types=["full_attention", "linear_attention", "linear_attention"], mamba_n_heads=6, mamba_n_groups=3,
            mamba_d_state=20, mamba_d_head=12, mamba_d_conv=3, mamba_expand=3, mamba_conv_bias=False,
            residual_multiplier=0.7, attention_multiplier=0.3, tie_word_embeddings=False, **LONG_CONTEXT)),
    # a layer is a scan, attention or an FFN; as published: a pattern, two groups, relu2, a bound (Infinity) that JSON lacks
    "nemotron-h": dict(
        cls=NemotronHForCausalLM, dtype=torch.bfloat16, prompts=(5, 200),
        fields=dict(layers_block_type=None, hybrid_override_pattern="M-M*-M", num_hidden_layers=6,
                    time_step_limit=[0.0, float("inf")], chunk_size=128, **NO_EXPERTS),
        config=lambda: NemotronHConfig(
            vocab_size=260, hidden_size=32, intermediate_size=80, hybrid_override_pattern="M-M*-M",
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, mamba_num_heads=4, mamba_head_dim=16,
            n_groups=2, ssm_state_size=16, conv_kernel=4, layer_norm_epsilon=1e-5, tie_word_embeddings=False,
            **LONG_CONTEXT)),
    # experts without a gate, chosen by sigmoids, beside a shared one; a layer list; weights scaled, not renormalised
    "nemotron-h-moe": dict(
        cls=NemotronHForCausalLM, dtype=torch.bfloat16, prompts=OVER_BORDERS,
        config=lambda: NemotronHConfig(
            vocab_size=260, hidden_size=32,
            layers_block_type=["linear_attention", "moe", "linear_attention", "full_attention", "moe"],
            num_attention_heads=2, num_key_value_heads=1, head_dim=16, mamba_num_heads=4, mamba_head_dim=8,
            n_groups=2, ssm_state_size=16, conv_kernel=4, layer_norm_epsilon=1e-5, n_routed_experts=6,
            num_experts_per_tok=2, moe_intermediate_size=16, moe_shared_expert_intermediate_size=32,
            routed_scaling_factor=2.5, norm_topk_prob=False, tie_word_embeddings=False, **LONG_CONTEXT)),
    # an FFN first, padded heads, one scan head in each group, three taps without a bias
    "nemotron-h-odd": dict(
        cls=NemotronHForCausalLM, dtype=torch.float16, prompts=OVER_BORDERS, fields=NO_EXPERTS,
        config=lambda: NemotronHConfig(
            vocab_size=260, hidden_size=40, intermediate_size=56,
            layers_block_type=["mlp", "full_attention", "linear_attention", "linear_attention"],
            num_attention_heads=3, num_key_value_heads=1, head_dim=24, mamba_num_heads=3, mamba_head_dim=24,
            n_groups=3, ssm_state_size=20, conv_kernel=3, use_conv_bias=False, layer_norm_epsilon=1e-6,
            tie_word_embeddings=False, **LONG_CONTEXT)),
}
