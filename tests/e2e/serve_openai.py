#!/usr/bin/env python3
"""Sends the calls that OpenAI's Python client and curl sent once (tests/golden/openai_calls.jsonl), byte for byte.

usage: serve_openai.py SHOAL WORK_FOLDER CASE
  openai       one rank
  openai_many  four ranks, tp 2 x pp 2
Answers have the members that OpenAI's reference names, and the bytes that shoal generate (or embed) writes for the same
lines on one rank; a stream's pieces join to them. Calls of the model run together, but come one after another, so call N
is keyed like line N.
"""
import http.client
import json
import re
import socket
import sys

from program import TESTS, expect, main_of, write_lines
from serve import CHAT, COMPLETIONS, LIMIT_S, ServeTest, events_of, expect_joined, wait_for

CALLS = TESTS / "golden" / "openai_calls.jsonl"
EMBEDDINGS = "/v1/embeddings"
N_LEAST = 60

# The members of answers and of the objects in them: a type, several types, a word, an object, or a list of one kind.
TEXT, COUNT, NONE = str, int, type(None)
USAGE = {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT}
ENDS = ("stop", "length", "tool_calls", NONE)
TOP = {"token": TEXT, "logprob": (float, int), "bytes": [COUNT]}
CALLED = {"id": TEXT, "type": "function", "function": {"name": TEXT, "arguments": TEXT}}
OLD_LOGPROBS = {"tokens": [TEXT], "token_logprobs": [(float, int, NONE)], "top_logprobs": (list, NONE),
                "text_offset": [COUNT]}
LOGPROBS = {"content": [{**TOP, "top_logprobs": [TOP]}]}
HEAD = {"id": TEXT, "created": COUNT, "model": TEXT}
FILE = {"id": TEXT, "object": "file", "bytes": COUNT, "created_at": COUNT, "filename": TEXT, "purpose": TEXT}
BATCH = {"id": TEXT, "object": "batch", "endpoint": COMPLETIONS, "input_file_id": TEXT, "completion_window": "24h",
         "status": TEXT, "output_file_id": (TEXT, NONE), "created_at": COUNT, "metadata": (dict, NONE),
         "request_counts": {"total": COUNT, "completed": COUNT, "failed": COUNT}}
SHAPES = {
    COMPLETIONS: {**HEAD, "object": "text_completion", "usage": USAGE, "choices": [
        {"index": COUNT, "text": TEXT, "logprobs": (OLD_LOGPROBS, NONE), "finish_reason": ENDS}]},
    CHAT: {**HEAD, "object": "chat.completion", "usage": USAGE, "choices": [
        {"index": COUNT, "logprobs": (LOGPROBS, NONE), "finish_reason": ENDS,
         "message": {"role": "assistant", "content": (TEXT, NONE)}}]},
    EMBEDDINGS: {"object": "list", "model": TEXT, "usage": {"prompt_tokens": COUNT, "total_tokens": COUNT},
                 "data": [{"object": "embedding", "index": COUNT, "embedding": (TEXT, list)}]},
    "/v1/models": {"object": "list", "data": [{"id": TEXT, "object": "model", "created": COUNT, "owned_by": TEXT}]},
    "/v1/files": FILE, "/v1/batches": BATCH,
    "/health": {"status": "ok"}, "/tokenize": {"count": COUNT, "max_model_len": COUNT, "tokens": [COUNT]},
}
PIECES = {
    COMPLETIONS: {**HEAD, "object": "text_completion", "choices": [
        {"index": COUNT, "text": TEXT, "logprobs": (OLD_LOGPROBS, NONE), "finish_reason": ENDS}]},
    CHAT: {**HEAD, "object": "chat.completion.chunk", "choices": [
        {"index": COUNT, "delta": dict, "logprobs": (LOGPROBS, NONE), "finish_reason": ENDS}]},
}
ERROR = {"error": {"message": TEXT, "type": TEXT, "param": (TEXT, NONE), "code": (TEXT, NONE)}}


