#!/usr/bin/env python3
"""Tests the file of --save-logprobs: the same bytes on every layout, batch and chunk, however often the job was
killed; its values are those of the rows; what cannot be saved is refused.

usage: distill.py SHOAL DUMP_LOGPROBS WORK_FOLDER
"""
import importlib.util
import json
import struct
import sys
import time

from program import REPO, Shoal, expect, fresh_folder, main_of, run, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
K = 256  # the most; a row may ask for 20
N_IN_ROWS = 20
LINES = [dict(custom_id="plain", prompt="Fish swim in", max_tokens=9, temperature=0),
         dict(custom_id="rows", prompt="A shoal of small fish", max_tokens=12, temperature=0.9, seed=4,
              logprobs=N_IN_ROWS, prompt_logprobs=N_IN_ROWS),
         dict(custom_id="several", prompt="The sea is", max_tokens=7, n=3, temperature=1, logprobs=5),
         dict(custom_id="wrong", prompt="an error row", top_p=3),
         dict(prompt="without a name " * 30, max_tokens=5, prompt_logprobs=2),
         dict(custom_id="beam", prompt="The sea", max_tokens=4, beam_width=3),
         dict(custom_id="long", prompt="Once upon a time", max_tokens=80, temperature=0.7, ignore_eos=True),
         dict(custom_id="again", prompt="Fish swim in", max_tokens=9, temperature=0),
         dict(custom_id="given \u00e9\"\0", prompt_token_ids=[5, 6, 7, 8], max_tokens=0,
              prompt_logprobs=0)]
N_ERRORS = 2
# Failpoints at which a job is killed, one job each. A job of any speed passes them all.
KILLS = ("logprobs_write:3", "journal_write:1", "logprobs_fsync:1", "journal_fsync:1", "output_write:1",
         "logprobs_file:1", "finish:1")


def f16(x):
    return struct.unpack("e", struct.pack("e", x))[0]


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def u8(x):
    """x rounded to steps of 1/16, at least -254/16; a half-way value becomes the larger
    probability."""
    whole, part = divmod(-x * 16, 1)
    return -min(whole + (part > 0.5), 254) / 16


