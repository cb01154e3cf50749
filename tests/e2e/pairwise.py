"""Deterministic covering arrays: a few rows in which every pair (and chosen triples) of values
occurs.

Imported by law.py. Greedy and without randomness, so that the same dimensions always give the
same rows.
"""
import heapq
import zlib
from itertools import combinations, product

CANDIDATES_MOST = 16000  # about this many rows are candidates, because all their triples are held in memory at once


def tuples_of(codes, n_codes):
    """All pairs and triples of a row's values, as sets of numbers. codes: the row's values in the
    order of the dimensions. Each is a number in 1..n_codes - 1 that stands for one value of one
    dimension. 0 is not used, so that no pair has the number of a triple.
    """
    pairs = {a * n_codes + b for a, b in combinations(codes, 2)}
    triples = {(a * n_codes + b) * n_codes + c for a, b, c in combinations(codes, 3)}
    return pairs, triples


def all_rows(dimensions, allowed):
    names = list(dimensions)
    rows = (dict(zip(names, values)) for values in product(*dimensions.values()))
    return [row for row in rows if allowed(row)]


def pairs_of(dimensions, allowed, code):
    """The pairs of values that occur in any allowed row, in the form of tuples_of."""
    pairs = set()
    for a, b in combinations(dimensions, 2):
        for x, y in product(dimensions[a], dimensions[b]):
            rest = {**dimensions, a: [x], b: [y]}
            if any(allowed(dict(zip(rest, values))) for values in product(*rest.values())):
                pairs.add(code[a, x] * (len(code) + 1) + code[b, y])
    return pairs


def take_all(gains, missing, taken, enough):
    """Takes the row with the most missing tuples until enough(missing) is true. Returns the rows'
    indices.

    Gains only shrink, so a stale gain is an upper bound and one heap suffices (lazy greedy).
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
    """Chooses rows in which every pair of values of an allowed row occurs, and every triple that
    includes a value of each of the two `fixed` dimensions (None: no triples); then, up to
    n_least rows, those that add most triples. Among equals the earlier row of the full product
    wins. If the product has many more rows than CANDIDATES_MOST, a pseudo-random part
    represents it.
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
