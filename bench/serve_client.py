"""Calls of a server that answers as OpenAI's completions do. Used by serve_load.py and serve_peers.py.

The client only moves bytes while the calls run, and reads the answers afterwards: it shares the machine with the
server, so its own work would be a part of what it measures. Connections stay open, and later calls use them again, as
those of most clients do.
"""
import collections
import gc
import json
import select
import socket
import time

PIECE = 1 << 16


class Call:
    """One call. first_s, end_s: from the moment at which it was due to the first piece of the text and to the end;
    late_s: how much later this client sent it; text None: it was lost, or not answered with 200."""

    def __init__(self, line, streams=True):
        self.line, self.streams = line, streams
        self.text, self.n_tokens, self.finish, self.first_s, self.end_s = None, 0, None, None, None
        self.received, self.since, self.late_s, self.socket = bytearray(), 0, 0, None
        self.n_whole, self.is_chunked, self.is_used = None, False, False
        body = json.dumps({**line, **({"stream": True} if streams else {})}).encode()
        self.request = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def connect(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)

    def send(self, since):
        self.since, self.late_s = since, time.perf_counter() - since
        self.socket.setblocking(True)  # otherwise a call that is longer than the socket's buffer would be lost
        self.socket.sendall(self.request)
        self.socket.setblocking(False)

    def take(self):
        """Reads what has come. Returns whether the answer is at its end; the connection is closed if it cannot be used
        again."""
        try:
            bytes_ = self.socket.recv(PIECE)
        except BlockingIOError:
            return False
        except OSError:
            bytes_ = b""
        self.received += bytes_
        if self.first_s is None and (b"data: " in self.received if self.streams else bytes_):
            self.first_s = time.perf_counter() - self.since
        if not bytes_:
            self.socket.close()
        return not bytes_ or self.has_end()

    def has_end(self):
        if self.n_whole is None:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return False
            head = bytes(self.received[:end]).lower()
            self.is_chunked = b"chunked" in head
            self.n_whole = 0 if self.is_chunked else end + 4 + int(head.partition(b"content-length:")[2].split()[0])
        return self.received.endswith(b"\r\n0\r\n\r\n") if self.is_chunked else len(self.received) >= self.n_whole

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
    """cpu_s: the CPU time of the last run."""

    def __init__(self, port):
        self.port, self.poll, self.open, self.idle, self.cpu_s = port, select.epoll(), {}, {}, 0

    def begin(self, call, since):
        """Sends the call on its own connection, on an idle one, or else on a new one."""
        try:
            if not call.socket and self.idle:
                call.socket, call.is_used = self.idle.popitem()[1], True
            elif not call.socket:
                call.connect(self.port)
            call.send(since)
        except OSError:
            return  # lost
        self.open[call.socket.fileno()] = call
        if not call.is_used:
            self.poll.register(call.socket, select.EPOLLIN)

    def look(self, wait_s):
        """Moves bytes of the calls that are ready; waits at most wait_s seconds, None: for ever."""
        for fd, _ in self.poll.poll(wait_s):
            call = self.open.get(fd)
            if call is None:  # the server has closed an idle connection
                self.idle.pop(fd).close()
            elif call.take():
                del self.open[fd]
                self.end(call, fd)

    def end(self, call, fd):
        call.end_s = time.perf_counter() - call.since
        if call.socket.fileno() >= 0:
            self.idle[fd] = call.socket
        elif call.is_used and not call.received:  # the server closed the connection before it got the call
            call.socket, call.is_used = None, False
            self.begin(call, call.since)

    def run(self, calls, rate=0, most=0):
        """Runs all calls: `rate` a second at even times; or as many at a time as `most` says, the next one when one has
        ended; or all at once, on connections that are open before the clock starts. Returns the
        seconds that it took."""
        if not rate and not most:
            for call in calls:
                call.connect(self.port)
        gc.collect()
        cpu_s = time.process_time()
        gc.disable()  # a collection among ten thousand calls takes as long as several steps
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
        seconds, self.cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
        gc.enable()
        for left in self.idle.values():
            left.close()
        self.idle.clear()
        for call in calls:
            call.read()
        return seconds
