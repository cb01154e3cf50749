#!/usr/bin/env python3
"""The test of the numerics law: the rows are the same on 1 rank and on many, in any batch, chunk,
order and kernel set.

usage: law.py SHOAL WORK_FOLDER [--full] [--jobs N] [--models A,B]
              [--only TEXT] [--row ROW] [--list]
Several hundred runs, chosen so that every pair of options occurs (main_demand, family_demand); the
choice is the same on every machine. --full runs every combination and can be resumed: finished runs are kept in
WORK_FOLDER/state.json and not repeated while the binary stays the same.

Each model has one expected SHA-256, that of its first run. A run fails when its hash differs,
or when its own report shows that it did not exercise what it should (layout, kernels,
preemption, ...). If this CPU lacks a run's kernel set, the best set below it runs instead; the
run and the last lines say so.
"""
import argparse
import hashlib
import json
import os
import random
import re
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import cpu
import pairwise
from program import GOLDENS, REPO, Failure, Shoal, expect, hash_rows, main_of, read_rows, write_lines

from generated_weights import checkpoint_of

BLOCK = 64  # tokens of a KV block
MODEL_LEN = 256  # --max-model-len: four blocks hold one full context
BLOCKS = {"plenty": 384, "tight": 4}
LEAST_POOL = re.compile(r"one full context of \d+ tokens needs (\d+);")
N_TOKENS = 24
# Growers: lines that start in one KV block and cannot end before they need a second one. They have
# the smallest priority, so they run first in every order. There are as many as two replicas have
# blocks in a tight row. That is why each replica of a tight row must preempt, on every machine:
#  1. Requests are admitted while blocks are free, and a group may hold blocks / groups of them. A
#     grower needs one block. So the first plans of all groups give each replica's four blocks to
#     four growers: two groups take two each, four take one each, three take two, two and none.
#  2. No result is committed before every group has its first plan, so no clock, draft, finished
#     line or cached prefix has changed a decision by then. Nothing was preempted either.
#  3. A grower gives its block back when it ends or is preempted, and needs a second one before it
#     can end. No block is free. So the first grower that needs one preempts another, or itself.
# Steps 1 and 2 are the scheduler's (src/serve), check_growers() checks the rest with the base run's
# rows.
GROWERS = [1, 2, 3, 4, 5, 6, 8, 9]
GROWER_TOKENS = 20  # at least
N_REPEATS = 3  # r14 repeats r06; two of s04's three greedy answers repeat the first
FAILURES_MAX = 5

