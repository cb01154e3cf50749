#!/usr/bin/env python3
"""Makes tests/golden/models: tiny random checkpoints and what transformers says about them.

Runs transformers alone (torch, f32 on the CPU), never shoal. Each model gets
  hf/              the checkpoint directory as transformers saves it, with a small tokenizer.json
  prompts.jsonl    token-id prompts, greedy, 32 tokens each: input of `shoal generate`
  sequences.jsonl  the same prompts with the 32 greedy tokens behind them: input of `shoal score`
  logits.N.f32     [T, V] little-endian f32, row t = logits after token t of sequence N
  golden.json      greedy ids, gaps between the best two logits, largest logit, versions
Weights are rounded to the stored type first; the goldens are computed in f32 from the rounded ones.
usage: make_goldens.py [NAME...]
"""
import json
import platform
import shutil
import sys
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config,
                          DeepseekV3ForCausalLM, GenerationConfig, Glm4MoeConfig,
                          Glm4MoeForCausalLM, GptOssConfig, GptOssForCausalLM, GraniteMoeConfig,
                          GraniteMoeForCausalLM,
                          LlamaConfig, LlamaForCausalLM, MiniMaxM2Config, MiniMaxM2ForCausalLM,
                          MistralConfig, MistralForCausalLM,
                          MixtralConfig, MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)

HERE = Path(__file__).resolve().parent
PROMPT_LENGTHS = (5, 37, 130)  # the last one crosses two tiles of 64 positions
SHORTER = (7, 130)  # for models that need fewer
N_DECODE = 32
GAP_LEAST = 2e-3  # relative to the largest logit; a greedy choice must not depend on rounding
ROUTER_GAP_LEAST = 1e-4  # between the last chosen and the first rejected router logit
TEXT = ("the quick brown fox jumps over the lazy dog and a shoal of small fish swims in the sea, "
        "each one near the others, none of them leading; when one turns, they all turn. ") * 4

COMMON = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None, use_cache=True,
              max_position_embeddings=512)


def minimax_fields(n_layers, rotary_dim):
    """Fields of MiniMax-M2's published config.json that transformers does not write."""
    return dict(attn_type_list=[1] * n_layers, rotary_dim=rotary_dim, qk_norm_type="per_layer",
                use_qk_norm=True, use_routing_bias=True, scoring_func="sigmoid", shared_intermediate_size=0,
                num_mtp_modules=3, mtp_transformer_layers=1, use_mtp=True)


