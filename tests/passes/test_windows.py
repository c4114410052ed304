"""Dependence windows: the paper's figures, the recurrences with padding and dilation, and brute force over every cell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.errors import InvalidIR
from polytriton.ir.net import Attr, Builder, Net
from polytriton.ir.plan import Axis, Program, Step, Window, extent
from polytriton.passes import windows as win
from polytriton.passes.pipeline import fold_net, make_plan
from tests.filecheck import filecheck
from tests.passes.dependence import Dependence, cells, contains, holds
from tests.passes.texts import plan_of, plan_text, read


def behind(text: str, channels: int, size: str) -> str:
    """A layer and a ReLU before the network, so that programs do not end where they begin."""
    head, rest = text.split("{\n", 1)
    return head + f"{{\n  %h = conv %x {{w=@wh, b=@bh, k=1x1}} : f32[{channels}x{size}]\n  %g = relu %h : f32[{channels}x{size}]\n" + rest


# ---- the paper's figures ------------------------------------------------------------------------------------

PAPER = behind(
    """net @paper(%x: f32[2x6x6]) -> f32[2x3x3] {
  %b = conv %g {w=@w2, b=@b2, k=2x2} : f32[2x5x5]
  %rb = relu %b : f32[2x5x5]
  %a = conv %rb {w=@w1, b=@b1, k=3x3} : f32[2x3x3]
  %y = relu %a : f32[2x3x3]
  return %y
}
""",
    2,
    "6x6",
)


def test_the_papers_example() -> None:
    """Layers of 3x3x2, 5x5x2 and 6x6x2 neurons, filters of 3x3 and 2x2: W^1 = 3, W^2 = 4, so 3x3x2 and 4x4x2 cells."""
    filecheck(
        plan_text(read(PAPER)),
        """
        CHECK: bound %a {
        CHECK-NEXT: start %a -> %a [1@1i+0 x 1@1i+0]
        CHECK-NEXT: conv %a -> %rb [3@1i+0 x 3@1i+0]
        CHECK-NEXT: relu %rb -> %b [3@1i+0 x 3@1i+0]
        CHECK-NEXT: conv %b -> %g [4@1i+0 x 4@1i+0]
        """,
    )
    step = next(s for s in plan_of(read(PAPER)).bound("a").steps if s.to == ("g",))
    assert step.windows[0].cells * 2 == 4 * 4 * 2


def test_the_papers_recurrences() -> None:
    """W' = (W - 1) s + f and S' = S s, here also P' = P s + p, from W = S = 1, P = 0."""
    axis = Axis(1, 1, 0)
    seen = []
    for f, s, p in ((3, 2, 1), (4, 2, 1), (3, 1, 0), (5, 3, 2)):
        axis = win.input_axis(axis, f, s, p, 1)
        seen.append((axis.size, axis.stride, axis.offset))
    assert seen == [(3, 2, 1), (8, 4, 3), (10, 4, 3), (32, 12, 11)]


def test_a_dilated_kernel_reaches_further() -> None:
    assert win.input_axis(Axis(1, 1, 0), 3, 1, 2, 2) == Axis(5, 1, 2)
    assert win.input_axis(Axis(3, 2, 1), 2, 2, 0, 3) == Axis(8, 4, 2)


STRIDED = behind(
    """net @s(%x: f32[1x40x40]) -> f32[1x5x10] {
  %a = conv %g {w=@w1, b=@b1, k=3x1, s=2x1, p=1,0,0,0} : f32[1x20x40]
  %b = conv %a {w=@w2, b=@b2, k=1x4, s=1x2, p=0,1,0,1} : f32[1x20x20]
  %c = conv %b {w=@w3, b=@b3, k=4x3, s=4x2, p=0,0,0,1, d=1x1} : f32[1x5x10]
  %y = relu %c : f32[1x5x10]
  return %y
}
""",
    1,
    "40x40",
)


def test_strides_and_offsets_accumulate_on_each_axis_and_side() -> None:
    filecheck(
        plan_text(read(STRIDED)),
        """
        CHECK: bound %c {
        CHECK-NEXT: start
        CHECK-NEXT: conv %c -> %b [4@4i+0 x 3@2i+0] mask
        CHECK-NEXT: conv %b -> %a [4@4i+0 x 8@4i-1] mask
        CHECK-NEXT: conv %a -> %g [9@8i-1 x 8@4i-1] pay
        """,
    )


def test_padding_counts_by_its_side() -> None:
    text = behind(
        """net @p(%x: f32[1x20x20]) -> f32[1x19x22] {
  %a = conv %g {w=@w1, b=@b1, k=3x3, p=1,2,0,2} : f32[1x19x22]
  %y = relu %a : f32[1x19x22]
  return %y
}
""",
        1,
        "20x20",
    )
    filecheck(plan_text(read(text)), "CHECK: halo %g 1,2,0,2\nCHECK: conv %a -> %g [3@1i-1 x 3@1i-2]")


def test_a_cropping_convolution_starts_inside() -> None:
    text = behind(
        """net @p(%x: f32[1x20x20]) -> f32[1x15x20] {
  %a = conv %g {w=@w1, b=@b1, k=3x3, p=-3,1,0,1} : f32[1x15x20]
  %y = relu %a : f32[1x15x20]
  return %y
}
""",
        1,
        "20x20",
    )
    filecheck(plan_text(read(text)), "CHECK: halo %g 0,1,0,1\nCHECK: conv %a -> %g [3@1i+3 x 3@1i-1]")


# ---- clipping, densifying, uniting --------------------------------------------------------------------------


def test_cells_off_the_image_for_every_row_are_dropped() -> None:
    # positions 0..2 of a window of 9 from 2i-6: at the last it starts at -2, at the first it ends before 3
    assert win.clip(Axis(9, 2, 6), 3, 20) == Axis(7, 2, 4)
    # an image of 2 cells: the first row's cell 2 is off, and so off for all the others
    assert win.clip(Axis(9, 2, 6), 3, 2) == Axis(6, 2, 4)
    assert win.clip(Axis(5, 1, 0), 4, 20) == Axis(5, 1, 0)
    assert win.clip(Axis(5, 1, 2), 1, 20) == Axis(20, 0, 0)
    assert win.clip(Axis(5, 0, 0), 7, 5) == Axis(5, 0, 0)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(-6, 10), st.integers(1, 8), st.integers(1, 12))
