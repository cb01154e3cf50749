#!/usr/bin/env python3
"""Checks an exported demo model with transformers and measures it on the held-out text.

Reads the directory as any Hugging Face user would. Our own model only serves to compare f32 logits.
Prints one JSON object.
"""
import argparse
import json
import math
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import demo_data as data
from demo_model import CONFIG, DemoModel
from demo_tokenizer import EOS
from export_demo import write_dir
from train_demo import HELD_SEED


def load_hf(path, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()


@torch.no_grad()
def same_logits(state, tokenizer_file, ids):
    """The largest difference between the logits of our model and of transformers, both in f32."""
    ours = DemoModel(CONFIG).eval()
    ours.load_state_dict(state)
    with tempfile.TemporaryDirectory() as tmp:
        write_dir(f"{tmp}/hf", state, tokenizer_file, dtype=torch.float32)
        theirs = load_hf(f"{tmp}/hf")
    x = torch.from_numpy(ids)[None]
    a, b = ours(x)[0], theirs(x).logits
    return {"max_abs_diff": (a - b).abs().max().item(), "max_abs_logit": b.abs().max().item()}


def expert_counts(router_logits, k, n_experts):
    """Counts the chosen experts: router_logits, [T, E] per layer, gives [L, E]."""
    return np.stack([np.bincount(r.topk(k, dim=-1).indices.flatten().numpy(), minlength=n_experts)
                     for r in router_logits])


@torch.no_grad()
def measure(model, held_ids, length):
    """Mean negative log-likelihood and per-layer expert counts over the held-out stream."""
    total, counts = 0.0, 0
    c = model.config
    for x, y in data.stream_windows(held_ids, length):
        out = model(torch.from_numpy(x)[None], output_router_logits=True)
        total += F.cross_entropy(out.logits[0].float(), torch.from_numpy(y),
                                 reduction="sum").item()
        counts = counts + expert_counts(out.router_logits, c.num_experts_per_tok, c.num_experts)
    return total / (len(held_ids) - 1), counts


@torch.no_grad()
def greedy(model, tok, prompt, n):
    x = tok(prompt, return_tensors="pt")
    out = model.generate(**x, max_new_tokens=n, do_sample=False)
    return tok.decode(out[0, x["input_ids"].shape[1]:])


def report(path, train, held, length):
    tok = Tokenizer.from_file(f"{path}/tokenizer.json")
    eos, vocab = tok.token_to_id(EOS), tok.get_vocab_size()
    held_ids = data.stream(data.encode_speeches(tok, held), eos, HELD_SEED)
    train_ids = data.stream(data.encode_speeches(tok, train), eos, HELD_SEED)
    model = load_hf(path)  # bf16 weights, f32 arithmetic: what a runtime's f32 path computes
    loss, counts = measure(model, held_ids, length)
    cross, own = data.unigram_perplexity(train_ids[1:], held_ids[1:], vocab)
    return held_ids, model, {
        "train_tokens": len(train_ids) - 1, "held_tokens": len(held_ids) - 1,
        "held_bytes": sum(len(s.encode()) for s in held), "window": length,
        "loss": loss, "perplexity": math.exp(loss),
        "bits_per_byte": loss * (len(held_ids) - 1) / math.log(2)
                         / sum(len(s.encode()) for s in held),
        "unigram_perplexity": cross, "unigram_perplexity_own_counts": own,
        "expert_share": (counts / counts.sum(axis=1, keepdims=True)).round(4).tolist(),
    }


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", required=True, help="exported directory")
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--work", help="training scratch directory: also compare f32 logits")
    ap.add_argument("--window", type=int, default=256)
    a = ap.parse_args()
    torch.set_num_threads(1)
    train, held = data.split_speeches(data.read_speeches(a.corpus))
    held_ids, model, out = report(a.model, train, held, a.window)
    tok = AutoTokenizer.from_pretrained(a.model)
    out["tokenizer_round_trip"] = all(
        tok.decode(tok(s)["input_ids"]) == s for s in held[:200])
    out["greedy"] = {p: greedy(model, tok, p, 64) for p in ("ROMEO:\n", "KATHARINA:\n", "To be")}
    if a.work:
        state = torch.load(f"{a.work}/best.pt", weights_only=True)["model"]
        out["f32_check"] = same_logits(state, f"{a.model}/tokenizer.json", held_ids[:512])
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