MODELS = {
    # dense, grouped queries, own head, shards with an index
    "llama-gqa": dict(
        cls=LlamaForCausalLM, dtype=torch.bfloat16, shard="150KB",
        config=lambda: LlamaConfig(
            vocab_size=320, hidden_size=64, intermediate_size=160, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5,
            rope_theta=10000.0, tie_word_embeddings=False, **COMMON)),
    # tied embeddings, three KV heads, five layers, a vocabulary that nothing divides
    "smollm-tied": dict(
        cls=LlamaForCausalLM, dtype=torch.float16,
        config=lambda: LlamaConfig(
            vocab_size=307, hidden_size=96, intermediate_size=256, num_hidden_layers=5,
            num_attention_heads=6, num_key_value_heads=3, head_dim=16, rms_norm_eps=1e-5,
            rope_theta=100000.0, tie_word_embeddings=True, **COMMON)),
    # rotary frequencies by Llama 3's rule: plain, between and scaled ones
    "llama3-scaled": dict(
        cls=LlamaForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: LlamaConfig(
            vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0,
                                 low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=64),
            tie_word_embeddings=False, **COMMON)),
    # YaRN with its attention factor, tied
    "llama-yarn": dict(
        cls=LlamaForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: LlamaConfig(
            vocab_size=267, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=4, head_dim=16, rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=8.0,
                                 original_max_position_embeddings=64),
            tie_word_embeddings=True, **COMMON)),
    # YaRN with mscale_all_dim, which scales the scores of latent attention alone
    "llama-yarn-mscale": dict(
        cls=LlamaForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: LlamaConfig(
            vocab_size=264, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, mscale=0.707,
                                 mscale_all_dim=1.0, original_max_position_embeddings=64),
            tie_word_embeddings=True, **COMMON)),
    # rotary frequencies of a linear rule, biases of q, k, v and o
    "llama-linear": dict(
        cls=LlamaForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: LlamaConfig(
            vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0),
            attention_bias=True, tie_word_embeddings=False, **COMMON)),
    # biases everywhere, those of the FFN too, tied
    "llama-bias": dict(
        cls=LlamaForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: LlamaConfig(
            vocab_size=267, hidden_size=96, intermediate_size=160, num_hidden_layers=3,
            num_attention_heads=6, num_key_value_heads=3, head_dim=16, rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="linear", rope_theta=50000.0, factor=2.5),
            attention_bias=True, mlp_bias=True, tie_word_embeddings=True, **COMMON)),
    # heads of 100 elements, as OpenLLaMA-3B has them: no whole number of 16 lanes
    "llama-head100": dict(
        cls=LlamaForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: LlamaConfig(
            vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=16, num_key_value_heads=4, head_dim=100, rms_norm_eps=1e-6,
            rope_theta=10000.0, tie_word_embeddings=False, **COMMON)),
    # biases of q, k and v, tied, heads not a divisor of the width
    "qwen2": dict(
        cls=Qwen2ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: Qwen2Config(
            vocab_size=272, hidden_size=96, intermediate_size=160, num_hidden_layers=3,
            num_attention_heads=6, num_key_value_heads=2, rms_norm_eps=1e-6,
            tie_word_embeddings=True, **COMMON)),
    # a window of less than a tile in the upper two layers alone, untied
    "qwen2-window": dict(
        cls=Qwen2ForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: Qwen2Config(
            vocab_size=267, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=4, rms_norm_eps=1e-6,
            use_sliding_window=True, sliding_window=40, max_window_layers=1,
            tie_word_embeddings=False, **COMMON)),
    # a window that ends inside a tile, two tiles long; then a short one, tied
    "mistral": dict(
        cls=MistralForCausalLM, dtype=torch.bfloat16, prompts=(7, 190),
        config=lambda: MistralConfig(
            vocab_size=272, hidden_size=64, intermediate_size=160, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5,
            sliding_window=100, tie_word_embeddings=False, **COMMON)),
    "mistral-short": dict(
        cls=MistralForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: MistralConfig(
            vocab_size=267, hidden_size=96, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=3, head_dim=16, rms_norm_eps=1e-5,
            sliding_window=17, tie_word_embeddings=True, **COMMON)),
    # q and k norms, head_dim apart from hidden / heads
    "qwen3": dict(
        cls=Qwen3ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: Qwen3Config(
            vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6,
            tie_word_embeddings=False, **COMMON)),
    # the same with biases of q, k, v and o, tied
    "qwen3-bias": dict(
        cls=Qwen3ForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: Qwen3Config(
            vocab_size=267, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=3, head_dim=16, rms_norm_eps=1e-6,
            attention_bias=True, tie_word_embeddings=True, **COMMON)),
    # norms of each head of q and k, whose 40 elements are no whole number of 16 lanes
    "qwen3-head40": dict(
        cls=Qwen3ForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: Qwen3Config(
            vocab_size=267, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=2, head_dim=40, rms_norm_eps=1e-6,
            tie_word_embeddings=True, **COMMON)),
    # sinks, windows in every other layer, YaRN, biases everywhere, a clamp that bites; bf16 experts
    # stored input by input, an expert width with a tail leaf
    "gpt-oss": dict(
        cls=GptOssForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: GptOssConfig(
            vocab_size=272, hidden_size=64, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=6,
            num_experts_per_tok=3, sliding_window=24, swiglu_limit=1.5, rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=8.0, beta_fast=32.0,
                                 beta_slow=1.0, truncate=False,
                                 original_max_position_embeddings=64),
            tie_word_embeddings=False, **COMMON)),
    # experts in MXFP4 as they are published, a window that ends inside the second tile
    "gpt-oss-mxfp4": dict(
        cls=GptOssForCausalLM, dtype=torch.bfloat16, prompts=SHORTER, mxfp4=True,
        config=lambda: GptOssConfig(
            vocab_size=267, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=1, head_dim=32, num_local_experts=4,
            num_experts_per_tok=2, sliding_window=70, rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0,
                                 beta_slow=1.0, truncate=False,
                                 original_max_position_embeddings=128),
            tie_word_embeddings=False, **COMMON)),
    "mixtral": dict(
        cls=MixtralForCausalLM, dtype=torch.bfloat16,
        config=lambda: MixtralConfig(
            vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=8,
            num_experts_per_tok=2, rms_norm_eps=1e-5, rope_theta=1e6, sliding_window=None,
            tie_word_embeddings=False, **COMMON)),
    # head_dim apart from hidden / heads, top 3 renormalised, f32, an expert width with a tail leaf
    "qwen3-moe": dict(
        cls=Qwen3MoeForCausalLM, dtype=torch.float32,
        config=lambda: Qwen3MoeConfig(
            vocab_size=320, hidden_size=64, intermediate_size=128, moe_intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
            num_experts=8, num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1,
            mlp_only_layers=[], rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False,
            **COMMON)),
    # weights not renormalised; dense layers 0 and 2 (sparse step 2) and 3 (mlp_only_layers)
    "qwen3-moe-mixed": dict(
        cls=Qwen3MoeForCausalLM, dtype=torch.float16,
        config=lambda: Qwen3MoeConfig(
            vocab_size=293, hidden_size=64, intermediate_size=96, moe_intermediate_size=64,
            num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=1, head_dim=32,
            num_experts=6, num_experts_per_tok=2, norm_topk_prob=False, decoder_sparse_step=2,
            mlp_only_layers=[3], rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=True,
            **COMMON)),
    # a window in all layers, whatever max_window_layers says
    "qwen3-moe-window": dict(
        cls=Qwen3MoeForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: Qwen3MoeConfig(
            vocab_size=280, hidden_size=64, intermediate_size=96, moe_intermediate_size=32,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1,
            mlp_only_layers=[1], use_sliding_window=True, sliding_window=50, max_window_layers=1,
            rms_norm_eps=1e-6, rope_theta=1e4, tie_word_embeddings=False, **COMMON)),
    # a shared expert behind its sigmoid, QKV bias, a dense first layer, weights not renormalised
    "qwen2-moe": dict(
        cls=Qwen2MoeForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: Qwen2MoeConfig(
            vocab_size=293, hidden_size=64, intermediate_size=96, moe_intermediate_size=48,
            shared_expert_intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False,
            decoder_sparse_step=1, mlp_only_layers=[0], rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e6), **COMMON)),
    # every second layer sparse, renormalised, tied, a shared expert wider than a leaf
    "qwen2-moe-mixed": dict(
        cls=Qwen2MoeForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: Qwen2MoeConfig(
            vocab_size=280, hidden_size=64, intermediate_size=64, moe_intermediate_size=32,
            shared_expert_intermediate_size=160, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=4, num_experts=5, num_experts_per_tok=3, norm_topk_prob=True,
            decoder_sparse_step=2, mlp_only_layers=[], rms_norm_eps=1e-6, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # no bias anywhere: "qkv_bias" is false
    "qwen2-moe-unbiased": dict(
        cls=Qwen2MoeForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: Qwen2MoeConfig(
            vocab_size=264, hidden_size=64, intermediate_size=64, moe_intermediate_size=32,
            shared_expert_intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, norm_topk_prob=False,
            decoder_sparse_step=1, mlp_only_layers=[], qkv_bias=False, rms_norm_eps=1e-6,
            tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e4),
            **COMMON)),
    # norms over the whole of q and k
    "olmoe": dict(
        cls=OlmoeForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: OlmoeConfig(
            vocab_size=293, hidden_size=64, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=4, num_experts=8, num_experts_per_tok=3,
            norm_topk_prob=False, rms_norm_eps=1e-5, tie_word_embeddings=False, clip_qkv=None,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # fewer KV heads than queries, clipped, renormalised, tied
    "olmoe-clip": dict(
        cls=OlmoeForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: OlmoeConfig(
            vocab_size=280, hidden_size=96, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2,
            norm_topk_prob=True, rms_norm_eps=1e-5, tie_word_embeddings=True, clip_qkv=1.5,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # the same with heads of 24 elements, no whole number of 16 lanes
    "olmoe-head24": dict(
        cls=OlmoeForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: OlmoeConfig(
            vocab_size=264, hidden_size=96, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2,
            norm_topk_prob=True, rms_norm_eps=1e-5, tie_word_embeddings=True, clip_qkv=1.5,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # all four multipliers, tied
    "granite-moe": dict(
        cls=GraniteMoeForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: GraniteMoeConfig(
            vocab_size=293, hidden_size=64, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, num_local_experts=8,
            num_experts_per_tok=3, embedding_multiplier=0.3, residual_multiplier=0.22,
            attention_multiplier=0.3, logits_scaling=6.0, rms_norm_eps=1e-6,
            tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e4),
            **COMMON)),
    # some multipliers, own head, an odd number of experts
    "granite-moe-untied": dict(
        cls=GraniteMoeForCausalLM, dtype=torch.float32, prompts=SHORTER,
        config=lambda: GraniteMoeConfig(
            vocab_size=280, hidden_size=64, intermediate_size=40, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=1, num_local_experts=5,
            num_experts_per_tok=2, embedding_multiplier=1.0, residual_multiplier=0.5,
            attention_multiplier=0.25, logits_scaling=1.0, rms_norm_eps=1e-6,
            tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=1e4),
            **COMMON)),
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
    # q through a latent, the best groups by their best expert, scaled; heads of q and v unlike
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
    # experts alone: nothing that all tokens pass
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
    # half of each head rotated, QKV bias, q and k norms, sigmoids, a shared expert, dense first layer
    "glm4-moe": dict(
        cls=Glm4MoeForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: Glm4MoeConfig(
            vocab_size=293, hidden_size=64, intermediate_size=96, moe_intermediate_size=32,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
            n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, n_group=1, topk_group=1,
            routed_scaling_factor=2.5, norm_topk_prob=True, first_k_dense_replace=1,
            use_qk_norm=True, attention_bias=True, rms_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5),
            **COMMON)),
    # neither norms nor biases nor dense layers; weights as they are, tied
    "glm4-moe-plain": dict(
        cls=Glm4MoeForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: Glm4MoeConfig(
            vocab_size=280, hidden_size=64, intermediate_size=96, moe_intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
            n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=2, n_group=2, topk_group=1,
            routed_scaling_factor=1.0, norm_topk_prob=False, first_k_dense_replace=0,
            use_qk_norm=False, attention_bias=False, rms_norm_eps=1e-5, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5),
            **COMMON)),
    # half of a head rotated, norms of all of q and of k, sigmoid scores with a bias; the published fields
    "minimax-m2": dict(
        cls=MiniMaxM2ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER, fields=minimax_fields(3, 16),
        config=lambda: MiniMaxM2Config(
            vocab_size=301, hidden_size=64, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=6, num_key_value_heads=2, head_dim=32, num_local_experts=8,
            num_experts_per_tok=3, rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=5e6, partial_rotary_factor=0.5),
            **COMMON)),
    # linears as codes with scales of blocks of 128 x 128, most of them cut off at the end
    "minimax-m2-fp8": dict(
        cls=MiniMaxM2ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER, fp8=True,
        fields=dict(minimax_fields(2, 8), rope_parameters=None, rope_theta=1e4, quantization_config=dict(
            quant_method="fp8", fmt="float8_e4m3fn", activation_scheme="dynamic",
            weight_block_size=[128, 128],
            modules_to_not_convert=["gate", "e_score_correction_bias", "lm_head"])),
        config=lambda: MiniMaxM2Config(
            vocab_size=288, hidden_size=160, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=4, head_dim=32, num_local_experts=6,
            num_experts_per_tok=2, rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.25),
            **COMMON)),
}


