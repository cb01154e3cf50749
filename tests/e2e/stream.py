#!/usr/bin/env python3
"""Tests experts that stream from disk (--weights stream): the output has the same bytes as with all
weights in memory, in any layout and with memory for a few experts; failed reads and packed copies
that do not fit end the job as docs/streaming.md says; and a job stays inside a memory limit that
its model exceeds four times.

usage: stream.py SHOAL WORK_FOLDER same|faults|limit
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from program import GOLDENS, HANGS_S, REPO, SKIPPED, Shoal, expect, fresh_folder, hash_rows, main_of, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
# experts that are plain, quantized in each kind, with biases, and beside shared ones
MODELS = {"demo": None, "demo-int8": "int8", "demo-int4": "int4-asym-g32", "mixtral": None,
          "gpt-oss-mxfp4": None, "gpt-oss": None, "deepseek-v3-fp8": None, "qwen3-moe-mixed": None}
# flags, ranks
LAYOUTS = {"1": ([], 0), "ep2": (["--ep", "2"], 2), "tp2-ep1": (["--tp", "2", "--ep", "1"], 2),
           "pp2": (["--pp", "2"], 2), "dp2": (["--dp", "2"], 2), "ep4": (["--ep", "4"], 4),
           "dp2-tp2-ep2": (["--dp", "2", "--tp", "2", "--ep", "2"], 4)}
LEAST = ["--expert-memory", "1"]  # four experts


class Case:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), Path(work)
        fresh_folder(self.work)

    def model(self, name):
        path = self.work / f"{name}.h5"
        if path.exists():
            return path
        source = name.split("-int")[0]
        if MODELS.get(name):
            self.shoal.must("quantize", self.model(source), path, "--format", MODELS[name], "--quiet")
        elif name == "demo":
            shutil.copy(DEMO, path)
        else:
            self.shoal.must("convert", GOLDENS / name / "hf", path)
        return path

    def lines(self, n, n_tokens=10):
        draw = random.Random(n)
        path = self.work / f"in{n}.jsonl"
        write_lines(path, [{"custom_id": f"r{i}", "max_tokens": n_tokens, "temperature": 0.8 * (i % 2),
                            "prompt_token_ids": [draw.randrange(3, 250) for _ in range(3 + 5 * i % 70)]}
                           for i in range(n)])
        return path

    def job(self, model, n_lines):
        return ["--model", model, "--input", self.lines(n_lines), "--output",
                self.work / "out.jsonl", "--seed", 3, "--max-model-len", 128]

    def run(self, model, flags, ranks=0, n_lines=12, **how):
        """Runs a job; returns how it ended, its hash and its metrics."""
        output, metrics = self.work / "out.jsonl", self.work / "metrics.json"
        for path in (output, metrics):
            path.unlink(missing_ok=True)
        done = self.shoal("generate", *self.job(model, n_lines), "--metrics", metrics, *flags,
                          ranks=ranks, **how)
        found = json.loads(metrics.read_text()) if metrics.exists() else None
        return done, hash_rows(output) if done.status == 0 else None, found


def same(case):
    """Every model in every layout, with memory for four experts of a rank."""
    for name in MODELS:
        model = case.model(name)
        done, want, metrics = case.run(model, [])
        expect(done.status == 0 and metrics["weights"] == "resident", str(done))
        for layout, (flags, ranks) in LAYOUTS.items():
            done, found, metrics = case.run(
                model, [*flags, "--weights", "stream", *LEAST, "--threads", "1"], ranks)
            expect(done.status == 0, f"{name}, {layout}: {done}")
            expect(found == want, f"{name}, {layout}: other bytes")
            expect(metrics["weights"] == "stream", str(metrics["weights"]))
            check_reads(f"{name}, {layout}", metrics)
        packed_once(case, model)


def check_reads(what, metrics):
    """Experts were dropped and read again, unless the ranks' memories hold all of them."""
    layers = [layer for layer in metrics["expert_load"] if layer]
    layout, experts = metrics["layout"], [rank["experts"] for rank in metrics["ranks"]]
    n_parts = len(layers) * len(layers[0]) * layout["etp"] * layout["expert_replicas"]
    n_reads = sum(e["disk_reads"] for e in experts)
    expect(sum(e["passes"] for e in experts) > 0 and n_reads > 0, f"{what}: {experts}")
    if n_parts > 2 * 4 * len(experts):
        expect(n_reads > n_parts, f"{what}: {n_reads} reads of {n_parts} parts of experts")


