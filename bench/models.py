#!/usr/bin/env python3
"""Writes the models of the benchmark: random weights as GGUF files, which shoal and llama.cpp both read.

usage: models.py FOLDER [--shapes A,B,C,D] [--types F16,Q8_0,Q4_0]

Writes FOLDER/<shape>.<type>.gguf (C in F16 takes 2.7 GB). A file that exists is kept. Weights are normal, with
a spread that keeps activations near 1; the same weights are rounded to each type. Matrices have the
file's type, embedding and head included; norms and routers are F32, as llama.cpp keeps them.
The tokenizer is a vocabulary of the right size and nothing more. Needs numpy and gguf.
"""
import argparse
import pathlib

import gguf
import numpy as np

# A SmolLM2-135M, B TinyLlama-1.1B, C like Qwen3-MoE, D like Mixtral
SHAPES = {
    "A": dict(arch="llama", layers=30, width=576, heads=9, kv_heads=3, head_dim=64, ffn=1536, vocab=49152,
              tied=True, rope=1e5),
    "B": dict(arch="llama", layers=22, width=2048, heads=32, kv_heads=4, head_dim=64, ffn=5632, vocab=32000,
              tied=False, rope=1e4),
    "C": dict(arch="qwen3moe", layers=16, width=1024, heads=16, kv_heads=4, head_dim=64, ffn=384, vocab=32000,
              tied=False, rope=1e6, experts=64, chosen=8),
    "D": dict(arch="llama", layers=12, width=1024, heads=16, kv_heads=4, head_dim=64, ffn=3584, vocab=32000,
              tied=False, rope=1e6, experts=8, chosen=2),
}
CONTEXT = 2048
TYPES = {"F16": gguf.GGMLQuantizationType.F16, "Q8_0": gguf.GGMLQuantizationType.Q8_0,
         "Q4_0": gguf.GGMLQuantizationType.Q4_0}
BLOCK = 32  # elements that share a scale in Q8_0 and Q4_0


def as_f16(x):
    return x.astype(np.float16).view(np.uint8)


def as_q8_0(x):
    """Blocks of an f16 scale and 32 signed codes; the largest magnitude becomes 127."""
    blocks = x.reshape(-1, BLOCK)
    scale = np.abs(blocks).max(axis=1) / 127
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    out = np.empty((len(blocks), 2 + BLOCK), np.uint8)
    out[:, :2] = scale.astype(np.float16).view(np.uint8).reshape(-1, 2)
    out[:, 2:] = np.rint(blocks * inverse[:, None]).astype(np.int8).view(np.uint8)
    return out.reshape(*x.shape[:-1], -1)


def as_q4_0(x):
    """Blocks of an f16 scale and 32 codes of 4 bits with the offset 8: byte i holds element i in its low half
    and element i + 16 in its high half. The element of largest magnitude becomes -8."""
    blocks = x.reshape(-1, BLOCK)
    peak = blocks[np.arange(len(blocks)), np.abs(blocks).argmax(axis=1)]
    scale = peak / -8
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    codes = np.clip(np.floor(blocks * inverse[:, None] + 8.5), 0, 15).astype(np.uint8)
    out = np.empty((len(blocks), 2 + BLOCK // 2), np.uint8)
    out[:, :2] = scale.astype(np.float16).view(np.uint8).reshape(-1, 2)
    out[:, 2:] = codes[:, :16] | codes[:, 16:] << 4
    return out.reshape(*x.shape[:-1], -1)


ENCODE = {"F16": as_f16, "Q8_0": as_q8_0, "Q4_0": as_q4_0}


def tensors(s):
    """(name, shape, kind): kind is None for norms and routers, else the matrix's fan-in scale."""
    d, hd, n_layers = s["width"], s["head_dim"], s["layers"]
    q, kv, f = s["heads"] * hd, s["kv_heads"] * hd, s["ffn"]
    into = 1 / np.sqrt(2 * n_layers)  # of what is added to the residual stream
    yield "token_embd.weight", (s["vocab"], d), 1
    for i in range(n_layers):
        p = f"blk.{i}."
        yield p + "attn_norm.weight", (d,), None
        yield p + "attn_q.weight", (q, d), 1
        yield p + "attn_k.weight", (kv, d), 1
        yield p + "attn_v.weight", (kv, d), 1
        if s["arch"] == "qwen3moe":
            yield p + "attn_q_norm.weight", (hd,), None
            yield p + "attn_k_norm.weight", (hd,), None
        yield p + "attn_output.weight", (d, q), into
        yield p + "ffn_norm.weight", (d,), None
        if "experts" in s:
            e = s["experts"]
            yield p + "ffn_gate_inp.weight", (e, d), None
            yield p + "ffn_gate_exps.weight", (e, f, d), 1
            yield p + "ffn_up_exps.weight", (e, f, d), 1
            yield p + "ffn_down_exps.weight", (e, d, f), into
        else:
            yield p + "ffn_gate.weight", (f, d), 1
            yield p + "ffn_up.weight", (f, d), 1
            yield p + "ffn_down.weight", (d, f), into
    yield "output_norm.weight", (d,), None
    if not s["tied"]:
        yield "output.weight", (s["vocab"], d), 1


def values(seed, index, shape, scale):
    rng = np.random.default_rng([seed, index])
    if scale is None and len(shape) == 1:
        return 1 + 0.1 * rng.standard_normal(shape, dtype=np.float32)
    if scale is None:
        return rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1]))
    x = rng.standard_normal(shape, dtype=np.float32)
    x *= np.float32(scale / np.sqrt(shape[-1]))
    return x


