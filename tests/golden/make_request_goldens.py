#!/usr/bin/env python3
"""Makes tests/golden/requests.json: transformers' results on the checkpoint llama-gqa with
penalties, biases, min_p, minimum lengths, log-probabilities and beam search.

Runs transformers alone (torch, f32 on the CPU), never shoal. Each case is the fields of a request
line and its expected result. transformers has no frequency and presence penalties: the class
Frequency applies them to its logits. Cases whose choices hang on less than GAP_LEAST are refused.
usage: make_request_goldens.py
"""
import json
import random
from pathlib import Path

import torch
import transformers
from transformers import LlamaForCausalLM, LogitsProcessor, LogitsProcessorList, MinPLogitsWarper

HERE = Path(__file__).resolve().parent
GAP_LEAST = 1e-3  # between the two best logits of a greedy step, after all changes to them
N_TOKENS = 24
VOCAB = 320


class Frequency(LogitsProcessor):
    """Penalties that reduce a logit by how often the answer already has the token."""

    def __init__(self, n_prompt, frequency, presence):
        self.n_prompt, self.frequency, self.presence = n_prompt, frequency, presence

    def __call__(self, input_ids, scores):
        for token in set(input_ids[0, self.n_prompt:].tolist()):
            n = input_ids[0, self.n_prompt:].tolist().count(token)
            scores[0, token] -= self.frequency * n
            scores[0, token] -= self.presence
        return scores


class Gaps(LogitsProcessor):
    """The last processor: records how close the choice was."""

    def __init__(self):
        self.least = float("inf")

    def __call__(self, input_ids, scores):
        best = scores[0].topk(2).values
        self.least = min(self.least, float(best[0] - best[1]))
        return scores


def generate(model, prompt, processors=(), **options):
    gaps = Gaps()
    is_beam = options.get("num_beams", 1) > 1
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                             logits_processor=LogitsProcessorList(
                                 [*processors, *([] if is_beam else [gaps])]),
                             pad_token_id=0, **{"max_new_tokens": N_TOKENS, **options})
    return [row[len(prompt):].tolist() for row in out], gaps.least


def cut(tokens, ends):
    """Removes the padding that transformers appends to short rows."""
    for i, token in enumerate(tokens):
        if token in ends:
            return tokens[:i + 1]
    return tokens


def greedy_cases(model, draw):
    prompt = [draw.randrange(VOCAB) for _ in range(draw.choice([5, 40, 70]))]
    plain, gap = generate(model, prompt)
    yield {}, plain[0], gap, prompt
    found, gap = generate(model, prompt, repetition_penalty=1.3)
    yield {"repetition_penalty": 1.3}, found[0], gap, prompt
    found, gap = generate(model, prompt, repetition_penalty=0.7)
    yield {"repetition_penalty": 0.7}, found[0], gap, prompt
    bias = {token: draw.uniform(-6, 6) for token in draw.sample(range(VOCAB), 40)}
    bias.update({plain[0][0]: -5.5})
    bias = {token: round(value, 2) for token, value in bias.items()}
    found, gap = generate(model, prompt, sequence_bias=[[[t], b] for t, b in bias.items()],
                          repetition_penalty=1.2)
    yield ({"logit_bias": {str(t): b for t, b in bias.items()}, "repetition_penalty": 1.2},
           found[0], gap, prompt)
    found, gap = generate(model, prompt, [Frequency(len(prompt), 0.75, 0.25)])
    yield {"frequency_penalty": 0.75, "presence_penalty": 0.25}, found[0], gap, prompt
    found, gap = generate(model, prompt, [Frequency(len(prompt), -0.5, 1.0)],
                          repetition_penalty=1.5)
    yield ({"frequency_penalty": -0.5, "presence_penalty": 1.0, "repetition_penalty": 1.5},
           found[0], gap, prompt)
    ends = [plain[0][0], plain[0][3]]
    found, gap = generate(model, prompt, eos_token_id=ends, min_new_tokens=6)
    yield {"stop_token_ids": ends, "min_tokens": 6}, cut(found[0], ends), gap, prompt


def beam_cases(model, draw):
    prompt = [draw.randrange(VOCAB) for _ in range(draw.choice([5, 40, 63]))]
    plain, _ = generate(model, prompt, num_beams=4, num_return_sequences=4)
    # end tokens that occur in the search; otherwise nothing would end early
    ends = sorted({row[i] for row, i in zip(plain, (3, 5, 8, 11))})
    for width, penalty, early, ending, least in (
            (4, 1.0, False, [], 0), (3, 1.0, False, ends, 0), (4, 0.5, True, ends, 0),
            (4, 2.0, False, ends, 0), (2, 1.0, "never", ends, 0), (4, -1.0, False, ends, 0),
            (5, 0.0, "never", ends, 4)):
        more = dict(eos_token_id=ending) if ending else {}
        if least:
            more["min_new_tokens"] = least
        found, _ = generate(model, prompt, num_beams=width, length_penalty=penalty,
                            early_stopping=early, num_return_sequences=2, max_new_tokens=16, **more)
        fields = {"beam": {"width": width, "length_penalty": penalty, "early_stopping": early},
                  "n": 2, "max_tokens": 16, "stop_token_ids": ending, "min_tokens": least}
        yield fields, [cut(row, ending) for row in found], prompt


def logprob_case(model, draw):
    prompt = [draw.randrange(VOCAB) for _ in range(70)]
    found, gap = generate(model, prompt)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + found[0]])).logits[0].float()
    logprobs = logits.log_softmax(-1)
    rows = []
    for i, token in enumerate((prompt + found[0])[1:]):
        top = logprobs[i].topk(4)
        rows.append({"id": token, "logprob": float(logprobs[i, token]),
                     "top": [[int(t), float(v)] for t, v in zip(top.indices, top.values)]})
    return {"prompt_token_ids": prompt, "token_ids": found[0], "rows": rows}, gap


def min_p_case(model, draw):
    prompt = [draw.randrange(VOCAB) for _ in range(20)]
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[:, -1].float()
    case = {"prompt_token_ids": prompt, "temperature": 0.5, "min_p": 0.1}
    kept = MinPLogitsWarper(case["min_p"])(None, logits / case["temperature"])[0]
    probabilities = kept.softmax(-1)
    ids = [i for i in range(VOCAB) if probabilities[i] > 0]
    return {**case, "kept": ids, "probabilities": [float(probabilities[i]) for i in ids]}


def main():
    torch.manual_seed(0)
    model = LlamaForCausalLM.from_pretrained(HERE / "models" / "llama-gqa" / "hf",
                                             torch_dtype=torch.float32).eval()
    draw = random.Random(3)
    golden = {"versions": {"torch": torch.__version__, "transformers": transformers.__version__},
              "greedy": [], "beam": []}
    while len(golden["greedy"]) < 14:
        cases = list(greedy_cases(model, draw))
        if min(gap for _, _, gap, _ in cases) < GAP_LEAST:
            continue
        golden["greedy"] += [{"prompt_token_ids": prompt, "fields": fields, "token_ids": tokens}
                             for fields, tokens, _, prompt in cases]
    for _ in range(3):
        golden["beam"] += [{"prompt_token_ids": prompt, "fields": fields, "choices": rows}
                           for fields, rows, prompt in beam_cases(model, draw)]
    gap = 0
    while gap < GAP_LEAST:
        golden["logprobs"], gap = logprob_case(model, draw)
    golden["min_p"] = min_p_case(model, draw)
    (HERE / "requests.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
