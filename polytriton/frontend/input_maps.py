"""Input maps: a network's input x = A z + b of few parameters z, among them what light, contrast and patches make of an image."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polytriton.errors import UsageError
from polytriton.frontend.balls import BYTE, normalisation
from polytriton.frontend.numbers import as_float64, as_fraction, as_numpy, exact_values
from polytriton.frontend.packed import load_npz
from polytriton.guard import guard_class
from polytriton.whole import save_whole

if TYPE_CHECKING:
    from polytriton.frontend.expressions import Numbers

LEAST, MOST = 2.0**-126, 2.0**60  # magnitudes that float32 executions keep, and that a bound under them may have
FILE = "an .npz file of `A`, [inputs, parameters], and `b`, [inputs], as InputMap.save writes it"


@guard_class
class InputMap:
    """x = A z + b: `A` is [inputs, parameters], `b` [inputs] (zeros where it is left out), in the network's own order of inputs.

    Floats are the numbers that they hold; texts, decimals and Fractions are exact, and what float64 lacks of them is accounted for.
    """

    def __init__(self, A: Numbers, b: Numbers | None = None) -> None:
        self.matrix, rounded = _round_to_floats(A, "A")
        if self.matrix.ndim != 2 or not self.matrix.size:
            raise UsageError(f"A has shape {list(self.matrix.shape)}", "give [inputs, parameters]: one column a parameter")
        shift, too = _round_to_floats(np.zeros(len(self.matrix)) if b is None else b, "b")
        if shift.size != len(self.matrix):
            raise UsageError(f"b holds {shift.size} numbers, A has {len(self.matrix)} rows", "give one number an input")
        self.shift, self.rounded = shift.reshape(-1), rounded or too

    @property
    def parameters(self) -> int:
        return int(self.matrix.shape[1])

    def __repr__(self) -> str:
        return f"<InputMap: {self.parameters} parameters -> {len(self.matrix)} inputs>"

    def image(self, z: Numbers) -> np.ndarray:
        """A z + b, in float64."""
        given = as_float64(z, "z").reshape(-1)
        if given.size != self.parameters:
            raise UsageError(f"z holds {given.size} numbers", f"the map has {self.parameters} parameters")
        return np.asarray(self.matrix @ given + self.shift)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Writes the map into an .npz file, whole or not at all."""
        held = io.BytesIO()
        np.savez(held, A=self.matrix, b=self.shift, rounded=np.array(self.rounded))
        return save_whole(Path(path), held.getvalue(), "the input map", overwrite=overwrite)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> InputMap:
        """Reads `save`'s file, or any .npz of arrays `A` and `b`."""
        try:
            held = load_npz(Path(path))
        except FileNotFoundError:
            raise UsageError(f"no file {path}", "check the path; it is taken relative to the current folder") from None
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as why:  # all that zipfile raises of bad files
            raise UsageError(f"cannot read the input map {path}: {why}", f"give {FILE}") from None
        if "A" not in held:
            raise UsageError(f"{path} holds the arrays {sorted(held)}, none called A", f"give {FILE}")
        made = InputMap(held["A"], held.get("b"))
        made.rounded |= bool(np.any(held.get("rounded", False)))
        return made

    # ---- of an image, [channels, height, width] or [height, width]; integers stand for level/255 --------------------------

    @staticmethod
    def light(image: Numbers, *, mean: Numbers = 0, std: Numbers = 1) -> InputMap:
        """Two parameters, brightness d and contrast c: pixel (1 + c) + d, normalised by (pixel - mean) / std."""
        pixels, shape = _pixels(image)
        means, stds = _cell_normalisation(mean, std, shape)
        rows = [(1 / s, p / s) for p, s in zip(pixels, stds, strict=True)]
        return _of_rows(rows, [(p - m) / s for p, m, s in zip(pixels, means, stds, strict=True)])

    @staticmethod
    def bias_field(image: Numbers, degree: int = 1, *, mean: Numbers = 0, std: Numbers = 1) -> InputMap:
        """pixel (1 + the sum of z_k u^i v^j), i + j <= degree, u and v from -1 to 1 down and across the image; then normalised."""
        if not 0 <= degree <= 8:
            raise UsageError(f"a bias field of degree {degree}", "give a degree from 0 to 8: 1 is a plane")
        pixels, shape = _pixels(image)
        means, stds = _cell_normalisation(mean, std, shape)
        powers = [(i, t - i) for t in range(degree + 1) for i in range(t, -1, -1)]
        down, across = ([Fraction(2 * k - n + 1, max(1, n - 1)) for k in range(n)] for n in shape[-2:])
        fields = [[u**i * v**j for i, j in powers] for u, v in product(down, across)] * (len(pixels) // (len(down) * len(across)))
        rows = [[p / s * f for f in field] for p, s, field in zip(pixels, stds, fields, strict=True)]
        return _of_rows(rows, [(p - m) / s for p, m, s in zip(pixels, means, stds, strict=True)])

    @staticmethod
    def patch(image: Numbers, top: int, left: int, height: int, width: int, *, mean: Numbers = 0, std: Numbers = 1) -> InputMap:
        """A parameter a pixel of the patch, in every channel: whatever is pasted there, normalised. The rest is the image."""
        pixels, shape = _pixels(image)
        means, stds = _cell_normalisation(mean, std, shape)
        if not (0 <= top < top + height <= shape[-2] and 0 <= left < left + width <= shape[-1]):
            raise UsageError(
                f"a patch of {height}x{width} at {top},{left} leaves the image of {shape[-2]}x{shape[-1]}", "rows and columns count from 0"
            )
        inside = np.zeros(shape, dtype=bool)
        inside[..., top : top + height, left : left + width] = True
        where = np.flatnonzero(inside)
        matrix = np.full((len(pixels), len(where)), Fraction(0), dtype=object)
        shift = [(p - m) / s for p, m, s in zip(pixels, means, stds, strict=True)]
        for column, cell in enumerate(where.tolist()):
            matrix[cell, column], shift[cell] = 1 / stds[cell], -means[cell] / stds[cell]
        return _of_rows(matrix.tolist(), shift)


def _round_to_floats(values: Numbers, what: str) -> tuple[np.ndarray, bool]:
    """The nearest float64 numbers, and whether any had to be rounded."""
    spelled = values if hasattr(values, "detach") or (isinstance(values, np.ndarray) and values.dtype.kind in "buif") else None
    if spelled is not None:
        made, rounded = as_float64(as_numpy(spelled, what), what).copy(), False
    else:
        exact, shape = exact_values(values, what)
        made = np.array([v.numerator / v.denominator for v in exact]).reshape(shape)
        rounded = any(Fraction(a) != b for a, b in zip(made.ravel().tolist(), exact, strict=True))
    size = np.abs(made[made != 0])
    if not np.isfinite(made).all() or ((size < LEAST) | (size > MOST)).any():
        raise UsageError(f"{what} holds a number not finite, above 2^60 or nearer to 0 than 2^-126", "write 0 for what is next to 0")
    made.setflags(write=False)
    return made, rounded


def _pixels(image: Numbers) -> tuple[list[Fraction], tuple[int, ...]]:
    array = as_numpy(image, "the image")
    if array.ndim not in (2, 3) or not array.size:
        raise UsageError(f"the image has shape {list(array.shape)}", "give [channels, height, width] or [height, width]")
    unit = BYTE if array.dtype.kind in "ui" else Fraction(1)
    return [v * unit for v in exact_values(array, "the image")[0]], array.shape


def _cell_normalisation(mean: Numbers, std: Numbers, shape: tuple[int, ...]) -> tuple[list[Fraction], list[Fraction]]:
    """Mean and standard deviation of every cell, as they are written: 0.1307 is 1307/10000."""
    given = [[as_fraction(v, "mean or std") for v in _as_list(some)] for some in (mean, std)]
    cells = prod(shape[-2:])
    channels = normalisation(given[0], given[1], shape[0] if len(shape) == 3 else 1)
    means, stds = ([v for v in some for _ in range(cells)] for some in channels)
    return means, stds


def _as_list(values: Numbers) -> Sequence[object]:
    return values if isinstance(values, list | tuple) else (values,)


def _of_rows(rows: Sequence[Sequence[Fraction]], shift: Sequence[Fraction]) -> InputMap:
    return InputMap([list(row) for row in rows], list(shift))
