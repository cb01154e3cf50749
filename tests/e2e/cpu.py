#!/usr/bin/env python3
"""The instruction sets that tests may expect on this machine: those of /proc/cpuinfo minus those
that SHOAL_CPU hides.

usage: cpu.py FEATURE    status 0: the feature (a name of /proc/cpuinfo) can be used; 1: it cannot
Imported by the drivers in this folder and run by tests/run.sh. It does not share code with
kernels/cpu.c on purpose.
"""
import ctypes
import os
import sys
from pathlib import Path

SETS = ["ref", "avx2", "avx512", "amx"]  # a CPU that has a set has all sets before it
# The features that a set needs beyond those of the sets before it.
NEEDS = {"ref": [], "avx2": ["avx2", "fma", "f16c"],
         "avx512": ["avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"],
         "amx": ["amx_tile", "amx_int8"]}
REQ_XCOMP_PERM, TILE_DATA = 0x1023, 18


def tiles_are_allowed():
    """Whether the system lets processes use AMX tiles; not every system that knows AMX does."""
    return ctypes.CDLL(None).syscall(158, REQ_XCOMP_PERM, TILE_DATA) == 0  # arch_prctl


def is_hidden(feature, view):
    """Whether the view (the name of a set, or empty) hides a feature that belongs to a better set."""
    better = SETS[SETS.index(view) + 1:] if view else []
    return any(feature in NEEDS[name] or feature.startswith(name) for name in better)


def features(cpuinfo=None, view=None):
    """The features that tests may use: of this machine, or of the two texts given instead."""
    if cpuinfo is None:
        cpuinfo, view = Path("/proc/cpuinfo").read_text(), os.environ.get("SHOAL_CPU")
    words = next((line.split() for line in cpuinfo.splitlines() if line.startswith("flags")), [])
    return {word for word in words if not is_hidden(word, view)}


def sets(seen=None, allowed=tiles_are_allowed):
    """The kernel sets that can run with the features `seen` (default: this machine's), best last."""
    seen = features() if seen is None else seen
    there = []
    for name in SETS:
        if not seen.issuperset(NEEDS[name]) or (name == "amx" and not allowed()):
            break
        there.append(name)
    return there


def stand_in(asked, there):
    """The set that runs in place of `asked`: `asked` itself, or the best set below it in `there`."""
    return max((name for name in there if SETS.index(name) <= SETS.index(asked)), key=SETS.index)


if __name__ == "__main__":
    sys.exit(0 if sys.argv[1] in features() else 1)
