#!/usr/bin/env python3
"""Trains the demo model on one CPU core; keeps the checkpoint with the best held-out loss.

Can be killed at any time: the same command goes on from WORK/last.pt. Batches and dropout are keyed
by the step, so a resumed run draws what an uninterrupted one would have drawn.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import demo_data as data
from demo_model import CONFIG, DemoModel, change_config
from demo_tokenizer import EOS, save_tokenizer, train_tokenizer

HELD_SEED = 1  # cuts of the held-out text into documents


def arguments():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--work", required=True, help="scratch directory, outside the repository")
    ap.add_argument("--minutes", type=float, default=30, help="training time, resumes included")
    ap.add_argument("--steps", type=int, default=2200)
    ap.add_argument("--batch-tokens", type=int, default=2048)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--weight-decay", type=float, default=0.3)
    ap.add_argument("--dropout", type=float, default=0.25)
    ap.add_argument("--aux", type=float, default=0.01, help="weight of the router's balance loss")
    ap.add_argument("--long-every", type=int, default=4, help="each n-th step has rows of 512")
    ap.add_argument("--eval-every", type=int, default=200)
    ap.add_argument("--patience", type=int, default=8, help="evaluations without a new best")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--change", nargs="*", default=[], help="numbers of the config, as num_experts=64")
    return ap.parse_args()


def load_data(a):
    """The end token's id, the encoded training speeches and the held-out stream. The tokenizer is
    trained once, on the training part only.
    """
    train, held = data.split_speeches(data.read_speeches(a.corpus))
    path = f"{a.work}/tokenizer.json"
    if not os.path.exists(path):
        save_tokenizer(train_tokenizer("".join(train), CONFIG["vocab_size"]), path)
    tok = Tokenizer.from_file(path)
    eos = tok.token_to_id(EOS)
    held_ids = data.stream(data.encode_speeches(tok, held), eos, HELD_SEED)
    return eos, data.encode_speeches(tok, train), held_ids


def make_optimizer(model, a):
    # Norm weights and the (tied) embedding are not decayed.
    decayed = [p for n, p in model.named_parameters() if p.dim() > 1 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.dim() == 1 or "embed" in n]
    groups = [{"params": decayed, "weight_decay": a.weight_decay},
              {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.98), fused=True)


def learning_rate(a, run):
    """Warm-up, then a cosine to 2 % over the steps or the time, whichever ends first."""
    done = max(run["step"] / a.steps, run["seconds"] / (60 * a.minutes))
    return a.lr * min(1.0, (run["step"] + 1) / 100) * (0.02 + 0.98 * 0.5 * (
        1 + math.cos(math.pi * min(1.0, done))))


@torch.no_grad()
def held_out_loss(model, held_ids, length=256):
    model.eval()
    total = 0.0
    for x, y in data.stream_windows(held_ids, length):
        logits = model(torch.from_numpy(x)[None])[0][0]
        total += F.cross_entropy(logits, torch.from_numpy(y), reduction="sum").item()
    model.train()
    return total / (len(held_ids) - 1)


def train_step(model, opt, speeches, eos, a, run):
    step = run["step"]
    torch.manual_seed(a.seed * 1_000_003 + step)
    rng = np.random.default_rng([a.seed, step])
    length = data.LONG_ROW if step % a.long_every == a.long_every - 1 else 256
    x, y = data.batch(speeches, eos, length, a.batch_tokens // length, rng)
    for group in opt.param_groups:
        group["lr"] = learning_rate(a, run)
    logits, balance, _ = model(torch.from_numpy(x))
    loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).flatten())
    (loss + a.aux * balance).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    return loss.item(), balance.item()


def save(path, **what):
    torch.save(what, path + ".tmp")
    os.replace(path + ".tmp", path)


def evaluate(model, opt, held_ids, a, run, recent):
    """Logs a line, saves last.pt, and best.pt when the held-out loss is a new best."""
    loss = held_out_loss(model, held_ids)
    run["stale"] += 1
    if loss < run["best"]:
        run.update(best=loss, best_step=run["step"], stale=0)
        save(f"{a.work}/best.pt", model=model.state_dict(), run=dict(run))
    mean = np.mean(recent, axis=0) if recent else [float("nan")] * 2
    line = {"step": run["step"], "seconds": round(run["seconds"], 1), "train_loss": round(mean[0], 4),
            "balance": round(mean[1], 4), "held_loss": round(loss, 4),
            "held_ppl": round(math.exp(loss), 2)}
    print(json.dumps(line), flush=True)
    with open(f"{a.work}/log.jsonl", "a", encoding="utf-8") as f:
        f.write(json.dumps(line) + "\n")
    save(f"{a.work}/last.pt", model=model.state_dict(), opt=opt.state_dict(), run=dict(run))


def start(a):
    """Model, optimizer and the run's counters, new or as WORK/last.pt left them."""
    torch.manual_seed(a.seed)
    model = DemoModel(CONFIG, a.dropout)
    opt = make_optimizer(model, a)
    run = {"step": 0, "seconds": 0.0, "best": math.inf, "best_step": 0, "stale": 0}
    if os.path.exists(f"{a.work}/last.pt"):
        last = torch.load(f"{a.work}/last.pt", weights_only=True)
        model.load_state_dict(last["model"])
        opt.load_state_dict(last["opt"])
        run = last["run"]
    return model, opt, run


def finished(a, run):
    return (run["step"] >= a.steps or run["seconds"] >= 60 * a.minutes
            or run["stale"] >= a.patience)


def main():
    a = arguments()
    change_config(a.change)
    torch.set_num_threads(1)
    os.makedirs(a.work, exist_ok=True)
    eos, speeches, held_ids = load_data(a)
    model, opt, run = start(a)
    if run["step"] == 0:
        evaluate(model, opt, held_ids, a, run, [])
    recent, begin = [], time.monotonic() - run["seconds"]
    while not finished(a, run):
        recent.append(train_step(model, opt, speeches, eos, a, run))
        run["step"] += 1
        run["seconds"] = time.monotonic() - begin
        if run["step"] % a.eval_every == 0 or finished(a, run):
            evaluate(model, opt, held_ids, a, run, recent)
            recent = []


if __name__ == "__main__":
    main()
