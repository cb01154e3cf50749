#!/usr/bin/env python3
"""Writes the models of the benchmark: random weights in files that shoal reads, and llama.cpp where it can.

usage: models.py FOLDER [--shapes A,B,C,D] [--types F16,Q8_0,Q4_0] [--layers N] [--experts N] [--context N]

Writes FOLDER/<shape>.<type>.gguf; for the types fp8 and int4 a Hugging Face folder FOLDER/<shape>.<type>. What exists is
kept. Shapes A to D take F16, Q8_0, Q4_0, E Q8_0 and Q4_0, G MXFP4, F and H fp8, int4 and Q4_0 (F in fp8 takes 13 GB, H
18 GB). Weights are normal with mean 0, with a spread that keeps activations near 1; the same weights are rounded to
each type. In GGUF matrices have the file's type, embedding and head included; norms and routers are F32, as llama.cpp
keeps them; with MXFP4 all but experts, in F and H embedding and head are BF16, as they are published.
--layers and --experts make smaller models of the same widths (F with 32 experts: 3 GB in fp8), for machines with less memory.
GGUF's tokenizer is a vocabulary of the right size and nothing more. Memory stays below 300 MB. Needs numpy and gguf.
"""
import argparse
import math
import pathlib
import shutil

import models_gguf
import models_hf
from models_weights import Tensor

LATENT = dict(arch="deepseek2", layers=2, dense_layers=1, width=7168, head_dim=128, rotary=64, q_rank=1536,
              kv_rank=512, ffn=18432, expert_ffn=2048, chosen=8, vocab=32000, tied=False, embed=1.0)
# A is SmolLM2-135M, B TinyLlama-1.1B, C is like Qwen3-MoE, D like Mixtral. The layers of E to H are
# as wide as those of Qwen3-235B, DeepSeek-V3, gpt-oss-120b and Kimi-K2.
SHAPES = {
    "A": dict(arch="llama", layers=30, width=576, heads=9, kv_heads=3, head_dim=64, ffn=1536, vocab=49152,
              tied=True, rope=1e5),
    "B": dict(arch="llama", layers=22, width=2048, heads=32, kv_heads=4, head_dim=64, ffn=5632, vocab=32000,
              tied=False, rope=1e4),
    "C": dict(arch="qwen3moe", layers=16, width=1024, heads=16, kv_heads=4, head_dim=64, ffn=384, expert_ffn=384,
              vocab=32000, tied=False, rope=1e6, experts=64, chosen=8),
    "D": dict(arch="llama", layers=12, width=1024, heads=16, kv_heads=4, head_dim=64, ffn=3584, expert_ffn=3584,
              vocab=32000, tied=False, rope=1e6, experts=8, chosen=2),
    "E": dict(arch="qwen3moe", layers=3, width=4096, heads=64, kv_heads=4, head_dim=128, ffn=1536, expert_ffn=1536,
              vocab=32000, tied=False, rope=1e6, experts=128, chosen=8, embed=1.0),
    "F": dict(**LATENT, heads=128, experts=256, groups=8, groups_chosen=4, routed_scale=2.5, rope=1e4),
    "G": dict(arch="gpt-oss", layers=4, width=2880, heads=64, kv_heads=8, head_dim=64, ffn=2880, expert_ffn=2880,
              vocab=32000, tied=False, rope=150000.0, experts=128, chosen=4, window=128, embed=1.0),
    "H": dict(**LATENT, heads=64, experts=384, groups=1, groups_chosen=1, routed_scale=2.827, rope=5e4),
}
NORM, BIAS = 0.1, 0.02  # spread of norms around 1 and of biases around 0


def matrix(name, dims, gain=1.0, role="matrix"):
    return Tensor(name + ".weight", dims, role, gain / math.sqrt(dims[-1]))


def norm(name, n):
    return Tensor(name + ".weight", (n,), "vector", NORM, 1.0)


def bias(name, *dims):
    return Tensor(name + ".bias", dims, "vector", BIAS)


def attention(s, p, into):
    """Adds the projections of the heads and the output projection, which has the gain `into`."""
    d, hd = s["width"], s["head_dim"]
    q, kv = s["heads"] * hd, s["kv_heads"] * hd
    has_bias = s["arch"] == "gpt-oss"
    for name, n in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
        yield matrix(p + name, (n, d))
        if has_bias:
            yield bias(p + name, n)
    if s["arch"] == "qwen3moe":
        yield norm(p + "attn_q_norm", hd)
        yield norm(p + "attn_k_norm", hd)
    yield matrix(p + "attn_output", (d, q), into)
    if has_bias:
        yield bias(p + "attn_output", d)
        yield Tensor(p + "attn_sinks.weight", (s["heads"],), "vector", 1.0)


