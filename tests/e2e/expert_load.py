#!/usr/bin/env python3
"""Tests --expert-load: experts are placed by the loads of an earlier job, the output's bytes stay
the same, and files that do not match are refused. Also --expert-copies.

usage: expert_load.py SHOAL WORK_FOLDER
Models with a bias per expert, with dense layers, and quantized. Loads come from a run on one rank,
or are steep ones, drawn at random, that move many experts.
"""
import json
import random
import re
import sys
from pathlib import Path

from program import GOLDENS, Shoal, expect, fresh_folder, main_of, write_lines

LAYOUTS = {"ep2": (["--ep", "2"], 2), "tp2-ep1": (["--tp", "2", "--ep", "1"], 2),
           "dp2-ep2": (["--dp", "2", "--ep", "2"], 2), "ep4": (["--ep", "4"], 4),
           "dp2-tp2-ep2": (["--dp", "2", "--tp", "2", "--ep", "2"], 4),
           "pp2-ep2": (["--pp", "2", "--ep", "2"], 4)}
MODELS = {"mixtral": list(LAYOUTS), "mixtral-int8": ["ep2", "dp2-ep2"],
          "gpt-oss": ["ep2", "ep4"], "deepseek-v3": ["ep2", "dp2-tp2-ep2"]}


class Case:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), Path(work)
        fresh_folder(self.work)
        self.input = self.work / "in.jsonl"
        write_lines(self.input, [{"custom_id": f"r{i}", "prompt": f"Once upon a time {i}",
                                  "max_tokens": 12, "temperature": 0.8} for i in range(7)])

    def model(self, name):
        source = name.removesuffix("-int8")
        path = self.work / f"{name}.h5"
        if not path.exists() and source == name:
            self.shoal.must("convert", GOLDENS / name / "hf", path)
        elif not path.exists():
            self.shoal.must("quantize", self.model(source), path, "--format", "int8", "--quiet")
        return path

    def generate(self, model, tag, flags=(), ranks=0, must=True):
        output = self.work / f"{tag}.jsonl"
        call = self.shoal.must if must else self.shoal
        done = call("generate", "--model", self.model(model), "--input", self.input, "--output",
                    output, "--kv-blocks", "40", "--seed", "3", *flags, ranks=ranks)
        return done, output.read_bytes() if output.exists() else None

    def loads(self, model):
        """The rows of one rank, its metrics, and a file of steep loads made from them."""
        found = self.work / f"{model}.metrics.json"
        _, rows = self.generate(model, f"{model}.one", ["--metrics", found])
        metrics = json.loads(found.read_text())
        chosen = {sum(layer) for layer in metrics["expert_load"] if layer}
        expect(len(chosen) == 1 and chosen.pop() > 0, f"{model}: {metrics['expert_load']}")
        steep = random.Random(5)
        for layer in metrics["expert_load"]:
            layer[:] = [1 << 3 * rank for rank in steep.sample(range(len(layer)), len(layer))]
        path = self.work / f"{model}.steep.json"
        path.write_text(json.dumps(metrics))
        return rows, found, path

    def same_bytes(self):
        for model, layouts in MODELS.items():
            rows, found, steep = self.loads(model)
            for layout in layouts:
                flags, ranks = LAYOUTS[layout]
                for load, copies in ((found, 3), (steep, 0), (steep, 64)):
                    again = self.work / "again.metrics.json"
                    done, placed = self.generate(
                        model, f"{model}.{layout}.{load.stem}.{copies}",
                        [*flags, "--expert-load", load, "--expert-copies", copies, "--metrics", again], ranks)
                    expect(placed == rows, f"{model}, {layout}, {load.name}, {copies} copies: other bytes")
                    self.check_copies(json.loads(again.read_text()), copies)
                    expect("experts are placed by the load" in done.err, str(done))
                    # an expert keeps its id wherever it is placed
                    expect(json.loads(again.read_text())["expert_load"] ==
                           json.loads(found.read_text())["expert_load"], f"{model}, {layout}: load")

    def check_copies(self, metrics, asked):
        """There are no more copies than ranks have use for, and the ranks' rows add up to the
        tokens' choices."""
        layout, n_experts = metrics["layout"], max(map(len, metrics["expert_load"]))
        expect(layout["expert_copies"] == min(asked, n_experts * (layout["ep"] - 1)), str(layout))
        if layout["ep"] == 1:
            expect("expert_rows" not in metrics, str(metrics))
            return
        rows = metrics["expert_rows"]
        n_chosen = sum(map(sum, metrics["expert_load"]))
        expect(rows["max_over_mean"] >= 1 and sum(rows["ranks"]) == rows["rows"], str(rows))
        expect(rows["rows"] == n_chosen * layout["etp"], f"{rows}, {n_chosen} choices")

    def refuses(self, status, words, model, change):
        metrics = json.loads((self.work / "mixtral.metrics.json").read_text())
        change(metrics)
        path = self.work / "changed.json"
        path.write_text(json.dumps(metrics))
        flags = ["--tp", "2", "--expert-load", path]
        for ranks in (2, 0):
            if ranks == 0:
                done = self.shoal("plan", "--model", self.model(model), "--expert-load", path)
            else:
                done, _ = self.generate(model, "refused", flags, ranks, must=False)
            expect(done.status == status, str(done))
            for word in ["--expert-load", *words]:
                expect(word in done.err, f"\"{word}\" is missing: {done}")

    def refusals(self):
        def cut(metrics):
            metrics["expert_load"][0].pop()

        def negative(metrics):
            metrics["expert_load"][1][2] = -1

        self.refuses(3, ["changed.json", "another model", "Mixtral, 9 layers"], "mixtral",
                     lambda m: m.update(model="Mixtral, 9 layers, D 64"))
        self.refuses(3, ["layer 0", "expected an array"], "mixtral", cut)
        self.refuses(3, ["layer 1", "expert 2"], "mixtral", negative)
        self.refuses(3, ["layers, found 1"], "mixtral",
                     lambda m: m.update(expert_load=m["expert_load"][:1]))
        self.refuses(3, ["when they have ended"], "mixtral", lambda m: m.pop("expert_load"))
        self.refuses(3, ["--metrics writes"], "mixtral", lambda m: m.pop("schema"))
        self.refuses(2, ["dense"], "llama-gqa", lambda m: None)
        done = self.shoal("plan", "--model", self.model("mixtral"), "--expert-copies", "2")
        expect(done.status == 2 and "needs --expert-load" in done.err, str(done))

    def plan(self):
        """Placing by load is more even than placing by id, in the mean and in the worst layer, and
        plan shows both numbers and the load of each of the two parts."""
        done = self.shoal.must("plan", "--model", self.model("mixtral"), "--ranks", "2", "--ep",
                               "2", "--expert-load", self.work / "mixtral.metrics.json")
        lines = [line.split() for line in done.out.splitlines()]
        by = {line[1]: [float(word.rstrip(";,")) for word in line if word[0].isdigit()]
              for line in lines if line[:1] == ["by"]}
        expect(set(by) == {"id", "load"} and all(len(v) == 4 for v in by.values()), done.out)
        expect(1 <= by["load"][0] <= by["id"][0] and by["load"][1] <= by["id"][1], str(by))
        expect(by["load"][0] < by["id"][0], f"nothing became more even: {by}")
        self.plan_with_copies()

    def plan_with_copies(self):
        """Copies make two hosts more even and send fewer bytes between them."""
        plans = []
        for copies in (0, 2):
            done = self.shoal.must("plan", "--model", self.model("mixtral"), "--ranks", "2", "--ep", "2", "--topology",
                                   '2 x "package:1 core:2 pu:1"', "--expert-load",
                                   self.work / "mixtral.steep.json", "--expert-copies", copies)
            lines = done.out.splitlines()
            even = next(line for line in lines if line.split()[:2] == (["with", "2"] if copies else ["by", "load"]))
            least = next(line for line in lines if "no places do better" in line)
            wire = next(line for line in lines if f"by the load, with {copies} copies" in line)
            sent = float(re.search(r"([0-9.]+) KB there", wire).group(1))
            plans.append([float(re.search(r"[0-9]+\.[0-9]+", text).group(0)) for text in (even, least)] + [sent])
        (dealt, dealt_least, dealt_sent), (copied, copied_least, copied_sent) = plans
        expect(1 <= copied_least <= copied < dealt and dealt_least <= dealt, str(plans))
        expect(copied_sent < dealt_sent, str(plans))


def main(shoal, work):
    case = Case(shoal, work)
    case.same_bytes()
    case.refusals()
    case.plan()


if __name__ == "__main__":
    main_of(lambda: main(*sys.argv[1:3]))
