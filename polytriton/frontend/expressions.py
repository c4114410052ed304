"""Linear expressions over a network's inputs x and outputs y, and conditions that compare them: what a property in Python is made of.

Python's operators do what VNN-LIB's do: sums and multiples come of `vnnlib_linear.Linear`, comparisons by its `compare_linear`, and &, |, ~
join formulas of `vnnlib_dnf`. A number is taken at its exact value. What is not linear, and whatever Python would decide by itself before
the network has answered (`and`, `or`, `if`, a <= y <= b), is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import isfinite, prod
from typing import TYPE_CHECKING, NoReturn, TypeAlias, Union

import numpy as np

from polytriton.errors import UsageError
from polytriton.frontend.numbers import exact_value, exact_values
from polytriton.frontend.query import Tensor, float_bounds
from polytriton.frontend.vnnlib_dnf import Formula, Junction, Leaf, fold
from polytriton.frontend.vnnlib_linear import ONE, ZERO, BadLine, Linear, compare_linear
from polytriton.frontend.vnnlib_parse import MAX_ELEMENTS
from polytriton.guard import guard, guard_class

if TYPE_CHECKING:
    import torch

Number: TypeAlias = Union[int, float, str, Fraction, Decimal, "np.integer", "np.floating"]
Numbers: TypeAlias = Union[Number, np.ndarray, "torch.Tensor", Sequence["Numbers"]]

SHOWN = 200  # characters of an expression or a condition that are shown
LONG = 64  # bits of a number that is shown digit by digit
JOIN = "join comparisons with &, | and ~, each in brackets: (y[0] >= 2) & (x[1] <= 0.5)"
SINGLE = "compare one element, such as y[0]; x.flat[k] counts elements in flat order, sum() and dot(weights) add them up"


@dataclass(frozen=True)
class Shapes:
    """The shapes of a network's input and output, which expressions must share."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def element(self, code: int) -> str:
        """How a program writes the variable: x[0,3]."""
        if code >= 0:
            return Tensor("x", shape=self.inputs).element(code, "2.0")
        return Tensor("y", shape=self.outputs).element(~code, "2.0")


