#!/usr/bin/env python3
"""Tests shoal diagnose on this machine: ranks that share cores, another process at work, a folder, the text and the
JSON, a machine that gives no facts, and wrong inputs.

usage: diagnose.py SHOAL WORK_FOLDER
two_hosts.py tests a slow link, tests/unit/test_diagnose.c every rule.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

from program import Shoal, expect, fresh_folder, main_of

USAGE, IO = 2, 3


def rules_of(done):
    return {f["rule"]: f for f in json.loads(done.out)["findings"]}


class DiagnoseTest:
    def __init__(self, shoal, work):
        self.shoal = Shoal(shoal)
        self.work = Path(work)
        fresh_folder(self.work)

    def shared_cores(self):
        found = rules_of(self.shoal.must("diagnose", "--threads", os.cpu_count(), "--json", "-", ranks=2))
        expect("cores-shared" in found, f"two ranks on all cores: {found}")
        print(found["cores-shared"]["text"])

    def others(self):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
        try:
            found = rules_of(self.shoal.must("diagnose", "--json", "-"))
        finally:
            for process in busy:
                process.kill()
                process.wait()
        expect("others-run" in found, f"a loop on each core: {found}")
        print(found["others-run"]["text"])

    def folder(self):
        saved = self.work / "facts.json"
        done = self.shoal.must("diagnose", "--directory", self.work, "--json", saved)
        host = json.loads(saved.read_text())["hosts"][0]
        expect(host["directory_read_mbs"] > 0 and host["directory_write_mbs"] > 0, f"no rates: {host}")
        expect("1 hosts, 1 ranks:" in done.out and host["host"] in done.out, done.out)
        expect([p.name for p in self.work.iterdir()] == ["facts.json"], "a file was left in the folder")

    def nothing_known(self):
        empty = self.work / "empty"
        empty.mkdir()
        found = rules_of(self.shoal.must("diagnose", "--root", empty, "--json", "-"))
        unknown = {"governor-saves", "swap-used", "numa-uneven", "pages-small", "reads-slow", "shm-small", "link-slow",
                   "port-down", "locking-limited"} & set(found)
        expect(not unknown, f"guessed: {unknown}")

    def wrong(self):
        for args, status, says in ((["--directory", self.work / "missing"], IO, "missing"),
                                   (["--directory", self.shoal.path], IO, "expected a folder, found a file"),
                                   (["--treads", "2"], USAGE, "--treads"), (["--threads", "0"], USAGE, "--threads"),
                                   (["--json", self.work / "missing" / "f.json"], IO, "f.json")):
            done = self.shoal("diagnose", *args)
            expect(done.status == status and says in done.err, f"{args}: {done}")

    def main(self):
        for part in (self.shared_cores, self.others, self.folder, self.nothing_known, self.wrong):
            part()


if __name__ == "__main__":
    main_of(lambda: DiagnoseTest(*sys.argv[1:]).main())
