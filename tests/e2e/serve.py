#!/usr/bin/env python3
"""Tests shoal serve: answers, streams, errors, bounds, cancelling, draining, a lost rank.

usage: serve.py SHOAL WORK_FOLDER CASE
  one    one rank
  many   four ranks, tp 2 x pp 2
Bodies are compared byte for byte with the rows that shoal generate writes for the same lines.
"""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from program import GOLDENS, REPO, TESTS, Shoal, expect, fresh_folder, main_of

DEMO = REPO / "models" / "demo" / "demo.h5"
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
KEYS = ["first-key", "another-key-of-this-server"]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
START_S, LIMIT_S = 180, 180  # limits for what hangs; a busy machine may take very long
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]

# (path, body): fields of every kind, with the values that change an answer
CALLS = [
    (COMPLETIONS, {"prompt": "O Romeo,", "max_tokens": 24, "temperature": 0}),
    (COMPLETIONS, {"prompt": "O Romeo,", "max_tokens": 30, "seed": 7}),
    (COMPLETIONS, {"prompt": [5, 17, 300], "max_tokens": 9, "seed": 1, "top_p": 0.8}),
    (COMPLETIONS, {"prompt": "a lazy dog", "max_tokens": 40, "stop": ["e", "ab"], "seed": 3}),
    (COMPLETIONS, {"prompt": "in the sea", "max_tokens": 12, "n": 3, "seed": 5}),
    (COMPLETIONS, {"prompt": "near other fish", "max_tokens": 8, "logprobs": 2, "seed": 2}),
    (COMPLETIONS, {"prompt": "jumps", "max_tokens": 6, "beam_width": 2, "n": 2}),
    (COMPLETIONS, {"prompt": "the quick", "max_tokens": 20}),
    (COMPLETIONS, {"prompt": "the quick", "max_tokens": 20, "repetition_penalty": 1.3, "model": "m"}),
    (COMPLETIONS, {"prompt": "yes or no?", "max_tokens": 9, "guided_choice": ["yes", "no"]}),
    (CHAT, {"messages": [{"role": "user", "content": "Who is there?"}], "max_tokens": 25}),
    (CHAT, {"messages": [{"role": "user", "content": "Nay."}], "max_tokens": 9, "seed": 11,
            "logprobs": True, "top_logprobs": 3}),
    (CHAT, {"messages": [{"role": "system", "content": "Be brief."},
                         {"role": "user", "content": "Nay."}], "max_completion_tokens": 30,
            "n": 2, "stop": "the", "temperature": 1.5}),
    # the model cannot call tools, but a grammar can make it write a call
    (CHAT, {"messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 90, "seed": 4,
            "tools": TOOLS, "guided_choice": ['{"name": "weather", "parameters": {"at": "sea"}}']}),
    (CHAT, {"messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 90, "seed": 4,
            "tools": TOOLS, "guided_choice": ["It is {fine}."]}),
    # nor does it think, but a grammar can make it
    (CHAT, {"messages": [{"role": "user", "content": "Nay."}], "max_tokens": 90, "seed": 4, "logprobs": True,
            "guided_choice": ["<think>\nLet me < see.\n</think>\n\nIt is 4."]}),
    (COMPLETIONS, {"prompt": "O Romeo,", "max_tokens": 0, "echo": True, "logprobs": 1}),
    (COMPLETIONS, {"prompt": [[5, 17, 300], [5, 17]], "max_tokens": 1, "echo": True, "logprobs": 1,
                   "temperature": 0, "seed": 1234, "model": "m"}),
    # errors of the request
    (COMPLETIONS, {"max_tokens": 3}),
    (COMPLETIONS, {"prompt": "a", "temprature": 1}),
    (COMPLETIONS, {"prompt": "a", "temperature": -1}),
    (COMPLETIONS, {"prompt": [5] * 600}),
    (CHAT, {"messages": "a"}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "functions": [{}]}),
]


def wait_for(what, sentence, limit_s=LIMIT_S):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(0.02)
    expect(False, f"no {sentence} within {limit_s} s")