# flags, ranks, and the layout that must result
LAYOUTS = {
    "1": (["--tp", "1"], 1, dict(tp=1, pp=1, dp=1, ep=1, etp=1)),
    "tp2": (["--tp", "2", "--ep", "1"], 2, dict(tp=2, pp=1, dp=1, ep=1, etp=2)),
    "tp3": (["--tp", "3", "--ep", "1"], 3, dict(tp=3, pp=1, dp=1, ep=1, etp=3)),
    "tp4": (["--tp", "4", "--ep", "1"], 4, dict(tp=4, pp=1, dp=1, ep=1, etp=4)),
    "pp2": (["--pp", "2"], 2, dict(tp=1, pp=2, dp=1, ep=1, etp=1)),
    "pp3": (["--pp", "3"], 3, dict(tp=1, pp=3, dp=1, ep=1, etp=1)),
    "pp4": (["--pp", "4"], 4, dict(tp=1, pp=4, dp=1, ep=1, etp=1)),
    "ep2": (["--ep", "2"], 2, dict(tp=2, pp=1, dp=1, ep=2, etp=1)),
    "ep4": (["--ep", "4"], 4, dict(tp=4, pp=1, dp=1, ep=4, etp=1)),
    "dp2": (["--dp", "2"], 2, dict(tp=1, pp=1, dp=2, ep=2, etp=1)),
    "dp2-ep1": (["--dp", "2", "--ep", "1"], 2, dict(tp=1, pp=1, dp=2, ep=1, etp=1)),
    "tp2-pp2": (["--tp", "2", "--pp", "2"], 4, dict(tp=2, pp=2, dp=1, ep=2, etp=1)),
    "dp2-tp2-ep4": (["--dp", "2", "--tp", "2", "--ep", "4"], 4,
                    dict(tp=2, pp=1, dp=2, ep=4, etp=1)),
    "dp2-tp2-ep2": (["--dp", "2", "--tp", "2", "--ep", "2"], 4,
                    dict(tp=2, pp=1, dp=2, ep=2, etp=2)),
    "pp2-ep2": (["--pp", "2", "--ep", "2"], 4, dict(tp=2, pp=2, dp=1, ep=2, etp=1)),
    "tp2-pp2-dp2": (["--tp", "2", "--pp", "2", "--dp", "2"], 8,
                    dict(tp=2, pp=2, dp=2, ep=4, etp=1)),
}
DIMENSIONS = {
    "model": ["demo", "dense", "mixtral", "demo-int8", "demo-int4", "dense-int4"],
    "layout": list(LAYOUTS),
    "batch": [0, 1, 5],  # 0: as many as fit
    "chunk": [0, 7, 64],  # 0: whole prompts
    "threads": [1, 2],
    # Not only those of this CPU: the rows must not depend on the machine. The reference is last, because
    # of equally good rows the first is chosen, and its rows take several times as long.
    "kernels": [*cpu.SETS[1:], "ref"],
    "blocks": ["plenty", "tight"],
    "order": ["given", "shuffled"],
    "cache": ["off", "on"],  # the prefix cache and the result cache
    "schedule": ["input", "auto", "prefix"],  # --order
    "drafts": ["off", "auto", "7"],  # --speculate
    "weights": ["resident", "stream"],  # stream: with memory for four experts of a rank
    "copies": [0, 3],  # of the experts with the most tokens in the base run
}
# Each model has each of these values in each layout.
TWO_VALUES = ["threads", "blocks", "order", "cache", "weights", "copies"]
# The other families: they differ inside a layer only, and so have fewer rows (family_demand).
FAMILIES = ["llama-yarn", "mistral-short", "qwen2-window", "qwen3-bias", "qwen2-moe", "olmoe-clip",
            "granite-moe", "gpt-oss", "deepseek-v2", "deepseek-v3", "deepseek-v3-fp8", "kimi-k2",
            "glm4-moe", "minimax-m2", "minimax-m2-fp8", "llama-bias", "qwen3-head40",
            "olmo2-bias", "smollm3-list", "dots1-window", "olmo3", "exaone4",
            "gemma2", "gemma3", "qwen3-next", "qwen3-next-odd", "phi3", "glm4",
            "ernie4_5-moe", "hunyuan-moe", "granite-moe-shared", "apertus", "bitnet", "bitnet-bias", "bitnet-packed", "phimoe",
            "deepseek-v3-mtp", "glm4-moe-mtp", "deepseek-v32", "deepseek-v32-mtp", "glm5",
            "longcat-flash", "mistral4", "ministral3", "llama4", "qwen3_5", "qwen3_5-moe", "youtu", "k-exaone", "hy3",
            "mimo-v2-flash", "gemma4", "gemma4-dense", "step37", "step37-odd",
            "granite4", "granite4-moe", "nemotron-h", "nemotron-h-odd", "nemotron-h-moe",
            "kimi-linear", "kimi-linear-odd", "ling3", "ling3-odd", "deepseek-v4", "deepseek-v4-odd",
            "minimax-m3", "minimax-m3-odd"]
FAMILY_DIMENSIONS = {
    **DIMENSIONS, "model": FAMILIES, "batch": [0, 5], "chunk": [0, 7],
    "schedule": ["input", "prefix"],
    "layout": ["1", "tp2", "tp3", "pp2", "ep2", "dp2", "tp2-pp2", "dp2-tp2-ep2", "tp2-pp2-dp2"],
}
SOURCES = {"dense": GOLDENS / "llama-gqa" / "hf", "mixtral": GOLDENS / "mixtral" / "hf",
           "head100": GOLDENS / "llama-head100" / "hf",
           **{name: GOLDENS / name / "hf" for name in FAMILIES}}
