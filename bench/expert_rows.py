#!/usr/bin/env python3
"""How even the ranks' work on experts is on real text: by id, placed by load, and with copies. A Markdown table.

usage: expert_rows.py --shoal SHOAL (--simulated SIMULATED | --timed ROUNDS) --model M.h5 --text TEXT --work FOLDER
       [--ranks N,...] [--hosts-of N,...] [--copies N,...] [--lines N] [--tokens N]

TEXT is cut into lines of about --tokens tokens. One rank reads every second line of the first part and counts the
tokens of each expert; the lines between them are then read by N simulated ranks (tests/simulate), each a replica with
an equal part of the experts, on hosts of 1 rank or more. Counts are exact and do not depend on the
machine. The table has the rows of the busiest rank divided by the ranks' mean, both summed over all
layers and steps. "bound" is the least ratio of any placement for the text's own counts over all
steps.

With --timed the ranks are real ones of one thread on this machine, by mpirun, and each way runs ROUNDS times in turns:
the table then has the seconds from the end of loading to the last row (the median), and by id's median divided by
each, with the least and the most over the rounds. Time falls with the busiest rank only if each rank has a core.
"""
import argparse
import hashlib
import json
import statistics
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS / "simulate"))
import platforms

CHARACTERS_PER_TOKEN = 3


