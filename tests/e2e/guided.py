#!/usr/bin/env python3
"""Tests guided answers (patterns, choices, JSON) and restricted tokens: every answer fits, with
the same bytes in every layout.

usage: guided.py SHOAL WORK_FOLDER
Uses the demo model, which otherwise writes plays. Patterns are checked with Python's `re`, JSON
with a small schema checker below. --audit recomputes some rows, and a longer job is killed several
times and resumed.
"""
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from program import REPO, Shoal, expect, main_of, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
PATTERNS = ["[0-9]{3}-[a-f]{1,9}", "(KING|QUEEN|First \\w{2,8}): [A-Z][a-z ,']{5,20}[.!?]",
            "-?[1-9]\\d{0,4}(\\.\\d{2})?", "é[α-ω]{2,4}🙂?", "([ab]c?){3,6}"]
CHOICES = [["yes", "no", "maybe"], ["Romeo", "Romeo and Juliet"], ["π", "ρ\n"]]
PERSON = {"type": "object", "title": "Person", "required": ["name", "age", "moods"], "properties": {
    "name": {"type": "string", "minLength": 2, "maxLength": 10},
    "age": {"type": "integer", "minimum": 7, "maximum": 130},
    "nick": {"type": ["string", "null"], "maxLength": 4},
    "moods": {"type": "array", "items": {"$ref": "#/$defs/mood"}, "minItems": 1, "maxItems": 3}},
    "$defs": {"mood": {"enum": ["glad", "sad", "ça \"va\""]}}}
