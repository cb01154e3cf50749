#!/usr/bin/env python3
"""The CUDA backend's whole path on the tests' driver, which runs the kernels' source on the CPU.

usage: emulated.py SHOAL_EMULATED WORK_FOLDER CASE
law: rows of --device cuda are those of --device cpu, byte for byte, for dense and MoE models, float
and quantized, over layouts and chunks, with ranks that share one device. errors: what goes wrong
with a device ends in one sentence and the contract's status. No GPU is touched: this proves the host
side and the arithmetic, and nothing about a GPU.
"""
import shutil
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "e2e"))
from program import GOLDENS, Shoal, expect, main_of  # noqa: E402

MODELS = ["smollm-tied", "qwen3-moe-mixed"]
LAYOUTS = {"smollm-tied": [(["--pp", "2", "--chunk", "3"], 2)],
           "qwen3-moe-mixed": [(["--ep", "2"], 2)]}
FORMATS = {"smollm-tied": ["int8-asym-g32", "mxfp4"], "qwen3-moe-mixed": ["int4", "fp8"]}
CUDA = ["--device", "cuda"]
EXACT = [*CUDA, "--exact-across-devices"]


class EmulatedTest:
    def __init__(self, shoal, work, case):
        self.shoal, self.case = Shoal(shoal), case
        self.work = Path(work)
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)

    def rows(self, model, source, flags, ranks=0, env=None):
        """What generate and score write, as bytes."""
        found = b""
        for command, lines, more in (("generate", "prompts.jsonl", ["--max-tokens", "4"]),
                                     ("score", "sequences.jsonl", [])):
            output = self.work / "rows.jsonl"
            self.shoal.must(command, "--model", model, "--input", source / lines, "--output", output,
                            "--quiet", *more, *flags, ranks=ranks, env=env)
            found += output.read_bytes()
        return found

    def check_model(self, name):
        source = GOLDENS / name
        plain = self.work / f"{name}.h5"
        self.shoal.must("convert", source / "hf", plain)
        files = [plain]
        for form in FORMATS[name]:
            files.append(self.work / f"{name}-{form}.h5")
            self.shoal.must("quantize", plain, files[-1], "--format", form)
        for model in files:
            want = self.rows(model, source, [])
            expect(self.rows(model, source, EXACT) == want, f"{model.name}: other rows on a device")
            print(f"  {model.name}: the same bytes, one rank")
        want = self.rows(plain, source, [])
        for layout, ranks in LAYOUTS[name]:
            expect(self.rows(plain, source, [*EXACT, *layout], ranks) == want,
                   f"{name} {layout}: other rows on a device")
            print(f"  {name} {' '.join(layout)}: the same bytes, {ranks} ranks")

    def law(self):
        for name in MODELS:
            self.check_model(name)

    def refused(self, env, status, words, *flags, ranks=0):
        source = GOLDENS / "smollm-tied"
        done = self.shoal("generate", "--model", self.work / "model.h5", "--input",
                          source / "prompts.jsonl", "--output", self.work / "no.jsonl", "--device",
                          "cuda", *flags, ranks=ranks, env={"SHOAL_EMULATED": env})
        expect(done.status == status, f"{env}: expected status {status}: {done}")
        for word in words:
            expect(word in done.err, f"{env}: no '{word}' in: {done}")
        print(f"  {env}: status {status}: {done.err.strip().splitlines()[-1][:150]}")

    def errors(self):
        self.shoal.must("convert", GOLDENS / "smollm-tied" / "hf", self.work / "model.h5")
        self.refused("count_error=1", 2, ["no CUDA-capable device"])
        self.refused("count_error=2", 2, ["driver version is insufficient"])
        self.refused("launch_error=3", 2, ["no kernel image"])
        self.refused("major=7", 2, ["compute capability 7.0", "8.0"])
        self.refused("memory=70000000", 3, ["bytes", "out of memory"])
        self.refused("lost=800", 76, ["the device is gone"])
        self.refused("lost=800", 76, ["the device is gone"], "--tp", "2", ranks=2)
        self.refused("hangs=60", 76, ["no answer for"], "--watchdog", "2")

    def main(self):
        {"law": self.law, "errors": self.errors}[self.case]()


if __name__ == "__main__":
    main_of(EmulatedTest(*sys.argv[1:4]).main)
