"""Layout operators, in text: where they go, and that what cannot go stays exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits

from polytriton.ir.interp import run, user_shape
from polytriton.ir.net import Builder, Net
from polytriton.passes import layout
from polytriton.passes.pipeline import fold_net
from tests.filecheck import filecheck
from tests.oracle.nets import nets
from tests.oracle.small import linear
from tests.passes.texts import after, passed, read


def check(net: Net, checks: str) -> Net:
    """The CHECK lines, and the same values bit for bit (nothing here multiplies or adds anew)."""
    filecheck(passed(net, "layout"), checks)
    out = after(net, "layout")
    x = np.random.default_rng(5).standard_normal((6, *user_shape(net)))
    np.testing.assert_allclose(run(out, x), run(net, x), rtol=1e-13, atol=1e-13)
    return out


# ---- around convolutions ------------------------------------------------------------------------------------

PADDED = """
net @n(%x: f32[2x5x5]) -> f32[3x5x7] {
  %r = relu %x : f32[2x5x5]
  %p = pad %r {lo=0,1,2, hi=0,1,2} : f32[2x7x9]
  %c = conv %p {w=@w, b=@b, k=3x3} : f32[3x5x7]
  return %c
}
"""


def test_zero_padding_joins_the_convolution() -> None:
    check(
        read(PADDED),
        "CHECK: %r = relu\nCHECK-NEXT: %c = conv %r {w=@w, b=@b, k=3x3, p=1,2,1,2} : f32[3x5x7]\nCHECK-NOT: pad\nCHECK-NOT: gather",
    )


def test_each_side_of_the_padding_keeps_its_place() -> None:
    text = PADDED.replace("lo=0,1,2, hi=0,1,2", "lo=0,0,3, hi=0,2,1").replace("k=3x3", "k=3x3, p=1,-1,0,2").replace("3x5x7", "3x6x8")
    check(read(text), "CHECK: %c = conv %r {w=@w, b=@b, k=3x3, p=1,2,2,3} : f32[3x6x8]")


def test_padding_that_something_else_reads_too_stays() -> None:
    text = PADDED.replace(
        "return %c", "%q = slice %p {axis=0, start=0, step=1, size=1} : f32[1x7x9]\n  %t = concat %c, %c {axis=0} : f32[6x5x7]\n  return %q"
    )
    check(read(text.replace("-> f32[3x5x7]", "-> f32[1x7x9]")), "CHECK-NOT: conv\nCHECK-NOT: pad")
    both = PADDED.replace("%r = relu %x", "%r = conv %x {w=@v, b=@d, k=1x1}").replace(
        "return %c",
        "%q = relu %p : f32[2x7x9]\n  %d = conv %q {w=@w, b=@b, k=3x3} : f32[3x5x7]\n  %t = add %c, %d : f32[3x5x7]\n  return %t",
    )
    check(read(both), "CHECK: %p = gather %r {index=@{{\\w+}}, to=2x7x9}\nCHECK: %c = conv %p {w=@w, b=@b, k=3x3} :")


def test_padding_of_channels_is_no_convolution_padding() -> None:
    text = PADDED.replace("lo=0,1,2, hi=0,1,2", "lo=1,1,2, hi=0,1,2").replace("f32[2x7x9]", "f32[3x7x9]")
    check(read(text), "CHECK: %c = conv {{.*}}k=3x3} : f32[3x5x7]")


@pytest.mark.parametrize(
    "axis, start, step, size, conv",
    [
        (2, 1, 2, 3, "s=1x2, p=0,-1,0,0, g=2} : f32[2x5x3]"),
        (2, 0, 1, 4, "s=1x1, p=0,0,0,-2, g=2} : f32[2x5x4]"),
        (1, 2, 1, 3, "s=1x1, p=-2,0,0,0, g=2} : f32[2x3x6]"),
        (1, 1, 3, 2, "s=3x1, p=-1,0,0,0, g=2} : f32[2x2x6]"),
        (1, 0, 3, 1, "s=3x1, p=0,0,-4,0, g=2} : f32[2x1x6]"),
    ],
)
def test_a_slice_of_an_image_becomes_a_convolution_of_one_tap(axis: int, start: int, step: int, size: int, conv: str) -> None:
    shape = [2, 5, 6]
    shape[axis] = size
    text = f"""
    net @n(%x: f32[2x5x6]) -> f32[{"x".join(map(str, shape))}] {{
      %r = relu %x : f32[2x5x6]
      %s = slice %r {{axis={axis}, start={start}, step={step}, size={size}}} : f32[{"x".join(map(str, shape))}]
      return %s
    }}
    """
    check(read(text), "CHECK: %r = relu\nCHECK-NEXT: %s = conv %r {w=@ones_0, b=@zeros_0, k=1x1, " + conv)


def test_what_nothing_can_absorb_stays_a_gather_and_is_exact() -> None:
    text = """
    net @n(%x: f32[2x5x6]) -> f32[3x4x5] {
      %d = conv %x {w=@v, b=@a, k=1x1} : f32[2x5x6]
      %r = relu %d : f32[2x5x6]
      %s = slice %r {axis=1, start=4, step=-1, size=5} : f32[2x5x6]
      %c = conv %s {w=@w, b=@b, k=2x2} : f32[3x4x5]
      return %c
    }
    """
    check(read(text), "CHECK: %r = relu\nCHECK-NEXT: %s = gather %r {index=@s_index, to=2x5x6} : f32[2x5x6]\nCHECK-NEXT: %c = conv %s")


def test_gathers_in_a_row_are_composed() -> None:
    text = """
    net @n(%x: f32[2x2x3]) -> f32[4x1x3] {
      %d = conv %x {w=@v, b=@a, k=1x1} : f32[2x2x3]
      %t = transpose %d {perm=0,2,1} : f32[2x3x2]
      %p = pad %t {lo=0,0,1, hi=0,0,0} : f32[2x3x3]
      %f = reshape %p {to=18} : f32[18]
      %s = slice %f {axis=0, start=0, step=3, size=6} : f32[6]
      %q = pad %s {lo=3, hi=3} : f32[12]
      %g = reshape %q {to=4x1x3} : f32[4x1x3]
      %c = conv %g {w=@w, b=@b, k=1x1} : f32[4x1x3]
      return %c
    }
    """
    out = check(read(text), "CHECK: %d = conv\nCHECK-NEXT: %g = gather %d {index=@{{\\w+}}, to=4x1x3}\nCHECK-NEXT: %c = conv %g")
    index = out.weight(out.node("g"), "index")
    assert index is not None and set(index.tolist()) == {-1}  # the slice picked the padding alone


# ---- into linear layers -------------------------------------------------------------------------------------


def test_flattening_in_another_order_moves_the_columns() -> None:
    text = """
    net @n(%x: f32[2x2x3]) -> f32[4] {
      %r = relu %x : f32[2x2x3]
      %t = transpose %r {perm=1,2,0} : f32[2x3x2]
      %f = reshape %t {to=12} : f32[12]
      %s = slice %f {axis=0, start=10, step=-2, size=6} : f32[6]
      %y = linear %s {w=@w, b=@b} : f32[4]
      return %y
    }
    """
    net = read(text)
    out = check(net, "CHECK: %r = relu %x\nCHECK-NEXT: %y = linear %r {w=@w_0, b=@b} : f32[4]\nCHECK-NEXT: return")
    w = out.weight(out.node("y"), "w")
    assert w is not None and w.dtype == np.float32 and sorted(w[w != 0]) == sorted(net.weights["w"].ravel())


def test_a_cell_read_twice_adds_its_columns_and_says_so() -> None:
    text = """
    net @n(%x: f32[2]) -> f32[1] {
      %r = relu %x : f32[2]
      %g = gather %r {index=@i, to=7} : f32[7]
      %y = linear %g {w=@w, b=@b} : f32[1]
      return %y
    }
    """
    w = np.array([[1, -1, 0.5, 2, 8, 4, 16]], np.float32)
    out = check(
        read(text, i=np.array([0, 0, 0, 1, -1, 1, 1]), w=w),
        "CHECK: %r = relu\nCHECK-NEXT: %y = linear %r {w=@w_0, b=@b, summands=6, slack=3, ops=1, wabs=@wabs_0} : f32[1]",
    )
    node = out.node("y")
    got, size = out.weight(node, "w"), out.weight(node, "wabs")
    assert got is not None and size is not None and got.tolist() == [[0.5, 22]] and size.tolist() == [[2.5, 22]]
    # the deployed layer sums seven terms, one of them padding, the merged one two
    assert node.integer("summands") == 6


def test_what_follows_a_linear_layer_moves_its_rows() -> None:
    text = """
    net @n(%x: f32[3]) -> f32[2x2x3] {
      %y = linear %x {w=@w, b=@b, babs=@b} : f32[8]
      %r = relu %y : f32[8]
      %t = reshape %r {to=2x2x2} : f32[2x2x2]
      %p = pad %t {lo=0,0,1, hi=0,0,0} : f32[2x2x3]
      %q = relu %p : f32[2x2x3]
      %c = conv %q {w=@v, b=@d, k=1x1} : f32[2x2x3]
      return %c
    }
    """
    net = read(text, b=np.arange(1, 9, dtype=np.float32))
    out = check(
        net,
        "CHECK: %{{\\w+}} = linear %x {w=@{{\\w+}}, b=@{{\\w+}}, babs=@{{\\w+}}, to=2x2x3}\n"
        "CHECK-NEXT: = relu\n"
        "CHECK-NEXT: = relu\n"
        "CHECK-NEXT: %c = conv",
    )
    linear = next(n for n in out if n.op == "linear")
    for key in ("b", "babs"):
        b = out.weight(linear, key)
        assert b is not None and b.tolist() == [0, 1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 8]


def test_a_scale_on_the_way_is_reordered_too() -> None:
    text = """
    net @n(%x: f32[2x2x2]) -> f32[3] {
      %r = relu %x : f32[2x2x2]
      %f = reshape %r {to=8} : f32[8]
      %g = gather %f {index=@i, to=6} : f32[6]
      %s = scale %g {a=@a, c=@c} : f32[6]
      %y = linear %s {w=@w, b=@b} : f32[3]
      return %y
    }
    """
    check(
        read(text, i=np.array([7, 0, 3, 5, 2, 1])),
        "CHECK: %r = relu\nCHECK-NEXT: = scale %r {{.*}} : f32[2x2x2]\nCHECK-NEXT: %y = linear\nCHECK-NOT: gather",
    )
    # a scale that makes something of the padding, or treats one cell in two ways, holds the gather up
    padded = read(text, i=np.array([7, 0, 3, -1, 2, 1]))
    check(padded, "CHECK: %g = gather\nCHECK: %s = scale %g\nCHECK: %y = linear %s")
    check(read(text, i=np.array([7, 0, 3, 3, 2, 1])), "CHECK: %g = gather\nCHECK: %s = scale %g\nCHECK: %y = linear %s")


def test_a_sum_of_two_flattened_branches_is_flattened_once() -> None:
    text = """
    net @n(%x: f32[2x2x3]) -> f32[4] {
      %r = relu %x : f32[2x2x3]
      %q = relu %r : f32[2x2x3]
      %f = reshape %r {to=12} : f32[12]
      %g = reshape %q {to=12} : f32[12]
      %a = sub %f, %g : f32[12]
      %b = relu %a : f32[12]
      %y = linear %b {w=@w, b=@d} : f32[4]
      return %y
    }
    """
    check(read(text), "CHECK: = sub %r, %q : f32[2x2x3]\nCHECK-NEXT: = relu\nCHECK-NEXT: %y = linear\nCHECK-NOT: gather")


# ---- into the input, and away -------------------------------------------------------------------------------


def test_the_input_takes_its_cells_in_the_order_the_network_wants() -> None:
    text = """
    net @n(%x: f32[4x4x2]) -> f32[3x3x3] {
      %t = transpose %x {perm=2,0,1} : f32[2x4x4]
      %s = scale %t {a=@a, c=@d} : f32[2x4x4]
      %c = conv %s {w=@w, b=@b, k=2x2} : f32[3x3x3]
      return %c
    }
    """
    out = check(read(text), "CHECK: net @n(%x: f32[2x4x4] {take=@take_0, of=4x4x2}) -> f32[3x3x3] {\nCHECK-NEXT: %s = scale %x")
    take = out.weight(out.input, "take")
    assert take is not None and take.tolist() == np.arange(32).reshape(4, 4, 2).transpose(2, 0, 1).ravel().tolist()
    assert user_shape(out) == (4, 4, 2)


def test_an_input_that_took_cells_takes_them_anew() -> None:
    text = """
    net @n(%x: f32[2x3] {take=@t, of=7}) -> f32[3x2] {
      %t = transpose %x {perm=1,0} : f32[3x2]
      %r = relu %t : f32[3x2]
      return %r
    }
    """
    out = check(read(text, t=np.array([6, 5, 4, -1, 1, 0])), "CHECK: net @n(%x: f32[3x2] {take=@take_0, of=7})\nCHECK-NEXT: %r = relu %x")
    take = out.weight(out.input, "take")
    assert take is not None and take.tolist() == [6, -1, 5, 1, 4, 0]


def test_an_input_read_twice_keeps_its_order() -> None:
    text = """
    net @n(%x: f32[2x3]) -> f32[3x2] {
      %t = transpose %x {perm=1,0} : f32[3x2]
      %r = reshape %x {to=3x2} : f32[3x2]
      %a = add %r, %t : f32[3x2]
      return %a
    }
    """
    check(read(text), "CHECK: net @n(%x: f32[2x3])\nCHECK: %t = gather %x\nCHECK: %r = gather %x\nCHECK: %a = add %r, %t")


def test_a_cell_taken_twice_stays_a_gather_behind_the_input() -> None:
    text = """
    net @n(%x: f32[3]) -> f32[4] {
      %g = gather %x {index=@i, to=4} : f32[4]
      %r = relu %g : f32[4]
      return %r
    }
    """
    check(read(text, i=np.array([0, 0, 1, 2])), "CHECK: net @n(%x: f32[3])\nCHECK: gather\nCHECK-NOT: take")


def test_what_moves_nothing_disappears() -> None:
    text = """
    net @n(%x: f32[2x3]) -> f32[6] {
      %r = relu %x : f32[2x3]
      %t = transpose %r {perm=0,1} : f32[2x3]
      %p = pad %t {lo=0,0, hi=0,0} : f32[2x3]
      %f = reshape %p {to=6} : f32[6]
      return %f
    }
    """
    check(read(text), "CHECK: {\nCHECK-NEXT: %r = relu %x : f32[2x3]\nCHECK-NEXT: return %r")


def test_nodes_that_nothing_reads_are_dropped() -> None:
    text = """
    net @n(%x: f32[2x3]) -> f32[3x2] {
      %f = transpose %x {perm=1,0} : f32[3x2]
      %q = relu %x : f32[2x3]
      %g = transpose %q {perm=1,0} : f32[3x2]
      %dead = add %f, %g : f32[3x2]
      return %g
    }
    """
    check(read(text), "CHECK-NOT: dead\nCHECK: return")


def test_a_new_value_never_takes_a_name_that_the_network_had() -> None:
    """Bounds are told by name: that of a node which is gone by now means what it meant."""
    b = Builder("gone")
    turned = b.add("gather", (b.input((1, 2, 3)),), index=b.constant(np.array([5, 4, 3, 2, 1, 1])), to=(6,))
    out = linear(b, b.add("relu", (turned,)), np.ones((2, 6)), np.zeros(2))
    linear(b, b.add("relu", (out,)), np.ones((2, 2)), np.zeros(2))
    net = b.build(out)
    made = {n.name: n.shape for n in fold_net(net)}
    assert all(made[n.name] == n.shape for n in net if n.name in made)
    assert "_relu_0" in made


def test_no_direction_is_taken_twice() -> None:
    """A gather that could move either way towards the output or the input goes one way only, and is absorbed there."""
    text = """
    net @n(%x: f32[2x5x6]) -> f32[2x5x3] {
      %r = relu %x : f32[2x5x6]
      %s = slice %r {axis=2, start=5, step=-2, size=3} : f32[2x5x3]
      %t = relu %s : f32[2x5x3]
      return %t
    }
    """
    check(read(text), "CHECK: take=@take_0, of=2x5x6\nCHECK-NOT: gather")


@given(nets(moves=("layout", "layout", "scale_cells", "relu", "linear", "concat", "twice"), steps=9) | nets())
@limits(max_examples=120)
def test_the_pass_comes_to_an_end(net: Net) -> None:
    """What is left is what no rule moves: running the pass again changes nothing."""
    once = layout.run(net)
    assert layout.ensures(once) is None
    assert layout.run(once) == once


def test_ensures_sees_what_was_left() -> None:
    net = read("net @n(%x: f32[2x3]) -> f32[6] {\n  %f = reshape %x {to=6} : f32[6]\n  return %f\n}\n")
    assert layout.requires(net) is None and layout.ensures(net) == "%f still moves cells about"
