#!/usr/bin/env python3
"""Measures the pipeline bubble in decoding, from a job's own trace.

usage: bubble.py SHOAL TOOL_BUBBLE WORK_FOLDER [--most PERCENT] [--pp N] [--rows N] [--tokens N]
Makes a dense random model with balanced stages (16 layers, a small vocabulary), decodes N rows
per step with one thread per rank, and prints how long each stage waited: as recorded, and as
simulated with a core for each rank. With --most it fails if a recorded stage waited longer; use
that only on an idle machine with a core for each rank.
"""
import argparse
import json
import random
import re
import struct
from pathlib import Path

from program import Shoal, expect, main_of, run, write_lines

LAYERS, WIDTH, FFN, HEADS, KV_HEADS, VOCAB = 16, 512, 1408, 8, 4, 1024
PROMPT = 8


def tensors():
    """The names and shapes of a Llama checkpoint's tensors."""
    head_dim = WIDTH // HEADS
    yield "model.embed_tokens.weight", (VOCAB, WIDTH)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (WIDTH,)
        yield at + "self_attn.q_proj.weight", (WIDTH, WIDTH)
        yield at + "self_attn.k_proj.weight", (KV_HEADS * head_dim, WIDTH)
        yield at + "self_attn.v_proj.weight", (KV_HEADS * head_dim, WIDTH)
        yield at + "self_attn.o_proj.weight", (WIDTH, WIDTH)
        yield at + "post_attention_layernorm.weight", (WIDTH,)
        yield at + "mlp.gate_proj.weight", (FFN, WIDTH)
        yield at + "mlp.up_proj.weight", (FFN, WIDTH)
        yield at + "mlp.down_proj.weight", (WIDTH, FFN)
    yield "model.norm.weight", (WIDTH,)
    yield "lm_head.weight", (VOCAB, WIDTH)


def random_bf16(draw, n):
    """n random bf16 numbers of either sign, with magnitudes from 2^-7 to 2^-5, little-endian."""
    high = bytes((0x3C if byte < 128 else 0xBC) for byte in range(256))
    out = bytearray(2 * n)
    out[0::2] = draw.randbytes(n)
    out[1::2] = draw.randbytes(n).translate(high)
    return bytes(out)


def make_model(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH,
        "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"}))
    header, at = {}, 0
    for name, shape in tensors():
        n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    draw = random.Random(11)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors():
            out.write(random_bf16(draw, shape[0] * (shape[1] if len(shape) > 1 else 1)))


class BubbleTest:
    def __init__(self, args):
        self.args, self.shoal, self.work = args, Shoal(args.shoal), Path(args.work)
        self.model = self.work / "balanced.h5"
        if not self.model.exists():
            make_model(self.work / "balanced")
            self.shoal.must("convert", self.work / "balanced", self.model, limit_s=300)
        draw = random.Random(5)
        n = args.rows * args.pp
        write_lines(self.work / "in.jsonl", [
            {"custom_id": f"r{i}", "prompt_token_ids": [draw.randrange(VOCAB) for _ in range(PROMPT)],
             "max_tokens": args.tokens, "temperature": 0} for i in range(n)])

    def record(self, name):
        trace = self.work / f"{name}.trace"
        trace.unlink(missing_ok=True)
        self.shoal.must("generate", "--model", self.model, "--input", self.work / "in.jsonl",
                        "--output", self.work / "out.jsonl", "--trace", trace, "--pp", self.args.pp,
                        "--threads", 1, "--max-batch", self.args.rows * self.args.pp,
                        "--max-model-len", PROMPT + self.args.tokens + 1, ranks=self.args.pp,
                        limit_s=600)
        return trace

    def __call__(self):
        print(f"{LAYERS} layers, D {WIDTH}, pp {self.args.pp}, 1 thread a rank, {self.args.rows} rows "
              f"a step")
        said = run([self.args.tool, self.record("bubble")])
        expect(said.status == 0, said)
        print(said.out, end="")
        waits = [float(w) for w in re.findall(r"waiting ([0-9.]+) %", said.out)]
        expect(len(waits) >= 3 * self.args.pp, "not every stage is told of")
        most = max(waits[:self.args.pp])
        expect(self.args.most is None or most <= self.args.most,
               f"a stage waits {most} %, expected at most {self.args.most} %")


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("shoal")
    p.add_argument("tool")
    p.add_argument("work")
    p.add_argument("--most", type=float)
    p.add_argument("--pp", type=int, default=2)
    p.add_argument("--rows", type=int, default=8)
    p.add_argument("--tokens", type=int, default=48)
    return p.parse_args()


if __name__ == "__main__":
    main_of(BubbleTest(parse()))
