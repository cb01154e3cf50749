#!/usr/bin/env python3
"""Kills jobs at random places and resumes them on other layouts: the output always has the
uninterrupted run's bytes.

usage: kill_sweep.py SHOAL WORK_FOLDER CASE [--runs N] [--seed N]
  sweep    N jobs; each is killed several times (a random rank or the launcher at a random moment, or itself at a
           failpoint) and resumed on another layout, from a plain or a compressed input, until it is done: one SHA-256, no
           row twice; of four outputs three are compressed
  drain    USR1, TERM, HUP without a launcher, and a time limit, given or Slurm's: exit status 75 in time, and the
           same bytes after resuming
  refusals changed inputs, flags and files, and a job that still runs: refused by name, and nothing is changed
Prints which processes were killed where. Needs no network. kill_faults.py has failed writes and full disks.
"""
import argparse
import collections
import ctypes
import fcntl
import gzip
import hashlib
import json
import lzma
import os
import random
import re
import signal
import subprocess
import time
import zlib
from pathlib import Path

from program import REPO, TESTS, Load, Shoal, expect, fresh_folder, main_of, processes_with, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
N_LINES = 48
LAYOUTS = {"one": ([], 0), "tp2": (["--tp", "2"], 2), "pp2": (["--pp", "2"], 2),
           "dp2": (["--dp", "2"], 2), "pp3": (["--pp", "3"], 3), "tp3": (["--tp", "3"], 3),
           "tp2-pp2": (["--tp", "2", "--pp", "2"], 4), "dp2-pp2": (["--dp", "2", "--pp", "2"], 4),
           "ep4": (["--ep", "4"], 4)}
# The latest pass at which each failpoint is set: few enough that most jobs get there.
FAILPOINTS = {"load": 1, "journal_write": 6, "journal_fsync": 6, "journal_rename": 1,
              "output_write": 3, "output_fsync": 1, "resume": N_LINES, "step": 40, "drain": 1,
              "finish": 1}
SPECIAL = {3: dict(n=3, temperature=0.8), 9: dict(logprobs=2), 14: dict(num_beams=3, n=2, max_tokens=60),
           22: dict(n=2, logprobs=1, prompt_logprobs=1, temperature=1), 28: dict(logprobs=0),
           35: dict(num_beams=2, max_tokens=90), 42: dict(n=4, max_tokens=150, temperature=0.9)}
OUTPUTS = ("", ".gz", ".zst", ".xz")  # endings; the jobs take turns
FRAME = ["--output-frame", 3000]  # so that the 48 rows fill several frames
KILLS_MAX = 4  # of one job; afterwards it may finish
# Slow enough to be killed in the middle, but no slower: on a busy machine each step of several ranks waits for the
# scheduler a few times.
SLOW = ["--max-batch", 6]
LIMIT_S = 400  # beside other work; the jobs take ten seconds on an idle machine
HANGS_S = 30  # a launcher that has had no ranks for so long hangs
LEAVES_S = 15  # after a time limit or a signal, on an idle machine
LIMIT = "0:03"  # a job drains two seconds before its limit, so a second after its start
PHASES = (("rows: ", "behind the last row"), ("loaded ", "steps"), ("journal ", "resuming"),
          ("sampling: ", "loading"))


def job_lines(special=True):
    """Prompts of the demo model: greedy, seeded and unseeded; with `special` also several answers,
    beam searches and log-probabilities; error rows, a duplicate, repeated requests, and some
    with priority.
    """
    draw = random.Random(4)
    text = " ".join(json.loads(line)["prompt"] for line in
                    (REPO / "models" / "demo" / "prompts.jsonl").read_text().splitlines())
    lines = []
    for i in range(N_LINES):
        at = draw.randrange(len(text) - 400)
        line = dict(custom_id=f"k{i}", prompt=text[at:at + draw.randrange(5, 200)],
                    max_tokens=draw.randrange(20, 220), temperature=draw.choice([0, 0.8, 1]))
        if i % 5 == 0:
            line["seed"] = i
        lines.append(line)
    for at, more in SPECIAL.items() if special else ():
        lines[at].update(more)
    for at, same in ((19, 1), (31, 11), (33, 11), (45, 2)):
        lines[same]["temperature"] = 0
        lines[at] = {**lines[same], "custom_id": f"k{at}", "max_tokens": 30 + at}
    lines[26]["priority"], lines[40]["priority"] = -1, 2
    lines[7]["top_p"] = 3
    lines[20]["custom_id"] = "k3"
    return lines