def fill(model, generator):
    """Fills the model with random weights, with a spread that separates the logits and gives every
    expert work.
    """
    def normal(p, std):
        p.copy_(torch.randn(p.shape, generator=generator) * std)

    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1 + 0.3 * torch.randn(p.shape, generator=generator))
            elif "embed_tokens" in name:
                normal(p, 0.4 if model.config.tie_word_embeddings else 1.0)
            elif "lm_head" in name:
                normal(p, 0.4)
            elif name.endswith(("gate.weight", "router.weight")):
                normal(p, 1.5 / p.shape[-1] ** 0.5)
            elif name.endswith(("bias", "sinks")):
                normal(p, 0.5)
            elif "q_proj" in name or "k_proj" in name:
                normal(p, 1.4 / p.shape[-1] ** 0.5)
            else:
                normal(p, 1.0 / max(p.shape[-1], 1) ** 0.5)


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def mxfp4_of(weight):
    """Codes [E, out, groups, 16] and scales [E, out, groups] of experts [E, in, out], and their
    values in the model's shape. OCP Microscaling 1.0: 32 inputs share 2^(scale - 127)."""
    groups = weight.transpose(1, 2).reshape(weight.shape[0], weight.shape[2], -1, 32)
    exponent = (groups.abs().amax(-1, keepdim=True) / 6).log2().ceil()
    near = (groups / 2**exponent).abs()[..., None] - FP4
    codes = near.abs().argmin(-1) + 8 * (groups < 0)
    values = torch.where(groups < 0, -1, 1) * FP4[codes % 8] * 2**exponent
    blocks = (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)
    values = values.reshape(weight.shape[0], weight.shape[2], -1).transpose(1, 2).contiguous()
    return blocks, (exponent[..., 0] + 127).to(torch.uint8), values


