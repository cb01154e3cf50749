"""The models of the goldens with latent attention."""
import torch
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM,
                          Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM, LongcatFlashConfig, LongcatFlashForCausalLM,
                          Mistral4Config, Mistral4ForCausalLM, YoutuConfig, YoutuForCausalLM)

from golden_common import COMMON, LONG_CONTEXT, SHORTER, SHORTEST

MODELS = {
    # latent attention in a dense model, as published: q through a latent, tied
    "youtu": dict(
        cls=YoutuForCausalLM, dtype=torch.bfloat16, prompts=(70, 668), generated=True, tokenizer="qwen3-next", every=11,
        config=lambda: YoutuConfig(
            vocab_size=272, hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=4, q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16,
            v_head_dim=32, rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=1.6e6),
            tie_word_embeddings=True, **LONG_CONTEXT)),
    # q in one step, heads of q and v of unlike widths, YaRN, rotation by halves, untied
    "youtu-yarn": dict(
        cls=YoutuForCausalLM, dtype=torch.float32, prompts=(70, 668), generated=True, tokenizer="qwen3-next", every=11,
        config=lambda: YoutuConfig(
            vocab_size=272, hidden_size=40, intermediate_size=72, num_hidden_layers=4, num_attention_heads=3,
            num_key_value_heads=3, q_lora_rank=None, kv_lora_rank=48, qk_nope_head_dim=24, qk_rope_head_dim=16,
            v_head_dim=24, rms_norm_eps=1e-5, rope_interleave=False, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=8.0, beta_fast=32, beta_slow=1, mscale=1.0,
                                 mscale_all_dim=0.8, original_max_position_embeddings=128), **LONG_CONTEXT)),
    # latent attention with q in one step, softmax without groups, YaRN with mscale
    "deepseek-v2-lite": dict(
        cls=DeepseekV2ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: DeepseekV2Config(
            vocab_size=293, hidden_size=64, intermediate_size=96, moe_intermediate_size=32,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None,
            kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16,
            n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=2, topk_method="greedy",
            n_group=1, topk_group=1, routed_scaling_factor=1.0, norm_topk_prob=False,
            first_k_dense_replace=1, rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=8.0, beta_fast=32,
                                 beta_slow=1, mscale=0.707, mscale_all_dim=0.707,
                                 original_max_position_embeddings=64), **COMMON)),
    # q through a latent, the best groups by their best expert, scaled; heads of q and v of unlike widths
    "deepseek-v2": dict(
        cls=DeepseekV2ForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: DeepseekV2Config(
            vocab_size=280, hidden_size=96, intermediate_size=64, moe_intermediate_size=32,
            num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=6, q_lora_rank=48,
            kv_lora_rank=48, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=32,
            n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=1,
            topk_method="group_limited_greedy", n_group=4, topk_group=2,
            routed_scaling_factor=4.0, norm_topk_prob=False, first_k_dense_replace=0,
            rms_norm_eps=1e-6, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # sigmoids with a selection bias, groups by their best two, YaRN, a dense first layer
    "deepseek-v3": dict(
        cls=DeepseekV3ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: DeepseekV3Config(
            vocab_size=293, hidden_size=64, intermediate_size=96, moe_intermediate_size=32,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=32,
            kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
            n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=1, n_group=4,
            topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True,
            first_k_dense_replace=1, rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, beta_fast=32,
                                 beta_slow=1, mscale=1.0, mscale_all_dim=1.0,
                                 original_max_position_embeddings=128), **COMMON)),
    # a prediction layer after two others
    "deepseek-v3-mtp": dict(
        cls=DeepseekV3ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST, predicts=True,
        config=lambda: DeepseekV3Config(
            vocab_size=260, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=16,
            kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16,
            n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, n_group=2,
            topk_group=1, routed_scaling_factor=1.5, norm_topk_prob=True,
            first_k_dense_replace=1, rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # no shared expert
    "deepseek-v3-unshared": dict(
        cls=DeepseekV3ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER, drop=".shared_experts.",
        config=lambda: DeepseekV3Config(
            vocab_size=264, hidden_size=64, intermediate_size=64, moe_intermediate_size=32,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None,
            kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16,
            n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=0, n_group=2,
            topk_group=1, routed_scaling_factor=1.5, norm_topk_prob=True,
            first_k_dense_replace=1, rms_norm_eps=1e-6, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # linears in fp8 blocks as they are published, blocks with tails, two groups of experts
    "deepseek-v3-fp8": dict(
        cls=DeepseekV3ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER, fp8=True,
        config=lambda: DeepseekV3Config(
            vocab_size=293, hidden_size=160, intermediate_size=192, moe_intermediate_size=64,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=144,
            kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
            n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, n_group=2,
            topk_group=1, routed_scaling_factor=2.5, norm_topk_prob=True,
            first_k_dense_replace=1, rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, beta_fast=32,
                                 beta_slow=1, mscale=1.0, mscale_all_dim=1.0,
                                 original_max_position_embeddings=128), **COMMON)),
    # as Kimi-K2, with its names and its tokenizer: one group, no YaRN; q in one step, tied, rotation
    # by halves
    "kimi-k2": dict(
        cls=DeepseekV3ForCausalLM, dtype=torch.float16, prompts=SHORTER, published="kimi_k2",
        config=lambda: DeepseekV3Config(
            vocab_size=544, hidden_size=64, intermediate_size=64, moe_intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=None,
            kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=32, v_head_dim=16,
            n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=2, n_group=1,
            topk_group=1, routed_scaling_factor=2.827, norm_topk_prob=True, rope_interleave=False,
            first_k_dense_replace=1, rms_norm_eps=1e-6, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=5e4), **COMMON)),
    # latent attention whose norms have another epsilon than the model's, a dense first layer by
    # default
    "glm4-moe-lite": dict(
        cls=Glm4MoeLiteForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        fields=dict(mlp_layer_types=None, first_k_dense_replace=1, topk_method="noaux_tc"),
        config=lambda: Glm4MoeLiteConfig(
            vocab_size=293, hidden_size=64, intermediate_size=96, moe_intermediate_size=32,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1,
            n_routed_experts=8, num_experts_per_tok=3, routed_scaling_factor=1.8, kv_lora_rank=32,
            q_lora_rank=48, qk_rope_head_dim=16, v_head_dim=32, qk_nope_head_dim=24, n_group=1,
            topk_group=1, norm_topk_prob=True, rms_norm_eps=1e-2, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e6), **COMMON)),
    # dense layers by their list, two groups of experts, weights not renormalised, rotation by halves, tied
    "glm4-moe-lite-list": dict(
        cls=Glm4MoeLiteForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: Glm4MoeLiteConfig(
            vocab_size=280, hidden_size=64, intermediate_size=64, moe_intermediate_size=48,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, n_shared_experts=2,
            n_routed_experts=6, num_experts_per_tok=2, routed_scaling_factor=1.0, kv_lora_rank=48,
            q_lora_rank=None, qk_rope_head_dim=16, v_head_dim=16, qk_nope_head_dim=16, n_group=2,
            topk_group=1, norm_topk_prob=False, rms_norm_eps=1e-5, rope_interleave=False,
            mlp_layer_types=["sparse", "dense", "sparse"], tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # latent attention whose q grows every 20 positions, softmax renormalised, all layers sparse
    "mistral4": dict(
        cls=Mistral4ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: Mistral4Config(
            vocab_size=260, hidden_size=32, intermediate_size=32, moe_intermediate_size=16,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=32,
            qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, n_routed_experts=6, num_experts_per_tok=2,
            n_shared_experts=1, n_group=1, topk_group=1, routed_scaling_factor=1.0, norm_topk_prob=True,
            first_k_dense_replace=0, rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=25.6, beta_fast=32.0, beta_slow=1.0,
                                 mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=20,
                                 llama_4_scaling_beta=0.3), **COMMON)),
    # q in one step, a dense first layer, weights scaled, not renormalised, rotation by halves, tied
    "mistral4-dense": dict(
        cls=Mistral4ForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: Mistral4Config(
            vocab_size=260, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
            num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=None, kv_lora_rank=16,
            qk_nope_head_dim=8, qk_rope_head_dim=16, v_head_dim=24, n_routed_experts=4, num_experts_per_tok=2,
            n_shared_experts=2, n_group=1, topk_group=1, routed_scaling_factor=1.5, norm_topk_prob=False,
            first_k_dense_replace=1, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_interleave=False,
            rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=16.0, beta_fast=32.0, beta_slow=1.0,
                                 original_max_position_embeddings=32, llama_4_scaling_beta=0.1), **COMMON)),
    # experts beside two attentions and two FFNs, a third of them without weights; fields as published
    "longcat-flash": dict(
        cls=LongcatFlashForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST, drop_experts_from=6,
        fields=dict(attention_method="MLA", mla_scale_q_lora=True, mla_scale_kv_lora=True, zero_expert_type="identity",
                    qk_head_dim=None, num_key_value_heads=None, rope_parameters=None, rope_theta=1e7),
        config=lambda: LongcatFlashConfig(
            vocab_size=260, hidden_size=32, ffn_hidden_size=32, expert_ffn_hidden_size=16, num_layers=2,
            num_attention_heads=2, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=16,
            head_dim=16, v_head_dim=16, n_routed_experts=6, zero_expert_num=3, moe_topk=3,
            routed_scaling_factor=6.0, rms_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e7), **COMMON)),
    # one layer, more experts without weights than with them, factors that are no powers of two, YaRN, tied
    "longcat-flash-zero": dict(
        cls=LongcatFlashForCausalLM, dtype=torch.float32, prompts=(66,), drop_experts_from=4,
        config=lambda: LongcatFlashConfig(
            vocab_size=257, hidden_size=32, ffn_hidden_size=48, expert_ffn_hidden_size=16, num_layers=1,
            num_attention_heads=2, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=16,
            head_dim=16, v_head_dim=24, n_routed_experts=4, zero_expert_num=5, moe_topk=3,
            routed_scaling_factor=2.5, rms_norm_eps=1e-3, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, beta_fast=32, beta_slow=1,
                                 mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=128), **COMMON)),
}
