#!/usr/bin/env python3
"""Tests communication between GPUs on an emulated driver and an emulated NCCL, which work on the
CPU. This proves nothing about NCCL itself or a GPU.

usage: links.py SHOAL_EMULATED WORK_FOLDER CASE
  law      ranks with a GPU each, over NCCL or staged through host memory, write the rows of one rank on the CPU
  overlap  so do steps that run in halves with their sums in parts; one half's kernels are launched while the sums
           of the other half travel
  ways     NCCL or staging is chosen by which ranks share a GPU, can be requested by a flag, and is reported
  faults   a missing NCCL, one that does not start, a rank that hangs or disconnects: one sentence, the contract's
           exit status, no hang
"""
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "e2e"))
from program import GOLDENS, Shoal, expect, fresh_folder, main_of  # noqa: E402

LAYOUTS = {"smollm-tied": [(["--tp", "2", "--pp", "2"], 4)],
           "qwen3-moe-mixed": [(["--tp", "2", "--ep", "2"], 2), (["--dp", "3", "--ep", "3"], 3)]}
OVERLAPS = [("smollm-tied", ["--tp", "2"], 2), ("granite-moe", ["--tp", "2", "--pp", "2"], 4),
            ("qwen3-moe-mixed", ["--tp", "2", "--dp", "2", "--ep", "2"], 4),
            ("deepseek-v3", ["--tp", "2"], 2), ("olmoe-clip", ["--tp", "2"], 2)]
LINES = ['{"prompt": "Once upon a time", "max_tokens": 3}', '{"prompt": "It", "max_tokens": 2}']

EXACT = ["--device", "cuda", "--exact-across-devices"]

