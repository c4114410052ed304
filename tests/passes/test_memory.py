"""Bytes, operations and margins of the Plan, held against what a walk really does."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits

from polytriton.ir.net import Net
from polytriton.ir.plan import Program, extent
from polytriton.passes import memory
from polytriton.passes.pipeline import compile_net, fold_net, make_plan
from polytriton.runtime import engine, walker
from polytriton.runtime.cpu import fused
from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.runtime.cpu.walk import Identity, Results, Walk
from tests.filecheck import filecheck
from tests.meter import Meter
from tests.oracle.nets import nets, random_box, random_net, toy_conv, toy_dense, toy_residual
from tests.passes.texts import plan_of, plan_text, read


def test_operations_and_bytes_of_a_small_network() -> None:
    """By hand: multiplications and additions of the products, and 8 bytes a coefficient held, made and worked with."""
    plan = plan_of(toy_dense())
    linear = next(s for s in plan.query.steps if s.op == "linear")
    assert linear.ops == 2 * 2 * 2 + 4 * 2
    assert plan.query.row_ops == sum(s.ops for s in plan.query.steps) > 0
    assert plan.query.row_bytes == max(s.bytes for s in plan.query.steps)
    conv = next(s for s in plan_of(toy_conv()).bound("conv_1").steps if s.op == "conv" and s.node == "conv")
    assert conv.ops == 2 * (3 * 3 * 6) * (3 * 3 * 3) + 4 * (3 * 3 * 6)  # a 3x3 window of 6 channels through 3x3 taps to 3 channels
    assert conv.bytes >= 8 * (3 * 3 * 6 + 5 * 5 * 3)


def test_margins_are_as_far_as_windows_reach() -> None:
    text = """
    net @h(%x: f32[1x20x30]) -> f32[1x10x30] {
      %h = conv %x {w=@w, b=@b, k=3x5, p=1,2,1,2} : f32[1x20x30]
      %r = relu %h : f32[1x20x30]
      %c = conv %r {w=@w2, b=@b2, k=5x2, s=2x1, p=1,0,2,1} : f32[1x10x30]
      %y = relu %c : f32[1x10x30]
      return %y
    }
    """
    # rows start at 2i-1 and end at 2*9-1+4 = 21, two past the image; then one more on both sides, and two columns
    filecheck(plan_text(read(text)), "CHECK: halo %r 1,0,2,1\nCHECK: halo %h 1,0,2,1\nCHECK: halo %x 2,2,3,3")


def reach(net: Net, program: Program) -> Iterator[tuple[str, int, int, int, int]]:
    """For every window of the program the cells off the image, row by row."""
    positions = (1, 1) if program.kind == "query" else extent(net.node(program.target))[:2]
    for step in program.steps:
        for name, w in zip(step.to, step.windows, strict=True):
            h, wd, _ = extent(net.node(name))
            for i in range(positions[0]):
                for j in range(positions[1]):
                    top, left = w.h.stride * i - w.h.offset, w.w.stride * j - w.w.offset
                    yield name, max(0, -top), max(0, -left), max(0, top + w.h.size - h), max(0, left + w.w.size - wd)


@given(nets())
@limits(max_examples=60)
def test_margins_are_exactly_what_rows_read(net: Net) -> None:
    folded = fold_net(net)
    plan = make_plan(folded)
    seen: dict[str, tuple[int, ...]] = {}
    for program in plan:
        for name, *sides in reach(folded, program):
            seen[name] = tuple(max(a, b) for a, b in zip(seen.get(name, (0, 0, 0, 0)), sides, strict=True))
    assert plan.halos == seen


# ---- bytes --------------------------------------------------------------------------------------------------


class Metered(Walk):
    """Walks twice: once to have the tables made, once to weigh what the rows hold."""

    seen: list[tuple[Program, int, int]]

    def run(self, start: torch.Tensor | Identity, extra: torch.Tensor | None = None) -> None:
        def again() -> tuple[Walk, torch.Tensor | Identity]:
            results = Results(self.results.best.clone(), self.results.raw.clone())  # no groups: rows never leave
            walk = Walk(self.backend, self.tables, self.program, copy.deepcopy(self.rows), results)
            return walk, start if isinstance(start, Identity) else start.clone()

        walk, first = again()
        walk.run(first, extra)
        walk, first = again()
        with Meter() as meter:
            walk.run(first, extra)
        held = 0 if isinstance(start, Identity) else start.numel() * start.element_size()  # the query's rows come from outside
        self.seen.append((self.program, len(self.rows), meter.peak + held))
        super().run(start, extra)


def weigh(net: Net, dtype: str, fast: bool, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Program, int, int]]:
    plain = TorchBackend.__init__

    def init(self: TorchBackend, *args: object, **kwargs: object) -> None:
        plain(self, *args, **kwargs)  # type: ignore[arg-type]
        self.fast = self.fast and fast

    with monkeypatch.context() as m:
        m.setattr(TorchBackend, "__init__", init)
        m.setattr(walker, "Walk", Metered)
        Metered.seen = []
        e = engine.Engine(compile_net(net, "input"), dtype=dtype, semantics="real", early=False)
        lo, hi = (torch.from_numpy(v).reshape(2, -1) for v in random_box(np.random.default_rng(0), net, "ordinary", 2))
        n = net.node(e.plan.query.target).size
        boxes = e.refine(lo, hi)
        e.query(boxes, engine.Forms(torch.arange(2).repeat_interleave(n), torch.eye(n, dtype=torch.float64).repeat(2, 1)))
        return Metered.seen


NETS = [toy_conv(), toy_residual(), *(random_net(s, limit=600, scale="normal") for s in range(25))]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_row_never_holds_more_than_the_plan_says(dtype: str, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the scalars of a row. The forms without Numba widen float32 rows to float64: half the budget is kept for that."""
    if fast and not fused.AVAILABLE:
        pytest.skip("Numba is not installed")
    worst = 0.0
    for net in NETS:
        for program, rows, peak in weigh(net, dtype, fast, monkeypatch):
            planned = program.row_bytes * (8 if dtype == "float64" else 4) // 8
            scalars = 800
            assert peak <= rows * (planned * (1 if fast else 2) + scalars), (net.name, program.kind, program.target)
            worst = max(worst, peak / (rows * (planned + scalars)))
    assert worst > 0.3, "a bound this loose wastes the budget, or nothing was weighed"


def test_chunks_fill_the_budget_and_no_more() -> None:
    program = plan_of(toy_residual()).programs[0]
    for word in (4, 8):
        for budget in (10**5, 12_345_678, 10**9):
            rows = memory.chunk_rows(program, word, budget)
            each = program.row_bytes * word // 8
            assert rows * each <= budget < (rows + 1) * each
    assert memory.chunk_rows(program, 8, program.row_bytes - 1) == 0
    assert memory.chunk_rows(program, 8, program.row_bytes) == 1


def test_ensures_sees_a_program_that_costs_nothing() -> None:
    plan = plan_of(toy_dense())
    assert memory.requires(toy_dense(), plan) is None and memory.ensures(toy_dense(), plan) is None
    free = replace(plan, programs=tuple(replace(p, steps=tuple(replace(s, bytes=0) for s in p.steps)) for p in plan))
    assert memory.ensures(toy_dense(), free) == "the program of %linear_1 costs nothing"
