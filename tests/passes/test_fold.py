"""Folding, in text: what merges, what stays, what a merged layer declares; and in exact fractions: that it keeps its word."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.ir.interp import run
from polytriton.ir.net import Attr, Builder, Net, Node
from polytriton.passes import fold
from polytriton.runtime.soundness import gamma
from tests.filecheck import filecheck
from tests.passes.texts import passed, read

F32 = np.float32


def check(net: Net, checks: str) -> None:
    filecheck(passed(net, "fold"), checks)


# ---- what merges --------------------------------------------------------------------------------------------

BATCH_NORM = """
net @n(%x: f32[2x5x5]) -> f32[3x5x5] {
  %c = conv %x {w=@w, b=@b, k=3x3, p=1,1,1,1} : f32[3x5x5]
  %s = scale %c {a=@a, c=@d} : f32[3x5x5]
  return %s
}
"""


def test_a_batch_norm_joins_its_convolution() -> None:
    net = read(BATCH_NORM)
    check(
        net,
        """
        CHECK: net @n
        CHECK-NEXT: %s = conv %x {w=@[[w]], b=@[[b]], k=3x3, p=1,1,1,1, babs=@[[v]], slack=3, ops=2{{.*}}} : f32[3x5x5]
        CHECK-NEXT: return %s
        """.replace("[[w]]", "{{\\w+}}")
        .replace("[[b]]", "{{\\w+}}")
        .replace("[[v]]", "{{\\w+}}"),
    )
    merged = fold.run(net)
    node = merged.node("s")
    w, b, a, d = (net.weights[k].astype(np.float64) for k in "wbad")
    np.testing.assert_array_equal(merged.weight(node, "w"), w * a[:, None])
    np.testing.assert_array_equal(merged.weight(node, "b"), a[:, 0, 0] * b + d[:, 0, 0])
    babs = merged.weight(node, "babs")
    assert babs is not None and (babs >= np.abs(a[:, 0, 0] * b) + np.abs(d[:, 0, 0])).all()


@pytest.mark.parametrize(
    "varies, kept",
    [((3, 1, 1), False), ((1, 1, 1), False), ((1,), False), ((3, 5, 5), True), ((1, 5, 1), True), ((5,), True)],
)
def test_a_scale_that_varies_over_space_stays(varies: tuple[int, ...], kept: bool) -> None:
    a = np.linspace(0.5, 1.5, int(np.prod(varies)), dtype=F32).reshape(varies)
    for factors in ({"a": a, "d": np.zeros(1, F32)}, {"a": np.ones(1, F32), "d": a}):
        check(
            read(BATCH_NORM, **factors),
            "CHECK: %c = conv\nCHECK-NEXT: %s = scale %c {a=@a, c=@d}" if kept else "CHECK: %s = conv\nCHECK-NOT: scale",
        )


def test_constant_images_count_as_channels() -> None:
    check(read(BATCH_NORM, a=np.full((3, 5, 5), 0.5, F32)), "CHECK: %s = conv\nCHECK-NOT: scale")


NORMALISED = """
net @n(%x: f32[2x5x5]) -> f32[3x{out}x{out}] {{
  %s = scale %x {{a=@a, c=@d}} : f32[2x5x5]
  %c = conv %s {{w=@w, b=@b, k=3x3, p={p}}} : f32[3x{out}x{out}]
  return %c
}}
"""


@pytest.mark.parametrize("p, out, merges", [("0,0,0,0", 3, True), ("-1,-1,0,0", 2, True), ("1,1,1,1", 5, False), ("0,0,2,2", 5, False)])
def test_a_normalisation_joins_the_convolution_unless_padding_takes_its_place(p: str, out: int, merges: bool) -> None:
    text = NORMALISED.format(p=p, out=out)
    if merges:
        check(
            read(text),
            f"CHECK-NOT: scale\nCHECK: %c = conv %x {{w=@{{{{\\w+}}}}, b=@{{{{\\w+}}}}, k=3x3, p={p}, babs=@{{{{\\w+}}}}, slack=21, ops=2",
        )
    else:
        check(read(text), "CHECK: %s = scale %x {a=@a, c=@d}\nCHECK-NEXT: %c = conv %s {w=@w, b=@b")
        check(read(text, d=np.zeros((2, 1, 1), F32)), "CHECK-NOT: scale\nCHECK: %c = conv %x")


def test_a_normalisation_joins_grouped_channels_of_its_own_group() -> None:
    text = """
    net @n(%x: f32[4x3x3]) -> f32[6x2x2] {
      %s = scale %x {a=@a, c=@d} : f32[4x3x3]
      %c = conv %s {w=@w, b=@b, k=2x2, g=2} : f32[6x2x2]
      return %c
    }
    """
    net = read(text)
    check(net, "CHECK-NOT: scale\nCHECK: %c = conv %x {{.*}}g=2")
    x = np.random.default_rng(0).standard_normal((5, 4, 3, 3))
    np.testing.assert_allclose(run(fold.run(net), x), run(net, x), rtol=1e-12)


def test_a_normalisation_joins_the_first_linear_layer() -> None:
    text = """
    net @n(%x: f32[2x2x2]) -> f32[3] {
      %s = scale %x {a=@a, c=@d} : f32[2x2x2]
      %t = scale %s {a=@e, c=@f} : f32[2x2x2]
      %y = linear %t {w=@w, b=@b} : f32[3]
      return %y
    }
    """
    check(read(text), "CHECK-NOT: scale\nCHECK: %y = linear %x {w=@{{\\w+}}, b=@{{\\w+}}, babs=@{{\\w+}}, slack=14, ops=4{{.*}}} : f32[3]")


def test_scales_in_a_row_become_one() -> None:
    text = """
    net @n(%x: f32[3]) -> f32[3] {
      %s = scale %x {a=@a, c=@b} : f32[3]
      %t = scale %s {a=@c, c=@d} : f32[3]
      %u = scale %t {a=@e, c=@f} : f32[3]
      return %u
    }
    """
    check(
        read(text),
        "CHECK: {\n"
        "CHECK-NEXT: %u = scale %x {a=@{{\\w+}}, c=@{{\\w+}}, babs=@{{\\w+}}, slack=6, ops=4{{.*}}} : f32[3]\n"
        "CHECK-NEXT: return %u",
    )


LINEARS = """
net @n(%x: f32[{n}]) -> f32[{k}] {{
  %s = linear %x {{w=@v, b=@a}} : f32[{m}]
  %t = linear %s {{w=@w, b=@b}} : f32[{k}]
  return %t
}}
"""


def test_a_bottleneck_of_linear_layers_merges_and_remembers_what_cancelled() -> None:
    net = read(LINEARS.format(n=4, m=3, k=2), v=np.array([[1, 0, 0, 1]] * 3, F32), w=np.array([[1, -1, 0.5], [1, 1, 1]], F32))
    check(net, "CHECK: {\nCHECK-NEXT: %t = linear %x {{.*}}wabs=@{{\\w+}}, babs=@{{\\w+}}, slack=6, ops=5\nCHECK-NEXT: return %t")
    merged = fold.run(net)
    w, wabs = (merged.weight(merged.node("t"), k) for k in ("w", "wabs"))
    assert w is not None and wabs is not None
    assert w[0].tolist() == [0.5, 0, 0, 0.5] and (wabs[0, [0, 3]] >= 2.5).all() and (wabs >= np.abs(w)).all()


def test_linear_layers_whose_product_is_larger_stay() -> None:
    check(read(LINEARS.format(n=9, m=2, k=9)), "CHECK: %s = linear\nCHECK: %t = linear %s {w=@w, b=@b}")


def test_the_shape_of_the_result_survives() -> None:
    text = """
    net @n(%x: f32[4]) -> f32[1x2x1] {
      %s = linear %x {w=@v, b=@a, to=1x3x1} : f32[1x3x1]
      %t = linear %s {w=@w, b=@b, to=1x2x1} : f32[1x2x1]
      %u = scale %t {a=@c, c=@d} : f32[1x2x1]
      return %u
    }
    """
    net = read(text)
    check(net, "CHECK-NOT: %s\nCHECK: %u = linear %x {{.*}}to=1x2x1{{.*}}} : f32[1x2x1]")
    x = np.random.default_rng(0).standard_normal((5, 4))
    np.testing.assert_allclose(run(fold.run(net), x), run(net, x), rtol=1e-12)


# ---- what stays ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.0, 2.0**-70, 2.0**70, -(2.0**70)])
def test_zero_and_extreme_factors_stay(factor: float) -> None:
    a = np.array([[[1.0]], [[factor]], [[1.0]]], F32)
    check(read(BATCH_NORM, a=a), "CHECK: %c = conv %x {w=@w, b=@b, k=3x3, p=1,1,1,1}\nCHECK-NEXT: %s = scale %c {a=@a, c=@d}")
    check(read(NORMALISED.format(p="0,0,0,0", out=3), a=a[:2]), "CHECK: %s = scale %x\nCHECK-NEXT: %c = conv %s")
    check(
        read(LINEARS.format(n=4, m=3, k=2), w=np.array([[1, 1, 1], [1, factor, 1]], F32)), "CHECK: %s = linear\nCHECK-NEXT: %t = linear %s"
    )


def test_factors_that_together_go_too_far_stay() -> None:
    """Each alone is harmless; all of them would hide an overflow between them."""
    b = Builder("far")
    y = b.add("linear", (b.input((1,)),), w=b.constant(np.ones((1, 1), F32)), b=b.constant(np.zeros(1, F32)))
    for k in (20,) * 6 + (-20,) * 6:
        y = b.add("scale", (y,), a=b.constant(np.array([2.0**k], F32)), c=b.constant(np.zeros(1, F32)))
    merged = fold.run(b.build(y))
    assert len(merged.nodes) > 3
    partial = 0.0
    for n in merged.nodes[1:]:
        partial += float(np.log2(np.abs(merged.weights[n.attrs["a" if n.op == "scale" else "w"].name]).max()))  # type: ignore[union-attr]
        assert n.integer("gain") <= 60
    assert partial == 0


def test_an_immense_shift_stays_before_a_layer_that_could_ignore_it() -> None:
    text = NORMALISED.format(p="0,0,0,0", out=3)
    check(read(text, d=np.full((2, 1, 1), 1e30, F32)), "CHECK: %s = scale\nCHECK: %c = conv %s")


def test_a_value_read_twice_or_returned_stays() -> None:
    twice = """
    net @n(%x: f32[2x5x5]) -> f32[3x5x5] {
      %c = conv %x {w=@w, b=@b, k=1x1} : f32[3x5x5]
      %s = scale %c {a=@a, c=@d} : f32[3x5x5]
      %t = add %s, %c : f32[3x5x5]
      return %t
    }
    """
    check(read(twice), "CHECK: %c = conv\nCHECK-NEXT: %s = scale %c {a=@a, c=@d}")
    returned = twice.replace("%t = add %s, %c", "%t = add %s, %s").replace("return %t", "return %c")
    check(read(returned), "CHECK: %c = conv %x {w=@w, b=@b, k=1x1}\nCHECK-NEXT: return %c")


def test_a_nonlinear_operator_parts_what_stands_around_it() -> None:
    check(
        read(BATCH_NORM.replace("%s = scale %c", "%r = relu %c : f32[3x5x5]\n  %s = scale %r")),
        "CHECK: %c = conv %x {w=@w, b=@b\nCHECK-NEXT: %r = relu %c\nCHECK-NEXT: %s = scale %r {a=@a, c=@d}",
    )


def test_what_frontends_and_merges_declared_adds_up() -> None:
    text = """
    net @n(%x: f32[2]) -> f32[2] {
      %y = linear %x {w=@w, b=@b, slack=5, ops=7, babs=@v} : f32[2]
      %s = scale %y {a=@a, c=@d, slack=2, ops=1, babs=@e} : f32[2]
      return %s
    }
    """
    net = read(text, v=np.full(2, 9, F32), e=np.full(2, 5, F32), a=np.full(2, 2, F32))
    check(net, "CHECK: %s = linear %x {{.*}}slack=10, ops=10")
    babs = fold.run(net).weight(fold.run(net).node("s"), "babs")
    assert babs is not None and (babs >= 2 * 9 + 5).all()


def test_ensures_sees_magnitudes_below_the_bias() -> None:
    net = read(BATCH_NORM)
    nodes = [n.with_attrs(babs=n.attrs["b"]) if n.op == "conv" else n for n in net]
    bad = replace(net, nodes=tuple(nodes), weights={**net.weights, "b": -np.ones(3, F32)})
    assert fold.requires(net) is None and fold.ensures(net) is None
    assert fold.ensures(bad) == "%c: babs is below |b|"


# ---- in exact fractions -------------------------------------------------------------------------------------


@dataclass
class Affine:
    """y = w x + b over flat vectors, and the magnitudes of both when nothing cancels."""

    w: np.ndarray
    b: np.ndarray
    wabs: np.ndarray
    babs: np.ndarray

    def then(self, o: Affine) -> Affine:
        return Affine(o.w @ self.w, o.w @ self.b + o.b, o.wabs @ self.wabs, o.wabs @ self.babs + o.babs)


def _exactly(v: np.ndarray) -> np.ndarray:
    out = np.empty(v.shape, object)
    for i in np.ndindex(*v.shape):
        out[i] = Fraction(float(v[i]))
    return out


def affine(net: Net, node: Node) -> Affine:
    """The node as a matrix of fractions, from the weights as stored."""
    source = net.node(node.inputs[0])
    key, bias = ("a", "c") if node.op == "scale" else ("w", "b")
    given = {k: net.weight(node, k) for k in (key, bias, "wabs", "babs")}
    w, b = _exactly(np.asarray(given[key])), _exactly(np.asarray(given[bias]))
    wabs = abs(w) if given["wabs"] is None else _exactly(given["wabs"])
    babs = abs(b) if given["babs"] is None else _exactly(given["babs"])
    zero = np.full((node.size, source.size), Fraction(0), object)
    matrices = []
    for m in (w, wabs):
        if node.op == "linear":
            matrices.append(m)
        elif node.op == "scale":
            full = zero.copy()
            np.fill_diagonal(full, np.broadcast_to(m, node.shape).reshape(-1))
            matrices.append(full)
        else:
            matrices.append(_stencil(node, source, m, zero.copy()))
    shape = (node.shape[0], 1, 1) if node.op == "conv" else b.shape
    biases = [
        np.broadcast_to(
            np.broadcast_to(v.reshape(shape), node.shape) if node.op != "linear" else v, node.shape if node.op != "linear" else v.shape
        ).reshape(-1)
        for v in (b, babs)
    ]
    return Affine(matrices[0], biases[0], matrices[1], biases[1])


def _stencil(node: Node, source: Node, m: np.ndarray, out: np.ndarray) -> np.ndarray:
    (_, h, w), s, p, g = source.shape, node.ints("s", (1, 1)), node.ints("p", (0, 0, 0, 0)), node.integer("g", 1)
    co, ho, wo = node.shape
    for o, i, j in np.ndindex(co, ho, wo):
        for c, a, e in np.ndindex(*m.shape[1:]):
            y, x = i * s[0] - p[0] + a, j * s[1] - p[1] + e
            if 0 <= y < h and 0 <= x < w:
                out[(o * ho + i) * wo + j, ((o // (co // g) * m.shape[1] + c) * h + y) * w + x] += m[o, c, a, e]
    return out


def whole(net: Net) -> Affine:
    """The composition of a chain of affine nodes."""
    total: Affine | None = None
    for n in net.nodes[1:]:
        total = affine(net, n) if total is None else total.then(affine(net, n))
    assert total is not None
    return total


@st.composite
def chains(draw: st.DrawFn) -> Net:
    """Scales, and a convolution or linear layers among them, with weights that round."""
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    b = Builder("chain")
    image = draw(st.booleans())
    x = b.input((2, 2, 3) if image else (4,))

    def scale(x: str) -> str:
        shape = b.shape(x)
        per = (shape[0], 1, 1) if len(shape) == 3 else shape
        a = rng.uniform(0.3, 3, per) * rng.choice([-1, 1], per)
        return b.add("scale", (x,), a=b.constant(a.astype(F32)), c=b.constant(rng.standard_normal(per).astype(F32)))

    def layer(x: str) -> str:
        shape = b.shape(x)
        bias = rng.standard_normal(2).astype(F32)
        if len(shape) == 3:
            g = draw(st.sampled_from((1, 2)))
            w = rng.standard_normal((2, shape[0] // g, 2, 2)).astype(F32)
            attrs: dict[str, Attr] = {"w": b.constant(w), "b": b.constant(bias), "k": (2, 2), "g": g}
            return b.add("conv", (x,), **attrs)
        return b.add("linear", (x,), w=b.constant(rng.standard_normal((2, shape[0])).astype(F32)), b=b.constant(bias))

    for _ in range(draw(st.integers(0, 2))):
        x = scale(x)
    for _ in range(1 if image else draw(st.integers(0, 3))):
        x = layer(x)
        for _ in range(draw(st.integers(0, 2))):
            x = scale(x)
    return b.build(x)


@given(chains())
@limits(max_examples=60)
def test_a_merged_layer_lies_within_its_declared_slack(net: Net) -> None:
    assume(len(net.nodes) > 2)
    merged = fold.run(net)
    assert len(merged.nodes) == 2, "nothing here should stay"
    node = merged.nodes[1]
    exact, stored = whole(net), affine(merged, node)
    room = Fraction(gamma(node.integer("slack"), 2.0**-53))
    assert (abs(exact.w - stored.w) <= room * stored.wabs).all()
    assert (abs(exact.b - stored.b) <= room * stored.babs).all()
    assert (exact.wabs <= stored.wabs * (1 + room)).all(), "magnitudes of cancelled weights are lost"
    assert (exact.babs <= stored.babs * (1 + room)).all(), "magnitudes of cancelled constants are lost"
    # the deployed network: every layer rounds once a term more than the merged one shows (its own sum excepted)
    deployed = sum({"scale": 2, "conv": 0}.get(n.op, 0) for n in net.nodes[1:])
    linears = [n for n in net.nodes[1:] if n.op == "linear"]
    deployed += sum(net.node(n.inputs[0]).size for n in linears[1:])
    only_scales = all(n.op == "scale" for n in net.nodes[1:])
    assert node.integer("ops") >= deployed - 2 * only_scales


def test_the_declared_slack_is_no_formality() -> None:
    """Merged weights do differ from the exact ones: by more than nothing, and a slack of zero would be a lie."""
    b = Builder("rounds")
    x = b.add("linear", (b.input((1,)),), w=b.constant(np.array([[1 / 3]], F32)), b=b.constant(np.array([0.1], F32)))
    y = b.add("scale", (x,), a=b.constant(np.array([0.7], F32)), c=b.constant(np.array([1e-12], F32)))
    net = b.build(y)
    exact, stored = whole(net), affine(fold.run(net), fold.run(net).nodes[1])
    assert (exact.b != stored.b).all()
