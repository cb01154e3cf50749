#!/usr/bin/env python3
"""Tests log-probabilities of given tokens: shoal score, and echo, on layouts and limits.

usage: score.py SHOAL WORK_FOLDER

The numbers of tests/golden/score.json are those of lm-evaluation-harness' own hf model
(tests/golden/make_score_goldens.py).
"""
import json
import random
import sys
from pathlib import Path

from program import GOLDENS, TESTS, Shoal, expect, fresh_folder, main_of, read_rows, write_lines

GOLDEN = TESTS / "golden" / "score.json"
MOST = 1e-4  # difference from torch's log-likelihoods, f32 weights
LAYOUTS = [(0, []), (0, ["--max-batch", "1", "--prefix-cache", "off"]), (4, ["--tp", "2", "--pp", "2"]),
           (2, ["--tp", "2", "--chunk", "5"]), (2, ["--dp", "2", "--step-tokens", "40"])]


def plain_sum(numbers):
    """From the left, in double precision; Python's own sum is more exact from 3.12 on."""
    total = 0.0
    for number in numbers:
        total += number
    return total


class ScoreTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(Path(work))
        self.golden = json.loads(GOLDEN.read_text())
        self.model = self.work / "model.h5"
        self.shoal.must("convert", GOLDENS / self.golden["model"] / "hf", self.model)
        self.path = self.work / "in.jsonl"

    def run_on(self, i, command, lines, flags=()):
        """The output of a command on layout i, and the run."""
        ranks, more = LAYOUTS[i]
        out = self.work / f"{command}.{i}.jsonl"
        write_lines(self.path, lines)
        done = self.shoal.must(command, "--model", self.model, "--input", self.path, "--output", out,
                               "--threads", "1", *more, *flags, ranks=ranks)
        return out.read_bytes(), done

    def same_on_all(self, command, lines, flags=()):
        """The output, which all layouts must give."""
        first, _ = self.run_on(0, command, lines, flags)
        for i in range(1, len(LAYOUTS)):
            found, _ = self.run_on(i, command, lines, flags)
            expect(found == first, f"{command} on {LAYOUTS[i]}: other bytes than on one rank")
        return [json.loads(line) for line in first.splitlines()]

    def goldens(self):
        """Pairs and texts give the harness' numbers, on every layout."""
        lines = [dict(case["line"]) for case in self.golden["cases"]]
        rows = self.same_on_all("score", lines, ["--max-model-len", self.golden["max_length"] + 1,
                                                 "--kv-dtype", "f32"])
        worst = n_cut = n_greedy = n_windows = 0
        for case, row in zip(self.golden["cases"], rows):
            expect("error" not in row, f"{case}: {row}")
            worst = max(worst, abs(row["loglikelihood"] - case["loglikelihood"]))
            expect(abs(row["loglikelihood"] - case["loglikelihood"]) <= MOST, f"{case}: {row}")
            expect(row.get("is_greedy") == case.get("is_greedy"), f"{case}: {row}")
            numbers, sums = row["logprobs"], 0.0
            for n in row.get("windows", [len(numbers)]):
                window, numbers = numbers[:n], numbers[n:]
                sums += plain_sum(window)
            expect(row["loglikelihood"] == sums and not numbers, f"not the sum: {row}")
            n_cut += row.get("cut_tokens", 0) > 0
            n_greedy += row.get("is_greedy", False)
            n_windows += len(row.get("windows", [])) > 1
        expect(n_cut > 0 and n_greedy > 0 and n_windows > 0, f"{n_cut} {n_greedy} {n_windows}")
        print(f"{len(rows)} numbers of the harness, at most {worst:.2e} away")

    def contexts_are_shared(self):
        """Four continuations of each long context, whose whole blocks come from the cache, have the
        log-probabilities of the pair's tokens scored as one prompt."""
        draw = random.Random(5)
        context = [draw.randrange(300) for _ in range(200)]
        pairs = [(context[:150 + 10 * k], [draw.randrange(300) for _ in range(3 + i)])
                 for k in range(4) for i in range(4)]
        rows = self.same_on_all("score", [{"context": c, "continuation": d} for c, d in pairs])
        whole = self.same_on_all("score", [{"prompt_token_ids": c + d} for c, d in pairs])
        for (c, d), row, all_of_it in zip(pairs, rows, whole):
            expect(row["logprobs"] == all_of_it["logprobs"][len(c):] and row["token_ids"] == d, f"{row}")
        metrics = self.work / "metrics.json"
        self.run_on(0, "score", [{"context": c, "continuation": d} for c, d in pairs],
                    ["--metrics", metrics, "--max-batch", "1"])
        hits = json.loads(metrics.read_text())["prefix_hit_tokens"]
        expect(hits >= 15 * 128, f"{hits} tokens from the prefix cache")

    def echoes(self):
        """An echo has the log-probabilities that prompt_logprobs and logprobs have, for each prompt
        of a list. With max_tokens 0 it has those of the prompt alone."""
        prompts = ["the quick brown fox", "a", [5, 17, 300, 2], "jumps over the lazy dog " * 30]

        def body(prompt, **more):
            return {"method": "POST", "url": "/v1/completions",
                    "body": {"prompt": prompt, "temperature": 0, "max_tokens": 3, **more}}
        lines = [body(p, echo=True, logprobs=2) for p in prompts]
        lines += [body(p, prompt_logprobs=2, logprobs=2) for p in prompts]
        lines += [body(p, echo=True, logprobs=2, max_tokens=0) for p in prompts]
        lines += [body(prompts[:2], echo=True, logprobs=2, n=2), body([prompts[2]], echo=True)]
        rows = [row["response"]["body"] for row in self.same_on_all("generate", lines)]
        n = len(prompts)
        for i, prompt in enumerate(prompts):
            echo, plain, bare = (rows[k * n + i] for k in range(3))
            given, answer = plain["prompt_logprobs"], plain["choices"][0]["logprobs"]
            found = echo["choices"][0]["logprobs"]
            given_alone = [t and t["logprob"] for t in given]
            expect(found["token_logprobs"] == given_alone + answer["token_logprobs"], f"{echo}")
            expect(found["top_logprobs"][len(given):] == answer["top_logprobs"], f"{echo}")
            expect(found["top_logprobs"][0] is None, f"{echo}")
            for tops, token in zip(found["top_logprobs"][1:], given[1:]):
                expect(max(tops.values()) == token["top"][0][1], f"{tops} {token}")
            expect(bare["choices"][0]["logprobs"]["token_logprobs"] == given_alone, f"{bare}")
            expect(bare["usage"]["completion_tokens"] == 0, f"{bare}")
            begin = prompt if isinstance(prompt, str) else rows[-1]["choices"][0]["text"][:-1]
            expect(echo["choices"][0]["text"].startswith(begin[:8]), f"{echo}")
            expect(len(found["text_offset"]) == len(found["tokens"]), f"{echo}")
        both = rows[3 * n]["choices"]
        expect([c["index"] for c in both] == [0, 1, 2, 3], f"{both}")
        for i, choice in enumerate(both):
            expect({**choice, "index": 0} == rows[i // 2]["choices"][0], f"{choice}")

    def resumed(self):
        """A job of pairs that was ended in the middle goes on to the same bytes."""
        lines = [dict(case["line"]) for case in self.golden["cases"]] * 8
        whole, _ = self.run_on(0, "score", lines)
        out = self.work / "resumed.jsonl"
        write_lines(self.path, lines)
        for failpoint in (["--failpoint", "step:9"], []):
            done = self.shoal("score", "--model", self.model, "--input", self.path, "--output", out,
                              "--max-batch", "3", *failpoint, journal=True)
            expect((done.status == 0) == (not failpoint), f"{failpoint}: {done}")
            expect(len(out.read_bytes()) < len(whole) or not failpoint, "it was not killed")
        expect(out.read_bytes() == whole, "resumed: other bytes")
        read_rows(out)

    def run(self):
        self.goldens()
        self.contexts_are_shared()
        self.echoes()
        self.resumed()


if __name__ == "__main__":
    main_of(ScoreTest(*sys.argv[1:]).run)
