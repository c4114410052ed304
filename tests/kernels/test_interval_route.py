"""Max pools and gathers in interval arithmetic, one kernel at a time: every interval at its place, every sum and constant outward."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Constants
from tests.kernels.intervals import flavours, intervals
from tests.kernels.steps import blocks, draw, run, scene
from tests.kernels.test_routes import Pool, lists, pool

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
TYPES = {"interval64": np.float64, "interval32": np.float32}
NAN, INF = float("nan"), float("inf")
Array = np.ndarray
seeds, types = st.integers(0, 2**32 - 1), st.sampled_from(list(TYPES))


def outward(low: float, high: float, least: Fraction, most: Fraction, room: Fraction) -> None:
    """The ends hold the exact ones, and no more than `room` beside them where they are numbers."""
    assert low == -INF or (np.isfinite(low) and least - room <= Fraction(float(low)) <= least), (low, float(least))
    assert high == INF or (np.isfinite(high) and most <= Fraction(float(high)) <= most + room), (high, float(most))


def summed(a: list[Fraction], u: float, tiny: float) -> Fraction:
    """What so many directed additions from zero lose at most, twice over: sums of floats are exact where they are subnormal."""
    return 4 * Fraction(u) * max(0, len(a) - 1) * sum(map(abs, a), Fraction(tiny))


@dataclass(frozen=True)
class Pooled:
    """Rows over a pool, the winners and boxes of its cells, and what the kernel made of them."""

    over: Pool
    ends: tuple[Array, Array]
    tables: dict[str, Array]

    def run(self, numerics: str, br: int, bq: int) -> dict[str, Array]:
        p, over = self.over, self.over.over
        (h, w, c), (kh, kw), (sh, sw), (dh, dw) = over.cells, p.k, p.s, p.d
        ho, wo = p.to.h.size, p.to.w.size
        constants: Constants = {
            "T": ARITHMETICS[numerics].type, "SLOT": over.slot is not None, "H": h, "W": w, "C": c, "HO": ho, "WO": wo, "KH": kh, "KW": kw,
            "SH": sh, "SW": sw, "DH": dh, "DW": dw, "TOP": p.lead[0], "LEFT": p.lead[1], "PH": sh if dh == 1 else 1,
            "PW": sw if dw == 1 else 1, **over.place(), **over.geometry(), "BR": br, "BQ": bq, "INTERPRET": True,
        }  # fmt: skip
        out = np.full((over.capacity, ho, wo, c), NAN, self.ends[0].dtype)
        grid = blocks(over.capacity, br) + 1, blocks(ho * wo * c, bq) + 1
        given = {"lo_m": self.ends[0], "hi_m": self.ends[1], "out_lo": out, "out_hi": out.copy()}
        return run("interval_pool", constants, numerics, grid, {**over.rows(), **self.tables, **given})


def pooled(rng: np.random.Generator, flavour: str, dtype: type, slots: bool) -> Pooled:
    p = pool(rng, slots)
    over = p.over
    ends = intervals(rng, over.coefficients(rng, "mixed", dtype).shape, flavour, dtype)
    shape = (over.batch, *over.frame)
    box = np.sort(np.stack([draw(rng, shape, "mixed") for _ in "lh"]), axis=0)
    winner = 2 * rng.integers(1, p.k[0] * p.k[1] + 1, shape) + rng.integers(0, 2, shape)
    winner = np.where(rng.random(shape) < 0.1, 0, winner)  # off the image
    constants = {f"constant_{end}": draw(rng, (over.capacity,), "mixed") for end in ("lo", "hi")}
    return Pooled(p, ends, {"winner": winner, "box_lo": box[0], "box_hi": box[1], **constants})


@settings(max_examples=20)
@given(seeds, st.booleans(), flavours, types)
def test_a_pool_moves_intervals_or_keeps_their_products(seed: int, slots: bool, flavour: str, numerics: str) -> None:
    rng, u = np.random.default_rng(seed), ARITHMETICS[numerics].u
    made = pooled(rng, flavour, TYPES[numerics], slots)
    over, bq = made.over.over, int(rng.choice([16, 64]))
    found = made.run(numerics, 8, bq)
    low, high = (over.taken(e) for e in made.ends)
    winner, least, most = (over.under(made.tables[k]) for k in ("winner", "box_lo", "box_hi"))
    moves = (low >= 0) | (winner % 2 == 1)
    # the folded kernel's definition says where what moves arrives: a coefficient of one that does, none that does not
    places = made.over.arriving(np.where(moves, np.arange(moves.size).reshape(moves.shape) + 1.0, -1.0), winner & ~1)
    for at in np.ndindex(found["out_lo"][: over.count].shape):
        ids = [int(k) - 1 for k in places.get(at, [])]
        a, b = ([Fraction(float(e.ravel()[k])) for k in ids] for e in (low, high))
        room = max(summed(v, u, 0.0) for v in (a, b))
        outward(found["out_lo"][at], found["out_hi"][at], sum(a, Fraction(0)), sum(b, Fraction(0)), room)
    for r in range(over.count):
        ends, size = [Fraction(float(made.tables[f"constant_{e}"][r])) for e in ("lo", "hi")], Fraction(0)
        for at in zip(*np.nonzero(~moves[r]), strict=True):
            box = [Fraction(float(t[r][at])) for t in ((most, most) if high[r][at] <= 0 else (least, most))]
            corners = [Fraction(float(e[r][at])) * v for e in (low, high) for v in box]
            ends, size = [ends[0] + min(corners), ends[1] + max(corners)], size + max(map(abs, corners))
        size += max(map(abs, ends)) + Fraction(1, 2**1000)
        room = Fraction(1, 2**52) * (2 * -(-over.size // bq) + 3 * min(over.size, bq) + 8) * size
        outward(found["constant_lo"][r], found["constant_hi"][r], *ends, room)
    for name in ("out_lo", "out_hi"):
        assert np.isnan(found[name][over.count :]).all()
    for name in ("constant_lo", "constant_hi"):
        assert np.array_equal(found[name][over.count :], made.tables[name][over.count :])


@pytest.mark.parametrize("numerics", TYPES)
def test_no_number_moves_or_ends_in_the_constant(numerics: str) -> None:
    """Wherever NaN or infinity stands, the row's constant or an interval of it is no bound; the other rows have theirs."""
    rng = np.random.default_rng(3)
    made = next(p for p in (pooled(rng, "plain", TYPES[numerics], False) for _ in range(99)) if p.over.over.count == 5)
    for lo, hi in ((NAN, 1), (-1, NAN), (1, NAN), (-INF, 1), (0, INF), (-INF, INF)):
        for end, value in zip(made.ends, (lo, hi), strict=True):
            end[2].reshape(-1)[1] = value
        for sure in (0, 1):
            winner = made.tables["winner"] & ~1 | sure
            found = Pooled(made.over, made.ends, {**made.tables, "winner": winner}).run(numerics, 8, 64)
            assert not np.isfinite(found["constant_lo"][2]) and found["constant_lo"][2] != INF, (lo, hi, sure)
            others = [0, 1, 3, 4]
            assert all(np.isfinite(found[f"{k}_{e}"][others]).all() for k in ("constant", "out") for e in ("lo", "hi"))


