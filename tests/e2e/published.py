#!/usr/bin/env python3
"""Tests DeepSeek-V4 in its published form: linears in fp8 with a scale for each 128 x 128, experts in fp4 with a scale for
each 32 inputs, scales that are powers of two in one byte, the publisher's names, and a prediction layer.

usage: published.py SHOAL WORK_FOLDER
A model with random codes is written in that form and, as BF16, with the same values. Converted to floats both give the
same rows; so does a base model, whose experts are in fp8, too. Kept as codes, by one rank or three, the model has the
formats fp8 and mxfp4, and gives the rows of the BF16 in six layouts.
"""
import hashlib
import json
import math
import re
import struct
import sys
from pathlib import Path

import cpu
from golden import write_safetensors
from program import Shoal, expect, fresh_folder, main_of, read_rows, write_lines

D, HEADS, WIDTH, Q_LORA, GROUPS, O_LORA, INNER, EXPERTS, CHOSEN, VOCAB = 256, 8, 64, 160, 2, 64, 64, 4, 2, 272
INDEX_HEADS, INDEX_WIDTH, STREAMS = 4, 32, 4
RATIOS = [0, 4, 128, 0]  # the last one is of the prediction layer
N_LAYERS, N_HASHED = 3, 1
BLOCK, GROUP = 128, 32
CONFIG = dict(
    architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", attention_bias=False, vocab_size=VOCAB,
    bos_token_id=0, eos_token_id=None, hc_eps=1e-6, hc_mult=STREAMS, hc_sinkhorn_iters=20, head_dim=WIDTH,
    hidden_act="silu", hidden_size=D, index_head_dim=INDEX_WIDTH, index_n_heads=INDEX_HEADS, index_topk=8,
    max_position_embeddings=1024, moe_intermediate_size=INNER, n_routed_experts=EXPERTS, n_shared_experts=1,
    norm_topk_prob=True, num_attention_heads=HEADS, num_experts_per_tok=CHOSEN, num_hidden_layers=N_LAYERS,
    num_hash_layers=N_HASHED, num_key_value_heads=1, num_nextn_predict_layers=1, o_groups=GROUPS, o_lora_rank=O_LORA,
    q_lora_rank=Q_LORA, qk_rope_head_dim=16, rms_norm_eps=1e-6, rope_theta=10000, routed_scaling_factor=1.5,
    rope_scaling=dict(type="yarn", factor=16, original_max_position_embeddings=64, beta_fast=32, beta_slow=1),
    scoring_func="sqrtsoftplus", sliding_window=48, swiglu_limit=10.0, tie_word_embeddings=False, topk_method="noaux_tc",
    torch_dtype="bfloat16", compress_rope_theta=160000, compress_ratios=RATIOS)
