#!/usr/bin/env python3
"""Tests the architectures of GGUF: a golden's model, written as llama.cpp's converter writes it,
gives the bytes of its Hugging Face folder.

usage: gguf.py SHOAL WORK_FOLDER
"""
import json
import shutil
import sys

from program import GOLDENS, Shoal, expect, fresh_folder, main_of
from gguf_file import BOOL, Tensor, of_floats, write_gguf

GROUPS = ["expert_group_count", "expert_group_used_count"]
LLAMA4 = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "use_qk_norm": True,
          "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}
# Golden, architecture, how the file differs from today's converter's, and config fields that a GGUF
# file cannot state: the folder gets the values that convert assumes for such a file.
CASES = [("gemma2", "gemma2", {}, {"query_pre_attn_scalar": 16}),
         ("gemma3", "gemma3", {},
          {"query_pre_attn_scalar": 16, "layer_types": ["sliding_attention"] * 4}),
         ("qwen3-bias", "qwen3", {}),
         ("granite", "granite", {}),
         ("granite-moe", "granitemoe", {}),
         ("granite-moe-untied", "granitemoe", {}),
         ("granite-moe-shared", "granitemoe", {}),
         ("granite-moe-unshared", "granitemoe", {}),
         ("llama4", "llama4", {}, LLAMA4),
         ("olmoe", "olmoe", {}),
         ("glm4-moe", "glm4moe", {}),
         ("glm4-moe-plain", "glm4moe", {}),
         ("deepseek-v3", "deepseek2", {}),
         ("deepseek-v3", "deepseek2", {"old": True}),
         ("deepseek-v3", "deepseek2", {"without": GROUPS}, {"n_group": 1, "topk_group": 1}),
         ("deepseek-v2", "deepseek2", {}),
         ("deepseek-v2-lite", "deepseek2", {"without": ["expert_gating_func"]}),
         ("qwen3-next", "qwen3next", {}),
         ("qwen3-next", "qwen3next", {"old": True, "without": ["full_attention_interval"]})]
# Golden, architecture, changes, words of convert's refusal.
REFUSED = [("granite", "granite", {"without": ["logit_scale"]},
            "key granite.logit_scale: expected a number"),
           ("granite-moe", "granitemoe", {"rope__scaling__finetuned": (BOOL, False)},
            "key granitemoe.rope.scaling.finetuned: expected true"),
           ("granite-moe", "granitemoe", {"put": {"blk.1.ffn_up_exps.weight": None}},
            "has a tensor 'blk.1.ffn_gate_exps.weight', but no 'blk.1.ffn_up_exps.weight'"),
           ("granite-moe", "granitemoe", {"put": {"blk.1.ffn_gate_exps.weight": None}},
            "tensor 'blk.1.ffn_up_exps.weight' is not implemented"),
           ("granite-moe", "granitemoe", {"feed_forward_length": 40},
            "ffn_gate_exps.weight': expected [8, 40, 64]"),
           ("granite-moe-shared", "granitemoe", {"without": ["expert_used_count"]},
            "key granitemoe.expert_used_count: expected an integer"),
           ("llama4", "llama4", {"attention__sliding_window": 0},
            "key llama4.attention.sliding_window is not implemented"),
           ("llama4", "llama4", {"without": ["interleave_moe_layer_step", "rope.scaling.type"]},
            "key llama4.interleave_moe_layer_step: expected an integer"),
           ("glm4-moe", "glm4moe", {"expert_gating_func": 1},
            "key glm4moe.expert_gating_func: expected 2"),
           ("glm4-moe", "glm4moe", {"nextn_predict_layers": 9},
            "key glm4moe.nextn_predict_layers: expected fewer than the blocks"),
           ("deepseek-v3", "deepseek2", {"attention__value_length_mla": 31},
            "attn_v_b.weight': expected [4, 31, 32]"),
           ("deepseek-v3", "deepseek2", {"without": ["expert_group_used_count"]},
            "expected two integers"),
           ("olmoe", "olmoe", {"rope__freq_base": -1.0},
            "key olmoe.rope.freq_base: expected a number above 0"),
           ("qwen3-next", "qwen3next", {"ssm__inner_size": 130},
            "key qwen3next.ssm.inner_size: expected a multiple of ssm.time_step_rank"),
           ("qwen3-next", "qwen3next", {"ssm__time_step_rank": 3},
            "key qwen3next.ssm.time_step_rank: expected a multiple of ssm.group_count"),
           ("qwen3-next", "qwen3next", {"ssm__inner_size": 64},
            "attn_qkv.weight': expected [128, 64]"),
           ("qwen3-next", "qwen3next", {"put": {"blk.1.attn_gate.weight": None}},
            "has a tensor 'blk.1.attn_qkv.weight', but no 'blk.1.attn_gate.weight'"),
           ("qwen3-next", "qwen3next", {"put": {"blk.1.attn_qkv.weight": None}},
            "tensor 'blk.1.attn_gate.weight' is not implemented"),
           ("qwen3-next", "qwen3next", {"without": ["ssm.conv_kernel"]},
            "key qwen3next.ssm.conv_kernel: expected an integer"),
           ("qwen3-next", "qwen3next", {"put": {"blk.0.ssm_a": of_floats([4], [-1, -1, 0.5, -1])}},
            "tensor 'blk.0.ssm_a': expected values below 0"),
           ("qwen3-next", "qwen3next", {"put": {"blk.0.ssm_a": Tensor("BF16", [4], bytes(8))}},
            "tensor 'blk.0.ssm_a': expected F32"),
           ("deepseek-v3", "deepseek2", {"put": {"blk.1.attn_v_b.weight": None}},
            "has a tensor 'blk.1.attn_k_b.weight', but no 'blk.1.attn_v_b.weight'"),
           ("qwen3-next", "qwen3next", {"expert_gating_func": 2},
            "key qwen3next.expert_gating_func is not implemented")]
