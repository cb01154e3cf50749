#!/usr/bin/env python3
"""Tests what a job reports about itself: --metrics adds up, --trace is a well-nested timeline, and
neither changes a byte.

usage: metrics.py SHOAL WORK_FOLDER
On the demo model with one rank, tp 2, pp 2 and dp 2.
"""
import json
import random
import sys
from pathlib import Path

from program import REPO, Load, Shoal, expect, main_of, read_rows, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
LAYOUTS = {"one rank": ([], 0), "tp 2": (["--tp", "2"], 2), "pp 2": (["--pp", "2"], 2),
           "dp 2": (["--dp", "2"], 2)}
N_LINES, N_PROMPT, N_TOKENS = 24, 20, 40
THREADS = 2  # of a rank that may want a CPU at the same time, at most
QUANTILES = ["min", "p50", "p90", "p95", "p99", "max"]


def check_latencies(found, n_ok, n_generated):
    """n_ok requests ended without error and generated n_generated tokens."""
    wanted = {"ttft": n_ok, "tpot": n_ok, "itl": n_generated - n_ok, "e2e": n_ok}
    expect(set(found) == set(wanted), f"latencies: {sorted(found)}")
    for name, n in wanted.items():
        values = [found[name][q] for q in QUANTILES]
        expect(found[name]["n"] == n, f"{name}: {found[name]['n']} samples, expected {n}")
        expect(values == sorted(values) and values[0] > 0, f"{name}: {values}")
        expect(values[0] <= found[name]["mean"] <= values[-1], f"{name}: mean")
    expect(found["ttft"]["max"] <= found["e2e"]["max"], "a first token after every end")


def check_times(found, n_rows, slows):
    """The parts of each rank's time add up, and the stages have the means of their ranks. Time without a
    CPU between two measurements is in no part, so what may be missing grows with `slows` (Load).
    """
    layout = found["layout"]
    expect(len(found["ranks"]) == layout["ranks"] and len(found["stages"]) == layout["pp"], "ranks")
    for part in found["ranks"] + found["stages"]:
        whole = part["elapsed_s"]
        parts = sum(part[k] for k in ("compute_s", "communication_s", "waiting_s", "planning_s"))
        expect(parts <= whole * 1.001 and whole - parts < slows * (0.2 * whole + 0.05),
               f"{parts} s of {whole} s, slowed {slows:.1f} times: {part}")
        expect(part["compute_s"] > 0 and part["peak_bytes"] > 1 << 20, part)
    for i, stage in enumerate(found["stages"]):
        of_stage = [r for r in found["ranks"] if r["stage"] == i]
        expect(stage["peak_bytes"] == max(r["peak_bytes"] for r in of_stage), "peak memory")
        mean = sum(r["waiting_s"] for r in of_stage) / len(of_stage)
        expect(abs(stage["waiting_s"] - mean) < 1e-6, "waiting")
        rows = sum(r["rows"] for r in of_stage if r["tp"] == 0)
        expect(rows == n_rows, f"stage {i} computed {rows} rows, expected {n_rows}")


def check_metrics(found, rows, slows):
    """found: the metrics JSON; rows: the output's rows by custom_id; slows: check_times."""
    bad = [r for r in rows.values() if "error" in r]
    good = [r for r in rows.values() if "error" not in r]
    n_prompt = sum(r["usage"]["prompt_tokens"] for r in good)
    n_generated = sum(r["usage"]["completion_tokens"] for r in good)
    expect(found["schema"] == 1 and found["finished"] and not found["drained"], "state")
    for key, want in dict(rows=len(rows), error_rows=len(bad), prompt_tokens=n_prompt,
                          generated_tokens=n_generated, preemptions=0, recomputed_tokens=0,
                          admissions=len(good)).items():
        expect(found[key] == want, f"{key}: {found[key]}, expected {want}")
    rate = found["generated_tokens_per_s"] * found["wall_s"]
    expect(abs(rate - n_generated) < 1e-4 * n_generated, "tokens per second")
    blocks = found["blocks"]
    expect(0 < blocks["mean_used"] <= blocks["peak_used"] <= blocks["total"], blocks)
    expect(0 <= found["prefix_hit_rate"] <= 1, "hit rate")
    check_latencies(found["latency_s"], len(good), n_generated)
    # Not computed: the last token of a request, and tokens that the prefix cache had.
    check_times(found, n_prompt + n_generated - len(good) - found["prefix_hit_tokens"], slows)


def check_nesting(spans, what):
    """Spans of one rank are nested or disjoint; times are whole ns."""
    open_ends = []
    for begin, end, name in sorted((b, -e, n) for b, e, n in spans):
        end = -end
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        expect(not open_ends or end <= open_ends[-1], f"{what}: {name} at {begin} overlaps")
        open_ends.append(end)


