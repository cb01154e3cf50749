#!/usr/bin/env python3
"""Weights of goldens that are generated instead of stored. Standard library only.

A golden whose folder has weights.json has no safetensors file. weights.json has a seed, the golden whose tokenizer.json
it uses, groups of tensors, and the SHA-256 of the safetensors file that they give. A group has a stored type, a shape,
a mean, a standard deviation and the names of its tensors. Element i of a tensor is

  mean + (2 u - 255) * (deviation / 147.8)     u: byte i of SHAKE-128("SEED NAME")

in f64, rounded to f32, then to the stored type (to nearest, ties to even): 256 values, nearly a uniform distribution, and
the same bits on every machine. Elements of the type U8 are bytes of four ternary values in two bits each, as BitNet has
them: digit i of u to the base 3 is value i, plus 1. Elements of the type I64 are numbers of experts: a row of K has the
experts (a + b j) mod E for j = 0 to K - 1, with E = deviation, a the row's first byte and b = 1 + its last byte mod
((E - 1) / (K - 1)), so that they differ. The makers (make_goldens.py) and the tests call the same functions.
usage: generated_weights.py GOLDEN FOLDER     writes the checkpoint folder that the golden stands for
"""
import hashlib
import json
import math
import shutil
import struct
import sys
from pathlib import Path

DEVIATION = 147.8  # of 2 u - 255, nearly: 256 / sqrt(3)


def stored_as(dtype, value):
    """The little-endian bytes of a number in a stored type."""
    (word,) = struct.unpack("<I", struct.pack("<f", value))
    if dtype == "F32":
        return struct.pack("<I", word)
    if dtype == "F16":
        return struct.pack("<e", *struct.unpack("<f", struct.pack("<I", word)))
    return struct.pack("<H", word + 0x7FFF + (word >> 16 & 1) >> 16)


def tables_of(group):
    """For each byte of a stored element: its value for each of the 256 draws."""
    if group["dtype"] == "U8":
        return [bytes(sum(u // 3**i % 3 << 2 * i for i in range(4)) for u in range(256))]
    if group["dtype"] == "I64":
        return []
    step = group["deviation"] / DEVIATION
    stored = [stored_as(group["dtype"], group["mean"] + (2 * u - 255) * step) for u in range(256)]
    return [bytes(at) for at in zip(*stored)]


def experts_of(draws, n_chosen, n_experts):
    """The bytes of a table of experts, n_chosen for each row."""
    step_most = max(1, (n_experts - 1) // max(1, n_chosen - 1))
    rows = (draws[at:at + n_chosen] for at in range(0, len(draws), n_chosen))
    return b"".join(struct.pack("<q", (row[0] + (1 + row[-1] % step_most) * j) % n_experts)
                    for row in rows for j in range(n_chosen))


def tensor_of(seed, name, group, tables):
    """The bytes of a tensor."""
    draws = hashlib.shake_128(f"{seed} {name}".encode()).digest(math.prod(group["shape"]))
    if group["dtype"] == "I64":
        return experts_of(draws, group["shape"][-1], group["deviation"])
    data = bytearray(len(draws) * len(tables))
    for at, table in enumerate(tables):
        data[at::len(tables)] = draws.translate(table)
    return data


def safetensors_of(weights):
    """The bytes of the safetensors file that a parsed weights.json describes."""
    header, data, at = {}, [], 0
    for group in weights["groups"]:
        tables = tables_of(group)
        for name in group["names"]:
            data.append(tensor_of(weights["seed"], name, group, tables))
            header[name] = dict(dtype=group["dtype"], shape=group["shape"], data_offsets=[at, at + len(data[-1])])
            at += len(data[-1])
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data)


def write_checkpoint(golden, folder, weights=None):
    """Writes the checkpoint folder of a golden; with `weights`, from these instead of its weights.json.

    Raises ValueError if weights.json gives other bytes than it gave to its maker.
    """
    own = json.loads((golden / "weights.json").read_text())
    data = safetensors_of(weights or own)
    if weights is None and hashlib.sha256(data).hexdigest() != own["sha256"]:
        raise ValueError(f"{golden}/weights.json gives other weights than those of its golden")
    shutil.copytree(golden / "hf", folder)
    if "tokenizer" in own:
        shutil.copyfile(golden.parent / own["tokenizer"] / "hf" / "tokenizer.json", folder / "tokenizer.json")
    (folder / "model.safetensors").write_bytes(data)
    return folder


def checkpoint_of(golden, folder):
    """The checkpoint folder of a golden: its own, or `folder`, written if it is not there."""
    if not (golden / "weights.json").exists():
        return golden / "hf"
    return folder if folder.exists() else write_checkpoint(golden, folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))
