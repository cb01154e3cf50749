#!/usr/bin/env python3
"""Writes models/demo/prompts.jsonl: short prompts by hand, longer ones cut from the held-out text.

The greedy ones were picked so that the best two logits stay apart (see models/demo/README.md).
"""
import argparse
import json

from tokenizers import Tokenizer

import demo_data as data

GREEDY = {"temperature": 0}
SHORT = [  # (prompt, max_tokens, sampling)
    ("ROMEO:\n", 48, GREEDY),
    ("JULIET:\nNurse,", 48, GREEDY),
    ("KING RICHARD III:\n", 64, GREEDY),
    ("First Citizen:\nWe are", 32, GREEDY),
    ("To be", 24, GREEDY),
    ("O", 16, GREEDY),
    ("My lord,", 1, GREEDY),
    ("ROMEO:\nGood morrow.\n\nJULIET:\n", 96, GREEDY),
    ("The king is dead", 8, GREEDY),
    ("ISABELLA:\nMy brother", 40, GREEDY),
    ("KATHARINA:\nI pray you, sir,", 128, GREEDY),
    # bytes that the training text does not contain, and an end token inside the prompt
    ("Ünïcödé 漢字 🐟\n", 12, GREEDY),
    ("GREMIO:\nFarewell.\n\n<|endoftext|>ROMEO:\n", 48, GREEDY),
    ("PETRUCHIO:\n", 200, {"temperature": 0, "stop": ["\n\n"]}),
    ("LUCENTIO:\nTranio, ", 100, {"temperature": 0, "stop": ["\n"]}),
    ("BAPTISTA:\n", 100, {"temperature": 0, "stop": [",", ";"]}),
    ("PROSPERO:\nThe king", 120, {"temperature": 0, "stop": ["death,\nA", "\n\n"]}),
    ("ROMEO:\n", 48, {"temperature": 1.0, "seed": 1}),
    ("ROMEO:\n", 48, {"temperature": 1.0, "seed": 2}),
    ("ROMEO:\n", 48, {"temperature": 0.7, "seed": 1}),
    ("JULIET:\nO ", 64, {"temperature": 0.8, "seed": 3, "top_p": 0.9}),
    ("MENENIUS:\n", 64, {"temperature": 0.8, "seed": 4, "top_k": 40}),
    ("CORIOLANUS:\n", 64, {"temperature": 0.9, "seed": 5, "top_p": 0.95, "top_k": 50}),
    ("What, ho!", 32, {"temperature": 1.2, "seed": 6, "top_p": 0.8}),
    ("QUEEN MARGARET:\n", 80, {"temperature": 0.6, "seed": 7, "top_k": 5}),
    ("Second Murderer:\n", 20, {"temperature": 1.5, "seed": 8, "top_k": 100}),
    ("HENRY BOLINGBROKE:\n", 40, {"temperature": 1.0, "seed": 9, "top_k": 1}),
    ("AUTOLYCUS:\n", 100, {"temperature": 0.9, "seed": 10, "top_p": 0.9, "stop": ["\n\n"]}),
    ("Nurse:\n", 100, {"temperature": 0.8, "seed": 11, "stop": ["ROMEO", "JULIET"]}),
    # These differ only in their ids and have no seeds, so the id alone must give different answers.
    ("LEONTES:\n", 32, {"temperature": 1.0}),
    ("LEONTES:\n", 32, {"temperature": 1.0}),
]
LONG = [  # (held-out speech to begin at, tokens, max_tokens, sampling)
    (20, 60, 32, GREEDY),
    (100, 100, 64, GREEDY),
    (180, 150, 48, {"temperature": 0.8, "seed": 20, "top_p": 0.9}),
    (260, 200, 32, GREEDY),
    (340, 256, 16, {"temperature": 1.0, "seed": 21, "top_k": 20}),
    (450, 300, 64, GREEDY),
    (500, 400, 32, {"temperature": 0.7, "seed": 22, "top_p": 0.95, "stop": ["\n\n"]}),
    (600, 511, 8, GREEDY),
    (705, 600, 48, GREEDY),
]


def cut(tok, held, first, n):
    """The text of the first n tokens from a held-out speech on, such that encoding it gives n
    tokens again.
    """
    ids = tok.encode("".join(held[first:first + 60])).ids[:n]
    text = tok.decode(ids)
    while len(tok.encode(text).ids) != n:  # a cut inside a word may merge differently
        ids = ids[:-1]
        text, n = tok.decode(ids), len(ids)
    return text


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--model", required=True, help="directory with tokenizer.json")
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    tok = Tokenizer.from_file(f"{a.model}/tokenizer.json")
    _, held = data.split_speeches(data.read_speeches(a.corpus))
    rows = SHORT + [(cut(tok, held, i, n), m, s) for i, n, m, s in LONG]
    with open(a.out, "w", encoding="utf-8") as f:
        for i, (prompt, max_tokens, sampling) in enumerate(rows, 1):
            row = {"custom_id": f"demo-{i:02d}", "prompt": prompt, "max_tokens": max_tokens}
            f.write(json.dumps(row | sampling, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
