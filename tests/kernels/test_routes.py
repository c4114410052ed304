"""Max pools, concatenations and gathers in Triton's interpreter: every coefficient at its place, sums within their bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Constants
from polytriton.ir.plan import Axis, Window
from polytriton.passes.windows import input_axis, windows_per_cell
from polytriton.rounding import dot_error, gamma, sum_error
from tests.kernels.steps import FLOATS, KINDS, Scene, blocks, covers, draw, exact, run, scene

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
NAN = float("nan")
FULL = 1 + 2.0**-20
seeds = st.integers(0, 2**32 - 1)
types = st.sampled_from(("float64", "float32"))


# ---- max pool -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pool:
    """A max pool over whose output rows stand, and the window they get over its input."""

    over: Scene
    to: Window
    k: tuple[int, int]
    s: tuple[int, int]
    d: tuple[int, int]
    lead: tuple[int, int]

    def run(self, values: dict[str, np.ndarray], m: np.ndarray, numerics: str, pending: float, br: int, bq: int) -> dict[str, np.ndarray]:
        over, (h, w, c), (kh, kw) = self.over, self.over.cells, self.k
        ho, wo = self.to.h.size, self.to.w.size
        constants: Constants = {
            "T": ARITHMETICS[numerics].type, "SLOT": over.slot is not None, "H": h, "W": w, "C": c, "HO": ho, "WO": wo, "KH": kh, "KW": kw,
            "SH": self.s[0], "SW": self.s[1], "DH": self.d[0], "DW": self.d[1], "TOP": self.lead[0], "LEFT": self.lead[1],
            "PH": self.s[0] if self.d[0] == 1 else 1, "PW": self.s[1] if self.d[1] == 1 else 1, **over.place(), **over.geometry(),
            "PENDING": pending * sum_error(over.size), "REL": self.relative(numerics), "SUM_ERROR": sum_error(over.size),
            "BR": br, "BQ": bq,
        }  # fmt: skip
        out = np.full((over.capacity, ho, wo, c), NAN, m.dtype)
        grid = blocks(over.capacity, br) + 1, blocks(ho * wo * c, bq) + 1
        return run("pool_rows", constants, numerics, grid, {**over.rows(), **values, "m": m, "out": out})

    def relative(self, numerics: str) -> float:
        meets = windows_per_cell(self.k[0], self.s[0], self.d[0]) * windows_per_cell(self.k[1], self.s[1], self.d[1])
        return gamma(meets - 1, ARITHMETICS[numerics].u) + dot_error(self.over.size)

    def arriving(self, x: np.ndarray, winner: np.ndarray) -> dict[tuple[int, int, int, int], list[float]]:
        """What comes to every cell of the new window, by the definition: each row's winners, one by one."""
        found: dict[tuple[int, int, int, int], list[float]] = {}
        for at in np.ndindex(x.shape):
            r, y, z, c = at
            tap, sure = int(winner[at]) // 2 - 1, int(winner[at]) % 2
            if tap >= 0 and (x[at] > 0 or sure):
                a = y * self.s[0] + tap // self.k[1] * self.d[0] - self.lead[0]
                b = z * self.s[1] + tap % self.k[1] * self.d[1] - self.lead[1]
                if 0 <= a < self.to.h.size and 0 <= b < self.to.w.size:
                    found.setdefault((r, a, b, c), []).append(float(x[at]))
        return found


def pool(rng: np.random.Generator, slots: bool) -> Pool:
    """Windows from one cell to larger than the image, strides above the kernel, dilation, padding on one side."""
    over = scene(rng, slots=slots)
    k, s, d = ((int(a), int(b)) for a, b in (rng.integers(1, 4, 2), rng.integers(1, 4, 2), rng.choice([1, 1, 2], 2)))
    pad = tuple(int(v) for v in rng.choice([0, 0, 1, 2], 2))
    natural = Window(*(input_axis(a, k[i], s[i], pad[i], d[i]) for i, a in enumerate((over.window.h, over.window.w))))
    to = Window(*(_shifted(rng, a) for a in (natural.h, natural.w)))
    return Pool(over, to, k, s, d, (natural.h.offset - to.h.offset, natural.w.offset - to.w.offset))


def _shifted(rng: np.random.Generator, natural: Axis) -> Axis:
    if natural.whole or rng.random() < 0.4:
        return natural
    return replace(natural, size=max(1, natural.size + int(rng.integers(-2, 3))), offset=natural.offset + int(rng.integers(-2, 3)))


