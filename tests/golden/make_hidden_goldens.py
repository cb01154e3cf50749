#!/usr/bin/env python3
"""Writes hidden.json: hidden states of small models after each layer and after the last norm, by transformers.

usage: make_hidden_goldens.py      needs torch and transformers
"""
import json
import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
MODELS = ("llama-gqa", "gemma2")
N_TOKENS = 7


def states(name):
    """The tokens of a text and, for each token, the rows after layer 0, 1, ... and after the last norm."""
    model = AutoModelForCausalLM.from_pretrained(HERE / "models" / name / "hf", dtype=torch.float32).eval()
    draw = random.Random(name)
    tokens = [draw.randrange(3, model.config.vocab_size) for _ in range(N_TOKENS)]
    layers, kept = model.model.layers, []
    # transformers gives the last layer's output only after the norm
    layers[-1].register_forward_hook(lambda _, __, out: kept.append(out[0] if isinstance(out, tuple) else out))
    with torch.no_grad():
        found = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    rows = [*found[1:len(layers)], kept[0], found[-1]]
    stacked = torch.stack([row.reshape(N_TOKENS, -1) for row in rows], dim=1)
    return {"model": name, "n_layers": len(layers), "width": stacked.shape[-1], "tokens": tokens,
            "hidden": [float(f"{x:.7g}") for x in stacked.flatten().tolist()]}


def main():
    lines = ",\n".join(json.dumps(states(name)) for name in MODELS)
    (HERE / "hidden.json").write_text(f"[{lines}]\n")


if __name__ == "__main__":
    main()
