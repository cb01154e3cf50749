#!/usr/bin/env python3
"""The exchange of experts between hosts beside the plain one, over a link as slow as the experts' work.

usage: exchange.py [--hosts 2,4] [--work prefill,decode64] [--pairs 5] [--against plain,off] [--rate 100mbit]
                   [--old SHOAL] SHOAL MODEL.h5

Hosts are network namespaces of this machine (tests/e2e/hosts.py; needs root), one rank of one thread on each; experts
are spread over all of them. The work `prefill` is a prompt of 512 tokens for each host. For each work the link is
limited so that rows of floats, one for each choice, take as long as the experts' work (--rate sets
another rate): a run without a limit gives the computing time, and the experts' part of the
multiplications their part of that time.
Then `auto`, which knows the link's rate (--network, --overlap auto), takes turns as in turns.py with each of
  plain   the same program with --plain-exchange
  off     steps never go in halves
  on      steps of two rows and more go in halves
  old     the program that --old names
Printed are the ratio of the rates (auto by the other) and for each program tokens a second, the part of the lead's
steps in communication (waits for slower ranks included), and what all hosts sent for a token and layer, as the kernel
counted it. Last, messages of the same sizes by the program's mails and by one MPI_Alltoallv (tests/bench/bench_comm.c).
Only ratios say something on a machine that is not quiet. With more hosts than cores MPI yields when idle.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "e2e")]
from hosts import Hosts  # noqa: E402
from turns import WORK, Turns, Worker, interval  # noqa: E402

FLAGS = {"auto": ["--overlap", "auto"], "plain": ["--plain-exchange"], "off": ["--overlap", "off"],
         "on": ["--overlap", "on"], "old": []}
STEPS = 8  # of a turn that decodes
WIRE = re.compile(r"^Wire .*; ([0-9.]+) KB there .*, ([0-9.]+) KB back", re.MULTILINE)


def shape_of(shoal, model):
    """The numbers of the model's config."""
    said = subprocess.run([shoal, "inspect", model], capture_output=True, text=True, check=True).stdout
    found = {key: int(n) for key, n in re.findall(r"^  (\w+): (\d+)$", said, re.MULTILINE)}
    if "num_experts_per_tok" not in found:
        raise SystemExit(f"{model}: no experts, or a config that has other names for them")
    return found


def old_link_mbit(shape, n_hosts, rows, n_sampled, seconds):
    """The rate at which rows of floats, one for each choice, take as long as the experts' work in a step of `rows` rows
    a host, `n_sampled` of them with logits, that computes for `seconds`; and that work's part of the step.
    """
    d, head_dim, chosen = shape["hidden_size"], shape["head_dim"], shape["num_experts_per_tok"]
    heads, kv = shape["num_attention_heads"] * head_dim, shape["num_key_value_heads"] * head_dim
    layers = shape["num_hidden_layers"]
    experts = layers * rows * 3 * d * shape["moe_intermediate_size"] * chosen
    others = layers * rows * 2 * d * (heads + kv) + n_sampled * d * shape["vocab_size"]
    part = experts / (experts + others)
    sent = 2 * layers * rows * chosen * (n_hosts - 1) / n_hosts * 4 * d
    return 8 * sent / (part * seconds) / 1e6, part


def line_of(work):
    """The line of a turn, which needs no calibration: a prompt, or STEPS steps; and its phase."""
    prompt, output, n_seqs, phase = WORK[work]
    return f"{prompt} {output or STEPS + 1} {n_seqs}", phase


