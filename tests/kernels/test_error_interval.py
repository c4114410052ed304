"""How wide the interval kernels' results are: they hold the exact range, are no wider than their roundings say, and nearly that wide.

Every directed rounding moves an end outward by less than one ulp, 2 u of its result (u = 2^-24 or 2^-53). So beyond the exact range
lie at most, a side and in units of the sum of the magnitudes of all terms,

    dense, conv     2 u K for K terms an entry, one fused operation each
    join, scale     2 u: one operation, so the end is the next number
    neurons         2 U of the constant and its box
    relax, concretize, check   U (2 ceil(SIZE / BQ) + 3 LANES + 8), LANES = min(SIZE, BQ): the lanes' own sums are rounded outward, adding
                    LANES of them loses LANES - 1, is charged 2 LANES (interval.lane_error), and three operations are left
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Constant, Constants
from tests.kernels.steps import exact, run

pytest.importorskip("triton", reason="Triton is not installed")
TYPES = ("interval64", "interval32")
DTYPE = {"interval64": np.float64, "interval32": np.float32}
K, N = 96, 4
U = Fraction(1, 2**53)
Array = np.ndarray


def rows(numerics: str, part: float) -> Array:
    """Three rows: 1 and parts of its last place; the same with both signs, which cancel; numbers of all sizes."""
    rng, dtype, ulp = np.random.default_rng(14), DTYPE[numerics], 2 * ARITHMETICS[numerics].u
    one = np.where(np.arange(K) == 0, 1.0, part * ulp)
    both = np.where(np.arange(K) % 2 == 0, 1 + ulp * np.arange(K), -1.0 + part * ulp)
    return np.stack([one, both, rng.standard_normal(K) * 10.0 ** rng.integers(-6, 7, K)]).astype(dtype)


def held(low: float, high: float, total: Fraction, size: Fraction, per: Fraction) -> Fraction:
    """The larger share of per * size that an end lies outside the exact value; never inside, never further."""
    below, above = total - Fraction(float(low)), Fraction(float(high)) - total
    room = per * size
    assert 0 <= below <= room and 0 <= above <= room, (float(below / room), float(above / room))
    return max(below, above) / room


def product(name: str, more: Constants, m: Array, w: Array, numerics: str) -> tuple[Array, Array]:
    zero = np.zeros(len(m), np.int64)
    known: Constants = {"T": ARITHMETICS[numerics].type, "SLOT": False, "BM": 4, "BN": N, "BK": 32, "RM": 4, "RN": N, "INTERPRET": True}
    given = {"lo_m": m, "hi_m": m, "w": w, "row_h": zero, "row_w": zero, "count": np.array([len(m)])}
    made = {"out_lo": np.zeros((len(m), N), m.dtype), "out_hi": np.zeros((len(m), N), m.dtype)}
    found = run(name, {**known, **more}, numerics, (1, 1), {**given, **made})
    return found["out_lo"], found["out_hi"]


def dense(m: Array, w: Array, numerics: str) -> tuple[Array, Array]:
    return product("interval_dense", {"K": K, "N": N}, m, w, numerics)


def conv(m: Array, w: Array, numerics: str) -> tuple[Array, Array]:
    """The same sums as a convolution of 2x2 taps of K/4 channels that meet in one cell."""
    one = dict.fromkeys(("HO", "WO", "SH", "SW", "DH", "DW", "PH", "PW", "G", "TOP", "LEFT"), 1)
    nothing = dict.fromkeys(("IH", "IW", "TO_RH", "TO_OH", "TO_RW", "TO_OW"), 0)
    sizes: Constants = {**one, **nothing, "H": 2, "W": 2, "CO": K // 4, "CI": N, "KH": 2, "KW": 2, "MASK": False, "SPAN": 1}
    return product("interval_conv", sizes, m, w.reshape(2, 2, K // 4, N)[::-1, ::-1], numerics)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("part", [0.02, 0.98])
@pytest.mark.parametrize("numerics", TYPES)
@pytest.mark.parametrize("step", [dense, conv])
def test_a_product_is_wider_by_its_roundings_alone(step: object, numerics: str, part: float) -> None:
    m, w = rows(numerics, part), np.ones((K, N), DTYPE[numerics])
    w[:, 1:] = 1 + 2.0**-10 * np.random.default_rng(1).integers(0, 3, (K, N - 1))
    low, high = step(m, w, numerics)  # type: ignore[operator]
    per = 2 * Fraction(ARITHMETICS[numerics].u) * K * (1 + Fraction(1, 2**10))
    shares = [held(low[r, n], high[r, n], exact(m[r], w[:, n]), exact(np.abs(m[r]), w[:, n]), per) for r in range(3) for n in range(N)]
    assert max(shares) > Fraction(1, 5), float(max(shares))


# ---- one operation --------------------------------------------------------------------------------------------------


def flat(bq: int) -> Constants:
    window = dict.fromkeys(("RH", "OH", "RW", "OW", "START"), 0)
    return {"SLOT": False, "SIZE": K, "LINE": K, "C": K, "PLANE": K, "PITCH": K, **window, "BR": 4, "BQ": bq, "INTERPRET": True}


def given(m: Array) -> dict[str, Array]:
    zero = np.zeros(len(m), np.int64)
    places = {"image": zero, "row_h": zero, "row_w": zero, "count": np.array([len(m)])}
    ends = {"lo_m": m, "hi_m": m, "out_lo": np.zeros_like(m), "out_hi": np.zeros_like(m)}
    return {**places, **ends, "constant_lo": np.zeros(len(m)), "constant_hi": np.zeros(len(m))}


@pytest.mark.parametrize("numerics", TYPES)
def test_a_scale_is_the_two_nearest_numbers(numerics: str) -> None:
    m, per = rows(numerics, 0.5), 2 * Fraction(ARITHMETICS[numerics].u) * (1 + Fraction(1, 2**10))
    factor = (1 + np.random.default_rng(2).random(K)).astype(m.dtype)
    found = run("interval_scale", flat(16), numerics, (1, 1), {**given(m), "factor": factor})
    ends, worst = (found["out_lo"].ravel().tolist(), found["out_hi"].ravel().tolist()), Fraction(0)
    for low, high, x, s in zip(*ends, m.ravel().tolist(), np.tile(factor, len(m)).tolist(), strict=True):
        worst = max(worst, held(low, high, exact([x], [s]), abs(exact([x], [s])), per))
    assert worst > Fraction(9, 10)
    pairs = zip(found["out_lo"].ravel(), found["out_hi"].ravel(), strict=True)
    assert all(hi in (lo, np.nextafter(lo, m.dtype.type(np.inf))) for lo, hi in pairs)


@pytest.mark.parametrize("numerics", TYPES)
def test_a_join_is_the_two_nearest_numbers(numerics: str) -> None:
    m = rows(numerics, 0.02)
    b = np.roll(m, 1, 1)
    cells = {**dict.fromkeys(("HO", "WO", "AH", "AW", "BH", "BW", "A_SIGN"), 1), "B_SIGN": -1}
    window = {f"{p}{n}": 0 for p in ("", "A_", "B_") for n in ("RH", "OH", "RW", "OW")}
    more = {"SECOND": True, "A_SLOT": False, "B_SLOT": False, "C": K, "BR": 4, "BQ": 16, "INTERPRET": True}
    values = {**given(m), "a_lo": m, "a_hi": m, "b_lo": b, "b_hi": b}
    found = run("interval_join", {**cells, **window, **more}, numerics, (1, 1), values)
    worst = Fraction(0)
    for r, q in np.ndindex(m.shape):
        low, high = float(found["out_lo"][r, q]), float(found["out_hi"][r, q])
        total = Fraction(float(m[r, q])) - Fraction(float(b[r, q]))
        assert high in (low, float(np.nextafter(m.dtype.type(low), m.dtype.type(np.inf))))
        worst = max(worst, held(low, high, total, max(abs(total), Fraction(1e-300)), 2 * Fraction(ARITHMETICS[numerics].u)))
    assert worst > Fraction(8, 10)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_neuron_takes_its_constant_to_the_nearest_numbers(sign: float) -> None:
    box = np.array([0.02 * 2.0**-52, 0.98 * 2.0**-52, 1.5])
    n, zero = len(box), np.zeros(3, np.int64)
    places = {"image": zero, "row_h": zero, "row_w": zero, "channel": np.arange(n), "count": np.array([n]), "sign": np.full(n, sign)}
    paid = {"constant_lo": np.ones(n), "constant_hi": np.ones(n), "box_lo": box, "box_hi": box}
    known: Constants = {"C": n, "START": 0, "PLANE": n, "PITCH": n, "BR": 4, "INTERPRET": True}
    found = run("interval_neurons", known, "interval64", (1, 1), {**places, **paid})
    worst = Fraction(0)
    for r in range(n):
        total = 1 + Fraction(sign) * Fraction(box[r])
        worst = max(worst, held(found["constant_lo"][r], found["constant_hi"][r], total, abs(total), 2 * U))
    assert worst > Fraction(4, 10)


# ---- sums over a row ------------------------------------------------------------------------------------------------


def summed(name: str, m: Array, numerics: str, bq: int) -> tuple[Array, Array]:
    """Each row's sum of m times one, by the constants' step of a pass; its two ends, of `check` the value and the other way round."""
    ones, more = np.ones(K), dict[str, Constant]()
    values = {**given(m), "box_lo": ones, "box_hi": ones, "value_lo": np.zeros(3), "value_hi": np.zeros(3)}
    ends = ("value_lo", "value_hi")
    if name == "interval_relax":  # all coefficients below zero: the cut joins the constant
        zeros = np.zeros(K, m.dtype)
        values |= {"lo_m": -m, "hi_m": -m, "cut": -np.ones(K, m.dtype), "below": zeros, "above": zeros, "lower": zeros}
        more, ends = {"LOWER": False}, ("constant_lo", "constant_hi")
    if name == "interval_check":
        order, low = np.arange(3), np.full(3, -np.inf)
        state = {"value": np.zeros(3), "raw": np.zeros(3), "index": order, "group": order, "best": low, "raw_best": low}
        values |= {**state, "done": np.zeros(3, np.int8), "limit": np.array([np.inf])}
        more = {"FIRST": True, "LAST": True}
        turned = run(name, {**flat(bq), **more}, numerics, (1, 1), {**values, "lo_m": -m, "hi_m": -m})["best"]
        return run(name, {**flat(bq), **more}, numerics, (1, 1), values)["best"], -turned
    found = run(name, {**flat(bq), **more}, numerics, (1, 1), values)
    return found[ends[0]], found[ends[1]]


@pytest.mark.parametrize("bq", [4, 512])
@pytest.mark.parametrize("numerics", TYPES)
@pytest.mark.parametrize("name", ["interval_relax", "interval_concretize", "interval_check"])
def test_a_rows_sum_is_wider_by_its_roundings_and_its_lanes_charge(name: str, numerics: str, bq: int) -> None:
    m = rows("interval64", 0.02)
    m = np.abs(m) if name == "interval_relax" else m
    if numerics == "interval32":
        m = m.astype(np.float32)
    low, high = summed(name, m, numerics, bq)
    per = U * (2 * -(-K // bq) + 3 * min(K, bq) + 8)
    shares = [held(low[r], high[r], exact(m[r]), exact(np.abs(m[r])), per) for r in range(3)]
    assert max(shares) > Fraction(2, 10), float(max(shares))
