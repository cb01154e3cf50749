"""The models of the goldens with routed experts, and with attention of keys and values."""
import torch
from transformers import (Dots1Config, Dots1ForCausalLM, Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM, ExaoneMoeConfig,
                          ExaoneMoeForCausalLM, Gemma4Config,
                          Gemma4ForCausalLM, Gemma4ForConditionalGeneration, Gemma4TextConfig, Glm4MoeConfig, Glm4MoeForCausalLM, GptOssConfig, GptOssForCausalLM,
                          GraniteMoeConfig,
                          GraniteMoeForCausalLM, GraniteMoeSharedConfig, GraniteMoeSharedForCausalLM,
                          HunYuanMoEV1Config, HunYuanMoEV1ForCausalLM, HYV3Config, HYV3ForCausalLM, Llama4ForCausalLM,
                          Llama4TextConfig,
                          MiMoV2FlashConfig, MiMoV2FlashForCausalLM, MiniMaxM2Config, MiniMaxM2ForCausalLM,
                          MixtralConfig, MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM, PhimoeConfig,
                          PhimoeForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM,
                          SolarOpenConfig, SolarOpenForCausalLM, Step3p7Config, Step3p7ForConditionalGeneration)

from golden_common import COMMON, LONG_CONTEXT, SHORTER, SHORTEST


def mimo_fields(n_layers):
    """The fields of MiMo-V2-Flash's published config.json in place of transformers' own."""
    full = [i == 0 or (i + 1) % 6 == 0 for i in range(n_layers)]
    return dict(layer_types=None, mlp_layer_types=None, rope_parameters=None, rms_norm_eps=None,
                routed_scaling_factor=None, hybrid_layer_pattern=[int(not f) for f in full],
                moe_layer_freq=[int(i > 0) for i in range(n_layers)],
                layernorm_epsilon=1e-5, partial_rotary_factor=0.334, rope_theta=5000000, swa_rope_theta=10000,
                sliding_window_size=127, attention_chunk_size=127, add_swa_attention_sink_bias=True,
                add_full_attention_sink_bias=False, scoring_func="sigmoid", topk_method="noaux_tc", swa_head_dim=48,
                swa_v_head_dim=32, swa_num_attention_heads=8, swa_num_key_value_heads=4)


def publish_gemma4(config):
    """config.json as Gemma-4's multimodal checkpoints have it: one width and number of heads for all layers without a
    window.
    """
    text = config["text_config"]
    heads = next(iter(text.pop("per_layer_config").values()))
    text.update(global_head_dim=heads["head_dim"], num_global_key_value_heads=heads["num_key_value_heads"],
                use_bidirectional_attention="vision")
    config.update(eoa_token_id=258883, vision_soft_tokens_per_image=280)


def minimax_fields(n_layers, rotary_dim):
    """Fields of MiniMax-M2's published config.json that transformers does not write."""
    return dict(attn_type_list=[1] * n_layers, rotary_dim=rotary_dim, qk_norm_type="per_layer",
                use_qk_norm=True, use_routing_bias=True, scoring_func="sigmoid", shared_intermediate_size=0,
                num_mtp_modules=3, mtp_transformer_layers=1, use_mtp=True)


def publish_step37(config):
    """config.json as Step-3.7-Flash's checkpoint has it: lists with an entry more for a prediction layer, and other names
    of fields.
    """
    text = config["text_config"]
    ropes = text.pop("rope_parameters")
    scaling = ropes["full_attention"]
    text["layer_types"].append("sliding_attention")
    per_kind = {key: [ropes[kind][key] for kind in text["layer_types"]] for key in ("rope_theta", "partial_rotary_factor")}
    for key in ("rope_theta", "partial_rotary_factor"):
        del scaling[key]
    sparse = [str(i) for i, kind in enumerate(text.pop("mlp_layer_types")) if kind == "sparse"]
    heads, head_dim = text.pop("num_key_value_heads"), text["head_dim"]
    for key in ("per_layer_config", "query_pre_attn_scalar", "hidden_act", "attention_bias", "mlp_bias"):
        del text[key]
    text.update(
        architectures=["Step3p5ForCausalLM"], num_attention_groups=heads, moe_num_experts=text.pop("n_routed_experts"),
        moe_top_k=text.pop("num_experts_per_tok"), moe_layers_enum=",".join(sparse), use_moe=True,
        attention_other_setting=dict(attention_type="sliding_attention", num_attention_groups=heads, head_dim=head_dim,
                                     num_attention_heads=text.pop("num_sliding_attention_heads"), true_head_dim=head_dim),
        rope_theta=per_kind["rope_theta"], partial_rotary_factors=per_kind["partial_rotary_factor"],
        rope_scaling=scaling, yarn_only_types=["full_attention"], num_nextn_predict_layers=1,
        swiglu_limits=[*text["swiglu_limits"], 0.0], swiglu_limits_shared=[*text["swiglu_limits_shared"], 0.0],
        max_seq_len=1024, norm_expert_weight=True, moe_router_activation="sigmoid", att_impl_type="GQA",
        use_head_wise_attn_gate=True, use_moe_router_bias=True, need_fp32_gate=True, sink=False, use_rope_layers=[],
        moe_layer_offset=0, moe_every_n_layer=1, use_qk_norm=True, zero_centered=True)
    config.update(understand_projector_stride=2, image_token_len=169, patch_token_len=81)


