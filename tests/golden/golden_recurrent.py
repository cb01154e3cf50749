"""The models of the goldens with recurrent layers."""
import torch
from transformers import (Qwen3NextConfig, Qwen3NextForCausalLM)

from golden_common import LONGER, LONG_CONTEXT

MODELS = {
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
        cls=Qwen3NextForCausalLM, dtype=torch.float16, prompts=LONGER, less_one=True,
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
}