def experts_of(model):
    return [(name, p) for name, p in model.named_parameters()
            if name.endswith((".gate_up_proj", "experts.down_proj"))]


def publish_mxfp4(hf, model):
    """Replaces the experts of the saved checkpoint by blocks and scales, as gpt-oss is published."""
    path = hf / "model.safetensors"
    tensors = load_file(path)
    for name, p in experts_of(model):
        del tensors[name]
        tensors[name + "_blocks"], tensors[name + "_scales"], values = mxfp4_of(p.float())
        assert torch.equal(values, p.float())
    save_file(tensors, path, metadata={"format": "pt"})
    edit_config(hf, quantization_config=dict(quant_method="mxfp4"))


def fp8_of(weight):
    """Codes and scales of blocks of 128 x 128 as DeepSeek-V3 has them, and the values. Scales have 12 bits, so
    that values give the same codes again."""
    rows, cols = weight.shape
    blocks = torch.nn.functional.pad(weight, (0, -cols % 128, 0, -rows % 128))
    blocks = blocks.view(blocks.shape[0] // 128, 128, -1, 128)
    mantissa, exponent = torch.frexp(blocks.abs().amax((1, 3)) / 448)
    scales = torch.ldexp((mantissa * 4096).ceil() / 4096, exponent)
    wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :cols]
    codes = (weight / wide).to(torch.float8_e4m3fn)
    return codes, scales, codes.to(torch.float32) * wide


