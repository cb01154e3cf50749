#!/usr/bin/env python3
"""Compares the logits of models with LoRA adapters to peft's (tests/golden/adapters).

usage: lora.py SHOAL COMPARE_LOGITS WORK_FOLDER
Lines with eight different adapters and a line without one run in one batch.
Every logit must be within 1e-4 of the largest one: on one rank and in several layouts, with whole prompts
and with one token per step. The rows' bytes are the same in all of them, and with the reference
kernels. Without its adapter a line must fail the comparison. Beside quantized weights the bytes are
the same in several layouts, too. An adapter of another model is refused by name.
"""
import json
import sys
from pathlib import Path

from golden import n_ranks
from program import GOLDENS, Shoal, expect, fresh_folder, hash_rows, main_of, run, write_lines

from generated_weights import checkpoint_of

ADAPTERS = GOLDENS.parent / "adapters"
BOUND = "1e-4"
# model: its adapters, and layouts for them
CASES = {
    "llama-gqa": (["attention", "all-linears", "query", "key-value", "output", "gate-up", "down", "one-layer"],
                  [["--chunk", "1"], ["--chunk", "7"], ["--tp", "2"], ["--pp", "2"],
                   ["--dp", "2", "--tp", "2", "--chunk", "5"]]),
    "gemma4": (["key-is-value"], [["--tp", "2", "--ep", "1", "--chunk", "3"]]),
    "glm4": (["pairs"], [["--tp", "2", "--chunk", "3"]]),
    "qwen3-moe": (["experts"], [["--ep", "2"], ["--tp", "2", "--ep", "1", "--chunk", "7"]]),
    "deepseek-v3": (["latent", "latent-heads", "shared-experts", "parameters"],
                    [["--chunk", "1"], ["--tp", "2", "--chunk", "5"], ["--pp", "2"],
                     ["--dp", "2", "--tp", "2", "--ep", "4"]]),
    "deepseek-v2-lite": (["latent-query"], [["--tp", "2", "--ep", "1", "--chunk", "3"]]),
    "mixtral": (["each-expert"], [["--chunk", "1"], ["--ep", "2"], ["--tp", "2", "--ep", "1", "--chunk", "2"],
                                  ["--dp", "2", "--tp", "2", "--ep", "2"]]),
    "gpt-oss": (["one-parameter"], [["--ep", "2"], ["--tp", "2", "--ep", "1", "--chunk", "2"]]),
    "deepseek-v3-mtp": (["predicted"], [["--tp", "2", "--chunk", "3"]]),
    "hy3": (["renamed-shared"], [["--tp", "2", "--ep", "1"]]),
    "kimi-linear": (["renamed-blocks"], [["--tp", "2", "--ep", "1"]]),
    "llama4": (["renamed-dense"], [["--tp", "2", "--chunk", "3"]]),
    "step37": (["two-head-counts"], [["--tp", "2", "--ep", "1", "--chunk", "3"]]),
    "qwen2-moe": (["gated-shared"], [["--ep", "2"], ["--tp", "2", "--ep", "1", "--chunk", "4"]]),
}


