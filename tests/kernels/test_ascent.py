"""The ascent by kernels against the ascent by torch: the same proposals, turn by turn, and nothing in a turn that the host waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from polytriton.ir.net import Net
from polytriton.kernels.ascent import serves
from polytriton.kernels.build import check, compile_all
from polytriton.kernels.choose import GPU
from polytriton.kernels.device import ascent as library
from polytriton.passes.pipeline import compile_net
from polytriton.runtime import ascent_lines
from polytriton.runtime.ascent import Ascent, AscentRows, Found
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu import ascent_kernels
from polytriton.runtime.gpu.ascent_kernels import AscentKernels
from polytriton.runtime.layers import from_physical
from polytriton.runtime.results import Stopped
from tests.kernels.branches import Layers, dense_branches, projections
from tests.kernels.grids import Launched, Traffic, crooked, meetings, outside
from tests.kernels.small_kernels import compiles
from tests.kernels.steps import turn_kernels
from tests.kernels.test_every_operator import pools
from tests.oracle.nets import toy_dense, toy_residual

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
RATE, ROWS = 0.2, 5


def odd_layers() -> Net:
    """A grouped convolution with dilation, a strided one that leaves cells unread, leaky slopes, and an image as rows' target."""
    n = Layers(3, "odd_layers")
    x = n.b.input((2, 7, 6))
    w = n.b.constant(n.he(4, 1, 2, 3))
    y = n.b.add("conv", (x,), w=w, b=n.b.constant(n.he(4)), k=(2, 3), g=2, d=(2, 1), p=(1, 0, 0, 1))
    y = n.b.add("relu", (y,), slope=0.125)
    return n.b.build(n.b.add("relu", (n.conv(y, 3, 1, 2),), slope=0.0))


NETS: dict[str, Callable[[], Net]] = {
    "dense": toy_dense, "residual": toy_residual, "branches": dense_branches, "projections": projections, "odd": odd_layers,
}  # fmt: skip


def engine(net: Net) -> Engine:
    return Engine(compile_net(net), semantics="real", dtype="float32", kernels="interpret")


def given(e: Engine, seed: int, signed: bool, rows: int = ROWS, spread: float = 0.3) -> AscentRows:
    """Rows over the output, each over a box of its own; `signed`: some decided neurons have signs, and rows bring all that they may."""
    rng, net = np.random.default_rng(seed), e.net
    middle = torch.from_numpy(rng.standard_normal((rows, net.input.size)))
    lo, hi = middle - spread * torch.rand(middle.shape, generator=torch.Generator().manual_seed(seed)), middle + spread
    boxes, nodes = e.plain().interval(lo, hi), net.by_name
    relus = {}
    for n in net:
        if n.op == "relu":
            source = nodes[n.inputs[0]]
            relus[n.name] = tuple(from_physical(v[source.name], source.shape) for v in (boxes.lo, boxes.hi))
    start = torch.from_numpy(rng.standard_normal((rows, *nodes[net.output].shape)))
    goal = torch.full((rows,), torch.inf, dtype=torch.float64)
    operands = relus | {nodes[relu].inputs[0]: box for relu, box in relus.items()}  # by the ReLU's name too, for comparisons
    made = AscentRows(net.output, start, lo, hi, operands, constant=goal)  # type: ignore[arg-type]
    if not signed:
        return made
    sides = {}
    for relu, (a, b) in relus.items():
        shown = np.where(a >= 0, 1.0, np.where(b <= 0, -1.0, 0.0))
        sides[relu] = torch.from_numpy(np.where(rng.random(a.shape) < 0.6, shown, 0.0))

    def drawn(low: float) -> dict[str, Tensor]:
        return {r: torch.from_numpy(rng.uniform(low, 1, a.shape)) for r, (a, _) in relus.items()}

    beside = torch.from_numpy(rng.standard_normal((rows, net.input.size)))
    return replace(made, over_input=beside, signs=sides, slopes=drawn(0.2), multipliers=drawn(-0.2))


