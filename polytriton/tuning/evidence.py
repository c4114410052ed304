"""Whether a configuration may win: sound, and in agreement with the reference.

The worker that runs the configuration sends numbers; the session, another process with untouched code, compares them with its own:

1. On boxes of a single point every form has one exact value, which the reference encloses in float64. A lower bound above that
   enclosure is unsound: a row and its negation cannot both err on the safe side by chance, so a configuration that charges no
   rounding is found out by its rounding alone.
2. On real boxes, for sampled rows of every program walked to the input without leaving, with the same tables: what is subtracted
   (the rounding term) is at least the reference's, the analytic minimum of that arithmetic, and the values before it lie no
   further apart than both terms allow. Points rarely touch bounds; the term itself is what is held to account here.
3. The workload's bounds are no looser than the reference's, and none lies above what points of the box attain. A slope that rounding
   flips may cost a little, a check that is left out nothing.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import torch

from polytriton.api import Verifier
from polytriton.arithmetic import ARITHMETICS, Arithmetic
from polytriton.ir import interp
from polytriton.ir.plan import Program, extent
from polytriton.passes import schedule
from polytriton.prove.decider import Try
from polytriton.prove.options import SPLIT, Options
from polytriton.prove.questions import Questions
from polytriton.runtime import settings
from polytriton.runtime.cpu.walk import Identity, Results, Walk
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.kit import Kit
from polytriton.runtime.results import Forms, Rows
from polytriton.tuning import work
from polytriton.tuning.checks import Seen, watch_checks

POINTS, ROWS = 3, 24  # boxes of one point; rows of a program
SHORT = 2.0**-8  # the share by which a rounding term may be smaller: its own sums are in another order
LOOSE = 1e-3  # the share of the reference's distance to the exact bound by which a bound may be looser
SAME = 1e-6  # the share of a bound that rounding may change where nothing else should
INPUTS = 64  # random points of every box


class Evidence(msgspec.Struct, frozen=True):
    """What a configuration answers: bounds of +y and -y on points, (value before rounding, rounding term) of rows, the workload."""

    points: list[list[float]]
    rows: dict[str, list[list[float]]]
    bounds: list[float]
    dtype: str


def gather_evidence(verifier: Verifier, q: Questions, seed: int, bounds: np.ndarray) -> Evidence:
    """By the configuration in the verifier's options."""
    x = point_inputs(verifier, q, seed)
    eye = np.eye(verifier.outputs)[: work.MARGINS]
    asked = work.questions(x, x, np.concatenate([eye, -eye]))
    exact = Verifier(verifier.compiled, replace(verifier.options, semantics="real"), verifier.imported)
    found = work.run(exact, asked).reshape(len(x), -1)
    dtype = verifier._decider.first_dtype()
    return Evidence(found.tolist(), row_evidence(verifier, q, seed, dtype), bounds.tolist(), dtype)


def point_inputs(verifier: Verifier, q: Questions, seed: int) -> np.ndarray:
    """Points of the workload's first box, whose every value is a float32."""
    rng = np.random.default_rng(seed)
    lo, hi = q.lo[0], q.hi[0]
    return (lo + rng.random((POINTS, verifier.inputs)) * (hi - lo)).astype(np.float32).astype(np.float64)


def row_evidence(
    verifier: Verifier, q: Questions, seed: int, dtype: str, arithmetic: Arithmetic | None = None
) -> dict[str, list[list[float]]]:
    """For every program, sampled rows to the input: [value, term] each. The boxes are the interval pass's, equal for everyone.

    `arithmetic`: what products are charged, where it is another machine's.
    """
    decider = verifier._decider
    with settings.pin_settings(), decider._threads():
        engine = decider.engine(Try(dtype, "input"))
        assert engine.plan.candidates == "input", schedule.NAME
        if arithmetic is not None:
            engine.coefficients, engine.kit = arithmetic, Kit(engine.net, engine.plan, engine.forward, arithmetic)
        lo, hi = (torch.from_numpy(v[:1]) for v in (q.lo, q.hi))
        boxes = engine.interval(lo, hi)
        rng = np.random.default_rng(seed + 1)
        return {f"{p.kind} {p.target}": _rows(engine, boxes, p, rng) for p in engine.plan}


