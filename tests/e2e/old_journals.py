#!/usr/bin/env python3
"""Tests that journals written by an earlier version of shoal still resume, and are still refused
with other flags.

usage: old_journals.py SHOAL WORK_FOLDER
The journals of tests/golden/journals were written by `shoal generate` and `shoal score` over in.jsonl
there, with the flags in JOBS, after the sum over a token's experts had moved to the integer grid:
  drained    ended by SIGUSR1 with 4 of 14 rows done and nothing in the output
  scored     complete; a part of the input, with a capacity factor
  quantized  complete; a part of the input, with int8 weights, f32 activations and an int8 KV cache
Each job resumes with the same flags and gives the rows of a run without a journal. With one
changed flag it is refused, and the flag is named. earlier_sums is the drained job's journal from
before that change (commit 0067aa1): its rows have other bytes, so it is refused.
"""
import shutil
import sys

from program import REPO, TESTS, Shoal, expect, fresh_folder, main_of

DEMO = REPO / "models" / "demo" / "demo.h5"
JOURNALS = TESTS / "golden" / "journals"
# name: command, flags, a changed flag, the sentence that refuses it
JOBS = {
    "drained": ("generate",
                ["--kv-dtype", "f32", "--temperature", 0.7, "--top-k", 40, "--seed", 3, "--stop", "THE", "--stop",
                 "Q,R", "--repetition-penalty", 1.1, "--max-model-len", 256, "--template-date", "2024-02-29"],
                ["--min-p", 0.5], "--min-p was 0 when the job began and is 0.5 now"),
    "scored": ("score", ["--capacity-factor", 1.25, "--capacity-policy", "next", "--input-part", "2/5"],
               ["--capacity-policy", "top1"], "--capacity-policy was 2 when the job began and is 3 now"),
    "quantized": ("generate", ["--activations", "f32", "--kv-dtype", "int8", "--temperature", 0, "--input-part", "1/7"],
                  ["--activations", "int8"], "--activations was f32 when the job began and is int8 now"),
}


class OldJournalsTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(work)
        self.input = JOURNALS / "in.jsonl"

    def job(self, name, output, *more, journal=True):
        command, flags, _, _ = JOBS[name]
        model = self.work / "int8.h5" if name == "quantized" else DEMO
        return self.shoal(command, "--model", model, "--input", self.input, "--output", output, "--threads", 1,
                          *flags, *more, journal=journal)

    def take(self, name, output):
        """Copies the journal, and the output as far as it was written."""
        shutil.copyfile(JOURNALS / f"{name}.journal", f"{output}.journal")
        written = JOURNALS / f"{name}.jsonl"
        output.write_bytes(written.read_bytes() if written.exists() else b"")

    def test(self, name):
        output, whole = self.work / f"{name}.jsonl", self.work / f"{name}.whole.jsonl"
        _, _, other, sentence = JOBS[name]
        self.take(name, output)
        done = self.job(name, output, *other)
        expect(done.status == 2 and sentence in done.err, f"{name}: expected '{sentence}': {done}")
        done = self.job(name, output)
        said = "4 rows are done" if name == "drained" else "nothing to do"
        expect(done.status == 0 and said in done.err, f"{name}: expected '{said}': {done}")
        fresh = self.job(name, whole, journal=False)
        expect(fresh.status == 0, str(fresh))
        expect(output.read_bytes() == whole.read_bytes(), f"{name}: resumed, the rows are others")
        print(f"{name}: resumed, {len(whole.read_bytes().splitlines())} rows")

    def test_other_arithmetic(self):
        output = self.work / "earlier.jsonl"
        shutil.copyfile(JOURNALS / "earlier_sums.journal", f"{output}.journal")
        output.write_bytes(b"")
        done = self.job("drained", output)
        sentence = ("the job began with a version of shoal with other arithmetic "
                    "(now sums of experts: on the integer grid), so its rows would have other bytes")
        expect(done.status == 3 and sentence in done.err, f"earlier sums: expected '{sentence}': {done}")
        print("earlier sums: refused")

    def main(self):
        self.shoal.must("quantize", DEMO, self.work / "int8.h5", "--format", "int8", "--quiet")
        for name in JOBS:
            self.test(name)
        self.test_other_arithmetic()


if __name__ == "__main__":
    main_of(OldJournalsTest(sys.argv[1], sys.argv[2]).main)
