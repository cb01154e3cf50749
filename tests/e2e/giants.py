#!/usr/bin/env python3
"""Tests `shoal plan` for models without weights, and that the tables of docs/giants.md are still true.

usage: giants.py SHOAL WORK_FOLDER CASE
  formats   a config.json with --format is planned as the checkpoint that convert makes with it
  gpus      ranks on GPUs may use the memory of their GPU
  network   experts are spread over hosts if the network is fast enough, and stay on one if it is slow
  tables    the figures of docs/giants.md are those that its commands print
  write     writes these figures again (by hand)
"""
import re
import sys

from program import GOLDENS, REPO, Shoal, expect, fresh_folder, main_of

PAGE = REPO / "docs" / "giants.md"
CONFIGS = REPO / "tests" / "golden" / "configs"
BEGIN, END = "<!-- plans: tests/e2e/giants.py write -->\n", "<!-- end of plans -->\n"
NODE = "pack:2 numa:1 core:32 pu:1"
FP8 = ["--format", "fp8-g128", "--policy", "embedding=bf16,head=bf16", "--fp8-activations", "int8"]
# Title, folder of the config, flags of its published format.
MODELS = [("DeepSeek-V3", "deepseek-v3", FP8), ("Kimi-K2", "kimi-k2", FP8),
          ("Qwen3-235B", "qwen3-235b-a22b", ["--dtype", "bf16"]),
          ("gpt-oss-120b", "gpt-oss-120b", ["--format", "bf16", "--policy", "experts=mxfp4"])]
NODES = [4, 16, 64]
STEPS = [32, 512]  # rows of a step in each replica: decoding some sequences, and bulk work
COMMON = ["--memory-per-node", "512", "--max-model-len", "32768"]
COLUMNS = ["nodes", "rows a step", "layout", "layers, heads and experts of a rank", "weights of a rank",
           "workspace, exchange", "KV blocks of a replica, of one context", "hosts of the experts",
           "other hosts of a token", "KB there, back", "rows of an expert"]


def flags_of(folder, flags, n_nodes, n_rows):
    return ["--model", f"tests/golden/configs/{folder}/config.json", *flags, "--topology",
            f'{n_nodes}x"{NODE}"', *COMMON, "--step-tokens", str(n_rows)]


def quoted(word):
    return f"'{word}'" if re.search(r'[ "]', word) else word


def one(pattern, text, otherwise=None):
    found = re.search(pattern, text, re.MULTILINE)
    expect(found or otherwise is not None, f"no {pattern} in\n{text}")
    return found.groups() if found else otherwise


def ranks_of(text):
    """The lines of "Who holds what", by column."""
    lines = text.split("Who holds what")[1].splitlines()[1:]
    heads = re.split(r"  +", lines[0].strip())
    rows = []
    for line in lines[1:]:
        if not line.strip():
            return rows
        rows.append(dict(zip(heads, re.split(r"  +", line.strip()))))
    return rows


def count(text):
    """A range as its number of members; a number stays."""
    first, _, last = text.partition("-")
    return str(int(last) - int(first) + 1) if last else text


