"""Row passes in Triton's interpreter: the ReLU's substitution, the scalars of affine steps, candidate bounds; in exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.ir.plan import Axis, Window
from polytriton.rounding import dot_error
from tests.kernels.steps import FLOATS, KINDS, Scalars, Scene, blocks, covers, draw, exact, run, scalars, scene

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
TYPES = ("float64", "float32")
INF, NAN = float("inf"), float("nan")
seeds = st.integers(0, 2**32 - 1)


# ---- ReLU and scalars -----------------------------------------------------------------------------------------------


def relaxed(s: Scalars, m: np.ndarray, numerics: str, br: int, bq: int) -> dict[str, np.ndarray]:
    over = s.over
    constants = {**s.constants, **over.lengths(), **over.place(), "BR": br, "BQ": bq}
    out = np.full((over.capacity, *over.cells), NAN, m.dtype)
    return run("relax_rows", constants, numerics, (blocks(over.capacity, br), 1), {**over.rows(), **s.tables, "m": m, "out": out})


@given(seeds, st.booleans(), st.sampled_from(("relu", "charge", "both")), st.sampled_from(KINDS), st.sampled_from(TYPES))
@limits(max_examples=50)
def test_relax_rows(seed: int, slots: bool, work: str, kind: str, numerics: str) -> None:
    rng = np.random.default_rng(seed)
    over, dtype = scene(rng, slots=slots), FLOATS[numerics]
    form = str(rng.choice(["none", "line", "image"] if over.window.whole else ["none", "line"]))
    s = scalars(rng, over, work != "charge", work != "relu", form, kind, dtype)
    m = over.coefficients(rng, kind, dtype)
    found = relaxed(s, m, numerics, int(rng.choice([1, 2, 16])), int(rng.choice([2, 8, 128])))
    s.check(m, found, tight=kind != "huge")
    if s.relu:
        assert np.array_equal(found["out"][: over.count], s.substituted(m))
        assert np.isnan(found["out"][over.count :]).all()


def one(count: int = 2, cells: int = 3, channels: int = 3) -> Scene:
    """Rows on the whole of an image, one after the other."""
    whole = Window(Axis(cells, 0, 0), Axis(cells, 0, 0))
    zero = np.zeros(count, np.int64)
    return Scene((cells, cells, channels), whole, (1, 1), 1, count, zero, zero, zero, None)


def bounds(
    over: Scene, m: np.ndarray, lo: np.ndarray, hi: np.ndarray, constant: np.ndarray, error: np.ndarray, numerics: str, **other: np.ndarray
) -> dict[str, np.ndarray]:
    """Candidate bounds over a frontier of one node."""
    n = over.capacity
    constants = {
        "SLOT": False, **over.lengths(), **over.place(), **over.geometry(), "REL": dot_error(over.size), "FIRST": True, "LAST": True,
        "NODES": 1, "BR": 2, "BQ": 8,
    }  # fmt: skip
    order = np.arange(n)
    values = {
        **over.rows(), "m": m, "lo": lo, "hi": hi, "floor": np.zeros(over.batch), "constant": constant, "error": error,
        "value": np.full(n, NAN), "raw": np.full(n, NAN), "slack": np.full(n, NAN), "index": order, "group": order,
        "best": np.full(n, -INF), "raw_best": np.full(n, -INF), "done": np.zeros(n, np.int8), "limit": np.zeros(1), **other,
    }  # fmt: skip
    return run("concretize_rows", constants, numerics, (blocks(n, 2), 1), values)


@pytest.mark.parametrize("what", ["cuts", "vector", "constant"])
def test_roundings_that_all_go_one_way_are_paid(what: str) -> None:
    """Each sum begins with 1, and every addition drops a little less than half a unit in its last place."""
    over, k = one(1, 1, 400), 400
    s = scalars(np.random.default_rng(0), over, what != "vector", what == "vector", "none", "integers", np.float64)
    for name in ("cut", "floor", "constant", "error"):
        s.tables[name][:] = 0
    little = 0.49 * 2.0**-52
    terms = np.full(k, little)
    terms[:2] = 1
    if what == "constant":
        s.tables["constant"][:], terms = 1, np.where(np.arange(k) == 0, little / 2, 0)
    s.tables["above"][:] = 1
    table, place = (s.t0, s.then) if what == "vector" else (s.tables["cut"], s.over)
    table[:] = 0
    table[0, place.halo[0], place.halo[1]] = terms
    s.tables["t"][:] = s.t0 if what == "vector" else 0
    m = -np.ones((over.capacity, *over.cells))
    s.check(m, relaxed(s, m, "float64", 1, 2))


@pytest.mark.parametrize("numerics", TYPES)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("where", ["m", "cut", "above", "t", "bias", "floor", "constant", "error"])
def test_nothing_finite_comes_of_a_broken_row(where: str, bad: float, numerics: str) -> None:
    """The first row's pass meets a number that is none: after the check it has no bound. The second row keeps its own."""
    rng = np.random.default_rng(3)
    over, dtype = one(), FLOATS[numerics]
    over = Scene(over.shape, over.window, over.positions, 2, 2, np.array([0, 1]), over.row_h, over.row_w, None)
    s = scalars(rng, over, True, True, "line", "one sign", dtype)
    m = -over.coefficients(rng, "one sign", dtype)
    s.tables["above"][:] = 0.5
    broken = m if where == "m" else s.tables[where]
    if where == "bias":
        broken[1] = bad
    else:
        broken.reshape(2, -1)[0, -1] = bad
    lo, hi = (sign * np.ones((2, *over.frame), dtype) for sign in (-1, 1))
    after = relaxed(s, m, numerics, 2, 8)
    found = bounds(over, after["out"], lo, hi, after["constant"], after["error"], numerics)
    assert found["best"][0] == found["raw_best"][0] == -INF or where in ("t", "floor", "error")
    assert found["best"][0] == -INF and found["done"][0] == 0
    if where != "bias":
        assert np.isfinite(found["best"][1]) and np.isfinite(found["raw_best"][1])


