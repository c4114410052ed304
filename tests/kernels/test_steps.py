"""Back-substitution through dense layers and convolutions, joins and first slices, in Triton's interpreter.

Whole numbers show that every product meets its place; what rounding does to the products is in test_error_constants.py.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Constants
from polytriton.ir.plan import Axis, Window
from polytriton.passes.windows import input_axis
from polytriton.rounding import sum_error
from tests.kernels.steps import ETA, FLOATS, KINDS, Scene, blocks, covers, draw, exact, run, scalars, scene

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
NAN = float("nan")
seeds = st.integers(0, 2**32 - 1)
forms = st.sampled_from(("float64", "float32", "tf32x3"))  # the interpreter knows no bf16x6, and computes tf32x3 as plain float32
works = st.sampled_from(("none", "relu", "charge", "both"))


# ---- dense ----------------------------------------------------------------------------------------------------------


@given(seeds, st.booleans(), works, st.sampled_from(KINDS), forms)
@limits(max_examples=40)
def test_dense_step(seed: int, slots: bool, work: str, kind: str, numerics: str) -> None:
    """Products to within the bound of the kernel's docstring, scalars in exact rationals; blocks smaller and larger than sizes."""
    rng = np.random.default_rng(seed)
    dtype, k, n = FLOATS[numerics], int(rng.choice([1, 7, 33])), int(rng.choice([1, 5, 40]))
    drawn = scene(rng, slots=slots, channels=k)
    over = replace(drawn, shape=(1, 1, k), window=Window(Axis(1, 0, 0), Axis(1, 0, 0)))
    s = scalars(rng, over, work in ("relu", "both"), work in ("charge", "both"), "line", kind, dtype)
    m, w = over.coefficients(rng, kind, dtype), draw(rng, (k, n), "integers" if kind == "huge" else kind, dtype)
    bm, bn, bk = (int(v) for v in rng.choice([16, 32], 3))
    split = int(rng.choice([1, 1, 2, 4]))
    tiles: Constants = {"BM": bm, "BN": bn, "BK": bk, "SK": split, "BR": int(rng.choice([1, 4, bm])), "BQ": int(rng.choice([8, 64]))}
    sizes: Constants = {"T": ARITHMETICS[numerics].type, "FORM": ARITHMETICS[numerics].form, "K": k, "N": n, "LINE": k, "C": k}
    sizes |= over.place()
    out = np.full((over.capacity, split * n), NAN, dtype)
    grid = blocks(over.capacity, bm) + 1, split * blocks(n, bn) + (work != "none")
    found = run("dense_step", {**s.constants, **sizes, **tiles}, numerics, grid, {**over.rows(), **s.tables, "m": m, "w": w, "out": out})
    s.check(m, found, tight=kind != "huge")
    if split > 1:
        assert np.isnan(found["out"][over.count :]).all()
        values = {"count": np.array([over.count]), "parts": found["out"], "out": np.full((over.capacity, n), NAN, dtype)}
        sums: Constants = {"T": sizes["T"], "N": n, "SK": split, "BR": 4, "BQ": 32}
        found = run("sum_parts", sums, numerics, (blocks(over.capacity, 4) + 1, blocks(n, 32)), values)
    assert np.isnan(found["out"][over.count :]).all()
    rows = s.substituted(m).reshape(over.count, k)
    u = ARITHMETICS[numerics].u
    room = Fraction((min(k, bk if split == 1 else 32) + 2) * u * 1.0001 if dtype == np.float32 else (k + 1) * u * 1.0001)
    for r in range(over.count):
        for j in range(n):
            got = float(found["out"][r, j])
            if kind == "huge" and not np.isfinite(got):
                continue
            bound = room * exact(np.abs(rows[r]), np.abs(w[:, j])) + k * Fraction(ETA[dtype])
            assert abs(Fraction(got) - exact(rows[r], w[:, j])) <= bound, (r, j)


# ---- convolution ----------------------------------------------------------------------------------------------------


