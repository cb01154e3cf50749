#!/usr/bin/env python3
"""Clients of shoal serve that do harm: mutated calls, slow readers, long bodies, many connections; and a killed rank.

usage: serve_faults.py SHOAL WORK_FOLDER few|many [--seed N]
few sends 2,000 mutated calls, bodies of 64 MB and 1,000 connections; many 100,000, bodies of 1 GB and 10,000
connections, as far as this host allows open files. After each of them the same call must still get the same bytes, and
the server's memory must not have grown by what was sent.
"""
import argparse
import json
import random
import re
import resource
import select
import signal
import socket
import time
from pathlib import Path

from program import expect, main_of
from serve import CALLS, CHAT, COMPLETIONS, KEYS, LIMIT_S, ServeTest, events_of, expect_joined, wait_for

SIZES = {"few": (2000, 64 << 20, 1000), "many": (100_000, 10 ** 9, 10_000)}  # mutated calls, bytes, connections
AT_A_TIME = 256  # mutated calls; many keep their connections until --http-timeout
WAITING_MAX = 500  # connections; the system's queue holds about a thousand
FILES_SPARE = 500  # open files of server and client besides their connections
CONNECTION_KIB = 48  # the server's bound of a connection's headers is 32
GROWTH_MAX_MIB = 80  # several bodies of --max-body-mib
AUTH = f"Authorization: Bearer {KEYS[0]}\r\n"
STATUSES = {200, 400, 401, 404, 405, 408, 411, 413, 414, 417, 426, 429, 431, 501, 505}
WORDS = [b"\r\n", b"\r\n\r\n", b"\n", b"\0", b"\r", b": ", b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n",
         b"Connection: close\r\n", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"GET ", b"POST ", b"DELETE ", b"OPTIONS * ", b"0\r\n\r\n",
         b"ffffffffffffffff\r\n", b"-1", b"18446744073709551616", b"999999999999", b"%00", b"%zz", b"/../", b"?a=b", b"//", b"Bearer ",
         b"Content-Type: multipart/form-data; boundary=b\r\n", b"--b\r\n", b"--b--", b"Upgrade: h2c\r\n", b"X-Request-Id: ", b"\xff\xfe",
         b"Host: a\r\n", b"A" * 9000, b"a: b\r\n" * 200, b"{", b"\"stream\": true, ", b"/v1/completions", b"/v1/files", b"/metrics"]


def call_bytes(method, path, body=b"", head=AUTH):
    return (f"{method} {path} HTTP/1.1\r\nHost: a\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def seeds():
    prompt = json.dumps({"prompt": "a", "max_tokens": 2}).encode()
    stream = json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": True}).encode()
    upload = (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: form-data; '
              b'name="file"; filename="f"\r\n\r\n{}\r\n--b--\r\n')
    chunks = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: a\r\n{AUTH}Transfer-Encoding: chunked\r\n\r\n".encode()
    return [call_bytes("POST", COMPLETIONS, prompt), call_bytes("POST", CHAT, stream),
            call_bytes("POST", "/v1/files", upload, AUTH + "Content-Type: multipart/form-data; boundary=b\r\n"),
            chunks + b"%x\r\n" % len(prompt) + prompt + b"\r\n0\r\n\r\n", call_bytes("POST", "/tokenize", prompt),
            call_bytes("GET", "/v1/models"), call_bytes("GET", "/metrics"), call_bytes("GET", "/health", head=""),
            call_bytes("GET", "/v1/batches/batch_1"), call_bytes("DELETE", "/v1/files/file-1"),
            call_bytes("GET", "/health") + call_bytes("POST", COMPLETIONS, prompt),
            call_bytes("POST", COMPLETIONS, prompt, AUTH + "Expect: 100-continue\r\n")]


def mutated(draw, known):
    """A call in which one to six places were changed."""
    made = bytearray(draw.choice(known))
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(made) + 1)
        kind = draw.randrange(6)
        if kind == 0:
            made[at:at] = draw.choice(WORDS)
        elif kind == 1:
            del made[at:at + draw.choice((1, 2, 16))]
        elif kind == 2 and at < len(made):
            made[at] = draw.randrange(256)
        elif kind == 3:
            del made[at:]
        elif kind == 4:
            other = draw.choice(known)
            made[at:] = other[draw.randrange(len(other)):]
        else:
            made[at:at] = made[at:at + draw.randrange(64)]
    return bytes(made)


