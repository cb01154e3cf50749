#!/usr/bin/env python3
"""Writes a training checkpoint as a Hugging Face directory with bf16 weights.

The directory is written beside its place and then swapped in, so that a reader never sees half of it.
"""
import argparse
import os
import shutil

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from demo_model import CONFIG, change_config, hf_weights
from demo_tokenizer import save_json, tokenizer_config


def generation_config(c):
    return {"bos_token_id": c["bos_token_id"], "do_sample": False,
            "eos_token_id": c["eos_token_id"], "pad_token_id": c["eos_token_id"],
            "max_new_tokens": 128}


def write_dir(path, state, tokenizer_file, dtype=torch.bfloat16):
    os.makedirs(path)
    tok = Tokenizer.from_file(tokenizer_file)
    config = dict(CONFIG, torch_dtype=str(dtype).removeprefix("torch."))
    save_json(f"{path}/config.json", config)
    save_json(f"{path}/generation_config.json", generation_config(CONFIG))
    save_json(f"{path}/tokenizer_config.json",
              tokenizer_config(tok, CONFIG["max_position_embeddings"]))
    shutil.copyfile(tokenizer_file, f"{path}/tokenizer.json")
    weights = {k: v.to(dtype) for k, v in hf_weights(state).items()}
    save_file(weights, f"{path}/model.safetensors", metadata={"format": "pt"})
    os.chmod(f"{path}/model.safetensors", 0o644)  # save_file makes it readable by its owner only


def swap_in(new, path):
    old = path + ".old"
    shutil.rmtree(old, ignore_errors=True)
    if os.path.exists(path):
        os.rename(path, old)
    os.rename(new, path)
    shutil.rmtree(old, ignore_errors=True)


def export(state, tokenizer_file, path):
    new = path.rstrip("/") + ".new"
    shutil.rmtree(new, ignore_errors=True)
    write_dir(new, state, tokenizer_file)
    swap_in(new, path.rstrip("/"))


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--work", required=True, help="scratch directory of train_demo.py")
    ap.add_argument("--out", required=True)
    ap.add_argument("--checkpoint", default="best.pt")
    ap.add_argument("--change", nargs="*", default=[], help="as train_demo.py had it")
    a = ap.parse_args()
    change_config(a.change)
    state = torch.load(f"{a.work}/{a.checkpoint}", weights_only=True)["model"]
    export(state, f"{a.work}/tokenizer.json", a.out)


if __name__ == "__main__":
    main()
