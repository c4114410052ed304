"""The paper's networks by the model: what the Plan's launches take on a GPU for the rows that a box needs.

Rows are those of a refinement on the CPU where it ends in time (`refined`: rows that leave on the way are known too), else two for every
neuron that the interval pass leaves undecided, none of which leaves (`interval`: more than there are, often many times as many).
Seconds add up the launches, the host's waits and its own tensor operations; nothing overlaps. Launches and waits are those of a batch
like the ones before: the host waits behind every bounded layer, and stops where it then learns that no row is left
(runtime/gpu/player.py), or it leaps and waits once in all (runtime/gpu/leaps.py), as it would there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import ceil
from pathlib import Path

import torch
from msgspec import structs

from bench.core.table import Row, first_line, say
from bench.gpu.stage import Noted
from bench.gpu.zoo import BATCH, GOALS, Problem
from bench.host_ops import HostOps, of_depth
from bench.roofline.kernels import instructions
from bench.roofline.model import Code, estimate, peak, traffic
from bench.roofline.script import add_script
from bench.roofline.sums import Sum
from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Kernel, Launches
from polytriton.ir.net import Net
from polytriton.ir.plan import Program
from polytriton.ir.script import RunScript
from polytriton.kernels.arena import lay_out
from polytriton.kernels.build import Built, compile_each
from polytriton.kernels.choose import GPU
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.script import DEPLOYMENTS, ScriptLowering
from polytriton.kernels.sequence import Frames
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu.leaps import is_worth, stride_cost
from polytriton.runtime.gpu.triton_backend import MOST, ROW_BYTES
from polytriton.runtime.results import Results, Stopped
from polytriton.runtime.settings import pin_settings
from polytriton.runtime.trace import Mark, Told, Trace
from polytriton.tuning.device import SHEETS, Gpu

# assumed, not measured: seconds of one wait for the device, of a tensor operation that the host asks for and of a launch outside of graphs
HOST_WAIT, HOST_OP, HOST_LAUNCH = 10e-6, 5e-6, 10e-6
ROWS_MEMORY = 20e9  # bytes for rows at a time: a quarter of 80 GB, as bench.gpu and the backend share them out
IMAGES = 4  # over which undecided neurons are counted for a batch
MARGINS = 9
NUMERICS_SHOWN = ("float64", "tf32x3")
# the paper's medians on a V100, seconds an image
PAPER = {
    ("mnist-6x500", "normal"): 9.06e-3,
    ("mnist-convbig", "robust"): 0.54e-3,
    ("mnist-convsuper", "normal"): 0.266,
    ("cifar-convlarge", "robust"): 4.54e-3,
    ("resnettiny", "normal"): 11.7,
    ("resnet18", "normal"): 397.0,
    ("resnet18", "robust"): 16.9e-3,
    ("resnet34", "robust"): 34.5e-3,
}
COLUMNS = (
    "network", "kind", "eps", "weights", "numerics", "batch", "rows_from", "images", "undecided", "rows", "launches", "gflop",
    "tiles_gflop", "gb", "kernels_s", "boxes_s", "leap", "wait_s", "device_s", "host_ops", "host_launches", "host_s", "estimate", "goal",
    "of_goal", "paper_v100", "of_peak", "binds", "note",
)  # fmt: skip
SHOWN = ("network", "kind", "numerics", "batch", "rows_from", "rows", "launches", "gflop", "gb", "leap", "device_s", "host_ops",
         "host_launches", "estimate", "goal", "of_goal", "paper_v100", "binds", "note")  # fmt: skip


def groups() -> list[str]:
    return [f"{name}-{kind}" for name, kind in GOALS]


# ---- rows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """Rows an image: of each bounded node the rows in every state, once for each sign; `undecided` neurons in all."""

    source: str
    images: int
    rows: dict[str, tuple[list[float], list[float]]]
    undecided: float


class Recorder(Trace):
    """Keeps the rows that each program had, state by state."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.rows: dict[str, tuple[list[float], list[float]]] = {}

    def add_layer(self, name: str, marks: tuple[Mark, Mark], neurons: int, told: Told, results: Sequence[Results], unsettled: bool) -> None:
        made = [states(r) for r in results]
        if made:
            started = made[0][0]  # kernels begin with a row a neuron for either sign: those that the first settled leave at once
            self.rows[name] = ([started, *made[0]], [started, *made[1]])