DEMO = REPO / "models" / "demo" / "demo.h5"
# Quantized from the model named before the last dash; activations are int8.
QUANTIZED = {"demo-int8": "int8", "demo-int4": "int4", "dense-int4": "int4-asym-g32",
             "mixtral-int8": "int8", "head100-int8": "int8", "gemma4-int8": "int8", "deepseek-v4-int8": "int8"}
# The model named before the last dash with another cache type, in as many runs as a family.
KV_TYPES = {"demo-kv8": "int8", "dense-kv8": "int8", "dense-fp8": "fp8", "glm5-kv8": "int8",
            "deepseek-v4-kv8": "int8", "minimax-m3-kv8": "int8"}
# fp8 weights with int8 activations: made like the quantized models, in as many runs as a family.
FP8_CODES = {"mixtral-codes": "fp8-g32", "head100-codes": "fp8-g32"}
QUANTIZED.update(FP8_CODES)
# The model named before the last dash with a draft model, in as many runs as a family: itself, quantized to this
# format, so that drafts are right and wrong. Their base run has no drafts.
DRAFTED = {"demo-draft": "int4"}
# The model named before the last dash, whose lines have these adapters in turn, or none; in as many runs as a family.
ADAPTED = {"deepseek-v3-lora": ["latent", "latent-heads", "shared-experts", "parameters"],
           "mixtral-lora": ["each-expert"],
           "deepseek-v3-mtp-lora": ["predicted"],
           "qwen2-moe-lora": ["gated-shared"], "dense-lora": ["attention", "all-linears"]}


def source_of(name):
    """The model from which a quantized model is made; for others, the model itself."""
    return name.rsplit("-", 1)[0] if any(name in kind for kind in (QUANTIZED, KV_TYPES, DRAFTED, ADAPTED)) else name


def has_experts(name):
    config = SOURCES.get(source_of(name))
    return config is None or re.search(r'experts\w*": [1-9]', (config / "config.json").read_text()) is not None


STATES = '"(linear_num_key|linear_num|mamba_n|mamba_num)_heads"|"linear_attn|"kda_|"compress_ra'  # fields of layers with states


def has_states(name):
    """Whether the model has recurrent layers or compressed entries: it shares no prompt blocks and checks no drafts."""
    config = SOURCES.get(source_of(name))
    return config is not None and re.search(STATES, (config / "config.json").read_text()) is not None


FAMILY_DIMENSIONS["model"] = (FAMILIES + list(KV_TYPES) + ["mixtral-int8", "head100-int8", "gemma4-int8", "deepseek-v4-int8"] +
                              list(FP8_CODES) + list(DRAFTED) + list(ADAPTED))
HAS_EXPERTS = {name: has_experts(name) for name in
               DIMENSIONS["model"] + FAMILY_DIMENSIONS["model"]}


def is_predicting(name):
    return source_of(name).endswith("-mtp")


def drafts_of(row):
    """--speculate of a row. A prediction layer guesses in place of the text where drafts are forced."""
    return "mtp" if is_predicting(row["model"]) and row["drafts"] == "7" else row["drafts"]


KINDS = [("states", STATES), ("sparse", '"(index|sparse)_topk'), ("latent", '"kv_lora_rank": [1-9]'),
         ("window", '"(sliding_window|attention_chunk_size)": [1-9]')]


@lru_cache(None)
def kind_of(name):
    """Models of one kind do the same with their cache between steps, which is what options change."""
    if name in KV_TYPES or name in QUANTIZED:
        return "types"
    if name in DRAFTED:
        return "experts"
    if is_predicting(name):
        return "mtp"
    text = (SOURCES[source_of(name)] / "config.json").read_text()
    kinds = [kind for kind, pattern in KINDS if re.search(pattern, text)]
    return kinds[0] if kinds else "experts" if HAS_EXPERTS[name] else "dense"


