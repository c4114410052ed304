"""Pixels to boxes: balls in [0,1] pixel space, normalised, every bound rounded outward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np

from polytriton.errors import UsageError
from polytriton.frontend.norm_balls import NormBall
from polytriton.frontend.numbers import as_float64
from polytriton.frontend.query import Exact, enclosure, float_bounds
from polytriton.guard import guard

BYTE = Fraction(1, 255)
BRIGHT = 8  # no normalisation in use takes a pixel in [0,1] so far up and none below 0
KNOWN = 1 << 12  # bounds of pixel values that are kept, a normalisation and radius
Clip: TypeAlias = tuple[int | Fraction, int | Fraction] | None


@guard
def ball(
    images: np.ndarray,
    epsilon: Fraction,
    *,
    mean: Sequence[Fraction] = (Fraction(0),),
    std: Sequence[Fraction] = (Fraction(1),),
    clip: Clip = (0, 1),
) -> tuple[np.ndarray, np.ndarray]:
    """The least float64 box around every image's ball, in network input space: ((p +- epsilon) clipped - mean) / std.

    Integers stand for pixel/255, floats for themselves. A bound depends on pixel value and channel only, so each of the few
    distinct values is worked out in exact rationals and rounded once. Float images may have as many values as pixels; above
    4,096 they go through float64, where every operation is correctly rounded and its result moved one place outward: the
    exact result lies within half a place of the rounded one, and -, clip and / by std > 0 are monotone in the bound they
    receive, so the computed bound stays outside; at most a few places are lost.
    """
    images = _as_given(images)
    means, stds, whole = _check_inputs(images, images.shape[1:], epsilon, mean, std, clip)
    spread = images.reshape(len(images), len(means), -1)
    lo, hi = np.empty(spread.shape), np.empty(spread.shape)
    for c in range(len(means)):
        values, where = np.unique(spread[:, c], return_inverse=True)
        if whole or len(values) <= 4096:
            table = _least(values.tolist(), whole, epsilon, means[c], stds[c], clip)
            lo[:, c], hi[:, c] = (table[:, k][where.reshape(spread[:, c].shape)] for k in (0, 1))
        else:
            lo[:, c], hi[:, c] = _round_outward(spread[:, c], epsilon, means[c], stds[c], clip)
    if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
        raise UsageError("the ball reaches beyond float64", "check the mean and the standard deviation")
    return lo.reshape(images.shape), hi.reshape(images.shape)


@guard
def exact_ball(
    image: np.ndarray,
    epsilon: Fraction,
    *,
    mean: Sequence[Fraction] = (Fraction(0),),
    std: Sequence[Fraction] = (Fraction(1),),
    clip: Clip = (0, 1),
) -> tuple[Exact, Exact]:
    """The same ball for one image (no image axis) in rationals: what a counterexample has to lie in."""
    image = _as_given(image)
    means, stds, whole = _check_inputs(image, image.shape, epsilon, mean, std, clip)
    spread = image.reshape(len(means), -1)
    unit = BYTE if whole else Fraction(1)
    known: dict[tuple[int, float], tuple[Fraction, Fraction]] = {}
    made = []
    for c in range(len(means)):
        for v in spread[c].tolist():
            if (c, v) not in known:
                known[c, v] = _interval(Fraction(v) * unit, epsilon, means[c], stds[c], clip)
            made.append(known[c, v])
    return tuple(a for a, _ in made), tuple(b for _, b in made)


def _as_given(pixels: np.ndarray) -> np.ndarray:
    """Levels as they are, others as float64: in narrower types epsilon itself would be rounded."""
    pixels = np.asarray(pixels)
    return pixels if pixels.dtype.kind in "ui" else as_float64(pixels, "the image")


@dataclass(frozen=True, eq=False)
class _Ball:
    image: np.ndarray
    epsilon: Fraction
    mean: Sequence[Fraction]
    std: Sequence[Fraction]
    clip: Clip

    @cached_property
    def sides(self) -> tuple[Exact, Exact]:
        return exact_ball(self.image, self.epsilon, mean=self.mean, std=self.std, clip=self.clip)


class Side(Sequence[Fraction]):
    """One side of `exact_ball`, worked out when somebody looks: thousands of rationals, of which a proof wants none."""

    def __init__(self, ball: _Ball, which: int) -> None:
        self.ball, self.which = ball, which

    def __len__(self) -> int:
        return int(self.ball.image.size)

    def __getitem__(self, index: Any) -> Any:
        return self.ball.sides[self.which][index]

    def __iter__(self) -> Iterator[Fraction]:
        return iter(self.ball.sides[self.which])


def lazy_ball(image: np.ndarray, epsilon: Fraction, mean: Sequence[Fraction], std: Sequence[Fraction], clip: Clip) -> tuple[Side, Side]:
    """`exact_ball` of an image that nobody writes to any more, once it is wanted."""
    image = image.copy()
    image.setflags(write=False)
    made = _Ball(image, epsilon, tuple(mean), tuple(std), clip)
    return Side(made, 0), Side(made, 1)


@guard
def norm_ball(image: np.ndarray, radius: Fraction, norm: str, mean: Sequence[Fraction], std: Sequence[Fraction], clip: Clip) -> NormBall:
    """{x : ||std (x - centre)|| <= radius}: ||p - image|| <= radius for pixels p = std x + mean."""
    (lo,), (hi,) = ball(image[None], Fraction(0), mean=mean, std=std, clip=clip)
    means, stds = normalisation(mean, std, image.shape[0] if image.ndim == 3 else 1)
    centre, _ = lazy_ball(image, Fraction(0), means, stds, clip)
    weights = [s for s in stds for _ in range(image.size // len(stds))]
    return NormBall.from_near(norm, centre, (lo.ravel(), hi.ravel()), weights, radius)


@lru_cache(maxsize=32)
def _known_bounds(whole: bool, epsilon: Fraction, mean: Fraction, std: Fraction, clip: Clip) -> dict[float, tuple[float, float]]:
    """The bounds that `_least` has found so far: images share their pixels' values, threads this."""
    return {}


