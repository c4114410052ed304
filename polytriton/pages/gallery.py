"""One card an image query: the image, its ball, the counterexample, what it changed, and the margins."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from polytriton.pages import html
from polytriton.pages.facts import number, radius_name
from polytriton.runs.records import Image, Record
from polytriton.show.picture import is_picture, plane, png
from polytriton.show.pixels import unpack
from polytriton.show.words import decimal_above, decimal_below, plural

Find = Callable[[Image], "np.ndarray | None"]  # the pixels of an image that its record does not hold
BUDGET = 5 << 20  # characters of all cards together
FIRST = ("sat", "unknown", "timeout", "unsat")  # verdicts in the order in which cards are kept where not all fit
BARS = 12  # rival labels shown


@dataclass(frozen=True)
class Gallery:
    cards: dict[int, str]  # by the query's number
    left_out: int


def gallery(records: Sequence[Record], most: int, find: Find) -> Gallery:
    able = [k for k, r in enumerate(records) if r.image is not None and drawn_shape(r.image.shape) is not None]
    rank = {v: k for k, v in enumerate(FIRST)}
    made: dict[int, str] = {}
    left, without = BUDGET, 0
    for k in sorted(able, key=lambda k: (rank.get(records[k].verdict, len(rank)), k)):
        image = records[k].image
        assert image is not None
        pixels = unpack(image.pixels, image.shape) if image.pixels else find(image) if len(made) < most else None
        if pixels is None or len(made) >= most or left <= 0:
            without += 1
            continue
        made[k] = card(k, records[k], image, pixels.reshape(drawn_shape(image.shape) or pixels.shape))
        left -= len(made[k])
    return Gallery({k: made[k] for k in sorted(made)}, without)


def drawn_shape(shape: Sequence[int]) -> tuple[int, ...] | None:
    """The shape to draw an input in: its own, or a square for what networks take as a vector; None where neither fits."""
    if is_picture(tuple(shape)):
        return tuple(shape)
    size = math.prod(shape) if shape and min(shape) > 0 else 0
    for channels in (1, 3):
        side = math.isqrt(size // channels)
        if 8 <= side <= 4096 and channels * side * side == size:
            return channels, side, side
    return None


def card(k: int, r: Record, image: Image, pixels: np.ndarray) -> str:
    figures = [_figure(plane(pixels), "image", f"label {r.label}" if r.label is not None else "")]
    epsilon = number(r.epsilon)
    if epsilon is not None and not r.norm:
        limits = _limits(image)
        corners = [np.clip(pixels + s * min(float(epsilon), 2.0), *limits) for s in (-1, 1)]
        figures.append(_figure(np.concatenate([plane(c) for c in corners], axis=1), "ball", "all pixels least, all most", "wide"))
    found = _counterexample(r, image, pixels.shape)
    if found is not None and r.counterexample is not None:
        answer = f"answer {int(np.argmax(r.counterexample.y))}" if r.counterexample.y else ""
        change = found - pixels
        size = float(np.abs(change).max(initial=0.0))
        figures.append(_figure(plane(found), "counterexample", answer))
        figures.append(_figure(_colour_signs(change, size), "difference", f"at most {html.short(size, 3)}"))
    name = html.text(r.property, 200)
    return (
        f'<article class="card" data-i="{k}" id="i{k}"><h3>{name} {html.chip(r.verdict)}</h3><div class="figures">{"".join(figures)}</div>'
        f"{html.lines(_lines(r))}{_rivals(r)}</article>"
    )


def _lines(r: Record) -> list[tuple[str, str]]:
    lines = [("worst margin", html.short(r.margin))] if r.margin is not None else []
    if number(r.epsilon) is not None:
        lines.append(("epsilon", html.text(radius_name(r.epsilon or "", r.norm))))
    if r.radius is not None:
        lines.append(("certified radius", bracket(r)))
        if r.radius.queries:
            lines.append(("its search", f"{plural(r.radius.queries, 'query', 'queries')}, {html.time(r.radius.seconds)}"))
    if r.ended_by:
        lines.append(("ended by", html.text(r.ended_by)))
    if r.note:
        lines.append(("note", html.text(r.note, 200)))
    return lines


def bracket(r: Record) -> str:
    """The certified radius in words; rounding never widens the claim."""
    assert r.radius is not None
    proved, above = number(r.radius.proved), number(r.radius.not_proved)
    if proved is None:
        return "none found"
    known = f"<b>{decimal_below(proved)}</b>"
    if above is None:
        return known
    return f"{known}; not proved at {decimal_above(above)}" + ("" if r.radius.finished else ", out of time")


def _limits(image: Image) -> tuple[float, float]:
    clip = [number(v) for v in image.clip or ("0", "1")]
    return (float(clip[0]), float(clip[1])) if clip[0] is not None and clip[1] is not None else (0.0, 1.0)


def _counterexample(r: Record, image: Image, shape: tuple[int, ...]) -> np.ndarray | None:
    """In pixel space: x std + mean. None where the record's numbers do not fit together."""
    x = None if r.counterexample is None else np.array(r.counterexample.x)
    mean, std = ([float(v) for m in values if (v := number(m)) is not None] for values in (image.mean, image.std))
    channels = shape[0] if len(shape) == 3 else 1
    if x is None or x.size != math.prod(shape) or {len(mean), len(std)} - {1, channels}:
        return None
    spread = (-1, 1, 1) if len(shape) == 3 else (1, 1)
    with np.errstate(over="ignore"):
        made = x.reshape(shape) * np.reshape(std, spread) + np.reshape(mean, spread)
    return made if np.isfinite(made).all() else None


