"""The time of one launch by a model: the predicted time of polytriton/tuning, bytes of every tensor, and the pipes of its inner loop.

Nothing here has been measured on a GPU. Peaks are the data sheet's; a copy is taken to reach the data sheet's bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from msgspec import structs

from bench.gpu.stage import Note
from polytriton.arithmetic import ARITHMETICS, INTERVAL, Arithmetic
from polytriton.ir.launches import Launch, Launches
from polytriton.ir.net import Net
from polytriton.ir.plan import extent
from polytriton.kernels.sass import LIMITS
from polytriton.kernels.sass_loop import LANES, MATRIX, Instruction, inner_loop, pipe_cycles
from polytriton.kernels.sequence import Frames
from polytriton.kernels.spec import Report
from polytriton.rounding import PARTS
from polytriton.runtime.gpu.kernel_arguments import LAYER, READERS
from polytriton.tuning.device import Gpu
from polytriton.tuning.gpu_cost import HIDING, INTERVAL_PRODUCTS, PRODUCTS, SPILL, interval_pipes, kernel_cost, work

FLAT = ("constant", "error", "sign", "image", "row_h", "row_w", "index", "channel", "from", "slot", "value", "raw", "slack", "group",
        "best", "raw_best")  # fmt: skip
BLOCKS = 1024 * 8


@dataclass(frozen=True)
class Estimate:
    """`limit`: what binds. `ops`: in whole tiles, a split product once; `memory`: bytes; `pipes`: the share of the peak each allows."""

    seconds: float
    limit: str
    ops: float
    memory: float
    pipes: dict[str, float]
    repeated: float = 1.0  # the matrix operations that the loop makes, over those of its tile


def peak(gpu: Gpu, numerics: str) -> float:
    """Operations a second; a product counts once, whatever parts or ends it multiplies. bfloat16 has twice the rate of tf32."""
    rate = gpu.rates[ARITHMETICS[numerics].instruction]
    return (2 * rate if numerics == "bf16x6" else rate) / operations(numerics)


def operations(numerics: str) -> int:
    """Of the arithmetic's instruction, at least, for one product: parts of split operands, an interval's ends."""
    return 2 if ARITHMETICS[numerics].form == INTERVAL else PARTS.get(numerics, 1)


def clock(gpu: Gpu, target: str) -> float:
    """Cycles a second at which float32 units reach the data sheet's peak."""
    return gpu.rates["FFMA"] / (2 * LANES[target].float32 * gpu.sms)


# ---- bytes ----------------------------------------------------------------------------------------------------------


def traffic(launch: Launch, launches: Launches, frames: Frames, rows: int, batch: int, numerics: Arithmetic) -> int:
    """Bytes the launch moves at least: every value of its tensors once, of a table no more than its rows can read."""
    word = 8 if numerics.type == "tl.float64" else 4
    buffers = {s: rows * launches.buffers[int(s[4:])] * word for s in launch.bind if s.startswith("buf:")}
    most = max(buffers.values(), default=rows * word)
    total = 0
    for symbol in launch.bind:
        kind, _, name = symbol.partition(":")
        if symbol in buffers:
            total += buffers[symbol]
        elif kind in FLAT:
            total += 8 * rows
        elif kind in ("done", "count", "limit", "blocks"):
            total += {"done": rows, "blocks": BLOCKS}.get(kind, 8)
        elif kind in ("floor", "underflow", "merged"):
            total += 8 * batch
        elif kind in LAYER or kind in ("bias", "first"):
            total += _layer(frames.net, kind, name, batch, word)
        elif name and not name.isdigit():  # a table over the boxes
            total += min(batch * _plane(frames, name) * word, most)
    return total


def _plane(frames: Frames, name: str) -> int:
    """Values of a node's table, a box."""
    plane = frames.geometry(name)["PLANE"]
    assert isinstance(plane, int)
    return plane


def _layer(net: Net, kind: str, name: str, batch: int, word: int) -> int:
    node = net.node(name)
    if kind in ("bias", "first"):
        return 8 * (node.size * batch if kind == "first" else extent(node)[2])
    if kind in READERS:
        return 8 * node.size
    weight = net.weight(node, "w")
    return word * (node.size if weight is None else int(weight.size))


# ---- seconds --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Code:
    """A compiled kernel: its report, and its instructions."""

    report: Report
    instructions: Sequence[Instruction] = ()


