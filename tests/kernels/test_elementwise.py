"""ReLUs with a slope of their own and multiplications cell by cell, in Triton's interpreter; in exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.plan import Axis, Window
from polytriton.rounding import dot_error, sum_error
from tests.kernels.steps import ETA, FLOATS, KINDS, Scene, blocks, covers, draw, exact, run, scene

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
NAN = float("nan")
FULL = 1 + 2.0**-20
seeds = st.integers(0, 2**32 - 1)
types = st.sampled_from(("float64", "float32"))


def paid(over: Scene, rng: np.random.Generator, kind: str) -> dict[str, np.ndarray]:
    return {"constant": draw(rng, (over.capacity,), kind), "error": np.abs(draw(rng, (over.capacity,), kind))}


def one(cells: int, channels: int, count: int = 2) -> Scene:
    """Rows on the whole of an image."""
    whole, zero = Window(Axis(cells, 0, 0), Axis(cells, 0, 0)), np.zeros(count, np.int64)
    return Scene((cells, cells, channels), whole, (1, 1), 1, count, zero, zero, zero, None)


# ---- slopes ---------------------------------------------------------------------------------------------------------


def lines(over: Scene, rng: np.random.Generator, kind: str, dtype: type) -> dict[str, np.ndarray]:
    shape = (over.batch, *over.frame)
    ends = [over.table(rng, kind, dtype) for _ in "lh"]
    return {
        "below": rng.choice([0.0, 0.01, 1.0], shape).astype(dtype), "above": rng.choice([0.0, 0.25, 1 / 3, -2.0, 1.0], shape).astype(dtype),
        "lower": -np.abs(over.table(rng, kind, dtype)), "cut": np.abs(over.table(rng, kind, dtype)),
        "lo": np.minimum(*ends), "hi": np.maximum(*ends),
    }  # fmt: skip


def sloped(over: Scene, values: dict[str, np.ndarray], m: np.ndarray, numerics: str, lower: bool, pending: float, br: int, bq: int):  # type: ignore[no-untyped-def]
    constants = {
        "LOWER": lower, "PENDING": pending * sum_error(over.size), "SLOT": over.slot is not None, **over.lengths(), **over.place(),
        **over.geometry(), "SUM_ERROR": sum_error(over.size), "BR": br, "BQ": bq,
    }  # fmt: skip
    out = np.full((over.capacity, *over.cells), NAN, m.dtype)
    return run("slope_rows", constants, numerics, (blocks(over.capacity, br) + 1, 1), {**over.rows(), **values, "m": m, "out": out})


@given(seeds, st.booleans(), st.booleans(), st.booleans(), st.sampled_from(KINDS), types)
@limits(max_examples=50)
def test_slope_rows(seed: int, slots: bool, lower: bool, pends: bool, kind: str, numerics: str) -> None:
    rng = np.random.default_rng(seed)
    over, dtype = scene(rng, slots=slots), FLOATS[numerics]
    pending = ARITHMETICS[numerics].u * FULL if pends else 0.0
    tables, before, floor = lines(over, rng, kind, dtype), paid(over, rng, kind), np.full(over.batch, 1e-290)
    m = over.coefficients(rng, kind, dtype)
    br, bq = int(rng.choice([1, 2, 16])), int(rng.choice([2, 8, 128]))
    found = sloped(over, {**tables, **before, "floor": floor}, m, numerics, lower, pending, br, bq)
    x, under = over.taken(m), {k: over.under(t) for k, t in tables.items()}
    want = x * np.where(x < 0, under["above"], under["below"])
    assert np.array_equal(found["out"][: over.count], want, equal_nan=True) and np.isnan(found["out"][over.count :]).all()
    xabs = np.maximum(np.abs(under["lo"]), np.abs(under["hi"]))
    for r in range(over.count):
        c, e = Fraction(float(before["constant"][r])), Fraction(float(before["error"][r]))
        cuts = exact(np.minimum(x[r], 0), under["cut"][r]) + (exact(np.maximum(x[r], 0), under["lower"][r]) if lower else 0)
        weight = Fraction(pending) * exact(np.abs(x[r]), xabs[r])
        demand, size = c - e + cuts - weight, abs(c) + e - cuts + weight
        constant, error = float(found["constant"][r]), float(found["error"][r])
        assert covers(constant, error, demand, size), (r, constant, error, float(demand))
        assert kind == "huge" or np.isfinite(constant - error)
    for name in ("constant", "error"):
        assert np.array_equal(found[name][over.count :], before[name][over.count :])


@pytest.mark.parametrize("what", ["cut", "lower"])
def test_the_intercepts_of_either_side_are_enlarged(what: str) -> None:
    """Each sum begins with 1, and every addition drops a little less than half a unit in its last place."""
    over, k = one(1, 400), 400
    tables = lines(over, np.random.default_rng(0), "integers", np.float64)
    tables["lower"][:], tables["cut"][:] = 0, 0
    side = 1.0 if what == "lower" else -1.0
    tables[what][:] = -side * 0.9 * 2.0**-53
    tables[what].reshape(-1)[0] = -side
    m = np.full((2, 1, 1, k), side)
    values = {**tables, "constant": np.zeros(2), "error": np.zeros(2), "floor": np.zeros(1)}
    found = sloped(over, values, m, "float64", True, 0.0, 2, 1)
    due = exact(np.abs(m[0]), np.abs(tables[what]))
    lost = due - 1  # what a plain sum would not have seen
    assert lost > Fraction(100 * 2.0**-53)
    for r in range(2):
        value = Fraction(float(found["constant"][r])) - Fraction(float(found["error"][r]))
        assert -due - 10 * lost <= value <= -due


def test_pending_roundings_are_paid_before_they_are_forgotten() -> None:
    """Lines that are zero say nothing of y: what M_j may be off must stand in the error, not a hundredth more."""
    rng = np.random.default_rng(1)
    for numerics in ("float64", "float32"):
        over, dtype, u = one(2, 3), FLOATS[numerics], ARITHMETICS[numerics].u
        tables = lines(over, rng, "integers", dtype)
        for name in ("below", "above", "lower", "cut"):
            tables[name][:] = 0
        m = draw(rng, (2, *over.cells), "one sign", dtype)
        values = {**tables, "constant": np.zeros(2), "error": np.zeros(2), "floor": np.zeros(1)}
        found = sloped(over, values, m, numerics, True, u * FULL, 2, 4)
        xabs = np.maximum(np.abs(tables["lo"]), np.abs(tables["hi"]))[0]
        for r in range(2):
            due = Fraction(u) * exact(np.abs(m[r]), xabs)
            assert due <= Fraction(float(found["error"][r])) <= due * Fraction(101, 100)
        assert not found["out"].any()


@pytest.mark.parametrize("numerics", ["float64", "float32"])
@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
def test_a_slope_keeps_what_is_no_number(numerics: str, bad: float) -> None:
    rng, over, dtype = np.random.default_rng(2), one(1, 8), FLOATS[numerics]
    tables = lines(over, rng, "one sign", dtype)
    tables["below"][:], tables["above"][:] = 0.5, 0.5
    m = np.ones((2, 1, 1, 8), dtype)
    m[0, 0, 0, 3] = bad
    values = {**tables, "constant": np.zeros(2), "error": np.zeros(2), "floor": np.zeros(1)}
    found = sloped(over, values, m, numerics, True, ARITHMETICS[numerics].u, 2, 8)
    assert not np.isfinite(found["out"][0, 0, 0, 3]) and not np.isfinite(found["constant"][0] - found["error"][0])
    assert np.isfinite(found["out"][1]).all() and np.isfinite(found["constant"][1] - found["error"][1])


# ---- scales ---------------------------------------------------------------------------------------------------------


def scaled(over: Scene, values: dict[str, np.ndarray], m: np.ndarray, numerics: str, br: int, bq: int) -> dict[str, np.ndarray]:
    constants = {
        "SLOT": over.slot is not None, **over.lengths(), **over.place(), **over.geometry(), "SUM_ERROR": sum_error(over.size),
        "BR": br, "BQ": bq,
    }  # fmt: skip
    out = np.full((over.capacity, *over.cells), NAN, m.dtype)
    return run("scale_rows", constants, numerics, (blocks(over.capacity, br) + 1, 1), {**over.rows(), **values, "m": m, "out": out})


@given(seeds, st.booleans(), st.sampled_from(KINDS), types)
@limits(max_examples=50)
def test_scale_rows(seed: int, slots: bool, kind: str, numerics: str) -> None:
    """One image's factors and shifts serve all images; t is every image's own."""
    rng = np.random.default_rng(seed)
    over, dtype = scene(rng, slots=slots), FLOATS[numerics]
    factor, shift = draw(rng, over.frame, kind, dtype), draw(rng, over.frame, kind)
    t0, before = np.abs(over.table(rng, kind, dtype)), paid(over, rng, kind)
    with np.errstate(over="ignore"):  # t carries the rounding of the shifts' sum, as tables.charge has it
        t = (t0 + 1.001 * dot_error(over.size) * np.abs(shift).max(initial=0.0) * (1 + 1e-6)).astype(dtype)
    floor = np.abs(draw(rng, (over.batch,), kind))
    m = over.coefficients(rng, kind, dtype)
    values = {**before, "factor": factor, "shift": shift, "t": t, "floor": floor}
    found = scaled(over, values, m, numerics, int(rng.choice([1, 2, 16])), int(rng.choice([2, 8, 128])))
    x = over.taken(m)
    every = {k: over.under(np.broadcast_to(v, (over.batch, *over.frame))) for k, v in (("factor", factor), ("shift", shift))}
    assert np.array_equal(found["out"][: over.count], x * every["factor"], equal_nan=True) and np.isnan(found["out"][over.count :]).all()
    charged = over.under(t0)
    for r in range(over.count):
        c, e, low = (Fraction(float(v)) for v in (before["constant"][r], before["error"][r], floor[over.image[r]]))
        demand = c - e - low + exact(x[r], every["shift"][r]) - exact(np.abs(x[r]), charged[r])
        size = abs(c) + e + low + exact(np.abs(x[r]), charged[r])
        size += exact(np.abs(x[r]), np.full(x[r].shape, np.abs(shift).max(initial=0.0)))
        constant, error = float(found["constant"][r]), float(found["error"][r])
        assert covers(constant, error, demand, size), (r, constant, error, float(demand))
        assert kind == "huge" or np.isfinite(constant - error)
    for name in ("constant", "error"):
        assert np.array_equal(found[name][over.count :], before[name][over.count :])


@pytest.mark.parametrize("numerics", ["float64", "float32"])
def test_a_scaled_coefficient_is_off_by_one_rounding(numerics: str) -> None:
    """The bound u |M a| + eta of K = 1, reached to a tenth and never passed."""
    rng, over, dtype = np.random.default_rng(3), one(1, 512), FLOATS[numerics]
    m, factor = draw(rng, (2, *over.cells), "mixed", dtype), draw(rng, over.frame, "mixed", dtype)
    values = {"factor": factor, "shift": np.zeros(over.frame), "t": np.zeros((1, *over.frame), dtype), "floor": np.zeros(1)}
    out = scaled(over, {**values, "constant": np.zeros(2), "error": np.zeros(2)}, m, numerics, 2, 64)["out"]
    worst = Fraction(0)
    for x, a, y in zip(m[0].ravel(), factor.ravel(), out[0].ravel(), strict=True):
        bound = Fraction(ARITHMETICS[numerics].u) * abs(exact([x], [a])) + Fraction(ETA[dtype])
        worst = max(worst, abs(Fraction(float(y)) - exact([x], [a])) / bound)
    assert Fraction(9, 10) < worst <= 1
