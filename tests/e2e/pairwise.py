"""Deterministic covering arrays: few rows in which every pair (and chosen triples) of values occurs.

Imported by law.py. Greedy, without randomness, so that the same dimensions give the same rows.
"""
import heapq
import zlib
from itertools import combinations, product

CANDIDATES_MOST = 16000  # about so many rows are chosen from: all their triples are held at once


def tuples_of(codes, n_codes):
    """All pairs and all triples of a row's values, as sets of numbers. codes: the row's values in the
    order of the dimensions, each a number in 1..n_codes - 1 that stands for one value of one dimension;
    without 0, no pair has a triple's number.
    """
    pairs = {a * n_codes + b for a, b in combinations(codes, 2)}
    triples = {(a * n_codes + b) * n_codes + c for a, b, c in combinations(codes, 3)}
    return pairs, triples


def all_rows(dimensions, allowed):
    names = list(dimensions)
    rows = (dict(zip(names, values)) for values in product(*dimensions.values()))
    return [row for row in rows if allowed(row)]


def pairs_of(dimensions, allowed, code):
    """The pairs of values that some allowed row of the whole product holds, as tuples_of has them."""
    pairs = set()
    for a, b in combinations(dimensions, 2):
        for x, y in product(dimensions[a], dimensions[b]):
            rest = {**dimensions, a: [x], b: [y]}
            if any(allowed(dict(zip(rest, values))) for values in product(*rest.values())):
                pairs.add(code[a, x] * (len(code) + 1) + code[b, y])
    return pairs


def take_all(gains, missing, taken, enough):
    """Takes the row with most missing tuples until enough(missing) holds; returns their indices.

    Gains only shrink, so a stale gain is an upper bound and one heap serves (lazy greedy).
    """
    heap = [(-len(gains[i] & missing), i) for i in range(len(gains)) if i not in taken]
    heapq.heapify(heap)
    order = []
    while heap and not enough(missing, order):
        _, i = heapq.heappop(heap)
        gain = len(gains[i] & missing)
        if heap and (-gain, i) > heap[0]:
            heapq.heappush(heap, (-gain, i))
            continue
        missing -= gains[i]
        order.append(i)
    return order


def cover(dimensions, allowed, fixed, n_least):
    """Rows so that every pair of values that an allowed row can hold occurs, and every triple that
    includes a value of each of the two `fixed` dimensions (None: no triples); then, up to n_least
    rows, those that add most triples. Ties: the earlier row of the full product. Of a product of
    many more rows than CANDIDATES_MOST a part that looks random stands for the whole.
    """
    values = [(name, value) for name in dimensions for value in dimensions[name]]
    code = {value: i for i, value in enumerate(values, 1)}
    n_codes = len(code) + 1
    rows = all_rows(dimensions, allowed)
    candidates = [row for i, row in enumerate(rows)
                  if zlib.crc32(i.to_bytes(4, "little")) * len(rows) < CANDIDATES_MOST << 32]
    gains, triples = [], []
    for row in candidates:
        codes = [code[item] for item in row.items()]
        pairs, held = tuples_of(codes, n_codes)
        if fixed is not None:
            chosen = {code[n, row[n]] for n in fixed}
            pairs |= {(a * n_codes + b) * n_codes + c for a, b, c in combinations(codes, 3)
                      if chosen <= {a, b, c}}
        gains.append(pairs)
        triples.append(held)
    assert pairs_of(dimensions, allowed, code) <= set().union(*gains), "the part lacks a pair"
    first = take_all(gains, set().union(*gains), set(), lambda missing, _: not missing)
    missing = set().union(*triples).difference(*(triples[i] for i in first))
    more = take_all(triples, missing, set(first),
                    lambda _, order: len(first) + len(order) >= n_least)
    return [candidates[i] for i in first + more]
