#!/usr/bin/env python3
"""Tests wrong flags and wrong inputs: each gives a sentence and the contract's exit status, and
all ranks end together.

usage: errors.py SHOAL WORK_FOLDER
Wrong flags, layouts and inputs, and bad lines, are tried on 1 rank and on 4. A rank that stays
behind is caught by the run's time limit.
"""
import bz2
import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys

from program import (GOLDENS, TESTS, Shoal, expect, fresh_folder, main_of, read_rows, run,
                     write_lines)

LIMIT_S = 300
PROMPT = {"custom_id": "a", "prompt_token_ids": [1, 2, 3], "max_tokens": 4, "temperature": 0}


class ErrorsTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(work)
        self.model = self.work / "llama.h5"
        self.moe = self.work / "mixtral.h5"
        self.input = self.work / "in.jsonl"
        self.output = self.work / "out.jsonl"
        self.n_cases = 0

    def generate(self, ranks, *flags, model=None, source=None):
        self.output.unlink(missing_ok=True)
        return self.shoal("generate", "--model", model or self.model, "--input",
                          source or self.input, "--output", self.output, *flags, ranks=ranks,
                          limit_s=LIMIT_S)

    def fails(self, status, words, done):
        """Expects the run to have ended with this status and to have printed all words, in any
        case."""
        self.n_cases += 1
        expect(done.status == status, f"status {status} expected: {done}")
        said = (done.err + done.out).lower()
        missing = [w for w in words if w.lower() not in said]
        expect(not missing, f"the sentence lacks {missing}: {done}")

    def wrong_flags(self, ranks):
        self.fails(2, ["--no-such-flag"], self.generate(ranks, "--no-such-flag"))
        self.fails(2, ["max-tokens"], self.generate(ranks, "--max-tokens", "many"))
        self.fails(2, ["temperature"], self.generate(ranks, "--temperature", "-1"))
        self.fails(2, ["kv-dtype"], self.generate(ranks, "--kv-dtype", "f33"))
        self.fails(2, ["kv"], self.generate(ranks, "--kv-blocks", "1"))
        self.fails(2, ["--kv-blocks 1073741824", "but it has"], self.generate(ranks, "--kv-blocks", 1 << 30))
        self.fails(2, ["--max-model-len", "at least 2"], self.generate(ranks, "--max-model-len", "1"))
        self.fails(3, ["--json", "found a folder"], self.shoal(
            "bench", "--model", self.model, "--json", self.work, "--prompt-lengths", 4, "--output-lengths", 2,
            ranks=ranks, limit_s=LIMIT_S))
        self.fails(2, ["--json", "another file than --model's"], self.shoal(
            "bench", "--model", self.model, "--json", self.model, "--prompt-lengths", 4, "--output-lengths", 2,
            ranks=ranks, limit_s=LIMIT_S))
        self.fails(2, ["--input"], self.shoal("generate", "--model", self.model, ranks=ranks,
                                              limit_s=LIMIT_S))
        unknown = self.shoal("frobnicate", ranks=ranks, limit_s=LIMIT_S)
        self.fails(2, ["frobnicate"], unknown)
        for done, sentence in ((unknown, "no command is named"),
                               (self.generate(ranks, "--no-such-flag"), "no such flag")):
            expect(done.err.count(sentence) == 1, f"{ranks} ranks do not say it once: {done}")
        self.fails(2, ["--output", "an empty one"], self.shoal("pack", self.moe, "--output", ""))
        self.fails(3, ["--output", "found a folder"], self.shoal("pack", self.moe, "--output", self.work))
        self.fails(2, ["no command is named", "frobnicate"], self.shoal("help", "frobnicate"))
        expect(self.shoal.must("help", "merge").out == self.shoal.must("merge", "--help").out,
               "shoal help merge")

    def wrong_layouts(self, ranks):
        # Neither 7 nor 5 divides the number of ranks, 1 or 4; a dense model has no experts for ep.
        self.fails(2, ["tp"], self.generate(ranks, "--tp", "7"))
        self.fails(2, ["pp"], self.generate(ranks, "--pp", "5"))
        self.fails(2, ["ep"], self.generate(ranks, "--ep", "2", "--tp", "2"))
        self.fails(2, ["tp"], self.generate(ranks, "--tp", "0"))

    def wrong_inputs(self, ranks):
        self.fails(3, ["nowhere.h5"], self.generate(ranks, model=self.work / "nowhere.h5"))
        self.fails(3, ["nowhere.jsonl"], self.generate(ranks, source=self.work / "nowhere.jsonl"))
        whole = self.model.read_bytes()
        for name, data in (("cut.h5", whole[:len(whole) // 2]), ("head.h5", whole[:100]),
                           ("empty.h5", b""), ("text.h5", b"no checkpoint at all\n" * 99)):
            path = self.work / name
            path.write_bytes(data)
            self.fails(3, [name], self.generate(ranks, model=path))
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        path = self.work / "flipped.h5"
        path.write_bytes(flipped)
        self.fails(3, ["flipped.h5"], self.generate(ranks, model=path))

    def no_lines_at_all(self, ranks):
        """An input in another encoding, or compressed and damaged, gives one sentence instead of a
        million error rows.
        """
        good = json.dumps(PROMPT).encode() + b"\n"
        path = self.work / "in.jsonl.gz"
        for data, words in ((gzip.compress(good)[:-1], ["gzip", "not whole"]),
                            (gzip.compress(good)[:-8] + b"12345678", ["gzip", "damaged"]),
                            (lzma.compress(good)[:40], ["xz", "not whole"]),
                            (bz2.compress(good), ["bzip2"]), (good.decode().encode("utf-16"),
                            ["utf-16"]), (b"PAR1" + good, ["parquet"]),
                            (b"\x28\xb5\x2f\xfd" + good, ["zstd"])):
            path.write_bytes(data)
            self.fails(3, [path.name, *words], self.generate(ranks, source=path))
            self.output.unlink(missing_ok=True)  # it may have rows of the lines before the damage
        path.write_bytes(gzip.compress(good) + gzip.compress(good))
        done = self.generate(ranks, source=path)
        expect(done.status == 0 and self.output.read_bytes().count(b"\n") == 2, f"two members: {done}")

    def error_rows(self, ranks):
        """Bad lines become error rows; the good lines around them are answered."""
        good = json.dumps(PROMPT)
        lines = [good, "{not json", "", json.dumps({**PROMPT, "custom_id": "long",
                 "prompt_token_ids": [1] * 600}),
                 json.dumps({**PROMPT, "custom_id": "vocab", "prompt_token_ids": [320]}),
                 json.dumps({**PROMPT, "custom_id": "minus", "max_tokens": -1}),
                 json.dumps({**PROMPT, "custom_id": "nan"})[:-1] + ', "top_p": NaN}',
                 good, json.dumps({**PROMPT, "custom_id": "last"})]
        self.input.write_text("\n".join(lines))
        done = self.generate(ranks)
        expect(done.status == 0, f"status 0 expected: {done}")
        rows = [json.loads(line) for line in self.output.read_bytes().splitlines()]
        errors = ["error" in row for row in rows]
        wanted = [False, True, True, True, True, True, True, True, False]
        if len(errors) == len(wanted) - 1:  # a blank line is not a request
            del wanted[2]
        expect(errors == wanted, f"error rows {errors}, wanted {wanted}: {rows}")
        for row, error in zip(rows, errors):
            if error:
                expect(len(row["error"]["message"]) > 10 and row["error"]["code"], str(row))
        expect(rows[0]["token_ids"] == rows[-1]["token_ids"], "good rows differ")
        long_row = next(r for r in rows if r["custom_id"] == "long")
        expect("600" in long_row["error"]["message"], str(long_row))
        self.fails(4, [], self.generate(ranks, "--strict"))
        expect("of this run are error rows" not in done.err, f"good rows were not counted: {done}")
        write_lines(self.input, [{**PROMPT, "custom_id": f"bad{i}", "max_tokens": -i - 1} for i in range(4)])
        done = self.generate(ranks, "--quiet")
        said = [line for line in done.err.splitlines() if ", custom_id " in line]
        expect(done.status == 0 and "all 4 rows of this run are error rows" in done.err, str(done))
        expect(len(said) == 3 and 'line 3, custom_id "bad2": ' in said[2] and "max_tokens" in said[2], str(done))
        write_lines(self.input, [PROMPT])

    def hostile_lines(self):
        """Every kind of line that must become an error row, between lines that must be answered;
        and line ends, a byte order mark and a last line without a newline, which are no errors.
        """
        good = json.dumps(PROMPT).encode()

        def with_field(text):
            return good[:-1].replace(b'"a"', b'"x"') + b", " + text + b"}"

        bad = [b"", b"\xff\xfe{}", b'{"prompt_token_ids":[1],"custom_id":"\xc3"}',
               b'{"custom_id":"nul\x00","prompt_token_ids":[1]}', b"[" * 100000, b"[]", b"7",
               b"x" * (100 << 20), with_field(b'"n":1000000000'), with_field(b'"n":0'),
               with_field(b'"top_p":-1'), with_field(b'"top_k":9223372036854775808'),
               with_field(b'"seed":1e400'), with_field(b'"min_p":NaN'),
               with_field(b'"stop":[' + b",".join([b'"x"'] * 100000) + b"]"),
               with_field(b'"stop":[""]'), with_field(b'"messages":[]'),
               b'{"custom_id":"m","prompt_token_ids":[1],"max_tokens":9223372036854775808}',
               b'{"custom_id":"z","prompt_token_ids":[1],"max_tokens":0}',
               b'{"custom_id":"t","prompt_token_ids":[1],"temperature":1e999}',
               b'{"custom_id":"v","prompt_token_ids":[2147483648]}',
               b'{"custom_id":"w","prompt_token_ids":[-1]}',
               b'{"custom_id":"e","prompt_token_ids":[]}', b'{"custom_id":"p"}',
               b'{"custom_id":"q","prompt":7}', b'{"custom_id":{},"prompt_token_ids":[1]}',
               b'{"custom_id":"a","prompt_token_ids":[1]}',
               b'{"custom_id":"k","custom_id":"k","prompt_token_ids":[1]}',
               b'{"custom_id":"u","method":"GET","url":"/v1/completions","body":{}}',
               b'{"custom_id":"b","method":"POST","url":"/v1/nothing","body":{"prompt":"x"}}']
        lines = [b"\xef\xbb\xbf" + good + b"\r"]
        for i, line in enumerate(bad):
            lines += [line, json.dumps({**PROMPT, "custom_id": f"good {i}"}).encode()]
        self.input.write_bytes(b"\n".join(lines))
        done = self.generate(2, "--tp", "2")
        expect(done.status == 0, f"status 0 expected: {done}")
        rows = [json.loads(line) for line in self.output.read_bytes().splitlines()]
        expect(len(rows) == len(lines), f"{len(rows)} rows for {len(lines)} lines")
        for i, row in enumerate(rows):
            wrong = "error" in row
            expect(wrong == (i % 2 == 1), f"line {i + 1}, {lines[i][:80]}: {str(row)[:300]}")
            expect(not wrong or len(row["error"]["message"]) > 10, str(row))
            expect(wrong or row["token_ids"] == rows[0]["token_ids"], f"row {i + 1} differs")
        self.n_cases += len(bad)
        write_lines(self.input, [PROMPT])

    def reader_that_left(self):
        """A reader such as `| head` closes the pipe early: no error about a file, and no crash by
        SIGPIPE.
        """
        for flags in ([], ["--dry-run"]):
            theirs, ours = os.pipe()
            os.close(theirs)
            with os.fdopen(ours, "w") as pipe:
                done = subprocess.run([self.shoal.path, "generate", "--model", self.model, "--input",
                                       self.input, "--output", "-", *flags], stdout=pipe,
                                      stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
            self.n_cases += 1
            expect(done.returncode == 75 and "its reader has gone" in done.stderr,
                   f"status 75 expected: {done}")

    def streams(self):
        """Closed standard streams do not take the number of a file that is opened; a failed write
        to stdout is reported; a file that reaches its size limit is a write error, and the job
        resumes from its journal.
        """
        def shell(line, *args):
            return run(["bash", "-c", line, *args], LIMIT_S)

        job = [self.shoal.path, "generate", "--model", self.model, "--input", self.input,
               "--threads", 1, "--output"]
        expected = self.work / "expected.jsonl"
        self.shoal.must(*job[1:], expected)
        for line in ('"$0" "$@" <&- >&- 2>&-', '"$0" "$@" 2>&-'):
            done = shell(line, *job, self.output, "--restart")
            expect(done.status == 0 and self.output.read_bytes() == expected.read_bytes(), f"{line}: {done}")
        self.fails(3, ["output -", "failed"], shell('"$0" "$@" >&-', *job, "-"))
        stdin = ["-" if word == self.input else word for word in job]
        self.fails(3, ["input -"], shell('"$0" "$@" <&-', *stdin, self.output, "--restart"))
        for command in (["--help"], ["plan", "--model", self.model], ["inspect", self.model], ["status", self.output]):
            self.fails(3, ["stdout", "space left"], shell('"$0" "$@" >/dev/full', self.shoal.path, *command))
        write_lines(self.input, [{**PROMPT, "custom_id": f"l{i}", "logprobs": 20} for i in range(20)])
        self.shoal.must(*job[1:], expected)
        self.fails(3, ["file too large"], shell('ulimit -f 8; "$0" "$@"', *job, self.output, "--restart"))
        done = shell('"$0" "$@"', *job, self.output)
        expect(done.status == 0 and self.output.read_bytes() == expected.read_bytes(), f"behind a limit: {done}")
        write_lines(self.input, [PROMPT])

    def tp_beyond_heads(self):
        """Eight and five ranks on models with four heads (Mixtral)."""
        for ranks, flags in ((8, ["--tp", "8"]), (5, ["--tp", "5", "--ep", "1"])):
            done = self.generate(ranks, *flags, model=self.moe)
            self.fails(2, ["tp", "4", "head"], done)
        self.fails(2, ["3", "are 4"], self.generate(4, "--ep", "3", model=self.moe))
        self.fails(2, ["ep", "8"], self.generate(8, "--dp", "4", "--tp", "2", "--ep", "3",
                                                 model=self.moe))

    def ranks_that_differ(self):
        """A rank with another build or other flags is refused."""
        other = self.work / "shoal-other"
        shutil.copy(self.shoal.path, other)
        with other.open("ab") as program:
            program.write(b"another build")
        job = ["generate", "--no-journal", "--model", self.model, "--input", self.input, "--output",
               self.output, "--tp", "2"]
        seven, eight = [*job, "--seed", "7"], [*job, "--seed", "8"]
        for status, words, second in (
                (3, ["rank 1", "another program", "rank 0"], [other, *seven]),
                (2, ["rank 1", "other flags", "\"--seed\"", "\"7\"", "\"8\""],
                 [self.shoal.path, *eight]),
                (2, ["rank 1", "other flags", "expected \"nothing\"", "--quiet"],
                 [self.shoal.path, *seven, "--quiet"]),
                (2, ["rank 1", "--frobnicate"], [self.shoal.path, *seven, "--frobnicate"])):
            done = run([TESTS / "mpirun.sh", 1, self.shoal.path, *seven, ":", "-n", 1, *second],
                       LIMIT_S)
            self.fails(status, words, done)

    def wrong_flags_are_said_once(self):
        """One sentence, even if the launcher lets the other ranks run when one has failed, as srun
        does."""
        done = self.shoal("generate", "--no-such-flag", ranks=4, limit_s=LIMIT_S,
                          env={"OMPI_MCA_orte_abort_on_non_zero_status": "0"})
        expect(done.err.count("no such flag") == 1, f"4 ranks do not say it once: {done}")

    def convert_refuses(self):
        source = self.work / "hf"
        shutil.copytree(GOLDENS / "mixtral" / "hf", source)
        weights = source / "model.safetensors"
        whole = weights.read_bytes()
        for size in (0, 4, 1000, len(whole) - 1):
            weights.write_bytes(whole[:size])
            self.fails(3, ["model.safetensors"],
                       self.shoal("convert", source, self.work / "never.h5", limit_s=LIMIT_S))
            expect(not (self.work / "never.h5").exists(), "a failed convert left a file")
        weights.write_bytes(whole)
        config = json.loads((source / "config.json").read_text())
        for change, words in (({"architectures": ["NoSuchForCausalLM"], "model_type": "nosuch"},
                               ["nosuch"]),
                              ({"hidden_act": "gelu"}, ["hidden_act"]),
                              ({"num_attention_heads": 0}, ["num_attention_heads"]),
                              ({"num_attention_heads": 3}, ["heads"]),
                              ({"tie_word_embeddings": True}, ["lm_head", "tie_word_embeddings"]),
                              ({"num_experts_per_tok": 9}, ["num_experts_per_tok"]),
                              ({"vocab_size": 321}, ["embed"])):
            (source / "config.json").write_text(json.dumps({**config, **change}))
            self.refused_somewhere(source, words)

    def refused_somewhere(self, source, words):
        """Either convert refuses the config, or generate refuses the model before it runs."""
        path = self.work / "odd.h5"
        path.unlink(missing_ok=True)
        done = self.shoal("convert", source, path, limit_s=LIMIT_S)
        if done.status == 0:
            done = self.generate(1, model=path)
        expect(done.status in (2, 3), f"status 2 or 3 expected: {done}")
        self.fails(done.status, words, done)

    def hours_for_nothing(self):
        """An output that cannot be written at the end is refused before the work starts."""
        for argv in (["quantize", self.model, self.work, "--format", "int8"],
                     ["convert", GOLDENS / "llama-gqa" / "hf", self.work]):
            self.fails(3, ["found a folder"], self.shoal(*argv))
            left = [p.name for p in self.work.parent.iterdir() if p.name.startswith(self.work.name + ".")]
            expect(not left, f"beside the folder: {left}")
        self.fails(3, ["--json", "found a folder"],
                   self.shoal("bench", "--machine", "--threads", 1, "--json", self.work))
        self.fails(3, ["shoal convert"], self.shoal("plan", "--model", self.work))
        self.fails(3, ["name its folder"],
                   self.shoal("convert", GOLDENS / "llama-gqa" / "hf" / "config.json",
                              self.work / "x.h5"))

    def copies_over_sources(self):
        """A command does not overwrite the model that it reads."""
        whole = self.model.read_bytes()
        self.fails(2, ["another file"], self.shoal("quantize", self.model, self.model, "--format",
                                                   "int8"))
        self.fails(2, ["another file"], self.shoal("convert", self.model, self.model))
        self.fails(2, ["name of a source"], self.shoal("convert", GOLDENS / "llama-gqa" / "hf",
                                                       self.work / "model.safetensors"))
        expect(self.model.read_bytes() == whole, "the model was overwritten")

    def links_and_devices(self):
        """Output through a symlink goes to its target; a device node is not replaced."""
        source = GOLDENS / "llama-gqa" / "hf"
        folder, link, device = self.work / "elsewhere", self.work / "link.h5", self.work / "full"
        folder.mkdir()
        link.symlink_to(folder / "target.h5")
        device.symlink_to("/dev/full")
        for argv in (["convert", source], ["quantize", self.model]):
            flags = ["--format", "int8"] if argv[0] == "quantize" else []
            self.shoal.must(*argv, link, *flags)
            expect(link.is_symlink() and [p.name for p in folder.iterdir()] == ["target.h5"],
                   f"{argv[0]} through a link: {list(folder.iterdir())}")
            self.fails(2, ["found a device"], self.shoal(*argv, device, *flags))
            self.fails(2, ["found a device"], self.shoal(*argv, "/dev/full", *flags))
        expect(device.is_symlink(), "the link to a device was replaced")

    def flags_without_use(self):
        """A flag that the chosen method ignores is refused."""
        for flags, needs in ((["--damping", "0.02"], "--method gptq"), (["--no-act-order"], "--method gptq"),
                             (["--method", "awq", "--damping", "0.02"], "--method gptq"),
                             (["--alpha", "0.25"], "--method smoothquant"), (["--memory", "64"], "--calibration"),
                             (["--min-tokens", "1"], "--calibration"), (["--calibration-tokens", "9"], "--calibration")):
            self.fails(2, [f"{flags[-1 if len(flags) == 1 else -2]}: needs {needs}"],
                       self.shoal("quantize", self.model, self.work / "x.h5", "--format", "int4", *flags))

    def silent_launcher(self):
        """Open MPI's mpirun may end with status 1 and no message; shoal-job prints one then."""
        launcher = self.work / "mpirun"
        launcher.write_text("#!/bin/sh\nexit 1\n")
        launcher.chmod(0o755)
        env = {"SLURM_JOB_ID": "", "SLURM_RESTART_COUNT": "0"}
        done = run([TESTS.parent / "jobs" / "shoal-job", launcher, "-n", 2, "true"], LIMIT_S, env)
        self.fails(1, ["status 1 comes from the launcher"], done)
        expect("(nothing on stderr)" in str(run([launcher], LIMIT_S)), "a test's own report")

    def wrong_environment(self):
        """A thread count that is not a number is refused, even if --threads is given."""
        for text in ("abc", "0", "-2", "4x", "5000"):
            for command in (["generate", "--threads", 1], ["status", self.output]):
                self.fails(2, ["OMP_NUM_THREADS: expected", f'found "{text}"'],
                           self.shoal(*command, env={"OMP_NUM_THREADS": text}, journal=True))
        for text in ("2", "2,1", ""):  # OpenMP's own list: threads of the outer region first
            done = self.shoal("generate", "--model", self.model, "--input", self.input, "--output", self.output,
                              env={"OMP_NUM_THREADS": text})
            expect(done.status == 0, f"OMP_NUM_THREADS={text}: {done}")

    def wrong_times(self):
        for text in ("1:99", "1:60:00", "1-24:00:00", "1-1:60", ":5", "5:", "1:2:3:4", "soon"):
            self.fails(2, ["--time-limit: expected", f'found "{text}"'], self.generate(0, "--time-limit", text))
        for text in ("99", "99:59", "100:00:00", "2-23:59:59"):
            expect(self.generate(0, "--time-limit", text).status == 0, f"--time-limit {text}")

    def plans(self):
        """plan says which memory it assumed, and ends with status 2 if no layout fits."""
        def plan(topology, *flags):
            return self.shoal("plan", "--model", self.model, "--topology", topology, *flags)
        done = plan("pack:2 numa:1 core:4 pu:1")
        self.fails(0, ["256 GiB", "--memory-per-node"], done)
        for known in (["--memory-per-node", 8], []):
            done = plan("pack:2 numa:1 core:4 pu:1" if known else "numa:2(memory=8GiB) core:4 pu:1", *known)
            expect(done.status == 0 and "--memory-per-node" not in done.err, f"memory is known: {done}")
        done = plan("numa:1 core:2 pu:1", "--memory-per-node", 0.0001)
        self.fails(2, ["no layout fits", "--memory-per-node"], done)
        expect("Fits" in done.out, f"the plan is shown all the same: {done}")
        self.fails(2, ["no such folder, nor a valid topology"], plan(self.work / "nowhere"))
        self.fails(2, ["pp may be at most"], self.generate(0, "--pp", 99))
        self.lacks("mpirun", self.generate(0, "--pp", 99))
        self.lacks("mpirun", self.generate(0, "--tp", 99))
        self.fails(2, ["tp 2", "start it under mpirun"], self.generate(0, "--tp", 2))

    def lacks(self, word, done):
        expect(word not in done.err, f"'{word}' is of no help here: {done}")

    def main(self):
        self.shoal.must("convert", GOLDENS / "llama-gqa" / "hf", self.model)
        self.shoal.must("convert", GOLDENS / "mixtral" / "hf", self.moe)
        write_lines(self.input, [PROMPT])
        for ranks in (1, 4):
            self.wrong_flags(ranks)
            self.wrong_layouts(ranks)
            self.wrong_inputs(ranks)
            self.no_lines_at_all(ranks)
            self.error_rows(ranks)
        self.hostile_lines()
        self.reader_that_left()
        self.streams()
        self.tp_beyond_heads()
        self.ranks_that_differ()
        self.wrong_flags_are_said_once()
        self.convert_refuses()
        self.copies_over_sources()
        self.links_and_devices()
        self.flags_without_use()
        self.hours_for_nothing()
        self.silent_launcher()
        self.wrong_environment()
        self.wrong_times()
        self.plans()
        done = self.generate(4)
        expect(done.status == 0 and "a" in read_rows(self.output), f"the good run: {done}")
        print(f"{self.n_cases} wrong inputs: each a sentence and its status")


if __name__ == "__main__":
    main_of(ErrorsTest(*sys.argv[1:3]).main)
