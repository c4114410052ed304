"""Holds what polytriton says of a graph against executions of the graph itself. The one module here that asks polytriton anything."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from tests.oracle.graphs.draw import Graph
from tests.oracle.graphs.execute import OPERANDS, Choice, Program, some_choice
from tests.oracle.graphs.tape import Forms
from tests.oracle.graphs.trace import program

SEMANTICS = ("float32", "tf32", "bf16", "float16", "real")
OUTPUTS, RUNS = 3, 3  # outputs aimed at, each way; executions in each of two sets of forms
EFFORT = "tight"  # the default of the public interface
RUNTIME, CHECKED = 8, 16  # every so manyth graph runs in onnxruntime too, is compiled with its check


@dataclass
class Outcome:
    """What a graph showed.

    `ratio`: at a box of a single point, the most that an execution used of the room between the true value and a bound; 1 touches it.
    """

    compared: int = 0
    finite: int = 0
    escapes: list[str] = field(default_factory=list)
    ratio: float = 0.0
    refused: bool = False
    reason: str = ""  # of a refusal


@dataclass(frozen=True)
class Said:
    """Bounds by the cells that they bound, [boxes, cells]; margins of the forms."""

    lo: np.ndarray
    hi: np.ndarray
    layers: dict[str, tuple[np.ndarray, np.ndarray]]
    margins: np.ndarray


def ask(graph: Graph, semantics: str) -> Said:
    """Through the public interface, with its defaults."""
    import polytriton

    model: Any = graph.model if graph.seed % 2 else graph.proto
    verifier = polytriton.compile(model, semantics=semantics, check=graph.seed % CHECKED == 5)
    found = verifier.bounds(graph.lo, graph.hi, effort=EFFORT)
    margins = np.asarray(verifier.margins(graph.lo, graph.hi, graph.forms, effort=EFFORT))
    count = len(graph.lo)
    layers = {k: (np.asarray(b.lo).reshape(count, -1), np.asarray(b.hi).reshape(count, -1)) for k, b in found.layers.items()}
    return Said(np.asarray(found.lo).reshape(count, -1), np.asarray(found.hi).reshape(count, -1), layers, margins)


def judge(graph: Graph, semantics: str = "float32") -> Outcome:
    """All executions against all bounds. Whatever polytriton raises but a refusal is raised here too."""
    from polytriton.errors import InvalidIR, PassError, PolytritonError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflow is what some graphs are about
        try:
            said = ask(graph, semantics)
        except (PassError, InvalidIR) as error:
            return Outcome(escapes=[f"a fault of the compiler's own: {error}"], refused=True, reason=str(error))
        except PolytritonError as error:
            return Outcome(refused=True, reason=str(error))
        court = _Court(graph, semantics, said)
        if semantics == "real":
            court.exact()
        else:
            court.executions()
            if semantics == "float32" and graph.seed % RUNTIME == 3:
                court.runtime()
    return court.outcome


class _Court:
    """One graph's bounds, the points and goals that attack them, and what came of it."""

    def __init__(self, graph: Graph, semantics: str, said: Said) -> None:
        self.graph, self.semantics, self.said = graph, semantics, said
        self.rng = np.random.default_rng([graph.seed, SEMANTICS.index(semantics)])
        self.outcome = Outcome()
        self.convert = semantics in OPERANDS
        self.first = program(graph.model, Forms(), self.convert)
        held = {k: self.first.cells_of(k) for k in said.layers}
        self.names = [k for k, cells in held.items() if cells is not None and len(cells) == said.layers[k][0].shape[1]]
        for name, ends in (("output", (said.lo, said.hi)), *((k, said.layers[k]) for k in self.names)):
            self.outcome.finite += sum(int(np.isfinite(e).sum()) for e in ends)
            if any(np.isnan(e).any() for e in ends):
                self.outcome.escapes.append(f"a bound of {name} is NaN")
        if np.isnan(said.margins).any():
            self.outcome.escapes.append("a margin is NaN")

    # ---- points and goals -------------------------------------------------------------------------------------------

    def _aims(self) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """(value's name or "" for the output, cells among its cells, coefficients), a list for each box alike."""
        outputs = self.said.lo.shape[1]
        aims = []
        for cell in self.rng.permutation(outputs)[:OUTPUTS]:
            aims += [("", np.array([cell]), np.array([sign])) for sign in (1.0, -1.0)]
        if self.names:
            name = self.names[int(self.rng.integers(len(self.names)))]
            cell = self.rng.integers(self.said.layers[name][0].shape[1])
            aims += [(name, np.array([cell]), np.array([sign])) for sign in (1.0, -1.0)]
        return aims

    def rows(self) -> tuple[np.ndarray, np.ndarray, list[tuple[str, np.ndarray, np.ndarray]]]:
        """Points [rows, inputs], their boxes, and what each row aims at."""
        lo, hi, rng, first = self.graph.lo, self.graph.hi, self.rng, self.first
        xs, boxes, targets = [], [], []
        aims = self._aims()
        for k in range(len(lo)):
            every = np.arange(self.said.lo.shape[1])
            mine = [*aims, *(("", every, -form) for form in self.graph.forms[k])]
            if (lo[k] == hi[k]).all():
                xs += [lo[k]] * len(mine)
                boxes += [k] * len(mine)
                targets += mine
                continue
            start = np.repeat(self._inside(k, np.full(lo.shape[1], 0.5))[None], len(mine), 0)
            goal = first.goals([self._goal(first, aim) for aim in mine])
            slope = first.derivatives(first.near(start), goal)[:, first.input]
            corner = np.where(slope > 0, hi[k], np.where(slope < 0, lo[k], start))
            zero = np.clip(0.0, lo[k], hi[k])
            for aim, point in zip(mine, corner, strict=True):
                other = (zero, lo[k], hi[k], self._inside(k, rng.random(lo.shape[1])))[int(rng.integers(4))]
                xs += [point, other]
                boxes += [k, k]
                targets += [aim, aim]
        return np.array(xs), np.array(boxes), targets

    def _inside(self, k: int, share: np.ndarray) -> np.ndarray:
        lo, hi = self.graph.lo[k], self.graph.hi[k]
        return np.clip((lo + share * (hi - lo)).astype(self.graph.dtype).astype(np.float64), lo, hi)

    def _goal(self, where: Program, aim: tuple[str, np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        name, cells, form = aim
        held = where.cells_of(name) if name else where.output
        assert held is not None
        return held[cells], form

    # ---- executions -------------------------------------------------------------------------------------------------

    def executions(self) -> None:
        x, box, aims = self.rows()
        state = self.rng.integers(1, 1 << 62, 1).astype(np.uint64)
        rng = self.rng
        division = int(rng.integers(2))
        other = Forms(division, int(rng.integers(3)), int(rng.integers(4)), int(rng.integers(2)), int(rng.integers(2)), share=1)
        operands = self.semantics if self.convert else ""
        for forms in (Forms(), other):
            where = self.first if forms == Forms() else program(self.graph.model, forms, self.convert)
            near = where.near(x)
            wanted = where.derivatives(near, where.goals([self._goal(where, aim) for aim in aims]))
            choices = [some_choice(rng, operands) for _ in range(RUNS)]
            if forms == Forms():
                choices[0] = Choice(order=2, operands=operands)
            for choice in choices:
                v = where.run(x, wanted, choice, state)
                self.hold(v, where, box, near, f"{forms} {choice}", aims)

    def hold(self, v: np.ndarray, where: Program, box: np.ndarray, near: np.ndarray | None, how: str, aims: Any = None) -> None:
        for name in ("", *self.names):
            cells = where.cells_of(name) if name else where.output
            assert cells is not None
            ends = self.said.layers[name] if name else (self.said.lo, self.said.hi)
            self._within(name or "output", v[:, cells], ends[0][box], ends[1][box], None if near is None else near[:, cells], how, box)
        self._margins(v[:, where.output], box, how)

    def _within(self, name: str, y: np.ndarray, lo: np.ndarray, hi: np.ndarray, near: np.ndarray | None, how: str, box: np.ndarray) -> None:
        wrong = ~((y >= lo) | np.isneginf(lo)) | ~((y <= hi) | np.isposinf(hi))
        self.outcome.compared += wrong.size
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            ends = f"{float(y[at])!r} outside [{float(lo[at])!r}, {float(hi[at])!r}]"
            self.outcome.escapes.append(f"{name}: {int(wrong.sum())} wrong, first at box {box[at[0]]} cell {at[1]}: {ends}; {how}")
        if near is None:
            return
        with np.errstate(all="ignore"):
            used = np.maximum((near - y) / (near - lo), (y - near) / (hi - near))
        point = (self.graph.lo == self.graph.hi).all(axis=1)[box, None]
        says = (y != 0) | (lo != 0)  # a ReLU's 0 does not
        used = used[np.isfinite(used) & (near > lo + 1e-30) & (near < hi - 1e-30) & says & point]
        self.outcome.ratio = max(self.outcome.ratio, float(used.max(initial=0.0)))

    def _margins(self, y: np.ndarray, box: np.ndarray, how: str) -> None:
        forms, low = self.graph.forms[box], self.said.margins[box]
        terms = np.where(forms != 0, forms * y[:, None], 0.0)
        value, size = terms.sum(-1), np.abs(terms).sum(-1)
        self.outcome.compared += value.size
        open_ = ~(value - 1e-12 * size - 1e-300 > low) & ~np.isneginf(low)
        for p, r in np.argwhere(open_):
            if np.isfinite(terms[p, r]).all() and np.isfinite(low[p, r]):
                pairs = zip(forms[p, r].tolist(), y[p].tolist(), strict=True)
                exact = sum((Fraction(c) * Fraction(v) for c, v in pairs if c != 0), Fraction(0))
                if exact >= Fraction(float(low[p, r])):
                    continue
            self.outcome.escapes.append(f"margin: box {box[p]} form {r}: {value[p, r]!r} below {float(low[p, r])!r}; {how}")
            return

    def runtime(self) -> None:
        """onnxruntime as one more execution, as the file gives the graph and optimised."""
        import onnxruntime as ort

        x, box, _ = self.rows()
        _, chosen = np.unique(np.concatenate([x, box[:, None]], 1), axis=0, return_index=True)
        chosen = self.rng.permutation(chosen)[:6]
        for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
            options = ort.SessionOptions()
            options.graph_optimization_level, options.log_severity_level = level, 4
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            try:
                session = ort.InferenceSession(self.graph.model, options, providers=["CPUExecutionProvider"])
            except Exception as error:  # not every operator is there in every type
                if "NOT_IMPLEMENTED" in str(error):
                    return
                raise
            held = session.get_inputs()[0]
            y = [session.run(None, {held.name: p.astype(self.graph.dtype).reshape(held.shape)})[0] for p in x[chosen]]
            flat = np.array([np.asarray(v, np.float64).reshape(-1) for v in y])
            at = box[chosen]
            self._within("output", flat, self.said.lo[at], self.said.hi[at], None, f"onnxruntime {level}", at)
            self._margins(flat, at, f"onnxruntime {level}")

    # ---- exact values -----------------------------------------------------------------------------------------------

    def exact(self) -> None:
        """The bounds against rational arithmetic; roots are good to 400 bits, and nothing nearer than 2^-300 is an escape."""
        from tests.oracle.graphs.execute import rational

        x, box, _ = self.rows()
        _, chosen = np.unique(np.concatenate([x, box[:, None]], 1), axis=0, return_index=True)
        for p in self.rng.permutation(chosen)[:4]:
            v = self.first.exact(x[p : p + 1])[0]
            k = box[p]
            for name in ("", *self.names):
                cells = self.first.cells_of(name) if name else self.first.output
                assert cells is not None
                lo, hi = self.said.layers[name] if name else (self.said.lo, self.said.hi)
                for cell, low, high in zip(cells, lo[k], hi[k], strict=True):
                    self._exactly(name or "output", v[cell], low, high, k)
            for r, form in enumerate(self.graph.forms[k]):
                terms = (rational(c) * v[cell] for c, cell in zip(form, self.first.output, strict=True))
                self._exactly(f"margin {r}", sum(terms, rational(0.0)), self.said.margins[k, r], np.inf, k)

    def _exactly(self, name: str, y: Any, low: float, high: float, box: int) -> None:
        from tests.oracle.graphs.execute import rational

        self.outcome.compared += 1
        slack = abs(y) * rational(2.0**-300)
        below = np.isfinite(low) and y < rational(low) - slack
        above = np.isfinite(high) and y > rational(high) + slack
        if below or above or low == np.inf or high == -np.inf:
            near = float(int(y.p) / int(y.q)) if hasattr(y, "p") else float(y)
            self.outcome.escapes.append(f"{name}: box {box}: exactly {near!r}, outside [{float(low)!r}, {float(high)!r}]")
