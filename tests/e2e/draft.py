#!/usr/bin/env python3
"""Tests --draft: the same bytes with and without a draft model, whatever it proposes.

usage: draft.py SHOAL WORK_FOLDER
The model is the demo. Draft models: the demo itself, whose drafts are nearly all right, at any temperature; the demo
in int4; and a small one of random weights, whose drafts are wrong. On one rank, tp 2, pp 2 and dp 2, with hardly any
KV blocks, killed and resumed; the lines are those of speculate.py, with everything that affects a draw.
"""
import json
import random
import re
import shutil
import struct
import sys
from pathlib import Path

from forecast import node
from program import GOLDENS, Shoal, expect, fresh_folder, main_of, write_lines
from speculate import DEMO, LAYOUTS, MODEL_LEN, make_lines

HF = DEMO.parent  # config and tokenizer of the demo
WIDTH, FFN, VOCAB = 32, 64, 2048
N_LINES = 24  # each kind twice


def random_tensors(draw, vocab):
    """The tensors of a Llama of one layer: name, shape and values."""
    shapes = {"embed_tokens.weight": (vocab, WIDTH), "norm.weight": (WIDTH,)}
    for name in ("q", "k", "v", "o"):
        shapes[f"layers.0.self_attn.{name}_proj.weight"] = (WIDTH, WIDTH)
    shapes |= {"layers.0.mlp.gate_proj.weight": (FFN, WIDTH), "layers.0.mlp.up_proj.weight": (FFN, WIDTH),
               "layers.0.mlp.down_proj.weight": (WIDTH, FFN), "layers.0.input_layernorm.weight": (WIDTH,),
               "layers.0.post_attention_layernorm.weight": (WIDTH,)}
    for name, shape in shapes.items():
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        yield f"model.{name}", shape, [draw.gauss(0, 1) for _ in range(n)]


def write_random_model(folder, vocab=VOCAB):
    """Writes a model of random weights with the demo's tokenizer."""
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=WIDTH, intermediate_size=FFN,
                  num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=vocab,
                  max_position_embeddings=256, rms_norm_eps=1e-6, hidden_act="silu", tie_word_embeddings=True,
                  rope_theta=10000.0, torch_dtype="float32", eos_token_id=vocab - 1)
    fresh_folder(folder)
    header, blob = {}, b""
    for name, shape, values in random_tensors(random.Random(7), vocab):
        header[name] = dict(dtype="F32", shape=shape, data_offsets=[len(blob), len(blob) + 4 * len(values)])
        blob += struct.pack(f"<{len(values)}f", *values)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + blob)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(HF / name, folder / name)
    return folder


class DraftTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(Path(work))
        self.output, self.report = self.work / "out.jsonl", self.work / "report.json"
        self.int4, self.bad = self.work / "int4.h5", self.work / "random.h5"
        write_lines(self.work / "in.jsonl", make_lines()[:N_LINES])

    def make_models(self):
        self.shoal.must("quantize", DEMO, self.int4, "--format", "int4", "--quiet")
        self.shoal.must("convert", write_random_model(self.work / "hf"), self.bad)

    def argv(self, *flags, lines="in.jsonl"):
        return ["generate", "--model", DEMO, "--input", self.work / lines, "--output", self.output, "--report",
                self.report, "--max-model-len", MODEL_LEN, "--threads", 1, "--result-cache", "off", *flags]

    def run(self, *flags, ranks=0, lines="in.jsonl"):
        """The output's bytes and the job's report."""
        done = self.shoal.must(*self.argv(*flags, "--restart", lines=lines), ranks=ranks,
                               env={"OMP_WAIT_POLICY": "passive"})
        found = json.loads(self.report.read_text())
        says = re.search(r"draft model: \d+ of \d+ tokens right", done.err) is not None
        names = re.search(r"lead: [\d.]+ us .*, [\d.]+ us for the draft model", done.err) is not None
        expect(says == (found["model_drafts"] > 0) and names == (says and ranks > 1), done.err[-2000:])
        found["advice"] = re.findall(r"advice: (.*)", done.err)
        return self.output.read_bytes(), found

    def check(self, name, base, draft, *flags, ranks=0):
        """The rows are `base`. Returns the fraction of the draft model's tokens that were right,
        and the report."""
        rows, found = self.run("--draft", draft, *flags, ranks=ranks)
        n, n_right = found["model_drafts"], found["right_model_drafts"]
        print(f"{name}: {n_right} of {n} right, {found['steps']} steps, {found['preemptions']} preemptions")
        expect(rows == base, f"{name}: other bytes than without drafts")
        expect(n_right <= found["right_drafts"] <= found["drafts"] and n <= found["drafts"], f"{name}: {found}")
        return n_right / n if n > 0 else 0, found

    def check_layouts(self, base, few):
        for name, (flags, ranks) in LAYOUTS.items():
            drafts = [(self.int4, "int4"), (DEMO, "itself"), (self.bad, "random")]
            for draft, what in drafts[:3 if ranks == 0 else 1]:
                part, found = self.check(f"{name}, {what}", base, draft, "--speculate", 4, *flags, *few, ranks=ranks)
                expect(found["model_drafts"] > 300 and found["drafts"] == found["model_drafts"], f"{name}: {found}")
                expect(part > 0.5 if what == "itself" else part < 0.1 if what == "random" else part > 0.25,
                       f"{name}, {what}: {part} right")
            self.check(f"{name}, auto", base, self.int4, *flags, *few, ranks=ranks)

    def check_itself(self):
        """Without penalties and ends, the drafts of the model itself are right at any temperature: it draws as the
        model does."""
        lines = [dict(custom_id=f"t{i}", prompt="ROMEO:\nI think", max_tokens=60, ignore_eos=True, seed=i,
                      temperature=i % 3 / 2, top_p=1 - i % 2 / 10) for i in range(12)]
        write_lines(self.work / "plain.jsonl", lines)
        base, off = self.run("--speculate", "off", "--max-batch", 3, lines="plain.jsonl")
        rows, found = self.run("--draft", DEMO, "--speculate", 5, "--max-batch", 3, lines="plain.jsonl")
        expect(rows == base, "other bytes with the model itself")
        expect(found["model_drafts"] > 500 and found["right_model_drafts"] > 0.98 * found["model_drafts"],
               f"{found['right_model_drafts']} of {found['model_drafts']} right")
        expect(found["steps"] * 4 < off["steps"], f"{found['steps']} steps, {off['steps']} without")
        expect(any("draft model (--draft) computes for" in text for text in found["advice"]), f"{found['advice']}")

    def check_resume(self, base):
        """Killed with a draft model and resumed without one, or with another one: the journal keeps no draft
        model. Commits go by the clock, so it tries later and later commits until a kill leaves
        something to resume.
        """
        few = ["--max-batch", 3, "--checkpoint-tokens", 5]
        ways = [["--draft", DEMO, "--speculate", 3], [], ["--draft", self.bad, "--speculate", 2], ["--draft", self.int4]]
        for first, then in zip(ways, ways[1:] + ways[:1], strict=True):
            for commit in range(2, 30):
                done = self.shoal(*self.argv(*first, *few, "--restart", "--failpoint", f"journal_write:{commit}"),
                                  journal=True)
                expect(done.status != 2, f"refused: {done}")
                if done.status == 0:  # the clock left time for fewer commits
                    expect(self.output.read_bytes() == base, f"other bytes with {first}")
                    break
                self.shoal.must(*self.argv(*then, *few), journal=True)
                found = json.loads(self.report.read_text())
                expect(self.output.read_bytes() == base, f"other bytes after a kill with {first} and {then}")
                if found["resumed_rows"] + found["resumed_tokens"] > 0:
                    break
            else:
                raise AssertionError("nothing was resumed")
        audit = self.shoal.must(*self.argv("--draft", DEMO, "--speculate", 3, "--audit", 9), journal=True)
        expect("0 differ" in audit.out, audit.out)

    def refused(self, wanted, *flags, status=2):
        done = self.shoal(*self.argv(*flags, "--restart"))
        expect(done.status == status and wanted in done.err, f"expected '{wanted}': {done}")

    def check_refusals(self):
        for way in ("off", "ngram", 0):
            self.refused("expected --speculate auto or a number", "--draft", DEMO, "--speculate", way)
        self.refused("not with --capacity-factor", "--draft", DEMO, "--capacity-factor", 1)
        self.refused(f"--draft {HF}: expected a checkpoint of shoal's, found a folder", "--draft", HF, status=3)
        self.check_memory()
        self.check_other_tokens()
        for golden, wanted in [("qwen3-next", "recurrent layers"), ("llama-gqa", "token 256: expected ")]:
            self.shoal.must("convert", GOLDENS / golden / "hf", self.work / f"{golden}.h5")
            self.refused(wanted, "--draft", self.work / f"{golden}.h5")

    def needed_mib(self, *flags):
        """The memory that a job asks for when it gets hardly any."""
        done = self.shoal(*self.argv(*flags, "--restart", "--memory", "1M"))
        return int(re.search(r"needs at least (\d+) MiB", done.err).group(1))

    def check_memory(self):
        """A bound that is enough for the model alone is refused with the draft model."""
        alone, both = self.needed_mib(), self.needed_mib("--draft", DEMO)
        expect(both > alone + 4, f"{alone} MiB alone, {both} with a draft model")
        bound = ["--memory", f"{(alone + both) // 2}M"]
        self.run(*bound)
        self.refused("a rank needs at least ", "--draft", DEMO, *bound)

    def check_dry_run(self):
        """A dry run checks the draft model's file and tokens, then leaves the draft model out."""
        dry = ["--dry-run", "--draft"]
        done = self.shoal.must(*self.argv("--restart", *dry, DEMO))
        expect("the draft model (--draft) is left out" in done.err, done.err)
        self.refused("token 256: expected ", *dry, self.work / "llama-gqa.h5")
        self.refused("missing.h5", *dry, self.work / "missing.h5", status=3)

    def check_late(self):
        """Text that the draft model has not computed yet goes through it 256 tokens at a time,
        without drafts meanwhile."""
        for n_prompt, n_drafts in ((250, 1), (300, 0)):
            line = dict(custom_id="a", prompt=[5 + i % 90 for i in range(n_prompt)], max_tokens=3, ignore_eos=True)
            write_lines(self.work / "long.jsonl", [line])
            base, _ = self.run("--speculate", "off", lines="long.jsonl")
            rows, found = self.run("--draft", DEMO, "--speculate", 4, lines="long.jsonl")
            expect(rows == base and found["model_drafts"] == n_drafts, f"{n_prompt} tokens: {found['model_drafts']}")
            lines = [line | dict(max_tokens=9, custom_id=f"{i}", seed=i) for i in range(6)]
            write_lines(self.work / "long.jsonl", lines)
            base, _ = self.run("--speculate", "off", lines="long.jsonl")
            rows, found = self.run("--draft", DEMO, "--speculate", 2, lines="long.jsonl")
            expect(rows == base and found["model_drafts"] > 0, f"6 of {n_prompt} tokens: {found['model_drafts']}")

    def check_many(self, base):
        """More sequences, in two groups, than the draft model has room for: the others get no drafts."""
        _, found = self.check("many", base, DEMO, "--pp", 2, "--speculate", 2, "--max-batch", 24, ranks=2)
        expect(found["model_drafts"] > 0, "no drafts")

    def check_other_tokens(self):
        """A token that differs is named. With a tokenizer, more ids count as padding; without one
        the number must be equal."""
        hf, draft = write_random_model(self.work / "other"), self.work / "other.h5"
        tokenizer = hf / "tokenizer.json"
        text = tokenizer.read_text(encoding="utf-8")
        ids = json.loads(text)["model"]["vocab"]
        a, b = sorted(token for token in ids if len(token) == 1)[:2]
        swapped = json.loads(text)
        swapped["model"]["vocab"] |= {a: ids[b], b: ids[a]}
        tokenizer.write_text(json.dumps(swapped), encoding="utf-8")
        self.shoal.must("convert", hf, draft)
        self.refused(f"token {min(ids[a], ids[b])}: expected ", "--draft", draft)
        tokenizer.unlink()
        self.shoal.must("convert", hf, draft)
        self.run("--draft", draft, "--speculate", 1)
        write_random_model(hf, vocab=VOCAB + 64)
        self.shoal.must("convert", hf, draft)
        _, found = self.run("--draft", draft, "--speculate", 1)
        expect(found["model_drafts"] > 100, f"{found['model_drafts']} drafts of a padded vocabulary")
        tokenizer.unlink()
        self.shoal.must("convert", hf, draft)
        self.refused("expected a vocabulary of 2048 ids, as in the model, found 2112", "--draft", draft)

    def check_plan(self):
        """A plan counts the draft model's memory on rank 0."""
        done = self.shoal.must("plan", "--model", DEMO, "--draft", self.bad, "--ranks", 2)
        expect("rank 0 alone also holds" in done.out, done.out)
        plain = self.shoal("plan", "--model", DEMO, "--memory", "64M")
        done = self.shoal("plan", "--model", DEMO, "--memory", "64M", "--draft", DEMO)
        expect((plain.status, done.status) == (0, 2), f"{plain}\n{done}")
        for wanted, flags in [("recurrent layers", ["--model", self.work / "qwen3-next.h5", "--draft", DEMO]),
                              ("--draft a.gguf: expected ", ["--model", DEMO, "--draft", "a.gguf"])]:
            done = self.shoal("plan", *flags)
            expect(done.status != 0 and wanted in done.err, f"expected '{wanted}': {done}")

    def check_forecasts(self):
        """A forecast counts the draft model's memory, and says that it counts nothing else of it."""
        nodes, lines = self.work / "node.json", self.work / "ids.jsonl"
        version = re.search(r"\d+\.\d+\.\d+", self.shoal.must("--version").out)[0]
        nodes.write_text(json.dumps(node(version)))
        write_lines(lines, [dict(custom_id=f"{i}", prompt_token_ids=[5, 6, 7], max_tokens=9) for i in range(64)])
        plan = ["plan", "--model", DEMO, "--nodes", nodes, "--input", lines, "--tp", 1, "--pp", 1]
        alone, both = (self.shoal.must(*plan, *flags) for flags in ([], ["--draft", DEMO]))
        says = "the draft model (--draft) is counted with its memory alone"
        expect(says in both.out and says not in alone.out, f"{alone}\n{both}")
        row, more = (re.search(r"^ +1 +2 +2x1x1 .*$", done.out, re.M)[0] for done in (alone, both))
        expect(row != more and row.split()[:9] == more.split()[:9], f"{row}\n{more}")
        done = self.shoal(*plan, "--draft", self.work / "qwen3-next.h5")
        expect(done.status == 2 and "recurrent layers" in done.err, str(done))
        done = self.shoal.must(*self.argv("--draft", DEMO, "--speculate", 2, "--nodes", nodes, "--restart"))
        expect("leaves out the draft model's time" in done.err and
               re.search(r"forecast: \d+\.\d+ s of the measured time are the draft model's", done.err), done.err)

    def main(self):
        self.make_models()
        few = ["--max-batch", 2]
        base, _ = self.run("--speculate", "off", *few)
        rows = [json.loads(line) for line in base.splitlines()]
        expect(len(rows) == N_LINES and not any("error" in r for r in rows), "rows")
        self.check_layouts(base, few)
        _, found = self.check("tight", base, DEMO, "--speculate", 4, "--kv-blocks", 5, "--chunk", 30)
        expect(found["preemptions"] > 0, "no preemptions")
        self.check("long drafts", base, self.int4, "--speculate", 31, "--chunk", 7, "--prefix-cache", "off", *few)
        self.check_many(base)
        self.check_late()
        self.check_itself()
        self.check_resume(base)
        self.check_refusals()
        self.check_dry_run()
        self.check_plan()
        self.check_forecasts()


if __name__ == "__main__":
    main_of(DraftTest(*sys.argv[1:3]).main)