class Server:
    """A running server. Each rank's process id and exit status go to files."""

    def __init__(self, shoal, folder, model, ranks, *flags):
        self.folder = fresh_folder(folder)
        script = self.folder / "rank.sh"
        script.write_text('r=${OMPI_COMM_WORLD_RANK:-0}; f=$1; shift\n'
                          '"$@" & echo $! >$f/pid.$r; wait $!; echo $? >$f/status.$r\n'
                          'exit $(cat $f/status.$r)\n')
        launcher = []
        if ranks > 1:
            launcher = [TESTS / "mpirun.sh", ranks, "--mca", "orte_abort_on_non_zero_status", "0"]
        argv = [*launcher, "sh", script, self.folder, shoal.path, "serve", "--model", model,
                "--port", "0", "--threads", "1", *flags]
        if ranks > 1:
            argv += ["--tp", "2", "--pp", "2"]
        self.ranks = ranks
        self.log = self.folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, start_new_session=True,
                                            env={**os.environ, "OMP_WAIT_POLICY": "passive"})
        self.port = int(wait_for(self.found_port, f"address in {self.log}", START_S))

    def found_port(self):
        expect(self.process.poll() is None, f"the server ended:\n{self.text()}")
        found = re.search(r"serving http://127\.0\.0\.1:(\d+)", self.text())
        return found and found[1]

    def text(self):
        return self.log.read_text(errors="replace")

    def pids(self):
        return [int((self.folder / f"pid.{r}").read_text()) for r in range(self.ranks)]

    def status(self, limit_s=LIMIT_S):
        """The exit status of rank 0."""
        path = self.folder / "status.0"
        wait_for(lambda: path.exists() and path.read_text().strip(), f"end\n{self.text()}", limit_s)
        return int(path.read_text())

    def signal(self, number, rank=0):
        os.kill(self.pids()[rank], number)

    def cpu_s(self):
        """CPU time that all ranks have taken."""
        ticks = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        for path in self.folder.glob("pid.*"):
            if not (self.folder / path.name.replace("pid", "status")).exists():
                try:
                    os.kill(int(path.read_text()), signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.process.wait(20)

    # ---- calls ----

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)

    def call(self, method, path, body=None, headers=None, key=KEYS[0]):
        """(status, headers, bytes) of one call on a connection of its own."""
        connection = self.connect()
        headers = dict(headers or {})
        if key:
            headers["Authorization"] = f"Bearer {key}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, answer.headers, data

    def get(self, path):
        status, _, data = self.call("GET", path)
        expect(status == 200, f"GET {path}: {status} {data[:300]}")
        return data.decode()

    def metric(self, name, more=""):
        found = re.search(rf"^shoal:{name}{{model_name=\"[^\"]*\"{more}}} (\S+)$", self.get("/metrics"),
                          re.MULTILINE)
        expect(found, f"no metric {name}{more}")
        return float(found[1])

    def n_sequences(self):
        return self.metric("num_requests_running") + self.metric("num_requests_waiting")

    def ask_for_stream(self, body, path=COMPLETIONS):
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}),
                           {"Authorization": f"Bearer {KEYS[1]}"})
        return connection

    def open_stream(self, body, path=COMPLETIONS):
        """A stream of which the headers have come: its connection and answer."""
        connection = self.ask_for_stream(body, path)
        answer = connection.getresponse()
        expect(answer.status == 200, f"stream: {answer.status}")
        kind = answer.headers["Content-Type"]
        expect(kind.startswith("text/event-stream"), f"stream: {kind}")
        return connection, answer


def error_of(data):
    return json.loads(data)["error"]


def events_of(data):
    """The JSON events of a stream that has ended well."""
    parts = data.decode().split("\n\n")
    expect(parts[-1] == "" and parts[-2] == "data: [DONE]", f"a stream ends with {parts[-3:]}")
    expect(all(p.startswith("data: ") for p in parts[:-1]), f"not events: {data[:300]}")
    return [json.loads(p[len("data: "):]) for p in parts[:-2]]


