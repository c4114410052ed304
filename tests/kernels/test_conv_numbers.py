"""The convolution step on numbers of every kind and shapes of every kind: against exact rationals, and the torch backend's products.

test_steps.py shows with whole numbers that every product meets its place; here it is rounding, subnormals, overflow and NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Constants
from polytriton.ir.plan import Window
from polytriton.passes.windows import input_axis
from polytriton.rounding import gamma
from polytriton.runtime.cpu.products import ConvShape
from polytriton.runtime.cpu.torch_backend import TorchBackend
from tests.kernels.steps import ETA, FLOATS, Scene, blocks, draw, exact, run, scalars, scene
from tests.kernels.test_steps import _shifted, scattered

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
KINDS = ("mixed", "one sign", "cancelling", "subnormal", "huge", "nan")
BK = 16
Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """Rows over a convolution's output, and the window they get over its input."""

    over: Scene
    to: Window
    k: tuple[int, int]
    s: tuple[int, int]
    d: tuple[int, int]
    pad: tuple[int, int]
    groups: int
    share: int  # input channels of a group

    @property
    def cells(self) -> tuple[int, int, int]:
        return self.to.h.size, self.to.w.size, self.share * self.groups

    @property
    def shape(self) -> ConvShape:
        return ConvShape(self.k, self.s, self.d, (*self.pad, 0, 0), self.groups, self.over.window)

    @property
    def lead(self) -> tuple[int, int]:
        return self.shape.lead(self.to)

    @property
    def terms(self) -> int:
        """K of the kernel's docstring."""
        taps = (-(-k // s) if d == 1 else k for k, s, d in zip(self.k, self.s, self.d, strict=True))
        return int(np.prod(list(taps))) * self.over.shape[2] // self.groups


def case(rng: np.random.Generator) -> Case:
    """Windows from one cell to larger than the image, strides above the kernel, padding on one side, none to several rows."""
    groups, share = int(rng.choice([1, 1, 2])), int(rng.choice([1, 3, 17]))
    over = scene(rng, slots=bool(rng.integers(0, 2)), channels=groups * int(rng.choice([1, 3, 17])))
    k, s, d = ((int(a), int(b)) for a, b in (rng.integers(1, 4, 2), rng.integers(1, 5, 2), rng.choice([1, 1, 2], 2)))
    pad = (int(rng.choice([0, 0, 1, 2])), int(rng.choice([0, 0, 1, 2])))
    natural = (input_axis(a, k[i], s[i], pad[i], d[i]) for i, a in enumerate((over.window.h, over.window.w)))
    return Case(over, Window(*(_shifted(rng, a) for a in natural)), k, s, d, pad, groups, share)


def stepped(c: Case, m: Array, w: Array, relu: bool, tables: dict[str, Array], more: Constants, numerics: str) -> Array:
    over, (ho, wo, ci) = c.over, c.cells
    ph, pw = (c.s[i] if c.d[i] == 1 else 1 for i in (0, 1))
    each = blocks(ho, ph) * blocks(wo, pw)
    span = 4
    programs = (blocks(over.capacity, 16 // span) * blocks(each, span) + 1) * ph * pw
    constants: Constants = {
        **more, **over.place(), "T": ARITHMETICS[numerics].type, "FORM": ARITHMETICS[numerics].form, "H": over.cells[0], "W": over.cells[1],
        "CO": over.shape[2], "G": c.groups, "HO": ho, "WO": wo, "CI": ci, "KH": c.k[0], "KW": c.k[1], "SH": c.s[0], "SW": c.s[1],
        "DH": c.d[0], "DW": c.d[1], "TOP": c.lead[0], "LEFT": c.lead[1], "MASK": False, "IH": 1, "IW": 1, "TO_RH": 0, "TO_OH": 0,
        "TO_RW": 0, "TO_OW": 0, "PH": ph, "PW": pw, "SPAN": span,
        "BM": 16, "BN": 16, "BK": BK, "BS": blocks(over.capacity, programs), "BR": 1, "BQ": 64,
    }  # fmt: skip
    out = np.full((over.capacity, ho, wo, ci), np.nan, m.dtype)
    grid = programs, c.groups * blocks(c.share, 16) + relu
    found = run("conv_step", constants, numerics, grid, {**over.rows(), **tables, "m": m, "w": w, "out": out})["out"]
    assert np.isnan(found[over.count :]).all()
    return found[: over.count]


def terms_of(c: Case, n: Array, w: Array, r: int, y: int, x: int, ch: int) -> tuple[Array, Array]:
    """The coefficients and weights that meet in one cell, by the definition; w [KH, KW, CO, CI/G]."""
    group, at = ch // c.share, ch % c.share
    part = slice(group * c.over.shape[2] // c.groups, (group + 1) * c.over.shape[2] // c.groups)
    found: list[tuple[Array, Array]] = []
    for i, j in np.ndindex(*c.k):
        a, b = y + c.lead[0] - i * c.d[0], x + c.lead[1] - j * c.d[1]
        if a % c.s[0] == 0 and b % c.s[1] == 0 and 0 <= a // c.s[0] < n.shape[1] and 0 <= b // c.s[1] < n.shape[2]:
            found.append((n[r, a // c.s[0], b // c.s[1], part], w[i, j, part, at]))
    none = np.zeros(0, n.dtype)
    return np.concatenate([f[0] for f in found] or [none]), np.concatenate([f[1] for f in found] or [none])


def compared(seed: int, relu: bool, kind: str, numerics: str) -> None:
    rng, dtype = np.random.default_rng(seed), FLOATS[numerics]
    c = case(rng)
    over = c.over
    sc = scalars(rng, over, relu, False, "none", "integers", dtype)
    m = over.coefficients(rng, "mixed" if kind == "nan" else kind, dtype)
    if kind == "nan":
        m[rng.random(m.shape) < 0.01] = rng.choice([np.nan, np.inf, -np.inf])
    w = draw(rng, (*c.k, over.shape[2], c.share), "integers" if kind in ("huge", "nan") else kind, dtype)
    out = stepped(c, m, w, relu, sc.tables, sc.constants, numerics)
    n = sc.substituted(m)
    u, eta, most = ARITHMETICS[numerics].u, Fraction(ETA[dtype]), float(np.finfo(m.dtype).max)
    relative = Fraction(gamma(c.terms + 1, u) if dtype == np.float64 else gamma(min(c.terms, BK) + 2, u))
    places = list(np.ndindex(*out.shape))
    for at in [places[p] for p in rng.permutation(len(places))[:40]]:
        a, b = terms_of(c, n, w, *at)
        got = float(out[at])
        if not np.isfinite(a).all():
            assert not np.isfinite(got), at
            continue
        size = exact(np.abs(a), np.abs(b))
        assert len(a) <= c.terms
        if np.isfinite(got):
            assert abs(Fraction(got) - exact(a, b)) <= relative * size + c.terms * eta, at
        else:
            assert size > Fraction(most) / 2, at
    against_torch(c, n, w, out, u)


drawn = given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(KINDS), st.sampled_from(("float64", "float32")))
test_against_rationals_and_the_torch_backend = limits(max_examples=10, deadline=None)(drawn(compared))
test_many_cases_against_rationals_and_the_torch_backend = pytest.mark.slow(limits(max_examples=60, deadline=None)(drawn(compared)))


def against_torch(c: Case, n: Array, w: Array, out: Array, u: float) -> None:
    """Every entry within what both may round; no bound in the same entries."""
    backend = TorchBackend(torch.device("cpu"))
    weights = torch.from_numpy(np.ascontiguousarray(w.transpose(2, 3, 0, 1))).contiguous(memory_format=torch.channels_last)
    if not len(n):
        return
    theirs = backend.conv(torch.from_numpy(np.ascontiguousarray(n)), weights, c.shape, c.to).numpy()
    assert theirs.shape == out.shape
    size = scattered(np.abs(n), np.abs(w), c.lead, c.s, c.d, c.groups, c.cells)
    room = 4 * float(gamma(c.terms + 4, u)) * size + 4 * c.terms * ETA[n.dtype.type]
    settled = size < float(np.finfo(n.dtype).max) / 4
    assert (np.isfinite(out) & np.isfinite(theirs))[settled].all()
    assert (np.abs(out.astype(np.float64) - theirs.astype(np.float64)) <= room)[settled].all()
    broken = ~np.isfinite(n)
    if broken.any():
        reach = scattered(broken.astype(float), np.ones_like(w), c.lead, c.s, c.d, c.groups, c.cells) > 0
        assert not np.isfinite(out[reach]).any() and not np.isfinite(theirs[reach]).any()


def test_the_shapes_of_every_kind_are_drawn() -> None:
    """Of three hundred cases: each class of shapes the test above is meant to meet."""
    cases = [case(np.random.default_rng(seed)) for seed in range(300)]
    larger = [c for c in cases if not c.over.window.whole and c.over.window.h.size > c.over.shape[0]]
    classes = {
        "a window of one cell": [c for c in cases if c.over.window.cells == 1], "larger than the image": larger,
        "stride above the kernel": [c for c in cases if c.s[0] > c.k[0]], "padding on one side": [c for c in cases if c.pad[0] != c.pad[1]],
        "no row": [c for c in cases if c.over.count == 0], "one row": [c for c in cases if c.over.count == 1],
        "several images": [c for c in cases if len(set(c.over.image[: c.over.count])) > 1],
        **{f"{n} channels": [c for c in cases if c.share == n] for n in (1, 3, 17)},
        **{f"{n} channels above": [c for c in cases if c.over.shape[2] // c.groups == n] for n in (1, 3, 17)},
    }  # fmt: skip
    assert all(len(found) >= 10 for found in classes.values()), {k: len(v) for k, v in classes.items()}
