#!/usr/bin/env python3
"""Tests `shoal bench`: its counts match the work, and its JSON, table, turns and drawing are
right.

usage: bench.py SHOAL WORK_FOLDER
Judges no speed, because test machines are shared.
"""
import json
import os
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import cpu
from program import REPO, TESTS, Shoal, expect, fresh_folder, main_of, run

sys.path.insert(0, str(REPO / "bench"))
from turns import Turns, Worker, interval  # noqa: E402

DEMO = REPO / "models" / "demo" / "demo.h5"
PROMPTS, OUTPUTS, CONCURRENCY, REPETITIONS = (8, 70), (1, 5), (1, 3), 2
NEEDS = {"fma_f32_avx512_gflops": "avx512f", "int8_vnni_gops": "avx512_vnni", "int8_amx_gops": "amx_int8"}
ORDERED = ["min", "p50", "p90", "p95", "p99", "max"]


def check_latency(name, seen, n):
    expect(seen["n"] == n, f"{name}: {seen['n']} samples, expected {n}")
    if n == 0:
        return
    values = [seen[key] for key in ORDERED]
    expect(values == sorted(values) and seen["min"] <= seen["mean"] <= seen["max"] and
           seen["min"] > 0, f"{name}: {seen}")


def check_case(case, n_requests):
    """Checks tokens and latencies of one case; a repetition has n_requests."""
    prompt, output = case["prompt"], case["output"]
    name = f"prompt {prompt}, output {output}, {case['concurrency']} at a time"
    expect(len(case["repetitions"]) == REPETITIONS, f"{name}: {len(case['repetitions'])} repetitions")
    for seen in case["repetitions"]:
        phases = [seen["prefill"], seen["decode"], seen["mixed"]]
        computed = sum(phase["tokens"] for phase in phases)
        expect(computed == n_requests * (prompt + output - 1), f"{name}: {computed} tokens computed")
        expect(seen["output_tokens"] == n_requests * output, f"{name}: {seen}")
        expect(sum(phase["seconds"] for phase in phases) <= seen["wall_s"] * 1.001, f"{name}: {seen}")
        for phase in phases:
            expect((phase["steps"] > 0) == (phase["bytes"] > 0) == (phase["flops"] > 0), f"{name}: {seen}")
    n = REPETITIONS * n_requests
    check_latency(f"{name}: ttft", case["ttft_s"], n)
    check_latency(f"{name}: e2e", case["e2e_s"], n)
    check_latency(f"{name}: tpot", case["tpot_s"], n if output > 1 else 0)
    check_latency(f"{name}: itl", case["itl_s"], n * (output - 1))
    expect(case["ttft_s"]["min"] <= case["e2e_s"]["min"], f"{name}: an end before the first token")


