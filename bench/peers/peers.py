#!/usr/bin/env python3
"""Runs shoal and llama.cpp turn by turn on the same models and the same work, and prints ratios.

usage: peers.py --shoal build/release/shoal --python VENV/bin/python --models FOLDER --out FOLDER
                [--shapes A,B,C,D] [--formats f16,...] [--threads 1,2] [--work decode1,decode32,prefill512,...]
                [--pairs 11] [--paired-turns 3] [--turn-seconds 1] [--max-wait 60] [--again 3]
                [--kernels avx2]
       peers.py --table FOLDER/peers.json

FOLDER holds the files of models.py; checkpoints that are missing are made beside them. VENV has llama-cpp-python.
Prompts are one step, and one llama_decode, however long; works are the rows of WORK in turns.py.
Both programs hold their model and wait; each turn is one repetition, every pair in the other order than the one
before. Each turn waits until the machine is quiet (--max-wait seconds), and a turn that others
disturbed is done again (--again times, then it stays and is marked). Rates are tokens a second of
wall time; for one thread the ratio is also given by CPU time, which others disturb less.
--kernels is the set that shoal shall use; the peer's comes with its build.
OUT/peers.json keeps every turn, disturbed ones too, with flags, versions and the bytes counted;
OUT/peers.md is the table: medians over pairs of shoal's rate divided by llama.cpp's, with a 95 %
interval; its last column is the largest difference of the programs' log-probabilities over 32
tokens. Decoding of one sequence also runs alone, --paired-turns repetitions whose steps take turns
with reads of memory (shoal bench --paired-peaks): its part of the reads is the median over those
steps. Elsewhere the machine's peaks are those of one moment.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from quiet import Quiet  # noqa: E402
from turns import WORK, Worker, add_arguments, interval, longest, turns_of, words  # noqa: E402

HERE = pathlib.Path(__file__).parent

# Each format: llama.cpp's file type, the ending of shoal's checkpoint, and how shoal makes it: from
# the peer's own file ({gguf}), whose codes are kept, or from the checkpoint of another format
# ({source}). The latter, the policies, are rounded by shoal, so they are not the peer's model to
# the bit.
FORMATS = {
    "f16": {"gguf": "F16", "file": "f16", "make": ["convert", "{gguf}", "{out}"]},
    "bf16": {"gguf": "F16", "file": "bf16", "make": ["convert", "--dtype", "bf16", "{gguf}", "{out}"]},
    "int8": {"gguf": "Q8_0", "file": "int8.keep", "make": ["convert", "{gguf}", "{out}"]},
    "int4": {"gguf": "Q4_0", "file": "int4.keep", "make": ["convert", "{gguf}", "{out}"]},
    "mxfp4": {"gguf": "MXFP4", "file": "mxfp4.keep", "make": ["convert", "{gguf}", "{out}"]},
    "int8-policy": {"gguf": "Q8_0", "file": "int8", "from": "f16",
                    "make": ["quantize", "{source}", "{out}", "--format", "int8"]},
    "int4-policy": {"gguf": "Q4_0", "file": "int4", "from": "f16",
                    "make": ["quantize", "{source}", "{out}", "--format", "int4-g32"]},
}

SCORED = [(7 * i * i + 31 * i + 5) % 30000 for i in range(32)]


def score_shoal(shoal, checkpoint, folder):
    source, out = folder / "score.in.jsonl", folder / "score.out.jsonl"
    source.write_text(json.dumps({"prompt_token_ids": SCORED}) + "\n", encoding="utf-8")
    subprocess.run([shoal, "score", "--model", checkpoint, "--input", source, "--output", out, "--no-journal",
                    "--restart", "--quiet"], check=True)
    return json.loads(out.read_text(encoding="utf-8"))["logprobs"][1:]


def machine(shoal, n_threads):
    run = subprocess.run([shoal, "bench", "--machine", "--threads", str(n_threads), "--json", "-"], check=True,
                         capture_output=True, text=True)
    return json.loads(run.stdout)["machine"][-1]


def room(works):
    """The flags of shoal for the number of sequences, the longest sequence, and enough KV blocks
    of 64 tokens for any of the works. The scheduler keeps 1 % of the blocks free, so there are 2 %
    more: otherwise the last of many sequences would wait for the others.
    """
    blocks = max(WORK[w][2] * -(-longest(w) // 64) for w in works)
    blocks += blocks // 50 + 1
    return ["--concurrency", max(WORK[w][2] for w in works), "--max-model-len", max(longest(w) for w in works),
            "--kv-blocks", blocks]


def step_tokens(works):
    """The rows of a step: shoal's default of 512, or more if a longer prompt must fit one step."""
    return max(512, *(WORK[w][0] for w in works))


