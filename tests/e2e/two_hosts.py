#!/usr/bin/env python3
"""Tests jobs on two hosts, and on four: every kind of parallelism across the link, and a slow link.

usage: two_hosts.py SHOAL WORK_FOLDER CASE
  same       tp, pp, ep and dp across the link give the bytes of one rank
  slow_link  a link of 100 Mbit/s: the layout chosen by default is faster than the worst one; prints the speed of
             every layout of four ranks
  diagnose   the same link: shoal diagnose says how slow it is, and of which host; shoal bench saves its speed
  four       four hosts, of one and of two ranks: experts over all of them, sums over two and four
The hosts are network namespaces (hosts.py), which need root; without it the test is skipped.
lost_rank.py tests a lost link.
"""
import json
import re
import sys
from pathlib import Path

from hosts import Hosts
from program import (GOLDENS, HANGS_S, REPO, SKIPPED, Load, Shoal, expect, fresh_folder, hash_rows, main_of, run,
                     write_lines)

from generated_weights import checkpoint_of

RANKS = 4
LAYOUTS = {"tp 4": ["--tp", 4], "pp 2, stages on hosts of their own": ["--pp", 2, "--tp", 2],
           "pp 4": ["--pp", 4], "dp 4": ["--dp", 4, "--ep", 1], "dp 4, ep 4": ["--dp", 4, "--ep", 4],
           "tp 2, dp 2, ep 4": ["--tp", 2, "--dp", 2, "--ep", 4],
           "tp 2, pp 2 by default": ["--tp", 2, "--pp", 2, "--ep", 2]}
ACROSS = ["dp 4, ep 4", "tp 2, dp 2, ep 4"]  # experts on both hosts
# Families whose halves share more than mixtral's: positions of an index that a later layer reads, states of scans
# (granite4-moe: of groups that two ranks share), layers of experts alone, outputs of experts that are normed first.
HALVED = ["glm5", "nemotron-h-moe", "granite4-moe", "gemma4"]
# On four hosts, by ranks.
FOUR = {4: {"dp 4, ep 4": ["--dp", 4, "--ep", 4], "tp 4": ["--tp", 4], "pp 4": ["--pp", 4],
            "tp 2, dp 2, ep 4": ["--tp", 2, "--dp", 2, "--ep", 4]},
        8: {"dp 8, ep 8": ["--dp", 8, "--ep", 8], "tp 2, dp 4, ep 8": ["--tp", 2, "--dp", 4, "--ep", 8],
            "tp 4, dp 2, ep 8": ["--tp", 4, "--dp", 2, "--ep", 8],
            "tp 2, pp 2, dp 2, ep 4": ["--tp", 2, "--pp", 2, "--dp", 2, "--ep", 4]}}
RATE = "100mbit"
DEMO = REPO / "models" / "demo" / "demo.h5"
WIRE_LINE = re.compile(r"^Wire .*; ([0-9.]+) KB there as int8 values, ([0-9.]+) KB back", re.MULTILINE)
LAYOUT_LINE = re.compile(r"^layout: .*", re.MULTILINE)


