#!/usr/bin/env python3
"""Tests the counts of experts that a job keeps beside its journal: the same job begins with them when it resumes, and
another job when --expert-load names the journal. Torn counts are ignored; --expert-load refuses
another model's.

usage: expert_counts.py SHOAL WORK_FOLDER
"""
import hashlib
import json
import os
import sys
from pathlib import Path

from program import GOLDENS, REPO, Shoal, expect, fresh_folder, main_of, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
PLACED, KILLED = "experts are placed by the load in", (137, 205)
LAYOUTS = [(["--ep", "2"], 2), (["--ep", "4"], 4), (["--dp", "2", "--tp", "2", "--ep", "4"], 4), ([], 0)]


class Case:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), Path(work)
        fresh_folder(self.work)
        self.input = self.work / "in.jsonl"
        write_lines(self.input, [{"custom_id": f"r{i}", "prompt": f"KING RICHARD {i}:\nMy lord, my lord, ",
                                  "max_tokens": 16 + i % 5, "temperature": 0.7 * (i % 2)} for i in range(36)])
        self.whole = self.generate("whole", "--no-journal")[1]

    def generate(self, tag, *flags, ranks=0, statuses=(0,), model=DEMO, prompts=None):
        output, found = self.work / f"{tag}.jsonl", self.work / f"{tag}.metrics.json"
        done = self.shoal("generate", "--model", model, "--input", prompts or self.input, "--output", output, "--seed", 3,
                          "--kv-blocks", 60, "--max-batch", 4, "--threads", 1, "--metrics", found, *flags,
                          ranks=ranks, journal=True)
        expect(done.status in statuses, str(done))
        rows = hashlib.sha256(output.read_bytes()).hexdigest() if output.exists() else None
        return done, rows, json.loads(found.read_text()) if done.status == 0 else None

    def copy_job(self, tag, to, *more):
        """Copies a job's output and journal, and its files with the endings `more`."""
        for end in ("", ".journal", *more):
            (self.work / f"{to}.jsonl{end}").write_bytes((self.work / f"{tag}.jsonl{end}").read_bytes())

    def counts(self, tag):
        return self.work / f"{tag}.jsonl.journal.experts"

    def loads(self, tag):
        return json.loads(self.counts(tag).read_text())["expert_load"]

    def are_kept(self):
        """The counts at a job's end are those of its metrics, on any layout. A job without a
        journal keeps none."""
        for k, (layout, ranks) in enumerate(LAYOUTS):
            _, rows, metrics = self.generate(f"kept{k}", *layout, ranks=ranks)
            expect(rows == self.whole, f"{layout}: other bytes")
            expect(self.loads(f"kept{k}") == metrics["expert_load"], f"{layout}: {self.loads(f'kept{k}')}")
            expect(self.loads(f"kept{k}") == self.loads("kept0"), f"{layout}: other counts")
        expect(not self.counts("whole").exists(), "counts without a journal")

    def resumes(self):
        """A killed job has the counts of its first 64 steps, and adds those of its later runs to them."""
        flags = ["--expert-copies", "2", "--expert-replan", "100000"]
        done, _, _ = self.generate("resumed", "--ep", "2", *flags, "--failpoint", "step:90", ranks=2, statuses=KILLED)
        expect(PLACED not in done.err, str(done))
        first = self.loads("resumed")
        expect(0 < sum(map(sum, first)) < sum(map(sum, self.loads("kept0"))), str(first))
        for layout, ranks in LAYOUTS[1:]:  # the journal has the same rows for each of them
            tag = f"resumed{len(layout)}"
            self.copy_job("resumed", tag, ".journal.experts")
            done, rows, metrics = self.generate(tag, *layout, *flags, ranks=ranks)
            expect(rows == self.whole, f"{layout}: resumed with other bytes")
            expect((f"{PLACED} {self.counts(tag)}" in done.err) == (ranks > 0), str(done))
            second = metrics["expert_load"]
            expect(self.loads(tag) == [[a + b for a, b in zip(*both)] for both in zip(first, second)],
                   f"{layout}: {first} and {second} became {self.loads(tag)}")
            done, _, _ = self.generate(tag, *layout, *flags, "--restart", ranks=ranks)
            expect(PLACED not in done.err and self.loads(tag) == self.loads("kept0"), f"began anew: {done}")

    def others_begin_with_them(self):
        """--expert-load reads the counts beside a journal as it reads a file of --metrics."""
        journal = self.work / "kept0.jsonl.journal"
        for layout, ranks in LAYOUTS:
            done, rows, _ = self.generate("other", *layout, "--expert-load", journal, "--expert-copies", "3",
                                          "--no-journal", ranks=ranks)
            expect(rows == self.whole and f"{PLACED} {journal}" in done.err, str(done))
        plans = [self.shoal.must("plan", "--model", DEMO, "--ranks", "2", "--ep", "2", "--expert-load", path).out
                 for path in (journal, self.counts("kept0"), self.work / "kept0.metrics.json")]
        expect(plans[0] == plans[1] == plans[2] and "by load" in plans[0], plans[0])

    def torn(self):
        """A job goes on without counts that are torn, missing, or of something else, and then keeps its own."""
        whole = self.counts("resumed").read_bytes()
        half = whole[:len(whole) // 2]
        for k, bytes_ in enumerate((half, half + bytes(len(whole) - len(half)), b"{}", self.input.read_bytes())):
            tag = f"torn{k}"
            self.copy_job("resumed", tag)
            self.counts(tag).write_bytes(bytes_)
            Path(f"{self.counts(tag)}.tmp").write_bytes(whole[:9])  # as a kill while counts are written leaves it
            done, _, _ = self.generate("borrowed", "--ep", "2", "--expert-load", self.work / f"{tag}.jsonl.journal",
                                       "--expert-copies", "1", "--no-journal", ranks=2)
            expect(f"{self.counts(tag)}" in done.err and "begins without counts" in done.err, str(done))
            done, rows, metrics = self.generate(tag, "--ep", "2", "--expert-replan", "4", ranks=2)
            expect(rows == self.whole and PLACED not in done.err, str(done))
            expect("the experts' counts of earlier runs are ignored" in done.err, str(done))
            expect(self.loads(tag) == metrics["expert_load"], str(self.loads(tag)))
        done = self.shoal("plan", "--model", DEMO, "--expert-load", self.work / "borrowed.jsonl")
        expect(done.status == 3, str(done))

    def refuses_another_model(self):
        """Another model's counts are refused where the user names them. Beside the job's own journal they are only what
        an earlier job left, so the job resumes without them.
        """
        mixtral = self.work / "mixtral.h5"
        self.shoal.must("convert", GOLDENS / "mixtral" / "hf", mixtral)
        journal = self.work / "kept0.jsonl.journal"
        done, _, _ = self.generate("refused", "--ep", "2", "--expert-load", journal, ranks=2, statuses=(3,),
                                   model=mixtral)
        expect("another model" in done.err and "Mixtral" in done.err, str(done))
        changed = {**json.loads(self.counts("kept0").read_text()), "model": "Mixtral, 4 layers, D 64"}
        for k, replan in enumerate(([], ["--expert-replan", "4"])):
            tag = f"foreign{k}"
            self.copy_job("resumed", tag)
            self.counts(tag).write_text(json.dumps(changed))
            done, rows, metrics = self.generate(tag, "--ep", "2", *replan, ranks=2)
            expect(rows == self.whole and PLACED not in done.err, str(done))
            expect(f"{self.counts(tag)}: is of another model" in done.err and "ignored" in done.err, str(done))
            expect(self.loads(tag) == metrics["expert_load"], str(self.loads(tag)))

    def begins_anew(self):
        """A job that begins anew removes the counts of the job before; one that is refused does not."""
        self.copy_job("resumed", "anew", ".journal.experts")
        self.generate("anew", "--ep", "2", "--restart", "--trace", self.input, ranks=2, statuses=(2,))
        expect(self.counts("anew").exists(), "a refused job removed counts")
        for flags in (["--restart"], []):
            if not flags:
                self.copy_job("resumed", "anew", ".journal.experts")
                for end in ("", ".journal"):
                    (self.work / f"anew.jsonl{end}").unlink()
            self.generate("anew", "--ep", "2", *flags, "--failpoint", "step:20", ranks=2, statuses=KILLED)
            expect(not self.counts("anew").exists(), f"{flags}: counts of the job before")

    def not_files(self):
        """A pipe or a folder in the place of the counts is left alone, and nothing waits for it."""
        for k, make in enumerate((os.mkfifo, os.mkdir)):
            self.copy_job("resumed", f"odd{k}")
            make(self.counts(f"odd{k}"))
            done, rows, _ = self.generate(f"odd{k}", "--ep", "2", "--expert-replan", "4", ranks=2)
            expect(rows == self.whole and "the experts' counts are not kept" in done.err, str(done))
            expect(not self.counts(f"odd{k}").is_file(), "it is a file now")

    def without_tokens(self):
        """A run that computed nothing keeps no counts."""
        bad = self.work / "bad.jsonl"
        write_lines(bad, [{"custom_id": "bad", "max_tokens": -1}])
        self.generate("nothing", "--ep", "2", ranks=2, prompts=bad)
        expect(not self.counts("nothing").exists(), "counts without tokens")


def main(shoal, work):
    case = Case(shoal, work)
    case.are_kept()
    case.resumes()
    case.others_begin_with_them()
    case.torn()
    case.refuses_another_model()
    case.begins_anew()
    case.not_files()
    case.without_tokens()


if __name__ == "__main__":
    main_of(lambda: main(*sys.argv[1:3]))
