"""Dense products whose terms several programs share: the charged bound covers them, and whole programs bound the same."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Constants, Launch
from polytriton.ir.net import Builder, Net
from polytriton.kernels.arena import lay_out
from polytriton.kernels.choose import GPU, INTERPRETER, Tiles, retile
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.launches import Lowering
from polytriton.kernels.sequence import Frames
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.rounding import INNER, gamma
from polytriton.runtime.config import Config, Tile
from polytriton.runtime.engine import Engine
from polytriton.runtime.layers import WIDEST
from polytriton.runtime.results import Forms
from tests.kernels.steps import ETA, FLOATS, draw, exact, run
from tests.oracle.nets import random_box

pytest.importorskip("triton", reason="Triton is not installed")
N = 16
BK = {"float64": 16, "float32": 32, "tf32x3": 32}


def product(m: np.ndarray, w: np.ndarray, numerics: str, split: int) -> np.ndarray:
    k = m.shape[1]
    constants: Constants = {
        "RELU": False, "CHARGE": False, "SLOT": False, "START": 0, "PLANE": 0, "PITCH": 0, "T_START": 0, "T_PLANE": 0, "T_PITCH": 0,
        "BIAS": "none", "SUM_ERROR": 1.0, "BM": 16, "BN": 16, "BR": 1, "BQ": 32, "T": ARITHMETICS[numerics].type, "SK": split,
        "FORM": ARITHMETICS[numerics].form, "BK": BK[numerics], "K": k, "N": N, "LINE": k, "C": k, "RH": 0, "OH": 0, "RW": 0, "OW": 0,
    }  # fmt: skip
    count = np.array([len(m)])
    values = {"m": m, "w": w, "out": np.full((len(m), split, N), 7, m.dtype), "count": count}
    parts = run("dense_step", constants, numerics, (1, split), values)
    sums: Constants = {"T": ARITHMETICS[numerics].type, "N": N, "SK": split, "BR": 4, "BQ": 32}
    grid = -(-len(m) // 4), 1
    return run("sum_parts", sums, numerics, grid, {"parts": parts["out"], "out": np.zeros((len(m), N), m.dtype), "count": count})["out"]


def charged(numerics: str, k: int) -> Fraction:
    """What Coefficients.product_error gives an entry of k terms that are not zero, split or not."""
    return Fraction(gamma(k, 2.0**-53) if numerics == "float64" else gamma(min(k, INNER) + 2, 2.0**-24))


def adverse(kind: str, k: int, numerics: str, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [4, k], weights [k, N]: every block, or every stretch, begins with 1 and goes on with numbers that are rounded away."""
    rng, dtype, u = np.random.default_rng(3), FLOATS[numerics], 2 * ARITHMETICS[numerics].u
    m, w = draw(rng, (4, k), "mixed"), draw(rng, (k, N), "mixed")
    if kind == "blocks":
        m, w = np.where(np.arange(k) % BK[numerics] == 0, 1.0, np.array([[0.6], [0.51], [0.49], [0.4]]) * u), np.ones((k, N))
    elif kind == "stretches":
        stretch = -(-k // (BK[numerics] * split)) * BK[numerics]
        m, w = np.where(np.arange(k) % stretch == 0, 1.0, np.array([[0.6], [0.51], [0.49], [0.4]]) * u), np.ones((k, N))
    elif kind == "cancelling":
        m, w = draw(rng, (4, k), "cancelling"), 1 + 2.0**-10 * rng.integers(0, 3, (k, N))
    return m.astype(dtype), w.astype(dtype)


@pytest.mark.parametrize("split", [2, 8])
@pytest.mark.parametrize("kind", ["blocks", "stretches", "cancelling", "mixed"])
@pytest.mark.parametrize("numerics", BK)
def test_what_an_unsplit_product_is_charged_covers_a_split_one(numerics: str, kind: str, split: int) -> None:
    """Against exact rationals, also where stretches end inside a block and some are empty; and the data reaches for the bound."""
    worst = Fraction(0)
    for k in (18, 72, 300):
        m, w = adverse(kind, k, numerics, split)
        out = product(m, w, numerics, split)
        for r in range(len(m)):
            for j in range(0, N, 5):
                size = exact(np.abs(m[r]), np.abs(w[:, j]))
                room = charged(numerics, k) * size + k * Fraction(ETA[FLOATS[numerics]])
                worst = max(worst, abs(Fraction(float(out[r, j])) - exact(m[r], w[:, j])) / room)
    assert worst <= 1
    if kind == "blocks":
        assert worst > (Fraction(1, 100) if numerics == "float64" else Fraction(1, 4)), float(worst)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_reaches_the_sum(bad: float) -> None:
    m, w = np.ones((2, 40), np.float32), np.ones((40, N), np.float32)
    m[0, 7] = bad
    out = product(m, w, "float32", 4)
    assert not np.isfinite(out[0]).any() and (out[1] == 40).all()


@pytest.mark.parametrize("split", [2, 16, 4096])
def test_the_spare_room_of_the_charge_holds_every_float64_addition(split: int) -> None:
    """The inequality of sum_parts' docstring in rationals, for as many terms as a layer may have, however few are not zero."""
    u, v = Fraction(1, 2**24), Fraction(1, 2**53)
    for terms in [*range(1, 41), 1000, WIDEST]:
        n = min(terms, INNER) + 2
        additions = min(terms - 1, -(-WIDEST // (16 * split)) + split + 1)
        lost = (1 + u) ** n * Fraction(1 + additions * v / (1 - additions * v)) - 1
        assert lost <= n * u / (1 - n * u), terms


def test_short_blocks_are_not_split() -> None:
    default = GPU.product(ARITHMETICS["float64"], 0, 256, 64)
    assert retile(default, Tile({"SK": 4}), ARITHMETICS["float64"]).constants["SK"] == 4
    with pytest.raises(ValueError, match="16 terms"):
        retile(default, Tile({"SK": 4, "BK": 8}), ARITHMETICS["float64"])
    with pytest.raises(ValueError, match="no size"):
        retile(GPU.product(ARITHMETICS["float64"], 9, 256, 64), Tile({"SK": 4}), ARITHMETICS["float64"])  # a convolution's


# ---- programs ----------------------------------------------------------------------------------------------------


def tiled(compiled: Compiled, numerics: str, interpret: bool, split: int) -> Config:
    """Every dense product split."""
    emitter, frames = Emitter(), Frames(compiled.net, compiled.plan)
    for program in compiled.plan:
        Lowering(emitter, frames, ARITHMETICS[numerics], program, INTERPRETER if interpret else GPU).run()
    keys = [key for key in emitter.asked if key.startswith("dense_step:")]
    assert keys
    return Config(tiles={key: Tile({"SK": split, "BK": 16}) for key in keys})


def dense_net() -> Net:
    """Two hidden layers whose sums take several blocks."""
    rng, b = np.random.default_rng(6), Builder("dense")
    x, size = b.input((7,)), 7
    for width in (70, 50, 4):
        w = rng.standard_normal((width, size)).astype(np.float32) / np.float32(np.sqrt(size))
        x = b.add("linear", (x,), w=b.constant(w), b=b.constant(rng.standard_normal(width).astype(np.float32)))
        x, size = (b.add("relu", (x,)), width) if width > 4 else (x, width)
    return b.build(x)


@pytest.mark.parametrize("numerics", ["float64", "float32"])
def test_whole_programs_with_split_products_bound_the_same(numerics: str) -> None:
    compiled = compile_net(dense_net())
    options: dict[str, Any] = {"dtype": numerics, "semantics": "float32"}
    plain = Engine(compiled, **options)
    split = Engine(compiled, kernels="interpret", config=tiled(compiled, numerics, True, 4), **options)
    lo, hi = (torch.from_numpy(v) for v in random_box(np.random.default_rng(1), compiled.net, "ordinary", 2))
    forms = Forms(torch.arange(2).repeat_interleave(4), torch.eye(4, dtype=torch.float64).repeat(2, 1))
    a, b = (e.query(e.refine(lo, hi), forms).best for e in (split, plain))
    assert bool(torch.isfinite(b).all())
    torch.testing.assert_close(a, b, rtol=0, atol=1e-11 if numerics == "float64" else 1e-4)
    assert split.kernels is not None
    launched = [s.function for r in split.kernels._ready.values() for s in r.launches.steps if isinstance(s, Launch)]
    assert launched.count("sum_parts") == launched.count("dense_step") > 0


def test_stretches_and_their_sum_never_share_memory() -> None:
    compiled = compile_net(dense_net())
    emitter = Emitter(tiles=tiled(compiled, "float64", False, 8).tiles)
    for program in compiled.plan:
        launches = Lowering(emitter, Frames(compiled.net, compiled.plan), ARITHMETICS["float64"], program, GPU).run()
        arena = lay_out(launches)
        for step in launches.steps:
            if isinstance(step, Launch) and step.function == "sum_parts":
                (a, size_a), (b, size_b) = ((arena.offsets[k], launches.buffers[k]) for k in buffers(step))
                assert size_a == 8 * size_b or size_b == 8 * size_a
                assert a + size_a <= b or b + size_b <= a


def buffers(step: Launch) -> list[int]:
    found = [int(s[4:]) for s in step.bind if s.startswith("buf:")]
    assert len(set(found)) == 2
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("numerics", "target"), [("float64", "cuda:80"), ("float32", "cuda:90")])
def test_split_products_compile_without_spills(numerics: str, target: str, tmp_path: Path) -> None:
    """Every split of the search space, with the ReLU in front and the scalars beside."""
    from polytriton.kernels.build import check, compile_all
    from polytriton.kernels.catalogue import make_kernel
    from polytriton.tuning.space import gpu_space

    arithmetic, k, n = ARITHMETICS[numerics], 1000, 500
    default: Tiles = GPU.product(arithmetic, 0, k, n)
    sizes: Constants = {
        "RELU": True, "CHARGE": True, "SLOT": True, "START": 0, "PLANE": k, "PITCH": k, "T_START": 0, "T_PLANE": k, "T_PITCH": k, "N": n,
        "BIAS": "line", "SUM_ERROR": 1.0000001, "T": arithmetic.type, "FORM": arithmetic.form, "K": k, "LINE": k, "C": k,
        "RH": 0, "OH": 0, "RW": 0, "OW": 0,
    }  # fmt: skip
    space = gpu_space({f"dense_step:{numerics}:0": default}, {"float32": INNER})
    ((_, options),) = space.choices.items()
    made = []
    for option in options:
        if "SK" in option.get("constants", {}):
            tiles = retile(default, Tile(**option), arithmetic)
            made.append(make_kernel("dense_step", tuple(sorted({**sizes, **tiles.constants}.items())), numerics, tiles.warps, tiles.stages))
    rows = GPU.rows(n)
    sums: Constants = {"T": arithmetic.type, "N": n, "SK": 16, **rows.constants}
    made.append(make_kernel("sum_parts", tuple(sorted(sums.items())), numerics, rows.warps, rows.stages))
    assert len(made) > 8
    check([b.report for b in compile_all(made, target, cache=tmp_path)], made)
