#!/usr/bin/env python3
"""A large job: 500 prompts of mixed length on 8 ranks against 1 rank, and bounded memory.

usage: bulk.py SHOAL WORK_FOLDER
tp 2 x pp 2 x dp 2 must write the bytes of one rank and report progress on stderr. An input file
many times as long must not need more memory than the look-ahead window allows.
"""
import json
import random
import sys
from pathlib import Path

from program import REPO, Shoal, expect, main_of, peak_kib, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
LAYOUT = ["--tp", "2", "--pp", "2", "--dp", "2"]
GROWTH_MAX_KIB = 48 * 1024  # from 500 to 20,000 lines, on one rank


def bulk_lines(n):
    draw = random.Random(500)
    text = " ".join(json.loads(line)["prompt"] for line in
                    (REPO / "models" / "demo" / "prompts.jsonl").read_text().splitlines()) * 30
    lines = []
    for i in range(n):
        at, size = draw.randrange(2000), int(draw.paretovariate(0.9) * 8) % 900 + 1
        lines.append(dict(custom_id=f"b{i}", prompt=text[at:at + size],
                          max_tokens=draw.randrange(1, 40), temperature=draw.choice([0, 0.8, 1])))
    return lines


def many_lines(n):
    """Lines that give an error row or one token: a large file with little work."""
    return [dict(custom_id=f"m{i}", prompt="word " * 300 if i % 16 else "word", max_tokens=1,
                 top_p=2 if i % 16 else 1) for i in range(n)]


class BulkTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), Path(work)
        self.work.mkdir(parents=True, exist_ok=True)

    def generate(self, name, lines, *flags, ranks=0):
        write_lines(self.work / f"{name}-in.jsonl", lines)
        output = self.work / f"{name}.jsonl"
        done = self.shoal.must("generate", "--model", DEMO, "--input",
                               self.work / f"{name}-in.jsonl", "--output", output, *flags,
                               ranks=ranks, limit_s=800)
        print(f"{name}:\n{done.err[-1500:]}")
        return output, done

    def peak_kib(self, name, n):
        """The peak resident memory of a one-rank run over n lines, in KiB."""
        write_lines(self.work / f"{name}-in.jsonl", many_lines(n))
        peak = peak_kib([self.shoal.path, "generate", "--model", DEMO, "--input", self.work / f"{name}-in.jsonl",
                         "--output", self.work / f"{name}.jsonl", "--max-batch", 8, "--kv-blocks", 64, "--no-journal"])
        n_rows = sum(1 for _ in (self.work / f"{name}.jsonl").open("rb"))
        expect(n_rows == n, f"{n_rows} rows for {n} lines")
        return peak

    def main(self):
        lines = bulk_lines(500)
        many, done = self.generate("ranks8", lines, *LAYOUT, ranks=8)
        one, _ = self.generate("ranks1", lines)
        expect(many.read_bytes() == one.read_bytes(), "8 ranks and 1 rank wrote other bytes")
        rows = [json.loads(line) for line in one.read_bytes().splitlines()]
        expect([r["custom_id"] for r in rows] == [x["custom_id"] for x in lines], "the order")
        expect(not any("error" in r for r in rows), "an error row")
        expect("500" in done.err, f"no progress on stderr: {done}")
        small, large = self.peak_kib("short", 500), self.peak_kib("long", 20000)
        print(f"largest resident set: {small} KiB with 500 lines, {large} KiB with 20,000")
        expect(large - small < GROWTH_MAX_KIB, "memory grows with the prompt file")


if __name__ == "__main__":
    main_of(BulkTest(*sys.argv[1:3]).main)