class Attack:
    """Mutated calls, some at a time. Each is sent and its connection closed for writing."""

    def __init__(self, port, seed):
        self.port, self.draw, self.known = port, random.Random(seed), seeds()
        self.poll, self.open, self.statuses = select.poll(), {}, {}

    def begin(self):
        sent = mutated(self.draw, self.known)
        s = socket.create_connection(("127.0.0.1", self.port), LIMIT_S)
        try:
            s.sendall(sent)
            s.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was refused before its end
        self.open[s.fileno()] = (s, sent, bytearray(), time.monotonic())
        self.poll.register(s, select.POLLIN)

    def end(self, fd):
        s, sent, got, _ = self.open.pop(fd)
        self.poll.unregister(s)
        s.close()
        found = re.match(rb"HTTP/1\.[01] (\d{3}) ", got)
        expect(not got or found, f"no answer of HTTP: {bytes(got[:200])} to {sent[:2000]}")
        status = int(found[1]) if found else 0
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if found and status >= 100 and status not in STATUSES and status != 100:
            expect(False, f"status {status} to {sent[:2000]}: {bytes(got[:500])}")

    def read(self, fd):
        try:
            data = self.open[fd][0].recv(1 << 16)
        except OSError:
            data = b""
        self.open[fd][2].extend(data)
        if not data:
            self.end(fd)

    def run(self, n):
        begun = 0
        while begun < n or self.open:
            while begun < n and len(self.open) < AT_A_TIME:
                self.begin()
                begun += 1
            for fd, _ in self.poll.poll(1000):
                self.read(fd)
            for s, sent, _, since in self.open.values():
                expect(time.monotonic() - since < LIMIT_S, f"no end within {LIMIT_S} s: {sent[:2000]}")
        return self.statuses


