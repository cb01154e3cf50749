#!/usr/bin/env python3
"""Tests the scheduler with whole jobs.

usage: schedule.py SHOAL WORK_FOLDER CASE
  headers       210 prompts over 7 shared prefixes: at least 90 % of the tokens that a trie shows to be common
                are saved; the bytes are the same in any order, with caches on or off, with preemption and kills
  headers_long  the same with 600 prompts over 20 prefixes
  dry_run       --dry-run on 20,000, 110,000 and 220,000 lines: the last two need the same memory;
                rows depend on nothing but their lines; a killed dry run resumes
  replicas      replicas that run out of work one after the other, and some that never have any: no
                run hangs, the same bytes
Prints the tokens saved, the speed, and the memory used.
"""
import json
import random
import sys
import time
from pathlib import Path

from program import REPO, Shoal, expect, main_of, peak_kib, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
N_VOCAB = 2000
N_HEADERS, PER_HEADER = 7, 30
N_HEADERS_LONG = 20
SAVED_LEAST = 0.90
# Between two inputs that both fill the bounded windows. Lines have no ids; unit id_spill has them.
GROWTH_MAX_KIB = 1024
CACHE_MAX_KIB = 80 * 1024


def header_lines(n_headers):
    """Prompts over shared prefixes of 550 to 850 tokens, in random order; greedy, seeded and
    unseeded.
    """
    draw = random.Random(66)
    headers = [[draw.randrange(N_VOCAB) for _ in range(draw.randrange(550, 850))]
               for _ in range(n_headers)]
    kinds = [dict(temperature=0), dict(temperature=0.9, top_k=20, seed=4), dict()]
    return [dict(custom_id=f"h{i}", max_tokens=draw.randrange(2, 24), **kinds[i % 3],
                 prompt_token_ids=headers[draw.randrange(n_headers)] +
                 [draw.randrange(N_VOCAB) for _ in range(draw.randrange(4, 40))])
            for i in range(n_headers * PER_HEADER)]


def trie_bound(lines):
    """The number of tokens that begin an earlier prompt too. The last token of a prompt is always
    computed. This counts single tokens, while the cache shares blocks of 64.
    """
    root, bound = {}, 0
    for line in lines:
        at = root
        for i, token in enumerate(line["prompt_token_ids"]):
            bound += token in at and i + 1 < len(line["prompt_token_ids"])
            at = at.setdefault(token, {})
    return bound


class ScheduleTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), Path(work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.input, self.output = self.work / "in.jsonl", self.work / "out.jsonl"
        self.report = self.work / "report.json"

    def run(self, *flags, ranks=0, threads=1):
        """The output's bytes and the report."""
        for path in (self.output, self.report):
            path.unlink(missing_ok=True)
        self.shoal.must("generate", "--model", DEMO, "--input", self.input, "--output", self.output,
                        "--report", self.report, "--threads", threads, *flags, ranks=ranks,
                        limit_s=900, env={"OMP_WAIT_POLICY": "passive"})
        return self.output.read_bytes(), json.loads(self.report.read_text())

    def interrupted(self, *flags):
        """Kills a run twice and resumes it, with every token in the journal, so that it resumes in
        the middle of answers.
        """
        journal = self.output.with_name(self.output.name + ".journal")
        for path in (self.output, journal):
            path.unlink(missing_ok=True)
        argv = ["generate", "--model", DEMO, "--input", self.input, "--output", self.output,
                "--report", self.report, "--threads", 1, "--checkpoint-tokens", 1, *flags]
        for step in (20, 25):  # of 40 or more
            done = self.shoal(*argv, "--failpoint", f"step:{step}", journal=True, limit_s=600)
            expect(done.status in (137, -9), str(done))
        self.shoal.must(*argv, journal=True, limit_s=600)
        journal.unlink()
        return self.output.read_bytes(), json.loads(self.report.read_text())

    def headers_long(self):
        self.headers(N_HEADERS_LONG)

    def headers(self, n_headers=N_HEADERS):
        lines = header_lines(n_headers)
        write_lines(self.input, lines)
        bound = trie_bound(lines)
        n_tokens = sum(len(line["prompt_token_ids"]) for line in lines)
        off = ["--prefix-cache", "off", "--result-cache", "off", "--order", "input"]
        expected, without = self.run(*off)
        expect(without["prefix_hit_tokens"] == 0, "hits without a cache")
        print(f"{n_tokens} tokens, {bound} could be saved; without: {without['wall_s']:.1f} s, "
              f"{n_tokens / without['wall_s']:.0f} prompt tokens/s")
        for what, flags, ranks, saves in (
                ("auto", [], 0, True), ("prefix", ["--order", "prefix"], 0, True),
                ("input", ["--order", "input"], 0, True),
                ("auto, pool too small for all headers", ["--kv-blocks", 3 * n_headers + 15], 0, True),
                ("auto, dp 2", ["--dp", 2], 2, True),
                ("auto, preempted", ["--kv-blocks", 17, "--max-batch", 6], 0, False)):
            found, report = self.run(*flags, ranks=ranks)
            expect(found == expected, f"{what}: other bytes")
            saved = report["prefix_hit_tokens"] / bound
            print(f"{what}: {100 * saved:.1f} % saved, {report['wall_s']:.1f} s, "
                  f"{without['wall_s'] / report['wall_s']:.1f} times as fast, "
                  f"{report['preemptions']} preemptions")
            if saves:
                expect(saved >= SAVED_LEAST, f"{what}: {saved} saved")
            else:
                expect(report["preemptions"] > 0, f"{what}: nothing was preempted")
        found, report = self.interrupted()
        expect(found == expected, "interrupted: other bytes")
        expect(report["resumed_tokens"] > 0, "interrupted: no tokens were resumed")
        print(f"interrupted twice: {report['resumed_rows']} rows and {report['resumed_tokens']} "
              "tokens were taken over")

    def dry(self, name, *flags):
        """A dry run's peak resident memory in KiB, its seconds, and its output's path."""
        output = self.work / f"{name}.out"
        for path in (output, self.work / f"{name}.out.journal"):
            path.unlink(missing_ok=True)
        since = time.monotonic()
        peak = peak_kib([self.shoal.path, "generate", "--dry-run", "--input", self.work / f"{name}.in", "--output",
                         output, *flags])
        return peak, time.monotonic() - since, output

    def dry_lines(self, name, n):
        draw = random.Random(5)
        with (self.work / f"{name}.in").open("w") as out:
            for i in range(n):
                ids = [draw.randrange(30000) for _ in range(draw.randrange(1, 12))]
                out.write(f'{{"prompt_token_ids":{ids},'
                          f'"temperature":{i % 2},"max_tokens":{i % 6 + 1}}}\n')

    def dry_run(self):
        sizes = {"short": 20000, "full": 110000, "long": 220000}
        peaks = {}
        for name, n in sizes.items():
            self.dry_lines(name, n)
            peaks[name], seconds, output = self.dry(name, "--result-cache", "off")
            n_rows = sum(1 for _ in output.open("rb"))
            expect(n_rows == n, f"{n_rows} rows for {n} lines")
            print(f"{n} lines: {peaks[name]} KiB, {n / seconds:.0f} lines/s")
        expect(peaks["long"] - peaks["full"] < GROWTH_MAX_KIB, f"memory grows with the input: {peaks}")
        expected = (self.work / "long.out").read_bytes()
        peak, _, output = self.dry("long")
        print(f"with results that are kept: {peak} KiB")
        expect(output.read_bytes() == expected, "the result cache: other rows")
        expect(peak - peaks["long"] < CACHE_MAX_KIB, "the result cache takes more than it may")
        expected = (self.work / "short.out").read_bytes()
        for row in expected.splitlines():
            expect(json.loads(row).get("dry_run", "").startswith("not a result"), f"{row}")
        for flags in (["--dp", 3, "--pp", 2, "--order", "prefix"],
                      ["--order", "input", "--kv-blocks", 70]):
            _, _, output = self.dry("short", *flags)
            expect(output.read_bytes() == expected, f"{flags}: other rows")
        output = self.work / "short.out"
        for path in (output, self.work / "short.out.journal"):
            path.unlink()
        argv = ["generate", "--dry-run", "--input", self.work / "short.in", "--output", output]
        done = self.shoal(*argv, "--failpoint", "step:90", journal=True)
        expect(done.status in (137, -9), str(done))
        self.shoal.must(*argv, journal=True)
        expect(output.read_bytes() == expected, "resumed: other rows")
        done = self.shoal("generate", "--model", DEMO, "--input", self.work / "short.in",
                          "--output", output, journal=True)
        expect(done.status == 3 and "command was generate --dry-run" in done.err, str(done))

    def replicas(self):
        draw = random.Random(9)
        for n_lines in (1, 2, 5):
            write_lines(self.input, [
                dict(custom_id=f"d{i}", max_tokens=200 if i == n_lines - 1 else i + 1,
                     prompt_token_ids=[draw.randrange(N_VOCAB) for _ in range(5 + 40 * i)])
                for i in range(n_lines)])
            expected, _ = self.run()
            for flags, ranks in ((["--dp", 2], 2), (["--dp", 3, "--ep", 3], 3),
                                 (["--dp", 4, "--ep", 1], 4), (["--dp", 2, "--pp", 2], 4)):
                found, report = self.run(*flags, ranks=ranks)
                expect(found == expected, f"{n_lines} lines, {flags}: other bytes")
                print(f"{n_lines} lines, {' '.join(map(str, flags))}: {report['steps']} steps")


if __name__ == "__main__":
    test = ScheduleTest(*sys.argv[1:3])
    cases = dict(headers=test.headers, headers_long=test.headers_long, dry_run=test.dry_run, replicas=test.replicas)
    main_of(cases[sys.argv[3]])
