#!/usr/bin/env python3
"""Which instruction sets tests may expect here: those of /proc/cpuinfo without those that SHOAL_CPU hides.

usage: cpu.py FEATURE    status 0: tests see the feature (a name of /proc/cpuinfo), 1: they do not
Imported by the drivers beside it; tests/run.sh runs it. Independent of kernels/cpu.c on purpose.
"""
import ctypes
import os
import sys
from pathlib import Path

SETS = ["ref", "avx2", "avx512", "amx"]  # a CPU that has one has those before it
# What a set needs besides what the sets before it need.
NEEDS = {"ref": [], "avx2": ["avx2", "fma", "f16c"],
         "avx512": ["avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"],
         "amx": ["amx_tile", "amx_int8"]}
REQ_XCOMP_PERM, TILE_DATA = 0x1023, 18


def tiles_are_allowed():
    """A system may know AMX and not let processes use it."""
    return ctypes.CDLL(None).syscall(158, REQ_XCOMP_PERM, TILE_DATA) == 0  # arch_prctl


def is_hidden(feature, view):
    """Whether the view (a set's name, or nothing) hides a feature, which belongs to a better set."""
    better = SETS[SETS.index(view) + 1:] if view else []
    return any(feature in NEEDS[name] or feature.startswith(name) for name in better)


def features(cpuinfo=None, view=None):
    """The features that tests see, of this machine or of the two texts given instead."""
    if cpuinfo is None:
        cpuinfo, view = Path("/proc/cpuinfo").read_text(), os.environ.get("SHOAL_CPU")
    words = next((line.split() for line in cpuinfo.splitlines() if line.startswith("flags")), [])
    return {word for word in words if not is_hidden(word, view)}


def sets(seen=None, allowed=tiles_are_allowed):
    """The kernel sets that can run with the features `seen` (those of this machine), best last."""
    seen = features() if seen is None else seen
    there = []
    for name in SETS:
        if not seen.issuperset(NEEDS[name]) or (name == "amx" and not allowed()):
            break
        there.append(name)
    return there


def stand_in(asked, there):
    """The set that runs what asks for the set `asked`: itself, or the best of `there` below it."""
    return max((name for name in there if SETS.index(name) <= SETS.index(asked)), key=SETS.index)


if __name__ == "__main__":
    sys.exit(0 if sys.argv[1] in features() else 1)
