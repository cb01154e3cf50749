"""The models of the goldens with sparse attention: an index chooses the positions to which a row attends."""
import torch
from transformers import (DeepseekV32Config, DeepseekV32ForCausalLM, DeepseekV4Config, DeepseekV4ForCausalLM,
                          GlmMoeDsaConfig, GlmMoeDsaForCausalLM)

from golden_common import COMMON, LONG_CONTEXT, LONGEST

MODELS = {
    # as published: neither list of layers, YaRN, groups of experts; the index chooses fewer positions than a tile
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
    # the index chooses more positions than a tile, an index head that is rotated as a whole, tied, lists of layers
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
    # as published: numbers for the kinds of layers, YaRN, a table of experts in the first three layers, four streams
    "deepseek-v4": dict(
        cls=DeepseekV4ForCausalLM, dtype=torch.bfloat16, prompts=LONGEST, generated=True, tokenizer="qwen3-next",
        every=11, fields=dict(
            layer_types=None, mlp_layer_types=None, compress_rates=None, rope_parameters=None,
            partial_rotary_factor=None, compress_ratios=[0, 128, 4, 128, 0], num_hash_layers=3,
            topk_method="noaux_tc", rope_scaling=dict(type="yarn", factor=4, original_max_position_embeddings=256,
                                                      beta_fast=32, beta_slow=1)),
        config=lambda: DeepseekV4Config(
            vocab_size=272, hidden_size=64, moe_intermediate_size=32, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=1, head_dim=32, q_lora_rank=32, n_routed_experts=6, num_experts_per_tok=2,
            n_shared_experts=1, compress_ratios=[0, 128, 4, 128], num_hash_layers=3, o_groups=2, o_lora_rank=32,
            index_n_heads=12, index_head_dim=32, index_topk=24, sliding_window=48, qk_rope_head_dim=16,
            swiglu_limit=1.0, rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="yarn", factor=4, original_max_position_embeddings=256, beta_fast=32,
                                 beta_slow=1), **LONG_CONTEXT)),
    # as transformers writes it: lists of layers, other rates, three streams, a window over a tile, groups of two heads
    "deepseek-v4-odd": dict(
        cls=DeepseekV4ForCausalLM, dtype=torch.float32, prompts=(5, 300), generated=True, tokenizer="qwen3-next",
        every=11,
        config=lambda: DeepseekV4Config(
            vocab_size=272, hidden_size=40, moe_intermediate_size=24, num_hidden_layers=4, num_attention_heads=6,
            num_key_value_heads=1, head_dim=48, q_lora_rank=24, n_routed_experts=5, num_experts_per_tok=3,
            n_shared_experts=1, o_groups=3, o_lora_rank=16, index_n_heads=9, index_head_dim=48, index_topk=10,
            layer_types=["compressed_sparse_attention", "sliding_attention", "heavily_compressed_attention",
                         "compressed_sparse_attention"],
            mlp_layer_types=["moe", "hash_moe", "moe", "hash_moe"],
            compress_rates=dict(compressed_sparse_attention=8, heavily_compressed_attention=32),
            sliding_window=70, partial_rotary_factor=0.5, swiglu_limit=0.7, rms_norm_eps=1e-2, hc_mult=3,
            hc_sinkhorn_iters=3, hc_eps=1e-3, routed_scaling_factor=1.0, rope_theta=5000.0,
            compress_rope_theta=20000.0, tie_word_embeddings=False, **LONG_CONTEXT)),
}
