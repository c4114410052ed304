"""What users hand over as numbers or images - arrays, tensors, lists, files - as numpy arrays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from polytriton.errors import UsageError
from polytriton.frontend.balls import normalisation
from polytriton.frontend.images import _shaped as shaped
from polytriton.frontend.images import load_images
from polytriton.frontend.packed import load_npy
from polytriton.guard import guarded


def is_path(value: Any) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(value, (str, os.PathLike))


@guarded
def as_numpy(values: Any, what: str) -> np.ndarray:
    """An array of the values' own type, from an array, a tensor of any device, or nested lists."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().resolve_conj().resolve_neg()
        values = (values.float() if values.dtype.is_floating_point and values.dtype.itemsize < 4 else values).numpy()
    elif isinstance(values, (list, tuple)) and any(hasattr(v, "detach") for v in values):
        values = [as_numpy(v, what) for v in values]
    try:
        array = np.asarray(values)
    except ValueError as why:  # ragged lists
        raise UsageError(f"{what} is no array: {why}", "give numbers in lists of equal length, an array or a tensor") from None
    if array.dtype.kind not in "buif":
        raise UsageError(f"{what} holds {array.dtype.name} values", "give real numbers: an array, a tensor, nested lists or a .npy file")
    return array


@guarded
def as_array(values: Any, what: str) -> np.ndarray:
    """Finite numbers as float64; a path is that of a .npy file."""
    array = np.asarray(as_numpy(_read(Path(values), what) if is_path(values) else values, what), dtype=np.float64)
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


@guarded
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


@guarded
def normalised(pixels: np.ndarray, mean: Any, std: Any) -> np.ndarray:
    """(pixel - mean) / std in float64, for [count, *shape]; of images with three axes the first is the channel."""
    values = pixels / 255.0 if pixels.dtype == np.uint8 else pixels
    channels = pixels.shape[1] if pixels.ndim == 4 else 1
    m, s = (np.array([float(v) for v in given]) for given in normalisation(exact_numbers(mean), exact_numbers(std), channels))
    if values.ndim == 4:
        m, s = (v.reshape(-1, 1, 1) for v in (m, s))
    return np.asarray((values - m) / s, dtype=np.float64)


@guarded
def exact_numbers(values: Any) -> tuple[Fraction, ...]:
    """Numbers as Python prints them: 0.1307 is 1307/10000. One number, or one a channel."""
    if isinstance(values, (list, tuple)):
        listed: Sequence[Any] = values
    elif isinstance(values, (str, Fraction)):
        listed = (values,)
    else:
        listed = list(as_numpy(values, "mean or std").ravel())
    try:
        return tuple(v if isinstance(v, Fraction) else Fraction(str(v)) for v in listed)
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"{values!r} holds no numbers", "give one number, or one a channel: mean=0.1307, std=(0.3081,)") from None