class Comparison:
    def __init__(self, args):
        self.a = args
        self.results = {"pairs": args.pairs, "arguments": sys.argv[1:], "kernels": args.kernels, "rows": [],
                        "started": time.time()}
        args.out.mkdir(parents=True, exist_ok=True)

    def checkpoint(self, shape, name):
        f = FORMATS[name]
        gguf = self.a.models / f"{shape}.{f['gguf']}.gguf"
        out = self.a.models / f"{shape}.{f['file']}.h5"
        if not out.exists():
            names = {"gguf": gguf, "out": out}
            if "from" in f:
                names["source"] = self.checkpoint(shape, f["from"])[1]
            subprocess.run([self.a.shoal, *(w.format(**names) for w in f["make"])], check=True, stdout=sys.stderr)
        return gguf, out

    def compare(self, row, turns, work):
        line, phase = turns.line(work)
        pairs, every = turns.compare(line, phase)
        paired = self.paired(row, line) if work == "decode1" else []
        last = next(t[-1] for t in reversed(every) if t[-1]["who"] == "shoal")[phase]
        row["work"][work] = {"line": line, "phase": phase, "pairs": pairs, "turns": every, "paired_reads": paired,
                             "bytes_per_step": last["bytes"] / last["steps"],
                             "flops_per_token": last["flops"] / last["tokens"]}

    def paired(self, row, line):
        """Measures decoding steps of shoal alone, beside reads of memory."""
        worker = Worker([*row["commands"]["shoal"], "--paired-peaks"])
        worker.ask(line)
        quiet, parts, disturbed = Quiet(worker.pids()), [], 0
        for _ in range(self.a.paired_turns):
            was_quiet = quiet.wait(self.a.max_wait)
            mark = quiet.mark()
            parts += worker.ask(line)["paired_reads"]["parts"]
            disturbed += not was_quiet or quiet.is_disturbed(quiet.since(mark))
        worker.close()
        return {"parts": parts, "turns": self.a.paired_turns, "disturbed": disturbed}

    def run_row(self, shape, name, n_threads):
        gguf, h5 = self.checkpoint(shape, name)
        row = {"shape": shape, "format": name, "threads": n_threads, "work": {}}
        ours = score_shoal(self.a.shoal, h5, self.a.out)  # before the workers load the model too
        workers = {
            "shoal": Worker([self.a.shoal, "bench", "--turns", "--quiet", "--model", h5, "--threads", n_threads,
                             *room(self.a.work), "--step-tokens", step_tokens(self.a.work)]),
            "peer": Worker([self.a.python, HERE / "llama_turns.py", gguf, "--threads", n_threads, "--step-tokens",
                            step_tokens(self.a.work)]),
        }
        row["commands"] = {k: w.command for k, w in workers.items()}
        row["peer"] = workers["peer"].ask("about")
        theirs = workers["peer"].ask("score " + " ".join(map(str, SCORED)))
        row["logprob_difference"] = max(abs(x - y) for x, y in zip(ours, theirs))
        self.results["rows"].append(row)
        turns = turns_of(workers, self.a)
        for work in self.a.work:
            self.compare(row, turns, work)
            self.save()
        turns.close()
        row["machine"] = machine(self.a.shoal, n_threads)
        self.save()

    def save(self):
        path = self.a.out / "peers.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(self.results, indent=1), encoding="utf-8")
        os.replace(part, path)
        (self.a.out / "peers.md").write_text(table(self.results), encoding="utf-8")

    def run(self):
        for n_threads in self.a.threads:
            for shape in self.a.shapes:
                for name in self.a.formats:
                    self.run_row(shape, name, n_threads)
                    print(table({**self.results, "rows": self.results["rows"][-1:]}), file=sys.stderr)
        print(table(self.results))


