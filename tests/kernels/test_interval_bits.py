"""Interval products bit for bit: sums of exact rationals, rounded as told term by term, whatever the tiles; and of any numbers.

The sums here are written from docs/soundness.md alone, with no code of the kernels: every FMA is an exact rational rounded once.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from polytriton.ir.launches import Constants
from tests.kernels.intervals import intervals, numbers
from tests.kernels.steps import run
from tests.kernels.test_directed import DOUBLE, SINGLE, Format, wanted

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
FORMS = {"interval64": (DOUBLE, np.float64), "interval32": (SINGLE, np.float32)}
BLOCK = 2
TILES = ({"BM": 4, "BN": 8, "RM": 4, "RN": 8}, {"BM": 8, "BN": 4, "RM": 2, "RN": 1}, {"BM": 2, "BN": 4, "RM": 1, "RN": 2})
Array, INF = np.ndarray, math.inf


def whole_steps(form: Format, x: list[float]) -> tuple[list[int], float]:
    """Steps that hold each of x, 127 at most, and the step: the least power of two for it, at least twice the least normal number."""
    if not all(map(math.isfinite, x)) or max(x) >= form.largest * Fraction(127, 128):
        return [0] * len(x), INF
    step = Fraction(2) ** (form.least + form.digits)
    while max(x) >= 127 * step:
        step *= 2
    return [math.ceil(Fraction(v) / step) for v in x], float(step)


def spread_of(form: Format, widths: list[float], below: list[float]) -> float:
    """All BLOCK terms' products in whole steps, whose number is exact; NaN where something is no number."""
    spread = 0.0
    for k in range(0, len(widths), BLOCK):
        (q, s), (p, t) = whole_steps(form, widths[k : k + BLOCK]), whole_steps(form, below[k : k + BLOCK])
        steps = sum(a * b for a, b in zip(q, p, strict=True))
        spread = wanted(form, "fma_down", -float(steps), wanted(form, "mul_up", s, t, 0.0), spread) if s + t < INF else math.nan
    return spread


def three_sums(form: Format, lo: list[float], hi: list[float], w: list[float]) -> tuple[float, float]:
    low = high = 0.0
    for a, b, x in zip(lo, hi, w, strict=True):
        low, high = wanted(form, "fma_down", a, x, low), wanted(form, "fma_up", b, x, high)
    widths = [wanted(form, "add_up", b, -a, 0.0) for a, b in zip(lo, hi, strict=True)]
    spread = spread_of(form, widths, [0.0 if x > 0 else -x for x in w])
    spread = -INF if math.isnan(spread) else spread
    return wanted(form, "add_down", low, spread, 0.0), wanted(form, "add_up", high, -spread, 0.0)


def exact_ends(lo: list[float], hi: list[float], w: list[float]) -> tuple[Fraction | None, Fraction | None]:
    """The least and the greatest sum of m w over real m in [lo, hi]; None where it has no end. A NaN is any number."""
    ends: list[Fraction | None] = [None if any(map(math.isnan, w)) else Fraction(0)] * 2
    for a, b, x in zip(lo, hi, w, strict=True):
        for k, m in enumerate((a, b) if x > 0 else (b, a)):
            end = ends[k]
            if x and end is not None:
                ends[k] = end + Fraction(m) * Fraction(x) if math.isfinite(m) else None
    return ends[0], ends[1]


def strange(rng: np.random.Generator, x: Array, *values: float) -> Array:
    return np.where(rng.random(x.shape) < 0.06, rng.choice(values, x.shape), x).astype(x.dtype)


@pytest.mark.parametrize("numerics", FORMS)
@pytest.mark.parametrize(("of_rows", "of_weights"), [("wide", "cancel"), ("subnormal", "wide"), ("huge", "plain")])
def test_every_tile_makes_the_bits_of_three_sums(numerics: str, of_rows: str, of_weights: str) -> None:
    """Rows at slots, coefficients and weights of which some are infinite or NaN, zeros of both signs."""
    form, dtype = FORMS[numerics]
    rng, rows, k, n = np.random.default_rng(17), 3, 3 + (dtype is np.float32), 5
    lo, hi = intervals(rng, (rows + 2, k), of_rows, dtype)
    lo, hi = strange(rng, lo, -INF, -0.0, math.nan), strange(rng, hi, INF, math.nan)
    lo[0], hi[0] = np.abs(lo[0]) * 0 - 1, 2  # a row of numbers alone
    w = strange(rng, numbers(rng, (k, n), of_weights, dtype), -0.0)
    slot, count = rng.permutation(rows + 2)[:rows], np.array([rows])
    known: Constants = {"T": f"tl.float{form.bits}", "SLOT": True, "K": k, "N": n, "BK": BLOCK, "INTERPRET": True}
    for tiles in TILES:
        out = np.full((rows, n), 7, dtype)
        grid = -(-rows // tiles["BM"]), -(-n // tiles["BN"])
        given = {"lo_m": lo, "hi_m": hi, "slot": slot, "w": w, "out_lo": out, "out_hi": out.copy(), "count": count}
        found = run("interval_dense", {**known, **tiles}, numerics, grid, given)
        for r, c in np.ndindex(rows, n):
            a, b, x = lo[slot[r]].tolist(), hi[slot[r]].tolist(), w[:, c].tolist()
            got = float(found["out_lo"][r, c]), float(found["out_hi"][r, c])
            np.testing.assert_array_equal(got, three_sums(form, a, b, x))
            for end, inward, exact in zip(got, (INF, -INF), exact_ends(a, b, x), strict=True):
                assert end != inward
                if math.isfinite(end) and not any(map(math.isnan, (*a, *b))):
                    assert exact is not None and (Fraction(end) - exact) * (1 if inward == INF else -1) <= 0, (r, c)
