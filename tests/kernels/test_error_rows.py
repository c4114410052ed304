"""Every float64 sum of a row pass against exact rationals, on data made to reach for its bound, and what a row pays for it.

The bounds are those of the kernels' docstrings and of rounding.py: a sum of k products is off by at most dot_error(k) of their
magnitudes, a sum of one sign times sum_error(k) is past the exact one. A site is one such sum of one kernel, read with its factor
set to one; the rows of a launch are the kinds of data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Constant, Constants
from polytriton.kernels.choose import INTERPRETER
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.lanes import MERGE
from polytriton.kernels.launches import Lowering
from polytriton.kernels.sequence import Frames
from polytriton.passes.pipeline import compile_net
from polytriton.rounding import U64, dot_error, gamma, one_rounding, sum_error
from tests.kernels.steps import FLOATS, draw, exact, run
from tests.kernels.test_every_operator import leaky, pools, scales
from tests.oracle.nets import toy_residual

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow
K = 160
TYPES = ("float64", "float32")
KINDS = ("dropped", "raised", "cancelling", "one sign", "mixed", "subnormal", "huge")
FACTOR = {"float64": 2.0**-53, "float32": 2.0**-24}
Array = np.ndarray


def data(numerics: str) -> tuple[Array, Array]:
    """Rows [kinds, K] and one table [K] they are multiplied by; the first two rows meet ones, so that their products are exact."""
    rng, dtype = np.random.default_rng(8), FLOATS[numerics]
    rows: Array = np.empty((len(KINDS), K), dtype)
    for r, kind in enumerate(KINDS):
        if kind in ("dropped", "raised"):  # 1, then numbers that every addition to it drops, or rounds up to its last place
            rows[r] = (0.49 if kind == "dropped" else 0.51) * 2.0**-52
            rows[r, 0] = 1
        else:
            rows[r] = draw(rng, (K,), kind, dtype)
    return rows, np.ones(K, dtype)


def over(m: Array, tables: Mapping[str, Array]) -> dict[str, Array]:
    """Tensors of rows on the whole of one image of K channels that have paid nothing yet."""
    n, zero = len(m), np.zeros(len(m), np.int64)
    rows = {"image": zero, "row_h": zero, "row_w": zero, "count": np.array([n]), "constant": np.zeros(n), "error": np.zeros(n)}
    floors = {"floor": np.zeros(1), "own_floor": np.zeros(1)}
    names = ("below", "above", "cut", "lower", "t", "lo", "hi", "most", "largest", "factor")
    lines = {name: np.zeros(m.shape[1], m.dtype) for name in names}
    more = {"shift": np.zeros(m.shape[1]), "bias": np.zeros(m.shape[1]), "winner": np.zeros(m.shape[1], np.int64)}
    return {**rows, **floors, **lines, **more, "m": m, "out": np.zeros_like(m), **tables}


def place(k: int, bq: int) -> Constants:
    flat = {"RH": 0, "OH": 0, "RW": 0, "OW": 0, "START": 0, "PLANE": k, "PITCH": k}
    return {"SLOT": False, "SIZE": k, "LINE": k, "C": k, **flat, "BR": 8, "BQ": bq}


def launch(name: str, more: Mapping[str, Constant], m: Array, tables: Mapping[str, Array], numerics: str, bq: int) -> dict[str, Array]:
    return run(name, {**place(m.shape[1], bq), **more}, numerics, (1, 1), over(m, tables))


# ---- sites ----------------------------------------------------------------------------------------------------------


def relax(m: Array, numerics: str, bq: int, enlarge: float, charge: bool, form: str, **tables: Array) -> dict[str, Array]:
    more: Constants = {"RELU": not charge, "CHARGE": charge, "BIAS": form, "SUM_ERROR": enlarge}
    return launch("relax_rows", {**more, "T_START": 0, "T_PLANE": K, "T_PITCH": K}, m, tables, numerics, bq)


def slope(m: Array, numerics: str, bq: int, enlarge: float, pending: float, **tables: Array) -> dict[str, Array]:
    return launch("slope_rows", {"LOWER": True, "PENDING": pending, "SUM_ERROR": enlarge}, m, tables, numerics, bq)


def scale(m: Array, numerics: str, bq: int, enlarge: float, **tables: Array) -> dict[str, Array]:
    return launch("scale_rows", {"SUM_ERROR": enlarge}, m, tables, numerics, bq)


def pool(m: Array, numerics: str, bq: int, enlarge: float, rel: float, pending: float, **tables: Array) -> dict[str, Array]:
    """Pools of one cell whose winner is never sure: coefficients below zero become constants. The new window is the first cell."""
    k, sizes = m.shape[1], dict.fromkeys(("W", "C", "HO", "WO", "KH", "KW", "SH", "SW", "DH", "DW", "PH", "PW", "PITCH"), 1)
    more = {**sizes, "H": k, "T": ARITHMETICS[numerics].type, "TOP": 0, "LEFT": 0, "PENDING": pending, "REL": rel, "SUM_ERROR": enlarge}
    known = {name: v for name, v in {**place(k, bq), **more}.items() if name not in ("SIZE", "LINE")}
    values = {**over(m, {"winner": np.full(k, 2), **tables}), "out": np.zeros((len(m), 1), m.dtype)}
    return run("pool_rows", known, numerics, (1, 2), values)


def join(m: Array, numerics: str, bq: int, b: Array | None = None, **more: Constant) -> dict[str, Array]:
    k = m.shape[1]
    cells = dict.fromkeys(("HO", "WO", "AH", "AW", "BH", "BW"), 1)
    flat = {f"{p}{n}": 0 for p in ("A_", "B_") for n in ("RH", "OH", "RW", "OW")}
    rest = {"SECOND": True, "A_SLOT": False, "B_SLOT": False, "A_SIGN": 1, "B_SIGN": 1, "A_REL": 0.0, "B_REL": 0.0, "OUT_REL": 0.0}
    known = {k: v for k, v in place(k, bq).items() if k not in ("SIZE", "LINE", "SLOT")}
    ones = np.ones(k, m.dtype)
    values = {**over(m, {"lo": -ones, "hi": ones}), "a": m, "b": np.zeros_like(m) if b is None else b}
    return run("join_rows", {**known, **cells, **flat, **rest, **more}, numerics, (1, 1), values)


def concretize(m: Array, numerics: str, bq: int, first: bool = True, last: bool = False, rel: float = 1.0, nodes: int = 1,
               **tables: Array) -> dict[str, Array]:  # fmt: skip
    n = len(m)
    order, low = np.arange(n), np.full(n, -np.inf)
    state = {"value": np.zeros(n), "raw": np.zeros(n), "slack": np.zeros(n), "index": order, "group": order, "best": low, "raw_best": low}
    settled = {"done": np.zeros(n, np.int8), "limit": np.array([np.inf])}
    more = {"REL": rel, "FIRST": first, "LAST": last, "NODES": nodes}
    return launch("concretize_rows", more, m, {**state, **settled, **tables}, numerics, bq)


@dataclass(frozen=True)
class Site:
    """A sum over |m| (of `sign`), or over m (`sign` 0), times a table: read plainly, or times `enlarge` where the kernel has that."""

    sign: int
    read: str
    run: Callable[[Array, str, int, float, Array], dict[str, Array]]

    def sums(self, m: Array, table: Array, numerics: str, bq: int, enlarge: float = 1.0) -> tuple[Array, Array]:
        """What was added up, and what the kernel made of it."""
        x = m if not self.sign else self.sign * np.abs(m)
        return x, self.run(x, numerics, bq, enlarge, table)[self.read]


SITES = {
    "relax cut": Site(-1, "constant", lambda m, n, bq, e, t: relax(m, n, bq, e, False, "none", cut=t)),
    "relax t": Site(1, "error", lambda m, n, bq, e, t: relax(m, n, bq, e, True, "none", t=t)),
    "relax bias": Site(0, "constant", lambda m, n, bq, e, t: relax(m, n, bq, e, True, "image", bias=t.astype(np.float64))),
    "relax bias line": Site(0, "constant", lambda m, n, bq, e, t: relax(m, n, bq, e, True, "line", bias=t.astype(np.float64))),
    "slope cut": Site(-1, "constant", lambda m, n, bq, e, t: slope(m, n, bq, e, 0.0, cut=t)),
    "slope lower": Site(1, "constant", lambda m, n, bq, e, t: slope(m, n, bq, e, 0.0, lower=t)),
    "slope pending": Site(1, "error", lambda m, n, bq, e, t: slope(m, n, bq, 1.0, e, lo=-t, hi=t)),
    "scale shift": Site(0, "constant", lambda m, n, bq, e, t: scale(m, n, bq, e, shift=t.astype(np.float64))),
    "scale t": Site(1, "error", lambda m, n, bq, e, t: scale(m, n, bq, e, t=t)),
    "pool most": Site(-1, "constant", lambda m, n, bq, e, t: pool(m, n, bq, e, 0.0, 0.0, most=t)),
    "pool largest": Site(1, "error", lambda m, n, bq, e, t: pool(m, n, bq, e, 1.0, 0.0, largest=t)),
    "pool pending": Site(1, "error", lambda m, n, bq, e, t: pool(m, n, bq, 1.0, 0.0, e, lo=-t, hi=t)),
    "join out": Site(1, "error", lambda m, n, bq, e, t: join(m, n, bq, OUT_REL=e)),
    "join a": Site(1, "error", lambda m, n, bq, e, t: join(m, n, bq, A_REL=e)),
    "join b": Site(1, "error", lambda m, n, bq, e, t: join(np.zeros_like(m), n, bq, m, B_REL=e)),
    "concretize least": Site(0, "value", lambda m, n, bq, e, t: concretize(m, n, bq, lo=t, hi=t)),
    "concretize weight": Site(1, "slack", lambda m, n, bq, e, t: concretize(m, n, bq, rel=e, lo=-t, hi=t)),
}
ONE_SIGN = [name for name, site in SITES.items() if site.sign and name not in ("pool most", "concretize weight")]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("bq", [pytest.param(1, marks=pytest.mark.slow), 16])
@pytest.mark.parametrize("numerics", TYPES)
@pytest.mark.parametrize("name", SITES)
def test_a_sum_is_off_by_no_more_than_dot_error_and_reaches_for_it(name: str, numerics: str, bq: int) -> None:
    """One lane adds K terms one after the other: 49 in 100 of an ulp dropped each time are a good part of 2 (K + 8) U."""
    m, table = data(numerics)
    x, found = SITES[name].sums(m, table, numerics, bq)
    own = 24 * U64 if SITES[name].read == "error" else 0.0  # numerics.pay enlarges an error by 8 U, three times in a join
    for r, kind in enumerate(KINDS):
        total, size = exact(x[r], table), exact(np.abs(x[r]), table)
        got, bound = Fraction(float(found[r])), Fraction(dot_error(K)) * size
        assert got - total <= bound + Fraction(own) * size + Fraction(4e-300), kind
        assert total - got <= bound, kind
        if bq == 1 and kind == "dropped":
            assert abs(got) < abs(total) and abs(total - got) - Fraction(own) * size > bound / 4, float(abs(total - got) / bound)
        if bq == 1 and kind == "raised":
            assert abs(got) > abs(total) and abs(total - got) - Fraction(own) * size > bound / 4, float(abs(total - got) / bound)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("numerics", TYPES)
@pytest.mark.parametrize("name", ONE_SIGN)
def test_a_sum_of_one_sign_is_enlarged_past_the_exact_one(name: str, numerics: str) -> None:
    """By sum_error(K), whatever its additions dropped, and by no more than twice that."""
    m, table = data(numerics)
    x, found = SITES[name].sums(m, table, numerics, 1, sum_error(K))
    for r, kind in enumerate(KINDS):
        total, got = abs(exact(x[r], table)), abs(Fraction(float(found[r])))
        assert total <= got <= total * Fraction(1 + 2 * (sum_error(K) - 1) + 24 * U64) + Fraction(4e-300), kind


# ---- what is paid for the row's own additions -----------------------------------------------------------------------


def merged(constant: float, more: float, error: float, charge: float) -> tuple[Fraction, Fraction]:
    values = {"constant": [constant], "lane_constant": [more], "error": [error], "lane_error": [charge]}
    given = {k: np.array(v) for k, v in values.items()} | {"count": np.array([1])}
    found = run("merge_scalars", MERGE.constants, "float64", (1, 1), given)
    return Fraction(float(found["constant"][0])), Fraction(float(found["error"][0]))


def neuron(constant: float, more: float, error: float, charge: float, name: str = "pay_neurons") -> tuple[Fraction, Fraction]:
    zero = np.zeros(1, np.int64)
    values = {"image": zero, "row_h": zero, "row_w": zero, "channel": zero, "count": np.array([1]), "sign": np.ones(1)}
    paid = {"bias": np.array([more]), "first": np.array([charge]), "constant": np.array([constant]), "error": np.array([error])}
    constants: Constants = {"BIAS": "line", "H": 1, "W": 1, "C": 1, "BR": 1}
    if name == "start_rows":
        nothing = dict.fromkeys(("GAP_RH", "GAP_H", "GAP_RW", "GAP_W", "RH", "OH", "RW", "OW"), 0)
        one = dict.fromkeys(("NH", "NW", "CI", "HO", "WO", "IH", "IW", "BQ"), 1)
        constants |= {**nothing, **one, "T": "tl.float64", "CHARGE": True, "SLICE": True, "MASK": False}
        paid |= {"w": np.ones(1), "out": np.zeros(1)}
    found = run(name, constants, "float64", (1, 1), {**values, **paid})
    return Fraction(float(found["constant"][0])), Fraction(float(found["error"][0]))


def started(constant: float, more: float, error: float, charge: float) -> tuple[Fraction, Fraction]:
    return neuron(constant, more, error, charge, "start_rows")


@pytest.mark.parametrize("pay", [merged, neuron, started])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_constants_own_rounding_is_paid_and_little_more(pay: Callable[..., tuple[Fraction, Fraction]], sign: float) -> None:
    """1 + 0.49 and 1 + 0.51 ulps round by nearly half an ulp, U |constant|; 4 U |constant| is what is paid."""
    for part in (0.49, 0.51, 0.5, 1.49):
        more = sign * part * 2.0**-52
        constant, error = pay(sign, more, 0.0, 0.0)
        lost = abs(constant - Fraction(sign) - Fraction(more))
        assert lost <= error <= Fraction(4.001 * U64) * abs(constant)
        assert lost > error / 10 or part == 1.49


@pytest.mark.parametrize("pay", [merged, neuron, started])
def test_the_errors_own_rounding_is_paid_and_little_more(pay: Callable[..., tuple[Fraction, Fraction]]) -> None:
    """error + charge drops nearly half an ulp of its sum: (1 + 8 U) brings it back."""
    worst = Fraction(0)
    for charge in (0.49 * 2.0**-52, 0.51 * 2.0**-52, 0.499 * 2.0**-52, 1.0, 1e-300):
        constant, error = pay(0.0, 0.0, 1.0, charge)
        due = 1 + Fraction(charge)
        assert constant == 0 and due <= error <= due * Fraction(1 + 12 * U64)
        worst = max(worst, Fraction(charge) / due / Fraction(8 * U64) if charge < 2.0**-53 else Fraction(0))
    assert worst > Fraction(1, 10)


# ---- roundings of coefficients --------------------------------------------------------------------------------------


def coefficients(numerics: str, seed: int = 0) -> tuple[Array, Array]:
    """Numbers just above a power of two whose sums and products are about half an ulp off, of both signs."""
    rng, dtype, u = np.random.default_rng(seed), FLOATS[numerics], FACTOR[numerics]
    a = rng.choice([-1.0, 1.0], (3, K)) * (1 + 2 * u * rng.integers(0, 64, (3, K)))
    return a.astype(dtype), np.full((3, K), 1.98 * u / 2, dtype) * np.sign(a).astype(dtype)


@pytest.mark.parametrize("numerics", TYPES)
def test_a_join_pays_for_what_its_sums_round(numerics: str) -> None:
    """u sum |out| xabs, of which nearly all is used: every sum drops 99 in 100 of half an ulp."""
    u = FACTOR[numerics]
    a, b = coefficients(numerics)
    found = join(a, numerics, 16, b, OUT_REL=u * (1 + 2.0**-20) * sum_error(K))
    for r in range(len(a)):
        parts = zip(*(v[r].tolist() for v in (found["out"], a, b)), strict=True)
        lost = sum(abs(Fraction(o) - Fraction(x) - Fraction(y)) for o, x, y in parts)
        error = Fraction(float(found["error"][r]))
        assert lost <= error <= Fraction(1.001 * u) * exact(np.abs(found["out"][r]))
        assert lost > error / 2


@pytest.mark.parametrize("behind", ["slope", "pool", "join", "bound"])
@pytest.mark.parametrize("numerics", TYPES)
def test_what_pends_on_a_relus_product_is_paid_by_whoever_is_next(behind: str, numerics: str) -> None:
    """N_j = fl(M_j above_j) is off by at most u |N_j|: the next pass that forgets N pays u (1 + 2^-20) sum |N_j| xabs_j."""
    rng, dtype, u = np.random.default_rng(9), FLOATS[numerics], FACTOR[numerics]
    m, above = -(1 + rng.random((3, K))).astype(dtype), (1 + rng.random(K)).astype(dtype)
    n, ones = slope(m, numerics, 16, 1.0, 0.0, above=above)["out"], np.ones(K, dtype)
    pending = u * (1 + 2.0**-20)
    if behind == "slope":
        error = slope(n, numerics, 16, sum_error(K), pending * sum_error(K), lo=-ones, hi=ones)["error"]
    elif behind == "pool":
        error = pool(n, numerics, 16, sum_error(K), 0.0, pending * sum_error(K), lo=-ones, hi=ones)["error"]
    elif behind == "join":
        error = join(n, numerics, 16, -n, A_REL=pending * sum_error(K), OUT_REL=pending)["error"]
    else:
        error = concretize(n, numerics, 16, rel=dot_error(K) + pending, lo=-ones, hi=ones)["slack"]
    for r in range(len(m)):
        parts = zip(n[r].tolist(), m[r].tolist(), above.tolist(), strict=True)
        lost = sum(abs(Fraction(v) - Fraction(x) * Fraction(w)) for v, x, w in parts)
        paid = Fraction(float(error[r])) - (Fraction(dot_error(K)) * exact(np.abs(n[r])) if behind == "bound" else 0)
        assert lost <= paid < 5 * lost


# ---- candidate bounds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numerics", TYPES)
def test_a_bound_is_below_the_exact_least_value_and_no_further_than_it_says(numerics: str) -> None:
    m, table = data(numerics)
    found = concretize(m, numerics, 1, last=True, rel=dot_error(K), lo=table, hi=table)["best"]
    for r, kind in enumerate(KINDS):
        least, weight = exact(m[r], table), exact(np.abs(m[r]), table)
        room = Fraction(dot_error(K)) * weight * Fraction(21, 10) + 64 * Fraction(U64) * abs(least) + Fraction(1e-299)
        assert least - room <= Fraction(float(found[r])) <= least, kind


@pytest.mark.parametrize("part, numerics", [(0.51, "float64"), (0.49, "float64"), (0.51, "float32")])
@pytest.mark.parametrize("nodes", [1, 2, 64])
def test_partial_sums_of_many_nodes_are_paid(nodes: int, part: float, numerics: str) -> None:
    """Nodes of one cell: 1, then parts of its last place, then -1. The value is small, what the additions rounded is not."""
    state: dict[str, Array] = {}
    one, dtype, total, size = np.ones(1, FLOATS[numerics]), FLOATS[numerics], Fraction(0), Fraction(0)
    for k in range(nodes):
        m = np.full((1, 1), 1 if k == 0 else -1 if k == nodes - 1 else part * 2.0**-52, dtype)
        total, size = total + exact(m), size + exact(np.abs(m))
        first, last = k == 0, k == nodes - 1
        found = concretize(m, numerics, 1, first, last, dot_error(1 + nodes - 1), nodes, lo=one, hi=one, **state)
        state = {name: found[name] for name in ("value", "raw", "slack")}
    best, raw = Fraction(float(found["best"][0])), Fraction(float(found["raw_best"][0]))
    bound = Fraction(dot_error(nodes)) * size + Fraction((16 + 8 * nodes) * U64) * (2 * abs(raw) + Fraction(float(state["slack"][0])))
    assert total - 3 * bound - Fraction(1e-299) <= best <= total
    assert abs(raw - total) <= bound
    assert nodes < 40 or abs(raw - total) > bound / 10, float(abs(raw - total) / bound)


# ---- what programs are launched with --------------------------------------------------------------------------------


@pytest.mark.slow
def test_programs_are_launched_with_the_factors_tested_here() -> None:
    """Every row pass of networks of every operator: factors by rounding.py from the kernel's own sizes, what pends by its readers."""
    seen: set[Any] = set()
    for make in (leaky, pools, scales, toy_residual):
        compiled = compile_net(make())
        for numerics in (ARITHMETICS[name] for name in TYPES):
            emitter, frames = Emitter(), Frames(compiled.net, compiled.plan)
            for program in compiled.plan:
                Lowering(emitter, frames, numerics, program, INTERPRETER).run()
            pending = numerics.u * (1 + 2.0**-20)
            for use in (use for uses in emitter.uses.values() for use in uses):
                c: dict[str, Any] = dict(use.constants)
                size = c.get("SIZE") or c.get("K") or c.get("H", 0) * c.get("W", 0) * c.get("CO", c.get("C", 0))
                if use.function in ("relax_rows", "slope_rows", "scale_rows", "pool_rows", "dense_step", "conv_step"):
                    assert c["SUM_ERROR"] == sum_error(size)
                if use.function in ("slope_rows", "pool_rows"):
                    assert c["PENDING"] in (0.0, pending * sum_error(size))
                if use.function == "concretize_rows":
                    own = dot_error(size + c["NODES"] - 1)
                    assert c["REL"] in (own, own + pending)
                    seen.add(("nodes", c["NODES"] > 1))
                if use.function == "join_rows" and c["SECOND"]:
                    grow = sum_error(c["HO"] * c["WO"] * c["C"])
                    assert c["OUT_REL"] == one_rounding(numerics.u) * grow and {c["A_REL"], c["B_REL"]} <= {0.0, pending * grow}
                if use.function == "pool_rows":
                    meets = overlap(c["KH"], c["SH"], c["DH"]) * overlap(c["KW"], c["SW"], c["DW"])
                    assert c["REL"] == gamma(meets - 1, numerics.u) + dot_error(size)
                seen.add(use.function)
    charging = {"relax_rows", "slope_rows", "scale_rows", "pool_rows", "dense_step", "conv_step", "concretize_rows", "join_rows"}
    assert seen >= {*charging, ("nodes", True), ("nodes", False)}


def overlap(k: int, s: int, d: int) -> int:
    """How many windows have a tap on one cell, counted."""
    return max(sum((cell - i * d) % s == 0 for i in range(k)) for cell in range(k * d * s))
