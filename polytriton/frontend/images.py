"""Image files to pixels, and the numbers that a user writes about them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from polytriton.errors import UsageError
from polytriton.frontend.balls import BYTE, check_epsilon
from polytriton.frontend.datasets import find_dataset, read_dataset
from polytriton.frontend.folders import open_folder
from polytriton.frontend.norm_balls import LINF, check_norm
from polytriton.frontend.packed import load_npy, load_npz
from polytriton.guard import guard

SAVED = "write it again, np.savez(FILE, images=..., labels=...): damaged, ragged or pickled files are not read"
KNOWN = "use .npz (images, labels), .npy, .csv with the label first, MNIST's or CIFAR's own files, or a folder of images"
KEYS = (("images", "labels"), ("x_test", "y_test"), ("x", "y"), ("X", "Y"), ("X_test", "Y_test"), ("data", "labels"))


@dataclass(frozen=True, eq=False)
class Images:
    """`pixels` float64 in [0,1], first axis the image; `levels` the 0..255 integers they came from, if they did."""

    pixels: np.ndarray
    labels: np.ndarray | None
    levels: np.ndarray | None = None

    def __iter__(self) -> Iterator[np.ndarray | None]:
        """So that `pixels, labels = load_images(...)` reads naturally."""
        return iter((self.pixels, self.labels))

    @property
    def source(self) -> np.ndarray:
        """What `ball` should be given: the integers where there are any, for pixel/255 is no float64."""
        return self.pixels if self.levels is None else self.levels


@guard
def load_images(
    path: str | Path,
    start: int = 0,
    end: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    scale: Fraction | None = None,
    layout: str = "chw",
    n_out: int | None = None,
) -> Images:
    """Reads .npz, .npy, .csv (label first), MNIST's idx files, CIFAR's batches, or a folder of them or of images.

    `shape` is the network's input; `layout` says how flat pixels are ordered (chw, hwc).
    """
    path = Path(path)
    if path.is_dir() and (found := find_dataset(path)) is not None:
        path = found
    if path.is_dir():
        folder = open_folder(path)
        pixels, labels = folder.read(_range(start, end, len(folder.files), path.name))
        pick = slice(None)
    else:
        pixels, labels = _read(path)
        pick = _range(start, end, len(pixels), path.name)
    values, levels = _scale(pixels, scale, path.name)
    labels = None if labels is None else _labels(labels, len(pixels), n_out, path.name)[pick]
    values = _reshape(values[pick], shape, layout, path.name)
    return Images(values, labels, None if levels is None else _reshape(levels[pick], shape, layout, path.name))


def _range(start: int, end: int | None, total: int, name: str) -> slice:
    stop = total if end is None else end
    if not 0 <= start < stop <= total:
        raise UsageError(f"images {start} to {stop} were asked for, {name} holds 0 to {total}", f"choose 0 <= start < end <= {total}")
    return slice(start, stop)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    kind = path.suffix.lower()
    try:
        if kind == ".npz":
            return _arrays(load_npz(path), path.name)
        if kind == ".npy":
            pixels, labels = load_npy(path), None
        elif kind in (".csv", ".txt"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an empty file is refused below
                table = np.loadtxt(path, delimiter=",", ndmin=2, dtype=np.float64, encoding="utf-8-sig")
            pixels, labels = table[:, 1:], table[:, 0]
        elif (held := read_dataset(path)) is not None:
            pixels, labels = held
        else:
            raise UsageError(f"{path.name} is no image file known here", KNOWN)
    except FileNotFoundError:
        raise UsageError(f"no image file {path}", "check the path; it is taken relative to the current folder") from None
    except UsageError:
        raise
    except Exception as why:  # zip, zlib, numpy and the parser of its headers have many
        raise UsageError(f"cannot read the images of {path}: {why}", SAVED) from None
    _check_count(pixels, path.name)
    return pixels, labels


def _check_count(pixels: np.ndarray, name: str) -> None:
    if pixels.ndim < 2 or not pixels.size:
        raise UsageError(f"{name} holds no images: its array has the shape {list(pixels.shape)}", "the first axis counts images")


def _arrays(held: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """The pair of arrays that are pixels and labels; a single array is pixels whatever its name."""
    for x, y in KEYS:
        if x in held:
            pixels, labels = held[x], held.get(y)
            break
    else:
        if len(held) != 1:
            raise UsageError(f"{name} holds the arrays {sorted(held)}, none called images", "name them images and labels")
        pixels, labels = next(iter(held.values())), None
    _check_count(pixels, name)
    return pixels, labels


def _scale(pixels: np.ndarray, scale: Fraction | None, name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Pixels in [0,1] and, where they are 0..255 integers, those integers. The whole file decides, not the images picked."""
    if pixels.dtype.kind not in "uif" or pixels.dtype.itemsize > 8:
        raise UsageError(f"{name} holds pixels of type {pixels.dtype}", "store uint8 in 0..255 or floats in [0,1]")
    values = pixels.astype(np.float64)
    if not np.isfinite(values).all():
        raise UsageError(f"{name} holds pixels that are not finite", "remove NaN and infinity")
    low, high = float(values.min()), float(values.max())
    whole = low >= 0 and high <= 255 and bool((values == np.rint(values)).all())
    listed = name.lower().endswith((".csv", ".txt"))
    if whole and (scale == BYTE or (scale is None and (pixels.dtype.kind in "ui" or (listed and high > 1)))):
        return values / 255.0, values.astype(np.uint8)
    if scale is not None:
        values, low, high = values * float(scale), low * float(scale), high * float(scale)
    if low < 0:
        raise UsageError(
            f"pixels of {name} run from {low:g} to {high:g}: they look normalised already",
            "store pixels in [0,1] or 0..255 and give --mean and --std instead",
        )
    if high > 1:
        raise UsageError(f"pixels of {name} run from {low:g} to {high:g}, not in [0,1]", "for 0..255 pixels add --scale 1/255")
    return values, None


