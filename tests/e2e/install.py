#!/usr/bin/env python3
"""Tests what `cmake --install` installs: the program, its manual pages, and the libraries through
pkg-config.

usage: install.py BUILD_FOLDER WORK_FOLDER
"""
import os
import re
import shutil
import sys
from pathlib import Path

from program import expect, main_of, run

PROGRAM = """
#include "parallel/layout/layout.h"
#include "tensor/leaf.h"
#include <stdio.h>
int main(void)
{
    const struct range r = layout_split(10, 1, 3, 0);
    printf("%u %u", leaf_choose(1536, 32, LEAF_COUNT_LOW), range_count(r));
    return 0;
}
"""


def check(argv, **how):
    done = run(argv, **how)
    expect(done.status == 0, str(done))
    return done.out


def check_manual(shoal, page, command):
    """Every flag that --help shows is in the manual page, too."""
    flags = re.findall(r"^  (--[a-z0-9-]+)", check([shoal, command, "--help"]), re.MULTILINE)
    text = page.read_text().replace("\\-", "-")
    expect(flags, f"{command}: --help shows no flag")
    for flag in flags:
        expect(f"\n.B {flag} " in text or f"\n.B {flag}\n" in text, f"{page.name} lacks {flag}")


def check_modulefile(prefix):
    """Every folder that the module file names exists below this installation's prefix."""
    pages = list((prefix / "share" / "shoal" / "modulefiles" / "shoal").glob("*.lua"))
    expect(len(pages) == 1, f"{len(pages)} modulefiles")
    text = pages[0].read_text()
    expect(f'local base = "{prefix.resolve()}"' in text, f"not below {prefix}:\n{text}")
    named = re.findall(r'pathJoin\(base, "([^"]+)"\)', text)
    expect(len(named) == 4, f"{named} named")
    for path in named:
        expect((prefix / path).is_dir(), f"the modulefile names {path}, which is not there")


def test():
    build, work = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.rmtree(work, ignore_errors=True)
    prefix = work / "prefix"
    check(["cmake", "--install", build, "--prefix", prefix])
    shoal = prefix / "bin" / "shoal"
    expect(check([shoal, "--version"]).startswith("shoal "), "--version does not begin with shoal")
    commands = re.findall(r"^  ([a-z]+)  ", check([shoal, "--help"]), re.MULTILINE)
    expect({"generate", "merge"} <= set(commands), f"--help lists {commands}")
    for command in commands:
        check_manual(shoal, prefix / "share" / "man" / "man1" / f"shoal-{command}.1", command)
    check_modulefile(prefix)
    found = list(prefix.rglob("shoal.pc"))
    expect(len(found) == 1, f"{len(found)} shoal.pc files")
    # The build was configured for another prefix, so pkg-config is told this one.
    env = {"PKG_CONFIG_PATH": str(found[0].parent)}
    flags = check(["pkg-config", f"--define-variable=prefix={prefix.resolve()}", "--cflags",
                   "--libs", "shoal"], env={**os.environ, **env}).split()
    source = work / "program.c"
    source.write_text(PROGRAM)
    check(["cc", source, "-o", work / "program", *flags])
    expect(check([work / "program"]) == "192 4", "the program against the libraries answers wrongly")


if __name__ == "__main__":
    main_of(test)
