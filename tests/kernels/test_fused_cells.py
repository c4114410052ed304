"""What a box's kernel makes beside the box is what the parts' own kernels make of it, bit for bit; in the interpreter, between guards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Constants
from polytriton.ir.net import Builder, Net
from polytriton.ir.plan import Plan
from polytriton.kernels import cell_kernels
from polytriton.kernels.cell_kernels import CellNotes, ReluParts
from polytriton.kernels.sequence import Frames
from tests.kernels.steps import run
from tests.kernels.test_boxes import SLOPES, UNSHRUNK, WHERE, blocks_of, elementwise, some_box
from tests.kernels.test_forward import one_layer

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
SHAPE, SIZE, BATCH, BLOCK = (3, 2, 5), 30, 2, 8  # four parts an image, the last one ragged
PARTS = -(-SIZE // BLOCK)
TYPES = {"float64": np.float64, "float32": np.float32}
FACTORS = np.array([1e-7, 3e-8, 1e-6, 2.0**-126, 2.0**-125, 3.0])
Values = dict[str, np.ndarray]
seeds = st.integers(0, 2**32 - 1)


def launch(function: str, constants: Constants, dtype: str, values: Values) -> Values:
    return run(function, constants, dtype, (BATCH * PARTS, 1), values)


def same(got: np.ndarray, want: np.ndarray) -> bool:
    """The same numbers and signs of zeros, and something was written."""
    assert not (got == 77).all()
    return np.array_equal(got, want, equal_nan=True) and bool((np.isnan(got) | (np.signbit(got) == np.signbit(want))).all())


def lines(*names: str) -> Values:
    return {name: np.full((BATCH, PARTS), 77.0) for name in names}


def cells_of(*names: str) -> Values:
    return {name: np.full((BATCH, SIZE), 77.0) for name in names}


def relu_of_layer(slope: float, affine: bool) -> Net:
    """A ReLU over a convolution, or over the input."""
    if not affine:
        return elementwise("relu", SHAPE, slope)
    b = Builder("layer")
    w, bias = b.constant(np.ones((3, 3, 1, 1))), b.constant(np.ones(3))
    y = b.add("conv", (b.input(SHAPE),), w=w, b=bias, k=(1, 1), s=(1, 1), p=(0, 0, 0, 0), d=(1, 1), g=1)
    return b.build(b.add("relu", (y,), slope=slope))


@given(st.sampled_from(SLOPES), st.booleans(), st.sampled_from(tuple(TYPES)), st.sampled_from(WHERE), st.booleans(), seeds)
@settings(max_examples=40, phases=UNSHRUNK)
def test_what_a_relu_makes_at_once(slope: float, affine: bool, dtype: str, kind: str, real: bool, seed: int) -> None:
    """Its box, sizes and report of the operand, lines, its box in a table and the operand's charge; tables have margins of their own."""
    net, rng, numerics = relu_of_layer(slope, affine), np.random.default_rng(seed), ARITHMETICS[dtype]
    node = net.node(net.output)
    y, operations = net.node(node.inputs[0]), 0 if real else 1
    plan = Plan(net.name, (), halos={node.name: (1, 0, 2, 1), y.name: (0, 2, 1, 1)})
    plan.__dict__["pending"] = frozenset({y.name})  # a program's steps say so otherwise
    frames = Frames(net, plan)
    y_lo, y_hi = some_box(rng, (BATCH, SIZE), kind)
    with blocks_of(BLOCK):
        every = ReluParts(True, True, True, True, True)
        fused, alone = (cell_kernels.relu_box(frames, node, numerics, real, operations, made, True) for made in (every, ReluParts()))
        noted = cell_kernels.measured_box(y, CellNotes(), True)
        told = cell_kernels.cells(y, True)
        (_, in_lines), (_, in_box) = (cell_kernels.table(frames, node, kind, numerics, True, real=real) for kind in ("below", "lo"))
        _, charge = cell_kernels.table(frames, y, "t", numerics, True, real=real)
    assert fused["PENDING"] and fused["START"] != fused["T_START"] and fused["PLANE"] != fused["T_PLANE"]
    table, of_table = (np.full((BATCH, int(fused[plane] or 0)), 77.0, TYPES[dtype]) for plane in ("PLANE", "T_PLANE"))
    operand = {"y_lo": y_lo, "y_hi": y_hi}
    of_y = {name: rng.random((BATCH, SIZE)) for name in ("magnitude", "own_error")}
    of_y |= {"babs": rng.random(3), "operand": rng.random((BATCH, PARTS)), "numbers": FACTORS}
    box = {**cells_of("box_lo", "box_hi", "error"), **lines("biggest", "total")}
    tables = {name: table.copy() for name in ("below", "above", "lower", "cut", "lo", "hi")} | {"t": of_table}
    more = {**lines("y_biggest", "y_total"), "told": np.full((BATCH * PARTS, 2), 77.0)}
    got = launch("relu_boxes", fused, dtype, {**operand, **of_y, **box, **tables, **more})
    want = launch("relu_boxes", alone, dtype, {**operand, **of_y, **box, **tables, **more})
    assert all((want[name] == 77).all() for name in (*tables, *more))
    for name in ("box_lo", "box_hi", "biggest", "total", *(["error"] if slope not in (0.0, 1.0) else [])):
        assert same(got[name], want[name]), name
    of = {"box_lo": y_lo, "box_hi": y_hi}
    sizes = launch("measure_boxes", noted, "float64", {**of, **lines("biggest", "total")})
    assert same(got["y_biggest"], sizes["biggest"]) and same(got["y_total"], sizes["total"])
    assert same(got["told"], launch("tell_boxes", told, "float64", {**of, "told": more["told"]})["told"])
    made = launch("relu_tables", in_lines, dtype, {**of, "own_error": want["error"], **tables})
    for name in ("below", "above", "cut", *(["lower"] if in_lines["LOWER"] else [])):
        assert same(got[name], made[name]), name
    held = launch("box_tables", in_box, dtype, {"box_lo": want["box_lo"], "box_hi": want["box_hi"], **tables})
    assert same(got["lo"], held["lo"]) and same(got["hi"], held["hi"])
    assert same(got["t"], launch("charge_table", charge, dtype, {**of, **of_y, **tables})["t"])


