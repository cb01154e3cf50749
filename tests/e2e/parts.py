#!/usr/bin/env python3
"""Tests job arrays: the merged parts of a hostile input are, byte for byte, the output of one job
over it.

usage: parts.py SHOAL WORK_FOLDER
The input has a byte order mark, CRLF, blank lines, no newline at the end and lines longer than a
part. custom_ids repeat across parts: of good lines, of lines that fail at once, and of lines that
would fail only while they run, which the single job therefore never runs. Every second part reads the input
compressed.
"""
import gzip
import json
import sys
from pathlib import Path

from program import REPO, Shoal, expect, main_of

DEMO = REPO / "models" / "demo" / "demo.h5"
N_PARTS = 7


def make_input(one_token):
    """one_token: a token and its text. Some lines allow this token only and forbid that it comes
    twice.
    """
    dead_end = {"prompt": "x", "allowed_token_ids": one_token["ids"], "max_tokens": 4,
                "bad_words": [one_token["text"] * 2], "temperature": 0}
    lines = [{"custom_id": "a", "prompt": "First", "max_tokens": 3},
             {"custom_id": "7", "prompt": "Who", "max_tokens": 2},
             {"custom_id": "dead", **dead_end}, None,
             {"custom_id": "dead", **dead_end},
             {"custom_id": "bad", "prompt": "x", "top_p": 3},
             {"method": "POST", "url": "/v1/completions",
              "body": {"model": "m", "prompt": "no id, and its number is taken", "max_tokens": 2}},
             {"custom_id": "bad", "prompt": "x", "max_tokens": 2},
             {"custom_id": "a", **dead_end},
             {"custom_id": "long", "prompt": "word " * 900, "max_tokens": 1},
             {"custom_id": "long", "prompt": "x", "n": 2, "max_tokens": 2},
             {"custom_id": "a", "method": "POST", "url": "/v1/completions",
              "body": {"model": "m", **dead_end}},
             {"custom_id": "line 7", "prompt": "the seventh line has this name", "max_tokens": 2},
             {"custom_id": "last", "prompt": "no newline behind it", "max_tokens": 2}]
    return b"\xef\xbb\xbf" + b"\r\n".join(
        b"" if line is None else json.dumps(line).encode() for line in lines)


class PartsTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), Path(work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.input = self.work / "in.jsonl"

    def generate(self, name, *flags, source=None):
        output = self.work / (name if "." in name else f"{name}.jsonl")
        self.shoal.must("generate", "--model", DEMO, "--input", source or self.input, "--output", output,
                        "--threads", 1, "--max-model-len", 512, "--restart", *flags, journal=True)
        return output

    def find_token(self):
        """Finds a token whose text, repeated, is tokenized as the token twice."""
        self.input.write_text(json.dumps({"prompt": "KING", "max_tokens": 12, "temperature": 0}))
        ids = json.loads(self.generate("probe").read_text())["token_ids"]
        for i in sorted(set(ids)):
            self.input.write_text(json.dumps({"prompt": "x", "allowed_token_ids": [i],
                                              "max_tokens": 1}))
            text = json.loads(self.generate("probe").read_text())["text"]
            self.input.write_bytes(make_input({"ids": [i], "text": text}))
            rows = self.rows(self.generate("whole"))
            if rows[2].get("error", {}).get("code") == "no_token_left":
                return
        expect(False, "no token of the answer makes a dead end")

    @staticmethod
    def rows(path):
        return [json.loads(line) for line in path.read_bytes().splitlines()]

    def run(self):
        self.find_token()
        whole = self.work / "whole.jsonl"
        codes = [(row.get("error") or {}).get("code") for row in self.rows(whole)]
        expect(codes[2] == "no_token_left", f"codes {codes}")
        expect([i for i, c in enumerate(codes) if c == "duplicate_id"] == [4, 7, 8, 10, 11, 12],
               f"codes {codes}")
        rows = self.rows(whole)
        expect(rows[6]["custom_id"] == "line 7" and "error" in rows[6] and not rows[6]["error"],
               f"line 7: {rows[6]}")
        packed = self.work / "in.jsonl.gz"
        packed.write_bytes(gzip.compress(self.input.read_bytes()))
        parts = [self.generate(f"part{k}", "--input-part", f"{k}/{N_PARTS}", source=packed if k % 2 else None)
                 for k in range(1, N_PARTS + 1)]
        merged = self.work / "merged.jsonl"
        self.shoal.must("merge", "--input", packed, "--output", merged, *reversed(parts))
        expect(merged.read_bytes() == whole.read_bytes(),
               f"{N_PARTS} parts give other bytes than one job: {merged} and {whole}")
        self.merge_compressed(parts, whole)
        self.merge_refuses(parts, whole)
        self.status_refuses()

    def status_refuses(self):
        """shoal status refuses to forecast the rest of a part."""
        folder = self.work / "killed"  # not self.work, because the killed job leaves its lease
        folder.mkdir(exist_ok=True)
        output, node = folder / "part.jsonl", folder / "node.json"
        node.write_text("{}")
        self.shoal("generate", "--model", DEMO, "--input", self.input, "--output", output, "--threads", 1,
                   "--max-model-len", 512, "--restart", "--input-part", "1/2", "--failpoint", "step:1", journal=True)
        done = self.shoal("status", "--nodes", node, "--model", DEMO, "--input", self.input, output)
        expect(done.status == 2 and "this one had --input-part" in done.err, f"a forecast of a part: {done}")

    def merge_compressed(self, parts, whole):
        """Compressed parts and a compressed output. Damage of a part is named with its byte."""
        frame, last = ["--output-frame", 200], f"{N_PARTS}/{N_PARTS}"
        packed = [*parts[:-1], self.generate("part.xz", "--input-part", last, *frame)]
        one, merged, again = (self.work / name for name in ("one.gz", "merged.gz", "again.jsonl"))
        self.generate(one.name, *frame)
        self.shoal.must("merge", "--input", self.input, "--output", merged, *frame, *packed)
        expect(gzip.decompress(merged.read_bytes()) == whole.read_bytes(), "merged.gz has other rows")
        expect(merged.read_bytes() == one.read_bytes(), "merge and a job cut other frames")
        good = packed[-1].read_bytes()
        for bad, words in ((good[:-9], f"ends at byte {len(good) - 9} inside its xz data"),
                           (good[:80] + b"?" + good[81:], "damaged xz data")):
            packed[-1].write_bytes(bad)
            done = self.shoal("merge", "--input", self.input, "--output", again, *packed)
            expect(done.status == 3 and words in done.err and f"{packed[-1]}" in done.err and
                   "at byte" in done.err and not again.exists(), f"no '{words}': {done}")
        packed[-1].write_bytes(good)

    def merge_refuses(self, parts, whole):
        """Wrong parts are named in a sentence. Through a symlink the merge goes to its target."""
        one_of_two = self.generate("half", "--input-part", "1/2")
        copy = self.work / "copy.jsonl"
        for end in ("", ".journal"):
            (self.work / f"copy.jsonl{end}").write_bytes(Path(f"{parts[0]}{end}").read_bytes())
        link, target, device = (self.work / name for name in ("link", "target.jsonl", "device"))
        for path in (link, target, device):
            path.unlink(missing_ok=True)
        link.symlink_to(target.name)
        device.symlink_to("/dev/full")
        for output, given, status, words in (
                (target, [parts[0], *parts], 3, f"{parts[0]} was given twice"),
                (target, [copy, *parts], 3, f"{copy} and {parts[0]} are both part 1 of {N_PARTS}"),
                (target, parts[1:], 3, f"part 1 of {N_PARTS} was not given"),
                (target, [one_of_two, *parts], 3, f"{one_of_two} is a part of 2"),
                (target, [whole], 3, "expected the output of a job with --input-part"),
                (target, [self.input], 3, "checks each row against its part's journal"),
                (device, parts, 2, "expected a regular file")):
            done = self.shoal("merge", "--input", self.input, "--output", output, *given)
            expect(done.status == status and words in done.err, f"no '{words}': {done}")
            expect(not target.exists() and device.is_symlink(), f"a refused merge wrote: {done}")
        self.merge_spares_files(parts)
        self.shoal.must("merge", "--input", self.input, "--output", link, *parts)
        expect(link.is_symlink() and target.read_bytes() == whole.read_bytes(), "through a link")
        expect(not list(self.work.glob("*.lease*")), "a lease was left")

    def merge_spares_files(self, parts):
        """An output that would replace a file that merge reads is refused; no such file changes."""
        journal = Path(f"{parts[1]}.journal")
        merging = self.work / "target.jsonl.merging"  # merge's name for it until it is checked
        merging.write_bytes(parts[0].read_bytes())
        Path(f"{merging}.journal").write_bytes(Path(f"{parts[0]}.journal").read_bytes())
        files = [self.input, merging, *parts, *(Path(f"{part}.journal") for part in parts)]
        before = [path.read_bytes() for path in files]
        for output in (self.input, parts[1], journal, self.work / "target.jsonl"):
            done = self.shoal("merge", "--input", self.input, "--output", output, merging,
                              *parts[1:])
            expect(done.status == 2 and "expected another file than" in done.err,
                   f"{output} was not refused: {done}")
            changed = [path for path, was in zip(files, before) if path.read_bytes() != was]
            expect(not changed, f"--output {output} changed {changed}: {done}")
        for name in ("", "-"):
            done = self.shoal("merge", "--input", self.input, "--output", name, *parts)
            expect(done.status == 2 and "--output: expected a file's name" in done.err, str(done))


if __name__ == "__main__":
    main_of(lambda: PartsTest(*sys.argv[1:3]).run())
