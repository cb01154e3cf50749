#!/usr/bin/env python3
"""Tests the counts of experts that a job keeps beside its journal: the same job begins with them when it resumes, and
another job when --expert-load names the journal. Torn counts are ignored, another model's are refused.

usage: expert_counts.py SHOAL WORK_FOLDER
"""
import hashlib
import json
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

    def generate(self, tag, *flags, ranks=0, statuses=(0,), model=DEMO):
        output, found = self.work / f"{tag}.jsonl", self.work / f"{tag}.metrics.json"
        done = self.shoal("generate", "--model", model, "--input", self.input, "--output", output, "--seed", 3,
                          "--kv-blocks", 60, "--max-batch", 4, "--threads", 1, "--metrics", found, *flags,
                          ranks=ranks, journal=True)
        expect(done.status in statuses, str(done))
        rows = hashlib.sha256(output.read_bytes()).hexdigest() if output.exists() else None
        return done, rows, json.loads(found.read_text()) if done.status == 0 else None

    def counts(self, tag):
        return self.work / f"{tag}.jsonl.journal.experts"

    def loads(self, tag):
        return json.loads(self.counts(tag).read_text())["expert_load"]

    def are_kept(self):
        """At the end they are those of the report, on any layout. A job without a journal keeps none."""
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
            for end in ("", ".journal", ".journal.experts"):
                (self.work / f"{tag}.jsonl{end}").write_bytes((self.work / f"resumed.jsonl{end}").read_bytes())
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
        for k, bytes_ in enumerate((whole[:len(whole) // 2], b"", b"{}", (self.work / "in.jsonl").read_bytes())):
            tag = f"torn{k}"
            for end in ("", ".journal"):
                (self.work / f"{tag}.jsonl{end}").write_bytes((self.work / f"resumed.jsonl{end}").read_bytes())
            self.counts(tag).write_bytes(bytes_)
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
        mixtral = self.work / "mixtral.h5"
        self.shoal.must("convert", GOLDENS / "mixtral" / "hf", mixtral)
        journal = self.work / "kept0.jsonl.journal"
        done, _, _ = self.generate("refused", "--ep", "2", "--expert-load", journal, ranks=2, statuses=(3,),
                                   model=mixtral)
        expect("another model" in done.err and "Mixtral" in done.err, str(done))
        for end in ("", ".journal"):
            (self.work / f"foreign.jsonl{end}").write_bytes((self.work / f"resumed.jsonl{end}").read_bytes())
        changed = {**json.loads(self.counts("kept0").read_text()), "model": "Mixtral, 4 layers, D 64"}
        self.counts("foreign").write_text(json.dumps(changed))
        done, _, _ = self.generate("foreign", "--ep", "2", "--expert-replan", "4", ranks=2, statuses=(3,))
        expect("another model" in done.err and str(self.counts("foreign")) in done.err, str(done))


def main(shoal, work):
    case = Case(shoal, work)
    case.are_kept()
    case.resumes()
    case.others_begin_with_them()
    case.torn()
    case.refuses_another_model()


if __name__ == "__main__":
    main_of(lambda: main(*sys.argv[1:3]))