SCHEMAS = [PERSON, {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
           {"anyOf": [{"type": "integer", "minimum": -5, "maximum": 5}, {"const": None}]},
           {"type": "string", "pattern": "^[A-Z]{2,3}$"}]
# Each exceeds one limit of grammars; its error row names that limit.
TOO_LARGE = {"edges": {"guided_json": {"enum": [f"value {i}" for i in range(200000)]}},
             "states": {"guided_regex": "(a|b)*a(a|b){18}"},
             "steps": {"guided_json": {"type": "array", "maxItems": 40000, "items": {
                 "type": "string", "enum": ["x"], "pattern": "(a|b)*a(a|b){8}"}}}}
LARGE = "(a|b)*a(a|b){14}"  # 32,769 states: half of the limit
ALLOWED = [11, *range(300, 700, 3)]
LAYOUTS = {"tp 2": (["--tp", "2"], 2), "pp 2": (["--pp", "2"], 2),
           "dp 2, blocks in want": (["--dp", "2", "--kv-blocks", "10", "--chunk", "3"], 2),
           "no caches, one at a time": (["--max-batch", "1", "--prefix-cache", "off",
                                         "--result-cache", "off"], 0)}


def make_lines():
    forms = [{"guided_regex": p} for p in PATTERNS] + [{"guided_choice": c} for c in CHOICES]
    forms += [{"guided_json": s if i % 2 else json.dumps(s)} for i, s in enumerate(SCHEMAS)]
    forms += [{"structured_outputs": {"json": PERSON}}, {"response_format": {
        "type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PERSON}}},
        {"response_format": {"type": "json_object"}}]
    forms += [{"allowed_token_ids": ALLOWED}, {"bad_words": ["the", "my lord", "\n"]}]
    draws = [{"temperature": 0}, {"temperature": 1.5, "n": 2}, {"seed": 3, "logprobs": 2},
             {"top_k": 5, "repetition_penalty": 1.2, "logit_bias": {"11": 5}}]
    lines = [dict(custom_id=f"{i}.{k}", prompt="KING HENRY:\nWhat", max_tokens=150, **form, **draw)
             for i, form in enumerate(forms) for k, draw in enumerate(draws)]
    return lines + [dict(custom_id=f"free {k}", prompt="Who", max_tokens=9, **d)
                    for k, d in enumerate(draws)]


def fits(value, schema, root):
    """A JSON Schema checker for the schemas used here."""
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].split("/")[-1]], root)
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if "anyOf" in schema:
        return any(fits(value, s, root) for s in schema["anyOf"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if value is None or isinstance(value, bool):
        return ("null" if value is None else "boolean") in kinds
    if isinstance(value, str):
        return ("string" in kinds and bool(re.search(schema.get("pattern", ""), value)) and
                schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1e9))
    if isinstance(value, int):
        return "integer" in kinds and schema["minimum"] <= value <= schema["maximum"]
    if isinstance(value, list):
        return ("array" in kinds and schema.get("minItems", 0) <= len(value) <= schema["maxItems"]
                and all(fits(v, schema["items"], root) for v in value))
    return ("object" in kinds and set(schema["required"]) <= set(value) and
            all(k in schema["properties"] and fits(v, schema["properties"][k], root)
                for k, v in value.items()))


def check_answer(line, answer):
    """Checks that an answer fits its grammar. True: it ended (finish_reason stop)."""
    text = answer["text"]
    if "allowed_token_ids" in line:
        expect(set(answer["token_ids"]) <= set(ALLOWED), f"other tokens: {answer}")
    if "allowed_token_ids" in line or "bad_words" in line:
        return True
    if answer["finish_reason"] != "stop":
        return False
    form = line.get("structured_outputs", {}).get("json") or line.get("guided_json")
    if "response_format" in line:
        form = line["response_format"].get("json_schema", {}).get("schema")
        expect(isinstance(json.loads(text), dict), f"no object: {text}")
    if "guided_regex" in line:
        expect(re.fullmatch(line["guided_regex"], text), f"{line['guided_regex']}: {text!r}")
    elif "guided_choice" in line:
        expect(text in line["guided_choice"], f"{line['guided_choice']}: {text!r}")
    elif form is not None:
        schema = json.loads(form) if isinstance(form, str) else form
        expect(fits(json.loads(text), schema, schema), f"{schema}: {text}")
    return True


class GuidedTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), Path(work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.lines = make_lines()
        write_lines(self.work / "in.jsonl", self.lines)

    def generate(self, name, flags=(), ranks=0, lines="in", **how):
        output = self.work / f"{name}.jsonl"
        done = self.shoal("generate", "--model", DEMO, "--input", self.work / f"{lines}.jsonl",
                          "--output", output, "--max-model-len", 512, "--threads", 1, *flags,
                          ranks=ranks, **how)
        return done, output

    def check_rows(self, output):
        n_ended = n_answers = 0
        for line, text in zip(self.lines, output.read_text().splitlines(), strict=True):
            row = json.loads(text)
            expect("error" not in row, f"an error row: {row}")
            for answer in row.get("choices", [row]):
                n_answers += 1
                n_ended += check_answer(line, answer)
        # An answer without a bound (any object) may reach max_tokens first.
        expect(n_ended >= n_answers - 10, f"only {n_ended} of {n_answers} answers ended")

    def run(self):
        done, output = self.generate("one", ["--restart"], journal=True)
        expect(done.status == 0, str(done))
        self.check_rows(output)
        whole = output.read_bytes()
        done, _ = self.generate("one", ["--audit", "20", "--threads", "2"], journal=True)
        expect(done.status == 0, str(done))
        for name, (flags, ranks) in LAYOUTS.items():
            done, output = self.generate("other", flags, ranks)
            expect(done.status == 0 and output.read_bytes() == whole, f"{name}: {done}")
        self.beside_too_large(whole)
        self.stop_among_large()
        self.resume()

    def beside_too_large(self, whole):
        """Lines whose grammars are too large become error rows; the other lines' rows do not
        change.
        """
        hostile = [dict(custom_id=unit, prompt="Who", **form) for unit, form in TOO_LARGE.items()]
        write_lines(self.work / "mixed.jsonl", [*hostile, *self.lines, *hostile[:1]])
        done, output = self.generate("beside", lines="mixed")
        expect(done.status == 0, str(done))
        rows = output.read_bytes().splitlines(keepends=True)
        expect(b"".join(rows[3:-1]) == whole, "ordinary lines give other rows beside large grammars")
        for (unit, form), row in zip(TOO_LARGE.items(), rows):
            n_bytes = len(json.dumps(*form.values(), separators=(",", ":")))
            expect(f"it is too large: its {n_bytes} bytes need more than " in row.decode() and
                   f" {unit}\"" in row.decode(), f"{unit}: {row[:400]}")

    def stop_among_large(self):
        """TERM and USR1 while large grammars are compiled, one per line, take effect between two
        lines and not after all lines that were read ahead. The prompts are bad, so each line
        becomes a row when its grammar is compiled, and the number of rows is the number of
        compiled lines.
        """
        write_lines(self.work / "large.jsonl", [
            dict(custom_id=f"{i}", prompt_token_ids=[-1], guided_regex=f"{LARGE}|{i}")
            for i in range(1000)])
        for number in signal.SIGTERM, signal.SIGUSR1:
            argv = [self.shoal.path, "generate", "--model", DEMO, "--input", self.work / "large.jsonl",
                    "--output", self.work / "stopped.jsonl", "--max-model-len", "512", "--restart"]
            with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
                said = ""
                for text in process.stderr:
                    said += text
                    if "loaded " in text:
                        process.send_signal(number)
            drained = re.search(r"drained after ([0-9]+) rows", said)
            expect(process.returncode == 75 and drained, f"{number}: {process.returncode}: {said}")
            expect(int(drained[1]) < 500, f"{number}: only after {drained[1]} large grammars")

    def resume(self):
        """Kills the job several times while its journal holds tokens of unfinished rows. The job
        is longer, because it commits five times a second; each kill comes some steps later, so
        the job ends at different places.
        """
        write_lines(self.work / "long.jsonl",
                    [dict(line, custom_id=f"{line['custom_id']} {k}", prompt=f"{line['prompt']} {k}")
                     for k in range(12) for line in self.lines])
        done, whole = self.generate("whole", lines="long")
        expect(done.status == 0, str(done))
        flags = ["--checkpoint-tokens", "3", "--max-batch", "7", "--restart"]
        status, n_runs = -9, 0
        while status != 0:
            done, output = self.generate("resumed", [*flags, "--failpoint", f"step:{400 << n_runs}"],
                                         lines="long", journal=True)
            status, n_runs, flags = done.status, n_runs + 1, flags[:4]
            expect(status in (0, -9, 137), str(done))
        expect(n_runs > 2 and output.read_bytes() == whole.read_bytes(),
               f"{n_runs} runs, other bytes")


if __name__ == "__main__":
    main_of(lambda: GuidedTest(*sys.argv[1:3]).run())