@pytest.mark.parametrize("part", ["measure", "told", "lines", "ends", "charge"])
def test_a_relu_makes_what_it_is_asked_for(part: str) -> None:
    """And reads nothing for the rest: kernels have no argument for it."""
    net = relu_of_layer(0.25, True)
    frames = Frames(net, Plan(net.name, ()))
    constants = cell_kernels.relu_box(
        frames, net.node(net.output), ARITHMETICS["float32"], False, 1, ReluParts(**{part: True}), True
    )
    written = {"measure": ("y_biggest", "y_total"), "told": ("told",), "lines": ("below", "above", "lower", "cut"), "ends": ("lo", "hi"),
               "charge": ("t",)}  # fmt: skip
    names = [name for each in written.values() for name in each]
    size = 4096
    wide = (*written["measure"], *written["told"])
    values = {name: np.full((BATCH, size), 77.0, np.float64 if name in wide else np.float32) for name in names}
    values |= {"y_lo": -np.ones((BATCH, SIZE)), "y_hi": np.ones((BATCH, SIZE)), "magnitude": np.ones((BATCH, SIZE))}
    values |= {"own_error": np.ones((BATCH, SIZE)), "babs": np.ones(3), "operand": np.ones((BATCH, 1)), "numbers": FACTORS}
    values |= {**cells_of("box_lo", "box_hi", "error"), **lines("biggest", "total")}
    found = run("relu_boxes", constants, "float32", (BATCH, 1), values)
    assert {name for name in names if (found[name] != 77).any()} == set(written[part])


@given(st.sampled_from(("linear", "conv")), st.booleans(), st.booleans(), st.sampled_from(tuple(TYPES)), st.sampled_from(WHERE), seeds)
@settings(max_examples=25, phases=UNSHRUNK)
def test_what_an_affine_layer_notes(op: str, real: bool, tight: bool, dtype: str, kind: str, seed: int) -> None:
    """Sizes, its report, how many neurons are undecided, and what rows of its neurons are charged."""
    net, rng = one_layer(op, (3, 2, 5), 3 if op == "conv" else SIZE, (1, 1)), np.random.default_rng(seed)
    node, numerics = net.node(net.output), ARITHMETICS[dtype]
    centre, spread = some_box(rng, (BATCH, SIZE), kind)
    values = {"centre": centre, "spread": np.abs(spread), "magnitude": rng.random((BATCH, SIZE)), "babs": rng.random(SIZE)}
    values |= {"terms": np.full((BATCH, 10), 3.0), "operand": np.ones((BATCH, PARTS)), "summed": rng.random((BATCH, PARTS))}
    values |= {"numbers": np.array([1e-9, 1, 0, 2.0**-23, 1, 1e-15, 2.0**-126, 9, 3, 0, 0, np.inf, 0]), "own_numbers": FACTORS}
    values |= {**cells_of("box_lo", "box_hi", "error", "first"), **lines("biggest", "total")}
    values |= {"told": np.full((BATCH * PARTS, 2), 77.0), "blocks": np.full(BATCH * PARTS, 77)}
    with blocks_of(BLOCK):
        given_ = node, net.input, real, numerics
        fused = cell_kernels.affine_box(*given_, CellNotes(True, True, tight), True, True)
        alone = cell_kernels.affine_box(*given_, CellNotes(), False, True)
        counts = cell_kernels.open_cells(node, tight, True)
        charge = cell_kernels.charge(
            Frames(net, Plan(net.name, ())), node, numerics, True, first=True, deployed=cell_kernels.is_deployed(node, real)
        )
        told = cell_kernels.cells(node, True)
    got, want = (launch("affine_boxes", constants, "float64", values) for constants in (fused, alone))
    assert all((want[name] == 77).all() for name in ("first", "told", "blocks"))
    for name in ("box_lo", "box_hi", "biggest", "total", *([] if real else ["error"])):
        assert same(got[name], want[name]), name
    of = {"box_lo": want["box_lo"], "box_hi": want["box_hi"]}
    assert same(got["told"], launch("tell_boxes", told, "float64", {**of, "told": values["told"]})["told"])
    assert same(got["blocks"], launch("count_open", counts, "float64", {**of, "blocks": values["blocks"]})["blocks"])
    of_rows = {"own_error": want["error"], "magnitude": values["magnitude"], "babs": values["babs"], "operand": values["summed"]}
    charged = launch("charge_table", charge, "float64", {**of, **of_rows, "numbers": FACTORS, "t": values["first"]})["t"]
    assert same(got["first"], charged)


