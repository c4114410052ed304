"""VNN-LIB 1.0 and 2.0 properties: asserts become a union of boxes with rows, counterexamples are written back."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from onnx.numpy_helper import from_array

from polytriton.errors import UnsupportedProperty, UsageError
from polytriton.frontend.packed import read_file
from polytriton.frontend.query import Disjunct, Property, Row, check_range, float_bounds
from polytriton.frontend.vnnlib_dnf import Junction, Leaf, expand, split
from polytriton.frontend.vnnlib_parse import EQUAL, Document, parse
from polytriton.guard import guard
from polytriton.heap import pause_collection

MAX_BOX_CELLS = 10_000_000  # inputs times distinct boxes
MAX_BYTES = 512 * 1024 * 1024


@guard
@pause_collection()
def read_vnnlib(source: str | Path, *, n_in: int | None = None, n_out: int | None = None, name: str | None = None) -> Property:
    """Reads a file (.vnnlib, .vnnlib.gz) or a text that begins with a bracket, a comment or holds several lines."""
    text, title = text_and_title(source, name)
    doc = parse(text, title)
    if len(doc.networks) > 1:
        names = [n.name for n in doc.networks if n.like[0] != EQUAL]
        raise UnsupportedProperty(
            f"{title} is about {len(doc.networks)} networks, and one was given",
            f"polytriton verify {' '.join(f'--network {n}=NET.onnx' for n in names)} PROP.vnnlib; in Python polytriton.join",
        )
    for what, wanted, found in (("inputs", n_in, doc.n_in), ("outputs", n_out, doc.n_out)):
        if wanted is not None and wanted != found:
            raise UnsupportedProperty(
                f"{title} is a property for another network: it declares {found} {what}, the network has {wanted}",
                "pair the property with its own network",
            )
    return made_property(doc, title)


def _is_text(source: str) -> bool:
    """Whether it is a property itself, no path: it begins with a bracket or a comment, or holds several lines."""
    return source.lstrip()[:1] in ("(", ";", "") or "\n" in source or len(source) > 4096


def is_property(source: str | os.PathLike[str]) -> bool:
    """Whether it is a property's text, or a path that ends as its files do."""
    return os.fspath(source).endswith((".vnnlib", ".vnnlib.gz")) or (isinstance(source, str) and _is_text(source))


@guard
def text_and_title(source: str | Path, name: str | None = None) -> tuple[str, str]:
    """A property's text, and what messages call it."""
    if isinstance(source, str) and _is_text(source):
        return source, name or "property"
    path = Path(source)
    return load_text(path), name or path.name.removesuffix(".gz").removesuffix(".vnnlib")


@guard
def made_property(doc: Document, name: str) -> Property:
    """The unsafe set that a document's asserts describe, whatever wrote them."""
    disjuncts = _Boxes(doc, name).disjuncts()
    return Property.from_disjuncts(name, doc.n_in, doc.n_out, disjuncts, doc.version, doc.input, doc.output, doc.network)


def load_text(path: Path) -> str:
    """What a file says, unpacked where it is a .gz."""
    try:
        data = read_file(path, MAX_BYTES)
    except FileNotFoundError:
        raise UsageError(f"no property file {path}", "check the path; it is taken relative to the current folder") from None
    except (OSError, EOFError, ValueError, zlib.error) as why:
        remedy = "the file is damaged, or no .gz: fetch it again"
        if path.is_dir():
            remedy = f"name a file in it, for example {path / 'PROP.vnnlib'}"
        raise UsageError(f"cannot read {path}: {why}", remedy) from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} holds more than {MAX_BYTES >> 20} MiB of text", "split the property")
    return data.decode("utf-8-sig", errors="replace")


Bound = tuple[Fraction, bool]  # value, and whether it is excluded (strict)
Side = dict[int, Bound]


@dataclass(frozen=True)
class _Edge:
    """The lower or the upper corner of a box: rounded outward, exact, and which bounds are strict."""

    floats: np.ndarray
    exact: list[Fraction]
    open: frozenset[int]


