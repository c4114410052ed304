"""Holds one case's bounds against its oracles: exact values, whole layers, and executions that search for a way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import torch

from polytriton.api import Verifier, compile
from polytriton.errors import PolytritonError, UnsupportedModel
from polytriton.ir.net import Net
from polytriton.ir.ops import OPS
from polytriton.kernels.interval_launches import check_supported
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.prove.decider import Try
from polytriton.prove.options import Options
from polytriton.runtime import centres, kit, settings
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.layers import from_physical, order
from polytriton.runtime.results import Forms
from tests.oracle.adversary import Goal, Opponent, any_choice
from tests.oracle.balls import outside
from tests.oracle.exact import Dyadic, exact
from tests.oracle.onnx_model import to_onnx
from tests.soak.case import Case
from tests.soak.outcome import Outcome

POINTS, RUNS, ROUNDS = 4, 4, 2  # exact points and executions an image; steps of the search for corners
WHOLE = 8  # every so manyth network has its layers held against ball arithmetic
ROUNDED = ("linear", "conv", "scale", "add", "sub")
Bounds = dict[str, tuple[np.ndarray, np.ndarray]]  # node -> ends, [images, cells] in the net's order


# ---- what the verifier says ----------------------------------------------------------------------------------------


@contextmanager
def backend(engine: Engine, loops: bool, library: bool) -> Iterator[None]:
    """The row passes compiled or in torch, convolutions by the library or as products and shifts."""
    kept = engine.walker.backend.fast, engine.walker.backend.direct
    engine.walker.backend.fast, engine.walker.backend.direct = kept[0] and loops, kept[1] and library
    try:
        yield
    finally:
        engine.walker.backend.fast, engine.walker.backend.direct = kept


@dataclass(frozen=True)
class Said:
    """Bounds of the output and of what nonlinear operators read, margins of the forms, boxes of the interval pass."""

    bounds: Bounds
    margins: np.ndarray
    interval: Bounds = field(default_factory=dict)


def ask(case: Case, verifier: Verifier, dtype: str) -> Said:
    """Through the public interface or, for other settings than it offers, from the engine under it."""
    some = 1 if case.seed % 2 else centres.FEW, 8 if case.seed // 2 % 2 else kit.COMPACT
    # in small networks few products are worth a centre, and no layer is large enough to leave cells out
    with mock.patch.object(centres, "FEW", some[0]), mock.patch.object(kit, "COMPACT", some[1]):
        return _ask(case, verifier, dtype)


def _ask(case: Case, verifier: Verifier, dtype: str) -> Said:
    knobs, name = case.knobs, case.net.output
    decider = verifier._decider
    if case.via != "net":
        found = verifier.bounds(case.lo, case.hi)
        margins = verifier.margins(case.lo, case.hi, case.forms)
        count = len(case.lo)
        bounds = {k: (np.asarray(b.lo).reshape(count, -1), np.asarray(b.hi).reshape(count, -1)) for k, b in found.layers.items()}
        bounds[name] = (np.asarray(found.lo), np.asarray(found.hi))
        return Said(bounds, np.asarray(margins))
    engine = decider.engine(Try(dtype, knobs["candidates"], knobs["tight"]))
    lo, hi = torch.from_numpy(case.lo.copy()), torch.from_numpy(case.hi.copy())
    net = verifier.net
    with settings.pin_settings(), backend(engine, knobs["loops"], knobs["library"]):
        interval = engine.interval(lo, hi) if case.seed % WHOLE == 0 else None
        boxes = engine.refine(lo, hi, every=knobs["every"])
        bounds = {k: _flat(net, k, boxes.lo[k], boxes.hi[k]) for k in engine.bounded_nodes()}
        bounds[name], margins = _query(case, verifier, engine, boxes)
    boxed = {} if interval is None else {k: _flat(net, k, interval.lo[k], interval.hi[k]) for k in interval.lo}
    return Said(bounds, margins, boxed)


def _query(case: Case, verifier: Verifier, engine: Engine, boxes: Boxes) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Both rows of every output and the forms, in one query (two where forms hold inputs)."""
    decider, net, images = verifier._decider, verifier.net, len(case.lo)
    at, rows = order(net.node(net.output).shape), case.forms.shape[1]
    over = torch.from_numpy(np.ascontiguousarray(case.forms[:, :, at]))
    if case.over_input is not None:  # such forms never hold inputs that the network does not read
        image = torch.arange(images).repeat_interleave(rows)
        extra = decider.input_columns(torch.from_numpy(case.over_input).flatten(0, 1)).contiguous()
        best = engine.query(boxes, Forms(image, over.flatten(0, 1), extra)).best.numpy().reshape(images, rows)
        return decider.output_bounds(engine, boxes), best
    eye = torch.eye(over.shape[-1], dtype=torch.float64).expand(images, -1, -1)
    every = torch.cat([eye, -eye, over], 1)
    image = torch.arange(images).repeat_interleave(every.shape[1])
    best = engine.query(boxes, Forms(image, every.flatten(0, 1))).best.numpy().reshape(images, -1)
    n = over.shape[-1]
    low, high = np.empty((images, n)), np.empty((images, n))
    low[:, at], high[:, at] = best[:, :n], -best[:, n : 2 * n]
    if OPS[net.node(net.output).op].kind == "nonlinear":
        lo, hi = _flat(net, net.output, boxes.lo[net.output], boxes.hi[net.output])
        low, high = np.maximum(low, lo), np.minimum(high, hi)
    return (low, high), best[:, 2 * n :]