def fraction(row, work, best, kernels):
    """The fraction of the machine's peak that shoal's rate is: of the bandwidth for decoding, of
    the best f32 rate for prompts.
    """
    paired = work.get("paired_reads")
    if paired:
        part = "{:.0f} % ({:.0f} .. {:.0f}) reads".format(*(100 * x for x in interval(paired["parts"])))
        return part + (f", {paired['disturbed']} of {paired['turns']} disturbed" if paired["disturbed"] else "")
    m = row.get("machine")
    if m is None:
        return ""
    if work["phase"] == "decode":
        n_seqs = int(work["line"].split()[2])
        return f"{100 * work['bytes_per_step'] * best / n_seqs * 1e-9 / m['read_gbs']:.0f} % reads"
    peak = max(m[f"fma_f32_{k}_gflops"] for k in ([kernels] if kernels == "avx2" else ["avx2", "avx512"]))
    return f"{100 * work['flops_per_token'] * best * 1e-9 / peak:.0f} % f32"


def table(results):
    lines = ["| shape | format | threads | work | shoal tok/s | llama.cpp tok/s | ratio | 95 % interval "
             "| by CPU time | disturbed pairs | shoal by the machine | log-probabilities |",
             "|---|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for row in results["rows"]:
        for name, work in row["work"].items():
            pairs = work["pairs"]
            mid, low, high = interval([p["ratio"] for p in pairs])
            ours, theirs = (statistics.median(p[k] for p in pairs) for k in ("shoal", "peer"))
            by_cpu = "{:.2f} ({:.2f} .. {:.2f})".format(*interval([p["cpu_ratio"] for p in pairs]))
            n_bad = sum(p["disturbed"] for p in pairs)
            lines.append(f"| {row['shape']} | {row['format']} | {row['threads']} | {name} | {ours:.1f} | {theirs:.1f} "
                         f"| {mid:.2f} | {low:.2f} .. {high:.2f} | {by_cpu if row['threads'] == 1 else '-'} | {n_bad} of {len(pairs)} "
                         f"| {fraction(row, work, ours, results.get('kernels'))} | {row['logprob_difference']:.1e} |")
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--table", type=pathlib.Path)
    p.add_argument("--shoal", type=pathlib.Path)
    p.add_argument("--python", type=pathlib.Path, help="of the environment with llama-cpp-python")
    p.add_argument("--models", type=pathlib.Path)
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--shapes", type=words, default=list("ABCD"))
    p.add_argument("--formats", type=words, default=["f16"])
    p.add_argument("--threads", type=lambda t: [int(x) for x in t.split(",")], default=[1, 2])
    add_arguments(p)
    p.add_argument("--paired-turns", type=int, default=3)
    p.add_argument("--kernels", choices=["ref", "avx2", "avx512", "amx"])
    a = p.parse_args()
    if a.table:
        print(table(json.loads(a.table.read_text(encoding="utf-8"))))
        return
    for name in ("shoal", "python", "models", "out"):
        if getattr(a, name) is None:
            p.error(f"--{name} is missing")
    if a.kernels is not None:
        os.environ["SHOAL_KERNELS"] = a.kernels
    Comparison(a).run()


if __name__ == "__main__":
    main()
