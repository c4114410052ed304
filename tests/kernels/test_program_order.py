"""Bounds are the same, bit for bit, in whatever order a launch's programs run, whatever lies in memory that nobody wrote yet, and
whether a maximum keeps a NaN or loses it: what a GPU leaves open and Triton's interpreter does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polytriton.ir.net import Net
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from tests.kernels.branches import dense_branches, projections, twins
from tests.kernels.grids import ORDERS, nan_is_lost, ordered, small_tiles, soil, soiled
from tests.kernels.test_compact import compacted, rows
from tests.kernels.test_interval_runs import small as tiny
from tests.kernels.test_kernel_runs import boxes, forms, small
from tests.oracle.nets import random_net

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
NETS: dict[str, Callable[[], Net]] = {
    "tiny": lambda: tiny(residual=True), "residual": lambda: small(residual=True), "pool": lambda: small(pool=True),
    "leaky": lambda: small(slope=0.1), "projections": lambda: projections(blocks=1), "branches": dense_branches, "twins": twins,
    **{f"random {seed}": lambda seed=seed: random_net(seed, scale="normal", limit=40, steps=4) for seed in (40, 43, 51)},
}  # fmt: skip
Case = tuple[str, str, str, str]  # network, arithmetic, type, semantics
CASES: list[Case] = [
    ("tiny", "folded", "float64", "float32"), ("branches", "folded", "float32", "real"), ("random 43", "folded", "float32", "float32"),
]  # fmt: skip
MORE: list[Case] = [
    ("tiny", "interval", "float32", "float32"), ("leaky", "folded", "float32", "float32"), ("random 51", "folded", "float64", "float16"),
]  # fmt: skip
LARGER: list[Case] = [
    ("pool", "folded", "float64", "float32"), ("projections", "folded", "float64", "real"), ("random 40", "folded", "float64", "float32"),
]  # fmt: skip
NAMES = ("name", "numerics", "dtype", "semantics")
every_case = pytest.mark.parametrize(NAMES, [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE + LARGER)])
few_cases = pytest.mark.parametrize(NAMES, [CASES[0], CASES[2], *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)])
WILD = {"infinite": float("inf"), "nan": float("nan"), "overflowing": 1e300}


def engine_of(case: Case, patch: pytest.MonkeyPatch) -> Engine:
    """By kernels throughout, the interval pass too, with a GPU's tiles."""
    name, numerics, dtype, semantics = case
    engine = Engine(compile_net(NETS[name]()), kernels="interpret", numerics=numerics, dtype=dtype, semantics=semantics)
    return small_tiles(engine, patch)


def answer(engine: Engine, kind: str = "ordinary", wild: float | None = None) -> list[Tensor]:
    """Every box, and a query whose groups leave as they are proved. `wild` lies in one image's box and among the forms."""
    lo, hi = boxes(engine.net, 3, 2, kind)
    asked = forms(engine, 5, 2)
    if wild is not None:
        lo[0, 0], hi[0, 0], asked.over_output[1, 0] = -abs(wild), abs(wild), wild
    found = engine.refine(lo, hi)
    results = engine.query(found, asked, torch.arange(6) % 3)
    return [*found.lo.values(), *found.hi.values(), results.best, results.raw]


@cache
def usual(case: Case, wild: str = "") -> list[bytes]:
    """The same in the interpreter's own order, memory and maximum."""
    with pytest.MonkeyPatch.context() as patch:
        return bits(answer(engine_of(case, patch), wild=WILD.get(wild)))


def bits(tensors: list[Tensor]) -> list[bytes]:
    return [t.numpy().tobytes() for t in tensors]


@every_case
def test_any_order_of_programs(name: str, numerics: str, dtype: str, semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = name, numerics, dtype, semantics
    for label in ("reversed", "shuffled"):
        with ordered(ORDERS[label]) as most:
            got = answer(engine_of(case, monkeypatch))
        assert bits(got) == usual(case), label
        assert all(bool(torch.isfinite(t).all()) for t in got)
        assert sum(programs > 1 for programs in most.values()) >= 4, f"hardly any launch has several programs: {most}"


@every_case
def test_memory_that_nobody_wrote(name: str, numerics: str, dtype: str, semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice by one engine: the second time with what the first has left in memory that is not made anew."""
    case = name, numerics, dtype, semantics
    engine = engine_of(case, monkeypatch)
    for again in range(2):
        with soiled(engine) as blocks:
            assert bits(answer(engine)) == usual(case), again
        assert blocks[0] >= 1


@pytest.mark.slow
@few_cases
def test_a_maximum_that_loses_a_nan(name: str, numerics: str, dtype: str, semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = name, numerics, dtype, semantics
    for wild, number in WILD.items():
        with nan_is_lost():
            got = answer(engine_of(case, monkeypatch), wild=number)
        assert bits(got) == usual(case, wild), wild
        best = got[-2]
        assert best[1] == -float("inf") and bool(torch.isfinite(best[3:]).any())


@pytest.mark.parametrize("seed", range(4))
def test_rows_leave_in_any_order_of_programs(seed: int) -> None:
    """The prefix sum over blocks of rows, with blocks of four."""
    rng = np.random.default_rng(seed)
    old = rows(rng, 37)
    group = rng.integers(0, 9, len(old["index"]) + 2)
    done = rng.integers(0, 2, 9).astype(np.int8)
    made = {}
    for label, order in ORDERS.items():
        with ordered(order) as most:
            made[label] = compacted(old, group, done, 4)
        assert most["move_rows"] > 8 and most["count_staying"] > 8
    for found in made.values():
        assert all(np.array_equal(found[k], made["forward"][k]) for k in found)


# ---- the instruments themselves -------------------------------------------------------------------------------------


def last_one() -> Any:
    import triton
    import triton.language as tl

    @triton.jit
    def last_one(x_ptr, y_ptr):  # type: ignore[no-untyped-def]
        x = tl.load(x_ptr)
        tl.store(y_ptr, tl.maximum(x, tl.program_id(0).to(tl.float64)))

    return last_one


def test_an_order_shows_where_it_matters() -> None:
    found = []
    for order in ORDERS.values():
        x, y = torch.zeros(1, dtype=torch.float64), torch.full((1,), -1.0, dtype=torch.float64)
        with ordered(order) as most:
            last_one()[(9,)](x, y)
        found.append(float(y))
        assert most == {"last_one": 9}
    assert found[:2] == [8, 0] and found[2] not in (8, 0)


def test_soil_lies_wherever_programs_are_to_write_first(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(CASES[1], monkeypatch)
    answer(engine)
    backend = engine.kernels
    assert backend is not None
    (places,) = backend.player.places.values()
    tables = {symbol: t.clone() for symbol, t in places.tensors.items() if symbol.partition(":")[0] in ("lo", "hi", "t", "low", "at")}
    soil(backend)
    assert tables and all(torch.equal(places.tensors[symbol], t) for symbol, t in tables.items())
    rows = [t for key, t in backend._kept.items() if key[0] in ("constant:0", "error:1", "best", "value")]
    assert len(rows) >= 3 and all(bool(t.isnan().all()) for t in (*rows, backend._arena.view(torch.float32)))
    assert all(bool((t == 1 << 40).all()) for key, t in backend._kept.items() if key[0].startswith(("index:", "from:", "slot:")))


def test_a_lost_nan_shows() -> None:
    x, y = torch.full((1,), float("nan"), dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    last_one()[(1,)](x, y)
    assert y.isnan()
    with nan_is_lost():
        last_one()[(1,)](x, y)
    assert y == 0
