#!/usr/bin/env python3
"""Tests that a rank that stops, dies or is cut off at any time is noticed, with a short
--watchdog.

usage: lost_rank.py SHOAL MPI_UNIT WORK_FOLDER CASE
  stopped    SIGSTOP in the middle: all other ranks name it and leave with 76 within the deadline
  loading    the same before the first step
  killed     SIGKILL: the job ends at once with the launcher's status
  slow       the main thread alone is stopped for two deadlines: the rank is not lost, and the bytes are the same
  suspended  all ranks are stopped for two deadlines and continued: no rank is lost, and the bytes are the same
  words      the lead prints its registered last message before it leaves, but does not wait for it forever
  starved    a rank's watchdog thread gets no CPU: this is reported, and after ten deadlines the rank is lost
  hosts      two hosts (network namespaces, needs root): the link goes down, and each side names the other
  four_hosts  four of them, experts over all: one is cut off, or its rank is killed; the others name it
Each rank's stderr and exit status go to files of their own, so that no launcher stands between.
"""
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from hosts import Hosts
from program import FAILED, GOLDENS, HANGS_S, SKIPPED, TESTS, Load, Shoal, expect, fresh_folder, main_of, run

DEADLINE_S = 4
START_S = HANGS_S  # a busy machine starts slowly
MODEL = "mixtral"
LAYOUT = ["--tp", "2", "--pp", "2", "--threads", "1"]
RANKS = 4
ONE_HOST = [TESTS / "mpirun.sh", RANKS, "--mca", "orte_abort_on_non_zero_status", "0"]
LOST = re.compile(r"rank (\d+) on host (\S+)(?: \(and \d+ more there\))? is lost or cut off: rank "
                  r"(\d+) heard no heartbeat for ([\d.]+) s; its last communication: (.*?); mine, ")
EVENT = re.compile(r"(all-reduce|all-gather|all-to-all|broadcast|barrier|send|receive|wait|probe) "
                   r"over (world|host|stage|tp|ep|etp), count \d+, ")


def wait_for(what, sentence, limit_s=START_S):
    """Waits until what() is true, and returns its value."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"no {sentence} within {limit_s} s")


class Deadline:
    """Measures how long the survivors take. They must leave within DEADLINE_S on a machine that runs
    only this test. Beside other processes they wait for CPUs in proportion to the processes that
    want one, so the limit grows with these.
    """

    def __init__(self):
        self.since, self.load = time.monotonic(), Load()
        self.load.__enter__()

    def check(self, job):
        """Returns the seconds since the start; fails when they are too many."""
        took_s = time.monotonic() - self.since
        self.load.__exit__()
        slows = self.load.slows(RANKS + 1)  # all ranks and this process may run
        expect(took_s <= DEADLINE_S * slows,
               f"the last survivor left after {took_s:.2f} s on a machine slowed {slows:.1f} times\n{job}")
        return took_s


class Job:
    """A running job with a folder for its output and for its ranks' stderr and exit statuses."""

    def __init__(self, shoal, work, name, launcher, model, prompts, *flags):
        self.folder = work / name
        self.folder.mkdir()
        self.output = self.folder / "out.jsonl"
        script = self.folder / "rank.sh"
        script.write_text('r=$OMPI_COMM_WORLD_RANK; f=$1; shift\n'
                          '"$@" 2>$f/err.$r & echo $! >$f/pid.$r; wait $!; echo $? >$f/status.$r\n'
                          'exit $(cat $f/status.$r)\n')
        argv = [*launcher, "sh", script, self.folder, shoal.path, "generate", "--model", model,
                "--input", prompts, "--output", self.output, *LAYOUT, *flags]
        self.log = (self.folder / "launcher").open("w")
        self.process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log, start_new_session=True,
                                        env={**os.environ, "OMP_WAIT_POLICY": "passive"})

    def text(self, kind, rank):
        path = self.folder / f"{kind}.{rank}"
        return path.read_text() if path.exists() else ""

    def pid(self, rank):
        return int(wait_for(lambda: self.text("pid", rank).strip(), f"rank {rank}"))

    def status(self, rank):
        text = self.text("status", rank).strip()
        return int(text) if text else None

    def signal(self, ranks, number):
        for rank in ranks:
            os.kill(self.pid(rank), number)

    def wait_until_watched(self):
        """Waits until every rank has its watchdog thread."""
        for rank in range(RANKS):
            tasks = Path(f"/proc/{self.pid(rank)}/task")
            wait_for(lambda: any(t.read_text() == "watchdog\n" for t in tasks.glob("*/comm")),
                     f"watching thread of rank {rank}")

    def wait_for_rows(self):
        wait_for(lambda: self.output.exists() and self.output.stat().st_size > 0, "row")

    def wait_for_statuses(self, ranks):
        wait_for(lambda: all(self.status(r) is not None for r in ranks), f"end of ranks {ranks}")

    def end(self):
        """Ends the processes that still run. Returns the launcher's status."""
        for rank in range(RANKS):
            pid = self.text("pid", rank).strip()
            if pid and self.status(rank) is None:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
        try:
            status = self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            status = None
        self.log.close()
        return status

    def __str__(self):
        parts = [f"launcher: {(self.folder / 'launcher').read_text()[-2000:]}"]
        parts += [f"rank {r}: status {self.status(r)}\n{self.text('err', r)[-1500:]}"
                  for r in range(RANKS)]
        return "\n".join(parts)


