"""The models of the goldens with sparse attention: an index chooses the positions to which a row attends."""
import torch
from transformers import (DeepseekV32Config, DeepseekV32ForCausalLM, DeepseekV4Config, DeepseekV4ForCausalLM,
                          GlmMoeDsaConfig, GlmMoeDsaForCausalLM, MiniMaxM3VLConfig, MiniMaxM3VLTextConfig)
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import (MiniMaxM3SparseForConditionalGeneration,
                                                                      MiniMaxM3VLForCausalLM)

from golden_common import COMMON, LONG_CONTEXT, LONGEST


def publish_minimax_m3(config):
    """config.json as MiniMax-M3 is published: an object with the index's sizes, lists of numbers, old RoPE fields."""
    text, outer = config["text_config"], ("merged_hidden_size",)
    sizes = {"index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
             "index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks",
             "index_local_blocks": "sparse_local_block"}
    sparse = [int(t != "full_attention") for t in text.pop("layer_types")]
    rope = text.pop("rope_parameters")
    text.update(
        sparse_attention_config=dict(
            {new: text.pop(old) for old, new in sizes.items()}, use_sparse_attention=True, sparse_score_type="max",
            sparse_init_block=0, sparse_attention_freq=sparse, sparse_disable_index_value=sparse),
        moe_layer_freq=[int(t == "sparse") for t in text.pop("mlp_layer_types")], hidden_act="swigluoai",
        rope_theta=rope["rope_theta"], partial_rotary_factor=rope["partial_rotary_factor"], n_shared_experts=1,
        use_gemma_norm=True, use_qk_norm=True, qk_norm_type="per_head", scoring_func="sigmoid", use_routing_bias=True,
        num_mtp_modules=0)
    for key in outer:
        config.pop(key)


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
    # an index that chooses blocks for each of two KV heads in all layers but the first, one block forced; clamped SwiGLU
    # everywhere, half of a head rotated, a shared expert; config and names as published, beside a vision model
    "minimax-m3": dict(
        cls=MiniMaxM3SparseForConditionalGeneration, dtype=torch.bfloat16, prompts=LONGEST, generated=True,
        tokenizer="qwen3-next", every=11, less_one=True, floats=("e_score_correction_bias",), edit=publish_minimax_m3,
        config=lambda: MiniMaxM3VLConfig(
            text_config=dict(
                vocab_size=272, hidden_size=64, intermediate_size=32, dense_intermediate_size=96,
                shared_intermediate_size=48, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
                head_dim=32, rotary_dim=16, num_local_experts=6, num_experts_per_tok=2, swiglu_limit=1.5,
                layer_types=["full_attention"] + 3 * ["minimax_m3_sparse"], mlp_layer_types=["dense"] + 3 * ["sparse"],
                index_n_heads=2, index_head_dim=32, index_block_size=64, index_topk_blocks=2, rms_norm_eps=1e-6,
                rope_parameters=dict(rope_type="default", rope_theta=5e6, partial_rotary_factor=0.5), **LONG_CONTEXT),
            vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                               image_size=28, patch_size=14), projector_hidden_size=16, tie_word_embeddings=False)),
    # as transformers writes the text model alone: blocks of two tiles, padded heads, three KV heads, no block forced, an
    # index in the first layer and not in the last, an index head wider than those of attention, another alpha, tied
    "minimax-m3-odd": dict(
        cls=MiniMaxM3VLForCausalLM, dtype=torch.float32, prompts=(70, 500), generated=True, tokenizer="qwen3-next",
        every=11, less_one=True,
        config=lambda: MiniMaxM3VLTextConfig(
            vocab_size=272, hidden_size=48, intermediate_size=24, dense_intermediate_size=40,
            shared_intermediate_size=32, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
            head_dim=24, rotary_dim=12, num_local_experts=5, num_experts_per_tok=3, routed_scaling_factor=1.3,
            swiglu_alpha=1.1, swiglu_limit=0.8, layer_types=2 * ["minimax_m3_sparse"] + ["full_attention"],
            mlp_layer_types=["sparse", "dense", "sparse"], index_n_heads=3, index_head_dim=48, index_block_size=128,
            index_topk_blocks=1, index_local_blocks=0, rms_norm_eps=1e-3, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5), **LONG_CONTEXT)),
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