def degrees(model, layout):
    """The numbers of ranks into which a layout cuts a model. A family needs no row of each layout: an error in
    cutting its heads shows in every layout that cuts them. Cuts of experts do not matter to a dense model, and
    a family needs only one way to cut them.
    """
    counts = LAYOUTS[layout][2]
    names = ("tp", "pp", "dp", "ep", "etp") if HAS_EXPERTS[model] else ("tp", "pp", "dp")
    return [f"{name}={min(counts[name], 2) if name == 'ep' else counts[name]}" for name in names]


def main_demand():
    """Each model has both values of TWO_VALUES in each layout, and every pair of values of two other options.
    Each layout has every value of each option.
    """
    return pairwise.Demand(triples=("model", "layout", TWO_VALUES), inside=("model", str))


def family_demand():
    """Each family has every value of each option, and of a layout every degree; each kind of families has
    every pair of values.
    """
    return pairwise.Demand(split=("model", "layout", degrees), inside=("model", kind_of))


DECIDING = ["model", "layout", "batch", "blocks", "weights", "copies"]  # the dimensions that allowed() reads


def allowed(row):
    """Whether a combination makes sense: dense models refuse ep, and one sequence at a time never
    runs out of blocks.
    """
    if not HAS_EXPERTS[row["model"]] and "ep" in row["layout"]:
        return False
    if row["model"] in ("mixtral-int8", "head100-int8", *FP8_CODES) and row["layout"] == "tp3":
        return False  # o_proj's K-blocks let its heads be cut only in two
    if row["model"] in ("qwen3_5-moe", "nemotron-h-moe", "glm5", "glm5-kv8", "longcat-flash",
                        "deepseek-v4", "deepseek-v4-int8", "deepseek-v4-kv8") and row["layout"] == "tp3":
        return False  # they have two heads, or two groups of heads
    if row["model"] in (*FP8_CODES, "nemotron-h-moe") and row["weights"] == "stream":
        return False  # shoal refuses it
    if not HAS_EXPERTS[row["model"]] and row["weights"] == "stream":
        return False
    if row["copies"] and (not HAS_EXPERTS[row["model"]] or LAYOUTS[row["layout"]][2]["ep"] == 1):
        return False
    return not (row["batch"] == 1 and row["blocks"] == "tight")


SHOWN = (2, 7, 10, 11)  # lines whose rows have log-probabilities: tokens alone show a last bit only if one flips


def sampling(i):
    """Sampling fields for line i, so that each input mixes greedy, seeded and unseeded lines and
    all samplers.
    """
    kinds = [dict(temperature=0), dict(temperature=0.9, top_k=20, seed=11),
             dict(temperature=1.0, top_p=0.8), dict(temperature=1.3, min_p=0.02, seed=2**62 + 5),
             dict(), dict(temperature=0.7, top_k=50, top_p=0.9, min_p=0.01, seed=0)]
    return dict(kinds[i % len(kinds)], max_tokens=N_TOKENS - i % 4, **({"logprobs": 0} if i in SHOWN else {}))


def with_growers(lines):
    """The lines, with the GROWERS changed to run first and to sample at least GROWER_TOKENS
    tokens.
    """
    first = dict(priority=-1, min_tokens=GROWER_TOKENS)
    return [{**line, **first} if i in GROWERS else line for i, line in enumerate(lines)]


def check_growers(name, rows):
    """Checks that in the model's base run the growers begin in one block and end in a second one."""
    for i in GROWERS:
        usage = rows[f"r{i:02d}"]["usage"]
        n_prompt, n = usage["prompt_tokens"], usage["completion_tokens"]
        # The last token is sampled but never computed.
        expect(n_prompt <= BLOCK < n_prompt + n - 1,
               f"{name}: r{i:02d} has {n_prompt} prompt tokens and {n} more: no grower")


def with_repeats(lines, key, n_shared):
    """The lines; r13, which begins like r11 and continues like r03; and r14, which repeats the
    greedy r06.
    """
    begins = {**lines[11], "custom_id": "r13", key: lines[11][key][:n_shared] + lines[3][key]}
    return lines + [begins, {**lines[6], "custom_id": "r14"}]


