"""The interval pass's affine kernels against exact rationals: what centre, spread and magnitude are charged holds and is reached for.

Over K terms the centre is off by at most gamma64_(K+4) (magnitude + |b|); spread and magnitude are sums of one sign that 1 + 2^-34
enlarges past the exact ones, for K up to half a million (kernels/device/forward.py).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from polytriton.ir.launches import Constants
from polytriton.rounding import GROW, gamma
from tests.kernels.steps import draw, exact, run

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
Array = np.ndarray
BLOCK = 16
BOXES: Constants = {"T": "tl.float64", "FORM": "", "BM": BLOCK, "BN": BLOCK, "BK": BLOCK}
KINDS = ("dropped", "raised", "wide", "narrow", "cancelling", "one sign", "mixed", "subnormal", "huge")
TINY = Fraction(2e-300)


def dense(lo: Array, hi: Array, w: Array, b: Array, wabs: Array | None = None) -> dict[str, Array]:
    """Boxes [images, K] through w [N, K]."""
    n, k = w.shape
    constants: Constants = {"K": k, "N": n, "CANCELLED": wabs is not None, "TERMS": "present", **BOXES}
    made = {name: np.zeros((len(lo), n)) for name in ("centre", "spread", "magnitude")} | {"terms": np.zeros(len(lo))}
    values = {"lo": lo, "hi": hi, "w": w, "wabs": np.abs(w) if wabs is None else wabs, "bias": b, "count": np.array([len(lo)]), **made}
    return run("forward_dense", constants, "float64", (-(-len(lo) // BLOCK), -(-n // BLOCK)), values)


def conv(lo: Array, hi: Array, w: Array, b: Array, wabs: Array | None = None) -> dict[str, Array]:
    """The same sums as one convolution: K terms as 3x3 taps of K/9 channels, which one output cell reads."""
    (n, k), one = w.shape, dict.fromkeys(("HO", "WO", "G", "SH", "SW", "DH", "DW"), 1)
    constants: Constants = {
        **one, "H": 3, "W": 3, "C": k // 9, "CO": n, "KH": 3, "KW": 3, "TOP": 0, "LEFT": 0, "CANCELLED": wabs is not None,
        "TERMS": "present", **BOXES,
    }  # fmt: skip
    made = {name: np.zeros((len(lo), n)) for name in ("centre", "spread", "magnitude")} | {"terms": np.zeros(len(lo))}
    values = {"lo": lo, "hi": hi, "w": w, "wabs": np.abs(w) if wabs is None else wabs, "bias": b, "count": np.array([len(lo)]), **made}
    return run("forward_conv", constants, "float64", (-(-len(lo) // BLOCK), -(-n // BLOCK)), values)


def blocked(k: int, part: float) -> Array:
    """1, then blocks whose sums are each so many ulps of 1: adding one to what has come up before rounds as far as an addition can."""
    x = np.full(k, part * 2.0**-52 / BLOCK)
    x[:BLOCK], x[0] = 0, 1
    return x


def boxes(k: int) -> tuple[Array, Array, Array]:
    """Boxes [kinds, K] and weights [2, K]; the first two kinds are points that meet weights of one."""
    rng = np.random.default_rng(12)
    mid: Array = np.empty((len(KINDS), k))
    for r, kind in enumerate(KINDS):
        mid[r] = (
            blocked(k, 0.49 if kind == "dropped" else 0.51) if kind in KINDS[:3] else draw(rng, (k,), "mixed" if kind == "narrow" else kind)
        )
    rad = np.abs(mid) * rng.choice([0.0, 1e-3, 1.0], mid.shape)
    rad[:2] = 0
    mid[KINDS.index("wide")], rad[KINDS.index("wide")] = 0, blocked(k, 0.49)
    w = np.ones((2, k))
    w[1] = draw(rng, (k,), "mixed")
    lo, hi = mid - rad, mid + rad
    hi[KINDS.index("narrow")] = np.nextafter(lo[KINDS.index("narrow")], np.inf)  # the middle is one of the ends
    return lo, hi, w


@pytest.mark.parametrize("k", [288, 288 + 9])
@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("step", [dense, conv])
def test_all_three_hold_and_the_centre_reaches_for_its_bound(step: object, cancelled: bool, k: int) -> None:
    lo, hi, w = boxes(k)
    rng = np.random.default_rng(k)
    b = np.array([0.0, 0.3])
    wabs = np.abs(w) * (1 + rng.integers(0, 3, w.shape)) if cancelled else np.abs(w)
    found = step(lo, hi, w, b, wabs if cancelled else None)  # type: ignore[operator]
    mid = 0.5 * lo + 0.5 * hi
    rad = np.maximum(hi - mid, mid - lo) * GROW  # as stored, and the largest magnitude with it
    xabs = np.abs(mid) + rad
    worst = Fraction(0)
    for r, kind in enumerate(KINDS):
        ends = zip(*(v[r].tolist() for v in (lo, mid, rad, hi)), strict=True)
        assert all(max(Fraction(x) - Fraction(m), Fraction(m) - Fraction(y)) <= Fraction(s) for y, m, s, x in ends) or kind == "subnormal"
        for n in range(len(w)):
            parts = (found[name].reshape(len(KINDS), -1)[r, n] for name in ("centre", "spread", "magnitude"))
            centre, spread, magnitude = (Fraction(float(v)) for v in parts)
            for found_, w_, x in ((spread, w, rad), (magnitude, wabs, xabs)):
                total = exact(np.abs(w_[n]), x[r])
                assert total <= found_ + TINY and found_ <= total * Fraction(1 + 2 * (GROW - 1)) + TINY, kind
            off = abs(centre - exact(w[n], mid[r]) - Fraction(float(b[n])))
            bound = Fraction(gamma(k + 4, 2.0**-53)) * (magnitude + Fraction(float(b[n])))
            assert off <= bound + TINY, kind
            if kind in ("dropped", "raised"):
                worst = max(worst, off / bound)
    assert worst > Fraction(1, 50), float(worst)


@pytest.mark.parametrize("step", [dense, conv])
def test_the_bias_is_added_last_and_rounds_once(step: object) -> None:
    """Products that cancel, then a bias next to which what is left of them is half an ulp."""
    k = 18
    m, b = np.zeros((1, k)), np.array([1.0])
    m[0, :3] = 2.0**30, 0.49 * 2.0**-52, -(2.0**30)
    found = step(m, m, np.ones((1, k)), b)  # type: ignore[operator]
    centre, magnitude = Fraction(float(found["centre"].ravel()[0])), Fraction(float(found["magnitude"].ravel()[0]))
    assert abs(centre - exact(m[0]) - 1) <= Fraction(gamma(k + 4, 2.0**-53)) * (magnitude + 1)
    m[0, :3] = 0.49 * 2.0**-52, 0, 0
    centre = Fraction(float(step(m, m, np.ones((1, k)), b)["centre"].ravel()[0]))  # type: ignore[operator]
    bound = Fraction(gamma(k + 4, 2.0**-53)) * (exact(m[0]) + 1)
    assert bound / 100 < abs(centre - exact(m[0]) - 1) <= bound


@pytest.mark.slow
def test_the_enlargement_of_a_long_sum_is_needed() -> None:
    """A sixth of the terms a layer may have: what their blocks drop is over a hundredth of 2^-34."""
    point = blocked(88000, 0.49)
    found = dense(-point[None], point[None], np.ones((1, len(point))), np.zeros(1))
    for name in ("spread", "magnitude"):
        got, total = Fraction(float(found[name][0, 0])), exact(point)
        assert total <= got <= total * Fraction(1 + 3 * (GROW - 1))
        assert (total - got / Fraction(GROW) ** 2) / total > Fraction(GROW - 1) / 100  # the radius has one of the two


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("end", ["lo", "hi"])
@pytest.mark.parametrize("step", [dense, conv])
def test_what_is_no_number_reaches_every_magnitude(step: object, end: str, bad: float) -> None:
    box = {"lo": -np.ones((2, 18)), "hi": np.ones((2, 18))}
    box[end][0, 7] = bad
    found = step(box["lo"], box["hi"], np.ones((2, 18)), np.zeros(2))["magnitude"].reshape(2, 2)  # type: ignore[operator]
    assert not np.isfinite(found[0]).any() and np.isfinite(found[1]).all()