# ---- candidate bounds -----------------------------------------------------------------------------------------------


@given(seeds, st.booleans(), st.sampled_from(KINDS), st.sampled_from(TYPES), st.sampled_from((1, 2, 3)))
@limits(max_examples=50)
def test_concretize_rows(seed: int, slots: bool, kind: str, numerics: str, nodes: int) -> None:
    """Frontiers of one to three nodes, each with its own window, slots and box; groups and limits."""
    rng = np.random.default_rng(seed)
    first, dtype = scene(rng, slots=slots), FLOATS[numerics]
    n, count = first.capacity, first.count
    constant, error = draw(rng, (n,), kind), np.abs(draw(rng, (n,), kind))
    places, groups = n + 2, int(rng.integers(1, 4))
    index, group = rng.permutation(places)[:n], rng.integers(0, groups, places)
    before, limit = draw(rng, (places,), kind), float(rng.choice([0.0, -5e-324, INF]))
    best, raw_best = np.where(rng.random(places) < 0.5, -INF, before), np.where(rng.random(places) < 0.5, -INF, before)
    state = {
        "value": np.full(n, NAN), "raw": np.full(n, NAN), "slack": np.full(n, NAN), "index": index, "group": group, "best": best,
        "raw_best": raw_best, "done": np.zeros(groups, np.int8), "limit": np.array([limit]), "constant": constant, "error": error,
    }  # fmt: skip
    demand = [Fraction(float(c)) - Fraction(float(e)) for c, e in zip(constant, error, strict=True)]
    least = [Fraction(float(c)) for c in constant]
    size = [abs(Fraction(float(c))) + Fraction(float(e)) for c, e in zip(constant, error, strict=True)]
    for k in range(nodes):
        over = first if k == 0 else first.beside(rng)
        pending = float(rng.choice([0.0, 2.0**-24]))
        m, (a, b) = over.coefficients(rng, kind, dtype), (over.table(rng, kind, dtype) for _ in "ab")
        lo, hi, floor = np.minimum(a, b), np.maximum(a, b), np.abs(draw(rng, (over.batch,), kind))
        tiles = {"BR": int(rng.choice([1, 4])), "BQ": int(rng.choice([4, 64]))}
        constants = {
            "SLOT": slots, **over.lengths(), **over.place(), **over.geometry(), "REL": dot_error(over.size) + pending, "FIRST": k == 0,
            "LAST": k == nodes - 1, "NODES": nodes, **tiles,
        }  # fmt: skip
        grid = blocks(n, tiles["BR"]) + 1, 1
        state |= run("concretize_rows", constants, numerics, grid, {**state, **over.rows(), "m": m, "lo": lo, "hi": hi, "floor": floor})
        x, low, high = over.taken(m), over.under(lo), over.under(hi)
        for r in range(count):
            sum_ = exact(x[r], np.where(x[r] < 0, high[r], low[r]))
            weight = exact(np.abs(x[r]), np.maximum(np.abs(low[r]), np.abs(high[r])))
            lost = Fraction(float(floor[over.image[r]]))
            least[r], size[r] = least[r] + sum_, size[r] + weight + lost
            demand[r] += sum_ - Fraction(pending) * weight - lost
    done = np.zeros(groups, np.int8)
    for r in range(count):
        at, room = index[r], Fraction(2.0**-40) * size[r] + Fraction(1e-280)
        got, raw = float(state["best"][at]), float(state["raw_best"][at])
        assert (got >= best[at] and raw >= raw_best[at]) and (kind == "huge" or np.isfinite(got + raw))
        assert got == best[at] or covers(got, 0.0, demand[r], size[r])
        assert raw == raw_best[at] or abs(Fraction(raw) - least[r]) <= room
        if kind != "huge":
            assert Fraction(got) >= demand[r] - room and Fraction(raw) >= least[r] - room
        done[group[at]] |= got > limit
    assert np.array_equal(state["done"], done)
    others = np.setdiff1d(np.arange(places), index[:count])
    assert np.array_equal(state["best"][others], best[others]) and np.array_equal(state["raw_best"][others], raw_best[others])


