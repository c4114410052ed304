"""Formulas over linear inequalities and their disjunctive normal form: no recursion, and no expansion before its size is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias, TypeVar

from polytriton.errors import UnsupportedProperty

MAX_DISJUNCTS = 200_000
MAX_LITERALS = 20_000_000  # comparisons over all disjuncts: what an expansion costs in memory

T = TypeVar("T")


@dataclass(slots=True)
class Leaf:
    """sum terms <= const, or < where strict; `terms` is never empty."""

    terms: dict[int, Fraction]
    const: Fraction
    strict: bool

    def negate(self) -> Leaf:
        return Leaf({k: -c for k, c in self.terms.items()}, -self.const, not self.strict)


@dataclass(slots=True)
class Junction:
    """`and`, `or` (empty: true, false) or a one-armed `not`."""

    op: str
    kids: Sequence[Leaf | Junction] = ()


Formula: TypeAlias = Leaf | Junction


def fold(root: Formula, leaf: Callable[[Leaf], T], any_: Callable[[list[T]], T], all_: Callable[[list[T]], T]) -> T:
    """Evaluates a formula bottom up without recursion; a `not` travels down as a sign and never reaches `any_` or `all_`."""
    done: list[T] = []
    todo: list[tuple[Formula, bool, bool]] = [(root, False, False)]
    while todo:
        node, negative, ready = todo.pop()
        if isinstance(node, Leaf):
            done.append(leaf(node.negate() if negative else node))
        elif node.op == "not":
            todo.append((node.kids[0], not negative, False))
        elif not ready:
            todo.append((node, negative, True))
            todo.extend((kid, negative, False) for kid in reversed(node.kids))
        else:
            first = len(done) - len(node.kids)
            args = done[first:]
            del done[first:]
            done.append((all_ if (node.op == "and") != negative else any_)(args))
    return done[0]


Size = tuple[int, int]  # conjunctions, comparisons in them
Conjunction = tuple[Leaf, ...]


def _size_any(parts: list[Size]) -> Size:
    return sum(c for c, _ in parts), sum(n for _, n in parts)


def _size_all(parts: list[Size]) -> Size:
    count, literals = 1, 0
    for c, n in parts:
        count, literals = min(count * c, 10**12), min(literals * c + n * count, 10**15)
    return count, literals


def _expand_any(parts: list[list[Conjunction]]) -> list[Conjunction]:
    return [c for part in parts for c in part]


def _expand_all(parts: list[list[Conjunction]]) -> list[Conjunction]:
    if not all(parts):
        return []
    made: list[Conjunction] = [tuple(leaf for part in parts if len(part) == 1 for leaf in part[0])]
    for part in parts:
        if len(part) > 1:
            made = [left + right for left in made for right in part]
    return made


def expand(root: Formula, name: str) -> list[Conjunction]:
    """The disjunctive normal form; its size is known, and limited, before anything is multiplied out."""
    count, literals = fold(root, lambda leaf: (1, 1), _size_any, _size_all)
    if count > MAX_DISJUNCTS or literals > MAX_LITERALS:
        shown = f"{count:,}" if count < 10**12 else "over 10^12"
        raise UnsupportedProperty(
            f"{name} expands to {shown} disjuncts of {literals // max(count, 1):,} comparisons on average; the limit is {MAX_DISJUNCTS:,}",
            "split the property into several files, one for each part of its disjunctions",
        )
    return fold(root, lambda leaf: [(leaf,)], _expand_any, _expand_all)


def split(asserts: Iterable[Formula]) -> tuple[list[Leaf], list[Formula]]:
    """The comparisons that hold in every disjunct, and the rest."""
    plain: list[Leaf] = []
    rest: list[Formula] = []
    todo: list[tuple[Formula, bool]] = [(f, False) for f in reversed(list(asserts))]
    while todo:
        node, negative = todo.pop()
        if isinstance(node, Leaf):
            plain.append(node.negate() if negative else node)
        elif node.op == "not":
            todo.append((node.kids[0], not negative))
        elif (node.op == "and") != negative:
            todo.extend((kid, negative) for kid in reversed(node.kids))
        else:
            rest.append(Junction("not", (node,)) if negative else node)
    return plain, rest