class TwoHostsTest:
    def __init__(self, shoal, work, case):
        self.shoal = Shoal(shoal)
        self.work = Path(work)
        fresh_folder(self.work)
        self.case = case
        self.hosts = Hosts(self.work, 4 if case == "four" else 2)

    def generate(self, model, prompts, *flags, ranks=RANKS):
        """Runs on ranks of all hosts. Returns the output, the messages, and the job's own metrics."""
        output, metrics = self.work / "out.jsonl", self.work / "metrics.json"
        output.unlink(missing_ok=True)
        done = run([*self.hosts.launcher(ranks), self.shoal.path, "generate", "--model", model, "--input",
                    prompts, "--output", output, "--no-journal", "--threads", 1, "--metrics", metrics,
                    *flags], env={"OMP_WAIT_POLICY": "passive"})
        expect(done.status == 0, f"{flags}: {done}")
        return output, done.err, json.loads(metrics.read_text())

    def same_layouts(self, what, model, prompts, layouts, *flags):
        """Returns the metrics of each layout; the file of one rank's is WORK/metrics.WHAT.json."""
        whole, found = self.work / f"{what}.whole.jsonl", {}
        self.shoal.must("generate", "--model", model, "--input", prompts, "--output", whole, "--metrics",
                        self.work / f"metrics.{what}.json")
        for name in layouts:
            output, said, found[name] = self.generate(model, prompts, *LAYOUTS[name], *flags)
            expect("across hosts" in said or name != "tp 4", f"not on two hosts\n{said}")
            expect(("in two halves as asked" in said) == ("--overlap" in flags), f"{name}: halves\n{said}")
            expect(hash_rows(output) == hash_rows(whole), f"{name}: other bytes than one rank\n{said}")
            print(f"{what}, {name}: sha256 {hash_rows(output)}, as on one rank")
        return found

    def same(self):
        model, int8 = self.work / "mixtral.h5", self.work / "int8.h5"
        self.shoal.must("convert", GOLDENS / "mixtral" / "hf", model)
        self.same_layouts("mixtral", model, GOLDENS / "mixtral" / "prompts.jsonl", LAYOUTS)
        # Tokens go to the experts of the other host as int8 values.
        self.shoal.must("quantize", DEMO, int8, "--format", "int8", "--quiet")
        prompts = self.work / "in.jsonl"
        write_lines(prompts, [dict(custom_id=f"l{i}", prompt="MENENIUS:\nWhat " * (1 + i % 3), max_tokens=12)
                              for i in range(12)])
        found = self.same_layouts("demo in int8", int8, prompts, ACROSS)
        width, n_chosen = 128, 2
        plan = self.shoal.must("plan", "--model", int8, "--topology", '2 x "package:1 core:2 pu:1"', "--ranks", RANKS,
                               *LAYOUTS[ACROSS[0]], "--tp", 1)
        planned = [1e3 * float(kb) for kb in WIRE_LINE.search(plan.out).groups()]
        print(f"demo in int8, as planned: {planned[0]:.0f} and {planned[1]:.0f} bytes")
        for name in ACROSS:
            sent = found[name]["experts_between_hosts"]
            there, back = sent["dispatch_bytes_per_token"], sent["combine_bytes_per_token"]
            print(f"demo in int8, {name}: {there:.0f} bytes there and {back:.0f} back for a token and layer, "
                  f"{width * 4 * n_chosen / 2:.0f} each as a row of floats for each choice")
            # At most one row of int8 values and a scale; the heads of 64 bytes count in messages of few tokens.
            expect(0 < there < width * 2, f"{name}: {there} bytes a token")
            for sent, said in zip((there, back), planned):
                expect(0.5 * said - 50 < sent < 1.5 * said + 50, f"{name}: {sent} bytes a token, planned {said}")
        self.copies(int8, prompts, found)
        # Every step of two rows and more goes in halves that take turns.
        self.same_layouts("mixtral in halves", model, GOLDENS / "mixtral" / "prompts.jsonl", ACROSS, "--overlap", "on")
        longcat = self.work / "longcat.h5"  # its experts' results travel until the next layer's FFN
        self.shoal.must("convert", GOLDENS / "longcat-flash" / "hf", longcat)
        self.same_layouts("longcat in halves", longcat, GOLDENS / "longcat-flash" / "prompts.jsonl", ACROSS,
                          "--overlap", "on")
        self.same_layouts("demo in halves", int8, prompts, ACROSS, "--overlap", "on")
        for family in HALVED:
            self.family_in_halves(family)
        self.adapters()
        self.hidden_rows(longcat, GOLDENS / "longcat-flash" / "prompts.jsonl")

    def hidden_rows(self, model, prompts):
        """Hidden rows are saved while one half of a step computes and the other half's rows travel."""
        saving = ["--save-logprobs-k", 1, "--save-hidden", "0,1,-1,final", "--save-logprobs"]
        whole, found = self.work / "whole.h5", self.work / "found.h5"
        self.shoal.must("generate", "--model", model, "--input", prompts, "--output", self.work / "whole.jsonl",
                        *saving, whole)
        _, said, _ = self.generate(model, prompts, *LAYOUTS[ACROSS[1]], "--overlap", "on", *saving, found)
        expect("in two halves as asked" in said, said)
        expect(whole.read_bytes() == found.read_bytes(), "hidden rows in halves: other bytes than one rank")

    def adapters(self):
        """A x of row-parallel linears is summed over both hosts, for lines of several adapters and of none. Where
        rows travel to experts, adapters change the other half's attention and its shared experts meanwhile.
        """
        self.adapted("llama-gqa", ["attention", "all-linears"], ["tp 4"])
        names = ["latent", "latent-heads", "shared-experts", "parameters"]
        self.adapted("deepseek-v3", names, ACROSS, "--overlap", "on")
        self.adapted("deepseek-v3", names, ["tp 4"], "--ep", 1)  # ranks of both hosts share each expert

    def adapted(self, golden, names, layouts, *flags):
        model, plain, lines = (self.work / f"{golden}{end}" for end in (".h5", ".plain.jsonl", ".adapted.jsonl"))
        self.shoal.must("convert", checkpoint_of(GOLDENS / golden, self.work / f"{golden}-hf"), model)
        loaded, turns = [], [None, *names]
        for name in names:
            self.shoal.must("convert", GOLDENS.parent / "adapters" / name / "hf", self.work / f"{name}.h5")
            loaded += ["--adapter", f"{name}={self.work / name}.h5"]
        asked = [dict(custom_id=f"l{i}", prompt_token_ids=list(range(3 + i, 40 + 2 * i)), max_tokens=8, logprobs=1)
                 for i in range(9)]
        write_lines(plain, asked)
        write_lines(lines, [{**line, "adapter": turns[i % len(turns)]} for i, line in enumerate(asked)])
        hashes = []
        for prompts in (plain, lines):
            whole = self.work / "adapted.whole.jsonl"
            self.shoal.must("generate", "--model", model, "--input", prompts, "--output", whole, "--restart", *loaded)
            hashes.append(hash_rows(whole))
        expect(hashes[0] != hashes[1], "the adapters change nothing")
        for name in layouts:
            output, said, _ = self.generate(model, lines, *LAYOUTS[name], *flags, *loaded)
            expect(hash_rows(output) == hashes[1], f"{golden} with adapters, {name}: other bytes than one rank\n{said}")
            expect(("in two halves as asked" in said) == ("--overlap" in flags), f"{name}: halves\n{said}")
            print(f"{golden} with adapters, {name}: sha256 {hashes[1]}, as on one rank")

    def family_in_halves(self, family):
        """The two halves of a step cut a sequence of the family's longest golden prompt; the rows' log-probabilities
        tell apart what the tokens of a tiny model would not."""
        model, prompts = self.work / f"{family}.h5", self.work / f"{family}.jsonl"
        folder = GOLDENS / family
        self.shoal.must("convert", checkpoint_of(folder, self.work / f"{family}-hf"), model)
        tokens = max((json.loads(line)["prompt_token_ids"] for line in
                      (folder / "prompts.jsonl").read_text().splitlines()), key=len)
        chosen = json.loads((folder / "hf" / "config.json").read_text()).get("index_topk", 0)
        expect(len(tokens) // 2 > chosen, f"{family}: {len(tokens)} tokens; both halves need rows that choose of more "
               f"than {chosen} positions")
        write_lines(prompts, [dict(custom_id=f"l{i}", prompt_token_ids=tokens[i:], max_tokens=4, temperature=0,
                                   prompt_logprobs=1) for i in range(8)])
        self.same_layouts(f"{family} in halves", model, prompts, ACROSS[1:], "--overlap", "on")

    def copies(self, model, prompts, plain):
        """With copies of half of the experts fewer tokens go to the other host."""
        flags = ["--expert-load", self.work / "metrics.demo in int8.json", "--expert-copies", 4]
        found = self.same_layouts("demo with copies", model, prompts, ACROSS, *flags)
        for name in ACROSS:
            there = [m[name]["experts_between_hosts"]["dispatch_bytes_per_token"] for m in (plain, found)]
            even = [m[name]["expert_rows"]["max_over_mean"] for m in (plain, found)]
            print(f"{name}: {there[0]:.0f} bytes there without copies, {there[1]:.0f} with 4; the busiest "
                  f"rank {even[0]:.2f} and {even[1]:.2f} times the mean")
            expect(found[name]["layout"]["expert_copies"] == 4, str(found[name]["layout"]))
            expect(there[1] < 0.85 * there[0], f"{name}: copies save too few bytes")
        # Copies that follow the job's own counts, between two steps.
        found = self.same_layouts("demo replanned", model, prompts, ACROSS[:1], "--expert-copies", 4,
                                  "--expert-replan", 4)[ACROSS[0]]
        print(found["expert_replan"], found["experts_between_hosts"])
        expect(found["expert_replan"]["moves"] > 0, str(found["expert_replan"]))
        expect(found["experts_between_hosts"]["dispatch_bytes"] > 0, str(found))

    def four(self):
        model = self.work / "mixtral.h5"
        self.shoal.must("convert", GOLDENS / "mixtral" / "hf", model)
        prompts, whole = GOLDENS / "mixtral" / "prompts.jsonl", self.work / "whole.jsonl"
        self.shoal.must("generate", "--model", model, "--input", prompts, "--output", whole)
        for ranks, layouts in FOUR.items():
            for name, flags in layouts.items():
                output, said, metrics = self.generate(model, prompts, *flags, ranks=ranks)
                expect(hash_rows(output) == hash_rows(whole), f"{name}: other bytes than one rank\n{said}")
                sent = metrics.get("experts_between_hosts")
                expect(bool(sent) == (name != "pp 4"), f"{name}: sent {sent}")
                print(f"four hosts, {ranks} ranks, {name}: sha256 {hash_rows(output)}, as on one rank; "
                      f"sent {sent}")

    def slow_link(self):
        reason = self.hosts.limit(RATE)
        if reason:
            print(f"skipped: {reason}")
            return SKIPPED
        texts = [json.loads(line)["prompt"] for line in
                 (REPO / "models" / "demo" / "prompts.jsonl").read_text().splitlines()]
        prompts = self.work / "in.jsonl"
        write_lines(prompts, [dict(custom_id=f"l{i}", prompt=texts[i % len(texts)], max_tokens=24,
                                   temperature=0) for i in range(32)])
        seconds, hashes = {}, set()
        for name, flags in {"chosen": [], **LAYOUTS}.items():
            output, said, metrics = self.generate(DEMO, prompts, *flags)
            hashes.add(hash_rows(output))
            seconds[name] = metrics["wall_s"]
            layout = LAYOUT_LINE.search(said)
            print(f"{name}: {seconds[name]:.2f} s" +
                  (f"; {layout.group(0)}" if not flags and layout else ""))
        expect(len(hashes) == 1, "layouts differ in their bytes")
        worst = max(LAYOUTS, key=seconds.get)
        if seconds["chosen"] >= 0.8 * seconds[worst]:  # other work may have met one run and not the other
            seconds["chosen"] = min(seconds["chosen"], self.generate(DEMO, prompts)[2]["wall_s"])
            seconds[worst] = min(seconds[worst], self.generate(DEMO, prompts, *LAYOUTS[worst])[2]["wall_s"])
        expect(seconds["chosen"] < 0.8 * seconds[worst],
               f"chosen {seconds['chosen']:.2f} s, worst ({worst}) {seconds[worst]:.2f} s")
        print(f"over {RATE} the chosen layout takes {seconds['chosen'] / seconds[worst]:.2f} of the "
              f"worst one's time ({worst}), {seconds['chosen'] / min(seconds.values()):.2f} of the best's")

    def diagnose(self):
        reason = self.hosts.limit(RATE)
        if reason:
            print(f"skipped: {reason}")
            return SKIPPED
        with Load() as load:
            done = run([*self.hosts.launcher(2), self.shoal.path, "diagnose", "--threads", 1, "--json", "-"], HANGS_S)
        expect(done.status == 0, f"diagnose: {done}")
        said = json.loads(done.out)
        link = said["hosts"][1]["link_gbit"]
        expect(0.03 / load.slows(2) < link < 0.15, f"a link of {RATE}: {link} Gbit/s measured")
        slow = [f for f in said["findings"] if f["rule"] == "link-slow"]
        expect([f["host"] for f in slow] == [said["hosts"][1]["host"]], f"findings: {said['findings']}")
        print(f"{RATE}: {slow[0]['text']}")
        saved = self.work / "node.json"
        with Load() as load:
            done = run([*self.hosts.launcher(2), self.shoal.path, "bench", "--machine", "--threads", 1, "--save", saved],
                       HANGS_S)
        expect(done.status == 0, f"bench --save: {done}")
        node = json.loads(saved.read_text())
        slower = load.slows(2)
        expect(0.03e9 / slower < 8 * node["network_bytes_s"] < 0.15e9 and
               0 < node["network_s"] < 0.02 * slower,
               f"a link of {RATE}: {node['network_bytes_s']} bytes/s, {node['network_s']} s measured")
        expect(node["n_ranks"] == 1, f"one rank on each host: {node['n_ranks']}")

    def main(self):
        try:
            reason = self.hosts.up()
            if reason:
                print(f"skipped: {reason}")
                return SKIPPED
            return getattr(self, self.case)()
        finally:
            self.hosts.down()


if __name__ == "__main__":
    main_of(lambda: TwoHostsTest(*sys.argv[1:]).main())
