"""Balls in l2 and l1, against exact arithmetic that shares no code with the verifier: a bound is held against the values that a form or a
network really takes at exact points of the ball, and against the least value, found by another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import polytriton
from polytriton import NormBall, Property
from polytriton.errors import PolytritonError
from polytriton.frontend.norm_balls import BoxBalls
from polytriton.frontend.query import Property as Stated
from polytriton.prove.cuts import meet_balls
from polytriton.prove.together import decide_together
from polytriton.runtime.attack.ball import Room
from polytriton.runtime.forward import Forward
from polytriton.runtime.input_balls import InputBalls, least_over, least_points

NORMS = ("l2", "l1")
Point = list[Fraction]


def within(norm: str, point: Point, centre: Point, weights: Point, radius: Fraction) -> bool:
    far = [abs(x - c) * w for x, c, w in zip(point, centre, weights, strict=True)]
    return sum(far) <= radius if norm == "l1" else sum(v * v for v in far) <= radius * radius


def least_point(norm: str, a: np.ndarray, lo: np.ndarray, hi: np.ndarray, c: np.ndarray, s: np.ndarray, r: float) -> np.ndarray:
    """Where a x is least over box and ball, to a float's accuracy: x(t) for the t that halving finds."""

    def at(t: float) -> np.ndarray:
        if norm == "l2":
            return np.clip(c - a * s**2 / t, lo, hi)
        return np.where(np.abs(a) * s > t, np.where(a > 0, lo, hi), np.clip(c, lo, hi))

    def size(x: np.ndarray) -> float:
        v = np.abs(x - c) / s
        return float(v.sum() if norm == "l1" else np.sqrt((v**2).sum()))

    below, above = 1e-30, 1e30
    for _ in range(100):  # of 140 powers of e every bit
        t = np.sqrt(below * above)
        below, above = (t, above) if size(at(t)) > r else (below, t)
    inner, outer = at(above), at(below)
    share = 0.0
    for step in 0.5 ** np.arange(1, 60):  # l1 jumps at the t where a cell is partly moved
        share += step if size(inner + (share + step) * (outer - inner)) <= r else 0.0
    return inner + share * (outer - inner)


def drawn(rng: np.random.Generator, norm: str, n: int, outside: bool = False) -> tuple[np.ndarray, ...]:
    """Row, box, centre, scale and radius: pixels at an end of the clip, inputs that stay, weights apart."""
    a = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3)
    a[rng.random(n) < 0.1] = 0.0
    c = rng.random(n) * 10.0 ** rng.integers(-2, 2)
    s = 10.0 ** rng.uniform(-1, 1, n)
    r = float(10.0 ** rng.uniform(-3, 1))
    lo, hi = c - s * r * rng.choice([0.0, 0.02, 0.3, 1.0], n), c + s * r * rng.choice([0.0, 0.02, 0.3, 1.0], n)
    if outside:  # a part of a box: it may lie beside the centre
        cut = lo + (hi - lo) * rng.random(n)
        low = rng.random(n) < 0.3
        lo, hi = np.where(low, cut, lo), np.where(low, hi, np.where(rng.random(n) < 0.3, cut, hi))
        lo, hi = np.minimum(lo, hi), np.maximum(lo, hi)
    return a, lo, hi, c, s, np.array(r)


