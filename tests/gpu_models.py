#!/usr/bin/env python3
"""Writes models with random weights, for measuring speed on a GPU, as Hugging Face folders for
shoal convert. Needs only Python.

usage: gpu_models.py FOLDER SHAPE...
       gpu_models.py --ratio decode|prefill BENCH.json PEAKS.json
       gpu_models.py --sdpa ROWS HEADS HEAD_DIM
A shape is one of SHAPES; FOLDER/SHAPE is written unless it exists. --ratio prints the rate at
which shoal bench's first case read or computed, beside the GPU's peak (tests/cuda/peaks.cu).
--sdpa prints the seconds of torch's attention.
"""
import json
import random
import struct
import sys
from pathlib import Path

GOLDENS = Path(__file__).resolve().parent / "golden" / "models"
# The golden model whose config and tokenizer are used, and the changed fields.
SHAPES = {
    "tiny": ("llama-gqa", dict(num_hidden_layers=2)),
    "1b": ("llama-gqa", dict(hidden_size=2048, num_hidden_layers=22, num_attention_heads=32,
                             num_key_value_heads=4, head_dim=64, intermediate_size=5632,
                             vocab_size=32000, max_position_embeddings=8192)),
    "8b": ("llama-gqa", dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32,
                             num_key_value_heads=8, head_dim=128, intermediate_size=14336,
                             vocab_size=128256, max_position_embeddings=8192)),
    "8b-8": ("llama-gqa", dict(hidden_size=4096, num_hidden_layers=8, num_attention_heads=32,
                               num_key_value_heads=8, head_dim=128, intermediate_size=14336,
                               vocab_size=128256, max_position_embeddings=8192)),
    "moe": ("qwen3-moe", dict(hidden_size=2048, num_hidden_layers=4, num_attention_heads=32,
                              num_key_value_heads=4, head_dim=64, moe_intermediate_size=1024,
                              num_local_experts=64, num_experts_per_tok=8, vocab_size=32000,
                              max_position_embeddings=8192)),
}
# The high byte of a bf16 has its sign and all but the last bit of its exponent. These two make
# magnitudes from 2^-7 to 2^-5, of either sign.
HIGH = bytes(0x3C if b % 2 == 0 else 0xBC for b in range(256))


def tensors(c):
    """(name, shape) of all weights."""
    d, hd = c["hidden_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd
    is_moe = "num_local_experts" in c
    yield "model.embed_tokens.weight", (c["vocab_size"], d)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{p}{name}.weight", (d,)
        for name, shape in (("q", (q, d)), ("k", (kv, d)), ("v", (kv, d)), ("o", (d, q))):
            yield f"{p}self_attn.{name}_proj.weight", shape
        if is_moe:
            for name in ("q_norm", "k_norm"):
                yield f"{p}self_attn.{name}.weight", (hd,)
            yield f"{p}mlp.gate.weight", (c["num_local_experts"], d)
        experts = [f"experts.{e}." for e in range(c["num_local_experts"])] if is_moe else [""]
        f = c["moe_intermediate_size"] if is_moe else c["intermediate_size"]
        for e in experts:
            yield f"{p}mlp.{e}gate_proj.weight", (f, d)
            yield f"{p}mlp.{e}up_proj.weight", (f, d)
            yield f"{p}mlp.{e}down_proj.weight", (d, f)
    yield "model.norm.weight", (d,)
    yield "lm_head.weight", (c["vocab_size"], d)


def values(draw, n):
    """n random weights, in parts, since randbytes takes fewer than 2^28 bytes."""
    for at in range(0, n, 1 << 24):
        part = min(n - at, 1 << 24)
        out = bytearray(2 * part)
        out[0::2] = draw.randbytes(part)
        out[1::2] = draw.randbytes(part).translate(HIGH)
        yield out


def write(folder, shape):
    base, changes = SHAPES[shape]
    source = GOLDENS / base / "hf"
    config = json.loads((source / "config.json").read_text())
    config.update(changes, dtype="bfloat16")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "generation_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    header, at = {}, 0
    for name, dims in tensors(config):
        n = 2
        for x in dims:
            n *= x
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    draw = random.Random(7)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for entry in header.values():
            begin, end = entry["data_offsets"]
            out.writelines(values(draw, (end - begin) // 2))
    (folder / "config.json").write_text(json.dumps(config))  # last: marks a complete folder
    print(f"{folder}: {at / 1e9:.2f} GB")


def ratio(what, bench, peaks):
    """One line for the table."""
    run = json.loads(Path(bench).read_text())["cases"][0]["repetitions"]
    peak = json.loads(Path(peaks).read_text())
    best = min((r[what] for r in run), key=lambda r: r["seconds"])
    rate = best["tokens"] / best["seconds"]
    if what == "decode":
        has, most, unit = best["bytes"] / best["seconds"] * 1e-9, peak["copy_gbs"], "GB/s of the copy's"
    else:
        has, most, unit = best["flops"] / best["seconds"] * 1e-12, peak["chain_tflops"], "TFLOP/s of cuBLAS's"
    print(f"{rate:.0f} tok/s, {has:.1f} {unit} {most:.1f}: {100 * has / most:.0f} %" if most > 0 else
          f"{rate:.0f} tok/s, {has:.3f} {unit.split()[0]}")


def sdpa(rows, heads, head_dim):
    """Prints the seconds of torch's causal f16 attention over one sequence; fails without torch."""
    import torch
    q, k, v = (torch.randn(1, heads, rows, head_dim, device="cuda", dtype=torch.float16)
               for _ in range(3))
    least = float("inf")
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        end.record()
        torch.cuda.synchronize()
        least = min(least, begin.elapsed_time(end) * 1e-3)
    print(least)


def main():
    if sys.argv[1] == "--ratio":
        ratio(*sys.argv[2:5])
        return
    if sys.argv[1] == "--sdpa":
        sdpa(*map(int, sys.argv[2:5]))
        return
    for shape in sys.argv[2:]:
        folder = Path(sys.argv[1]) / shape
        if not (folder / "config.json").exists():
            write(folder, shape)


if __name__ == "__main__":
    main()
