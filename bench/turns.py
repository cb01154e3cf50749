#!/usr/bin/env python3
"""Two programs take turns with the same work, so that both meet the same minutes of the machine.

usage: turns.py [--work decode1,decode8,decode32,decode64,decode128,decode512,prefill512,
                prefill512x2,prefill4096] [--pairs 11] [--turn-seconds 1] [--max-wait 60] [--again 3] [--json FILE]
                FIRST SECOND

FIRST and SECOND are commands that answer lines as `shoal bench --turns` does: two builds, two files, or
    "shoal bench --turns --quiet --model M.h5 --threads 2 --max-model-len 1024"
    "mpirun -n 2 shoal bench --turns --quiet --model M.h5 --threads 1 --tp 2 --max-model-len 1024"
Each turn is one repetition of a work, every pair in the other order than the one before. The waiting program is
stopped, since ranks that wait for each other spin. Each turn waits until the machine is quiet
(--max-wait seconds), and a turn that others disturbed is done again (--again times, then it stays
and is counted). Printed are medians over the pairs of FIRST's rate divided by SECOND's, with 95 %
intervals (order statistics; of fewer than 9 pairs, the least and the largest).
"""
import argparse
import atexit
import json
import math
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from quiet import Quiet  # noqa: E402

# prompt length, output length (0: as many tokens as make the turn long enough), concurrency, and
# the phase whose rate counts
WORK = {
    "decode1": (16, 0, 1, "decode"),
    "decode8": (16, 0, 8, "decode"),
    "decode32": (16, 0, 32, "decode"),
    "decode64": (16, 0, 64, "decode"),
    "decode128": (1, 4, 128, "decode"),
    "decode512": (1, 4, 512, "decode"),
    "prefill512": (512, 1, 1, "prefill"),
    "prefill512x2": (512, 1, 2, "prefill"),
    "prefill512x4": (512, 1, 4, "prefill"),
    "prefill4096": (4096, 1, 1, "prefill"),
}
USUAL_WORK = ["decode1", "decode32", "prefill512"]
OUTPUT_LEAST, OUTPUT_MOST, CALIBRATION = 5, 400, 9


def longest(work):
    """The number of tokens of the longest sequence of a work."""
    prompt, output, _, _ = WORK[work]
    return prompt + (output or OUTPUT_MOST)


def children(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, task.read_text(encoding="ascii").split())
    return found


class Worker:
    """A program that answers each line of input with a line of JSON."""

    def __init__(self, command):
        self.command = [str(c) for c in command]
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.stopped = False
        atexit.register(self.close)  # otherwise a stopped program would stay stopped

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the program has ended and gives no answer
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{' '.join(self.command)}: ended at \"{line}\"")
        return json.loads(answer)

    def pids(self):
        """The ids of the program and all its descendants."""
        found = [self.process.pid]
        for pid in found:
            found += children(pid)
        return found

    def stop(self, stopped=True):
        """Stops or continues the processes that compute. Not the launcher, which only waits and
        would pass the signal on.
        """
        if self.stopped == stopped:
            return
        self.stopped = stopped
        for pid in self.pids():
            if not children(pid):
                os.kill(pid, signal.SIGSTOP if stopped else signal.SIGCONT)

    def close(self):
        if self.process.poll() is None:
            self.stop(False)
            self.process.stdin.close()
            self.process.wait()


def interval(values):
    """The median, and the order statistics that enclose it with at least 95 % (binomial); with too
    few values the smallest and the largest.
    """
    v, n = sorted(values), len(values)
    k, below = 0, 0.0
    while True:  # the largest k with 2 P(at most k - 1 of n below the median) <= 0.05
        below += math.comb(n, k) / 2 ** n
        if 2 * below > 0.05 or k + 1 > (n - 1) // 2:
            break
        k += 1
    k = max(k, 1)
    return statistics.median(v), v[k - 1], v[n - k]