QUANTIZED = dict(expert_dtype="fp4", quantization_config=dict(
    activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", scale_fmt="ue8m0", weight_block_size=[BLOCK, BLOCK]))
RUNS = [([], 0), (["--chunk", "1"], 0), (["--weights", "stream"], 0), (["--tp", "2", "--ep", "1"], 2),
        (["--pp", "3", "--chunk", "7"], 3), (["--ep", "2"], 2)]
NEAR = 0.0025  # bound on int8 activations' mean error of log-probabilities; 0.00195 was seen


def draws(name, n):
    return hashlib.shake_128(name.encode()).digest(n)


def bf16(value):
    """The two bytes of a value that BF16 represents exactly."""
    data = struct.pack("<f", value)
    expect(data[:2] == b"\0\0", f"{value} is not a value of BF16")
    return data[2:]


def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    value = (8 + mantissa if exponent else mantissa) * 2.0 ** (max(exponent, 1) - 10)
    return -value if code & 128 else value


def e2m1(nibble):
    value = [0, 0.5, 1, 1.5, 2, 3, 4, 6][nibble & 7]
    return -value if nibble & 8 else value


FINITE = bytes(code if code % 128 != 127 else 0 for code in range(256))  # with 0 for the NaN codes


def tables(values_of, scale):
    """For each byte of the BF16 values that a byte of codes stands for: its value for each of the 256 codes."""
    stored = [b"".join(bf16(v * 2.0 ** (scale - 127)) for v in values_of(code)) for code in range(256)]
    return [bytes(at) for at in zip(*stored)]


def expanded(codes, by_byte):
    out = bytearray(len(codes) * len(by_byte))
    for at, table in enumerate(by_byte):
        out[at::len(by_byte)] = codes.translate(table)
    return bytes(out)


SCALES = range(113, 129)
FP8 = {scale: tables(lambda code: [e4m3(FINITE[code])], scale) for scale in SCALES}
FP4 = {scale: tables(lambda code: [e2m1(code & 15), e2m1(code >> 4)], scale) for scale in SCALES}


class Model:
    """The tensors in the published form, and with the same values in BF16."""

    def __init__(self, has_fp4=True):
        self.published, self.floats, self.formats = {}, {}, {}
        self.expert = self.fp4 if has_fp4 else self.fp8
        self.vectors("embed.weight", [VOCAB, D], 1.0)
        self.vectors("head.weight", [VOCAB, D], 0.1)
        self.vectors("norm.weight", [D], 0.3, 1)
        self.streams("hc_head", "", STREAMS, 1)
        for layer in range(N_LAYERS):
            self.layer(f"layers.{layer}.", RATIOS[layer], layer < N_HASHED)
        self.layer("mtp.0.", RATIOS[-1], False)
        for name in ("enorm", "hnorm", "norm"):
            self.vectors(f"mtp.0.{name}.weight", [D], 0.3, 1)
        for name in ("e_proj", "h_proj"):
            self.fp8(f"mtp.0.{name}", D, D)
        self.streams("hc_head", "mtp.0.", STREAMS, 1)

    def both(self, name, dtype, shape, data):
        self.published[name] = self.floats[name] = dtype, shape, data

    def vectors(self, name, shape, deviation, mean=0, dtype="BF16"):
        """Values in steps of a power of two."""
        step = 2.0 ** round(math.log2(deviation / 74))
        value = [mean + (u - 128) * step for u in range(256)]
        stored = [struct.pack("<f", v) for v in value]
        by_byte = [bytes(at) for at in zip(*stored)]
        data = expanded(draws(name, math.prod(shape)), by_byte[2:] if dtype == "BF16" else by_byte)
        self.both(name, dtype, shape, data)

    def streams(self, name, where, n, n_scales):
        for part, shape, deviation, mean in (("fn", [n, STREAMS * D], 0.03, 0), ("base", [n], 0.5, 0),
                                             ("scale", [n_scales], 0.3, 1)):
            self.vectors(f"{where}{name}_{part}", shape, deviation, mean, "F32")

    def fp8(self, name, rows, cols):
        codes = draws(name, rows * cols).translate(FINITE)
        shape = [-(-rows // BLOCK), -(-cols // BLOCK)]
        scales = bytes(113 + u % 4 for u in draws(name + ".scale", math.prod(shape)))
        values = b"".join(
            expanded(codes[r * cols + at:r * cols + min(at + BLOCK, cols)], FP8[scales[r // BLOCK * shape[1] + at // BLOCK]])
            for r in range(rows) for at in range(0, cols, BLOCK))
        self.add(name, "F8_E4M3", [rows, cols], codes, shape, scales, values)
        self.formats[name] = "fp8"

    def fp4(self, name, rows, cols):
        codes = draws(name, rows * cols // 2)
        scales = bytes(117 + u % 6 for u in draws(name + ".scale", rows * cols // GROUP))
        values = b"".join(expanded(codes[g * GROUP // 2:(g + 1) * GROUP // 2], FP4[scales[g]]) for g in range(len(scales)))
        self.add(name, "I8", [rows, cols // 2], codes, [rows, cols // GROUP], scales, values)
        self.formats[name] = "mxfp4"

    def add(self, name, dtype, stored, codes, shape, scales, values):
        self.published[name + ".weight"] = dtype, stored, codes
        self.published[name + ".scale"] = "F8_E8M0", shape, scales
        rows = stored[0]
        self.floats[name + ".weight"] = "BF16", [rows, len(values) // 2 // rows], values

    def attention(self, p, ratio):
        self.vectors(p + "attn_sink", [HEADS], 0.5, 0, "F32")
        self.vectors(p + "kv_norm.weight", [WIDTH], 0.3, 1)
        self.vectors(p + "q_norm.weight", [Q_LORA], 0.3, 1)
        self.fp8(p + "wkv", WIDTH, D)
        self.fp8(p + "wq_a", Q_LORA, D)
        self.fp8(p + "wq_b", HEADS * WIDTH, Q_LORA)
        self.fp8(p + "wo_a", GROUPS * O_LORA, HEADS // GROUPS * WIDTH)
        self.fp8(p + "wo_b", D, GROUPS * O_LORA)
        if ratio > 0:
            self.entries(p + "compressor.", ratio, WIDTH)
        if ratio == 4:
            self.entries(p + "indexer.compressor.", ratio, INDEX_WIDTH)
            self.vectors(p + "indexer.weights_proj.weight", [INDEX_HEADS, D], 0.06)
            self.fp8(p + "indexer.wq_b", INDEX_HEADS * INDEX_WIDTH, Q_LORA)

    def entries(self, p, ratio, width):
        n = width * (2 if ratio == 4 else 1)
        self.vectors(p + "ape", [ratio, n], 0.5, 0, "F32")
        self.vectors(p + "norm.weight", [width], 0.3, 1)
        self.vectors(p + "wgate.weight", [n, D], 0.06)
        self.vectors(p + "wkv.weight", [n, D], 0.06)

    def layer(self, p, ratio, hashed):
        self.attention(p + "attn.", ratio)
        for name in ("attn_norm", "ffn_norm"):
            self.vectors(f"{p}{name}.weight", [D], 0.3, 1)
        for name in ("hc_attn", "hc_ffn"):
            self.streams(name, p, (2 + STREAMS) * STREAMS, 3)
        self.vectors(p + "ffn.gate.weight", [EXPERTS, D], 0.06)
        if hashed:
            table = b"".join(struct.pack("<2q", u % EXPERTS, (u + 1 + u // 128) % EXPERTS) for u in draws(p, VOCAB))
            self.both(p + "ffn.gate.tid2eid", "I64", [VOCAB, CHOSEN], table)
        else:
            self.vectors(p + "ffn.gate.bias", [EXPERTS], 0.1, 0, "F32")
        for where, add in [("shared_experts.", self.fp8)] + [(f"experts.{e}.", self.expert) for e in range(EXPERTS)]:
            add(f"{p}ffn.{where}w1", INNER, D)
            add(f"{p}ffn.{where}w2", D, INNER)
            add(f"{p}ffn.{where}w3", INNER, D)


class PublishedTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(Path(work))
        self.model, self.lines = Model(), self.work / "lines.jsonl"
        ids = [draws("ids", 300)[at:at + n] for at, n in ((0, 5), (9, 270))]
        write_lines(self.lines, [dict(custom_id=f"p{i}", prompt_token_ids=list(row)) for i, row in enumerate(ids)])

    def write(self, name, tensors, config):
        folder = self.work / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        write_safetensors(folder / "model.safetensors", tensors)
        return folder

    def convert(self, folder, name, *flags):
        path = self.work / name
        return path, self.shoal.must("convert", folder, path, *flags)

    def score(self, model, *flags, **how):
        """The bytes of the rows, and the log-probabilities."""
        output = self.work / "scores.jsonl"
        output.unlink(missing_ok=True)
        self.shoal.must("score", "--model", model, "--input", self.lines, "--output", output, "--quiet", *flags, **how)
        rows = read_rows(output)
        return output.read_bytes(), [p for key in ("p0", "p1") for p in rows[key]["logprobs"][1:]]

    def check_values(self, name, model, published):
        """The published form gives the rows of the same values in BF16."""
        found, _ = self.score(self.convert(published, "values.h5", "--quantized", "dequantize")[0])
        floats = self.write(f"{name}-floats", model.floats, CONFIG)
        wanted, _ = self.score(self.convert(floats, "floats.h5")[0])
        expect(found == wanted, f"{name}: the published form and its values in BF16 give other rows")
        print(f"  {name}: the rows of the same values in BF16")
        return wanted

    def check_scales(self, wanted):
        """One changed scale gives other rows."""
        for name in ("layers.1.attn.indexer.wq_b.scale", "layers.2.ffn.experts.3.w2.scale"):
            dtype, shape, data = self.model.published[name]
            changed = {**self.model.published, name: (dtype, shape, bytes([data[0] + 3]) + data[1:])}
            folder = self.write(name, changed, {**CONFIG, **QUANTIZED})
            other, _ = self.score(self.convert(folder, "changed.h5", "--quantized", "dequantize")[0])
            expect(other != wanted, f"another {name} gives the same rows")

    def check_base(self):
        model = Model(has_fp4=False)
        config = {**CONFIG, "quantization_config": QUANTIZED["quantization_config"]}
        self.check_values("base", model, self.write("base", model.published, config))

    def check_left_out(self, done):
        """The prediction layer is left out, and a message says so."""
        n = sum(name.startswith("mtp.") for name in self.model.floats)
        expect(f"{n} tensors are left out" in done.err and "the first is mtp.0." in done.err,
               f"expected {n} tensors of a prediction layer left out: {done}")

    def check_formats(self, model):
        """Each published format is kept, and nothing else is quantized."""
        out = self.shoal.must("inspect", model, "--tensors").out
        found = re.findall(r"^  model\.(\S+)\.weight (fp8|mxfp4)[^,]*, scales (\w+)", out, re.M)
        n = {kind: sum(k == kind for _, k, _ in found) for kind in ("fp8", "mxfp4")}
        n_fp8 = sum(v == "fp8" and not k.startswith("mtp.") for k, v in self.model.formats.items())
        expect(n == {"fp8": n_fp8, "mxfp4": 3 * N_LAYERS}, f"formats of the converted file: {n}\n{out}")
        expect(all((k == "mxfp4") == (".mlp.experts." in name) for name, k, _ in found), f"experts in mxfp4:\n{out}")
        print(f"  kept: {n}")

    def check_codes(self, published, wanted):
        """Kept codes give the rows of the BF16, and with activations in int8 the same bytes in the layouts of RUNS and
        with all kernel sets.
        """
        kept, done = self.convert(published, "kept.h5")
        self.check_left_out(done)
        self.check_formats(kept)
        by_three = self.work / "by-three.h5"
        self.shoal.must("convert", published, by_three, ranks=3)
        expect(by_three.read_bytes() == kept.read_bytes(), "three ranks convert to other bytes than one")
        floats = self.work / "kept-floats.h5"
        self.shoal.must("quantize", kept, floats, "--format", "f32")
        found, values = self.score(floats)
        expect(found == wanted, "the floats of the kept codes give other rows than the BF16")
        rows, near = self.score(kept)
        for flags, ranks in RUNS:
            expect(self.score(kept, "--activations", "f32", *flags, ranks=ranks)[0] == wanted,
                   f"{flags}: kept codes and the BF16 give other rows")
            expect(self.score(kept, *flags, ranks=ranks)[0] == rows, f"{flags}: other rows than on one rank")
        for kernels in cpu.sets():
            expect(self.score(kept, env={"SHOAL_KERNELS": kernels})[0] == rows, f"{kernels}: other rows")
        mean = sum(abs(a - b) for a, b in zip(near, values)) / len(values)
        print(f"  kept codes: the rows of the BF16; int8 activations differ by {mean:.4f} on average")
        expect(mean < NEAR, f"log-probabilities differ by {mean} on average")

    def refused(self, wanted, changes, config=None):
        """A model with other tensors (None: without them) is refused; the message has both words that are wanted."""
        tensors = {k: v for k, v in {**self.model.published, **changes}.items() if v is not None}
        folder = fresh_folder(self.work / "bad")
        (folder / "config.json").write_text(json.dumps({**CONFIG, **QUANTIZED, **(config or {})}))
        write_safetensors(folder / "model.safetensors", tensors)
        done = self.shoal("convert", folder, self.work / "bad.h5")
        expect(done.status == 3 and all(word in done.err for word in wanted), f"expected {wanted}: {done}")

    def check_refusals(self):
        """A tensor whose layout shoal does not know is named."""
        expert, linear = "layers.1.ffn.experts.2.w1", "layers.1.attn.wq_b"
        _, shape, codes = self.model.published[expert + ".weight"]
        _, blocks, scales = self.model.published[linear + ".scale"]
        _, whole, bytewise = self.model.published[linear + ".weight"]
        rows, n = shape[0], len(self.model.published[expert + ".scale"][2])
        cases = [
            ("found F4", {expert + ".weight": ("F4", [rows, 2 * shape[1]], codes)}),
            ("a scale for each 32 inputs", {expert + ".scale": ("F8_E8M0", [n // 4, 4], bytes(n))}),
            ("scales of a float type", {expert + ".scale": ("U8", [rows, D // GROUP], bytes(n))}),
            ("scales of the type F8_E8M0", {expert + ".scale": ("F32", [rows, D // GROUP], bytes(4 * n))}),
            ("no zero points", {expert + ".weight_zero_point": ("I8", [1], bytes(1))}),
            (".scale (fp4) or .weight_scale (int8)", {expert + ".scale": None}),
            ("the size of its blocks", {linear + ".scale": ("F8_E8M0", blocks[::-1] + [1], scales)}),
            ("scales of the type F8_E8M0", {linear + ".scale": ("F32", whole[:1], bytes(4 * whole[0])),
                                            linear + ".weight": ("I8", whole, bytewise)}),
            ("its scales are missing", {linear + ".scale": None}),
            ("a second tensor of scales", {linear + ".weight_scale_inv": ("F8_E8M0", blocks, scales)}),
            ("f8_e8m0 belongs to no quantized layout", {linear + ".weight": None})]
        for words, changes in cases:
            self.refused([words, next(iter(changes)).rsplit(".", 1)[0]], changes)
        for config in (dict(expert_dtype="int4"), dict(expert_dtype=4),
                       dict(quantization_config={**QUANTIZED["quantization_config"], "expert_dtype": "int4"})):
            self.refused(["expert_dtype: expected fp4 or fp8"], {}, config)
        print(f"  {len(cases)} unknown layouts and 3 unknown types: refused by name")

    def main(self):
        published = self.write("published", self.model.published, {**CONFIG, **QUANTIZED})
        wanted = self.check_values("published", self.model, published)
        self.check_scales(wanted)
        self.check_base()
        self.check_codes(published, wanted)
        self.check_refusals()


if __name__ == "__main__":
    main_of(PublishedTest(*sys.argv[1:3]).main)