def pool_tables(p: Pool, rng: np.random.Generator, kind: str, dtype: type) -> dict[str, np.ndarray]:
    over = p.over
    shape = (over.batch, *over.frame)
    ends = [over.table(rng, kind, dtype) for _ in "lh"]
    winner = 2 * rng.integers(1, p.k[0] * p.k[1] + 1, shape) + rng.integers(0, 2, shape)
    most = over.table(rng, kind, dtype)
    return {
        "winner": np.where(rng.random(shape) < 0.1, 0, winner), "most": most,
        "largest": np.maximum(np.abs(most), np.abs(over.table(rng, kind, dtype))), "lo": np.minimum(*ends), "hi": np.maximum(*ends),
        "floor": np.full(over.batch, 1e-290), "own_floor": np.full(over.batch, 1e-290),
        "constant": draw(rng, (over.capacity,), kind), "error": np.abs(draw(rng, (over.capacity,), kind)),
    }  # fmt: skip


@given(seeds, st.booleans(), st.booleans(), st.sampled_from(KINDS), types)
@limits(max_examples=35)
def test_pool_rows(seed: int, slots: bool, pends: bool, kind: str, numerics: str) -> None:
    rng = np.random.default_rng(seed)
    p, dtype, u = pool(rng, slots), FLOATS[numerics], ARITHMETICS[numerics].u
    over, values = p.over, pool_tables(p, rng, kind, dtype)
    m, pending = p.over.coefficients(rng, kind, dtype), u * FULL if pends else 0.0
    found = p.run(values, m, numerics, pending, int(rng.choice([1, 4, 16])), int(rng.choice([16, 64, 256])))
    x, under = over.taken(m), {k: over.under(values[k]) for k in ("winner", "most", "largest", "lo", "hi")}
    arriving = p.arriving(x, under["winner"])
    out = found["out"]
    assert np.isnan(out[over.count :]).all()
    for at in np.ndindex(out[: over.count].shape):
        terms = arriving.get(at, [])
        total = exact(terms)
        if len(terms) > 1 and abs(total) > np.finfo(dtype).max:
            assert not np.isfinite(out[at])
        else:
            assert abs(Fraction(float(out[at])) - total) <= Fraction(gamma(max(0, len(terms) - 1), u)) * exact(np.abs(terms))
    rest = np.where((x > 0) | (under["winner"] % 2 == 1), 0, x)
    xabs = np.maximum(np.abs(under["lo"]), np.abs(under["hi"]))
    for r in range(over.count):
        c, e = Fraction(float(values["constant"][r])), Fraction(float(values["error"][r]))
        carried = exact(np.abs(x[r]), under["largest"][r])
        charge = Fraction(p.relative(numerics)) * carried + Fraction(pending) * exact(np.abs(x[r]), xabs[r])
        # the charge holds the constants' own rounding too, so without that much of it the sum is as exact arithmetic has it
        own = Fraction(dot_error(over.size)) * carried
        demand = c - e + exact(rest[r], under["most"][r]) - charge + own
        size = abs(c) + e + charge + exact(np.abs(rest[r]), np.abs(under["most"][r])) + 2**42 * own
        constant, error = float(found["constant"][r]), float(found["error"][r])
        assert covers(constant, error, demand, size), (r, constant, error, float(demand))
        assert kind == "huge" or np.isfinite(constant - error)
    for name in ("constant", "error"):
        assert np.array_equal(found[name][over.count :], values[name][over.count :])


def one(cells: int, channels: int, count: int = 2) -> Scene:
    whole, zero = Window(Axis(cells, 0, 0), Axis(cells, 0, 0)), np.zeros(count, np.int64)
    return Scene((cells, cells, channels), whole, (1, 1), 1, count, zero, zero, zero, None)


def flat_tables(over: Scene, dtype: type) -> dict[str, np.ndarray]:
    """One everywhere, no winner yet, nothing paid yet."""
    shape = (over.batch, *over.frame)
    values = {name: np.ones(shape, dtype) for name in ("most", "largest", "lo", "hi")}
    scalars = {name: np.zeros(over.count) for name in ("constant", "error", "floor", "own_floor")}
    return {**values, **scalars, "winner": np.zeros(shape, np.int64)}


