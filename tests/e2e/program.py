"""Starts shoal from tests, on one rank or many, with a time limit, and returns its outputs.

Imported by the drivers in this folder. Standard library only.
"""
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
REPO = TESTS.parent
GOLDENS = TESTS / "golden" / "models"
sys.path.append(str(TESTS / "golden"))  # for generated_weights.py
SKIPPED = 77  # ctest's SKIP_RETURN_CODE
FAILED = 1


class Run:
    """A finished run: argv, exit status (None: it exceeded the time limit) and outputs."""

    def __init__(self, argv, status, out, err):
        self.argv, self.status, self.out, self.err = argv, status, out, err

    def __str__(self):
        status = "no end within the limit" if self.status is None else f"status {self.status}"
        said = self.err[-3000:] or "  (nothing on stderr)"
        return f"$ {' '.join(self.argv)}\n  {status}\n{said}"


HANGS_S = 600  # a run that takes ten seconds alone takes minutes beside thirty other processes


def run(argv, limit_s=HANGS_S, env=None):
    """Runs argv in its own process group; at the time limit the whole group is killed."""
    argv = [str(a) for a in argv]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace",
                          env={**os.environ, **(env or {})}, start_new_session=True) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            status = None
    return Run(argv, status, out, err)


def peak_kib(argv, limit_s=HANGS_S):
    """Runs argv, which must end with status 0. Returns its peak resident memory in KiB, read by a child Python process."""
    code = ("import resource, subprocess, sys; "
            "status = subprocess.run(sys.argv[1:], stderr=subprocess.DEVNULL).returncode; "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(status)")
    done = run([sys.executable, "-c", code, *argv], limit_s)
    expect(done.status == 0, str(done))
    return int(done.out)


class Shoal:
    """The binary under test. Jobs keep no journal unless a test asks for one: a second run of a
    finished job would do nothing, and so would not test the layout that it was given.
    """

    def __init__(self, path):
        self.path = str(Path(path).resolve())

    def __call__(self, *args, ranks=0, limit_s=HANGS_S, env=None, journal=False):
        """Runs shoal. ranks 0: the binary alone, without a launcher."""
        launcher = [TESTS / "mpirun.sh", ranks] if ranks else []
        flags = ["--no-journal"] if args[0] in ("generate", "score", "embed", "rank") and not journal else []
        argv = [*launcher, self.path, *args, *flags]
        if not ranks:
            return run(argv, limit_s, env)
        # Open MPI keeps session folders in TMPDIR. Two launchers that start and end at the same
        # time can delete each other's.
        with tempfile.TemporaryDirectory(prefix="shoal-", ignore_cleanup_errors=True) as folder:
            return run(argv, limit_s, {"TMPDIR": folder, **(env or {})})

    def must(self, *args, **how):
        done = self(*args, **how)
        if done.status != 0:
            raise Failure(str(done))
        return done


class Load:
    """Counts the processes of this machine that run, or want a CPU or a disk, until the with block ends."""

    def __init__(self):
        self.counts, self.is_over = [], threading.Event()
        self.thread = threading.Thread(target=self.count, daemon=True)

    def count(self):
        while not self.is_over.wait(0.02):
            found = re.findall(r"procs_(?:running|blocked) (\d+)", Path("/proc/stat").read_text())
            self.counts.append(sum(map(int, found)))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()

    def slows(self, n_own):
        """By which factor other processes slow n_own threads of the test down; 1 without others."""
        return max(1, sum(self.counts) / max(len(self.counts), 1) / n_own)


def processes_with(text):
    """The ids of processes whose command line contains text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes() and int(path.parts[2]) != os.getpid():
                found.append(int(path.parts[2]))
        except OSError:
            continue
    return found


class Failure(Exception):
    """A test's failure; its text is printed."""


def expect(condition, sentence):
    if not condition:
        raise Failure(sentence)


def read_rows(path):
    """The rows of an output file, by custom_id."""
    rows = {}
    for line in Path(path).read_bytes().splitlines():
        row = json.loads(line)
        expect(row["custom_id"] not in rows, f"{path}: two rows of '{row['custom_id']}'")
        rows[row["custom_id"]] = row
    return rows


def hash_rows(path):
    """SHA-256 over an output file's lines, sorted by custom_id, so that their order does not
    matter.
    """
    lines = Path(path).read_bytes().splitlines(keepends=True)
    lines.sort(key=lambda line: json.loads(line)["custom_id"])
    return hashlib.sha256(b"".join(lines)).hexdigest()


def fresh_folder(path):
    """Makes path an empty folder, whatever was there."""
    shutil.rmtree(path, ignore_errors=True)
    Path(path).mkdir(parents=True)
    return Path(path)


def write_lines(path, rows):
    Path(path).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
                          encoding="utf-8")


def main_of(test):
    """Runs test(). A Failure is printed and becomes exit status 1."""
    sys.stdout.reconfigure(line_buffering=True)
    try:
        sys.exit(test() or 0)
    except Failure as failure:
        print(f"FAILED: {failure}")
        sys.exit(FAILED)
