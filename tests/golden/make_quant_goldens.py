#!/usr/bin/env python3
"""Writes tests/golden/quant/methods.json: GPTQ, AWQ and SmoothQuant by their papers' equations, in
plain numpy f64 on small matrices, with the inverse of H formed and output errors taken from X.

usage: make_quant_goldens.py [OUT.json]; needs numpy alone.
"""
import json
import sys
from pathlib import Path

import numpy as np

F32, F16 = np.float32, np.float16


class Format:
    """The rounding of src/quant/quantize.h, for int4 and int8 with f16 scales."""

    def __init__(self, name):
        parts = name.split("-")
        self.name, self.bits = name, int(parts[0][3:])
        self.asym = "asym" in parts
        group = [p for p in parts if p.startswith("g")]
        self.group = int(group[0][1:]) if group else (32 if self.bits == 4 else 0)

    def fit(self, x):
        x = np.append(x.astype(F32), F32(0))
        if self.asym:
            top = F32(2 ** self.bits - 1)
            scale = F32(F16((x.max() * F32(0.5) - x.min() * F32(0.5)) / (top * F32(0.5))))
            zero = int(np.clip(np.rint(-x.min() / scale), 0, top)) if scale > 0 else 0
            return scale, zero
        largest = x[np.argmax(np.abs(x))]
        if self.bits == 4:
            return F32(F16(largest / F32(-8))), 8
        return F32(F16(abs(largest) / F32(127))), 0

    def encode(self, param, x):
        scale, zero = param
        q = np.rint(F32(x) / scale) if scale != 0 else F32(0)
        low, high = (0, 2 ** self.bits - 1) if self.asym or self.bits == 4 else (-127, 127)
        return int(np.clip(q + F32(zero), low, high))

    def decode(self, param, code):
        return F32(code - param[1]) * param[0]

    def groups(self, n):
        size = self.group or n
        return [(b, min(b + size, n)) for b in range(0, n, size)]


def result(codes, params):
    return {"codes": codes, "scales": [[float(p[0]) for p in row] for row in params],
            "zeros": [[p[1] for p in row] for row in params]}


def gptq(x, w, fmt, damping, act_order):
    """GPTQ's algorithm 1, one column at a time for all outputs. A group is fitted when its first
    column is reached; with act_order all groups are fitted before the first column.
    """
    n = x.shape[1]
    h = x.T @ x
    dead = np.diag(h) == 0
    h[dead, dead] = 1
    w = np.where(dead, 0.0, w)
    order = np.argsort(-np.diag(x.T @ x), kind="stable") if act_order else np.arange(n)
    h = h + damping * np.mean(np.diag(h)) * np.eye(n)
    upper = np.linalg.cholesky(np.linalg.inv(h[np.ix_(order, order)])).T
    spans = fmt.groups(n)
    params = [[fmt.fit(row[b:e]) for b, e in spans] for row in w]
    codes = np.zeros(w.shape, int)
    work = w[:, order].copy()
    for i, column in enumerate(order):
        g = next(k for k, (b, e) in enumerate(spans) if b <= column < e)
        if not act_order and i == spans[g][0]:
            for r in range(len(w)):
                params[r][g] = fmt.fit(work[r, spans[g][0]:spans[g][1]])
        q = np.empty(len(w))
        for r in range(len(w)):
            codes[r, column] = fmt.encode(params[r][g], work[r, i])
            q[r] = fmt.decode(params[r][g], codes[r, column])
        error = (work[:, i] - q) / upper[i, i]
        work[:, i:] -= np.outer(error, upper[i, i:])
    return result(codes.tolist(), params)


def rtn(w, fmt):
    params = [[fmt.fit(row[b:e]) for b, e in fmt.groups(len(row))] for row in w]
    return np.array([[fmt.decode(p, fmt.encode(p, v)) for (b, e), p in
                      zip(fmt.groups(len(row)), ps) for v in row[b:e]] for row, ps in zip(w, params)])


def awq(x, w, fmt):
    """Searches the exponent of the scales and the clipping of each group that give the smallest
    output error.
    """
    mean = np.abs(x).mean(axis=0)
    tries = []
    for step in range(17):
        s = np.maximum(mean ** (step / 16), 1e-4)
        s = (s / np.sqrt(s.max() * s.min())).astype(F32)
        d = rtn((w.astype(F32) * s), fmt).astype(F32) / s - w.astype(F32)
        tries.append({"error": float(((x @ d.astype(float).T) ** 2).sum())})
        if step % 8 == 4:
            tries[-1]["scales"] = [float(f"{v:.7g}") for v in s]
    codes, params = [], []
    for row in w.astype(F32):
        codes.append([])
        params.append([])
        for b, e in fmt.groups(len(row)):
            best = None
            for step in range(11):
                limit = F32(np.abs(row[b:e]).max()) * F32(20 - step) / F32(20)
                cut = np.clip(row[b:e], -limit, limit)
                first = cut[np.argmax(np.abs(row[b:e]))]  # of equals, the largest before the cut
                p = fmt.fit(np.concatenate([[first], cut]))
                c = [fmt.encode(p, v) for v in row[b:e]]
                d = np.array([fmt.decode(p, v) for v in c], F32) - row[b:e]
                error = ((x[:, b:e] @ d.astype(float)) ** 2).sum()
                if best is None or error < best[0]:
                    best = (error, p, c)
            codes[-1] += best[2]
            params[-1].append(best[1])
    return {"tries": tries, "clipped": result(codes, params)}


def smoothquant(x, w, alpha):
    s = np.abs(x).max(axis=0) ** alpha / np.abs(w).max(axis=0) ** (1 - alpha)
    return [float(f"{v:.7g}") for v in s]


def case(seed, n_tokens, n_in, n_out, fmt, correlated):
    """Integers make the inputs exact: x = int / 256, w = int / 4096."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n_tokens, n_in)) * np.exp(rng.standard_normal(n_in))
    if correlated:
        x = x + 0.7 * rng.standard_normal((n_tokens, 3)) @ rng.standard_normal((3, n_in))
    xi = np.rint(x * 256).astype(int)
    wi = np.rint(rng.standard_normal((n_out, n_in)) * 0.05 * 4096).astype(int)
    if seed % 2:
        xi[:, 5] = 0  # an input that is 0 for all tokens
    x, w, fmt = xi / 256.0, wi / 4096.0, Format(fmt)
    out = {"format": fmt.name, "n_in": n_in, "n_out": n_out, "x": xi.tolist(), "w": wi.tolist()}
    out["gptq"] = gptq(x, w, fmt, 0.01, False)
    out["gptq_act_order"] = gptq(x, w, fmt, 0.01, True)
    if not seed % 2:
        out["awq"] = awq(x, w, fmt)
        out["smoothquant_alpha_half"] = smoothquant(x, w, 0.5)
        out["smoothquant_alpha_3_4"] = smoothquant(x, w, 0.75)
    return out


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else
               Path(__file__).parent / "quant" / "methods.json")
    cases = [case(2, 70, 64, 6, "int4-g32", True), case(3, 60, 96, 5, "int4-asym-g32", True),
             case(4, 30, 64, 5, "int4-asym-g64", True), case(5, 80, 160, 4, "int4-g128", False),
             case(6, 70, 40, 3, "int8", True), case(7, 60, 64, 3, "int8-asym-g64", True)]
    out.parent.mkdir(exist_ok=True)
    out.write_text("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
    print(f"{out}: {len(cases)} cases, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
