"""The models of the goldens: a transformers class and config of each, the stored type, and how it is published.

A row of MODELS is described by write_model and try_seed in make_goldens.py, which read it.
"""
import torch
from transformers import (ApertusConfig, ApertusForCausalLM, DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config,
                          DeepseekV3ForCausalLM, Dots1Config, Dots1ForCausalLM, Ernie4_5Config,
                          Ernie4_5ForCausalLM, Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM,
                          Exaone4Config,
                          Exaone4ForCausalLM, Gemma2Config, Gemma2ForCausalLM, Gemma3Config,
                          Gemma3ForCausalLM, Gemma3ForConditionalGeneration, Gemma3TextConfig,
                          Glm4Config, Glm4ForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM, Glm4MoeLiteConfig,
                          Glm4MoeLiteForCausalLM, GptOssConfig, GptOssForCausalLM, GraniteConfig,
                          GraniteForCausalLM, GraniteMoeConfig, GraniteMoeForCausalLM,
                          GraniteMoeSharedConfig, GraniteMoeSharedForCausalLM,
                          HunYuanDenseV1Config, HunYuanDenseV1ForCausalLM, HunYuanMoEV1Config,
                          HunYuanMoEV1ForCausalLM,
                          LlamaConfig, LlamaForCausalLM, MiniMaxM2Config, MiniMaxM2ForCausalLM,
                          MinistralConfig, MinistralForCausalLM, MistralConfig, MistralForCausalLM,
                          MixtralConfig, MixtralForCausalLM, Olmo2Config, Olmo2ForCausalLM,
                          Olmo3Config, Olmo3ForCausalLM,
                          OlmoeConfig, OlmoeForCausalLM, Phi3Config, Phi3ForCausalLM, PhimoeConfig,
                          PhimoeForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM,
                          Qwen3NextConfig, Qwen3NextForCausalLM,
                          SeedOssConfig, SeedOssForCausalLM, SmolLM3Config, SmolLM3ForCausalLM,
                          SolarOpenConfig, SolarOpenForCausalLM)

LONGER = (70, 650)  # for states that are passed over many borders of 64 positions
SHORTER = (7, 130)  # for models that need fewer
SHORTEST = (5, 66)  # the second sequence still crosses into a second tile
COMMON = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None, use_cache=True,
              max_position_embeddings=512)
LONG_CONTEXT = {**COMMON, "max_position_embeddings": 1024}


def minimax_fields(n_layers, rotary_dim):
    """Fields of MiniMax-M2's published config.json that transformers does not write."""
    return dict(attn_type_list=[1] * n_layers, rotary_dim=rotary_dim, qk_norm_type="per_layer",
                use_qk_norm=True, use_routing_bias=True, scoring_func="sigmoid", shared_intermediate_size=0,
                num_mtp_modules=3, mtp_transformer_layers=1, use_mtp=True)


