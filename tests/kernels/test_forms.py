"""Rows of a query made by one launch: against exact numbers, and whole queries in blocks, groups and scarce memory."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.results import Forms
from tests.kernels.steps import draw, run
from tests.kernels.test_boxes import UNSHRUNK
from tests.kernels.test_device_runs import Waits, asking, boxes_of, small_net
from tests.kernels.test_kernel_runs import proved

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
INF = float("inf")
KINDS = ("mixed", "integers", "subnormal", "huge", "cancelling")
Array = np.ndarray


# ---- the kernel -----------------------------------------------------------------------------------------------------


def launched(
    forms: Array, lo: Array, hi: Array, of: Array, begin: int, count: int, *, gap: Array | None = None, dtype: str = "float64",
    flushed: float = 0.0, size: tuple[int, int] = (4, 16),
) -> dict[str, Array]:  # fmt: skip
    """What one launch leaves, where everything was 77 before; `size`: rows and outputs a program takes at once."""
    total, outputs = forms.shape
    rows = count + 5
    real = {"float64": np.float64, "float32": np.float32}[dtype]
    given_: dict[str, Array] = {
        "rows": np.array([begin, count]), "count": np.array([77]), "of": of, "forms": forms, "minus": np.arange(total) - 1.5,
        "group_of": np.arange(total) // 2, "numbers": np.array([flushed]), "box_lo": lo, "box_hi": hi,
        **{k: np.full(rows, 77) for k in ("image", "row_h", "row_w", "index")},
        **{k: np.full(rows, 77.0) for k in ("constant", "error")}, "group": np.full(total + 3, 77),
        **{k: np.full(total + 3, 77.0) for k in ("best", "raw_best")}, "done": np.full(total + 3, 77, np.int8),
        "start": np.full((rows, outputs), 77.0, real),
    }  # fmt: skip
    if gap is not None:
        given_["gap"] = gap
    constants = {"GAP": gap is not None, "T": f"tl.{dtype}", "SIZE": outputs, "BR": size[0], "BQ": size[1]}
    return run("open_forms", constants, dtype, (-(-count // size[0]), 1), given_)


@given(
    st.integers(0, 2**32 - 1), st.sampled_from(KINDS), st.sampled_from(("float64", "float32")), st.booleans(),
    st.sampled_from((0.0, 2.0**-125)), st.sampled_from(((1, 16), (4, 16), (8, 64))), st.sampled_from((1, 3, 16, 40)),
)  # fmt: skip
@settings(max_examples=60, phases=UNSHRUNK)
def test_rows_are_their_forms(seed: int, kind: str, dtype: str, gaps: bool, flushed: float, size: tuple[int, int], outputs: int) -> None:
    """Coefficients rounded to nearest; the error holds what that took of them, in exact numbers, and little more."""
    rng = np.random.default_rng(seed)
    total, images = int(rng.integers(1, 14)), int(rng.integers(1, 4))
    begin = int(rng.integers(0, total)) * int(rng.integers(0, 2))
    count = int(rng.integers(1, total - begin + 1))
    forms, lo, hi = draw(rng, (total, outputs), kind), draw(rng, (images, outputs), "mixed"), draw(rng, (images, outputs), kind)
    of, gap = rng.integers(0, images, total), np.abs(draw(rng, (total, outputs), "mixed")) * 1e-9 if gaps else None
    found = launched(forms, lo, hi, of, begin, count, gap=gap, dtype=dtype, flushed=flushed, size=size)
    mine = slice(begin, begin + count)
    real = {"float64": np.float64, "float32": np.float32}[dtype]
    assert np.array_equal(found["start"][:count], forms[mine].astype(real)) and (found["start"][count:] == 77).all()
    assert found["count"][0] == count
    for name, want in (("image", of[mine]), ("row_h", 0), ("row_w", 0), ("index", np.arange(begin, begin + count))):
        assert (found[name][:count] == want).all() and (found[name][count:] == 77).all(), name
    assert (found["constant"][:count] == 1.5 - np.arange(begin, begin + count)).all() and (found["constant"][count:] == 77).all()
    for name, fresh in (("best", -INF), ("raw_best", -INF), ("group", np.arange(total) // 2)):
        assert (found[name][:total][mine] == np.broadcast_to(fresh, total)[mine]).all(), name
        assert (np.delete(found[name], np.arange(begin, begin + count)) == 77).all(), name
    assert (found["done"][:count] == (0 if begin == 0 else 77)).all() and (found["done"][count:] == 77).all()
    for r, form in enumerate(range(begin, begin + count)):
        exact, charged = Fraction(0), found["error"][r]
        for j in range(outputs):
            c, reach = float(forms[form, j]), max(abs(float(lo[of[form], j])), abs(float(hi[of[form], j])))
            if abs(c) > np.finfo(real).max:
                exact = Fraction(-1)
                break
            off = abs(Fraction(c) - Fraction(float(real(c)))) + (Fraction(float(gap[form, j])) if gap is not None else 0)
            exact += off * Fraction(reach) + Fraction(flushed) * abs(Fraction(c))
        if exact < 0:
            assert charged == INF or charged != charged
            continue
        tiny = outputs * Fraction(2) ** -1073  # a product may underflow; that is charged where bounds are taken
        assert exact - tiny <= Fraction(float(charged)) <= exact * (1 + Fraction(1, 2**30)) + tiny


def test_no_bound_of_an_output_costs_only_inexact_coefficients() -> None:
    lo, hi = np.array([[-INF, -1.0]]), np.array([[INF, 1.0]])
    forms, of = np.array([[1.0, 0.1], [0.1, 1.0], [0.0, 1.0], [np.nan, 1.0]]), np.zeros(4, np.int64)
    error = launched(forms, lo, hi, of, 0, 4, dtype="float32")["error"]
    assert 0 < error[0] < 1e-8 and error[1] == INF and error[2] == 0 and np.isnan(error[3])


# ---- whole queries --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_net(small_net(), "all")


def asked(rows: int, images: int, seed: int = 0, **more: Any) -> Forms:
    rng = torch.Generator().manual_seed(seed)
    over = torch.randn(rows, 4, dtype=torch.float64, generator=rng)
    return Forms(torch.arange(rows) % images, over, constant=torch.randn(rows, dtype=torch.float64, generator=rng), **more)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype, semantics", [("float64", "real"), ("float32", "float32"), ("float32", "bf16")])
@pytest.mark.parametrize("gaps", [False, True])
def test_bounds_are_those_of_the_tensor_form(compiled: Compiled, dtype: str, semantics: str, gaps: bool) -> None:
    ours = Engine(compiled, dtype=dtype, semantics=semantics, kernels="interpret")
    theirs = Engine(compiled, dtype=dtype, semantics=semantics)
    found = theirs.refine(*boxes_of(1, 3))
    forms = asked(50, 3)
    if gaps:
        forms.coefficient_error = torch.full_like(forms.over_output, 1e-3)
    got, want = ours.query(found, forms), theirs.query(found, forms)
    torch.testing.assert_close(got.best, want.best, rtol=1e-4, atol=1e-4 if dtype == "float32" else 1e-9)
    exact = ours.query(found, replace(forms, coefficient_error=None)).best
    assert bool((got.best < exact).all()) == gaps


def test_blocks_and_groups(compiled: Compiled) -> None:
    """Groups proved in an earlier block leave later ones, and what an earlier query proved is forgotten."""
    ours = Engine(compiled, dtype="float64", kernels="interpret")
    assert ours.kernels is not None
    found = ours.refine(*boxes_of(2, 2))
    forms, whole = asked(150, 2), ours.query(found, asked(150, 2)).best
    sure = replace(forms, constant=torch.full((150,), -100.0, dtype=torch.float64))
    groups = torch.arange(150) % 70
    ours.query(found, sure, groups)  # all are proved
    ours.kernels.memory = 70 * ours.kernels.row_bytes(ours.plan.query)
    assert ours.kernels.capacity(ours.plan.query, 150) == 64
    got = ours.query(found, forms, groups)
    done = proved(whole, groups)
    assert 0 < int(done.sum()) < 70
    assert torch.equal(proved(got.best, groups), done)
    assert torch.equal(got.best[~done[groups]], whole[~done[groups]]) and bool((got.best <= whole).all())
    first = torch.where(torch.arange(150) < 64, -100.0, 100.0).double()  # those of the first block are proved, no others
    left = ours.query(found, replace(forms, constant=first), groups).left
    assert [int(block[0]) for block in left] == [0, 6, 6]  # groups 64 to 69
    assert torch.equal(ours.query(found, forms).best, whole)


def test_groups_may_be_more_than_forms(compiled: Compiled) -> None:
    ours = Engine(compiled, dtype="float64", kernels="interpret")
    found = ours.refine(*boxes_of(2, 1))
    forms = asked(3, 1)
    sure = replace(forms, constant=torch.full((3,), -100.0, dtype=torch.float64))
    groups = torch.tensor([900, 4, 900])
    for _ in range(2):
        assert bool((ours.query(found, sure, groups).best > 0).any())
    want = ours.query(found, forms).best
    got = ours.query(found, replace(forms, constant=forms.constant + 50.0), groups).best  # none is proved
    torch.testing.assert_close(got, want - 50.0, rtol=0.0, atol=1e-10)


def test_the_host_waits_for_nothing(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are counted on the CPU."""
    ours = Engine(compiled, dtype="float64", kernels="interpret")
    assert ours.kernels is not None
    found, forms, groups = ours.refine(*boxes_of(2, 2)), asked(20, 2), torch.arange(20) // 4
    ours.query(found, forms, groups)
    told = asking(ours.kernels, monkeypatch)
    with Waits() as waits:
        ours.query(found, forms, groups)
    assert waits.count <= 1 and not told  # groups.max() of a tensor that is on the CPU


