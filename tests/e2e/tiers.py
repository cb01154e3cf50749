#!/usr/bin/env python3
"""Tests KV blocks outside memory: windows, and --kv-tier.

usage: tiers.py SHOAL WORK_FOLDER CASE
  tier     three times as many sequences as the pool holds, with and without the tier, on one rank, tp 2, pp 2, dp 2
           and with windows and index keys: the same bytes, fewer rows computed again, and counts that agree; a read
           that fails or comes back changed is computed again; what cannot have a tier is refused
  store    questions on one document, in jobs that follow each other: the second computes none of the
           document's whole blocks, in the layout of the first and in others; a flipped bit and a file cut short are
           noticed and computed; index keys are read by other layouts; two jobs write at once; other KV types and
           models share nothing; the folder is bounded
  windows  a model with gpt-oss's layers in a pool too small for the blocks that windows have left: the same bytes
           in every layout as in a pool that is never short
"""
import json
import random
import subprocess
import sys
from pathlib import Path

from program import GOLDENS, REPO, Shoal, expect, fresh_folder, main_of, write_lines

from generated_weights import checkpoint_of

DEMO = REPO / "models" / "demo" / "demo.h5"
LAYOUTS = {"one rank": ([], 0), "tp 2": (["--tp", "2"], 2), "pp 2": (["--pp", "2"], 2),
           "dp 2": (["--dp", "2"], 2)}
N_LINES = 27
PROMPT, ANSWER = 130, 190
WINDOWED = 90  # tokens of an answer in `windows`: with the prompt, more than three blocks
BLOCKS = 45  # of 64 tokens: 9 sequences of 320 tokens


def lines_of(n_vocab):
    draw = random.Random(8)
    kinds = [dict(temperature=0), dict(temperature=0.9, top_k=20, seed=4), dict()]
    return [dict(custom_id=f"t{i}", max_tokens=ANSWER, min_tokens=ANSWER, **kinds[i % 3],
                 prompt_token_ids=[draw.randrange(n_vocab) for _ in range(PROMPT)])
            for i in range(N_LINES)]


