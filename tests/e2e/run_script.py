#!/usr/bin/env python3
"""Tests tests/run.sh itself: in its own folder, with a fake cmake that builds nothing and a fake
ctest that prints given failures.

usage: run_script.py WORK_FOLDER
"""
import os
import shutil
import sys

from program import TESTS, expect, fresh_folder, main_of, run

COPIED = ["run.sh", "failures.py", "e2e/cpu.py"]
PHASES = ["asan-ubsan", "tsan", "release", "cuda"]
CTEST = '''#!/usr/bin/env python3
import pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--test-dir") + 1])
fails = (folder / "fails").read_text().split()
log = folder / "Testing" / "Temporary" / "LastTest.log"
log.parent.mkdir(parents=True, exist_ok=True)
log.write_text("".join(f"{i}/9 Testing: {name}\\nCommand: x\\nOutput:\\n{'-' * 58}\\nbefore\\n"
                       f"FAILED: {name} of {folder.name}\\nbehind\\n<end of output>\\n"
                       for i, name in enumerate(fails, 1)))
skips = ["kernels.amx"] if folder.name == "release" else []
for i, name in enumerate(fails + skips, 1):
    print(f" {i}/9 Test  #{i}: {name} .....***{'Failed' if name in fails else 'Skipped'}   0.01 sec")
print(f"\\n{100 - len(fails)}% tests passed, {len(fails)} tests failed out of 100\\n")
print("Total Test time (real) =   0.01 sec\\n")
if fails:
    print("The following tests FAILED:")
    print("\\n".join(f"\\t  {i} - {name} (Failed)" for i, name in enumerate(fails, 1)))
    print("Errors while running CTest", file=sys.stderr)
    sys.exit(8)
'''


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Script:
    def __init__(self, work):
        self.folder = fresh_folder(work)
        for name in COPIED:
            (self.folder / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TESTS / name, self.folder / "tests" / name)
        (self.folder / "tests" / "expected_skips.txt").write_text("kernels.amx never_a_feature\n")
        write_program(self.folder / "jobs" / "install_deps.sh", "#!/bin/sh\necho installs nothing\n")
        write_program(self.folder / "bin" / "cmake", "#!/bin/sh\necho builds nothing\n")
        write_program(self.folder / "bin" / "nvcc", "#!/bin/sh\nexit 0\n")
        write_program(self.folder / "bin" / "ctest", CTEST)
        for phase in PHASES:
            (self.folder / "build" / phase).mkdir(parents=True)
        write_program(self.folder / "build" / "cuda" / "tests" / "cuda" / "open_device",
                      "#!/bin/sh\nexit 77\n")

    def run(self, fails, *flags):
        """Runs tests/run.sh with tests that fail, fails {phase: names}; returns its status and its lines."""
        for phase in PHASES:
            (self.folder / "build" / phase / "fails").write_text("\n".join(fails.get(phase, [])))
        env = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "TESTS_LOG": ""}
        done = run([self.folder / "tests" / "run.sh", *flags], env=env)
        log = (self.folder / "build" / "tests.log").read_text()
        expect(log == done.out and not done.err, f"build/tests.log is not what was printed: {done}")
        return done.status, done.out.splitlines()


def summary_is_last(lines, text):
    at = max(i for i, line in enumerate(lines) if "tests passed" in line)
    expect(lines[at] == text, f"'{text}' expected, found '{lines[at]}'")
    expect(not any(line.startswith("== ") for line in lines[at:]), "something stands behind the summary")
    return at


def without_failures(script):
    status, lines = script.run({})
    expect(status == 0, f"status {status}: {lines}")
    summary_is_last(lines, "100% tests passed, 0 tests failed out of 100")
    expect(not any("first failing line" in line for line in lines), f"failures are named: {lines}")


def each_phase_is_named(script):
    fails = {"asan-ubsan": ["unit.a"], "tsan": ["threads.b"], "cuda": ["cuda.c"],
             "release": ["e2e.d", "mpi2.e"]}
    status, lines = script.run(fails)
    expect(status == 1, f"status {status}: {lines}")
    at = summary_is_last(lines, "98% tests passed, 2 tests failed out of 100")
    first = next(i for i, line in enumerate(lines) if line.startswith("5 tests failed"))
    wanted = {f"  {phase}: {name} (Failed): FAILED: {name} of {phase}"
              for phase, names in fails.items() for name in names}
    expect(set(lines[first + 1:first + 6]) == wanted and first + 6 <= at, f"{lines[first:]}")


def old_logs_do_not_count(script):
    """A phase that is left out is not named for what failed in an earlier run."""
    status, lines = script.run({"asan-ubsan": ["unit.a"]}, "--no-sanitizers")
    expect(status == 0 and not any("unit.a" in line for line in lines), f"status {status}: {lines}")
    status, lines = script.run({"release": ["e2e.d"]}, "--no-sanitizers")
    expect(status == 1 and any(line.startswith("1 tests failed") for line in lines), f"{lines}")


def test():
    script = Script(sys.argv[1])
    without_failures(script)
    each_phase_is_named(script)
    old_logs_do_not_count(script)
    print("run.sh: no failure, one in each phase, phases left out")


if __name__ == "__main__":
    main_of(test)
