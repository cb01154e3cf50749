"""Deterministic covering arrays: a few rows in which every pair (and chosen triples) of values
occurs.

Imported by law.py. Greedy and without randomness, so that the same dimensions always give the
same rows.
"""
import heapq
import zlib
from itertools import combinations, compress, product
from math import prod

CANDIDATES_MOST = 16000  # about this many rows are candidates, because all their triples are held in memory at once


def tuples_of(codes, n_codes):
    """All pairs and triples of a row's values, as sets of numbers. codes: the row's values in the
    order of the dimensions. Each is a number in 1..n_codes - 1 that stands for one value of one
    dimension. 0 is not used, so that no pair has the number of a triple.
    """
    pairs = {a * n_codes + b for a, b in combinations(codes, 2)}
    triples = {(a * n_codes + b) * n_codes + c for a, b, c in combinations(codes, 3)}
    return pairs, triples


def allowed_parts(dimensions, allowed, deciding):
    """The allowed combinations of the deciding dimensions' values, as a set of tuples."""
    names = [name for name in dimensions if name in deciding]
    return {values for values in product(*(dimensions[name] for name in names))
            if allowed(dict(zip(names, values)))}


def all_values(dimensions, parts, deciding):
    """Yields the values of every allowed row, in the order of the full product. parts: from allowed_parts."""
    keep = [name in deciding for name in dimensions]
    return (values for values in product(*dimensions.values())
            if tuple(compress(values, keep)) in parts)


def all_rows(dimensions, allowed, deciding):
    parts = allowed_parts(dimensions, allowed, deciding)
    return [dict(zip(dimensions, values)) for values in all_values(dimensions, parts, deciding)]


def pairs_of(dimensions, parts, deciding, code):
    """The pairs of values that occur in any allowed row, in the form of tuples_of."""
    names = [name for name in dimensions if name in deciding]
    held = {name: {(value,) for value in values} for name, values in dimensions.items()}
    for i, name in enumerate(names):
        held[name] = {(part[i],) for part in parts}
    pairs = set()
    for a, b in combinations(dimensions, 2):
        if a in deciding and b in deciding:
            found = {(part[names.index(a)], part[names.index(b)]) for part in parts}
        else:
            found = {x + y for x in held[a] for y in held[b]}
        pairs |= {code[a, x] * (len(code) + 1) + code[b, y] for x, y in found}
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


def some_rows(dimensions, parts, deciding):
    """The values of all allowed rows, or, if they are many more than CANDIDATES_MOST, of a pseudo-random
    part of about so many.
    """
    n_rows = len(parts) * prod(len(values) for name, values in dimensions.items() if name not in deciding)
    bound = CANDIDATES_MOST << 32
    return [row for i, row in enumerate(all_values(dimensions, parts, deciding))
            if zlib.crc32(i.to_bytes(4, "little")) * n_rows < bound]


def cover(dimensions, allowed, deciding, fixed, n_least):
    """Chooses rows in which every pair of values of an allowed row occurs, and every triple that
    includes a value of each of the two `fixed` dimensions (None: no triples); then, up to
    n_least rows, those that add most triples. Among equals the earlier row of the full product
    wins. If the product has many more rows than CANDIDATES_MOST, a pseudo-random part
    represents it. `deciding`: the dimensions that `allowed` reads.
    """
    values = [(name, value) for name in dimensions for value in dimensions[name]]
    code = {value: i for i, value in enumerate(values, 1)}
    n_codes = len(code) + 1
    parts = allowed_parts(dimensions, allowed, deciding)
    if not parts:
        return []
    candidates = some_rows(dimensions, parts, deciding)
    places = [] if fixed is None else [list(dimensions).index(name) for name in fixed]
    fixed_triples = [at for at in combinations(range(len(dimensions)), 3)
                     if places and set(places) <= set(at)]
    gains, triples = [], []
    for row in candidates:
        codes = [code[item] for item in zip(dimensions, row)]
        pairs, held = tuples_of(codes, n_codes)
        for i, j, k in fixed_triples:
            pairs.add((codes[i] * n_codes + codes[j]) * n_codes + codes[k])
        gains.append(pairs)
        triples.append(held)
    wanted = pairs_of(dimensions, parts, deciding, code)
    assert wanted <= set().union(*gains), "the part lacks a pair"
    first = take_all(gains, set().union(*gains), set(), lambda missing, _: not missing)
    missing = set().union(*triples).difference(*(triples[i] for i in first))
    more = take_all(triples, missing, set(first),
                    lambda _, order: len(first) + len(order) >= n_least)
    return [dict(zip(dimensions, candidates[i])) for i in first + more]
