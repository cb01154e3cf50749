#!/usr/bin/env python3
"""Tests the whole CUDA backend on an emulated driver, which runs the kernels' source on the CPU.
This proves the host side and the arithmetic, but nothing about a real GPU.

usage: emulated.py SHOAL_EMULATED WORK_FOLDER CASE
  law       with --device cuda --exact-across-devices the rows are, byte for byte, those of --device cpu: a dense and
            a MoE model, float and quantized, each cache type, several layouts and chunks, ranks that share a device
  families  the same for every model family
  draws     the same for sampled tokens
  library   with a library for matrix products, rows do not depend on layout and chunk, and differ from the CPU's.
            An algorithm whose bits depend on rows or outputs is not used. If none is left, or there is no
            library, own kernels compute the rows
  cores     on tensor cores, rows do not depend on layout, chunk and batch, and differ from the CPU's
  replays   a long greedy answer replays its steps as CUDA graphs and has the same bytes as without graphs, and as
            where graphs cannot be made. A graph that kept stale arguments would give other bytes
  errors    every failure of a device ends in one sentence and the contract's exit status
"""
import re
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "e2e"))
from program import (  # noqa: E402
    GOLDENS, Shoal, expect, fresh_folder, main_of, read_rows, write_lines)

CUDA = ["--device", "cuda"]
EXACT = [*CUDA, "--exact-across-devices"]
PLAIN = ""
# model: {format: [(flags, which the run on the CPU gets too, [(layout flags, ranks)])]}
ONE = ([], [([], 0)])
MODELS = {
    "smollm-tied": {
        PLAIN: [ONE, ([], [(["--pp", "2", "--chunk", "3"], 2)]),
                (["--kv-dtype", "int8"], [([], 0), (["--chunk", "5"], 0)])],
        "int8-asym-g32": [ONE, (["--activations", "f32"], [([], 0)])], "mxfp4": [ONE]},
    "qwen3-moe-mixed": {
        PLAIN: [ONE, ([], [(["--ep", "2"], 2)]), (["--kv-dtype", "fp8"], [([], 0)]),
                # A capacity factor depends on the batch, so the clock must not change which rows a
                # step has.
                (["--capacity-factor", "1.0", "--max-batch", "2", "--order", "input", "--step-ms",
                  "0"], [([], 0)]),
                (["--capacity-factor", "0.5", "--capacity-policy", "next", "--max-batch", "1",
                  "--step-ms", "0"], [([], 0)])],
        "int4": [ONE], "fp8": [ONE]},
    "qwen2-window": {PLAIN: [([], [(["--chunk", "4"], 0)])]},
    "qwen2-moe": {PLAIN: [ONE, ([], [(["--ep", "2"], 2)])]},
    "olmoe-clip": {PLAIN: [ONE, ([], [(["--tp", "2"], 2)])]},
    "granite-moe": {PLAIN: [ONE]},
    "gpt-oss-mxfp4": {PLAIN: [ONE, (["--kv-dtype", "int8"], [(["--tp", "2"], 2)])]},
    "deepseek-v2": {PLAIN: [ONE]},
    "deepseek-v3": {PLAIN: [ONE, (["--kv-dtype", "int8"], [([], 0)]),
                            (["--kv-dtype", "fp8"], [(["--tp", "2"], 2)])]},
    "glm4-moe": {PLAIN: [ONE]},
    "qwen3-head40": {PLAIN: [ONE, (["--kv-dtype", "int8"], [(["--tp", "2"], 2)])]},
    "olmoe-head24": {PLAIN: [ONE]},
}
LAW = ["smollm-tied", "qwen3-moe-mixed"]
# model, format, flags, the driver's faults, [(layout, ranks)]
SMALL = (["--max-batch", "1", "--chunk", "5"], 0)
CORES = [
    ("llama-gqa", PLAIN, [], "no_gemm=1", [SMALL, (["--tp", "2"], 2)]),
    ("qwen3-moe-mixed", PLAIN, [], None, [SMALL, (["--ep", "2"], 2), (["--tp", "2"], 2)]),
    ("qwen3-moe-mixed", "fp8", [], None, [(["--ep", "2"], 2)]),
    ("smollm-tied", "int4", ["--activations", "f32"], None, [SMALL, (["--tp", "2"], 2)]),
    ("smollm-tied", "mxfp4", ["--activations", "f32"], None, [SMALL]),
]