def latent_attention(s, p, into):
    d, hd, heads = s["width"], s["head_dim"], s["heads"]
    yield matrix(p + "attn_q_a", (s["q_rank"], d))
    yield norm(p + "attn_q_a_norm", s["q_rank"])
    yield matrix(p + "attn_q_b", (heads * (hd + s["rotary"]), s["q_rank"]))
    yield matrix(p + "attn_kv_a_mqa", (s["kv_rank"] + s["rotary"], d))
    yield norm(p + "attn_kv_a_norm", s["kv_rank"])
    yield matrix(p + "attn_kv_b", (heads * 2 * hd, s["kv_rank"]))
    yield matrix(p + "attn_output", (d, heads * hd), into)


def dense_ffn(s, p, into):
    d, f = s["width"], s["ffn"]
    yield matrix(p + "ffn_gate", (f, d))
    yield matrix(p + "ffn_up", (f, d))
    yield matrix(p + "ffn_down", (d, f), into)


def experts(s, p, into):
    d, e, f = s["width"], s["experts"], s["expert_ffn"]
    has_bias = s["arch"] == "gpt-oss"
    yield matrix(p + "ffn_gate_inp", (e, d), 1.0, "router")
    if has_bias:
        yield bias(p + "ffn_gate_inp", e)
    for name, dims, gain in (("ffn_gate_exps", (e, f, d), 1.0), ("ffn_up_exps", (e, f, d), 1.0),
                             ("ffn_down_exps", (e, d, f), into)):
        yield matrix(p + name, dims, gain, "expert")
        if has_bias:
            yield bias(p + name, e, dims[1])
    if s["arch"] == "deepseek2":
        yield bias(p + "exp_probs_b", e)
        yield matrix(p + "ffn_gate_shexp", (f, d))
        yield matrix(p + "ffn_up_shexp", (f, d))
        yield matrix(p + "ffn_down_shexp", (d, f), into)


def tensors(s):
    """The model's tensors with GGUF's names."""
    d, into = s["width"], 1 / math.sqrt(2 * s["layers"])
    vocab = (s["vocab"], d)
    yield Tensor("token_embd.weight", vocab, "embed", s.get("embed", 1 / math.sqrt(d)))
    for i in range(s["layers"]):
        p = f"blk.{i}."
        yield norm(p + "attn_norm", d)
        yield from (latent_attention if s["arch"] == "deepseek2" else attention)(s, p, into)
        yield norm(p + ("post_attention_norm" if s["arch"] == "gpt-oss" else "ffn_norm"), d)
        yield from (experts if "experts" in s and i >= s.get("dense_layers", 0) else dense_ffn)(s, p, into)
    yield norm("output_norm", d)
    if not s["tied"]:
        yield matrix("output", vocab, 1.0, "embed")


def write(folder, shape, kind):
    """Writes one model and returns its path. The file appears under this path only when it is
    complete.
    """
    is_folder = kind in models_hf.QUANTIZATION
    path = folder / (f"{shape}.{kind}" if is_folder else f"{shape}.{kind}.gguf")
    part = path.with_name(path.name + ".part")
    if path.exists():
        return path
    if part.is_dir():
        shutil.rmtree(part)
    s = SHAPES[shape]
    (models_hf if is_folder else models_gguf).write(part, s, list(tensors(s)), kind, ord(shape))
    part.rename(path)
    return path


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--shapes", default="A,B,C,D")
    p.add_argument("--types", default="F16,Q8_0,Q4_0")
    p.add_argument("--layers", type=int)
    p.add_argument("--experts", type=int)
    p.add_argument("--context", type=int, default=models_gguf.CONTEXT, help="tokens of the longest context")
    a = p.parse_args()
    models_gguf.CONTEXT = models_hf.CONTEXT = a.context
    for shape in SHAPES.values():
        shape["layers"] = a.layers or shape["layers"]
        if "experts" in shape:
            shape["experts"] = a.experts or shape["experts"]
    a.folder.mkdir(parents=True, exist_ok=True)
    for shape in a.shapes.split(","):
        for kind in a.types.split(","):
            path = write(a.folder, shape, kind)
            files = path.iterdir() if path.is_dir() else [path]
            print(f"{path}: {sum(f.stat().st_size for f in files) / 1e9:.3f} GB", flush=True)


if __name__ == "__main__":
    main()
