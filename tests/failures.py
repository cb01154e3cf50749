#!/usr/bin/env python3
"""Lists each failed test with the first line of its output that shows the failure.

usage: failures.py FOLDER...    build folders in which ctest ran; FOLDER/tests.log is ctest's output
       failures.py --self-test  tries itself on a small project with tests that end in every way
Prints nothing when no test failed. Only reads logs; tests/run.sh prints the list before ctest's
summary.
"""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LINE_MOST = 300  # characters of a line that are shown
# Lines that show a failure, in order: those of the drivers, of CUnit, of sanitizers, others.
SAYS_SO = re.compile(r"FAILED|^\s*\d+\. .*:\d+\s+- |Sanitizer|runtime error:|Traceback|Assertion|"
                     r"\berror\b|\bfatal\b|\babort|Segmentation", re.IGNORECASE)
# After one of these, the next line says more than the line itself.
GOES_ON = re.compile(r"\.\.\.\s*FAILED\s*$|FAILED:\s*\$ |^=+$")


def failed_tests(console):
    """[(name, reason)] from the list at the end of ctest's output."""
    _, _, said = console.rpartition("The following tests FAILED:")
    if said == console:
        return []
    return re.findall(r"^\s*\d+ - (\S+) \((.*?)\)", said, re.MULTILINE)


def outputs(log):
    """{test: its output} from ctest's LastTest.log, which has the complete outputs one after
    another.
    """
    found = {}
    for part in re.split(r"^\d+/\d+ Testing: ", log, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        _, _, output = rest.partition("\nOutput:\n" + "-" * 58 + "\n")
        found[name.strip()] = output.rpartition("<end of output>")[0]
    return found


def first_failing_line(output):
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    if not lines:
        return "(it printed nothing)"
    at = next((i for i, line in enumerate(lines) if SAYS_SO.search(line)), None)
    if at is None:
        return f"its last line: {lines[-1].strip()}"[:LINE_MOST]
    line = lines[at].strip()
    if line.startswith("Traceback"):  # the exception follows it, not indented
        line = next((text for text in lines[at + 1:] if not text.startswith(" ")), line)
    elif GOES_ON.search(line) and at + 1 < len(lines):
        line += " | " + lines[at + 1].strip()
    return line[:LINE_MOST]


def failures(folder):
    """The lines about one build folder."""
    names = failed_tests((folder / "tests.log").read_text(errors="replace"))
    log = folder / "Testing" / "Temporary" / "LastTest.log"
    said = outputs(log.read_text(errors="replace")) if names else {}
    return [f"{folder.name}: {name} ({why}): {first_failing_line(said.get(name, ''))}"
            for name, why in names]


# name: (command, the line that must follow the test's name)
TRIED = {
    "passes": ("echo error: none; true", None),
    "skips": ("echo skipped: no need; exit 77", None),
    "driver": ("echo one row; echo 'FAILED: 3 rows, 4 expected'; echo behind; exit 1",
               "(Failed): FAILED: 3 rows, 4 expected"),
    "command": ("echo 'FAILED: $ shoal generate'; echo '  status 2'; exit 1",
                "(Failed): FAILED: $ shoal generate | status 2"),
    "cunit": ("echo '  Test: sums ...passed'; echo '  Test: rows ...FAILED'; "
              "echo '    1. test_rows.c:12  - CU_ASSERT_TRUE(no)'; exit 1",
              "(Failed): Test: rows ...FAILED | 1. test_rows.c:12  - CU_ASSERT_TRUE(no)"),
    "traceback": ("echo 'Traceback (most recent call last):'; echo '  File x'; echo 'KeyError: 3'; exit 1",
                  "(Failed): KeyError: 3"),
    "silent": ("exit 3", "(Failed): (it printed nothing)"),
    "plain": ("echo first; echo last; exit 1", "(Failed): its last line: last"),
    "slow": ("echo waits; exec sleep 30", "(Timeout): its last line: waits"),
    "crash": ("echo works; kill -SEGV $$", "(SEGFAULT): its last line: works"),
    "sanitized": ("echo ==1==ERROR: AddressSanitizer: heap-use-after-free; exit 1",
                  "(Failed): ==1==ERROR: AddressSanitizer: heap-use-after-free"),
}


def run_tried(folder, names):
    """Runs the named tests with ctest, in parallel like tests/run.sh."""
    text = ""
    for name in names:
        script = folder / f"{name}.sh"
        script.write_text(TRIED[name][0] + "\n")
        text += f'add_test({name} "bash" "{script}")\n'
        text += f"set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 5)\n"
    (folder / "CTestTestfile.cmake").write_text(text)
    done = subprocess.run(["ctest", "--output-on-failure", "-j4"], cwd=folder, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (folder / "tests.log").write_text(done.stdout)
    return failures(folder)


def self_test():
    folder = Path(tempfile.mkdtemp(prefix="shoal-failures-"))
    try:
        found = run_tried(folder, TRIED)
        wanted = [f"{folder.name}: {name} {line}" for name, (_, line) in TRIED.items() if line]
        quiet = run_tried(folder, ["passes", "skips"])
    finally:
        shutil.rmtree(folder)
    for line in sorted(set(found) ^ set(wanted)):
        print(f"FAILED: {'not expected' if line in found else 'missing'}: {line}")
    if quiet:
        print(f"FAILED: failures where none are: {quiet}")
    print(f"{len(found)} failures named, {len(wanted)} expected")
    return found != wanted or bool(quiet)


def main():
    lines = [line for name in sys.argv[1:] for line in failures(Path(name))]
    if lines:
        print(f"{len(lines)} tests failed; the first failing line of each:")
    for line in lines:
        print(f"  {line}")


if __name__ == "__main__":
    sys.exit(self_test() if sys.argv[1:] == ["--self-test"] else main())
