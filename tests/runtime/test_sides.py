"""Both sides of neurons: their rows as a tape reads them, and what becomes of their bounds, against the tensor forms."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch

from polytriton.ir.net import Net
from polytriton.ir.plan import Program
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.cpu import blocks, fused, play_loop, sides, tape_player
from polytriton.runtime.cpu.tape import Tape
from polytriton.runtime.cpu.tape_loop import PLACES, SCALARS
from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.tables import Tables
from polytriton.runtime.trace import Trace
from tests.oracle.nets import random_box, toy_conv, toy_residual
from tests.runtime.test_narrow import deep
from tests.runtime.test_recipe import chain

pytestmark = pytest.mark.skipif(not fused.AVAILABLE, reason="Numba is not installed: there are no compiled loops")
ODD = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan)


def test_rows_begin_where_their_neurons_are() -> None:
    rng = np.random.default_rng(1)
    places, at, signs = rng.integers(0, 50, (5, 30)), rng.permutation(30)[:11], rng.choice([-1, 1], 11)
    for some in (11, 4, 3):
        whole, scalars = np.full((-(-11 // some), PLACES, some), -7), np.full((-(-11 // some), SCALARS, some), math.nan)
        play_loop.begin_side(places, at, signs, whole, scalars)
        for r, (k, sign) in enumerate(zip(at, signs, strict=True)):
            image, h, w, index, channel = whole[r // some, :, r % some]
            assert (image, h, w, channel) == tuple(places[1:, k]) and index == r
            assert tuple(scalars[r // some, :, r % some]) == (0.0, 0.0, 0.0, sign)


@pytest.mark.parametrize("asked", [True, False])
def test_the_likelier_side_goes_first(asked: bool) -> None:
    bounds = np.array(list(product(ODD, ODD))).T.copy()
    at, signs = np.full((2, bounds.shape[1] - 3), -7)
    play_loop.choose_first(bounds, asked, 3, at, signs)
    assert np.array_equal(at, np.arange(3, bounds.shape[1]))
    assert np.array_equal(signs, np.where(bounds[0] >= bounds[1], 1, -1)[3:] if asked else np.ones_like(at))


@pytest.mark.parametrize("best", [True, False])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("how", [0, 1, 2])
def test_bounds_are_kept_as_the_tensor_form_keeps_them(best: bool, ends: bool, how: int) -> None:
    rng = np.random.default_rng(2)
    neurons, rows = 900, 700
    values = [rng.standard_normal(neurons) for _ in range(4)]
    for v in values:
        odd = rng.random(neurons) < 0.3
        v[odd] = rng.choice(ODD, odd.sum())
    bounds, (found, other) = np.array(values[:2]), (v[:rows] for v in values[2:4])
    at, signs = np.sort(rng.permutation(neurons)[:rows]), rng.choice([-1, 1], rows)
    kept = [torch.from_numpy(v.copy()) for v in bounds]
    plain = TorchBackend(torch.device("cpu"))
    plain.fast = False
    where, sign = torch.from_numpy(at), torch.from_numpy(signs)
    plain.keep(torch.from_numpy(found), sign, where, (kept[0], kept[1]), best)
    if ends:
        plain.keep(torch.from_numpy(other), -sign, where, (kept[0], kept[1]), True)
    off, on = kept[1][where] >= 0, kept[0][where] >= 0
    nan = torch.isnan(kept[0][where]), torch.isnan(kept[1][where])
    again = {0: torch.ones_like(on), 1: ~off & ~nan[1], 2: ~off & ~on & ~nan[0] & ~nan[1]}[how]
    then, then_signs = at.copy(), signs.copy()
    count = play_loop.end_side(found, other if ends else other[:0], then, then_signs, bounds, best, how)
    assert np.array_equal(bounds, np.array([v.numpy() for v in kept]), equal_nan=True)
    assert np.array_equal(then[:count], at[again.numpy()]) and np.array_equal(then_signs[:count], -signs[again.numpy()])
    assert how == 0 or 20 < count < rows


@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize("net", [toy_conv(), toy_residual(), chain((5, 12, 13, 12, 5))], ids=lambda n: n.name)
def test_a_node_is_bounded_as_side_by_side(net: Net, every: bool, candidates: str) -> None:
    """Whoever is asked what became of each row walks the sides one after the other."""
    rng, found = np.random.default_rng(4), list[tuple[Boxes, dict[str, int], int]]()
    lo, hi = (torch.from_numpy(v).reshape(3, -1) for v in random_box(rng, net, "ordinary", 3))
    for trace in (None, Trace(torch.device("cpu"))):
        engine = Engine(compile_net(net, candidates))
        found.append((engine.refine(lo, hi, trace=trace, every=every), engine.tally.rows, engine.tally.ops))
    (boxes, rows, ops), (want, wanted, counted) = found
    assert (rows, ops) == (wanted, counted) and rows
    assert all(torch.equal(boxes.lo[name], v) and torch.equal(boxes.hi[name], want.hi[name]) for name, v in want.lo.items())


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_tell_what_the_whole_does(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread bounds both sides of its neurons; how they are cut changes no bit, and the clock is looked at before each part."""
    net, looks, found = toy_conv(), list[int](), list[Boxes]()
    lo, hi = (torch.from_numpy(v).reshape(3, -1) for v in random_box(np.random.default_rng(4), net, "ordinary", 3))
    for long in (sides.LONG, 1):
        with monkeypatch.context() as patch:
            looks.append(0)
            patch.setattr(sides, "LONG", long)
            patch.setattr("polytriton.runtime.walker.expire", lambda deadline: looks.append(looks.pop() + 1))
            found.append(Engine(compile_net(net), threads=threads).refine(lo, hi))
    assert 1 <= looks[0] <= len(net.nodes) and looks[1] > 30
    assert all(torch.equal(found[0].lo[name], v) and torch.equal(found[0].hi[name], found[1].hi[name]) for name, v in found[1].lo.items())


@pytest.mark.parametrize("threads", [1, 2])
def test_an_images_rows_leave_out_what_is_off_in_it(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several images each has its own cells that are off, and rows of one are played as if it were alone."""
    net, tapes = deep(), list[int | None]()
    x = torch.from_numpy(np.random.default_rng(4).random((5, 20)))
    wide = torch.tensor([0.05, 0.1, 0.05, 0.08, 0.05], dtype=torch.float64)[:, None]
    alone = [Engine(compile_net(net)) for _ in x]
    want = [engine.refine(x[k : k + 1] - wide[k], x[k : k + 1] + wide[k]) for k, engine in enumerate(alone)]

    def note(given: TorchBackend, made: Tables, program: Program, image: int | None, slot: int) -> Tape | None:
        tapes.append(image)
        return tape_player.find_whole_tape(given, made, program, image, slot)

    monkeypatch.setattr(sides, "find_whole_tape", note)
    engine = Engine(compile_net(net), threads=threads)
    boxes = engine.refine(x - wide, x + wide)
    assert not blocks.is_available() or (tapes.count(None) <= 1 and {0, 1, 2, 3, 4} <= set(tapes))
    for name in engine.bounded_nodes():
        for k, own in enumerate(want):
            scale = float(own.hi[name].abs().max())
            assert (boxes.lo[name][k] - own.lo[name][0]).abs().max() <= 1e-6 * scale, name
            assert (boxes.hi[name][k] - own.hi[name][0]).abs().max() <= 1e-6 * scale, name
    assert engine.tally.rows == {name: sum(e.tally.rows.get(name, 0) for e in alone) for name in engine.tally.rows}