def parse():
    parser = argparse.ArgumentParser()
    for name in ("shoal", "model", "text", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--simulated", type=Path)
    how.add_argument("--timed", type=int, metavar="ROUNDS")
    for name, values in (("ranks", "8,16,32"), ("hosts-of", "1,4"), ("copies", "")):
        parser.add_argument(f"--{name}", default=values)
    parser.add_argument("--lines", type=int, default=256, help="that are measured, and as many that are counted")
    parser.add_argument("--tokens", type=int, default=256, help="of a line, about, and of a replica's step at most")
    return parser.parse_args()


class Measure:
    def __init__(self, args):
        self.args, self.work = args, args.work
        self.work.mkdir(parents=True, exist_ok=True)
        text, size = args.text.read_text(), args.tokens * CHARACTERS_PER_TOKEN
        lines = [json.dumps(dict(custom_id=f"l{i}", prompt=text[i * size:(i + 1) * size], max_tokens=1,
                                 temperature=0)) + "\n" for i in range(2 * args.lines)]
        assert (2 * args.lines) * size <= len(text), "the text is too short"
        (self.work / "counted.jsonl").write_text("".join(lines[0::2]))
        (self.work / "measured.jsonl").write_text("".join(lines[1::2]))
        self.load, one = self.one_rank("counted")
        self.own, self.digest = self.one_rank("measured")
        self.n_experts = max(map(len, one))

    def one_rank(self, name):
        """Reads the lines on one rank. Returns the path of the metrics; and the experts' loads of
        the counted lines, or the hash of the measured lines' output.
        """
        output, metrics = self.work / f"{name}.one.jsonl", self.work / f"{name}.json"
        subprocess.run([self.args.shoal, "generate", "--model", self.args.model, "--input",
                        self.work / f"{name}.jsonl", "--output", output, "--no-journal", "--metrics", metrics,
                        "--threads", "1", "--quiet"], check=True)
        digest = hashlib.sha256(output.read_bytes()).hexdigest()
        return metrics, json.loads(metrics.read_text())["expert_load"] if name == "counted" else digest

    def simulate(self, n_ranks, hosts_of, flags):
        """The metrics of a job on simulated ranks, which must have the output of one rank."""
        platform, hosts = platforms.write("fat_tree", n_ranks // hosts_of, hosts_of, self.work)
        return self.job(["smpirun", "-np", n_ranks, "-platform", platform, "-hostfile", hosts,
                         "--cfg=contexts/stack-size:2048", "--log=root.thresh:critical",
                         "--cfg=smpi/privatization:dlopen", "--cfg=smpi/host-speed:1Gf",
                         "--cfg=smpi/coll-selector:ompi", "--cfg=smpi/simulate-computation:no",
                         self.args.simulated], n_ranks, flags)

    def job(self, program, n_ranks, flags):
        """The metrics of a job whose command line begins with `program`, which must have the output of one rank."""
        output, metrics = self.work / "out.jsonl", self.work / "metrics.json"
        argv = [*program, "generate", "--model", self.args.model, "--input", self.work / "measured.jsonl", "--output",
                output, "--no-journal", "--metrics", metrics, "--threads", 1, "--watchdog", 0, "--kv-blocks", 16,
                "--max-model-len", 2 * self.args.tokens, "--step-tokens", self.args.tokens, "--quiet", "--tp", 1,
                "--pp", 1, "--dp", n_ranks, "--ep", n_ranks, *flags]
        subprocess.run([str(a) for a in argv], check=True)
        assert hashlib.sha256(output.read_bytes()).hexdigest() == self.digest, "other bytes than one rank"
        return json.loads(metrics.read_text())

    def bound(self, n_ranks, n_copies):
        """The least ratio for the measured lines' counts, over all steps: the mean of the layers."""
        found = []
        for layer in json.loads(self.own.read_text())["expert_load"]:
            most = -(-sum(layer) // n_ranks)
            while sum((n - 1) // most for n in layer if n > most) > n_copies:
                most += 1
            found.append(most * n_ranks / sum(layer))
        return sum(found) / len(found)

    def rows(self):
        """(name, flags, copies) of each way to place the experts."""
        yield "by id", [], 0
        yield "by load", ["--expert-load", self.load], 0
        asked = [int(n) for n in self.args.copies.split(",") if n] or [self.n_experts // 8]
        for n in asked:
            yield f"{n} copies", ["--expert-load", self.load, "--expert-copies", n], n

    def table(self):
        print("| ranks | ranks a host | experts | rows of the busiest rank by the mean | bound | bytes there, back, a token "
              "and layer |\n|---:|---:|---|---:|---:|---:|")
        for n_ranks in map(int, self.args.ranks.split(",")):
            for hosts_of in map(int, self.args.hosts_of.split(",")):
                for what, flags, n_copies in self.rows():
                    found = self.simulate(n_ranks, hosts_of, flags)
                    wire = found["experts_between_hosts"]
                    print(f"| {n_ranks} | {hosts_of} | {what} | {found['expert_rows']['max_over_mean']:.3f} | "
                          f"{self.bound(n_ranks, n_copies):.3f} | {wire['dispatch_bytes_per_token']:.0f}, "
                          f"{wire['combine_bytes_per_token']:.0f} |", flush=True)

    def timed(self):
        print("| ranks | experts | rows of the busiest rank by the mean | bound | seconds | by id's seconds by these |\n"
              "|---:|---|---:|---:|---:|---:|")
        for n_ranks in map(int, self.args.ranks.split(",")):
            ways = list(self.rows())
            seconds, even = {what: [] for what, _, _ in ways}, {}
            for i in range(self.args.timed):
                for what, flags, _ in ways if i % 2 == 0 else reversed(ways):
                    found = self.job([TESTS / "mpirun.sh", n_ranks, self.args.shoal], n_ranks, flags)
                    seconds[what].append(found["wall_s"])
                    even[what] = found["expert_rows"]["max_over_mean"]
            for what, _, n_copies in ways:
                ratios = [a / b for a, b in zip(seconds["by id"], seconds[what])]
                print(f"| {n_ranks} | {what} | {even[what]:.3f} | {self.bound(n_ranks, n_copies):.3f} | "
                      f"{statistics.median(seconds[what]):.3f} | {statistics.median(ratios):.3f} ({min(ratios):.3f} .. "
                      f"{max(ratios):.3f}) |", flush=True)


if __name__ == "__main__":
    measure = Measure(parse())
    if measure.args.timed:
        measure.timed()
    else:
        measure.table()
