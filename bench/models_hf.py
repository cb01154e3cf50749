"""Hugging Face folders of the benchmark's models with latent attention, as they are published: config.json and
model.safetensors. fp8: every linear in E4M3 with an f32 scale for each block of 128 x 128 (DeepSeek-V3). int4: every
linear in groups of 32, as compressed-tensors packs them (Kimi-K2-Thinking). Embedding and head are bf16, norms and
routers f32. There is no tokenizer. Used by models.py.
"""
import json

import numpy as np

from models_weights import BLOCK, Drawing

FP8_BLOCK = 128
CONTEXT = 8192
NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm", "attn_kv_b": "self_attn.kv_b_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj", "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj", "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
QUANTIZATION = {
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK]},
    "int4": {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
             "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                 "num_bits": 4, "group_size": BLOCK, "strategy": "group", "symmetric": True, "type": "int"}}}},
}


def config(s, kind):
    return {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
        "vocab_size": s["vocab"], "hidden_size": s["width"], "num_hidden_layers": s["layers"],
        "num_attention_heads": s["heads"], "num_key_value_heads": s["heads"], "q_lora_rank": s["q_rank"],
        "kv_lora_rank": s["kv_rank"], "qk_nope_head_dim": s["head_dim"], "qk_rope_head_dim": s["rotary"],
        "v_head_dim": s["head_dim"], "intermediate_size": s["ffn"], "first_k_dense_replace": s["dense_layers"],
        "moe_layer_freq": 1, "n_routed_experts": s["experts"], "num_experts_per_tok": s["chosen"],
        "moe_intermediate_size": s["expert_ffn"], "n_shared_experts": 1, "n_group": s["groups"],
        "topk_group": s["groups_chosen"], "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        "norm_topk_prob": True, "routed_scaling_factor": s["routed_scale"], "rope_theta": s["rope"],
        "rms_norm_eps": 1e-5, "max_position_embeddings": CONTEXT, "tie_word_embeddings": False,
        "hidden_act": "silu", "attention_bias": False, "eos_token_id": 0, "quantization_config": QUANTIZATION[kind],
    }


def hf_name(name):
    """blk.N.attn_q_a.weight -> model.layers.N.self_attn.q_a_proj.weight; {} stands for the expert."""
    parts = name.split(".")
    if parts[0] != "blk":
        return f"{NAMES[parts[0]]}.{parts[1]}"
    if parts[2] == "exp_probs_b":
        return f"model.layers.{parts[1]}.mlp.gate.e_score_correction_bias"
    return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"


def put(name, dtype, shape, data):
    """Adds a tensor to the file. data() yields the arrays that make up its bytes."""
    size = int(np.prod(shape)) * {"F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8}[dtype]
    return name, {"dtype": dtype, "shape": list(shape)}, size, data


def parts_of(t, name, drawing, kind):
    """The stored tensors of one weight, or of one expert of it."""
    rows, cols = (1, *t.dims)[-2:]
    n = rows * cols

    def codes():
        return drawing.chunks(n)

    if drawing.scale is None:
        yield put(name, drawing.kind, t.dims, codes)
    elif kind == "fp8":
        blocks = (-(-rows // FP8_BLOCK), -(-cols // FP8_BLOCK))
        yield put(name, "F8_E4M3", (rows, cols), codes)
        yield put(name + "_scale_inv", "F32", blocks, lambda: [np.full(blocks, drawing.scale, np.float32)])
    else:
        groups = (rows, cols // BLOCK)
        yield put(name + "_packed", "I32", (rows, cols // 8), codes)
        yield put(name + "_scale", "F16", groups, lambda: [np.full(groups, drawing.scale, np.float16)])
        yield put(name + "_shape", "I64", (2,), lambda: [np.array([rows, cols], np.int64)])


def tensors_of(plan, kind, seed):
    codes = {"fp8": "F8_E4M3", "int4": "Q4_0"}[kind]
    stored = {"vector": "F32", "router": "F32", "embed": "BF16", "matrix": codes, "expert": codes}
    for index, t in enumerate(plan):
        drawing = Drawing(stored[t.role], t, [seed, index], False)
        for expert in range(t.dims[0] if t.role == "expert" else 1):
            yield from parts_of(t, hf_name(t.name).format(expert), drawing, kind)


def write(folder, s, plan, kind, seed):
    """kind: fp8 or int4."""
    parts = list(tensors_of(plan, kind, seed))
    header, at = {}, 0
    for name, entry, size, _ in parts:
        header[name] = {**entry, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config(s, kind), indent=1), encoding="utf-8")
    with (folder / "model.safetensors").open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, _, _, data in parts:
            for chunk in data():
                chunk.tofile(f)
