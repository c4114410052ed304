"""The set of a network's outputs over a box, enclosed: the box is divided, and every part's outputs are bounded in the same directions.

Sound whatever is cut: parts that share their cuts cover the box, `margins` bounds each direction over each part, and what held of the whole
holds of a part. Samples say which part to cut where, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from polytriton.errors import UsageError
from polytriton.frontend.arrays import Images
from polytriton.frontend.numbers import as_float64
from polytriton.frontend.query import Property, check_output
from polytriton.guard import guard
from polytriton.ir import interp
from polytriton.prove.cuts import FLAT, halves, middle, widest_effect
from polytriton.prove.prover import NetProver
from polytriton.prove.strategy import check_time
from polytriton.results.reach import Plane, Reach
from polytriton.runtime.engine import Progress, _silent

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

PIECES = 64  # by default, where few inputs are free; cutting one of many would gain nothing
FEW = 16
NUMBERS = 1 << 24  # of the forms bounded at once
POINTS = 1 << 22  # numbers evaluated at once
DIAGONALS = 6  # of a part that are looked at, both ends of each
WORTH = 1e-3  # a smaller gap is not worth a cut


@guard
def reach(
    net: NetProver,
    box: Property | tuple[Images | Fraction, Images | Fraction],
    *,
    planes: Sequence[Plane] | None = None,
    directions: ArrayLike | None = None,
    angles: int = 32,
    pieces: int | None = None,
    timeout: float | None = None,
    effort: str = "tight",
    samples: int = 400,
    seed: int = 0,
    progress: Progress = _silent,
) -> Reach:
    """Encloses every output over a box of inputs: its two ends, as arrays or as numbers for all inputs, or a property's boxes.

    Each output is bounded, each of `directions` [rows, outputs], and of each of `planes`, pairs of outputs, as many directions as `angles`
    says; by default of the plane of the first two. The box is divided into at most `pieces` parts (64, or 1 where over 16 inputs are free)
    within about `timeout` seconds. effort: as for `bounds`. samples: executions to run for the picture, drawn by `seed`.
    """
    begin = time.monotonic()
    if not hasattr(net, "margins"):
        remedy = 'polytriton.reach(polytriton.compile("NET.onnx"), (lo, hi))'
        raise UsageError(f"a compiled network is needed, not {type(net).__name__}", remedy)
    _check(angles, pieces, timeout, samples)
    lo, hi = _ends(net, box)
    chosen = _planes(net.outputs, planes)
    rng = np.random.default_rng(seed)
    few = int(np.count_nonzero((lo < hi).any(0))) <= FEW
    most = max(len(lo), pieces if pieces is not None else PIECES if few else 1)
    probe = _Probe(net, rng, lo, hi, few)
    rows = _rows(net, chosen, directions, angles, probe.ranges(np.eye(net.outputs), lo, hi))
    scale = probe.ranges(rows, lo, hi)

    def measure(lo: np.ndarray, hi: np.ndarray, held: np.ndarray) -> _Parts:
        step = max(1, NUMBERS // rows.size)
        some = [slice(at, at + step) for at in range(0, len(lo), step)]
        found = [net.margins(lo[part], hi[part], rows, effort=effort, progress=progress) for part in some]
        least = np.maximum(np.concatenate(found), held)
        return _Parts(lo, hi, least, *probe.look(rows, scale, lo, hi, least))

    parts = measure(lo, hi, np.full((len(lo), len(rows)), -np.inf))
    ended = "pieces"
    while len(parts.lo) < most:
        if timeout is not None and time.monotonic() - begin >= timeout:
            ended = "time"
            break
        progress("pieces", len(parts.lo), most)
        wanted = parts.worth_cutting()
        if not len(wanted):
            ended = ""
            break
        wanted = wanted[np.argsort(-parts.gap[wanted], kind="stable")][: min(most - len(parts.lo), max(1, len(parts.lo) // 2))]
        low, high = halves(parts.lo[wanted], parts.hi[wanted], parts.axis[wanted])
        parts = parts.drop(wanted).join(measure(low, high, np.tile(parts.least[wanted], (2, 1))))
    if ended == "pieces" and not len(parts.worth_cutting()):
        ended = ""
    seen = _executions(net, lo, hi, samples, rng)
    gap, taken = float(parts.gap.max()), round(time.monotonic() - begin, 6)
    return Reach(net.path, net.options.semantics, chosen, rows, parts.least, parts.lo, parts.hi, seen, gap, ended, taken)


@dataclass(frozen=True, eq=False)
class _Parts:
    """Boxes of inputs [parts, inputs], the least values of all forms over each [parts, rows], the gap of each, the input to cut (or -1)."""

    lo: np.ndarray
    hi: np.ndarray
    least: np.ndarray
    gap: np.ndarray
    axis: np.ndarray

    def worth_cutting(self) -> np.ndarray:
        """Their numbers."""
        return np.flatnonzero((self.gap > WORTH) & (self.axis >= 0))

    def drop(self, parts: np.ndarray) -> _Parts:
        return _Parts(*(np.delete(v, parts, axis=0) for v in vars(self).values()))

    def join(self, other: _Parts) -> _Parts:
        return _Parts(*(np.concatenate(pair) for pair in zip(vars(self).values(), vars(other).values(), strict=True)))


class _Probe:
    """Points of boxes and what the network answers there, in float64: where bounds are loose, and which input bends the outputs."""

    def __init__(self, net: NetProver, rng: np.random.Generator, lo: np.ndarray, hi: np.ndarray, few: bool) -> None:
        self.net = net.net
        free = np.flatnonzero((lo < hi).any(0))
        self.axes = free if few else free[:0]
        steps = np.concatenate([np.eye(lo.shape[1])[self.axes], rng.choice([-1.0, 1.0], (DIAGONALS, lo.shape[1]))])
        self.offsets = np.concatenate([np.zeros((1, lo.shape[1])), steps, -steps])  # in halves of a box's width, from its middle

    def _values(self, lo: np.ndarray, hi: np.ndarray) -> Iterator[np.ndarray]:
        """Outputs [boxes, points, outputs] at the offsets, some boxes at a time."""
        step = max(1, POINTS // (len(self.offsets) * max(n.size for n in self.net)))
        for at in range(0, len(lo), step):
            low, high = lo[at : at + step, None], hi[at : at + step, None]
            points = np.clip(middle(low, high) + 0.5 * (high - low) * self.offsets, low, high)
            with np.errstate(all="ignore"):
                found = interp.run(self.net, points.reshape(-1, lo.shape[1]))
            yield found.reshape(len(low), len(self.offsets), -1)

    def ranges(self, rows: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """How far each form was seen to move; 1 where it was not."""
        values = np.concatenate([(v @ rows.T).reshape(-1, len(rows)) for v in self._values(lo, hi)])
        with np.errstate(all="ignore"):
            found = values.max(0) - values.min(0)
        return np.where(np.isfinite(found) & (found > 0), found, 1.0)

    def look(
        self, rows: np.ndarray, scale: np.ndarray, lo: np.ndarray, hi: np.ndarray, least: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of every box its gap, and the input to cut."""
        gaps, weights, at = [], [], 0
        for values in self._values(lo, hi):
            part = slice(at, at + len(values))
            with np.errstate(all="ignore"):
                forms = values @ rows.T / scale
                beyond = (forms.min(1) - least[part] / scale).max(1)
                here, up, down = forms[:, :1], *np.split(forms[:, 1:], 2, axis=1)
                bend, change = (np.abs(v).max(2) for v in (0.5 * (up + down) - here, up - down))
                gaps.append(np.nan_to_num(np.maximum(beyond, bend.max(1)), nan=np.inf))
                weight = np.ones(lo[part].shape)
                told = (bend + 0.5 * FLAT * change)[:, : len(self.axes)] / (hi[part] - lo[part])[:, self.axes]
                weight[:, self.axes] = np.nan_to_num(told, nan=0.0, posinf=0.0)
            weights.append(weight)
            at = part.stop
        return np.concatenate(gaps), widest_effect(lo, hi, np.concatenate(weights))