def check_trace(trace, metrics):
    events = trace["traceEvents"]
    layout = metrics["layout"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    expect(sorted(names) == list(range(layout["ranks"])), f"ranks {sorted(names)}")
    expect(len(set(names.values())) == layout["ranks"], f"names {names}")
    expect(trace["otherData"]["lost_events"] == 0, "a short job lost events")
    for rank in names:
        spans = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
        check_nesting([(round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000), e["name"])
                       for e in spans], f"rank {rank}")
        of_rank = metrics["ranks"][rank]
        steps = [e for e in spans if e["name"] == "step"]
        expect(len(steps) == of_rank["steps"], f"rank {rank}: {len(steps)} steps")
        expect(sum(e["args"]["rows"] for e in steps) == of_rank["rows"], f"rank {rank}: rows")
        waiting = sum(e["dur"] for e in spans if e["cat"] == "waiting") * 1e-6
        expect(abs(waiting - of_rank["waiting_s"]) < 1e-3 + 1e-3 * waiting, f"rank {rank}: waiting")
        lead = {e["name"] for e in spans if e["cat"] == "lead"}
        expect(lead == ({"plan", "commit"} if rank == 0 else set()), f"rank {rank}: {lead}")
        cats = {e["cat"] for e in spans}
        expect("communication" in cats or layout["ranks"] == 1, f"rank {rank}: {cats}")
    waited = [e["args"]["replica"] for e in events if e["name"] == "wait for a result"]
    taken = [e["args"]["replica"] for e in events if e["name"] == "commit"]
    expect(sorted(waited) == sorted(taken), f"waits for replicas {waited}, results of {taken}")
    admitted = sum(e["args"]["admitted"] for e in events if e["name"] == "plan")
    expect(admitted == metrics["admissions"], f"{admitted} admissions")
    expect(any(e["ph"] == "C" for e in events), "no counters")


class MetricsTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), Path(work)
        self.work.mkdir(parents=True, exist_ok=True)
        draw = random.Random(8)
        lines = [dict(custom_id=f"m{i}", max_tokens=N_TOKENS - i % 5,
                      prompt_token_ids=[draw.randrange(256) for _ in range(N_PROMPT + i % 7)])
                 for i in range(N_LINES)]
        lines.insert(5, dict(custom_id="bad", prompt_token_ids=[]))
        write_lines(self.work / "in.jsonl", lines)

    def run(self, output, flags, ranks):
        output.unlink(missing_ok=True)
        self.shoal.must("generate", "--model", DEMO, "--input", self.work / "in.jsonl", "--output",
                        output, "--threads", 1, "--max-model-len", 256, "--max-batch", 24,
                        "--kv-blocks", 64, "--temperature", 0.8, *flags, ranks=ranks)
        return output.read_bytes()

    def step_ms(self, source, flags=()):
        """The time that steps are kept to."""
        metrics = self.work / "steps.json"
        self.shoal.must("generate", "--model", DEMO, "--input", source, "--output",
                        self.work / "steps.jsonl", "--metrics", metrics, *flags)
        return json.loads(metrics.read_text())["step_ms"]

    def check_step_times(self):
        """Steps are kept short where the input is no file: somebody may be waiting for an answer."""
        line = self.work / "line.jsonl"
        write_lines(line, [dict(prompt="a", max_tokens=2)])
        expect(self.step_ms(line) == 0, "a file's steps have a time limit")
        expect(self.step_ms("-") == 2000, "steps of standard input have none")
        expect(self.step_ms(line, ["--step-ms", 7]) == 7, "--step-ms was not obeyed")
        expect(self.step_ms("-", ["--step-ms", 0]) == 0, "--step-ms 0 was not obeyed")

    def check(self, name):
        flags, ranks = LAYOUTS[name]
        output, metrics, trace = (self.work / f for f in ("out.jsonl", "m.json", "t.json"))
        for path in (metrics, trace):
            path.unlink(missing_ok=True)
        plain = self.run(output, flags, ranks)
        with Load() as load:
            measured = self.run(output, [*flags, "--metrics", metrics, "--trace", trace], ranks)
        expect(plain == measured, f"{name}: other bytes when it is measured")
        expect(not list(self.work.glob("*.tmp")), "a temporary file was left")
        found = json.loads(metrics.read_text())
        check_metrics(found, read_rows(output), load.slows(THREADS * max(ranks, 1) + 1))
        check_trace(json.loads(trace.read_text()), found)
        print(f"{name}: {found['steps']} steps, {trace.stat().st_size} bytes of timeline")
        return plain

    def __call__(self):
        outputs = {self.check(name) for name in LAYOUTS}
        expect(len(outputs) == 1, "layouts differ")
        self.check_step_times()


if __name__ == "__main__":
    main_of(MetricsTest(*sys.argv[1:]))
