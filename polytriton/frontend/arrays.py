"""What users hand over as numbers or images - arrays, tensors, lists, files - as numpy arrays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from polytriton.errors import UsageError
from polytriton.frontend.balls import normalisation
from polytriton.frontend.images import _reshape as shaped
from polytriton.frontend.images import load_images, parse_epsilon
from polytriton.frontend.norm_balls import LINF, check_norm
from polytriton.frontend.numbers import as_float64, as_fraction, as_numpy, enclose_numbers
from polytriton.frontend.packed import load_npy
from polytriton.guard import guard

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Number: TypeAlias = "float | str | Fraction | np.number"  # 0.1307 as Python prints it, "2/255" as it is written
Numbers: TypeAlias = "Number | ArrayLike | Sequence[Number]"  # one or many, tensors among them
Images: TypeAlias = "ArrayLike | os.PathLike[str]"  # one or many, or their file


def is_path(value: Any) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(value, (str, os.PathLike))


@guard
def as_array(values: Any, what: str) -> np.ndarray:
    """Finite numbers as float64, which has to hold each of them; a path is that of a .npy file."""
    return _finite(as_float64(_open(values, what), what), what)


@guard
def as_ends(lo: Any, hi: Any) -> tuple[np.ndarray, np.ndarray]:
    """The ends of boxes: what float64 does not hold is rounded outward, so that no point of a box is lost."""
    low, high = (enclose_numbers(as_numpy(_open(v, what), what)) for v, what in ((lo, "lo"), (hi, "hi")))
    return _finite(low[0], "lo"), _finite(high[1], "hi")


@guard
def as_radius(epsilon: Any, norm: str = LINF) -> Fraction:
    """The radius of a ball in pixel space, as it is written; a Fraction may be larger than the pixel range [0,1]."""
    if isinstance(epsilon, Fraction):
        return epsilon
    if not isinstance(epsilon, str):
        value = as_fraction(epsilon, "epsilon")
        if 0 <= value <= 1 or (value > 0 and check_norm(norm) != LINF):
            return value
        epsilon = str(epsilon) if abs(value) < 10**6 else "1000000"
    return parse_epsilon(epsilon, norm)


def _open(values: Any, what: str) -> Any:
    return _read(Path(values), what) if is_path(values) else values


def _finite(array: np.ndarray, what: str) -> np.ndarray:
    if not np.isfinite(array).all():
        raise UsageError(f"{what} holds NaN or infinity", "give finite numbers")
    return array


def _read(path: Path, what: str) -> np.ndarray:
    if path.suffix.lower() != ".npy":
        raise UsageError(f"{what} cannot be read from {path.name or path}", "give a .npy file, an array, a tensor or lists")
    try:
        return load_npy(path)
    except FileNotFoundError:
        raise UsageError(f"no file {path}", "check the path; it is taken relative to the current folder") from None
    except Exception as why:  # numpy and the parser of its headers have many
        raise UsageError(f"cannot read {path}: {why}", "damaged or pickled files are not read") from None


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images [count, *input shape]: float64 as given, or uint8 levels, each of which stands for level/255 exactly."""

    values: np.ndarray
    labels: np.ndarray | None
    single: bool  # one image, given without a batch axis

    def __len__(self) -> int:
        return len(self.values)


@guard
def as_pixels(images: Any, shape: tuple[int, ...]) -> Pixels:
    """Images from memory, or from a file as `load_images` reads it. Axes [height, width, channels] are brought into order."""
    if is_path(images):
        held = load_images(Path(images), shape=shape)
        return Pixels(held.source, held.labels, False)
    array = as_numpy(images, "x")
    size = int(np.prod(shape))
    if array.size == 0 or size not in (array.size, int(np.prod(array.shape[1:]))):
        raise UsageError(
            f"x has shape {list(array.shape)}, the network takes {size} values an input", f"give [batch, {', '.join(map(str, shape))}]"
        )
    single = array.size == size and array.ndim <= len(shape)
    values = array if array.dtype == np.uint8 else as_array(array, "x")
    return Pixels(shaped(values[None] if single or array.shape[0] * size != array.size else values, shape, "chw", "x"), None, single)


@guard
def normalise(pixels: np.ndarray, mean: Any, std: Any) -> np.ndarray:
    """(pixel - mean) / std in float64, for [count, *shape]; of images with three axes the first is the channel."""
    values = pixels / 255.0 if pixels.dtype == np.uint8 else pixels
    channels = pixels.shape[1] if pixels.ndim == 4 else 1
    m, s = (np.array([float(v) for v in given]) for given in normalisation(exact_numbers(mean), exact_numbers(std), channels))
    if values.ndim == 4:
        m, s = (v.reshape(-1, 1, 1) for v in (m, s))
    return np.asarray((values - m) / s, dtype=np.float64)


@guard
def exact_numbers(values: Any) -> tuple[Fraction, ...]:
    """Numbers as Python prints them: 0.1307 is 1307/10000. One number, or one a channel."""
    if isinstance(values, (list, tuple)):
        listed: Sequence[Any] = values
    elif isinstance(values, (str, int, float, Fraction)):
        listed = (values,)
    else:
        listed = list(as_numpy(values, "mean or std").ravel())
    try:
        return tuple(as_fraction(v, "mean or std") for v in listed)
    except UsageError as error:
        raise UsageError(
            f"mean or std holds no numbers: {error.message}", "give one number, or one a channel: mean=0.1307, std=(0.3081,)"
        ) from None