def add_header(w, s):
    w.add_context_length(CONTEXT)
    w.add_embedding_length(s["width"])
    w.add_block_count(s["layers"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_key_length(s["head_dim"])
    w.add_value_length(s["head_dim"])
    w.add_rope_dimension_count(s["head_dim"])
    w.add_rope_freq_base(s["rope"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(s["vocab"])
    if "experts" in s:
        w.add_expert_count(s["experts"])
        w.add_expert_used_count(s["chosen"])
    if s["arch"] == "qwen3moe":
        w.add_expert_feed_forward_length(s["ffn"])


def byte_alphabet():
    """Byte-level BPE's letter for each byte: itself where it prints, else one from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in plain)
    letters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [letters[b] for b in range(256)]


def add_tokenizer(w, n):
    """An end token, the bytes, and as many pairs of bytes as the vocabulary has room for."""
    letters = byte_alphabet()
    pairs = [(a, b) for a in letters for b in letters][:n - 257]
    tokens = ["<end>", *letters, *(a + b for a, b in pairs)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (n - 1))
    w.add_token_merges([f"{a} {b}" for a, b in pairs])
    w.add_bos_token_id(0)
    w.add_eos_token_id(0)
    w.add_add_bos_token(False)


def write(path, shape, kind):
    s = SHAPES[shape]
    part = path.with_suffix(".part")
    w = gguf.GGUFWriter(part, s["arch"])
    add_header(w, s)
    add_tokenizer(w, s["vocab"])
    plan = list(tensors(s))
    for name, dims, scale in plan:
        raw = gguf.GGMLQuantizationType.F32 if scale is None else TYPES[kind]
        elems, n_bytes = gguf.GGML_QUANT_SIZES[raw]
        size = int(np.prod(dims)) // elems * n_bytes
        if scale is None:
            w.add_tensor_info(name, dims, np.dtype(np.float32), size)
        else:
            w.add_tensor_info(name, (*dims[:-1], dims[-1] // elems * n_bytes), np.dtype(np.uint8), size, raw)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for index, (_, dims, scale) in enumerate(plan):
        x = values(ord(shape), index, dims, scale)
        w.write_tensor_data(x if scale is None else ENCODE[kind](x))
    w.close()
    part.rename(path)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--shapes", default="A,B,C,D")
    p.add_argument("--types", default="F16,Q8_0,Q4_0")
    a = p.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    for shape in a.shapes.split(","):
        for kind in a.types.split(","):
            path = a.folder / f"{shape}.{kind}.gguf"
            if not path.exists():
                write(path, shape, kind)
            print(f"{path}: {path.stat().st_size / 1e9:.3f} GB", flush=True)


if __name__ == "__main__":
    main()
