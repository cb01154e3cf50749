#!/usr/bin/env python3
"""The memory of `shoal embed` over a long file: must not grow with the number of lines.

usage: embed_memory.py --shoal SHOAL --work FOLDER [--lines 100000,500000,1000000] [--vectors npy,h5] [--model bert-embed]
                       [--flags "--threads 2"] [--resume]

The model is one of the tiny ones in tests/golden/embed; each line is a short text with a custom_id that is not its
number. The job has a journal. When it is complete, the same command with --vectors makes each kind of file from its
rows. Resident memory is read from /proc every fifth of a second; printed are, for each of these runs, the seconds, the
largest memory, and the memory when a tenth, two tenths, ... of the time had passed. --resume also kills the job of the
largest file once half of its output is there, and prints the memory of the run that completes it.
"""
import argparse
import os
import pathlib
import shlex
import signal
import subprocess
import time

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "embed"
WORDS = "shoal fish swims in the sea while small boats drift under a grey sky and nobody counts the waves".split()
LOOK_S = 0.2


def write_texts(path, n):
    with path.open("w") as out:
        for i in range(n):
            words = " ".join(WORDS[(i * k + k) % len(WORDS)] for k in range(1, 3 + i % 3))
            out.write(f'{{"custom_id": "text-{i:07d}", "input": "{words} {i}"}}\n')


def status_mib(pid, name):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0  # the process has just ended


class Job:
    def __init__(self, args, lines, kind):
        self.lines, self.kind, self.output = lines, kind, args.work / "rows.jsonl"
        self.argv = [args.shoal, "embed", "--quiet", "--model", args.work / f"{args.model}.h5", "--input",
                     args.work / f"{lines}.jsonl", "--output", self.output, *shlex.split(args.flags)]
        if kind:
            self.argv += ["--vectors", args.work / f"vectors.{kind}"]

    def run(self, end_bytes=None):
        """Returns the seconds, the largest memory and the memory over time, in MiB. With end_bytes
        it kills the job once the output has so many.
        """
        since, found = time.monotonic(), []
        job, peak = subprocess.Popen([str(word) for word in self.argv]), 0
        while job.poll() is None:
            found.append(status_mib(job.pid, "VmRSS:"))
            peak = max(peak, status_mib(job.pid, "VmHWM:"))
            if end_bytes and self.output.exists() and self.output.stat().st_size >= end_bytes:
                os.kill(job.pid, signal.SIGKILL)
            time.sleep(LOOK_S)
        if job.returncode != (-signal.SIGKILL if end_bytes else 0):
            raise SystemExit(f"{self.argv} ended with {job.returncode}")
        return time.monotonic() - since, peak, [m for m in found if m > 0]

    def show(self, name, seconds, peak, found):
        tenths = [f"{found[len(found) * k // 10]:.0f}" for k in range(1, 10)]
        print(f"{self.lines} lines, {name}: {seconds:.0f} s, largest {peak:.1f} MiB; at tenths of "
              f"the time {' '.join(tenths)}", flush=True)

    def clean(self):
        for path in self.output.parent.glob("rows.jsonl*"):
            path.unlink()


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--shoal", required=True)
    p.add_argument("--work", required=True, type=pathlib.Path)
    p.add_argument("--lines", default="100000,500000,1000000")
    p.add_argument("--vectors", default="npy,h5")
    p.add_argument("--model", default="bert-embed")
    p.add_argument("--flags", default="--threads 2")
    p.add_argument("--resume", action="store_true")
    args = p.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    subprocess.run([args.shoal, "convert", GOLDENS / args.model / "hf", args.work / f"{args.model}.h5"], check=True,
                   stdout=subprocess.DEVNULL)
    counts = [int(n) for n in args.lines.split(",")]
    for n in counts:
        write_texts(args.work / f"{n}.jsonl", n)
        job = Job(args, n, None)
        job.clean()
        job.show("job", *job.run())
        for kind in filter(None, args.vectors.split(",")):
            made = Job(args, n, kind)
            made.show(f"--vectors X.{kind}", *made.run())
    if args.resume:
        half = job.output.stat().st_size // 2
        job.clean()
        job.show("job, killed half-way", *job.run(half))
        job.show("job, resumed", *job.run())


if __name__ == "__main__":
    main()
