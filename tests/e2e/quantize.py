#!/usr/bin/env python3
"""Tests shoal quantize with calibration: the same file from any number of ranks, files that
generate, and the message of each error. For every other family, results with 8 bits must stay near
those of the source: a scale folded into a wrong tensor would change them.

usage: quantize.py SHOAL WORK_FOLDER methods|families|errors
"""
import json
import random
import re
import sys

from program import GOLDENS, REPO, Shoal, expect, fresh_folder, main_of, read_rows, write_lines

from generated_weights import checkpoint_of

DEMO = REPO / "models" / "demo"
SOURCES = {"dense": GOLDENS / "llama-gqa" / "hf", "moe": GOLDENS / "qwen3-moe" / "hf"}
# Families with latent attention, shared experts, dense layers, biases, clipping, multipliers, fused
# experts, limits.
FAMILIES = ["deepseek-v2", "deepseek-v3", "qwen2-moe", "glm4-moe", "granite-moe", "olmoe-clip",
            "gpt-oss", "mixtral", "qwen2", "minimax-m3"]
METHODS = {"gptq": "int4-g32", "awq": "int4-g32", "smoothquant": "int8"}


class QuantizeTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(work)
        self.set, self.input = self.work / "calibration.jsonl", self.work / "in.jsonl"

    def quantize(self, source, to, *flags, ranks=1):
        """One rank runs without a launcher, which takes longer to start than the rank to quantize."""
        ranks = ranks if ranks > 1 else 0
        return self.shoal("quantize", self.work / f"{source}.h5", to, *flags, "--quiet",
                          ranks=ranks)

    def prepare(self, name):
        source = SOURCES.get(name) or checkpoint_of(GOLDENS / name, self.work / f"{name}-hf")
        self.shoal.must("convert", source, self.work / f"{name}.h5")
        config = json.loads((source / "config.json").read_text())
        n_vocab = config.get("text_config", config)["vocab_size"]
        draw = random.Random(5)
        # Seven texts, so that four ranks have unequal shares.
        write_lines(self.set, [dict(custom_id=str(i), prompt_token_ids=[
            draw.randrange(n_vocab) for _ in range(length)])
            for i, length in enumerate([40, 7, 60, 33, 64, 21, 50])])
        write_lines(self.input, [dict(custom_id="a", prompt_token_ids=[1, 2, 3, 4], max_tokens=8,
                                      temperature=0)])

    def generates(self, model):
        out = self.work / "out.jsonl"
        self.shoal.must("generate", "--model", model, "--input", self.input, "--output", out)
        row = read_rows(out)["a"]
        expect(row.get("error") is None, f"{model}: {row}")

    def same_file(self, name, label, *flags):
        """Expects the same file from 1 and 4 ranks, and that it generates. Returns its bytes."""
        files = {}
        for ranks in (1, 4):
            to = self.work / f"{name}-{label}-{ranks}.h5"
            done = self.quantize(name, to, *flags, "--calibration", self.set, "--min-tokens", "4",
                                 ranks=ranks)
            expect(done.status == 0, str(done))
            files[ranks] = to.read_bytes()
        expect(files[1] == files[4], f"{name} {label}: 4 ranks made another file than 1")
        self.generates(to)
        return files[1]

    def methods(self, name):
        made = {m: self.same_file(name, m, "--method", m, "--format", f)
                for m, f in METHODS.items()}
        made["order"] = self.same_file(name, "order", "--method", "gptq", "--format", "int4-g32",
                                       "--no-act-order")
        made["damping"] = self.same_file(name, "damping", "--method", "gptq", "--format",
                                         "int4-g32", "--damping", "0.05")
        expect(len(made["order"]) == len(made["gptq"]), f"{name}: an order that needs room")
        # 1 MiB holds few second moments: several passes must give the same bytes.
        passes = self.same_file(name, "passes", "--method", "gptq", "--format", "int4-g32",
                                "--memory", "1")
        expect(passes == made["gptq"], f"{name}: --memory changed the file")
        made["auto"] = self.same_file(name, "auto", "--method", "rtn", "--format", "int4-g32",
                                      "--auto-policy", "6")
        expect(len(set(made.values())) == len(made), f"{name}: two methods made the same file")

    def scores(self, model):
        out = self.work / "scores.jsonl"
        self.shoal.must("score", "--model", model, "--input", self.set, "--output", out,
                        "--activations", "f32", "--kv-dtype", "f32", "--restart")
        return [x for _, row in sorted(read_rows(out).items()) for x in row["logprobs"][1:]]

    def family(self, name):
        """Each method stays as near to the source as rounding to nearest."""
        self.prepare(name)
        want = self.scores(self.work / f"{name}.h5")
        given, away = ("--calibration", self.set, "--min-tokens", "4"), {}
        for method in ("rtn", *METHODS):
            to = self.work / f"{name}-{method}.h5"
            flags = ["--method", method, "--format", "int8", *(given if method != "rtn" else ())]
            done = self.quantize(name, to, *flags, ranks=4 if method == "gptq" else 1)
            expect(done.status == 0, str(done))
            found = self.scores(to)
            away[method] = sum(abs(a - b) for a, b in zip(found, want)) / len(want)
            expect(len(found) == len(want) and 0 < away[method] < 1.5 * away["rtn"],
                   f"{name}: log-probabilities differ by {away}")
            if method == "awq":
                other = self.work / "other.h5"
                self.quantize(name, other, *flags, ranks=4)
                expect(other.read_bytes() == to.read_bytes(), f"{name}: 4 ranks, another file")
            if method == "awq" and name == "deepseek-v2":
                # A layer's second moments exceed 1 MiB: experts and shared experts, which have one
                # scale, are then in different passes.
                done = self.quantize(name, other, *flags, "--memory", "1")
                expect(done.status == 0 and other.read_bytes() == to.read_bytes(),
                       f"{name}: --memory changed the file, or: {done}")
        print(f"  {name}: " + ", ".join(f"{m} {x:.4f}" for m, x in away.items()))

    def errors(self):
        """The error that each method adds to the outputs of the demo model's linears."""
        text = " ".join(json.loads(line)["prompt"] for line in
                        (DEMO / "prompts.jsonl").read_text().splitlines())
        write_lines(self.set, [dict(custom_id=str(i), prompt=text[400 * i:400 * i + 400])
                               for i in range(24)])
        found = {}
        for name, flags in {"rtn": [], "gptq": [], "awq": [],
                            "plain order": ["--no-act-order"]}.items():
            done = self.shoal.must("quantize", DEMO / "demo.h5", self.work / "demo.h5", "--format",
                                   "int4-g32", "--method", "gptq" if flags else name, *flags,
                                   "--calibration", self.set, "--quiet")
            found[name] = float(re.search(r"output error (\S+)", done.out).group(1))
        print("  demo, int4-g32, output errors: " + str(found))
        expect(found["gptq"] < found["plain order"] < 0.5 * found["rtn"] and
               found["awq"] < 0.95 * found["rtn"], f"no better than rounding to nearest: {found}")

    def refuses(self, words, *flags, ranks):
        to = self.work / "refused.h5"
        done = self.quantize("moe", to, *flags, ranks=ranks)
        expect(done.status == 2, f"status 2 expected: {done}")
        missing = [w for w in words if w not in done.err]
        expect(not missing, f"the sentence lacks {missing}: {done}")
        expect(not to.exists(), f"a file was left behind: {done}")

    def wrong(self):
        form, given = ("--format", "int4-g32"), ("--calibration", self.set)
        empty = self.work / "empty.jsonl"
        empty.write_text("")
        for ranks in (1, 4):
            self.refuses(["gptq", "--calibration"], *form, "--method", "gptq", ranks=ranks)
            self.refuses(["--auto-policy", "--calibration"], *form, "--auto-policy", "4",
                         ranks=ranks)
            self.refuses(["--method", "magic"], *form, "--method", "magic", ranks=ranks)
            self.refuses(["--damping"], *form, *given, "--method", "gptq", "--damping", "-1",
                         ranks=ranks)
            self.refuses(["int3"], "--format", "int3", *given, "--method", "gptq", ranks=ranks)
            for lines in (empty, self.work / "none.jsonl"):
                done = self.quantize("moe", self.work / "refused.h5", *form, "--method", "awq",
                                     "--calibration", lines, ranks=ranks)
                expect(done.status not in (0, None) and lines.name in done.err, str(done))

    def main(self, case):
        if case == "methods":
            for name in SOURCES:
                self.prepare(name)
                self.methods(name)
            self.wrong()
        elif case == "families":
            for name in FAMILIES:
                self.family(name)
        else:
            self.errors()


if __name__ == "__main__":
    main_of(lambda: QuantizeTest(*sys.argv[1:3]).main(sys.argv[3]))
