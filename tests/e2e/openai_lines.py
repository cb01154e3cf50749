#!/usr/bin/env python3
"""Makes an OpenAI batch file: 1,000 lines, of which 50 are broken in 20 ways.

usage: openai_lines.py FILE      (requests.py imports it too)
For the tiny checkpoint llama-gqa: 320 token ids, a context of 512. Each broken line comes with the
code and the words that its error row must have.
"""
import json
import random
import sys

N_LINES, N_BROKEN = 1000, 50
WORDS = "the quick brown fox jumps over a lazy dog and swims in the sea near other fish".split()


def envelope(name, url, body):
    return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "tiny", **body}}


def chat(name, text, **fields):
    return envelope(name, "/v1/chat/completions",
                    {"messages": [{"role": "user", "content": text}], **fields})


def completion(name, text, **fields):
    return envelope(name, "/v1/completions", {"prompt": text, **fields})


# the broken line, the error row's code, words of its message
BROKEN = [
    (lambda n, t: '{"custom_id":"%s","method":"POST","url":"/v1/comp' % n, "invalid_json", ["JSON"]),
    (lambda n, t: "", "invalid_json", ["blank"]),
    (lambda n, t: [n], "invalid_json", ["list"]),
    (lambda n, t: b'{"custom_id":"%s","method":"POST","body":{"prompt":"\xff"}}' % n.encode(),
     "invalid_json", ["decode"]),
    (lambda n, t: {**completion(n, t), "method": "GET"}, "invalid_request", ["method"]),
    (lambda n, t: {**completion(n, t), "url": "/v1/embeddings"}, "invalid_request", ["url"]),
    (lambda n, t: {**completion(n, t), "body": "text"}, "invalid_request", ["body"]),
    (lambda n, t: envelope(n, "/v1/chat/completions", {"prompt": t}), "invalid_request",
     ["messages"]),
    (lambda n, t: envelope(n, "/v1/completions", {}), "invalid_request", ["prompt"]),
    (lambda n, t: chat(n, t, temprature=0.5), "invalid_request", ["temprature", "not known"]),
    (lambda n, t: completion(n, t, tools=[{"type": "function", "function": {"name": "f"}}]),
     "unsupported", ["tools"]),
    (lambda n, t: chat(n, t, response_format={"type": "json_schema", "json_schema": {}}),
     "invalid_request", ["response_format", "schema"]),
    (lambda n, t: chat(n, t, stream=True), "unsupported", ["stream"]),
    (lambda n, t: completion(n, t, n=10**9), "invalid_request", ["n:", "128"]),
    (lambda n, t: completion(n, t, temperature=-1), "invalid_request", ["temperature"]),
    (lambda n, t: completion(n, t, max_tokens=-1), "invalid_request", ["max_tokens"]),
    (lambda n, t: completion(n, t, logit_bias={"320": 1}), "invalid_request", ["logit_bias"]),
    (lambda n, t: chat(n, t, top_logprobs=2), "invalid_request", ["top_logprobs"]),
    (lambda n, t: completion(n, [5] * 600), "context_length_exceeded", ["600"]),
    (lambda n, t: completion("same", t), "duplicate_id", ["custom_id"]),
]


def good(draw, name, text):
    """A good line, with random fields that change the answer and few tokens."""
    fields = draw.choice([
        {}, {"temperature": 0}, {"seed": draw.randrange(100)}, {"top_p": 0.8, "user": "u"},
        {"stop": ["e", "ab"]}, {"stop": "the"}, {"presence_penalty": 1.5},
        {"frequency_penalty": -0.5, "seed": 1}, {"logit_bias": {"7": 50, "9": -100}}, {"n": 2},
        {"n": 3, "seed": 5}, {"logprobs": True}, {"min_tokens": 2, "stop_token_ids": [3]},
        {"metadata": {"a": "b"}, "store": False, "stream": False, "tools": None},
        {"response_format": {"type": "text"}}, {"beam_width": 2, "n": 2}, {"repetition_penalty": 1.2}])
    if draw.random() < 0.5:
        if fields.get("logprobs"):
            fields = {"logprobs": True, "top_logprobs": draw.randrange(4)}
        return chat(name, text, max_completion_tokens=draw.randrange(2, 6), **fields)
    if fields.get("logprobs"):
        fields = {"logprobs": draw.randrange(4)}
    return completion(name, text, max_tokens=draw.randrange(2, 6), **fields)


def make():
    """The lines as bytes; and for each line None, or (code, words) of its error row."""
    draw = random.Random(11)
    broken = sorted(draw.sample(range(1, N_LINES), N_BROKEN))
    lines, kinds = [], []
    for i in range(N_LINES):
        text = " ".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 12)))
        name, kind = f"request-{i:04d}", None
        if i in broken:
            made, code, words = BROKEN[broken.index(i) % len(BROKEN)]
            line, kind = made(name, text), (code, words)
        else:
            line = good(draw, "same" if i == 0 else name, text)
        lines.append(line if isinstance(line, bytes) else line.encode() if isinstance(line, str)
                     else json.dumps(line).encode())
        kinds.append(kind)
    return lines, kinds


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as out:
        out.write(b"\n".join(make()[0]) + b"\n")
