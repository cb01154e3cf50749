#!/usr/bin/env python3
"""Tests --audit, which recomputes rows of an output on another layout and finds those that were
changed, and shoal receipt.

usage: audit.py SHOAL WORK_FOLDER
Runs a job on one rank and audits it on one rank and on four. Then audits it with one byte of a row
changed, with other flags, with a changed line, with a shorter input and without a journal; and
audits a job of scores.
"""
import json
import sys

from program import REPO, Shoal, expect, fresh_folder, main_of, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
N_LINES = 30
VERDICT = "audit: {} of {} rows of {} computed again, {} differ\n"


class AuditTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(work)
        self.input, self.output = self.work / "in.jsonl", self.work / "out.jsonl"
        self.lines = [{"prompt": f"To be, or not to be: {i % 7}", "max_tokens": 8 + i % 5}
                      for i in range(N_LINES)]
        self.lines[3] = {"prompt": "Twice", "n": 2, "max_tokens": 6, "logprobs": 2}
        self.lines[4] = {"prompt": "Bad", "temperature": -1}
        self.lines[5] = {"prompt": "Again", "custom_id": "1"}  # line 1's id by its number
        self.lines[6]["custom_id"] = "9"  # so line 9, which has no id, gets another than its number
        write_lines(self.input, self.lines)

    def job(self, *flags, command="generate", ranks=0, given=None, output=None):
        return self.shoal(command, "--model", DEMO, "--input", given or self.input, "--output",
                          output or self.output, "--threads", 1, *flags, ranks=ranks, journal=True)

    def audited(self, what, status, *flags, says="", **how):
        before = self.output.read_bytes()
        done = self.job("--audit", 1000, *flags, **how)
        expect(done.status == status, f"{what}: expected status {status}: {done}")
        expect(says in done.err, f"{what}: expected '{says}': {done}")
        expect(self.output.read_bytes() == before, f"{what}: the output was written")
        return done.out

    def change_byte(self, row):
        rows = self.output.read_bytes().splitlines(keepends=True)
        at = rows[row - 1].index(b'"text":"') + 10
        changed = b"#" if rows[row - 1][at:at + 1] != b"#" else b"+"
        rows[row - 1] = rows[row - 1][:at] + changed + rows[row - 1][at + 1:]
        self.output.write_bytes(b"".join(rows))

    def test_layouts(self):
        everything = VERDICT.format(N_LINES - 1, N_LINES, self.output, 0)
        for flags, ranks in (([], 0), (["--tp", 2, "--pp", 2], 4), (["--dp", 2, "--chunk", 3], 2)):
            expect(self.audited("layout", 0, *flags, ranks=ranks) == everything, f"{flags}")
        done = self.job("--audit", 7)
        expect(done.out == VERDICT.format(7, N_LINES, self.output, 0), f"a sample: {done}")

    def receipt(self, status, *argv):
        done = self.shoal("receipt", *argv)
        expect(done.status == status, f"receipt {argv}: expected status {status}: {done}")
        return done

    def test_receipts(self):
        """The same receipt from another layout, a compressed output and a resumed job; a sentence for each
        difference."""
        first, packed = self.receipt(0, self.output).out, self.work / "other.jsonl.zst"
        members = json.loads(first)
        expect((members["lines"], members["error_rows"]) == (N_LINES, 2), first)
        expect(members["rows_bytes"] == self.output.stat().st_size, first)
        done = self.job("--failpoint", "step:9", "--tp", 2, "--pp", 2, output=packed, ranks=4)
        expect(done.status != 0, f"the job was not killed: {done}")
        self.receipt(3, packed)
        done = self.job("--chunk", 3, output=packed)
        expect(done.status == 0, f"the job was not resumed: {done}")
        expect(self.receipt(0, packed).out == first, "two receipts of one job")
        kept = self.work / "receipt"
        kept.write_text(first)
        expect("the same job" in self.receipt(0, packed, "--check", kept).out, "no verdict")
        for name, value, says in (("--temperature", "0", 'another job: "--temperature": "0" there, '
                                                         '"--temperature": "1" here'),
                                  ("lines_xxh128", "0" * 32, "another job: "),
                                  ("rows_xxh128", "0" * 32, "the same job gave other rows: ")):
            kept.write_text(first.replace(f'"{name}": "{members[name]}"', f'"{name}": "{value}"'))
            expect(says in self.receipt(4, self.output, "--check", kept).err, f"{name}: no '{says}'")
        expect("not a receipt" in self.receipt(3, self.output, "--check", self.input).err, "an input")
        self.receipt(3, self.work / "absent")
        self.receipt(2)
        changed = self.output.read_bytes()
        self.output.write_bytes(changed + b"{}\n")
        expect("was changed after its job" in self.receipt(3, self.output).err, "a longer output")
        self.output.write_bytes(changed)

    def test_refusals(self):
        self.audited("flag", 2, "--temperature", 0, says="--temperature was 1 when the job began")
        self.audited("restart", 2, "--restart", says="--audit and --restart")
        changed = self.work / "changed.jsonl"
        write_lines(changed, [*self.lines[:8], {"prompt": "Other"}, *self.lines[9:]])
        self.audited("line", 3, says="line 9: it has changed since the job ran", given=changed)
        write_lines(changed, self.lines[:20])
        self.audited("short input", 3, says="it ends before the line", given=changed)
        self.audited("score", 3, command="score", says="command was generate")
        absent = self.work / "absent"
        self.audited("journal elsewhere", 0, "--journal", absent, says="without a journal")
        expect(not absent.exists(), f"an audit made {absent}")

    def test_changes(self):
        self.change_byte(12)
        out = self.audited("changed row", 4, says="row of line 12, byte")
        expect(out == VERDICT.format(N_LINES - 1, N_LINES, self.output, 1), out)
        (self.work / "out.jsonl.journal").unlink()
        self.audited("no journal", 4, says="without a journal", ranks=2)

    def test_score(self):
        scores = self.work / "scores.jsonl"
        done = self.job(command="score", output=scores)
        expect(done.status == 0, f"score: {done}")
        done = self.job("--audit", 9, command="score", output=scores, ranks=2)
        expect(done.status == 0 and " 0 differ" in done.out, f"audit of scores: {done}")

    def __call__(self):
        done = self.job()
        expect(done.status == 0, f"the job: {done}")
        codes = [json.loads(row).get("error", {}).get("code")
                 for row in self.output.read_text().splitlines()]
        expect(codes[5] == "duplicate_id", f"line 6: {codes[5]}")
        self.test_layouts()
        self.test_receipts()
        self.test_refusals()
        self.test_changes()
        self.test_score()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main_of(AuditTest(sys.argv[1], sys.argv[2]))
