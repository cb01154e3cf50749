#!/usr/bin/env python3
"""Fails where an #include breaks the include law of src/README.md, or a file is too long.

usage: check_includes.py [ROOT]; check_includes.py --self-test proves that it can fail.
"""
import re
import sys
import tempfile
from pathlib import Path

# room -> rooms below it; the relation is closed transitively
BELOW = {
    "base": [],
    "tensor": ["base"], "text": ["base"], "plan": ["base"], "parallel": ["base"],
    "quant": ["tensor", "plan", "parallel"],
    "kernels": ["tensor", "plan", "parallel"],
    "checkpoint": ["tensor", "plan", "parallel", "text"],
    "attention": ["quant", "kernels", "checkpoint"],
    "moe": ["quant", "kernels", "checkpoint"],
    "sample": ["quant", "kernels", "checkpoint"],
    "model": ["attention", "moe", "sample"],
    "engine": ["model"],
    "serve": ["engine", "plan", "text", "base"],
    "calibrate": ["engine"],
    "main": ["serve", "calibrate", "text"],
}
# what a room may not see although a room below it may
BARRED = {"serve": {"tensor", "parallel", "quant", "kernels", "checkpoint", "attention", "moe",
                    "sample", "model"}}
# system headers that only these rooms include
OWNED = {"mpi.h": {"parallel", "checkpoint"}, "hdf5.h": {"checkpoint"},
         "hwloc.h": {"parallel", "base"}, "jansson.h": {"base"}}
LINES_MAX = 700
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def visible(room):
    seen, todo = {room}, list(BELOW[room])
    while todo:
        below = todo.pop()
        if below not in seen:
            seen.add(below)
            todo += BELOW[below]
    return seen - BARRED.get(room, set())


def room_of(path, root):
    parts = path.relative_to(root).parts
    if parts[0] == "kernels":
        return "kernels"
    return "main" if len(parts) == 2 else parts[1]


def check_include(path, line, room, kind, target, root):
    where = f"{path.relative_to(root)}:{line}"
    first = target.split("/")[0]
    if kind == "<" or "/" not in target:
        owners = OWNED.get(target.split("/")[-1])
        if owners and room not in owners:
            return [f"{where}: room '{room}' includes {target}; only {sorted(owners)} may"]
        if kind == "<":
            return []
        if (path.parent / target).exists():
            return []
        return [f"{where}: \"{target}\" is no file beside it; include by the path below src/"]
    if first not in BELOW:
        return [f"{where}: \"{target}\" names no room"]
    if first not in visible(room):
        return [f"{where}: room '{room}' may not include room '{first}' (\"{target}\")"]
    base = root if first == "kernels" else root / "src"
    if not (base / target).exists():
        return [f"{where}: \"{target}\" does not exist"]
    return []


def check(root):
    """All violations as sentences, and the number of files read."""
    found, n_files = [], 0
    for folder in ("src", "kernels"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".c", ".h", ".cu", ".inc"):
                continue
            n_files += 1
            room = room_of(path, root)
            text = path.read_text(encoding="utf-8")
            n_lines = text.count("\n")
            if n_lines > LINES_MAX:
                found.append(f"{path.relative_to(root)}: {n_lines} lines; at most {LINES_MAX}")
            if room not in BELOW:
                found.append(f"{path.relative_to(root)}: '{room}' is no room of the law")
                continue
            for match in INCLUDE.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                found += check_include(path, line, room, match[1], match[2], root)
    return found, n_files


BROKEN = {
    "src/base/a.h": '#include "plan/p.h"\n',
    "src/plan/p.h": '#include <mpi.h>\n',
    "src/text/t.h": '#include "plan/p.h"\n',
    "src/serve/s.c": '#include "engine/e.h"\n#include "kernels/k.h"\n#include "model/m.h"\n',
    "src/engine/e.h": '#include "model/m.h"\n',
    "src/model/m.h": '#include "hdf5.h"\n#include "base/gone.h"\n',
    "kernels/k.h": '#include "model/m.h"\n',
    "src/main.c": '#include "serve/s.h"\n' + "\n" * LINES_MAX,
}
BROKEN_COUNT = 10  # sentences that the tree above must give


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        for name, text in BROKEN.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        found, _ = check(Path(folder))
    if len(found) != BROKEN_COUNT:
        print(f"self-test: {len(found)} violations found, {BROKEN_COUNT} expected", *found, sep="\n")
        return 1
    print(f"self-test: all {BROKEN_COUNT} planted violations were found")
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    found, n_files = check(root)
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{n_files} files read, {len(found)} violations")
    return 1 if found or n_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
