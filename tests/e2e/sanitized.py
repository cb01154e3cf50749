#!/usr/bin/env python3
"""Runs a program compiled with sanitizers on two ranks, once for each parallel axis, and expects
no finding.

usage: sanitized.py SHOAL WORK_FOLDER
"""
import sys
from pathlib import Path

from program import GOLDENS, TESTS, Shoal, expect, fresh_folder, main_of, write_lines

LIMIT_S = 600
ENVIRONMENT = {"LSAN_OPTIONS": f"suppressions={TESTS / 'lsan.supp'}:print_suppressions=0:"
                               "fast_unwind_on_malloc=0"}
LAYOUTS = {"llama-gqa": (["--tp", "2"], ["--pp", "2"], ["--dp", "2"]),
           "mixtral": (["--tp", "2", "--ep", "2"], ["--dp", "2", "--ep", "2"])}


def main(shoal, work):
    shoal, work = Shoal(shoal), Path(work)
    fresh_folder(work)
    lines = [{"custom_id": f"r{i}", "prompt": f"Once upon a time {i}", "max_tokens": 8,
              "temperature": 0.8} for i in range(5)]
    write_lines(work / "in.jsonl", [*lines, {"custom_id": "bad", "max_tokens": -1}])
    for model, layouts in LAYOUTS.items():
        shoal.must("convert", GOLDENS / model / "hf", work / f"{model}.h5", env=ENVIRONMENT,
                   limit_s=LIMIT_S)
        outputs = set()
        for number, layout in enumerate(layouts):
            output = work / f"{model}.{number}.jsonl"
            done = shoal.must("generate", "--model", work / f"{model}.h5", "--input",
                              work / "in.jsonl", "--output", output, "--kv-blocks", "40", *layout,
                              ranks=2, env=ENVIRONMENT, limit_s=LIMIT_S, journal=True)
            expect("Sanitizer" not in done.err and "runtime error" not in done.err, str(done))
            outputs.add(output.read_bytes())
        expect(len(outputs) == 1, f"{model}: {len(outputs)} different outputs")
        expect(len(outputs.pop().splitlines()) == 6, f"{model}: rows are missing")


if __name__ == "__main__":
    main_of(lambda: main(*sys.argv[1:3]))