def packed_once(case, model):
    """A later job does not make the packed copy again, and shoal pack makes the same file."""
    copy = model.with_name(model.name + ".experts")
    before = copy.stat().st_mtime_ns
    done, _, _ = case.run(model, ["--weights", "stream"])
    expect(done.status == 0 and copy.stat().st_mtime_ns == before, f"packed again: {done}")
    other = case.work / "other.experts"
    case.shoal.must("pack", model, "--output", other)
    expect(other.read_bytes() == copy.read_bytes(), f"{model}: shoal pack made another file")
    other.unlink()


def auto(case):
    """--memory alone decides, and a bound that is too small names what is needed."""
    model = case.model("demo")
    _, want, _ = case.run(model, [])
    done, found, metrics = case.run(model, ["--memory", "1G"])
    expect(found == want and metrics["weights"] == "resident", str(done))
    done, _, _ = case.run(model, ["--memory", "10M"])
    expect(done.status == 2 and "a rank needs at least" in done.err and "mpirun" not in done.err, str(done))
    needed = int(done.err.split("needs at least ")[1].split()[0])
    done, found, metrics = case.run(model, ["--memory", f"{needed + 1}M", "--weights", "stream"])
    expect(found == want, f"{needed} MiB are not enough: {done}")
    expect(metrics["ranks"][0]["peak_bytes"] <= (needed + 1) << 20, str(metrics["ranks"]))
    plan = case.shoal.must("plan", "--model", model, "--memory", f"{needed + 20}M", "--weights",
                           "stream", "--disk", "3", "--max-model-len", "128").out
    expect("on disk" in plan and "Streaming" in plan and "at 3.00 GB/s" in plan, plan)
    done = case.shoal("plan", "--model", model, "--memory", "10M")
    expect(done.status == 2 and "--memory" in done.err and "streamed experts" in done.out, str(done))
    case.shoal.must("convert", GOLDENS / "llama-gqa" / "hf", case.work / "llama.h5")
    done, _, _ = case.run(case.work / "llama.h5", ["--weights", "stream"])
    expect(done.status == 2 and "has none" in done.err, str(done))
    done, _, _ = case.run(case.model("deepseek-v3-fp8"),
                          ["--weights", "stream", "--fp8-activations", "int8"])
    expect(done.status == 2 and "expected --weights resident" in done.err, str(done))


