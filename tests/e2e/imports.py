#!/usr/bin/env python3
"""Tests whole jobs on checkpoints that other tools quantized (tests/golden/imports).

usage: imports.py SHOAL COMPARE_LOGITS WORK_FOLDER
Every logit of the converted model must be within 1e-4 of transformers' logits for the weights that
the tool's own library dequantizes. If convert kept the quantized values (the default), the rows of
--activations f32 must equal, digit for digit, those of the same file converted to f32, on one rank
and on two; with int8 activations they must be near.
"""
import sys
from pathlib import Path

from program import TESTS, Shoal, expect, fresh_folder, main_of, read_rows, run

IMPORTS = TESTS / "golden" / "imports"
BOUND, NEAR = "1e-4", 0.1


class ImportTest:
    def __init__(self, shoal, compare, work):
        self.shoal, self.compare, self.work = Shoal(shoal), compare, Path(work)
        fresh_folder(self.work)

    def score(self, case, model, *flags, ranks=0):
        output = self.work / "scores.jsonl"
        output.unlink(missing_ok=True)
        self.shoal.must("score", "--model", model, "--input", case / "sequences.jsonl",
                        "--output", output, "--kv-dtype", "f32", "--quiet", *flags, ranks=ranks)
        return read_rows(output)["p0"]["logprobs"][1:]

    def check_values(self, case):
        model, logits = self.work / "values.h5", self.work / "logits.h5"
        self.shoal.must("convert", case / "hf", model, "--quantized", "dequantize")
        self.score(case, model, "--logits", logits)
        done = run([self.compare, logits, BOUND, f"1={case / 'logits.0.i24'}"])
        print(f"  {case.name}: {done.out.strip()}")
        expect(done.status == 0, f"{case.name}: logits differ from the library's: {done}\n{done.out}")

    def check_codes(self, case):
        kept, floats = self.work / "kept.h5", self.work / "floats.h5"
        self.shoal.must("convert", case / "hf", kept)
        self.shoal.must("quantize", kept, floats, "--format", "f32")
        want = self.score(case, floats)
        for layout, ranks in ([], 0), (["--tp", "2"], 2):
            expect(self.score(case, kept, "--activations", "f32", *layout, ranks=ranks) == want,
                   f"{case.name} {layout}: kept codes and their floats give other rows")
        near = self.score(case, kept)
        mean = sum(abs(a - b) for a, b in zip(near, want)) / len(want)
        print(f"  {case.name}: int8 activations differ by {mean:.4f} on average")
        expect(mean < NEAR, f"{case.name}: log-probabilities differ by {mean} on average")

    def main(self):
        for case in sorted(IMPORTS.iterdir()):
            if not (case / "sequences.jsonl").exists():
                continue
            self.check_values(case)
            self.check_codes(case)


if __name__ == "__main__":
    main_of(ImportTest(*sys.argv[1:4]).main)
