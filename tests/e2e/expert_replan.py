#!/usr/bin/env python3
"""Tests --expert-replan: a running job counts which experts its tokens choose, and moves experts and
their copies between two steps. The output's bytes stay those of one rank, and ranks become more
even, counted in rows.

usage: expert_replan.py SHOAL WORK_FOLDER
The prompts repeat a few tokens, so a few experts have most of the rows.
"""
import json
import sys
from pathlib import Path

from program import GOLDENS, Shoal, expect, fresh_folder, main_of, write_lines

MOVED = "experts placed anew after"
# model, layout, ranks, copies: biases of experts (gpt-oss), fp8 as int8, four-bit values, stages with steps in flight,
# and an adapter of the experts in every second line
CASES = [("mixtral", ["--ep", "2"], 2, 3), ("mixtral", ["--ep", "4"], 4, 4),
         ("mixtral", ["--pp", "2", "--ep", "2"], 4, 2), ("mixtral", ["--dp", "2", "--tp", "2", "--ep", "2"], 4, 0),
         ("mixtral-lora", ["--dp", "2", "--ep", "2"], 2, 2), ("mixtral-int4", ["--dp", "2", "--ep", "2"], 2, 2), ("gpt-oss", ["--ep", "2"], 2, 2),
         ("deepseek-v3-fp8", ["--dp", "2", "--ep", "2"], 2, 2)]
FLAGS = {"deepseek-v3-fp8": ["--fp8-activations", "int8"]}