def in_fp8(name):
    experts = (".w1.weight", ".w2.weight", ".w3.weight")
    return name.endswith(("_proj.weight", "_with_mqa.weight", *experts)) and "lm_head" not in name


def round_fp8(model):
    """Replaces the linears by the values of their fp8 codes. An expert's gate and up are rounded
    separately.
    """
    for name, p in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            for expert in p:
                for half in expert.chunk(2) if "gate_up" in name else [expert]:
                    half.copy_(fp8_of(half)[2])
        elif in_fp8(name):
            p.copy_(fp8_of(p)[2])


def publish_fp8(hf, dtype):
    """Replaces the linears of the saved f32 checkpoint by fp8 codes; the other tensors become
    `dtype`.
    """
    tensors = {}
    for name, p in load_file(hf / "model.safetensors").items():
        if in_fp8(name):
            tensors[name], tensors[name + "_scale_inv"], values = fp8_of(p)
            assert torch.equal(values, p)
        else:
            tensors[name] = p if name.endswith("correction_bias") else p.to(dtype)
            assert torch.equal(tensors[name].float(), p)
    save_file(tensors, hf / "model.safetensors", metadata={"format": "pt"})
    edit_config(hf, dtype="bfloat16", quantization_config=dict(
        quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128]))


def edit_config(hf, **fields):
    config = json.loads((hf / "config.json").read_text())
    config.update(fields)
    config = {key: value for key, value in config.items() if key not in fields or value is not None}
    (hf / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def drop_tensors(hf, part):
    """Removes the tensors of a part that the model does not have."""
    tensors = load_file(hf / "model.safetensors")
    gone = {name for name in tensors if part in name}
    assert gone and all(tensors[name].numel() == 0 for name in gone)
    save_file({name: p for name, p in tensors.items() if name not in gone},
              hf / "model.safetensors", metadata={"format": "pt"})


def routing_keys(config, module, x):
    """The keys by which experts are chosen, with -inf for experts of groups that were not chosen;
    and the smallest distance between two groups.
    """
    keys = x.reshape(-1, x.shape[-1]) @ module.weight.T
    if getattr(module, "bias", None) is not None:
        keys = keys + module.bias
    if hasattr(module, "e_score_correction_bias"):
        keys = keys.sigmoid() + module.e_score_correction_bias
    n_groups = getattr(config, "n_group", None) or 1
    if n_groups == 1 or getattr(config, "topk_method", None) == "greedy":
        return keys, 1.0
    groups = keys.view(keys.shape[0], n_groups, -1)
    best = groups.topk(2, dim=-1).values
    best = best.sum(-1) if hasattr(module, "e_score_correction_bias") else best[..., 0]
    order = best.sort(dim=-1, descending=True)
    n_open = config.topk_group
    closed = torch.ones_like(best).scatter_(1, order.indices[:, :n_open], 0).bool()
    gap = (order.values[:, n_open - 1] - order.values[:, n_open]).min().item()
    return groups.masked_fill(closed.unsqueeze(-1), float("-inf")).reshape(keys.shape), gap


def router_gaps(model, ids):
    """The smallest distance between a chosen and a rejected expert, and the tokens per expert."""
    found, hooks = [], []
    k = getattr(model.config, "num_experts_per_tok", 0)
    for name, module in model.named_modules():
        if name.endswith((".gate", ".router")):
            hooks.append(module.register_forward_hook(
                lambda m, a, out: found.append(routing_keys(model.config, m, a[0]))))
    model(ids)
    for hook in hooks:
        hook.remove()
    if not found:
        return None, None
    keys = torch.cat([rows for rows, _ in found])
    best = keys.sort(dim=-1, descending=True).values
    load = torch.bincount(keys.topk(k, dim=-1).indices.flatten(), minlength=keys.shape[-1])
    gap = (best[:, k - 1] - best[:, k]).min().item()
    return min([gap, *(g for _, g in found)]), load.tolist()


def decode(model, prompt):
    """Prefill, then N_DECODE greedy steps through transformers' cache: ids and logits [T, V]."""
    rows, ids, cache = [], list(prompt), None
    step = torch.tensor([ids])
    for _ in range(N_DECODE + 1):
        out = model(step, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0])
        if len(ids) == len(prompt) + N_DECODE:
            break
        ids.append(int(out.logits[0, -1].argmax()))
        step = torch.tensor([ids[-1:]])
    return ids, torch.cat(rows)


