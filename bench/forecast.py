#!/usr/bin/env python3
"""Compares forecasts with runs, on loads that the node's curves were not measured with.

usage: forecast.py --shoal build/release/shoal --models DIR --out OUT [--mpirun "mpirun -n"] [--rounds N] [--keep] [--wall]

DIR holds .h5 files, such as bench/models.py and shoal convert make. For each round: measures the node with one rank of
one thread and with two ranks of one thread, then runs every load on every model on one rank and on two (tp 2, dp 2, pp 2),
and prints predicted and measured seconds. OUT keeps the nodes' files, the inputs and forecast.json.

On a machine at other work the wall clock says little. Beside it stands the CPU time of all ranks, less that of a run of
one token, divided by the ranks: for one rank of one thread that is what the run would take on a quiet machine. Ranks
that wait for each other yield, which also takes CPU time.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import shlex
import statistics
import subprocess

# name, lines, tokens of a prompt, tokens of an answer, tokens that all prompts begin with, sequences at a time
LOADS = [("prompts", 24, 400, 2, 0, 64), ("answers", 8, 4, 48, 0, 8), ("one at a time", 2, 16, 40, 0, 1),
         ("mixed", 24, 96, 24, 0, 16), ("shared prefixes", 24, 200, 8, 160, 16)]
LAYOUTS = [(1, []), (2, ["--tp", "2"]), (2, ["--dp", "2"]), (2, ["--pp", "2"])]


def write_load(path, lines, prompt, answer, shared):
    """Writes requests of random tokens, with different lengths around the given ones."""
    state = 12345
    with open(path, "w", encoding="ascii") as f:
        for i in range(lines):
            n = max(shared + 1, prompt * (3 + i % 3) // 4)
            ids = []
            for t in range(n):
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                ids.append(t * 37 % 20000 + 1000 if t < shared else (state >> 33) % 20000 + 1000)
            f.write(json.dumps({"custom_id": str(i), "prompt_token_ids": ids, "temperature": 0, "ignore_eos": True,
                                "max_tokens": max(1, answer * (3 + i % 2) // 4)}) + "\n")


def run(a, ranks, args):
    """Runs shoal; returns its log and the CPU seconds of all its processes."""
    launch = shlex.split(a.mpirun) + [str(ranks)] if ranks > 1 else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(launch + [a.shoal] + args, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{launch + args}: status {done.returncode}\n{done.stderr}")
    return done.stderr, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(a, ranks, path):
    run(a, ranks, ["bench", "--machine", "--threads", "1", "--save", str(path)])


def one_case(a, model, node, ranks, layout, load):
    name, lines, prompt, answer, shared, batch = load
    source, single, out = a.out / "in.jsonl", a.out / "one.jsonl", a.out / "out.jsonl"
    write_load(source, lines, prompt, answer, shared)
    write_load(single, 1, 1, 1, 0)
    common = ["--model", str(model), "--nodes", str(node), "--threads", "1", "--speculate", "off", "--max-batch", str(batch),
              "--max-model-len", "2048", "--output", str(out), "--restart", "--no-journal"] + layout
    idle = run(a, ranks, ["generate", "--input", str(single)] + common)[1] if not a.wall else 0
    log, cpu = run(a, ranks, ["generate", "--input", str(source)] + common)
    found = re.search(r"forecast: ([\d.]+) s predicted, ([\d.]+) s measured(.*)", log)
    return {"model": model.stem, "layout": " ".join(layout) or "1 rank", "load": name,
            "predicted_s": float(found[1]), "wall_s": float(found[2]), "cpu_s": max(cpu - idle, 1e-3) / ranks,
            "parts": found[3].strip(", "), "load_average": os.getloadavg()[0]}


def show(c):
    print(f"{c['model']:10} {c['layout']:8} {c['load']:16} {c['predicted_s']:9.2f} {c['wall_s']:8.2f} {c['cpu_s']:8.2f} "
          f"{c['predicted_s'] / c['wall_s']:8.2f} {c['predicted_s'] / c['cpu_s']:8.2f}  {c['parts']}", flush=True)


def report(cases):
    for what in ("wall_s", "cpu_s"):
        for ranks in (1, 2):
            errors = [abs(c["predicted_s"] / c[what] - 1) for c in cases if (c["layout"] == "1 rank") == (ranks == 1)]
            if errors:
                print(f"error by {what[:-2]}, {ranks} rank(s): median {100 * statistics.median(errors):.0f} %, "
                      f"worst {100 * max(errors):.0f} %, {len(errors)} cases")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shoal", default="build/release/shoal")
    p.add_argument("--models", type=pathlib.Path, required=True)
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--mpirun", default=f"{pathlib.Path(__file__).parents[1]}/tests/mpirun.sh")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--ranks", type=int, default=2, help="1: only runs of one rank")
    p.add_argument("--keep", action="store_true", help="take OUT/node1.json and node2.json as they are, if they exist")
    p.add_argument("--wall", action="store_true", help="for a quiet machine: the CPU times keep start and loading, which saves half of the runs")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    cases = []
    print(f"{'model':10} {'layout':8} {'load':16} {'predicted':>9} {'wall':>8} {'CPU':>8} {'by wall':>8} {'by CPU':>8}  parts")
    for _ in range(a.rounds):
        for ranks in range(1, a.ranks + 1):
            node = a.out / f"node{ranks}.json"
            if not node.exists() or not a.keep:
                measure(a, ranks, node)
            for model in sorted(a.models.glob("*.h5")):
                for layout, load in [(layout, load) for n, layout in LAYOUTS if n == ranks for load in LOADS]:
                    cases.append(one_case(a, model, node, ranks, layout, load))
                    show(cases[-1])
        (a.out / "forecast.json").write_text(json.dumps(cases, indent=1))
    report(cases)


if __name__ == "__main__":
    main()
