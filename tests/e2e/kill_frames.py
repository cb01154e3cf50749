#!/usr/bin/env python3
"""Kills dry runs on one rank with compressed inputs, and outputs in small frames, N times in all, at failpoints and at
random moments. After each kill the output's rows are the first bytes of the uninterrupted run's; at the end the file
has the bytes of a job without a kill. Each job is first started with an input in which a byte was
changed, and, after its first kill, with a cut input: both end with status 3 and name the byte.

usage: kill_frames.py SHOAL WORK_FOLDER [--runs N] [--seed N]
Prints how many kills struck where.
"""
import argparse
import collections
import ctypes
import gzip
import lzma
import random
import re
import subprocess
import time
from pathlib import Path

from kill_sweep import DEMO, LIMIT_S, OUTPUTS, rows_of
from program import Shoal, expect, fresh_folder, main_of, write_lines


def zstd(data):
    """A frame with a checksum."""
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_createCCtx.restype = ctypes.c_void_p
    library.ZSTD_compressBound.restype = library.ZSTD_compress2.restype = ctypes.c_size_t
    context, checksum_flag = ctypes.c_void_p(library.ZSTD_createCCtx()), 201
    library.ZSTD_CCtx_setParameter(context, checksum_flag, 1)
    room = ctypes.create_string_buffer(library.ZSTD_compressBound(ctypes.c_size_t(len(data))))
    n = library.ZSTD_compress2(context, room, ctypes.c_size_t(len(room)), data, ctypes.c_size_t(len(data)))
    library.ZSTD_freeCCtx(context)
    return room.raw[:n]


class Frames:
    """Kills dry runs, which take a fraction of a second, so that many kills strike the output."""
    POINTS = {"output_write": 5, "journal_write": 5, "journal_fsync": 5, "output_fsync": 1, "finish": 1,
              "resume": 2000}
    N_ROWS = 4000
    INPUTS = {".gz": gzip.compress, ".zst": zstd, ".xz": lzma.compress}

    def __init__(self, args):
        self.args, self.shoal, self.draw = args, Shoal(args.shoal), random.Random(args.seed)
        self.work = fresh_folder(Path(args.work) / "frames")
        plain, draw = self.work / "in.jsonl", random.Random(5)
        write_lines(plain, [dict(prompt_token_ids=[i % 300 + 1] * draw.randrange(1, 9),
                                 max_tokens=0 if i % 50 == 7 else draw.randrange(1, 40)) for i in range(self.N_ROWS)])
        lines = plain.read_bytes()
        cuts = [0, len(lines) // 3, 2 * len(lines) // 3, len(lines)]  # of frames; inside lines
        for end, pack in self.INPUTS.items():
            self.work.joinpath(f"in.jsonl{end}").write_bytes(
                b"".join(pack(lines[a:b]) for a, b in zip(cuts, cuts[1:])))
        self.input = plain
        self.expected = self.must_whole(self.work / "whole.jsonl")
        n_rows = self.expected.count(b"\n")
        expect(n_rows == self.N_ROWS, f"{n_rows} rows")

    def start(self, output, *flags):
        argv = [self.shoal.path, "generate", "--dry-run", "--model", DEMO, "--input", self.input, "--output", output,
                "--threads", 1, "--max-batch", 4, "--order", "input", *flags]
        return subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True, errors="replace")

    def end(self, job, statuses=(0, 137)):
        """The exit status, as a shell reports it."""
        try:
            said = job.communicate(timeout=LIMIT_S)[1]
        except subprocess.TimeoutExpired:
            job.kill()
            expect(False, f"no end within {LIMIT_S} s: {job.args}")
        status = 128 - job.returncode if job.returncode < 0 else job.returncode
        expect(status in statuses, f"status {status}: {said[-2000:]}")
        self.said = said
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

    def from_damaged(self, made, output, flags, words):
        """Runs the job from an input of the bytes `made`, which must end it with status 3."""
        whole, self.input = self.input, self.work / f"damaged.jsonl{self.input.suffix}"
        self.input.write_bytes(made)
        self.end(self.start(output, *flags), (3,))
        expect(str(self.input) in self.said and re.search(words, self.said), f"no '{words}': {self.said[-2000:]}")
        self.input = whole

    def begin_with_damage(self, output, flags):
        made = bytearray(self.input.read_bytes())
        made[len(made) // 2] ^= 4
        self.from_damaged(made, output, flags, "at byte [0-9]+: damaged")
        output.unlink(missing_ok=True)
        Path(f"{output}.journal").unlink(missing_ok=True)

    def resume_from_cut(self, output, flags):
        made = self.input.read_bytes()
        cut = made[:self.draw.randrange(len(made) // 2, len(made) - 1)]
        self.from_damaged(cut, output, flags, f"ends at byte {len(cut)} inside")
        expect(self.expected.startswith(rows_of(output)), f"{output} from a cut input: no beginning of the rows")

    def main(self):
        self.struck, self.torn, n_jobs = collections.Counter(), 0, 0
        while sum(self.struck.values()) < self.args.runs:
            end = OUTPUTS[1:][n_jobs % 3]
            self.input = self.work / f"in.jsonl{list(self.INPUTS)[(n_jobs + n_jobs // 3) % 3]}"
            flags = ["--output-frame", (700, 3000)[n_jobs // 3 % 2]]
            output, whole = self.work / f"out.jsonl{end}", self.work / f"whole.jsonl{end}"
            for path in (output, whole, Path(f"{output}.journal"), Path(f"{whole}.journal")):
                path.unlink(missing_ok=True)
            since = time.monotonic()
            expected = self.must_whole(whole, *flags)
            self.whole_s = time.monotonic() - since
            expect(rows_of(whole) == self.expected, f"{whole}: other rows")
            n_jobs += 1
            self.begin_with_damage(output, flags)
            is_done = self.attempt(output, flags) == 0
            if not is_done:
                self.resume_from_cut(output, flags)
            while not is_done:
                is_done = self.attempt(output, flags) == 0
            expect(output.read_bytes() == expected, f"{output}: other bytes than a job without a kill")
        print(f"{sum(self.struck.values())} kills of {n_jobs} jobs: {dict(self.struck)}; {self.torn} left a torn row")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shoal")
    parser.add_argument("work")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    main_of(lambda: Frames(args).main())


if __name__ == "__main__":
    main()