def check_same(a: Shapes, b: Shapes) -> None:
    if a != b:
        raise UsageError(
            f"expressions of two networks: inputs {list(a.inputs)} and {list(b.inputs)}, outputs {list(a.outputs)} and {list(b.outputs)}",
            "make all of a property's variables by one call of variables()",
        )


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Expression:
    """A sum of multiples of inputs and outputs and a constant, exactly: every coefficient is a rational number.

    Made of variables with +, -, * and / by numbers. Comparing two of them (or one with a number) with <=, <, >=, >, == or != makes a
    `Condition`. A float stands for the binary number that it is, a text such as "0.1" or "1/3" for what it spells.
    """

    shapes: Shapes
    form: Linear  # never written to: a sum is made anew

    __array_ufunc__ = None  # numpy leaves its own numbers' operators to those below

    def __add__(self, other: Expression | Number) -> Expression:
        return _total(self.shapes, self.form, _operand(self.shapes, other), True)

    def __radd__(self, other: Expression | Number) -> Expression:
        return self + other

    def __sub__(self, other: Expression | Number) -> Expression:
        return _total(self.shapes, self.form, _operand(self.shapes, other), False)

    def __rsub__(self, other: Expression | Number) -> Expression:
        return -self + other

    def __neg__(self) -> Expression:
        return Expression(self.shapes, self.form.negate())

    def __pos__(self) -> Expression:
        return self

    def __mul__(self, other: Expression | Number) -> Expression:
        by = _operand(self.shapes, other)
        if self.form.terms and by.terms:
            raise _nonlinear(f"the product of {self!r} and {other!r}")
        form, by = (self.form, by) if self.form.terms else (by, self.form)
        return _multiple(self.shapes, form, by.const)

    def __rmul__(self, other: Expression | Number) -> Expression:
        return self * other

    def __truediv__(self, other: Expression | Number) -> Expression:
        by = _operand(self.shapes, other)
        if by.terms:
            raise _nonlinear(f"{self!r} divided by {other!r}")
        if not by.const:
            raise UsageError(f"{self!r} is divided by zero", "divide by another number")
        return _multiple(self.shapes, self.form, 1 / by.const)

    def __rtruediv__(self, other: Expression | Number) -> Expression:
        return Expression(self.shapes, _operand(self.shapes, other)) / self

    def _not_linear(self, *others: object) -> NoReturn:
        raise _nonlinear(f"a power, a remainder, a rounding or the absolute value of {self!r}")

    __pow__ = __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __abs__ = __round__ = __divmod__ = __rdivmod__ = _not_linear

    def __le__(self, other: Expression | Number) -> Condition:
        return self._compare("<=", other)

    def __lt__(self, other: Expression | Number) -> Condition:
        return self._compare("<", other)

    def __ge__(self, other: Expression | Number) -> Condition:
        return self._compare(">=", other)

    def __gt__(self, other: Expression | Number) -> Condition:
        return self._compare(">", other)

    def __eq__(self, other: Expression | Number) -> Condition:  # type: ignore[override]  # a condition, no truth value
        return self._compare("==", other)

    def __ne__(self, other: Expression | Number) -> Condition:  # type: ignore[override]
        return self._compare("!=", other)

    def _compare(self, op: str, other: Expression | Number) -> Condition:
        a, b = self.form, _operand(self.shapes, other)
        if op in (">=", ">"):
            a, b = b, a
        return Condition(self.shapes, compare_linear(op, a, b))

    def _no_formula(self, *others: object) -> NoReturn:
        """Also for y[0] >= 2 & x[1] <= 0.5, which Python reads as y[0] >= (2 & x[1]) <= 0.5."""
        raise UsageError(f"&, | and ~ join conditions, and {self!r} is none", JOIN)

    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _no_formula

    def __bool__(self) -> bool:
        raise UsageError(f"{self!r} is neither true nor false: what the network answers is not known yet", JOIN)

    def __repr__(self) -> str:
        return _shorten(_show(self.shapes, self.form.terms, self.form.const))


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Condition:
    """Comparisons of expressions, joined with & (and), | (or) and ~ (not)."""

    shapes: Shapes
    formula: Formula

    __array_ufunc__ = None

    def __and__(self, other: Condition) -> Condition:
        return self._join("and", other)

    def __or__(self, other: Condition) -> Condition:
        return self._join("or", other)

    def __rand__(self, other: Condition) -> Condition:
        return self & other

    def __ror__(self, other: Condition) -> Condition:
        return self | other

    def __invert__(self) -> Condition:
        return Condition(self.shapes, Junction("not", (self.formula,)))

    def _join(self, op: str, other: object) -> Condition:
        if not isinstance(other, Condition):
            raise UsageError(f"& and | join conditions, and {shown_value(other)} is none", JOIN)
        check_same(self.shapes, other.shapes)
        return Condition(self.shapes, Junction(op, (self.formula, other.formula)))

    def __bool__(self) -> bool:
        raise UsageError(
            "a condition is neither true nor false: what the network answers is not known yet, "
            "and a <= y[0] <= b, and, or, not, if, max or sorted asked for it",
            "write (a <= y[0]) & (y[0] <= b), | for or, ~ for not, each comparison in brackets",
        )

    def _no_number(self, *others: object) -> NoReturn:
        raise UsageError(f"{self!r} is a condition, no number: it is not compared, and nothing is added to it", JOIN)

    __lt__ = __le__ = __gt__ = __ge__ = _no_number
    __eq__ = __ne__ = _no_number  # type: ignore[assignment]  # Python would compare identities, and say False
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __xor__ = __rxor__ = _no_number

    def __repr__(self) -> str:
        def leaf(made: Leaf) -> str:
            return _comparison(self.shapes, made)

        def join(word: str, empty: str, parts: list[str]) -> str:
            return parts[0] if len(parts) == 1 else f"({word.join(parts)})" if parts else empty

        return _shorten(fold(self.formula, leaf, lambda p: join(" | ", "false", p), lambda p: join(" & ", "true", p)))


