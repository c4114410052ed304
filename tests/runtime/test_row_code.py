"""Row passes in machine code of their own: each width of vectors, line by line, against sums over windows that are gathered first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.runtime.cpu import fused, loops, row_code, row_passes
from tests.runtime.linked import link

pytestmark = pytest.mark.skipif(not loops.AVAILABLE, reason="Numba is not installed")
KINDS = [np.float32, np.float64]
PASSES = {"relax": fused.relax_and_charge, "concretize": fused.concretize}


@cache
def compiled(name: str, kind: type, lanes: int) -> Callable[..., None]:
    """The pass for vectors of so many cells, whatever this processor's are."""
    loops.prepare()
    own, dtype = PASSES[name], np.dtype(kind)

    class One(loops.Loop):
        versions = (dtype.name,)

    what = row_passes.RELAX if name == "relax" else row_passes.CONCRETIZE
    one = One(own.function, what.form, set(), lambda stem, version: row_code.text_of_loop(what, stem, version, lanes))
    return link(one, dtype)


@dataclass
class Drawn:
    """Rows on windows of tables, with numbers of no use around whatever a row may read."""

    rows: int
    height: int
    line: int
    base: np.ndarray
    then: np.ndarray
    bias_at: np.ndarray
    start: np.ndarray
    pitch: int
    next_pitch: int
    bias_pitch: int
    m: np.ndarray
    tables: dict[str, np.ndarray]
    bias: np.ndarray

    def under(self, table: np.ndarray, begin: np.ndarray, pitch: int) -> np.ndarray:
        """Every row's window, [rows, height * line]."""
        cells = np.arange(self.height)[:, None] * pitch + np.arange(self.line)
        return table[begin[:, None] + cells.ravel()[None]]


def draw(seed: int, kind: type, strange: bool) -> Drawn:
    g = np.random.default_rng(seed)
    rows, height, line = int(g.integers(0, 8)), int(g.integers(0, 4)), int(g.integers(0, 22))
    pitches = [line + int(g.integers(0, 3)) for _ in range(2)]
    bias_pitch = int(g.choice([0, line, line + 2]))

    def begins(pitch: int) -> tuple[np.ndarray, int]:
        length = max(0, height - 1) * pitch + line
        own = np.sort(g.integers(0, 3, rows)) * (length + 1) + 2
        return own.astype(np.int64), 3 * (length + 1) + 4

    (base, size), (then, later), (bias_at, many) = (begins(p) for p in (*pitches, bias_pitch))
    start = (g.permutation(rows) * (height * line + 1) + 1).astype(np.int64)
    if g.integers(2):  # alike in all but some places, as neighbours are
        base, then = np.full_like(base, base[:1].sum()), np.full_like(then, then[:1].sum())

    def values(count: int, near: np.ndarray, length: int, pitch: int, of: type) -> np.ndarray:
        table = np.full(count, np.nan, of)
        for a in np.unique(near):
            for i in range(height):
                at = slice(a + i * pitch, a + i * pitch + length)
                table[at] = (g.standard_normal(length) * 10.0 ** g.integers(-3, 3)).astype(of)
                table[at][g.random(length) < 0.2] = g.choice([0.0, -0.0])
        return table

    m = values(rows * (height * line + 1) + 2, start, line, line, kind)
    tables = {n: values(size, base, line, pitches[0], kind) for n in ("below", "above", "cut", "gap", "point", "lo", "hi")}
    tables["t"] = np.abs(values(later, then, line, pitches[1], kind))
    bias = values(many, bias_at, line, bias_pitch, np.float64)
    if strange:
        for table in (m, *(tables[n] for n in ("cut", "gap", "lo", "hi"))):
            at = np.flatnonzero(~np.isnan(table))
            if len(at):
                table[g.choice(at, 2)] = g.choice([np.inf, -np.inf])
    return Drawn(rows, height, line, base, then, bias_at, start, *pitches, bias_pitch, m, tables, bias)


def close(found: np.ndarray, terms: np.ndarray) -> None:
    """The sum over a row's terms, however it was added up; what is no number stays none."""
    with np.errstate(all="ignore"):
        want, size = terms.sum(1), np.abs(terms).sum(1)
    finite = np.isfinite(size)
    assert (np.abs(found[finite] - want[finite]) <= 1e-14 * size[finite]).all()
    np.testing.assert_array_equal(found[~finite], want[~finite])