class EmulatedTest:
    def __init__(self, shoal, work, case):
        self.shoal, self.case = Shoal(shoal), case
        self.work = Path(work)
        fresh_folder(self.work)

    def rows(self, model, source, flags, ranks=0, env=None):
        """The bytes that generate and score write."""
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
        for form, checks in MODELS[name].items():
            model = plain
            if form:
                model = self.work / f"{name}-{form}.h5"
                self.shoal.must("quantize", plain, model, "--format", form)
            for flags, layouts in checks:
                want = self.rows(model, source, flags)
                for layout, ranks in layouts:
                    said = " ".join([model.name, *flags, *layout])
                    found = self.rows(model, source, [*EXACT, *flags, *layout], ranks)
                    expect(found == want, f"{said}: other rows on a device")
                    print(f"  {said}: the same bytes", flush=True)

    def law(self):
        for name in LAW:
            self.check_model(name)

    def families(self):
        for name in MODELS:
            if name not in LAW:
                self.check_model(name)

    def draws(self):
        """Tokens drawn on the device equal those of the CPU; so do lines that must be sampled on
        the host.
        """
        kinds = [dict(temperature=0), dict(temperature=0.9, top_k=20, seed=11), dict(),
                 dict(temperature=1.0, top_p=0.8), dict(temperature=1.3, min_p=0.02, seed=2**62),
                 dict(temperature=0.7, top_k=50, top_p=0.9, min_p=0.01, seed=0, n=2),
                 dict(temperature=1.5, repetition_penalty=1.3, frequency_penalty=0.5,
                      presence_penalty=0.2),
                 dict(temperature=0, logit_bias={"7": 100, "11": -100}),
                 dict(temperature=1.0, logit_bias={"5": 3.5, "9": -2}, top_p=0.95)]
        source, model = GOLDENS / "smollm-tied", self.work / "draws.h5"
        prompts = list(read_rows(source / "prompts.jsonl").values())
        lines = [dict(prompts[i % len(prompts)], custom_id=f"d{i}", max_tokens=6, **kind)
                 for i, kind in enumerate(kinds)]
        self.shoal.must("convert", source / "hf", model)
        for more in ({}, dict(logprobs=2)):
            write_lines(self.work / "lines.jsonl", [dict(line, **more) for line in lines])
            found = []
            for flags, ranks in (([], 0), (EXACT, 0), ([*EXACT, "--tp", "2"], 2)):
                self.shoal.must("generate", "--model", model, "--input", self.work / "lines.jsonl",
                                "--output", self.work / "rows.jsonl", "--quiet", *flags, ranks=ranks)
                found.append((self.work / "rows.jsonl").read_bytes())
                expect(b"error" not in found[0], f"an error row: {found[0]}")
                expect(found[0] == found[-1], f"{more} {flags}: other tokens on a device")
            print(f"  {len(lines)} lines {more}: the same tokens, 1 and 2 ranks")

    def scores(self, model, source, *flags, ranks=0, env=None):
        output = self.work / "scores.jsonl"
        done = self.shoal.must("score", "--model", model, "--input", source / "sequences.jsonl",
                               "--output", output, "--log-level", "debug", *flags, ranks=ranks,
                               env=env and {"SHOAL_EMULATED": env})
        return output.read_bytes(), done.err

    def library(self):
        for name, layout in (("smollm-tied", ["--pp", "2", "--chunk", "3"]),
                             ("llama-gqa", ["--tp", "2", "--threads", "1"])):
            source, model = GOLDENS / name, self.work / f"{name}.h5"
            self.shoal.must("convert", source / "hf", model)
            cpu, _ = self.scores(model, source)
            want, said = self.scores(model, source, *CUDA)
            expect("algorithm 0 of emulated library" in said, f"{name}: no library: {said}")
            expect(want != cpu, f"{name}: the library's rows are the CPU's: it was not called")
            expect(self.scores(model, source, *CUDA, *layout, ranks=2)[0] == want,
                   f"{name} {layout}: other rows with the library")
            print(f"  {name} {' '.join(layout)}: the same bytes with the library")
            expect("another with the same bits for many rows" in said, f"{name}: one algorithm: {said}")
            for n, words in ((1, "another with the same bits"), (16, "the same for many rows")):
                rows, said = self.scores(model, source, *CUDA, env=f"gemm_many={n}")
                expect(words in said and rows == want, f"{name} gemm_many={n}: other rows: {said}")
            rows, said = self.scores(model, source, *CUDA, "--step-tokens", "600", env="gemm_cores=1")
            few, _ = self.scores(model, source, *CUDA, "--chunk", "3", env="gemm_cores=1")
            expect("same bits for few" in said and rows == few != want,
                   f"{name}: steps of few rows, on the own kernel, differ from the library's: {said}")
        source, model = GOLDENS / "smollm-tied", self.work / "smollm-tied.h5"
        f32 = ["--kv-dtype", "f32"]  # whose attention is the CPU's
        cpu, _ = self.scores(model, source, *f32)
        rows, said = self.scores(model, source, *CUDA, *f32, env="gemm_varies=2")
        expect("algorithm 2 of" in said and rows != cpu, f"two algorithms vary: {said}")
        own = []
        for env, words in (("gemm_varies=3", "own kernels multiply"), ("no_gemm=1", "not be loaded")):
            rows, said = self.scores(model, source, *CUDA, *f32, env=env)
            own.append(rows)
            expect(words in said and rows != cpu and rows == own[0],
                   f"{env}: not the own kernels' rows: {said}")
            print(f"  {env}: own kernels")
        _, said = self.scores(model, source, *CUDA, "--fast-reductions")
        expect("law off" in said, f"--fast-reductions says nothing: {said}")
        self.refused_at("smollm-tied.h5", "gemm_wide=100", 2, ["--exact-across-devices"])
        self.check_journal(model, source)
        self.attention()

    def attention(self):
        """Attention on tensor cores: rows do not depend on layout and chunk, and differ from the
        CPU's.
        """
        alone = {"SHOAL_EMULATED": "no_gemm=1"}
        for name, flags, layout, ranks in (
                ("smollm-tied", [], ["--pp", "2", "--chunk", "3"], 2),
                ("llama-gqa", ["--kv-dtype", "int8"], ["--tp", "2"], 2),
                ("qwen2-window", ["--kv-dtype", "fp8"], ["--chunk", "4"], 0)):
            source, model = GOLDENS / name, self.work / f"{name}.h5"
            self.shoal.must("convert", source / "hf", model)
            want = self.rows(model, source, [*CUDA, *flags], env=alone)
            expect(self.rows(model, source, flags) != want, f"{name}: no tensor cores, the CPU's rows")
            expect(self.rows(model, source, [*CUDA, *flags, *layout], ranks, env=alone) == want,
                   f"{name} {layout}: other rows on tensor cores")
            print(f"  {name} {' '.join(flags + layout)}: the same bytes, attention on tensor cores")

    def decode(self, model, *flags, ranks=0, env=""):
        """The rows, and for rank 0's GPU (launches in graphs, graphs launched, graphs made,
        launches changed).
        """
        output = self.work / "rows.jsonl"
        done = self.shoal.must("generate", "--model", model, "--input", self.work / "long.jsonl",
                               "--output", output, "--log-level", "debug", *flags, ranks=ranks,
                               env={"SHOAL_EMULATED": env})
        said = re.search(r"shoal\[0\].* (\d+) in (\d+) launches of (\d+) graphs, (\d+) of them",
                         done.err)
        return output.read_bytes(), said and [int(n) for n in said.groups()], done.err

    def replays(self):
        prompts = [[102, 5, 243], [141, 50, 5, 102]]
        write_lines(self.work / "long.jsonl",
                    [dict(custom_id=f"g{i}", prompt_token_ids=ids, max_tokens=90, ignore_eos=True,
                          temperature=0) for i, ids in enumerate(prompts)])
        for name, layouts in (("smollm-tied", [["--tp", "2"], ["--pp", "2"]]),
                              ("qwen3-moe-mixed", [["--ep", "2"]])):
            model = self.work / f"{name}.h5"
            self.shoal.must("convert", GOLDENS / name / "hf", model)
            want = self.decode(model)[0]
            for flags, ranks in [([], 0), *[(layout, 2) for layout in layouts]]:
                rows, n, _ = self.decode(model, *EXACT, *flags, ranks=ranks, env="devices=2")
                expect(rows == want, f"{name} {flags}: other rows with graphs")
                expect(n[1] >= 80 and n[3] > 0, f"{name} {flags}: few replays: {n}")
                print(f"  {name} {flags}: the same bytes; {n[1]} launches of {n[2]} graphs, "
                      f"{n[3]} of {n[0]} works changed")
            rows, n, _ = self.decode(model, *EXACT, "--no-device-graphs")
            expect(rows == want and n[:3] == [0, 0, 0], f"{name}: without graphs: {n}")
            rows, n, said = self.decode(model, *EXACT, env="no_graphs=1")
            expect(rows == want and n[1] == 0 and said.count("no graphs from now on") == 1,
                   f"{name}: where no graph can be made: {n} {said}")
            rows, n, _ = self.decode(model, *EXACT, env="stale_graphs=1")
            if name == "smollm-tied":
                expect(rows != want and n[3] > 0, f"{name}: stale arguments do not show: {n}")
            library, n, _ = self.decode(model, *CUDA)
            expect(n[1] >= 80 and library == self.decode(model, *CUDA, "--no-device-graphs")[0],
                   f"{name}: other rows with a library and graphs: {n}")

    def cores(self):
        for name, form, flags, env, layouts in CORES:
            source, plain = GOLDENS / name, self.work / f"{name}.h5"
            model = self.work / f"{name}-{form}.h5" if form else plain
            if not plain.exists():
                self.shoal.must("convert", source / "hf", plain)
            if form and not model.exists():
                self.shoal.must("quantize", plain, model, "--format", form)
            want, _ = self.scores(model, source, *CUDA, *flags, env=env)
            expect(self.scores(model, source, *EXACT, *flags)[0] != want,
                   f"{model.name} {flags}: the exact rows: no tensor core was used")
            for layout, ranks in layouts:
                found, _ = self.scores(model, source, *CUDA, *flags, *layout, ranks=ranks, env=env)
                expect(found == want, f"{model.name} {flags} {layout}: other rows")
                print(f"  {model.name} {' '.join(flags + layout)}: the same bytes")

    def check_journal(self, model, source):
        """A job does not resume a journal whose rows were computed with other sums."""
        argv = ["score", "--model", model, "--input", source / "sequences.jsonl", "--output",
                self.work / "kept.jsonl", "--quiet"]
        self.shoal.must(*argv, *CUDA, journal=True)
        done = self.shoal(*argv, *EXACT, journal=True)
        expect(done.status != 0 and "sums was emulated" in done.err, f"mixed sums: {done}")

    def refused(self, env, status, words, *flags, ranks=0):
        self.refused_at("model.h5", env, status, words, *flags, ranks=ranks)

    def refused_at(self, model, env, status, words, *flags, ranks=0):
        source = GOLDENS / "smollm-tied"
        done = self.shoal("generate", "--model", self.work / model, "--input",
                          source / "prompts.jsonl", "--output", self.work / "no.jsonl", "--device",
                          "cuda", *flags, ranks=ranks, env={"SHOAL_EMULATED": env})
        expect(done.status == status, f"{env}: expected status {status}: {done}")
        for word in words:
            expect(word in done.err, f"{env}: no '{word}' in: {done}")
        said = [line for line in done.err.splitlines() if not words or words[0] in line]
        print(f"  {env}: status {status}: {said[-1][:150]}")

    def errors(self):
        self.shoal.must("convert", GOLDENS / "smollm-tied" / "hf", self.work / "model.h5")
        self.refused("count_error=1", 2, ["no CUDA-capable device"])
        self.refused("count_error=2", 2, ["driver version is insufficient"])
        self.refused("launch_error=3", 2, ["no kernel image", "capability 9.0"])
        self.refused("major=7", 2, ["compute capability 7.0", "8.0"])
        self.refused("devices=1", 2, ["expected --device cpu"], "--fp8-activations", "int8")
        # planned by the GPU's memory, of which the host has far more
        self.refused("memory=2000000", 3, ["out of memory", "the layout may not fit in memory"])
        self.refused("memory=137000000", 3,
                     ["out of memory", "bytes", "0.13 GB are used", "0.00 GB free"])
        self.refused("memory=180400000", 3, ["out of memory", "weights: "])
        self.refused("lost=800", 76, ["the device is gone"])
        self.refused("lost=800", 76, ["the device is gone"], "--tp", "2", ranks=2)
        self.one_of_two()
        self.unlike()
        self.refused("devices=2", 0, ["; shared by 2 ranks"], "--dp", "3", ranks=3)

    def one_of_two(self):
        """One rank's GPU fails and the other's works: neither rank hangs."""
        tp2, nccl, staged = ["--tp", "2"], ["--device-comm", "nccl"], ["--device-comm", "staged"]
        for fault, status, words, flags in (
                ("launch_error=3", 2, ["no kernel image"], tp2),
                ("memory=137000000", 3, ["out of memory"], tp2),
                ("memory=180400000", 3, ["out of memory", "weights: "], tp2),
                ("lost=1500", 76, ["the device is gone"], [*tp2, *nccl]),
                ("nccl_rank=1 nccl_dies=20", 76,
                 ["all-reduce over tp with rank 0", "the device is gone"], [*tp2, *nccl]),
                ("lost=1500", 76, ["the device is gone"], [*tp2, *staged]),
                ("lost=1500", 76, ["the device is gone"], ["--pp", "2"]),
                ("hangs=1000", 76, ["no answer for"], [*tp2, *staged, "--watchdog", "2"])):
            self.refused(f"devices=2 faults_from=1 {fault}", status, words, *flags, ranks=2)

    def unlike(self):
        """Ranks whose GPUs add in different orders refuse to compute together."""
        for env, layout, words in (
                ("another_from=1", "--tp",
                 ["rank 1 on", "with emulated, another, emulated library 1", "rank 0 on"]),
                ("gemm_varies=2 faults_from=1", "--tp",
                 ["inputs: rank 1 on", "algorithm 2", "rank 0 on", "algorithm 0"]),
                ("gemm_varies=3 faults_from=1", "--dp", ["inputs: rank 1 on", "took own kernels"])):
            self.refused(f"devices=2 {env}", 2, words, layout, "2", ranks=2)
        self.refused("devices=2 another_from=1", 0, ["over NCCL"], "--tp", "2",
                     "--exact-across-devices", ranks=2)

    def main(self):
        {"law": self.law, "families": self.families, "draws": self.draws,
         "library": self.library, "cores": self.cores,
         "replays": self.replays, "errors": self.errors}[self.case]()


if __name__ == "__main__":
    main_of(EmulatedTest(*sys.argv[1:4]).main)