class TierTest:
    def __init__(self, shoal, work):
        self.shoal, self.work = Shoal(shoal), Path(work)
        fresh_folder(self.work)
        self.files = self.work / "files"
        self.files.mkdir()

    def converted(self, name):
        path = self.work / f"{name}.h5"
        if not path.exists():
            self.shoal.must("convert", checkpoint_of(GOLDENS / name, self.work / f"{name}-hf"), path)
        return path

    def run(self, model, *flags, ranks=0):
        """The output's bytes, the report and what was said."""
        output, report = self.work / "out.jsonl", self.work / "report.json"
        for path in (output, report):
            path.unlink(missing_ok=True)
        done = self.shoal.must("generate", "--model", model, "--input", self.work / "in.jsonl",
                               "--output", output, "--report", report, "--threads", 1, *flags,
                               ranks=ranks, env={"OMP_WAIT_POLICY": "passive"})
        return output.read_bytes(), json.loads(report.read_text()), done

    def check_tier(self, model, layout, base, blocks):
        flags, ranks = LAYOUTS[layout]
        flags = [*flags, "--kv-blocks", blocks, "--max-model-len", 512, "--speculate", "off"]
        without, before, _ = self.run(model, *flags, ranks=ranks)
        tiered, found, _ = self.run(model, *flags, "--kv-tier", f"{self.files}:64M", ranks=ranks)
        expect(base in (None, without), f"{layout}: other bytes without a tier")
        expect(tiered == without, f"{layout}: other bytes with a tier")
        counts = [found[name] for name in ("tier_blocks_out", "tier_blocks_in", "tier_tokens")]
        print(f"{model.name} {layout}: preemptions {before['preemptions']} -> "
              f"{found['preemptions']}, tokens computed again {before['recomputed_tokens']} -> "
              f"{found['recomputed_tokens']}; blocks out {counts[0]}, in {counts[1]}, "
              f"{counts[2]} tokens")
        expect(before["preemptions"] > 0 and found["preemptions"] > 0, "nothing was preempted")
        expect(before["tier_blocks_out"] == 0, "a tier without the flag")
        expect(min(counts) > 0 and found["tier_failed"] == 0, f"nothing was moved: {counts}")
        expect(found["recomputed_tokens"] < before["recomputed_tokens"], "no less work")
        moved = [rank["tier"] for rank in found["ranks"]]
        expect(sum(t["blocks_in"] for t in moved) >= counts[1], f"ranks moved {moved}")
        expect(all(t["bytes_out"] > 0 for t in moved) or found["layout"]["dp"] > 1, f"{moved}")
        expect(not list(self.files.iterdir()), "a file was left")
        return without

    def check_faults(self, base):
        """The first block that is read fails (later ones are read only if reads are fast): its tokens
        are computed, and the job says so.
        """
        flags = ["--kv-blocks", BLOCKS, "--max-model-len", 512, "--speculate", "off",
                 "--kv-tier", f"{self.files}:64M"]
        for layout in ("one rank", "tp 2"):
            more, ranks = LAYOUTS[layout]
            rows, found, done = self.run(DEMO, *flags, *more, "--failpoint", "tier_read:1:EIO",
                                         ranks=ranks)
            expect(rows == base, f"{layout}: other bytes after a failed read")
            expect(found["tier_failed"] > 0 and "--kv-tier: a KV block" in done.err, done.err)

    def check_refusals(self):
        argv = ["generate", "--model", DEMO, "--input", self.work / "in.jsonl", "--output",
                self.work / "no.jsonl"]
        for flags, word in ((["--kv-tier", "x"], "--kv-tier: expected DIR:SIZE"),
                            (["--kv-tier", f"{self.work}/missing:1M"], "missing"),
                            (["--kv-tier", f"{self.files}:1"], "bytes, one KV block of a rank, found 1"),
                            (["--kv-tier", f"{self.files}:1M", "--prefix-cache", "off"],
                             "--kv-tier: needs --prefix-cache on")):
            done = self.shoal(*argv, *flags)
            expect(done.status in (2, 3, 74) and word in done.err, f"{flags}: {done}")
        states = self.converted("qwen3-next")
        done = self.shoal("generate", "--model", states, *argv[3:], "--kv-tier",
                          f"{self.files}:1M")
        expect(done.status == 2 and "recurrent" in done.err, str(done))

    def tier(self):
        write_lines(self.work / "in.jsonl", lines_of(200))
        base = None
        for layout in LAYOUTS:
            base = self.check_tier(DEMO, layout, base, BLOCKS)
        self.check_faults(base)
        windowed = self.converted("gpt-oss")
        self.check_tier(windowed, "one rank", None, 70)
        self.check_tier(windowed, "tp 2", None, 70)
        indexed = self.converted("minimax-m3")  # its index keys lie behind the keys and values of a layer
        self.check_tier(indexed, "tp 2", self.check_tier(indexed, "one rank", None, BLOCKS), BLOCKS)
        self.check_refusals()

    # --- the store ---

    def ask(self, first, n, model=DEMO, layout="one rank", flags=()):
        """Asks questions [first, first + n) on the document: the output's bytes and the report."""
        write_lines(self.work / "in.jsonl", self.questions[first:first + n])
        more, ranks = LAYOUTS[layout]
        rows, found, done = self.run(model, "--max-model-len", 1024, "--speculate", "off", *more,
                                     *flags, ranks=ranks)
        self.said = done.err
        return rows, found

    def with_store(self, first, n, store, **how):
        flags = ["--prefix-store", f"{self.work / store}:64M", *how.pop("flags", ())]
        return self.ask(first, n, flags=flags, **how)

    def files_of(self, store):
        return sorted(p for p in (self.work / store).glob("??/*"))

    def expect_hit(self, what, rows, expected, found, n_tokens=None):
        n_tokens = self.n_whole if n_tokens is None else n_tokens
        expect(rows == expected, f"{what}: other bytes")
        n_computed = found["ranks"][0]["rows"]
        print(f"{what}: {found['store_tokens']} tokens from the store, {n_computed} rows "
              f"computed, {found['store_blocks_out']} blocks written")
        expect(found["store_tokens"] == n_tokens, f"{what}: {n_tokens} tokens expected")

    def check_layouts(self):
        plain, alone = self.ask(4, 1)
        first, found = self.with_store(0, 4, "store")
        expect(first == self.ask(0, 4)[0], "the first job: other bytes")
        expect(found["store_blocks_out"] == self.n_whole // 64, f"{found['store_blocks_out']}")
        for layout in LAYOUTS:
            rows, found = self.with_store(4, 1, "store", layout=layout)
            self.expect_hit(f"second job, {layout}", rows, plain, found)
            n_rows = alone["ranks"][0]["rows"] - self.n_whole
            expect(found["ranks"][0]["rows"] in (n_rows, 0), "rows")
        for layout in ("tp 2", "pp 2"):  # one rank joins the parts that several ranks wrote
            self.with_store(0, 4, f"store {layout}", layout=layout)
            rows, found = self.with_store(4, 1, f"store {layout}")
            self.expect_hit(f"written by {layout}, read by one rank", rows, plain, found)
        other, _ = self.ask(4, 1, flags=["--kv-dtype", "f32"])
        rows, found = self.with_store(4, 1, "store", flags=["--kv-dtype", "f32"])
        self.expect_hit("another KV type", rows, other, found, 0)
        return plain

    def check_index(self):
        """Index keys beside keys and values: each rank of tp writes them, and reads those of another."""
        model = self.converted("minimax-m3")
        plain, _ = self.ask(4, 1, model=model)
        for writer, reader in (("tp 2", "one rank"), ("one rank", "tp 2")):
            store = f"index {writer}"
            self.with_store(0, 4, store, model=model, layout=writer)
            rows, found = self.with_store(4, 1, store, model=model, layout=reader)
            self.expect_hit(f"index keys written by {writer}, read by {reader}", rows, plain, found)

    def check_damage(self, plain):
        files = self.files_of("store")
        data = bytearray(files[3].read_bytes())
        data[len(data) // 2] ^= 4
        files[3].write_bytes(data)
        rows, found = self.with_store(4, 1, "store")
        expect(rows == plain and found["tier_failed"] > 0, "a flipped bit")
        expect("--prefix-store: a KV block" in self.said, self.said)
        expect(not files[3].exists(), "the damaged file stays")
        self.with_store(0, 4, "store")  # written again
        expect(files[3].exists(), "the damaged file is not written again")
        files[5].write_bytes(files[5].read_bytes()[:1000])
        rows, found = self.with_store(4, 1, "store", layout="tp 2")
        expect(rows == plain and not files[5].exists(), "a torn file")
        self.with_store(0, 4, "store")
        rows, found = self.with_store(4, 1, "store")
        self.expect_hit("after the damage", rows, plain, found)

    def check_two_jobs(self, plain):
        argv = ["generate", "--model", DEMO, "--input", self.work / "in.jsonl", "--threads", 1,
                "--max-model-len", 1024, "--speculate", "off", "--prefix-store",
                f"{self.work / 'shared'}:64M", "--output"]
        write_lines(self.work / "in.jsonl", self.questions[:4])
        jobs = [subprocess.Popen([str(a) for a in (self.shoal.path, *argv, self.work / f"{i}.jsonl")],
                                 stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for i in range(2)]
        expect([job.wait() for job in jobs] == [0, 0], "two jobs at once")
        expect((self.work / "0.jsonl").read_bytes() == (self.work / "1.jsonl").read_bytes(),
               "two jobs: other bytes")
        expect(not [p for p in self.files_of("shared") if "tmp" in p.name], "a file is left over")
        rows, found = self.with_store(4, 1, "shared")
        self.expect_hit("after two jobs at once", rows, plain, found)

    def check_bound(self):
        """A folder for half of the document's blocks holds no more, and the output is the same."""
        n_bytes = sum(p.stat().st_size for p in self.files_of("store"))
        flags = ["--prefix-store", f"{self.work / 'small'}:{n_bytes // 2}"]
        expected = self.ask(0, 4)[0]
        for _ in range(2):
            rows, _ = self.ask(0, 4, flags=flags)
            expect(rows == expected, "a small folder: other bytes")
        kept = sum(p.stat().st_size for p in self.files_of("small"))
        expect(0 < kept <= n_bytes // 2, f"{kept} bytes of {n_bytes // 2}")

    def store(self):
        draw = random.Random(9)
        document = [draw.randrange(200) for _ in range(730)]
        self.n_whole = 730 // 64 * 64
        self.questions = [dict(custom_id=f"q{i}", max_tokens=12, temperature=0.7, seed=i,
                               prompt_token_ids=document + [draw.randrange(200) for _ in range(50)])
                          for i in range(5)]
        plain = self.check_layouts()
        self.check_index()
        self.check_damage(plain)
        self.check_two_jobs(plain)
        self.check_bound()

    # --- windows ---

    def windows(self):
        """One sequence of 512 tokens needs 8 blocks of the layers without a window, and with 16
        rows a step at most 2 of those with a window of 8. So 10 are enough; if windows left no
        blocks, it would need 16."""
        short = dict(max_tokens=WINDOWED, min_tokens=WINDOWED)
        write_lines(self.work / "in.jsonl", [{**line, **short} for line in lines_of(60)[:5]])
        for name in ("gpt-oss", "mistral-short", "gemma3"):
            model = self.converted(name)
            flags = ["--max-model-len", 512, "--step-tokens", 16, "--speculate", "off"]
            base, _, done = self.run(model, *flags, "--kv-blocks", 1000)
            for layout, (more, ranks) in LAYOUTS.items():
                blocks = self.least_blocks(model, [*flags, *more], ranks)
                rows, found, _ = self.run(model, *flags, *more, "--kv-blocks", blocks, ranks=ranks)
                expect(rows == base, f"{name}, {layout}: other bytes in a tight pool")
                print(f"{name} {layout}: {blocks} blocks are enough, {found['blocks']}")

    def least_blocks(self, model, flags, ranks):
        done = self.shoal("generate", "--model", model, "--input", self.work / "in.jsonl",
                          "--output", self.work / "no.jsonl", "--kv-blocks", 1, *flags,
                          ranks=ranks)
        words = done.err.split("tokens needs ")
        expect(done.status == 2 and len(words) > 1, str(done))
        return int(words[1].split(";")[0])


if __name__ == "__main__":
    test = TierTest(*sys.argv[1:3])
    main_of({"tier": test.tier, "store": test.store, "windows": test.windows}[sys.argv[3]])
