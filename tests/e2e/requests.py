#!/usr/bin/env python3
"""Tests request fields through the whole program: against transformers, and with an OpenAI batch
file that has broken lines.

usage: requests.py SHOAL WORK_FOLDER golden|openai
"""
import json
import shutil
import sys
from pathlib import Path

import openai_lines
from program import GOLDENS, Shoal, expect, fresh_folder, main_of, read_rows, write_lines

TEMPLATE = ("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")
LOGPROB_BOUND = 2e-4


class RequestsTest:
    def __init__(self, shoal, work, case):
        self.shoal, self.case = Shoal(shoal), case
        self.work = fresh_folder(Path(work) / case)
        self.model = self.work / "model.h5"
        source = self.work / "hf"
        shutil.copytree(GOLDENS / "llama-gqa" / "hf", source)
        # transformers writes this length for a tokenizer without a limit
        (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE,
                                                                  "model_max_length": int(1e30)}))
        self.shoal.must("convert", source, self.model)

    def run(self, name, *flags, ranks=0, status=0):
        output = self.work / f"{name}.out.jsonl"
        done = self.shoal("generate", "--model", self.model, "--input", self.work / f"{name}.jsonl",
                          "--output", output, "--quiet", "--kv-dtype", "f32", *flags, ranks=ranks)
        expect(done.status == status, f"status {status} expected: {done}")
        return output

    # --- transformers

    def check_tokens(self, rows, golden):
        for i, case in enumerate(golden["greedy"]):
            found = rows[f"g{i}"]["token_ids"]
            expect(found == case["token_ids"],
                   f"{case['fields']}: {found}, transformers {case['token_ids']}")
        for i, case in enumerate(golden["beam"]):
            found = [c["token_ids"] for c in rows[f"b{i}"]["choices"]]
            expect(found == case["choices"],
                   f"{case['fields']}: {found}, transformers {case['choices']}")
        print(f"  {len(golden['greedy'])} greedy answers and {len(golden['beam'])} beam searches "
              "equal")

    def check_logprobs(self, row, golden):
        expect(row["token_ids"] == golden["token_ids"], "tokens of the case with logprobs")
        expect(row["prompt_logprobs"][0] is None, "the first token has no log-probability")
        found = row["prompt_logprobs"][1:] + row["logprobs"]
        expect(len(found) == len(golden["rows"]), f"{len(found)} log-probabilities")
        worst = 0
        for mine, theirs in zip(found, golden["rows"]):
            expect(mine["id"] == theirs["id"], f"{mine} stands where {theirs} should")
            pairs = [(mine["logprob"], theirs["logprob"])]
            pairs += [(a[1], b[1]) for a, b in zip(mine["top"], theirs["top"])]
            expect(len(mine["top"]) == 4, f"{len(mine['top'])} alternatives")
            worst = max(worst, *(abs(a - b) for a, b in pairs))
        expect(worst < LOGPROB_BOUND, f"log-probabilities differ by up to {worst}")
        print(f"  {len(found)} log-probabilities and 4 alternatives each, within {worst:.1e}")

    def check_min_p(self, rows, golden, n):
        seen = [rows[f"m{i}"]["token_ids"][0] for i in range(n)]
        for token, probability in zip(golden["kept"], golden["probabilities"]):
            share = seen.count(token) / n
            # four standard deviations
            bound = 4 * (probability * (1 - probability) / n) ** 0.5
            expect(abs(share - probability) < bound,
                   f"token {token} is drawn at {share}, expected {probability} +- {bound}")
        expect(set(seen) == set(golden["kept"]), f"{set(seen)} were drawn of {golden['kept']}")

    def check_choices(self, rows):
        """The i-th answer is the same for every n, and differs from the others."""
        answers = [c["token_ids"] for c in rows["n3"]["choices"]]
        expect(len({tuple(a) for a in answers}) == 3, f"answers: {answers}")
        expect([c["token_ids"] for c in rows["n2"]["choices"]] == answers[:2] and
               rows["n1"]["token_ids"] == answers[0], "answers depend on n")

    def golden(self):
        golden = json.loads((GOLDENS.parent / "requests.json").read_text())
        lines = [{"custom_id": f"{kind[0]}{i}", "prompt_token_ids": case["prompt_token_ids"],
                  "max_tokens": 24, "temperature": 0, **case["fields"]}
                 for kind in ("greedy", "beam") for i, case in enumerate(golden[kind])]
        lines.append({"custom_id": "l", "prompt_token_ids": golden["logprobs"]["prompt_token_ids"],
                      "max_tokens": 24, "temperature": 0, "logprobs": 4, "prompt_logprobs": 4})
        n_drawn = 600
        lines += [{"custom_id": f"m{i}", "max_tokens": 1, **{k: golden["min_p"][k] for k in (
            "prompt_token_ids", "temperature", "min_p")}} for i in range(n_drawn)]
        drawn = {"prompt_token_ids": [5, 6, 7], "max_tokens": 8, "seed": 4}
        lines += [{"custom_id": f"n{n}", "n": n, **drawn} for n in (1, 2, 3)]
        write_lines(self.work / "in.jsonl", lines)
        first = None
        for flags, ranks in (([], 0), (["--tp", "3"], 3), (["--pp", "2", "--prefix-cache", "off",
                             "--result-cache", "off", "--kv-blocks", "9"], 2)):
            output = self.run("in", *flags, ranks=ranks)
            rows = read_rows(output)
            self.check_tokens(rows, golden)
            self.check_logprobs(rows["l"], golden["logprobs"])
            self.check_min_p(rows, golden["min_p"], n_drawn)
            self.check_choices(rows)
            first = first or output.read_bytes()
            expect(output.read_bytes() == first, f"other bytes with {flags}")

    # --- an OpenAI batch

    def check_logprobs_shape(self, body, choice, is_chat):
        if is_chat:
            tokens = choice["logprobs"]["content"]
            n = body.get("top_logprobs", 0)
            expect(all(len(t["top_logprobs"]) == n and t["logprob"] <= 0 for t in tokens),
                   f"top_logprobs: {tokens}")
            spelled = b"".join(bytes(t["bytes"]) for t in tokens).decode(errors="replace")
            expect(spelled.startswith(choice["message"]["content"]), "the tokens' bytes")
            return
        found = choice["logprobs"]
        expect(len(found["tokens"]) == len(found["token_logprobs"]) == len(found["text_offset"]),
               f"logprobs: {found}")
        expect((found["top_logprobs"] is None) == (body["logprobs"] == 0), f"logprobs: {found}")

    def check_result(self, request, row):
        body, is_chat = request["body"], "chat" in request["url"]
        response = row["response"]
        expect(row["error"] is None and response["status_code"] == 200, f"no result: {row}")
        found = response["body"]
        expect(found["object"] == ("chat.completion" if is_chat else "text_completion") and
               found["created"] == 0 and found["model"] == "tiny", f"body: {found}")
        choices = found["choices"]
        expect([c["index"] for c in choices] == list(range(body.get("n", 1))), f"choices: {found}")
        most = body.get("max_completion_tokens", body.get("max_tokens"))
        usage = found["usage"]
        expect(0 < usage["completion_tokens"] <= most * len(choices) and
               usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"],
               f"usage: {usage}")
        for choice in choices:
            text = choice["message"]["content"] if is_chat else choice["text"]
            stops = body.get("stop", [])
            expect(choice["finish_reason"] in ("stop", "length"), f"choice: {choice}")
            expect(not any(s in text for s in ([stops] if isinstance(stops, str) else stops)),
                   f"a stop string stands in {text!r}")
            if body.get("logprobs", False) is False:
                expect(choice["logprobs"] is None, f"logprobs: {choice}")
            else:
                self.check_logprobs_shape(body, choice, is_chat)

    def openai(self):
        lines, kinds = openai_lines.make()
        (self.work / "in.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        output = self.run("in")
        rows = [json.loads(row) for row in output.read_bytes().splitlines()]
        expect(len(rows) == openai_lines.N_LINES, f"{len(rows)} rows")
        n_errors, codes = 0, set()
        for i, (line, kind, row) in enumerate(zip(lines, kinds, rows)):
            if kind is None:
                request = json.loads(line)
                expect(row["custom_id"] == request["custom_id"], f"row {i} is {row['custom_id']}")
                self.check_result(request, row)
                continue
            code, words = kind
            error = row["error"]
            expect(error["code"] == code and all(w in error["message"] for w in words) and
                   row.get("response") is None, f"row {i}: {error}, expected {code} with {words}")
            expect(row["custom_id"] in (f"request-{i:04d}", str(i + 1), "same"),
                   f"row {i} is {row['custom_id']}")
            n_errors += 1
            codes.add((code, *words))
        expect(n_errors == 50 and len(codes) == 20, f"{n_errors} error rows of {len(codes)} kinds")
        print(f"  {len(rows) - n_errors} results, {n_errors} error rows of {len(codes)} kinds")
        first = output.read_bytes()
        expect(self.run("in", "--strict", status=4).read_bytes() == first, "--strict changes bytes")
        expect(self.run("in", "--tp", "2", "--max-batch", "7", ranks=2).read_bytes() == first,
               "tp 2 changes bytes")

    def main(self):
        getattr(self, self.case)()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main_of(RequestsTest(*sys.argv[1:]).main)
