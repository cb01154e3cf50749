"""Makes tests/golden/gguf/: what the readers of GGUF and safetensors are tested against.

types.gguf    one tensor of every type that is read, random blocks with sane scales
types.f32     what the gguf package dequantizes them to, f32 little endian, in the file's order
ARCH/         the same tiny random model as a Hugging Face directory (hf/) and as model.gguf:
              llama (one file), mixtral (two shards), qwen3moe (two shards, experts interleaved),
              llama3 (rotary factors in a tensor), qwen2 (biases), qwen3, gpt-oss (plain experts as
              its directories store them, YaRN)
quantized/    the mixtral model's linears and head in Q8_0, in Q4_0, and in Q4_0 with Q4_1 in its
              down projections
versions.json the packages that made them

Needs numpy, gguf and safetensors. Run it from anywhere: python make_gguf_goldens.py [ARCH...]
"""
import json
import pathlib
import sys

import gguf
import numpy as np
import safetensors
from gguf import GGMLQuantizationType as Q
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent / "gguf"
N_COLS, N_ROWS = 512, 3

# byte offsets of the f16 scales in a block
SCALES = {Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q8_0: [0],
          Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208], Q.Q2_K: [80, 82], Q.Q3_K: [108],
          Q.IQ4_NL: [0], Q.IQ4_XS: [0], Q.MXFP4: []}


def random_blocks(rng, kind):
    block_elems, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    n = N_ROWS * N_COLS // block_elems
    blocks = rng.integers(0, 256, (n, block_bytes), dtype=np.uint8)
    for offset in SCALES[kind]:
        scales = (rng.standard_normal(n) * 0.05).astype(np.float16)
        scales[0] = np.float16(-6e-8)  # a subnormal
        blocks[:, offset:offset + 2] = scales.view(np.uint8).reshape(n, 2)
    if kind == Q.MXFP4:  # exponents, including the two smallest
        blocks[:, 0] = [0, 1, 2, *rng.integers(100, 140, n - 3)]
    return blocks.reshape(N_ROWS, -1)


def make_types():
    rng = np.random.default_rng(5)
    writer = gguf.GGUFWriter(HERE / "types.gguf", "test")
    add_values(writer)
    expected = []
    for kind in SCALES:
        data = random_blocks(rng, kind)
        writer.add_tensor(f"t.{kind.name}", data, raw_dtype=kind)
        expected.append(gguf.quants.dequantize(data, kind).astype("<f4"))
    plain = rng.standard_normal((N_ROWS, N_COLS)).astype(np.float32)
    writer.add_tensor("t.F32", plain)
    writer.add_tensor("t.F16", plain.astype(np.float16))
    bf16 = (plain.view(np.uint32) >> 16).astype(np.uint16)
    writer.add_tensor("t.BF16", bf16.view(np.uint8).reshape(N_ROWS, -1), raw_dtype=Q.BF16)
    expected += [plain, plain.astype(np.float16).astype(np.float32),
                 (bf16.astype(np.uint32) << 16).view(np.float32)]
    finish(writer)
    np.concatenate([e.reshape(-1) for e in expected]).astype("<f4").tofile(HERE / "types.f32")


def add_values(writer):
    """One key of every metadata type."""
    writer.add_uint8("v.u8", 200)
    writer.add_int8("v.i8", -7)
    writer.add_uint16("v.u16", 60000)
    writer.add_int16("v.i16", -30000)
    writer.add_uint32("v.u32", 4000000000)
    writer.add_int32("v.i32", -2000000000)
    writer.add_float32("v.f32", 1.5)
    writer.add_bool("v.bool", True)
    writer.add_string("v.string", "z\u00fcrich")
    writer.add_uint64("v.u64", 2**64 - 1)
    writer.add_int64("v.i64", -(2**62))
    writer.add_float64("v.f64", -0.1)
    writer.add_array("v.strings", ["a", "", "ccc"])
    writer.add_array("v.ints", [3, -1, 2])


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


D, H, G, HD, F, E, V = 32, 4, 2, 8, 64, 4, 60
ONE_FILE = ("llama", "llama3", "qwen2", "qwen3", "gpt-oss")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 32}