def bound(norm: str, a: np.ndarray, lo: np.ndarray, hi: np.ndarray, c: np.ndarray, s: np.ndarray, r: np.ndarray) -> float:
    rows = (torch.from_numpy(np.ascontiguousarray(v))[None] for v in (a, lo, hi, c, s))
    row, low, high, centre, scale = rows
    return float(least_over(row, low, high, InputBalls(norm, centre, scale, torch.from_numpy(r).reshape(1)))[0])


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_rows_are_bounded_below_and_nearly_as_well_as_can_be(norm: str, outside: bool) -> None:
    rng = np.random.default_rng(7 + outside)
    near = tried = 0
    for k in range(100):
        a, lo, hi, c, s, r = drawn(rng, norm, int(rng.integers(1, 40)), outside)
        x = least_point(norm, a, lo, hi, c, s, float(r))
        centre, weights = [Fraction(v) for v in c.tolist()], [1 / Fraction(v) for v in s.tolist()]
        start = [Fraction(v) for v in np.clip(c, lo, hi).tolist()]
        if not within(norm, start, centre, weights, Fraction(float(r))):
            continue  # the part and the ball have nothing in common
        tried += 1
        share = Fraction(1)
        point = [Fraction(v) for v in x.tolist()]
        while not within(norm, point, centre, weights, Fraction(float(r))):  # rounding may have left the ball
            share -= Fraction(1, 10**9)
            point = [b + share * (v - b) for b, v in zip(start, map(Fraction, x.tolist()), strict=True)]
        value = sum(Fraction(v) * p for v, p in zip(a.tolist(), point, strict=True))
        found = bound(norm, a, lo, hi, c, s, r)
        assert found == -np.inf or Fraction(found) <= value, (k, found, float(value))
        alone = float(np.minimum(a * lo, a * hi).sum())
        near += float(value) - found <= 1e-6 * max(float(value) - alone, 1e-9) + 1e-9 * float(np.abs(a) @ np.abs(c))
    assert tried >= (100 if not outside else 15) and near >= 0.9 * tried, f"{near} of {tried} rows are bounded well"


@pytest.mark.parametrize("norm", NORMS)
def test_rounding_is_paid_where_all_of_it_goes_one_way(norm: str) -> None:
    """Many equal cells, whose sums and roots round alike: without the charge some bound would lie above the exact least value."""
    for n in (1, 2, 3, 7, 100, 1000, 4099):
        for k in range(40):
            rng = np.random.default_rng(1000 * n + k)
            a, c, r = float(rng.uniform(0.5, 2)), float(rng.uniform(0.5, 2)), float(rng.uniform(0.5, 2))
            every = np.ones(n)
            found = bound(norm, a * every, (c - 4) * every, (c + 4) * every, c * every, every, np.array(r))
            middle = n * Fraction(a) * Fraction(c)
            fall = Fraction(a) * Fraction(r)  # l1: one cell takes it all
            if norm == "l1":
                assert Fraction(found) <= middle - fall
            else:  # the root of n times as much: compared squared
                gap = middle - Fraction(found)
                assert gap > 0 and gap * gap >= fall * fall * n


@pytest.mark.parametrize("norm", NORMS)
def test_nothing_finite_comes_of_what_is_not(norm: str) -> None:
    fine = np.ones(3)
    for at in range(6):
        for bad in (np.nan, np.inf):
            given = [np.ones(3), np.zeros(3), 2 * np.ones(3), np.ones(3), np.ones(3), np.array(1.0)]
            given[at] = np.array(bad) if at == 5 else np.where(np.arange(3) == 1, bad, fine)
            found = bound(norm, *given)
            assert not np.isnan(found) and (found == -np.inf or at in (2, 4, 5)), (at, bad, found)
            assert found <= 3 * (2 if at == 2 else 1)


