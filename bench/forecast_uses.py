#!/usr/bin/env python3
"""Measures what forecasts are used for: the choice of a layout, and the time left of a running job.

usage: forecast_uses.py choice|left --node NODE.json --models M.h5,... --out OUT [--shoal FILE]

choice  For each model and each load of forecast.py: runs every layout of two ranks, one thread
        each, then prints the times of the layout that the node's file chooses (--nodes) and of the
        one that is chosen without it, divided by the fastest layout's. Expected: at most 1.02.
left    Runs a mixed job of --lines lines on one rank and asks `shoal status` again and again for
        the time left, by the cost model and by the rate so far. Prints both answers at 10, 25 and
        50 % of the job's time, divided by the time that was really left. Expected: 0.9 to 1.1.
NODE.json is made by `mpirun -n N shoal bench --machine --threads 1 --save`, with N the ranks of the
runs (forecast.py leaves such files).
"""
import argparse
import json
import pathlib
import re
import shlex
import subprocess
import time

from forecast import LOADS, run, write_load

LAYOUTS = [["--tp", "2", "--ep", "1"], ["--tp", "2", "--ep", "2"], ["--dp", "2", "--ep", "1"], ["--dp", "2", "--ep", "2"],
           ["--pp", "2"]]


def job_of(a, model, batch):
    return ["generate", "--model", str(model), "--input", str(a.out / "in.jsonl"), "--threads", "1", "--speculate", "off",
            "--max-batch", str(batch), "--max-model-len", "2048", "--output", str(a.out / "out.jsonl"), "--restart",
            "--metrics", str(a.out / "metrics.json"), "--no-journal"]


def timed(a, args):
    """Seconds from the first step to the last row, and the layout."""
    run(a, 2, args)
    metrics = json.loads((a.out / "metrics.json").read_text())
    layout = metrics["layout"]
    return metrics["wall_s"], tuple(layout[name] for name in ("dp", "pp", "tp", "ep"))


def choice(a):
    worst = {"nodes": [], "without": []}
    for model in a.models:
        for name, lines, prompt, answer, shared, batch in [load for load in LOADS if a.loads in ("", load[0])]:
            write_load(a.out / "in.jsonl", lines, prompt, answer, shared)
            times = {}
            for _ in range(a.rounds):
                for flags in LAYOUTS:
                    seconds, layout = timed(a, job_of(a, model, batch) + flags)
                    times[layout] = min(seconds, times.get(layout, seconds))
            chosen = {"nodes": timed(a, job_of(a, model, batch) + ["--nodes", str(a.node)])[1],
                      "without": timed(a, job_of(a, model, batch))[1]}
            best = min(times, key=times.get)
            ratios = {how: times.get(layout, float("nan")) / times[best] for how, layout in chosen.items()}
            for how, ratio in ratios.items():
                worst[how].append(ratio)
            print(f"{model.stem:10} {name:16} best {best} {times[best]:.2f} s; by the file {chosen['nodes']} "
                  f"{ratios['nodes']:.3f}, without {chosen['without']} {ratios['without']:.3f}; (dp, pp, tp, ep) "
                  f"{ {layout: round(s, 2) for layout, s in times.items()} }", flush=True)
    for how, ratios in worst.items():
        n_good = sum(ratio <= 1.02 for ratio in ratios)
        print(f"chosen {how}: {n_good} of {len(ratios)} within 1.02 of the best, worst {max(ratios):.3f}")


def said(a, output, model):
    """The seconds left by the cost model and by the rate so far; None: not known yet."""
    answers = []
    for flags in (["--nodes", str(a.node), "--model", str(model), "--input", str(a.out / "in.jsonl")], []):
        done = subprocess.run([a.shoal, "status", "--json", str(output), *flags], capture_output=True, text=True, check=False)
        left = json.loads(done.stdout)["left_s"] if done.returncode == 0 else -1
        answers.append(left if left >= 0 else None)
    return answers


def left(a):
    model, output, batch = a.models[0], a.out / "left.jsonl", 16
    write_load(a.out / "in.jsonl", a.lines, 96, 48, 0)
    output.with_name("left.jsonl.journal").unlink(missing_ok=True)
    argv = [x for x in job_of(a, model, batch) if x != "--no-journal"]
    argv[argv.index("--output") + 1] = str(output)
    looks = []
    with open(a.out / "left.log", "w+", encoding="utf-8") as log:
        with subprocess.Popen([a.shoal, *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log) as job:
            while job.poll() is None:
                looks.append((time.monotonic(), said(a, output, model)))
                time.sleep(a.every)
            end = time.monotonic()
        log.seek(0)
        took = re.search(r"in ([\d.]+) s\n", log.read())
    if job.returncode != 0 or took is None:
        raise SystemExit(f"the job ended with status {job.returncode}; {a.out}/left.log")
    total = json.loads((a.out / "metrics.json").read_text())["wall_s"]
    for part in (0.10, 0.25, 0.50):
        at, (by_model, by_rate) = min(looks, key=lambda look: abs(end - look[0] - (1 - part) * total))
        ratio = [f"{s / (end - at):.2f}" if s is not None else "unknown" for s in (by_model, by_rate)]
        print(f"left at {100 * part:.0f} % of {total:.0f} s: {end - at:.0f} s in truth; by the cost model {ratio[0]} of it, by "
              f"the rate so far {ratio[1]} (0.90 to 1.10)")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["choice", "left"])
    p.add_argument("--shoal", default="build/release/shoal")
    p.add_argument("--node", type=pathlib.Path, required=True)
    p.add_argument("--models", type=lambda s: [pathlib.Path(x) for x in s.split(",")], required=True)
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--mpirun", default=shlex.quote(f"{pathlib.Path(__file__).parents[1]}/tests/mpirun.sh"))
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--loads", default="", help="choice: only this load of forecast.py")
    p.add_argument("--lines", type=int, default=400, help="left: lines of the job")
    p.add_argument("--every", type=float, default=0.5, help="seconds between two looks at the status")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    {"choice": choice, "left": left}[a.what](a)


if __name__ == "__main__":
    main()