@limits(max_examples=300)
def test_a_clipped_axis_holds_the_same_cells_of_the_image_and_no_row_needs_fewer(
    size: int, stride: int, offset: int, positions: int, n: int
) -> None:
    axis, image = Axis(size, stride, offset), set(range(n))
    out = win.clip(axis, positions, n)
    if positions == 1:
        assert out == Axis(n, 0, 0)
        return
    held = [cells(axis, i) & image for i in range(positions)]
    for i, h in enumerate(held):
        assert h <= cells(out, i) <= cells(axis, i) or not any(held)
    if any(held):
        assert min(cells(out, positions - 1)) >= 0, "a first cell that lies before the image for every row"
        assert max(cells(out, 0)) < n, "a last cell that lies behind the image for every row"


@pytest.mark.parametrize(
    "window, image, want",
    [
        (Window(Axis(3, 1, 1), Axis(3, 1, 1)), (10, 10), None),
        (Window(Axis(9, 1, 1), Axis(8, 1, 1)), (10, 10), None),  # 72 of 100 cells
        (Window(Axis(9, 1, 1), Axis(9, 1, 1)), (10, 10), (True, True)),  # 81
        (Window(Axis(8, 1, 1), Axis(10, 1, 1)), (10, 10), (True, True)),  # exactly 80
        (Window(Axis(10, 1, 1), Axis(2, 1, 1)), (10, 10), (True, False)),
        (Window(Axis(2, 1, 1), Axis(12, 2, 1)), (10, 10), (False, True)),
        (Window(Axis(1, 1, 0), Axis(1, 1, 0)), (1, 1), (True, True)),
    ],
)
def test_a_window_as_large_as_the_image_becomes_the_image(window: Window, image: tuple[int, int], want: tuple[bool, bool] | None) -> None:
    got = win.densify(window, image)
    assert got == (
        window if want is None else Window(*(Axis(n, 0, 0) if w else a for w, a, n in zip(want, (window.h, window.w), image, strict=True)))
    )