@given(st.booleans(), st.sampled_from(WHERE), st.sampled_from(WHERE), seeds)
@settings(max_examples=15, phases=UNSHRUNK)
def test_what_a_sum_and_a_measured_box_note(tight: bool, kind: str, other: str, seed: int) -> None:
    net, rng = elementwise("add", SHAPE), np.random.default_rng(seed)
    node, noted = net.node(net.output), CellNotes(True, True, tight)
    values = {f"{side}_{end}": v for side, k in zip("ab", (kind, other), strict=True) for end, v in
              zip(("lo", "hi"), some_box(rng, (BATCH, SIZE), k), strict=True)}  # fmt: skip
    values |= {**cells_of("box_lo", "box_hi", "error"), **lines("biggest", "total")}
    values |= {"told": np.full((BATCH * PARTS, 2), 77.0), "blocks": np.full(BATCH * PARTS, 77)}
    with blocks_of(BLOCK):
        summed, measured = cell_kernels.sum_box(node, 1, noted, True), cell_kernels.measured_box(node, noted, True)
        counts, told = cell_kernels.open_cells(node, tight, True), cell_kernels.cells(node, True)
    made = launch("sum_boxes", summed, "float64", values)
    of = {"box_lo": made["box_lo"], "box_hi": made["box_hi"]}
    again = launch("measure_boxes", measured, "float64", {**values, **of})
    want = launch("tell_boxes", told, "float64", {**of, "told": values["told"]})
    want |= {"blocks": launch("count_open", counts, "float64", {**of, "blocks": values["blocks"]})["blocks"]}
    for got in (made, again):
        assert same(got["told"], want["told"]) and same(got["blocks"], want["blocks"])
        assert same(got["biggest"], made["biggest"]) and same(got["total"], made["total"])


@given(st.booleans(), st.booleans(), seeds)
@settings(max_examples=10, phases=UNSHRUNK)
def test_floors_of_two_nodes(affine: bool, other: bool, seed: int) -> None:
    net, rng = relu_of_layer(0.0, True), np.random.default_rng(seed)
    with blocks_of(BLOCK):
        nodes = [(net.node(net.output), affine), (net.nodes[1], other)]
        both = cell_kernels.floors(net, nodes, True)
        each = [cell_kernels.floors(net, [one], True) for one in nodes]
    names = ("total", "operand", "numbers")
    given_ = [{name: rng.random((BATCH, PARTS)) if name != "numbers" else rng.random(6) for name in names} for _ in nodes]
    empty = np.full(BATCH, 77.0)
    beside = {f"other_{name}": v for name, v in given_[1].items()}
    got = run("floors", both, "float64", (BATCH, 1), {**given_[0], **beside, "floor": empty, "other_floor": empty.copy()})
    for name, constants, values in zip(("floor", "other_floor"), each, given_, strict=True):
        want = run("floors", constants, "float64", (BATCH, 1), {**values, "floor": empty.copy()})["floor"]
        assert same(got[name], want)
        exact = values["numbers"][4] * (values["total"].sum(1) + values["numbers"][5] * values["operand"].sum(1) * constants["AFFINE"])
        assert (want >= exact * (1 - 1e-15)).all() and np.allclose(want, exact, rtol=1e-9)
