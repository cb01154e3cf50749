#!/usr/bin/env python3
"""Kills dry runs on one rank with compressed outputs in small frames, N times in all, at failpoints and at random
moments. After each kill the output's rows are the first bytes of the uninterrupted run's; at the end the file has the
bytes of a job without a kill.

usage: kill_frames.py SHOAL WORK_FOLDER [--runs N] [--seed N]
Prints how many kills struck where.
"""
import argparse
import collections
import gzip
import random
import subprocess
import time
from pathlib import Path

from kill_sweep import DEMO, LIMIT_S, OUTPUTS, rows_of
from program import Shoal, expect, fresh_folder, main_of, write_lines


class Frames:
    """Kills dry runs, which take a fraction of a second, so that many kills strike the output."""
    POINTS = {"output_write": 5, "journal_write": 5, "journal_fsync": 5, "output_fsync": 1, "finish": 1,
              "resume": 2000}
    N_ROWS = 4000

    def __init__(self, args):
        self.args, self.shoal, self.draw = args, Shoal(args.shoal), random.Random(args.seed)
        self.work = fresh_folder(Path(args.work) / "frames")
        plain, draw = self.work / "in.jsonl", random.Random(5)
        write_lines(plain, [dict(prompt_token_ids=[i % 300 + 1] * draw.randrange(1, 9),
                                 max_tokens=0 if i % 50 == 7 else draw.randrange(1, 40)) for i in range(self.N_ROWS)])
        self.input = self.work / "in.jsonl.gz"
        self.input.write_bytes(gzip.compress(plain.read_bytes()))
        self.expected = self.must_whole(self.work / "whole.jsonl")
        n_rows = self.expected.count(b"\n")
        expect(n_rows == self.N_ROWS, f"{n_rows} rows")

    def start(self, output, *flags):
        argv = [self.shoal.path, "generate", "--dry-run", "--model", DEMO, "--input", self.input, "--output", output,
                "--threads", 1, "--max-batch", 4, "--order", "input", *flags]
        return subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True, errors="replace")

    def end(self, job):
        """The exit status, as a shell reports it."""
        try:
            said = job.communicate(timeout=LIMIT_S)[1]
        except subprocess.TimeoutExpired:
            job.kill()
            expect(False, f"no end within {LIMIT_S} s: {job.args}")
        status = 128 - job.returncode if job.returncode < 0 else job.returncode
        expect(status in (0, 137), f"status {status}: {said[-2000:]}")
        return status

    def must_whole(self, output, *flags):
        expect(self.end(self.start(output, *flags)) == 0, f"{output} was not finished")
        return output.read_bytes()

    def attempt(self, output, flags):
        """Runs the job once, most likely not to its end."""
        kind = self.draw.choice([*self.POINTS, "time", "time"])
        if kind == "time":
            job = self.start(output, *flags)
            time.sleep(self.draw.uniform(0, 1.2 * self.whole_s))
            job.kill()
        else:
            job = self.start(output, *flags, "--failpoint", f"{kind}:{self.draw.randint(1, self.POINTS[kind])}")
        status = self.end(job)
        self.struck[kind] += status == 137
        found = rows_of(output)
        expect(self.expected.startswith(found), f"{output} after {kind}: no beginning of the rows")
        self.torn += status == 137 and found[-1:] not in (b"", b"\n")
        return status

    def main(self):
        self.struck, self.torn, n_jobs = collections.Counter(), 0, 0
        while sum(self.struck.values()) < self.args.runs:
            end = OUTPUTS[1:][n_jobs % 3]
            flags = ["--output-frame", (700, 3000)[n_jobs // 3 % 2]]
            output, whole = self.work / f"out.jsonl{end}", self.work / f"whole.jsonl{end}"
            for path in (output, whole, Path(f"{output}.journal"), Path(f"{whole}.journal")):
                path.unlink(missing_ok=True)
            since = time.monotonic()
            expected = self.must_whole(whole, *flags)
            self.whole_s = time.monotonic() - since
            expect(rows_of(whole) == self.expected, f"{whole}: other rows")
            n_jobs += 1
            while self.attempt(output, flags) != 0:
                pass
            expect(output.read_bytes() == expected, f"{output}: other bytes than a job without a kill")
        print(f"{sum(self.struck.values())} kills of {n_jobs} jobs: {dict(self.struck)}; {self.torn} left a torn row")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shoal")
    parser.add_argument("work")
    parser.add_argument("--runs", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    main_of(lambda: Frames(args).main())


if __name__ == "__main__":
    main()