def relax_as_defined(d: Drawn, run: Callable[..., None], point: bool, gap: bool) -> None:
    rows, size, kind = d.rows, d.height * d.line, d.m.dtype
    out = np.full(rows * size + 8, 7, kind)
    sums = np.full((5, rows + 1), 7.0)
    lines = np.stack([d.bias_at, np.full(rows, d.bias_pitch), d.start, d.then], 1).astype(np.int64)
    t, none = d.tables, d.m[:0]
    run(
        out, d.base, d.pitch, d.height, d.line, d.m, t["below"], t["above"], t["cut"], t["gap"] if gap else none,
        t["point"] if point else none, d.next_pitch, t["t"], d.bias, lines, *(s[:rows] for s in sums),
    )  # fmt: skip
    assert (out[rows * size :] == 7).all() and (sums[:, rows] == 7).all(), "nothing is written behind the rows"
    x = d.under(d.m, d.start, d.line)
    below, above, cut, g, p = (d.under(t[n], d.base, d.pitch) for n in ("below", "above", "cut", "gap", "point"))
    with np.errstate(all="ignore"):
        n = x * np.where(x < 0, above, below)
        total = np.where(x < 0, x.astype(float) * cut.astype(float), 0.0)
        beyond = np.where(x > 0, x.astype(float) * g.astype(float), 0.0)
        constant = n.astype(float) * d.under(d.bias, d.bias_at, d.bias_pitch)
        error = np.abs(n.astype(float)) * d.under(t["t"], d.then, d.next_pitch).astype(float)
        at = x.astype(float) * p.astype(float)
    np.testing.assert_array_equal(out[: rows * size].reshape(rows, size), n)
    zero = np.zeros_like(total)
    for found, terms in zip(sums, (total, constant, error, at if point else zero, beyond if gap else zero), strict=True):
        close(found[:rows], terms)


def concretize_as_defined(d: Drawn, run: Callable[..., None], point: bool, ends: bool) -> None:
    rows, t, none = d.rows, d.tables, d.m[:0]
    x = np.ascontiguousarray(d.under(d.m, d.start, d.line))
    sums = np.full((4, rows + 1), 7.0)
    given = d.base, d.pitch, d.height, d.line, t["lo"], t["hi"], t["point"] if point else none, ends
    run(x.ravel(), *given, *(s[:rows] for s in sums))
    assert (sums[:, rows] == 7).all()
    lo, hi, p = (d.under(t[n], d.base, d.pitch).astype(float) for n in ("lo", "hi", "point"))
    x = x.astype(float)
    with np.errstate(all="ignore"):
        value, weight = x * np.where(x < 0, hi, lo), np.abs(x) * np.maximum(np.abs(lo), np.abs(hi))
        at, most = (x * p if point else 0 * p), (x * np.where(x < 0, lo, hi) if ends else np.zeros_like(x))
    for found, terms in zip(sums, (value, weight, at, most), strict=True):
        close(found[:rows], terms)


CHECKS = {"relax": relax_as_defined, "concretize": concretize_as_defined}


@pytest.mark.parametrize("lanes", [4, 8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(PASSES))
@given(seed=st.integers(0, 10**6), first=st.booleans(), second=st.booleans(), strange=st.booleans())
@limits(max_examples=120)
def test_every_cell_counts_once(name: str, kind: type, lanes: int, seed: int, first: bool, second: bool, strange: bool) -> None:
    """Lines of any length, pairs and rows alone; around the windows are no numbers, so a cell too many would spoil a sum."""
    CHECKS[name](draw(seed, kind, strange), compiled(name, kind, lanes), first, second)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(PASSES))
@given(seed=st.integers(0, 10**6), first=st.booleans(), second=st.booleans(), strange=st.booleans())
@limits(max_examples=20)
def test_the_plain_loop_says_the_same(name: str, kind: type, seed: int, first: bool, second: bool, strange: bool) -> None:
    """What serves where nothing can be compiled ahead."""
    with np.errstate(all="ignore"):
        CHECKS[name](draw(seed, kind, strange), PASSES[name].function, first, second)


@pytest.mark.parametrize("name", list(PASSES))
def test_a_routine_is_its_loop(name: str) -> None:
    """A loop that is given addresses writes what the loop of arrays does."""
    routine = fused.relax_rows if name == "relax" else fused.concretize_rows

    def run(*given: Any) -> None:
        rows = next(len(v) for v, kind in zip(given, PASSES[name].form, strict=True) if kind == "I")
        routine(rows, *(v.ctypes.data if isinstance(v, np.ndarray) and len(v) else 0 if isinstance(v, np.ndarray) else v for v in given))

    for seed in range(20):
        d = draw(seed, np.float32, strange=False)
        if d.rows and d.height * d.line:
            CHECKS[name](d, run, True, True)