def with_answers(lines, key):
    """The lines, and short ones with several answers, beam search, penalties and
    log-probabilities.
    """
    kinds = [dict(n=2, seed=3, logprobs=2), dict(num_beams=3, n=2, max_tokens=5),
             dict(temperature=0, repetition_penalty=1.3, logit_bias={"7": 4.5, "9": -100}),
             dict(frequency_penalty=0.5, presence_penalty=-0.5, logprobs=1, prompt_logprobs=2),
             dict(temperature=0, min_tokens=4, stop_token_ids=list(range(0, 200, 2)), n=3)]
    return lines + [{"custom_id": f"s{i:02d}", "max_tokens": 9, key: lines[2][key][i:22 + i], **kind}
                    for i, kind in enumerate(kinds)]


def token_lines(n_vocab):
    """Prompts of token ids: ten of 3 to 65 tokens (a KV block has 64), one of two blocks, one of
    four, and one that is too long.
    """
    draw = random.Random(20)
    lengths = [3, 47, 52, 57, 61, 63, 64, 65, 48, 58, 110, 215, MODEL_LEN + 9]
    key = "prompt_token_ids"
    lines = [{"custom_id": f"r{i:02d}", key: [draw.randrange(n_vocab) for _ in range(length)],
              **sampling(i)} for i, length in enumerate(lengths)]
    return with_answers(with_repeats(with_growers(lines), key, 100), key)


def text_lines():
    """The same as text, for a model that has words."""
    words = [json.loads(line)["prompt"] for line in
             (REPO / "models" / "demo" / "prompts.jsonl").read_text().splitlines()]
    text = " ".join(words) * 20
    sizes = [2, 130, 115, 125, 110, 115, 135, 160, 155, 155, 330, 560, 4000]
    lines = [dict(custom_id=f"r{i:02d}", prompt=text[37 * i:37 * i + size], **sampling(i))
             for i, size in enumerate(sizes)]
    return with_answers(with_repeats(with_growers(lines), "prompt", 300), "prompt")


def with_adapters(lines, names):
    """The lines with the adapters in turn, and with none. r13 has that of the line with whose prompt it begins, r14
    that of the line it repeats.
    """
    turns = [*names, None]
    alike = {"r13": 11, "r14": 6}
    chosen = [(line, turns[alike.get(line["custom_id"], i) % len(turns)]) for i, line in enumerate(lines)]
    return [{**line, "adapter": name} if name else line for line, name in chosen]


def name_of(row):
    return " ".join(f"{key}={value}" for key, value in row.items())


def row_of(name):
    """The row with this name."""
    words = dict(word.split("=", 1) for word in name.split())
    known = {key: {str(value): value for value in values} for key, values in DIMENSIONS.items()}
    known["model"] = {model: model for model in HAS_EXPERTS}
    expect(list(words) == list(known) and all(words[key] in known[key] for key in words),
           f"no run has the name '{name}'")
    row = {key: known[key][word] for key, word in words.items()}
    expect(allowed(row), f"a run cannot be '{name}'")
    return row


