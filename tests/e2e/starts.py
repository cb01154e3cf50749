#!/usr/bin/env python3
"""Tests starts and ends of jobs that MPI or a launcher could spoil.

usage: starts.py SHOAL STOPPED_LAUNCHER WORK_FOLDER [--starts N] [--side-by-side N]
Many processes without a launcher start and end at the same time. None may need a folder that
another removes: Open MPI uses one session folder per user and host, and a process that ended
removed it between another's two mkdirs (30 of 1500 starts, 16 at a time, on two busy cores). The
few starts in CI catch that only sometimes; TMPDIRs in which no folder can be made catch it always.

A launcher that is too slow for its ranks' last messages must not fail the job (STOPPED_LAUNCHER
is a library that stops the launcher at that moment). A launcher that hangs after its ranks have
ended, as mpirun may, is killed by jobs/shoal-job, and no other launcher is.

Prints the number of starts. Needs no network.
"""
import argparse
import collections
import concurrent.futures
import os
from pathlib import Path

from program import HANGS_S, REPO, Shoal, expect, fresh_folder, main_of, run, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"


class Starts:
    def __init__(self, args):
        self.args, self.shoal = args, Shoal(args.shoal)
        self.work = fresh_folder(args.work)
        self.input = self.work / "in.jsonl"
        write_lines(self.input, [dict(custom_id="a", prompt="The", max_tokens=1)])
        self.whole = self.generate("whole", {}).read_bytes()

    def generate(self, name, env):
        output = self.work / f"{name}.jsonl"
        self.shoal.must("generate", "--model", DEMO, "--input", self.input, "--output", output,
                        "--threads", 1, env=env)
        return output

    def without_folders(self):
        """A long TMPDIR, or one that cannot hold anything, changes nothing."""
        no_folder = self.work / "file"
        no_folder.touch()
        long = self.work / ("x" * 200) / ("y" * 200)  # longer than a socket's path may be
        long.mkdir(parents=True)
        for name, folder in (("below_a_file", no_folder / "tmp"), ("long", long)):
            found = self.generate(name, {"TMPDIR": str(folder)}).read_bytes()
            expect(found == self.whole, f"TMPDIR {name}: another row")
        expect(not os.listdir(long), f"left in TMPDIR: {os.listdir(long)}")

    def one_of_many(self, _):
        """Starts MPI and ends at once, because the output's folder does not exist."""
        return run([self.shoal.path, "generate", "--model", DEMO, "--input", self.input, "--output",
                    self.work / "nowhere" / "out.jsonl", "--no-journal", "--threads", 1],
                   env={"TMPDIR": str(self.tmp)})

    def together(self):
        self.tmp = self.work / "tmp"
        self.tmp.mkdir()
        with concurrent.futures.ThreadPoolExecutor(self.args.side_by_side) as pool:
            done = list(pool.map(self.one_of_many, range(self.args.starts)))
        statuses = collections.Counter(each.status for each in done)
        wrong = [each for each in done if each.status != 3 or "nowhere" not in each.err]
        expect(not wrong, f"{len(wrong)} of {len(done)} did not start, statuses {dict(statuses)}: "
                          f"{wrong and wrong[0]}")
        expect(not os.listdir(self.tmp), f"left in TMPDIR: {os.listdir(self.tmp)}")
        print(f"{len(done)} of {len(done)} started, {self.args.side_by_side} side by side")

    def launcher_that_is_slow(self):
        """Before ranks waited for the launcher, the job ended with status 1, "exiting improperly",
        in each of 5 runs.
        """
        output = self.work / "slow.jsonl"
        done = run([REPO / "tests" / "mpirun.sh", 3, "-x", f"LD_PRELOAD={self.args.stopped_launcher}",
                    self.shoal.path, "generate", "--model", DEMO, "--input", self.input, "--output",
                    output, "--threads", 1, "--quiet"], HANGS_S)
        expect("the launcher is stopped" in done.err, f"the library was not asked\n{done}")
        expect(done.status == 0, f"a launcher that is slow\n{done}")
        expect(output.read_bytes() == self.whole, f"another row\n{done}")

    def under_shoal_job(self, script):
        launcher = self.work / "launcher.sh"
        launcher.write_text(f"#!/bin/sh\n{script}\n")
        launcher.chmod(0o755)
        return run([REPO / "jobs" / "shoal-job", launcher], HANGS_S,
                   {"SLURM_JOB_ID": "", "SHOAL_LOOK_S": "0.3", "SHOAL_RESTART_WAIT_S": "0"})

    def launcher_that_hangs(self):
        """The script becomes a sleep that keeps its ended child unreaped, like a launcher that
        hangs.
        """
        again = self.work / "again"
        done = self.under_shoal_job(f"[ -e {again} ] && exit 0\ntouch {again}\ntrue &\nexec sleep 1000")
        expect(done.status == 0 and "the launcher hangs: killed" in done.err and
               "started again" in done.err, f"a launcher that hangs: {done}")
        for what, script in (("with a rank at work", "true & sleep 3 & exec sleep 2"),
                             ("without ranks of its own", "exec sleep 2")):
            done = self.under_shoal_job(script)
            expect(done.status == 0 and "hangs" not in done.err, f"a launcher {what}: {done}")

    def main(self):
        self.without_folders()
        self.together()
        self.launcher_that_is_slow()
        self.launcher_that_hangs()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shoal")
    parser.add_argument("stopped_launcher", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--starts", type=int, default=64)
    parser.add_argument("--side-by-side", type=int, default=16)
    return Starts(parser.parse_args()).main()


main_of(main)
