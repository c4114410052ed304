"""Tables by kernels: against the tensor form, against exact numbers, and whose numbers lie in them when batches take turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.net import Net
from polytriton.kernels import cell_kernels
from polytriton.kernels.device.tables import rounded_up
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu.binding import Part
from polytriton.runtime.gpu.kernel_arguments import batch_table
from polytriton.runtime.gpu.places import NOBODY
from polytriton.runtime.gpu.player import Player
from polytriton.runtime.relax import round_up
from polytriton.runtime.results import Forms, Identity, Results, Rows
from polytriton.runtime.tables import Tables
from tests.kernels.steps import guarded, intact, run
from tests.kernels.test_boxes import SLOPES, UNSHRUNK, WHERE, blocks_of, some_box
from tests.kernels.test_device_runs import boxes_of, small_net
from tests.kernels.test_every_operator import Layers, concats, gathers, leaky, pools, scales

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
INF = float("inf")
TYPES = {"float64": np.float64, "float32": np.float32}


# ---- rounding upward ------------------------------------------------------------------------------------------------


@triton.jit
def round_all(x_ptr: Any, out_ptr: Any, T: tl.constexpr, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, rounded_up(tl.load(x_ptr + at), T))


def special() -> np.ndarray:
    """Zeros, float32's subnormals and border cases, ties between its neighbours, and what no float32 is."""
    f = np.finfo(np.float32)
    edges = np.array(
        [1.0, 1.5, 2.0**-149, 2.0**-126, float(f.smallest_normal - f.smallest_subnormal), float(f.max), 1 / 3, 65504.0, 2.0**100]
    )
    ulp = np.spacing(edges.astype(np.float32)).astype(np.float64)
    near = [edges, edges + ulp / 2, edges + ulp / 4, edges - ulp / 2, edges + ulp, *(np.nextafter(edges, d) for d in (-INF, INF))]
    near += [np.array([0.0, 2.0**-150, 2.0**-151, 5e-324, 1e-310, 2.0**128, 1e300, 1.7e308, INF])]
    x = np.concatenate(near)
    return np.concatenate(
        [x, -x, [np.nan], np.random.default_rng(0).standard_normal(64) * 2.0 ** np.random.default_rng(1).integers(-160, 130, 64)]
    )


def test_rounding_upward_is_to_the_next_number() -> None:
    x = special()
    n = 1 << (len(x) - 1).bit_length()
    x = np.concatenate([x, np.ones(n - len(x))])
    for dtype, name in ((np.float32, tl.float32), (np.float64, tl.float64)):
        out = guarded(np.zeros(n, dtype))
        round_all[(1,)](guarded(x), out, T=name, BLOCK=n)
        with np.errstate(all="ignore"):
            nearest = x.astype(dtype)
            want = np.where(nearest.astype(np.float64) < x, np.nextafter(nearest, dtype(INF)), nearest)
        assert intact(out) and np.array_equal(out.numpy(), want, equal_nan=True)
        assert np.array_equal(out.numpy(), round_up(torch.from_numpy(x), out.dtype).numpy(), equal_nan=True)
        finite = np.isfinite(x)
        assert (out.numpy()[finite].astype(np.float64) >= x[finite]).all()
    below = -np.nextafter(np.float32(INF), np.float32(0))  # nothing finite is above -1e300 but float32's least
    assert rounded(np.array([-1e300]))[0] == below and rounded(np.array([1e300]))[0] == INF


def rounded(x: np.ndarray) -> np.ndarray:
    out = guarded(np.zeros(len(x), np.float32))
    round_all[(1,)](guarded(x), out, T=tl.float32, BLOCK=len(x))
    return out.numpy()


# ---- lines of a ReLU ------------------------------------------------------------------------------------------------

FRAME = {"LINE": 6, "START": 2 * 10 + 2, "PLANE": 10 * 8, "PITCH": 10}  # five lines of six cells, margins of two