@settings(max_examples=20)
@given(seeds, st.booleans(), flavours, types)
def test_a_gather_adds_what_a_cell_was_read_for(seed: int, channels: bool, flavour: str, numerics: str) -> None:
    rng, u, dtype = np.random.default_rng(seed), ARITHMETICS[numerics].u, TYPES[numerics]
    over = scene(rng, slots=True)
    lo, hi = intervals(rng, over.coefficients(rng, "mixed", dtype).shape, flavour, dtype)
    each, times = (over.shape[2], over.window.cells) if channels else (over.size, 1)
    to = int(rng.integers(1, 8))
    index = rng.integers(-1, to, each)
    starts, readers = lists(index, to)
    constants: Constants = {
        "T": ARITHMETICS[numerics].type, "SLOT": True, "FROM": over.size, "SIZE": times * to, "CO": each, "CI": to,
        "REPEATS": int(np.diff(starts).max(initial=0)), "BR": 8, "BQ": 64, "INTERPRET": True,
    }  # fmt: skip
    out = np.full((over.capacity, times * to), NAN, dtype)
    values = {**over.rows(), "lo_m": lo, "hi_m": hi, "starts": starts, "readers": readers, "out_lo": out, "out_hi": out.copy()}
    found = run("interval_gather", constants, numerics, (blocks(over.capacity, 8), blocks(times * to, 64)), values)
    ends = [over.taken(e).reshape(over.count, times, each) for e in (lo, hi)]
    for r, t, s in np.ndindex(over.count, times, to):
        a, b = ([Fraction(float(v)) for v in e[r, t, index == s]] for e in ends)
        got = (found[k][r, t * to + s] for k in ("out_lo", "out_hi"))
        outward(*got, sum(a, Fraction(0)), sum(b, Fraction(0)), max(summed(v, u, 0.0) for v in (a, b)))
    assert np.isnan(found["out_lo"][over.count :]).all() and np.isnan(found["out_hi"][over.count :]).all()
