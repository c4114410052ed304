"""The rounding bound of the product kernels and of the sum of their parts, on data made to reach for it: it holds, and it is not idle.

Over K terms in blocks of BK an entry is off by at most (gamma_BK(u) + ...) sum |N||w| (dense.dense_step): see `bound`.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Constants
from tests.kernels.steps import ETA, FLOATS, draw, exact, run

pytest.importorskip("triton", reason="Triton is not installed")
FORMS = ("float64", "float32", "tf32x3")  # the interpreter computes tf32x3 as plain float32: its own bound is a GPU's to test
BK = {"float64": 16, "float32": 32, "tf32x3": 32}
N = 16
NOTHING: Constants = {
    "RELU": False, "CHARGE": False, "SLOT": False, "START": 0, "PLANE": 0, "PITCH": 0, "T_START": 0, "T_PLANE": 0, "T_PITCH": 0,
    "BIAS": "none", "SUM_ERROR": 1.0, "BM": 16, "BN": 16, "BR": 1, "BQ": 32, "RH": 0, "OH": 0, "RW": 0, "OW": 0,
}  # fmt: skip


def gamma(n: int, u: float) -> Fraction:
    return n * Fraction(u) / (1 - n * Fraction(u))


def bound(numerics: str, k: int, size: Fraction, out: float) -> Fraction:
    """As the docstring of dense_step has it."""
    bk, dtype = BK[numerics], FLOATS[numerics]
    if dtype == np.float64:
        return gamma(k + 1, 2.0**-53) * size + k * Fraction(ETA[dtype])
    sums, last = gamma(min(k, bk), 2.0**-24) + gamma(-(-k // bk), 2.0**-53), Fraction(2.0**-24) * abs(Fraction(out))
    return sums * size + last + k * Fraction(ETA[dtype])


def constants(numerics: str) -> Constants:
    return {**NOTHING, "T": ARITHMETICS[numerics].type, "FORM": ARITHMETICS[numerics].form, "BK": BK[numerics]}


def dense(m: np.ndarray, w: np.ndarray, numerics: str) -> np.ndarray:
    k = m.shape[1]
    values = {"m": m, "w": w, "out": np.zeros((len(m), N), m.dtype), "count": np.array([len(m)])}
    return run("dense_step", {**constants(numerics), "SK": 1, "K": k, "N": N, "LINE": k, "C": k}, numerics, (1, 1), values)["out"]


def conv(m: np.ndarray, w: np.ndarray, numerics: str) -> np.ndarray:
    """The same sums as one convolution: K terms as 3x3 taps of K/9 channels that meet in the middle cell."""
    k = m.shape[1]
    co = k // 9
    sizes: Constants = {
        "H": 3, "W": 3, "CO": co, "G": 1, "HO": 1, "WO": 1, "CI": N, "KH": 3, "KW": 3, "SH": 1, "SW": 1, "DH": 1, "DW": 1, "TOP": 2,
        "LEFT": 2, "MASK": False, "IH": 1, "IW": 1, "TO_RH": 0, "TO_OH": 0, "TO_RW": 0,
        "TO_OW": 0, "PH": 1, "PW": 1, "SPAN": 1, "BS": 1,
    }  # fmt: skip
    taps = w.reshape(3, 3, co, N)[::-1, ::-1]
    values = {"m": m, "w": taps, "out": np.zeros((len(m), N), m.dtype), "count": np.array([len(m)])}
    return run("conv_step", {**constants(numerics), **sizes}, numerics, (1, 1), values)["out"]


def data(kind: str, k: int, numerics: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows [4, k] and weights [k, N]."""
    rng, dtype = np.random.default_rng(5), FLOATS[numerics]
    u = 2 * ARITHMETICS[numerics].u
    m: np.ndarray = np.ones((4, k))
    w: np.ndarray = np.ones((k, N))
    if kind == "one way":  # 1 first, then numbers that every addition rounds up (rows 0, 1), or away (rows 2, 3)
        start = np.arange(k) % BK[numerics] == 0 if dtype == np.float32 else np.arange(k) == 0
        m = np.where(start, 1.0, np.array([[0.6], [0.51], [0.49], [0.4]]) * u)
    elif kind == "cancelling":
        big = 2.0 ** rng.integers(0, 20, (4, k // 2 + 1))
        m = np.concatenate((big, -big), 1)[:, rng.permutation(2 * big.shape[1])][:, :k] + draw(rng, (4, k), "one sign")
        w = 1 + 2.0**-10 * rng.integers(0, 3, (k, N))
    else:
        m, w = draw(rng, (4, k), kind), draw(rng, (k, N), kind)
    return m.astype(dtype), w.astype(dtype)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("k", [18, 72, 288])
@pytest.mark.parametrize("kind", ["one way", "cancelling", "one sign", "mixed"])
@pytest.mark.parametrize("numerics", FORMS)
@pytest.mark.parametrize("step", [dense, conv])
def test_bound_holds_and_is_not_idle(step: object, numerics: str, kind: str, k: int) -> None:
    m, w = data(kind, k, numerics)
    out = step(m, w, numerics)  # type: ignore[operator]
    worst = Fraction(0)
    for r in range(len(m)):
        for j in range(0, N, 5):
            size = exact(np.abs(m[r]), np.abs(w[:, j]))
            share = abs(Fraction(float(out[r, j])) - exact(m[r], w[:, j])) / bound(numerics, k, size, float(out[r, j]))
            worst = max(worst, share)
    assert worst <= 1
    if kind == "one way" and (step is dense or k == 288):  # a convolution's blocks are taps: shorter ones add too little up
        assert worst > (Fraction(1, 50) if numerics == "float64" else Fraction(1, 5)), float(worst)


@pytest.mark.parametrize("split", [2, 16, 64])
@pytest.mark.parametrize("kind", ["dropped", "cancelling", "mixed", "subnormal"])
@pytest.mark.parametrize("numerics", ["float64", "float32"])
def test_the_sum_of_parts_is_off_by_its_additions_and_one_rounding(numerics: str, kind: str, split: int) -> None:
    """SK parts, one after the other in float64: gamma64_(SK-1) of their magnitudes, then 2^-24 of the result where it is stored so."""
    rng, dtype, rows = np.random.default_rng(6), FLOATS[numerics], 3
    parts = draw(rng, (rows, split, N), kind, dtype) if kind != "dropped" else np.full((rows, split, N), 0.49 * 2.0**-52, dtype)
    if kind == "dropped":
        parts[:, 0] = 1 + (0 if dtype == np.float64 else 2.0**-23)
        if dtype == np.float32:
            parts[:, 1:] = 0.49 * 2.0**-23 / (split - 1)
    sums: Constants = {"T": ARITHMETICS[numerics].type, "N": N, "SK": split, "BR": 4, "BQ": 8}
    values = {"parts": parts, "out": np.zeros((rows, N), dtype), "count": np.array([rows])}
    out, worst = run("sum_parts", sums, numerics, (1, 2), values)["out"], Fraction(0)
    for r in range(rows):
        for j in range(0, N, 5):
            got, size = Fraction(float(out[r, j])), exact(np.abs(parts[r, :, j]))
            last = Fraction(2.0**-24) * abs(got) + Fraction(2.0**-149) if dtype == np.float32 else 0
            room = gamma(split - 1, 2.0**-53) * size + last
            worst = max(worst, abs(got - exact(parts[r, :, j])) / room if room else Fraction(0))
    assert worst <= 1
    assert worst > Fraction(2, 5) or kind != "dropped", float(worst)


@pytest.mark.parametrize("step", [dense, conv])
def test_blocks_are_added_in_float64(step: object) -> None:
    """One block sums to 1, each of 287 others to 2^-25: added in float32 they would all be lost, twice what the bound allows."""
    k = 288 * 32
    m, w = np.zeros((1, k), np.float32), np.ones((k, N), np.float32)
    m[0, ::32] = 2.0**-25
    m[0, 0] = 1
    out, want = float(step(m, w, "float32")[0, 0]), exact(m[0], w[:, 0])  # type: ignore[operator]
    assert abs(Fraction(out) - want) <= Fraction(2.0**-24) < want - 1


@pytest.mark.parametrize("numerics", FORMS)
@pytest.mark.parametrize("step", [dense, conv])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_reaches_every_output(step: object, numerics: str, bad: float) -> None:
    dtype = FLOATS[numerics]
    m, w = np.ones((2, 18), dtype), np.ones((18, N), dtype)
    m[0, 7] = bad
    out = step(m, w, numerics)  # type: ignore[operator]
    assert not np.isfinite(out[0]).any() and (out[1] == 18).all()
