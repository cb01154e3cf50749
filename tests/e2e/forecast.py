#!/usr/bin/env python3
"""Tests forecasts: a node measured by shoal bench, plans with a node of fixed numbers, jobs and shoal status with it.

usage: forecast.py SHOAL WORK_FOLDER
How near forecasts are to a run's clock is measured by bench/forecast.py on a quiet machine, not here: times of a busy
machine say nothing. Here the steps of forecasts are compared with those of runs. tests/unit/test_cost.c tests the
formulas, test_advice.c the advice.
"""
import json
import re
import sys
import xml.etree.ElementTree
from pathlib import Path

from program import REPO, Shoal, expect, fresh_folder, main_of

USAGE, INPUT = 2, 3
ROWS = (1, 4, 16, 64, 256, 1024)
BYTES = {"f32": 4, "bf16": 2, "int8": 1, "int4-g32": 0.5625}


def node(version):
    """A host of two ranks of two threads, 10 GB/s and 10^12 operations per second."""
    linear = {name: {"memory": [[r, max(b / 1e10, r * 2e-12)] for r in ROWS], "cached": [[r, r * 2e-12] for r in ROWS]}
              for name, b in BYTES.items()}
    return {"shoal_node": 2, "host": "round", "cpu": "a CPU", "kernels": "avx2", "shoal": version, "n_cores": 4,
            "n_threads": 4, "n_ranks": 2, "norm_s": 1e-11, "gate_s": 1e-11, "rope_s": 1e-11, "logit_s": 1e-11,
            "op_s": 1e-6, "step_s": 1e-5, "sequence_s": 1e-6, "barrier_s": 1e-6, "network_bytes_s": 12.5e9, "network_s": 2e-6, "disk_bytes_s": 0,
            "cache_bytes": 1e5, "memory_bytes": 8e9, "read": [[1, 4e9], [4, 1e10]], "flops": [[1, 2.5e11], [4, 1e12]],
            "attention_one": [[64, 4e-10]], "attention_many": [[64, 1e-11]], "sum": [[4096, 4e-6]], "linear": linear}


def slow_node(version, ranks):
    """The host of node() with `ranks` ranks and 300 times as slow, so that printed times have
    enough digits. More threads are no faster, so that the real machine's cores do not count."""
    slow = node(version)
    for key in [k for k in slow if k.endswith("_s")]:
        slow[key] = slow[key] / 300 if "bytes" in key else slow[key] * 300
    for key in ("attention_one", "attention_many", "sum"):
        slow[key] = [[x, y * 300] for x, y in slow[key]]
    for curves in slow["linear"].values():
        for key in curves:
            curves[key] = [[x, y * 300] for x, y in curves[key]]
    return {**slow, "read": [[1, 1e10 / 300]], "flops": [[1, 1e12 / 300]], "n_ranks": ranks, "cache_bytes": 0}


# lines, tokens of a prompt, tokens of an answer, tokens that all prompts begin with, sequences at a time
LOADS = {"prompts": (24, 400, 2, 0, 64), "answers": (8, 4, 48, 0, 8), "one at a time": (2, 16, 40, 0, 1),
         "mixed": (48, 96, 24, 0, 16), "shared prefixes": (24, 200, 8, 160, 16)}