def _check(angles: int, pieces: int | None, timeout: float | None, samples: int) -> None:
    if not 4 <= angles <= 4096:
        raise UsageError(f"{angles} angles are out of range", "give 4 to 4096")
    if pieces is not None and not 1 <= pieces <= 1 << 20:
        raise UsageError(f"{pieces} pieces are out of range", "give 1 or more, at most a million")
    check_time(timeout)
    if not 0 <= samples <= 1 << 20:
        raise UsageError(f"{samples} samples are out of range", "give 0 or more, at most a million")


def _ends(net: NetProver, box: Property | tuple[Images | Fraction, Images | Fraction]) -> tuple[np.ndarray, np.ndarray]:
    """Boxes [count, inputs]; a property's, each once."""
    if isinstance(box, Property):
        return _boxes_of(net, box)
    if not isinstance(box, tuple) or len(box) != 2:
        raise UsageError("a box is a pair of its lower and its upper ends", "polytriton.reach(net, (lo, hi)), or give a Property")
    lo, hi = (np.full(net.inputs, v, dtype=object) if isinstance(v, (int, float, Fraction, np.number)) else v for v in box)
    return net._boxes(lo, hi)


def _boxes_of(net: NetProver, prop: Property) -> tuple[np.ndarray, np.ndarray]:
    net.check_property(prop)
    ends = {(d.lo.tobytes(), d.hi.tobytes()): (d.lo, d.hi) for d in prop.disjuncts}
    if not ends:
        raise UsageError(f"property {prop.name} has no box of inputs", "give the box itself: polytriton.reach(net, (lo, hi))")
    low, high = (np.stack(side) for side in zip(*ends.values(), strict=True))
    return low, high