def relu_lines(slope: float, dtype: str, lo: np.ndarray, hi: np.ndarray, own: np.ndarray | None, block: int) -> dict[str, np.ndarray]:
    """A launch over images of 30 cells; what it leaves in the margins must be what lay there."""
    exact = slope in (0.0, 1.0)
    constants = {
        "SLOPE": slope,
        "LOWER": not exact,
        "DEPLOYED": own is not None,
        "T": ARITHMETICS[dtype].type,
        **FRAME,
        "SIZE": 30,
        "BLOCK": block,
    }
    batch = len(lo)
    table = np.full((batch, 8, 10), 77.0, TYPES[dtype])
    values = {"box_lo": lo, "box_hi": hi, "own_error": np.zeros(0) if own is None else own}
    made = run(
        "relu_tables",
        constants,
        dtype,
        (batch * -(-30 // block), 1),
        {**values, **{k: table.copy() for k in ("below", "above", "lower", "cut")}},
    )
    found = {}
    for k in ("below", "above", "lower", "cut"):
        image = made[k][:, 2:7, 2:8].copy()
        made[k][:, 2:7, 2:8] = 77.0
        assert (made[k] == 77.0).all(), f"{k}: a margin was written"
        found[k] = image.reshape(batch, 30) if k != "lower" or not exact else np.zeros((batch, 30))
    return found


@given(
    st.sampled_from(SLOPES),
    st.sampled_from(tuple(TYPES)),
    st.sampled_from(WHERE),
    st.booleans(),
    st.sampled_from((16, 32)),
    st.integers(0, 2**32 - 1),
)
@example(0.01, "float32", "ordinary", False, 32, 1)
@settings(max_examples=40, phases=UNSHRUNK)
def test_stored_lines_enclose_the_function(slope: float, dtype: str, kind: str, deployed: bool, block: int, seed: int) -> None:
    """At the break points, in rationals. Where a box has no end, the line stays on its side of the other end and of zero."""
    rng = np.random.default_rng(seed)
    lo, hi = some_box(rng, (2, 30), kind)
    lo, hi = (np.where(np.isfinite(v), v, none) for v, none in ((np.minimum(lo, hi), -INF), (np.maximum(lo, hi), INF)))
    own = np.abs(lo.clip(-1e30, 1e30) + 1) * 2.0**-20 if deployed and slope not in (0.0, 1.0) else None
    found = relu_lines(slope, dtype, lo, hi, own, block)
    for i, (a, b) in enumerate(zip(lo.ravel().tolist(), hi.ravel().tolist(), strict=True)):
        below, above, lower, cut = (float(found[k].ravel()[i]) for k in ("below", "above", "lower", "cut"))
        assert np.isfinite(below) and np.isfinite(above)
        off = Fraction(0) if own is None else Fraction(float(own.ravel()[i]))
        for y in [Fraction(v) for v in (a, b) if np.isfinite(v)] + ([Fraction(0)] if a < 0 < b else []):
            f = y if y >= 0 else Fraction(slope) * y
            assert np.isnan(cut) or cut == INF or Fraction(above) * y + Fraction(cut) >= f + off, (i, a, b)
            assert np.isnan(lower) or lower == -INF or Fraction(below) * y + Fraction(lower) <= f - off, (i, a, b)
        for end, f_slope in ((a, slope), (b, 1.0)):  # beyond an end at infinity the line must not fall behind
            if np.isinf(end):
                assert not np.isfinite(cut) or (above - f_slope) * end >= 0 or above == f_slope, (i, a, b)
                assert not np.isfinite(lower) or (below - f_slope) * end <= 0 or below == f_slope, (i, a, b)


@pytest.mark.parametrize("dtype", TYPES)
def test_lines_of_settled_neurons_are_the_function(dtype: str) -> None:
    lo = np.array([[0.0, 1e-30, -3.0, -1e300, -0.0, -INF] * 5])
    hi = np.array([[0.0, 2.0, 0.0, -1.0, 5.0, -1.0] * 5])
    for slope in SLOPES:
        found = relu_lines(slope, dtype, lo, hi, None, 32)
        on = lo[0] >= 0
        for k in ("below", "above"):
            assert (found[k][0][on] == 1).all() and (found[k][0][~on] == TYPES[dtype](slope)).all()
        if slope in (0.0, 1.0, 0.5, 1.5, -0.5):  # stored exactly
            assert (found["cut"] == 0).all() and (found["lower"] == 0).all()


# ---- all tables of a network ----------------------------------------------------------------------------------------

NETS: dict[str, Callable[[], Net]] = {
    "small": small_net, "leaky": leaky, "pools": pools, "scales": scales, "concats": concats, "gathers": gathers,
}  # fmt: skip


def deep() -> Net:
    """Rows of whole images: a frame without a margin; a wide layer, whose K differs most from its live outputs."""
    n = Layers("deep", 9)
    n.linear(40)
    n.add("relu")
    n.linear(3)
    n.add("relu", slope=0.25)
    return n.net()


NETS["deep"] = deep


def ready(
    net: Net, dtype: str, semantics: str, batch: int, candidates: str = "all", interval: bool = False
) -> tuple[Engine, Tables, list[tuple[str, str]]]:
    """A network's tables over boxes of the interval pass, and every table that its launches read."""
    compiled = compile_net(net, candidates=candidates)
    engine = Engine(compiled, dtype=dtype, kernels="interpret", semantics=semantics, numerics="interval" if interval else "folded")
    rng = np.random.default_rng(batch)
    x = torch.from_numpy(rng.standard_normal((batch, compiled.net.input.size)))
    tables = engine.tables(engine.interval(x - 0.3, x + 0.3))
    assert engine.kernels is not None
    read = {s for p in engine.plan for step in engine.kernels.ready(p).launches.steps for s in step.bind}
    asked = sorted({(k, n) for k, _, n in (s.partition(":") for s in read) if k in cell_kernels.TABLES and n in engine.nodes})
    return engine, tables, asked


def made(engine: Engine, tables: Tables, asked: list[tuple[str, str]]) -> dict[tuple[str, str], tuple[Tensor, Tensor]]:
    """The tables as a batch's launches leave them between guards, zero before; and the tensor form's."""
    assert engine.kernels is not None
    places, want = engine.kernels.player._places(tables.boxes.batch), {at: batch_table(tables, *at) for at in asked}
    places.serial = NOBODY
    for (kind, name), table in want.items():
        places.tensors[f"{kind}:{name}"] = guarded(np.zeros(table.numel(), TYPES[str(table.dtype).removeprefix("torch.")]))
    engine.kernels._forget()
    assert engine.kernels.player.bring(tables, engine.plan.query) is places
    found = {(kind, name): places.tensors[f"{kind}:{name}"] for kind, name in asked}
    assert all(intact(t) for t in found.values())
    return {at: (table.view(want[at].shape), want[at]) for at, table in found.items()}


def widest(engine: Engine, tables: Tables, kind: str, name: str) -> Tensor:
    """The tensor form's t with K = the layer's fan, the most terms that an entry can have."""
    kit = engine.kit
    full = Tables(kit, replace(tables.boxes, tables=None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(kit.forward), "readers", lambda self, layer, live: torch.full((1, 1, 1, 1), float(layer.fan), dtype=torch.float64)
        )
        return batch_table(full, kind, name)


def compare(engine: Engine, tables: Tables, asked: list[tuple[str, str]]) -> set[str]:
    """Every table that was asked for; the kinds that were."""
    for (kind, name), (table, want) in made(engine, tables, asked).items():
        assert table.dtype == want.dtype
        if kind in ("below", "above", "lower", "cut", "lo", "hi"):
            assert torch.equal(table, want), (kind, name)
            continue
        least, most = want.double(), widest(engine, tables, kind, name).double()
        step = 2.0**-23 if table.dtype == torch.float32 else 0.0  # one number up
        assert (table.double() >= least * (1 - 1e-12) - (step * least)).all(), (kind, name)
        assert (table.double() <= most * (1 + 2.0**-30 + step) + 1e-300).all(), (kind, name)
        assert ((table == 0) == (want == 0)).all(), (kind, name)  # zeros of the margin above all
    return {k for k, _ in asked}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_tables_are_those_of_the_tensor_form(name: str, dtype: str) -> None:
    semantics = {"small": "tf32", "leaky": "float32", "pools": "real", "scales": "float32", "concats": "bf16", "gathers": "real"}.get(
        name, "float32"
    )
    engine, tables, asked = ready(NETS[name](), dtype, semantics, 2, "input" if name == "small" and dtype == "float32" else "all")
    kinds = compare(engine, tables, asked)
    assert {"t", "first", "floor", "below", "above", "cut", "lo", "hi"} <= kinds
    if name == "leaky":
        assert "lower" in kinds
    if name != "deep":
        assert any(any(engine.kit.frames[n].halo) for _, n in asked)


def test_tables_of_several_parts_an_image() -> None:
    with blocks_of(16):
        engine, tables, asked = ready(leaky(), "float32", "float32", 3)
        assert max(cell_kernels.parts(n, True) for n in engine.net) > 2
        compare(engine, tables, [(k, n) for k, n in asked if engine.nodes[n].size < 60])


def test_interval_arithmetic_reads_the_same_lines() -> None:
    engine, tables, asked = ready(leaky(), "float32", "float32", 2, interval=True)
    kinds = compare(engine, tables, asked)
    assert kinds and kinds <= set(cell_kernels.TABLES)


def test_a_kernel_of_every_kind_was_compared() -> None:
    kinds: set[str] = set()
    for name in ("leaky", "pools"):
        kinds |= {k for k, _ in ready(NETS[name](), "float32", "float32", 1)[2]}
    assert kinds == set(cell_kernels.TABLES)


# ---- batches that take turns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("numerics", ["folded", pytest.param("interval", marks=pytest.mark.slow)])
def test_batches_that_are_asked_in_turn_keep_their_own_tables(numerics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of one batch lie where another's lay: who was asked in between, by which program, must not matter."""
    compiled = compile_net(small_net(), "all")
    engine = Engine(compiled, dtype="float64", kernels="interpret", numerics=numerics)
    backend = engine.kernels
    assert backend is not None

    def asked(boxes: Any, by: Engine = engine) -> Tensor:
        return by.query(boxes, Forms(torch.arange(4 * boxes.batch) // 4, torch.eye(4, dtype=torch.float64).repeat(boxes.batch, 1))).best

    first = engine.refine(*boxes_of(1, 1))
    answers = {1: asked(first)}
    others = {seed: engine.refine(*boxes_of(seed, batch)) for seed, batch in ((2, 1), (3, 2))}
    assert torch.equal(asked(first), answers[1])  # other programs have filled the tables since
    for seed, boxes in others.items():
        answers[seed] = asked(boxes, Engine(compiled, dtype="float64", kernels="interpret", numerics=numerics))
    every = {1: first, **others}
    assert not torch.equal(answers[1], answers[2])
    brought: list[str] = []
    go = Player._go
    monkeypatch.setattr(Player, "_go", lambda self, run, *given: brought.append(run.section) or go(self, run, *given))
    for seed in (2, 1, 3, 2):
        assert torch.equal(asked(every[seed]), answers[seed])
    some = len(brought)
    assert torch.equal(asked(every[2]), answers[2]) and len(brought) == some <= 4  # nobody else was asked at that size: they are there
    held = dict(backend._kept)
    backend._drop()
    for seed in (3, 1, 2):
        assert torch.equal(asked(every[seed]), answers[seed])
    assert held.keys() & backend._kept.keys() and not any(t is backend._kept.get(key) for key, t in held.items())


def test_tables_that_were_broken_off_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_net(small_net(), "all")
    engine = Engine(compiled, dtype="float64", kernels="interpret")
    forms = Forms(torch.zeros(4, dtype=torch.int64), torch.eye(4, dtype=torch.float64))
    one, two = (engine.refine(*boxes_of(seed, 1)) for seed in (1, 2))
    want = engine.query(one, forms).best
    assert engine.kernels is not None
    other = engine.query(two, forms).best

    def broken(part: Part) -> None:
        for call in part.calls[: len(part.calls) // 2]:
            call()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.kernels, "part", broken)
        with pytest.raises(KeyboardInterrupt):
            engine.query(one, forms)
    assert not torch.equal(other, want)
    assert torch.equal(engine.query(two, forms).best, other) and torch.equal(engine.query(one, forms).best, want)


def test_rows_of_a_program_that_was_not_asked_yet() -> None:
    """The interval pass has not made all of its tables, where the host makes boxes; nor has that of another batch, after a refinement of
    this size.
    """
    compiled = compile_net(small_net(), "all")
    fresh, used = (Engine(compiled, semantics="float16", dtype="float64", kernels="interpret") for _ in range(2))
    used.refine(*boxes_of(4, 1))
    answers, read = [], list[dict[str, Tensor]]()
    for engine in (fresh, used):
        tables, results = engine.tables(engine.interval(*boxes_of(1, 1))), Results.begin(4, engine.device)
        assert engine.kernels is not None
        held = engine.kernels.player.places[1].held
        at = torch.arange(4)
        program = next(iter(engine.programs.values()))
        start = Identity(torch.ones(4, dtype=torch.float64), at % engine.nodes[program.target].shape[0])
        engine.kernels.run(tables, program, Rows.begin(at * 0, at, at * 0, at * 0), start, results)
        answers.append(results.best)
        places, reads = engine.kernels.player.places[1], engine.kernels.ready(program).reads
        assert reads <= places.held and not reads <= held
        read.append({symbol: places.tensor(symbol) for symbol in reads})
    assert torch.equal(*answers) and bool(torch.isfinite(answers[0]).all())
    assert all(torch.equal(read[0][symbol], read[1][symbol]) for symbol in read[0])