def scattered(n: np.ndarray, w: np.ndarray, lead: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], groups: int,
              to: tuple[int, int, int]) -> np.ndarray:  # fmt: skip
    """The transposed convolution by its definition: every tap of every cell goes to its place, or is dropped. w: [KH, KW, CO, CI/G]."""
    rows, h, width, co = n.shape
    ci = w.shape[3]
    out = np.zeros((rows, *to))
    for y in range(h):
        for x in range(width):
            for i in range(w.shape[0]):
                for j in range(w.shape[1]):
                    a, b = y * stride[0] + i * dilation[0] - lead[0], x * stride[1] + j * dilation[1] - lead[1]
                    if 0 <= a < to[0] and 0 <= b < to[1]:
                        for g in range(groups):
                            part = slice(g * co // groups, (g + 1) * co // groups)
                            out[:, a, b, g * ci : (g + 1) * ci] += n[:, y, x, part].astype(np.float64) @ w[i, j, part].astype(np.float64)
    return out


@given(seeds, st.booleans(), works, st.booleans(), forms)
@limits(max_examples=30)
def test_conv_step(seed: int, slots: bool, work: str, mask: bool, numerics: str) -> None:
    """Strides above the kernel, dilation, groups, padding on one side, windows cut and widened, cells off the image."""
    rng = np.random.default_rng(seed)
    dtype, groups, ci = FLOATS[numerics], int(rng.choice([1, 1, 2])), int(rng.choice([1, 2, 17]))
    over = scene(rng, slots=slots, channels=groups * int(rng.choice([1, 3, 17])))
    k, s, d = ((int(a), int(b)) for a, b in (rng.integers(1, 4, 2), rng.integers(1, 4, 2), rng.choice([1, 1, 2], 2)))
    pad = tuple(int(v) for v in rng.choice([0, 0, 1, 2, -1], 2))
    # the window asked for: the natural one, or cells fewer or more on each side
    natural = Window(*(input_axis(a, k[i], s[i], pad[i], d[i]) for i, a in enumerate((over.window.h, over.window.w))))
    to = Window(*(_shifted(rng, a) for a in (natural.h, natural.w)))
    image = tuple(int(v) for v in rng.integers(1, 6, 2))
    cells = (to.h.size, to.w.size, ci * groups)
    lead = natural.h.offset - to.h.offset, natural.w.offset - to.w.offset
    sc = scalars(rng, over, work in ("relu", "both"), work in ("charge", "both"), "line", "integers", dtype)
    sc.tables["above"][:] = rng.choice([0.0, 0.5, 1.0], sc.tables["above"].shape)
    m, w = over.coefficients(rng, "integers", dtype), draw(rng, (*k, over.shape[2], ci), "integers", dtype)
    ph, pw = (s[i] if d[i] == 1 else 1 for i in (0, 1))
    bm, span = int(rng.choice([16, 64])), int(rng.choice([1, 2, 16]))
    times, each = ph * pw, blocks(cells[0], ph) * blocks(cells[1], pw)
    bn, br, programs = 16, int(rng.choice([1, 2])), (blocks(over.capacity, bm // span) * blocks(each, span) + 1) * times
    constants: Constants = {
        **sc.constants, **over.place(), "T": ARITHMETICS[numerics].type, "FORM": ARITHMETICS[numerics].form, "H": over.cells[0],
        "W": over.cells[1], "CO": over.shape[2], "G": groups, "HO": cells[0], "WO": cells[1], "CI": cells[2], "KH": k[0], "KW": k[1],
        "SH": s[0], "SW": s[1], "DH": d[0], "DW": d[1], "TOP": lead[0], "LEFT": lead[1], "MASK": mask, "IH": image[0], "IW": image[1],
        "TO_RH": to.h.stride, "TO_OH": to.h.offset, "TO_RW": to.w.stride, "TO_OW": to.w.offset, "PH": ph, "PW": pw, "SPAN": span,
        "BM": bm, "BN": bn, "BK": 16, "BS": br * blocks(over.capacity, programs * br), "BR": br, "BQ": int(rng.choice([8, 64])),
    }  # fmt: skip
    out = np.full((over.capacity, *cells), NAN, dtype)
    grid = programs, groups * blocks(ci, bn) + (work != "none")
    found = run("conv_step", constants, numerics, grid, {**over.rows(), **sc.tables, "m": m, "w": w, "out": out})
    sc.check(m, found)
    want = scattered(sc.substituted(m), w, lead, s, d, groups, cells)
    if mask:
        source = replace(over, shape=(*image, cells[2]), window=to)  # type: ignore[arg-type]
        for r in range(over.count):
            want[r][~source.on_image(r)] = 0
    assert np.array_equal(found["out"][: over.count], want)
    assert np.isnan(found["out"][over.count :]).all()


def _shifted(rng: np.random.Generator, natural: Axis) -> Axis:
    if natural.whole or rng.random() < 0.4:
        return natural
    return replace(natural, size=max(1, natural.size + int(rng.integers(-2, 3))), offset=natural.offset + int(rng.integers(-1, 2)))


# ---- first slices ---------------------------------------------------------------------------------------------------


def neurons(rng: np.random.Generator, over: Scene) -> dict[str, np.ndarray]:
    n = over.capacity
    return {"sign": rng.choice([-1.0, 1.0], n), "channel": rng.integers(0, over.shape[2], n)}


def substituted_neurons(rng: np.random.Generator, over: Scene, form: str) -> dict[str, np.ndarray]:
    h, w, c = over.positions[0], over.positions[1], over.shape[2]
    width = {"none": 0, "line": c, "image": h * w * c}[form]
    return {
        "bias": draw(rng, (width,), "mixed"), "first": np.abs(draw(rng, (over.batch, h, w, c), "mixed")),
        "constant": draw(rng, (over.capacity,), "mixed"), "error": np.abs(draw(rng, (over.capacity,), "mixed")),
    }  # fmt: skip


def check_neurons(over: Scene, form: str, rows: dict[str, np.ndarray], before: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    width = over.positions[1]
    for r in range(over.count):
        y, x, c = int(over.row_h[r]), int(over.row_w[r]), int(rows["channel"][r])
        at = {"none": None, "line": c, "image": (y * width + x) * over.shape[2] + c}[form]
        bias = Fraction(0) if at is None else Fraction(float(before["bias"][at])) * int(rows["sign"][r])
        told = before["constant"][r], before["error"][r], before["first"][over.image[r], y, x, c]
        constant, error, first = (Fraction(float(v)) for v in told)
        demand, size = constant + bias - error - first, abs(constant) + abs(bias) + error + first
        assert covers(float(found["constant"][r]), float(found["error"][r]), demand, size)
    for name in ("constant", "error"):
        assert np.array_equal(found[name][over.count :], before[name][over.count :])


@given(seeds, st.sampled_from(("none", "line", "image")))
@limits(max_examples=15)
def test_pay_neurons(seed: int, form: str) -> None:
    rng = np.random.default_rng(seed)
    over = scene(rng)
    rows, before = neurons(rng, over), substituted_neurons(rng, over, form)
    tiles = {"BR": int(rng.choice([1, 4]))}
    constants: Constants = {"BIAS": form, "H": over.positions[0], "W": over.positions[1], "C": over.shape[2], **tiles}
    grid = blocks(over.capacity, tiles["BR"]) + 1, 1
    found = run("pay_neurons", constants, "float32", grid, {**over.rows(), **rows, **before})
    check_neurons(over, form, rows, before, found)


@given(seeds, st.booleans(), st.booleans(), st.sampled_from(("none", "line", "image")), st.sampled_from(("float64", "float32")))
@limits(max_examples=30)
def test_start_rows_on_slices_of_the_weights(seed: int, charge: bool, mask: bool, form: str, numerics: str) -> None:
    """The neuron at a position reads [NH, NW] cells from its natural origin; they are laid onto another window."""
    rng = np.random.default_rng(seed)
    over, dtype = scene(rng), FLOATS[numerics]
    sc, image = int(rng.choice([1, 3, 17])), tuple(int(v) for v in rng.integers(1, 6, 2))
    natural = Window(*(Axis(int(rng.integers(1, 4)), int(rng.integers(0, 3)), int(rng.integers(-1, 3))) for _ in "hw"))
    to = Window(*(Axis(n, 0, 0) for n in image)) if rng.random() < 0.5 else Window(*(_shifted(rng, a) for a in (natural.h, natural.w)))
    w = draw(rng, (over.shape[2], natural.h.size, natural.w.size, sc), "mixed", dtype)
    rows, before = neurons(rng, over), substituted_neurons(rng, over, form)
    tiles = {"BR": int(rng.choice([1, 4])), "BQ": int(rng.choice([4, 64]))}
    constants: Constants = {
        "T": ARITHMETICS[numerics].type, "CHARGE": charge, "SLICE": True, "BIAS": form, "H": over.positions[0], "W": over.positions[1],
        "C": over.shape[2], "NH": natural.h.size, "NW": natural.w.size, "CI": sc, "HO": to.h.size, "WO": to.w.size,
        "GAP_RH": natural.h.stride - to.h.stride, "GAP_H": to.h.offset - natural.h.offset, "GAP_RW": natural.w.stride - to.w.stride,
        "GAP_W": to.w.offset - natural.w.offset, "MASK": mask, "IH": image[0], "IW": image[1], "RH": to.h.stride, "OH": to.h.offset,
        "RW": to.w.stride, "OW": to.w.offset, **tiles,
    }  # fmt: skip
    cells = to.h.size, to.w.size, sc
    out = np.full((over.capacity, *cells), NAN, dtype)
    grid = blocks(over.capacity, tiles["BR"]) + 1, blocks(int(np.prod(cells)), tiles["BQ"])
    found = run("start_rows", constants, numerics, grid, {**over.rows(), **rows, **before, "w": w, "out": out})
    if charge:
        check_neurons(over, form, rows, before, found)
    source, reads = replace(over, shape=(*image, sc), window=to), replace(over, shape=(*image, sc), window=natural)  # type: ignore[arg-type]
    for r in range(over.count):
        want, (y0, x0), (ny, nx) = np.zeros(cells), source.origin(r), reads.origin(r)
        for y in range(cells[0]):
            for x in range(cells[1]):
                i, j = y0 + y - ny, x0 + x - nx
                if 0 <= i < natural.h.size and 0 <= j < natural.w.size:
                    want[y, x] = w[rows["channel"][r], i, j] * rows["sign"][r]
        if mask:
            want[~source.on_image(r)] = 0
        assert np.array_equal(found["out"][r], want)
    assert np.isnan(found["out"][over.count :]).all()


@given(seeds, st.sampled_from(("float64", "float32")))
@limits(max_examples=10)
def test_start_rows_written_out_on_their_own_node(seed: int, numerics: str) -> None:
    rng = np.random.default_rng(seed)
    over, dtype = scene(rng), FLOATS[numerics]
    rows, c = neurons(rng, over), over.shape[2]
    nothing = ("H", "W", "C", "NH", "NW", "GAP_RH", "GAP_H", "GAP_RW", "GAP_W", "IH", "IW", "RH", "OH", "RW", "OW")
    tiles = {"BR": int(rng.choice([1, 4])), "BQ": int(rng.choice([4, 64]))}
    constants: Constants = {
        **dict.fromkeys(nothing, 0), "T": ARITHMETICS[numerics].type, "CHARGE": False, "SLICE": False, "BIAS": "none", "CI": c, "HO": 1,
        "WO": 1, "MASK": False, **tiles,
    }  # fmt: skip
    out = np.full((over.capacity, c), NAN, dtype)
    grid = blocks(over.capacity, tiles["BR"]) + 1, blocks(c, tiles["BQ"])
    found = run("start_rows", constants, numerics, grid, {**over.rows(), **rows, "out": out})["out"]
    want = np.eye(c)[rows["channel"]] * rows["sign"][:, None]
    assert np.array_equal(found[: over.count], want[: over.count]) and np.isnan(found[over.count :]).all()


# ---- joins ----------------------------------------------------------------------------------------------------------


def laid(source: Scene, m: np.ndarray, to: Scene) -> np.ndarray:
    """Coefficients by image cell on another window of the node; what that window lacks is dropped."""
    out = np.zeros((to.count, *to.cells), m.dtype)
    taken = source.taken(m)
    for r in range(to.count):
        (y0, x0), (sy, sx) = to.origin(r), source.origin(r)
        for y in range(to.cells[0]):
            for x in range(to.cells[1]):
                i, j = y0 + y - sy, x0 + x - sx
                if 0 <= i < source.cells[0] and 0 <= j < source.cells[1]:
                    out[r, y, x] = taken[r, i, j]
    return out


@given(seeds, st.booleans(), st.booleans(), st.sampled_from(KINDS), st.sampled_from(("float64", "float32")))
@example(4, True, False, "mixed", "float32")  # a sum's own rounding counts
@example(18, True, False, "mixed", "float32")  # where nothing is pending too
@limits(max_examples=50)
def test_join_rows(seed: int, second: bool, slots: bool, kind: str, numerics: str) -> None:
    """Windows of other origins, strides and sizes: the sum is the rounded sum, and the error pays for that and for pending roundings."""
    rng = np.random.default_rng(seed)
    to, dtype, u = scene(rng, slots=True), FLOATS[numerics], ARITHMETICS[numerics].u
    a, b = (x if slots else replace(x, slot=None) for x in (to.beside(rng), to.beside(rng)))
    m = {"a": a.coefficients(rng, kind, dtype), "b": b.coefficients(rng, kind, dtype)}
    signs, grow = {"a": int(rng.choice([-1, 1])), "b": int(rng.choice([-1, 1]))}, sum_error(to.size)
    pending = {name: float(rng.choice([0.0, u])) for name in "ab"}
    ends = [to.table(rng, kind, dtype) for _ in "lh"]
    lo, hi = np.minimum(*ends), np.maximum(*ends)
    before = {"constant": draw(rng, (to.capacity,), kind), "error": np.abs(draw(rng, (to.capacity,), kind))}
    floor = np.full(to.batch, 1e-290)
    tiles = {"BR": int(rng.choice([1, 4])), "BQ": int(rng.choice([4, 64]))}
    constants: Constants = {
        "SECOND": second, "A_SLOT": slots, "B_SLOT": slots and second, "A_SIGN": signs["a"], "B_SIGN": signs["b"], "C": to.shape[2],
        "HO": to.cells[0], "WO": to.cells[1], **to.place(), "AH": a.cells[0], "AW": a.cells[1], **a.place("A_"), "BH": b.cells[0],
        "BW": b.cells[1], **b.place("B_"), **to.geometry(), "A_REL": pending["a"] * grow, "B_REL": pending["b"] * grow,
        "OUT_REL": u * (1 + 2.0**-20) * grow, **tiles,
    }  # fmt: skip
    out = np.full((to.capacity, *to.cells), NAN, dtype)
    values = {**to.rows(), **m, "a_slot": a.slot, "b_slot": b.slot, "lo": lo, "hi": hi, **before, "floor": floor, "out": out}
    grid = blocks(to.capacity, tiles["BR"]) + 1, 1
    found = run("join_rows", constants, numerics, grid, {k: v for k, v in values.items() if v is not None})
    parts = {name: signs[name] * laid(s, m[name], to) for name, s in (("a", a), ("b", b))}
    want = parts["a"] + parts["b"] if second else parts["a"]
    assert np.array_equal(found["out"][: to.count], want, equal_nan=True) and np.isnan(found["out"][to.count :]).all()
    if not second:
        assert np.array_equal(found["constant"], before["constant"]) and np.array_equal(found["error"], before["error"])
        return
    xabs = np.maximum(np.abs(to.under(lo)), np.abs(to.under(hi)))
    for r in range(to.count):
        c, e = Fraction(float(before["constant"][r])), Fraction(float(before["error"][r]))
        demand, size = c - e, abs(c) + e
        if np.isfinite(want[r]).all():
            total = sum((exact(np.abs(p[r]), xabs[r]) for p in parts.values()), Fraction(0))
            size += Fraction(u) * total * 2**41  # the sum is charged u |sum|, which may be far more than what rounding took
            demand -= sum((Fraction(pending[n]) * exact(np.abs(p[r]), xabs[r]) for n, p in parts.items()), Fraction(0))
            pairs = zip(*(v[r].ravel().tolist() for v in (want, parts["a"], parts["b"], xabs)), strict=True)
            demand -= sum((abs(Fraction(s) - Fraction(x) - Fraction(y)) * Fraction(v) for s, x, y, v in pairs), Fraction(0))
        constant, error = float(found["constant"][r]), float(found["error"][r])
        assert constant == before["constant"][r] and covers(constant, error, demand, size)
        assert kind == "huge" or np.isfinite(error)


@pytest.mark.parametrize("numerics", ["float64", "float32"])
def test_pending_roundings_are_paid_where_the_sum_cancels(numerics: str) -> None:
    """a + b is zero everywhere, so nothing is charged for it: the error is what both parts brought along."""
    rng, dtype, u = np.random.default_rng(1), FLOATS[numerics], ARITHMETICS[numerics].u
    whole = Window(Axis(2, 0, 0), Axis(2, 0, 0))
    zero = np.zeros(2, np.int64)
    to = Scene((2, 2, 3), whole, (1, 1), 1, 2, zero, zero, zero, None)
    m, lo, hi = draw(rng, (2, *to.cells), "one sign", dtype), -np.ones((1, *to.frame), dtype), 3 * np.ones((1, *to.frame), dtype)
    place = {f"{p}{k}": v for p in ("", "A_", "B_") for k, v in to.place().items()}
    constants: Constants = {
        "SECOND": True, "A_SLOT": False, "B_SLOT": False, "A_SIGN": 1, "B_SIGN": -1, "C": 3, "HO": 2, "WO": 2, "AH": 2, "AW": 2, "BH": 2,
        "BW": 2, **place, **to.geometry(), "A_REL": u * sum_error(12), "B_REL": u * sum_error(12), "OUT_REL": u, "BR": 2, "BQ": 4,
    }  # fmt: skip
    values = {
        "a": m,
        "b": m,
        "lo": lo,
        "hi": hi,
        "constant": np.zeros(2),
        "error": np.zeros(2),
        "floor": np.zeros(1),
        "out": np.ones_like(m),
    }
    found = run("join_rows", constants, numerics, (1, 1), {**to.rows(), **values})
    assert not found["out"].any()
    for r in range(2):
        due = 2 * 3 * Fraction(u) * exact(m[r])
        assert due <= Fraction(float(found["error"][r])) <= due * (1 + Fraction(2.0**-40))