class ForecastTest:
    def __init__(self, shoal, work):
        self.shoal = Shoal(shoal)
        self.work = Path(work)
        fresh_folder(self.work)
        self.version = re.search(r"\d+\.\d+\.\d+", self.shoal.must("--version").out)[0]
        self.node = self.work / "node.json"
        self.node.write_text(json.dumps(node(self.version)))
        self.model = REPO / "models" / "demo" / "demo.h5"
        self.input = self.work / "in.jsonl"
        self.write_lines(self.input, 600)

    def write_lines(self, path, n):
        with open(path, "w", encoding="ascii") as f:
            for i in range(n):
                f.write(json.dumps({"custom_id": str(i), "prompt_token_ids": [5 + (i * k) % 300 for k in range(20 + i % 7)],
                                    "max_tokens": 8 + i % 5, "temperature": 0, "ignore_eos": True}) + "\n")

    def plan(self, *args):
        return self.shoal.must("plan", "--model", self.model, "--nodes", self.node, "--input", self.input, *args)

    def table(self, done):
        rows = [line.split() for line in done.out.splitlines() if re.match(r" +\d+ +\d+  \d+x\d+x\d+ ep", line)]
        return [{"nodes": int(r[0]), "ranks": int(r[1]), "layout": r[2], "tokens_s": float(r[5])} for r in rows]

    def plans(self):
        svg = self.work / "plan.svg"
        done = self.plan("--count", 6, "--slurm", "--svg", svg, "--watts", 500)
        rows = self.table(done)
        expect([r["nodes"] for r in rows] == sorted(r["nodes"] for r in rows), done.out)
        expect({r["nodes"] for r in rows} == {1, 2, 4, 6}, f"numbers of nodes: {done.out}")
        expect(all(r["ranks"] == 2 * r["nodes"] for r in rows), done.out)
        best = {n: max(r["tokens_s"] for r in rows if r["nodes"] == n) for n in (1, 2, 4)}
        expect(best[1] < best[2] < best[4], f"more nodes must be faster here: {best}")
        expect("soonest" in done.out and "fewest node-hours" in done.out, done.out)
        found = re.search(r"#SBATCH --nodes=(\d+)\n#SBATCH --ntasks=(\d+)\n#SBATCH --cpus-per-task=2\n#SBATCH --time=", done.out)
        expect(found and int(found[2]) == 2 * int(found[1]), done.out)
        root = xml.etree.ElementTree.parse(svg).getroot()
        expect(len(list(root.iter("{http://www.w3.org/2000/svg}rect"))) > 20, "bars and a legend")
        expect(self.plan("--count", 6).out == self.plan("--count", 6).out, "the same forecast each time")

    def layouts(self):
        rows = self.table(self.plan("--tp", 2, "--pp", 1))
        expect([r["layout"] for r in rows] == ["1x1x2"], f"only the layout asked for: {rows}")
        fast = self.table(self.plan("--count", 2, "--tp", 4, "--network", "400Gbit,1us"))
        slow = self.table(self.plan("--count", 2, "--tp", 4, "--network", "100Mbit,1ms"))
        expect(fast[-1]["tokens_s"] > 2 * slow[-1]["tokens_s"], f"a slow network: {fast}, {slow}")

        rows = self.table(self.plan("--count", 8, "--max-batch", 8))
        for n in (2, 4, 8):  # the estimate must drop pipelines, which are slow with few sequences
            speeds = [r["tokens_s"] for r in rows if r["nodes"] == n]
            expect(len(speeds) == 3 and speeds == sorted(speeds, reverse=True),
                   f"the estimate must like best what simulates fastest: {rows}")

    def flags(self):
        """A forecast takes the flags of the job's scheduler, and they count."""
        with open(self.input, "w", encoding="ascii") as f:
            for i in range(200):
                line = {"prompt_token_ids": [5] * 256 + [7 + i], "max_tokens": 2, "ignore_eos": True}
                f.write(json.dumps(line) + "\n")
        shared = self.table(self.plan("--tp", 1))[0]["tokens_s"]
        alone = self.table(self.plan("--tp", 1, "--prefix-cache", "off"))[0]["tokens_s"]
        expect(alone < 0.5 * shared, f"prompts that begin alike, with and without a cache: {shared}, {alone}")
        slow = self.table(self.plan("--tp", 1, "--prefix-cache", "off", "--chunk", 1))[0]["tokens_s"]
        expect(slow < 0.9 * alone, f"chunks of one token: {slow}, {alone}")
        self.plan("--tp", 1, "--order", "input")

    def samples(self):
        self.write_lines(self.input, 8000)
        whole = self.table(self.plan("--tp", 1, "--max-batch", 16, "--sample", 8000))[0]["tokens_s"]
        done = self.plan("--tp", 1, "--max-batch", 16, "--sample", 1024)
        part = self.table(done)[0]["tokens_s"]
        expect("8000 lines (1024 of them simulated)" in done.out, done.out)
        expect(abs(part / whole - 1) < 0.03, f"a sample must say about the same: {part}, {whole}")
        expect("--sample" in self.plan("--sample", 256).out, "a sample of fewer lines than run at a time must be told")
        self.write_lines(self.input, 600)
        self.input.write_text(self.input.read_text().replace(', "ignore_eos": true', ""))
        short = self.table(self.plan("--tp", 1, "--max-batch", 16, "--mean-answer", 2))[0]["tokens_s"]
        expect(short < 0.8 * whole, f"short answers leave more prompt rows for a token: {short}, {whole}")

    def jobs(self):
        args = ["generate", "--model", self.model, "--input", self.input, "--restart", "--max-batch", 16, "--output"]
        self.shoal.must(*args, self.work / "plain.jsonl")
        done = self.shoal.must(*args, self.work / "nodes.jsonl", "--nodes", self.node, ranks=2)
        expect((self.work / "plain.jsonl").read_bytes() == (self.work / "nodes.jsonl").read_bytes(), "other bytes")
        for what in ("steps of answers", "steps of both"):
            expect(re.search(rf"forecast: {what}: [\d.]+ s predicted, [\d.]+ s measured", done.err), done.err)
        parts = re.search(r"forecast: [\d.]+ s predicted, [\d.]+ s measured, (.*)", done.err)
        expect("weights' reads" in parts[1] or "arithmetic" in parts[1], done.err)

    def status(self):
        self.write_lines(self.input, 6000)
        part = self.work / "part.jsonl"
        for step in (1200, 2400, 4800):  # the journal's commits go by the clock: on a slow disk the first has no rows
            done = self.shoal("generate", "--model", self.model, "--input", self.input, "--output", part, "--max-batch",
                              "4", "--quiet", "--restart", "--failpoint", f"step:{step}", journal=True)
            expect(done.status in (137, -9), f"the job must die in its middle: {done}")
            plain = json.loads(self.shoal.must("status", "--json", part).out)
            if plain["rows"] > 50:
                break
        args = ["status", "--json", part, "--nodes", self.node, "--model", self.model, "--input"]
        near = json.loads(self.shoal.must(*args, self.input).out)
        expect(near["left_s"] > 0 and 0.7 < near["left_s"] / plain["left_s"] < 1.4, f"alike lines: {near}, {plain}")
        with open(self.input, encoding="ascii") as f:
            lines = f.readlines()
        for i in range(int(near["rows"]), len(lines)):
            lines[i] = lines[i].replace('"max_tokens": ', '"max_tokens": 9')
        longer = self.work / "longer.jsonl"
        longer.write_text("".join(lines))
        far = json.loads(self.shoal.must(*args, longer).out)
        expect(far["left_s"] > 3 * near["left_s"], f"answers ten times as long: {far}, {near}")

    def disk(self):
        file, saved = self.work / "file", self.work / "disk.json"
        file.write_bytes(b"shoal 64" * (2 << 20))
        before = node(self.version)
        saved.write_text(json.dumps(before))
        out = self.shoal.must("bench", "--disk", file, "--save", saved, "--json", "-").out
        rate = json.loads(out)["best_gbs"]
        after = json.loads(saved.read_text())
        expect(abs(after.pop("disk_bytes_s") / rate / 1e9 - 1) < 1e-3, f"the rate that was printed: {after}, {out}")
        before.pop("disk_bytes_s")
        expect(after == before, f"all else must stay: {before}, {after}")
        shm = re.search(r"^\S+ /dev/shm tmpfs ", Path("/proc/mounts").read_text(), re.M)
        if shm is not None:
            text = saved.read_text()
            done = self.shoal("bench", "--disk", "/dev/shm", "--disk-size", "16M", "--save", saved)
            expect(done.status == USAGE and "is in memory" in done.err and "rate of memory" in done.out, f"{done}")
            expect(saved.read_text() == text, "memory is no disk: nothing may be saved")

    def streams(self):
        """The demo's experts stream: a slow disk is the bound; a fast one reads while the rows are computed."""
        speeds, files = {}, {}
        for disk in (0, 1e5, 1e15):
            files[disk] = self.work / f"disk-{disk:g}.json"
            files[disk].write_text(json.dumps({**node(self.version), "disk_bytes_s": disk}))
        lines = self.work / "few.jsonl"
        self.write_lines(lines, 60)
        args = ["--model", self.model, "--input", lines]
        for disk in (1e5, 1e15):
            done = self.shoal.must("plan", *args, "--nodes", files[disk], "--weights", "stream", "--memory", "48M",
                                   "--max-model-len", 128)
            speeds[disk] = max(r["tokens_s"] for r in self.table(done))
            expect(("waiting for the disk" in done.out) == (disk == 1e5), done.out)
        expect(speeds[1e15] > 3 * speeds[1e5], f"a slow disk: {speeds}")
        done = self.shoal("plan", *args, "--nodes", files[0], "--weights", "stream")
        expect(done.status == INPUT and "bench --disk" in done.err, f"a disk that nobody measured: {done}")
        given = self.shoal.must("plan", *args, "--nodes", files[0], "--weights", "stream", "--memory", "48M",
                                "--max-model-len", 128, "--disk", 1e-4)
        expect(max(r["tokens_s"] for r in self.table(given)) == speeds[1e5], f"--disk instead of the file's: {given.out}")
        job = ["generate", *args, "--output", self.work / "stream.jsonl", "--weights", "stream", "--restart",
               "--expert-memory", "1M", "--expert-file", self.work / "experts", "--nodes"]
        done = self.shoal.must(*job, files[1e5])
        parts = re.search(r"forecast: [\d.]+ s predicted, [\d.]+ s measured, (.*)", done.err)
        expect(parts and "waiting for the disk" in parts[1], done.err)
        expect("no forecast" in self.shoal.must(*job, files[0]).err, "a disk that nobody measured")

    def whole_jobs(self):
        """The forecast of a job against the cost, by the same model, of the steps that the job then really ran. No load of
        the machine changes either. They differ by the part of a forecast's error that comes from its steps and layouts, not
        from the measured speeds or the formulas."""
        ratios = {}
        for name, (lines, prompt, answer, shared, batch) in LOADS.items():
            path = self.work / "load.jsonl"
            with open(path, "w", encoding="ascii") as f:
                for i in range(lines):
                    n = max(shared + 1, prompt * (3 + i % 3) // 4)
                    ids = [5 + (t * 7 if t < shared else t * (i + 3)) % 300 for t in range(n)]
                    f.write(json.dumps({"custom_id": str(i), "prompt_token_ids": ids, "temperature": 0, "ignore_eos": True,
                                        "max_tokens": max(1, answer * (3 + i % 2) // 4)}) + "\n")
            layouts = [(1, [])] + ([(2, ["--tp", 2]), (2, ["--dp", 2]), (2, ["--pp", 2])] if name == "mixed" else [])
            for ranks, layout in layouts:
                ratios[f"{name} {layout}"] = self.whole_job(path, ranks, ["--max-batch", batch, *layout])
        print(f"forecast of the job by cost of its steps: {ratios}")
        expect(all(0.9 < ratio < 1.1 for ratio in ratios.values()), f"{ratios}")

    def whole_job(self, path, ranks, flags):
        file = self.work / "slow.json"
        file.write_text(json.dumps(slow_node(self.version, ranks)))
        args = ["--model", self.model, "--nodes", file, "--input", path, *flags]
        done = self.shoal.must("generate", *args, "--output", self.work / "whole.jsonl", "--restart", "--threads", 1,
                               ranks=ranks if ranks > 1 else 0)
        predicted = float(re.search(r"forecast: ([\d.]+) s predicted, [\d.]+ s measured", done.err)[1])
        done = self.shoal.must("plan", *args)
        best = re.search(r"^soonest .*?: ([\d.]+) s, ", done.out, re.M)
        expect(best is not None, f"a time of some seconds: {done.out}")
        return round(float(best[1]) / predicted, 3)

    def refused(self):
        old = node("0.0.1")
        for what, change in (("was measured by shoal 0.0.1", old), ("another version", {**node(self.version), "shoal_node": 7}),
                             ('"n_ranks"', {**node(self.version), "n_ranks": 0.5}),
                             ('"n_threads"', {**node(self.version), "n_threads": 1}),
                             ('"memory_bytes"', {**node(self.version), "memory_bytes": 1e300}),
                             ('"read"', {**node(self.version), "read": []})):
            bad = self.work / "bad.json"
            bad.write_text(json.dumps(change))
            for command in (["plan"], ["generate", "--output", self.work / "x.jsonl"]):
                done = self.shoal(*command, "--model", self.model, "--nodes", bad, "--input", self.input)
                expect(done.status == INPUT and what in done.err, f"{what}: {done}")
        done = self.shoal("plan", "--model", self.model, "--nodes", self.node)
        expect(done.status == USAGE and "--input" in done.err, f"no input: {done}")
        alone, senseless = self.work / "alone.json", self.work / "senseless.jsonl"
        alone.write_text(json.dumps({**node(self.version), "network_bytes_s": 0}))
        senseless.write_text('{"prompts": 3}\n')
        for status, what, args in ((USAGE, "--network", ["--nodes", alone, "--count", 2, "--input", self.input]),
                                   (USAGE, "--nodes", ["--input", self.input]), (USAGE, "--nodes", ["--slurm"]),
                                   (USAGE, "--input -", ["--nodes", self.node, "--input", "-"]),
                                   (INPUT, "error rows", ["--nodes", self.node, "--input", senseless])):
            done = self.shoal("plan", "--model", self.model, *args)
            expect(done.status == status and what in done.err, f"{args}: {done}")
        halves = self.work / "half-1.jsonl", self.work / "half-2.jsonl"
        lines = self.input.read_text().splitlines(keepends=True)
        halves[0].write_text("".join(lines[:250]))
        halves[1].write_text("".join(lines[250:]))
        two = self.shoal.must("plan", "--model", self.model, "--nodes", self.node, "--input", self.work / "half-?.jsonl")
        expect(self.table(two) == self.table(self.plan()), f"two files: {two.out}")
        for flag in (["--ranks", 2], ["--topology", "core:2 pu:1"], ["--gpus-per-node", 1]):
            done = self.shoal("plan", "--model", self.model, "--nodes", self.node, "--input", self.input, *flag)
            expect(done.status == USAGE and flag[0] in done.err, f"two machines: {done}")
        for read in (self.node, self.input, self.model):
            before = read.read_bytes()
            done = self.shoal("plan", "--model", self.model, "--nodes", self.node, "--input", self.input, "--svg", read)
            expect(done.status == USAGE and "another file than" in done.err and read.read_bytes() == before, str(done))
        done = self.shoal("bench", "--save", self.work / "x.json", "--model", self.model)
        expect(done.status == USAGE and "--machine" in done.err, f"--save alone: {done}")

    def measured(self):
        saved = self.work / "measured.json"
        self.shoal.must("bench", "--machine", "--threads", 1, "--save", saved)
        found = json.loads(saved.read_text())
        expect(found["n_threads"] == 1 and found["shoal"] == self.version, saved.read_text())
        for name, curves in found["linear"].items():
            rows = [x for x, _ in curves["memory"]]
            expect(rows == list(ROWS), f"{name}: {rows}")
            times = [y for _, y in curves["memory"]]
            expect(times == sorted(times) and times[-1] > times[0], f"{name}: more rows take longer: {times}")
        self.node = saved
        expect(self.table(self.plan())[0]["tokens_s"] > 0, "a plan with it")

    def main(self):
        for case in (self.plans, self.layouts, self.flags, self.samples, self.jobs, self.status, self.disk, self.streams, self.whole_jobs, self.refused,
                     self.measured):
            case()
            print(f"{case.__name__}: ok", flush=True)


if __name__ == "__main__":
    main_of(lambda: ForecastTest(*sys.argv[1:]).main())
