#!/usr/bin/env python3
"""Tests which files a job reads and writes: compressed outputs, several inputs, lines that are no
requests (docs/files.md).

usage: files.py SHOAL WORK_FOLDER
"""
import gzip
import json
import lzma
import sys

from program import REPO, Shoal, expect, fresh_folder, main_of, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
N_LINES = 30


class FilesTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(work)
        self.input, self.plain = self.work / "in.jsonl", self.work / "plain.jsonl"
        self.lines = [dict(prompt=f"Line {i} says", max_tokens=12, temperature=0) for i in range(N_LINES)]
        self.lines[4] = {"top_p": 3, "prompt": "an error row"}
        write_lines(self.input, self.lines)
        self.must(self.input, self.plain)
        self.rows = [json.loads(line) for line in self.plain.read_bytes().splitlines()]

    def run(self, source, output, *flags, journal=True):
        return self.shoal("generate", "--model", DEMO, "--input", source, "--output", output,
                          "--threads", 1, *flags, journal=journal)

    def must(self, source, output, *flags, **how):
        done = self.run(source, output, *flags, **how)
        expect(done.status == 0, f"{done}")
        return done

    def refused(self, status, words, done):
        expect(done.status == status and all(word in done.err for word in words), f"no {words}: {done}")

    def outputs(self):
        """Each format has the plain output's rows in frames; damage is named, and mended by the job."""
        for end, unpack in ((".gz", gzip.decompress), (".xz", lzma.decompress)):
            output = self.work / f"out.jsonl{end}"
            self.must(self.input, output, "--output-frame", 900)
            good = output.read_bytes()
            expect(unpack(good) == self.plain.read_bytes(), f"{output}: other rows")
            expect(good.count(good[:6]) > 3, f"{output}: one frame")
            damaged = bytearray(good)
            damaged[len(good) // 2] ^= 1
            for bad, words in ((good[:-5], f"ends at byte {len(good) - 5} inside"), (damaged, "damaged")):
                output.write_bytes(bad)
                audit = self.run(self.input, output, "--audit", 30, "--output-frame", 900)
                self.refused(3, [str(output), "byte ", words], audit)
                self.must(self.input, output, "--output-frame", 900)
                expect(output.read_bytes() == good, f"{output} was not mended")
            self.must(self.input, output, "--audit", 30, "--output-frame", 900)
            state = json.loads(self.shoal.must("status", output, "--json").out)
            expect((state["state"], state["rows"]) == ("complete", N_LINES), f"{state}")
        self.must(self.input, self.work / "no_journal.xz", journal=False)
        expect(lzma.decompress((self.work / "no_journal.xz").read_bytes()) == self.plain.read_bytes(),
               "without a journal")
        for name in ("out.bz2", "out.jsonl.zip", "out.parquet"):
            self.refused(2, [name, "expected JSON lines"], self.run(self.input, self.work / name))
            expect(not (self.work / name).exists(), name)

    def several_inputs(self):
        """Several inputs give the rows of one, whole, in parts and resumed; another list is refused."""
        folder = fresh_folder(self.work / "many")
        text = [json.dumps(line) for line in self.lines]
        (folder / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(text[7:20]).encode()))
        (folder / "a.jsonl").write_text("\n".join(text[:7]))
        (folder / "z.jsonl").write_text("\n".join(text[20:]) + "\n")
        inputs = ["--input", folder / "a.jsonl", "--input", folder / "[b-z].jsonl*"]
        output = self.work / "many.jsonl"

        def job(*flags, inputs=inputs, to=output):
            return self.shoal("generate", "--model", DEMO, *inputs, "--output", to, "--threads", 1, *flags,
                              journal=True)

        done = job("--failpoint", "journal_fsync:2")
        expect(done.status == -9, f"{done}")
        turned = [*inputs[2:], *inputs[:2]]
        self.refused(2, ["--input (file 1)", "was", "a.jsonl", "b.jsonl.gz"], job(inputs=turned))
        self.refused(2, ["number of files"], job(inputs=inputs[2:]))
        expect(job().status == 0 and output.read_bytes() == self.plain.read_bytes(), "other rows")
        parts = [self.work / f"many{k}.jsonl" for k in range(1, 5)]
        for k, part in enumerate(parts, 1):
            done = job("--input-part", f"{k}/4", to=part)
            expect(done.status == 0, f"{done}")
        merged = self.work / "merged.jsonl"
        self.shoal.must("merge", *inputs, "--output", merged, *parts)
        expect(merged.read_bytes() == self.plain.read_bytes(), "merged: other rows")
        self.shoal.must("generate", "--model", DEMO, *inputs, "--output", output, "--audit", 9, "--threads", 1)
        (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
        self.refused(3, [f"{folder / 'b.jsonl.gz'}, line 1: it changed"], job())
        (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"{}\n")[:-3])
        self.refused(3, [str(folder / "b.jsonl.gz"), "inside its gzip data"], job("--restart"))
        (folder / "b.jsonl.gz").write_bytes(b"{}\n")
        done = job("--restart", inputs=["--input", folder / "b.jsonl.gz", "--input", folder / "c.jsonl"])
        self.refused(3, ["c.jsonl: cannot be opened"], done)
        done = job("--restart", inputs=["--input", folder / "*.txt"])
        self.refused(3, ["*.txt: no file matches"], done)
        done = job("--restart", inputs=[*inputs, "--input", folder / "a.jsonl"])
        self.refused(2, ["a.jsonl was given twice"], done)
        done = job("--restart", inputs=["--input", folder / "*"], to=folder / "z.jsonl")
        self.refused(2, ["expected another file than the input"], done)
        (folder / "c.jsonl").write_text("{}\n\n")
        done = job("--restart", inputs=["--input", folder / "b.jsonl.gz", "--input", folder / "c.jsonl"])
        expect(f"{folder / 'c.jsonl'}, line 2, custom_id \"3\"" in done.err, f"{done}")

    def other_lines(self):
        """Lines with other names give the rows of requests with the same prompts."""
        lines = self.work / "lines.jsonl"
        write_lines(lines, [dict(number=i, verb="says", body=line["prompt"], prompt=[i], url="http://x")
                            for i, line in enumerate(self.lines)])
        template = self.work / "prompt.jinja"
        template.write_text("{% if number == 4 %}an error row{% else %}Line {{ number }} {{ verb }}{% endif %}\n")
        wanted = self.work / "wanted.jsonl"
        write_lines(self.work / "prompts.jsonl", [dict(prompt=line["prompt"]) for line in self.lines])
        sampling = ["--max-tokens", 12, "--temperature", 0]
        self.must(self.work / "prompts.jsonl", wanted, *sampling)
        for name, flags in (("field", ["--input-field", "body"]), ("made", ["--prompt-template", template])):
            output = self.work / f"{name}.jsonl.zst"
            self.must(lines, output, *flags, *sampling)
            self.must(lines, output, *flags, *sampling, "--audit", 30)
            self.must(lines, self.work / f"{name}.jsonl", *flags, *sampling)
            expect((self.work / f"{name}.jsonl").read_bytes() == wanted.read_bytes(), f"{name}: other rows")
            done = self.run(lines, output, *sampling)
            self.refused(3, ["it has --" if name == "field" else "it has --prompt-template=file with hash"], done)
        self.refused(2, ["--input-field was body", "is verb"],
                     self.run(lines, self.work / "field.jsonl", "--input-field", "verb", *sampling))
        template.write_text("{{ number }}: {{ noun }}")
        self.refused(2, ["--prompt-template was file with hash"],
                     self.run(lines, self.work / "made.jsonl", "--prompt-template", template, *sampling))
        done = self.must(lines, self.work / "noun.jsonl", "--prompt-template", template)
        expect("line 1: 'noun' is undefined, and is printed" in done.err, f"{done}")
        row = json.loads((self.work / "noun.jsonl").read_text().splitlines()[0])
        expect(row["error"]["code"] == "invalid_request" and "noun" in row["error"]["message"], f"{row}")
        new = self.work / "new.jsonl"
        template.write_text("{% for x in y %}")
        for status, words, flags in (
                (2, ["expected one of them"], ["--input-field", "a", "--prompt-template", template]),
                (2, ["--input-field: expected a name"], ["--input-field", ""]),
                (3, ["prompt.jinja", "line 1"], ["--prompt-template", template]),
                (3, ["--prompt-template", "missing.jinja"], ["--prompt-template", self.work / "missing.jinja"]),
                (3, ["--prompt-template"], ["--prompt-template", self.work])):
            self.refused(status, words, self.run(lines, new, *flags))
            expect(not new.exists(), f"{flags} wrote")
        file = self.work / "any.h5"
        file.write_bytes(DEMO.read_bytes())
        for dataset, words in (("/", "cannot be opened"), ("/no/such", "cannot be opened")):
            self.refused(3, [f"input {file}:{dataset}", words], self.run(f"{file}:{dataset}", new))
        self.refused(3, ["found an HDF5 file"], self.run(file, new))
        self.refused(2, ["--output", "expected another file than --prompt-template's"],
                     self.run(lines, template, "--prompt-template", template))

    def main(self):
        self.outputs()
        self.other_lines()
        self.several_inputs()


if __name__ == "__main__":
    main_of(lambda: FilesTest(*sys.argv[1:3]).main())