class LoraTest:
    def __init__(self, shoal, compare, work):
        self.shoal, self.compare = Shoal(shoal), compare
        self.work = fresh_folder(work)

    def convert(self, source, name):
        path = self.work / name
        self.shoal.must("convert", source, path)
        return path

    def score(self, name, model, named, flags, ranks, env=None):
        """Scores the model's lines, with the files by name. Returns the comparison's run, and the hash of
        the rows.
        """
        logits, output = self.work / "logits.h5", self.work / "scores.jsonl"
        chosen = [flag for alias, file in named.items() for flag in ("--adapter", f"{alias}={file}")]
        self.shoal.must("score", "--model", model, "--input", self.work / f"{name}.jsonl",
                        "--output", output, "--logits", logits, "--kv-dtype", "f32", *chosen, *flags,
                        ranks=ranks, env=env)
        return run([self.compare, logits, BOUND, *self.pairs[name]]), hash_rows(output)

    def write_lines(self, name, named):
        """Writes the batch: a line of the plain model between lines with adapters. A second batch,
        "plain", has the same lines without adapters.
        """
        golden = GOLDENS / name
        plain = json.loads((golden / "sequences.jsonl").read_text().splitlines()[0])
        every = json.loads((golden / "golden.json").read_text()).get("every", 1)
        lines, pairs = [], []
        names = list(named)
        for adapter in [*names[:2], None, *names[2:]]:
            folder = ADAPTERS / named[adapter].stem if adapter else golden
            ids = json.loads((folder / "golden.json").read_text())["prompt_token_ids"] if adapter \
                else plain["prompt_token_ids"]
            line = dict(custom_id=f"l{len(lines)}", prompt_token_ids=ids)
            lines.append({**line, "adapter": adapter} if adapter else line)
            pairs.append(f"{len(lines)}={folder / 'logits.i24'}" if adapter else
                         f"{len(lines)}/{every}={folder / 'logits.0.i24'}")
        write_lines(self.work / f"{name}.jsonl", lines)
        write_lines(self.work / "plain.jsonl", [{k: v for k, v in line.items() if k != "adapter"}
                                                for line in lines])
        self.pairs = {name: pairs, "plain": pairs[:1]}

    def check_model(self, name):
        adapters, layouts = CASES[name]
        model = self.convert(checkpoint_of(GOLDENS / name, self.work / f"{name}-hf"), f"{name}.h5")
        files = [self.convert(ADAPTERS / a / "hf", f"{a}.h5") for a in adapters]
        named = {file.stem: file for file in files}
        self.write_lines(name, named)
        hashes = set()
        for flags in [[], *layouts]:
            done, rows = self.score(name, model, named, flags, n_ranks(flags))
            print(f"  {name} {' '.join(flags) or '(one rank)'}:\n{done.out.rstrip()}")
            expect(done.status == 0, f"logits differ from peft: {done}\n{done.out}")
            hashes.add(rows)
        hashes.add(self.score(name, model, named, [], 0, env={"SHOAL_KERNELS": "ref"})[1])
        expect(len(hashes) == 1, f"{name}: rows differ between layouts or kernels")
        done, _ = self.score("plain", model, named, [], 0)
        expect(done.status == 1, f"a line without its adapter must fail the comparison: {done}")

    def check_refused(self, model, file, *words):
        """`file`, given as an adapter of `model`, ends the job with status 3 and a sentence."""
        done = self.shoal("score", "--model", self.work / model, "--input", self.work / "plain.jsonl",
                          "--output", self.work / "none.jsonl", "--adapter", f"a={self.work / file}")
        expect(done.status == 3 and all(word in done.err for word in words), f"{words}: {done}")

    def check_quantized(self, name, quantized, layouts):
        """The same bytes in all layouts beside quantized weights, some of which read quantized rows."""
        model = self.work / f"{name}-{quantized}.h5"
        self.shoal.must("quantize", self.work / f"{name}.h5", model, "--format", quantized)
        named = {adapter: self.work / f"{adapter}.h5" for adapter in CASES[name][0]}
        hashes = {self.score(name, model, named, flags, n_ranks(flags))[1] for flags in [[], *layouts]}
        hashes.add(self.score(name, model, named, [], 0, env={"SHOAL_KERNELS": "ref"})[1])
        expect(len(hashes) == 1, f"{name}: rows of {quantized} differ between layouts or kernels")

    def check_usage(self):
        """Refused: a name that hides a file or the model, a name given twice, a server of vectors.
        """
        file = self.work / "attention.h5"
        model = ["--model", self.work / "llama-gqa.h5", "--adapter"]
        lines = ["--input", self.work / "plain.jsonl", "--output"]
        for words, *argv in (("another file than --adapter's", "generate", *model, f"a={file}", *lines, file),
                             ("the model's own name", "serve", *model, f"llama-gqa={file}", "--port", 0),
                             ("not for vectors", "serve", *model, f"a={file}", "--port", 0, "--task", "embed"),
                             ("two are named", "generate", *model, f"a={file}", "--adapter", f"a={file}", *lines,
                              self.work / "none.jsonl")):
            done = self.shoal(*argv)
            expect(done.status == 2 and words in done.err, f"{words}: {done}")

    def main(self):
        for name in CASES:
            self.check_model(name)
            if name == "deepseek-v3":
                for quantized in ("int8", "int4-g32", "fp8"):
                    self.check_quantized(name, quantized, [["--tp", "2", "--chunk", "3"],
                                                           ["--dp", "2", "--tp", "2", "--ep", "4"]])
        self.check_refused("qwen3-moe.h5", "all-linears.h5", "all-linears.h5: tensor model.layers.",
                           "the model has no such linear")
        self.check_refused("qwen3-moe.h5", "llama-gqa.h5", "is not an adapter's checkpoint")
        self.shoal.must("quantize", self.work / "llama-gqa.h5", self.work / "awq.h5", "--format", "int4-g32",
                        "--method", "awq", "--calibration", self.work / "plain.jsonl")
        self.check_refused("awq.h5", "attention.h5", "tensor model.layers.", "quantized by awq")
        self.check_usage()


if __name__ == "__main__":
    main_of(LoraTest(*sys.argv[1:4]).main)