@pytest.mark.parametrize("numerics", ["float64", "float32"])
def test_windows_that_meet_in_a_cell_reach_for_their_bound(numerics: str) -> None:
    """Nine windows all choose the middle cell: one brings 1, eight a little over half of its last place each."""
    over, dtype, u = one(3, 1), FLOATS[numerics], ARITHMETICS[numerics].u
    p = Pool(over, Window(Axis(5, 0, 0), Axis(5, 0, 0)), (3, 3), (1, 1), (1, 1), (0, 0))
    values = flat_tables(over, dtype)
    values["winner"][0, :, :, 0] = [[2 * ((2 - y) * 3 + 2 - x + 1) for x in range(3)] for y in range(3)]  # cell (2, 2) of five
    worst = Fraction(0)
    for at in (0, 8):  # where the 1 is met last and where first
        m = np.full((2, *over.cells), 1.02 * u, dtype)
        m.reshape(2, 9)[:, at] = 1
        found = p.run(values, m, numerics, 0.0, 2, 8)
        assert np.count_nonzero(found["out"][0]) == 1
        off, size = abs(Fraction(float(found["out"][0, 2, 2, 0])) - exact(m[0])), exact(m[0])
        assert off <= Fraction(gamma(8, u)) * size
        charged = Fraction(float(found["error"][0]))
        assert off < charged <= Fraction(p.relative(numerics) * (1 + 2.0**-40)) * size
        worst = max(worst, off / charged)
    assert worst > Fraction(1, 10)


def test_constants_that_all_round_one_way_are_paid() -> None:
    """No winner is sure and all coefficients are negative: a sum of 400 constants, most of them lost beside the first."""
    over = one(20, 1)
    p = Pool(over, Window(Axis(1, 0, 0), Axis(1, 0, 0)), (2, 2), (2, 2), (1, 1), (0, 0))
    values = flat_tables(over, np.float64)
    values["winner"][:] = 2
    values["most"][:] = 0.9 * 2.0**-53
    values["most"].reshape(-1)[0] = 1
    m = np.full((2, *over.cells), -1.0)
    found = p.run(values, m, "float64", 0.0, 2, 1)
    due = exact(values["most"])
    for r in range(2):
        value = Fraction(float(found["constant"][r])) - Fraction(float(found["error"][r]))
        assert value <= -due and Fraction(float(found["constant"][r])) > -due
    assert not found["out"].any()


def test_a_pool_pays_what_is_pending() -> None:
    for numerics in ("float64", "float32"):
        over, dtype, u = one(4, 3), FLOATS[numerics], ARITHMETICS[numerics].u
        p = Pool(over, Window(Axis(4, 0, 0), Axis(4, 0, 0)), (1, 1), (1, 1), (1, 1), (0, 0))
        values = flat_tables(over, dtype)
        values["largest"][:], values["winner"][:] = 0, 3
        m = draw(np.random.default_rng(4), (2, *over.cells), "one sign", dtype)
        found = p.run(values, m, numerics, u * FULL, 2, 4)
        assert np.array_equal(found["out"], m)
        for r in range(2):
            due = Fraction(u) * exact(np.abs(m[r]))
            assert due <= Fraction(float(found["error"][r])) <= due * Fraction(101, 100)


@pytest.mark.parametrize("numerics", ["float64", "float32"])
@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
@pytest.mark.parametrize("code", [0, 2, 3])
def test_a_pool_keeps_what_is_no_number(numerics: str, bad: float, code: int) -> None:
    """Whether the coefficient moves, becomes a constant or falls off the window: its row has no bound, the other row has one."""
    over, dtype = one(2, 3), FLOATS[numerics]
    p = Pool(over, Window(Axis(1, 0, 0), Axis(4, 0, 0)), (2, 2), (2, 2), (1, 1), (0, 0))
    values = flat_tables(over, dtype)
    values["winner"][:] = code
    m = np.ones((2, *over.cells), dtype)
    m[0, 1, 1, 2] = bad  # its window lies below the part that is asked for
    found = p.run(values, m, numerics, 0.0, 2, 8)
    assert not np.isfinite(found["constant"][0]) and not np.isfinite(found["error"][0])
    assert np.isfinite(found["constant"][1] - found["error"][1]) and np.isfinite(found["out"][1]).all()


# ---- concatenations -------------------------------------------------------------------------------------------------


@given(seeds, st.booleans(), st.integers(0, 2), types)
@limits(max_examples=30)
def test_part_rows(seed: int, slots: bool, axis: int, numerics: str) -> None:
    """Cut along channels, height or width: the shares are those of the array, NaN and all."""
    rng = np.random.default_rng(seed)
    over, dtype = scene(rng, slots=slots), FLOATS[numerics]
    m = over.coefficients(rng, "mixed", dtype)
    m[rng.random(m.shape) < 0.05] = NAN
    along = {0: 3, 1: 1, 2: 2}[axis]  # of [rows, height, width, channels]
    length, after = m.shape[along], int(np.prod(m.shape[along + 1 :]))
    begin = int(rng.integers(0, length))
    take = int(rng.integers(1, length - begin + 1))
    part = np.take(over.taken(m), range(begin, begin + take), along)
    size, tiles = int(np.prod(part.shape[1:])), {"BR": int(rng.choice([1, 4])), "BQ": int(rng.choice([4, 64]))}
    constants: Constants = {
        "SLOT": over.slot is not None, "FROM": over.size, "SIZE": size, "INNER": take * after, "OUTER": length * after,
        "BEGIN": begin * after, **tiles,
    }  # fmt: skip
    grid = blocks(over.capacity, tiles["BR"]) + 1, blocks(size, tiles["BQ"])
    out = np.full((over.capacity, *part.shape[1:]), NAN, dtype)
    found = run("part_rows", constants, numerics, grid, {**over.rows(), "m": m, "out": out})["out"]
    assert np.array_equal(found[: over.count], part, equal_nan=True) and np.isnan(found[over.count :]).all()


