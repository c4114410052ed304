"""The ascent of slopes and multipliers by kernels: its proposals against torch's, and the time of a turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from bench.core.machine import found_data
from bench.core.table import Row, first_line
from bench.gpu.setting import Setting, is_lost
from bench.nets.grow import NETWORKS
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.net import Net
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.ascent import Ascent, AscentRows, Found
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu.ascent_kernels import NUMERICS, AscentKernels
from polytriton.runtime.layers import from_physical
from polytriton.runtime.settings import pin_settings

COLUMNS = SHOWN = ("network", "rows", "what", "fraction", "microseconds", "spread", "rows_s", "verdict", "note")
DATA = {"resnet_2b": Path("nets", "cifar10_resnet", "resnet_2b.onnx")}
FEW, MANY, DRY = 64, 4096, 5  # rows
TURNS, RATE = 20, 0.2
CLOSE = 1e-3  # what slopes may differ by: an ascent of float32 numbers, in another order of sums
SECONDS = 5.0  # of timing


def groups(dry: bool) -> list[str]:
    return ["tiny"] if dry else ["tiny", "residual", "digits_resnet_ibp", *DATA]


def network(group: str) -> Net | None:
    """None where it is one of the verification data, and there are none."""
    if group not in DATA:
        return NETWORKS[group]()
    data = found_data()
    return None if data is None else load_onnx(data / DATA[group]).net


def work(group: str, setting: Setting) -> Iterator[Row]:
    for part in (compare, times):
        try:
            for row in part(group, setting):
                yield {"network": group, **row, "verdict": "" if "fraction" not in row else "pass" if row["fraction"] <= 1 else "FAIL"}
        except Exception as error:
            if is_lost(error):
                raise
            yield {"network": group, "what": part.__name__, "fraction": float("inf"), "verdict": "FAIL", "note": first_line(error)}


def rows_of(engine: Engine, rows: int, signed: bool = False) -> AscentRows:
    """Rows over the output, each over a box of its own. `signed`: of neurons that its box has decided, some are told by their sign."""
    net, device, g = engine.net, engine.device, torch.Generator().manual_seed(rows)
    middle = torch.rand(rows, net.input.size, dtype=torch.float64, generator=g)
    lo, hi = (middle - 0.05).to(device), (middle + 0.05).to(device)
    boxes, operands, signs = engine.interval(lo, hi), dict[str, tuple[Tensor, Tensor]](), dict[str, Tensor]()
    for relu in (n for n in net if n.op == "relu"):
        source = net.node(relu.inputs[0])
        a, b = (from_physical(v[source.name], source.shape) for v in (boxes.lo, boxes.hi))
        operands[source.name], signs[relu.name] = (a, b), (a >= 0).double() - (b <= 0).double()
    start = torch.randn(rows, *net.node(net.output).shape, dtype=torch.float64, generator=g).to(device)
    never = torch.full((rows,), float("inf"), dtype=torch.float64, device=device)
    return AscentRows(net.output, start, lo, hi, operands, constant=never, signs=signs if signed else {})


def _engine(group: str, setting: Setting) -> Engine | None:
    net = network(group)
    if net is None:
        return None
    given = {"device": setting.device, "kernels": setting.kernels, "memory": setting.memory()}
    return Engine(compile_net(net), semantics="real", dtype=NUMERICS, **given)  # type: ignore[arg-type]


def compare(group: str, setting: Setting) -> Iterator[Row]:
    """Slopes, losses and corners of a few turns."""
    engine = _engine(group, setting)
    if engine is None or engine.kernels is None:
        yield {"what": "left out", "note": "a network of the verification data: set POLYTRITON_DATA"}
        return
    count = DRY if setting.dry else FEW
    for signed in (False, True):
        rows, ours, theirs = rows_of(engine, count, signed), AscentKernels(engine.kernels), Ascent(engine.net, engine.device)
        with pin_settings():
            found, want = ours.improve(rows, 4, RATE), theirs.improve(rows, 4, RATE)
        what = "signs" if signed else "slopes"
        yield {
            "rows": count,
            "what": what,
            "fraction": distance(found, want) / CLOSE,
            "note": "" if ours.by_kernels else "by torch: no kernels",
        }


def distance(ours: dict[str, Found], theirs: dict[str, Found]) -> float:
    """By how much proposals differ at most; infinite where one is no number."""
    pairs = [(ours[r].slopes, f.slopes) for r, f in theirs.items()]
    pairs += [(a, f.multipliers) for r, f in theirs.items() if f.multipliers is not None and (a := ours[r].multipliers) is not None]
    assert pairs and ours.keys() == theirs.keys()
    return max(float(torch.nan_to_num((a.double() - b.double()).abs(), nan=float("inf")).max()) for a, b in pairs)


def times(group: str, setting: Setting) -> Iterator[Row]:
    """Of a turn: what `TURNS` more take than none, which has all that is done once."""
    engine = _engine(group, setting)
    if engine is None or engine.kernels is None:
        return
    count = DRY if setting.dry else MANY
    rows, climbing, found, end = rows_of(engine, count), AscentKernels(engine.kernels), list[float](), time.time() + SECONDS
    turns = 1 if setting.dry else TURNS

    def time_steps(steps: int) -> float:
        setting.synchronize()
        begun = time.perf_counter()
        climbing.improve(rows, steps, RATE)
        setting.synchronize()
        return time.perf_counter() - begun

    with pin_settings():
        time_steps(1)  # compiles
        while setting.left > 0 and (len(found) < 3 or time.time() < end) and not (setting.dry and found):
            once = time_steps(0)
            found.append((time_steps(turns) - once) / turns)
    if found:
        seconds = statistics.median(found)
        spread = {
            "microseconds": 1e6 * seconds,
            "spread": 1e6 * (max(found) - min(found)),
            "rows_s": count / seconds if seconds > 0 else 0.0,
        }
        yield {"rows": count, "what": "turn", **spread, "note": f"{len(found)} runs of {turns} turns"}
