#!/usr/bin/env python3
"""lm-evaluation-harness on three small tasks of local data: its own hf model, the adapter of integrations/, and a server.

usage: harness.py SHOAL WORK_FOLDER      needs the packages lm-eval[api,hf] and tokenizers; run by hand
A random model in f32. Results of each request must be equal, to the last digit, by the adapter and the server at batch
1 and 64 on one rank and on four; log-likelihoods within 1e-4 of hf's, and texts equal to hf's. Scores of the tasks follow.
"""
import json
import os
import random
import sys
from pathlib import Path

import lm_eval
import lm_eval.models
import tokenizers
import torch
import transformers
from lm_eval.tasks import TaskManager

TESTS = Path(__file__).resolve().parent
# behind the packages, because a file of e2e has the name of one
sys.path += [str(TESTS / "e2e"), str(TESTS.parent / "integrations")]
import lm_eval_shoal  # noqa: E402, F401
from program import Shoal, expect, fresh_folder, main_of  # noqa: E402
from serve import Server  # noqa: E402

MOST = 1e-4
TEXT = ("the quick brown fox jumps over the lazy dog and a shoal of small fish swims in the sea, "
        "each one near the others, none of them leading; when one turns, they all turn. ")
SPECIAL = ["<|begin|>", "<|end|>"]
N_DOCS = 70  # more than the largest batch
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{text}}}}"
"""
CHOICE = """output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: " "
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
ANSWER = """output_type: generate_until
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n", " fox"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
"""
WHOLE = """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}]
"""


def make_model(hf):
    """A model with random weights in f32, and its tokenizer."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
        vocab_size=320, show_progress=False, special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=SPECIAL[0], eos_token=SPECIAL[1],
                                         pad_token=SPECIAL[1]).save_pretrained(hf)
    config = transformers.LlamaConfig(
        vocab_size=bpe.get_vocab_size(), hidden_size=64, intermediate_size=160, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=512, bos_token_id=0, eos_token_id=1)
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(config)
    for p in model.parameters():
        p.data.mul_(4 if p.dim() > 1 else 1)
    model.save_pretrained(hf)


def write_tasks(folder):
    draw, words = random.Random(4), TEXT.split()

    def some(least, most):
        return " ".join(draw.choices(words, k=draw.randrange(least, most)))
    docs = folder / "docs.jsonl"
    docs.write_text("".join(json.dumps({"text": some(2, 40), "choices": [some(1, 6) for _ in range(4)],
                                        "answer": draw.randrange(4)}) + "\n" for _ in range(N_DOCS)))
    for name, body in (("choice", CHOICE), ("answer", ANSWER), ("whole", WHOLE)):
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, data=docs).replace(
            'doc_to_text: "{{text}}"\n', "" if name == "whole" else 'doc_to_text: "{{text}}"\n') + body)


def evaluate(tasks, model, arguments, batch):
    """(results of all requests of a task, in order; its scores), by task."""
    found = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=["choice", "answer", "whole"], batch_size=batch,
                                    task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
                                    log_samples=True, bootstrap_iters=0, cache_requests=False)
    samples = {name: [s["resps"] for s in sorted(rows, key=lambda s: s["doc_id"])]
               for name, rows in found["samples"].items()}
    scores = {name: {k: v for k, v in of.items() if "," in k and "stderr" not in k} for name, of in found["results"].items()}
    return samples, scores


def numbers(value):
    """The log-likelihoods of a task's results."""
    if isinstance(value, float):
        return [value]
    return [n for one in value for n in numbers(one)] if isinstance(value, (list, tuple)) else []


class HarnessTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(Path(work).resolve())
        self.hf, self.model, self.tasks = self.work / "hf", self.work / "model.h5", self.work / "tasks"
        self.tasks.mkdir()
        make_model(self.hf)
        write_tasks(self.tasks)
        self.shoal.must("convert", self.hf, self.model)

    def offline(self, ranks, batch):
        launcher = f"{TESTS / 'mpirun.sh'} 4" if ranks == 4 else ""
        flags = "--kv-dtype f32 --threads 1" + (" --tp 2 --pp 2" if ranks == 4 else "")
        return evaluate(self.tasks, "shoal", dict(model=str(self.model), shoal=self.shoal.path, launcher=launcher,
                                                  flags=flags), batch)

    def served(self, server, batch):
        return evaluate(self.tasks, "local-completions", dict(
            model=str(self.hf), base_url=f"http://127.0.0.1:{server.port}/v1/completions", num_concurrent=1,
            tokenizer_backend="huggingface", max_length=511), batch)

    def near(self, found, wanted):
        """The largest difference of log-likelihoods from hf's; everything else is equal."""
        worst = 0
        for name in ("choice", "whole"):
            own, others = numbers(found[0][name]), numbers(wanted[0][name])
            expect(len(own) == len(others) >= N_DOCS, f"{name}: {len(own)} numbers, hf has {len(others)}")
            worst = max(worst, *(abs(a - b) for a, b in zip(own, others)))
        expect(worst <= MOST, f"{worst:.2e} from hf")
        expect(found[0]["answer"] == wanted[0]["answer"], f"other texts than hf's: {found[0]['answer'][:5]}")
        return worst

    def run(self):
        hf = evaluate(self.tasks, "hf", dict(pretrained=str(self.hf), dtype="float32", device="cpu"), 1)
        first = self.offline(1, 1)
        print(f"from hf at most {self.near(first, hf):.2e}, of {min(numbers(hf[0]['choice'])):.1f} at least; {first[1]}")
        for ranks in (1, 4):
            server = Server(self.shoal, self.work / f"server{ranks}", self.model, ranks, "--kv-dtype", "f32")
            try:
                for batch in (1, 64):
                    for name, found in (("adapter", self.offline(ranks, batch)), ("server", self.served(server, batch))):
                        expect(found == first, f"{name}, {ranks} ranks, batch {batch}: other numbers than the adapter's\n"
                               f"{found[1]}\n{first[1]}")
                        print(f"{name}, {ranks} ranks, batch {batch}: the same numbers")
            finally:
                server.end()


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main_of(HarnessTest(*sys.argv[1:3]).run)