def test_memory_that_runs_out_begins_again(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Engine(compiled, dtype="float64", kernels="interpret")
    backend = ours.kernels
    assert backend is not None
    found, forms, groups = ours.refine(*boxes_of(2, 2)), asked(150, 2), torch.arange(150) % 70
    want, play, count = ours.query(found, forms, groups).best, backend.play, 0

    def scarce(*given: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise torch.OutOfMemoryError("planted")
        play(*given)

    capacity = backend.capacity
    monkeypatch.setattr(backend, "capacity", lambda program, rows: min(128, capacity(program, rows)))
    monkeypatch.setattr(backend, "play", scarce)
    got = ours.query(found, forms, groups).best
    assert count == 2 + 3  # two blocks of 128, of which the second failed; then three of 64
    done = proved(want, groups)
    assert torch.equal(proved(got, groups), done)
    assert torch.equal(got[~done[groups]], want[~done[groups]])


def test_no_forms_have_no_bounds(compiled: Compiled) -> None:
    ours = Engine(compiled, dtype="float64", kernels="interpret")
    found = ours.refine(*boxes_of(2, 1))
    none = Forms(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4, dtype=torch.float64))
    for groups in (None, torch.zeros(0, dtype=torch.int64)):
        assert len(ours.query(found, none, groups).best) == 0
