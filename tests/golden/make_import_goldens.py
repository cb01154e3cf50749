#!/usr/bin/env python3
"""Makes tests/golden/imports: one tiny Llama quantized by the makers of each foreign layout.

Each case NAME gets
  hf/            config.json with quantization_config, model.safetensors
  golden.json    XXH3-128 of every weight as the maker's own code dequantizes it (in the model's type),
                 versions
  logits.0.i24   transformers' logits of a sequence in f32 with those weights: [T, V] (logits_file.py)
  sequences.jsonl  that sequence: input of `shoal score`
mxfp4 and dsv4 have no logits: their tensors are those of other families than the Llama here.

Packed and dequantized by: auto-gptq 0.7.1 (qlinear_cuda, on the CPU), autoawq 0.2.9 (gemm),
compressed-tensors, transformers (fp8, MXFP4, DeepSeek-V4's fp4). GPTQ's version 2 differs from version 1 in the zero
points alone, which its packages say are stored as they are. The first two no longer import as whole
packages, so their modules are loaded alone.

usage: make_import_goldens.py OUT AUTO_GPTQ_FOLDER AWQ_FOLDER   (folders of the unpacked packages)
"""
import json
import sys
import types
from importlib.metadata import version
from pathlib import Path

import torch
import xxhash
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from logits_file import pack_logits

D, F, H, G, HD, V, T = 64, 192, 4, 2, 16, 32, 24
LINEARS = {"self_attn.q_proj": (H * HD, D), "self_attn.k_proj": (G * HD, D),
           "self_attn.v_proj": (G * HD, D), "self_attn.o_proj": (D, H * HD),
           "mlp.gate_proj": (F, D), "mlp.up_proj": (F, D), "mlp.down_proj": (D, F)}


def stub(name, folder):
    """A package whose __init__.py is not run."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def weights(seed, dtype):
    g = torch.Generator().manual_seed(seed)
    p = "model.layers.0."
    t = {"model.embed_tokens.weight": torch.randn(V, D, generator=g),
         "model.norm.weight": 1 + 0.3 * torch.randn(D, generator=g)}
    for name in ("input_layernorm", "post_attention_layernorm"):
        t[p + name + ".weight"] = 1 + 0.3 * torch.randn(D, generator=g)
    for name, (n_out, n_in) in LINEARS.items():
        t[p + name + ".weight"] = torch.randn(n_out, n_in, generator=g) / n_in ** 0.5
    return {k: v.to(dtype) for k, v in t.items()}


def ranges(w, group):
    """The smallest value of each group, at most 0, and the largest, at least 0: [out, groups]."""
    parts = w.float().reshape(w.shape[0], -1, group)
    return parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)


def integer_params(w, bits, group, sym):
    """Scales and zero points [out, groups], and w rounded with them, which the packing code
    expects.
    """
    low, high = ranges(w, group)
    top = 2 ** bits - 1
    scale = (2 * torch.maximum(-low, high) / top if sym else (high - low) / top).half()
    wide = scale.float()
    zero = torch.round(-low / wide).clamp(1, top)
    if sym:
        zero = torch.full_like(zero, 2 ** (bits - 1))
    parts = w.float().reshape(*scale.shape, group)
    code = (torch.round(parts / wide[..., None]) + zero[..., None]).clamp(0, top)
    return scale, zero, ((code - zero[..., None]) * wide[..., None]).reshape(w.shape)


# ---- the makers: each gives the stored tensors of one linear and its dequantized weight ----

def gptq(w, name, bits=4, group=32, sym=True, act_order=False, v2=False):
    from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear
    n_out, n_in = w.shape
    size = n_in if group == -1 else group
    g_idx = torch.arange(n_in, dtype=torch.int32) // size
    order = torch.randperm(n_in, generator=torch.Generator().manual_seed(n_in + n_out))
    if not act_order:
        order = torch.arange(n_in)
    scale, zero, rounded = integer_params(w[:, order], bits, size, sym)
    linear = torch.nn.Linear(n_in, n_out, bias=False)
    linear.weight.data[:, order] = rounded
    layer = QuantLinear(bits, group, n_in, n_out, False, weight_dtype=torch.float16)
    spread = torch.empty_like(g_idx)
    spread[order] = g_idx
    layer.pack(linear, scale.float(), zero, spread)
    layer.scales = layer.scales.half()
    value = layer(torch.eye(n_in, dtype=torch.float16)).T.contiguous()
    zeros = layer.qzeros
    if v2:
        shifts = torch.arange(0, 32, bits)
        codes = (zeros.long().unsqueeze(-1) >> shifts) + 1 & 2 ** bits - 1
        zeros = (codes << shifts).sum(-1).to(torch.uint32).view(torch.int32)
    return {"qweight": layer.qweight, "qzeros": zeros, "scales": layer.scales,
            "g_idx": layer.g_idx}, value


def awq(w, name, group=32):
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm
    scale, zero, rounded = integer_params(w, 4, group, False)
    linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    linear.weight.data = rounded
    layer = WQLinear_GEMM.from_linear(linear, 4, group, scales=scale.T.contiguous(),
                                      zeros=zero.T.contiguous())
    value = dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, 4, group).T.contiguous()
    return {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales}, value


def compressed(w, name, compressor, ignore=(), **args):
    import compressed_tensors.compressors as compressors
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    if any(word in name for word in ignore):
        return {"weight": w}, w
    args = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    group = args.group_size or w.shape[1]
    low, high = ranges(w, group)
    if args.strategy == "tensor":
        low, high = low.amin().reshape(1), high.amax().reshape(1)
    elif args.strategy == "block":
        pad = torch.zeros(-(-w.shape[0] // 128) * 128, -(-w.shape[1] // 128) * 128)
        pad[:w.shape[0], :w.shape[1]] = w.float()
        blocks = pad.reshape(pad.shape[0] // 128, 128, -1, 128)
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    scale, zero = calculate_qparams(low, high, args)
    own = getattr(compressors, compressor)
    stored = own.compress({"weight": w, "weight_scale": scale.to(w.dtype),
                           "weight_zero_point": zero}, scheme)
    return stored, own.decompress(dict(stored), scheme)["weight"]


def fp8_blocks(w, name):
    """DeepSeek's: a scale for each 128 x 128, blocks cut off at the ends."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    rows, cols = -(-w.shape[0] // 128), -(-w.shape[1] // 128)
    scale, code = torch.empty(rows, cols), torch.empty(w.shape, dtype=torch.float8_e4m3fn)
    value = torch.empty_like(w)
    for i in range(rows):
        for j in range(cols):
            at = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
            scale[i, j] = w[at].float().abs().max() / 448
            code[at] = (w[at].float() / scale[i, j]).to(torch.float8_e4m3fn)
            value[at] = Fp8Dequantize(None)._dequantize_one(code[at], scale[i:i + 1, j:j + 1],
                                                            w.dtype)
    return {"weight": code, "weight_scale_inv": scale}, value


