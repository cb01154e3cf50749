"""The model `shoal` of lm-evaluation-harness: runs requests through shoal score and shoal generate,
without a server (docs/score.md).

    PYTHONPATH=integrations python -m lm_eval_shoal --model shoal --tasks ... --model_args model=m.h5

Tokens, windows and truncation are shoal's own (docs/score.md); this file only moves requests and
numbers. Needs lm-eval; no other package.
"""
import contextlib
import json
import shlex
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

# arguments of a task's generation_kwargs that lines have under the same name
SAMPLING = ["temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "frequency_penalty",
            "presence_penalty", "min_tokens"]


class ChatHistory(str):
    """A conversation as JSON: what apply_chat_template gives to the harness as a text."""


@register_model("shoal")
class ShoalLM(LM):
    def __init__(self, model, shoal="shoal", launcher="", flags="", work=None, max_length=None,
                 max_gen_toks=256, add_bos_token=None, prefix_token_id=None, batch_size=None, **ignored):
        """Arguments: docs/score.md. batch_size limits the sequences that run; results are the same."""
        super().__init__()
        self.model, self.shoal = str(model), str(shoal)
        self.launcher, self.flags = shlex.split(str(launcher)), shlex.split(str(flags))
        if max_length is not None:  # the token after the last one needs a place too
            self.flags += ["--max-model-len", str(int(max_length) + 1)]
        if batch_size is not None and str(batch_size).isdigit():
            self.flags += ["--max-batch", str(batch_size)]
        self.work = Path(work) if work else None
        self.max_gen_toks = int(max_gen_toks)
        self.options = {}
        if add_bos_token is not None:
            self.options["add_special_tokens"] = str(add_bos_token).lower() in ("true", "1")
        if prefix_token_id is not None:
            self.options["prefix_token_id"] = int(prefix_token_id)
        self.n_runs = 0
        self.is_chat = False

    # ---- running shoal ----

    @contextlib.contextmanager
    def folder(self):
        if self.work is None:
            with tempfile.TemporaryDirectory(prefix="lm-eval-shoal-") as folder:
                yield Path(folder)
        else:
            self.work.mkdir(parents=True, exist_ok=True)
            yield self.work

    def run(self, command, lines):
        """The rows of shoal's command, one for each line; equal lines that give equal rows are written once."""
        self.n_runs += 1
        texts = [json.dumps(line if line.get("temperature", 0) == 0 else {"custom_id": str(i), **line})
                 for i, line in enumerate(lines)]
        places = {}
        for text in texts:
            places.setdefault(text, len(places))
        with self.folder() as folder:
            given = folder / f"{self.n_runs}.{command}.in.jsonl"
            made = folder / f"{self.n_runs}.{command}.out.jsonl"
            given.write_text("".join(text + "\n" for text in places))
            argv = [*self.launcher, self.shoal, command, "--model", self.model, "--input", str(given),
                    "--output", str(made), *self.flags]
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{shlex.join(argv)}: exit status {done.returncode}")
            rows = [json.loads(row) for row in made.read_bytes().splitlines()]
        for line, place in zip(lines, map(places.get, texts)):
            if "error" in rows[place]:
                raise ValueError(f"shoal {command}: {rows[place]['error']['message']}: {str(line)[:300]}")
        return [rows[places[text]] for text in texts]

    # ---- the harness' interface ----

    def loglikelihood(self, requests, disable_tqdm=False):
        lines = [{"context": r.args[0], "continuation": r.args[1], **self.options} for r in requests]
        if any(isinstance(line["context"], ChatHistory) for line in lines):
            raise NotImplementedError("shoal: with --apply_chat_template only tasks that generate run")
        return [(total(row), row["is_greedy"]) for row in self.run("score", lines)] if lines else []

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        lines = [{"text": r.args[0], **self.options} for r in requests]
        return [total(row) for row in self.run("score", lines)] if lines else []

    def generate_until(self, requests, disable_tqdm=False):
        lines = [self.line_of(*r.args[:2]) for r in requests]
        return [row["text"] for row in self.run("generate", lines)] if lines else []

    def line_of(self, context, arguments):
        stops = arguments.get("until") or []
        line = {"max_tokens": self.max_gen_toks, "stop": [stops] if isinstance(stops, str) else stops,
                "temperature": 0}
        for name in ("max_gen_toks", "max_new_tokens", "max_tokens"):
            line["max_tokens"] = arguments.get(name, line["max_tokens"])
        line.update({name: arguments[name] for name in SAMPLING if arguments.get(name) is not None})
        if arguments.get("do_sample") is False:
            line["temperature"] = 0
        chat = isinstance(context, ChatHistory)
        line.update({"messages": json.loads(context)} if chat else {"prompt": context})
        return line

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        """The model's own template, in shoal, formats the conversation."""
        return ChatHistory(json.dumps(chat_history))

    @property
    def tokenizer_name(self):
        return self.model

    def chat_template(self, chat_template=False):
        return ""


def total(row):
    """The sum as the harness' API models make it, so that a server's numbers are the same."""
    numbers = iter(row["logprobs"])
    return sum(sum(islice(numbers, n)) for n in row.get("windows", [len(row["logprobs"])]))


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate
    cli_evaluate()
