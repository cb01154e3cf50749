"""Deterministic covering arrays: a few rows in which every demanded combination of values occurs.

Imported by law.py. Greedy and without randomness, so that the same dimensions always give the
same rows.
"""
import heapq
import zlib
from collections import Counter
from itertools import combinations, compress, product
from math import prod

CANDIDATES_MOST = 8000  # about this many rows are candidates, because what each covers is held in memory at once


class Demand:
    """The combinations that the rows must cover: every pair of values of two dimensions, and, with options,
     - split = (a, b, parts): instead of the pairs of a and b, those of a's value and each of
       parts(a's value, b's value);
     - triples = (a, b, thirds): also every triple of values of a, b and a dimension of thirds;
     - inside = (a, kind): also, for each kind(a's value), every pair of values of two other dimensions
       but b; if the demand is split, b's parts count as values of such a dimension.
    Only combinations that occur in some allowed row are demanded.
    """

    def __init__(self, split=None, triples=None, inside=None):
        self.split, self.triples, self.inside = split, triples, inside
        self.numbers = {}

    def pairs(self, items):
        """The pairs that a row covers. items: the row's values as {dimension: value}."""
        found = set(combinations(items.items(), 2))
        if self.split:
            a, b, _ = self.split
            found -= {((a, items[a]), (b, items[b])), ((b, items[b]), (a, items[a]))}
            found |= {((a, items[a]), part) for part in self.parts(items)}
        return found

    def parts(self, items):
        a, b, parts = self.split
        return [(b, part) for part in parts(items[a], items[b])]

    def more(self, items):
        """The combinations other than pairs that a row covers."""
        found = set()
        if self.triples:
            a, b, thirds = self.triples
            found |= {(items[a], items[b], name, items[name]) for name in thirds}
        if self.inside:
            a, kind = self.inside[0], self.inside[1](items[self.inside[0]])
            b = (self.split or self.triples)[1]
            rest = [item for item in items.items() if item[0] not in (self.inside[0], b)]
            rest += self.parts(items) if self.split else []
            found |= {(kind, *pair) for pair in combinations(rest, 2)}
        return found

    def covers(self, items):
        """All that a row covers, as a set of numbers."""
        return {self.numbers.setdefault(key, len(self.numbers)) for key in self.pairs(items) | self.more(items)}


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


def pairs_of(dimensions, parts, deciding, demand):
    """The demanded pairs: those that occur in any allowed row."""
    names = [name for name in dimensions if name in deciding]
    free = [name for name in dimensions if name not in deciding]
    found = set()
    for part in parts:
        found |= demand.pairs(dict(zip(names, part)))
    held = {(name, value) for part in parts for name, value in zip(names, part)}
    for a, b in combinations(dimensions, 2):
        if a in free or b in free:
            found |= {((a, x), (b, y)) for x in dimensions[a] for y in dimensions[b]
                      if (a in free or (a, x) in held) and (b in free or (b, y) in held)}
    return found


def take_all(gains, missing):
    """Takes the row that covers most of what is missing until nothing is. Returns the rows' indices.

    Gains only shrink, so a stale gain is an upper bound and one heap suffices (lazy greedy).
    """
    heap = [(-len(gain), i) for i, gain in enumerate(gains)]
    heapq.heapify(heap)
    order = []
    while missing:
        _, i = heapq.heappop(heap)
        gain = len(gains[i] & missing)
        if heap and (-gain, i) > heap[0]:
            heapq.heappush(heap, (-gain, i))
            continue
        missing -= gains[i]
        order.append(i)
    return order


def row_at(i, dimensions, deciding, begun, n_free):
    """The values of the i-th allowed row in the order of the full product. begun: how many allowed parts begin with a
    tuple; n_free: how many combinations the other dimensions have.
    """
    row, part = [], ()
    for name, values in dimensions.items():
        if name in deciding:
            for value in values:
                n = begun[(*part, value)] * n_free
                if i < n:
                    break
                i -= n
            part = (*part, value)
        else:
            n_free //= len(values)
            at, i = divmod(i, begun[part] * n_free)
            value = values[at]
        row.append(value)
    return row


def some_rows(dimensions, parts, deciding):
    """The values of all allowed rows, or, if they are many more than CANDIDATES_MOST, of a pseudo-random
    part of about so many.
    """
    n_free = prod(len(values) for name, values in dimensions.items() if name not in deciding)
    n_rows, bound = len(parts) * n_free, CANDIDATES_MOST << 32
    begun = Counter(part[:n] for part in parts for n in range(len(part) + 1))
    return [row_at(i, dimensions, deciding, begun, n_free) for i in range(n_rows)
            if zlib.crc32(i.to_bytes(4, "little")) * n_rows < bound]


def cover(dimensions, allowed, deciding, demand):
    """Chooses rows that cover the demand. Among equals the earlier row of the full product wins. If the
    product has many more rows than CANDIDATES_MOST, a pseudo-random part represents it. `deciding`: the
    dimensions that `allowed` reads.
    """
    parts = allowed_parts(dimensions, allowed, deciding)
    if not parts:
        return []
    rows = [dict(zip(dimensions, values)) for values in some_rows(dimensions, parts, deciding)]
    gains = [demand.covers(row) for row in rows]
    lacks = [pair for pair in pairs_of(dimensions, parts, deciding, demand) if pair not in demand.numbers]
    assert not lacks, f"the part lacks a pair: {lacks[:3]}"
    return [rows[i] for i in take_all(gains, set().union(*gains))]