def test_a_residual_union_is_exact_on_all_four_sides() -> None:
    text = behind(
        """net @r(%x: f32[2x12x12]) -> f32[2x12x12] {
  %c = conv %g {w=@w1, b=@b1, k=3x4, p=0,1,2,2} : f32[2x12x12]
  %d = conv %g {w=@w2, b=@b2, k=2x3, p=1,0,0,2} : f32[2x12x12]
  %s = add %c, %d : f32[2x12x12]
  %y = relu %s : f32[2x12x12]
  return %y
}
""",
        2,
        "12x12",
    )
    # rows 0..2 of one branch and -1..0 of the other; columns -1..2 and 0..2
    filecheck(
        plan_text(read(text)),
        """
        CHECK: halo %g 1,1,2,2
        CHECK: bound %s {
        CHECK: add %s -> %c [1@1i+0 x 1@1i+0], %d [1@1i+0 x 1@1i+0]
        CHECK-NEXT: conv %d -> %g [2@1i-1 x 3@1i+0]
        CHECK-NEXT: conv %c -> %g [3@1i+0 x 4@1i-1]
        CHECK-NEXT: merge %g -> %g [4@1i-1 x 4@1i-1]
        CHECK-NEXT: relu %g
        """,
    )


def test_an_identity_shortcut_stays_a_window_of_one_cell() -> None:
    text = behind(
        """net @r(%x: f32[2x12x12]) -> f32[2x12x12] {
  %c = conv %g {w=@w1, b=@b1, k=3x3, p=1,1,1,1} : f32[2x12x12]
  %s = add %c, %g : f32[2x12x12]
  %y = relu %s : f32[2x12x12]
  return %y
}
""",
        2,
        "12x12",
    )
    filecheck(
        plan_text(read(text)),
        "CHECK: bound %s\nCHECK: add %s -> %c [1@1i+0 x 1@1i+0], %g [1@1i+0 x 1@1i+0]\nCHECK: merge %g -> %g [3@1i-1 x 3@1i-1]",
    )


@given(*[st.integers(1, 9)] * 2, *[st.integers(-5, 5)] * 2, st.integers(1, 3))
def test_a_union_is_the_bounding_box(m: int, n: int, p: int, q: int, stride: int) -> None:
    a, b = Axis(m, stride, p), Axis(n, stride, q)
    out = win.union_axis(a, b, 99)
    for i in (0, 1, 4):
        both = cells(a, i) | cells(b, i)
        assert cells(out, i) == set(range(min(both), max(both) + 1))
    assert win.union_axis(a, Axis(n, stride + 1, q), 99) == win.union_axis(a, Axis(99, 0, 0), 99) == Axis(99, 0, 0)


@given(st.integers(1, 9), st.integers(1, 3), st.integers(-5, 7), st.integers(1, 6), st.integers(1, 12))
def test_overhang_is_the_farthest_cell_off_the_image(size: int, stride: int, offset: int, positions: int, n: int) -> None:
    axis = Axis(size, stride, offset)
    reached = set().union(*(cells(axis, i) for i in range(positions)))
    assert win.overhang(axis, positions, n) == (max(0, -min(reached)), max(0, max(reached) - n + 1))
    assert win.overhang(Axis(n, 0, 0), positions, n) == (0, 0)


# ---- brute force --------------------------------------------------------------------------------------------