def fp8_plain(w, name, dtype):
    code = w.to(dtype)
    return {"weight": code}, code.to(w.dtype)


def group_config(fmt, **args):
    return {"quant_method": "compressed-tensors", "format": fmt, "ignore": ["lm_head"],
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": args,
                                          "input_activations": None}}}


def case_list():
    def gptq_config(bits, group, sym, act_order, fmt):
        return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym,
                "desc_act": act_order, "checkpoint_format": fmt}
    f16, bf16 = torch.float16, torch.bfloat16
    int4 = dict(num_bits=4, type="int", symmetric=False, strategy="group", group_size=32)
    int4_sym = dict(int4, symmetric=True, group_size=64)
    int8 = dict(num_bits=8, type="int", symmetric=True, strategy="channel")
    int8_asym = dict(int8, symmetric=False)
    fp8 = dict(num_bits=8, type="float", symmetric=True, strategy="channel")
    fp8_tensor, fp8_block = dict(fp8, strategy="tensor"), dict(fp8, strategy="block",
                                                               block_structure=[128, 128])
    pack, naive, floats = ("PackedQuantizationCompressor", "IntQuantizationCompressor",
                           "FloatQuantizationCompressor")
    return {
        "gptq": (f16, lambda w, n: gptq(w, n), gptq_config(4, 32, True, False, "gptq")),
        "gptq-act": (f16, lambda w, n: gptq(w, n, sym=False, act_order=True),
                     gptq_config(4, 32, False, True, "gptq")),
        "gptq-all": (f16, lambda w, n: gptq(w, n, group=-1, sym=False),
                     gptq_config(4, -1, False, False, "gptq")),
        "gptq-v2-8": (f16, lambda w, n: gptq(w, n, bits=8, sym=False, v2=True),
                      gptq_config(8, 32, False, False, "gptq_v2")),
        "awq": (f16, awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm",
                           "zero_point": True, "modules_to_not_convert": None}),
        "ct-int4": (bf16, lambda w, n: compressed(w, n, pack, ["down_proj"], **int4),
                    group_config("pack-quantized", **int4)),
        "ct-int4-sym": (bf16, lambda w, n: compressed(w, n, pack, **int4_sym),
                        group_config("pack-quantized", **int4_sym)),
        "ct-pack8": (bf16, lambda w, n: compressed(w, n, pack, **int8),
                     group_config("pack-quantized", **int8)),
        "ct-int8": (bf16, lambda w, n: compressed(w, n, naive, **int8),
                    group_config("int-quantized", **int8)),
        "ct-int8-asym": (bf16, lambda w, n: compressed(w, n, naive, **int8_asym),
                         group_config("int-quantized", **int8_asym)),
        "ct-fp8": (bf16, lambda w, n: compressed(w, n, floats, **fp8),
                   group_config("float-quantized", **fp8)),
        "ct-fp8-tensor": (bf16, lambda w, n: compressed(w, n, floats, **fp8_tensor),
                          group_config("float-quantized", **fp8_tensor)),
        "ct-fp8-block": (bf16, lambda w, n: compressed(w, n, floats, **fp8_block),
                         group_config("float-quantized", **fp8_block)),
        "fp8-blocks": (bf16, fp8_blocks, {"quant_method": "fp8", "fmt": "e4m3",
                                          "activation_scheme": "dynamic",
                                          "weight_block_size": [128, 128]}),
        "fp8-e4m3": (bf16, lambda w, n: fp8_plain(w, n, torch.float8_e4m3fn), None),
        "fp8-e5m2": (bf16, lambda w, n: fp8_plain(w, n, torch.float8_e5m2), None),
    }