class _Boxes:
    """Sorts comparisons into bounds and rows; equal boxes are one object however many disjuncts hold them."""

    def __init__(self, doc: Document, name: str) -> None:
        self.doc, self.name = doc, name
        self.lo: Side = {}
        self.hi: Side = {}
        self.rows: dict[int, Row] = {}  # by the leaf's identity: disjuncts share leaves
        self.bounds: dict[int, tuple[int, bool, Bound] | None] = {}  # as rows: the input, whether from above, and the bound
        self.same: dict[tuple[int, int, bool], Bound] = {}
        self.made: dict[tuple, Disjunct | None] = {}  # by the identity of their bounds
        self.full: list[_Edge] = []  # the common box written out, lower and upper, once a disjunct needs it

    def disjuncts(self) -> tuple[Disjunct, ...]:
        plain, rest = split(self.doc.asserts)
        base = self._sort(plain, self.lo, self.hi)
        for i in sorted(self.lo.keys() & self.hi.keys()):
            if _empty(self.lo[i], self.hi[i]):
                a, b = self.lo[i][0], self.hi[i][0]
                sign = ">" if a > b else ">="
                raise self._refuse(
                    f"inverted box for {self._input(i)}: {_show(a)} {sign} {_show(b)}",
                    "check the bounds: no input satisfies them",
                )
        made = []
        conjunctions = expand(Junction("and", rest), self.name)
        for conjunction in conjunctions:
            lo: Side = {}
            hi: Side = {}
            rows = base + self._sort(conjunction, lo, hi)
            box = self._box(lo, hi)
            if box is not None:
                made.append(replace(box, rows=rows))
        return tuple(made)

    def _sort(self, leaves: Iterable[Leaf], lo: Side, hi: Side) -> tuple[Row, ...]:
        """Tightens the sides by the bounds among the leaves, where they say more than the common box, and returns the rows."""
        rows = []
        for leaf in leaves:
            if id(leaf) not in self.bounds:
                self.bounds[id(leaf)] = self._bound(leaf)
            known = self.bounds[id(leaf)]
            if known is None:
                rows.append(self._row(leaf))
                continue
            i, upper, bound = known
            side, common = (hi, self.hi) if upper else (lo, self.lo)
            old = side.get(i) or common.get(i)
            if old is None or (bound[0] < old[0] if upper else bound[0] > old[0]) or (bound[0] == old[0] and bound[1] and not old[1]):
                side[i] = bound
        return tuple(rows)

    def _bound(self, leaf: Leaf) -> tuple[int, bool, Bound] | None:
        """The input that the comparison bounds, whether from above, and by what; None where it is a row. Equal bounds are one object."""
        if len(leaf.terms) != 1:
            return None
        ((i, c),) = leaf.terms.items()
        value = leaf.const if c == 1 else -leaf.const if c == -1 else leaf.const / c
        bound = self.same.setdefault((value.numerator, value.denominator, leaf.strict), (value, leaf.strict))  # a fraction is slow to hash
        return (i, c > 0, bound) if i >= 0 else None

    def _row(self, leaf: Leaf) -> Row:
        row = self.rows.get(id(leaf))
        if row is None:
            terms = sorted(leaf.terms.items())
            for _, c in terms:
                check_range(c, f"{self.name}: a coefficient")
            check_range(leaf.const, f"{self.name}: a constant")
            y = tuple((~k, c) for k, c in reversed(terms) if k < 0)
            row = Row(y, tuple((k, c) for k, c in terms if k >= 0), leaf.const, leaf.strict)
            self.rows[id(leaf)] = row
        return row

    def _box(self, lo: Side, hi: Side) -> Disjunct | None:
        """The common box cut by these bounds, as a disjunct without rows; None where nothing is left."""
        key = tuple(tuple(sorted((i, id(bound)) for i, bound in side.items())) for side in (lo, hi))
        if key not in self.made:
            self.made[key] = self._build(lo, hi)
        return self.made[key]

    def _build(self, lo: Side, hi: Side) -> Disjunct | None:
        n = self.doc.n_in
        for i in lo.keys() | hi.keys():
            low, high = lo.get(i) or self.lo.get(i), hi.get(i) or self.hi.get(i)
            if low and high and _empty(low, high):
                return None
        for side, common, what in ((lo, self.lo, "lower"), (hi, self.hi, "upper")):
            if len(common) + sum(i not in common for i in side) < n:
                i = next(i for i in range(n) if i not in side and i not in common)
                raise self._refuse(f"{self._input(i)} has no {what} bound", "bound every input from both sides")
        if (len(self.made) + 1) * n > MAX_BOX_CELLS:
            raise self._refuse(f"more than {len(self.made):,} different boxes of {n:,} inputs", "split the property into several files")
        if not self.full:
            blank = _Edge(np.zeros(n), [Fraction(0)] * n, frozenset())
            self.full = [self._edge(blank, self.lo, 0), self._edge(blank, self.hi, 1)]
        lower, upper = self._edge(self.full[0], lo, 0), self._edge(self.full[1], hi, 1)
        return Disjunct(lower.floats, upper.floats, tuple(lower.exact), tuple(upper.exact), (), lower.open, upper.open)

    def _edge(self, base: _Edge, side: Side, upper: int) -> _Edge:
        """One edge of the box with these bounds written over it: most disjuncts move few of thousands of inputs."""
        floats, values = base.floats.copy(), base.exact.copy()
        for i, (value, _) in side.items():
            values[i], floats[i] = value, float_bounds(value)[upper]
            if not math.isfinite(floats[i]):
                raise self._refuse(f"a bound of {self._input(i)} lies beyond float64", "rescale the property")
        floats.setflags(write=False)
        return _Edge(floats, values, base.open.difference(side) | {i for i, (_, is_open) in side.items() if is_open})

    def _input(self, i: int) -> str:
        return self.doc.input.element(i, self.doc.version)

    def _refuse(self, message: str, remedy: str) -> UnsupportedProperty:
        return UnsupportedProperty(f"{self.name}: {message}", remedy)