@pytest.mark.parametrize("norm", NORMS)
def test_least_points_lie_in_the_box_and_about_in_the_ball(norm: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        a, lo, hi, c, s, r = drawn(rng, norm, 12)
        row, low, high, centre, scale = (torch.from_numpy(v)[None] for v in (a, lo, hi, c, s))
        x = least_points(row, low, high, InputBalls(norm, centre, scale, torch.tensor([float(r)], dtype=torch.float64)))[0].numpy()
        assert (x >= lo).all() and (x <= hi).all()
        v = np.abs(x - c) / s
        assert (v.sum() if norm == "l1" else np.sqrt((v**2).sum())) <= float(r) * (1 + 1e-3)
        assert a @ x <= a @ least_point(norm, a, lo, hi, c, s, float(r)) + 1e-3 * np.abs(a).sum() * float((s * r).max())


def test_the_stored_ball_holds_the_exact_one_and_what_a_flush_makes_of_it() -> None:
    rng = np.random.default_rng(5)
    for norm in NORMS:
        for _ in range(40):
            n = int(rng.integers(1, 12))
            centre = [Fraction(int(rng.integers(-300, 300)), int(rng.choice([255, 7, 3, 10**20]))) for _ in range(n)]
            weights = [Fraction(int(rng.integers(1, 400)), 1000) for _ in range(n)]
            radius = Fraction(int(rng.integers(0, 50)), int(rng.choice([255, 3, 10**18])))
            if rng.random() < 0.3:  # numbers that float64 has: nothing is rounded, and nothing hides what a flush costs
                centre, weights, radius = [Fraction(round(v)) for v in centre], [Fraction(1)] * n, Fraction(int(rng.integers(0, 2)))
            ball = NormBall([str(v) for v in centre], str(radius), norm, weights=[str(w) for w in weights])
            e = ball.enclosed
            assert (e.scale > 0).all()
            for i in range(n):  # where the norm is greatest: an axis, moved on by a flush
                for sign in (-1, 1):
                    point = list(centre)
                    point[i] += sign * radius / weights[i]
                    assert ball.holds(point)
                    beyond = list(point)
                    beyond[i] += sign * Fraction(1, 10**30)
                    assert not ball.holds(beyond)
                    point[i] += sign * Fraction(2) ** -126
                    stored = [Fraction(v) for v in e.centre[0].tolist()], [1 / Fraction(v) for v in e.scale[0].tolist()]
                    assert within(norm, point, *stored, Fraction(e.radius[0]))


@pytest.mark.parametrize("norm", NORMS)
def test_parts_of_boxes_keep_all_of_their_ball(norm: str) -> None:
    rng = np.random.default_rng(11)
    empty = kept = 0
    for _ in range(300):
        n = int(rng.integers(1, 6))
        _, lo, hi, c, s, r = drawn(rng, norm, n, outside=True)
        r = r * rng.choice([1.0, 0.3])
        low, high = meet_balls(lo[None], hi[None], BoxBalls(norm, c[None], s[None], np.array([float(r)])))
        centre, weights = [Fraction(v) for v in c.tolist()], [1 / Fraction(v) for v in s.tolist()]
        points = [np.clip(c, lo, hi)]
        for _ in range(30):
            d = rng.standard_normal(n)
            d /= np.abs(d).sum() if norm == "l1" else np.sqrt((d**2).sum())
            points.append(np.clip(c + s * d * float(r) * rng.choice([1.0, rng.random()]), lo, hi))
        points += [np.clip(c + sign * s * float(r) * (np.arange(n) == i), lo, hi) for i in range(n) for sign in (-1, 1)]
        inside = [p for p in points if within(norm, [Fraction(v) for v in p.tolist()], centre, weights, Fraction(float(r)))]
        for p in inside:
            assert (low[0] <= p).all() and (p <= high[0]).all()
        kept += bool(inside)
        empty += bool((low[0] > high[0]).any())
    assert kept > 100 and empty > 20


# ---- networks -----------------------------------------------------------------------------------------------------


def model(layers: list[tuple[np.ndarray, np.ndarray]], gather: list[int] | None = None, inputs: int | None = None) -> bytes:
    """Dense layers and ReLUs between; the input's cells taken by their numbers before, if asked."""
    size = inputs or layers[0][0].shape[1]
    nodes, given, last = [], [], "x"
    if gather is not None:
        given.append(numpy_helper.from_array(np.array(gather, dtype=np.int64), "cells"))
        nodes.append(helper.make_node("Gather", ["x", "cells"], ["taken"], axis=1))
        last = "taken"
    for k, (w, b) in enumerate(layers):
        given += [numpy_helper.from_array(w.T.astype(np.float32), f"w{k}"), numpy_helper.from_array(b.astype(np.float32), f"b{k}")]
        out = "y" if k + 1 == len(layers) else f"h{k}"
        nodes.append(helper.make_node("Gemm", [last, f"w{k}", f"b{k}"], [out]))
        if k + 1 < len(layers):
            nodes.append(helper.make_node("Relu", [out], [f"a{k}"]))
            last = f"a{k}"
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, len(layers[-1][1])])], given,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(made)
    return made.SerializeToString()  # type: ignore[no-any-return]