def faults(case):
    model = case.model("demo-int8")
    copy = model.with_name(model.name + ".experts")
    stream = ["--weights", "stream", *LEAST]
    _, want, _ = case.run(model, stream)
    whole = copy.read_bytes()
    for bad, word in ((whole[:-4096], "was cut"), (b"x" + whole[1:], "left alone"),
                      (whole[:30] + b"\xff" + whole[31:], "checksum"), (b"", "cut")):
        copy.write_bytes(bad)
        done, _, _ = case.run(model, stream)
        expect(done.status == 3 and word in done.err, f"expected \"{word}\": {done}")
    other = case.model("demo")
    copy.write_bytes(whole)
    done, _, _ = case.run(other, [*stream, "--expert-file", copy])
    expect(done.status == 3 and "another checkpoint" in done.err, str(done))
    broken = bytearray(whole)
    for at in range(len(whole) // 2, len(whole), 4096):
        broken[at] ^= 1  # so many bytes that an expert in use is damaged
    copy.write_bytes(broken)
    done, _, _ = case.run(model, stream)
    expect(done.status == 76 and "does not match its checksum" in done.err, str(done))
    copy.write_bytes(whole)
    resumed(case, model, stream, want)


def resumed(case, model, stream, want):
    """A job that loses its disk leaves a journal from which the same command goes on, on one rank
    and on two.
    """
    journal = case.work / "out.jsonl.journal"
    for flags, ranks in (([], 0), (["--ep", "2"], 2)):
        n_lost = 0
        for n in (30, 90, 200):
            done, _, _ = case.run(model, [*stream, *flags, "--failpoint", f"expert_read:{n}:EIO"],
                                  ranks, journal=True)
            n_lost += done.status == 76
            expect(done.status in (0, 76), str(done))
            expect(done.status == 0 or "Input/output error" in done.err, str(done))
            finish(case, model, [*stream, *flags], ranks, want)
            journal.unlink(missing_ok=True)
        expect(n_lost >= 2, f"{n_lost} of 3 jobs met the fault")
    cut_while_streaming(case, model, stream)


def stopped_after_a_row(case, argv):
    """A job on one rank that is stopped after its first row, long before its last one."""
    output = case.work / "out.jsonl"
    for _ in range(5):
        for path in (output, output.with_name("out.jsonl.journal")):
            path.unlink(missing_ok=True)
        job = subprocess.Popen([case.shoal.path, *map(str, argv)], stderr=subprocess.PIPE, text=True)
        while job.poll() is None and not (output.exists() and output.stat().st_size > 0):
            time.sleep(0.002)
        job.send_signal(signal.SIGSTOP)
        if output.read_bytes().count(b"\n") < 40:
            return job
        job.kill()  # this process got no CPU until the job was nearly over
        job.communicate()
    return expect(False, "five jobs were nearly over before they were stopped")


def cut_while_streaming(case, model, stream):
    """The copy gets shorter after the job's first row: the job ends, and resumes with a new copy."""
    copy, output = model.with_name(model.name + ".experts"), case.work / "out.jsonl"
    _, want, _ = case.run(model, stream, n_lines=80)
    output.unlink()
    job = stopped_after_a_row(case, ["generate", *case.job(model, 80), *stream, "--max-batch", "1"])
    os.truncate(copy, copy.stat().st_size // 4)
    job.send_signal(signal.SIGCONT)
    err = job.communicate(timeout=HANGS_S)[1]
    expect(job.returncode == 76 and "was cut" in err, f"status {job.returncode}: {err}")
    done = case.shoal("generate", *case.job(model, 80), *stream, journal=True)
    expect(done.status == 3 and "was cut" in done.err, str(done))
    copy.unlink()
    finish(case, model, stream, 0, want, 80)


def finish(case, model, flags, ranks, want, n_lines=12):
    """The same command ends the job, with the same bytes."""
    done = case.shoal("generate", *case.job(model, n_lines), *flags, ranks=ranks, journal=True)
    expect(done.status == 0, str(done))
    expect(hash_rows(case.work / "out.jsonl") == want, "other bytes after a fault")


MIB = 1 << 20
LIMIT = 100 * MIB  # of the group, for each rank
BOUND = LIMIT * 8 // 10  # --memory: the launcher and the system's file cache need the rest
# its experts take 4 times the limit: 3 layers of 96, each 3 matrices of 512 x 512 in bf16
BIG = dict(hidden_size=512, moe_intermediate_size=512, num_local_experts=96, num_experts_per_tok=4,
           num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
           vocab_size=512, intermediate_size=512)


def small_values(n, draw):
    """n bf16 numbers of both signs, with magnitudes from 2^-9 to 2^-5."""
    high = bytes((0x3b, 0x3c, 0xbb, 0xbc)[i % 4] for i in range(256))
    values = bytearray(draw.randbytes(2 * n))
    values[1::2] = values[1::2].translate(high)
    return bytes(values)


def big_tensors():
    d, f, hd = BIG["hidden_size"], BIG["moe_intermediate_size"], BIG["head_dim"]
    q, kv = BIG["num_attention_heads"] * hd, BIG["num_key_value_heads"] * hd
    yield "model.embed_tokens.weight", [BIG["vocab_size"], d]
    for i in range(BIG["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{p}{name}.weight", [d]
        for name, shape in (("q", [q, d]), ("k", [kv, d]), ("v", [kv, d]), ("o", [d, q])):
            yield f"{p}self_attn.{name}_proj.weight", shape
        for name in ("q", "k"):
            yield f"{p}self_attn.{name}_norm.weight", [hd]
        yield f"{p}mlp.gate.weight", [BIG["num_local_experts"], d]
        for e in range(BIG["num_local_experts"]):
            for name, shape in (("gate", [f, d]), ("up", [f, d]), ("down", [d, f])):
                yield f"{p}mlp.experts.{e}.{name}_proj.weight", shape
    yield "model.norm.weight", [d]
    yield "lm_head.weight", [BIG["vocab_size"], d]


def write_big(folder):
    """A Hugging Face folder with random weights."""
    config = json.loads((GOLDENS / "qwen3-moe" / "hf" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **BIG, "dtype": "bfloat16"}))
    header, at = {}, 0
    for name, shape in big_tensors():
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * n]}
        at += 2 * n
    text = json.dumps(header).encode()
    draw = random.Random(11)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, t in header.items():
            begin, end = t["data_offsets"]
            out.write(small_values((end - begin) // 2, draw))


class Cgroup:
    """A control group of the memory controller (version 1 or 2) below the one that is mounted."""

    def __init__(self, n_bytes):
        name = f"shoal-stream-{os.getpid()}"
        v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        self.is_v1 = (v1 / "memory.limit_in_bytes").exists()
        self.path = (v1 if self.is_v1 else v2) / name
        self.path.mkdir()
        limits = (["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] if self.is_v1
                  else ["memory.max"])
        try:
            for limit in limits:
                if limit in limits[:1] or (self.path / limit).exists():
                    (self.path / limit).write_text(str(n_bytes))
        except OSError:
            self.path.rmdir()
            raise

    def peak(self):
        name = "memory.max_usage_in_bytes" if self.is_v1 else "memory.peak"
        path = self.path / name
        return int(path.read_text()) if path.exists() else 0

    def kills(self):
        words = (self.path / ("memory.oom_control" if self.is_v1 else "memory.events")).read_text()
        return sum(int(line.split()[1]) for line in words.splitlines() if line.startswith("oom_kill "))

    def remove(self):
        self.path.rmdir()


def limit(case):
    """A model of four times the limit runs inside it, on 1, 2 and 4 ranks, packing included."""
    try:
        Cgroup(LIMIT).remove()
    except OSError as error:
        print(f"skipped: no control group with a memory limit can be made here: {error}")
        return SKIPPED
    folder = fresh_folder(case.work / "hf")
    write_big(folder)
    model = case.work / "big.h5"
    case.shoal.must("convert", folder, model, "--quiet")
    shutil.rmtree(folder)
    expect(model.stat().st_size > 4 * LIMIT, f"{model.stat().st_size} bytes")
    flags = ["--weights", "resident", "--threads", "1", "--step-tokens", "256"]
    done, want, _ = case.run(model, flags, n_lines=24)
    expect(done.status == 0, str(done))
    for ranks in (1, 2, 4):
        ended_inside(case, model, ranks, want)
    (case.work / "big.h5").unlink()
    return 0


def ended_inside(case, model, ranks, want):
    """Each rank has its own bound; the group holds all of them and what the cache takes."""
    group = Cgroup(LIMIT * ranks)
    inner = case.work / "limited.sh"
    inner.write_text(f"#!/bin/sh\necho $$ > {group.path}/cgroup.procs\nexec \"$@\"\n")
    inner.chmod(0o755)
    output, metrics = case.work / "out.jsonl", case.work / "limited.json"
    output.unlink(missing_ok=True)
    launcher = [REPO / "tests" / "mpirun.sh", str(ranks)] if ranks > 1 else []
    env = {**os.environ, "TMPDIR": str(fresh_folder(case.work / "tmp"))}
    argv = [*launcher, inner, case.shoal.path, "generate", *case.job(model, 24), "--no-journal",
            "--memory", BOUND, "--threads", 1, "--metrics", metrics]
    done = subprocess.run([str(a) for a in argv], env=env, text=True, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, timeout=HANGS_S, check=False)
    n_kills, peak = group.kills(), group.peak()
    group.remove()
    expect(done.returncode == 0 and n_kills == 0, f"{ranks} ranks, {n_kills} kills: {done.stderr}")
    expect(hash_rows(output) == want, f"{ranks} ranks: other bytes")
    found = json.loads(metrics.read_text())
    expect(found["weights"] == "stream", "the experts did not stream")
    # Pages that ranks share count in each rank's peak_bytes, but once in the group.
    expect(peak <= BOUND * ranks, f"{ranks} ranks: {peak} bytes")
    expect(ranks > 1 or found["ranks"][0]["peak_bytes"] <= BOUND, str(found["ranks"]))
    print(f"{ranks} ranks: at most {peak / MIB:.0f} of {LIMIT * ranks / MIB:.0f} MiB, a rank "
          f"{max(r['peak_bytes'] for r in found['ranks']) / MIB:.0f} MiB")


def main(shoal, work, which):
    case = Case(shoal, work)
    if which == "same":
        same(case)
        return auto(case)
    return {"faults": faults, "limit": limit}[which](case)


if __name__ == "__main__":
    main_of(lambda: main(*sys.argv[1:4]))
