#!/usr/bin/env python3
"""Fails if an #include breaks the include rules of src/rooms.txt, or if a file is too long.

usage: check_includes.py [ROOT]
       check_includes.py --table [ROOT]   prints the drawing of the rooms for src/README.md
       check_includes.py --self-test      proves that the check can fail

What it checks:
  - Each line of the rules names only rooms above it, so rooms do not include each other in a cycle.
  - Each include names a file of a room that the line allows, and each allowed room is used.
  - A library's header is included only by rooms whose line names the library.
  - NAME_private.h is included only inside its own room.
  - Files of a room include each other in a circle only if one of their headers explains it after the word
    "Circle:" (NAME.c, NAME.h and NAME_private.h count as one file).
  - A header that says "Called by A.c and B.c" or "Included only by A.c" names exactly the files that do so
    (only files are checked; a sentence that names rooms or commands is not).
  - src/README.md has the drawing of the current rules.
"""
import re
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

LAW = "src/rooms.txt"
HEADERS = {"mpi.h": "mpi", "hdf5.h": "hdf5", "hwloc.h": "hwloc", "jansson.h": "jansson",
           "pcre2.h": "pcre2", "utf8proc.h": "utf8proc", "xxhash.h": "xxhash",
           "zlib.h": "zlib", "zstd.h": "zstd", "lzma.h": "lzma", "microhttpd.h": "microhttpd"}
LINES_MAX = 700
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
USERS = re.compile(r"\b(Called|Included) (?:only )?by ((?:(?:and|by|[\w*]+\.(?:c|cu|h)),? ?)+)[.;]")
BEGIN, END = "<!-- rooms: tests/check_includes.py --table -->\n", "<!-- end of rooms -->\n"


class Law:
    """The lines of src/rooms.txt: for each room, the rooms that it may include and its libraries."""

    def __init__(self, root):
        self.rooms, self.libraries, self.found = {}, {}, []
        for line in (root / LAW).read_text().splitlines():
            if line and not line.startswith("#"):
                room, below, libraries = (part.split() for part in line.split("|"))
                self.add(room[0], [r for r in below if r != "-"], libraries)

    def add(self, room, below, libraries):
        self.found += [f"{LAW}: '{room}' names '{other}', which stands no line above it"
                       for other in below if other not in self.rooms]
        self.rooms[room], self.libraries[room] = below, libraries

    def reaches(self, room):
        """All rooms that a room includes, directly or through others."""
        seen = set(self.rooms[room])
        return seen.union(*(self.reaches(other) for other in seen if other in self.rooms))

    def links(self, library):
        """The rooms that may include the library's header."""
        return {room for room, names in self.libraries.items() if library in names}

    def levels(self):
        """The rooms by level: each room is one level above the highest room that it includes."""
        floor = {}
        for room, below in self.rooms.items():
            floor[room] = 1 + max((floor.get(other, 0) for other in below), default=0)
        return [[room for room in self.rooms if floor[room] == n]
                for n in range(1, 1 + max(floor.values()))]


def table(law):
    """The drawing of the levels, top first."""
    floors = law.levels()
    lines = [f"{n:>2}  " + "  ".join(rooms) for n, rooms in enumerate(floors, 1)]
    return "```\n" + "\n".join(["    main.c", *reversed(lines)]) + "\n```\n"


def room_of(path, root):
    parts = path.relative_to(root).parts
    if parts[0] == "kernels":
        return "kernels"
    return "/".join(parts[1:-1]) or "main"


def module_of(path):
    """The module of a file: NAME.c, NAME.h and NAME_private.h are one module."""
    return str(path.with_suffix("")).removesuffix("_private")