def _least(values: list[float], whole: bool, epsilon: Fraction, mean: Fraction, std: Fraction, clip: Clip) -> np.ndarray:
    """What `float_bounds` makes of `_interval` of each value, [values, 2]: in integers, without a division before the last."""
    known = _known_bounds(whole, epsilon, mean, std, clip)
    if len(known) > KNOWN:
        known.clear()
    (en, ed), (mn, md), (sn, sd) = (v.as_integer_ratio() for v in (epsilon, mean, std))
    (an, ad), (bn, bd) = (v.as_integer_ratio() for v in map(Fraction, clip or (0, 0)))
    made = []
    for v in values:
        bounds = known.get(v)
        if bounds is not None:
            made.append(bounds)
            continue
        num, den = (int(v), 255) if whole else v.as_integer_ratio()
        low, high, d = num * ed - en * den, num * ed + en * den, den * ed
        low_d = high_d = d
        if clip is not None:
            if low * ad < an * d:
                low, low_d = an, ad
            if high * bd > bn * d:
                high, high_d = bn, bd
        low, high = (low * md - mn * low_d) * sd, (high * md - mn * high_d) * sd
        known[v] = bounds = enclosure(low, low_d * md * sn)[0], enclosure(high, high_d * md * sn)[1]
        made.append(bounds)
    return np.array(made).reshape(-1, 2)


def _interval(p: Fraction, epsilon: Fraction, mean: Fraction, std: Fraction, clip: Clip) -> tuple[Fraction, Fraction]:
    lo, hi = p - epsilon, p + epsilon
    if clip is not None:
        lo, hi = max(lo, Fraction(clip[0])), min(hi, Fraction(clip[1]))
    return (lo - mean) / std, (hi - mean) / std