def weights(rng, arch):
    """Random weights under Hugging Face's names in f16; norms, biases and sinks are f32."""
    def w(*shape):
        return rng.standard_normal(shape).astype(np.float16)

    def norm(n):
        return rng.standard_normal(n).astype(np.float32)

    p = "model.layers.0."
    t = {"model.embed_tokens.weight": w(V, D), "model.norm.weight": norm(D),
         p + "input_layernorm.weight": norm(D), p + "post_attention_layernorm.weight": norm(D),
         p + "self_attn.q_proj.weight": w(H * HD, D), p + "self_attn.k_proj.weight": w(G * HD, D),
         p + "self_attn.v_proj.weight": w(G * HD, D), p + "self_attn.o_proj.weight": w(D, H * HD)}
    if arch in ("qwen2", "gpt-oss"):
        for name, n in (("q", H * HD), ("k", G * HD), ("v", G * HD)):
            t[p + f"self_attn.{name}_proj.bias"] = norm(n)
    if arch == "qwen3":
        t[p + "self_attn.q_norm.weight"] = norm(HD)
        t[p + "self_attn.k_norm.weight"] = norm(HD)
    if arch == "gpt-oss":
        t.update({"lm_head.weight": w(V, D), p + "self_attn.o_proj.bias": norm(D),
                  p + "self_attn.sinks": norm(H), p + "mlp.router.weight": w(E, D),
                  p + "mlp.router.bias": norm(E),
                  p + "mlp.experts.gate_up_proj": w(E, D, 2 * F),
                  p + "mlp.experts.gate_up_proj_bias": norm(E * 2 * F).reshape(E, 2 * F),
                  p + "mlp.experts.down_proj": w(E, F, D),
                  p + "mlp.experts.down_proj_bias": norm(E * D).reshape(E, D)})
        return t
    if arch in ONE_FILE:
        for name, shape in (("gate_proj", (F, D)), ("up_proj", (F, D)), ("down_proj", (D, F))):
            t[p + f"mlp.{name}.weight"] = w(*shape)
        return t
    t["lm_head.weight"] = w(V, D)
    if arch == "mixtral":
        inner, names = "block_sparse_moe", ("w1", "w3", "w2")
    else:
        inner, names = "mlp", ("gate_proj", "up_proj", "down_proj")
        t[p + "self_attn.q_norm.weight"] = norm(HD)
        t[p + "self_attn.k_norm.weight"] = norm(HD)
    t[p + inner + ".gate.weight"] = w(E, D)
    for e in range(E):
        for name, shape in zip(names, ((F, D), (F, D), (D, F))):
            t[p + f"{inner}.experts.{e}.{name}.weight"] = w(*shape)
    return t


def config(arch):
    c = {"llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
         "llama3": {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                    "rope_scaling": LLAMA3},
         "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
         "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
         "gpt-oss": {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
                     "num_local_experts": E, "num_experts_per_tok": 2, "attention_bias": True,
                     "sliding_window": 16, "rope_scaling": YARN},
         "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
                     "num_local_experts": E, "num_experts_per_tok": 2},
         "qwen3moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
                      "num_experts": E, "num_experts_per_tok": 2, "moe_intermediate_size": F,
                      "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
         }[arch]
    c.update({"hidden_size": D, "intermediate_size": F, "num_hidden_layers": 1,
              "num_attention_heads": H, "num_key_value_heads": G, "head_dim": HD, "vocab_size": V,
              "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
              "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu",
              "tie_word_embeddings": arch in ONE_FILE and arch != "gpt-oss"})
    return c


def save_hf(folder, arch, t):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(arch), indent=1))
    (folder / "generation_config.json").write_text('{"eos_token_id": [1]}')
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    if arch in ONE_FILE:
        save_file(t, folder / "model.safetensors")
        return
    names = sorted(t)
    shards = [names[0::2], names[1::2]]
    index = {"metadata": {}, "weight_map": {}}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        save_file({n: t[n] for n in shard}, folder / file)
        index["weight_map"].update({n: file for n in shard})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


GGUF_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
              "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
              "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
              "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
              "mlp.router": "ffn_gate_inp", "self_attn.sinks": "attn_sinks",
              "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp"}
EXPERT_NAMES = {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
                "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps",
                "down_proj": "ffn_down_exps"}


def paired(w, n_heads):
    """Reorders the rows of each head from halves (rotate-half) to pairs (interleaved rotation)."""
    return w.reshape(n_heads, 2, w.shape[0] // n_heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def oss_experts(name, w):
    """Splits gpt-oss's fused tensors into those of GGUF, with experts as [E, out, in]."""
    kind = "bias" if name.endswith("_bias") else "weight"
    w = w if kind == "bias" else w.swapaxes(1, 2)
    if "gate_up" not in name:
        return {f"blk.0.ffn_down_exps.{kind}": np.ascontiguousarray(w)}
    return {f"blk.0.ffn_gate_exps.{kind}": np.ascontiguousarray(w[:, 0::2]),
            f"blk.0.ffn_up_exps.{kind}": np.ascontiguousarray(w[:, 1::2])}


def llama3_factors():
    """The divisors of the plain frequencies."""
    plain = 50000.0 ** -(np.arange(0, HD, 2) / HD)
    turns = LLAMA3["original_max_position_embeddings"] * plain / (2 * np.pi)
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / LLAMA3["factor"] + smooth)).astype(np.float32)