@pytest.mark.parametrize("numerics", TYPES)
@pytest.mark.parametrize("lo,hi", [(-INF, INF), (-INF, 1.0), (-1.0, INF), (INF, INF), (-INF, -INF), (NAN, NAN)], ids=lambda v: str(v))
@pytest.mark.parametrize("m", [1.0, -1.0, 0.0])
def test_a_frontier_with_an_unbounded_cell_has_no_bound(m: float, lo: float, hi: float, numerics: str) -> None:
    over, dtype = one(), FLOATS[numerics]
    rows = np.ones((2, *over.cells), dtype)
    rows[0, 2, 2, 1] = m
    low, high = -np.ones((1, *over.frame), dtype), np.ones((1, *over.frame), dtype)
    low[0, 2, 2, 1], high[0, 2, 2, 1] = lo, hi
    found = bounds(over, rows, low, high, np.zeros(2), np.zeros(2), numerics)
    assert (found["best"] == -INF).all() and not found["done"].any()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["constant", "error", "m", "floor"])
def test_a_number_that_is_none_gives_no_bound_and_takes_none_away(name: str, bad: float) -> None:
    over = one()
    low, high = -np.ones((1, *over.frame)), np.ones((1, *over.frame))
    values = {"constant": np.full(2, 100.0), "error": np.zeros(2), "m": np.ones((2, *over.cells)), "floor": np.zeros(1)}
    values[name].reshape(-1)[0] = bad
    best = np.array([3.0, -INF])
    more = {"best": best, "floor": values["floor"]}
    found = bounds(over, values["m"], low, high, values["constant"], values["error"], "float64", **more)
    assert found["best"][0] == 3.0
    assert found["best"][1] == (-INF if name == "floor" else pytest.approx(100 - 27))


@pytest.mark.parametrize("limit,value,done", [(0.0, 0.0, 0), (-5e-324, 0.0, 1), (-5e-324, -1e-200, 0), (0.0, 1e-200, 1), (INF, 1e300, 0)])
def test_who_is_done_is_told_by_the_limit(limit: float, value: float, done: int) -> None:
    """By a bound found earlier: this check's own is lower."""
    over = one(1, 1, 1)
    table = np.zeros((1, 1, 1, 1))
    more = {"limit": np.array([limit]), "best": np.array([value])}
    found = bounds(over, np.ones((1, 1, 1, 1)), table, table, np.full(1, -1e299), np.zeros(1), "float64", **more)
    assert found["done"][0] == done and found["best"][0] == value


def test_the_last_addition_is_paid() -> None:
    """1 + 0.51 units in the last place rounds up, to more than the row promises."""
    over, little = one(1, 1, 1), 0.51 * 2.0**-52
    table = np.full((1, 1, 1, 1), little)
    found = bounds(over, np.ones((1, 1, 1, 1)), table, table, np.ones(1), np.zeros(1), "float64")
    assert found["raw_best"][0] == 1 + 2.0**-52
    assert 1 + Fraction(little) - Fraction(2.0**-40) <= Fraction(float(found["best"][0])) <= 1 + Fraction(little)
