#!/usr/bin/env python3
"""Tests that law.py chooses the same runs on every machine, and which kernel set runs in place of
one that a CPU lacks.

usage: law_rows.py WORK_FOLDER
"""
import hashlib
import importlib
import os
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import cpu
import law
from program import Failure, expect, fresh_folder, main_of, run

# Machines: their CPU features, and the kernel sets that can run there.
BASIC = "flags : fpu sse sse2 sse4_2"
AVX2 = f"{BASIC} avx avx2 fma f16c"
SKYLAKE = f"{AVX2} avx512f avx512bw avx512vl avx512dq"  # no VNNI
AVX512 = f"{SKYLAKE} avx512_vnni avx512_bf16"
AMX = f"{AVX512} amx_bf16 amx_tile amx_int8"
MACHINES = [(BASIC, ["ref"]), (f"{BASIC} avx2", ["ref"]), (AVX2, ["ref", "avx2"]),
            (SKYLAKE, ["ref", "avx2"]), (AVX512, ["ref", "avx2", "avx512"]), (AMX, cpu.SETS)]
# (set asked for, sets of the machine): the set that runs instead
STAND_INS = {
    ("ref", ("ref", "avx2", "avx512", "amx")): "ref", ("amx", ("ref", "avx2", "avx512", "amx")): "amx",
    ("ref", ("ref",)): "ref", ("avx2", ("ref",)): "ref", ("amx", ("ref",)): "ref",
    ("avx2", ("ref", "avx2")): "avx2", ("avx512", ("ref", "avx2")): "avx2",
    ("amx", ("ref", "avx2")): "avx2", ("amx", ("ref", "avx2", "avx512")): "avx512",
    ("ref", ("ref", "avx2", "avx512")): "ref",
}


def print_rows(sets, n_cores):
    """Prints the runs that law.py chooses on a machine with these kernel sets and this many cores."""
    cpu.sets = lambda: sets
    os.sched_getaffinity = lambda _: set(range(n_cores))
    importlib.reload(law)  # law.py may look at the machine when it is loaded, so load it again with the faked one
    chosen = law.Law(law.parse([sys.executable, sys.argv[1]]))
    expect(chosen.sets == sets and chosen.args.jobs == 2 * n_cores, "the machine is not the faked one")
    print("\n".join(law.name_of(row) for row in chosen.rows()))


def rows_of_machines(work):
    """The rows of the machines with the fewest and with the most sets and of one between them, as text. Two
    processes run at a time, each with its own hash seed.
    """
    names, texts = [",".join(MACHINES[i][1]) for i in (0, 2, 5)], []
    for pair in (names[0::2], names[1::2]):
        started = [subprocess.Popen([sys.executable, __file__, work, sets, str(1 + 7 * i)],
                                    stdout=subprocess.PIPE, text=True,
                                    env={**os.environ, "PYTHONHASHSEED": str(len(sets))})
                   for i, sets in enumerate(pair)]
        texts += [process.communicate()[0] for process in started]
        expect(not any(process.returncode for process in started), f"no rows for {pair}")
    return dict(zip(names[0::2] + names[1::2], texts))


def the_same_rows_everywhere(work):
    found = rows_of_machines(work)
    hashes = {sets: hashlib.sha256(text.encode()).hexdigest() for sets, text in found.items()}
    expect(len(set(hashes.values())) == 1, f"the rows depend on the machine: {hashes}")
    rows = [law.row_of(line) for line in next(iter(found.values())).splitlines()]
    have = {(row["model"], row["kernels"]) for row in rows}
    lacks = set(product({row["model"] for row in rows}, cpu.SETS)) - have
    expect(not lacks, f"models without a run of some set: {sorted(lacks)}")
    have = {(row["layout"], row["kernels"]) for row in rows}
    lacks = set(product(law.LAYOUTS, cpu.SETS)) - have
    expect(not lacks, f"layouts without a run of some set: {sorted(lacks)}")
    have = {(row["model"], row["layout"]) for row in rows}
    lacks = set(product(law.DIMENSIONS["model"], law.LAYOUTS)) - have
    lacks = [pair for pair in lacks if law.HAS_EXPERTS[pair[0]] or "ep" not in pair[1]]
    expect(not lacks, f"models without a run of some layout: {sorted(lacks)}")
    kinds_have_all_pairs(rows)
    print(f"{len(rows)} rows, the same for {', '.join(found)}")


def kinds_have_all_pairs(rows):
    """Checks that each kind of families has every pair of values of the options that go with
    every model, and that each family runs with tp 1 and 2, pp 1 and 2, and dp 2.
    """
    free = ["batch", "chunk", "threads", "kernels", "order", "cache", "schedule", "drafts"]
    values, families = law.FAMILY_DIMENSIONS, [r for r in rows if r["model"] in law.FAMILY_DIMENSIONS["model"]]
    have = {(law.kind_of(r["model"]), a, r[a], b, r[b]) for r in families for a, b in combinations(free, 2)}
    want = {(law.kind_of(model), a, x, b, y) for model in values["model"] for a, b in combinations(free, 2)
            for x in values[a] for y in values[b]}
    expect(want <= have, f"kinds without some pair: {sorted(map(str, want - have))[:3]}")
    have = {(r["model"], part) for r in families for part in law.degrees(r["model"], r["layout"])}
    lacks = {(model, part) for model in values["model"] for part in ("tp=1", "tp=2", "pp=1", "pp=2", "dp=2")} - have
    expect(not lacks, f"families without a run of some degree: {sorted(lacks)}")


def sets_of_machines():
    for text, want in MACHINES:
        found = cpu.sets(cpu.features(text), lambda: True)
        expect(found == want, f"'{text}': {found}, expected {want}")
    refused = cpu.sets(cpu.features(AMX), lambda: False)
    expect(refused == ["ref", "avx2", "avx512"], f"where the system refuses tiles: {refused}")
    for i, view in enumerate(cpu.SETS):
        found = cpu.sets(cpu.features(AMX, view), lambda: True)
        expect(found == cpu.SETS[:i + 1], f"SHOAL_CPU={view}: {found}")
        here = run([sys.executable, cpu.__file__, "avx2"], env={"SHOAL_CPU": view})
        there = "avx2" in cpu.features(Path("/proc/cpuinfo").read_text()) and i > 0
        expect(here.status == (0 if there else 1), f"SHOAL_CPU={view}, avx2: {here}")
    print(f"{len(MACHINES)} machines, and what SHOAL_CPU hides of one")


def stand_ins():
    for (asked, there), want in STAND_INS.items():
        found = cpu.stand_in(asked, list(there))
        expect(found == want, f"{asked} with {there}: {found}, expected {want}")
    print(f"{len(STAND_INS)} sets that others run")


def rows_by_name():
    row = law.pairwise.cover({**law.DIMENSIONS, "model": ["demo"]}, law.allowed, law.DECIDING, law.main_demand())[0]
    expect(law.row_of(law.name_of(row)) == row, f"{row} by its name: {law.row_of(law.name_of(row))}")
    for name in ("model=demo", law.name_of({**row, "kernels": "sse9"}),
                 law.name_of({**row, "model": "dense", "layout": "ep2"})):
        try:
            law.row_of(name)
        except Failure:
            continue
        raise Failure(f"'{name}' was taken for a run")
    print("rows by their names")


def test():
    sets_of_machines()
    stand_ins()
    rows_by_name()
    the_same_rows_everywhere(str(fresh_folder(sys.argv[1])))


if __name__ == "__main__":
    main_of(test if len(sys.argv) == 2 else lambda: print_rows(sys.argv[2].split(","), int(sys.argv[3])))