def _planes(outputs: int, planes: Sequence[Plane] | None) -> tuple[Plane, ...]:
    if planes is None:
        return ((0, 1),) if outputs > 1 else ()
    for plane in planes:
        if len(plane) != 2 or plane[0] == plane[1]:
            raise UsageError(f"{tuple(plane)} is no pair of two outputs", "planes=[(0, 1)]")
        for output in plane:
            check_output("output", output, outputs)
    return tuple((int(a), int(b)) for a, b in planes)


def _rows(net: NetProver, planes: Sequence[Plane], directions: ArrayLike | None, angles: int, ranges: np.ndarray) -> np.ndarray:
    """The outputs, their negatives, all angles of the planes in which both outputs' ranges are alike, and what else was asked."""
    eye = np.eye(net.outputs)
    made = [eye, -eye]
    around = 2 * np.pi * np.arange(angles) / angles
    around = around[(4 * np.arange(angles)) % angles != 0]  # along the axes the outputs themselves are asked
    for a, b in planes:
        rows = np.zeros((len(around), net.outputs))
        rows[:, a], rows[:, b] = np.cos(around), np.sin(around) * (ranges[a] / ranges[b])
        made.append(rows)
    if directions is not None:
        given = as_float64(directions, "directions")
        if given.ndim != 2 or given.shape[1] != net.outputs or not np.isfinite(given).all():
            raise UsageError(
                f"directions of shape {list(given.shape)} do not fit {net.outputs} outputs", f"give finite [rows, {net.outputs}]"
            )
        made.append(given)
    return np.ascontiguousarray(np.concatenate(made))


def _executions(net: NetProver, lo: np.ndarray, hi: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Outputs at points of the boxes, half of them corners: by the original model, at numbers of its type."""
    dtype = np.dtype(net.source.input_dtype if net.source else "float64")
    replay, found = net._replayer(), []
    for k in range(count):
        low, high = lo[k % len(lo)], hi[k % len(lo)]
        u = rng.random(low.size)
        point = low + (high - low) * (np.rint(u) if k % 2 else u)
        found.append(np.asarray(replay(_inward(point, low, high, dtype)), dtype=np.float64).ravel())
    return np.stack(found) if found else np.zeros((0, net.outputs))


def _inward(point: np.ndarray, lo: np.ndarray, hi: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The point in numbers of the type that lie in the box, but where none does: there the nearest."""
    near = point.astype(dtype)
    near = np.where(near < lo, np.nextafter(near, np.array(np.inf, dtype)), near)
    down = np.nextafter(near, np.array(-np.inf, dtype))
    return np.where((near > hi) & (down >= lo), down, near)
