#!/usr/bin/env python3
"""Simulates one MoE layer of DeepSeek-V3 on 4 to 64 hosts with both exchanges between hosts
(exchange_time.c), and writes tokens a second per host, for bench/plot.

usage: scaling.py EXCHANGE_TIME TIMES.json OUT.json [--parts N] [--rows N] [--layers N] [--kind KIND]
                  [--hosts N,N]

TIMES.json is the output of bench_moe, times of a real layer on one thread. A host is taken as N (--parts)
times as fast, which is an assumption.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import platforms

HOSTS = "4,8,16,32,64"
CFG = ["smpi/privatization:dlopen", "smpi/host-speed:1Gf", "smpi/coll-selector:ompi",
       "smpi/simulate-computation:no", "smpi/iprobe:1e-6", "smpi/grow-injected-times:no",
       "contexts/stack-size:8192"]


def simulate(args, n_hosts, exchange):
    """One run's figures."""
    with tempfile.TemporaryDirectory() as folder:
        platform, hostfile = platforms.write(args.kind, n_hosts, 1, folder)
        argv = ["smpirun", "-np", n_hosts, "-platform", platform, "-hostfile", hostfile,
                "--log=root.thresh:warning", *(f"--cfg={c}" for c in CFG), args.program, args.times,
                args.parts, args.rows, args.layers, exchange]
        done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{n_hosts} hosts, {exchange}: status {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("times")
    parser.add_argument("out")
    for name, value in (("parts", 64), ("rows", 256), ("layers", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--kind", choices=platforms.KINDS, default="fat_tree")
    parser.add_argument("--hosts", default=HOSTS)
    args = parser.parse_args()
    hosts = [int(n) for n in args.hosts.split(",")]
    runs = [simulate(args, n, exchange) for n in hosts for exchange in ("old", "new")]
    for r in runs:
        law = r["law_compute_s"] + r["law_wire_s"]
        r["tokens_s_per_host"] = args.rows / r["layer_s"]
        r["of_law"] = law / r["layer_s"]
        r["of_law_hidden"] = max(r["law_compute_s"], r["law_wire_s"]) / r["layer_s"]
        print(f"{r['hosts']:3} hosts, {r['exchange']}: {r['tokens_s_per_host']:.0f} tokens/s a host, "
              f"{r['of_law']:.2f} of the law, {r['of_law_hidden']:.2f} with all of the shorter part hidden")
    result = {"simulated": {"model": "one MoE layer of DeepSeek-V3", "rows": args.rows, "kind": args.kind,
                            "parts": args.parts, "times": json.loads(Path(args.times).read_text()),
                            "runs": runs}}
    Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