def _round_outward(p: np.ndarray, epsilon: Fraction, mean: Fraction, std: Fraction, clip: Clip) -> tuple[np.ndarray, np.ndarray]:
    """The same in float64, one place outward after each operation (see `ball`); constants enter as their enclosures."""
    (_, eps), (mean_lo, mean_hi), (std_lo, std_hi) = float_bounds(epsilon), float_bounds(mean), float_bounds(std)
    lo, hi = np.nextafter(p - eps, -np.inf), np.nextafter(p + eps, np.inf)
    if clip is not None:
        lo, hi = np.maximum(lo, float_bounds(Fraction(clip[0]))[0]), np.minimum(hi, float_bounds(Fraction(clip[1]))[1])
    lo, hi = np.nextafter(lo - mean_hi, -np.inf), np.nextafter(hi - mean_lo, np.inf)
    lo, hi = lo / np.where(lo >= 0, std_hi, std_lo), hi / np.where(hi >= 0, std_lo, std_hi)
    return np.nextafter(lo, -np.inf), np.nextafter(hi, np.inf)


def _check_inputs(
    pixels: np.ndarray, shape: tuple[int, ...], epsilon: Fraction, mean: Sequence[Fraction], std: Sequence[Fraction], clip: Clip
) -> tuple[list[Fraction], list[Fraction], bool]:
    """Every channel's mean and standard deviation, and whether pixels are levels; `shape` is one image's."""
    means, stds = normalisation(mean, std, shape[0] if len(shape) == 3 else 1)
    check_epsilon(epsilon)
    whole = pixels.dtype.kind in "ui"
    _check_pixels(pixels, len(shape), whole, clip)
    return means, stds, whole


def normalisation(mean: Sequence[Fraction], std: Sequence[Fraction], channels: int) -> tuple[list[Fraction], list[Fraction]]:
    if len(mean) != len(std) or len(mean) not in (1, channels):
        raise UsageError(
            f"{_count(len(mean), 'mean')} and {_count(len(std), 'standard deviation')} for images of {_count(channels, 'channel')}",
            "give one mean and one std" + (f", or {channels} of each, one a channel" if channels > 1 else ": a grey image has one channel"),
        )
    if any(s <= 0 for s in std):
        raise UsageError(f"a standard deviation of {float(min(std)):g}", "standard deviations are above 0")
    spread = channels if len(mean) == 1 else 1
    return list(mean) * spread, list(std) * spread


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}{'s' * (n != 1)}"


def _check_pixels(pixels: np.ndarray, axes: int, whole: bool, clip: Clip) -> None:
    """A pixel outside the clip would leave an empty ball, levels taken for numbers in [0,1] one of no meaning. `axes`: of one image."""
    if not pixels.size or not np.isfinite(pixels).all():
        raise UsageError("an image holds no pixels, or some that are not finite", "remove NaN and infinity")
    low, high = Fraction(pixels.min().item()), Fraction(pixels.max().item())
    if whole and (low < 0 or high > 255):
        raise UsageError(f"integer pixels run from {low} to {high}", "integers are read as 0..255")
    unit = BYTE if whole else Fraction(1)
    if clip is not None and (low * unit < clip[0] or high * unit > clip[1]):
        raise UsageError(
            f"pixels run from {float(low * unit):g} to {float(high * unit):g}, outside {float(clip[0]):g}..{float(clip[1]):g}",
            "scale the pixels, or choose another clip",
        )
    if clip is None and not whole and axes == 3 and low >= 0 and high > BRIGHT:
        raise UsageError(
            f"pixels run from {float(low):g} to {float(high):g}: they look like levels 0..255, and epsilon is for pixels in [0,1]",
            "give uint8 levels or pixels / 255; where the network takes such numbers, say so: clip=(0, 255)",
        )


def check_epsilon(epsilon: Fraction) -> None:
    if epsilon < 0:
        raise UsageError(f"epsilon is negative: {float_bounds(epsilon)[0]:g}", "write 8/255 or 0.03")