def _colour_signs(change: np.ndarray, size: float) -> np.ndarray:
    """Blue where a pixel fell, red where it rose, white where it stayed; colours of the largest change are full."""
    share = change / max(size, 1e-30)
    if change.ndim == 3:
        share = _strongest(share)
    up_, down_ = np.clip(share, 0, 1)[..., None], np.clip(-share, 0, 1)[..., None]
    white, red, blue = (np.array(c, dtype=np.float64) for c in ((255, 255, 255), (178, 24, 43), (33, 102, 172)))
    return np.rint(white + up_ * (red - white) + down_ * (blue - white)).astype(np.uint8)


def _strongest(share: np.ndarray) -> np.ndarray:
    """Of the channels of a pixel the one that changed most."""
    at = np.abs(share).argmax(0)
    return np.take_along_axis(share, at[None], 0)[0]


def _figure(levels: np.ndarray, title: str, under: str, css: str = "") -> str:
    data = base64.b64encode(png(levels)).decode("ascii")
    words = f"{title}, {under}" if under else title
    small = f"<br><small>{html.text(under)}</small>" if under else ""
    return (
        f'<figure class="{css}"><img decoding="async" alt="{html.text(words)}" width="{levels.shape[1]}" height="{levels.shape[0]}" '
        f'src="data:image/png;base64,{data}"><figcaption>{html.text(title)}{small}</figcaption></figure>'
    )


def _rivals(r: Record) -> str:
    """A bar a rival label: how far it is from winning, the nearest first."""
    if len(r.rivals) != len(r.margins):
        return ""
    pairs = sorted(((m, k) for k, m in zip(r.rivals, r.margins, strict=True) if m is not None))[:BARS]
    if not pairs:
        return ""
    lo, hi = min(0.0, pairs[0][0]), max(0.0, pairs[-1][0])
    scale = 150 / max(hi - lo, 1e-300)
    zero, parts = 36 - lo * scale, []
    for row, (m, rival) in enumerate(pairs):
        y = 4 + 15 * row
        parts.append(html.label(30, y + 10, str(rival), "end"))
        parts.append(html.rect(min(zero, zero + m * scale), y + 1, abs(m) * scale, 11, "bar unsat" if m > 0 else "bar unknown"))
        parts.append(html.label(194, y + 10, html.short(m, 3), "start"))
    parts.append(html.line(zero, 2, zero, 4 + 15 * len(pairs), "zero"))
    said = f"Margins to rival labels, the worst {html.short(pairs[0][0])} to label {pairs[0][1]}."
    return html.svg(250, 6 + 15 * len(pairs), said, parts, "rivals")
