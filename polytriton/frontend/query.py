"""Queries: an unsafe set as a union of (box and linear rows), with the exact numbers kept beside the rounded ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polytriton.errors import UnsupportedProperty, UsageError
from polytriton.guard import guard_class

if TYPE_CHECKING:
    import os

    from polytriton.frontend.expressions import Condition, Numbers
    from polytriton.frontend.norm_balls import NormBall

Exact = Sequence[Fraction]
Terms = tuple[tuple[int, Fraction], ...]


def float_bounds(value: Fraction) -> tuple[float, float]:
    """The neighbouring float64 numbers with lo <= value <= hi; equal exactly where the value is a float64."""
    return enclosure(value.numerator, value.denominator)


def enclosure(num: int, den: int) -> tuple[float, float]:
    """The same of num / den, den > 0, which need not be in lowest terms."""
    try:
        near = num / den + 0.0  # Python rounds int / int correctly, subnormals included; + 0.0 turns -0.0 into 0.0
    except OverflowError:
        top = math.nextafter(math.inf, 0.0)
        return (top, math.inf) if num > 0 else (-math.inf, -top)
    a, b = near.as_integer_ratio()
    gap = a * den - num * b
    if gap == 0:
        return near, near
    return (math.nextafter(near, -math.inf), near) if gap > 0 else (near, math.nextafter(near, math.inf))


def error_above(value: Fraction, stored: float) -> float:
    """The least float64 that is at least |value - stored|."""
    return float_bounds(abs(value - Fraction(stored)))[1]


@dataclass(frozen=True, slots=True)
class Row:
    """One inequality of an unsafe set: sum y + sum x <= const (`strict`: <). Indices ascend, coefficients are not zero."""

    y: Terms
    x: Terms
    const: Fraction
    strict: bool = False

    def holds(self, x: Sequence[Fraction], y: Sequence[Fraction]) -> bool:
        total = sum((c * y[i] for i, c in self.y), start=Fraction(0)) + sum((c * x[j] for j, c in self.x), start=Fraction(0))
        return total < self.const if self.strict else total <= self.const


@guard_class
@dataclass(frozen=True, eq=False)
class Disjunct:
    """One unsafe piece: a box of inputs and every row. `lo`, `hi` enclose the exact box, in network input order, flat.

    `open_lo`, `open_hi`: inputs whose bound is strict. A proof covers the closed box; a counterexample must lie in the open one.
    `ball`: the inputs are those of the box that lie in this ball too.
    """

    lo: np.ndarray
    hi: np.ndarray
    exact_lo: Exact
    exact_hi: Exact
    rows: tuple[Row, ...]
    open_lo: frozenset[int] = frozenset()
    open_hi: frozenset[int] = frozenset()
    ball: NormBall | None = None

    @property
    def where(self) -> tuple[int, ...]:
        """Names the exact inputs: disjuncts of the same ones hold the same objects."""
        return id(self.exact_lo), id(self.exact_hi), id(self.open_lo), id(self.open_hi), id(self.ball)

    def contains(self, x: Iterable[float] | np.ndarray, *, rounded: bool = False) -> bool:
        """Whether the point lies in the exact box and ball, or, `rounded`, in the float64 box around it and the ball.

        An input fixed at a decimal that is no float64 leaves no exact point a network could run on; competitions read the
        decimals as floats, and `rounded` is that reading.
        """
        point = as_rationals(x.ravel().tolist() if isinstance(x, np.ndarray) else x)
        return point is not None and len(point) == self.lo.size and self._holds(point, rounded)

    def _holds(self, point: Exact, rounded: bool) -> bool:
        lows, highs = (self.lo.tolist(), self.hi.tolist()) if rounded else (self.exact_lo, self.exact_hi)
        return (
            all(lo <= v <= hi for lo, v, hi in zip(lows, point, highs, strict=True))
            and all(point[i] > self.exact_lo[i] for i in self.open_lo)
            and all(point[i] < self.exact_hi[i] for i in self.open_hi)
            and (self.ball is None or self.ball.holds(point))
        )


@dataclass(frozen=True)
class Tensor:
    """How a property names one of the network's ends: VNN-LIB 2.0 declares name, element type and shape; 1.0 writes X_i."""

    name: str
    dtype: str = "Real"
    shape: tuple[int, ...] = ()

    def element(self, index: int, version: str) -> str:
        if version.startswith("1"):
            return f"{self.name}_{index}"
        if not self.shape:
            return self.name
        return f"{self.name}[{','.join(str(k) for k in np.unravel_index(index, self.shape))}]"