STEP_VISION = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=56, patch_size=14,
                   mlp_ratio=2.0)

MODELS = {
    # the text model of a multimodal checkpoint: more query heads in layers with a window, a gate for each head, a part of
    # a head rotated in the others and scaled, a dense first layer, limits in some layers; the published file's fields
    "step37": dict(
        cls=Step3p7ForConditionalGeneration, dtype=torch.bfloat16, prompts=(70, 668), generated=True,
        tokenizer="qwen3-next", every=11, less_one=True, floats=("moe.gate.weight", "moe.router_bias"),
        edit=publish_step37,
        config=lambda: Step3p7Config(
            text_config=dict(
                vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=5, num_attention_heads=8,
                num_sliding_attention_heads=12, num_key_value_heads=2, head_dim=16, n_routed_experts=8,
                num_experts_per_tok=3, moe_intermediate_size=32, share_expert_dim=32, moe_router_scaling_factor=3.0,
                sliding_window=128, rms_norm_eps=1e-5, swiglu_limits=[0.0, 0.0, 0.0, 0.7, 0.4],
                swiglu_limits_shared=[0.0, 0.0, 0.0, 0.5, 0.8], mlp_layer_types=["dense"] + ["sparse"] * 4,
                layer_types=["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"],
                rope_parameters=dict(
                    full_attention=dict(rope_type="llama3", rope_theta=5e6, partial_rotary_factor=0.5, factor=2.0,
                                        low_freq_factor=1.0, high_freq_factor=32.0,
                                        original_max_position_embeddings=256),
                    sliding_attention=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0)),
                **{**LONG_CONTEXT, "pad_token_id": 1}),
            vision_config=STEP_VISION)),
    # fewer query heads in layers with a window, padded heads, dense layers with limits, a scale of scores of its own, a
    # part of a head rotated in all layers; the fields as transformers writes them
    "step37-odd": dict(
        cls=Step3p7ForConditionalGeneration, dtype=torch.float32, prompts=(70, 668), generated=True,
        tokenizer="qwen3-next", every=11, less_one=True,
        config=lambda: Step3p7Config(
            text_config=dict(
                vocab_size=272, hidden_size=48, intermediate_size=72, num_hidden_layers=4, num_attention_heads=9,
                num_sliding_attention_heads=6, num_key_value_heads=3, head_dim=24, n_routed_experts=6,
                num_experts_per_tok=2, moe_intermediate_size=24, share_expert_dim=40, sliding_window=40,
                rms_norm_eps=1e-6, query_pre_attn_scalar=20, swiglu_limits=[None, None, 0.4, None],
                swiglu_limits_shared=[None, 0.5, 0.3, 0.0],
                layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
                mlp_layer_types=["sparse", "dense", "sparse", "dense"],
                rope_parameters=dict(
                    full_attention=dict(rope_type="linear", rope_theta=1e5, partial_rotary_factor=0.75, factor=2.0),
                    sliding_attention=dict(rope_type="default", rope_theta=5e3, partial_rotary_factor=0.5)),
                **{**LONG_CONTEXT, "pad_token_id": 1}),
            vision_config=STEP_VISION)),
    # windows with sinks in most layers, half as many KV heads in the others, heads of v narrower than those of q and k
    # and scaled, a third of a head rotated, two bases; the published file's fields
    "mimo-v2-flash": dict(
        cls=MiMoV2FlashForCausalLM, dtype=torch.bfloat16, prompts=(70, 668), generated=True, tokenizer="qwen3-next",
        every=11, floats=("gate.weight", "e_score_correction_bias"), fields=mimo_fields(6),
        config=lambda: MiMoV2FlashConfig(
            vocab_size=272, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=6,
            num_attention_heads=8, num_key_value_heads=2, head_dim=48, v_head_dim=32, n_routed_experts=4,
            num_experts_per_tok=2, n_group=1, topk_group=1, norm_topk_prob=True, sliding_window=128,
            attention_value_scale=0.707, rms_norm_eps=1e-5, tie_word_embeddings=False, **LONG_CONTEXT)),
    # listed windows and dense layers, padded heads, one KV head in the layers without a window, groups, tied
    "mimo-v2-flash-list": dict(
        cls=MiMoV2FlashForCausalLM, dtype=torch.float32, prompts=(70, 668), generated=True, tokenizer="qwen3-next",
        every=11, floats=("gate.weight", "e_score_correction_bias"),
        config=lambda: MiMoV2FlashConfig(
            vocab_size=272, hidden_size=40, intermediate_size=72, moe_intermediate_size=24, num_hidden_layers=4,
            num_attention_heads=6, num_key_value_heads=1, head_dim=40, v_head_dim=24, n_routed_experts=6,
            num_experts_per_tok=2, n_group=2, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.5,
            sliding_window=40, attention_value_scale=0.5, rms_norm_eps=1e-6, tie_word_embeddings=True,
            layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
            mlp_layer_types=["dense", "sparse", "dense", "sparse"],
            rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.6),
                                 sliding_attention=dict(rope_type="default", rope_theta=5e3, partial_rotary_factor=0.6)),
            **LONG_CONTEXT)),
    # the text model of a multimodal checkpoint: layers without a window have wider and fewer KV heads, whose v is k, and
    # rotate by proportional RoPE; v normed; a dense FFN and experts that are joined by norms; the published fields
    "gemma4": dict(
        cls=Gemma4ForConditionalGeneration, dtype=torch.bfloat16, prompts=(70, 668), generated=True,
        tokenizer="qwen3-next", every=11, head_norm=0.5, embed=0.1, distinct=5, edit=publish_gemma4,
        config=lambda: Gemma4Config(
            text_config=dict(
                vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=6, num_attention_heads=8,
                num_key_value_heads=4, head_dim=32, global_head_dim=64, num_global_key_value_heads=2,
                attention_k_eq_v=True, hidden_size_per_layer_input=0, sliding_window=128, final_logit_softcapping=5.0,
                enable_moe_block=True, num_experts=8, top_k_experts=3, moe_intermediate_size=32,
                **{**LONG_CONTEXT, "pad_token_id": 0}),
            vision_config=dict(
                hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                num_key_value_heads=2, head_dim=8, patch_size=4, position_embedding_size=16))),
    # no experts; listed layers, heads padded and in layers without a window narrower than in the others, v of its own,
    # half of a head rotated and scaled, an untied head without a softcap; the fields as transformers writes them
    "gemma4-dense": dict(
        cls=Gemma4ForCausalLM, dtype=torch.float32, prompts=(70, 668), generated=True, tokenizer="qwen3-next",
        every=11, head_norm=0.5,
        config=lambda: Gemma4TextConfig(
            vocab_size=272, hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=6,
            num_key_value_heads=2, head_dim=40, global_head_dim=24, hidden_size_per_layer_input=0, sliding_window=50,
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=dict(
                full_attention=dict(rope_type="proportional", rope_theta=1e5, partial_rotary_factor=0.5, factor=2.0),
                sliding_attention=dict(rope_type="default", rope_theta=5e3)), **LONG_CONTEXT)),
    # a dense first layer, norms of q and k, sigmoids with a bias, always renormalised and scaled, a shared expert; the
    # fields of the published file
    "hy3": dict(
        cls=HYV3ForCausalLM, dtype=torch.bfloat16, prompts=(70, 668), generated=True, tokenizer="qwen3-next",
        every=11, floats=("gate.weight", "expert_bias"),
        fields=dict(mlp_layer_types=None, first_k_dense_replace=1, expert_hidden_dim=32, qk_norm=True, route_norm=True,
                    moe_router_use_sigmoid=True, moe_router_enable_expert_bias=True, enable_attention_fp32_softmax=True,
                    enable_lm_head_fp32=True, use_grouped_mm=True, num_nextn_predict_layers=1),
        config=lambda: HYV3Config(
            vocab_size=272, hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts=8, num_experts_per_tok=3,
            num_shared_experts=1, router_scaling_factor=2.826, rms_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=11158840.0), **LONG_CONTEXT)),
    # biases in attention, listed dense layers, two shared experts, linear scaling, tied
    "hy3-bias": dict(
        cls=HYV3ForCausalLM, dtype=torch.float32, prompts=(70, 668), generated=True, tokenizer="qwen3-next",
        every=11, floats=("gate.weight", "expert_bias"),
        config=lambda: HYV3Config(
            vocab_size=272, hidden_size=40, intermediate_size=72, moe_intermediate_size=24, num_hidden_layers=4,
            num_attention_heads=5, num_key_value_heads=1, head_dim=24, num_experts=7, num_experts_per_tok=2,
            num_shared_experts=2, router_scaling_factor=1.0, attention_bias=True, rms_norm_eps=1e-6,
            mlp_layer_types=["sparse", "dense", "sparse", "sparse"], tie_word_embeddings=True,
            enable_moe_fp32_combine=False,
            rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0), **LONG_CONTEXT)),
    # a window and RoPE in three of four layers, norms of q and k, a dense first layer, groups of experts whose sigmoids
    # have a bias, a shared expert; the fields of the first published files
    "k-exaone": dict(
        cls=ExaoneMoeForCausalLM, dtype=torch.bfloat16, prompts=(70, 668), generated=True, tokenizer="qwen3-next",
        every=11, floats=("gate.weight", "e_score_correction_bias"),
        fields=dict(architectures=["ExaoneMoEForCausalLM"], sliding_window_pattern="LLLG", mlp_layer_types=None,
                    is_moe_layer=[False, True, True, True, True], scoring_func="sigmoid", topk_method="noaux_tc",
                    first_last_k_dense_replace=1, first_k_dense_replace=None, num_nextn_predict_layers=1),
        config=lambda: ExaoneMoeConfig(
            vocab_size=272, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=5,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts=8, num_experts_per_tok=3,
            num_shared_experts=1, n_group=4, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True,
            sliding_window=128, sliding_window_pattern=4, first_k_dense_replace=1, rms_norm_eps=1e-5,
            tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=1e6), **LONG_CONTEXT)),
    # an uneven list of windows and of dense layers, weights not renormalised, two shared experts, YaRN, tied
    "k-exaone-list": dict(
        cls=ExaoneMoeForCausalLM, dtype=torch.float32, prompts=(70, 668), generated=True, tokenizer="qwen3-next",
        every=11, floats=("gate.weight", "e_score_correction_bias"),
        config=lambda: ExaoneMoeConfig(
            vocab_size=272, hidden_size=48, intermediate_size=80, moe_intermediate_size=24, num_hidden_layers=4,
            num_attention_heads=6, num_key_value_heads=2, head_dim=24, num_experts=6, num_experts_per_tok=2,
            num_shared_experts=2, n_group=1, topk_group=1, routed_scaling_factor=1.0, norm_topk_prob=False,
            sliding_window=50, layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            mlp_layer_types=["dense", "dense", "sparse", "sparse"], first_k_dense_replace=2, rms_norm_eps=1e-6,
            tie_word_embeddings=True, rope_parameters=dict(
                rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=256), **LONG_CONTEXT)),
    # chunks that end inside tiles, a layer without RoPE whose q grows, neighbouring elements rotated, norms of q and k
    # after RoPE, in every second layer one chosen expert whose input is multiplied by the router's weight
    "llama4": dict(
        cls=Llama4ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: Llama4TextConfig(
            vocab_size=260, hidden_size=48, intermediate_size=32, intermediate_size_mlp=64,
            num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            num_local_experts=6, num_experts_per_tok=1, interleave_moe_layer_step=2,
            attention_chunk_size=24, no_rope_layer_interval=4, attn_temperature_tuning=True,
            floor_scale=20, attn_scale=0.3, use_qk_norm=True, rms_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0,
                                 high_freq_factor=4.0, original_max_position_embeddings=64), **COMMON)),
    # the text model of a multimodal checkpoint: chunks of more than a tile, no norms of q and k, biases, experts in
    # listed layers
    "llama4-text": dict(
        cls=Llama4ForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        wrapped=dict(architectures=["Llama4ForConditionalGeneration"], model_type="llama4", boi_token_index=257,
                     eoi_token_index=258, image_token_index=259, vision_config=dict(hidden_size=16)),
        config=lambda: Llama4TextConfig(
            vocab_size=260, hidden_size=32, intermediate_size=16, intermediate_size_mlp=48,
            num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=32,
            num_local_experts=4, num_experts_per_tok=1, moe_layers=[0, 1], attention_chunk_size=70,
            no_rope_layers=[1, 0, 1], attn_temperature_tuning=False, use_qk_norm=False, attention_bias=True,
            rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # sinks, windows in every other layer, YaRN, biases everywhere, a clamp that changes values; bf16
    # experts stored input by input, an expert width whose last leaf is shorter
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
    # head_dim apart from hidden / heads, top 3 renormalised, f32, an expert width whose last leaf is shorter
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
    # a shared expert with a sigmoid gate, QKV bias, a dense first layer, weights not renormalised
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
    # some multipliers, untied, an odd number of experts
    "granite-moe-untied": dict(
        cls=GraniteMoeForCausalLM, dtype=torch.float32, prompts=SHORTER,
        config=lambda: GraniteMoeConfig(
            vocab_size=280, hidden_size=64, intermediate_size=40, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=1, num_local_experts=5,
            num_experts_per_tok=2, embedding_multiplier=1.0, residual_multiplier=0.5,
            attention_multiplier=0.25, logits_scaling=1.0, rms_norm_eps=1e-6,
            tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=1e4),
            **COMMON)),
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
    # a prediction layer, tied
    "glm4-moe-mtp": dict(
        cls=Glm4MoeForCausalLM, dtype=torch.float16, prompts=SHORTEST, predicts=True,
        config=lambda: Glm4MoeConfig(
            vocab_size=260, hidden_size=48, intermediate_size=48, moe_intermediate_size=16,
            num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=16,
            n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1,
            routed_scaling_factor=1.0, norm_topk_prob=True, first_k_dense_replace=1,
            use_qk_norm=True, attention_bias=True, rms_norm_eps=1e-5, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5),
            **COMMON)),
    # no norms of q and k, no biases, no dense layer; weights not renormalised, tied
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
    # two groups of experts, weights not renormalised, a window in the upper layer, biases, tied
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
        cls=SolarOpenForCausalLM, dtype=torch.bfloat16, prompts=SHORTER, generated=True, tokenizer="qwen3-next", every=3,
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
    # a softmax with a bias for the choice, two shared experts, a dense first layer
    "ernie4_5-moe": dict(
        cls=Ernie4_5_MoeForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: Ernie4_5_MoeConfig(
            vocab_size=260, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
            num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, moe_k=3,
            moe_num_experts=8, moe_num_shared_experts=2, moe_layer_start_index=1,
            rms_norm_eps=1e-5, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=5e5), **COMMON)),
    # experts in every second layer up to the third, no shared ones, untied
    "ernie4_5-moe-range": dict(
        cls=Ernie4_5_MoeForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: Ernie4_5_MoeConfig(
            vocab_size=260, hidden_size=48, intermediate_size=32, moe_intermediate_size=32,
            num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1, moe_k=2,
            moe_num_experts=4, moe_num_shared_experts=0, moe_layer_start_index=0,
            moe_layer_interval=2, moe_layer_end_index=2, rms_norm_eps=1e-6,
            tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=1e4),
            **COMMON)),
    # a shared expert beside those that are chosen
    "hunyuan-moe": dict(
        cls=HunYuanMoEV1ForCausalLM, dtype=torch.bfloat16, prompts=SHORTEST,
        config=lambda: HunYuanMoEV1Config(
            vocab_size=260, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=6,
            moe_topk=3, rms_norm_eps=1e-5, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, alpha=50.0, factor=1.0), **COMMON)),
    # choices as a list with a number for each layer, two of five experts, untied
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
    # no shared expert, biases, untied
    "granite-moe-unshared": dict(
        cls=GraniteMoeSharedForCausalLM, dtype=torch.float16, prompts=SHORTEST,
        config=lambda: GraniteMoeSharedConfig(
            vocab_size=260, hidden_size=48, intermediate_size=32, shared_intermediate_size=0,
            num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
            num_local_experts=4, num_experts_per_tok=3, residual_multiplier=0.5,
            attention_bias=True, rms_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)),
    # the sparse mixer with a jitter noise at which further experts often enter a softmax, layer norms, biases of
    # attention and of the head
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