def ranks_of(shoal, output):
    """The ids of the job's ranks, without its launcher."""
    found = []
    for pid in processes_with(str(output)):
        try:
            if os.readlink(f"/proc/{pid}/exe") == shoal.path:
                found.append(pid)
        except OSError:
            continue
    return sorted(found)


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def gunzip(data):
    found = b""
    while data:
        member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            found += member.decompress(data)
        except zlib.error:
            break
        data = member.unused_data
    return found


def unxz(data):
    found = b""
    while data:
        stream = lzma.LZMADecompressor()
        try:
            found += stream.decompress(data)
        except lzma.LZMAError:
            break
        data = stream.unused_data
    return found


class ZstdBytes(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("size", ctypes.c_size_t), ("pos", ctypes.c_size_t))


def unzstd(data):
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_createDStream.restype = ctypes.c_void_p
    library.ZSTD_decompressStream.restype = ctypes.c_size_t
    stream = ctypes.c_void_p(library.ZSTD_createDStream())
    source, room = ctypes.create_string_buffer(data, len(data)), ctypes.create_string_buffer(1 << 16)
    read, found = ZstdBytes(ctypes.addressof(source), len(data), 0), b""
    while True:
        wrote = ZstdBytes(ctypes.addressof(room), len(room), 0)
        left = library.ZSTD_decompressStream(stream, ctypes.byref(wrote), ctypes.byref(read))
        found += room.raw[:wrote.pos]
        if library.ZSTD_isError(ctypes.c_size_t(left)) or (
                read.pos == read.size and wrote.pos < wrote.size):
            break
    library.ZSTD_freeDStream(stream)
    return found


def rows_of(path):
    """The bytes of an output, decompressed. Of a torn or damaged last frame, those before the
    damage."""
    data = path.read_bytes() if path.exists() else b""
    return {".gz": gunzip, ".xz": unxz, ".zst": unzstd}.get(path.suffix, bytes)(data)


class Started:
    """A running job. Its stderr goes to a file."""

    LOOKS_S = 1  # between two looks for a launcher that hangs: each reads the command lines of all processes

    def __init__(self, test, layout, *flags, env=None):
        layout_flags, self.ranks = LAYOUTS[layout]
        self.test, self.log = test, test.work / "stderr"
        launcher = [TESTS / "mpirun.sh", self.ranks] if self.ranks else []
        argv = [*launcher, test.shoal.path, "generate", "--model", DEMO, "--input", test.input,
                "--output", test.output, "--threads", 1, *layout_flags, *flags]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env={**os.environ, "OMP_WAIT_POLICY": "passive",
                                             **(env or {})})

    def text(self):
        return self.log.read_text(errors="replace")

    def phase(self):
        text = self.text()
        return next((name for word, name in PHASES if word in text), "before any word")

    def launcher_hangs(self):
        """Whether only mpirun is left, after reporting a killed rank. mpirun may hang forever when
        a rank dies inside MPI_Init, because of a lock in its own PMIx server. If a rank is left
        too, the failure is shoal's.
        """
        return (self.ranks > 0 and "exited on signal 9" in self.text() and
                processes_with(str(self.test.output)) == [self.process.pid])

    def wait(self, limit_s=LIMIT_S):
        """The exit status as a shell reports it. Ends a launcher that hangs after a killed rank."""
        since = hangs_since = looked = time.monotonic()
        while (status := self.process.poll()) is None:
            now = time.monotonic()
            if now - looked > self.LOOKS_S:
                looked, hangs = now, self.launcher_hangs()
                hangs_since = hangs_since if hangs else now
            if looked - hangs_since > HANGS_S:
                print(f"every rank was gone for {HANGS_S} s and mpirun hung: killed", flush=True)
                kill(self.process.pid)
                return 128 - self.process.wait()
            if now - since > limit_s:
                left = ranks_of(self.test.shoal, self.test.output)
                self.end()
                expect(False, f"no end within {limit_s} s, ranks left: {left}: {self.text()[-3000:]}")
            time.sleep(0.02)
        return 128 - status if status < 0 else status

    def wait_for(self, word, limit_s=LIMIT_S):
        end = time.monotonic() + limit_s
        while word not in self.text() and self.process.poll() is None:
            expect(time.monotonic() < end, f"no '{word}': {self.text()[-3000:]}")
            time.sleep(0.005)

    def end(self):
        """Kills the launcher and waits until no rank is left; ranks that are left after 20 s are
        killed."""
        kill(self.process.pid)
        self.process.wait()
        since = time.monotonic()
        while left := ranks_of(self.test.shoal, self.test.output):
            if time.monotonic() - since > 20:
                for pid in left:
                    kill(pid)
            time.sleep(0.02)


