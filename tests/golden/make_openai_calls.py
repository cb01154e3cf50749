#!/usr/bin/env python3
"""Records the calls that OpenAI's Python client and curl send, as bytes: openai_calls.jsonl.

usage: make_openai_calls.py SHOAL WORK_FOLDER      needs the package openai (3.57.0) and curl
The calls go through a pipe that keeps what the clients send, to servers of the tiny model llama-gqa; the Python client
must understand every answer. Ids of files and batches become {file0}, {batch0}, ..., the server's address {host}.
tests/e2e/serve_openai.py sends them again.
"""
import json
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import openai

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from serve import KEYS, TOOLS  # noqa: E402
from serve_openai import OpenaiTest  # noqa: E402

USER = [{"role": "user", "content": "Who is there?"}]
SCHEMA = {"type": "object", "properties": {"day": {"enum": ["Mon", "Tue"]}}, "required": ["day"],
          "additionalProperties": False}
LINES = "".join(json.dumps({"custom_id": f"b{i}", "method": "POST", "url": "/v1/completions", "body": {
    "model": "m", "prompt": f"Act {i}.", "max_tokens": 5, "temperature": 0}}) + "\n" for i in range(3))


class Pipe:
    """Passes connections on to a server and keeps what came from the client and how each answer began."""

    def __init__(self, port):
        self.up, self.sent, self.got = ("127.0.0.1", port), b"", b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client = self.listener.accept()[0]
            server = socket.create_connection(self.up)
            for pair in ((client, server, "sent"), (server, client, "got")):
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    def copy(self, source, to, name):
        try:
            while data := source.recv(1 << 16):
                setattr(self, name, getattr(self, name) + data)
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def take(self):
        """The bytes that the last call sent, and the status that it got."""
        sent, status = self.sent, int(self.got.split(b" ", 2)[1])
        self.sent = self.got = b""
        return sent, status


