"""The falsifier: projected gradient steps look for a point of the unsafe set; only a replay on the original model says `sat`.

Nothing here needs to be sound. A candidate lies in the exact box by construction (the box is rounded inward to the model's
own number type), runs through the original model, and counts only if `Property.violated` says so in exact rationals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polytriton.ir.interp import user_shape
from polytriton.ir.net import Net
from polytriton.runtime.executor import torch_forward
from polytriton.runtime.settings import pinned

if TYPE_CHECKING:
    from polytriton.frontend.onnx import Source
    from polytriton.frontend.query import Disjunct, Property

Replay = Callable[[np.ndarray], np.ndarray]

MEMORY = 256 << 20  # bytes of activations and gradients at once
WIDEST = 64  # points at once
REPLAYS = 64  # candidates that may fail before the falsifier gives up
SMALL, SAMPLES, CORNERS = 16, 4096, 10  # inputs up to which sampling pays, its points, inputs up to which all corners are tried
NEAR = 1e-4  # a residual this small, relative to the outputs, is worth a replay


@dataclass(frozen=True)
class Attack:
    """How hard to try."""

    restarts: int = 20
    steps: int = 50
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Counterexample:
    """A point in the model's own shape and type, what the original model answers there, and the unsafe piece it lies in."""

    x: np.ndarray
    y: np.ndarray
    disjunct: int