class BenchTest:
    def __init__(self, shoal, work):
        self.shoal = Shoal(shoal)
        self.work = Path(work)
        fresh_folder(self.work)

    def bench(self, *flags, ranks=0):
        done = self.shoal.must("bench", "--model", DEMO, "--prompt-lengths", "8,70", "--output-lengths",
                               "1,5", "--concurrency", "1,3", "--repetitions", REPETITIONS, "--json",
                               "-", "--quiet", *flags, ranks=ranks)
        return json.loads(done.out)

    def latency(self):
        first = None
        for flags, ranks in (([], 0), (["--tp", 2, "--threads", 1], 2), (["--pp", 2, "--threads", 1], 2)):
            result = self.bench(*flags, ranks=ranks)
            cases = result["cases"]
            found = [(c["prompt"], c["output"], c["concurrency"]) for c in cases]
            expect(found == list(product(PROMPTS, OUTPUTS, CONCURRENCY)), f"{flags}: {found}")
            for case in cases:
                check_case(case, case["concurrency"])
            flops = [sum(case["repetitions"][0][phase]["flops"] for phase in ("prefill", "decode", "mixed"))
                     for case in cases]
            first = first or flops
            expect(flops == first, f"{flags}: other operations counted: {flops}, {first}")
            path = self.work / f"result-{len(flags)}-{ranks}.json"
            path.write_text(json.dumps(result))
            self.draw(path, len(cases))
        print(f"latency: {len(found)} cases on 1 rank, tp 2 and pp 2, the same operations counted")

    def throughput(self):
        result = self.bench("--mode", "throughput", "--requests", 7)
        for case in result["cases"]:
            check_case(case, 7)
        print("throughput: 7 requests a repetition")

    def check_parts(self, found, n, what):
        """`found` has one part per step, their median and its interval."""
        expect(len(found["parts"]) == n, f"{what}: {n} steps, {len(found['parts'])} parts")
        said = [found[key] for key in ("median", "low", "high")]
        expect(all(abs(x - y) < 1e-4 for x, y in zip(interval(found["parts"]), said)), f"{what}: {found}")
        expect(0 < found["low"] <= found["high"], f"{what}: {found}")

    def paired(self):
        """With --paired-peaks, decoding alternates with memory reads and prompts with arithmetic;
        the rest is as without it.
        """
        for case in self.bench("--paired-peaks", "--threads", 2)["cases"]:
            check_case(case, case["concurrency"])
            if case["concurrency"] > 1:
                expect("paired_reads" not in case and "paired_f32" not in case, f"{case}")
                continue
            expect(("paired_reads" in case) == (case["output"] > 1), f"{case}")
            if case["output"] > 1:
                self.check_parts(case["paired_reads"], REPETITIONS * (case["output"] - 1), "reads")
            self.check_parts(case["paired_f32"], REPETITIONS, "arithmetic")
        flags = ["--turns", "--paired-peaks", "--model", DEMO, "--prompt-lengths", "8", "--output-lengths", "40",
                 "--concurrency", "2", "--quiet"]
        turns = subprocess.run([self.shoal.path, "bench", *flags], input="8 40 1\n8 40 2\n8 1 1\n", text=True,
                               capture_output=True, timeout=600, check=True)
        one, two, prompt = (json.loads(line) for line in turns.stdout.splitlines())
        self.check_parts(one["paired_reads"], 39, "reads in turns")
        expect("paired_reads" not in two and "paired_f32" not in two, turns.stdout)
        self.check_parts(prompt["paired_f32"], 1, "a prompt alone")
        expect("paired_reads" not in prompt, turns.stdout)
        done = self.shoal("bench", "--model", DEMO, "--paired-peaks", "--tp", 2, "--threads", 1, "--quiet", ranks=2)
        expect(done.status == 2 and "--paired-peaks" in done.err, f"{done}")
        print("paired: a part of reads or arithmetic for each step of one sequence, its median and interval")

    def in_turns(self):
        """bench/turns.py: one rank and two ranks take turns, and the one that waits is stopped."""
        flags = [self.shoal.path, "bench", "--turns", "--quiet", "--model", DEMO, "--threads", 1]
        workers = {"one": Worker(flags), "two": Worker([TESTS / "mpirun.sh", 2, *flags])}
        turns = Turns(workers, pairs=3, turn_seconds=0, max_wait=0, again=0)
        for name, n in (("one", 1), ("two", 3)):
            pids = workers[name].pids()
            expect(len(pids) == n, f"{name}: {pids}")
            states = [Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()[0] for p in pids]
            expect(states.count("T") == (n + 1) // 2, f"{name}: {states}")
        line, phase = turns.line("decode1")
        expect((line, phase) == ("16 5 1", "decode"), line)
        pairs, every = turns.compare(line, phase)
        expect([t[-1]["who"] for t in every] == ["one", "two", "two", "one", "one", "two"], f"{every}")
        expect(all(p["ratio"] == p["one"] / p["two"] > 0 for p in pairs), f"{pairs}")
        turns.close()
        print("in turns: three pairs of one rank and two, in both orders")

    def decoding(self, *flags, ranks=0):
        """The steps that decode four sequences of four tokens, each with a KV block; and stderr."""
        launcher = [TESTS / "mpirun.sh", str(ranks)] if ranks else []
        done = subprocess.run([*launcher, self.shoal.path, "bench", "--turns", "--quiet", "--model", DEMO, "--threads",
                               "1", "--max-model-len", "64", *flags], input="8 4 4\n", text=True, capture_output=True,
                              check=False)
        expect(done.returncode == 0, f"{flags}: {done}")
        return json.loads(done.stdout)["repetition"]["decode"]["steps"], done.stderr

    def together(self):
        """--concurrency makes room for the sequences of a turn; without it a warning says that some wait."""
        n_steps, said = self.decoding()
        expect(n_steps > 3 and "KV blocks for 1 full contexts" in said, f"{n_steps} steps: {said}")
        for ranks, flags, way in ((0, [], ""),
                                  (2, ["--dp", "2", "--ep", "2", "--plain-exchange", "--log-level", "debug"],
                                   "rows are exchanged: of rows")):
            n_steps, said = self.decoding("--concurrency", "4", *flags, ranks=ranks)
            expect(n_steps == 3 and "KV blocks for" not in said and way in said, f"{flags}: {n_steps} steps: {said}")
        print("turns: sequences that wait are announced; the plain exchange runs")

    def draw(self, path, n_cases):
        picture = path.with_suffix(".svg")
        done = run([sys.executable, REPO / "bench" / "plot", path, picture])
        expect(done.status == 0, str(done))
        bars = [e for e in ElementTree.parse(picture).iter() if e.tag.endswith("rect")]
        expect(len(bars) >= 2 * n_cases, f"{picture}: {len(bars)} bars for {n_cases} cases")

    def machine(self):
        result = json.loads(self.shoal.must("bench", "--machine", "--threads", 1, "--json", "-", "--quiet",
                                            ranks=2).out)
        expect(result["ranks"] == 2 and len(result["sums"]) >= 2, f"{result}")
        features = cpu.features()
        lacks = [peak for peak, feature in NEEDS.items() if feature not in features]
        for row in result["machine"]:
            expect([key for key, value in row.items() if not value > 0] == lacks, f"without {lacks}: {row}")
        print(f"machine: {len(result['machine'])} numbers of threads, {len(result['sums'])} sums")

    def load(self):
        for ranks, flags, words in ((0, [], "cached where"), (2, [], "cached where"), (2, ["--cold"], "not cached")):
            done = self.shoal.must("bench", "--load", *flags, "--model", DEMO, "--threads", 2,
                                   "--repetitions", 3, "--quiet", ranks=ranks)
            lines = done.out.splitlines()
            expect(len(lines) == 4 and words in lines[0] and "3 turns" in lines[0] and
                   "turn by turn" in lines[3], f"{done}")
        print("load: beside a plain read, on 1 and 2 ranks, and on 2 from the disk")

    def disk(self):
        folder = self.work / "disk"
        fresh_folder(folder)
        for ranks, size in ((0, 32 << 20), (2, 64 << 20)):
            done = json.loads(self.shoal.must("bench", "--disk", folder, "--disk-size", size, "--json", "-", "--quiet",
                                              ranks=ranks).out)
            expect(done["host_bytes"] == size and done["ranks_of_host"] == max(ranks, 1), f"{done}")
            rows = [(row["block_bytes"] >> 20, row["in_flight"]) for row in done["rows"]]
            depths = (1, 4, 16) if done["way"] == "direct" else (1,)
            share = (size >> 20) // max(ranks, 1)  # MiB; no block of it is in flight twice
            expect(rows == [(block, depth) for block in (1, 4, 16) for depth in depths if block * depth <= share],
                   f"{rows}")
            expect(all(row["gbs"] > 0 and row["cpu_s_per_gb"] > 0 and 0 < row["checksums"] < 1 for row in done["rows"]),
                   f"{done}")
            best = max(row["gbs"] for row in done["rows"] if row["in_flight"] == depths[-1])
            expect(done["best_gbs"] == best, f"the rate must be that of {depths[-1]} reads in flight: {done}")
            expect(list(folder.iterdir()) == [], "the bench left a file")
        print("disk: up to nine ways of reading, on 1 and 2 ranks")

    def disk_file(self):
        file, fifo, node = self.work / "file", self.work / "fifo", self.work / "node.json"
        file.write_bytes(bytes(range(256)) * (40 << 12))
        done = json.loads(self.shoal.must("bench", "--disk", file, "--json", "-").out)
        expect(done["host_bytes"] == 32 << 20, f"two blocks of a file of 40 MiB: {done}")
        os.mkfifo(fifo)
        node.write_text("{}")
        for status, words, flags in ((2, "regular file", ["--disk", fifo]), (2, "regular file", ["--disk", "/dev/null"]),
                                     (3, "No such file", ["--disk", self.work / "none"]),
                                     (2, "16 MiB", ["--disk", file, "--disk-size", "1M"]),
                                     (3, "--disk-size", ["--disk", self.work, "--disk-size", "900000T"]),
                                     (2, "--disk-size: needs", ["--machine", "--disk-size", "1G"]),
                                     (2, "expected one of", ["--disk", file, "--machine"]),
                                     (2, "--turns", ["--disk", file, "--turns"]),
                                     (3, f"--save {self.work}: expected a file", ["--machine", "--save", self.work]),
                                     (3, "bench --machine --save", ["--disk", file, "--save", node]),
                                     (3, "bench --machine --save", ["--disk", file, "--save", self.work / "none"])):
            done = self.shoal("bench", *flags)
            expect(done.status == status and words in done.err, f"{words}: {done}")
        print("disk: a file, and eleven wrong command lines")

    @staticmethod
    def has_open(pid, folder):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if os.readlink(link).startswith(f"{folder.resolve()}/"):
                    return True
            except FileNotFoundError:  # closed meanwhile
                pass
        return False

    def disk_killed(self):
        folder, fifo = self.work / "killed", self.work / "never-read"
        fresh_folder(folder)
        os.mkfifo(fifo)
        argv = [self.shoal.path, "bench", "--disk", str(folder), "--disk-size", "32M", "--json", str(fifo)]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:  # it waits for a reader of its results
            while not self.has_open(process.pid, folder):
                expect(process.poll() is None, "the bench ended without the file to read")
                time.sleep(0.01)
            process.kill()
        expect(list(folder.iterdir()) == [], f"a killed bench left {list(folder.iterdir())}")
        print("disk: a killed bench leaves no file")

    def refused(self):
        for words, flags in (("--model", []), ("--machine", ["--machine", "--model", DEMO]),
                             ("prompt", ["--model", DEMO, "--prompt-lengths", "0"]),
                             ("the model allows 1024", ["--model", DEMO, "--prompt-lengths", "10000000"]),
                             ("--load", ["--load", "--model", DEMO, "--turns"]),
                             ("--cold: needs --load", ["--cold", "--model", DEMO]),
                             ("concurrency", ["--model", DEMO, "--concurrency", "x"])):
            done = self.shoal("bench", "--quiet", *flags)
            expect(done.status == 2 and words in done.err, f"{words}: {done}")
        print("refused: seven wrong command lines")

    def main(self):
        self.latency()
        self.throughput()
        self.paired()
        self.in_turns()
        self.together()
        self.machine()
        self.load()
        self.disk()
        self.disk_file()
        self.disk_killed()
        self.refused()


if __name__ == "__main__":
    main_of(lambda: BenchTest(*sys.argv[1:]).main())