def near(ours: dict[str, Found], theirs: dict[str, Found], rows: AscentRows, tolerance: float) -> float:
    """Compared where anybody reads them; returns how many slopes have moved from DeepPoly's."""
    moved = 0.0
    assert ours.keys() == theirs.keys() and ours
    for relu, want in theirs.items():
        got, (lo, hi) = ours[relu], rows.operands[relu]
        assert torch.allclose(got.slopes, want.slopes, atol=tolerance) and torch.allclose(got.loss, want.loss, rtol=1e-4, atol=1e-5)
        assert (got.multipliers is None) == (want.multipliers is None)
        if got.multipliers is not None and want.multipliers is not None:
            assert torch.allclose(got.multipliers, want.multipliers, atol=tolerance)
            assert (got.multipliers * rows.signs[relu] >= 0).all()
        moved += float(((got.slopes - (hi > -lo).float()).abs()[(lo < 0) & (hi > 0)] > 0.1).sum())
    return moved


@pytest.mark.thinned(3)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_proposals_are_those_of_torch(name: str, signed: bool) -> None:
    e = engine(NETS[name]())
    assert e.kernels is not None and serves(e.net)
    rows, ours, theirs = given(e, 4, signed), AscentKernels(e.kernels), Ascent(e.net, e.device)
    found, wanted = ours.improve(rows, 4, RATE), theirs.improve(rows, 4, RATE)
    assert near(found, wanted, rows, 1e-3) > 0
    assert ours.corners is not None and theirs.corners is not None and torch.equal(ours.corners, theirs.corners.float())


def test_a_node_within_is_a_target_too() -> None:
    e = engine(projections())
    assert e.kernels is not None
    rows = given(e, 1, False)
    node = e.net.node(next(n.name for n in e.net if n.op == "add"))
    start = torch.randn(ROWS, *node.shape, generator=torch.Generator().manual_seed(0))
    rows = replace(rows, target=node.name, start=start)
    near(AscentKernels(e.kernels).improve(rows, 2, RATE), Ascent(e.net, e.device).improve(rows, 2, RATE), rows, 1e-3)


def test_once_every_row_has_reached_its_goal_nothing_moves() -> None:
    """As torch stops there, where the host looks after every turn."""
    e = engine(toy_residual())
    assert e.kernels is not None
    rows, ours = given(e, 2, False), AscentKernels(e.kernels)
    first = {r: f.slopes for r, f in ours.improve(rows, 0, RATE).items()}
    easy = replace(rows, constant=torch.full((ROWS,), -1e6, dtype=torch.float64))
    assert all(torch.equal(f.slopes, first[r]) for r, f in ours.improve(easy, 3, RATE).items())
    hard = torch.full((ROWS,), -1e6, dtype=torch.float64)
    hard[3] = 1e6
    found = ours.improve(replace(rows, constant=hard), 3, RATE)
    near(found, Ascent(e.net, e.device).improve(replace(rows, constant=hard), 3, RATE), rows, 1e-3)
    assert any(not torch.equal(f.slopes, first[r]) for r, f in found.items())


def test_no_number_is_never_better() -> None:
    """A row whose bound is none keeps what it began with, and leaves the others alone."""
    e = engine(toy_residual())
    assert e.kernels is not None
    rows, ours = given(e, 2, False), AscentKernels(e.kernels)
    bad = replace(rows, start=rows.start.clone())
    bad.start[1] = float("nan")
    found, plain = ours.improve(bad, 3, RATE), ours.improve(rows, 3, RATE)
    for relu, f in found.items():
        lo, hi = rows.operands[relu]
        others = [r for r in range(ROWS) if r != 1]
        assert torch.equal(f.slopes[others], plain[relu].slopes[others])
        unmoved = torch.where((lo < 0) & (hi > 0), (hi > -lo).float(), (lo >= 0).float())[1]
        assert torch.equal(f.slopes[1], unmoved)


def test_free_numbers_stay_where_they_mean_something() -> None:
    """A rate that throws every number across its range."""
    e = engine(odd_layers())
    assert e.kernels is not None
    rows = given(e, 5, True)
    low = {n.name: n.number("slope") for n in e.net if n.op == "relu"}
    found = AscentKernels(e.kernels).improve(rows, 2, 50.0)
    reached = set()
    for relu, f in found.items():
        assert f.multipliers is not None and (f.slopes >= low[relu]).all() and (f.slopes <= 1).all()
        assert (f.multipliers * rows.signs[relu] >= 0).all()
        reached |= set(f.slopes.unique().tolist())
    assert {0.125, 1.0} <= reached


