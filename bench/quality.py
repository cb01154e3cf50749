#!/usr/bin/env python3
"""What quantizing costs: size, perplexity and divergence of every format and method, as a Markdown table.

usage: quality.py --shoal SHOAL --model M.h5 --text TEXT --work FOLDER [--only WORD,...] [--activations T]
       [--prompts N] [--excerpts N]

TEXT is cut at blank lines: its last tenth is scored in prompts of up to 700 characters (the first N), 128
excerpts (N) of 900 characters spread over the rest are the calibration. Perplexity is shoal's. KL is the mean over
the scored positions of KL(source || quantized) in nats over the whole vocabulary, from `score --logits`, with its
standard error. fp8-tensor and fp8-block128 are rounded here and imported: they have one scale for a
matrix, or for each 128 x 128 of it; embedding, head and router stay as they were. "KL by rtn" is
the mean KL divided by that of rounding to nearest in the same format, and the share of positions
where it is smaller. "output error" is reported by the calibrated methods: the squared error that
rounding adds to the linears' outputs, divided by the outputs' sum of squares. Needs numpy and h5py.
"""
import argparse
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np

PROMPT_CHARACTERS, EXCERPT_CHARACTERS = 700, 900
INTS = [f"{kind}{asym}{group}" for kind in ("int8", "int4") for asym in ("", "-asym")
        for group in ("", "-g32", "-g64", "-g128") if kind == "int8" or group]
FORMATS = ["f16", *INTS, "fp8", "fp8-g32", "fp8-g128", "mxfp4"]
CALIBRATED = {"gptq": ["--method", "gptq"], "gptq, plain order": ["--method", "gptq", "--no-act-order"],
              "awq": ["--method", "awq"]}


IMPORTED = {"fp8-tensor": None, "fp8-block128": 128}  # how many rows and columns share a scale; None: the whole matrix
E4M3_MAX = 448


def rows():
    """(format, method, flags)"""
    for form in FORMATS:
        yield form, "rtn", []
        if form.startswith("int4") or form == "mxfp4":
            yield from ((form, method, flags) for method, flags in CALIBRATED.items())
        elif form in ("int8", "int8-asym"):
            yield form, "gptq", ["--method", "gptq"]
            yield form, "smoothquant", ["--method", "smoothquant"]
    yield from ((form, "rtn, imported", []) for form in IMPORTED)


def pieces(text, limit):
    """Joins consecutive paragraphs to pieces of up to `limit` characters."""
    run = ""
    for paragraph in text.split("\n\n"):
        if run and len(run) + len(paragraph) > limit:
            yield run[:limit]
            run = ""
        run += ("\n\n" if run else "") + paragraph
    yield run[:limit]


def write_lines(path, prompts):
    path.write_text("".join(json.dumps(dict(custom_id=str(i), prompt=p)) + "\n" for i, p in enumerate(prompts)))


