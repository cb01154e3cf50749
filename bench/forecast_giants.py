#!/usr/bin/env python3
"""Forecasts published models on nodes that were not measured: their NODE.json is made from published figures.

usage: forecast_giants.py --shoal build/release/shoal --out OUT [--count 64]

The node has two AMD EPYC 9755: 128 cores each, 2.7 GHz at the base, 512 MB of L3 cache, 12 channels of DDR5-6400, so
614 GB/s a socket (AMD's specification of the 9005 series). Zen 5 multiplies and adds two vectors of 512 bits a cycle.
Efficiencies, which nobody publishes, are those measured on smaller machines (bench/README.md); ASSUMED has them.
Prints the table of docs/forecast.md, "Giants, by published figures".
"""
import argparse
import json
import pathlib
import re
import subprocess

CORES, GHZ, SOCKETS, SOCKET_BYTES_S, CACHE, MEMORY = 128, 2.7, 2, 614.4e9, 512e6, 768e9
F32 = SOCKETS * CORES * GHZ * 1e9 * 64  # operations per second; a multiply-add is two
INT8 = 4 * F32
ASSUMED = {"of the memory's bandwidth": 0.8, "of the int8 peak, many rows": 0.6, "of the f32 peak, many rows": 0.7,
           "of the f32 peak, attention to chunks": 0.4, "of the f32 peak, attention of single rows": 0.15,
           "cycles of a core for an element of norm, gate or RoPE": 3.0, "us to wake the threads": 4.0,
           "us of a barrier": 2.0, "us of the lead for a step, and for a sequence": (20.0, 1.5)}
ROWS = (1, 4, 16, 64, 256, 1024)
# Bytes of a weight, peak of its arithmetic, and the part of the peak that many rows reach.
FORMATS = {"f32": (4, F32, 0.7), "bf16": (2, F32, 0.7), "f16": (2, F32, 0.7), "fp8": (1.03, F32, 0.7), "int8": (1.02, INT8, 0.6),
           "int8-g32": (1.0625, INT8, 0.6), "int4-g32": (0.5625, INT8, 0.6), "int4-g128": (0.516, INT8, 0.6),
           "mxfp4": (0.53, INT8, 0.6)}
FP8 = ["--format", "fp8-g128", "--policy", "embedding=bf16,head=bf16", "--fp8-activations", "int8"]
MODELS = [("DeepSeek-V3, fp8 as int8", "deepseek-v3", FP8), ("Kimi-K2, fp8 as int8", "kimi-k2", FP8),
          ("Qwen3-235B, int8", "qwen3-235b-a22b", ["--format", "int8"]),
          ("gpt-oss-120b, mxfp4", "gpt-oss-120b", ["--format", "bf16", "--policy", "experts=mxfp4"])]
LINES, PROMPT, ANSWER, BATCH = 16384, 384, 64, 64


def node(version):
    read = SOCKETS * SOCKET_BYTES_S * 0.8
    element = 3.0 / (SOCKETS * CORES * GHZ * 1e9)
    linear = {}
    for name, (size, peak, part) in FORMATS.items():
        work = [[r, r * 2 / (peak * part)] for r in ROWS]
        linear[name] = {"memory": [[r, max(size / read, y)] for r, y in work], "cached": work}
    # fp8 weights that are expressed as int8 are multiplied like int8
    linear["fp8"] = linear["int8"]
    return {"shoal_node": 2, "disk_bytes_s": 0, "host": "published figures", "cpu": "2 x AMD EPYC 9755", "kernels": "avx512", "shoal": version,
            "n_cores": SOCKETS * CORES, "n_threads": SOCKETS * CORES, "n_ranks": SOCKETS, "norm_s": element, "gate_s": element,
            "rope_s": element, "logit_s": element / 3, "op_s": 4e-6, "step_s": 2e-5, "sequence_s": 1.5e-6, "barrier_s": 2e-6,
            "network_bytes_s": 50e9, "network_s": 2e-6, "cache_bytes": SOCKETS * CACHE, "memory_bytes": SOCKETS * MEMORY,
            "read": [[SOCKETS * CORES, read]], "flops": [[SOCKETS * CORES, F32]],
            "attention_one": [[64, 4 / (F32 * 0.15)]], "attention_many": [[64, 4 / (F32 * 0.4)]],
            "sum": [[4096, 4e-6], [1 << 22, 4e-6 + (1 << 22) * 2 / read]], "linear": linear}


def write_lines(path):
    state = 7
    with open(path, "w", encoding="ascii") as f:
        for i in range(LINES):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            n, answer = PROMPT // 2 + (state >> 33) % PROMPT, ANSWER // 2 + (state >> 45) % ANSWER
            ids = [(state >> 20) % 20000 + 1000, i + 1000] + [1000 + t for t in range(n - 2)]
            f.write(json.dumps({"custom_id": str(i), "prompt_token_ids": ids, "max_tokens": answer, "temperature": 0}) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shoal", default="build/release/shoal")
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--count", type=int, default=64)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([a.shoal, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    (a.out / "node.json").write_text(json.dumps(node(version)))
    write_lines(a.out / "in.jsonl")
    configs = pathlib.Path(__file__).parents[1] / "tests" / "golden" / "configs"
    print("| model | nodes | layout | tokens/s generated | and read | GiB of a rank | bound |\n|---|---|---|---|---|---|---|")
    for title, folder, flags in MODELS:
        done = subprocess.run([a.shoal, "plan", "--model", configs / folder / "config.json", *flags, "--nodes",
                               a.out / "node.json", "--count", str(a.count), "--input", a.out / "in.jsonl", "--max-model-len",
                               "32768", "--max-batch", str(BATCH), "--sample", str(LINES), "--svg", a.out / f"{folder}.svg"],
                              capture_output=True, text=True, check=False)
        (a.out / f"{folder}.txt").write_text(done.stdout + done.stderr)
        best = {}
        for m in re.finditer(r"^ +(\d+) +\d+  (\d+)x(\d+)x(\d+) ep (\d+) +([\d.]+) +(.*?) +[\d.]+ +([\d.]+)  (.*)$", done.stdout, re.M):
            if float(m[6]) > best.get(int(m[1]), (0,))[0]:
                best[int(m[1])] = (float(m[6]), f"dp {m[2]} x pp {m[3]} x tp {m[4]}, ep {m[5]}", m[8], m[9])
        for n, (speed, layout, gib, bound) in sorted(best.items()):
            if n in (1, 4, 16, 64):
                print(f"| {title} | {n} | {layout} | {speed:.0f} | {speed * PROMPT / ANSWER:.0f} | {gib} | {bound} |", flush=True)
        if not best:
            print(f"| {title} | | {done.stderr.strip().splitlines()[-1]} | | | | |", flush=True)


if __name__ == "__main__":
    main()