@guard_class
@dataclass(frozen=True, eq=False, init=False, repr=False)
class Property:
    """What must not happen: an unsafe set of inputs and outputs. The network is safe when no input reaches any of its disjuncts.

    box: the least and the greatest value of every input, as two arrays, or two numbers for all. unsafe: the network is unsafe where some
    input of the box satisfies any of these conditions; safe: or fails to satisfy any of those. Conditions compare `variables`. A strict
    comparison is proved for its closure. ball: only inputs of this ball are meant; the box may then be left out.

    `network` is the name that a VNN-LIB 2.0 property gives its network.
    """

    name: str
    n_in: int
    n_out: int
    disjuncts: tuple[Disjunct, ...]
    version: str = "1.0"
    input: Tensor = field(default_factory=lambda: Tensor("X"))
    output: Tensor = field(default_factory=lambda: Tensor("Y"))
    network: str = ""

    def __init__(
        self,
        box: tuple[Numbers, Numbers] | None = None,
        unsafe: Condition | Iterable[Condition] = (),
        *,
        safe: Condition | Iterable[Condition] = (),
        ball: NormBall | None = None,
        name: str = "property",
    ) -> None:
        from polytriton.frontend.stated import stated_property

        for key, value in vars(stated_property(box, unsafe, safe, name, ball)).items():
            object.__setattr__(self, key, value)

    @staticmethod
    def from_disjuncts(
        name: str,
        n_in: int,
        n_out: int,
        disjuncts: tuple[Disjunct, ...],
        version: str = "1.0",
        input: Tensor | None = None,
        output: Tensor | None = None,
        network: str = "",
    ) -> Property:
        """A property of boxes and rows that are there already. No disjuncts: nothing is unsafe."""
        made = object.__new__(Property)
        given = {"name": name, "n_in": n_in, "n_out": n_out, "disjuncts": disjuncts, "version": version, "network": network}
        for key, value in {**given, "input": input or Tensor("X"), "output": output or Tensor("Y")}.items():
            object.__setattr__(made, key, value)
        return made

    def __repr__(self) -> str:
        many = len(self.disjuncts)
        return f"<Property {self.name}: {self.n_in} inputs, {self.n_out} outputs, {many} unsafe piece{'s' * (many != 1)}>"

    @property
    def mixed(self) -> bool:
        """Whether some row relates outputs to inputs."""
        return any(r.x and r.y for d in self.disjuncts for r in d.rows)

    def violated(self, x: np.ndarray | Sequence[float], y: np.ndarray | Sequence[float], *, rounded: bool = False) -> int | None:
        """The first disjunct the concrete pair lies in, decided in exact rationals, or None. `rounded`: see Disjunct.contains."""
        xs, ys = self._pair(x, y)
        return self._piece(xs, as_rationals(xs.tolist()), as_rationals(ys.tolist()), rounded)

    def _pair(self, x: np.ndarray | Sequence[float], y: np.ndarray | Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        from polytriton.frontend.numbers import as_float64

        xs, ys = as_float64(x, "the input").ravel(), as_float64(y, "the output").ravel()
        if xs.size != self.n_in or ys.size != self.n_out:
            raise UsageError(
                f"a point of {xs.size} inputs and {ys.size} outputs does not fit property {self.name} ({self.n_in} and {self.n_out})",
                "give one input and one output of the property's network",
            )
        return xs, ys

    def _piece(self, near: np.ndarray, point: Exact | None, value: Exact | None, rounded: bool) -> int | None:
        """`near`: the point in float64, to the nearest; outside a box's float64 ends, which lie outward, it is outside the box."""
        if point is None or value is None:
            return None
        seen: dict[tuple[int, ...], bool] = {}  # disjuncts share their boxes
        for k, d in enumerate(self.disjuncts):
            if not np.all((near >= d.lo) & (near <= d.hi)) or not all(r.holds(point, value) for r in d.rows):
                continue
            if d.where not in seen:
                seen[d.where] = d._holds(point, rounded)
            if seen[d.where]:
                return k
        return None

    def ends(self, x: np.ndarray | Sequence[float], y: np.ndarray | Sequence[float]) -> list[tuple[Tensor, np.ndarray]]:
        """The declared tensors with their values, flat, in the order of their declaration."""
        made = []
        for tensor, values, size in ((self.input, x, self.n_in), (self.output, y, self.n_out)):
            flat = np.asarray(values, dtype=np.float64).ravel()
            if flat.size != size or not np.isfinite(flat).all():
                raise UsageError(f"a counterexample needs {size} finite values for {tensor.name}", "run the network on the input again")
            made.append((tensor, flat))
        return made

    def vnnlib(self) -> str:
        """The property as VNN-LIB text of its version; read back, it has the same boxes and rows, exactly."""
        from polytriton.frontend.vnnlib_write import text_of

        return text_of(self)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Writes `vnnlib()` into a file, whole or not at all."""
        from polytriton.frontend.vnnlib_write import save_text

        return save_text(self, Path(path), overwrite)

    @staticmethod
    def from_box(
        lo: np.ndarray,
        hi: np.ndarray,
        label: int,
        n_out: int,
        targets: Iterable[int] | None = None,
        *,
        exact_box: tuple[Exact, Exact] | None = None,
        ball: NormBall | None = None,
        name: str = "box",
    ) -> Property:
        """Robustness of one label over a box, and in a ball: one disjunct for each other label.

        `exact_box` is what lo and hi were rounded from.
        """
        from polytriton.frontend.numbers import as_numpy, enclose_numbers, exact_number

        sides = tuple(as_numpy(v, "a box").ravel() for v in (lo, hi))
        (lo, _), (_, hi) = (enclose_numbers(v) for v in sides)
        lo, hi = lo.copy(), hi.copy()
        if lo.size != hi.size or not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            raise UsageError("a box needs as many lower as upper bounds, all finite", "give one of each an input, no NaN and no infinity")
        if (bad := np.flatnonzero(lo > hi)).size:
            raise UsageError(f"inverted box for X_{bad[0]}: {lo[bad[0]]} > {hi[bad[0]]}", "swap the bounds")
        lo.setflags(write=False)
        hi.setflags(write=False)
        if exact_box is None:
            low, high = (tuple(exact_number(v, "a box") for v in side.tolist()) for side in sides)
            exact_box = low, high
        rows = classification(label, n_out, targets)
        return Property.from_disjuncts(name, lo.size, n_out, tuple(Disjunct(lo, hi, *exact_box, (row,), ball=ball) for row in rows))


@dataclass(frozen=True, eq=False)
class Matrix:
    """Rows as float64 arrays: C y + D x <= const_up holds, up to |C_err||y| + |D_err||x|, wherever the exact row holds."""

    C: np.ndarray
    D: np.ndarray
    const_up: np.ndarray
    C_err: np.ndarray
    D_err: np.ndarray


def matrix(rows: Sequence[Row], n_out: int, n_in: int) -> Matrix:
    """Coefficients to the nearest, their errors and the constants rounded up: nothing of the exact unsafe set is lost."""
    m = len(rows)
    made = Matrix(*(np.zeros(s) for s in ((m, n_out), (m, n_in), (m,), (m, n_out), (m, n_in))))
    for k, row in enumerate(rows):
        made.const_up[k] = float_bounds(row.const)[1]
        for terms, coef, err in ((row.y, made.C, made.C_err), (row.x, made.D, made.D_err)):
            for i, c in terms:
                coef[k, i] = c.numerator / c.denominator
                err[k, i] = error_above(c, float(coef[k, i]))
    return made


def check_output(what: str, number: int, n_out: int) -> None:
    if not 0 <= number < n_out:
        raise UsageError(f"{what} {number} is out of range: the network has {n_out} outputs", f"{what}s run from 0 to {n_out - 1}")


def classification(label: int, n_out: int, targets: Iterable[int] | None = None) -> tuple[Row, ...]:
    """One row a target, `y_label - y_j <= 0`: a tie counts as unsafe, as in the competitions."""
    check_output("label", label, n_out)
    wanted = [j for j in range(n_out) if j != label] if targets is None else list(dict.fromkeys(targets))
    for j in wanted:
        if not 0 <= j < n_out or j == label:
            raise UsageError(f"target {j} is not one of the other outputs 0..{n_out - 1} of label {label}", "name other labels")
    one = Fraction(1)
    return tuple(Row(tuple(sorted(((label, one), (j, -one)))), (), Fraction(0)) for j in wanted)


def as_rationals(values: Iterable[float | Fraction]) -> Exact | None:
    """The numbers as rationals, or None where one of them is not finite."""
    try:
        return tuple(Fraction(v) for v in values)
    except (ValueError, OverflowError):
        return None


def check_range(value: Fraction, what: str) -> Fraction:
    """Refuses a number beyond float64: no bound computed with it could be finite."""
    lo, hi = float_bounds(value)
    if math.isinf(lo) or math.isinf(hi):
        raise UnsupportedProperty(f"{what} lies beyond float64", "rescale the property")
    return value