class Exchange:
    """All works on n hosts."""

    def __init__(self, a, n, folder):
        self.a, self.n, self.shape = a, n, shape_of(a.shoal, a.model)
        self.hosts = Hosts(folder, n)
        self.works = [f"prefill512x{n}" if w == "prefill" else w for w in a.work]
        self.longest = max(WORK[w][0] + (WORK[w][1] or STEPS + 1) for w in self.works)

    def launcher(self):
        words = self.hosts.launcher(self.n)
        if self.n <= len(os.sched_getaffinity(0)):  # a poll that yields would give the core to other processes
            words[words.index("mpi_yield_when_idle") + 1] = 0
        return [str(w) for w in words]

    def worker(self, name, mbit):
        shoal = self.a.old if name == "old" else self.a.shoal
        network = ["--network", f"{mbit / 1000:.4f}"] if name == "auto" else []
        words = [*self.launcher(), shoal, "bench", "--turns", "--quiet", "--model", self.a.model, "--threads", 1,
                 "--tp", 1, "--dp", self.n, "--ep", self.n, "--max-model-len", self.longest,
                 "--concurrency", max(WORK[w][2] for w in self.works), *network, *FLAGS[name]]
        return Worker([str(w) for w in words])

    def sent(self):
        """The bytes that all hosts have sent so far."""
        total = 0
        for space, link in zip(self.hosts.spaces, self.hosts.links):
            said = json.loads(self.hosts.ip("-n", space, "-s", "-j", "link", "show", "dev", link).stdout)
            total += said[0]["stats64"]["tx"]["bytes"]
        return total

    def link_mbit(self, work):
        """Returns the link's rate for a work; and the rows of a host in a step, both measured without a limit."""
        line, phase = line_of(work)
        n_seqs = WORK[work][2]
        worker = self.worker("plain", 0)
        for _ in range(2):
            found = worker.ask(line)["repetition"][phase]
        worker.close()
        rows = found["tokens"] / found["steps"] / self.n
        seconds = (found["seconds"] - found["comm_seconds"]) / found["steps"]
        n_sampled = n_seqs / found["steps"] / self.n if phase == "prefill" else rows
        mbit, part = old_link_mbit(self.shape, self.n, rows, n_sampled, seconds)
        print(f"{work}: a step of {rows:.0f} rows a host computes for {seconds:.3f} s, {part:.0%} of its products are "
              f"the experts'", flush=True)
        return mbit, rows

    def bytes_of(self, turns, name, line):
        """What the hosts send for a token and layer."""
        prompt, output, n_seqs = (int(w) for w in line.split())
        since = self.sent()
        turns.ask(name, line)
        return (self.sent() - since) / ((prompt + output - 1) * n_seqs * self.shape["num_hidden_layers"])

    def compare(self, work, other, mbit):
        workers = {name: self.worker(name, mbit) for name in ("auto", other)}
        turns = Turns(workers, self.a.pairs, 1.0, self.a.max_wait, 0)
        line, phase = line_of(work)
        pairs, every = turns.compare(line, phase)
        middle, low, high = interval([p["ratio"] for p in pairs])
        said, sent = [], {}
        for name in ("auto", other):
            done = [t[-1] for t in every if t[-1]["who"] == name]
            comm_part = statistics.median(t[phase]["comm_seconds"] / t[phase]["seconds"] for t in done)
            rate = statistics.median(p[name] for p in pairs)
            sent[name] = self.bytes_of(turns, name, line)
            said.append(f"{name} {rate:.1f} tok/s, {comm_part:.1%} in communication, {sent[name]:.0f} B")
        turns.close()
        n_bad = sum(p["disturbed"] for p in pairs)
        print(f"{work}: auto by {other} {middle:.3f} ({low:.3f} .. {high:.3f}), {len(pairs)} pairs, {n_bad} disturbed; "
              f"{'; '.join(said)}", flush=True)
        if other == "plain" and sent[other] < 2 * sent["auto"]:
            raise SystemExit("the plain exchange did not send twice as much: it was not in use")

    def wire(self):
        """The bytes of a token and layer there and back, as planned."""
        said = subprocess.run([self.a.shoal, "plan", "--model", self.a.model, "--topology",
                               f'{self.n} x "package:1 core:1 pu:1"', "--ranks", str(self.n), "--tp", "1", "--dp",
                               str(self.n), "--ep", str(self.n)], capture_output=True, text=True, check=True).stdout
        return [1e3 * float(kb) for kb in WIRE.search(said).groups()]

    def mails(self, rows):
        """Messages between two hosts of a step's layer, there and back."""
        sizes = [int(rows * n / (self.n - 1)) for n in self.wire()]
        program = pathlib.Path(self.a.shoal).parent / "tests" / "bench_comm"
        subprocess.run([*self.launcher(), program, *map(str, sizes)], check=True, stderr=subprocess.DEVNULL)

    def run(self):
        reason = self.hosts.up()
        if reason:
            raise SystemExit(reason)
        free = {work: self.link_mbit(work) for work in self.works}
        for work, (mbit, rows) in free.items():
            mbit = self.a.rate or mbit
            reason = self.hosts.limit(f"{mbit:.1f}mbit")
            if reason:
                raise SystemExit(reason)
            print(f"{work}: {self.n} hosts, each sends at most {mbit:.1f} Mbit/s", flush=True)
            for other in self.a.against:
                self.compare(work, other, mbit)
            self.mails(rows)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hosts", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4])
    p.add_argument("--rate", type=lambda text: float(text.removesuffix("mbit")))
    p.add_argument("--pairs", type=int, default=5)
    p.add_argument("--max-wait", type=float, default=0.0, help="seconds for which each turn waits for a quiet machine")
    p.add_argument("--work", type=lambda text: text.split(","), default=["prefill", "decode64"])
    p.add_argument("--against", type=lambda text: text.split(","), default=["plain"])
    p.add_argument("--old", help="an older build")
    p.add_argument("shoal")
    p.add_argument("model")
    a = p.parse_args()
    if a.old:
        a.against.append("old")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the hosts are taken down
    for n in a.hosts:
        with tempfile.TemporaryDirectory() as folder:
            run = Exchange(a, n, pathlib.Path(folder))
            try:
                run.run()
            finally:
                run.hosts.down()


if __name__ == "__main__":
    main()