class Case:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), Path(work)
        fresh_folder(self.work)
        self.input = self.work / "in.jsonl"
        words = ["a a a a a a a a", "the the the the", "a b a b a b a b"]
        lines = [{"custom_id": f"r{i}", "prompt": words[i % 3], "max_tokens": 12 + i,
                  "temperature": 0 if i % 2 else 0.7} for i in range(9)]
        write_lines(self.input, lines)
        self.adapted, self.adapter = self.work / "adapted.jsonl", self.work / "adapter.h5"
        write_lines(self.adapted, [{**line, "adapter": "a"} if i % 2 else line for i, line in enumerate(lines)])
        self.shoal.must("convert", GOLDENS.parent / "adapters" / "each-expert" / "hf", self.adapter)
        self.whole = {}

    def model(self, name):
        path = self.work / f"{name}.h5"
        if path.exists():
            return path
        if name.endswith("-int4"):
            self.shoal.must("quantize", self.model(name.removesuffix("-int4")), path, "--format", "int4", "--quiet")
        else:
            self.shoal.must("convert", GOLDENS / name.removesuffix("-lora") / "hf", path)
        return path

    def generate(self, model, tag, *flags, ranks=0, prompts=None, must=True, journal=False):
        output, found = self.work / f"{tag}.jsonl", self.work / f"{tag}.metrics.json"
        call = self.shoal.must if must else self.shoal
        if model.endswith("-lora"):
            prompts, flags = self.adapted, (*flags, "--adapter", f"a={self.adapter}")
        done = call("generate", "--model", self.model(model), "--input", prompts or self.input,
                    "--output", output, "--kv-blocks", "40", "--seed", "3", "--max-batch", "4", "--metrics", found,
                    *FLAGS.get(model, []), *flags, ranks=ranks, journal=journal)
        rows = output.read_bytes() if output.exists() else None
        return done, rows, json.loads(found.read_text()) if done.status == 0 else None

    def one_rank(self, model):
        if model not in self.whole:
            self.whole[model] = self.generate(model, f"{model}.one")[1]
        return self.whole[model]

    def same_bytes(self):
        for model, layout, ranks, copies in CASES:
            what = f"{model} {' '.join(layout)}, {copies} copies"
            done, rows, metrics = self.generate(model, "replanned", *layout, "--expert-copies", copies,
                                                "--expert-replan", "4", ranks=ranks)
            expect(rows == self.one_rank(model), f"{what}: other bytes than one rank")
            expect(done.err.count(MOVED) == 1, f"{what}: {done}")
            found = metrics["expert_replan"]
            print(what, found)
            expect(found["steps"] == 4 and found["moves"] > 0 and found["read_bytes"] > 0, f"{what}: {found}")
            expect(1 <= found["counted_after"] < found["counted_before"], f"{what}: {found}")
            expect(metrics["layout"]["expert_copies"] == copies, str(metrics["layout"]))

        expect(self.one_rank("mixtral-lora") != self.one_rank("mixtral"), "the adapter changes nothing")

    def ranks_become_even(self):
        """With a capacity factor ranks do not compute rows for each other's experts, so the rows show the places. A
        factor that drops nothing changes no byte; a smaller one drops the same choices wherever the experts are.
        """
        prompts = self.work / "cats.jsonl"
        write_lines(prompts, [{"custom_id": f"r{i}", "prompt": "the cat " * 30 + str(i), "max_tokens": 2,
                               "temperature": 0} for i in range(40)])
        flags = ["--prefix-cache", "off", "--step-tokens", "128"]
        _, whole, _ = self.generate("mixtral", "even.one", *flags, prompts=prompts)
        flags += ["--ep", "4", "--expert-copies", "3", "--capacity-factor"]
        for factor in ("64", "1"):
            _, plain, before = self.generate("mixtral", "plain", *flags, factor, "--expert-replan", "100000",
                                             ranks=4, prompts=prompts)
            done, rows, after = self.generate("mixtral", "even", *flags, factor, "--expert-replan", "4", ranks=4,
                                              prompts=prompts)
            expect(rows == plain and MOVED in done.err, f"capacity factor {factor}: other bytes")
            expect((after["dropped"] > 0) == (factor == "1") and after["dropped"] == before["dropped"],
                   f"{after['dropped']} dropped, {before['dropped']} without")
            expect("expert_replan" not in before, str(before))
            if factor == "1":
                continue
            expect(rows == whole, "a capacity factor of 64: other bytes than one rank")
            found, never = after["expert_replan"], before["expert_rows"]["max_over_mean"]
            print(f"rows of the busiest rank: {found}; {never} without a new plan")
            for less in (found["max_over_mean_before"], never):
                expect(1 <= found["max_over_mean_after"] < less - 0.3, str(found))
            expect(found["max_over_mean_after"] < 1.2 and found["counted_after"] < 1.1, str(found))

    def replaces_a_wrong_load(self):
        """The counts of another job mislead; those of this one correct it."""
        _, _, metrics = self.generate("mixtral", "counted", "--ep", "2", ranks=2)
        metrics["expert_load"] = [[max(layer) - n for n in layer] for layer in metrics["expert_load"]]
        wrong = self.work / "wrong.json"
        wrong.write_text(json.dumps(metrics))
        _, rows, metrics = self.generate("mixtral", "corrected", "--ep", "2", "--expert-load", wrong, "--expert-copies",
                                         "2", "--expert-replan", "3", ranks=2)
        found = metrics["expert_replan"]
        expect(rows == self.one_rank("mixtral"), "a wrong load: other bytes than one rank")
        expect(found["moves"] > 0 and found["counted_after"] < found["counted_before"] - 0.05, str(found))

    def resumes(self):
        """An expert that cannot be read ends the job; the same job then goes on, on other ranks, with the places that
        its counts give. How many rows the journal has by then depends on the time that the first
        steps took."""
        flags = ["--expert-replan", "12", "--checkpoint-tokens", "4"]
        done, _, _ = self.generate("mixtral", "resumed", "--ep", "2", *flags, "--failpoint", "load:2:EIO",
                                   ranks=2, must=False, journal=True)
        expect(done.status == 76 and "--expert-replan" in done.err and "Input/output error" in done.err, str(done))
        expect(MOVED not in done.err, str(done))
        done, rows, _ = self.generate("mixtral", "resumed", "--ep", "4", *flags, ranks=4, journal=True)
        expect(rows == self.one_rank("mixtral") and f"{self.work}/resumed.jsonl.journal.experts" in done.err,
               f"resumed: {done}")

    def topics(self, name, words):
        """A file of prompts: 60 of each word. They are computed in this order."""
        path = self.work / f"{name}.in.jsonl"
        write_lines(path, [{"custom_id": f"{k}.{i}", "prompt": f"{word} " * 60 + str(i), "max_tokens": 2,
                            "temperature": 0.7 * (i % 2)} for k, word in enumerate(words) for i in range(60)])
        return path

    def moves_again(self):
        """Text that changes in mid-job moves experts again, once its tokens have been counted; text that stays the
        same does not. A job that is killed after the change goes on with other ranks.
        """
        flags = ["--prefix-cache", "off", "--step-tokens", "128", "--order", "input"]
        layouts = [(["--ep", "2"], 2), (["--ep", "4", "--expert-copies", "2"], 4),
                   (["--pp", "2", "--ep", "2", "--expert-copies", "1"], 4)]
        for name, words, n_most in (("same", ["the", "the"], 1), ("change", ["the", "king", "a b c"], 16)):
            prompts = self.topics(name, words)
            whole = self.generate("mixtral", f"{name}.one", *flags, prompts=prompts)[1]
            for layout, ranks in layouts:
                done, rows, metrics = self.generate("mixtral", name, *flags, *layout, "--expert-replan", "8",
                                                    ranks=ranks, prompts=prompts)
                each = metrics["expert_replan"]["each"]
                print(name, layout, *each, sep="\n  ")
                expect(rows == whole, f"{name}, {layout}: other bytes than one rank")
                expect((len(each) > 1) == (n_most > 1) and len(each) <= n_most, f"{name}, {layout}: {each}")
                expect(done.err.count(MOVED) == len(each), str(done))
                expect(all(e["moves"] > 0 and e["counted_after"] < e["counted_before"] for e in each), str(each))
                expect({**each[0], "max_over_mean_after": 0} == {
                    **{k: v for k, v in metrics["expert_replan"].items() if k != "each"}, "max_over_mean_after": 0},
                    str(metrics["expert_replan"]))
        expect(each[0]["steps"] == 8 and all(e["steps"] % 8 == 0 for e in each), str(each))
        for at, again in ((60, layouts[1]), (130, layouts[0]), (130, ([], 0))):
            self.generate("mixtral", "killed", *flags, "--ep", "2", "--expert-replan", "8", "--restart", "--failpoint",
                          f"step:{at}", ranks=2, prompts=prompts, must=False, journal=True)
            done, rows, _ = self.generate("mixtral", "killed", *flags, *again[0], "--expert-replan", "8",
                                          ranks=again[1], prompts=prompts, journal=True)
            expect(rows == whole, f"killed at step {at}, {again}: other bytes")
            expect(("killed.jsonl.journal.experts" in done.err) == (again[1] > 0), str(done))

    def refusals(self):
        for model, flags, word in (("llama-gqa", [], "dense"),
                                   ("mixtral", ["--weights", "stream"], "--weights resident"),
                                   ("mixtral", ["--expert-copies", "2"], "--expert-load")):
            replan = [] if "--expert-copies" in flags else ["--expert-replan", "2"]
            done, _, _ = self.generate(model, "refused", "--tp", "2", *flags, *replan, ranks=2, must=False)
            expect(done.status == 2 and word in done.err and "--expert-replan" in done.err, str(done))


def main(shoal, work):
    case = Case(shoal, work)
    case.same_bytes()
    case.ranks_become_even()
    case.replaces_a_wrong_load()
    case.resumes()
    case.moves_again()
    case.refusals()


if __name__ == "__main__":
    main_of(lambda: main(*sys.argv[1:3]))
