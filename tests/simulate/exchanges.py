#!/usr/bin/env python3
"""Runs a small model of law.py with each exchange between rows and experts, and with sums over
hosts, on simulated clusters: each output has the bytes of one real rank.

usage: exchanges.py SHOAL SIMULATED WORK_FOLDER KIND RANKS
KIND is fat_tree, dragonfly or torus; RANKS, 16 or 64, are on hosts of one rank and then of four.
Skipped as simulate.py is.
"""
import json
import math
import sys
import time
from pathlib import Path

import platforms
from simulate import Cluster, digest, why_not

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
import law
from program import SKIPPED, Shoal, expect, fresh_folder, main_of, run, write_lines

N_LINES, TOKENS_MOST = 11, 5  # the first eleven lines of the law's input, with shorter answers
PER_HOST = [1, 4]
# A model: its source in law.py, the format that it is quantized to, and flags.
MODELS = {"floats": ("mixtral", None, []), "int8": ("mixtral", "int8", []),
          "fp8": ("mixtral", "fp8-g32", []),
          "fp8 as int8": ("mixtral", "fp8-g32", ["--fp8-activations", "int8"]),
          "router groups": ("deepseek-v3", None, []), "dense": ("dense", None, [])}
# tp, pp, dp and ep of 16 ranks; 64 have four times as many replicas.
RUNS = [
    ("local", (1, 2, 8, 1), ["floats", "int8", "fp8"]),
    ("whole experts in a tp group", (4, 4, 1, 4), ["floats"]),
    ("parts of experts in a tp group", (2, 1, 8, 1), ["floats", "int8", "fp8 as int8"]),
    ("attention replicated", (1, 1, 16, 8), ["floats", "int8", "fp8", "fp8 as int8", "router groups"]),
    ("attention in a host", (2, 2, 4, 8), ["floats", "int8"]),
    ("experts of four ranks", (4, 1, 4, 2), ["floats"]),
    ("sums over hosts", (8, 1, 2, 1), ["dense"]),
]


def travels(layout, per_host):
    """Whether tokens go to other hosts as counted blocks. They do not where all ranks of an expert
    group share a host, or where an expert's own ranks do not (its rows are then sent one by one).
    """
    tp, _, dp, ep = layout
    etp = math.gcd(dp * tp // ep, tp)
    return ep * etp > per_host and per_host % etp == 0


class Exchanges:
    def __init__(self, args):
        self.shoal, self.simulated, self.kind, self.n_ranks = Shoal(args[0]), args[1], args[3], int(args[4])
        self.work = fresh_folder(args[2])
        self.bytes = {}  # of a token on its way to the experts, by hosts, run and model

    def file(self, name, end):
        return self.work / f"{name.replace(' ', '-')}{end}"

    def prepare(self, name):
        """Makes the model, its input, and its output by one real rank."""
        source, quantized, flags = MODELS[name]
        plain, model = self.work / f"{source}.h5", self.file(name, ".h5")
        if not plain.exists():
            self.shoal.must("convert", law.SOURCES[source], plain, "--quantized", "dequantize")
        if quantized is None:
            model = plain
        else:
            self.shoal.must("quantize", plain, model, "--format", quantized, "--quiet")
        config = json.loads((law.SOURCES[source] / "config.json").read_text())
        lines = law.token_lines(config["vocab_size"])[:N_LINES]
        write_lines(self.file(name, ".in"),
                    [{**line, "max_tokens": TOKENS_MOST, "min_tokens": 0} for line in lines])
        self.shoal.must("generate", "--model", model, "--input", self.file(name, ".in"), "--output",
                        self.file(name, ".one"), "--threads", 1, "--max-model-len", law.MODEL_LEN,
                        *flags)
        return model

    def one(self, cluster, model, name, what, layout):
        """Runs one layout; returns what its tokens sent to other hosts, or None."""
        output, metrics = self.work / "out.jsonl", self.work / "metrics.json"
        began = time.monotonic()
        done = run(cluster.argv(self.file(name, ".in"), output, "--no-journal", "--metrics", metrics,
                                *MODELS[name][2], model=model, layout=layout),
                   limit_s=600)
        expect(done.status == 0, f"{name}, {what}: {done}")
        expect(digest(output) == digest(self.file(name, ".one")),
               f"{name}, {what}: other bytes than one real rank\n{done}")
        sent = json.loads(metrics.read_text()).get("experts_between_hosts")
        there = f"{sent['dispatch_bytes_per_token']:.0f} bytes there" if sent else "no token to another host"
        print(f"{self.kind}, {self.n_ranks} ranks, {cluster.per_host} a host, {what}, {name}: {there}; "
              f"{time.monotonic() - began:.1f} s")
        return sent

    def on_hosts(self, i, models):
        """All runs on hosts of PER_HOST[i] ranks."""
        cluster = Cluster(self.simulated, self.work, self.kind, self.n_ranks // PER_HOST[i], PER_HOST[i])
        cluster.per_host, cluster.model_len = PER_HOST[i], law.MODEL_LEN
        for what, (tp, pp, dp, ep), names in RUNS:
            layout = (tp, pp, dp * self.n_ranks // 16, ep)
            for name in names:
                sent = self.one(cluster, models[name], name, what, layout)
                expect((sent is not None) == travels(layout, PER_HOST[i]), f"{name}, {what}: sent {sent}")
                if sent:
                    self.bytes[i, what, name] = sent["dispatch_bytes_per_token"]

    def check_bytes(self):
        """Tokens travel as int8 values if the weights take int8 activations, else as floats."""
        for (i, what, name), n in self.bytes.items():
            floats = self.bytes.get((i, what, "floats"))
            if floats and name in ("int8", "fp8 as int8"):
                expect(n < 0.6 * floats, f"{what}, {name}: {n} bytes, floats {floats}")
            if floats and name == "fp8":
                expect(n > 0.6 * floats, f"{what}, {name}: {n} bytes, floats {floats}")

    def run(self):
        models = {name: self.prepare(name) for name in MODELS}
        for i in range(len(PER_HOST)):
            self.on_hosts(i, models)
        self.check_bytes()


def main():
    if len(sys.argv) != 6 or sys.argv[4] not in platforms.KINDS or sys.argv[5] not in ("16", "64"):
        sys.exit(__doc__)
    reason = why_not(sys.argv[2])
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    return Exchanges(sys.argv[1:]).run()


if __name__ == "__main__":
    main_of(main)