def states(results: Results) -> list[float]:
    """Rows at the start, then after each check; blocks of rows are added up, and may end early."""
    blocks = [[float(v) for v in block] for block in results.left]
    deepest = max(map(len, blocks), default=0)
    return [float(len(results.best)), *(sum(b[k] for b in blocks if k < len(b)) for k in range(deepest))]


def count_rows(problem: Problem, engine: Engine, seconds: float) -> Counted:
    """By refinement of the first image if that takes no more than so many seconds, else by the interval pass."""
    recorder = Recorder()
    try:
        if seconds > 0:
            with pin_settings():
                engine.refine(*problem.boxes(1), deadline=time.monotonic() + seconds, trace=recorder)
            return Counted("refined", 1, recorder.rows, sum(r[0][0] for r in recorder.rows.values()))
    except Stopped:
        say(f"   no refinement in {seconds:g} s: rows are those of the interval pass")
    found: dict[str, float] = {}
    for k in range(IMAGES):  # one at a time: memory
        lo, hi = (v[k : k + 1] for v in problem.boxes(IMAGES))
        with pin_settings():
            boxes = engine.interval(lo, hi)
        for name in engine.programs:
            found[name] = found.get(name, 0.0) + float(((boxes.lo[name] < 0) & (boxes.hi[name] > 0)).sum()) / IMAGES
    return Counted("interval", IMAGES, {n: ([v], [v]) for n, v in found.items() if v}, sum(found.values()))


# ---- launches -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lowered:
    program: Program
    noted: Noted
    launches: Launches
    row_bytes: float


def lower(problem: Problem, numerics: str) -> tuple[list[Lowered], list[Kernel], RunScript]:
    emitter, frames, made = Emitter(), Frames(problem.compiled.net, problem.compiled.plan), []
    word = 8 if ARITHMETICS[numerics].type == "tl.float64" else 4
    for program in problem.compiled.plan:
        noted = Noted(emitter, frames, ARITHMETICS[numerics], program, GPU)
        launches = noted.run()
        made.append(Lowered(program, noted, launches, lay_out(launches).size * word + ROW_BYTES))
    kernels = list(emitter.kernels.values())
    lowering = ScriptLowering(emitter, frames, ARITHMETICS[numerics], DEPLOYMENTS["real"], GPU.emulate)
    return made, kernels, lowering.run([one.launches for one in made])


def count_chunks(one: Lowered, rows: float) -> int:
    """In how many blocks so many rows go, as memory holds them."""
    return max(1, ceil(rows / min(MOST, ROWS_MEMORY / one.row_bytes)))


def count_parts(launches: Launches, rows: Sequence[float]) -> int:
    """After how many parts no row is left; 0 where some stay to the end."""
    return next((k for k, (_, _, states) in enumerate(launches.parts(), 1) if 0 in rows[:states]), 0)


def play(
    one: Lowered, rows: Sequence[float], batch: int, numerics: str, gpu: Gpu, target: str, code: dict[str, Code], to: Sum,
    first: bool = False,
) -> None:  # fmt: skip
    """One program over rows[s] rows in state s, the last number for all states behind it; as many at a time as memory holds.

    `first`: of the likelier sign, where the host stops when it learns that no row is left (runtime/gpu/player.py).
    """
    chunks = count_chunks(one, rows[0])
    to.rows += rows[0]
    stop = one.launches.parts()[count_parts(one.launches, rows) - 1][1] if first and chunks == 1 else len(one.launches.steps)
    for k, note in one.noted.notes.items():
        if k >= stop:
            break
        launch, here = one.launches.steps[k], rows[min(note.state, len(rows) - 1)] / chunks
        if launch.is_idle(ceil(rows[0] / chunks)):
            continue
        count = ceil(here)
        if not count:
            to.add(0.0, "launch", chunks)
            continue
        moved = traffic(launch, one.launches, one.noted.frames, count, batch, ARITHMETICS[numerics])
        found = estimate(note, launch.kernel.warps, moved, numerics, count, gpu, target, code.get(launch.kernel.name))
        to.add(found.seconds, found.limit, chunks, tiles=found.ops, moved=moved)
    for state, ops in one.launches.ops.items():
        to.ops += ops * rows[min(state, len(rows) - 1)]


