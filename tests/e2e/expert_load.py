#!/usr/bin/env python3
"""Tests --expert-load: experts are placed by the loads of an earlier job, the output's bytes stay
the same, and files that do not match are refused.

usage: expert_load.py SHOAL WORK_FOLDER
Models with a bias per expert, with dense layers, and quantized. Loads come from a run on one rank;
where the experts of a real run would hardly move, they are replaced by steep ones.
"""
import json
import random
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
                for load in (found, steep):
                    again = self.work / "again.metrics.json"
                    done, placed = self.generate(
                        model, f"{model}.{layout}.{load.stem}",
                        [*flags, "--expert-load", load, "--metrics", again], ranks)
                    expect(placed == rows, f"{model}, {layout}, {load.name}: other bytes")
                    expect("experts stand by the load" in done.err, str(done))
                    # an expert keeps its id wherever it is placed
                    expect(json.loads(again.read_text())["expert_load"] ==
                           json.loads(found.read_text())["expert_load"], f"{model}, {layout}: load")

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

    def plan(self):
        """With a steep load, placing by load is more even than placing by id, and plan shows it
        for each group of ranks.
        """
        done = self.shoal.must("plan", "--model", self.model("mixtral"), "--ranks", "2", "--ep",
                               "2", "--expert-load", self.work / "mixtral.metrics.json")
        lines = [line.split() for line in done.out.splitlines()]
        by = {line[1]: [float(word.rstrip(";,")) for word in line if word[0].isdigit()]
              for line in lines if line[:1] == ["by"]}
        expect(set(by) == {"id", "load"} and all(len(v) == 4 for v in by.values()), done.out)
        expect(1 <= by["load"][0] <= by["id"][0] and by["load"][1] <= by["id"][1], str(by))
        expect(by["load"][0] < by["id"][0], f"nothing became more even: {by}")


def main(shoal, work):
    case = Case(shoal, work)
    case.same_bytes()
    case.refusals()
    case.plan()


if __name__ == "__main__":
    main_of(lambda: main(*sys.argv[1:3]))
