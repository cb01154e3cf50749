"""The models of the goldens with sparse attention: an index chooses the positions to which a row attends."""
import torch
from transformers import DeepseekV32Config, DeepseekV32ForCausalLM, GlmMoeDsaConfig, GlmMoeDsaForCausalLM

from golden_common import COMMON

MODELS = {
    # as published: neither list of layers, YaRN, groups of experts; fewer positions than a tile
    "deepseek-v32": dict(
        cls=DeepseekV32ForCausalLM, dtype=torch.bfloat16, prompts=(5, 135),
        fields=dict(mlp_layer_types=None, layer_types=None, topk_method="noaux_tc", scoring_func="sigmoid"),
        config=lambda: DeepseekV32Config(
            vocab_size=260, hidden_size=32, intermediate_size=32, moe_intermediate_size=16,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=16,
            kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16,
            n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, n_group=2, topk_group=1,
            routed_scaling_factor=1.5, norm_topk_prob=True, first_k_dense_replace=1, rms_norm_eps=1e-6,
            tie_word_embeddings=False, index_topk=40, index_n_heads=8, index_head_dim=32,
            rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, beta_fast=32, beta_slow=1,
                                 mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=128), **COMMON)),
    # more positions than a tile, an index head that is rotated as a whole, tied, lists of layers
    "deepseek-v32-tied": dict(
        cls=DeepseekV32ForCausalLM, dtype=torch.float16, prompts=(5, 225),
        config=lambda: DeepseekV32Config(
            vocab_size=260, hidden_size=32, intermediate_size=32, moe_intermediate_size=16,
            num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=24,
            kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=16, v_head_dim=16,
            n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1,
            routed_scaling_factor=2.5, norm_topk_prob=False, first_k_dense_replace=0, rms_norm_eps=1e-5,
            tie_word_embeddings=True, index_topk=100, index_n_heads=11, index_head_dim=16,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # neighbouring elements rotated in the index too
    "glm5-published": dict(
        cls=GlmMoeDsaForCausalLM, dtype=torch.bfloat16, prompts=(5, 140),
        fields=dict(mlp_layer_types=None, layer_types=None, indexer_types=None, indexer_rope_interleave=True,
                    topk_method="noaux_tc", scoring_func="sigmoid"),
        config=lambda: GlmMoeDsaConfig(
            vocab_size=260, hidden_size=32, intermediate_size=32, moe_intermediate_size=16,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=16,
            kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24,
            n_routed_experts=5, num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1,
            routed_scaling_factor=2.5, norm_topk_prob=True, first_k_dense_replace=1, rms_norm_eps=1e-5,
            tie_word_embeddings=False, index_topk=64, index_n_heads=8, index_head_dim=32,
            rope_parameters=dict(rope_type="default", rope_theta=1e6), **COMMON)),
    # lists of layers, of which two reuse the positions of the layer before
    "glm5": dict(
        cls=GlmMoeDsaForCausalLM, dtype=torch.float16, prompts=(5, 165),
        config=lambda: GlmMoeDsaConfig(
            vocab_size=260, hidden_size=32, intermediate_size=32, moe_intermediate_size=16,
            num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=16,
            kv_lora_rank=16, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=16,
            n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1,
            routed_scaling_factor=1.0, norm_topk_prob=True, first_k_dense_replace=1, rms_norm_eps=1e-6,
            tie_word_embeddings=True, indexer_types=["full", "shared", "full", "shared"],
            index_topk=50, index_n_heads=9, index_head_dim=32,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # a prediction layer with an index of its own, after two others
    "deepseek-v32-mtp": dict(
        cls=DeepseekV32ForCausalLM, dtype=torch.bfloat16, prompts=(5, 66), predicts=True,
        fields=dict(mlp_layer_types=None, layer_types=None),
        config=lambda: DeepseekV32Config(
            vocab_size=260, hidden_size=32, intermediate_size=32, moe_intermediate_size=16,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=16,
            kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16,
            n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1,
            routed_scaling_factor=1.5, norm_topk_prob=True, first_k_dense_replace=1, rms_norm_eps=1e-6,
            tie_word_embeddings=False, index_topk=20, index_n_heads=8, index_head_dim=16,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
}
