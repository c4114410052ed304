"""The interval pass cell by cell: against the tensor form, against exact numbers, and the sizes that are noted of every box."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.net import Builder, Net, Node
from polytriton.ir.plan import Plan, extent
from polytriton.kernels import cell_kernels
from polytriton.kernels.sequence import Frames
from polytriton.passes.pipeline import compile_net
from polytriton.rounding import GROW
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.layers import from_physical, to_physical
from polytriton.runtime.soundness import SEMANTICS
from polytriton.runtime.trace import Trace
from tests.kernels.nodes import NodeRun, Sizes
from tests.kernels.steps import run
from tests.kernels.test_device_runs import boxes_of, small_net
from tests.kernels.test_forward import KINDS, Case, box, exact_range, near, one_layer

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
CPU, INF = torch.device("cpu"), float("inf")
UNSHRUNK = (Phase.explicit, Phase.generate)  # shrinking takes minutes in the interpreter, and cases are small already
SLOPES = (0.0, 1.0, 0.01, 0.5, 1.5, -0.5)
SHAPES: tuple[tuple[int, ...], ...] = ((1,), (37,), (3, 2, 5), (17, 3, 1))
WHERE = (*KINDS, "limits")  # magnitudes about 2^60, where overflow is no longer ruled out
Pair = tuple[np.ndarray, np.ndarray]


@contextmanager
def blocks_of(block: int) -> Iterator[None]:
    """So few cells a program, as on a GPU: an image has several parts, the last one ragged."""
    plain = cell_kernels.cells
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell_kernels, "cells", lambda node, emulate: {**plain(node, emulate), "BLOCK": block})
        yield


def some_box(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Pair:
    if kind != "limits":
        return box(rng, shape, kind)
    x, r = (v * 2.0 ** rng.integers(57, 63, shape) for v in (rng.standard_normal(shape), rng.random(shape)))
    return x - r, x + r


def elementwise(op: str, shape: tuple[int, ...], slope: float = 0.25) -> Net:
    b = Builder("cells")
    x = b.input(shape)
    y = b.add("relu", (x,), slope=slope)
    return b.build(y if op == "relu" else b.add(op, (x, y)))


def given_boxes(net: Net, node: Node, drawn: list[Pair]) -> Boxes:
    """What the node reads, in the order of its operands; nothing need be what the network would make of its input."""
    made = [[to_physical(torch.from_numpy(v), net.node(i).shape) for v in pair] for i, pair in zip(node.inputs, drawn, strict=True)]
    return Boxes(*({i: pair[end] for i, pair in zip(node.inputs, made, strict=True)} for end in (0, 1)))


def both(net: Net, node: Node, drawn: list[Pair], semantics: str, block: int) -> tuple[Boxes, Boxes, Sizes | None]:
    """By kernels; and by tensor operations, but for an affine layer's sums, which both read from the same kernels. And the noted sizes."""
    ours, theirs = (given_boxes(net, node, drawn) for _ in range(2))
    run = NodeRun(net, semantics)
    with blocks_of(block):
        run.transfer(node, ours)
        noted = run.sizes(node.name) if f"total:{node.name}" in run.places.tensors else None
        run.forward.transfer(node, theirs, run.sums(node, theirs) if node.op in ("linear", "conv") else None)
    return ours, theirs, noted


def check_sizes(boxes: Boxes, name: str, parts: int, noted: Sizes | None) -> None:
    """At least the exact maximum and sum of every image, and within GROW of them; what is no number is infinite."""
    assert noted is not None
    biggest, total = noted
    assert biggest.shape == total.shape == (boxes.batch, parts)
    for most, sums, lo, hi in zip(biggest, total, boxes.lo[name].flatten(1), boxes.hi[name].flatten(1), strict=True):
        size = torch.maximum(lo.abs(), hi.abs()).nan_to_num(nan=INF, posinf=INF)
        assert float(most.max()) == float(size.max())
        exact = INF if torch.isinf(size).any() else sum(map(Fraction, size.tolist()))
        if exact > 2**1023:
            assert float(sums.sum()) > 2.0**1022
        else:
            noted = sum(map(Fraction, sums.tolist()))
            assert exact / Fraction(GROW) <= noted <= exact * Fraction(GROW)