def replayer(model: bytes, source: Source) -> Replay:
    """The original model in onnxruntime, on one thread: a flat output for an input of any shape that fits."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def replay(x: np.ndarray) -> np.ndarray:
        feed = {source.input_name: np.asarray(x, dtype=source.input_dtype).reshape(source.input_shape)}
        return np.asarray(session.run([source.output_name], feed)[0]).ravel()

    return replay


def inner_box(disjunct: Disjunct, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray] | None:
    """The least and greatest numbers of the type inside the exact box; None where some input has none."""
    lo = _toward(disjunct.exact_lo, dtype, up=True)
    hi = _toward(disjunct.exact_hi, dtype, up=False)
    return (lo, hi) if bool(np.all(lo <= hi)) and bool(np.isfinite(lo).all() and np.isfinite(hi).all()) else None


def _toward(exact: Sequence[Fraction], dtype: np.dtype, up: bool) -> np.ndarray:
    """Each number rounded to the type in one direction. The nearest one is at most one step away, even when rounded twice."""
    top = np.finfo(dtype).max
    with np.errstate(over="ignore"):
        near = np.clip(np.array([float(v) for v in exact], dtype=np.float64).astype(dtype), -top, top)
        wrong = [Fraction(n) < v if up else Fraction(n) > v for n, v in zip(near.tolist(), exact, strict=True)]
        step = np.nextafter(near, np.array(np.inf if up else -np.inf, dtype=dtype))
    return np.where(wrong, step, near)


def falsify(
    net: Net,
    prop: Property,
    replay: Replay,
    *,
    attack: Attack = Attack(),
    deadline: float | None = None,
    starts: np.ndarray | None = None,
    input_dtype: str = "float32",
    device: str = "cpu",
) -> Counterexample | None:
    """Looks for a counterexample until `deadline` (by time.monotonic()). `starts` are points worth trying first."""
    with _own_settings(device):
        return _Search(net, prop, replay, attack, deadline, starts, np.dtype(input_dtype), device).run()


@contextmanager
def _own_settings(device: str) -> Iterator[None]:
    """Whatever the user set globally neither changes the search nor is changed by it."""
    with torch.inference_mode(False), pinned(), torch.enable_grad(), torch.autocast(device.partition(":")[0], enabled=False):
        yield


class _Found(Exception):
    """Carries the counterexample out of the nested loops."""

    def __init__(self, it: Counterexample) -> None:
        super().__init__()
        self.it = it


class _Over(Exception):
    """The deadline has passed, or too many candidates failed their replay."""


class _Search:
    def __init__(
        self,
        net: Net,
        prop: Property,
        replay: Replay,
        attack: Attack,
        deadline: float | None,
        starts: np.ndarray | None,
        dtype: np.dtype,
        device: str,
    ) -> None:
        self.prop, self.replay, self.attack, self.deadline, self.type = prop, replay, attack, deadline, dtype
        self.shape, self.device, self.replays = user_shape(net), device, 0
        self.float = torch.float64 if dtype == np.float64 else torch.float32
        self.rng = np.random.default_rng(attack.seed)
        cells = sum(n.size for n in net) * 4 * self.float.itemsize
        self.width = max(1, min(WIDEST, MEMORY // cells))
        self.starts = np.zeros((0, prop.n_in)) if starts is None else np.asarray(starts, dtype=np.float64).reshape(-1, prop.n_in)
        self.forward = torch_forward(net, self.float, device)
        self.boxes: dict[tuple[int, int], tuple[np.ndarray, np.ndarray] | None] = {}

    def run(self) -> Counterexample | None:
        try:
            ranked = self._probe()
            for waves in (range(1), range(1, self.attack.restarts)):
                work = [(t, wave) for wave in waves for t in ranked]
                for k in range(0, len(work), self.width):
                    self._descend(work[k : k + self.width])
                ranked.sort(key=lambda t: t.least)
        except _Found as found:
            return found.it
        except _Over:
            pass
        return None

    def _check_clock(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise _Over

    def _tensor(self, array: np.ndarray | list[np.ndarray]) -> Tensor:
        return torch.tensor(np.asarray(array), dtype=self.float, device=self.device)

    def _try(self, x: Tensor, target: _Target) -> None:
        """Replays one point; raises _Found where the original model misbehaves too."""
        self._check_clock()
        point = np.clip(x.detach().cpu().numpy().astype(self.type), *target.box).reshape(self.shape)
        y = np.asarray(self.replay(point)).ravel()
        if (k := self.prop.violated(point.ravel(), y)) is not None:
            raise _Found(Counterexample(point, y, k))
        self.replays += 1
        if self.replays >= REPLAYS:
            raise _Over

    # ---- first look: centres, corners and samples ----

    def _box(self, d: Disjunct) -> tuple[np.ndarray, np.ndarray] | None:
        key = id(d.exact_lo), id(d.exact_hi)  # disjuncts share their boxes
        if key not in self.boxes:
            self._check_clock()
            self.boxes[key] = inner_box(d, self.type)
        return self.boxes[key]

    def _probe(self) -> list[_Target]:
        """The reachable disjuncts, those nearest to a violation first, each with the best of some cheap points."""
        groups: dict[int, list[_Target]] = {}
        for d in self.prop.disjuncts:
            if (box := self._box(d)) is not None:
                groups.setdefault(id(box), []).append(_Target(d, box))
        for targets in groups.values():
            points = self._points(*targets[0].box, SAMPLES // len(groups))
            rows = [_Rows([t], self._tensor(points[:1]), self.prop.n_out) for t in targets]
            for k in range(0, len(points), self.width):
                self._check_clock()
                with torch.no_grad():
                    x = self._tensor(points[k : k + self.width])
                    y = self.forward(x)
                    for t, r in zip(targets, rows, strict=True):
                        residual = r.residual(x, y).amax(1)
                        best = int(residual.argmin())
                        if float(residual[best]) < t.least:
                            t.least, t.start = float(residual[best]), points[k + best]
                            if t.least <= 0:
                                self._try(x[best], t)
        return sorted((t for g in groups.values() for t in g), key=lambda t: t.least)

    def _points(self, lo: np.ndarray, hi: np.ndarray, samples: int) -> np.ndarray:
        a, b = lo.astype(np.float64), hi.astype(np.float64)
        points = [np.clip(self.starts, a, b), (a / 2 + b / 2)[None]]
        if lo.size <= SMALL:
            points.append(a + (b - a) * self.rng.random((samples, lo.size)))
            if lo.size <= CORNERS:
                points.append(np.where(np.array(list(product((False, True), repeat=lo.size))), a, b))
        return self._rounded(np.concatenate(points), lo, hi)

    def _rounded(self, points: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        return np.clip(points.astype(self.type), lo, hi)

    # ---- descent ----

    def _begin(self, t: _Target, wave: int) -> np.ndarray:
        """The best point so far, then corners and random points in turn."""
        lo, hi = (v.astype(np.float64) for v in t.box)
        if wave == 0 and t.start is not None:
            return t.start
        pick = self.rng.random(lo.size)
        return self._rounded(np.where(pick < 0.5, lo, hi) if wave % 2 else lo + (hi - lo) * pick, *t.box)

    def _descend(self, work: list[tuple[_Target, int]]) -> None:
        """Signed, normalised gradient steps with momentum and a shrinking step, one point a piece of work."""
        targets = [t for t, _ in work]
        lo, hi = self._tensor([t.box[0] for t in targets]), self._tensor([t.box[1] for t in targets])
        x, span, speed = self._tensor([self._begin(*w) for w in work]), hi - lo, torch.zeros_like(lo)
        rows = _Rows(targets, x, self.prop.n_out)
        best, least = x.clone(), [np.inf] * len(work)
        tried = [np.inf] * len(work)
        for step in range(self.attack.steps + 1):
            self._check_clock()
            x = x.detach().requires_grad_(True)
            y = self.forward(x)
            residual = rows.residual(x, y)
            worst = residual.amax(1)
            for i, value in enumerate(worst.tolist()):
                if value < least[i]:
                    least[i], best[i] = value, x[i].detach()
                if value <= 0 and tried[i] > 0:
                    tried[i] = value
                    self._try(x[i], targets[i])
            if step == self.attack.steps:
                break
            (slope,) = torch.autograd.grad((worst + residual.relu().mean(1)).sum(), x)
            size = slope.abs().mean(1, keepdim=True)
            if not bool((size > 0).all()):  # a flat place: walk anywhere
                slope = torch.where(size > 0, slope, self._tensor(self.rng.standard_normal(slope.shape)))
                size = slope.abs().mean(1, keepdim=True)
            speed = 0.75 * speed + slope / size
            reach = 0.25 * (1 - step / self.attack.steps) + 0.005
            x = torch.minimum(torch.maximum(x.detach() - reach * span * speed.sign(), lo), hi)
        near = (NEAR * (1 + y.detach().abs().amax(1))).tolist()
        for i, t in enumerate(targets):
            t.least = min(t.least, least[i])
            if least[i] < tried[i] and least[i] <= near[i]:
                self._try(best[i], t)


@dataclass(eq=False)
class _Target:
    """One disjunct, its inward box, and the best of what was seen of it."""

    disjunct: Disjunct
    box: tuple[np.ndarray, np.ndarray]
    least: float = float("inf")
    start: np.ndarray | None = None


class _Rows:
    """The rows of some targets in one tensor, one target a point: a target is reached where all its residuals are at most zero."""

    def __init__(self, targets: Sequence[_Target], like: Tensor, n_out: int) -> None:
        rows = [t.disjunct.rows for t in targets]
        shape = (len(rows), max(1, *map(len, rows)))
        C, const = np.zeros((*shape, n_out)), np.full(shape, 1e30)  # a row that is not there holds everywhere
        D = np.zeros((*shape, like.shape[1])) if any(r.x for rs in rows for r in rs) else None
        for i, rs in enumerate(rows):
            for k, row in enumerate(rs):
                const[i, k] = row.const
                for j, c in row.y:
                    C[i, k, j] = c
                for j, c in row.x:
                    assert D is not None
                    D[i, k, j] = c
        self.C, self.const = like.new_tensor(C), like.new_tensor(const)
        self.D = None if D is None else like.new_tensor(D)

    def residual(self, x: Tensor, y: Tensor) -> Tensor:
        """[points, rows]; one target serves any number of points."""
        made = (self.C @ y[:, :, None])[:, :, 0] - self.const
        return made if self.D is None else made + (self.D @ x[:, :, None])[:, :, 0]