class Tree:
    def __init__(self, root):
        self.root, self.law = root, Law(root)
        self.found, self.files, self.used = list(self.law.found), {}, set()
        for folder in ("src", "kernels"):
            for path in sorted((root / folder).rglob("*")):
                if path.suffix in (".c", ".h", ".cu", ".inc"):
                    self.files[path] = path.read_text(encoding="utf-8")
        self.edges = {}  # module -> the modules of the same room that it includes

    def allows(self, room, other):
        return room in ("main", other) or other in self.law.rooms[room]

    def include(self, path, where, room, target):
        beside = path.parent / target
        base = self.root if target.startswith("kernels/") else self.root / "src"
        file = beside if "/" not in target and beside in self.files else base / target
        if file not in self.files:
            return [f"{where}: \"{target}\" is no file of src/, kernels/ or this folder"]
        other = room_of(file, self.root)
        self.used.add((room, other))
        if not self.allows(room, other):
            return [f"{where}: room '{room}' may not include room '{other}' (\"{target}\")"]
        if other == room:
            self.edges.setdefault(module_of(path), set()).add(module_of(file))
        elif file.stem.endswith("_private"):
            return [f"{where}: \"{target}\" is private to room '{other}'"]
        return []

    def library(self, where, room, target):
        library = HEADERS.get(target.split("/")[-1])
        if library is None or room in self.law.links(library):
            return []
        return [f"{where}: room '{room}' includes <{target}>; its line in {LAW} does not name {library}"]

    def check_file(self, path, text):
        name, room = path.relative_to(self.root), room_of(path, self.root)
        n_lines = text.count("\n")
        if n_lines > LINES_MAX:
            self.found.append(f"{name}: {n_lines} lines; at most {LINES_MAX}")
        if room != "main" and room not in self.law.rooms:
            self.found.append(f"{name}: '{room}' is no room of {LAW}")
            return
        for match in INCLUDE.finditer(text):
            where = f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
            self.found += (self.library(where, room, match[2]) if match[1] == "<" else
                           self.include(path, where, room, match[2]))

    def circles(self):
        """Sets of modules of one room that include each other, unless one of their headers
        explains it.
        """
        reach = {}

        def reaches(module):
            seen, todo = set(), list(self.edges.get(module, ()))
            while todo:
                other = todo.pop()
                if other not in seen:
                    seen.add(other)
                    todo += self.edges.get(other, ())
            return seen
        for module in self.edges:
            reach[module] = reaches(module) - {module}
        done = set()
        for module in sorted(reach):
            circle = {other for other in reach[module] if module in reach.get(other, ())}
            if circle and module not in done:
                circle.add(module)
                done |= circle
                if not any("Circle:" in text for path, text in self.files.items()
                           if path.suffix == ".h" and module_of(path) in circle):
                    names = sorted(str(Path(m).relative_to(self.root)) for m in circle)
                    yield f"these include each other, and no header of theirs says why: {' '.join(names)}"

    def unused(self):
        return [f"{LAW}: '{room}' may include '{other}' and does not" for room, below in
                self.law.rooms.items() for other in below if (room, other) not in self.used]

    def users(self):
        """Headers whose first comment names other files than those that call or include them."""
        codes = {path: COMMENT.sub("", text) for path, text in self.files.items()}
        for header, text in self.files.items():
            head = COMMENT.match(text)
            head = re.sub(r"\s+\*?\s*", " ", head[0]) if header.suffix == ".h" and head else ""
            for verb, names in USERS.findall(head):
                names = set(re.findall(r"[\w*]+\.\w+", names))
                found = self.users_of(verb, header, codes)
                wrong = [name for name in names if not any(fnmatch(file, name) for file in found)]
                wrong += [file for file in found if not any(fnmatch(file, name) for name in names)]
                if wrong:
                    yield f"{header.relative_to(self.root)}: '{verb} by' is untrue of {' '.join(sorted(wrong))}"

    @staticmethod
    def users_of(verb, header, codes):
        """The names of the files that include a header, or call a function that it declares."""
        if verb == "Included":
            return {path.name for path, code in codes.items() for _, name in INCLUDE.findall(code)
                    if str(header).endswith("/" + name) and ("/" in name or path.parent == header.parent)}
        names = "|".join(set(re.findall(r"^\w[\w *]*?\b(\w+)\(", codes[header], re.MULTILINE)))
        body = re.compile(rf"^\w[\w\" *]*?\b(?:{names})\([^;{{]*\)\s*{{", re.MULTILINE)
        call = re.compile(rf"\b(?:{names})\b")
        return {path.name for path, code in codes.items()
                if path != header and call.search(code) and not body.search(code)}

    def drawing(self):
        page = self.root / "src" / "README.md"
        text = page.read_text() if page.exists() else ""
        if BEGIN + table(self.law) + END in text:
            return []
        return ["src/README.md: the drawing of the rooms is not that of "
                f"{LAW}; put there what `tests/check_includes.py --table` prints"]

    def check(self):
        """All violations, as sentences."""
        for path, text in self.files.items():
            self.check_file(path, text)
        return self.found + list(self.circles()) + list(self.users()) + self.unused() + self.drawing()


BROKEN = {
    LAW: "base | - | jansson\nplan | base late | -\nlate | base | -\nserve/a | plan base | mpi\n"
         "serve/b | serve/a | -\n",
    "src/base/b.c": "void b(void)\n{\n    a_run(1);\n}\n",
    "src/base/a.c": "void a_run(int x)\n{\n}\n",
    "src/base/a.h": '/* Called by b*.c. */\n#include "plan/p.h"\nvoid a_run(int x);\n',  # a room above its own
    "src/plan/p.h": '#include <mpi.h>\n#include "base/a.h"\n',  # a library that its line does not name
    "src/plan/p_private.h": "\n",
    "src/late/l.h": '/* Called by main.c. */\nvoid l(void);\n#include "base/gone.h"\n#include "base/a.h"\n',  # a missing one
    "src/serve/a/s.h": '#include "plan/p_private.h"\n#include "serve/a/t.h"\n#include <mpi.h>\n',
    "src/serve/a/t.h": '#include "serve/a/s.h"\n#include "late/l.h"\n',
    "src/serve/b/x.h": '#include "serve/b/y.h"\n#include "serve/a/s.h"\n',
    "src/serve/b/y.h": '/* Circle: a reason. */\n#include "serve/b/x.h"\n',
    "src/lost/z.h": "\n",  # in no room
    "src/main.c": '#include "serve/b/x.h"\n' + "\n" * LINES_MAX,
}
# 'late' above plan; base -> plan; <mpi.h> in plan; base/gone.h; p_private.h; serve/a -> late; no room lost; main.c
# too long; the circle of s.h and t.h; plan -> late and serve/a -> base unused; main.c does not call l; no drawing
BROKEN_COUNT = 13


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        for name, text in BROKEN.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        found = Tree(Path(folder)).check()
    if len(found) != BROKEN_COUNT:
        print(f"self-test: {len(found)} violations found, {BROKEN_COUNT} expected", *found, sep="\n")
        return 1
    print(f"self-test: all {BROKEN_COUNT} planted violations were found")
    return 0


def main():
    flags = [word for word in sys.argv[1:] if word.startswith("--")]
    roots = [word for word in sys.argv[1:] if not word.startswith("--")]
    if flags == ["--self-test"]:
        return self_test()
    root = Path(roots[0] if roots else Path(__file__).parents[1]).resolve()
    if flags == ["--table"]:
        print(BEGIN + table(Law(root)) + END, end="")
        return 0
    tree = Tree(root)
    found = tree.check()
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(tree.files)} files read, {len(found)} violations")
    return 1 if found or not tree.files else 0


if __name__ == "__main__":
    sys.exit(main())
