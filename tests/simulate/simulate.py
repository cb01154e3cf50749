#!/usr/bin/env python3
"""Runs the demo model on simulated clusters: the output has the bytes of one real rank.

usage: simulate.py SHOAL SIMULATED WORK_FOLDER CASE [--compute | --network]
  KIND-HOSTSxRANKS  KIND: fat_tree, dragonfly or torus (platforms.py), HOSTS hosts of RANKS ranks.
                    One hash; prints seconds, memory and what grows with the ranks
  copies            on 16 hosts, with copies of half of the experts by the load that one rank counted
  resume            a job on 64 simulated ranks is killed in the middle and ends on 3 real ranks:
                    the same file
SHOAL is the program under the usual MPI library, SIMULATED the one of the preset simulate. Without
SimGrid, or when the preset is not built, the test is skipped. --compute makes computing take
simulated time: as long as it took here. With --network only messages take time; such times are
the same in each run.
"""
import argparse
import hashlib
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
import platforms
from program import REPO, SKIPPED, Shoal, expect, fresh_folder, main_of, run

DEMO = REPO / "models" / "demo" / "demo.h5"
# By ranks: tp, pp, dp, ep. With 64 and 256 ranks, 4 a host: on the dragonfly tp groups, and the
# ranks that hold parts of one expert, lie on several hosts; on the torus a host holds several tp
# groups.
LAYOUTS = {16: {kind: (2, 2, 4, 8) for kind in platforms.KINDS},
           64: {"fat_tree": (4, 4, 4, 8), "dragonfly": (8, 2, 4, 4), "torus": (2, 4, 8, 8)},
           128: {kind: (4, 4, 8, 8) for kind in platforms.KINDS},
           256: {"fat_tree": (4, 4, 16, 8), "dragonfly": (8, 2, 16, 8), "torus": (2, 4, 32, 8)},
           1024: {"fat_tree": (8, 4, 32, 8), "dragonfly": (8, 4, 32, 8), "torus": (8, 4, 32, 8)}}
# Requests: the demo's first lines, and one that is long enough for sums of many rows.
N_LINES, N_LINES_LARGE = 10, 40
LARGE = 256  # from so many ranks on, steps have fewer rows and variables no copies, to save memory
LONG_PROMPT = "demo-32"
TOKENS_MOST = 6
MODEL_LEN = 768  # --max-model-len
RESUMED = (24, 16)  # lines and tokens of the job that is killed
LIMIT_S = {16: 900, 64: 900, 128: 1800, 256: 3600, 1024: 3 * 3600}


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def demo_lines(n, tokens_most):
    """The first n of the demo's request lines and its long prompt, with short answers."""
    rows = [json.loads(line) for line in
            (REPO / "models" / "demo" / "prompts.jsonl").read_text().splitlines()]
    chosen = rows[:n] + [row for row in rows if row["custom_id"] == LONG_PROMPT]
    return "".join(json.dumps({**row, "max_tokens": min(row["max_tokens"], tokens_most)}) + "\n"
                   for row in chosen)


def why_not(simulated):
    """The reason why nothing can be simulated here, or None."""
    if shutil.which("smpirun") is None:
        return "SimGrid's smpirun is not installed (Debian: libsimgrid-dev)"
    if not Path(simulated).exists():
        return f"{simulated} is not built: cmake --preset simulate && cmake --build --preset simulate"
    return None


class Cluster:
    """Simulated hosts on which the program of the preset simulate runs."""

    def __init__(self, simulated, folder, kind, n_hosts, ranks_per_host, time_of=""):
        self.folder, self.n_ranks = Path(folder), n_hosts * ranks_per_host
        self.platform, self.hostfile = platforms.write(kind, n_hosts, ranks_per_host, folder)
        # Each rank has a copy of the program's variables, and so of its file. Without copies ranks
        # share the log's rank and level, so only warnings may be printed.
        is_large = self.n_ranks >= LARGE
        self.large = ["--step-tokens", 128, "--quiet"] if is_large else []
        self.program = self.folder / "shoal"
        subprocess.run(["strip", "-o", self.program, simulated], check=True)
        self.layout, self.model_len = LAYOUTS[self.n_ranks].get(kind), MODEL_LEN
        self.how = [f"--cfg=smpi/privatization:{'no' if is_large else 'dlopen'}",
                    "--cfg=smpi/host-speed:1Gf", "--cfg=smpi/coll-selector:ompi",
                    f"--cfg=smpi/simulate-computation:{'yes' if time_of == 'compute' else 'no'}"]
        if time_of == "network":  # MPI_Iprobe costs a microsecond, not a hundred and more
            self.how += ["--cfg=smpi/iprobe:1e-6", "--cfg=smpi/grow-injected-times:no"]

    def argv(self, source, output, *flags, model=DEMO, layout=None):
        """The command line of a job on all ranks."""
        tp, pp, dp, ep = layout or self.layout
        return [str(a) for a in (
            "smpirun", "-np", self.n_ranks, "-platform", self.platform, "-hostfile", self.hostfile,
            "--cfg=contexts/stack-size:2048", "--log=root.thresh:warning", *self.how, self.program,
            "generate", "--model", model, "--input", source, "--output", output, "--threads", 1,
            "--watchdog", 0, "--kv-blocks", 16, "--max-model-len", self.model_len, "--tp", tp, "--pp", pp,
            "--dp", dp, "--ep", ep, *self.large, *flags)]


