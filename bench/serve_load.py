#!/usr/bin/env python3
"""Loads a server with streams and says what its clients saw.

usage: serve_load.py --shoal build/release/shoal [--model models/demo/demo.h5] [--streams 2000] [--tokens 24]
                     [--seconds 60] [--rate 200] [--parts streams,rate,queue] [--launcher "mpirun -n 2"]
                     [--flags "--threads 2"] [--server-flags "--step-ms 0"] [--work FOLDER] [--json FILE]

The lines are prompts with drawn answers, each with a seed of its own. Before the load, shoal generate writes the rows of
the same lines; a stream whose pieces join to another text is counted as wrong, one that ends otherwise than with
[DONE] as lost.
  streams  opens all --streams at once and reads all to their ends
  queue    --rounds times in turns: generate's time for all lines; the time of the same lines as calls, all open at once,
           answered whole; and as streams
  rate     calls at --rate a second, at even times, for --seconds; then streams at 70 % of what `queue` reached with them
Prints for each part: calls, lost, wrong, tokens a second, time to the first piece (mean, p50, p99, worst), the
server's memory before and after, and the CPU time for 1,000 tokens of the server, of this client and of generate. The
client is one process of Python on the same cores (serve_client.py), so its own work is part of every figure but the CPU
times.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from serve_client import Call, Client

REPO = pathlib.Path(__file__).resolve().parent.parent
STARTS_S = 60
SAME = ["--result-cache", "off"]  # each part computes its lines anew


def cpu_of(who):
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


class Server:
    def __init__(self, o, folder):
        self.log = folder / "server.log"
        argv = [*shlex.split(o.launcher), o.shoal, "serve", "--model", o.model, "--port", "0", *SAME, *shlex.split(o.flags),
                *shlex.split(o.server_flags)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)
        self.port = self.find_port()

    def find_port(self):
        end = time.monotonic() + STARTS_S
        while time.monotonic() < end and self.process.poll() is None:
            found = re.search(r"serving http://127\.0\.0\.1:(\d+)", self.log.read_text(errors="replace"))
            if found:
                return int(found[1])
            time.sleep(0.05)
        sys.exit(f"no server:\n{self.log.read_text(errors='replace')}")

    def texts_of(self, name):
        """/proc/PID/NAME of all of its processes."""
        texts, session = [], os.getsid(self.process.pid)
        for path in pathlib.Path("/proc").glob(f"[0-9]*/{name}"):
            try:
                if os.getsid(int(path.parent.name)) == session:
                    texts.append(path.read_text())
            except (OSError, ProcessLookupError):
                pass
        return texts

    def resident_mib(self):
        return sum(int(n) for text in self.texts_of("status") for n in re.findall(r"VmRSS:\s+(\d+) kB", text)) / 1024

    def cpu_s(self):
        fields = [text.rsplit(")", 1)[1].split() for text in self.texts_of("stat")]
        return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")

    def end(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Load:
    def __init__(self, o, folder):
        self.o, self.folder, self.results = o, folder, []
        self.lines = [{"prompt": f"Act {i % 5 + 1}, scene {i % 7 + 1}. Enter number {i}.", "max_tokens": o.tokens,
                       "seed": i, "temperature": 0.8} for i in range(o.streams)]
        self.rows, _, self.generate_cpu_s = self.generate()
        self.server = Server(o, folder)

    def generate(self):
        """The text of each line, the seconds of computing, and the CPU seconds for 1,000 tokens."""
        source, output, report = (self.folder / name for name in ("in.jsonl", "out.jsonl", "metrics.json"))
        source.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        before = cpu_of(resource.RUSAGE_CHILDREN)
        subprocess.run([*shlex.split(self.o.launcher), self.o.shoal, "generate", "--quiet", "--no-journal", "--model",
                        self.o.model, "--input", source, "--output", output, "--metrics", report,
                        *SAME, *shlex.split(self.o.flags)], check=True)
        cpu_s = cpu_of(resource.RUSAGE_CHILDREN) - before
        rows = [json.loads(row) for row in output.read_text().splitlines()]
        n_tokens = sum(row["usage"]["completion_tokens"] for row in rows)
        return [row["text"] for row in rows], json.loads(report.read_text())["wall_s"], 1000 * cpu_s / n_tokens

    def part(self, name, n, rate, streams=True):
        more = {"stream_options": {"include_usage": True}} if streams else {}
        calls = [Call({**self.lines[i % len(self.lines)], **more}, streams) for i in range(n)]
        before, cpu, client = self.server.resident_mib(), self.server.cpu_s(), Client(self.server.port)
        seconds = client.run(calls, rate)
        cpu = self.server.cpu_s() - cpu
        done = [c for c in calls if c.text is not None]
        thousands = max(1, sum(c.n_tokens for c in done)) / 1000
        first = sorted(c.first_s for c in done if c.first_s is not None) or [0]
        late = sorted(c.late_s for c in calls)
        found = {"part": name, "calls": n, "lost": n - len(done),
                 "wrong": sum(c.text != self.rows[c.line["seed"]] for c in done), "seconds": seconds,
                 "calls_per_s": len(done) / seconds, "tokens_per_s": sum(c.n_tokens for c in done) / seconds,
                 "first_mean_s": statistics.mean(first), "first_p50_s": first[len(first) // 2],
                 "first_p99_s": first[(len(first) * 99) // 100], "first_worst_s": first[-1],
                 "late_mean_s": statistics.mean(late), "late_p99_s": late[(len(late) * 99) // 100],
                 "memory_before_mib": before, "memory_after_mib": self.server.resident_mib(),
                 "server_cpu_s_per_1000": cpu / thousands, "client_cpu_s_per_1000": client.cpu_s / thousands,
                 "generate_cpu_s_per_1000": self.generate_cpu_s}
        self.results.append(found)
        print(f"{name}: {n} calls in {seconds:.1f} s, {found['lost']} lost, {found['wrong']} wrong; "
              f"{found['calls_per_s']:.1f} calls/s, {found['tokens_per_s']:.0f} tokens/s; first piece "
              f"{found['first_mean_s']:.3f} s mean, {found['first_p50_s']:.3f} p50, {found['first_p99_s']:.3f} p99, "
              f"{found['first_worst_s']:.3f} worst (calls sent {found['late_mean_s']:.4f} and {found['late_p99_s']:.4f} s "
              f"late); {before:.0f} to {found['memory_after_mib']:.0f} MiB; "
              f"CPU s per 1000 tokens: server {cpu / thousands:.3f}, client {client.cpu_s / thousands:.3f}, "
              f"generate {self.generate_cpu_s:.3f}", flush=True)
        return found

    def queue(self):
        """Prints the ratios to generate; returns the last round's streams."""
        ratios = {"whole": [], "streams": []}
        for i in range(self.o.rounds):
            seconds = self.generate()[1]
            for name in list(ratios) if i % 2 == 0 else reversed(list(ratios)):
                found = self.part(f"queue, {name}", len(self.lines), 0, name == "streams")
                ratios[name].append(seconds / found["seconds"])
                if name == "streams":
                    reached = found
        for name, found in ratios.items():
            print(f"queue, {name}: {statistics.median(found):.3f} of generate's speed ({min(found):.3f} .. "
                  f"{max(found):.3f}), {self.o.rounds} rounds")
        return reached

    def run(self):
        o, parts = self.o, self.o.parts.split(",")
        reached = None
        if "streams" in parts:
            self.part("streams", o.streams, 0)
        if "queue" in parts:
            reached = self.queue()
        if "rate" in parts:
            self.part("rate", int(o.rate * o.seconds), o.rate)
            if reached:
                rate = 0.7 * reached["calls_per_s"]
                found = self.part("rate at 70 % of the queue's", int(rate * o.seconds), rate)
                print(f"p99 of the first piece is {found['first_p99_s'] / found['first_mean_s']:.1f} times the mean")
        return sum(r["lost"] + r["wrong"] for r in self.results)


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--shoal", required=True)
    p.add_argument("--model", default=str(REPO / "models" / "demo" / "demo.h5"))
    p.add_argument("--streams", type=int, default=2000)
    p.add_argument("--tokens", type=int, default=24)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--rate", type=float, default=200)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--parts", default="streams,queue,rate")
    p.add_argument("--launcher", default="")
    p.add_argument("--flags", default="", help="of the server and of generate")
    p.add_argument("--server-flags", default="")
    p.add_argument("--work")
    p.add_argument("--json")
    return p.parse_args()


def main():
    o = options()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * o.streams)), hard))
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(o.work or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        load = Load(o, folder)
        try:
            n_bad = load.run()
        finally:
            load.server.end()
        if o.json:
            pathlib.Path(o.json).write_text(json.dumps(load.results, indent=1) + "\n")
    sys.exit(n_bad > 0)


if __name__ == "__main__":
    main()
