#!/usr/bin/env python3
"""Halves of a step that take turns between hosts (--overlap) against whole steps, and against an older build.

usage: overlap.py [--hosts 2] [--rate 100mbit] [--pairs 5] [--work prefill512x2,decode64] [--shape C] [--old SHOAL]
                  SHOAL MODEL.h5

The hosts are network namespaces of this machine (tests/e2e/hosts.py), one rank of one thread on each, which sends at
most --rate; experts are spread over all of them. Needs root. Without --rate it is chosen so that rows of floats, one
for each choice, take as long as the experts' work: first it measures prompts without a limit and takes the experts'
part of that time by their part of the multiplications. Programs take turns as in turns.py: --overlap on and off of
SHOAL, then, with --old, each of these with the older build. The machine need not be quiet: only ratios count.
"""
import argparse
import pathlib
import statistics
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "e2e")]
from hosts import Hosts  # noqa: E402
from turns import WORK, Turns, Worker, interval, longest  # noqa: E402


def old_link_mbit(shape, n_hosts, rows, seconds):
    """The rate at which rows of floats, one for each choice, take as long as the experts' work in a step of `rows`
    rows a host that takes `seconds` without a limit; and that work's part of the step.
    """
    d, heads, kv = shape["width"], shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    experts = 3 * d * shape["expert_ffn"] * shape["chosen"]
    part = experts / (experts + 2 * d * (heads + kv))
    sent = 2 * shape["layers"] * rows * shape["chosen"] * (n_hosts - 1) / n_hosts * 4 * d
    return 8 * sent / (part * seconds) / 1e6, part


class Overlap:
    def __init__(self, a, hosts):
        self.a, self.hosts = a, hosts

    def command(self, shoal, *flags):
        n, tokens = len(self.hosts.spaces), max(longest(w) for w in self.a.work)
        launcher = self.hosts.launcher(n)
        launcher[launcher.index("mpi_yield_when_idle") + 1] = 0  # polls would give the core to other processes
        words = [*launcher, shoal, "bench", "--turns", "--quiet", "--model", self.a.model, "--threads", 1,
                 "--tp", 1, "--dp", n, "--ep", n, "--max-model-len", tokens, *flags]
        return [str(w) for w in words]

    def limit(self):
        """Limits the link. Returns the rate."""
        rate = self.a.rate
        if rate is None:
            from models import SHAPES  # needs numpy and gguf
            worker = Worker(self.command(self.a.shoal, "--overlap", "off"))
            prompt, _, n_seqs, phase = WORK["prefill512x2"]
            for _ in range(3):
                found = worker.ask(f"{prompt} 1 {n_seqs}")["repetition"][phase]
            worker.close()
            n = len(self.hosts.spaces)
            mbit, part = old_link_mbit(SHAPES[self.a.shape], n, prompt * n_seqs / n, found["seconds"])
            print(f"without a limit {found['seconds']:.3f} s for {prompt * n_seqs} tokens, {part:.0%} of the products are "
                  f"the experts'", flush=True)
            rate = f"{mbit:.0f}mbit"
        reason = self.hosts.limit(rate)
        if reason:
            raise SystemExit(reason)
        return rate

    def turns(self, first, second):
        turns = Turns({name: Worker(command) for name, command in (first, second)}, self.a.pairs, 1.0, 0.0, 0)
        for work in self.a.work:
            line, phase = turns.line(work)
            pairs, _ = turns.compare(line, phase)
            middle, low, high = interval([x["ratio"] for x in pairs])
            rates = [statistics.median(x[name] for x in pairs) for name, _ in (first, second)]
            print(f"{work}: {first[0]} by {second[0]} {middle:.3f} ({low:.3f} .. {high:.3f}), {rates[0]:.1f} by "
                  f"{rates[1]:.1f} tok/s, {len(pairs)} pairs", flush=True)
        turns.close()

    def run(self):
        print(f"{len(self.hosts.spaces)} hosts, each sends at most {self.limit()}", flush=True)
        on = ("on", self.command(self.a.shoal, "--overlap", "on"))
        off = ("off", self.command(self.a.shoal, "--overlap", "off"))
        self.turns(on, off)
        if self.a.old:
            old = ("old", self.command(self.a.old))
            self.turns(on, old)
            self.turns(off, old)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hosts", type=int, default=2)
    p.add_argument("--rate")
    p.add_argument("--pairs", type=int, default=5)
    p.add_argument("--shape", default="C", help="of bench/models.py, that the model has")
    p.add_argument("--work", type=lambda text: text.split(","), default=["prefill512x2", "decode64"])
    p.add_argument("--old")
    p.add_argument("shoal")
    p.add_argument("model")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(pathlib.Path(folder), a.hosts)
        try:
            reason = hosts.up()
            if reason:
                raise SystemExit(reason)
            Overlap(a, hosts).run()
        finally:
            hosts.down()


if __name__ == "__main__":
    main()