class LinksTest:
    def __init__(self, shoal, work, case):
        self.shoal, self.case = Shoal(shoal), case
        self.work = Path(work)
        fresh_folder(self.work)
        self.input = self.work / "in.jsonl"
        self.input.write_text("\n".join(LINES) + "\n")

    def convert(self, name):
        model = self.work / f"{name}.h5"
        self.shoal.must("convert", GOLDENS / name / "hf", model)
        return model

    def run(self, model, flags, ranks=0, machine="", record=None):
        """Runs generate. If it succeeds, .rows has the output's bytes."""
        output = self.work / "rows.jsonl"
        done = self.shoal("generate", "--model", model, "--input", self.input, "--output", output,
                          *flags, ranks=ranks,
                          env={"SHOAL_EMULATED": machine,
                               **({"SHOAL_EMULATED_RECORD": str(record)} if record else {})})
        done.rows = output.read_bytes() if done.status == 0 else None
        return done

    def law(self):
        for name, layouts in LAYOUTS.items():
            model = self.convert(name)
            want = self.run(model, []).rows
            for layout, ranks in layouts:
                done = self.run(model, [*EXACT, *layout], ranks, f"devices={ranks}")
                expect(done.rows == want, f"{name} {layout}: other rows over NCCL: {done}")
                expect("over NCCL" in done.err, f"{layout}: not over NCCL: {done}")
                print(f"  {name} {' '.join(layout)}: the same bytes over NCCL, {ranks} ranks")

    def overlap(self):
        """Every step of two or more rows runs in halves, and every sum in parts."""
        halves = [*EXACT, "--device-overlap", "2", "--device-parts", "1"]
        for name, layout, ranks in OVERLAPS:
            model = self.convert(name)
            want = self.run(model, []).rows
            record = self.work / f"record-{name}"
            record.mkdir()
            late = f"devices={ranks} nccl_late=1"
            done = self.run(model, [*halves, *layout], ranks, late, record)
            expect(done.rows == want, f"{name} {layout}: other rows in halves: {done}")
            n, beside = self.sums_beside(record)
            expect(n > 0 and 2 * beside >= n, f"{name}: {beside} of {n} sums with work beside them")
            print(f"  {name} {' '.join(layout)}: the same bytes in halves; launches of the other half "
                  f"were asked for during {beside} of {n} sums")
            if name != OVERLAPS[0][0]:
                continue
            whole = self.work / "record-whole"
            whole.mkdir()
            self.run(model, [*EXACT, *layout], ranks, f"devices={ranks}", whole)
            expect(self.sums_beside(whole)[0] == 0, "small steps went in halves")

    @staticmethod
    def sums_beside(record):
        """The number of sums that ran beside the compute stream: between such a sum's start and
        the wait for its end, the compute stream was given a leaf's products or attention.
        """
        n = beside = 0
        for path in record.iterdir():
            lines = [line.split() for line in path.read_text().splitlines()]
            launched = [line[0] for line in lines if line[1] == "launch"]
            compute = max(set(launched), key=launched.count)
            side = {line[0] for line in lines if line[1:] == ["launch", "grid_words"]}
            open_sums = []
            for line in lines:
                if line[0] in side and line[1:] == ["launch", "grid_words"]:
                    open_sums.append(False)
                    n += 1
                elif line[0] == compute and line[1] == "await" and line[2] in side:
                    beside += open_sums.pop(0) if open_sums else 0
                elif line[0] == compute and line[1] == "launch":
                    big = line[2].startswith(("linear", "attention"))
                    open_sums = [seen or big for seen in open_sums]
        return n, beside

    def ways(self):
        model = self.convert("smollm-tied")
        tp2 = [*EXACT, "--tp", "2"]
        for machine, flags, words in [
                ("devices=1", [], ["ranks 0 and 1 share GPU 0000:01:00.0", "through host memory",
                                   "shared by 2 ranks"]),
                ("devices=2", ["--device-comm", "staged"], ["through host memory", "staged"]),
                ("devices=2", ["--device-comm", "nccl"], ["tp over NCCL"]),
                ("devices=2 nccl_missing=1", [], ["rank 0 has no NCCL"])]:
            done = self.run(model, [*tp2, *flags], 2, machine)
            expect(done.status == 0, f"{machine}: {done}")
            for word in words:
                expect(word in done.err, f"{machine} {flags}: no '{word}' in: {done}")
            print(f"  {machine} {' '.join(flags)}: {words[0]}")
        self.refused(model, tp2 + ["--device-comm", "nccl"], "devices=1", 2, ["share GPU"])
        self.refused(model, tp2 + ["--device-comm", "radio"], "devices=2", 2, ["auto, nccl or staged"])

    def refused(self, model, flags, machine, status, words, ranks=2):
        done = self.run(model, flags, ranks, machine)
        expect(done.status == status, f"{machine}: expected status {status}: {done}")
        for word in words:
            expect(word in done.err, f"{machine}: no '{word}' in: {done}")
        said = [line for line in done.err.splitlines() if words[0] in line]
        print(f"  {machine}: status {status}: {said[0][:170]}")

    def faults(self):
        dense, tp2 = self.convert("smollm-tied"), [*EXACT, "--tp", "2"]
        soon = ["--watchdog", "3"]
        for error in ("id", "open"):
            self.refused(dense, tp2, f"devices=2 nccl_{error}_error=2", 2,
                         ["opening a communicator over tp with rank 1", "unhandled system error"])
        # A rank whose host stops: the other rank names it.
        self.refused(dense, [*tp2, *soon], "devices=2 nccl_rank=1 nccl_stuck=20", 76,
                     ["all-reduce over tp with rank 1 on", "no answer for"])
        # A rank whose GPU stops: the deadline that ends first ends both ranks.
        self.refused(dense, [*tp2, *soon], "devices=2 nccl_rank=1 nccl_silent=20", 76,
                     ["all-reduce over tp with rank"])
        self.refused(dense, tp2, "devices=2 nccl_rank=1 nccl_gone=20", 76,
                     ["all-reduce over tp with rank", "remote process exited"])
        self.refused(dense, [*EXACT, "--pp", "2", *soon],
                     "devices=2 nccl_rank=0 nccl_silent=1", 76, ["with rank 0 on"])
        moe = self.convert("qwen3-moe-mixed")
        self.refused(moe, [*EXACT, "--dp", "2", "--ep", "2", *soon],
                     "devices=2 nccl_rank=1 nccl_silent=3", 76, ["all-to-all over ep with rank"])

    def main(self):
        getattr(self, self.case)()


if __name__ == "__main__":
    main_of(LinksTest(*sys.argv[1:4]).main)
