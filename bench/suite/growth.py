"""How time, memory and operations grow with one size of a network, the others held: points of curves on logarithmic axes.

rows      forms asked of one image, bounds of the layers being known
depth     3x3 convolutions of 8 channels on 16x16 images
channels  three 3x3 convolutions on 12x12 images
image     the image's side, three 3x3 convolutions of 8 channels
batch     images of 12x12 at a time, three 3x3 convolutions of 8 channels; seconds are of all of them
width     three dense layers as wide

Random weights: how many neurons are undecided differs from point to point, `rows` and `gflop` say by how much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from bench.core.measure import Case, PartJob, measure_runs
from bench.core.table import END_TO_END, Row
from bench.nets.grow import NetGrower
from bench.report.fit import power, tail
from polytriton.api import Verifier
from polytriton.ir.net import Net
from polytriton.prove.decider import Try
from polytriton.runtime.results import Forms
from polytriton.runtime.settings import pin_settings

COLUMNS = ("network", "axis", "value", *END_TO_END[1:])
SHOWN = ("axis", "value", "seconds", "spread", "rows", "gflop", "peak_mb", "note")
SIZES: dict[str, tuple[int, ...]] = {
    "rows": (1, 4, 16, 64, 256, 1024, 4096),
    "depth": (1, 2, 3, 4, 6, 8, 12, 16),
    "channels": (4, 8, 16, 24, 32, 48, 64),
    "image": (8, 12, 16, 24, 32, 48, 64),
    "batch": (1, 2, 4, 8, 16, 32, 64),
    "width": (64, 128, 256, 384, 512, 768, 1024),
}
EPS = 0.02
SAME = (1, 1, 1, 1)  # padding


def groups(quick: bool) -> list[str]:
    return list(SIZES)


def convolutions(side: int, channels: int, depth: int) -> Net:
    net = NetGrower("conv", 3, side, side)
    for _ in range(depth):
        net = net.conv(channels, 3, pad=SAME).relu()
    return net.net()


def dense(width: int) -> Net:
    net = NetGrower("dense", 256)
    for _ in range(3):
        net = net.dense(width).relu()
    return net.net()


def network(axis: str, value: int) -> Net:
    if axis == "width":
        return dense(value)
    size = {"side": 12, "channels": 8, "depth": 3}
    if axis == "depth":
        size |= {"side": 16, "depth": value}
    elif axis == "channels":
        size["channels"] = value
    elif axis == "image":
        size["side"] = value
    return convolutions(**size)


def work(axis: str, job: PartJob) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    small = Verifier.from_net(network(axis, SIZES[axis][0]), **job.options())
    Case(small, np.zeros((1, small.inputs)), EPS).worst(1)  # what a process pays once
    for value in SIZES[axis][: 3 if job.quick else None]:
        net = Verifier.from_net(network(axis, value), **job.options())
        about: Row = {"axis": axis, "value": value, "eps": EPS, "weights": "synthetic", "engine": job.engine}
        case = Case(net, rng.random((value if axis == "batch" else 1, net.inputs)), EPS)
        if axis == "rows":
            row = ask(net, case, value, job)
        else:
            row = measure_runs(net, lambda case=case: case.worst(len(case.x)), 1, job) | {"batch": len(case.x)}  # type: ignore[misc]
        yield {"network": net.net.name, **about, **row}
        if row["first"] > job.budget:
            return


def ask(net: Verifier, case: Case, rows: int, job: PartJob) -> Row:
    """Random forms of one image's output, walked back once its layers are bounded."""
    decider = net._decider
    with decider.turn, pin_settings():
        engine = decider.engine(Try(decider.first_dtype(), net.options.candidates))
        boxes = engine.refine(torch.from_numpy(case.lo), torch.from_numpy(case.hi))
        over = torch.from_numpy(np.random.default_rng(rows).standard_normal((rows, net.outputs))).to(decider.device)
        forms = Forms(torch.zeros(rows, dtype=torch.int64, device=decider.device), over)
        return measure_runs(net, lambda: float(engine.query(boxes, forms).best.min()), 1, job) | {"batch": 1}


def summarise(rows: Sequence[Row]) -> None:
    print(f"\n{'axis':>9}  {'time grows as':>24}  {'larger half':>24}  {'operations':>12}")
    for axis in SIZES:
        some = [r for r in rows if r.get("axis") == axis]
        times = [(r["value"], r["seconds"]) for r in some]
        every, late, ops = power(times), power(tail(times)), power([(r["value"], r["gflop"]) for r in some])
        if every and late and ops:
            cells = (f"value^{p.exponent:.2f} +- {p.error:.2f}" for p in (every, late))
            print(f"{axis:>9}  " + "  ".join(f"{c:>24}" for c in cells) + f"  {ops.exponent:>12.2f}", flush=True)