@guard_class
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Variables:
    """The inputs or the outputs of a network, element by element: x[0, 3, 4] names one, with an index for every axis of `shape`.

    Iterating goes over all elements in flat order, so `sum(y)` adds them up. `x.flat[k]` is element k of this order, as X_k in VNN-LIB 1.0.
    """

    letter: str
    shape: tuple[int, ...]
    shapes: Shapes

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    @property
    def size(self) -> int:
        """How many elements there are."""
        return prod(self.shape)

    @property
    def flat(self) -> Variables:
        """The same variables along one axis."""
        return Variables(self.letter, (self.size,), self.shapes)

    def sum(self) -> Expression:
        """All elements, added up."""
        return Expression(self.shapes, Linear({self._code(k): ONE for k in range(self.size)}, ZERO))

    def dot(self, weights: Numbers) -> Expression:
        """The elements, each times its weight, added up; weights come in the variables' shape or flat."""
        values, shape = exact_values(weights, "weights")
        if shape not in (self.shape, (self.size,)):
            raise UsageError(
                f"weights of shape {list(shape)} for {self.letter} of shape {list(self.shape)}",
                "give one weight an element; a matrix row by row: [row @ y for row in C]",
            )
        return Expression(self.shapes, Linear({self._code(k): w for k, w in enumerate(values) if w}, ZERO))

    def __matmul__(self, weights: Numbers) -> Expression:
        return self.dot(weights)

    def __rmatmul__(self, weights: Numbers) -> Expression:
        return self.dot(weights)

    def __getitem__(self, index: int | tuple[int, ...]) -> Expression:
        at = index if isinstance(index, tuple) else (index,)
        if len(at) != len(self.shape):
            raise UsageError(
                f"{self.letter} has {len(self.shape)} axes, of shape {list(self.shape)}, and {len(at)} indices were given",
                f"name one element: {Tensor(self.letter, shape=self.shape).element(0, '2.0')}, or {self.letter}.flat[k] in flat order",
            )
        flat = 0
        for given, size in zip(at, self.shape, strict=True):
            flat = flat * size + self._position(given, size)
        return Expression(self.shapes, Linear({self._code(flat): ONE}, ZERO))

    def _position(self, given: object, size: int) -> int:
        k = int(given) if isinstance(given, int | np.integer) and not isinstance(given, bool) else size
        if not -size <= k < size:
            raise UsageError(
                f"{self.letter} of shape {list(self.shape)} has no element {shown_value(given)}",
                f"indices are whole numbers from 0, here to {size - 1}; {SINGLE}",
            )
        return k % size

    def _code(self, flat: int) -> int:
        return flat if self.letter == "x" else ~flat

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Expression]:
        return (Expression(self.shapes, Linear({self._code(k): ONE}, ZERO)) for k in range(self.size))

    def _whole(self, *others: object) -> NoReturn:
        raise UsageError(f"{self.letter} is {self.size} variables, no single one", SINGLE)

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _whole
    __eq__ = __ne__ = _whole  # type: ignore[assignment]
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __abs__ = __pow__ = _whole

    def __repr__(self) -> str:
        return f"<Variables {self.letter}, shape {list(self.shape)}>"


@guard
def variables(inputs: int | Sequence[int], outputs: int | Sequence[int]) -> tuple[Variables, Variables]:
    """The inputs x and the outputs y of any network of these shapes (or numbers of them), to write properties with.

    `Verifier.variables` gives those of a network at hand.
    """
    shapes = Shapes(_shape(inputs, "inputs"), _shape(outputs, "outputs"))
    return Variables("x", shapes.inputs, shapes), Variables("y", shapes.outputs, shapes)