class Turns:
    """workers: two programs by name. Rates of the first are divided by those of the second. The
    worker that is not at work is stopped.
    """

    def __init__(self, workers, pairs=11, turn_seconds=1.0, max_wait=60.0, again=3):
        self.workers, self.n_pairs, self.turn_seconds = workers, pairs, turn_seconds
        self.max_wait, self.n_again = max_wait, again
        for name in workers:  # once a worker answers, all its processes have started
            self.ask(name, f"1 {OUTPUT_LEAST} 1")
        self.quiet = Quiet([p for w in workers.values() for p in w.pids()])

    def ask(self, name, line):
        worker = self.workers[name]
        worker.stop(False)
        answer = worker.ask(line)
        worker.stop()
        return answer

    def turn(self, name, line):
        """Repeats a turn until it is undisturbed, at most --again times. Returns all turns that
        were tried; the last one counts.
        """
        tried = []
        for _ in range(self.n_again + 1):
            was_quiet = self.quiet.wait(self.max_wait)
            mark = self.quiet.mark()
            answer = self.ask(name, line)
            seen = self.quiet.since(mark)
            disturbed = not was_quiet or self.quiet.is_disturbed(seen)
            tried.append({"who": name, "disturbed": disturbed, **seen, **answer["repetition"]})
            if not disturbed:
                break
        return tried

    def line(self, work):
        """The line for a work, so long that a turn of the faster worker takes turn_seconds; and
        its phase.
        """
        prompt, output, n_seqs, phase = WORK[work]
        if output == 0:
            rates = []
            for name in self.workers:
                for _ in range(2):
                    p = self.ask(name, f"{prompt} {CALIBRATION} {n_seqs}")["repetition"][phase]
                rates.append(p["steps"] / p["seconds"])
            output = 1 + int(max(rates) * self.turn_seconds)
            output = min(max(output, OUTPUT_LEAST), OUTPUT_MOST)
        return f"{prompt} {output} {n_seqs}", phase

    def compare(self, line, phase):
        """Runs all pairs. Returns them, and every turn that was tried."""
        names = list(self.workers)
        for name in names:  # warm-up
            self.ask(name, line)
        turns, pairs = [], []
        for i in range(self.n_pairs):
            rate, cpu, disturbed = {}, {}, False
            for name in names if i % 2 == 0 else reversed(names):
                tried = self.turn(name, line)
                turns.append(tried)
                p = tried[-1][phase]
                rate[name] = p["tokens"] / p["seconds"]
                cpu[name] = p["cpu_seconds"] / p["tokens"]
                disturbed = disturbed or tried[-1]["disturbed"]
            first, second = names
            pairs.append({**rate, "ratio": rate[first] / rate[second], "disturbed": disturbed,
                          "cpu_ratio": cpu[second] / cpu[first]})
        return pairs, turns

    def close(self):
        for w in self.workers.values():
            w.close()


def words(text):
    return text.split(",")


def add_arguments(parser):
    parser.add_argument("--work", type=words, default=USUAL_WORK)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--turn-seconds", type=float, default=1.0)
    parser.add_argument("--max-wait", type=float, default=60.0)
    parser.add_argument("--again", type=int, default=3)


def turns_of(workers, a):
    return Turns(workers, a.pairs, a.turn_seconds, a.max_wait, a.again)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(p)
    p.add_argument("--json", type=pathlib.Path)
    p.add_argument("commands", nargs=2, type=shlex.split)
    a = p.parse_args()
    turns = turns_of({name: Worker(c) for name, c in zip(("first", "second"), a.commands)}, a)
    results = {"arguments": sys.argv[1:], "work": {}}
    for work in a.work:
        line, phase = turns.line(work)
        pairs, every = turns.compare(line, phase)
        results["work"][work] = {"line": line, "phase": phase, "pairs": pairs, "turns": every}
        middle, low, high = interval([x["ratio"] for x in pairs])
        rates = [statistics.median(x[name] for x in pairs) for name in ("first", "second")]
        n_bad = sum(x["disturbed"] for x in pairs)
        print(f"{work} ({line}): {middle:.3f} ({low:.3f} .. {high:.3f}), {rates[0]:.1f} by {rates[1]:.1f} tok/s, "
              f"{len(pairs)} pairs, {n_bad} disturbed", flush=True)
    turns.close()
    if a.json is not None:
        a.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
