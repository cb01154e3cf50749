#!/usr/bin/env python3
"""Tests that the example of docs/tour.md calls every function that the page names.

usage: tour.py SHOAL GCOV OBJECTS WORK_FOLDER; tour.py --skip REASON; tour.py --self-test proves that it can fail.
SHOAL is a program in which the files that the page names were compiled with --coverage (see
CMakeLists.txt beside this file). OBJECTS is the folder of their objects, where a run leaves its
counts. The test runs the page's own command, with this program and files of WORK_FOLDER, over
prompts of the demo; the page's request is line 7 of them.
"""
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from program import REPO, SKIPPED, Shoal, expect, fresh_folder, main_of, read_rows, write_lines

PAGE = REPO / "docs" / "tour.md"
STOP = re.compile(r"^`([^`]+\.c)`: (`.*`)", re.MULTILINE)
REQUEST = re.compile(r"^\{\"custom_id\".*\}$", re.MULTILINE)
COMMAND = re.compile(r"^(\S+=\S+ )*mpirun -n (\d+) (?:\S+/)?shoal (.*)$", re.MULTILINE)
LINE = 7  # the request's line
N_LINES, N_TOKENS = 12, 8  # lines of the input; tokens of each answer but the request's


def named(page):
    """(file, function) of each function that the page names, in its order."""
    return [(name, function) for name, functions in STOP.findall(page)
            for function in re.findall(r"`(\w+)`", functions)]


def body_lines(source, function):
    """The line numbers of a function's body; none if the file does not define it."""
    lines = source.splitlines()
    start = re.compile(rf"\S.*\b{function}\(")
    for first, line in enumerate(lines, 1):
        if start.match(line) and "{" in lines[first - 1:first + 4]:
            return range(first + 1, lines.index("}", first) + 1)
    return range(0)


def times(name, function, calls):
    """How often a function was called; for an always-inlined function, how often its lines ran.
    None: unknown.
    """
    if (name, function) in calls:
        return calls[name, function]
    path = REPO / name
    counts = [calls[name, line] for line in body_lines(path.read_text() if path.exists() else "", function)
              if (name, line) in calls]
    return max(counts, default=None)


def uncalled(page, calls):
    """Sentences about functions that the page names but the run did not call. calls: {(file,
    function or line): times}.
    """
    for name, function in named(page):
        n = times(name, function, calls)
        if not n:
            yield f"{name}: {function} " + ("was not called" if n == 0 else "is not there, or was not counted")


def add_counts(report, calls):
    """Adds a gcov report's counts of functions and lines. Clones of a function (name.clone) count
    as the function.
    """
    for source in report["files"]:
        path = (Path(report["current_working_directory"]) / source["file"]).resolve()
        name = str(path.relative_to(REPO) if path.is_relative_to(REPO) else path)
        for function in source["functions"]:
            key = (name, function["name"].split(".")[0])
            calls[key] = calls.get(key, 0) + function["execution_count"]
        for line in source["lines"]:
            key = (name, line["line_number"])
            calls[key] = calls.get(key, 0) + line["count"]


def count_calls(gcov, objects):
    calls = {}
    for notes in sorted(objects.rglob("*.gcno")):
        done = subprocess.run([gcov, "--json-format", "--stdout", notes], cwd=REPO, text=True,
                              capture_output=True, timeout=600, check=True)
        for line in done.stdout.splitlines():
            add_counts(json.loads(line), calls)
    return calls


class Tour:
    def __init__(self, shoal, gcov, objects, work):
        self.shoal, self.gcov, self.objects = Shoal(shoal), gcov, Path(objects)
        self.work = fresh_folder(work)

    def run_example(self, page):
        request, command = REQUEST.search(page), COMMAND.search(page)
        expect(request and command, "docs/tour.md: no request, or no command that begins with mpirun -n")
        prompts = (REPO / "models" / "demo" / "prompts.jsonl").read_text().splitlines()
        lines = [dict(json.loads(line), max_tokens=N_TOKENS) for line in prompts[:N_LINES - 1]]
        lines.insert(LINE - 1, json.loads(request.group()))
        write_lines(self.work / "in.jsonl", lines)
        paths = {name: self.work / name for name in ("in.jsonl", "out.jsonl")}
        args = [paths.get(arg, arg) for arg in shlex.split(command.group(3))]
        args = [REPO / arg if str(arg).startswith("models/") else arg for arg in args]
        env = dict(pair.split("=", 1) for pair in (command.group(1) or "").split())
        self.shoal.must(*args, ranks=int(command.group(2)), env=env, journal=True)
        row = read_rows(paths["out.jsonl"])[json.loads(request.group())["custom_id"]]
        expect("error" not in row, f"the request of docs/tour.md ends in an error: {row}")

    def main(self):
        for counts in self.objects.rglob("*.gcda"):
            counts.unlink()
        page = PAGE.read_text()
        self.run_example(page)
        found = list(uncalled(page, count_calls(self.gcov, self.objects)))
        expect(not found, "docs/tour.md names functions that its run does not call:\n  " +
               "\n  ".join(found))
        print(f"{len(named(page))} functions were called")


def self_test():
    page = "`src/a.c`: `here`, `there`  \n`src/b.c`: `here`\n\nIn words: `src/c.c`, `gone`.\n"
    functions = [dict(name="here", execution_count=0), dict(name="here.clone", execution_count=2),
                 dict(name="there", execution_count=1)]
    report = dict(current_working_directory=str(REPO / "build" / "x"),
                  files=[dict(file="../../src/a.c", functions=functions, lines=[])])
    calls = {}
    add_counts(report, calls)
    assert list(uncalled(page, calls)) == ["src/b.c: here is not there, or was not counted"]
    calls["src/b.c", "here"] = 0
    assert list(uncalled(page, calls)) == ["src/b.c: here was not called"]
    calls["src/b.c", "here"] = 1
    assert not list(uncalled(page, calls))
    source = "static int first(void)\n{\n    return second();\n}\n\nint second(void)\n{\n    x();\n}\n"
    assert list(body_lines(source, "second")) == [7, 8] and not body_lines(source, "x")
    text = PAGE.read_text()
    assert named(text) and REQUEST.search(text) and COMMAND.search(text)
    return 0


def skip():
    print(f"skipped: {sys.argv[2]}")
    return SKIPPED


if __name__ == "__main__":
    if sys.argv[1:2] == ["--skip"]:
        main_of(skip)
    main_of(self_test if sys.argv[1:] == ["--self-test"] else Tour(*sys.argv[1:]).main)