# ---- gathers --------------------------------------------------------------------------------------------------------


def lists(index: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Which values of a gather read each value of its operand, by the definition."""
    found = [np.flatnonzero(index == s) for s in range(size)]
    return np.cumsum([0, *map(len, found)]), np.concatenate(found).astype(np.int64)


def gathered(over: Scene, m: np.ndarray, index: np.ndarray, blocks_: int, to: int, numerics: str, br: int, bq: int) -> np.ndarray:
    starts, readers = lists(index, to)
    constants: Constants = {
        "T": ARITHMETICS[numerics].type, "SLOT": over.slot is not None, "FROM": over.size, "SIZE": blocks_ * to, "CO": len(index), "CI": to,
        "REPEATS": int(np.diff(starts).max(initial=0)), "BR": br, "BQ": bq,
    }  # fmt: skip
    grid = blocks(over.capacity, br) + 1, blocks(blocks_ * to, bq)
    out = np.full((over.capacity, blocks_ * to), NAN, m.dtype)
    values = {**over.rows(), "m": m, "starts": starts, "readers": readers, "out": out}
    return run("gather_rows", constants, numerics, grid, values)["out"]


@given(seeds, st.booleans(), st.booleans(), st.sampled_from(KINDS), types)
@limits(max_examples=50)
def test_gather_rows(seed: int, slots: bool, channels: bool, kind: str, numerics: str) -> None:
    """Single cells or whole channels, some read often, some never, some places padding (-1)."""
    rng = np.random.default_rng(seed)
    over, dtype, u = scene(rng, slots=slots), FLOATS[numerics], ARITHMETICS[numerics].u
    m = over.coefficients(rng, kind, dtype)
    each, times = (over.shape[2], over.window.cells) if channels else (over.size, 1)
    to = int(rng.integers(1, 2 * each + 1))
    index = rng.integers(-1, max(1, int(rng.integers(0, to + 1))), each)
    found = gathered(over, m, index, times, to, numerics, int(rng.choice([1, 4])), int(rng.choice([4, 64])))
    x = over.taken(m).reshape(over.count, times, each)
    assert np.isnan(found[over.count :]).all()
    for r, t, s in np.ndindex(over.count, times, to):
        terms, got = x[r, t, index == s], float(found[r, t * to + s])
        total = exact(terms)
        if abs(total) > np.finfo(dtype).max:
            assert not np.isfinite(got)
        elif np.isfinite(got) or kind != "huge":
            assert abs(Fraction(got) - total) <= Fraction(gamma(max(0, len(terms) - 1), u)) * exact(np.abs(terms))


@pytest.mark.parametrize("numerics", ["float64", "float32"])
@pytest.mark.parametrize("repeats", [2, 9, 200])
def test_a_cell_that_is_read_often_reaches_for_its_bound(numerics: str, repeats: int) -> None:
    """1 first, then numbers that every addition rounds up: gamma of one less than the readings holds, and is reached to a quarter."""
    dtype, u = FLOATS[numerics], ARITHMETICS[numerics].u
    over = one(1, repeats)
    m = np.full((2, 1, 1, repeats), 1.02 * u, dtype)
    m[:, :, :, 0] = 1
    found = gathered(over, m, np.zeros(repeats, np.int64), 1, 1, numerics, 2, 4)
    off = abs(Fraction(float(found[0, 0])) - exact(m[0]))
    bound = Fraction(gamma(repeats - 1, u)) * exact(m[0])
    assert bound / 4 <= off <= bound


@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_a_gather_keeps_what_is_no_number(bad: float) -> None:
    over = one(2, 1)
    m = np.ones((2, *over.cells))
    m[0, 0, 1, 0] = bad
    found = gathered(over, m, np.array([2, 0, 0, -1]), 1, 3, "float64", 2, 4)
    assert not np.isfinite(found[0, 0]) and found[0, 1:].tolist() == [0, 1] and found[1].tolist() == [2, 0, 1]


def test_a_gather_of_padding_alone_is_zero() -> None:
    over = one(2, 1)
    assert not gathered(over, np.ones((2, *over.cells)), np.full(4, -1), 1, 3, "float32", 2, 4)[:2].any()