def try_seed(spec, seed):
    """Makes one model from a seed, with its goldens. Returns None if a choice is too close."""
    generator = torch.Generator().manual_seed(seed)
    config = spec["config"]()
    model = spec["cls"](config).eval()
    fill(model, generator)
    for _, p in experts_of(model) if spec.get("mxfp4") else []:
        p.copy_(mxfp4_of(p)[2])
    for p in model.parameters():  # casting the whole model would round the rotary frequencies too
        p.copy_(p.to(spec["dtype"]).to(torch.float32))
    if spec.get("fp8"):
        round_fp8(model)
    for name, p in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            bias = 0.1 * torch.randn(p.shape, generator=generator)
            p.copy_(bias.to(spec["dtype"]).to(torch.float32))
    goldens, gap_min, router_min, load_sum = [], 1.0, None, None
    for length in spec.get("prompts", PROMPT_LENGTHS):
        prompt = torch.randint(0, config.vocab_size, (length,), generator=generator).tolist()
        ids, logits = decode(model, prompt)
        whole = model(torch.tensor([ids])).logits[0]
        largest = logits.abs().max().item()
        assert (whole - logits).abs().max().item() < 2e-5 * largest
        best = logits[length - 1:-1].topk(2, dim=-1).values
        gaps = ((best[:, 0] - best[:, 1]) / largest).tolist()
        gap_min = min(gap_min, *gaps)
        router_gap, load = router_gaps(model, torch.tensor([ids]))
        if router_gap is not None:
            router_min = min(router_gap, router_min if router_min is not None else router_gap)
            load_sum = load if load_sum is None else [a + b for a, b in zip(load_sum, load)]
        goldens.append(dict(prompt=prompt, ids=ids, logits=logits, largest=largest, gaps=gaps))
    if gap_min < GAP_LEAST or (router_min is not None and router_min < ROUTER_GAP_LEAST):
        return None
    return model, goldens, dict(seed=seed, gap_min=gap_min, router_gap_min=router_min,
                                tokens_per_expert=load_sum)


