"""Calls of a server that answers as OpenAI's completions do. Used by serve_load.py and serve_peers.py.

The client only moves bytes while the calls run, and reads the answers afterwards: it shares the machine with the
server, so its own work would be a part of what it measures.
"""
import collections
import json
import selectors
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

    def open(self, port, since):
        more = {"stream": True} if self.streams else {}
        body = json.dumps({**self.line, **more}).encode()
        self.unsent = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.since = since
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex(("127.0.0.1", port))

    def send(self):
        """Returns whether all is sent."""
        self.unsent = self.unsent[self.socket.send(self.unsent):]
        return not self.unsent

    def take(self):
        """Reads what has come. Returns whether the answer is at its end."""
        bytes_ = self.socket.recv(PIECE)
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
        self.port, self.selector, self.n_open = port, selectors.DefaultSelector(), 0

    def begin(self, call, since):
        call.open(self.port, since)
        self.selector.register(call.socket, selectors.EVENT_WRITE, call)
        self.n_open += 1

    def look(self, wait_s):
        """Moves bytes of the calls that are ready; waits at most wait_s seconds, None: for ever. Returns how many
        calls ended."""
        n_ended = 0
        for key, events in self.selector.select(wait_s):
            call, ends = key.data, True
            try:
                if events & selectors.EVENT_WRITE:
                    ends = False
                    if call.send():
                        self.selector.modify(call.socket, selectors.EVENT_READ, call)
                else:
                    ends = call.take()
            except BlockingIOError:
                ends = False
            except OSError:
                ends = True
            if ends:
                self.selector.unregister(call.socket)
                call.close()
                n_ended += 1
        self.n_open -= n_ended
        return n_ended

    def run(self, calls, rate=0, most=0):
        """Runs all calls: `rate` a second at even times; or as many at a time as `most` says, the next one when one has
        ended; or all at once. Returns the seconds that it took."""
        waiting, began = collections.deque(calls), time.perf_counter()
        n_begun = 0
        while waiting or self.n_open:
            now = time.perf_counter()
            while waiting and (now >= began + n_begun / rate if rate else not most or self.n_open < most):
                self.begin(waiting.popleft(), began + n_begun / rate if rate else now)
                n_begun += 1
            due = began + n_begun / rate if rate and waiting else None
            self.look(None if due is None else max(0, due - time.perf_counter()))
        seconds = time.perf_counter() - began
        for call in calls:
            call.read()
        return seconds