class FaultsTest(ServeTest):
    def __init__(self, args):
        super().__init__(args.shoal, args.work, "one")
        self.seed, self.sizes = args.seed, SIZES[args.size]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.n_connections = min(self.sizes[2], hard - FILES_SPARE)

    def resident_mib(self):
        text = Path(f"/proc/{self.server.pids()[0]}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024

    def answer(self):
        return self.server.call("POST", *CALLS[0], {"X-Request-Id": "same"})

    def n_files(self):
        """How many files and sockets the server has open."""
        return len(list(Path(f"/proc/{self.server.pids()[0]}/fd").iterdir()))

    @staticmethod
    def rest_of(s):
        """The last bytes that come from a socket, which is then closed."""
        data, tail = b"x", b""
        with s:
            try:
                while data:
                    data = s.recv(1 << 20)
                    tail = (tail + data)[-100:]
            except ConnectionResetError:
                pass
        return tail

    def begin(self, name, *flags):
        self.server = self.serve(name, "--api-key-file", self.work / "keys", *flags)
        self.n_files_idle = self.n_files()
        self.wanted = self.answer()[2]

    def is_unharmed(self, what, before_mib, growth_mib=GROWTH_MAX_MIB):
        status, _, data = self.answer()
        expect(status == 200 and data == self.wanted, f"after {what}: {status} {data}")
        grown = self.resident_mib() - before_mib
        expect(grown < growth_mib, f"{what}: the memory has grown by {grown:.0f} MiB")
        print(f"{what}: memory {before_mib:.0f} and {before_mib + grown:.0f} MiB", flush=True)

    def mutated_calls(self):
        # calls in the server need memory, too
        Attack(self.server.port, self.seed + 1).run(500)
        before = self.resident_mib()
        found = Attack(self.server.port, self.seed).run(self.sizes[0])
        expect(found.get(200, 0) > 20 and found.get(400, 0) > 20 and found.get(401, 0) > 20, f"statuses {found}")
        self.is_unharmed(f"{self.sizes[0]} mutated calls, statuses {dict(sorted(found.items()))}", before)

    def send_body(self, head, piece, n):
        """Sends n bytes in pieces, or as many as are taken; returns what came back, and whether all were taken."""
        with socket.create_connection(("127.0.0.1", self.server.port), LIMIT_S) as s:
            try:
                s.sendall(head.encode())
                for _ in range(n // (1 << 20)):
                    s.sendall(piece)
                return s.recv(1 << 16), True
            except OSError:
                try:
                    return s.recv(1 << 16), False
                except OSError:
                    return b"", False

    def long_bodies(self):
        n, plain = self.sizes[1], b" " * (1 << 20)
        length, chunked = f"Content-Length: {n}\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"
        chunk, before = b"100000\r\n" + plain + b"\r\n", self.resident_mib()
        form = "Content-Type: multipart/form-data; boundary=b\r\n"
        for path, more in ((COMPLETIONS, ""), ("/v1/files", form)):
            for key in (AUTH, "Authorization: Bearer wrong\r\n"):
                for tail, piece in ((length, plain), (chunked, chunk)):
                    head = f"POST {path} HTTP/1.1\r\nHost: a\r\n{key}{more}{tail}"
                    got, _ = self.send_body(head, piece, n)
                    wanted = {b"", b"413", b"401"}
                    expect(got[9:12] in wanted and b" 200 " not in got[:16], f"{head}: {got[:300]}")
        self.is_unharmed(f"8 bodies of {n} bytes", before)

    def connections(self):
        """More connections than the server takes: those beyond wait, and are served when others close."""
        n = self.n_connections
        most = n - min(n // 5, WAITING_MAX)
        self.server.end()
        self.begin("connections", "--http-timeout", 3600, "--max-connections", most)
        before, ask = self.resident_mib(), call_bytes("GET", "/health", head="")
        sockets = [socket.create_connection(("127.0.0.1", self.server.port), LIMIT_S) for _ in range(n)]
        for s in (sockets[0], sockets[most // 2], sockets[-1]):
            s.sendall(ask)
        for s in (sockets[0], sockets[most // 2]):
            expect(s.recv(4096).startswith(b"HTTP/1.1 200 "), "an open connection is served")
        last = select.poll()  # select() takes no descriptor above 1,023
        last.register(sockets[-1], select.POLLIN)
        expect(not last.poll(500), "a connection beyond the bound was served")
        for s in sockets[1:n - most + 50]:
            s.close()
        expect(sockets[-1].recv(4096).startswith(b"HTTP/1.1 200 "), "a connection that waited")
        left = [sockets[0], *sockets[n - most + 50:]]
        for s in left:
            s.sendall(ask)
        for s in left:
            expect(s.recv(4096).startswith(b"HTTP/1.1 200 "), "one of many connections")
            s.close()
        self.is_unharmed(f"{n} connections, {most} at a time", before, GROWTH_MAX_MIB + most * CONNECTION_KIB / 1024)

    def stream_of(self, size, body):
        """A socket with a small buffer on which a stream was asked for."""
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        s.settimeout(LIMIT_S)
        s.connect(("127.0.0.1", self.server.port))
        s.sendall(call_bytes("POST", COMPLETIONS, json.dumps({**body, "stream": True}).encode(), AUTH + "Connection: close\r\n"))
        return s

    def slow_readers(self):
        """Clients that read a little at a time get all; clients that read nothing are cut off."""
        self.server.end()
        self.begin("slow", "--http-timeout", 3)
        body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "n": 4, "seed": 5}
        before, whole = self.resident_mib(), json.loads(self.server.call("POST", COMPLETIONS, body)[2])
        none = [self.stream_of(4096, {**body, "n": 128, "max_tokens": 500, "logprobs": 5, "seed": i}) for i in range(2)]
        slow, got = [self.stream_of(4096, body) for _ in range(8)], [b"" for _ in range(8)]
        is_open = [True] * len(slow)
        while any(is_open):
            time.sleep(0.1)
            for i in [i for i, is_one in enumerate(is_open) if is_one]:
                data = slow[i].recv(16384)
                got[i] += data
                is_open[i] = data != b""
            expect(self.server.call("GET", "/health")[0] == 200, "a quick client waits for slow ones")
        for one in got:
            events = b"".join(re.findall(rb"data: [^\n]*\n\n", re.sub(rb"\r\n[0-9A-Fa-f]+\r\n", b"", one.split(b"\r\n\r\n", 1)[1])))
            events = events if events.startswith(b"data") else b""
            expect_joined("a slow reader's stream", [{**e, "id": whole["id"]} for e in events_of(events)], whole, False)
        wait_for(lambda: self.n_files() <= self.n_files_idle, "end of the connections whose clients read nothing")
        for s in none:
            expect(b"[DONE]" not in self.rest_of(s), "a client that read nothing got its whole answer")
        wait_for(lambda: self.server.metric("num_requests_running") == 0, "end of the streams")
        self.is_unharmed("slow readers", before, GROWTH_MAX_MIB + 150)  # what they were not sent in time

    def killed_rank(self):
        """SIGKILL in the middle of a stream: an error event, and status 76."""
        self.ranks = 4
        server = self.serve("killed", "--watchdog", "2", "--api-key-file", self.work / "keys")
        try:
            connection, answer = server.open_stream({"prompt": "a", "max_tokens": 500, "ignore_eos": True, "n": 128, "seed": 1})
            answer.read(20)
            server.signal(signal.SIGKILL, rank=3)
            last = answer.read().decode().split("\n\n")[-2]
            connection.close()
            expect("error" in json.loads(last[6:]), f"the stream ends with {last[:300]}")
            expect(server.status() == 76, f"status {server.status()}\n{server.text()}")
            print("a killed rank: an error event, status 76", flush=True)
        finally:
            server.end()

    def run(self):
        self.begin("bytes", "--http-timeout", 2, "--batch-dir", self.work / "batches")
        try:
            self.mutated_calls()
            self.long_bodies()
            self.connections()
            self.slow_readers()
            self.server.signal(signal.SIGUSR1)
            expect(self.server.status() == 75, f"status {self.server.status()}\n{self.server.text()}")
        finally:
            self.server.end()
        self.killed_rank()
        for log in self.work.glob("*/log"):
            text = log.read_text(errors="replace")
            expect("Sanitizer" not in text and "runtime error" not in text, f"{log}:\n{text}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shoal")
    parser.add_argument("work")
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    main_of(lambda: FaultsTest(args).run())


if __name__ == "__main__":
    main()
