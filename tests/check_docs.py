#!/usr/bin/env python3
"""Fails if a page names or links a missing file, docs/tour.md names a function that its file does
not define, or docs/models.md names a test that does not exist or no architecture of a family.

usage: check_docs.py [ROOT]
       check_docs.py --self-test   proves that the check can fail
"""
import re
import sys
import tempfile
from pathlib import Path

PAGES = ["README.md", "*/README.md", "docs/*.md", "src/*/README.md"]
MODELS = "docs/models.md"  # the models that run, and the tests for each
SUFFIXES = "c|h|cu|py|sh|md|sbatch|cmake|json|txt|h5|jsonl"
FILE = re.compile(rf"`((?![A-Z]+/)(?:[\w.-]+/)+[\w.-]+\.(?:{SUFFIXES}))`")  # OUT/... is the reader's
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")  # of files, not of sites
TESTED = re.compile(r"^\| [\w ]+ \| [^|\n]* \| ([^|\n]*`[^|\n]*) \|$", re.MULTILINE)  # a row of the table: name, description, tests
STOP = re.compile(r"^`([^`]+\.[ch])`: (`.*`)", re.MULTILINE)


def stands(root, page, name):
    """Whether the path exists, counted from the root, from src/ or from the page's own folder."""
    return any((base / name).exists() for base in (root, root / "src", page.parent))


def is_test(root, name):
    """Whether `name` is a test: `unit NAME`, `kernels NAME`, a NAME that continues such a list,
    `e2e.NAME` or a label of ctest.
    """
    if " -L " in f" {name}":
        return True
    if not name.startswith("e2e."):
        return any((root / "tests" / kind / f"test_{name.split()[-1]}.c").exists()
                   for kind in ("unit", "kernels"))
    group, _, case = name.removeprefix("e2e.").partition(".")
    if group == "golden" and case != "*":
        return (root / "tests" / "golden" / "models" / case).is_dir()
    listed = (root / "tests" / "e2e" / "CMakeLists.txt").read_text()
    return f"shoal_e2e({group}{'.' if case else ' '}" in listed


def untested(root):
    page = root / MODELS
    text = page.read_text() if page.exists() else ""
    for cell in TESTED.findall(text):
        for name in re.findall(r"`([^`]+)`", cell):
            if not is_test(root, name):
                yield f"{MODELS}: no test {name}"


def unnamed(root):
    """Architectures that shoal runs and docs/models.md does not name."""
    page, source = root / MODELS, root / "src/arch/arch_family.c"
    text = page.read_text() if page.exists() else ""
    for name in re.findall(r'\.(?:architecture|alias) = "(\w+)"', source.read_text() if source.exists() else ""):
        if f"`{name}`" not in text:
            yield f"{MODELS}: no architecture {name}"


def findings(root):
    yield from untested(root)
    yield from unnamed(root)
    pages = sorted({page for glob in PAGES for page in root.glob(glob)})
    for page in pages:
        text, where = page.read_text(), page.relative_to(root)
        for name in FILE.findall(text):
            if not stands(root, page, name):
                yield f"{where}: `{name}` is not there"
        for name in LINK.findall(text):
            if not (page.parent / name).exists():
                yield f"{where}: the link to {name} leads nowhere"
        for name, functions in STOP.findall(text):
            source = root / name
            code = source.read_text() if source.exists() else ""
            for function in re.findall(r"`(\w+)`", functions):
                if not re.search(rf"^\S.*\b{function}\(", code, re.MULTILINE):
                    yield f"{where}: no function {function} in {name}"


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "docs").mkdir()
        (root / "src" / "room").mkdir(parents=True)
        (root / "src" / "room" / "a.c").write_text("static int here(void)\n{\n    gone();\n}\n")
        page = root / "docs" / "tour.md"
        page.write_text("`src/room/a.c`: `here`\nSee `room/a.c`.\n")
        assert not list(findings(root))
        page.write_text("`src/room/a.c`: `here`, `gone`\nSee `room/b.c`.\n")
        assert len(list(findings(root))) == 2
        page.write_text("[here](tour.md#stop), [gone](gone.md), [site](https://a.b)\n")
        assert len(list(findings(root))) == 1
        page.unlink()
        for kind in ("unit", "e2e"):
            (root / "tests" / kind).mkdir(parents=True)
        (root / "tests" / "unit" / "test_a.c").touch()
        (root / "tests" / "e2e" / "CMakeLists.txt").write_text("shoal_e2e(b c)\nshoal_e2e(d.e f)\n")
        rows = "| x | y | `unit a`, `a`; `e2e.b`, `-L g`, `e2e.d.*` |\n"
        (root / MODELS).write_text(rows)
        assert not list(findings(root))
        rows += "| x | y | `unit z`; `e2e.b.*`, `e2e.d`, `e2e.golden.q` |\n"
        (root / MODELS).write_text(rows)
        assert len(list(findings(root))) == 4
        (root / MODELS).write_text("| F | `FForCausalLM` | `rope` | CPU |\n")
        (root / "src" / "arch").mkdir()
        (root / "src" / "arch" / "arch_family.c").write_text('{.architecture = "FForCausalLM", .alias = "GForCausalLM"}')
        assert list(findings(root)) == [f"{MODELS}: no architecture GForCausalLM"]
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = list(findings(root))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