def _labels(labels: np.ndarray, total: int, n_out: int | None, name: str) -> np.ndarray:
    if labels.dtype.kind not in "uif" or labels.size != total:
        raise UsageError(f"{name} holds {total} images and labels of shape {list(labels.shape)}", "store one integer label an image")
    flat = labels.reshape(-1).astype(np.float64)
    top = np.inf if n_out is None else n_out
    if (bad := np.flatnonzero(~((flat >= 0) & (flat < top) & (flat == np.rint(flat)) & (flat < 2**31)))).size:
        i = int(bad[0])
        limit = "a whole number from 0" if n_out is None else f"in 0..{n_out - 1}"
        raise UsageError(f"label {flat[i]:g} of image {i} in {name} is out of range", f"labels must be {limit}; a CSV has the label first")
    return flat.astype(np.int64)


def _reshape(pixels: np.ndarray, shape: Sequence[int] | None, layout: str, name: str) -> np.ndarray:
    if layout not in ("chw", "hwc"):
        raise UsageError(f"pixel layout `{layout}` is unknown", "chw or hwc")
    if shape is None or pixels.shape[1:] == tuple(shape):
        return pixels
    n, wanted, found = len(pixels), tuple(shape), pixels.shape[1:]
    if np.prod(found) != np.prod(wanted):
        show = "x".join(map(str, wanted))
        raise UsageError(
            f"an image of {name} has {np.prod(found)} pixels, the network takes {show} = {np.prod(wanted)}",
            "give the images this network was trained on; in a CSV the label comes first",
        )
    if len(wanted) == 3 and (found == (*wanted[1:], wanted[0]) or (len(found) == 1 and layout == "hwc")):
        return np.ascontiguousarray(pixels.reshape(n, *wanted[1:], wanted[0]).transpose(0, 3, 1, 2))
    if len(wanted) == 3 and wanted[2] < min(wanted[:2]) and found == (wanted[2], *wanted[:2]):  # the network takes channels last
        return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
    long_found, long_wanted = ([k for k in axes if k > 1] for axes in (found, wanted))
    if long_found != long_wanted and min(len(long_found), len(long_wanted)) > 1:
        raise UsageError(
            f"images of {name} have the axes {list(found)}, the network takes {list(wanted)}",
            f"order the axes [image, {', '.join(map(str, wanted))}], or store flat pixels and say their order by --layout chw or hwc",
        )
    return pixels.reshape(n, *wanted)


def parse_fraction(text: str, what: str = "number") -> Fraction:
    """A decimal or a ratio, exactly."""
    found = re.fullmatch(
        r"\s*([-+]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][-+]?\d{1,2})?)(?:/(\d{1,40}(?:\.\d{1,40})?))?\s*", text, re.ASCII
    )
    if found is None:
        percent = text.strip().endswith("%")
        raise UsageError(f"`{text[:60]}` is no {what}", "for 2% write 0.02 or 2/100" if percent else "write 8/255 or 0.03")
    below = Fraction(found[2] or 1)
    if not below:
        raise UsageError(f"`{text[:60]}` divides by zero", "write 8/255 or 0.03")
    return Fraction(found[1]) / below


def parse_epsilon(text: str, norm: str = LINF) -> Fraction:
    """The radius in [0,1] pixel space; l2 and l1 measure all pixels together, so theirs may be greater than 1."""
    value = parse_fraction(text, "epsilon")
    check_epsilon(value)
    if value > 1 and check_norm(norm) == LINF:
        given = text.strip()
        raise UsageError(
            f"epsilon {given} is larger than the whole pixel range [0,1]",
            f"did you mean {given}/255, or {float(value / 100):g} for {given} per cent?" if "/" not in text else "write 8/255 or 0.03",
        )
    return value


def parse_list(text: str) -> tuple[Fraction, ...]:
    """Numbers separated by commas, for --mean and --std."""
    return tuple(parse_fraction(part) for part in text.split(","))