def _empty(lo: Bound, hi: Bound) -> bool:
    return lo[0] > hi[0] or (lo[0] == hi[0] and (lo[1] or hi[1]))


def _show(value: Fraction) -> str:
    lo, hi = float_bounds(value)
    return f"{float(value)}" if math.isfinite(lo) and math.isfinite(hi) else "a number beyond float64"


# Counterexamples


@guard
def assignments(prop: Property, x: np.ndarray | Sequence[float], y: np.ndarray | Sequence[float]) -> dict[str, bytes]:
    """The point as serialised TensorProto, by tensor: in the declared element type and shape; real numbers are float64."""
    made = {}
    for tensor, values in prop.ends(x, y):
        shape = values.shape if prop.version.startswith("1") else tensor.shape
        array = values.astype("float64" if tensor.dtype.lower() == "real" else tensor.dtype).reshape(shape)
        made[tensor.name] = from_array(array, tensor.name).SerializeToString()
    return made


@guard
def write_counterexample(prop: Property, x: np.ndarray | Sequence[float], y: np.ndarray | Sequence[float]) -> str:
    """The point in the form of the property's version: VNN-COMP's list of pairs, or the assignment of the VNN-LIB 2.0 standard."""
    ends = [(tensor, values.tolist()) for tensor, values in prop.ends(x, y)]
    if prop.version.startswith("1"):
        pairs = [f"({tensor.element(i, prop.version)} {v!r})" for tensor, flat in ends for i, v in enumerate(flat)]
        return "(" + "\n".join(pairs) + ")\n"
    lines = []
    for tensor, flat in ends:
        lines.append(f"{tensor.name} {tensor.dtype} [{','.join(map(str, tensor.shape))}]")
        lines.extend(map(repr, flat))
    return "\n".join(lines) + "\n"