def print_metrics(path):
    """Prints the metrics that grow with the number of ranks, from a job's --metrics."""
    metrics = json.loads(Path(path).read_text())
    ranks, n = metrics["ranks"], metrics["steps"]
    lead = ranks[0]
    most = {key: max(rank[key] / max(rank["steps"], 1) for rank in ranks)
            for key in ("messages", "collectives")}
    print(f"{len(ranks)} ranks, {n} steps in {metrics['wall_s'] * 1e3:.3f} ms (simulated); "
          f"a step, most of any rank: {most['messages']:.1f} messages, "
          f"{most['collectives']:.1f} collectives; the lead: "
          f"{lead['planning_s'] / n * 1e6:.0f} us for planning, "
          f"{lead['lead_s'] / n * 1e6:.0f} us for plans and results, "
          f"{lead['waiting_s'] / n * 1e6:.0f} us waiting")


class Simulate:
    def __init__(self, args):
        self.shoal, self.simulated, self.time_of = Shoal(args.shoal), args.simulated, args.time_of
        self.work = fresh_folder(args.work)
        self.source = self.work / "in.jsonl"
        self.one, self.output = self.work / "one.jsonl", self.work / "out.jsonl"
        self.load = self.work / "one.metrics.json"

    def one_rank(self, n_lines, tokens_most):
        """Writes the input, and its output and metrics by one real rank."""
        self.source.write_text(demo_lines(n_lines, tokens_most))
        self.shoal.must("generate", "--model", DEMO, "--input", self.source, "--output", self.one,
                        "--threads", 1, "--metrics", self.load)

    def copies(self):
        metrics = self.same("fat_tree", 16, 1, "--expert-load", self.load, "--expert-copies", 4)
        expect(metrics["layout"]["expert_copies"] == 4, str(metrics["layout"]))
        even, between = metrics["expert_rows"], metrics["experts_between_hosts"]
        print(f"4 copies: the busiest rank {even['max_over_mean']:.2f} times the mean, "
              f"{between['dispatch_bytes_per_token']:.0f} bytes there for a token and layer")

    def same(self, kind, n_hosts, ranks_per_host, *flags):
        """Runs a job and compares its output with one real rank's. Returns the job's metrics."""
        cluster = Cluster(self.simulated, self.work, kind, n_hosts, ranks_per_host, self.time_of)
        self.one_rank(N_LINES if cluster.n_ranks < LARGE else N_LINES_LARGE, TOKENS_MOST)
        metrics = self.work / "metrics.json"
        began = time.monotonic()
        done = run(cluster.argv(self.source, self.output, "--no-journal", "--metrics", metrics, *flags),
                   LIMIT_S[cluster.n_ranks])
        seconds = time.monotonic() - began
        expect(done.status == 0, str(done))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print_metrics(metrics)
        print(f"simulated {kind}, {n_hosts} hosts of {ranks_per_host} ranks: {seconds:.1f} s, "
              f"{used.ru_utime + used.ru_stime:.1f} s of CPU, {used.ru_maxrss / 1024:.0f} MiB")
        expect(digest(self.output) == digest(self.one),
               f"other bytes than one real rank: {self.output}, {self.one}")
        print(f"sha256 {digest(self.output)}, as on one real rank")
        return json.loads(metrics.read_text())

    def resume(self):
        self.one_rank(*RESUMED)
        cluster = Cluster(self.simulated, self.work, "fat_tree", 16, 4)
        # the process kills itself, with all ranks, before it writes rows for the second time
        done = run(cluster.argv(self.source, self.output, "--max-batch", 2, "--failpoint",
                                "output_write:2"), LIMIT_S[64])
        n_rows = len(self.output.read_bytes().splitlines())
        n_lines = len(self.source.read_text().splitlines())
        expect(done.status != 0 and 0 < n_rows < n_lines, f"{n_rows} rows of {n_lines}: {done}")
        print(f"killed on 64 simulated ranks after {n_rows} of {n_lines} rows")
        done = self.shoal.must("generate", "--model", DEMO, "--input", self.source, "--output",
                               self.output, "--threads", 1, "--max-model-len", 768, "--pp", 3,
                               ranks=3, journal=True, limit_s=300)
        expect("journal " in done.err, f"not resumed\n{done}")
        expect(digest(self.output) == digest(self.one), "other bytes than one real rank")
        print(f"ended on 3 real ranks: sha256 {digest(self.output)}, as on one")

    def run(self, case):
        if case == "resume":
            return self.resume()
        if case == "copies":
            return self.copies()
        kind, size = case.split("-")
        self.same(kind, *(int(n) for n in size.split("x")))
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shoal")
    parser.add_argument("simulated")
    parser.add_argument("work")
    parser.add_argument("case")
    for of in ("compute", "network"):
        parser.add_argument(f"--{of}", dest="time_of", action="store_const", const=of, default="")
    args = parser.parse_args()
    reason = why_not(args.simulated)
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    return Simulate(args).run(args.case)


if __name__ == "__main__":
    main_of(main)