def publish_gemma3(config):
    """config.json as Gemma-3's multimodal checkpoints have it: what the class assumes is left out."""
    text = config["text_config"]
    rope = text.pop("rope_parameters")
    text["rope_scaling"] = {k: rope["full_attention"][k] for k in ("rope_type", "factor")}
    for key in ("layer_types", "query_pre_attn_scalar", "rms_norm_eps", "max_position_embeddings",
                "hidden_activation", "attn_logit_softcapping", "final_logit_softcapping", "attention_bias",
                "use_bidirectional_attention", "tie_word_embeddings"):
        text.pop(key, None)


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
    # norms of what attention and the FFN add, and of all of q and of k
    "olmo2": dict(
        cls=Olmo2ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: Olmo2Config(
            vocab_size=272, hidden_size=64, intermediate_size=160, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
            rope_parameters=dict(rope_type="default", rope_theta=5e5),
            tie_word_embeddings=False, **COMMON)),
    # the same with biases of q, k, v and o, tied, three KV heads
    "olmo2-bias": dict(
        cls=Olmo2ForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: Olmo2Config(
            vocab_size=267, hidden_size=96, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=3, rms_norm_eps=1e-5, attention_bias=True,
            rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0,
                                 original_max_position_embeddings=64),
            tie_word_embeddings=True, **COMMON)),
    # every second layer without rotation, tied though config.json does not say so
    "smollm3": dict(
        cls=SmolLM3ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        fields=dict(tie_word_embeddings=None, no_rope_layers=None),
        config=lambda: SmolLM3Config(
            vocab_size=272, hidden_size=64, intermediate_size=160, num_hidden_layers=5,
            num_attention_heads=4, num_key_value_heads=2, no_rope_layer_interval=2,
            rope_parameters=dict(rope_type="default", rope_theta=5e6), **COMMON)),
    # layers without rotation by their list, biases everywhere, untied
    "smollm3-list": dict(
        cls=SmolLM3ForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: SmolLM3Config(
            vocab_size=267, hidden_size=96, intermediate_size=128, num_hidden_layers=3,
            num_attention_heads=6, num_key_value_heads=3, no_rope_layers=[0, 1, 0],
            attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # biases of q, k and v, none of o
    "seed-oss": dict(
        cls=SeedOssForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: SeedOssConfig(
            vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
            num_attention_heads=6, num_key_value_heads=2, head_dim=32, attention_bias=True,
            attention_out_bias=False, rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e7), **COMMON)),
    # the bias of o alone
    "seed-oss-out": dict(
        cls=SeedOssForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: SeedOssConfig(
            vocab_size=267, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, head_dim=16, attention_bias=False,
            attention_out_bias=True, mlp_bias=False, rms_norm_eps=1e-6, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # norms of each head of q and k, sigmoids, two shared experts, a dense first layer
    "dots1": dict(
        cls=Dots1ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: Dots1Config(
            vocab_size=293, hidden_size=64, intermediate_size=96, moe_intermediate_size=32,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
            n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, n_group=1, topk_group=1,
            routed_scaling_factor=2.5, norm_topk_prob=True, first_k_dense_replace=1,
            sliding_window=None, rms_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e7), **COMMON)),
    # two groups of experts, weights as they are, a window in the upper layer, biases, tied
    "dots1-window": dict(
        cls=Dots1ForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: Dots1Config(
            vocab_size=280, hidden_size=64, intermediate_size=96, moe_intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1, n_group=2, topk_group=1,
            routed_scaling_factor=1.0, norm_topk_prob=False, first_k_dense_replace=0,
            sliding_window=40, max_window_layers=1, attention_bias=True, rms_norm_eps=1e-6,
            tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e4),
            **COMMON)),
    # as GLM-4.5 without norms of q and k, all of a head rotated, no dense layer
    "solar-open": dict(
        cls=SolarOpenForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: SolarOpenConfig(
            vocab_size=293, hidden_size=64, moe_intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, n_routed_experts=8,
            num_experts_per_tok=3, n_shared_experts=1, n_group=1, topk_group=1,
            routed_scaling_factor=1.0, norm_topk_prob=True, rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            rope_parameters=dict(rope_type="yarn", rope_theta=1e6, factor=2.0,
                                 original_max_position_embeddings=64), **COMMON)),
    # biases of q, k and v, two groups of experts, two shared experts, tied
    "solar-open-bias": dict(
        cls=SolarOpenForCausalLM, dtype=torch.float16, prompts=SHORTER,
        config=lambda: SolarOpenConfig(
            vocab_size=280, hidden_size=64, moe_intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=3, head_dim=16, n_routed_experts=6,
            num_experts_per_tok=2, n_shared_experts=2, n_group=2, topk_group=1,
            routed_scaling_factor=2.0, norm_topk_prob=False, attention_bias=True,
            rms_norm_eps=1e-6, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # windows where the list says so
    "ministral": dict(
        cls=MinistralForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: MinistralConfig(
            vocab_size=272, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5,
            sliding_window=40, tie_word_embeddings=False,
            layer_types=["full_attention", "sliding_attention", "sliding_attention"],
            rope_parameters=dict(rope_type="default", rope_theta=1e8), **COMMON)),
    # no list: a window in every layer, tied
    "ministral-all": dict(
        cls=MinistralForCausalLM, dtype=torch.float16, prompts=SHORTER,
        fields=dict(layer_types=None),
        config=lambda: MinistralConfig(
            vocab_size=267, hidden_size=96, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=3, head_dim=16, rms_norm_eps=1e-6,
            sliding_window=70, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # multipliers of embeddings, residuals, scores and logits, tied
    "granite": dict(
        cls=GraniteForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: GraniteConfig(
            vocab_size=272, hidden_size=64, intermediate_size=160, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
            embedding_multiplier=1.5, residual_multiplier=0.7, attention_multiplier=0.125,
            logits_scaling=8.0, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e7), **COMMON)),
    # biases everywhere; scores are multiplied by 1, the default
    "granite-bias": dict(
        cls=GraniteForCausalLM, dtype=torch.float16, prompts=SHORTER,
        fields=dict(attention_multiplier=None),
        config=lambda: GraniteConfig(
            vocab_size=267, hidden_size=96, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=3, rms_norm_eps=1e-6,
            embedding_multiplier=3.0, residual_multiplier=1.0, logits_scaling=2.0,
            attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # norms of outputs and of each head of q and k; windows in two of three layers, and rotation only
    # there
    "exaone4": dict(
        cls=Exaone4ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        fields=dict(layer_types=None),
        config=lambda: Exaone4Config(
            vocab_size=272, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5,
            sliding_window=40, sliding_window_pattern=3, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="llama3", rope_theta=1e6, factor=16.0,
                                 low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=64), **COMMON)),
    # no window: all layers rotate; tied
    "exaone4-full": dict(
        cls=Exaone4ForCausalLM, dtype=torch.float16, prompts=SHORTER,
        nulls=["sliding_window"],
        config=lambda: Exaone4Config(
            vocab_size=267, hidden_size=96, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=3, head_dim=16, rms_norm_eps=1e-5,
            sliding_window=None, layer_types=["full_attention"] * 2, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e6), **COMMON)),
    # YaRN in the layers without a window alone
    "olmo3": dict(
        cls=Olmo3ForCausalLM, dtype=torch.bfloat16, prompts=SHORTER,
        config=lambda: Olmo3Config(
            vocab_size=272, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6, sliding_window=40,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters=dict(
                sliding_attention=dict(rope_type="default", rope_theta=1e4),
                full_attention=dict(rope_type="yarn", rope_theta=5e5, factor=8.0, beta_fast=32.0,
                                    beta_slow=1.0, attention_factor=1.2079441541679836,
                                    original_max_position_embeddings=64)),
            tie_word_embeddings=False, **COMMON)),
    # fields as they are published: rope_theta and rope_scaling, no list of layers; biases, tied
    "olmo3-published": dict(
        cls=Olmo3ForCausalLM, dtype=torch.float16, prompts=SHORTER,
        fields=dict(layer_types=None, rope_parameters=None, rope_theta=500000, rope_scaling=dict(
            rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, attention_factor=1.1386,
            original_max_position_embeddings=128)),
        config=lambda: Olmo3Config(
            vocab_size=267, hidden_size=96, intermediate_size=96, num_hidden_layers=4,
            num_attention_heads=6, num_key_value_heads=3, rms_norm_eps=1e-6, sliding_window=24,
            attention_bias=True,
            rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0,
                              attention_factor=1.1386, original_max_position_embeddings=128),
            tie_word_embeddings=True, **COMMON)),
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
    # dense layers by their list, two groups of experts, weights as they are, halves rotated, tied
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
    # softcaps that bite on scores and logits, norms around attention and FFN, GEGLU, a window in the
    # even layers
    "gemma2": dict(
        cls=Gemma2ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST, less_one=True,
        config=lambda: Gemma2Config(
            vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
            query_pre_attn_scalar=6, sliding_window=20, attn_logit_softcapping=6.0,
            final_logit_softcapping=9.0, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # no softcap, heads of 24 elements, biases of q, k, v and o, own head
    "gemma2-plain": dict(
        cls=Gemma2ForCausalLM, dtype=torch.float16, prompts=SHORTEST, less_one=True,
        nulls=["attn_logit_softcapping", "final_logit_softcapping"],
        config=lambda: Gemma2Config(
            vocab_size=260, hidden_size=36, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=3, num_key_value_heads=3, head_dim=24, rms_norm_eps=1e-5,
            query_pre_attn_scalar=24, sliding_window=70, attn_logit_softcapping=None,
            final_logit_softcapping=None, attention_bias=True, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=5e4), **COMMON)),
    # two rotary bases, the one of full layers scaled; norms of each head of q and k
    "gemma3": dict(
        cls=Gemma3ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST, less_one=True,
        config=lambda: Gemma3TextConfig(
            vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6,
            query_pre_attn_scalar=20, sliding_window=24, final_logit_softcapping=12.0,
            layer_types=["sliding_attention", "full_attention"] * 2, tie_word_embeddings=True,
            rope_parameters=dict(
                sliding_attention=dict(rope_type="default", rope_theta=1e4),
                full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0)), **COMMON)),
    # the text model of a multimodal checkpoint, with the fields as they are published
    "gemma3-text": dict(
        cls=Gemma3ForConditionalGeneration, dtype=torch.bfloat16, prompts=SHORTEST, less_one=True,
        edit=publish_gemma3,
        config=lambda: Gemma3Config(
            text_config=dict(
                vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=6,
                num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=30,
                bos_token_id=None, eos_token_id=None, pad_token_id=None,
                rope_parameters=dict(
                    sliding_attention=dict(rope_type="default", rope_theta=1e4),
                    full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0))),
            vision_config=dict(
                hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                image_size=28, patch_size=14, num_channels=3),
            mm_tokens_per_image=4, boi_token_index=257, eoi_token_index=258, image_token_index=259,
            bos_token_id=None, eos_token_id=None, pad_token_id=None)),
    # a gated delta rule in three layers of four, as published: two value heads for each key head
    "qwen3-next": dict(
        cls=Qwen3NextForCausalLM, dtype=torch.bfloat16, prompts=LONGER, less_one=True,
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
        cls=Qwen3NextForCausalLM, dtype=torch.float32, prompts=LONGER, less_one=True,
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
    # one tensor for q, k and v and one for gate and up, a window, part of a head rotated
    "phi3": dict(
        cls=Phi3ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: Phi3Config(
            vocab_size=260, hidden_size=64, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, sliding_window=40,
            original_max_position_embeddings=512, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5),
            **COMMON)),
    # longrope within the original context
    "phi3-longrope": dict(
        cls=Phi3ForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        nulls=["sliding_window"],
        config=lambda: Phi3Config(
            vocab_size=260, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=3, num_key_value_heads=3, rms_norm_eps=1e-5, sliding_window=None,
            original_max_position_embeddings=128, tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=128,
                short_factor=[1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0],
                long_factor=[1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0]), **COMMON)),
    # norms around attention and FFN, pairs of neighbouring elements rotated in half of a head
    "glm4": dict(
        cls=Glm4ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: Glm4Config(
            vocab_size=260, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5,
            attention_bias=True, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5),
            **COMMON)),
    # all of a head of 24 elements rotated, no biases, tied
    "glm4-whole": dict(
        cls=Glm4ForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: Glm4Config(
            vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=3, num_key_value_heads=1, head_dim=24, rms_norm_eps=1e-6,
            attention_bias=False, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e5, partial_rotary_factor=1.0),
            **COMMON)),
    # neighbouring elements rotated, tied
    "ernie4_5": dict(
        cls=Ernie4_5ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: Ernie4_5Config(
            vocab_size=260, hidden_size=48, intermediate_size=64, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5,
            tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=5e5),
            **COMMON)),
    # biases everywhere, own head
    "ernie4_5-bias": dict(
        cls=Ernie4_5ForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: Ernie4_5Config(
            vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=3, num_key_value_heads=3, head_dim=32, rms_norm_eps=1e-6,
            use_bias=True, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # a softmax with a bias for the choice, two shared experts, a dense first layer
    "ernie4_5-moe": dict(
        cls=Ernie4_5_MoeForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: Ernie4_5_MoeConfig(
            vocab_size=260, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, moe_k=3,
            moe_num_experts=8, moe_num_shared_experts=2, moe_layer_start_index=1,
            rms_norm_eps=1e-5, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=5e5), **COMMON)),
    # experts in every second layer up to the third, no shared ones, own head
    "ernie4_5-moe-range": dict(
        cls=Ernie4_5_MoeForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: Ernie4_5_MoeConfig(
            vocab_size=260, hidden_size=48, intermediate_size=32, moe_intermediate_size=32,
            num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1, moe_k=2,
            moe_num_experts=4, moe_num_shared_experts=0, moe_layer_start_index=0,
            moe_layer_interval=2, moe_layer_end_index=2, rms_norm_eps=1e-6,
            tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=1e4),
            **COMMON)),
    # norms of q and k behind the rotation, whose base has grown by a fixed alpha
    "hunyuan": dict(
        cls=HunYuanDenseV1ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: HunYuanDenseV1Config(
            vocab_size=260, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="dynamic", rope_theta=1e4, alpha=1000.0, factor=1.0), **COMMON)),
    # biases of q, k, v and o, own head, plain rotation
    "hunyuan-bias": dict(
        cls=HunYuanDenseV1ForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: HunYuanDenseV1Config(
            vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=3, num_key_value_heads=3, head_dim=16, rms_norm_eps=1e-6,
            attention_bias=True, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # a shared expert beside those that are chosen
    "hunyuan-moe": dict(
        cls=HunYuanMoEV1ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: HunYuanMoEV1Config(
            vocab_size=260, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=6,
            moe_topk=3, rms_norm_eps=1e-5, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, alpha=50.0, factor=1.0), **COMMON)),
    # choices as a list with a number for each layer, one expert of five, own head
    "hunyuan-moe-list": dict(
        cls=HunYuanMoEV1ForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: HunYuanMoEV1Config(
            vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=3, num_key_value_heads=1, head_dim=16, num_experts=5,
            moe_topk=[2, 2], rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e5), **COMMON)),
    # experts beside a shared one that all tokens pass, all multipliers
    "granite-moe-shared": dict(
        cls=GraniteMoeSharedForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: GraniteMoeSharedConfig(
            vocab_size=260, hidden_size=32, intermediate_size=16, shared_intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            num_local_experts=6, num_experts_per_tok=2, embedding_multiplier=2.0,
            residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=4.0,
            rms_norm_eps=1e-6, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # no shared expert, biases, own head
    "granite-moe-unshared": dict(
        cls=GraniteMoeSharedForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: GraniteMoeSharedConfig(
            vocab_size=260, hidden_size=48, intermediate_size=32, shared_intermediate_size=0,
            num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
            num_local_experts=4, num_experts_per_tok=3, residual_multiplier=0.5,
            attention_bias=True, rms_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # an FFN without a gate, xIELU with numbers of each layer, norms of each head of q and k
    "apertus": dict(
        cls=ApertusForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: ApertusConfig(
            vocab_size=260, hidden_size=48, intermediate_size=96, num_hidden_layers=3,
            num_attention_heads=3, num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="llama3", rope_theta=12e6, factor=8.0, low_freq_factor=1.0,
                                 high_freq_factor=4.0, original_max_position_embeddings=64), **COMMON)),
    # biases of q, k, v and o, plain rotation, tied
    "apertus-bias": dict(
        cls=ApertusForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: ApertusConfig(
            vocab_size=260, hidden_size=64, intermediate_size=72, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6, attention_bias=True,
            tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # the sparse mixer with rivals that often count, layer norms, biases of attention and of the head
    "phimoe": dict(
        cls=PhimoeForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: PhimoeConfig(
            vocab_size=260, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2,
            router_jitter_noise=0.3, rms_norm_eps=1e-5, sliding_window=40, attention_bias=True,
            lm_head_bias=True, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # longrope, no biases beside those of norms
    "phimoe-longrope": dict(
        cls=PhimoeForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        nulls=["sliding_window"], fields=dict(original_max_position_embeddings=128),
        config=lambda: PhimoeConfig(
            vocab_size=260, hidden_size=48, intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=3, num_key_value_heads=3, num_local_experts=4, num_experts_per_tok=2,
            router_jitter_noise=0.01, rms_norm_eps=1e-5, sliding_window=None, attention_bias=False,
            lm_head_bias=False, tie_word_embeddings=False, original_max_position_embeddings=128,
            rope_parameters=dict(
                rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=128,
                short_factor=[1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0],
                long_factor=[1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0], short_mscale=1.243,
                long_mscale=1.3), **COMMON)),
}