def leaps(bounds: Sequence[Lowered], rows: Counted, batch: int) -> bool:
    """Whether a batch like those before it waits once in all: each layer's rows go at a time, and launches and operations are few."""
    launches, ops = 0, 0.0
    for one in bounds:
        first = rows.rows.get(one.program.target, ([0.0],))[0]
        if count_chunks(one, first[0] * batch) > 1:
            return False
        parts = count_parts(one.launches, first)
        made, counted = stride_cost(one.launches, parts, not parts, first[0] * batch)
        launches, ops = launches + made, ops + counted
    return len(bounds) > 1 and is_worth(len(bounds), launches, ops)


# ---- rows of the table ----------------------------------------------------------------------------------------------


def work(
    group: str, target: str, cache: Path | None, jobs: int, *, seconds: float = 60.0, with_code: bool = False, hosts: bool = True
) -> Iterator[Row]:
    name, _, kind = group.rpartition("-")
    problem = Problem(name, kind, IMAGES)
    about: Row = {"network": name, "kind": kind, "eps": str(problem.eps), "weights": "synthetic"}
    engine = Engine(problem.compiled, semantics="real", dtype="float32")
    rows = count_rows(problem, engine, seconds)
    bare = structs.replace(SHEETS[target], launch=0.0)
    host_of = lru_cache(None)(partial(_host, problem.compiled.net) if hosts else lambda _: (None, ""))
    for numerics in NUMERICS_SHOWN:
        programs, kernels, script = lower(problem, numerics)
        bounds = {one.program.target: one for one in programs if one.program.kind == "bound"}
        # the other sign's rows follow where the likelier one's do not settle all
        both = {n for n, one in bounds.items() if n in rows.rows and not count_parts(one.launches, rows.rows[n][0])}
        word, code = 8 if ARITHMETICS[numerics].type == "tl.float64" else 4, dict[str, Code]()
        if with_code:
            say(f"   {group} {numerics}: {len(kernels)} kernels")
            made = compile_each(kernels, target, cache=cache, jobs=jobs)
            code = {m.kernel.name: Code(m.report, instructions(m.cubin)) for m in made if isinstance(m, Built)}
        for batch in (1, BATCH):
            steps, boxes = Sum(), Sum()
            for one in programs:
                if one.program.kind == "query":
                    play(one, [float(MARGINS * batch)], batch, numerics, bare, target, code, steps)
                elif sides := rows.rows.get(one.program.target):
                    for side in sides[: 1 + (one.program.target in both)]:
                        play(one, [n * batch for n in side], batch, numerics, bare, target, code, steps, side is sides[0])
            add_script(script, problem.compiled.net, batch, word, bare, boxes, both)
            leap, layers = leaps(list(bounds.values()), rows, batch), len(bounds)
            steps.add(0.0, "launch", 2 * layers if leap else 0)  # at most: what copies counts into the log
            host, note = host_of(leap)
            waits, hosted = HOST_WAIT * (1 if leap else layers), 0.0 if host is None else host.tensor * HOST_OP + host.single * HOST_LAUNCH
            total = (steps.seconds + boxes.seconds + waits + hosted) / batch
            goal = GOALS[name, kind][batch > 1]
            row: Row = {
                **about, "numerics": numerics, "batch": batch, "rows_from": rows.source, "images": rows.images,
                "undecided": rows.undecided * batch, "rows": steps.rows, "launches": steps.launches + boxes.launches,
                "gflop": steps.ops / 1e9, "tiles_gflop": steps.tiles / 1e9, "gb": (steps.bytes + boxes.bytes) / 1e9,
                "kernels_s": steps.seconds / batch, "boxes_s": boxes.seconds / batch, "leap": "yes" if leap else "no",
                "wait_s": waits / batch, "device_s": total - hosted / batch, "estimate": total,
                "goal": goal, "of_goal": total / goal, "paper_v100": PAPER[name, kind],
                "of_peak": steps.ops / (total * batch) / peak(SHEETS[target], numerics), "binds": steps.binds, "note": note,
            }  # fmt: skip
            if host is not None:
                row |= {"host_ops": host.tensor, "host_launches": host.single, "host_s": hosted / batch}
            yield row


def _host(net: Net, leap: bool) -> tuple[HostOps | None, str]:
    """Tensor operations beside the launches, of a small network of the same layers; why there is no count."""
    try:
        return of_depth(net, leap), ""
    except (ImportError, RuntimeError) as error:
        return None, f"host operations not counted: {first_line(error)}"