class JournalTest:
    copies = 1  # of the lines

    def __init__(self, args):
        self.args, self.shoal = args, Shoal(args.shoal)
        self.work = Path(args.work) / args.case
        fresh_folder(self.work)
        self.input, self.output = self.work / "in.jsonl", self.work / "out.jsonl"
        self.journal = self.work / "out.jsonl.journal"
        self.draw, self.draw_weights = random.Random(args.seed), random.Random(args.seed + 1)
        self.inputs = [self.input]
        write_lines(self.input, self.lines())
        whole = self.work / "whole.jsonl"
        since = time.monotonic()
        self.shoal.must("generate", "--model", DEMO, "--input", self.input, "--output", whole,
                        "--threads", 1, *SLOW)
        self.whole_s = time.monotonic() - since
        self.expected = whole.read_bytes()
        self.sha = hashlib.sha256(self.expected).hexdigest()
        rows = [json.loads(line) for line in self.expected.splitlines()]
        n_errors = sum("error" in row for row in rows)
        expect((len(rows), n_errors) == (N_LINES * self.copies, 2 * self.copies), f"{len(rows)} rows, {n_errors} error rows")
        print(f"uninterrupted, one rank, no journal: {self.whole_s:.1f} s, sha256 {self.sha}")

    def lines(self):
        return [{**line, "custom_id": line["custom_id"] + "+" * i}
                for i in range(self.copies) for line in job_lines(i == 0)]

    def begin(self):
        self.output.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)

    def check_prefix(self, what):
        found = rows_of(self.output)
        expect(self.expected.startswith(found), f"{what}: the output is no prefix of the whole one")

    def check_whole(self, what):
        found = hashlib.sha256(rows_of(self.output)).hexdigest()
        expect(found == self.sha, f"{what}: sha256 {found}, {self.sha} expected")

    def halt(self, number):
        """Signals the job's ranks, not its launcher."""
        for pid in ranks_of(self.shoal, self.output):
            kill(pid, number)

    def n_rows(self):
        """The number of rows in the journal, from shoal status."""
        if not self.journal.exists():
            return 0
        return json.loads(self.shoal.must("status", self.journal, "--json").out)["rows"]

    def random_layout(self):
        flags = ["--checkpoint-tokens", self.draw.choice([4, 16, 256])]
        flags += ["--max-batch", self.draw.choice([4, 6, 16])]
        flags += ["--order", self.draw.choice(["auto", "input", "prefix"]), *FRAME]
        if self.draw.random() < 0.3:
            flags += ["--chunk", 7]
        self.input = self.draw.choice(self.inputs)
        env = {"SHOAL_KERNELS": "ref"} if self.draw.random() < 0.2 else {}
        layout = self.draw.choice(list(LAYOUTS))
        if self.draw_weights.random() < 0.3:  # packs the experts first, perhaps not to the end
            flags += ["--weights", "stream", "--expert-memory", "1",
                      "--expert-file", self.work / f"{layout}.experts"]
        if self.draw_weights.random() < 0.3:  # sequences of a tight pool are moved
            flags += ["--kv-tier", f"{self.work}:16M", "--kv-blocks", 20]
        return layout, flags, env

    def finish(self, what, *flags, layout="one"):
        job = Started(self, layout, *flags)
        status = job.wait()
        expect(status == 0, f"{what}: status {status}: {job.text()[-3000:]}")
        self.check_whole(what)
        return job.text()