def _flat(net: Net, name: str, lo: torch.Tensor, hi: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    shape = net.node(name).shape
    low, high = (from_physical(v, shape).reshape(len(v), -1).numpy() for v in (lo, hi))
    return low, high


def interval_serves(net: Net) -> bool:
    """Whether every operator has an interval kernel; the folded ones serve all."""
    try:
        check_supported(net)
    except UnsupportedModel:
        return False
    return True


def verifiers(case: Case, compiled: Compiled) -> Iterator[tuple[str, str, Verifier]]:
    """(semantics, coefficient type, verifier): exact arithmetic, then a deployment; one compilation serves both."""
    knobs = case.knobs
    wanted = ("real", knobs["deployed"]) if case.via != "interpret" else (knobs["deployed"],)
    options: dict[str, Any] = {"dtype": knobs["dtype"], "candidates": knobs["candidates"]}
    model = to_onnx(case.net).SerializeToString() if case.via == "onnx" else None
    for semantics in wanted:
        if model is not None:
            yield semantics, knobs["dtype"], compile(model, check=False, semantics=semantics, **options)
            continue
        device = "interpret" if case.via == "interpret" else "cpu"
        if knobs.get("numerics") == "interval" and interval_serves(compiled.net):
            options["numerics"] = "interval"
        chosen = Options(device=device, semantics=semantics, early=knobs["early"], **options)
        dtype = "float32" if knobs["dtype"] == "auto" else knobs["dtype"]
        yield semantics, dtype, Verifier(compiled, chosen)


# ---- the oracles ------------------------------------------------------------------------------------------------------


def judge(case: Case) -> Outcome:
    """All oracles on one case. An error that is not a documented refusal is raised."""
    outcome = Outcome()
    rng = np.random.default_rng(case.seed)
    if case.poisoned and _refused(case):
        return replace(outcome, refused=True)
    truth: _Truth | None = None
    compiled = compile_net(case.net, "all")
    case = replace(case, over_input=_read_inputs(case, compiled.net))
    for semantics, dtype, verifier in verifiers(case, compiled):
        said = ask(case, verifier, dtype)
        for v in (said.margins, *(e for b in said.bounds.values() for e in b)):
            if np.isnan(v).any():
                outcome.escapes.append(f"{semantics}: a bound is NaN")
        kept = {k: b for k, b in said.bounds.items() if k in {n.name for n in case.net} and k != case.net.input.name}
        outcome.finite += sum(int(np.isfinite(e).sum()) for b in kept.values() for e in b)
        if truth is None:
            truth = _Truth(case, rng, kept, said.margins)
        if said.interval:
            outcome.escapes += whole_layers(verifier.net, said.interval)
            outcome.compared += sum(v[0].size for v in said.interval.values())
        truth.exact_values(outcome, semantics, kept, said.margins)
        if semantics != "real":
            truth.executions(outcome, semantics, kept, said.margins)
    return outcome


def _read_inputs(case: Case, net: Net) -> np.ndarray | None:
    """The coefficients over the input, zero where the compiled network leaves an input unread: those are refused."""
    if case.over_input is None:
        return None
    take = net.weight(net.input, "take")
    return case.over_input if take is None else np.where(np.isin(np.arange(case.lo.shape[1]), take), case.over_input, 0.0)


def _refused(case: Case) -> bool:
    """Whether a network with NaN or infinite weights is refused (it has none where no weight was to poison)."""
    if all(np.isfinite(w).all() for w in case.net.weights.values()):
        return False
    try:
        compile_net(case.net, "all")
    except PolytritonError:
        return True
    raise AssertionError("a network with NaN or infinity among its weights was compiled")


def whole_layers(net: Net, interval: Bounds) -> list[str]:
    opponent = Opponent(net)
    return [e for k in range(len(interval[net.output][0])) for e in outside(opponent, {n: (b[0][k], b[1][k]) for n, b in interval.items()})]


class _Truth:
    """A case's points, chosen where they are likeliest to break the bounds first said, with their exact values."""

    def __init__(self, case: Case, rng: np.random.Generator, bounds: Bounds, margins: np.ndarray) -> None:
        self.case, self.rng = case, rng
        self.opponent = Opponent(case.net)
        self.point = (case.lo == case.hi).all(axis=1)
        self.rounded = {n.name for n in case.net if n.op in ROUNDED}
        chosen = [self._points(k, bounds, margins[k]) for k in range(len(case.lo))]
        self.x = np.concatenate(chosen)
        self.image = np.repeat(np.arange(len(chosen)), [len(p) for p in chosen])
        self.true = exact(case.net, self.x, self.opponent.tables)
        inside = np.clip(self.x.astype(np.float32).astype(np.float64), case.lo[self.image], case.hi[self.image])
        legal = (inside == inside.astype(np.float32)).all(axis=1)  # a box with float64 ends may leave no float32 number beside them
        self.x32, self.image32 = inside[legal], self.image[legal]

    def _points(self, k: int, bounds: Bounds, margins: np.ndarray) -> np.ndarray:
        """Ends, random points and corners on the way down each form; those kept come nearest to a bound."""
        lo, hi, opponent, rng = self.case.lo[k], self.case.hi[k], self.opponent, self.rng
        if (lo == hi).all():
            return lo[None]
        middle = np.clip(lo / 2 + hi / 2, lo, hi)
        inner = np.clip(lo + rng.random((2, lo.size)) * (hi - lo), lo, hi)
        points = np.concatenate([[lo, hi, middle], inner, np.where(rng.random((2, lo.size)) < 0.5, lo, hi)])
        goals = [Goal(self.case.net.output, -self.case.forms[k])]
        others = [n for n in bounds if n != self.case.net.output]
        if others:
            name = others[int(rng.integers(len(others)))]
            size, rows = self.opponent.nodes[name].size, np.zeros((2, self.opponent.nodes[name].size))
            rows[[0, 1], rng.integers(size, size=2)] = [1, -1]
            goals.append(Goal(name, rows))
        for goal in goals:
            points = np.concatenate([points, opponent.corners(lo, hi, goal, np.repeat(middle[None], len(goal.form), 0), ROUNDS)])
        values = opponent.values(points)
        with np.errstate(all="ignore"):
            y = values[self.case.net.output] @ self.case.forms[k].T
            near = [y - margins]
            for name, (low, high) in bounds.items():
                width = np.maximum(high[k] - low[k], 1e-300)
                near.append(np.minimum(values[name] - low[k], high[k] - values[name]) / width)
            score = np.concatenate([n / np.maximum(np.abs(n).max(axis=0), 1e-300) for n in near], axis=1)
            score = np.where(np.isfinite(score), score, 1.0)
        first = np.argsort(score.min(axis=1), kind="stable")
        return np.unique(points[first[:POINTS]], axis=0)

    def _hold_margins(self, outcome: Outcome, what: str, low: np.ndarray, y: np.ndarray | Dyadic, image: np.ndarray, x: np.ndarray) -> None:
        """Forms of outputs y, [points, rows]; only those that float64 arithmetic does not settle are computed exactly."""
        C = self.case.forms[image]
        near = y.nearest() if isinstance(y, Dyadic) else y
        with np.errstate(all="ignore"):
            value, size = (C * near[:, None]).sum(-1), (np.abs(C) * np.abs(near[:, None])).sum(-1)
            if self.case.over_input is not None:
                more = self.case.over_input[image] * x[:, None]
                value, size = value + more.sum(-1), size + np.abs(more).sum(-1)
            open_ = ~(value - 1e-12 * size - 1e-300 > low) & ~np.isneginf(low)
        outcome.compared += low.size
        for p, r in np.argwhere(open_):
            outcome.compared -= 1
            exact_y = Dyadic(y.num[p], y.exp) if isinstance(y, Dyadic) else Dyadic.of(y[p])
            pairs = [(C[p, r], exact_y)]
            if self.case.over_input is not None:
                pairs.append((self.case.over_input[image[p], r], Dyadic.of(x[p])))
            total = sum((Fraction(int((Dyadic.of(c).num * v.num).sum()), 1 << (Dyadic.of(c).exp + v.exp)) for c, v in pairs), Fraction(0))
            least = np.array([float("-inf") if low[p, r] == np.inf or Fraction(float(low[p, r])) > total else low[p, r]])
            outcome.hold(f"{what} point {p} form {r}", low[p, r : r + 1], np.array([np.inf]), least, least)

    def exact_values(self, outcome: Outcome, semantics: str, bounds: Bounds, margins: np.ndarray) -> None:
        self.near: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for name, (lo, hi) in bounds.items():
            v = self.true[name]
            flat = Dyadic(v.num.reshape(len(v.num), -1), v.exp)
            self.near[name] = down, up = flat.down(), flat.up()
            outcome.hold(f"{semantics} %{name} exact", lo[self.image], hi[self.image], down, up)
        y = self.true[self.case.net.output]
        flat = Dyadic(y.num.reshape(len(y.num), -1), y.exp)
        self._hold_margins(outcome, f"{semantics} margin exact", margins[self.image], flat, self.image, self.x)

    def executions(self, outcome: Outcome, semantics: str, bounds: Bounds, margins: np.ndarray) -> None:
        """Float32 runs, each with a goal: a form, or one neuron up or down."""
        if not len(self.x32):
            return
        case, rng = self.case, self.rng
        inputs = semantics if semantics in ("tf32", "bf16", "float16") else "float32"
        names, near = list(bounds), self.opponent.values(self.x32)
        for r in range(RUNS):
            if r < 2:
                goal = Goal(case.net.output, -case.forms[self.image32, r % case.forms.shape[1]])
            else:
                name = case.net.output if r == 2 else names[int(rng.integers(len(names)))]
                rows = np.zeros((len(self.x32), self.opponent.nodes[name].size))
                rows[:, int(rng.integers(rows.shape[1]))] = 1 if rng.random() < 0.5 else -1
                goal = Goal(name, rows)
            run = self.opponent.run(self.x32, goal, any_choice(rng, inputs), rng, near)
            for name, (lo, hi) in bounds.items():
                low, high, v = lo[self.image32], hi[self.image32], run[name]
                outcome.hold(f"{semantics} %{name} run {r}", low, high, v, v)
                self._room(outcome, name, low, high, v, self.near[name][0])
            y = run[case.net.output]
            good = np.isfinite(y).all(axis=1)
            if good.any():
                image = self.image32[good]
                self._hold_margins(outcome, f"{semantics} margin run {r}", margins[image], y[good], image, self.x32[good])
            if not good.all():  # a form of outputs that may be NaN or infinite has no bound to offer but where they do not count
                used = (case.forms[self.image32[~good]] != 0) & np.isnan(y[~good])[:, None]
                claimed = np.isfinite(margins[self.image32[~good]]) & used.any(axis=-1)
                if claimed.any():
                    outcome.escapes.append(f"{semantics} margin run {r}: a bound on outputs that may be NaN")

    def _room(self, outcome: Outcome, name: str, lo: np.ndarray, hi: np.ndarray, v: np.ndarray, true: np.ndarray) -> None:
        """At points (boxes of width zero) bounds hold nothing but rounding: how much of it an execution used."""
        if name not in self.rounded or not self.point.any():
            return
        at = self.point[self.image32]
        lo, hi, v = lo[at], hi[at], v[at]
        start = true[self.point[self.image]]  # one point an image: the same rows
        if start.shape != v.shape:  # a point with float64 ends that no float32 network can read
            return
        with np.errstate(all="ignore"):
            room = np.where(v > start, hi - start, start - lo)
            ratio = np.abs(v - start) / room
        worth = np.isfinite(ratio) & (room > 1e-290) & (room > 2.0**-44 * np.abs(v))  # less is lost in the bounds' own last places
        ratio = ratio[worth]
        outcome.ratio = max(outcome.ratio, float(ratio.max(initial=0.0)))
