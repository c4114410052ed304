"""Decides: batches of boxes with their linear forms go in, what could be proved comes out.

What a try fails at (`attempt.py`) is tried with the other choice of candidates, and in float64 where only the rounding term of
float32 coefficients stood in the way.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polytriton.errors import ResourceError, UsageError
from polytriton.ir.ops import OPS
from polytriton.kernels.interval_launches import check_supported
from polytriton.kernels.network import check_kernels
from polytriton.passes import schedule
from polytriton.passes.pipeline import Compiled
from polytriton.prove.attempt import Answers, Attempt
from polytriton.prove.methods import INTERVALS, output_forms
from polytriton.prove.options import INTERPRET, OWN, SPLIT, Options, pick_device
from polytriton.prove.questions import Questions
from polytriton.prove.trail import Trail
from polytriton.runtime import settings
from polytriton.runtime.config import DEFAULT
from polytriton.runtime.engine import Engine, Progress, _silent
from polytriton.runtime.forward import Boxes, Forward
from polytriton.runtime.input_balls import InputBalls
from polytriton.runtime.layers import from_physical, order
from polytriton.runtime.results import Forms, Stopped
from polytriton.runtime.trace import Trace

NEAR = 8.0  # float64 is worth a try where the margin would pass with this many times its rounding term given back
FULL_RATE_FLOAT64 = ((8, 0), (9, 0), (10, 0))  # capabilities whose tensor cores multiply float64 as fast as others float32

_LOG = logging.getLogger(__name__)

_TURNS: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)


def _turn(device: torch.device, kernels: str) -> AbstractContextManager[Any]:
    """Callers in several threads: free on the CPU, where a call shares nothing that changes, and one after another on a GPU.

    Generated kernels play on tensors that stay where they are, GPUs capture graphs, and Triton's interpreter is one a process.
    """
    if not kernels:
        return nullcontext()
    return _TURNS[INTERPRET if device.type == "cpu" else f"cuda:{device.index or 0}"]


@dataclass(frozen=True)
class Try:
    """One way to ask: coefficient type, candidates, whether even settled neurons are bounded again, and whether no check is skipped."""

    dtype: str
    candidates: str
    tight: bool = False
    full: bool = False
    rescue: bool = field(default=False, compare=False)


class Decider:
    """Engines for one compiled network, made when first needed and kept. A thread holds `turn` while it uses them."""

    def __init__(self, compiled: Compiled, options: Options) -> None:
        self.compiled, self.options = compiled, options
        self.device = pick_device(options.device)
        self.kernels = INTERPRET if options.device == INTERPRET else "triton" if self.device.type == "cuda" else ""
        if self.kernels:
            check_kernels(compiled.net)
        if options.numerics == "interval":
            check_supported(compiled.net)
        if self.device.type == "cuda" and not settings.plain_products(self.device):
            raise UsageError(
                f"matrix products of {self.device} are not sums of rounded products, so no bound could be trusted",
                "unset what makes the library emulate them, such as CUBLAS_EMULATE_DOUBLE_PRECISION or NVIDIA_TF32_OVERRIDE",
            )
        self._forward: Forward | None = None
        self._engines: dict[Try, Engine] = {}
        self._making = threading.Lock()
        self.turn = _turn(self.device, self.kernels)
        net = compiled.net
        self.outputs = net.node(net.output).size
        of = net.input.ints("of") or net.input.shape
        self.inputs = int(np.prod(of, dtype=np.int64))
        self._output_order = order(net.node(net.output).shape)

    @cached_property
    def on_host(self) -> Decider:
        """One that asks the same of the CPU, in an arithmetic that it has."""
        o = self.options
        return Decider(self.compiled, replace(o, device="cpu", dtype="auto" if o.dtype in SPLIT else o.dtype, config=DEFAULT))

    def engine(self, how: Try) -> Engine:
        with self._making:
            return self._make(how)

    def _make(self, how: Try) -> Engine:
        if how not in self._engines:
            o = self.options
            plan = self.compiled.plan
            if plan.candidates != how.candidates:
                plan = schedule.run(self.compiled.net, plan, how.candidates)
            config = replace(o.config, skips={}) if how.full else o.config
            self._engines[how] = Engine(
                replace(self.compiled, plan=plan), semantics=o.semantics, dtype=how.dtype, device=self.device, memory=o.memory,
                threads=settings.allowed_threads(), early=o.early, tight=how.tight, forward=self._forward,
                kernels=self.kernels, config=config, numerics=o.numerics,
            )  # fmt: skip
            self._forward = self._engines[how].forward  # one interval pass serves all
        return self._engines[how]

    def first_dtype(self) -> str:
        """As asked; else float64 on GPUs that lose nothing by it, and float32 where this process multiplies it exactly."""
        asked = self.options.dtype
        chosen = self.options.config.dtype if asked == "auto" else ""
        if asked in SPLIT:
            return asked
        if self.device.type == "cuda" and chosen:
            return chosen
        if self.device.type == "cuda" and asked == "auto":
            return "float64" if torch.cuda.get_device_capability(self.device) in FULL_RATE_FLOAT64 else "float32"
        if asked == "float64" or not (self.kernels or settings.exact_float32()):
            return "float64"
        return "float32" if chosen in ("", *SPLIT) else chosen  # split products are for tensor cores

    def batches(self, count: int, engine: Engine) -> Iterator[slice]:
        """Images at a time that half of the budget holds."""
        each = engine.image_bytes
        if each > self.options.memory // 2:
            raise ResourceError(
                f"one image needs {each / 2**20:.1f} MiB, more than half the budget of {self.options.memory / 2**20:.1f} MiB",
                f"give --memory at least {2 * each // 2**20 + 1}M",
            )
        size = max(1, min(count, self.options.memory // 2 // each))
        for a in range(0, count, size):
            yield slice(a, min(count, a + size))

    def _threads(self) -> AbstractContextManager[None]:
        """At most as many CPU threads as the configuration asks for."""
        asked = self.options.config.threads
        return settings.threads(asked) if self.device.type == "cpu" and asked > 0 else nullcontext()

    def _own_threads(self) -> AbstractContextManager[None]:
        """On a CPU engines share out rows and long products to threads of ours; torch works alone beside them. Where there are no rows its
        own threads do more.
        """
        ours = self.device.type == "cpu" and not self.kernels and self.options.method not in INTERVALS
        return settings.own_threads() if ours else nullcontext()

    # ---- bounds -----------------------------------------------------------------------------------------

    def boxes(
        self, lo: np.ndarray, hi: np.ndarray, progress: Progress = _silent, candidates: str = ""
    ) -> Generator[tuple[Engine, Boxes], None, None]:
        """Refined boxes, a batch at a time; `candidates` other than the options' where they are given."""
        with self._threads(), self._own_threads(), settings.pin_settings(self.device):
            engine = self.engine(self.tries(patient=False, candidates=candidates)[0])
            for part in self.batches(len(lo), engine):
                box = torch.from_numpy(lo[part]), torch.from_numpy(hi[part])
                yield engine, engine.interval(*box) if self.options.method in INTERVALS else engine.refine(*box, progress)

    def output_bounds(self, engine: Engine, boxes: Boxes) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of every output, both rows of each by back-substitution, [batch, outputs]."""
        with settings.pin_settings(self.device):
            eye = torch.eye(self.outputs, dtype=torch.float64, device=self.device)
            n = boxes.batch
            forms = Forms(torch.arange(n, device=self.device).repeat_interleave(2 * self.outputs), torch.cat([eye, -eye]).repeat(n, 1))
            found = output_forms(engine, boxes, forms) if self.options.method == "ibp" else engine.query(boxes, forms)
            best = found.best.view(n, 2, self.outputs)
            lo, hi = best[:, 0], -best[:, 1]
            name = self.compiled.net.output
            nonlinear = OPS[self.compiled.net.node(name).op].kind == "nonlinear"
            if engine.plan.candidates == "all" or nonlinear:  # the box is a candidate too; a nonlinear output is asked for its box
                lo = torch.maximum(lo, boxes.lo[name].reshape(n, -1))
                hi = torch.minimum(hi, boxes.hi[name].reshape(n, -1))
            shape = self.compiled.net.node(name).shape
            return tuple(from_physical(v.reshape(n, *boxes.lo[name].shape[1:]), shape).reshape(n, -1).cpu().numpy() for v in (lo, hi))  # type: ignore[return-value]

    # ---- questions --------------------------------------------------------------------------------------

    def forms(self, q: Questions, rows: np.ndarray, image: np.ndarray) -> Forms:
        def output(v: np.ndarray) -> Tensor:
            return torch.from_numpy(v[rows[:, None], self._output_order]).to(self.device)

        def columns(v: np.ndarray | None) -> Tensor | None:
            return None if v is None else self.input_columns(torch.from_numpy(v[rows]).to(self.device))

        error = None if q.output_error is None or not q.output_error.any() else output(q.output_error)
        over_input, input_error = columns(q.over_input), columns(q.input_error)
        return Forms(
            torch.from_numpy(image).to(self.device),
            output(q.over_output),
            over_input,
            error,
            input_error,
            torch.from_numpy(q.constant[rows]).to(self.device),
        )

    def balls(self, q: Questions, images: np.ndarray) -> InputBalls | None:
        """The balls of some of the boxes, on the device."""
        if q.balls is None:
            return None
        b = q.balls.pick(images)
        return InputBalls(b.norm, *(torch.from_numpy(v).to(self.device) for v in (b.centre, b.scale, b.radius)))

    def input_columns(self, values: Tensor) -> Tensor:
        """Coefficients over the user's input as coefficients over the input node's cells (each used at most once)."""
        net = self.compiled.net
        take = net.weight(net.input, "take")
        cells = torch.from_numpy(order(net.input.shape)).to(self.device)
        if take is not None:
            index = torch.from_numpy(np.ascontiguousarray(take)).to(self.device)[cells]
            missing = torch.ones(self.inputs, dtype=torch.bool, device=self.device)
            missing[index[index >= 0]] = False
            if bool((values[:, missing] != 0).any()):
                raise UsageError("the property relates outputs to inputs that the network does not read", "bound those inputs instead")
            return torch.where(index >= 0, values[:, index.clamp(min=0)], torch.zeros((), dtype=values.dtype, device=self.device))
        return values[:, cells]

    def user_columns(self, values: Tensor) -> Tensor:
        """The way back: values over the input node's cells as values over the user's input, zero where the network does not read it."""
        take = self.compiled.net.weight(self.compiled.net.input, "take")
        cells = torch.from_numpy(order(self.compiled.net.input.shape))
        index = (cells if take is None else torch.from_numpy(np.array(take))[cells]).to(values.device)
        made = values.new_zeros(len(values), self.inputs)
        made[:, index[index >= 0]] = values[:, index >= 0]
        return made

    def prove(
        self,
        q: Questions,
        tries: Sequence[Try] | None = None,
        *,
        answers: Answers | None = None,
        deadline: float | None = None,
        progress: Progress = _silent,
        exhaustive: bool = False,
        slopes: bool = False,
        statistics: bool = True,
        trail: Trail | None = None,
    ) -> Answers:
        """Goes through `tries` (by default the quickest and its rescue) with what is still open, on top of earlier `answers`.

        `exhaustive`: forms never leave early, so every bound is the best one. `slopes`: note for the falsifier where bounds are least.
        `statistics`: what was done is told of every layer. `trail`: note for a certificate how it went.
        """
        if answers is None:
            count = int(q.group.max()) + 1 if len(q.group) else 0
            answers = Answers(np.full(len(q.image), -np.inf), np.full(len(q.image), -np.inf), np.zeros(count, dtype=bool), trail=trail)
        if slopes and answers.slopes is None:
            answers.slopes = {}
        with self.turn, self._threads(), self._own_threads(), settings.pin_settings(self.device):
            try:
                for how in tries if tries is not None else self.tries(patient=False):
                    open_rows = np.flatnonzero(~answers.settled[q.group])
                    if how.rescue:
                        open_rows = open_rows[self._only_rounding(answers, q, open_rows)]
                    if len(open_rows):
                        _LOG.debug("%d forms in %s, candidates=%s%s", len(open_rows), how.dtype, how.candidates, ", rescue" * how.rescue)
                        trace = Trace(self.device) if statistics else None
                        try:
                            Attempt(self, self.engine(how), q, answers, trace, deadline, progress, exhaustive).run(open_rows)
                        except Stopped:
                            answers.tell(trace)
                            raise
                        answers.tell(trace)
            except Stopped:
                answers.expired = True
        return answers

    def tries(self, patient: bool, candidates: str = "") -> list[Try]:
        """From the quickest to the most patient; rescues are for what rounding alone may have cost. `candidates` as for `boxes`."""
        if self.options.method != OWN:
            return [] if patient else self._compared_tries()
        first, mine = self.first_dtype(), candidates or self.options.candidates
        other = next(c for c in schedule.CHOICES if c != mine)
        last = "float64" if self.options.dtype == "auto" else first  # split products were asked for by name: no other is tried
        tight = self.options.semantics != "real" or last == "float32"
        quick = [Try(first, mine)] + ([Try(last, mine, tight, rescue=True)] if last != first else [])
        if not patient:
            return quick
        full = bool(self.options.config.skips)  # a tuned configuration may skip checks: what they would prove is not given up
        more = [Try(first, mine, full=True)] if full else []
        more += [Try(last, mine, tight, full, rescue=True), Try(first, other, full=full), Try(last, other, tight, full, rescue=True)]
        return [t for t in dict.fromkeys(more) if t not in quick]

    def _compared_tries(self) -> list[Try]:
        """Of a method to compare with: bounds at the input alone, and by DeepPoly every row to its end."""
        first, deep = self.first_dtype(), self.options.method == "deeppoly"
        last = "float64" if self.options.dtype == "auto" else first
        quick = Try(first, "input", tight=deep, full=True)
        return [quick] if last == first else [quick, replace(quick, dtype=last, rescue=True)]

    def _only_rounding(self, answers: Answers, q: Questions, rows: np.ndarray) -> np.ndarray:
        """Forms whose group would be settled by some form were rounding free, or nearly so (earlier bounds paid for it too)."""
        with np.errstate(invalid="ignore"):
            given_back = answers.best + NEAR * (answers.raw - answers.best)
        hopeful = np.zeros(len(answers.settled), dtype=bool)
        # no finite bound at all is rounding's (or overflow's) doing: float64 has more of both
        hopeful[q.group[~(given_back <= 0) | ~np.isfinite(answers.best)]] = True
        return hopeful[q.group[rows]]

    def layer_bounds(self, boxes: Boxes, engine: Engine) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Boxes of every nonlinear operator's input in the IR's own shapes."""
        found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for name in engine.bounded_nodes():
            shape: tuple[int, ...] = engine.nodes[name].shape
            pair: Any = tuple(from_physical(v, shape).cpu().numpy() for v in (boxes.lo[name], boxes.hi[name]))
            found[name] = pair
        return found
