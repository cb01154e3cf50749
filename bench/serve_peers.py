#!/usr/bin/env python3
"""`shoal serve` beside llama.cpp's server from llama-cpp-python, on the same weights, in turns.

usage: serve_peers.py --shoal build/release/shoal --python VENV/bin/python --models FOLDER --work FOLDER
                      [--shape A] [--clients 32] [--calls 64] [--prompt 100] [--tokens 16] [--threads 2] [--rounds 3]
                      [--max-wait 60]

FOLDER of --models holds <shape>.Q8_0.gguf of models.py; shoal's checkpoint is made of it beside it, with the same codes.
--clients clients each call /v1/completions for a stream, and call again when it has ended, until --calls have been
made; texts are random words, each call's own. Both servers take the arg-max and get the same calls. A turn is all calls
to one server, while the other one waits, idle; before it, a quiet machine is waited for. Printed: tokens a second of
wall time, and the time to the first piece of text as the clients see it, medians over the rounds, with the least and
the largest ratio, and how many calls of llama.cpp's server had no whole answer and were repeated.

llama-cpp-python's server computes one call at a time and lets the others wait, so its clients wait in a queue; that is
how it is (a build of llama.cpp's own llama-server runs several at a time, and is not in the package).
"""
import argparse
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from quiet import Quiet  # noqa: E402
from serve_client import Call, Client  # noqa: E402

STARTS_S = 120
WORDS = "shoal fish swims in the sea while small boats drift under a grey sky and nobody counts the waves".split()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, name, command, port, work):
        self.name, self.port, self.log = name, port, work / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log)
        self.wait()

    def wait(self):
        end = time.monotonic() + STARTS_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        sys.exit(f"{self.name} does not answer:\n{self.log.read_text(errors='replace')}")

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def servers_of(args):
    """shoal and the peer. The peer gets the context that its longest call needs."""
    gguf, model = args.models / f"{args.shape}.Q8_0.gguf", args.models / f"{args.shape}.int8.keep.h5"
    if not model.exists():
        subprocess.run([args.shoal, "convert", gguf, model], check=True, stdout=sys.stderr)
    context, ports = 2 * (args.prompt + args.tokens) + 64, [free_port(), free_port()]
    return [Server("shoal", [args.shoal, "serve", "--model", model, "--port", ports[0], "--threads", args.threads,
                             "--max-model-len", context, "--result-cache", "off", "--quiet"], ports[0], args.work),
            Server("llama.cpp", [args.python, "-m", "llama_cpp.server", "--model", gguf, "--port", ports[1], "--n_threads",
                                 args.threads, "--n_threads_batch", args.threads, "--n_ctx", context,
                                 # otherwise a new call ends the one that runs
                                 "--interrupt_requests", "false"], ports[1], args.work)]


def lines_of(args):
    draw = random.Random(3)
    return [{"prompt": " ".join(draw.choices(WORDS, k=args.prompt // 3)), "max_tokens": args.tokens, "temperature": 0}
            for _ in range(args.calls)]


def is_whole(call):
    return call.text is not None and call.finish == "length"


def turn(server, args):
    """(tokens a second, mean and 99th percentile of the seconds to the first piece, calls repeated, calls failed).

    Calls without a whole answer, such as the empty streams that llama-cpp-python's server sometimes sends, are made once
    more behind the others, in the same turn's time. Those that fail again give no tokens. None of shoal's may fail.
    """
    client, calls = Client(server.port), [Call(line) for line in lines_of(args)]
    seconds = client.run(calls, most=args.clients)
    short = [c for c in calls if not is_whole(c)]
    again = [Call(c.line) for c in short]
    if short and server.name != "shoal":
        seconds += client.run(again, most=args.clients)
    whole = [c for c in calls + again if is_whole(c)]
    if not whole or (short and server.name == "shoal"):
        sys.exit(f"{server.name}: {len(short)} calls have no whole answer, the first: {bytes(short[0].received)[:2000]}")
    first = sorted(c.first_s for c in whole)
    return (len(whole) * args.tokens / seconds, statistics.mean(first), first[len(first) * 99 // 100], len(again),
            len(calls) - len(whole))


def report(servers, turns):
    for server in servers:
        found = turns[server.name]
        print(f"{server.name}: {statistics.median(t[0] for t in found):.1f} tokens/s; first piece "
              f"{statistics.median(t[1] for t in found):.3f} s mean, {statistics.median(t[2] for t in found):.3f} s p99; "
              f"{sum(t[3] for t in found)} calls repeated, {sum(t[4] for t in found)} of them failed again")
    pairs = list(zip(turns["shoal"], turns["llama.cpp"]))
    for what, ratios in (("tokens/s of shoal by those of llama.cpp", [a[0] / b[0] for a, b in pairs]),
                         ("first piece of llama.cpp by that of shoal", [b[1] / a[1] for a, b in pairs])):
        print(f"{what}: {statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f}), {len(pairs)} rounds")


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--shoal", required=True)
    p.add_argument("--python", required=True)
    p.add_argument("--models", required=True, type=pathlib.Path)
    p.add_argument("--work", required=True, type=pathlib.Path)
    p.add_argument("--shape", default="A")
    p.add_argument("--clients", type=int, default=32)
    p.add_argument("--calls", type=int, default=64)
    p.add_argument("--prompt", type=int, default=100, help="about so many tokens")
    p.add_argument("--tokens", type=int, default=16)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--max-wait", type=float, default=60)
    args = p.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    servers = servers_of(args)
    turns = {s.name: [] for s in servers}
    try:
        quiet = Quiet([s.process.pid for s in servers])
        for i in range(args.rounds):
            for server in servers if i % 2 == 0 else reversed(servers):
                quiet.wait(args.max_wait)
                turns[server.name].append(turn(server, args))
                speed, mean, p99, *_ = turns[server.name][-1]
                print(f"round {i + 1}: {server.name} {speed:.1f} tokens/s, first piece {mean:.3f} s mean, {p99:.3f} p99",
                      flush=True)
    finally:
        for server in servers:
            server.end()
    report(servers, turns)


if __name__ == "__main__":
    main()
