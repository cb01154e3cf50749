#!/usr/bin/env python3
"""Tests --save-hidden: transformers' hidden states; the same rows for a token whether it was given or generated, and
the same bytes on every layout, batch and chunk, however often the job was killed; what cannot be saved is refused.

usage: hidden.py SHOAL DUMP_LOGPROBS WORK_FOLDER
"""
import json
import struct
import sys
import time

from program import GOLDENS, REPO, TESTS, Shoal, expect, fresh_folder, main_of, run, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
N_LAYERS, WIDTH = 4, 128  # of the demo
LAYERS = "1,-1,final"
N_VALUES = 3 * WIDTH
MOST = 2e-5  # difference from transformers' values, relative to a row's largest; f32 weights
LINES = [dict(custom_id="plain", prompt="Fish swim in", max_tokens=9, temperature=0),
         dict(custom_id="several", prompt="A shoal of small fish swims in the deep sea. " * 9, max_tokens=7, n=3,
              temperature=1, seed=4),
         dict(custom_id="same", prompt="The sea is", max_tokens=90, n=2, temperature=0, ignore_eos=True),
         dict(custom_id="wrong", prompt="an error row", top_p=3),
         dict(custom_id="long", prompt="Once upon a time", max_tokens=80, temperature=0.7, ignore_eos=True, seed=9),
         dict(custom_id="repeats", prompt="one two three one two three one two three", max_tokens=40, temperature=0),
         dict(custom_id="given", prompt_token_ids=[5, 6, 7, 8], max_tokens=0, prompt_logprobs=0),
         dict(custom_id="one", prompt_token_ids=[5], max_tokens=1)]