def has_shape(value, shape):
    if isinstance(shape, type):
        return isinstance(value, shape) and not (isinstance(value, bool) and shape is not bool)
    if isinstance(shape, tuple):
        return any(has_shape(value, one) for one in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(has_shape(one, shape[0]) for one in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(k in value and has_shape(value[k], s) for k, s in shape.items())
    return value == shape


def expect_shape(name, value, shape):
    expect(has_shape(value, shape), f"{name}: not as the API documents it: {json.dumps(value)[:500]}")


class Call:
    """A recorded call: the client's bytes, with places for ids and the address."""

    def __init__(self, number, entry):
        self.name = f"call {number} ({entry['client']})"
        self.server, self.status, self.request = entry["server"], entry["status"], entry["request"]
        self.head, self.body = self.request.split("\r\n\r\n", 1)
        self.method, self.path = self.head.split(" ")[:2]
        self.path = self.path.split("?")[0]

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            return {}

    def streams(self):
        return self.json().get("stream", False) and self.status == 200

    def line(self):
        """The line of a batch file with this body. A body that is not JSON becomes {}, to keep its
        place."""
        body = {k: v for k, v in self.json().items() if not (k.startswith("stream") and self.status == 200)}
        return {"method": "POST", "url": self.path, "body": body}

    def bytes(self, port, ids):
        head, body = self.head.replace("{host}", f"127.0.0.1:{port}"), self.body
        for name, found in ids.items():
            head, body = head.replace("{" + name + "}", found), body.replace("{" + name + "}", found)
        body = body.encode()
        head = re.sub(r"(?i)(content-length: )\d+", rf"\g<1>{len(body)}", head)
        return head.encode() + b"\r\n\r\n" + body


class OpenaiTest(ServeTest):
    RANKS = {"openai": 1, "openai_many": 4}

    def serve_kind(self, kind):
        flags = ["--api-key-file", self.work / "keys"]
        if kind == "text":
            return self.serve(kind, *flags, "--batch-dir", self.work / "batches", "--max-model-len", "512")
        return self.serve(kind, *flags, "--task", "embed", "--pooling", "mean")

    def rows_of(self, command, calls, *flags):
        """The body, or the error, that the command writes for each call's line."""
        path, out = self.work / f"{command}.jsonl", self.work / f"{command}.out.jsonl"
        write_lines(path, [call.line() for call in calls])
        self.shoal.must(command, "--model", self.model, "--input", path, "--output", out, *flags)
        return {call.name: self.row(line) for call, line in zip(calls, out.read_bytes().splitlines(), strict=True)}

    def send(self, server, call):
        s = socket.create_connection(("127.0.0.1", server.port), LIMIT_S)
        s.sendall(call.bytes(server.port, self.ids))
        return s

    @staticmethod
    def await_taken(server):
        """Waits until the server has read all calls that were sent before: its thread reads them
        before it answers two later ones."""
        for _ in range(2):
            server.get("/health")

    @staticmethod
    def read(s, call):
        with s:
            answer = http.client.HTTPResponse(s, method=call.method)
            answer.begin()
            return answer.status, answer.headers, answer.read()

    def check_model_call(self, call, data, row):
        kind, found = row
        if call.status != 200:
            error = json.loads(data)["error"]
            if call.json() and "stream" not in call.json():
                expect((kind, found["code"], found["message"]) == ("error", error["code"], error["message"]),
                       f"{call.name}: {error}\n{found}")
            return
        expect(kind == "body", f"{call.name}: an error row: {found}")
        whole = json.loads(found)
        expect_shape(f"the row of {call.name}", whole, SHAPES[call.path])
        if not call.streams():
            expect(data == found, f"{call.name}: {data}\nrow: {found}")
            return
        events = events_of(data)
        for event in events:
            expect_shape(call.name, event, PIECES[call.path])
        joined = expect_joined(call.name, events, whole, call.path == CHAT)
        usage = "stream_options" in call.json()
        expect(joined.usage == (whole["usage"] if usage else None), f"{call.name}: {joined.usage}")

    def check_file_call(self, call, data):
        if call.path.endswith("/content"):
            content = self.content if "{file0}" in call.path else self.expected_output()
            expect(data == content, f"{call.name}: {data}")
            return
        value = json.loads(data)
        if call.method == "DELETE":
            expect(value["deleted"] and value["object"] == "file", f"{call.name}: {value}")
            return
        shape = SHAPES["/v1/" + call.path.split("/")[2]]
        is_list = call.method == "GET" and call.path.count("/") == 2
        expect_shape(call.name, value, {"object": "list", "data": [shape], "has_more": bool} if is_list else shape)
        self.take_ids(call, value)

    def take_ids(self, call, value):
        if call.method == "POST" and call.path == "/v1/files":
            self.ids["file0"] = value["id"]
            self.content = re.search(r'name="file".*?\r\n\r\n(.*?)\r\n--', call.body, re.DOTALL)[1].encode()
        elif call.method == "POST":
            self.ids["batch0"] = value["id"]
        elif value.get("object") == "batch":
            expect(value["status"] == "completed" and value["request_counts"]["failed"] == 0, f"{value}")
            self.ids["file1"] = value["output_file_id"]

    def expected_output(self):
        path, out = self.work / "batch.jsonl", self.work / "batch.out.jsonl"
        path.write_bytes(self.content)
        self.shoal.must("generate", "--model", self.model, "--input", path, "--output", out)
        return out.read_bytes()

    def await_batch(self, server):
        path = f"/v1/batches/{self.ids['batch0']}"
        wait_for(lambda: json.loads(server.get(path))["status"] != "in_progress", "batch")

    def check(self, call, rows, answer):
        status, headers, data = answer
        expect(status == call.status, f"{call.name}: {status} instead of {call.status}: {data}")
        if not call.streams() and not call.path.endswith("/content"):
            expect(headers["Content-Type"] == "application/json", f"{call.name}: {headers}")
        if status != 200:
            expect_shape(call.name, json.loads(data), ERROR)
        if call.name in rows:
            self.check_model_call(call, data, rows[call.name])
        elif status == 200 and call.path.startswith(("/v1/files", "/v1/batches")):
            self.check_file_call(call, data)
        elif status == 200:
            expect_shape(call.name, json.loads(data), SHAPES[call.path])

    def run_kind(self, kind, calls, rows):
        server, self.ids = self.serve_kind(kind), {}
        try:
            waiting = []
            for call in [c for c in calls if c.name in rows]:
                waiting.append((call, self.send(server, call)))
                self.await_taken(server)
            for call, s in waiting:
                self.check(call, rows, self.read(s, call))
            for call in [c for c in calls if c.name not in rows]:
                if "/batches/{batch0}" in call.path:
                    self.await_batch(server)
                self.check(call, rows, self.read(self.send(server, call), call))
        finally:
            server.end()

    def run(self):
        calls = [Call(i, json.loads(line)) for i, line in enumerate(CALLS.read_text().splitlines(), 1)]
        text = [call for call in calls if call.server == "text"]
        vectors = [call for call in calls if call.server == "vectors"]
        rows = self.rows_of("generate", [c for c in text if c.method == "POST" and c.path in (COMPLETIONS, CHAT)])
        embedded = [c for c in vectors if c.path == EMBEDDINGS]
        self.run_kind("text", text, rows)
        self.run_kind("vectors", vectors, self.rows_of("embed", embedded, "--pooling", "mean"))
        n_streams = sum(call.streams() for call in calls)
        expect(len(calls) >= N_LEAST and n_streams >= 10, f"only {len(calls)} calls, {n_streams} streams")
        print(f"serve: {len(calls)} recorded calls on {self.ranks} ranks, {n_streams} streams")


if __name__ == "__main__":
    main_of(OpenaiTest(*sys.argv[1:]).run)