def hashes(tensors):
    """Hashes of the tensors, with -0 replaced by 0, because shoal's MXFP4 has no -0."""
    return {name: xxhash.xxh3_128_hexdigest((t + 0.0).contiguous().view(torch.uint8).numpy().tobytes())
            for name, t in sorted(tensors.items())}


def write(folder, config, stored, values, dtype, extra):
    (folder / "hf").mkdir(parents=True, exist_ok=True)
    (folder / "hf" / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file({k: v.contiguous() for k, v in stored.items()}, folder / "hf" / "model.safetensors")
    golden = {"dtype": dtype, "weights": hashes(values), **extra}
    golden["versions"] = {p: version(p) for p in ("torch", "transformers", "compressed-tensors")}
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


def write_case(folder, dtype, maker, quantization):
    config = LlamaConfig(vocab_size=V, hidden_size=D, intermediate_size=F, num_hidden_layers=1,
                         num_attention_heads=H, num_key_value_heads=G, head_dim=HD,
                         max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True,
                         bos_token_id=None, eos_token_id=None, pad_token_id=None)
    stored, values = {}, {}
    for name, w in weights(7, dtype).items():
        if not any(f".{linear}." in name for linear in LINEARS):
            stored[name] = values[name] = w
            continue
        parts, values[name] = maker(w, name)
        for part, t in parts.items():
            stored[name.removesuffix("weight") + part] = t
        assert values[name].dtype == dtype and values[name].shape == w.shape
        error = (values[name].float() - w.float()).abs().max() / w.float().abs().max()
        assert error < 0.3, (name, error)
    model = LlamaForCausalLM(config).eval()
    state = {k: v.float() for k, v in values.items()}
    model.load_state_dict(dict(state, **{"lm_head.weight": state["model.embed_tokens.weight"]}))
    ids = torch.randint(0, V, (T,), generator=torch.Generator().manual_seed(3)).tolist()
    logits = model(torch.tensor([ids])).logits[0]
    settings = json.loads(config.to_json_string(use_diff=False))
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
            "rms_norm_eps", "tie_word_embeddings", "hidden_act", "model_type")
    settings = {k: settings[k] for k in keys} | {
        "architectures": ["LlamaForCausalLM"], "rope_theta": 10000.0,
        "torch_dtype": str(dtype).removeprefix("torch.")}
    if quantization is not None:
        settings["quantization_config"] = quantization
    write(folder, settings, stored, values, "bf16" if dtype == torch.bfloat16 else "f16", {})
    (folder / "logits.0.i24").write_bytes(pack_logits(logits.numpy()))
    line = {"custom_id": "p0", "prompt_token_ids": ids}
    (folder / "sequences.jsonl").write_text(json.dumps(line) + "\n")
    print(folder.name, sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()), "bytes")