def _shape(given: int | Sequence[int], what: str) -> tuple[int, ...]:
    try:
        shape = tuple(operator.index(k) for k in (given if isinstance(given, Sequence) else (given,)))
    except TypeError:
        shape = ()
    if not shape or min(shape) < 1 or prod(shape) > MAX_ELEMENTS:
        raise UsageError(f"variables: {what}={shown_value(given)} is no shape", "give a number, or a shape such as (3, 32, 32)")
    return shape


# Arithmetic


def _operand(shapes: Shapes, value: object) -> Linear:
    """The other side of an operator: an expression of the same network, or a number."""
    if isinstance(value, Expression):
        check_same(shapes, value.shapes)
        return value.form
    if isinstance(value, Variables):
        value._whole()
    if isinstance(value, Condition):
        value._no_number()
    if not (isinstance(value, bool | int | float | str | Fraction | Decimal | np.generic | np.ndarray) or hasattr(value, "detach")):
        raise UsageError(f"{shown_value(value)} is neither a number nor an expression", "combine variables and numbers")
    return Linear({}, exact_value(value, "an expression"))


def _total(shapes: Shapes, a: Linear, b: Linear, plus: bool) -> Expression:
    made = Linear(dict(a.terms), a.const)
    try:
        made.accumulate(b, plus)
    except BadLine as stop:
        message, remedy = stop.args
        raise UsageError(message, remedy) from None
    return Expression(shapes, made)


def _multiple(shapes: Shapes, form: Linear, by: Fraction) -> Expression:
    try:
        return Expression(shapes, form.scale(by))
    except BadLine as stop:
        message, remedy = stop.args
        raise UsageError(message, remedy) from None


def _nonlinear(what: str) -> UsageError:
    return UsageError(f"{what} is not linear", "properties are made of sums of multiples; |a| <= b is (-b <= a) & (a <= b)")


# How they are shown


def shown_value(value: object) -> str:
    """What a message says of what was given."""
    if isinstance(value, int) and value.bit_length() > LONG:
        return "a long number"
    return _shorten(repr(value) if isinstance(value, bool | int | float | str | Expression | Variables) else type(value).__name__)


def _digits(value: Fraction) -> str:
    """1/2; a long number is shown to six digits, for Python refuses to print the longest."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) <= LONG:
        return str(value)
    lo, hi = float_bounds(value)
    return f"{lo:.6g}" if isfinite(lo) and isfinite(hi) else "a number beyond float64"


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 4] + " ..."


def _show(shapes: Shapes, terms: dict[int, Fraction], const: Fraction) -> str:
    """y[0] - 2*x[1] + 1/2"""
    made = ""
    for k, c in sorted(terms.items(), key=lambda t: (t[0] >= 0, t[0] if t[0] >= 0 else ~t[0])):
        if len(made) > SHOWN:
            break
        sign = (" - " if c < 0 else " + ") if made else "-" if c < 0 else ""
        made += sign + (f"{_digits(abs(c))}*" if abs(c) != 1 else "") + shapes.element(k)
    if const or not made:
        made += f" {'-' if const < 0 else '+'} {_digits(abs(const))}" if made else _digits(const)
    return made


def _comparison(shapes: Shapes, leaf: Leaf) -> str:
    """y[0] - y[3] >= 2: the first variable stands there with a plus."""
    first = max((k for k in leaf.terms if k < 0), default=min(leaf.terms))
    sign = "<" if leaf.terms[first] > 0 else ">"
    side = leaf if leaf.terms[first] > 0 else leaf.negate()
    return f"({_show(shapes, side.terms, ZERO)} {sign}{'' if leaf.strict else '='} {_digits(side.const)})"