class Joined:
    """The choices of a stream's events, joined; they have the form of a whole answer's."""

    def __init__(self, events, is_chat):
        self.choices, self.usage, self.n_pieces = {}, None, 0
        for event in events:
            self.usage = event.get("usage") or self.usage
            for choice in event["choices"]:
                self.n_pieces += 1
                self.add(choice, is_chat)

    def add(self, choice, is_chat):
        into = self.choices.setdefault(choice["index"],
                                       {"text": "", "reasoning": "", "logprobs": None, "finish_reason": None,
                                        "tool_calls": []})
        expect(into["finish_reason"] is None, "a piece behind the last one")
        delta = choice["delta"] if is_chat else {"content": choice["text"]}
        into["text"] += delta.get("content", "")
        into["reasoning"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", []):
            expect(call.pop("index") == len(into["tool_calls"]), f"{delta}")
            into["tool_calls"].append(call)
        into["role"] = into.get("role") or delta.get("role")
        into["finish_reason"] = choice["finish_reason"]
        found = choice["logprobs"]
        if found is not None and into["logprobs"] is None:
            into["logprobs"] = found
        elif found is not None:
            for name, values in found.items():
                if isinstance(values, list):
                    into["logprobs"][name] += values


def expect_joined(name, events, whole, is_chat):
    """A stream's events join to the choices of the whole answer; returns them joined."""
    joined = Joined(events, is_chat)
    expect(all(e["id"] == whole["id"] and e["model"] == whole["model"] for e in events),
           f"{name}: another id or model than {whole['id']}")
    for choice in whole["choices"]:
        got = joined.choices[choice["index"]]
        text = (choice["message"]["content"] or "") if is_chat else choice["text"]
        calls = choice.get("message", {}).get("tool_calls", [])
        expect(got["tool_calls"] == calls, f"{name}: {got}\n{choice}")
        thoughts = choice.get("message", {}).get("reasoning_content", "")
        expect(got["reasoning"] == thoughts, f"{name}: {got}\n{choice}")
        expect(got["text"] == text, f"{name}: {got['text']!r}, whole: {text!r}")
        expect(got["finish_reason"] == choice["finish_reason"], f"{name}: {got}")
        expect(got["logprobs"] == choice["logprobs"], f"{name}: {got}\n{choice}")
        expect(not is_chat or got["role"] == "assistant", f"{name}: {got}")
    return joined


class ServeTest:
    RANKS = {"one": 1, "many": 4}  # of each case

    def __init__(self, shoal, work, case):
        self.shoal, self.ranks = Shoal(shoal), self.RANKS[case]
        self.work = fresh_folder(Path(work))
        self.model = self.work / "model.h5"
        source = self.work / "source"
        shutil.copytree(GOLDENS / "llama-gqa" / "hf", source)
        (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
        self.shoal.must("convert", source, self.model)
        (self.work / "keys").write_text("# keys\n\n" + "\n".join(KEYS) + "\n")

    def serve(self, name, *flags, model=None):
        return Server(self.shoal, self.work / name, model or self.model, self.ranks, *flags)

    def rows(self, *flags):
        """The row of each call as shoal generate writes it: ("body", bytes) or ("error", dict). The
        first line has no custom_id; the others are named c1, c2, ..."""
        lines = [{"method": "POST", "url": path, "body": body} for path, body in CALLS]
        for i, line in enumerate(lines[1:], 1):
            line["custom_id"] = f"c{i}"
        path, out = self.work / "in.jsonl", self.work / "out.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.shoal.must("generate", "--model", self.model, "--input", path, "--output", out, *flags)
        return [self.row(line) for line in out.read_bytes().splitlines()]

    @staticmethod
    def row(line):
        row = json.loads(line)
        if row["error"] is not None:
            return "error", row["error"]
        begin = line.index(b'"body":') + len(b'"body":')
        return "body", line[begin:line.rindex(b'},"error":null')]

    # ---- cases ----

    def bodies_are_those_of_a_batch(self, server, rows):
        """The first call has no id and no seed: it is keyed like the first line of a batch."""
        def call(i):
            headers = {"X-Request-Id": f"c{i}"} if i > 0 else {}
            return server.call("POST", CALLS[i][0], CALLS[i][1], headers)
        answers = [call(0)]
        with ThreadPoolExecutor(8) as pool:
            answers += pool.map(call, range(1, len(CALLS)))
        for i, ((status, headers, data), (kind, row)) in enumerate(zip(answers, rows)):
            if kind == "body":
                expect(status == 200 and data == row, f"call {i}: {status} {data}\nbatch: {row}")
                expect(headers["Content-Type"] == "application/json", f"call {i}: {headers}")
                expect(i == 0 or headers["X-Request-Id"] == f"c{i}", f"call {i}: {headers}")
            else:
                error = error_of(data)
                expect(status == 400, f"call {i}: {status}")
                expect((error["code"], error["message"]) == (row["code"], row["message"]),
                       f"call {i}: {error}, batch: {row}")
                expect(error["type"] == "invalid_request_error" and "param" in error, f"{error}")
        expect(sum(kind == "error" for kind, _ in rows) == 6, "six calls of the list are errors")

    def streams_join_to_the_whole(self, server, rows):
        n_pieces = n_calls = n_thoughts = 0

        def stream(i):
            path, body = CALLS[i]
            return server.call("POST", path, {**body, "stream": True,
                                              "stream_options": {"include_usage": True}},
                               {"X-Request-Id": f"c{i}"})
        good = [i for i in range(1, len(CALLS)) if rows[i][0] == "body" and "echo" not in CALLS[i][1]]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(stream, good))
        for i, (status, _, data) in zip(good, answers):
            expect(status == 200, f"stream {i}: {status} {data}")
            whole, events = json.loads(rows[i][1]), events_of(data)
            joined = expect_joined(f"stream {i}", events, whole, CALLS[i][0] == CHAT)
            n_pieces += joined.n_pieces
            expect(joined.usage == whole["usage"] and events[-1]["choices"] == [],
                   f"stream {i}: {events[-1]}")
            n_thoughts += sum(got["reasoning"] == "Let me < see." for got in joined.choices.values())
            n_calls += sum(len(got["tool_calls"]) for got in joined.choices.values())
        expect(n_pieces > len(good), f"only {n_pieces} pieces")
        expect(n_calls == 1 and n_thoughts == 1, f"{n_calls} tool calls, {n_thoughts} thoughts")
        status, _, data = server.call("POST", COMPLETIONS, {"stream": True})
        expect(status == 400 and error_of(data)["code"] == "invalid_request", f"{status} {data}")
        status, _, data = server.call("POST", COMPLETIONS, {"prompt": "a", "stream": True, "echo": True})
        expect(status == 400 and error_of(data)["code"] == "unsupported", f"{status} {data}")

    def calls_that_generate_nothing(self, server):
        models = json.loads(server.get("/v1/models"))
        expect(models["data"][0]["id"] == "model", f"{models}")
        expect(json.loads(server.get("/v1/models/model")) == models["data"][0], "another model by its name")
        status, _, data = server.call("GET", "/v1/models/other")
        expect(status == 404 and error_of(data)["code"] == "model_not_found", f"{status} {data}")
        status, _, data = server.call("GET", "/health", key=None)
        expect(status == 200, f"health: {status} {data}")
        status, _, data = server.call("POST", "/tokenize", {"prompt": "the sea"})
        tokens = json.loads(data)
        expect(status == 200 and tokens["count"] == len(tokens["tokens"]) > 0, f"{status} {data}")
        expect(tokens["max_model_len"] == 512, f"{tokens}")
        status, _, data = server.call("POST", "/detokenize", {"tokens": tokens["tokens"]})
        expect(status == 200 and "the sea" in json.loads(data)["prompt"], f"{status} {data}")
        status, _, data = server.call("POST", "/detokenize", {"tokens": [10**6]})
        expect(status == 400, f"{status} {data}")
        expect(server.metric("generation_tokens_total") > 0, "no tokens are counted")
        expect(server.metric("request_success_total", ',finished_reason="length"') > 0, "no ends")
        names = ["request_queue_time", "request_prefill_time", "time_to_first_token", "e2e_request_latency"]
        times = {name: server.metric(f"{name}_seconds_sum") for name in names}
        expect(all(server.metric(f"{name}_seconds_count") > 0 for name in names), f"no times: {times}")
        expect(times["time_to_first_token"] > times["request_prefill_time"], f"{times}")

    def bad_calls_are_refused(self, server):
        good = CALLS[0][1]
        cases = [("POST", COMPLETIONS, good, None, 401), ("POST", COMPLETIONS, good, "first-ke", 401),
                 ("POST", COMPLETIONS, good, "first-key2", 401), ("GET", "/metrics", None, None, 401),
                 ("GET", "/v1/none", None, KEYS[0], 404), ("GET", "/v1/none", None, None, 401),
                 ("GET", COMPLETIONS, None, KEYS[0], 405), ("DELETE", "/health", None, KEYS[0], 405),
                 ("POST", COMPLETIONS, b"{\"prompt\":", KEYS[0], 400),
                 ("POST", COMPLETIONS, b"", KEYS[0], 400), ("POST", COMPLETIONS, b"[1]", KEYS[0], 400),
                 ("POST", CHAT, b"\xff\xfe", KEYS[0], 400)]
        for method, path, body, key, wanted in cases:
            status, headers, data = server.call(method, path, body, key=key)
            expect(status == wanted, f"{method} {path} {body} {key}: {status} {data}")
            expect(error_of(data)["message"], f"{data}")
            if wanted == 405:
                expect(headers["Allow"] in ("POST", "GET"), f"{headers}")
        self.long_bodies_are_refused(server)

    @staticmethod
    def long_bodies_are_refused(server):
        """By its Content-Length before it is sent; in chunks while it is."""
        with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as s:
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEYS[0]}\r\n"
            s.sendall(f"{head}Content-Length: 1000000000\r\n\r\n".encode())
            expect(b" 413 " in s.recv(4096).split(b"\r\n")[0], "413 before the body")
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as s:
            s.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            try:
                for _ in range(64):
                    s.sendall(chunk)
                ended = s.recv(4096) == b""
            except (ConnectionResetError, BrokenPipeError):
                ended = True
            expect(ended, "a body of 64 MiB in chunks was taken")

    def an_idle_server_leaves_the_cores(self, server):
        time.sleep(0.5)
        before = server.cpu_s()
        time.sleep(2)
        spent = server.cpu_s() - before
        print(f"{self.ranks} idle ranks: {spent:.2f} s of CPU in 2 s")
        expect(spent < 0.8, f"{self.ranks} idle ranks took {spent:.2f} s of CPU in 2 s")

    def clients_that_leave_free_their_sequences(self, server):
        """One in the middle of a stream, and one that waits for a whole answer."""
        long = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "n": 100, "seed": 9}
        name, more = "request_success_total", ',finished_reason="abort"'
        connection, answer = server.open_stream(long)
        expect(answer.read(20).startswith(b"data: "), "the stream has begun")
        answer.close()
        connection.close()
        wait_for(lambda: server.metric(name, more) == 1, "cancelled stream")
        connection = server.connect()
        connection.request("POST", COMPLETIONS, json.dumps({**long, "seed": 10}),
                           {"Authorization": f"Bearer {KEYS[0]}"})
        wait_for(lambda: server.metric("num_requests_running") > 0, "running request")
        connection.close()
        wait_for(lambda: server.metric(name, more) == 2, "cancelled request")
        expect(server.metric("num_requests_running") == 0, "a cancelled sequence runs on")
        expect(server.metric("num_requests_waiting") == 0, "a cancelled sequence waits on")

    def drained_answers_end(self, server):
        """After USR1 a running answer still comes whole, and the server ends with status 75."""
        body = {"prompt": "a", "max_tokens": 300, "ignore_eos": True, "n": 8, "seed": 3}
        connection, answer = server.open_stream(body)
        server.signal(signal.SIGUSR1)
        wait_for(lambda: "draining" in server.text(), "draining in the log")
        data = answer.read()
        connection.close()
        joined = Joined(events_of(data), False)
        expect(len(joined.choices) == 8, f"{len(joined.choices)} of 8 answers")
        # one stream waits a millisecond for more text, far less than these 300 steps take
        expect(joined.n_pieces > 24, f"only {joined.n_pieces} pieces of 8 answers")
        expect(server.status() == 75, f"status {server.status()}\n{server.text()}")

    def bounds(self):
        """429 beyond --max-requests, a slow half call, and answers that the drain cuts."""
        server = self.serve("bounds", "--max-requests", "3", "--http-timeout", "2", "--drain-time",
                            "1", "--api-key-file", self.work / "keys")
        try:
            self.half_calls_are_closed(server)
            self.queue_is_bounded_and_cut(server)
        finally:
            server.end()

    @staticmethod
    def half_calls_are_closed(server):
        begin = time.monotonic()
        sockets = [socket.create_connection(("127.0.0.1", server.port), LIMIT_S) for _ in range(3)]
        sockets[1].sendall(b"POST /v1/completions HTT")
        sockets[2].sendall(b"POST /health HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{\"pro")
        for s in sockets:
            while s.recv(4096):
                pass
            s.close()
        expect(time.monotonic() - begin < 20, "half calls stay open")

    @staticmethod
    def queue_is_bounded_and_cut(server):
        body = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "n": 128}
        streams = []
        for i in range(3):  # the last may wait until the others have ended
            streams.append(server.ask_for_stream({**body, "seed": i}))
            wait_for(lambda i=i: server.n_sequences() > i, "running or waiting sequence")
        status, headers, data = server.call("POST", COMPLETIONS, CALLS[0][1])
        expect(status == 429 and int(headers["Retry-After"]) >= 1, f"{status} {data}")
        expect(error_of(data)["type"] == "rate_limit_error", f"{data}")
        server.signal(signal.SIGTERM)
        n_begun = 0
        for connection in streams:
            answer = connection.getresponse()
            data = answer.read()
            n_begun += answer.status == 200
            expect(answer.status in (200, 503), f"{answer.status} {data[:300]}")
            last = data.split(b"\n\n")[-2].removeprefix(b"data: ") if answer.status == 200 else data
            expect(error_of(last)["code"] == "draining", f"a stream that was cut ends with {last[:300]}")
            connection.close()
        expect(n_begun > 0, "no stream had begun")
        expect(server.status() == 75, f"status {server.status()}\n{server.text()}")

    def lost_ranks_end_streams(self):
        server = self.serve("lost", "--watchdog", "2", "--api-key-file", self.work / "keys")
        try:
            time.sleep(3)  # the watchdog does not count idle time
            expect(server.process.poll() is None, f"an idle server ended\n{server.text()}")
            body = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "n": 128, "seed": 1}
            connection, answer = server.open_stream(body)
            answer.read(20)
            server.signal(signal.SIGSTOP, rank=self.ranks - 1)
            data = answer.read()
            connection.close()
            last = data.decode().split("\n\n")[-2]
            expect("error" in json.loads(last[6:]), f"the stream ends with {last[:300]}")
            expect(server.status() == 76, f"status {server.status()}\n{server.text()}")
        finally:
            server.end()

    def demo(self):
        """The model of the README: the answer that its page shows."""
        server = self.serve("demo", model=DEMO)
        try:
            status, _, data = server.call("POST", COMPLETIONS,
                                          {"prompt": "O Romeo,", "max_tokens": 24, "temperature": 0},
                                          key=None)
            expect(status == 200, f"{status} {data}")
            text = json.loads(data)["choices"][0]["text"]
            expect(text == " that is the king's death.\n\n", f"{text!r}")
        finally:
            server.end()

    def rows_with_thoughts(self):
        """--reasoning-parser think divides the one row with tags, and auto none: the template has no tags."""
        divided, whole = self.rows("--reasoning-parser", "think"), self.rows()
        expect(self.rows("--reasoning-parser", "auto") == whole, "auto divides without tags in the template")
        for (path, body), (_, new), (_, old) in zip(CALLS, divided, whole, strict=True):
            if "<think>" not in str(body):
                expect(new == old, f"{path} {body}: {new}, {old}")
                continue
            new, old = (json.loads(r)["choices"][0]["message"] for r in (new, old))
            expect((new["reasoning_content"], new["content"]) == ("Let me < see.", "It is 4."), f"{new}")
            expect(old == {"role": "assistant", "content": body["guided_choice"][0]}, f"{old}")
        return divided

    def run(self):
        rows = self.rows_with_thoughts()
        server = self.serve("answers", "--watchdog", "2", "--api-key-file", self.work / "keys", "--drain-time", "900",
                            "--reasoning-parser", "think")
        try:
            self.bodies_are_those_of_a_batch(server, rows)
            self.streams_join_to_the_whole(server, rows)
            self.calls_that_generate_nothing(server)
            self.bad_calls_are_refused(server)
            self.clients_that_leave_free_their_sequences(server)
            self.an_idle_server_leaves_the_cores(server)
            self.drained_answers_end(server)
        finally:
            server.end()
        self.bounds() if self.ranks == 1 else self.lost_ranks_end_streams()
        if self.ranks > 1:
            self.demo()
        print(f"serve: {len(CALLS)} calls and their streams on {self.ranks} ranks, as in a batch")


if __name__ == "__main__":
    main_of(ServeTest(*sys.argv[1:]).run)