def _rows(engine: Engine, boxes: Boxes, program: Program, rng: np.random.Generator) -> list[list[float]]:
    node = engine.nodes[program.target]
    if program.kind == "query":
        width = node.size
        forms = rng.standard_normal((ROWS, width)).astype(np.float32).astype(np.float64)
        image = torch.zeros(ROWS, dtype=torch.int64, device=engine.device)
        results = engine.query(boxes, Forms(image, torch.from_numpy(forms).to(engine.device)))
    else:
        h, w, c = extent(node)
        places = rng.integers(0, h * w * c, ROWS)
        sign = torch.from_numpy(rng.choice([-1, 1], ROWS)).to(engine.device)
        at = [torch.from_numpy(v).to(engine.device) for v in (places // c // w, places // c % w, places % c)]
        results = _walk(engine, boxes, program, at, sign)
    raw, term = results.raw.cpu(), (results.raw - results.best).cpu()
    return [[float(v), float(e)] for v, e in zip(raw, term, strict=True)]


def _walk(engine: Engine, boxes: Boxes, program: Program, at: list[torch.Tensor], sign: torch.Tensor) -> Results:
    """Rows of single neurons, none of which leaves."""
    results, tables = Results.begin(ROWS, engine.device), engine.tables(boxes)
    index = torch.arange(ROWS, device=engine.device)
    rows = Rows.begin(torch.zeros_like(index), index, at[0], at[1])
    start = Identity(sign.to(engine.coefficients.dtype), at[2])
    if engine.kernels is not None:
        engine.kernels.run(tables, program, rows, start, results)
    else:
        Walk(engine.walker.backend, tables, program, rows, results).run(start)
    return results


class Reference:
    """The same questions answered by the default configuration in this process; `problem` judges a configuration's answers."""

    def __init__(self, verifier: Verifier, q: Questions, seed: int) -> None:
        options = Options(semantics=verifier.options.semantics, dtype="auto", candidates=verifier.options.candidates)
        self.verifier = Verifier(verifier.compiled, options, verifier.imported)
        self.q, self.seed, self.kernels = q, seed, verifier.options.device != "cpu"
        self._rows: dict[str, dict[str, list[list[float]]]] = {}
        x = point_inputs(verifier, q, seed)
        net = Verifier(verifier.compiled, replace(options, semantics="real", dtype="float64"), verifier.imported)
        found = net.bounds(x, x, effort="quick")
        self.lo, self.hi = (v[:, : work.MARGINS] for v in (found.lo, found.hi))
        self.attained = self._sample_least()
        self._bounds: dict[str, np.ndarray] = {}

    def _sample_least(self) -> np.ndarray:
        """For every form the least value that some points of its box reach; rounding of this evaluation is far below `slack`."""
        rng = np.random.default_rng(self.seed + 2)
        least = np.full(len(self.q.image), np.inf)
        for image, (lo, hi) in enumerate(zip(self.q.lo, self.q.hi, strict=True)):
            corner = rng.random((INPUTS, len(lo))) < 0.5
            y = interp.run(self.verifier.net, np.where(corner, lo, hi))
            mine = self.q.image == image
            value = self.q.over_output[mine] @ y.T - self.q.constant[mine, None]
            size = np.abs(self.q.over_output[mine]) @ np.abs(y.T) + np.abs(self.q.constant[mine, None])
            least[mine] = (value + 1e-9 * size).min(1)
        return least

    def problem(self, e: Evidence, fewer: bool = False) -> str:
        """Why the configuration may not win; "" where nothing speaks against it. `fewer`: it leaves out checks, so that bounds may be
        looser by more than rounding: then none is.
        """
        return self._points(e) or self._terms(e) or self._workload(e, fewer)

    def _points(self, e: Evidence) -> str:
        found = np.asarray(e.points)
        if found.shape != (len(self.lo), 2 * self.lo.shape[1]):
            return f"unsound: bounds of {found.shape} forms on points, {self.lo.shape} outputs"
        least, most = found[:, : self.lo.shape[1]], -found[:, self.lo.shape[1] :]
        over = np.maximum(least - self.hi, self.lo - most)
        return f"unsound: a bound on a single point is off by {over.max():.3g}" if not (over <= 0).all() else ""

    def _terms(self, e: Evidence) -> str:
        if e.dtype not in self._rows:
            arithmetic = ARITHMETICS.get(e.dtype) if self.kernels else None  # generated kernels add up in blocks
            self._rows[e.dtype] = row_evidence(self.verifier, self.q, self.seed, e.dtype, arithmetic)
        want = self._rows[e.dtype]
        if want.keys() != e.rows.keys():
            return "unsound: it ran other programs"
        for program, rows in want.items():
            mine, theirs = np.asarray(e.rows[program]), np.asarray(rows)
            if mine.shape != theirs.shape:
                return f"unsound: {len(mine)} rows of {program}, not {len(theirs)}"
            finite = np.isfinite(theirs).all(1)
            mine, theirs = mine[finite], theirs[finite]
            short = ~(mine[:, 1] >= (1 - SHORT) * theirs[:, 1])
            if short.any():
                k = int(short.argmax())
                return f"unsound: the rounding term of a row of {program} is {mine[k, 1]:.3g}, at least {theirs[k, 1]:.3g} is due"
            apart = ~(np.abs(mine[:, 0] - theirs[:, 0]) <= mine[:, 1] + theirs[:, 1])
            if apart.any():
                k = int(apart.argmax())
                return f"unsound: a row of {program} is {mine[k, 0]:.9g} before rounding, not {theirs[k, 0]:.9g}"
        return ""

    def watch(self, dtype: str) -> Seen:
        """Runs the workload in this arithmetic and tells what its checks found."""
        verifier = self._same(dtype)
        decider = verifier._decider
        with watch_checks(decider.engine(Try(decider.first_dtype(), verifier.options.candidates))) as seen:
            self._bounds[dtype] = work.run(verifier, self.q)
        return seen

    def _same(self, dtype: str) -> Verifier:
        options = replace(self.verifier.options, dtype="float32" if dtype in SPLIT else dtype)  # split products are a GPU's
        return Verifier(self.verifier.compiled, options, self.verifier.imported)

    def _workload(self, e: Evidence, fewer: bool) -> str:
        if e.dtype not in self._bounds:
            self._bounds[e.dtype] = work.run(self._same(e.dtype), self.q)
        mine, theirs = np.asarray(e.bounds), self._bounds[e.dtype]
        if mine.shape != theirs.shape:
            return "disagrees: other bounds than were asked for"
        if not (mine <= self.attained).all():
            return "unsound: a bound lies above a value that the network attains"
        slack = self._slack(e)
        room = SHORT * slack + SAME * np.abs(theirs) if fewer else LOOSE * np.maximum(self.attained - theirs, 0) + slack
        off = theirs - mine
        if (np.isfinite(theirs) & ~(off <= room)).any():
            return f"disagrees: a bound is {np.nanmax(off):.3g} looser"
        return ""

    def _slack(self, e: Evidence) -> np.ndarray:
        """What float32 coefficients may lose: the largest term seen in the query, both sides."""
        terms = [rows for program, rows in self._rows[e.dtype].items() if program.startswith("query")]
        return np.full(len(self.q.image), 2 * max((row[1] for row in terms[0]), default=0.0) + 1e-9)
