#!/usr/bin/env python3
"""Compares models with LoRA adapters with peft (tests/golden/adapters).

usage: lora.py SHOAL COMPARE_LOGITS WORK_FOLDER
Lines with an adapter, with another one and without any run in one batch. Every logit must be within
1e-4 of the largest one: on one rank and in several layouts, with whole prompts and with one token per
step. The rows' bytes are the same in all of them. Without its adapter a line must fail the comparison.
"""
import json
import sys
from pathlib import Path

from golden import n_ranks
from program import GOLDENS, Shoal, expect, fresh_folder, hash_rows, main_of, run, write_lines

ADAPTERS = GOLDENS.parent / "adapters"
BOUND = "1e-4"
# model: its adapters, and layouts for them
CASES = {
    "llama-gqa": (["attention", "all-linears"],
                  [["--chunk", "1"], ["--chunk", "7"], ["--tp", "2"], ["--pp", "2"],
                   ["--dp", "2", "--tp", "2", "--chunk", "5"]]),
    "qwen3-moe": (["experts"], [["--ep", "2"], ["--tp", "2", "--ep", "1", "--chunk", "7"]]),
}


class LoraTest:
    def __init__(self, shoal, compare, work):
        self.shoal, self.compare = Shoal(shoal), compare
        self.work = fresh_folder(work)

    def convert(self, source, name):
        path = self.work / name
        self.shoal.must("convert", source, path)
        return path

    def score(self, name, model, files, flags, ranks):
        """Scores the model's lines. Returns the comparison's run, and the hash of the rows."""
        logits, output = self.work / "logits.h5", self.work / "scores.jsonl"
        chosen = [flag for file in files for flag in ("--adapter", f"{file.stem}={file}")]
        self.shoal.must("score", "--model", model, "--input", self.work / f"{name}.jsonl",
                        "--output", output, "--logits", logits, "--kv-dtype", "f32", *chosen, *flags,
                        ranks=ranks)
        return run([self.compare, logits, BOUND, *self.pairs[name]]), hash_rows(output)

    def write_lines(self, name, adapters):
        """Writes the batch: a line of the plain model between lines with adapters, which come twice.
        A second batch, "plain", has the same lines without adapters.
        """
        golden = GOLDENS / name
        plain = json.loads((golden / "sequences.jsonl").read_text().splitlines()[0])
        lines, pairs = [], []
        for adapter in [*adapters, None, *adapters]:
            folder = ADAPTERS / adapter if adapter else golden
            ids = json.loads((folder / "golden.json").read_text())["prompt_token_ids"] if adapter \
                else plain["prompt_token_ids"]
            line = dict(custom_id=f"l{len(lines)}", prompt_token_ids=ids)
            lines.append({**line, "adapter": adapter} if adapter else line)
            pairs.append(f"{len(lines)}={folder / ('logits.i24' if adapter else 'logits.0.i24')}")
        write_lines(self.work / f"{name}.jsonl", lines)
        write_lines(self.work / "plain.jsonl", [{k: v for k, v in line.items() if k != "adapter"}
                                                for line in lines])
        self.pairs = {name: pairs, "plain": pairs[:1]}

    def check_model(self, name):
        adapters, layouts = CASES[name]
        model = self.convert(GOLDENS / name / "hf", f"{name}.h5")
        files = [self.convert(ADAPTERS / a / "hf", f"{a}.h5") for a in adapters]
        self.write_lines(name, adapters)
        hashes = set()
        for flags in [[], *layouts]:
            done, rows = self.score(name, model, files, flags, n_ranks(flags))
            print(f"  {name} {' '.join(flags) or '(one rank)'}: {done.out.strip()}")
            expect(done.status == 0, f"logits differ from peft: {done}\n{done.out}")
            hashes.add(rows)
        expect(len(hashes) == 1, f"{name}: rows differ between layouts")
        done, _ = self.score("plain", model, files, [], 0)
        expect(done.status == 1, f"a line without its adapter must fail the comparison: {done}")

    def main(self):
        for name in CASES:
            self.check_model(name)


if __name__ == "__main__":
    main_of(LoraTest(*sys.argv[1:4]).main)
