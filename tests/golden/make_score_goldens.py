#!/usr/bin/env python3
"""Writes score.json: log-likelihoods of small pairs and texts by lm-evaluation-harness' hf model.

usage: make_score_goldens.py      needs torch, transformers and lm-eval (0.4.13)
"""
import json
import random
from pathlib import Path

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

HERE = Path(__file__).resolve().parent
MODEL, MAX_LENGTH, PREFIX = "llama-gqa", 63, 1
WORDS = "the quick brown fox jumps over a lazy dog near other fish in the sea of yes and no".split()


def texts():
    draw = random.Random(11)

    def words(n):
        return " ".join(draw.choice(WORDS) for _ in range(n))
    pairs = [(words(draw.randrange(1, 9)) + end, draw.choice(["", " "]) + words(draw.randrange(1, 5)))
             for end in ["", " ", "\n", "  \t", ":", "\u00a0"] for _ in range(4)]
    pairs += [("", words(2)), (words(90), " " + words(3)), (words(61), " dog"), ("\u00e9t\u00e9 ", "\u6d77")]
    rolling = [words(3), words(40), words(150), words(63)]
    return pairs, rolling


def greedy_pair(lm, context, n):
    """A continuation of token ids that the model itself would write."""
    import torch
    ids = lm.tok_encode(context)
    with torch.no_grad():
        out = lm.model.generate(torch.tensor([ids]), max_new_tokens=n, do_sample=False, eos_token_id=None)
    return ids, out[0, len(ids):].tolist()


def likelihoods(lm, kind, arguments):
    requests = [Instance(request_type=kind, doc={}, arguments=a, idx=i) for i, a in enumerate(arguments)]
    return getattr(lm, kind)(requests)


def main():
    lm = HFLM(pretrained=str(HERE / "models" / MODEL / "hf"), dtype="float32", device="cpu", batch_size=4,
              max_length=MAX_LENGTH, prefix_token_id=PREFIX)
    pairs, rolling = texts()
    cases = [{"line": {"context": c, "continuation": d, "prefix_token_id": PREFIX}, "loglikelihood": x,
              "is_greedy": bool(g)}
             for (c, d), (x, g) in zip(pairs, likelihoods(lm, "loglikelihood", pairs))]
    cases += [{"line": {"text": t, "prefix_token_id": PREFIX}, "loglikelihood": x}
              for t, x in zip(rolling, likelihoods(lm, "loglikelihood_rolling", [(t,) for t in rolling]))]
    for n in (1, 3):
        ids, more = greedy_pair(lm, WORDS[0] + " " + WORDS[1], n)
        [(x, g)] = lm._loglikelihood_tokens([(("", ""), ids, more)])
        cases.append({"line": {"context": ids, "continuation": more}, "loglikelihood": x,
                      "is_greedy": bool(g)})
    golden = {"model": MODEL, "max_length": MAX_LENGTH, "cases": cases}
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = json.dumps({**golden, "cases": []})[:-2] + "\n" + lines + "\n]}\n"
    (HERE / "score.json").write_text(text)


if __name__ == "__main__":
    main()