class Asked(TorchDispatchMode):
    """What is asked of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(call._schema.name)
        return call(*args, **(kwargs or {}))


def test_a_turn_is_launches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor operation is asked for between the first launch and the last: there is nothing to wait for. The clock is looked at."""
    e = engine(toy_dense())
    assert e.kernels is not None
    looks, launches, turns = [0], [0], 3
    mode = Asked()

    def look() -> None:
        looks[0] += 1
        if looks[0] == 1:
            mode.__enter__()
        if looks[0] > turns:
            mode.__exit__(None, None, None)
            raise Stopped

    ours = AscentKernels(e.kernels, look)
    monkeypatch.setattr(ours.backend, "call", lambda launch, count, tensor: lambda: launches.__setitem__(0, launches[0] + 1))
    rows = given(e, 0, True)
    with pytest.raises(Stopped):
        ours.improve(rows, 9, RATE)
    assert launches[0] == turns * len(ours.turn(rows).steps) and mode.names == []


def test_what_has_no_kernel_goes_through_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not serves(compile_net(pools()).net)
    e = engine(toy_dense())
    assert e.kernels is not None
    ours, rows = AscentKernels(e.kernels), given(e, 0, False)
    ours.by_kernels = False
    monkeypatch.setattr(ascent_kernels, "TurnLowering", None)
    for relu, f in ours.improve(rows, 2, RATE).items():
        assert torch.equal(f.slopes, Ascent(e.net, e.device).improve(rows, 2, RATE)[relu].slopes)


@pytest.mark.parametrize("name", ["branches", "odd"])
def test_no_program_meets_another(name: str) -> None:
    """With a GPU's tiles, so that launches have many programs."""
    found: list[str] = []
    programs: dict[str, int] = {}

    def seen(one: Launched) -> None:
        programs[one.name] = max(programs.get(one.name, 0), one.programs)
        found.extend(meetings(one, frozenset()) + outside(one) + crooked(one))

    e = engine(NETS[name]())
    assert e.kernels is not None
    e.kernels.sizes = replace(GPU, emulate=True, values=128, pairs=16, columns=16)
    with Traffic(seen).watched():
        AscentKernels(e.kernels).improve(given(e, 0, True, rows=9), 1, RATE)
    assert not found, "\n".join(sorted(set(found))[:12])
    assert programs.keys() >= {"relax_own", "follow_own", "take_corners", "judge_rows", "climb_rows", "end_turn"}
    assert programs["end_turn"] == 1 and sum(n > 1 for n in programs.values()) >= 6, programs


def test_numbers_are_those_of_torch() -> None:
    assert library.MEAN.value == 1 - ascent_lines.FIRST and library.SQUARE.value == 1 - ascent_lines.SECOND
    assert library.TINY.value == ascent_lines.TINY and library.RATES.value == ascent_kernels.NUMBERS


# ---- machine code ---------------------------------------------------------------------------------------------------


def blocks() -> Net:
    """The layers of a small residual network: strided, of 8 and 16 channels, with both kinds of shortcut."""
    n = Layers(0, "blocks")
    x = n.relu(n.conv(n.b.input((3, 32, 32)), 8, 3, 2, 1))
    y = n.relu(n.b.add("add", (n.conv(n.relu(n.conv(x, 16, 3, 2, 1)), 16, 3, 1, 1), n.conv(x, 16, 1, 2))))
    return n.b.build(n.linear(n.relu(n.linear(y, 100)), 10))


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_kernels_compile_and_spill_nothing(target: str, tmp_path: Path) -> None:
    kernels = [*turn_kernels(blocks(), True), *(k for k in turn_kernels(blocks(), False) if k.family in ("climb_rows", "follow_own"))]
    kernels = list({(k.family, k.parameters, dict(k.constants).get("LOW")): k for k in kernels}.values())
    assert {k.instruction for k in kernels if k.family in ("forward_dense", "forward_conv", "dense_step", "conv_step")} == {"FFMA"}
    check([m.report for m in compile_all(kernels, target, cache=tmp_path, jobs=1)], kernels)