class LostRankTest:
    def __init__(self, shoal, mpi_unit, work, case):
        self.shoal, self.mpi_unit, self.case = Shoal(shoal), mpi_unit, case
        self.work = fresh_folder(Path(work) / case)
        self.model = self.work / "model.h5"
        self.shoal.must("convert", GOLDENS / MODEL / "hf", self.model)

    def prompts(self, n):
        path = self.work / f"in{n}.jsonl"
        rows = [json.loads(line) for line in
                (GOLDENS / MODEL / "prompts.jsonl").read_text().splitlines()]
        with path.open("w") as f:
            for i in range(n):
                row = {**rows[i % len(rows)], "custom_id": f"r{i}", "max_tokens": 30}
                f.write(json.dumps(row) + "\n")
        return path

    def job(self, name, prompts, *flags, launcher=ONE_HOST):
        # Without the result cache: the prompts repeat, and the job must last.
        return Job(self.shoal, self.work, name, launcher, self.model, prompts, "--watchdog",
                   DEADLINE_S, "--result-cache", "off", *flags)

    def expect_named(self, job, rank, victims, host=None):
        """The rank's stderr names one of the victims, its host and its last communication."""
        found = LOST.search(job.text("err", rank))
        expect(found, f"rank {rank} named nobody\n{job}")
        expect(int(found[1]) in victims, f"rank {rank} named rank {found[1]}, not {victims}\n{job}")
        expect(host is None or found[2] == host, f"rank {rank}: host {found[2]}, not {host}")
        expect(EVENT.match(found[5]), f"rank {rank}: no last communication in '{found[5]}'")
        return found[5]

    def lose(self, job, victim, needle):
        """Stops a rank of a running job; the other ranks must leave in time."""
        deadline = Deadline()
        job.signal([victim], signal.SIGSTOP)
        others = [r for r in range(RANKS) if r != victim]
        job.wait_for_statuses(others)
        took_s = deadline.check(job)
        for rank in others:
            expect(job.status(rank) == 76, f"rank {rank}: status {job.status(rank)}, not 76\n{job}")
            last = self.expect_named(job, rank, [victim])
            expect(needle in last, f"rank {rank}: no '{needle}' in '{last}'")
        print(f"rank {victim} stopped: all others left with 76 after {took_s:.2f} s; {last}")

    def expect_timelines(self, trace, victim):
        """Each survivor wrote its own trace file of its steps, with a common clock; the victim
        wrote none.
        """
        ends = []
        for rank in range(RANKS):
            path = Path(f"{trace}.rank{rank}")
            expect(path.exists() == (rank != victim), f"{path}: exists: {path.exists()}")
            if rank == victim:
                continue
            events = json.loads(path.read_text())["traceEvents"]
            expect({e["pid"] for e in events} == {rank}, f"{path}: other ranks' events")
            spans = [e for e in events if e["ph"] == "X"]
            names = {e["name"] for e in spans}
            expect(names >= {"step", "layers"} and spans[0]["ts"] >= 0, f"{path}: {names}")
            ends.append(max(e["ts"] + e["dur"] for e in spans) / 1e6)
        expect(not trace.exists(), f"{trace} was written")
        expect(max(ends) - min(ends) < 90, f"timelines end at {ends} s")
        print(f"timelines of the survivors end at {[round(e, 2) for e in ends]} s")

    def stopped(self):
        prompts = self.prompts(50000)
        for victim in (2, 0):
            trace = self.work / f"trace{victim}"
            job = self.job(f"stopped{victim}", prompts, "--trace", trace)
            try:
                job.wait_for_rows()
                self.lose(job, victim, ", step ")
                self.expect_timelines(trace, victim)
            finally:
                job.end()
        # Launchers' default: the first rank that exits ends all others, and its status is the
        # launcher's.
        job = self.job("launcher", prompts, launcher=[TESTS / "mpirun.sh", RANKS])
        try:
            job.wait_for_rows()
            job.signal([1], signal.SIGSTOP)
            status = job.process.wait(START_S)
        finally:
            job.end()
        expect(status == 76, f"launcher: {status}\n{job}")
        for rank in (0, 2, 3):
            self.expect_named(job, rank, [1])
        print(f"rank 1 stopped: launcher's status {status}, three survivors named it")

    def loading(self):
        prompts = self.work / "pipe"
        os.mkfifo(prompts)  # the lead waits for a writer, the other ranks for the lead
        job = self.job("loading", prompts)
        try:
            job.wait_until_watched()
            self.lose(job, 3, "before the first step")
        finally:
            job.end()

    def killed(self):
        job = self.job("killed", self.prompts(50000), launcher=[TESTS / "mpirun.sh", RANKS])
        try:
            job.wait_for_rows()
            since = time.monotonic()
            job.signal([1], signal.SIGKILL)
            status = job.process.wait(START_S)
            took_s = time.monotonic() - since
        finally:
            job.end()
        print(f"rank 1 killed: launcher's status {status} after {took_s:.2f} s")
        expect(status == 137, f"launcher: {status}, not 137\n{job}")

    def held(self, hold):
        """Runs a job during which hold(job) stops processes: status 0 and the bytes of an
        undisturbed run.
        """
        prompts = self.prompts(1500)
        expected = self.work / "expected.jsonl"
        self.shoal.must("generate", "--model", self.model, "--input", prompts, "--output", expected,
                        ranks=1)
        job = self.job("held", prompts)
        try:
            job.wait_for_rows()
            n_rows = len(job.output.read_bytes().splitlines())
            hold(job)
            status = job.process.wait(HANGS_S)
        finally:
            job.end()
        expect(n_rows < 1500, "the job had ended before it was disturbed")
        expect(status == 0, f"launcher: {status}\n{job}")
        expect(job.output.read_bytes() == expected.read_bytes(), "other bytes")
        print(f"disturbed after {n_rows} of 1500 rows: nobody taken for lost, the same bytes")

    def slow(self):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        seize, interrupt, detach = 0x4206, 0x4207, 17

        def hold_main_thread(job):
            pid = job.pid(3)
            if libc.ptrace(seize, pid, None, None) != 0:
                raise PermissionError(os.strerror(ctypes.get_errno()))
            libc.ptrace(interrupt, pid, None, None)
            os.waitpid(pid, 0x40000000)  # __WALL
            time.sleep(2 * DEADLINE_S)
            libc.ptrace(detach, pid, None, None)

        try:
            self.held(hold_main_thread)
        except PermissionError as error:
            print(f"skipped: one thread cannot be held here: {error}")
            return SKIPPED

    def suspended(self):
        def suspend(job):
            job.signal(range(RANKS), signal.SIGSTOP)
            time.sleep(2 * DEADLINE_S)
            job.signal(range(RANKS), signal.SIGCONT)

        self.held(suspend)

    def words(self):
        for ms, is_said in ((1000, True), (60000, False)):
            folder = self.work / str(ms)
            folder.mkdir()
            since = time.monotonic()
            done = run([TESTS / "mpirun.sh", 3, self.mpi_unit, "watchdog"], HANGS_S,
                       {"SHOAL_TEST_LEAVE": f"{folder}:{ms}"})
            took_s = time.monotonic() - since
            expect(done.status == 76, f"words of {ms} ms\n{done}")
            expect(len(LOST.findall(done.err)) == 2, f"words of {ms} ms: two must name rank 2\n{done}")
            expect((folder / "words.0").exists() == is_said, f"words of {ms} ms: said: {not is_said}")
            expect(("could not be flushed" in done.err) != is_said, f"words of {ms} ms\n{done}")
            print(f"last words of {ms} ms: said: {is_said}; 76 after {took_s:.1f} s")

    def starved(self):
        since = time.monotonic()
        done = run([TESTS / "mpirun.sh", 3, self.mpi_unit, "watchdog"], HANGS_S, {"SHOAL_TEST_STARVE": "1"})
        took_s = time.monotonic() - since
        expect(done.status == 76, f"{done}")
        # One of two watchers reports it in each of two tests; on a busy machine another rank may
        # really starve.
        told = len(re.findall("rank 2 on host .* has been waiting for a CPU", done.err))
        expect(2 <= told <= 4, f"said {told} times, not once for each watch\n{done}")
        silent = [float(m[4]) for m in LOST.finditer(done.err) if m[1] == "2"]
        expect(len(silent) == 2 and min(silent) >= 6, f"two must name rank 2 after 6 s and more\n{done}")
        print(f"a rank without a CPU: 76 after {took_s:.1f} s; {silent[0]} s without a heartbeat")

    def hosts(self):
        hosts = Hosts(self.work)
        try:
            reason = hosts.up()
            if reason:
                print(f"skipped: {reason}")
                return SKIPPED
            return self.cut(hosts)
        finally:
            hosts.down()

    def four_hosts(self):
        """A host of four is cut off, or its rank is killed, while tokens travel between the hosts."""
        for case in ("cut", "killed"):
            hosts = Hosts(self.work, 4)
            try:
                reason = hosts.up()
                if reason:
                    print(f"skipped: {reason}")
                    return SKIPPED
                self.lose_host(hosts, case)
            finally:
                hosts.down()
        return None

    def lose_host(self, hosts, case):
        victim = 2
        flags = ["--tp", 1, "--pp", 1, "--dp", RANKS, "--ep", RANKS]
        job = self.job(case, self.prompts(50000), *flags, launcher=hosts.launcher(RANKS))
        others = [r for r in range(RANKS) if r != victim]
        try:
            job.wait_for_rows()
            deadline = Deadline()
            if case == "cut":
                hosts.cut(victim)
            else:
                job.signal([victim], signal.SIGKILL)
            job.wait_for_statuses(others)
            took_s = deadline.check(job)
        finally:
            job.end()
        for rank in others:
            expect(job.status(rank) == 76, f"rank {rank}: status {job.status(rank)}\n{job}")
            last = self.expect_named(job, rank, [victim], "hC")
            print(f"rank {rank}: named rank {victim} on hC; {last}")
        print(f"host hC {case}: the other three hosts left with 76 after {took_s:.2f} s")

    def cut(self, hosts):
        job = self.job("cut", self.prompts(50000), launcher=hosts.launcher(RANKS))
        try:
            job.wait_for_rows()
            deadline = Deadline()
            hosts.cut()
            job.wait_for_statuses(range(RANKS))
            took_s = deadline.check(job)
        finally:
            job.end()
        for rank in range(RANKS):
            here, there, others = ("hA", "hB", [2, 3]) if rank < 2 else ("hB", "hA", [0, 1])
            last = self.expect_named(job, rank, others, there)
            expect(f"mine, on host {here}:" in job.text("err", rank), f"rank {rank}: not on {here}")
            expect(job.status(rank) == 76, f"rank {rank}: status {job.status(rank)}\n{job}")
            print(f"rank {rank} on {here}: named {there}; {last}")
        print(f"link down: all left with 76 after {took_s:.2f} s")


def main():
    test = LostRankTest(*sys.argv[1:])
    try:
        return getattr(test, test.case)()
    except AssertionError as failure:
        print(f"FAILED: {failure}")
        return FAILED


if __name__ == "__main__":
    main_of(main)
