#!/usr/bin/env python3
"""Tests shoal quantize, and running the files that it writes.

usage: quant.py SHOAL WORK_FOLDER MODEL
MODEL: demo, or one of tests/golden/models. For every quantized format: the file is the same from
any number of ranks and threads, and its checksums are right. With --activations f32 its rows equal,
digit for digit, those of the same file converted to f32; with int8 activations they are near. For
the demo, int8 with groups is nearer than int8 with one scale per output. A journal refuses to mix
both kinds of activations. Quantized values that are quantized again give the file of their floats,
with a warning; values of the wanted format are kept.
"""
import json
import re
import shutil
import sys
from pathlib import Path

from program import GOLDENS, REPO, Shoal, expect, fresh_folder, main_of, read_rows, write_lines

FORMATS = {form: ["--format", form]
           for form in ("int8", "int8-asym-g32", "int4", "int4-asym-g64", "fp8", "mxfp4")}
FORMATS["int8-channels"] = ["--format", "int8", "--policy",
                            "embedding=int8,head=int8,attention=int8,ffn=int8,experts=int8"]
DEMO = REPO / "models" / "demo"
# The largest mean difference of a token's log-probability that int8 activations may cause. Random
# networks have logits of tens, where errors do not average out, and errors change chosen experts.
BOUND = {"demo": 0.025, "llama-gqa": 0.1, "smollm-tied": 0.25, "mixtral": 0.2,
         "qwen3-moe-mixed": 0.15, "llama-head100": 0.25}


class QuantTest:
    def __init__(self, shoal, work, name):
        self.shoal, self.name = Shoal(shoal), name
        self.work = fresh_folder(Path(work) / name)
        self.input = self.work / "in.jsonl"

    def prepare(self):
        if self.name != "demo":
            self.model = self.work / "model.h5"
            self.shoal.must("convert", GOLDENS / self.name / "hf", self.model)
            shutil.copyfile(GOLDENS / self.name / "sequences.jsonl", self.input)
            return
        self.model = DEMO / "demo.h5"
        words = [json.loads(line)["prompt"] for line in
                 (DEMO / "prompts.jsonl").read_text().splitlines()]
        text = " ".join(words)
        write_lines(self.input, [dict(custom_id=str(i), prompt=text[300 * i:300 * i + 500])
                                 for i in range(6)])

    def quantize(self, source, name, *flags, ranks=0, env=None):
        path = self.work / name
        self.shoal.must("quantize", source, path, *flags, ranks=ranks, env=env)
        return path

    def score(self, model, *flags, ranks=0):
        output = self.work / "scores.jsonl"
        output.unlink(missing_ok=True)
        self.shoal.must("score", "--model", model, "--input", self.input, "--output", output,
                        "--kv-dtype", "f32", "--quiet", *flags, ranks=ranks)
        return {key: row["logprobs"][1:] for key, row in read_rows(output).items()}

    def check_same_file(self, path, form):
        for ranks, threads in ((0, 3), (2, 1)):
            other = self.quantize(self.model, "again.h5", *FORMATS[form], ranks=ranks,
                                  env={"OMP_NUM_THREADS": str(threads)})
            expect(other.read_bytes() == path.read_bytes(),
                   f"{form}: {ranks} ranks of {threads} threads make another file")

    def check_format(self, form):
        path = self.quantize(self.model, f"{form}.h5", *FORMATS[form])
        found = self.shoal.must("inspect", path, "--verify").out
        expect("bits per weight" in found and "every checksum is right" in found, found)
        self.check_same_file(path, form)
        floats = self.quantize(path, "floats.h5", "--format", "f32")
        want = self.score(floats)
        for layout, ranks in (([], 0), (["--tp", "2"], 2), (["--pp", "2", "--chunk", "5"], 2)):
            expect(self.score(path, "--activations", "f32", *layout, ranks=ranks) == want,
                   f"{form} {layout}: weight-only rows differ from those of the floats")
        near = self.score(path)
        pairs = [(a, b) for key in want for a, b in zip(near[key], want[key])]
        mean = sum(abs(a - b) for a, b in pairs) / len(pairs)
        print(f"  {form}: {len(pairs)} tokens, int8 activations differ by {mean:.4f} on average")
        expect(mean == 0 if form == "fp8" else 0 < mean < BOUND[self.name],
               f"{form}: log-probabilities differ by {mean} on average")
        return path, mean

    def check_again(self, quantized):
        """Codes are quantized again as their values are, with a warning; codes of the same format are kept."""
        floats = self.quantize(quantized, "floats.h5", "--format", "f32")
        flags = ("--format", "int4", "--policy", "router=f32")
        want = self.quantize(floats, "want.h5", *flags)
        found = self.shoal.must("quantize", quantized, self.work / "found.h5", *flags)
        expect((self.work / "found.h5").read_bytes() == want.read_bytes(),
               "codes made from codes differ from those made from their values")
        lost = re.search(r"quantized already: .* an error of (\S+) %", found.err)
        # int4 loses about 9 % in groups of 32; embedding and head become int8 and lose 0.4 %
        expect(lost and 1 < float(lost.group(1)) < 15, f"int4 from int8: {found}")
        kept = self.shoal.must("quantize", want, self.work / "found.h5", *flags)
        expect("already" not in kept.err and (self.work / "found.h5").read_bytes() == want.read_bytes(),
               f"codes of the wanted format are not kept: {kept}")

    def check_refusals(self, quantized):
        calibrated = ["--format", "int4", "--method", "gptq", "--calibration", self.input]
        for flags, word in ((calibrated, "quantized already"),
                            (["--format", "int5"], "int5"),
                            (["--format", "int8", "--policy", "norms=int8"], "norms")):
            done = self.shoal("quantize", quantized, self.work / "no.h5", *flags)
            expect(done.status == 2 and word in done.err, f"{flags}: {done}")
            expect(not (self.work / "no.h5").exists(), "a refused run left a file")

    def check_journal(self, quantized):
        output = self.work / "out.jsonl"
        argv = ["score", "--model", quantized, "--input", self.input, "--output", output]
        self.shoal.must(*argv, journal=True)
        done = self.shoal(*argv, "--activations", "f32", journal=True)
        expect(done.status != 0 and "--activations" in done.err, f"mixed arithmetic: {done}")

    def main(self):
        self.prepare()
        found = {form: self.check_format(form) for form in FORMATS}
        expect(self.name != "demo" or found["int8"][1] < found["int8-channels"][1],
               "int8's groups do not keep activations nearer than a scale for each output does")
        self.check_again(found["int8"][0])
        self.check_refusals(found["int8"][0])
        self.check_journal(found["int8"][0])


if __name__ == "__main__":
    main_of(QuantTest(*sys.argv[1:4]).main)