class Recorder(OpenaiTest):
    def __init__(self, shoal, work):
        super().__init__(shoal, work, "openai")
        self.entries, self.ids = [], {}

    def name_ids(self, text):
        for found in re.findall(r"\b(?:file-|batch_)[0-9a-zA-Z_-]+", text):
            kind = found[:4].replace("batc", "batch")
            known = sum(name.startswith(kind) for name in self.ids.values())
            if found in self.known_ids and found not in self.ids:
                self.ids[found] = f"{kind}{known}"
        for found, name in self.ids.items():
            text = text.replace(found, "{" + name + "}")
        return text

    def keep(self, client):
        sent, status = self.pipe.take()
        text = self.name_ids(sent.decode()).replace(f"127.0.0.1:{self.pipe.port}", "{host}")
        self.entries.append({"client": client, "server": self.kind, "status": status, "request": text})

    def ask(self, call, **fields):
        """One call of the Python client; returns its answer, or the error that the client raised."""
        try:
            answer = call(**fields)
            answer = list(answer) if fields.get("stream") else answer
        except openai.APIStatusError as error:
            answer = error
        self.keep("openai")
        return answer

    def good(self, call, **fields):
        answer = self.ask(call, **fields)
        assert not isinstance(answer, Exception), f"{fields}: {answer}"
        return answer

    def bad(self, kind, call, **fields):
        answer = self.ask(call, **fields)
        assert isinstance(answer, kind), f"{fields}: {answer}"

    def curl(self, *argv, key=KEYS[0]):
        headers = ["-H", f"Authorization: Bearer {key}"] if key else []
        *options, path = argv
        subprocess.run(["curl", "-sS", "-o", "/dev/null", *headers, *options,
                        f"http://127.0.0.1:{self.pipe.port}{path}"], check=True)
        self.keep("curl")

    def completions(self, client):
        call = client.completions.create
        drawn = {"model": "m", "max_tokens": 12}
        for more in ({"prompt": "O Romeo,", "temperature": 0}, {"prompt": "the quick"}, {"prompt": [5, 17, 300]},
                     {"prompt": "in the sea", "n": 3, "seed": 5}, {"prompt": "a lazy dog", "stop": ["e", "ab"]},
                     {"prompt": "a", "logprobs": 2}, {"prompt": "a fox", "echo": True, "logprobs": 1},
                     {"prompt": ["yes", "no"], "seed": 2}, {"prompt": "a", "logit_bias": {"7": 5, "8": -100}},
                     {"prompt": "a", "presence_penalty": 0.5, "frequency_penalty": 0.4, "top_p": 0.9, "user": "u"},
                     {"prompt": "a", "extra_body": {"top_k": 5, "repetition_penalty": 1.2, "guided_choice": ["so", "no"]}}):
            assert self.good(call, **drawn, **more).choices[0].finish_reason in ("stop", "length")
        for more in ({"prompt": "O Romeo,", "temperature": 0}, {"prompt": "a", "n": 2}, {"prompt": "b", "logprobs": 1},
                     {"prompt": "jumps", "stream_options": {"include_usage": True}}, {"prompt": "over", "stop": "e"}):
            assert self.good(call, **drawn, stream=True, **more)

    def chats(self, client):
        call = client.chat.completions.create
        drawn = {"model": "m", "messages": USER, "max_completion_tokens": 12}
        said = {"temperature": 0, "max_completion_tokens": 90, "tools": TOOLS}
        calls = {"extra_body": {"guided_choice": ['{"name": "weather", "parameters": {"at": "sea"}}']}}
        for more in ({"temperature": 0}, {"n": 2, "seed": 1}, {"logprobs": True, "top_logprobs": 2}, {"stop": ["the"]},
                     {"messages": [{"role": "system", "content": "Be brief."}, *USER]}, {"temperature": 1.5, "top_p": 0.5},
                     {"messages": [{"role": "user", "content": [{"type": "text", "text": "Nay."}]}]},
                     {"messages": [*USER, {"role": "assistant", "content": "I."}, {"role": "user", "content": "Who?"}]},
                     {"response_format": {"type": "json_schema", "json_schema": {"name": "d", "schema": SCHEMA}},
                      "max_completion_tokens": 60}, {"metadata": {"a": "b"}, "user": "u", "store": False}):
            assert self.good(call, **{**drawn, **more}).choices[0].message.role == "assistant"
        found = self.good(call, **{**drawn, **said, **calls}).choices[0]
        assert found.message.tool_calls[0].function.name == "weather" and found.finish_reason == "tool_calls", found
        assert self.good(call, **{**drawn, **said, "tool_choice": "none", **calls}).choices[0].message.content
        for more in ({"temperature": 0}, {"n": 2, "seed": 9}, {"logprobs": True}, {**said, **calls},
                     {"stream_options": {"include_usage": True}, "seed": 3}):
            assert self.good(call, **{**drawn, **more}, stream=True)[0].choices[0].delta.role == "assistant"

    def errors(self, client):
        complete, chat = client.completions.create, client.chat.completions.create
        self.bad(openai.BadRequestError, complete, model="m", prompt="a", temperature=-1)
        self.bad(openai.BadRequestError, complete, model="m", prompt=[5] * 600)
        self.bad(openai.BadRequestError, chat, model="m", messages=[])
        self.bad(openai.BadRequestError, chat, model="m", messages=USER, extra_body={"temprature": 1})
        self.bad(openai.BadRequestError, chat, model="m", messages=USER, tool_choice="required", tools=TOOLS)
        self.bad(openai.BadRequestError, complete, model="m", prompt="a", stream=True, echo=True)
        self.bad(openai.AuthenticationError, client.with_options(api_key="wrong").models.list)
        self.bad(openai.NotFoundError, client.files.retrieve, file_id="file-none")
        self.bad(openai.BadRequestError, client.embeddings.create, model="m", input="a")

    def files(self, client):
        file = self.good(client.files.create, file=("in.jsonl", LINES.encode()), purpose="batch")
        self.known_ids.append(file.id)
        self.good(client.files.retrieve, file_id=file.id)
        assert self.good(client.files.list).data[0].id == file.id
        assert self.good(client.files.content, file_id=file.id).read() == LINES.encode()
        batch = self.good(client.batches.create, input_file_id=file.id, endpoint="/v1/completions",
                          completion_window="24h", metadata={"a": "b"})
        self.known_ids.append(batch.id)
        while json.loads(self.server.get(f"/v1/batches/{batch.id}"))["status"] == "in_progress":
            time.sleep(0.1)
        found = self.good(client.batches.retrieve, batch_id=batch.id)
        self.known_ids.append(found.output_file_id)
        assert found.status == "completed" and found.request_counts.completed == 3, found
        assert self.good(client.batches.list).data[0].id == batch.id
        self.good(client.files.content, file_id=found.output_file_id)
        assert self.good(client.files.delete, file_id=file.id).deleted

    def curls(self):
        body = json.dumps({"prompt": "O Romeo,", "max_tokens": 9, "temperature": 0, "model": "m"})
        kind = ["-H", "Content-Type: application/json"]
        chat = json.dumps({"messages": USER, "max_tokens": 9, "seed": 4, "stream": True})
        self.curl("/health", key=None)
        self.curl("/v1/models")
        self.curl(*kind, "-d", body, "/v1/completions")
        self.curl("-N", *kind, "-d", chat, "/v1/chat/completions")
        self.curl(*kind, "-d", '{"prompt": "the sea"}', "/tokenize")
        self.curl("-F", "purpose=assistants", "-F", f"file=@{self.work / 'lines'};filename=in.jsonl", "/v1/files")
        self.curl("/v1/completions")
        self.curl(*kind, "-d", '{"prompt":', "/v1/completions")

    def vectors(self, client):
        call = client.embeddings.create
        one = self.good(call, model="m", input="A shoal of fish.").data[0].embedding
        assert len(one) == len(self.good(call, model="m", input=[[5, 17], [1]], encoding_format="float").data[0].embedding)
        self.good(call, model="m", input=["the sea", "fish"], dimensions=8, user="u")
        self.bad(openai.BadRequestError, call, model="m", input="x", dimensions=10**6)
        self.bad(openai.BadRequestError, client.completions.create, model="m", prompt="a")

    def main(self):
        (self.work / "lines").write_text(LINES)
        self.known_ids = []
        for self.kind in ("text", "vectors"):
            self.server = self.serve_kind(self.kind)
            try:
                self.pipe = Pipe(self.server.port)
                client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.pipe.port}/v1", api_key=KEYS[0], max_retries=0)
                if self.kind == "vectors":
                    self.vectors(client)
                    continue
                self.completions(client)
                self.chats(client)
                assert self.good(client.models.list).data
                self.errors(client)
                self.files(client)
                self.curls()
            finally:
                self.server.end()
        text = "".join(json.dumps(entry) + "\n" for entry in self.entries)
        (HERE / "openai_calls.jsonl").write_text(text)
        print(f"{len(self.entries)} calls, {len(text)} bytes")


if __name__ == "__main__":
    Recorder(*sys.argv[1:3]).main()
