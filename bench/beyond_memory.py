#!/usr/bin/env python3
"""Measures experts that stream from disk, KV blocks on disk, and beginnings that jobs share, beside what bounds them.

usage: beyond_memory.py stream|peer|tier|store|shared --model M.h5 --work FOLDER [--shoal FILE] [--threads N] ...

stream  --sequences N --rows N --memory SIZE: the same prompts and answers with all weights in
        memory, and with this --memory in a control group (root only); and a plain read (dd,
        O_DIRECT) of as many bytes of the packed copy. Expected: at least 0.90 of the speed of the
        slower of the first and the third, at most 0.10 CPU seconds of the reader for each GB.
peer    --gguf FILE --peer-sequences N,N...: the same streaming job beside llama.cpp, which maps the
        same weights, in a group with the same limit, at the best of these numbers of sequences.
        Needs llama-cpp-python (--python: the interpreter that has it). Expected: at least 10 times
        llama.cpp's tokens per second.
tier    --sequences N: a pool for a third of the sequences, without --kv-tier and with it. The rows that each computes
        say what the second can gain at most.
store   --document N: questions on one document, in two jobs with one --prefix-store. Expected: the second job's first
        answer begins within 0.10 of the first one's time.
shared  --questions N: the time of a decoding step of N questions that share a document of as many
        tokens as --document says, divided by that of N questions that share its first 1,024. The
        document comes from the store that `store` left, or else the first job puts it there. With
        --flags "--weights stream --expert-memory 1G" the disk is the bound. Expected: at most 1.15.
Each prints one line, and ends with status 1 if two outputs differ that must be equal. FOLDER should be on a local disk.
For store and shared the model's longest context must be 16,896 (models.py --context).
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import time

GROUPS = pathlib.Path("/sys/fs/cgroup/memory")
READ_BYTES = 8 << 20
CONTEXT = 16896


def write_lines(path, prompts, answer):
    with open(path, "w", encoding="ascii") as f:
        for i, ids in enumerate(prompts):
            f.write(json.dumps({"custom_id": str(i), "prompt_token_ids": ids, "temperature": 0, "ignore_eos": True,
                                "max_tokens": answer}) + "\n")


def tokens(draw, n):
    return [draw.randrange(1000, 30000) for _ in range(n)]


class Group:
    """A control group (version 1) with a memory limit."""

    def __init__(self, n_bytes):
        self.path = GROUPS / f"shoal-bench-{os.getpid()}"
        self.path.mkdir()
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
            if (self.path / name).exists():
                (self.path / name).write_text(str(n_bytes), encoding="ascii")

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    def peak(self):
        return int((self.path / "memory.max_usage_in_bytes").read_text(encoding="ascii"))


class Job:
    """A finished job: its metrics, and the hash of its output."""

    def __init__(self, a, name, flags, group=None):
        output, metrics = a.work / f"{name}.out", a.work / f"{name}.metrics.json"
        argv = [a.shoal, "generate", "--model", a.model, "--input", a.work / "in.jsonl", "--output", output,
                "--metrics", metrics, "--threads", a.threads, "--speculate", "off", "--no-journal", *a.flags, *flags]
        output.unlink(missing_ok=True)
        with open(a.work / f"{name}.log", "w+", encoding="utf-8") as log:
            done = subprocess.run([str(x) for x in argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
                                  preexec_fn=group.enter if group else None)
            if done.returncode != 0:
                log.seek(0)
                raise SystemExit(f"{name}: status {done.returncode}\n{log.read()[-2000:]}")
        self.metrics = json.loads(metrics.read_text(encoding="ascii"))
        self.wall_s = self.metrics["wall_s"]
        self.hash = hashlib.sha256(output.read_bytes()).hexdigest()


def same(*jobs):
    if len({job.hash for job in jobs}) != 1:
        raise SystemExit("FAILED: the outputs differ")


def plain_read_s(path, n_bytes):
    """Seconds that dd takes to read n_bytes of a file, again from its start at its end, without the file cache."""
    n_parts, took = os.path.getsize(path) // READ_BYTES, 0.0
    left = max(1, n_bytes // READ_BYTES)
    while left > 0:
        n = min(left, n_parts)
        since = time.perf_counter()
        subprocess.run(["dd", f"if={path}", "of=/dev/null", f"bs={READ_BYTES}", f"count={n}", "iflag=direct"],
                       check=True, stderr=subprocess.DEVNULL)
        took += time.perf_counter() - since
        left -= n
    return took


def limit_of(a):
    """The group's limit: what the job may use, and an eighth for the system's own pages."""
    n_bytes = int(a.memory[:-1]) << {"M": 20, "G": 30}[a.memory[-1]]
    return n_bytes + n_bytes // 8


def stream(a):
    draw = random.Random(5)
    copy = pathlib.Path(f"{a.model}.experts")
    write_lines(a.work / "in.jsonl", [tokens(draw, a.prompt) for _ in range(a.sequences)], a.answer)
    rows = ["--step-tokens", a.rows, "--max-batch", a.sequences, "--max-model-len", 512]
    if not copy.exists():
        subprocess.run([str(a.shoal), "pack", str(a.model)], check=True)
    resident = Job(a, "resident", [*rows, "--weights", "resident"])
    n_bytes = limit_of(a)
    group = Group(n_bytes)
    streaming = Job(a, "stream", [*rows, "--memory", a.memory, "--weights", "stream"], group)
    peak = group.peak()
    group.path.rmdir()
    same(resident, streaming)
    read = streaming.metrics["ranks"][0]["experts"]
    plain_s = plain_read_s(copy, read["disk_bytes"])
    bound_s = max(plain_s, resident.wall_s)
    gb = read["disk_bytes"] / 1e9
    print(f"stream, {a.sequences} sequences, {a.rows} rows a step, limit {n_bytes >> 20} MiB, peak "
          f"{peak >> 20} MiB: read {gb:.1f} GB; streaming {streaming.wall_s:.1f} s, in memory {resident.wall_s:.1f} s, plain "
          f"read {plain_s:.1f} s ({gb / plain_s:.2f} GB/s): {bound_s / streaming.wall_s:.2f} of the bound (0.90); disk "
          f"waited for {read['disk_wait_s']:.1f} s; reading took {read['disk_cpu_s'] / gb:.3f} CPU seconds for each GB (0.10)")


def llama_rate(a, n_bytes, n_sequences):
    """Tokens per second of llama.cpp with mapped weights in a control group of n_bytes, and its
    seconds with loading.
    """
    group = Group(n_bytes)
    argv = [a.python, pathlib.Path(__file__).parent / "peers/llama_turns.py", a.gguf, "--threads", a.threads, "--step-tokens",
            a.rows, "--mapped"]
    since = time.perf_counter()
    done = subprocess.run([str(x) for x in argv], input=f"{a.prompt} {a.answer} {n_sequences}\n", stdout=subprocess.PIPE,
                          text=True, check=True, preexec_fn=group.enter)
    wall_s = time.perf_counter() - since
    group.path.rmdir()
    measured = json.loads(done.stdout.splitlines()[-1])["repetition"]
    return n_sequences * (a.prompt + a.answer) / measured["wall_s"], wall_s


def peer(a):
    draw = random.Random(5)
    write_lines(a.work / "in.jsonl", [tokens(draw, a.prompt) for _ in range(a.sequences)], a.answer)
    n_bytes = limit_of(a)
    group = Group(n_bytes)
    job = Job(a, "peer", ["--step-tokens", a.rows, "--max-batch", a.sequences, "--max-model-len", 512, "--memory", a.memory,
                          "--weights", "stream"], group)
    group.path.rmdir()
    ours = a.sequences * (a.prompt + a.answer) / job.metrics["stages"][0]["elapsed_s"]
    rates = {n: llama_rate(a, n_bytes, n) for n in a.peer_sequences}
    best = max(rates, key=lambda n: rates[n][0])
    print(f"peer, limit {n_bytes >> 20} MiB, {a.prompt} tokens in and {a.answer} out: shoal {ours:.1f} tokens/s with {a.sequences} "
          f"sequences; llama.cpp " + ", ".join(f"{r[0]:.2f} with {n}" for n, r in rates.items())
          + f": {ours / rates[best][0]:.1f} times its best (10)")


def tier(a):
    draw = random.Random(6)
    write_lines(a.work / "in.jsonl", [tokens(draw, a.prompt) for _ in range(a.sequences)], a.answer)
    one = (a.prompt + a.answer) // 64 + 1
    flags = ["--kv-blocks", a.sequences * one // 3, "--max-model-len", 64 * one, "--max-batch", a.sequences]
    without = Job(a, "without", flags)
    moved = Job(a, "tier", [*flags, "--kv-tier", f"{a.work}:8G"])
    same(without, moved)
    n_rows = a.sequences * (a.prompt + a.answer)
    again = [job.metrics["recomputed_tokens"] for job in (without, moved)]
    print(f"tier, {a.sequences} sequences in a pool for a third of them: {without.wall_s:.1f} s without, "
          f"{moved.wall_s:.1f} s with: {without.wall_s / moved.wall_s:.2f} times; {n_rows} rows, {again[0]} and {again[1]} "
          f"computed again, so at most {(n_rows + again[0]) / (n_rows + again[1]):.2f} times if all rows cost the same; "
          f"{moved.metrics['tier_blocks_in']} blocks came back, steps waited "
          f"{moved.metrics['ranks'][0]['tier']['wait_s']:.2f} s")


def ask(a, name, document, n, answer, flags):
    """n questions on a document, in a job of its own."""
    draw = random.Random(n)
    write_lines(a.work / "in.jsonl", [document + tokens(draw, 8) for _ in range(n)], answer)
    context = max(CONTEXT, len(document) + 256)  # the store keeps apart what was computed for another longest context
    return Job(a, name, [*flags, "--max-model-len", context, "--max-batch", n])


def store(a):
    document = tokens(random.Random(a.seed), a.document)
    shutil.rmtree(a.work / "store", ignore_errors=True)
    flags = ["--prefix-store", f"{a.work / 'store'}:16G"]
    first = ask(a, "first", document, 2, 4, flags)
    second = ask(a, "second", document, 2, 4, flags)
    alone = ask(a, "alone", document[:1], 2, 4, [])
    same(first, second)
    # the later one of two questions, which may have to wait for the other
    began = [job.metrics["latency_s"]["ttft"]["max"] for job in (first, second, alone)]
    print(f"store, a document of {a.document} tokens: first answer after {began[0]:.2f} s, in the second job after "
          f"{began[1]:.3f} s: {began[1] / began[0]:.3f} (0.10); without a document after {began[2]:.3f} s; "
          f"{second.metrics['store_tokens']} tokens from the store")


def shared(a):
    document, flags = tokens(random.Random(a.seed), a.document), ["--prefix-store", f"{a.work / 'store'}:16G"]
    steps = []
    for n in (1024, a.document):
        for _ in range(2):  # at the latest the second job finds the document in the store
            job = ask(a, f"shared{n}", document[:n], a.questions, a.answer, flags)
            if job.metrics["store_tokens"] >= a.questions * (n // 64 - 1) * 64:
                break
        steps.append(job.metrics["latency_s"]["tpot"]["p50"])
    print(f"shared, {a.questions} questions {' '.join(a.flags)}: a decoding step takes {1e3 * steps[0]:.0f} ms behind 1,024 shared "
          f"tokens, {1e3 * steps[1]:.0f} ms behind {a.document}: {steps[1] / steps[0]:.2f} (1.15)")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["stream", "peer", "tier", "store", "shared"])
    p.add_argument("--shoal", default="build/release/shoal")
    p.add_argument("--model", type=pathlib.Path, required=True)
    p.add_argument("--work", type=pathlib.Path, required=True)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--sequences", type=int, default=64)
    p.add_argument("--questions", type=int, default=64)
    p.add_argument("--rows", type=int, default=256)
    p.add_argument("--prompt", type=int, default=64)
    p.add_argument("--answer", type=int, default=8)
    p.add_argument("--document", type=int, default=16000)
    p.add_argument("--memory", default="1G")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--gguf", type=pathlib.Path, help="the same weights for llama.cpp")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--peer-sequences", type=lambda s: [int(n) for n in s.split(",")], default=[8, 64, 256])
    p.add_argument("--flags", type=shlex.split, default=[])
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    {"stream": stream, "peer": peer, "tier": tier, "store": store, "shared": shared}[a.what](a)


if __name__ == "__main__":
    sys.exit(main())