FLAGS = ["--save-logprobs-k", 1, "--save-hidden", LAYERS, "--save-hidden-type", "f32"]
KILLS = ("logprobs_write:2", "journal_write:1", "logprobs_fsync:1", "logprobs_file:1")


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def bf16(x):
    b = bits(x)
    return struct.unpack("<f", struct.pack("<I", (b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000))[0]


def f32(x):
    """The f32 of nine printed digits."""
    return struct.unpack("f", struct.pack("f", x))[0]


def f16(x):
    return struct.unpack("e", struct.pack("e", x))[0]


class HiddenTest:
    def __init__(self, shoal, dump, work):
        self.shoal, self.dump, self.work = Shoal(shoal), dump, fresh_folder(work)
        self.input = self.work / "in.jsonl"
        write_lines(self.input, LINES)

    def job(self, name, *flags, model=DEMO, source=None, ranks=0, journal=False):
        return self.shoal("generate", "--model", model, "--input", source or self.input, "--output",
                          self.work / f"{name}.jsonl", "--threads", 1, "--save-logprobs", self.work / f"{name}.h5",
                          *flags, ranks=ranks, journal=journal)

    def must(self, name, *flags, **how):
        done = self.job(name, *flags, **how)
        expect(done.status == 0, f"{done}")

    def refused(self, status, words, done):
        expect(done.status == status and all(word in done.err for word in words), f"no {words}: {done}")

    def saved(self, name):
        done = run([self.dump, self.work / f"{name}.h5"])
        expect(done.status == 0, f"{done}")
        head, *rows = [json.loads(line) for line in done.out.splitlines()]
        return head, {(row["custom_id"], row["choice"]): row for row in rows}

    def same(self, name, of="whole"):
        for end in ("jsonl", "h5"):
            expect((self.work / f"{name}.{end}").read_bytes() == (self.work / f"{of}.{end}").read_bytes(),
                   f"{name}.{end}: other bytes than {of}'s")

    def goldens(self):
        """The rows after each layer and after the last norm are transformers'."""
        worst = 0
        for golden in json.loads((TESTS / "golden" / "hidden.json").read_text()):
            name, width, layers = golden["model"], golden["width"], golden["n_layers"]
            model, source = self.work / f"{name}.model.h5", self.work / f"{name}.in"
            self.shoal.must("convert", GOLDENS / name / "hf", model)
            write_lines(source, [dict(custom_id="x", prompt_token_ids=golden["tokens"], max_tokens=0,
                                      prompt_logprobs=0)])
            every = ["--save-hidden", ",".join([*map(str, range(layers)), "final"]), "--save-hidden-type", "f32",
                     "--kv-dtype", "f32"]
            self.must(name, *every, model=model, source=source)
            found, wanted = self.saved(name)[1][("x", 0)]["hidden"], golden["hidden"]
            expect(len(found) == len(wanted), f"{name}: {len(found)} values for {len(wanted)}")
            for at in range(0, len(wanted), width):
                scale = max(map(abs, wanted[at:at + width]))
                off = max(abs(a - b) for a, b in zip(found[at:at + width], wanted[at:at + width])) / scale
                expect(off <= MOST, f"{name}: token {at // width // (layers + 1)}, row {at // width % (layers + 1)}: "
                       f"{off:.2e} of {scale} away")
                worst = max(worst, off)
        print(f"   at most {worst:.1e} of a row's largest value away")

    def values(self):
        """A generated token has the row that it would have as a given one; the layers, types and spans are those
        asked for; the rows of the output are those of a job that saves nothing."""
        metrics = self.work / "metrics.json"
        self.must("whole", *FLAGS, "--metrics", metrics)
        said = json.loads(metrics.read_text())
        expect(said["right_drafts"] > 0 and said["prefix_hits"] > 0, f"no drafts or no shared prompts: {said}")
        head, whole = self.saved("whole")
        expect(head["layers"] == f"1,{N_LAYERS - 1},final", f"{head}")
        expect(len(whole) == 1 + 3 + 2 + 4, f"{whole.keys()}")
        again = []
        for (name, choice), row in whole.items():
            n_rows = len(row["tokens"]) - (1 in row["is_generated"])
            expect((row["hidden_first"], len(row["hidden"])) == (0, n_rows * N_VALUES), f"{name}: {n_rows} tokens")
            again.append(dict(custom_id=f"{name}.{choice}", prompt_token_ids=row["tokens"][:n_rows], max_tokens=0,
                              prompt_logprobs=0))
        write_lines(self.work / "again.in", again)
        self.must("again", *FLAGS, source=self.work / "again.in")
        for (name, _), row in self.saved("again")[1].items():
            of, choice = name.rsplit(".", 1)
            expect(row["hidden"] == whole[(of, int(choice))]["hidden"], f"{name}: other rows for given tokens")
        plain = self.work / "plain.jsonl"
        self.shoal.must("generate", "--model", DEMO, "--input", self.input, "--output", plain, "--threads", 1)
        expect(plain.read_bytes() == (self.work / "whole.jsonl").read_bytes(), "saving changed the output")
        self.check_types(whole)
        self.check_spans(whole)

    def check_types(self, whole):
        for kind, rounded in (("bf16", bf16), ("f16", f16)):
            self.must(kind, *FLAGS[:-1], kind)
            for at, row in self.saved(kind)[1].items():
                expect([f32(x) for x in row["hidden"]] == [rounded(f32(x)) for x in whole[at]["hidden"]],
                       f"{kind}: {at}: other roundings")
        self.must("one", *FLAGS[:2], "--save-hidden", "final", *FLAGS[4:])
        for at, row in self.saved("one")[1].items():
            wanted = whole[at]["hidden"]
            picked = [x for t in range(0, len(wanted), N_VALUES) for x in wanted[t + 2 * WIDTH:t + N_VALUES]]
            expect(row["hidden"] == picked, f"{at}: other rows when one layer is saved")

    def check_spans(self, whole):
        for span in ("given", "answers"):
            self.must(span, *FLAGS, "--save-hidden-of", span)
            for at, row in self.saved(span)[1].items():
                n_prompt = row["is_generated"].count(0)
                first, end = (0, n_prompt) if span == "given" else (n_prompt - 1, len(row["tokens"]))
                wanted = whole[at]["hidden"][first * N_VALUES:end * N_VALUES]
                expect((row["hidden_first"], row["hidden"]) == (first, wanted), f"{span}: {at}: other rows")

    def layouts(self):
        """Ranks, batch, chunk, drafts, preemptions and the layers' spelling change no byte."""
        for i, (ranks, flags) in enumerate([
                (4, ["--tp", 2, "--pp", 2]), (2, ["--dp", 2, "--max-batch", 2, "--chunk", 16]),
                (0, ["--max-batch", 1, "--speculate", "off", "--prefix-cache", "off"]),
                (0, ["--save-hidden", "-3,3,final"])]):
            self.must(f"layout{i}", *FLAGS, *flags, ranks=ranks)
            self.same(f"layout{i}")
        self.preempted()

    def preempted(self):
        """Rows that were stored before a preemption are computed again and not stored again."""
        crowd, metrics = self.work / "crowd.in", self.work / "metrics.json"
        write_lines(crowd, [dict(custom_id=f"c{i}", prompt="The sea", max_tokens=150, temperature=1, seed=i)
                            for i in range(6)])
        self.must("crowd", *FLAGS, source=crowd)
        self.must("tight", *FLAGS, "--max-model-len", 192, "--kv-blocks", 5, "--metrics", metrics, source=crowd)
        self.same("tight", "crowd")
        found = json.loads(metrics.read_text())
        expect(found["preemptions"] > 0, f"{found}")

    def kills(self):
        """Jobs are killed at failpoints, also in the middle of long answers, and resumed."""
        for point in KILLS:
            done = self.job("killed", *FLAGS, "--restart", "--failpoint", point, journal=True)
            expect(done.status == -9, f"{point} did not strike: {done}")
            self.must("killed", *FLAGS, journal=True)
            self.same("killed")
        done = self.job("killed2", *FLAGS, "--tp", 2, "--checkpoint-tokens", 8, "--max-batch", 3, "--speculate",
                        "off", "--failpoint", "step:60", ranks=2, journal=True)
        expect(done.status not in (0, None), f"{done}")
        done = self.job("killed2", *FLAGS, "--checkpoint-tokens", 8, "--speculate", "off", "--failpoint", "step:20",
                        journal=True)
        expect(done.status == -9, f"{done}")
        self.must("killed2", *FLAGS, journal=True)
        self.same("killed2")

    def errors(self):
        """Damaged rows are named; other layers do not resume a job; layers that do not exist are refused."""
        done = self.job("damaged", *FLAGS, "--failpoint", "logprobs_file:1", journal=True)
        expect(done.status == -9, f"{done}")
        part = self.work / "damaged.h5.part"
        content = bytearray(part.read_bytes())
        content[content.index(b"SHOALR1\n") + 100] ^= 1
        part.write_bytes(content)
        self.refused(3, ["damaged.h5.part: the record at byte", "is damaged"],
                     self.job("damaged", *FLAGS, journal=True))
        self.refused(2, ["--save-hidden was 1,3,final", "is 1"],
                     self.job("damaged", *FLAGS[:2], "--save-hidden", "1", *FLAGS[4:], journal=True))
        self.refused(2, ["--save-hidden-type"], self.job("damaged", *FLAGS[:-1], "f16", journal=True))
        self.refused(2, ["--save-hidden-of"], self.job("damaged", *FLAGS, "--save-hidden-of", "given", journal=True))
        for layers in ("4", "-5", "final,", "", "1,1", "3,-1", "1.5", "+1", " 1", "x", "final,final"):
            self.refused(2, ["--save-hidden"], self.job("other", "--save-hidden", layers))
        for flags, words in ((["--save-hidden", "1"], "needs --save-logprobs"),
                             (["--save-hidden-type", "f16"], "needs --save-hidden"),
                             (["--save-hidden-of", "given"], "needs --save-hidden")):
            self.refused(2, [words], self.shoal("generate", "--model", DEMO, "--input", self.input, "--output",
                                                self.work / "x.jsonl", *flags))
        self.must("whole", *FLAGS, "--restart", journal=True)
        self.must("whole", *FLAGS, "--audit", 5, journal=True)

    def __call__(self):
        for case in (self.goldens, self.values, self.layouts, self.kills, self.errors):
            print(f"-- {case.__name__}: {case.__doc__}")
            begin = time.monotonic()
            case()
            print(f"   {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main_of(HiddenTest(*sys.argv[1:4]))