def estimate(note: Note, warps: int, moved: int, numerics: str, rows: int, gpu: Gpu, target: str, code: Code | None) -> Estimate:
    """One launch over `rows` rows. Without code registers are taken to let enough warps live, and every loop to be perfect."""
    constants = {k: v for k, v in note.constants.items() if isinstance(v, int)}
    if note.function not in PRODUCTS:
        return _pass(constants, warps, moved, rows, gpu, target, code)
    parts = operations(numerics)
    rates = dict(gpu.rates)
    if numerics in PARTS:  # kernel_cost has one rate for both splits
        rates["HGMMA"] = parts * peak(gpu, numerics)
    fitting = structs.replace(gpu, rates=rates)
    does = work(note.function, constants, numerics, rows)
    repeated = 1.0
    pipes: dict[str, float] = {}
    if code is not None and target in LANES:
        if note.function in INTERVAL_PRODUCTS:
            pipes = interval_pipes(code.instructions, constants, numerics, target)
        else:
            pipes, repeated = product_pipes(code.instructions, constants, warps, numerics, gpu, target)
    known = pipes if note.function in INTERVAL_PRODUCTS else {}
    cost = kernel_cost(note.function, constants, numerics, rows, fitting, None if code is None else code.report, target, known)
    seconds, limit = cost.seconds, cost.limit
    if pipes and code is not None:
        slowest = min(pipes, key=lambda p: pipes[p])
        waves = does.programs / gpu.sms
        loop = does.ops / parts * ceil(waves) / waves / (peak(gpu, numerics) * pipes[slowest])
        loop *= 1 if known else 1 + SPILL * code.report.spills  # a product of intervals has them among its loops' instructions
        if loop + gpu.launch > seconds:
            seconds, limit = loop + gpu.launch, slowest if slowest != "matrix" else "arithmetic"
    return Estimate(seconds, limit, does.ops / parts, float(moved), pipes, repeated)


def product_pipes(
    code: Sequence[Instruction], constants: dict[str, int], warps: int, numerics: str, gpu: Gpu, target: str
) -> tuple[dict[str, float], float]:
    """Of a product's loop: the share of the matrix peak that each pipe allows, and how often its matrix operations are made.

    A turn of the loop is one block of BK terms, or several where ptxas unrolled it. Warps that share a tile may make a split product's
    operations more than once, less than twice in what Triton emits: any more is taken for unrolling.
    """
    loop = inner_loop(code, MATRIX) or inner_loop(code, ("FFMA",))
    if not loop:
        return {}, 1.0
    parts, best = PARTS.get(numerics, 1), peak(gpu, numerics)
    block = 2.0 * constants["BM"] * constants["BN"] * constants["BK"]
    matrix = any(i.base in MATRIX for i in loop)
    made = warps * sum(i.flops if matrix else 64.0 * (i.base == "FFMA") for i in loop)
    ratio = made / (block * parts)
    turns = max(1, int(ratio + 1e-6))
    per_cycle = 1 / (clock(gpu, target) * gpu.sms)
    cycles = pipe_cycles(loop, warps, LANES[target], best * parts * per_cycle)
    ideal = turns * block / (best * per_cycle)
    return {pipe: min(1.0, ideal / n) for pipe, n in cycles.items() if n}, ratio / turns


def _pass(constants: dict[str, int], warps: int, moved: int, rows: int, gpu: Gpu, target: str, code: Code | None) -> Estimate:
    """A pass over rows: memory, or the instructions of its loop where they take longer."""
    hidden = 1.0 if code is None else min(1.0, code.report.occupancy / (HIDING * LIMITS[target].warps))
    if not hidden:
        return Estimate(float("inf"), "too large", 0.0, float(moved), {})
    parts = {"memory": moved / (gpu.bandwidth * hidden), "launch": gpu.launch}
    pipes: dict[str, float] = {}
    loop = inner_loop(code.instructions, ("LDG",)) if code is not None and target in LANES else []
    if loop and "BQ" in constants and "SIZE" in constants:
        turns = ceil(rows / constants["BR"]) * ceil(constants["SIZE"] / constants["BQ"])
        cycles = pipe_cycles(loop, warps, LANES[target], 1.0)
        seconds = {pipe: n * turns / (gpu.sms * clock(gpu, target) * hidden) for pipe, n in cycles.items()}
        pipes = {pipe: min(1.0, parts["memory"] / n) for pipe, n in seconds.items() if n}
        parts |= seconds
    limit = max(parts, key=lambda name: parts[name])
    return Estimate(parts[limit] + (0.0 if limit == "launch" else gpu.launch), limit, 0.0, float(moved), pipes)
