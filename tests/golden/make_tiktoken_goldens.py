#!/usr/bin/env python3
"""Makes tests/golden/tokenizer/tiktoken: a small tiktoken.model with its tokenizer_config.json, as Kimi-K2
publishes them, and what the `tiktoken` package makes of lines.jsonl with it (tiktoken.golden; the format is
that of make_tokenizer_goldens.py).

  make_tiktoken_goldens.py [--lines FILE N]

Deterministic. The ranks are those of kimi.json's vocabulary, and tokens put together at random from others,
with ranks between them: one token can be made in several ways, and the leftmost pair matters.
--lines writes N more random lines to FILE.jsonl and their golden to FILE.golden, for tool_tokenize.
"""
import base64
import json
import random
import struct
import sys
from pathlib import Path

import tiktoken

from make_tokenizer_goldens import fnv

HERE = Path(__file__).resolve().parent / "tokenizer"
N_LINES = 5000
N_MADE_UP = 500
PLAIN_ADDED = "<|tool_call_begin|>"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]", r"\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PIECES = "|".join([r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{ENDING}",
                   rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{ENDING}", r"\p{N}{1,3}",
                   r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def tokens_of(vocab):
    """The bytes of a byte-level vocabulary's tokens, in the order of their ids."""
    bytes_of = {}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    for b in range(256):
        char = chr(b) if b in printable else chr(256 + sum(c not in printable for c in range(b)))
        bytes_of[char] = bytes([b])
    return [b"".join(bytes_of[c] for c in key) for key in sorted(vocab, key=vocab.get)]


def ranks_of(r):
    """bytes -> rank: the 256 bytes, then kimi.json's tokens with made up ones among them."""
    tokens = tokens_of(json.loads((HERE / "kimi.json").read_text())["model"]["vocab"])
    singles, longer = [t for t in tokens if len(t) == 1], [t for t in tokens if len(t) > 1]
    known = set(tokens)
    for _ in range(N_MADE_UP):
        made = b"".join(r.choice(longer[:400] + singles[60:90]) for _ in range(2))
        if r.random() < 0.3:
            made = r.choice([b"a", b"b", b"ab", b"aa"]) * r.randint(1, 5) + r.choice([b"", b"a", b"b"])
        if made not in known:
            known.add(made)
            longer.insert(r.randrange(len(longer) + 1), made)
    return {token: rank for rank, token in enumerate(singles + longer)}


def special_tokens(n_ranks):
    """The named special tokens, and all 256 as Kimi-K2's tokenizer_config.json and class define
    them.
    """
    names = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 6: PLAIN_ADDED,
             7: "<|im_middle|>", 254: "[UNK]", 255: "[PAD]"}
    decoder = {str(n_ranks + i): dict(content=name, lstrip=False, normalized=False, rstrip=False,
                                      single_word=False, special=name != PLAIN_ADDED) for i, name in names.items()}
    return decoder, {names.get(i, f"<|reserved_token_{n_ranks + i}|>"): n_ranks + i for i in range(256)}


def write_ranks(folder, ranks):
    """tiktoken.model and tokenizer_config.json. Returns the special tokens."""
    decoder, special = special_tokens(len(ranks))
    (folder / "tiktoken.model").write_text("".join(f"{base64.b64encode(t).decode()} {rank}\n"
                                                   for t, rank in ranks.items()))
    config = dict(added_tokens_decoder=decoder, bos_token="[BOS]", eos_token="[EOS]", model_max_length=131072,
                  tokenizer_class="TikTokenTokenizer")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    return special


def golden(encoding, special, lines):
    out = bytearray()
    hidden = {i for name, i in special.items() if name != PLAIN_ADDED}
    for turn, line in enumerate(lines):
        allowed = set(special) if turn % 3 != 2 else {PLAIN_ADDED}
        ids = encoding.encode(line, allowed_special=allowed, disallowed_special=())
        text = encoding.decode([i for i in ids if i not in hidden])
        out += struct.pack("<II", fnv(struct.pack(f"<{len(ids)}I", *ids)), fnv(text.encode()))
    return bytes(out)


def random_lines(r, lines, special, n):
    """Random lines made of pieces of other lines, and of runs of few letters."""
    few = "aabbab AB'sS'Tt 1234中文字漢ｅéßſKﬀ́  \n\r\t.-/"
    for _ in range(n):
        parts = []
        for _ in range(r.randint(1, 8)):
            kind, line = r.random(), r.choice(lines)
            at = r.randrange(len(line) + 1)
            parts.append(line[at:at + r.randint(1, 20)] if kind < 0.4 else r.choice(list(special)) if kind < 0.45
                         else "".join(r.choice(few) for _ in range(r.randint(1, 30))) if kind < 0.7
                         else "".join(r.choice("ab") for _ in range(r.randint(1, 200))))
        yield "".join(parts)


def main():
    r = random.Random(20)
    folder = HERE / "tiktoken"
    folder.mkdir(exist_ok=True)
    ranks = ranks_of(r)
    special = write_ranks(folder, ranks)
    encoding = tiktoken.Encoding("golden", pat_str=PIECES, mergeable_ranks=ranks, special_tokens=special)
    lines = [json.loads(l) for l in (HERE / "lines.jsonl").read_text().split("\n") if l]
    (HERE / "tiktoken.golden").write_bytes(golden(encoding, special, lines[:N_LINES]))
    (folder / "versions.json").write_text(json.dumps(dict(tiktoken=tiktoken.__version__, ranks=len(ranks))) + "\n")
    if "--lines" in sys.argv:
        at = sys.argv.index("--lines")
        made = list(random_lines(r, [l for l in lines if l], special, int(sys.argv[at + 2])))
        Path(sys.argv[at + 1] + ".jsonl").write_text("".join(json.dumps(l) + "\n" for l in made))
        Path(sys.argv[at + 1] + ".golden").write_bytes(golden(encoding, special, made))


if __name__ == "__main__":
    main()