@st.composite
def stacks(draw: st.DrawFn, size: tuple[int, int] = (4, 9), depth: int = 4, joins: bool = True, least: int = -1) -> Net:
    """Convolutions, pools, ReLUs and residual sums over one image."""
    b = Builder("stack")
    x = b.input((1, draw(st.integers(*size)), draw(st.integers(*size))))
    two = lambda lo, hi: draw(st.tuples(st.integers(lo, hi), st.integers(lo, hi)))  # noqa: E731

    def conv(x: str, keep: bool = False) -> str:
        k, d = two(1, 3), two(1, 2)
        attrs: dict[str, Attr] = {"k": k, "d": d}
        if keep:
            top, left = draw(st.integers(0, (k[0] - 1) * d[0])), draw(st.integers(0, (k[1] - 1) * d[1]))
            attrs["p"] = (top, left, (k[0] - 1) * d[0] - top, (k[1] - 1) * d[1] - left)
        else:
            attrs |= {"s": two(1, 2), "p": draw(st.tuples(*[st.integers(least, 2)] * 4))}
        w = b.constant(np.ones((1, 1, *k), np.float32))
        return b.add("conv", (x,), w=w, b=b.constant(np.zeros(1, np.float32)), **attrs)

    try:
        x = b.add("relu", (conv(x),))
        for _ in range(draw(st.integers(1, depth))):
            kind = draw(st.sampled_from(("conv", "conv", "relu", "pool") + ("residual", "fork", "twice") * joins))
            if kind == "conv":
                x = conv(x)
            elif kind == "relu":
                x = b.add("relu", (x,))
            elif kind == "pool":
                x = b.add("maxpool", (x,), k=two(1, 2), s=two(1, 2), d=two(1, 2))
            elif kind == "residual":
                x = b.add("add", (conv(b.add("relu", (conv(x, True),)), True), x))
            elif kind == "fork":
                x = b.add("sub", (conv(x, True), conv(x, True)))
            else:
                x = b.add("add", (x, x))
    except InvalidIR:
        assume(False)
    return b.build(b.add("relu", (x,)))


@given(stacks())
@limits(max_examples=60)
def test_windows_hold_every_cell_that_matters(net: Net) -> None:
    contains(net)


def test_the_brute_force_would_notice() -> None:
    """The same check fails for windows one cell short, or one cell aside."""
    net = fold_net(read(PAPER))
    truth = Dependence(net, inside=True)
    truth.begin("a", {(1, 1)})
    step = plan_of(net).bound("a").steps[1]
    truth.substitute(step)
    holds(step.windows[0], 1, 1, truth.frontier["rb"], step)
    for wrong in (Axis(2, 1, 0), Axis(3, 1, 1), Axis(3, 2, 0)):
        with pytest.raises(AssertionError):
            holds(Window(wrong, wrong), 1, 1, truth.frontier["rb"], step)


@given(stacks(size=(60, 70), depth=3, least=0))
@limits(max_examples=16)
def test_on_a_large_image_windows_are_the_bounding_box(net: Net) -> None:
    """Where nothing is clipped and nothing dense, the window is the bounding box of the true dependence, on every side."""
    folded = fold_net(net)
    compared = 0
    for program in make_plan(folded):
        if program.kind == "query":
            continue
        h, w, _ = extent(folded.node(program.target))
        for i, j in ((0, 0), (h // 2, w - 1), (h - 1, w // 3)):
            truth = Dependence(folded, inside=False)
            truth.begin(program.target, {(i, j)})
            for step in program.steps[1:-1]:
                if step.op not in ("merge", "dense"):
                    truth.substitute(step)
                if step.op == "dense" or any(x.whole for v in step.windows for x in (v.h, v.w)):
                    break
                if len(step.to) > 1 or (step.op != "merge" and step.to[0] in _after(program, step)):
                    continue
                some, window = truth.frontier[step.to[0]], step.windows[0]
                assert cells(window.h, i) == set(range(min(a for a, _ in some), max(a for a, _ in some) + 1)), step
                assert cells(window.w, j) == set(range(min(b for _, b in some), max(b for _, b in some) + 1)), step
                compared += 1
    assume(compared)


def _after(program: Program, step: Step) -> set[str]:
    """Nodes whose contributions are still to be merged with this step's."""
    k = program.steps.index(step)
    return {s.node for s in program.steps[k + 1 : k + 3] if s.op == "merge"}
