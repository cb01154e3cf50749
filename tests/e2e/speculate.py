#!/usr/bin/env python3
"""Tests speculative decoding: the same bytes with --speculate off, auto, 1, 7 and 31, and fewer
steps.

usage: speculate.py SHOAL WORK_FOLDER
On the demo model with one rank, tp 2, pp 2 and dp 2, several KV types, plenty of blocks and hardly
any, a killed and resumed job, and an audit of its file. Prompts repeat themselves. Lines use
everything that affects a draw: temperature, penalties, grammar constraints, stop strings,
log-probabilities, several answers, beam search.
"""
import json
import random
import sys
from pathlib import Path

from program import REPO, Shoal, expect, main_of, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
MODEL_LEN = 320
LAYOUTS = {"one rank": ([], 0), "tp 2": (["--tp", "2"], 2), "pp 2": (["--pp", "2"], 2),
           "dp 2": (["--dp", "2"], 2)}
KV_TYPES = ["f16", "int8", "fp8"]


def make_lines():
    draw = random.Random(44)
    words = [json.loads(line)["prompt"] for line in
             (REPO / "models" / "demo" / "prompts.jsonl").read_text().splitlines()]
    kinds = [dict(temperature=0), dict(temperature=0, max_tokens=90), dict(temperature=0.6, seed=4),
             dict(), dict(temperature=0, repetition_penalty=1.1),
             dict(frequency_penalty=0.3, presence_penalty=-0.4, min_tokens=20, seed=9),
             dict(temperature=0, stop=[" the", "."], min_tokens=5), dict(n=3, logprobs=2, seed=1),
             dict(temperature=0, ignore_eos=True, prompt_logprobs=1),
             dict(temperature=0, guided_regex="([a-z]{2,6} )+", max_tokens=40),
             dict(temperature=0, bad_words=["and"], logit_bias={"11": 3}),
             dict(num_beams=2, max_tokens=8)]
    lines = []
    for i in range(36):
        piece = words[i % len(words)]
        prompt = " ".join([piece] * draw.randrange(2, 5) + [words[(i + 1) % len(words)], piece[:25]])
        lines.append(dict(custom_id=f"d{i}", prompt=prompt[:500],
                          **(dict(max_tokens=30 + i) | kinds[i % len(kinds)])))
    return lines


class SpeculateTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), Path(work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.output, self.report = self.work / "out.jsonl", self.work / "report.json"
        write_lines(self.work / "in.jsonl", make_lines())

    def argv(self, speculate, *flags):
        return ["generate", "--model", DEMO, "--input", self.work / "in.jsonl", "--output",
                self.output, "--report", self.report, "--max-model-len", MODEL_LEN, "--threads", 1,
                "--result-cache", "off", *([] if speculate is None else ["--speculate", speculate]),
                *flags]

    def run(self, speculate, flags, ranks):
        """The output's bytes and the job's report."""
        done = self.shoal.must(*self.argv(speculate, *flags, "--restart"), ranks=ranks,
                               env={"OMP_WAIT_POLICY": "passive"})
        found = json.loads(self.report.read_text())
        expect(("drafts:" in done.err) == (found["drafts"] > 0), f"it says {done.err[-2000:]}")
        return self.output.read_bytes(), found

    def check(self, name, flags, ranks, base, ways):
        """Every value of --speculate gives the bytes `base`, and values other than off take fewer
        steps.
        """
        n_steps = None
        for way in ways:
            got, found = self.run(way, flags, ranks)
            expect(base in (None, got), f"{name}: other bytes with --speculate {way}")
            base = got
            print(f"{name} --speculate {way}: {found['steps']} steps, {found['right_drafts']} of "
                  f"{found['drafts']} drafts right, {found['preemptions']} preemptions")
            expect((found["drafts"] > 0) == (way != "off"), "drafts")
            expect(found["right_drafts"] < max(found["drafts"], 1), "no draft was wrong")
            expect(way in ("off", "auto") or found["drafts"] > 50, "hardly any drafts")
            n_steps = found["steps"] if way == "off" else n_steps
            if n_steps is not None and way != "off":
                expect(found["steps"] < n_steps, f"{found['steps']} steps, {n_steps} without")
        return base

    def killed_and_resumed(self, first, then, commit):
        """Kills the job within the given commit and resumes it. first, then: --speculate of both
        runs; None: its default. Returns the report.
        """
        few = ["--max-batch", "3", "--checkpoint-tokens", "5"]
        done = self.shoal(*self.argv(first, *few, "--restart", "--failpoint",
                                     f"journal_write:{commit}"), journal=True)
        expect(done.status not in (0, 2), f"it was not killed: {done}")
        self.shoal.must(*self.argv(then, *few), journal=True)
        return json.loads(self.report.read_text())

    def check_resume(self, base, first, then):
        """Resumes after a kill. Commits go by the clock: on a slow machine the first commits hold
        no answers yet, and a fast machine makes few. So it takes the first commit that leaves
        something to resume and to guess.
        """
        for commit in range(2, 30):
            found = self.killed_and_resumed(first, then, commit)
            expect(self.output.read_bytes() == base, "other bytes after a kill")
            if found["resumed_rows"] + found["resumed_tokens"] > 0 and found["drafts"] > 0:
                break
        else:
            raise AssertionError("nothing was resumed, or no drafts after a kill")
        print(f"killed in commit {commit}, resumed with {found['resumed_rows']} rows and "
              f"{found['resumed_tokens']} tokens: the same bytes")
        self.shoal.must(*self.argv("3", "--audit", "12"), journal=True)

    def check_refusals(self):
        _, found = self.run("auto", ["--capacity-factor", "1.0"], 0)
        expect(found["drafts"] == 0 and found["speculate"] == 0, "capacity factor")
        for wrong in ("yes", "-1", "7x", "32", ""):
            done = self.shoal(*self.argv(wrong, "--restart"))
            expect(done.status == 2 and "--speculate: expected auto, mtp, ngram, off or" in done.err, str(done))

    def main(self):
        few, base = ["--max-batch", "2"], None
        for name, (flags, ranks) in LAYOUTS.items():
            ways = ["off", "auto", "1", "7"] if ranks == 0 else ["auto", "7"]
            base = self.check(name, [*flags, *few], ranks, base, ways)
        base = self.check("tight", ["--kv-blocks", "5", "--chunk", "30"], 0, base, ["7"])
        base = self.check("no prefixes", ["--prefix-cache", "off", *few], 0, base, ["31"])
        for kind in KV_TYPES:
            same = self.check(f"kv {kind}", ["--kv-dtype", kind, *few], 0, None, ["off", "7"])
            expect((same == base) == (kind == "f16"), f"kv {kind}")
        rows = [json.loads(line) for line in base.splitlines()]
        expect(len(rows) == 36 and not any("error" in r for r in rows), "rows")
        self.check_resume(base, "7", "auto")
        self.check_resume(base, "off", None)
        self.check_refusals()


if __name__ == "__main__":
    main_of(SpeculateTest(*sys.argv[1:3]).main)