class DistillTest:
    def __init__(self, shoal, dump, work):
        self.shoal, self.dump, self.work = Shoal(shoal), dump, fresh_folder(work)
        self.input, self.plain = self.work / "in.jsonl", self.work / "plain"
        write_lines(self.input, LINES)

    def job(self, name, *flags, ranks=0, journal=True, save=True, source=None):
        saved = ["--save-logprobs", self.work / f"{name}.h5"] if save else []
        return self.shoal("generate", "--model", DEMO, "--input", source or self.input, "--output",
                          self.work / f"{name}.jsonl", "--threads", 1, *saved, *flags, ranks=ranks, journal=journal)

    def must(self, name, *flags, **how):
        done = self.job(name, *flags, **how)
        expect(done.status == 0, f"{done}")

    def refused(self, status, words, done):
        expect(done.status == status and all(word in done.err for word in words), f"no {words}: {done}")

    def rows(self, name):
        return [json.loads(line) for line in (self.work / f"{name}.jsonl").read_text().splitlines()]

    def saved(self, name):
        done = run([self.dump, self.work / f"{name}.h5"])
        expect(done.status == 0, f"{done}")
        return [json.loads(line) for line in done.out.splitlines()]

    def same(self, name, of="whole"):
        for end in ("jsonl", "h5"):
            expect((self.work / f"{name}.{end}").read_bytes() == (self.work / f"{of}.{end}").read_bytes(),
                   f"{name}.{end}: other bytes than {of}'s")

    def check_token(self, saved, i, own, rounded):
        """Compares token i of a saved row with the log-probabilities that the row of the output has."""
        expect((saved["tokens"][i], f32(saved["token_logprobs"][i])) == (own["id"], f32(own["logprob"])), f"{own}")
        k = len(saved["top_ids"]) // len(saved["tokens"])
        ids, logprobs = (saved[key][i * k:(i + 1) * k] for key in ("top_ids", "top_logprobs"))
        expect(len(set(ids)) == k and logprobs == sorted(logprobs, reverse=True), f"{ids} {logprobs}")
        for at, (token, logprob) in enumerate(own["top"]):
            expect((ids[at], f32(logprobs[at])) == (token, f32(rounded(logprob))), f"{at}: {own}, {ids}, {logprobs}")

    def check_values(self, name, k, rounded):
        head, *saved = self.saved(name)
        expect((head["k"], head["version"], head["vocab"]) == (k, 1, 2048), f"{head}")
        wanted = []
        for row in self.rows(name):
            if "error" not in row:
                wanted += [(row, c, row["choices"][c] if "choices" in row else row)
                           for c in range(len(row.get("choices", [0])))]
        # HDF5's strings end at a NUL, so it is written as in JSON
        expect([(s["custom_id"], s["choice"]) for s in saved] ==
               [(row["custom_id"].replace("\0", "\\u0000"), c) for row, c, _ in wanted], f"{saved}"[:300])
        n_checked = 0
        for s, (row, _, answer) in zip(saved, wanted):
            n_prompt = s["is_generated"].count(0)
            expect(n_prompt == row["usage"]["prompt_tokens"], f"{s['custom_id']}: {n_prompt} tokens of the prompt")
            expect(s["tokens"][n_prompt:] == answer["token_ids"], f"{s['custom_id']}: other tokens")
            expect(s["token_logprobs"][0] is None and set(s["top_ids"][:k]) == {-1} and
                   set(s["top_logprobs"][:k]) == {None}, f"{s['custom_id']}: the first token has candidates")
            expect(None not in s["token_logprobs"][1:], f"{s['custom_id']}: a token has no log-probability")
            for i, own in enumerate(row.get("prompt_logprobs") or []):
                if own is not None:
                    self.check_token(s, i, own, rounded)
                    n_checked += 1
            for i, own in enumerate(answer.get("logprobs") or []):
                self.check_token(s, n_prompt + i, own, rounded)
                n_checked += 1
        expect(n_checked > 60, f"only {n_checked} tokens were compared")

    def values(self):
        """The rows are those of a job that saves nothing; the file has their numbers, rounded."""
        self.must("nothing", save=False, source=self.without_beams())
        self.must("whole", "--save-logprobs-k", K)
        self.check_values("whole", K, f16)
        rows = {row["custom_id"]: row for row in self.rows("nothing")}
        for row in self.rows("whole"):
            expect(row["custom_id"] == "beam" or row == rows[row["custom_id"]], f"{row}")
        beam = next(row for row in self.rows("whole") if row["custom_id"] == "beam")
        expect(beam["error"]["code"] == "unsupported" and "--save-logprobs" in beam["error"]["message"], f"{beam}")
        self.must("codes", "--save-logprobs-k", 20, "--save-logprobs-type", "u8", journal=False)
        self.check_values("codes", 20, u8)
        expect(not (self.work / "codes.h5.part").exists(), "without a journal a part is left")

    def without_beams(self):
        path = self.work / "no_beams.jsonl"
        write_lines(path, [line if line.get("custom_id") != "beam" else dict(custom_id="beam", prompt="x", top_p=3)
                           for line in LINES])
        return path

    def layouts(self):
        """Ranks, batch and chunk change no byte."""
        self.must("four", "--save-logprobs-k", K, "--tp", 2, "--pp", 2, ranks=4)
        self.same("four")
        self.must("small", "--save-logprobs-k", K, "--max-batch", 2, "--chunk", 16, "--speculate", "off", journal=False)
        self.same("small")

    def kills(self):
        """Jobs are killed at every failpoint and resumed. A kill leaves either no file or a whole
        one."""
        flags, saved = ["--save-logprobs-k", K], self.work / "killed.h5"
        whole = (self.work / "whole.h5").read_bytes()
        for point in KILLS:
            done = self.job("killed", *flags, "--restart", "--failpoint", point)
            expect(done.status == -9, f"{point} did not strike: {done}")
            is_made = point == "finish:1" or saved.exists() and point != KILLS[0]
            expect(saved.exists() == is_made and (not is_made or saved.read_bytes() == whole), f"{point}: {saved}")
            self.must("killed", *flags)
            self.same("killed")
            expect(not saved.with_suffix(".h5.tmp").exists(), f"{point}: a temporary file is left")
        done = self.job("killed2", *flags, "--tp", 2, "--checkpoint-tokens", 8, "--failpoint", "step:40", ranks=2)
        expect(done.status not in (0, None), f"{done}")
        self.must("killed2", *flags)
        self.same("killed2")
        stamp = (self.work / "killed.h5").stat().st_mtime_ns
        self.must("killed", *flags)
        expect((self.work / "killed.h5").stat().st_mtime_ns == stamp, "a complete job wrote its file again")

    def errors(self):
        """Failed writes lose nothing; error rows can be run again; what does not fit the job is refused."""
        flags = ["--save-logprobs-k", K]
        for point in ("logprobs_write:2:ENOSPC", "logprobs_fsync:1:EIO", "logprobs_file:1:EIO"):
            self.refused(3, ["failed.h5", "failed: "], self.job("failed", *flags, "--failpoint", point))
        self.must("failed", *flags)
        self.same("failed")
        self.must("failed", *flags, "--retry-errors")
        self.same("failed")
        self.refused(2, ["--save-logprobs-k was 256", "is 41"], self.job("failed", "--save-logprobs-k", 41))
        self.refused(2, ["--save-logprobs-type"], self.job("failed", *flags, "--save-logprobs-type", "u8"))
        self.refused(3, ["it has --save-logprobs"], self.job("failed", save=False))
        self.must("failed", *flags, "--audit", 9)
        (self.work / "failed.h5").unlink()
        self.refused(2, ["failed.h5", "--restart"], self.job("failed", *flags))
        self.must("failed", *flags, "--restart")
        self.same("failed")
        done = self.job("lost", *flags, "--failpoint", "finish:1")
        expect(done.status == -9, f"{done}")
        (self.work / "lost.h5.part").unlink()
        self.refused(3, ["lost.h5.part: it lacks line 1"], self.job("lost", *flags))
        self.must("dry", *flags, "--dry-run")
        expect(not list(self.work.glob("dry.h5*")), "a dry run saved something")
        for k in (0, 257):
            self.refused(2, ["--save-logprobs-k", "1 to 256"], self.job("other", "--save-logprobs-k", k))
        self.refused(2, ["needs --save-logprobs"], self.job("other", *flags, save=False))
        (self.work / "other.h5").mkdir()
        self.refused(3, ["--save-logprobs", "found a folder"], self.job("other"))
        for path, status, words in (("/dev/null", 2, ["/dev/null"]), ("-", 2, ["expected a file"]),
                                    (self.work / "no" / "x.h5", 3, ["cannot be written"]),
                                    (self.input, 2, ["expected another file"])):
            self.refused(status, words, self.job("other", "--save-logprobs", path, save=False))
        for command in ("score", "embed", "rank"):
            done = self.shoal(command, "--model", DEMO, "--input", self.input, "--output", self.work / "x.jsonl",
                              "--save-logprobs", self.work / "x.h5")
            self.refused(2, ["--save-logprobs"], done)
        write_lines(self.work / "empty.jsonl", [])
        self.must("none", source=self.work / "empty.jsonl")
        expect(len(self.saved("none")) == 1, "rows of no lines")

    def example(self):
        """The example compiles; where h5py is installed, it reads the same values as the dump."""
        path = REPO / "integrations" / "distill.py"
        code = compile(path.read_text(), str(path), "exec")
        if importlib.util.find_spec("h5py") is None:
            return
        example = dict(__name__="example")
        exec(code, example)
        for name in ("whole", "codes"):
            teacher = example["Teacher"](self.work / f"{name}.h5")
            head, *saved = self.saved(name)
            expect((len(teacher), teacher.k, teacher.vocab) == (len(saved), head["k"], head["vocab"]), name)
            for i, row in enumerate(saved):
                found = teacher.row(i)
                logprobs = [None if x == float("-inf") else x for x in found[4].ravel().tolist()]
                expect((found[0], found[1].tolist(), found[2].tolist(), found[3].ravel().tolist(), logprobs) ==
                       (row["custom_id"], row["tokens"], row["is_generated"], row["top_ids"],
                        [None if x is None else f32(x) for x in row["top_logprobs"]]), f"{name}: row {i}")

    def __call__(self):
        for case in (self.values, self.example, self.layouts, self.kills, self.errors):
            print(f"-- {case.__name__}: {case.__doc__}")
            begin = time.monotonic()
            case()
            print(f"   {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main_of(DistillTest(*sys.argv[1:4]))