def gguf_tensors(arch, t):
    out, experts = {}, {}
    if arch == "llama3":
        out["rope_freqs.weight"] = llama3_factors()
    for name, w in t.items():
        stem, kind = name.removesuffix(".weight"), "weight"
        if ".experts.gate_up_proj" in name or ".experts.down_proj" in name:
            out.update(oss_experts(name, w))
            continue
        if stem.endswith(".bias"):
            stem, kind = stem.removesuffix(".bias"), "bias"
        if stem == "model.embed_tokens":
            out["token_embd.weight"] = w
        elif stem == "model.norm":
            out["output_norm.weight"] = w
        elif stem == "lm_head":
            out["output.weight"] = w
        elif ".experts." in stem:
            number, inner = stem.split(".experts.")[1].split(".")
            experts.setdefault(EXPERT_NAMES[inner], {})[int(number)] = w
        else:
            inner = stem.removeprefix("model.layers.0.")
            if arch in ("llama", "llama3", "mixtral") and inner in ("self_attn.q_proj", "self_attn.k_proj"):
                w = paired(w, H if inner == "self_attn.q_proj" else G)
            name = GGUF_NAMES[inner]
            if arch == "gpt-oss" and name == "ffn_norm":
                name = "post_attention_norm"
            out[f"blk.0.{name}.{kind}"] = w
    for name, group in experts.items():
        out[f"blk.0.{name}.weight"] = np.stack([group[e] for e in range(E)])
    return out


def is_linear(name):
    return "norm" not in name and name not in ("token_embd.weight", "blk.0.ffn_gate_inp.weight")


def add_weight(writer, name, w, kind):
    """kind: None, or the type of the linears; "Q4_1 down" means Q4_0, with Q4_1 in the down
    projections.
    """
    if kind is None or not is_linear(name):
        writer.add_tensor(name, w)
        return
    mixed = kind == "Q4_1 down"
    one = Q.Q4_1 if mixed and "ffn_down" in name else Q.Q4_0 if mixed else kind
    writer.add_tensor(name, gguf.quants.quantize(w.astype(np.float32), one), raw_dtype=one)


def save_gguf(path, arch, t, kind=None):
    writer = gguf.GGUFWriter(path, "llama" if arch in ("llama3", "mixtral") else arch)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(F)
    writer.add_head_count(H)
    writer.add_head_count_kv(G)
    writer.add_key_length(HD)
    writer.add_value_length(HD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    if arch == "gpt-oss":
        writer.add_sliding_window(16)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(YARN["factor"])
        writer.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
    if arch in ("mixtral", "qwen3moe", "gpt-oss"):
        writer.add_expert_count(E)
        writer.add_expert_used_count(2)
    if arch in ("qwen3moe", "gpt-oss"):
        writer.add_expert_feed_forward_length(F)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<bos>", "<eos>"] + [chr(33 + i) for i in range(V - 4)] + ["!\"", "#$"])
    writer.add_token_types([3, 3] + [1] * (V - 2))
    writer.add_token_merges(["! \"", "# $"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages }}")
    for name, w in gguf_tensors(arch, t).items():
        add_weight(writer, name, w, kind)
    finish(writer)


def main():
    HERE.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) < 2:
        make_types()
    for i, arch in enumerate(("llama", "mixtral", "qwen3moe", "llama3", "qwen2", "qwen3",
                              "gpt-oss")):
        if len(sys.argv) > 1 and arch not in sys.argv[1:]:
            continue
        t = weights(np.random.default_rng(20 + i), arch)
        save_hf(HERE / arch / "hf", arch, t)
        save_gguf(HERE / arch / "model.gguf", arch, t)
        if arch == "mixtral":
            (HERE / "quantized").mkdir(exist_ok=True)
            for name, kind in (("q8_0", Q.Q8_0), ("q4_0", Q.Q4_0), ("mixed", "Q4_1 down")):
                save_gguf(HERE / "quantized" / f"{name}.gguf", arch, t, kind)
    versions = {"numpy": np.__version__, "safetensors": safetensors.__version__,
                "gguf": __import__("importlib.metadata").metadata.version("gguf")}
    (HERE / "versions.json").write_text(json.dumps(versions) + "\n")
    for path in HERE.rglob("*.*"):
        if path.is_file():
            path.chmod(0o644)


if __name__ == "__main__":
    main()
