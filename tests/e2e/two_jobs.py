#!/usr/bin/env python3
"""Tests two jobs on one output: the second is refused, whatever path it uses, and the first one's
bytes stay.

usage: two_jobs.py SHOAL WORK_FOLDER
Also: files that a killed job leaves behind do not prevent its resume, nor does an old lease of
another host; a lease that is still renewed does.
"""
import argparse
import os
import signal
import sys
import threading
import time

from kill_sweep import DEMO, SLOW, JournalTest, Started, kill, ranks_of
from program import expect, main_of

OTHER_HOST = "shoal lease\nhost elsewhere\nkernel another\npid 4\nstarted 5\nlauncher 0\njob PBS job 6\n"


class TwoJobs(JournalTest):
    def __init__(self, args):
        super().__init__(args)
        self.lease = self.work / "out.jsonl.lease"

    def first(self, *flags, layout="one"):
        """A job whose ranks are stopped, so that every second job finds it running."""
        for _ in range(5):
            self.begin()
            self.output.touch()
            job = Started(self, layout, *SLOW, "--watchdog", 0, *flags, env={"SLURM_JOB_ID": "4711"})
            job.wait_for("loaded ")
            self.halt(signal.SIGSTOP)
            if len(ranks_of(self.shoal, self.output)) == max(job.ranks, 1):
                return job
            job.end()  # it ended before this process got a CPU
        return expect(False, f"five jobs ended before they were stopped: {job.text()[-3000:]}")

    def second(self, output, *flags):
        return self.shoal("generate", "--model", DEMO, "--input", self.input, "--output", output,
                          "--threads", 1, *SLOW, *flags, journal=True)

    def refused(self, what, words, output, *flags):
        done = self.second(output, *flags)
        expect(done.status == 2, f"{what}: {done}")
        for word in ("another process has it", *words):
            expect(word in done.err, f"{what}: no '{word}': {done}")
        expect("waiting up to" not in done.err, f"{what}: it waited: {done}")
        print(f"{what}: {done.err.splitlines()[-1]}", flush=True)

    def ends(self, what, job):
        self.halt(signal.SIGCONT)
        status = job.wait()
        expect(status == 0, f"{what}: the first job: status {status}: {job.text()[-3000:]}")
        self.check_whole(what)
        left = sorted(p.name for p in self.work.glob("*.lease*"))
        expect(not left, f"{what}: left: {left}")

    def three_ways_in(self):
        link, hard = self.work / "link.jsonl", self.work / "hard.jsonl"
        link.symlink_to(self.output)
        job = self.first()
        os.link(self.output, hard)
        named = [f"pid {job.process.pid},", "host ", "Slurm job 4711"]
        self.refused("the same command", named, self.output)
        self.refused("through a symlink", named, link)
        self.refused("without a journal", named, self.output, "--no-journal")
        self.refused("another journal", named, self.output, "--journal", self.work / "j")
        expect(not (self.work / "j").exists(), "a refused job made the folder of its journal")
        self.refused("through a hard link", [], hard, "--no-journal")
        self.ends("with a journal", job)
        done = self.second(self.output, "--journal", self.work / "j")
        expect(done.status == 2 and "there is no journal" in done.err, str(done))
        expect(not (self.work / "j").exists(), "a refused job left the folder of its journal")
        for path in (link, hard):
            path.unlink()
        job = self.first("--no-journal", layout="tp2")
        named[0] = f"pid {ranks_of(self.shoal, self.output)[0]},"
        self.refused("without a journal, twice", named[1:], self.output, "--no-journal")
        self.ends("without a journal", job)

    def other_files(self):
        """Every other file that a job writes is protected too."""
        report, other = self.work / "m.json", self.work / "other.jsonl"
        job = self.first("--metrics", report)
        self.refused("--metrics", ["--metrics"], other, "--metrics", report)
        expect(not other.exists(), "a refused job made its output")
        self.ends("--metrics", job)

    def killed(self):
        job = self.first()
        kill(job.process.pid)
        expect(job.wait() == 137 and self.lease.exists(), "no lease was left")
        text = self.finish("resumed behind SIGKILL")
        expect("waiting up to" not in text, text)
        job = self.first(layout="tp2")
        self.halt(signal.SIGCONT)
        kill(job.process.pid)  # its ranks take a moment to notice
        job.wait()
        self.finish("resumed behind its launcher's SIGKILL")
        expect(not self.lease.exists(), "the lease was not given back")

    def other_hosts(self):
        self.begin()
        self.lease.write_text(OTHER_HOST)
        ends = threading.Event()

        def renew():
            while not ends.wait(0.2):
                self.lease.touch()

        renewing = threading.Thread(target=renew)
        renewing.start()
        done = self.second(self.output)
        ends.set()
        renewing.join()
        expect(done.status == 2 and "host elsewhere, pid 4, PBS job 6" in done.err, str(done))
        expect("waiting up to" in done.err, f"it waited without a word: {done}")
        expect(not self.output.exists(), "a refused job made its output")
        for age_s, word in ((45, "waiting up to"), (3600, "is void")):
            self.lease.write_text(OTHER_HOST)
            when = time.time() - age_s
            os.utime(self.lease, (when, when))
            self.begin()
            done = self.second(self.output)
            expect(done.status == 0 and word in done.err, f"{age_s} s old: {done}")
            self.check_whole(f"a lease {age_s} s old")

    def status_of_no_job(self):
        done = self.shoal("status", self.input)
        expect(done.status == 3 and "expected a job's output with its journal" in done.err, str(done))

    def main(self):
        try:
            self.three_ways_in()
            self.other_files()
            self.killed()
            self.other_hosts()
            self.status_of_no_job()
        finally:
            self.halt(signal.SIGKILL)  # so that a failed test leaves no stopped job behind


if __name__ == "__main__":
    main_of(TwoJobs(argparse.Namespace(shoal=sys.argv[1], work=sys.argv[2], case="two_jobs", seed=1)).main)
