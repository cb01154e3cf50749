"""The dense models of the goldens, with attention of keys and values in all layers."""
import torch
from transformers import (ApertusConfig, ApertusForCausalLM, BitNetConfig, BitNetForCausalLM, Ernie4_5Config, Ernie4_5ForCausalLM, Exaone4Config,
                          Exaone4ForCausalLM, Gemma2Config, Gemma2ForCausalLM, Gemma3Config, Gemma3ForCausalLM,
                          Gemma3ForConditionalGeneration, Gemma3TextConfig, Glm4Config, Glm4ForCausalLM,
                          GraniteConfig, GraniteForCausalLM, HunYuanDenseV1Config, HunYuanDenseV1ForCausalLM,
                          LlamaConfig, LlamaForCausalLM, Ministral3Config, Ministral3ForCausalLM, MinistralConfig,
                          MinistralForCausalLM, MistralConfig, MistralForCausalLM, Olmo2Config, Olmo2ForCausalLM, Olmo3Config, Olmo3ForCausalLM,
                          Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          SeedOssConfig, SeedOssForCausalLM, SmolLM3Config, SmolLM3ForCausalLM)

from golden_common import COMMON, LONG_CONTEXT, LONGEST, SHORTER, SHORTEST


PACKED = dict(quant_method="bitnet", linear_class="autobitlinear", quantization_mode="offline")


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
    # dense, grouped queries, untied, shards with an index
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
    # biases of q, k and v, tied, three query heads for each KV head
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
    # a window that ends inside its second tile; then a short one, tied
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
        cls=SeedOssForCausalLM, dtype=torch.bfloat16, prompts=SHORTER, generated=True, tokenizer="qwen3-next", every=3,
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
    # q grows every 24 positions, YaRN with both factors
    "ministral3": dict(
        cls=Ministral3ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: Ministral3Config(
            vocab_size=260, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, sliding_window=None, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="yarn", rope_theta=1e6, factor=16.0, beta_fast=32.0, beta_slow=1.0,
                                 mscale=1.0, mscale_all_dim=0.7, original_max_position_embeddings=24,
                                 llama_4_scaling_beta=0.4), **COMMON)),
    # a window in all layers, heads padded in the cache, tied
    "ministral3-window": dict(
        cls=Ministral3ForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: Ministral3Config(
            vocab_size=260, hidden_size=40, intermediate_size=48, num_hidden_layers=3, num_attention_heads=3,
            num_key_value_heads=1, head_dim=24, rms_norm_eps=1e-6, sliding_window=40, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=8.0, beta_fast=32.0, beta_slow=1.0,
                                 original_max_position_embeddings=64, llama_4_scaling_beta=0.1), **COMMON)),
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
    # softcaps that change scores and logits, norms around attention and FFN, GEGLU, a window in the
    # even layers
    "gemma2": dict(
        cls=Gemma2ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST, less_one=True,
        config=lambda: Gemma2Config(
            vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
            query_pre_attn_scalar=6, sliding_window=20, attn_logit_softcapping=6.0,
            final_logit_softcapping=9.0, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # no softcap, heads of 24 elements, biases of q, k, v and o, untied
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
    # biases everywhere, untied
    "ernie4_5-bias": dict(
        cls=Ernie4_5ForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: Ernie4_5Config(
            vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=3, num_key_value_heads=3, head_dim=32, rms_norm_eps=1e-6,
            use_bias=True, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # norms of q and k after the rotation, whose base has grown by a fixed alpha
    "hunyuan": dict(
        cls=HunYuanDenseV1ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: HunYuanDenseV1Config(
            vocab_size=260, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="dynamic", rope_theta=1e4, alpha=1000.0, factor=1.0), **COMMON)),
    # biases of q, k, v and o, untied, plain rotation
    "hunyuan-bias": dict(
        cls=HunYuanDenseV1ForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: HunYuanDenseV1Config(
            vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=3, num_key_value_heads=3, head_dim=16, rms_norm_eps=1e-6,
            attention_bias=True, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # norms of attention's output and of the FFN's inner rows, relu2 with a gate; the published fields
    "bitnet": dict(
        cls=BitNetForCausalLM, dtype=torch.bfloat16, prompts=LONGEST, generated=True, tokenizer="qwen3-next", every=11,
        fields=dict(rope_parameters=None, rope_theta=500000.0),
        config=lambda: BitNetConfig(
            vocab_size=272, hidden_size=80, intermediate_size=216, num_hidden_layers=3, num_attention_heads=5,
            num_key_value_heads=5, rms_norm_eps=1e-5, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=500000.0), **LONG_CONTEXT)),
    # biases of q, k, v and o, grouped queries, heads of 24 elements, untied, an inner width that 16 does not divide
    "bitnet-bias": dict(
        cls=BitNetForCausalLM, dtype=torch.float32, prompts=LONGEST, generated=True, tokenizer="qwen3-next", every=11,
        config=lambda: BitNetConfig(
            vocab_size=272, hidden_size=144, intermediate_size=600, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=2, rms_norm_eps=1e-6, attention_bias=True, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=1e4), **LONG_CONTEXT)),
    # packed ternary weights and activations rounded to 8 bits; the published fields. Few tokens, each of which rounds 496 numbers
    # (made with TORCHDYNAMO_DISABLE=1, because transformers would compile its rounding)
    "bitnet-packed": dict(
        cls=BitNetForCausalLM, dtype=torch.bfloat16, prompts=(3, 6), generated=True, tokenizer="qwen3-next", ternary=True,
        fields=dict(rope_parameters=None, rope_theta=500000.0, quantization_config=PACKED),
        config=lambda: BitNetConfig(
            vocab_size=272, hidden_size=64, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True, quantization_config=dict(PACKED),
            rope_parameters=dict(rope_type="default", rope_theta=500000.0), **LONG_CONTEXT)),
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
}
