#!/usr/bin/env python3
"""Jobs whose writes fail end with status 3 and a sentence, and are resumed: the output has the uninterrupted run's bytes.

usage: kill_faults.py SHOAL WORK_FOLDER CASE
  faults   EIO, ENOSPC and failed fsyncs of output and journal
  disk     disks that are really full, of output, journal, logits and converted files; needs root, else it is left out
"""
import os
import subprocess

from kill_sweep import DEMO, SLOW, JournalTest, Started, run_case
from program import GOLDENS, expect


class Faults(JournalTest):
    def failed(self, what, job, words):
        status = job.wait()
        text = job.text()
        job.end()
        expect(status == 3, f"{what}: status {status}: {text[-3000:]}")
        for word in words:
            expect(word in text, f"{what}: no '{word}': {text[-3000:]}")
        self.check_prefix(what)
        said = next(line for line in text.splitlines() if "failed" in line)
        print(f"{what}: {said}")

    def main(self):
        for layout in ("one", "tp2-pp2"):
            for point, file in (("journal_write:2", "journal"), ("journal_fsync:3", "journal"),
                                ("output_write:1", "output"), ("output_fsync:1", "output")):
                for error, word in (("EIO", "Input/output error"),
                                    ("ENOSPC", "No space left")):
                    self.begin()
                    job = Started(self, layout, "--failpoint", f"{point}:{error}", *SLOW)
                    self.failed(f"{point}:{error} on {layout}", job, [file, word])
                    self.finish(f"behind {point}:{error}", layout="pp2" if error == "EIO" else "one")


class FullDisks(Faults):
    copies = 4  # so that much is left to write after the first commits, however fast the machine is

    def main(self):
        disk = self.work / "disk"
        disk.mkdir()
        for what, output, flags in (
                ("output and journal", disk / "out.jsonl", []),
                ("journal", self.output, ["--journal", disk]),
                ("output", disk / "out.jsonl", ["--journal", self.work / "journals"])):
            mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]
            if os.geteuid() != 0 or subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
                print("no disk can be made full here: left out")
                return
            try:
                self.fill(disk, what, output, flags)
                if what == "output":
                    self.full_of_hdf5(disk)
            finally:
                subprocess.run(["umount", disk], check=True)

    def full_of_hdf5(self, disk):
        """HDF5 cannot close a file that it could not write; the exit status is still shoal's. convert
        counts its bytes first and does not begin.
        """
        score = ["score", "--model", DEMO, "--input", self.input, "--output", self.output, "--restart",
                 "--max-model-len", 256, "--logits", disk / "logits.h5"]
        convert = ["convert", GOLDENS / "llama-gqa" / "hf", disk / "model.h5"]
        for ranks, argv, file in ((0, score, "logits.h5"), (2, score, "logits.h5"),
                                  (0, convert, "model.h5"), (2, convert, "model.h5")):
            for left in disk.iterdir():  # a disk cannot shrink below its content
                left.unlink()
            subprocess.run(["mount", "-o", "remount,size=64k", disk], check=True)
            done = self.shoal(*argv, ranks=ranks, journal=argv is score)
            why = "No space left" if argv is score else "its file system has"
            expect(done.status == 3 and file in done.err and why in done.err, f"a full disk: {done}")
            expect(argv is score or not list(disk.iterdir()), f"a file was begun: {done}")

    def fill(self, disk, what, output, flags):
        """Kills a job after a commit and leaves its disk no free page. Resumed, the job fails;
        resumed with space again, it ends well."""
        self.begin()
        before, self.output = self.output, output
        job = Started(self, "tp2", *flags, *SLOW, "--failpoint", "journal_write:3")
        status = job.wait()
        expect(status == 137, f"{what}: status {status}, no kill: {job.text()[-3000:]}")
        job.end()
        found = os.statvfs(disk)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        subprocess.run(["mount", "-o", f"remount,size={used}", disk], check=True)
        self.failed(f"a full disk of the {what}", Started(self, "tp2", *flags, *SLOW),
                    ["No space left"])
        subprocess.run(["mount", "-o", "remount,size=1m", disk], check=True)
        text = self.finish(f"{what}: space again", *flags)
        expect("rows are done" in text, f"{what}: nothing was resumed: {text[-2000:]}")
        self.output = before


if __name__ == "__main__":
    run_case(dict(faults=Faults, disk=FullDisks))
