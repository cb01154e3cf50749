"""Calls of a server that answers as OpenAI's completions do. Used by serve_load.py and serve_peers.py.

The client only moves bytes while the calls run, and reads the answers afterwards: it shares the machine with the
server, so its own work would be a part of what it measures.
"""
import collections
import json
import select
import socket
import time

PIECE = 1 << 16


class Call:
    """One call. first_s, end_s: from the moment at which it was due to the first piece of the text and to the end;
    text None: it was lost, or not answered with 200."""

    def __init__(self, line, streams=True):
        self.line, self.streams = line, streams
        self.text, self.n_tokens, self.finish, self.first_s, self.end_s = None, 0, None, None, None
        self.received, self.since, self.socket = bytearray(), 0, None
        body = json.dumps({**line, **({"stream": True} if streams else {})}).encode()
        self.request = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def connect(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, since):
        self.since = since
        self.socket.sendall(self.request)
        self.socket.setblocking(False)

    def take(self):
        """Reads what has come. Returns whether the answer is at its end."""
        try:
            bytes_ = self.socket.recv(PIECE)
        except BlockingIOError:
            return False
        except OSError:
            bytes_ = b""
        self.received += bytes_
        if self.first_s is None and (b"data: " in self.received if self.streams else bytes_):
            self.first_s = time.perf_counter() - self.since
        return not bytes_

    def close(self):
        self.end_s = time.perf_counter() - self.since
        self.socket.close()

    def read(self):
        """Finds the text in what was received."""
        try:
            head, _, body = bytes(self.received).partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                return
            if b"chunked" in head.lower():
                body = joined(body)
            self.read_stream(body) if self.streams else self.read_whole(json.loads(body))
        except (ValueError, KeyError, IndexError):
            self.text = None

    def read_whole(self, body):
        self.n_tokens, self.finish = body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]
        self.text = body["choices"][0]["text"]

    def read_stream(self, body):
        pieces = []
        lines = [line.removeprefix(b"data: ") for line in body.replace(b"\r\n", b"\n").split(b"\n\n")]
        for line in lines:
            if line == b"[DONE]":
                self.text = "".join(pieces)
            if not line.startswith(b"{"):
                continue
            event = json.loads(line)
            for choice in event["choices"]:
                pieces.append(choice["text"])
                self.finish = choice.get("finish_reason") or self.finish
            if event.get("usage"):
                self.n_tokens = event["usage"]["completion_tokens"]


def joined(body):
    """The chunks of an HTTP body, joined. ValueError: the last one is missing."""
    parts, at = [], 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[end + 2:end + 2 + size])
        at = end + 2 + size + 2


class Client:
    def __init__(self, port):
        self.port, self.poll, self.open = port, select.epoll(), {}

    def begin(self, call, since):
        """Sends the call, on a connection that it may have already."""
        try:
            if not call.socket:
                call.connect(self.port)
            call.send(since)
        except OSError:
            return  # lost
        self.open[call.socket.fileno()] = call
        self.poll.register(call.socket, select.EPOLLIN)

    def look(self, wait_s):
        """Moves bytes of the calls that are ready; waits at most wait_s seconds, None: for ever."""
        for fd, _ in self.poll.poll(wait_s):
            call = self.open[fd]
            if call.take():
                del self.open[fd]
                call.close()

    def run(self, calls, rate=0, most=0):
        """Runs all calls: `rate` a second at even times; or as many at a time as `most` says, the next one when one has
        ended; or all at once, on connections that stand before the clock starts. Returns the seconds that it took."""
        if not rate and not most:
            for call in calls:
                call.connect(self.port)
        waiting, began = collections.deque(calls), time.perf_counter()
        n_begun = 0
        while waiting or self.open:
            now = time.perf_counter()
            while waiting and (now >= began + n_begun / rate if rate else not most or len(self.open) < most):
                self.begin(waiting.popleft(), began + n_begun / rate if rate else now)
                n_begun += 1
            due = began + n_begun / rate if rate and waiting else None
            if self.open or due:
                self.look(None if due is None else max(0, due - time.perf_counter()))
        seconds = time.perf_counter() - began
        for call in calls:
            call.read()
        return seconds
