"""Inputs of several networks that a property ties together: equal ones become one variable, and x_j = x_i + d where d is bounded.

Substitution is exact and keeps the unsafe set: x and its variables z determine each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from polytriton.errors import UnsupportedProperty
from polytriton.frontend.query import Exact
from polytriton.frontend.vnnlib import _show
from polytriton.frontend.vnnlib_dnf import Formula, Junction, Leaf, fold, split
from polytriton.frontend.vnnlib_linear import ONE, leaf_of

WORTH = Fraction(3, 4)  # of both boxes' widths: a difference that is hardly narrower than they allow says nothing
Interval = tuple[Fraction | None, Fraction | None]
FREE: Interval = (None, None)


@dataclass(frozen=True, eq=False)
class Ties:
    """`variable`: which one each declared input is. `parent`: the variable that a variable is added to, -1 where it stands alone.

    The parent of a variable stands alone.
    """

    variable: np.ndarray
    parent: np.ndarray

    def values(self, z: np.ndarray, dtype: str) -> np.ndarray:
        """What the declared inputs are at z, in the networks' type: one addition in float64, one rounding."""
        base = np.where(self.parent < 0, 0.0, z[self.parent])
        return np.asarray((base + z)[self.variable].astype(dtype))

    def parameters(self, x: np.ndarray) -> Exact:
        """The exact z of declared inputs x that `values` made."""
        at = np.empty(len(self.parent), dtype=np.int64)
        at[self.variable] = np.arange(len(self.variable))
        own = [Fraction(v) for v in x[at].tolist()]
        return tuple(v if p < 0 else v - own[p] for v, p in zip(own, self.parent.tolist(), strict=True))

    def matrix(self) -> np.ndarray:
        """A of x = A z, a row a variable."""
        made = np.eye(len(self.parent))
        child = np.flatnonzero(self.parent >= 0)
        made[child, self.parent[child]] = 1.0
        return made

    def substitute(self, formulas: Sequence[Formula]) -> list[Formula]:
        """The formulas over z."""
        seen: dict[int, tuple[Leaf, Formula]] = {}  # comparisons are shared, and stay so
        kinds, parents = self.variable.tolist(), self.parent.tolist()

        def leaf(old: Leaf) -> Formula:
            known = seen.get(id(old))
            if known is None:
                terms: dict[int, Fraction] = {}
                for k, c in old.terms.items():
                    made = k if k < 0 else kinds[k]
                    for code in (made, parents[made]) if k >= 0 and parents[made] >= 0 else (made,):
                        terms[code] = terms.get(code, Fraction(0)) + c
                known = seen[id(old)] = old, leaf_of({k: c for k, c in terms.items() if c}, old.const, old.strict)
            return known[1]

        return [fold(f, leaf, lambda kids: Junction("or", kids), lambda kids: Junction("and", kids)) for f in formulas]


def find_ties(asserts: Sequence[Formula], network: Sequence[int], words: Sequence[str], title: str) -> tuple[Ties, list[Formula]]:
    """The ties that hold in every disjunct, and the asserts over their variables. `network`: of each declared input, `words`: its name.

    Ties that no input meets, by two inputs alone or with their boxes, are refused, as an inverted box is: nobody asks about nothing.
    """
    plain, rest = split(asserts)
    differences: dict[tuple[int, int], Interval] = {}  # of x_j - x_i, i < j
    ends: list[tuple[int, int, Interval]] = []  # those that are left out
    for leaf in plain:
        pair = _difference(leaf, network)
        if pair is not None:
            i, j, interval = pair
            differences[i, j] = _meet(differences.get((i, j), FREE), interval)
            ends += [(i, j, interval)] if leaf.strict else []
    for (i, j), (lo, hi) in differences.items():
        left_out = lo == hi and any((a, b) == (i, j) and lo in interval for a, b, interval in ends)
        _require_some(lo, hi, f"{words[j]} - {words[i]}", title, left_out=left_out)
    variable = _unite(len(network), [pair for pair, (lo, hi) in differences.items() if lo == hi == 0])
    boxes = [FREE] * (int(variable.max()) + 1)
    for leaf in plain:
        if len(leaf.terms) == 1 and (k := next(iter(leaf.terms))) >= 0:
            at = int(variable[k])
            boxes[at] = _meet(boxes[at], _interval(leaf.const, leaf.terms[k]))
    between: dict[tuple[int, int], Interval] = {}
    for (i, j), (lo, hi) in differences.items():
        a, b = int(variable[i]), int(variable[j])
        if a != b:
            pair_of, found = ((a, b), (lo, hi)) if a < b else ((b, a), (None if hi is None else -hi, None if lo is None else -lo))
            between[pair_of] = _meet(between.get(pair_of, FREE), found)
    parent, added, stated = np.full(len(boxes), -1), list[Formula](), list(boxes)
    first = np.unique(variable, return_index=True)[1].tolist()
    for (a, b), tie in sorted(between.items(), key=lambda found: found[0][::-1]):
        _require_some(*_meet(tie, _minus(stated[b], stated[a])), f"{words[first[b]]} - {words[first[a]]}", title)
        lo, hi = _meet(tie, _minus(boxes[b], boxes[a]))
        if parent[a] < 0 and parent[b] < 0 and lo is not None and hi is not None and _tells(hi - lo, boxes[a], boxes[b]):
            parent[b] = a
            added += [Leaf({b: ONE}, hi, False), Leaf({b: -ONE}, -lo, False)]
            boxes[b] = lo, hi  # its own from here on
    ties = Ties(variable, parent)
    kept = [leaf for leaf in plain if not _follows(leaf, ties, boxes, stated)]
    return ties, [*ties.substitute([*kept, *rest]), *added]


