#!/usr/bin/env python3
"""The memory of shoal embed does not grow with its input: not the job with its journal, not the files of --vectors.

usage: embed_memory.py SHOAL WORK_FOLDER
Few texts run at a time, and the shorter input already fills the window of lines, so both inputs need the same memory.
bench/embed_memory.py measures a million lines.
"""
import sys

from program import TESTS, Shoal, expect, fresh_folder, main_of, peak_kib

MODEL = TESTS / "golden" / "embed" / "bert-embed" / "hf"
LINES_FEW, LINES_MANY = 12000, 48000
GROWTH_MAX_KIB = 8 * 1024  # 233 bytes for each further line; a row of the output has 447


class MemoryTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(work)
        self.model = self.work / "model.h5"
        self.shoal.must("convert", MODEL, self.model)

    def peak_kib(self, n, kind):
        source, output = self.work / "in.jsonl", self.work / f"{kind}-{n}.jsonl"
        source.write_text("".join(f'{{"custom_id":"text {i}","input":"a"}}\n' for i in range(n)))
        peak = peak_kib([self.shoal.path, "embed", "--model", self.model, "--input", source, "--output", output, "--quiet",
                         "--max-batch", 64, "--vectors", self.work / f"vectors.{kind}"])
        with output.open("rb") as rows:
            expect(sum(1 for _ in rows) == n, f"{output}: expected {n} rows")
        output.unlink()
        return peak

    def main(self):
        for kind in ("npy", "h5"):
            few, many = self.peak_kib(LINES_FEW, kind), self.peak_kib(LINES_MANY, kind)
            print(f"{kind}: at most {few} KiB for {LINES_FEW} lines, {many} KiB for {LINES_MANY}")
            expect(many - few < GROWTH_MAX_KIB, f"{kind}: memory grows with the input")


if __name__ == "__main__":
    main_of(MemoryTest(*sys.argv[1:3]).main)