class Law:
    def __init__(self, args):
        self.args, self.shoal = args, Shoal(args.shoal)
        self.work = Path(args.work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.state_path = self.work / "state.json"
        self.binary = hashlib.sha256(Path(self.shoal.path).read_bytes()).hexdigest()
        self.state = self.load_state()
        self.base, self.failures = {}, []
        self.sets = cpu.sets()
        self.stand_ins, self.n_same = Counter(), 0
        self.saving = threading.Lock()

    def load_state(self):
        """Hashes of the finished runs of this binary, by the run's name."""
        if self.args.full and self.state_path.exists():
            state = json.loads(self.state_path.read_text())
            if state["binary"] == self.binary:
                return state
        return {"binary": self.binary, "done": {}}

    def dimensions(self):
        """The dimensions to cover: the chosen models in all layouts, the families in some."""
        chosen = self.args.models.split(",") if self.args.models else None
        return [{**d, "model": [m for m in d["model"] if chosen is None or m in chosen]}
                for d in (DIMENSIONS, FAMILY_DIMENSIONS)]

    def rows(self):
        main, families = self.dimensions()
        if self.args.full:
            return [row for d in (main, families) for row in pairwise.all_rows(d, allowed, DECIDING)]
        return [row for dimensions, demand in ((main, main_demand), (families, family_demand))
                for row in pairwise.cover(dimensions, allowed, DECIDING, demand())]

    def models(self):
        return [name for d in self.dimensions() for name in d["model"]]

    def model(self, name):
        if name in KV_TYPES or name in DRAFTED or name in ADAPTED:
            name = source_of(name)
        return self.work / f"{name}.h5"

    def draft(self, name):
        return self.work / f"{name}.h5"

    def adapter(self, name, adapter):
        return self.work / f"{name}.{adapter}.h5"

    def load(self, name):
        """The report of a model's base run, which counts the tokens of each expert."""
        return self.work / f"{name}.load.json"

    def convert(self, source):
        if source == "demo":  # streamed experts are packed beside it
            shutil.copy(DEMO, self.model(source))
            return
        folder = checkpoint_of(SOURCES[source].parent, self.work / f"{source}-hf")
        self.shoal.must("convert", folder, self.model(source), "--quantized", "dequantize")

    def prepare(self, name):
        """Makes the model and its two inputs, and computes the hash that all its runs must have."""
        source = source_of(name)
        if name in QUANTIZED:
            self.shoal.must("quantize", self.model(source), self.model(name), "--format",
                            QUANTIZED[name], "--quiet")
        if name in DRAFTED:
            self.shoal.must("quantize", self.model(source), self.draft(name), "--format", DRAFTED[name], "--quiet")
        if source == "demo":
            lines = text_lines()
        else:
            config = json.loads((SOURCES[source] / "config.json").read_text())
            lines = token_lines(config.get("text_config", config)["vocab_size"])
        for adapter in ADAPTED.get(name, []):
            self.shoal.must("convert", GOLDENS.parent / "adapters" / adapter / "hf", self.adapter(name, adapter))
        if name in ADAPTED:
            lines = with_adapters(lines, ADAPTED[name])
        write_lines(self.work / f"{name}-given.jsonl", lines)
        random.Random(7).shuffle(lines)
        write_lines(self.work / f"{name}-shuffled.jsonl", lines)
        self.make_base(name)

    def kernels_of(self, row):
        """The kernel set that runs the row on this machine."""
        return cpu.stand_in(row["kernels"], self.sets)

    def has_draft(self, row):
        return row["model"] in DRAFTED and row["drafts"] != "off"

    def run(self, row, tag):
        """Runs a row. Returns its hash, report and rows."""
        flags, ranks, _ = LAYOUTS[row["layout"]]
        output, report = self.work / f"{tag}.jsonl", self.work / f"{tag}.report.json"
        for path in (output, report):
            path.unlink(missing_ok=True)
        argv = ["generate", "--model", self.model(row["model"]),
                "--input", self.work / f"{row['model']}-{row['order']}.jsonl",
                "--output", output, "--report", report, *flags, "--threads", row["threads"],
                "--kv-blocks", BLOCKS[row["blocks"]], "--max-model-len", MODEL_LEN,
                "--seed", 5, "--quiet", "--prefix-cache", row["cache"], "--result-cache",
                row["cache"], "--order", row["schedule"],
                "--speculate", drafts_of(row)]
        if row["copies"]:
            argv += ["--expert-load", self.load(row["model"]), "--expert-copies", row["copies"]]
        argv += ["--weights", row["weights"]]
        if row["weights"] == "stream":
            argv += ["--expert-memory", 1]
        if row["model"] in KV_TYPES:
            argv += ["--kv-dtype", KV_TYPES[row["model"]]]
        if self.has_draft(row):
            argv += ["--draft", self.draft(row["model"])]
        for adapter in ADAPTED.get(row["model"], []):
            argv += ["--adapter", f"{adapter}={self.adapter(row['model'], adapter)}"]
        if row["model"] in FP8_CODES:
            argv += ["--fp8-activations", "int8"]
        if row["batch"]:
            argv += ["--max-batch", row["batch"]]
        if row["chunk"]:
            argv += ["--chunk", row["chunk"]]
        # More threads than cores: waiting threads must sleep, not spin.
        env = {"SHOAL_KERNELS": self.kernels_of(row), "OMP_WAIT_POLICY": "passive"}
        self.start(row, argv, ranks, env)
        found = hash_rows(output), json.loads(report.read_text()), read_rows(output)
        output.unlink()
        report.unlink()
        return found

    def start(self, row, argv, ranks, env):
        """Runs a row's command. A tight pool holds one full context. Where layers with a window have block tables of
        their own, that is more blocks than BLOCKS says, and the refusal gives their number.
        """
        done = self.shoal(*argv, ranks=ranks, env=env)
        needs = LEAST_POOL.search(done.err) if row["blocks"] == "tight" and done.status == 2 else None
        if needs:
            argv[argv.index("--kv-blocks") + 1] = row["pool"] = int(needs[1])
            done = self.shoal(*argv, ranks=ranks, env=env)
        expect(done.status == 0, str(done))

    def check_report(self, row, report):
        """Checks that the run exercised what its row asks for."""
        asked = dict(LAYOUTS[row["layout"]][2])
        if not HAS_EXPERTS[row["model"]]:
            del asked["ep"], asked["etp"]
        layout = report["layout"]
        expect({k: layout[k] for k in asked} == asked, f"layout {layout}, asked {asked}")
        expect(layout["expert_copies"] == row["copies"], f"layout {layout}, {row['copies']} copies")
        for key, want in (("kernels", self.kernels_of(row)), ("threads", row["threads"]),
                          ("weights", row["weights"]),
                          ("kv_blocks", row.get("pool", BLOCKS[row["blocks"]])), ("order", row["schedule"]),
                          ("prefix_cache", row["cache"] == "on" and not has_states(row["model"])),
                          ("result_hits", N_REPEATS * (row["cache"] == "on"))):
            expect(report[key] == want, f"{key} {report[key]}, asked {want}")
        expect(report["chunk"] == row["chunk"] or not row["chunk"], f"chunk {report['chunk']}")
        self.check_drafts(row, report)
        peak = report["peak_batch"]
        if row["blocks"] == "plenty":
            n_least = {1: 1, 5: 5, 0: 6}[row["batch"]]
            expect(peak >= n_least, f"at most {peak} sequences ran together, {n_least} expected")
        expect(peak <= row["batch"] or not row["batch"], f"{peak} sequences ran together")
        n, n_replicas = report["preemptions"], asked["dp"]
        expect(n >= n_replicas if row["blocks"] == "tight" else n == 0,
               f"{n} preemptions with {report['kv_blocks']} blocks in {n_replicas} replicas")

    def check_drafts(self, row, report):
        """A number of drafts takes all of them from the draft model, if there is one; auto takes some where the clock
        says that they pay.
        """
        n, n_model, n_right = report["drafts"], report["model_drafts"], report["right_model_drafts"]
        may_draft = row["drafts"] != "off" and not has_states(row["model"])
        expect(n == 0 or may_draft, f"{n} drafts")
        if self.has_draft(row) and row["drafts"] != "auto":
            expect(0 < n_right < n_model == n, f"{n} drafts, {n_model} of the draft model, {n_right} of these right")
        else:
            expect(n_model <= n * self.has_draft(row), f"{n} drafts, {n_model} of the draft model")

    def make_base(self, name):
        """The hash that all other runs must have: one rank, reference kernels, each option's first
        value."""
        row = {key: values[0] for key, values in DIMENSIONS.items()} | {"model": name, "kernels": "ref"}
        self.base[name], report, rows = self.run(row, f"base-{name}")
        self.load(name).write_text(json.dumps(report))
        self.check_report(row, report)
        n_errors = sum("error" in r for r in rows.values())
        n_tokens = sum(len(r.get("token_ids", [])) for r in rows.values())
        expect(len(rows) == 20 and n_errors == 1 and n_tokens > 100,
               f"{name}: {len(rows)} rows, {n_errors} errors, {n_tokens} tokens")
        check_growers(name, rows)
        print(f"{name}: {n_tokens} tokens, sha256 {self.base[name]}")

    def one(self, numbered):
        number, row = numbered
        name, run = name_of(row), name_of({**row, "kernels": self.kernels_of(row)})
        if len(self.failures) >= FAILURES_MAX:
            return
        self.count_stand_in(row)
        if self.state["done"].get(run) == self.base[row["model"]]:
            self.n_same += 1
            print(f"{number} {name} -> done before, as {run}")
            return
        started = time.monotonic()
        try:
            found, report, _ = self.run(row, f"run{number}")
            self.check_report(row, report)
            expect(found == self.base[row["model"]], f"hash {found}")
        except (Failure, KeyError) as failure:
            self.failures.append(name)
            print(f"{number} {name}\n  FAILED: {failure!r}" if isinstance(failure, KeyError)
                  else f"{number} {name}\n  FAILED: {failure}")
            return
        self.state["done"][run] = found
        layout = " ".join(f"{k}{v}" for k, v in report["layout"].items())
        instead = "" if report["kernels"] == row["kernels"] else f" for {row['kernels']}"
        print(f"{number} {name} -> {layout}, {report['kernels']}{instead}, {report['preemptions']} "
              f"preemptions, {report['drafts']} drafts, {found[:16]}, "
              f"{time.monotonic() - started:.1f} s")
        if self.args.full:
            self.save_state()

    def count_stand_in(self, row):
        asked, used = row["kernels"], self.kernels_of(row)
        if asked != used:
            with self.saving:
                self.stand_ins[asked, used] += 1

    def save_state(self):
        with self.saving:
            self.write_state()

    def write_state(self):
        new = self.state_path.with_suffix(".new")
        new.write_text(json.dumps({"binary": self.binary, "done": dict(self.state["done"])}))
        new.replace(self.state_path)

    def say_stand_ins(self):
        for (asked, used), n in sorted(self.stand_ins.items()):
            print(f"{n} runs asked for {asked} kernels, which this CPU lacks, and used {used}")
        if self.n_same:
            print(f"{self.n_same} runs were done before, or are the same as another with these sets")

    def chosen_rows(self):
        if self.args.row:
            return [row_of(self.args.row)]
        rows = [row for row in self.rows() if self.args.only in name_of(row)]
        expect(rows, f"no run's name holds '{self.args.only}'")
        return rows

    def main(self):
        rows = self.chosen_rows()
        if self.args.list:
            print("\n".join(name_of(row) for row in rows))
            return
        print(f"{len(rows)} runs; this CPU has {', '.join(self.sets)}")
        models = sorted({row["model"] for row in rows})
        with ThreadPoolExecutor(self.args.jobs) as pool:
            list(pool.map(self.convert, {source_of(name) for name in models}))
            list(pool.map(self.prepare, models))
            list(pool.map(self.one, enumerate(rows, 1)))
        self.say_stand_ins()
        expect(not self.failures, f"{len(self.failures)} of {len(rows)} runs")
        print(f"{len(rows)} runs, one hash per model: {self.base}")


def parse(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("shoal")
    parser.add_argument("work")
    parser.add_argument("--full", action="store_true")
    # Half of a run's time is spent waiting, by launchers and by ranks for each other.
    parser.add_argument("--jobs", type=int, default=2 * len(os.sched_getaffinity(0)))
    parser.add_argument("--models", help="fewer models, by name, with commas")
    parser.add_argument("--only", default="", help="only runs whose name holds this")
    parser.add_argument("--row", help="this run alone, by its whole name; it need not be a chosen one")
    parser.add_argument("--list", action="store_true", help="print the names of the runs, run none")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main_of(Law(parse()).main)
