#!/usr/bin/env python3
"""How much slower leaves and the integer grid make a whole program.

usage: law_cost.py --shoal SHOAL --model M.h5 --copy COPY.h5 [--pairs N] [--threads N] [--prompt N] [--steps N]
       [--phase prefill|decode]

COPY.h5 becomes the same checkpoint with one leaf over all columns of each row-parallel tensor, so that o_proj and
down are one chain of sums with one rounding at its end: nearly what arithmetic without leaves does. Both
programs stay loaded and take turns (`shoal bench --turns`). Printed is the median over the pairs of
the time with the stored leaves divided by that with one leaf, with its 95 % interval. Needs numpy,
h5py and xxhash.
"""
import argparse
import shutil
import struct
import sys
from pathlib import Path

import h5py
import xxhash

sys.path.insert(0, str(Path(__file__).parent))
from turns import Turns, Worker, interval  # noqa: E402

WHOLE = 128  # a leaf has whole groups and whole heads, whose sizes divide this
FOOTER = 48  # magic[16], entries, end of HDF5's part, hash; src/checkpoint/file/seal.h


def hash_words(data):
    both = xxhash.xxh3_128_intdigest(data)
    return struct.pack("<QQ", both & (1 << 64) - 1, both >> 64)


def one_leaf(source, copy):
    """Writes `copy`: the source with one leaf for each tensor, and a new seal."""
    shutil.copyfile(source, copy)
    with open(copy, "rb") as f:
        f.seek(-FOOTER, 2)
        footer = f.read()
        n_entries, end = struct.unpack_from("<QQ", footer, 16)
        f.seek(end)
        entries = [struct.unpack("<QQQQ", f.read(32))[:2] for _ in range(n_entries)]

    def change(_, node):
        if node.attrs.get("leaf", 0) > 0:
            columns = int(node.attrs["inputs"] if "inputs" in node.attrs else node.shape[-1])
            node.attrs.modify("leaf", -(-columns // WHOLE) * WHOLE)

    with h5py.File(copy, "r+") as f:
        f.visititems(change)
    with open(copy, "r+b") as f:
        f.truncate(end)
        sealed = b""
        for offset, size in entries:
            f.seek(offset)
            sealed += struct.pack("<QQ", offset, size) + hash_words(f.read(size))
        head = footer[:32]
        f.seek(end)
        f.write(sealed + head + hash_words(sealed + head))


def main():
    a = argparse.ArgumentParser()
    for name in ("shoal", "model", "copy"):
        a.add_argument(f"--{name}", required=True, type=Path)
    for name, value in (("pairs", 11), ("threads", 1), ("prompt", 512), ("steps", 16)):
        a.add_argument(f"--{name}", default=value, type=int)
    a.add_argument("--phase", choices=("prefill", "decode"), help="one alone")
    o = a.parse_args()
    if not o.copy.exists():
        one_leaf(o.model, o.copy)
    work = {"prefill": f"{o.prompt} 1 1", "decode": f"16 {o.steps + 1} 1"}
    turns = Turns({name: Worker([o.shoal, "bench", "--turns", "--quiet", "--model", model, "--threads", o.threads,
                                 "--max-model-len", o.prompt + o.steps + 17])
                   for name, model in (("stored", o.model), ("one leaf", o.copy))}, o.pairs)
    for phase, line in work.items():
        if o.phase not in (None, phase):
            continue
        pairs, _ = turns.compare(line, phase)
        middle, low, high = interval([1 / p["ratio"] for p in pairs])
        n_bad = sum(p["disturbed"] for p in pairs)
        print(f"{o.model.stem} {phase}: {middle:.3f} ({low:.3f} .. {high:.3f}), {o.pairs} pairs, {n_bad} disturbed",
              flush=True)
    turns.close()


if __name__ == "__main__":
    main()
