#!/usr/bin/env python3
"""Tests draft tokens from a prediction layer: the guesses of the reference, in all layouts and chunks, and the same
bytes as without them.

usage: predict.py SHOAL WORK_FOLDER
golden.json has a reference's guesses for the greedy answers; some are right. As many of shoal's
guesses must be right: each is compared with the token that is drawn in its place.
"""
import json
import shutil
import sys
from pathlib import Path

from program import GOLDENS, Shoal, expect, fresh_folder, main_of

MODELS = ["deepseek-v3-mtp", "glm4-moe-mtp", "deepseek-v32-mtp"]
LAYOUTS = {"one rank": ([], 0), "tp 2": (["--tp", "2", "--ep", "1"], 2), "ep 2": (["--ep", "2"], 2),
           "pp 2": (["--pp", "2"], 2), "dp 2": (["--dp", "2"], 2),
           "dp 2, tp 2": (["--dp", "2", "--tp", "2", "--ep", "4"], 4)}


class PredictTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(Path(work))
        self.report = self.work / "report.json"

    def generate(self, model, golden, *flags, ranks=0):
        """The output's bytes and the job's report."""
        output = self.work / "out.jsonl"
        self.shoal.must("generate", "--model", model, "--input", golden / "prompts.jsonl", "--output", output,
                        "--report", self.report, "--kv-dtype", "f32", "--threads", 1, "--restart", *flags, ranks=ranks)
        return output.read_bytes(), json.loads(self.report.read_text())

    def refused(self, wanted, *argv):
        done = self.shoal(*argv)
        expect(done.status != 0 and wanted in done.err, f"expected '{wanted}': {done}")

    def check_guesses(self, name):
        golden, model = GOLDENS / name, self.work / f"{name}.h5"
        self.shoal.must("convert", golden / "hf", model)
        pairs = [pair for s in json.loads((golden / "golden.json").read_text())["sequences"]
                 for pair in zip(s["guesses"], s["greedy"][1:], strict=True)]
        n_right = sum(a == b for a, b in pairs)
        plain, found = self.generate(model, golden, "--speculate", "off")
        expect(found["guesses"] == 0, "guesses without drafts")
        for layout, (flags, ranks) in LAYOUTS.items():
            for chunk in (["--chunk", "7"], []):
                rows, found = self.generate(model, golden, "--speculate", "mtp", *flags, *chunk, ranks=ranks)
                print(f"{name}, {layout} {' '.join(chunk)}: {found['right_guesses']} of {found['guesses']} right, "
                      f"{found['steps']} steps")
                expect(rows == plain, "the rows differ from those without drafts")
                expect((found["right_guesses"], found["guesses"]) == (n_right, len(pairs)),
                       f"the reference has {n_right} of {len(pairs)}")
                expect(0 < found["right_drafts"] < found["drafts"], "drafts, right and wrong ones")

    def check_rest(self, name):
        """Jobs that do not use the prediction layer, score and plan read a file that has one. In
        int8 the layer still guesses."""
        golden, model, small = GOLDENS / name, self.work / f"{name}.h5", self.work / "int8.h5"
        plain, _ = self.generate(model, golden, "--speculate", "off")
        for flags in (["--speculate", "ngram"], ["--weights", "stream", "--speculate", "mtp"]):
            rows, found = self.generate(model, golden, *flags)
            expect(rows == plain, f"the rows with {flags}")
            expect(found["guesses"] == 0, f"guesses with {flags}: {found['guesses']}")
        self.shoal.must("quantize", model, small, "--format", "int8", "--quiet")
        plain, _ = self.generate(small, golden, "--speculate", "off")
        rows, found = self.generate(small, golden, "--speculate", "mtp", "--tp", 2, "--ep", 2, ranks=2)
        expect(rows == plain and found["right_guesses"] > 0, f"int8: {found['right_guesses']} guesses right")
        self.shoal.must("score", "--model", model, "--input", golden / "sequences.jsonl", "--output",
                        self.work / "scores.jsonl")
        with_layer = self.shoal.must("plan", "--model", model).out
        expect("MiB" in with_layer or "GiB" in with_layer, f"a plan: {with_layer}")

    def check_refusals(self):
        source, model = GOLDENS / "deepseek-v3" / "hf", self.work / "without.h5"
        self.shoal.must("convert", source, model)
        self.refused("has no prediction layer", "generate", "--model", model, "--speculate", "mtp", "--input",
                     GOLDENS / "deepseek-v3" / "prompts.jsonl", "--output", self.work / "out.jsonl")

    def check_other_field(self):
        """convert refuses a prediction layer that config.json counts in another field, or does not count."""
        golden = GOLDENS / MODELS[1]
        for i, (fields, found) in enumerate([({"num_mtp_layers": 1}, "none"), ({"num_nextn_predict_layers": 0}, "0")]):
            copy = self.work / f"counted{i}"
            shutil.copytree(golden / "hf", copy)
            config = json.loads((copy / "config.json").read_text())
            del config["num_nextn_predict_layers"]
            (copy / "config.json").write_text(json.dumps({**config, **fields}))
            done = self.shoal("convert", copy, self.work / f"counted{i}.h5")
            expect(done.status == 3 and "eh_proj" in done.err and "num_nextn_predict_layers" in done.err
                   and f"found {found}" in done.err, f"{fields}: {done}")

    def check_incomplete(self):
        """convert names what an incomplete prediction layer lacks, and the rest of the model is whole."""
        golden = GOLDENS / MODELS[0]
        plain, _ = self.generate(self.work / f"{MODELS[0]}.h5", golden, "--speculate", "off")
        for there, renamed, wanted in [
                ("layers.2.enorm.weight", "layers.2.xnorm.weight", "tensor model.layers.2.enorm.weight is missing"),
                ("layers.2.mlp.experts.7.up_proj", "layers.2.mlp.experts.8.up_proj",
                 "tensor model.layers.2.mlp.experts.up_proj.weight of expert 7 is missing")]:
            copy, model = self.work / "renamed", self.work / "renamed.h5"
            shutil.copytree(golden / "hf", copy, dirs_exist_ok=True)
            path = copy / "model.safetensors"
            expect(there.encode() in path.read_bytes(), f"no {there}")
            path.write_bytes(path.read_bytes().replace(there.encode(), renamed.encode()))
            done = self.shoal.must("convert", copy, model)
            expect(wanted in done.err and "are left out" in done.err, f"expected '{wanted}': {done}")
            rows, found = self.generate(model, golden)
            expect(rows == plain and found["guesses"] == 0, f"rows without {there}")
            self.refused("has no prediction layer", "generate", "--model", model, "--speculate", "mtp", "--input",
                         golden / "prompts.jsonl", "--output", self.work / "out.jsonl")

    def main(self):
        for name in MODELS:
            self.check_guesses(name)
            self.check_rest(name)
        self.check_refusals()
        self.check_other_field()
        self.check_incomplete()


if __name__ == "__main__":
    main_of(PredictTest(*sys.argv[1:3]).main)
