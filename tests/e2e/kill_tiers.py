#!/usr/bin/env python3
"""Kills jobs whose experts stream from disk, whose KV blocks move to a tier and whose shared
beginnings are in a store, at random moments and at failpoints, such as the read of a block or an
expert. Each is resumed with another memory limit and another layout until it is done: the output
has the bytes of a job with all weights in memory and a pool that is never short.

usage: kill_tiers.py SHOAL WORK_FOLDER kills [--runs N] [--seed N]
Ends after N kills. The packed copies and the store stay from job to job, so what a kill tears is met by later jobs.
"""
import json

from kill_sweep import KILLS_MAX, LAYOUTS, N_LINES, REPO, Started, Sweep, job_lines, run_case
from program import expect

MEMORY = (None, "90M", "140M", "1G")  # of a rank
EXPERTS = (1, "1M", "3M")  # --expert-memory; 1 gives the least, four experts


def document():
    """The text with which half of the prompts begin: several KV blocks."""
    return " ".join(json.loads(line)["prompt"] for line in
                    (REPO / "models" / "demo" / "prompts.jsonl").read_text().splitlines())[:900]


class Tiers(Sweep):
    points = {"expert_read": 400, "tier_read": 12, "step": 40, "load": 1, "journal_write": 6}

    def lines(self):
        """Short answers: a step of several ranks that share a core with others takes long."""
        lines = job_lines()
        for i, line in enumerate(lines):
            line["prompt"] = document() * (i % 2) + line["prompt"]
            line["max_tokens"] = max(4, line["max_tokens"] // 4)
        return lines

    def random_layout(self):
        layout = self.draw.choice(list(LAYOUTS))
        flags = ["--checkpoint-tokens", self.draw.choice([4, 16, 256]), "--max-batch", self.draw.choice([6, 16]),
                 "--kv-tier", f"{self.work}:16M", "--kv-blocks", self.draw.choice([20, 32]),
                 "--prefix-store", f"{self.work / 'store'}:16M"]
        self.limit = self.draw.choice(MEMORY), self.draw.choice(EXPERTS)
        if self.limit[0]:
            flags += ["--memory", self.limit[0]]
        if self.draw.random() < 0.85:
            flags += ["--weights", "stream", "--expert-memory", self.limit[1],
                      "--expert-file", self.work / f"{layout}.experts"]
        return layout, flags, {}

    def one(self, number):
        """Runs one job until it is done."""
        self.begin()
        for attempt in range(1, 50):
            if attempt > KILLS_MAX:
                layout, flags, env = self.random_layout()
                job = Started(self, layout, *flags, env=env)
                status, what = job.wait(), f"nobody on {layout}"
                expect(status == 0, f"status {status}: {job.text()[-3000:]}")
            elif self.draw.random() < 0.5:
                status, what, job = self.kill_by_failpoint(self.draw.choice(list(self.points)), False)
            else:
                status, what, job = self.kill_at_random()
            if status == 137:
                self.n_kills += 1
                self.phases[job.phase()] += 1
            self.check_prefix(f"job {number}, attempt {attempt}")
            print(f"job {number} attempt {attempt}: killed {what}, limit {self.limit}; status {status}, "
                  f"{self.n_rows()} of {N_LINES} rows", flush=True)
            if status == 0:
                break
        self.check_whole(f"job {number}")

    def main(self):
        number = 0
        while self.n_kills < self.args.runs:
            self.one(number)
            number += 1
        print(f"{number} of {number} jobs with sha256 {self.sha}; {self.n_kills} kills, in {dict(self.phases)}; at "
              f"failpoints {dict(self.struck)}")
        if self.args.runs >= 30:
            expect(self.struck["expert_read"] and self.struck["tier_read"], "no kill struck a read")
            expect(list((self.work / "store").glob("??/*")), "nothing was stored")


if __name__ == "__main__":
    run_case(dict(kills=Tiers))