class Giants:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(work)

    def plan(self, *flags):
        return self.shoal.must("plan", *flags).out

    # --- the page ---

    def row(self, folder, flags, n_nodes, n_rows):
        """A line of a table."""
        argv = flags_of(folder, flags, n_nodes, n_rows)
        text = self.plan("--model", CONFIGS / folder / "config.json", *argv[2:])
        layout = one(r"^Layout    (dp \d+ x pp \d+ x tp \d+, ep \d+(?: x etp \d+)?)", text)[0]
        copies = one(r"^Layout .* (\d+ copies) of the experts", text, ("one copy",))[0]
        first = ranks_of(text)[0]
        counts = "numbers per rank" in text
        held = first["experts"] if counts else count(first["experts"])
        heads = first["heads"] if counts else count(first["heads"])
        blocks = one(r"(\d+) blocks of \d+ tokens fit in each replica", text)[0]
        context = one(r"one full context needs (\d+) blocks", text)[0]
        hosts, others, there, back = one(
            r"experts on (\d+) hosts: a token goes to ([\d.]+) others; ([\d.e+]+) KB there .*, ([\d.e+]+) KB back",
            text, ("1", "0", "0", "0"))
        rows = one(r"brings ([\d.]+) rows to an expert", text)[0]
        cells = [str(n_nodes), str(n_rows), f"{layout}, {copies}", f"{count(first['layers'])}, {heads}, {held}",
                 first["weights"], f"{first['workspace']}, {first['exchange']}", f"{blocks}, {context}", hosts, others,
                 f"{there}, {back}", rows]
        return "| " + " | ".join(cells) + " |\n"

    def tables(self):
        text = ""
        for title, folder, flags in MODELS:
            command = " ".join(quoted(word) for word in flags_of(folder, flags, 4, STEPS[0]))
            text += f"\n### {title}\n\n```\nshoal plan {command}\n```\n\n"
            text += f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
            text += "".join(self.row(folder, flags, n, rows) for rows in STEPS for n in NODES)
        return text + "\n"

    def check_tables(self):
        page = PAGE.read_text()
        found, wanted = page.split(BEGIN)[1].split(END)[0], self.tables()
        expect(found == wanted, f"docs/giants.md differs; its commands print now:\n{wanted}")
        print(f"{len(MODELS) * len(NODES) * len(STEPS)} plans, as in docs/giants.md")

    def write_tables(self):
        page = PAGE.read_text()
        PAGE.write_text(page.split(BEGIN)[0] + BEGIN + self.tables() + END + page.split(END)[1])

    # --- plan ---

    def formats(self):
        """A config.json with --format has the plan of its checkpoint, but for the model's name."""
        hf = GOLDENS / "mixtral" / "hf"
        for flags in (["--format", "int8"], ["--format", "int4", "--policy", "attention=bf16"],
                      ["--format", "fp8-g32"], ["--format", "f16"]):
            model = self.work / "model.h5"
            model.unlink(missing_ok=True)
            self.shoal.must("convert", hf, model, *flags, "--quiet")
            common = ["--ranks", 4, "--dp", 4, "--ep", 4, "--topology", "4x\"numa:1 core:2 pu:1\""]
            of_file = self.plan("--model", model, *common)
            of_config = self.plan("--model", hf / "config.json", *flags, *common)
            expect("Wire" in of_file and of_file.split("\nMachine")[1] == of_config.split("\nMachine")[1],
                   f"{flags}: of the file\n{of_file}\nof the config.json\n{of_config}")
            print(f"{' '.join(flags)}: a config.json is planned as its checkpoint")
        done = self.shoal("plan", "--model", model, "--format", "int8")
        expect(done.status == 2 and "expected a config.json" in done.err, str(done))
        done = self.shoal("plan", "--model", hf / "config.json", "--format", "int9")
        expect(done.status == 2 and "int9" in done.err, str(done))

    def gpus(self):
        model = CONFIGS / "qwen3-235b-a22b" / "config.json"
        common = ["--model", model, "--format", "int4", "--topology", f'2x"{NODE}"', "--gpus-per-node", 8,
                  "--memory-per-node", 512, "--max-model-len", 8192]
        for gib, part in ((80, "72.0 GiB"), (141, "127 GiB")):
            text = self.plan(*common, "--gpu-memory", gib)
            expect(f"A rank may use {part}, nine tenths of its part of a GPU" in text, text)
        done = self.shoal("plan", *common, "--gpu-memory", 2)
        expect(done.status == 2 and "Fits      NO" in done.out, str(done))
        for flags, part in ((["--gpu-memory", 80], "--gpus-per-node"), (["--max-model-len", 1 << 20], "the model allows")):
            done = self.shoal("plan", "--model", model, "--format", "int4", "--topology", f'2x"{NODE}"', *flags)
            expect(done.status == 2 and part in done.err, str(done))
        print("ranks on GPUs budget the GPU's memory")

    def network(self):
        argv = flags_of("deepseek-v3", FP8, 16, STEPS[0])[2:]
        model = CONFIGS / "deepseek-v3" / "config.json"
        fast = self.plan("--model", model, *argv, "--network", 400)
        slow = self.plan("--model", model, *argv, "--network", 0.1)
        expect("experts on" in fast, fast)
        expect("experts on" not in slow, slow)
        print("the speed of the network decides whether experts go over hosts")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    giants = Giants(sys.argv[1], sys.argv[2])
    cases = {"formats": giants.formats, "gpus": giants.gpus, "network": giants.network,
             "tables": giants.check_tables, "write": giants.write_tables}
    return cases[sys.argv[3]]()


if __name__ == "__main__":
    main_of(main)