def write_mxfp4(folder):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    g = torch.Generator().manual_seed(5)
    stored, values = {}, {}
    for name, shape in (("gate_up_proj", (2, 64, 2, 16)), ("down_proj", (2, 64, 1, 16))):
        stem = f"model.layers.0.mlp.experts.{name}"
        blocks = torch.randint(0, 256, shape, generator=g, dtype=torch.uint8)
        scales = torch.randint(110, 135, shape[:3], generator=g, dtype=torch.uint8)
        stored[stem + "_blocks"], stored[stem + "_scales"] = blocks, scales
        # theirs is [E, in, out], with gate and up alternating
        value = convert_moe_packed_tensors(blocks, scales).transpose(1, 2)
        parts = {"down_proj": value}
        if name == "gate_up_proj":
            parts = {"gate_proj": value[:, 0::2], "up_proj": value[:, 1::2]}
        for part, one in parts.items():
            values[f"model.layers.0.mlp.experts.{part}.weight"] = one
    config = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64,
              "num_attention_heads": 4, "head_dim": 16, "torch_dtype": "bfloat16",
              "quantization_config": {"quant_method": "mxfp4"}}
    write(folder, config, stored, values, "bf16", {})


def write_dsv4(folder):
    """A linear in fp8 and experts in fp4, as DeepSeek-V4 is published."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    dequantize = Fp8Dequantize(None)._dequantize_one
    g = torch.Generator().manual_seed(6)
    stored, values = {}, {}

    def add(name, shape, dtype, scale_shape):
        codes = torch.randint(0, 256, shape, generator=g, dtype=torch.uint8)
        if dtype != torch.int8:
            codes[codes % 128 == 127] = 0  # NaN
        scales = torch.randint(110, 135, scale_shape, generator=g, dtype=torch.uint8)
        stored[name + ".weight"], stored[name + ".scale"] = codes.view(dtype), scales.view(torch.float8_e8m0fnu)
        return dequantize(stored[name + ".weight"], stored[name + ".scale"], torch.bfloat16)

    values["model.layers.0.self_attn.q_a_proj.weight"] = add("layers.0.attn.wq_a", (128, 256), torch.float8_e4m3fn, (1, 2))
    for w, name, n_out, n_in in ("w1", "gate", 32, 256), ("w2", "down", 256, 32), ("w3", "up", 32, 256):
        values[f"model.layers.0.mlp.experts.{name}_proj.weight"] = torch.stack(
            [add(f"layers.0.ffn.experts.{e}.{w}", (n_out, n_in // 2), torch.int8, (n_out, n_in // 32)) for e in range(2)])
    config = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 256,
              "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 32,
              "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000, "compress_rope_theta": 160000,
              "q_lora_rank": 128, "qk_rope_head_dim": 16, "head_dim": 32, "n_routed_experts": 2, "num_experts_per_tok": 2,
              "moe_intermediate_size": 32, "n_shared_experts": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
              "compress_ratios": [0], "num_hash_layers": 0, "o_groups": 2, "o_lora_rank": 32, "index_topk": 8,
              "index_n_heads": 2, "index_head_dim": 16, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20,
              "sliding_window": 16, "swiglu_limit": 10.0, "torch_dtype": "bfloat16", "expert_dtype": "fp4",
              "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                      "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}}
    write(folder, config, stored, values, "bf16", {})


def main():
    out, auto_gptq, awq_folder = map(Path, sys.argv[1:4])
    stub("auto_gptq", auto_gptq)
    for name in ("nn_modules", "nn_modules.qlinear"):
        stub(f"auto_gptq.{name}", auto_gptq / name.replace(".", "/"))
    stub("awq", awq_folder)
    for name in ("modules", "modules.linear", "utils"):
        stub(f"awq.{name}", awq_folder / name.replace(".", "/"))
    torch.set_num_threads(1)
    with torch.no_grad():
        for name, (dtype, maker, quantization) in case_list().items():
            write_case(out / name, dtype, maker, quantization)
        write_mxfp4(out / "mxfp4")
        write_dsv4(out / "dsv4")


if __name__ == "__main__":
    main()
