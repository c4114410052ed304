"""Numbers of any type as float64: exactly, or rounded outward where they are ends of a box. Nothing is rounded to nearest on the way."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import numpy as np

from polytriton.errors import UsageError
from polytriton.frontend.query import enclosure
from polytriton.guard import guard

WHOLE = 2.0**53  # below it every integer is a float64
MOST = 400  # ten to the 400 is beyond float64, and so is its reciprocal
NUMBER = re.compile(r"\s*[-+]?(?:\d{1,1000}(?:\.\d{0,1000})?|\.\d{1,1000})(?:[eE][-+]?\d{1,3})?(?:/\d{1,1000})?\s*", re.ASCII)
GIVE = "give real numbers: an array, a tensor, nested lists or a .npy file"


@guard
def as_numpy(values: object, what: str) -> np.ndarray:
    """An array that holds the very numbers: of their own type, or, where numpy has none that holds them all, of Python's objects."""
    if hasattr(values, "detach"):
        return _of_tensor(values)
    if isinstance(values, list | tuple) and any(hasattr(v, "detach") for v in values):
        values = [as_numpy(v, what) for v in values]
    try:
        array = np.asarray(values)
        if array.dtype.kind == "f" and isinstance(values, list | tuple) and bool((np.abs(array) >= WHOLE).any()):
            array = _list_elements(values, array.shape)  # integers among floats may have been rounded
    except ValueError as why:  # ragged lists
        raise UsageError(f"{what} is no array: {why}", "give numbers in lists of equal length, an array or a tensor") from None
    if array.dtype.kind == "O":
        return _exact(array, what)
    if array.dtype.kind not in "buif":
        raise UsageError(f"{what} holds {array.dtype.name} values", GIVE)
    return array


def _of_tensor(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    narrow = tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4  # types that numpy lacks
    return np.asarray((tensor.float() if narrow else tensor).numpy())


def _list_elements(values: object, shape: tuple[int, ...]) -> np.ndarray:
    """The elements of nested lists as they are."""

    def flat(part: Any, depth: int) -> Iterable[object]:
        if depth == 0:
            yield part.item() if isinstance(part, np.ndarray) and part.dtype != np.longdouble else part
            return
        for v in part:
            yield from flat(v, depth - 1)

    made = np.empty(math.prod(shape), dtype=object)
    made[:] = list(flat(values, len(shape)))
    return made.reshape(shape)


def _exact(array: np.ndarray, what: str) -> np.ndarray:
    """The same objects as Fractions."""
    made = np.empty(array.size, dtype=object)
    made[:] = [exact_number(v, what) for v in array.ravel()]
    return made.reshape(array.shape)


@guard
def exact_number(value: object, what: str) -> Fraction:
    """A number as it is written: 0.1 as text or decimal is 1/10, as an entry of an array what the float is."""
    made = None
    try:
        if isinstance(value, Fraction):
            made = value
        elif isinstance(value, bool | int | np.integer | np.bool_):
            made = Fraction(int(value))
        elif isinstance(value, float | np.floating):
            made = Fraction(*value.as_integer_ratio())
        elif isinstance(value, Decimal):
            made = Fraction(value) if not value or abs(value.adjusted()) <= MOST else None
        else:
            raise UsageError(f"{what} holds {type(value).__name__} values", GIVE)
    except (ValueError, OverflowError, InvalidOperation):  # NaN and infinity
        pass
    if made is None or not all(map(math.isfinite, enclosure(*made.as_integer_ratio()))):
        raise UsageError(f"{what} holds NaN or infinity, or a number beyond float64", "give finite numbers")
    return made


@guard
def as_fraction(value: object, what: str) -> Fraction:
    """A number as Python prints it, or a text of one: 0.1307 is 1307/10000. Digits and exponents are counted before anything is made."""
    if isinstance(value, float | np.floating) and math.isfinite(value):
        value = str(value)
    if not isinstance(value, str):
        return exact_number(value, what)
    if NUMBER.fullmatch(value) is None:
        raise UsageError(f"{what}: `{value[:40]}` is no number", "write 0.1307 or 8/255")
    above, _, below = value.partition("/")
    divisor = Fraction(below or 1)
    if not divisor:
        raise UsageError(f"{what}: `{value[:40]}` divides by zero", "write 0.1307 or 8/255")
    return Fraction(above) / divisor


@guard
def exact_value(value: object, what: str) -> Fraction:
    """A number as it is: a float is the binary number that it holds, a text the decimal or the quotient that it spells."""
    if isinstance(value, str):
        return as_fraction(value, what)
    if hasattr(value, "detach") or isinstance(value, np.ndarray):  # an array of one number without axes is a number
        array = as_numpy(value, what)
        if array.ndim:
            raise UsageError(f"{what}: an array of shape {list(array.shape)} is no number", "give one of its numbers")
        value = array[()]
    if isinstance(value, bool | np.bool_):
        raise UsageError(f"{what}: {value} is a truth value, no number", "write a number; conditions are joined with & and |")
    return exact_number(value, what)


@guard
def exact_values(values: object, what: str) -> tuple[list[Fraction], tuple[int, ...]]:
    """The numbers of an array, a tensor or nested lists as `exact_value` reads each, in order, and their shape; one number has no axes."""
    if isinstance(values, list | tuple):
        parts = [exact_values(v, what) for v in values]
        if len({shape for _, shape in parts}) > 1:
            raise UsageError(f"{what} is no array: its lists differ in length", "give an array, or lists of equal length")
        return [v for flat, _ in parts for v in flat], (len(parts), *(parts[0][1] if parts else ()))
    if hasattr(values, "__array__") and not isinstance(values, np.generic):
        spelled = isinstance(values, np.ndarray) and values.dtype.kind in "OU"
        array = np.asarray(values) if spelled else as_numpy(values, what)
        return [exact_value(v, what) for v in array.ravel().tolist()], array.shape
    return [exact_value(values, what)], ()


@guard
def as_float64(values: object, what: str) -> np.ndarray:
    """Numbers that are to be what was given, as float64; refused where float64 has not the very number."""
    array = as_numpy(values, what)
    lo, hi = enclose_numbers(array)
    odd = np.flatnonzero((lo != hi).ravel() & ~np.isnan(lo).ravel())
    if len(odd):
        shown = f"{near:.17g}" if math.isfinite(near := float(hi.ravel()[odd[0]])) else "a number beyond them"
        remedy = "round them yourself, or give the box around them: bounds(lo, hi)"
        raise UsageError(f"{what} holds numbers that are no float64, one near {shown}", remedy)
    return lo


@guard
def enclose_numbers(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest float64 numbers below and above each number; equal where it is one. `array` is of `as_numpy`."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "b" or (kind in "ui" and size <= 4) or (kind == "f" and size <= 8):
        made = np.asarray(array, dtype=np.float64)
        return made, made
    near = array.astype(np.float64) if kind in "uif" else np.empty(array.shape)
    if kind == "f":
        back = near.astype(array.dtype)
        return np.where(back > array, np.nextafter(near, -np.inf), near), np.where(back < array, np.nextafter(near, np.inf), near)
    lo, hi = near.copy(), near.copy()
    odd = np.abs(near) >= WHOLE if kind in "ui" else np.ones(array.shape, dtype=bool)
    for place in zip(*np.nonzero(np.atleast_1d(odd)), strict=True):
        at = place if array.ndim else ()
        lo[at], hi[at] = enclosure(*array[at].item().as_integer_ratio() if kind in "ui" else array[at].as_integer_ratio())
    return lo, hi