# For a file without the keys of expert groups, convert chooses the groups by the number of experts,
# and says so.
OLD_GROUPS = [("deepseek-v2", 160, "routed to 3 of 8 groups"),
              ("deepseek-v3", 256, "routed to 4 of 8 groups"),
              ("deepseek-v3", 12, "routed to 1 of 1 groups")]


class GgufTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), fresh_folder(work)

    def scores(self, case, model):
        output = self.work / "scores.jsonl"
        output.unlink(missing_ok=True)
        self.shoal.must("score", "--model", model, "--input", case / "sequences.jsonl",
                        "--output", output, "--quiet")
        return output.read_bytes()

    def check(self, name, arch, how, fields={}):
        case, folder = GOLDENS / name, fresh_folder(self.work / "hf")
        gguf = self.work / "model.gguf"
        want, model = self.work / "want.h5", self.work / "model.h5"
        shutil.copytree(case / "hf", folder, dirs_exist_ok=True)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **fields}))
        write_gguf(gguf, arch, folder, **how)
        self.shoal.must("convert", folder, want)
        self.shoal.must("convert", gguf, model)
        expect(self.scores(case, model) == self.scores(case, want),
               f"{name} as {arch} {how}: other scores than from its folder")

    def check_delta_codes(self):
        """A delta rule's input projection, stored in two halves, gives the scores of the whole one:
        with quantized values kept, with dequantized ones, and with one half in floats."""
        halves, whole = ("attn_qkv.weight", "attn_gate.weight"), ("ssm_in.weight",)
        floats = ["--quantized", "dequantize", "--dtype", "f32"]
        cases = [({"old": True, "q8": whole}, {"q8": halves}, []),
                 ({"old": True, "q8": whole}, {"q8": halves}, floats),
                 ({"q8": halves}, {"q8": halves[:1], "q8_values": halves[1:]}, floats)]
        for *files, flags in cases:
            scores = []
            for how in files:
                gguf, model = self.work / "delta.gguf", self.work / "delta.h5"
                write_gguf(gguf, "qwen3next", GOLDENS / "qwen3-next" / "hf", **how)
                self.shoal.must("convert", gguf, model, *flags)
                scores.append(self.scores(GOLDENS / "qwen3-next", model))
            expect(scores[0] == scores[1], f"qwen3-next {files} {flags}: other scores")

    def check_refusals(self):
        for name, arch, how, says in REFUSED:
            gguf = self.work / "wrong.gguf"
            write_gguf(gguf, arch, GOLDENS / name / "hf", **how)
            done = self.shoal("convert", gguf, self.work / "wrong.h5")
            expect(done.status == 3 and says in done.err, f"{name} {how}: {done}")

    def check_old_groups(self):
        for name, n_experts, says in OLD_GROUPS:
            gguf = self.work / "old.gguf"
            write_gguf(gguf, "deepseek2", GOLDENS / name / "hf", without=GROUPS,
                       expert_count=n_experts)
            done = self.shoal.must("convert", gguf, self.work / "old.h5")
            expect(says in done.err, f"{name}, {n_experts} experts: {done}")

    def main(self):
        for case in CASES:
            self.check(*case)
        self.check_delta_codes()
        self.check_refusals()
        self.check_old_groups()


if __name__ == "__main__":
    main_of(GgufTest(*sys.argv[1:3]).main)