class Sweep(JournalTest):
    """Runs the sweep and counts the kinds of kills."""

    points = FAILPOINTS

    def __init__(self, args):
        super().__init__(args)
        lines = self.input.read_bytes()
        for end, made in ((".gz", gzip.compress(lines[:3000]) + gzip.compress(lines[3000:])),
                          (".xz", lzma.compress(lines))):
            self.inputs.append(self.work / f"in.jsonl{end}")
            self.inputs[-1].write_bytes(made)
        self.frames = {".jsonl": self.expected}
        self.struck, self.phases, self.n_kills = collections.Counter(), collections.Counter(), 0

    def kill_by_failpoint(self, name, is_sure):
        layout, flags, env = self.random_layout()
        most = max(1, min(self.n_rows(), N_LINES)) if name == "resume" else self.points[name]
        n_pass = 1 if is_sure else self.draw.randint(1, most)
        job = Started(self, layout, *flags, "--failpoint", f"{name}:{n_pass}", env=env)
        if name == "drain":
            job.wait_for("loaded ")
            for pid in ranks_of(self.shoal, self.output):
                kill(pid, signal.SIGUSR1)
        status = job.wait()
        job.end()
        # The job may be done, or drained, before it reaches the failpoint often enough.
        expect(status in (0, 75, 137), f"{name}: status {status}: {job.text()[-3000:]}")
        if status == 137:
            self.struck[name] += 1
        return status, f"failpoint {name}:{n_pass} on {layout}", job

    def kill_at_random(self):
        layout, flags, env = self.random_layout()
        job = Started(self, layout, *flags, env=env)
        time.sleep(self.draw.uniform(0, self.whole_s + 0.5))
        ranks = ranks_of(self.shoal, self.output)
        phase = job.phase()
        by_launcher = job.ranks > 0 and (not ranks or self.draw.random() < 0.4)
        victim = job.process.pid if by_launcher or not ranks else self.draw.choice(ranks)
        kill(victim)
        status = job.wait()
        if by_launcher and self.draw.random() < 0.5:
            return status, f"launcher of {layout} in: {phase}; resumed at once", job
        job.end()
        expect(status in (0, 137), f"status {status}: {job.text()[-3000:]}")
        which = "launcher" if by_launcher else f"rank {ranks.index(victim) if ranks else 0}"
        return status, f"{which} of {layout} in: {phase}", job

    def one(self, number):
        """Runs one job until it is done. Its first kill is at a failpoint. The failpoints take
        turns, and in the first round each is set to its first pass, so that it surely strikes.
        """
        self.output = self.work / f"out.jsonl{OUTPUTS[number % len(OUTPUTS)]}"
        self.journal = Path(f"{self.output}.journal")
        self.begin()
        names = list(FAILPOINTS)
        first = [names[number % len(names)]]
        if first == ["resume"]:
            first.insert(0, "finish")  # the journal has all rows then, for the resumed job to take over
        for attempt in range(1, 50):
            at_point = attempt <= len(first)
            if attempt > KILLS_MAX:
                layout, flags, env = self.random_layout()
                job = Started(self, layout, *flags, env=env)
                status, what = job.wait(), f"nobody on {layout}"
                expect(status == 0, f"status {status}: {job.text()[-3000:]}")
            elif at_point or self.draw.random() < 0.25:
                status, what, job = self.kill_by_failpoint(
                    first[attempt - 1] if at_point else self.draw.choice(names),
                    at_point and number < len(names))
            else:
                status, what, job = self.kill_at_random()
            if status == 137:
                self.n_kills += 1
                self.phases[job.phase()] += 1
            self.check_prefix(f"job {number}, attempt {attempt}")
            print(f"job {number} attempt {attempt}: killed {what}; status {status}, "
                  f"{self.n_rows()} of {N_LINES} rows", flush=True)
            if status == 0:
                break
        self.check_whole(f"job {number}")
        self.check_frames(f"job {number}")
        ids = [json.loads(line)["custom_id"] for line in rows_of(self.output).splitlines()]
        expect(len(ids) == N_LINES and collections.Counter(ids).most_common(2)[1][1] == 1,
               f"job {number}: a row twice")

    def check_frames(self, what):
        """Expects the compressed bytes that a job without a kill writes."""
        if self.output.suffix not in self.frames:
            whole = self.work / f"uninterrupted{self.output.suffix}"
            self.shoal.must("generate", "--model", DEMO, "--input", self.input, "--output", whole,
                            "--threads", 1, *FRAME)
            self.frames[self.output.suffix] = whole.read_bytes()
        expect(self.output.read_bytes() == self.frames[self.output.suffix], f"{what}: other frames")

    def main(self):
        for number in range(self.args.runs):
            self.one(number)
        print(f"{self.args.runs} of {self.args.runs} jobs with sha256 {self.sha}; {self.n_kills} "
              f"kills, in {dict(self.phases)}; at failpoints {dict(self.struck)}")
        n_least = max(self.args.runs // len(FAILPOINTS) // 2, self.args.runs > len(FAILPOINTS))
        for number, name in enumerate(FAILPOINTS):
            for _ in range(3):  # on a fast machine a job may end before its failpoint
                if self.struck[name] < n_least:
                    self.one(number)
            expect(self.struck[name] >= n_least,
                   f"{name} struck {self.struck[name]} times, {n_least} expected")


def has_pending(pid, number):
    """Whether a signal that a process blocks has come to it."""
    found = re.search(r"^ShdPnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1], 16) >> (number - 1) & 1


class Drain(JournalTest):
    copies = 3  # so that a job is stopped long before its end
    TRIES = 5

    def drained(self, what, job):
        since = time.monotonic()
        with Load() as load:
            status = job.wait()
        took_s = time.monotonic() - since
        text = job.text()
        job.end()
        expect(status == 75, f"{what}: status {status}: {text[-3000:]}")
        expect("the same command resumes" in text, f"{what}: {text[-3000:]}")
        expect(took_s < LEAVES_S * load.slows(2), f"{what}: {took_s:.1f} s")
        self.check_prefix(what)
        state = json.loads(self.shoal.must("status", self.output, "--json").out)
        expect(state["state"] == "stopped", f"{what}: {state}")
        print(f"{what}: 75 after {took_s:.1f} s with {state['rows']} rows")

    def journal_bytes(self):
        return self.journal.stat().st_size if self.journal.exists() else 0

    def held(self, layout):
        """A job whose ranks are all stopped after their first tokens, so that the next event finds it
        running on any machine; and the ranks' ids.
        """
        for _ in range(self.TRIES):
            self.begin()
            job = Started(self, layout, *SLOW, "--checkpoint-tokens", 4)
            job.wait_for("loaded ")
            begun = self.journal_bytes()
            while job.process.poll() is None and self.journal_bytes() <= begun:
                time.sleep(0.005)
            self.halt(signal.SIGSTOP)
            ranks = ranks_of(self.shoal, self.output)
            if len(ranks) == max(job.ranks, 1):
                return job, ranks
            job.end()  # it ended before this process got a CPU
        return expect(False, f"{layout}: {self.TRIES} jobs ended before they were stopped: {job.text()[-3000:]}")

    def signalled(self, layout, number, times=1):
        """The job is stopped until all of its ranks have got the first signal."""
        job, ranks = self.held(layout)
        kill(job.process.pid, number)
        end = time.monotonic() + LIMIT_S
        while not all(has_pending(pid, number) for pid in ranks):
            expect(time.monotonic() < end, f"{number.name} did not come to all of {ranks}")
            time.sleep(0.005)
        self.halt(signal.SIGCONT)
        for _ in range(1, times):
            time.sleep(0.05)
            kill(job.process.pid, number)
        self.drained(f"{number.name} x {times} to {layout}", job)
        return self.finish("resumed", layout=self.draw.choice(list(LAYOUTS)))

    def signalled_early(self, layout, number):
        """The signal comes while the job loads."""
        self.begin()
        job = Started(self, layout, *SLOW)
        job.wait_for("sampling: ")
        kill(job.process.pid, number)
        self.drained(f"{number.name} to {layout} behind 'sampling: '", job)
        self.finish("resumed", layout=self.draw.choice(list(LAYOUTS)))

    def limited(self, what, layout, *flags, env=None):
        """The job is stopped until its margin before the limit has begun, unless it took so long to
        load that it drains by itself.
        """
        for _ in range(self.TRIES):
            self.begin()
            job = Started(self, layout, *SLOW, *flags, env=env)
            job.wait_for("loaded ")
            self.halt(signal.SIGSTOP)
            if job.process.poll() != 0:
                break  # it did not end before this process got a CPU
        time.sleep(1)
        self.halt(signal.SIGCONT)
        self.drained(what, job)

    def main(self):
        text = ""
        for layout in ("one", "tp2", "dp2-pp2"):
            text += self.signalled(layout, signal.SIGUSR1)
        expect(re.search(r"from earlier runs: \d+ rows, [1-9]\d* tokens", text), text[-3000:])
        self.signalled_early("pp2", signal.SIGUSR1)
        self.signalled("one", signal.SIGTERM)
        self.signalled("one", signal.SIGHUP)
        self.signalled("tp2", signal.SIGUSR1, times=2)
        self.limited("--time-limit", "tp2", "--time-limit", LIMIT)
        self.finish("behind --time-limit", "--time-limit", "1:00:00")
        folder = self.work / "bin"
        folder.mkdir()
        (folder / "squeue").write_text(f"#!/bin/sh\n[ \"$3\" = 77 ] && echo {LIMIT}\n")
        (folder / "squeue").chmod(0o755)
        env = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
        self.limited("Slurm's limit", "pp2", env=env)
        self.finish("behind Slurm's limit")


class Refusals(JournalTest):
    def refused(self, status, words, *flags, layout="one"):
        before = [p.read_bytes() if p.exists() else None for p in (self.output, self.journal)]
        job = Started(self, layout, *flags)
        found = job.wait()
        text = job.text()
        expect(found == status, f"{flags}: status {found}: {text[-3000:]}")
        for word in words:
            expect(word in text, f"no '{word}': {text[-3000:]}")
        after = [p.read_bytes() if p.exists() else None for p in (self.output, self.journal)]
        expect(before == after, f"{flags}: a refused run changed a file")
        print(next(line for line in text.splitlines() if words[0] in line))

    def half(self):
        self.begin()
        job = Started(self, "one", "--failpoint", "output_write:1", *SLOW)
        expect(job.wait() == 137, job.text())

    def main(self):
        self.half()
        self.refused(2, ["--temperature was 1", "0.5 now"], "--temperature", 0.5)
        self.refused(2, ["--seed"], "--seed", 9, layout="tp2")
        self.refused(2, ["--stop"], "--stop", "the")
        self.refused(2, ["--kv-dtype was f16"], "--kv-dtype", "f32")
        lines = self.input.read_bytes()
        self.input.write_bytes(lines.replace(b"k0\"", b"K0\"", 1))  # the line of the first row that was written
        self.refused(3, ["line 1: it changed"])
        self.input.write_bytes(lines)
        with self.journal.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            state = json.loads(self.shoal.must("status", self.output, "--json").out)
            expect(state["state"] == "running", str(state))
            self.refused(2, ["another process has it"])
        self.finish("put back", layout="pp2")
        expect("complete" in self.shoal.must("status", self.journal).out, "shoal status")
        self.input.write_bytes(lines + b'{"prompt":"more"}\n')
        self.refused(3, ["found more"])
        self.input.write_bytes(lines)
        text = self.finish("a finished job", layout="tp2")
        expect("nothing to do" in text, text)
        self.output.unlink()
        text = self.finish("a finished job whose output is gone", layout="tp2")
        expect("nothing to do" in text, text)
        text = self.finish("retried", "--retry-errors", layout="dp2")
        expect("2 error rows are run again" in text, text)
        self.refused(2, ["--restart and --retry-errors"], "--restart", "--retry-errors")
        self.finish("restarted", "--restart")
        self.journal.unlink()
        self.refused(2, ["there is no journal"])
        self.output.unlink()
        self.refused(2, ["--retry-errors"], "--retry-errors")


def run_case(cases):
    """Runs the case that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("shoal")
    parser.add_argument("work")
    parser.add_argument("case", choices=cases)
    parser.add_argument("--runs", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    main_of(lambda: cases[args.case](args).main())


if __name__ == "__main__":
    run_case(dict(sweep=Sweep, drain=Drain, refusals=Refusals))