def train_tokenizer(vocab_size):
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    assert bpe.get_vocab_size() == vocab_size
    return bpe


def write_tiktoken(directory, vocab_size):
    """Writes tiktoken.model and tokenizer_config.json in the form of Kimi-K2. Returns a text and
    its ids.
    """
    import tiktoken
    from make_tiktoken_goldens import PIECES, tokens_of, write_ranks
    vocab = train_tokenizer(vocab_size - 256).get_vocab()
    ranks = {token: rank for rank, token in enumerate(tokens_of(vocab))}
    special = write_ranks(directory, ranks)
    encoding = tiktoken.Encoding("kimi", pat_str=PIECES, mergeable_ranks=ranks, special_tokens=special)
    text = "<|im_user|>The fish 1234 swims 中文字 in the Sea's\n\n  shoal<|im_end|><|reserved_token_300|>"
    return dict(prompt=text, ids=encoding.encode(text, allowed_special="all"))


def write_model(name, spec):
    seed = 1
    while (made := try_seed(spec, seed)) is None:
        seed += 1
    model, goldens, facts = made
    folder = HERE / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    hf = folder / "hf"
    stored = model if spec.get("fp8") else model.to(spec["dtype"])
    stored.generation_config = GenerationConfig()
    stored.save_pretrained(hf, max_shard_size=spec.get("shard", "5GB"))
    if spec.get("mxfp4"):
        publish_mxfp4(hf, model)
    if spec.get("fp8"):
        publish_fp8(hf, spec["dtype"])
        facts["convert"] = ["--dtype", "f32"]  # codes times scales do not fit bfloat16
    if "drop" in spec:
        drop_tensors(hf, spec["drop"])
    if "fields" in spec:
        edit_config(hf, **spec["fields"])
    if "published" in spec:
        edit_config(hf, model_type=spec["published"])
        facts["text"] = write_tiktoken(hf, model.config.vocab_size)
    else:
        train_tokenizer(model.config.vocab_size).save(str(hf / "tokenizer.json"))
    lines = {"prompts": [], "sequences": []}
    for i, g in enumerate(goldens):
        sampling = dict(max_tokens=N_DECODE, temperature=0)
        lines["prompts"].append(dict(custom_id=f"p{i}", prompt_token_ids=g["prompt"], **sampling))
        lines["sequences"].append(dict(custom_id=f"p{i}", prompt_token_ids=g["ids"]))
        (folder / f"logits.{i}.f32").write_bytes(g["logits"].numpy().astype("<f4").tobytes())
    for kind, rows in lines.items():
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    golden = dict(
        model=name, dtype=str(spec["dtype"]).removeprefix("torch."), **facts,
        vocab_size=model.config.vocab_size, n_decode=N_DECODE,
        versions=dict(python=platform.python_version(), torch=torch.__version__,
                      transformers=transformers.__version__, tokenizers=tokenizers.__version__),
        sequences=[dict(n_prompt=len(g["prompt"]), n_tokens=len(g["ids"]), largest=g["largest"],
                        greedy=g["ids"][len(g["prompt"]):],
                        gaps=[float(f"{x:.3g}") for x in g["gaps"]]) for g in goldens])
    fields = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in golden.items()]
    (folder / "golden.json").write_text("{\n" + ",\n".join(fields) + "\n}\n")
    print(f"{name}: {facts}")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    names = sys.argv[1:] or list(MODELS)
    with torch.no_grad():
        for name in names:
            write_model(name, MODELS[name])


if __name__ == "__main__":
    main()