def _difference(leaf: Leaf, network: Sequence[int]) -> tuple[int, int, Interval] | None:
    """c (x_j - x_i) <= const of inputs of two networks."""
    if len(leaf.terms) != 2:
        return None
    (i, a), (j, b) = sorted(leaf.terms.items())
    if i < 0 or a != -b or network[i] == network[j]:
        return None
    return i, j, _interval(leaf.const, b)


def _require_some(lo: Fraction | None, hi: Fraction | None, what: str, title: str, *, left_out: bool = False) -> None:
    if lo is not None and hi is not None and (lo > hi or left_out):
        ends = f"at least {_show(lo)} and at most {_show(hi)}" + ", without its ends" * left_out
        raise UnsupportedProperty(
            f"{title}: no input satisfies its ties: {what} is {ends}", "check the ties, and the bounds of both inputs"
        )


def _interval(const: Fraction, c: Fraction) -> Interval:
    """Of v where c v <= const."""
    return (None, const / c) if c > 0 else (const / c, None)


def _meet(a: Interval, b: Interval) -> Interval:
    lows, highs = ([v for v in ends if v is not None] for ends in zip(a, b, strict=True))
    return max(lows, default=None), min(highs, default=None)


def _minus(a: Interval, b: Interval) -> Interval:
    """What u - v can be, u in a and v in b."""
    return (
        None if a[0] is None or b[1] is None else a[0] - b[1],
        None if a[1] is None or b[0] is None else a[1] - b[0],
    )


def _tells(width: Fraction, a: Interval, b: Interval) -> bool:
    """Whether a difference of this width says more than both boxes."""
    lo, hi = _minus(b, a)
    return lo is None or hi is None or 0 <= width <= WORTH * (hi - lo)


def _unite(count: int, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Variables numbered by their first inputs, one for all that the pairs connect."""
    first = list(range(count))

    def root(i: int) -> int:
        while first[i] != i:
            first[i] = first[first[i]]
            i = first[i]
        return i

    for i, j in pairs:
        a, b = sorted((root(i), root(j)))
        first[b] = a
    roots = np.array([root(i) for i in range(count)])
    return np.unique(roots, return_inverse=True)[1].reshape(-1)


def _follows(leaf: Leaf, ties: Ties, boxes: Sequence[Interval], stated: Sequence[Interval]) -> bool:
    """Whether a bound of x_i + d follows from those of x_i and d, or from a tighter one of its own."""
    (k, c), *more = leaf.terms.items()
    if more or k < 0 or leaf.strict:
        return False
    at = int(ties.variable[k])
    above = int(ties.parent[at])
    if above < 0:
        return False
    ends, tightest = (boxes[at][c > 0], boxes[above][c > 0]), stated[at][c > 0]
    if tightest is not None and c * tightest < leaf.const:
        return True
    return None not in ends and c * sum(v for v in ends if v is not None) <= leaf.const
