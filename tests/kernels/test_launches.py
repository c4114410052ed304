"""Launches and their memory: buffers alive together never meet, what is read was written, no row is left out."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.arithmetic import ARITHMETICS
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.launches import Launch, Launches
from polytriton.ir.net import Net
from polytriton.kernels.arena import Arena, lay_out
from polytriton.kernels.catalogue import CATALOGUE
from polytriton.kernels.choose import GPU, INTERPRETER, Sizes, power
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.launches import Frames, Lowering
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.gpu.kernel_arguments import LAYER
from tests.kernels.accesses import READ, WRITTEN, accesses
from tests.oracle.nets import random_net, toy_conv, toy_dense, toy_residual

EXAMPLES = Path(__file__).parents[2] / "examples"
SEEDS = range(40)
TABLES = {"lo", "hi", "below", "above", "lower", "cut", "t", "floor", "underflow", "bias", "first", "winner", "most", "largest", *LAYER}


def lowered(net: Net, numerics: str = "float64", sizes: Sizes = INTERPRETER) -> tuple[Emitter, list[Launches]]:
    compiled, emitter = compile_net(net), Emitter()
    frames = Frames(compiled.net, compiled.plan)
    return emitter, [Lowering(emitter, frames, ARITHMETICS[numerics], p, sizes).run() for p in compiled.plan]


@cache
def some(name: str) -> list[Launches]:
    """The programs of a network: an example's, a toy's or a random one's."""
    if name.startswith("digits"):
        net = load_onnx(EXAMPLES / f"{name}.onnx").net
    else:
        net = {"dense": toy_dense, "conv": toy_conv, "residual": toy_residual}[name]() if not name.isdigit() else random_net(int(name))
    return lowered(net)[1]


NAMES = ("dense", "conv", "residual", "digits_conv_normal", "digits_resnet_normal", *map(str, SEEDS))


# ---- arena ----------------------------------------------------------------------------------------------------------


def check_arena(launches: Launches, arena: Arena) -> None:
    sizes, lives = launches.buffers, launches.lives
    for a in range(len(sizes)):
        assert arena.offsets[a] >= 0 and arena.offsets[a] + sizes[a] <= arena.size
        for b in range(a):
            together = lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1]
            apart = arena.offsets[a] + sizes[a] <= arena.offsets[b] or arena.offsets[b] + sizes[b] <= arena.offsets[a]
            assert apart or not together, (a, b)
    most = max((sum(s for s, (x, y) in zip(sizes, lives, strict=True) if x <= k <= y) for k in range(len(launches.steps) + 1)), default=0)
    assert most <= arena.size <= sum(sizes)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 12), st.integers(0, 12)), max_size=12))
@limits(max_examples=200)
def test_arena_of_random_lives(buffers: list[tuple[int, int, int]]) -> None:
    launches = Launches(some("dense")[0].program, [], [b[0] for b in buffers], [sorted(b[1:]) for b in buffers])
    check_arena(launches, lay_out(launches))


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if k % 2 else pytest.mark.slow) for k, n in enumerate(NAMES)])
def test_arena_of_plans(name: str) -> None:
    for launches in some(name):
        check_arena(launches, lay_out(launches))


def test_arena_reuses_what_is_free() -> None:
    """Of a chain of equal buffers two are alive at a time."""
    chain = Launches(some("dense")[0].program, [], [10] * 6, [[k, k + 1] for k in range(6)])
    assert lay_out(chain).size == 20


# ---- order ----------------------------------------------------------------------------------------------------------


def touched(step: Launch) -> tuple[list[str], list[str]]:
    """Symbols that a step reads and symbols that it writes."""
    how, pairs = accesses(step.kernel), list(zip(step.kernel.parameters, step.bind, strict=True))
    read, written = ([s for p, s in pairs if kind in how[p]] for kind in (READ, WRITTEN))
    return read, written


def check_order(launches: Launches, given: Collection[str] = ()) -> None:
    """Every symbol a step reads is given from outside or was written by a step before; buffers are touched in their lives only."""
    known = {f"{n}:0" for n in ("image", "row_h", "row_w", "constant", "error", "index", "count", "sign", "channel")}
    known |= {"group", "best", "raw_best", "done", "limit", *given} | ({"buf:0"} if launches.program.kind == "query" else set())
    for k, step in enumerate(launches.steps):
        read, written = touched(step)
        assert read and written
        for symbol in read:
            assert symbol in known or symbol.split(":")[0] in TABLES, (k, symbol, launches.program.target)
        known |= set(written)
        for symbol in (*read, *written):
            if symbol.startswith("buf:"):
                begin, end = launches.lives[int(symbol[4:])]
                assert begin <= k <= end, (symbol, k)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_was_written_before(name: str) -> None:
    for launches in some(name):
        check_order(launches)


def test_random_networks_reach_every_kernel() -> None:
    steps = [s for name in NAMES for launches in some(name) for s in launches.steps]
    names = {s.function for s in steps}
    modules = ("forward", "boxes", "relus", "tables", "neurons", "forms", "ascent")
    between = {name for name, row in CATALOGUE.items() if row.module in modules}
    others = {"merge_scalars", "sum_parts"}  # lanes' and tuned tiles'
    assert names == {name for name in CATALOGUE if not name.startswith("interval_")} - between - others


# ---- tiles and grids ------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 200),
    st.integers(1, 64),
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.sampled_from(tuple(ARITHMETICS)),
    st.integers(1, 5000),
)
@limits(max_examples=200)
def test_every_row_has_a_program_for_its_scalars(cells: int, times: int, k: int, n: int, numerics: str, capacity: int) -> None:
    """Of a convolution with `times` phases of `cells` cells: scalars' programs take BS rows each and are as many as the others."""
    for sizes in (GPU, INTERPRETER):
        tiles = sizes.product(ARITHMETICS[numerics], cells * times, k, n)
        c = tiles.constants
        programs = -(-capacity * cells // c["BM"]) * times
        assert programs * c["BS"] >= capacity and c["BS"] % c["BR"] == 0 and c["BM"] % c["BR"] == 0
        dense = sizes.product(ARITHMETICS[numerics], 0, k, n)
        assert "BS" not in dense.constants and dense.block == dense.constants["BM"] and dense.constants["BM"] % dense.constants["BR"] == 0
        assert all(v > 0 and v & (v - 1) == 0 for v in (*c.values(), *dense.constants.values()))  # tl.arange wants powers of two
        assert ARITHMETICS[numerics].inner in (0, max(c["BK"], ARITHMETICS[numerics].inner))  # blocks are no longer than what is charged


@given(st.integers(1, 10**6))
@limits(max_examples=50)
def test_row_tiles_are_powers_of_two(size: int) -> None:
    for sizes in (GPU, INTERPRETER):
        tiles = sizes.rows(size)
        assert tiles.block == tiles.constants["BR"] and all(v & (v - 1) == 0 for v in tiles.constants.values())
        assert power(size, 1, 1 << 20) == 1 << int(np.ceil(np.log2(size)))


@pytest.mark.parametrize("sizes", [GPU, INTERPRETER], ids=["gpu", "interpreter"])
@pytest.mark.parametrize("capacity", [64, 192, 4096])
def test_grids_cover_all_rows(capacity: int, sizes: Sizes) -> None:
    _, programs = lowered(toy_conv(), "float32", sizes)
    for launches in programs:
        for step in launches.steps:
            programs_, columns = step.grid(capacity)
            assert programs_ * step.block >= capacity * step.cells and columns >= 1
