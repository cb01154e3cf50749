#!/usr/bin/env python3
"""llama.cpp's side of a comparison: answers lines of stdin as `shoal bench --turns` does.

usage: llama_turns.py MODEL.gguf --threads N [--step-tokens N] [--mapped]

    PROMPT OUTPUT CONCURRENCY   one repetition; a line of JSON with seconds, tokens and steps of its prefill and of
                                its decoding
    score ID ID ...             natural log-probability of each token after the first
    about                       version, commit, CPU features and parameters

Prompts and answers are the synthetic tokens of shoal bench (bench_cost.c, bench_token). Calls llama_decode on
batches and reads one logit of each row, nothing else: no sampling, no text. Needs llama-cpp-python. --mapped: weights are
used where the file is mapped, not repacked into memory of their own.
"""
import argparse
import ctypes
import json
import math
import pathlib
import sys
import time

import llama_cpp
import llama_cpp.llama_cpp as ll

def token(i, position, vocab):
    """The synthetic token of shoal's bench_token."""
    m = 0xFFFFFFFF
    x = (i * 0x9E3779B9 + position) & m
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & m
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & m
    return (x ^ (x >> 16)) % vocab


class Peer:
    def __init__(self, path, n_threads, step_tokens, is_mapped):
        self.quiet = ll.llama_log_callback(lambda level, text, user: None)
        ll.llama_log_set(self.quiet, None)
        ll.llama_backend_init()
        params = ll.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = not is_mapped
        self.model = ll.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            sys.exit(f"{path}: llama.cpp cannot load it")
        self.vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.n_threads, self.step_tokens = n_threads, step_tokens
        self.room, self.context = (0, 0), None
        self.batch = ll.llama_batch_init(step_tokens, 0, 1)

    def context_for(self, n_seqs, length):
        """Returns a context for n_seqs sequences of `length` tokens each. Only one context exists
        at a time; it is reused while n_seqs is the same and it has enough room.
        """
        if self.room[0] != n_seqs or self.room[1] < length:
            if self.context is not None:
                ll.llama_free(self.context)
            p = ll.llama_context_default_params()
            p.n_ctx = length * n_seqs
            p.n_batch = p.n_ubatch = self.step_tokens
            p.n_seq_max = n_seqs
            p.n_threads = p.n_threads_batch = self.n_threads
            p.no_perf = True
            self.room, self.context = (n_seqs, length), ll.llama_init_from_model(self.model, p)
            if not self.context:
                sys.exit(f"llama.cpp cannot make a context for {n_seqs} sequences of {length} tokens (at most "
                         f"{ll.llama_max_parallel_sequences()} sequences)")
        return self.context

    def decode(self, ctx, rows):
        """rows: (token, position, sequence, wants logits)."""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (tok, pos, seq, wants) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = tok, pos, 1, wants
            b.seq_id[i][0] = seq
        status = ll.llama_decode(ctx, b)
        if status != 0:
            sys.exit(f"llama_decode: status {status} for {len(rows)} rows")
        for i, row in enumerate(rows):
            if row[3]:
                ll.llama_get_logits_ith(ctx, i)[0]  # waits until the logits are computed

    def repeat(self, prompt, output, n_seqs):
        ctx = self.context_for(n_seqs, prompt + output)
        ll.llama_memory_clear(ll.llama_get_memory(ctx), False)
        rows = [(token(s, t, self.vocab), t, s, t + 1 == prompt) for s in range(n_seqs) for t in range(prompt)]
        steps = [[(token(s, prompt + t, self.vocab), prompt + t, s, True) for s in range(n_seqs)]
                 for t in range(output - 1)]
        since, cpu_since = time.perf_counter(), time.process_time()
        for at in range(0, len(rows), self.step_tokens):
            self.decode(ctx, rows[at:at + self.step_tokens])
        middle, cpu_middle = time.perf_counter(), time.process_time()
        for step in steps:
            for at in range(0, n_seqs, self.step_tokens):
                self.decode(ctx, step[at:at + self.step_tokens])
        end, cpu_end = time.perf_counter(), time.process_time()
        n_steps = -(-len(rows) // self.step_tokens)
        return {"prompt": prompt, "output": output, "concurrency": n_seqs, "repetition": {
            "wall_s": end - since, "requests": n_seqs, "output_tokens": n_seqs * output,
            "prefill": {"seconds": middle - since, "cpu_seconds": cpu_middle - cpu_since, "steps": n_steps,
                        "tokens": len(rows)},
            "decode": {"seconds": end - middle, "cpu_seconds": cpu_end - cpu_middle, "steps": len(steps),
                       "tokens": n_seqs * len(steps)}}}

    def score(self, ids):
        ctx = self.context_for(1, len(ids))
        ll.llama_memory_clear(ll.llama_get_memory(ctx), False)
        self.decode(ctx, [(t, i, 0, True) for i, t in enumerate(ids)])
        out = []
        for i, following in enumerate(ids[1:]):
            row = ll.llama_get_logits_ith(ctx, i)[:self.vocab]
            most = max(row)
            out.append(row[following] - most - math.log(math.fsum(math.exp(x - most) for x in row)))
        return out

    def about(self):
        folder = pathlib.Path(llama_cpp.__file__).parent / "lib"
        commit = "unknown"
        for path in sorted(folder.glob("libggml-base.so*")):
            f = getattr(ctypes.CDLL(str(path)), "ggml_commit", None)
            if f is not None:
                f.restype = ctypes.c_char_p
                commit = f().decode()
        p = ll.llama_context_default_params()
        return {"llama_cpp_python": llama_cpp.__version__, "llama_cpp_commit": commit,
                "system": ll.llama_print_system_info().decode().strip(), "threads": self.n_threads,
                "n_batch": self.step_tokens, "n_ubatch": self.step_tokens, "type_k": p.type_k, "type_v": p.type_v,
                "flash_attn_type": p.flash_attn_type}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--threads", type=int, required=True)
    p.add_argument("--step-tokens", type=int, default=512, help="rows of one llama_decode, as of shoal's steps")
    p.add_argument("--mapped", action="store_true")
    a = p.parse_args()
    peer = Peer(a.model, a.threads, a.step_tokens, a.mapped)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "about":
            answer = peer.about()
        elif words[0] == "score":
            answer = peer.score([int(w) for w in words[1:]])
        else:
            answer = peer.repeat(*(int(w) for w in words))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