def parts_of(net: Net, name: str, block: int) -> int:
    return -(-net.node(name).size // block)


# ---- against the tensor form ----------------------------------------------------------------------------------------


@given(
    st.sampled_from(("relu", "add", "sub")), st.sampled_from(SLOPES), st.sampled_from(SHAPES), st.sampled_from((1, 2)),
    st.sampled_from(WHERE), st.sampled_from(WHERE), st.sampled_from(tuple(SEMANTICS)), st.sampled_from((16, 32)), st.integers(0, 2**32 - 1),
)  # fmt: skip
@example("relu", 0.0, (37,), 1, "holes", "holes", "real", 16, 1)
@settings(max_examples=50, phases=UNSHRUNK)
def test_elementwise_boxes_are_those_of_the_tensor_form(
    op: str, slope: float, shape: tuple[int, ...], batch: int, kind: str, other: str, semantics: str, block: int, seed: int
) -> None:
    """Bit for bit: the operations are the same ones."""
    net, rng = elementwise(op, shape, slope), np.random.default_rng(seed)
    node = net.node(net.output)
    drawn = [some_box(rng, (batch, *shape), k) for k in (kind, other)[: len(node.inputs)]]
    got, want, noted = both(net, node, drawn, semantics, block)
    for a, b in ((got.lo, want.lo), (got.hi, want.hi)):
        assert torch.equal(a[node.name], b[node.name]) and a[node.name].dtype == torch.float64
    assert got.error.keys() == want.error.keys()
    for name, error in want.error.items():
        assert torch.equal(got.error[name], error)
    check_sizes(got, node.name, parts_of(net, node.name, block), noted)


def merged(seed: int, op: str, shape: tuple[int, ...], outputs: int, **more: int) -> Net:
    """An affine layer with the marks that merging leaves."""
    if op == "linear":
        return one_layer("linear", shape, outputs, seed=seed, cancelled=seed % 2 == 0, **more)
    return one_layer("conv", shape, outputs, (2, 3), 2, seed, seed % 2 == 0, s=(1, 2), p=(1, 1, 0, 1), **more)


@given(
    st.sampled_from(("linear", "conv")), st.integers(0, 2**32 - 1), st.sampled_from((1, 2)), st.sampled_from(KINDS),
    st.sampled_from(tuple(SEMANTICS)), st.sampled_from((8, 32)),
    st.sampled_from(({}, {"summands": 5}, {"ops": 3}, {"ops": 7, "products": 2, "slack": 9, "summands": 40}, {"slack": 40})),
)  # fmt: skip
@settings(max_examples=25, phases=UNSHRUNK)
def test_affine_boxes_are_those_of_the_tensor_form(
    op: str, seed: int, batch: int, kind: str, semantics: str, block: int, marks: dict[str, int]
) -> None:
    """From the same sums. The tensor form's x_max is a little larger, which reaches e through what underflow costs alone."""
    shape, outputs = ((4, 3, 4), 4) if op == "conv" else ((11,), 9)
    net = merged(seed, op, shape, outputs, **marks)
    node = net.node(net.output)
    drawn = [some_box(np.random.default_rng(seed), (batch, *shape), kind)]
    got, want, noted = both(net, node, drawn, semantics, block)
    name, real = node.name, SEMANTICS[semantics].real
    e = want.error[name]
    if not real:
        assert torch.equal(torch.isfinite(got.error[name]), torch.isfinite(e)) and near(got.error[name], e, 2.0**-33 * e)
        if kind != "subnormal":  # the operand's magnitudes outweigh what underflow costs
            assert near(got.error[name], e, 1e-12 * e)
    assert (name in got.error) == (not real)
    assert torch.equal(got.magnitude[name].nan_to_num(nan=INF), want.magnitude[name].nan_to_num(nan=INF))
    for a, b in ((got.lo[name], want.lo[name]), (got.hi[name], want.hi[name])):
        assert not torch.isnan(a).any() and torch.equal(torch.isfinite(a), torch.isfinite(b))
        assert torch.equal(a[~torch.isfinite(b)], b[~torch.isfinite(b)])
        finite = torch.isfinite(b)
        assert near(a[finite], b[finite], (2.0**-33 * e + 1e-12 * b.abs())[finite])
        assert not real or torch.equal(a, b)
    if semantics == "float16":
        assert torch.equal(got.lo[name], want.lo[name]) and noted is None  # flushed operands are the tensor form's to count
    else:
        check_sizes(got, name, parts_of(net, name, block), noted)


@pytest.mark.parametrize(("semantics", "bounded"), [("real", True), ("float32", True), ("tf32", True), ("bf16", False)])
@pytest.mark.parametrize("products", [1, 2])
def test_weights_that_a_conversion_cannot_hold_leave_no_bound(semantics: str, bounded: bool, products: int) -> None:
    """2^130 is no bfloat16 for sure, though the layer's values are small."""
    b = Builder("heavy")
    w = np.array([[2.0**130, 1.0]])
    net = b.build(b.add("linear", (b.input((2,)),), w=b.constant(w), b=b.constant(np.zeros(1)), products=products))
    got, want, _ = both(net, net.nodes[1], [(np.array([[2.0**-110, 0.0]]), np.array([[2.0**-100, 1.0]]))], semantics, 4)
    for boxes in (got, want):
        assert bool(torch.isfinite(boxes.hi[net.output]).all()) == bounded


@pytest.mark.parametrize("x_max", [2.0**59, 2.0**61, 1e200, INF, np.nan])
def test_an_operand_that_may_overflow_leaves_no_bound(x_max: float) -> None:
    """Its weight is zero, so that no sum shows it: a deployed product of it may be NaN all the same."""
    b = Builder("zero")
    net = b.build(b.add("linear", (b.input((70,)),), w=b.constant(np.zeros((3, 70))), b=b.constant(np.zeros(3))))
    lo, hi = np.zeros((2, 70)), np.ones((2, 70))
    hi[1, 69] = x_max  # in the last of the operand's parts
    got, want, _ = both(net, net.nodes[1], [(lo, hi)], "float32", 16)
    for boxes in (got, want):
        assert torch.isfinite(boxes.hi[net.output][0]).all()
        assert bool(torch.isfinite(boxes.hi[net.output][1]).all()) == (x_max < 2.0**60)


def test_no_image_makes_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, none = Engine(compile_net(small_net(), "all"), kernels="interpret"), torch.zeros(0, 75, dtype=torch.float64)
    monkeypatch.setattr(ours.kernels, "call", None)
    for boxes in (ours.interval(none, none), ours.refine(none, none)):
        assert boxes.lo.keys() == boxes.hi.keys() == ours.nodes.keys()
        assert all(v.shape == (0, *extent(ours.nodes[name])) for name, v in (*boxes.lo.items(), *boxes.hi.items(), *boxes.error.items()))


# ---- tensors between guards -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["measure_boxes", "relu", "add", "sub", "affine_boxes"])
@pytest.mark.parametrize("block", [8, 64])
def test_nothing_is_read_or_written_past_an_image(op: str, block: int) -> None:
    """All tensors lie between NaNs; the last part of every image reaches past its cells."""
    batch, shape, rng = 3, (3, 2, 5), np.random.default_rng(block)
    net = one_layer("conv", shape, 3, (1, 1)) if op == "affine_boxes" else elementwise("relu" if op == "measure_boxes" else op, shape)
    node, size = net.node(net.output), 30
    flat = {f"{side}_{end}": v for side in "ab" for end, v in zip(("lo", "hi"), some_box(rng, (batch, size), "ordinary"), strict=True)}
    none = np.full((batch, size), np.nan)
    values = {**flat, "box_lo": none, "box_hi": none.copy(), "error": none.copy()}
    with blocks_of(block):
        parts = cell_kernels.parts(node, True)
        if op == "measure_boxes":
            constants = cell_kernels.measured_box(node, cell_kernels.CellNotes(), True)
            values |= {"box_lo": flat["a_lo"], "box_hi": flat["a_hi"]}
        elif op == "affine_boxes":
            constants = cell_kernels.affine_box(node, net.input, False, ARITHMETICS["float64"], cell_kernels.CellNotes(), False, True)
            some = {k: rng.random((batch, size)) for k in ("centre", "spread", "magnitude")}
            values |= {**some, "terms": np.full((batch, 10), 3.0), "babs": np.ones(3), "operand": np.ones((batch, parts))}
            values["numbers"] = np.array([1e-9, 1, 0, 2.0**-23, 1, 1e-15, 2.0**-126, 9, 3, 0, 0, INF, 0])
        else:
            frames, parts_made = Frames(net, Plan(net.name, ())), cell_kernels.ReluParts()
            given_ = frames, node, ARITHMETICS["float64"], False, 1, parts_made, True
            constants = cell_kernels.relu_box(*given_) if op == "relu" else cell_kernels.sum_box(node, 1, cell_kernels.CellNotes(), True)
            values |= {"y_lo": flat["a_lo"], "y_hi": flat["a_hi"]}
            op = "relu_boxes" if op == "relu" else "sum_boxes"
    values |= {"biggest": np.full((batch, parts), np.nan), "total": np.full((batch, parts), np.nan)}
    found = run(op, constants, "float64", (batch * parts, 1), values)
    written = ("biggest", "total") + (("box_lo", "box_hi", "error") if op != "measure_boxes" else ())
    for name in written:
        assert np.isfinite(found[name]).all(), name
    lo, hi = (torch.from_numpy(found[k].reshape(batch, *extent(node))) for k in ("box_lo", "box_hi"))
    noted = torch.from_numpy(found["biggest"]), torch.from_numpy(found["total"])
    check_sizes(Boxes({"x": lo}, {"x": hi}), "x", parts, noted)


@given(st.integers(1, 3), st.sampled_from(WHERE), st.sampled_from((8, 64)), st.integers(0, 2**32 - 1))
@settings(max_examples=25, phases=UNSHRUNK)
def test_what_is_told_of_boxes(batch: int, kind: str, block: int, seed: int) -> None:
    """Widths, infinite where a cell has no bound, and undecided neurons, part by part; tensors lie between NaNs."""
    lo, hi = some_box(np.random.default_rng(seed), (batch, 30), kind)
    with blocks_of(block):
        constants, parts = cell_kernels.cells(elementwise("relu", (3, 2, 5)).input, True), -(-30 // block)
    given_ = {"box_lo": lo, "box_hi": hi, "told": np.full((batch * parts, 2), np.nan)}
    told = run("tell_boxes", constants, "float64", (batch * parts, 1), given_)["told"].reshape(batch, parts, 2)
    for image in range(batch):
        for part in range(parts):
            mine = slice(part * block, min(30, (part + 1) * block))
            width = float(np.sum(hi[image, mine] - lo[image, mine]))
            assert told[image, part, 0] == pytest.approx(width, rel=1e-14) or width != width
            assert told[image, part, 1] == np.count_nonzero((lo[image, mine] < 0) & (hi[image, mine] > 0))


# ---- against exact numbers ------------------------------------------------------------------------------------------


def inside(rng: np.random.Generator, lo: float, hi: float) -> list[Fraction]:
    """Points of a box: its ends, zero where it holds it, two between."""
    a, b = Fraction(lo), Fraction(hi)
    return [a, b, *([Fraction(0)] if a < 0 < b else []), *(a + (b - a) * Fraction(int(rng.integers(0, 1 << 30)), 1 << 30) for _ in "xy")]


FINITE = tuple(k for k in WHERE if k != "holes")


@given(st.sampled_from(SLOPES), st.sampled_from(FINITE), st.sampled_from(("real", "float32", "bf16")), st.integers(0, 2**32 - 1))
@example(0.01, "subnormal", "real", 0)
@settings(max_examples=25, phases=UNSHRUNK)
def test_what_a_relu_makes_of_a_point_lies_in_its_box(slope: float, kind: str, semantics: str, seed: int) -> None:
    """And so does a deployed product, which is off by 2^-23 of itself and the smallest normal number at most."""
    net, rng = elementwise("relu", (19,), slope), np.random.default_rng(seed)
    lo, hi = some_box(rng, (1, 19), kind)
    got, _, _ = both(net, net.nodes[1], [(lo, hi)], semantics, 16)
    deployed = semantics != "real" and slope not in (0.0, 1.0)
    for k, (a, b) in enumerate(zip(*(got.lo[net.output].flatten().tolist(), got.hi[net.output].flatten().tolist()), strict=True)):
        for y in inside(rng, lo[0, k], hi[0, k]):
            f = y if y >= 0 else Fraction(slope) * y
            off = abs(f) / 2**23 + Fraction(2.0**-126) if deployed else Fraction(0)
            assert (a == -INF or Fraction(a) <= f - off) and (b == INF or f + off <= Fraction(b)), (k, float(y))


@given(
    st.sampled_from(("add", "sub")),
    st.sampled_from(FINITE),
    st.sampled_from(FINITE),
    st.sampled_from(("real", "float32")),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=25, phases=UNSHRUNK)
def test_sums_of_points_lie_in_their_box(op: str, kind: str, other: str, semantics: str, seed: int) -> None:
    net, rng = elementwise(op, (19,)), np.random.default_rng(seed)
    drawn = [some_box(rng, (1, 19), k) for k in (kind, other)]
    got, _, _ = both(net, net.node(net.output), drawn, semantics, 16)
    ends = (got.lo[net.output].flatten().tolist(), got.hi[net.output].flatten().tolist())
    sign = 1 if op == "add" else -1
    for k, (a, b) in enumerate(zip(*ends, strict=True)):
        for x in inside(rng, drawn[0][0][0, k], drawn[0][1][0, k]):
            for y in inside(rng, drawn[1][0][0, k], drawn[1][1][0, k]):
                f = x + sign * y
                off = abs(f) / 2**23 + Fraction(2.0**-126) if semantics != "real" else Fraction(0)
                assert (a == -INF or Fraction(a) <= f - off) and (b == INF or f + off <= Fraction(b)), (k, float(x), float(y))


@given(
    st.sampled_from(("linear", "conv")),
    st.sampled_from(KINDS[:-1]),
    st.sampled_from(("real", "float32", "bf16")),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=15, phases=UNSHRUNK)
def test_affine_boxes_hold_the_exact_range_and_the_deployed_error(op: str, kind: str, semantics: str, seed: int) -> None:
    shape, outputs = ((4, 2, 3), 4) if op == "conv" else ((9,), 7)
    net = merged(seed, op, shape, outputs)
    lo, hi = some_box(np.random.default_rng(seed), (2, *shape), kind)
    got, _, _ = both(net, net.nodes[1], [(lo, hi)], semantics, 16)
    e = got.error.get(net.output, torch.zeros_like(got.lo[net.output]))
    least, most = exact_range(Case(net, lo, hi))

    def flat(v: Tensor) -> list[float]:
        return from_physical(v, net.nodes[1].shape).flatten().tolist()

    exact = [[Fraction(int(n)) / Fraction(2) ** d.exp for n in d.num.flatten()] for d in (least, most)]
    for low, high, off, a, b in zip(flat(got.lo[net.output]), flat(got.hi[net.output]), flat(e), *exact, strict=True):
        if off < INF:
            assert low == -INF or Fraction(low) <= a - Fraction(off)
            assert high == INF or b + Fraction(off) <= Fraction(high)
        else:
            assert low == -INF and high == INF


# ---- sizes ----------------------------------------------------------------------------------------------------------


@given(st.sampled_from(SHAPES), st.sampled_from((1, 2)), st.sampled_from(WHERE), st.sampled_from((16, 64)), st.integers(0, 2**32 - 1))
@settings(max_examples=25, phases=UNSHRUNK)
def test_sizes_are_measured_where_a_box_was_made_elsewhere(shape: tuple[int, ...], batch: int, kind: str, block: int, seed: int) -> None:
    net = elementwise("relu", shape)
    drawn = [some_box(np.random.default_rng(seed), (batch, *shape), kind)]
    boxes = given_boxes(net, net.nodes[1], drawn)
    with blocks_of(block):
        noted = NodeRun(net, "real").measure(net.input.name, boxes)
    check_sizes(boxes, net.input.name, parts_of(net, net.input.name, block), noted)


def widened() -> Net:
    """relu(x) - 1/2 of x in [-1, 1.1]: at least -1/2 by the interval pass, -3/2 by the ReLU's lower line, which is x."""
    b = Builder("widened")
    one = b.constant(np.eye(5, dtype=np.float32))
    y = b.add("linear", (b.input((5,)),), w=one, b=b.constant(np.zeros(5, np.float32)))
    z = b.add("linear", (b.add("relu", (y,)),), w=one, b=b.constant(np.full(5, -0.5, np.float32)))
    return b.build(b.add("linear", (b.add("relu", (z,)),), w=one, b=b.constant(np.zeros(5, np.float32))))


@pytest.mark.parametrize("candidates", ["all", "input"])
def test_sizes_are_measured_anew_where_back_substitution_changed_a_box(candidates: str) -> None:
    """A bound at the input alone may be wider than the interval pass's: the sizes of before would be too small."""
    compiled = compile_net(small_net(3) if candidates == "all" else widened(), candidates)
    engine = Engine(compiled, dtype="float64", kernels="interpret")
    ends = torch.full((2, 5), -1.0, dtype=torch.float64), torch.full((2, 5), 1.1, dtype=torch.float64)
    assert engine.kernels is not None
    places = {}
    for kind in ("refine", "interval"):
        boxes = getattr(engine, kind)(*(boxes_of(3, 2) if candidates == "all" else ends))
        found = engine.kernels.player.places[2].tensors
        held = {s for e in engine.kernels.script.sections[kind] for s in e.writes if s.startswith(("biggest:", "total:"))}
        places[kind] = {s: found[s].clone() for s in held}
        run = NodeRun(compiled.net, "float32")
        for name in engine.nodes:
            for end, measured in zip(("biggest", "total"), run.measure(name, boxes), strict=True):
                symbol = f"{end}:{name}"
                assert symbol not in held or torch.equal(places[kind][symbol], measured.flatten()), symbol
    changed, both_have = 0.0, places["refine"].keys() & places["interval"].keys()
    for symbol in both_have:
        less = (places["interval"][symbol] - places["refine"][symbol]).sum() * symbol.startswith("total:")
        changed += float(less if candidates == "all" else (-less).clamp(min=0))
    assert changed > (0.1 if candidates == "all" else 5.0)


def test_what_is_known_of_a_box_is_counted_anew() -> None:
    """Undecided neurons, where an image has several parts, and what is told: both were noted when the box was made."""
    compiled, ends, made = compile_net(small_net(3), "all"), boxes_of(3, 2), []
    better = Engine(compiled, dtype="float64").refine(*ends)
    for block in (8, 1 << 10):
        with blocks_of(block):
            engine = Engine(compiled, dtype="float64", kernels="interpret")
            name = next(iter(engine.programs))
            assert (cell_kernels.parts(engine.nodes[name], True) > 1) == (block == 8)
            boxes, trace = engine.interval(*ends), Trace(CPU)
            open_before = int(((boxes.lo[name] < 0) & (boxes.hi[name] > 0)).sum())
            half = torch.arange(better.lo[name].numel()).view_as(better.lo[name]) % 2 == 0
            known = torch.where(half, better.lo[name], boxes.lo[name]), torch.where(half, better.hi[name], boxes.hi[name])
            assert 0 < int(((known[0] < 0) & (known[1] > 0)).sum()) < open_before
            found = engine.refine(*ends, known={name: known}, trace=trace)
            made.append((found, [replace(s, seconds=0.0, width=(None, None)) for s in trace.read()]))
    (a, told), (b, want) = made
    assert all(torch.equal(a.lo[n], b.lo[n]) and torch.equal(a.hi[n], b.hi[n]) for n in a.lo) and told == want


def test_what_is_known_of_a_box_is_measured_anew() -> None:
    """Of the first layer nothing is bounded: it is as wide as its kernel has noted until somebody knows better."""
    compiled = compile_net(small_net(3), "all")
    engine, ends = Engine(compiled, dtype="float64", kernels="interpret"), boxes_of(3, 2)
    name = next(n for n in engine.bounded_nodes() if n not in engine.programs)
    half = tuple(v[name] / 2 for v in (engine.interval(*ends).lo, engine.interval(*ends).hi))
    found = engine.refine(*ends, known={name: (half[0], half[1])})
    assert engine.kernels is not None and (found.hi[name] - found.lo[name] < 0.6 * (half[1] - half[0]) * 2).all()
    for end, measured in zip(("biggest", "total"), NodeRun(compiled.net, "float32").measure(name, found), strict=True):
        assert torch.equal(engine.kernels.player.places[2].tensors[f"{end}:{name}"], measured.flatten())