def prepare(o):
    text = o.text.read_text()
    cut = text.index("\n\n", len(text) * 9 // 10)
    write_lines(o.work / "held-out.jsonl", list(pieces(text[cut:].strip(), PROMPT_CHARACTERS))[:o.prompts])
    step = (cut - EXCERPT_CHARACTERS) // o.excerpts
    write_lines(o.work / "calibration.jsonl",
                [text[i * step:i * step + EXCERPT_CHARACTERS] for i in range(o.excerpts)])


def run(*argv):
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{argv}: {done.stderr}")
    return done.stdout + done.stderr


def score(o, model, logits):
    """Scores the text and returns its perplexity; writes all logits to a file."""
    found = run(o.shoal, "score", "--model", model, "--input", o.work / "held-out.jsonl", "--output",
                o.work / "rows.jsonl", "--logits", logits, "--activations", o.activations, "--no-journal", "--restart")
    return float(re.search(r"perplexity: ([0-9.]+)", found).group(1))


def log_probabilities(logits):
    x = logits[:].astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def divergences(p_file, q_file):
    """KL(p || q) at each position of all prompts."""
    found = []
    with h5py.File(p_file) as p_all, h5py.File(q_file) as q_all:
        for key in sorted(p_all, key=int):
            p, q = log_probabilities(p_all[key]), log_probabilities(q_all[key])
            found.append((np.exp(p) * (p - q)).sum(axis=1))
    return np.concatenate(found)


def e4m3_values():
    """The values of codes 0 to 126."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0 ** -9)


def e4m3(x):
    """The codes of the nearest values; of two equally near ones the even code."""
    values = e4m3_values()
    size = np.minimum(np.abs(x), E4M3_MAX)
    above = np.searchsorted(values, size).clip(1, 126)
    low, high = size - values[above - 1], values[above] - size
    code = np.where((high < low) | ((high == low) & (above % 2 == 0)), above, above - 1)
    return (code + 128 * np.signbit(x)).astype(np.uint8)


def fp8_tensors(name, weight, block):
    """One matrix as codes, and scales for blocks of block x block."""
    n_rows, n_cols = weight.shape
    row, col = (block or n_rows), (block or n_cols)
    starts = [np.arange(0, n_rows, row), np.arange(0, n_cols, col)]
    most = np.maximum.reduceat(np.maximum.reduceat(np.abs(weight), starts[0], 0), starts[1], 1)
    scales = np.where(most > 0, most / E4M3_MAX, 1).astype(np.float32)
    wide = np.repeat(np.repeat(scales, row, 0)[:n_rows], col, 1)[:, :n_cols]
    yield f"{name}.weight", "F8_E4M3", e4m3(weight / wide.astype(np.float64))
    yield f"{name}.weight_scale" + ("_inv" if block else ""), "F32", scales if block else scales[0]


def hf_tensors(model, block):
    """The source's tensors under their Hugging Face names, with the linears in fp8."""
    found = []
    with h5py.File(model) as f:
        f["weights"].visititems(lambda path, o: found.append((path, o[:])) if isinstance(o, h5py.Dataset) else None)
    for path, data in found:
        name = path.removesuffix("/weight").replace("/", ".")
        floats = data.astype(np.float64)
        if not name.endswith("_proj"):
            yield f"{name}.weight", "BF16", (data.view(np.uint32) >> 16).astype(np.uint16)
        elif data.ndim == 2:
            yield from fp8_tensors(name, floats, block)
        else:
            folder, part = name.rsplit(".", 1)
            for e, matrix in enumerate(floats):
                yield from fp8_tensors(f"{folder}.{e}.{part}", matrix, block)


def import_fp8(o, form, made):
    """Writes the source as a Hugging Face folder in fp8 and converts it."""
    folder, block = o.work / "hf", IMPORTED[form]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(o.model.parent / name, folder)
    config = json.loads((o.model.parent / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    if block:
        config["quantization_config"]["weight_block_size"] = [block, block]
    (folder / "config.json").write_text(json.dumps(config))
    header, parts, at = {}, [], 0
    for name, dtype, data in hf_tensors(o.model, block):
        raw = np.ascontiguousarray(data).tobytes()
        header[name] = {"dtype": dtype, "shape": list(data.shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"".join(parts))
    made.unlink(missing_ok=True)
    return run(o.shoal, "convert", folder, made, "--quantized", "keep")


def main():
    a = argparse.ArgumentParser()
    for name in ("shoal", "model", "text", "work"):
        a.add_argument(f"--{name}", required=True, type=Path)
    a.add_argument("--only", default="", help="formats and methods that are one of these words")
    a.add_argument("--activations", default="int8")
    a.add_argument("--prompts", type=int)
    a.add_argument("--excerpts", type=int, default=128)
    o = a.parse_args()
    o.work.mkdir(parents=True, exist_ok=True)
    prepare(o)
    source, found = o.work / "source-logits.h5", o.work / "logits.h5"
    source_perplexity = score(o, o.model, source)
    print("| format | method | file bytes | perplexity | change | KL | KL by rtn | output error |\n"
          "|---|---|--:|--:|--:|--:|--:|--:|")
    print(f"| source | | {o.model.stat().st_size:,} | {source_perplexity:.4f} | | | | |", flush=True)
    rtn = None
    for form, method, flags in rows():
        if o.only and not any(word in (form, method) for word in o.only.split(",")):
            continue
        made = o.work / "quantized.h5"
        given = ["--calibration", o.work / "calibration.jsonl"] if method != "rtn" or form[:3] == "int" else []
        if form in IMPORTED:
            said = import_fp8(o, form, made)
        else:
            said = run(o.shoal, "quantize", o.model, made, "--format", form, *flags, *given, "--quiet")
        perplexity = score(o, made, found)
        kl = divergences(source, found)
        rtn = kl if method == "rtn" else rtn
        against = "" if method.startswith("rtn") else f"{kl.mean() / rtn.mean():.2f} ({(kl < rtn).mean():.0%})"
        error = re.search(r"output error ([0-9.e+-]+)", said)
        print(f"| {form} | {method} | {made.stat().st_size:,} | {perplexity:.4f} | "
              f"{perplexity / source_perplexity - 1:+.3%} | {kl.mean():.2e} ± {kl.std() / math.sqrt(len(kl)):.0e} | "
              f"{against} | {error.group(1) if error else ''} |", flush=True)


if __name__ == "__main__":
    main()