def layers(rng: np.random.Generator, *sizes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = pairwise(sizes)
    return [(rng.integers(-8, 9, (o, i)) / 8, rng.integers(-8, 9, o) / 16) for i, o in pairs]


def run(net: list[tuple[np.ndarray, np.ndarray]], x: Point) -> Point:
    for k, (w, b) in enumerate(net):
        rows = zip(w, b, strict=True)
        x = [sum((Fraction(float(c)) * v for c, v in zip(row, x, strict=True)), start=Fraction(float(d))) for row, d in rows]
        if k + 1 < len(net):
            x = [max(v, Fraction(0)) for v in x]
    return x


def points(rng: np.random.Generator, ball: NormBall, lo: Point, hi: Point, count: int) -> list[Point]:
    """Exact points of box and ball, most of them at the ball's end."""
    made = []
    for k in range(count):
        d = rng.standard_normal(len(ball)) if k % 3 else np.sign(rng.standard_normal(len(ball))) * (rng.random(len(ball)) < 0.3)
        size = np.abs(d).sum() if ball.norm == "l1" else np.sqrt((d**2).sum())
        d = d / max(size, 1e-9) * (1 - 1e-9)
        at = [c + ball.radius * Fraction(float(v)) / w for c, v, w in zip(ball.centre, d, ball.weights, strict=True)]
        at = [min(max(v, a), b) for v, a, b in zip(at, lo, hi, strict=True)]
        assert ball.holds(at)
        made.append(at)
    return made


@pytest.mark.parametrize("norm", NORMS)
def test_an_affine_network_is_bounded_exactly_but_for_rounding(norm: str) -> None:
    """y = W x + b under `real`: the least of y_0 - y_1 is known, by weights that differ from input to input."""
    rng = np.random.default_rng(2)
    for _ in range(6):
        (w, b), *_ = net = layers(rng, 9, 2)
        given = polytriton.compile(model(net), semantics="real")
        _, y = given.variables()
        centre, weights = rng.random(9), rng.integers(1, 9, 9) / 4
        ball = NormBall(centre, "3/10", norm, weights=weights)
        lo, hi = np.maximum(centre - 0.25, 0), np.minimum(centre + 0.25, 1)
        found = given.verify(Property((lo, hi), unsafe=[y[0] - y[1] <= -100], ball=ball), search="none")
        a = w[0] - w[1]
        at = least_point(norm, a, lo, hi, centre, 1 / weights, 0.3)
        least = float(a @ at + b[0] - b[1])
        assert found.verdict == "unsat"
        assert least - 1e-5 <= found.margin - 100 <= least + 1e-9
        box = given.verify(Property((lo, hi), unsafe=[y[0] - y[1] <= -100]), search="none")
        assert box.margin < found.margin - 1e-3


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_networks_never_fall_below_their_bounds(norm: str, semantics: str) -> None:
    rng = np.random.default_rng(4)
    for k in range(3):
        net = layers(rng, 6, 8, 7, 3)
        given = polytriton.compile(model(net), semantics=semantics)
        _, y = given.variables()
        centre = [Fraction(int(v), 255) for v in rng.integers(0, 256, 6)]
        ball = NormBall([str(v) for v in centre], f"{1 + k}/5", norm)
        lo, hi = [Fraction(0)] * 6, [Fraction(1)] * 6
        for search in ("none", "slopes"):
            found = given.verify(Property((0, 1), unsafe=[y[0] - y[2] <= -50], ball=ball), search=search, falsifier=False)
            assert found.verdict == "unsat"
            outputs = [run(net, p) for p in points(rng, ball, lo, hi, 80)]
            worst = min(o[0] - o[2] for o in outputs)
            assert Fraction(float(found.margin)) - 50 <= worst + Fraction(1, 10**6) * (semantics == "float32")
            assert float(worst) - (found.margin - 50) < 40 * float(ball.radius)


@pytest.mark.parametrize("norm", NORMS)
def test_an_input_read_twice_is_moved_once(norm: str) -> None:
    """y = 3 x_0 + 4 x_0 + x_1, of cells 0, 0, 1: l2 of the cells would be 5 where the input's is 7."""
    net = [(np.array([[3.0, 4.0, 1.0]]), np.zeros(1))]
    given = polytriton.compile(model(net, gather=[0, 0, 1], inputs=2), semantics="real")
    _, y = given.variables()
    p = Property(unsafe=[y[0] <= "-6.99"], ball=NormBall([0, 0], 1, norm))
    assert given.verify(p).verdict == "sat"
    far = given.verify(Property(unsafe=[y[0] <= "-7.2"], ball=NormBall([0, 0], 1, norm)), search="input", timeout=20)
    assert far.verdict == "unsat"


def corner(search: str, norm: str) -> tuple[polytriton.Verifier, Callable[[str], Stated]]:
    """y = |x_0| + ... - hinge: above the box's ball the sum reaches n, within l2 only the root of n; ReLUs make one bound too weak."""
    n = 3
    first = np.concatenate([np.eye(n), -np.eye(n)])
    net = [(first, np.zeros(2 * n)), (-np.ones((1, 2 * n)), np.zeros(1))]
    given = polytriton.compile(model(net), semantics="real")
    _, y = given.variables()
    return given, lambda level: Property(unsafe=[y[0] <= level], ball=NormBall([0.0] * n, 1, norm))


@pytest.mark.parametrize(("norm", "safe", "unsafe"), [("l2", "-1.78", "-1.70"), ("l1", "-1.05", "-0.98")])
@pytest.mark.parametrize("search", ["input", "neurons"])
def test_searches_keep_the_ball(norm: str, safe: str, unsafe: str, search: str) -> None:
    """-sum |x_i| over the ball of radius 1 around 0: at least -sqrt(3) in l2, -1 in l1, and -3 over the box around it."""
    given, asked = corner(search, norm)
    assert given.verify(asked(safe), search="none", falsifier=False).verdict == "unknown"
    found = given.verify(asked(safe), search=search, timeout=60)
    assert found.verdict == "unsat" and 0 < found.margin < 0.1
    assert found.search is not None and found.search.domains < 200, "parts cut to the ball's box alone are ten times as many, or more"
    assert given.verify(asked(unsafe), search=search, falsifier=False, timeout=1).verdict in ("unknown", "timeout")


@pytest.mark.parametrize(("norm", "safe", "unsafe"), [("l2", "-1.74", "-1.73"), ("l1", "-1.0001", "-0.9999")])
def test_counterexamples_lie_in_the_ball_exactly(norm: str, safe: str, unsafe: str) -> None:
    given, asked = corner("none", norm)
    found = given.verify(asked(unsafe), search="none")
    assert found.verdict == "sat" and found.counterexample is not None
    point = [Fraction(v) for v in found.counterexample.x.ravel().tolist()]
    assert within(norm, point, [Fraction(0)] * 3, [Fraction(1)] * 3, Fraction(1))
    assert sum(map(abs, point)) >= Fraction(unsafe) * -1
    assert given.verify(asked(safe), search="none", timeout=5).verdict != "sat"
    outside = np.full(3, 0.9 if norm == "l2" else 0.5, dtype=np.float32)
    assert asked(unsafe).violated(outside, given.predict(outside)[0]) is None, "a point beside the ball violates nothing"


def test_centres_that_no_float_equals_have_counterexamples_around_them() -> None:
    net = [(np.array([[1.0, 1.0, 1.0, 1.0]]), np.zeros(1))]
    given = polytriton.compile(model(net))
    _, y = given.variables()
    for norm, level in (("l2", "1.99"), ("l1", "1.49")):
        ball = NormBall([f"{k}/255" for k in (51, 85, 17, 102)], "1/2", norm)  # they sum to 1
        assert given.verify(Property(unsafe=[y[0] >= level], ball=ball)).verdict == "sat"
    tiny = NormBall(["1/3"] * 4, "1/10000000000", "l2")  # no float32 lies so near
    assert given.verify(Property(unsafe=[y[0] >= 0], ball=tiny), search="none").verdict == "unknown"


def test_generated_kernels_refuse_balls() -> None:
    given = polytriton.compile(model(layers(np.random.default_rng(0), 3, 4, 2)), device="interpret")
    _, y = given.variables()
    with pytest.raises(PolytritonError, match="no l2 balls"):
        given.verify(Property(unsafe=[y[0] <= y[1]], ball=NormBall([0, 0, 0], 1)))


@pytest.mark.parametrize("norm", NORMS)
def test_rows_of_a_batch_have_their_own_balls(norm: str) -> None:
    """Two images asked together, the second with ten times the radius."""
    net = [(np.array([[1.0, 2.0, -1.0], [0.0, 0.0, 0.0]]), np.zeros(2))]
    given = polytriton.compile(model(net), semantics="real")
    _, y = given.variables()
    for radii in (("1/10", "1"), ("1", "1/10")):
        asked = [Property(unsafe=[y[0] <= -100], ball=NormBall([0, 0, 0], r, norm)) for r in radii]
        found = dict(decide_together(given, asked, [None, None], falsifier=False))
        dual = Fraction(2) if norm == "l1" else Fraction(np.sqrt(6.0))
        for k, r in enumerate(radii):
            assert found[k].margin - 100 == pytest.approx(-float(Fraction(r) * dual), rel=1e-5)


DIVIDED = [pytest.param("l1", search, marks=pytest.mark.slow) for search in ("input", "neurons")]


@pytest.mark.parametrize("norm, search", [("l2", "none"), ("l2", "input"), ("l2", "neurons"), ("l1", "none"), *DIVIDED])
def test_pieces_of_one_box_have_their_own_balls(norm: str, search: str) -> None:
    """Two pieces of the same box: only in the second one's ball is the level passed, also where boxes are divided."""
    first = np.concatenate([np.eye(3), -np.eye(3)])
    given = polytriton.compile(model([(first, np.zeros(6)), (-np.ones((1, 6)), np.zeros(1))]), semantics="real")
    _, y = given.variables()
    small, large = (NormBall([0, 0, 0], r, norm) for r in ("1/4", "1"))
    (piece,) = Property((-1, 1), unsafe=[y[0] <= "-0.9"]).disjuncts
    for balls in ((small, large), (large, small)):
        prop = Property.from_disjuncts("two", 3, 1, tuple(replace(piece, ball=b) for b in balls))
        found = given.verify(prop, search=search, falsifier=False, timeout=1)
        assert found.verdict != "unsat"
        assert found.margins[balls.index(large)] <= 0
        point = np.array([0.3, 0.3, 0.31] if norm == "l1" else [0.5, 0.5, 0.5], dtype=np.float32)
        assert prop.violated(point, given.predict(point)[0]) == balls.index(large)
        hit = given.verify(prop, search=search)
        assert hit.verdict == "sat"


def test_a_ball_over_cells_that_are_one_input_is_left_out() -> None:
    """No pass moves such cells to the input today; a norm of them would count one move twice."""
    ball = InputBalls("l2", torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1))
    for take, kept in (([0, 1], True), ([1, -1, 0], True), ([0, 0, 1], False)):
        net = SimpleNamespace(input="x", weight=lambda node, name, take=take: np.array(take))
        cells = SimpleNamespace(net=net, arrange=lambda v, take=take: v[:, [max(k, 0) for k in take]])
        assert (Forward.arranged_ball(cells, ball) is not None) == kept  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", NORMS)
def test_points_are_drawn_into_the_ball_exactly(norm: str) -> None:
    rng = np.random.default_rng(6)
    for _ in range(30):
        n = int(rng.integers(1, 30))
        centre = [str(Fraction(int(v), 255)) for v in rng.integers(0, 256, n)]
        weights = [str(Fraction(int(v), 4)) for v in rng.integers(1, 9, n)]
        ball = NormBall(centre, "1/7", norm, weights=weights)
        lo, hi = np.zeros(n, dtype=np.float32), np.ones(n, dtype=np.float32)
        points = Room((lo, hi), ball).draw_inside(rng.uniform(-1, 2, (40, n)))
        assert points.dtype == np.float32 and (points >= lo).all() and (points <= hi).all()
        assert all(ball.holds([Fraction(v) for v in p]) for p in points.tolist())
