"""The search: a first look, samples of small boxes, then projected gradient steps, batched over properties, pieces and restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from polytriton.frontend.query import Disjunct, Exact, Property, as_rationals
from polytriton.ir.interp import user_shape
from polytriton.ir.net import Net, Node
from polytriton.runtime.attack.ball import Room, Rooms
from polytriton.runtime.attack.box import exact_point, inner_box, nearest_box
from polytriton.runtime.attack.replay import Replay, UnsafePoint
from polytriton.runtime.attack.sample import Sampler
from polytriton.runtime.attack.target import Aim, Target, TargetRows
from polytriton.runtime.executor import torch_forward
from polytriton.runtime.settings import pin_settings

Certify = Callable[[Disjunct, Exact], bool]

MEMORY = 256 << 20  # bytes of activations and gradients at once
WIDEST, LOOKS = 256, 4096  # points at once: with gradients, and without
REPLAYS = 64  # candidates that may fail before a property is given up
NEAR = 1e-4  # a residual this small, relative to the outputs, is worth a replay; a find deeper than this needs no deepening
DRIFT = 4  # steps that some descents first take along a random direction of the outputs


@dataclass(frozen=True)
class Attack:
    """How hard to try. `operations` bounds the multiplications and additions spent, whatever the other numbers ask for."""

    restarts: int = 20
    steps: int = 50
    samples: int = 1 << 16
    operations: float = 1e13
    seed: int = 0

    def grow(self, times: int, most: Attack) -> Attack:
        """So many times as hard, no harder than `most`."""
        return Attack(
            min(most.restarts, times * self.restarts), min(most.steps, times * self.steps), min(most.samples, times * self.samples),
            min(most.operations, times * self.operations), self.seed,
        )  # fmt: skip


QUICK = Attack(restarts=4, steps=20, samples=1 << 12, operations=2e10)
THOROUGH = Attack(restarts=20, steps=60, samples=1 << 16, operations=1e12)


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
    certify: Certify | None = None,
) -> UnsafePoint | None:
    """Looks for a counterexample until `deadline` (by time.monotonic()). `starts` are points worth trying first."""
    aim = Aim(prop, points=starts)
    return falsify_all(net, [aim], replay, attack=attack, deadline=deadline, input_dtype=input_dtype, device=device, certify=certify)[0]


def falsify_all(
    net: Net,
    aims: Sequence[Aim],
    replay: Replay,
    *,
    attack: Attack = Attack(),
    deadline: float | None = None,
    input_dtype: str = "float32",
    device: str = "cpu",
    certify: Certify | None = None,
) -> list[UnsafePoint | None]:
    """The same for several properties of one network at once.

    `certify` says whether the exact network errs at an exact point. With it boxes without any number of the model's type are
    searched too: the model runs at the nearest numbers, and a find counts if both it and the exact network are unsafe.
    """
    with _own_settings(device):
        search = _Search(net, aims, replay, attack, deadline, np.dtype(input_dtype), device, certify)
        with suppress(_Over):
            search.run()
    return [a.found for a in aims]


@contextmanager
def _own_settings(device: str) -> Iterator[None]:
    """Whatever the user set globally neither changes the search nor is changed by it."""
    with torch.inference_mode(False), pin_settings(), torch.enable_grad(), torch.autocast(device.partition(":")[0], enabled=False):
        yield


class _Over(Exception):
    """The deadline has passed, or the operations are spent."""


def point_operations(net: Net) -> int:
    """Multiplications and additions of one run of the network."""

    def terms(n: Node) -> int:
        w = net.weight(n, "w") if n.op in ("linear", "conv") else None
        return 1 if w is None else w.size // w.shape[0]

    return sum(2 * n.size * terms(n) for n in net)


class _Search:
    def __init__(
        self,
        net: Net,
        aims: Sequence[Aim],
        replay: Replay,
        attack: Attack,
        deadline: float | None,
        dtype: np.dtype,
        device: str,
        certify: Certify | None,
    ) -> None:
        self.aims, self.replay, self.attack, self.deadline, self.certify = aims, replay, attack, deadline, certify
        self.shape, self.device, self.type = user_shape(net), device, dtype
        self.float = torch.float64 if dtype == np.float64 else torch.float32
        self.rng = np.random.default_rng(attack.seed)
        cells = sum(n.size for n in net) * 4 * self.float.itemsize
        self.width, self.look_width = (max(1, min(most, MEMORY // cells)) for most in (WIDEST, LOOKS))
        self.each, self.spent = point_operations(net), 0.0
        self.outputs = net.node(net.output).size
        self.forward = torch_forward(net, self.float, device)

    def run(self) -> None:
        groups = self._targets()
        for targets in groups:
            self._look(targets, self._first_points(targets))
        small = [g for g in groups if Sampler.pays(g[0].box)]
        for targets in small:
            share = self.attack.operations / 2 / len(small)
            self._sample(targets, min(self.attack.samples // len(small), int(share / self.each)))
        free = (t for g in groups for t in g if bool((t.box[0] < t.box[1]).any()))
        ranked = sorted(free, key=lambda t: t.least)
        for t in ranked:
            corners = [t.room.draw_inside(c) for c in t.corners()]
            t.queue = list({p.tobytes(): p for p in [t.start, *corners] if p is not None}.values())
        for waves in (range(1), range(1, self.attack.restarts)):
            work = ((t, wave) for wave in waves for t in ranked if self._open(t.aim))
            while now := list(islice(work, self.width)):
                self._descend(now)
            ranked.sort(key=lambda t: t.least)

    # ---- accounts ----

    def _check_clock(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise _Over

    def _spend(self, points: int) -> None:
        """A forward run of so many points, or a backward one, which costs two."""
        self._check_clock()
        if self.spent >= self.attack.operations:
            raise _Over
        self.spent += points * self.each

    @staticmethod
    def _open(aim: Aim) -> bool:
        return aim.found is None and aim.replays < REPLAYS

    def _tensor(self, array: np.ndarray | list[np.ndarray]) -> Tensor:
        return torch.tensor(np.asarray(array), dtype=self.float, device=self.device)

    # ---- judging ----

    def _try(self, x: Tensor, target: Target) -> None:
        """Replays one point; keeps it where the original model misbehaves too, and more clearly than before."""
        aim = target.aim
        if aim.replays >= REPLAYS:
            return
        self._check_clock()
        point = target.room.draw_inside(x.detach().cpu().numpy()).reshape(self.shape)
        y = np.asarray(self.replay(point)).ravel()
        found = self._find_exact(target, point, y) if target.thin else self._find_inside(target, point, y)
        if found is None:
            aim.replays += 1
            return
        depth = self._depth(aim.prop.disjuncts[found.disjunct], found)
        if aim.found is None or depth > aim.depth:
            aim.found, aim.depth = found, depth

    def _find_inside(self, target: Target, point: np.ndarray, y: np.ndarray) -> UnsafePoint | None:
        k = target.aim.prop.violated(point.ravel(), y)
        return None if k is None else UnsafePoint(point, y, k)

    def _find_exact(self, target: Target, point: np.ndarray, y: np.ndarray) -> UnsafePoint | None:
        """The exact point that the run stands for, as the nearest float64 numbers, which the model's type rounds to that run's input."""
        d = target.disjunct
        where, value = exact_point(d, point.ravel()), as_rationals(y.tolist())
        if where is None or value is None or self.certify is None or not all(r.holds(where, value) for r in d.rows):
            return None
        x = np.array([float(v) for v in where])
        same = np.array_equal(x.astype(self.type), point.ravel())
        return UnsafePoint(x.reshape(self.shape), y, target.index) if same and self.certify(d, where) else None

    @staticmethod
    def _depth(d: Disjunct, found: UnsafePoint) -> float:
        """How far the worst row is from not holding, relative to the outputs."""
        x, y = found.x.ravel().astype(np.float64), found.y.astype(np.float64)
        slack = [float(r.const) - sum(float(c) * y[i] for i, c in r.y) - sum(float(c) * x[j] for j, c in r.x) for r in d.rows]
        return float(min(slack, default=np.inf) / (1 + np.abs(y).max()))

    def _clear(self, aim: Aim) -> bool:
        """Found so far inside the unsafe set that another order of summation changes nothing, or given up."""
        return aim.depth >= NEAR if aim.found is not None else aim.replays >= REPLAYS

    # ---- first look ----

    def _targets(self) -> list[list[Target]]:
        """The reachable disjuncts that are to be aimed at, those that share a box together."""
        groups: dict[tuple[int, int], list[Target]] = {}
        rooms: dict[tuple[int, ...], tuple[Room | None, bool]] = {}
        for a, aim in enumerate(self.aims):
            for k in range(len(aim.prop.disjuncts)) if aim.pieces is None else aim.pieces:
                d = aim.prop.disjuncts[k]
                if d.where not in rooms:
                    self._check_clock()
                    box = inner_box(d, self.type)
                    thin = box is None and self.certify is not None
                    box = nearest_box(d, self.type) if thin else box
                    rooms[d.where] = None if box is None else Room(box, d.ball), thin
                room, thin = rooms[d.where]
                if room is not None:
                    groups.setdefault((a, id(room)), []).append(Target(aim, k, d, room, thin))
        return list(groups.values())

    def _first_points(self, targets: list[Target]) -> np.ndarray:
        """The middle, what the caller knows, where the linear bounds are least, and corners."""
        lo, hi = (v.astype(np.float64) for v in targets[0].box)
        bounds = (t.corners() for t in targets)
        return np.concatenate([targets[0].aim.starts(), (lo / 2 + hi / 2)[None], *bounds, Sampler.corners(targets[0].box)])

    def _look(self, targets: list[Target], points: np.ndarray) -> list[np.ndarray]:
        """Residuals of the points for each of some targets that share a box; the best point of each is kept, or replayed."""
        points = targets[0].room.draw_inside(points)
        seen: list[list[np.ndarray]] = [[] for _ in targets]
        rows: list[TargetRows] = []
        for k in range(0, len(points), self.look_width):
            if k and self._clear(targets[0].aim):
                break
            x = self._tensor(points[k : k + self.look_width])
            self._spend(len(x))
            rows = rows or [TargetRows([t], x, self.outputs) for t in targets]
            with torch.no_grad():
                y = self.forward(x)
                for t, r, values in zip(targets, rows, seen, strict=True):
                    residual = r.residual(x, y).amax(1)
                    values.append(residual.cpu().numpy())
                    best = int(residual.argmin())
                    if float(residual[best]) < t.least:
                        t.least, t.start = float(residual[best]), points[k + best]
                        if t.least <= 0 and not self._clear(t.aim):
                            self._try(x[best], t)
        return [np.concatenate(values) for values in seen]

    def _sample(self, targets: list[Target], samples: int) -> None:
        """Points all over a small box, then ever closer around the best of each target."""
        aim = targets[0].aim
        if samples < 1 or self._clear(aim):
            return
        sampler = Sampler(targets[0].box, self.rng)
        points = sampler.spread(samples)
        residuals = self._look(targets, points)
        order = sorted(range(len(targets)), key=lambda i: targets[i].least)[: Sampler.TARGETS]
        for i in order:
            parents, values = sampler.best(points, residuals[i])
            for radius in Sampler.RADII:
                if self._clear(aim):
                    return
                made = sampler.points_around(parents, radius, samples // (4 * len(order)))
                (again,) = self._look([targets[i]], made)
                parents, values = sampler.best(np.concatenate([parents, made]), np.concatenate([values, again]))

    # ---- descent ----

    def _begin(self, t: Target, wave: int) -> np.ndarray:
        """The best point so far, where the linear bounds are least, then random points and corners in turn."""
        if wave < len(t.queue):
            return t.queue[wave]
        lo, hi = (v.astype(np.float64) for v in t.box)
        pick = self.rng.random(lo.size)
        return t.room.draw_inside(np.where(pick < 0.5, lo, hi) if wave % 2 else lo + (hi - lo) * pick)

    def _drift(self, work: list[tuple[Target, int]]) -> Tensor:
        """A direction of the outputs for every random start, zero for the others.

        Random starts of many inputs are much alike to the network: their gradients lead to one place. Steps along a random
        direction of the outputs spread them first.
        """
        random = np.array([wave >= len(t.queue) for t, wave in work])
        return self._tensor(self.rng.uniform(-1, 1, (len(work), self.outputs)) * random[:, None])

    def _descend(self, work: list[tuple[Target, int]]) -> None:
        """Signed, normalised gradient steps with momentum, one point a piece of work; in a ball steps to where the gradient is least.

        A step shrinks with time, and is no longer than what the slope says is needed to reach the unsafe set, and up to that again.
        """
        targets = [t for t, _ in work]
        x = self._tensor([self._begin(*w) for w in work])
        rooms, speed = Rooms([t.room for t in targets], x), torch.zeros_like(x)
        lo, hi = rooms.lo, rooms.hi
        drift = self._drift(work)
        drifting = drift.abs().amax(1) > 0
        rows = TargetRows(targets, x, self.outputs)
        best, least = x.clone(), [np.inf] * len(work)
        tried, floor = [0.0] * len(work), [0.0] * len(work)  # residuals above `tried` need no replay before the end
        for step in range(self.attack.steps + 1):
            if all(self._clear(t.aim) for t in targets):
                break
            self._spend(len(work))
            x = x.detach().requires_grad_(True)
            y = self.forward(x)
            residual = rows.residual(x, y)
            worst = residual.amax(1)
            floor = (NEAR * (1 + y.detach().abs().amax(1))).tolist()
            for i, value in enumerate(worst.tolist()):
                if value < least[i]:
                    least[i], best[i] = value, x[i].detach()
                if value <= tried[i] and not self._clear(targets[i].aim):
                    tried[i] = value - floor[i]
                    self._try(x[i], targets[i])
            if step == self.attack.steps:
                break
            self._spend(2 * len(work))
            margin = worst + residual.relu().mean(1)
            astray = drifting if step < DRIFT else torch.zeros_like(drifting)
            goal = torch.where(astray, (drift * y).sum(1), margin)
            (slope,) = torch.autograd.grad(goal.sum(), x)
            size = slope.abs().mean(1, keepdim=True)
            if not bool((size > 0).all()):  # a flat place: walk anywhere
                slope = torch.where(size > 0, slope, self._tensor(self.rng.standard_normal(slope.shape)))
                size = slope.abs().mean(1, keepdim=True)
            speed = 0.75 * speed + slope / size
            rest = 1 - step / self.attack.steps
            x, limit = x.detach(), 0.25 * rest + 0.005
            gain = rooms.gain(x, slope)
            needed = (1.01 + rest) * goal.detach()[:, None] / gain
            outside = (~astray & (margin.detach() > 0))[:, None]
            reach = torch.where(outside & (needed < limit), needed, limit)
            x = torch.minimum(torch.maximum(x + reach * rooms.way(x, speed), lo), hi)
        for i, t in enumerate(targets):
            t.least = min(t.least, least[i])
            if self._open(t.aim) and least[i] <= floor[i] and least[i] < t.denied:
                t.denied = least[i]  # until somebody comes nearer
                self._try(best[i], t)
