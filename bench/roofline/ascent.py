"""The ascent of slopes and multipliers by the model: the launches of one turn (kernels/ascent.py) over a batch of domains, a form each."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod
from pathlib import Path

from bench.core.machine import found_data
from bench.core.table import Row, say
from bench.gpu.stage import Note
from bench.roofline.kernels import instructions, resources
from bench.roofline.model import Code, Estimate, estimate, peak, product_pipes
from polytriton.arithmetic import ARITHMETICS
from polytriton.errors import UsageError
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.launches import Kernel, Launch
from polytriton.ir.net import Net
from polytriton.ir.plan import Step
from polytriton.kernels.ascent import AscentTurn, TurnLowering
from polytriton.kernels.build import Built, Failed, compile_each
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.sass import LIMITS
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.gpu.ascent_kernels import NUMERICS
from polytriton.tuning.device import SHEETS, Gpu
from polytriton.tuning.gpu_cost import HIDING

DOMAINS, GOAL = 4096, 0.5  # of a batch; of the time that memory and arithmetic leave no choice about
WHOLE = "turn"  # the row of all launches together
GROUPS = {"resnet_2b": Path("nets", "cifar10_resnet", "resnet_2b.onnx")}
COLUMNS = (
    "network", "step", "node", "domains", "registers", "shared", "spills", "warps", "of_warps", "blocks", "DMMA", "HGMMA", "HMMA", "FFMA",
    "DFMA", "of_code", "loop", "of_loop", "gflop", "mb", "flop_byte", "binds", "microseconds", "of_peak", "of_memory", "of_roof", "goal",
    "reached", "note",
)  # fmt: skip
SHOWN = ("step", "node", "registers", "spills", "warps", "gflop", "mb", "binds", "microseconds", "of_peak", "of_memory", "of_roof", "goal",
         "reached", "note")  # fmt: skip
TWICE = ("free", "mean", "square")  # read and written by one launch


def groups() -> list[str]:
    return list(GROUPS)


def turn_of(net: Net) -> tuple[Net, AscentTurn, list[Kernel]]:
    """As a search by signs asks for it."""
    emitter, folded = Emitter(), compile_net(net).net
    relus = [n.name for n in folded if n.op == "relu"]
    turn = TurnLowering(emitter, folded, ARITHMETICS[NUMERICS], folded.output, relus, False).turn()
    return folded, turn, list(emitter.kernels.values())


def work(group: str, target: str, cache: Path | None, jobs: int) -> Iterator[Row]:
    data = found_data()
    if data is None:
        raise UsageError(f"{group} is a network of the verification data", "set POLYTRITON_DATA")
    net, turn, kernels = turn_of(load_onnx(data / GROUPS[group]).net)
    say(f"   {group}: {len(kernels)} kernels, {len(turn.steps)} launches")
    yield from rows(group, net, turn, {m.kernel.name: m for m in compile_each(kernels, target, cache=cache, jobs=jobs)}, target)


def rows(group: str, net: Net, turn: AscentTurn, made: dict[str, Built | Failed], target: str, domains: int = DOMAINS) -> Iterator[Row]:
    """One for each launch, and one for all together. `of_roof`: of the time that the bytes, or the operations at the peak, take."""
    gpu, total = SHEETS[target], [0.0] * 4
    for launch in turn.steps:
        built = made.get(launch.kernel.name)
        row: Row = {"network": group, "step": launch.function, "node": node_of(launch), "domains": domains}
        if isinstance(built, Failed):
            yield {**row, "note": built.reason.splitlines()[0][:160]}
            return
        code = None if built is None else Code(built.report, instructions(built.cubin))
        moved, ops = traffic(launch, net, turn, domains), operations(launch, domains)
        found = predict(launch, ops, moved, domains, gpu, target, code)
        row |= {} if code is None else resources(launch.kernel, code, target)
        yield row | _shares([ops, moved, found.seconds, roof(ops, moved, gpu)], gpu) | {"binds": found.limit}
        total = [a + b for a, b in zip(total, (ops, moved, found.seconds, roof(ops, moved, gpu)), strict=True)]
    row = {"network": group, "step": WHOLE, "node": "", "domains": domains, **_shares(total, gpu), "goal": GOAL}
    memory = total[1] / gpu.bandwidth
    yield row | {
        "binds": "memory" if memory > total[0] / peak(gpu, NUMERICS) else "arithmetic",
        "reached": "yes" if total[3] / total[2] >= GOAL else "no",
        "note": f"{domains / total[2]:.3g} domains a second a turn; of_peak cannot exceed {total[0] / peak(gpu, NUMERICS) / memory:.2f}",
    }


def _shares(total: list[float], gpu: Gpu) -> Row:
    ops, moved, seconds, least = total
    return {
        "gflop": ops / 1e9, "mb": moved / 1e6, "flop_byte": ops / moved, "microseconds": seconds * 1e6,
        "of_peak": ops / seconds / peak(gpu, NUMERICS), "of_memory": moved / seconds / gpu.bandwidth, "of_roof": least / seconds,
    }  # fmt: skip


def roof(ops: float, moved: float, gpu: Gpu) -> float:
    return max(ops / peak(gpu, NUMERICS), moved / gpu.bandwidth)


def node_of(launch: Launch) -> str:
    """The node whose neurons or weights a launch reads."""
    bound = dict(zip(launch.kernel.parameters, launch.bind, strict=True))
    symbol = bound.get("w_ptr") or bound.get("lo_ptr") or bound.get("out_ptr") or ""
    return symbol.partition(":")[2] if not symbol.startswith("buf:") else ""


def traffic(launch: Launch, net: Net, turn: AscentTurn, domains: int) -> float:
    """Every value of its tensors once, those that it moves twice; what is kept of a row that has become better is counted for all rows."""
    total = 0.0
    for symbol in launch.bind:
        kind, _, name = symbol.partition(":")
        if kind == "buf":
            total += 4.0 * domains * turn.buffers[int(name)]
        elif kind in ("points", "weight", "bias"):
            weight = net.weight(net.node(name), "b" if kind == "bias" else "w")
            assert weight is not None
            total += (8.0 if kind == "bias" else 4.0) * weight.size
        elif kind in ("over", "corner"):
            total += 4.0 * domains * net.input.size
        elif kind in ("worth", "best", "goal", "better"):
            total += (1.0 if kind == "better" else 8.0) * domains
        elif name and kind != "count":
            times = 2 if kind in TWICE and launch.function == "climb_rows" else 1
            total += (1.0 if kind == "side" else 4.0) * domains * net.node(name).size * times
    return total


def operations(launch: Launch, domains: int) -> float:
    """Of the products: what passes over memory compute beside them is not counted."""
    c = _sizes(launch)
    if launch.function in ("dense_step", "forward_dense"):
        return 2.0 * domains * c["K"] * c["N"]
    if launch.function == "conv_step":
        return 2.0 * domains * c["H"] * c["W"] * c["CO"] * c["KH"] * c["KW"] * c["CI"] / c["G"]
    if launch.function == "forward_conv":
        return 2.0 * domains * c["HO"] * c["WO"] * c["CO"] * c["KH"] * c["KW"] * c["C"] / c["G"]
    return 0.0


def _sizes(launch: Launch) -> dict[str, int]:
    return {k: v for k, v in launch.kernel.constants if isinstance(v, int)}


def predict(launch: Launch, ops: float, moved: float, domains: int, gpu: Gpu, target: str, code: Code | None) -> Estimate:
    """model.estimate, which does not know products of points: those by whole tiles, as it has products of rows."""
    warps = launch.kernel.warps
    if not launch.function.startswith("forward_"):
        note = Note(launch.function, dict(launch.kernel.constants), {}, Step("", ""), 0)
        found = estimate(note, warps, int(moved), NUMERICS, domains, gpu, target, code)
        if ops:  # the model counts a product's own bytes of float32 alone
            seconds = max(found.seconds, moved / gpu.bandwidth + gpu.launch)
            return found if seconds == found.seconds else Estimate(seconds, "memory", found.ops, moved, found.pipes)
        return found
    c = _sizes(launch)
    terms = c["K"] if launch.function == "forward_dense" else c["KH"] * c["KW"] * c["C"] // c["G"]
    programs = prod(launch.grid(domains))
    depth = programs * ceil(terms / c["BK"]) * c["BK"]
    tiles, read = 2.0 * c["BM"] * c["BN"] * depth, 4.0 * (c["BM"] + c["BN"]) * depth
    waves = programs / gpu.sms
    tail, hidden = ceil(waves) / waves, 1.0
    parts: dict[str, float] = {}
    if code is not None:
        hidden = min(1.0, code.report.occupancy / (HIDING * LIMITS[target].warps))
        pipes, _ = product_pipes(code.instructions, c, warps, NUMERICS, gpu, target)
        parts |= {pipe: tiles * tail / (peak(gpu, NUMERICS) * share) for pipe, share in pipes.items()}
    parts |= {
        "arithmetic": tiles * tail / (peak(gpu, NUMERICS) * hidden), "memory": moved / (gpu.bandwidth * hidden),
        "cache": read * tail / (gpu.cache_bandwidth * hidden), "launch": gpu.launch,
    }  # fmt: skip
    limit = max(parts, key=lambda name: parts[name])
    return Estimate(parts[limit] + (0.0 if limit == "launch" else gpu.launch), limit, tiles, moved, {})
