"""Tapes of a query that end before dear tables: the same bounds, and no tables of layers that no row came to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from polytriton.ir.net import Net
from polytriton.passes.pipeline import compile_net
from polytriton.runtime import walker
from polytriton.runtime.config import Config
from polytriton.runtime.cpu import tape_record
from polytriton.runtime.cpu.tape import Tape
from polytriton.runtime.engine import Engine
from polytriton.runtime.results import Forms, Results
from polytriton.runtime.tables import Tables
from tests.oracle.nets import random_box, random_net, toy_conv, toy_residual

NEVER, ALWAYS = 1 << 60, 1


pytestmark = pytest.mark.usefixtures("small_layers_count")


def query(
    net: Net, dear: int, monkeypatch: pytest.MonkeyPatch, batch: int = 1, threads: int = 1, constants: Sequence[float] = (0.0,)
) -> tuple[Results, Tables]:
    """Three forms an image on the boxes of an interval pass, two a group, less constants that make some of them true at once."""
    monkeypatch.setattr(tape_record, "DEAR", dear)
    monkeypatch.setattr(tape_record, "FIRST", dear)
    monkeypatch.setattr(walker, "FIRST", dear)
    engine, rng = Engine(compile_net(net), semantics="real", config=Config(leave=0.0, least=4), threads=threads), np.random.default_rng(5)
    lo, hi = (torch.from_numpy(v).reshape(batch, -1) for v in random_box(rng, net, "ordinary", batch))
    boxes, count = engine.interval(lo, hi), 3 * batch
    over = torch.from_numpy(rng.standard_normal((count, net.by_name[net.output].size)))
    constant = torch.tensor(constants, dtype=torch.float64).repeat(count)[:count]
    forms = Forms(torch.arange(batch).repeat_interleave(3), over, constant=constant)
    return engine.query(boxes, forms, torch.arange(count) // 2), engine.tables(boxes)


def made(tables: Tables) -> list[Tape]:
    return [tape for tape in tables.tapes.values() if tape is not None]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_bounds_are_those_of_whole_tapes(seed: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, given = random_net(seed), (1 + seed % 3, threads, (0.0, -1e3, 0.0, 1e3, 1e3))
    whole, _ = query(net, NEVER, monkeypatch, *given)
    early, _ = query(net, ALWAYS, monkeypatch, *given)
    assert early.left == whole.left and early.ops == whole.ops
    assert whole.done is not None and early.done is not None and torch.equal(early.done, whole.done)
    counts = torch.isfinite(whole.raw)
    assert torch.equal(torch.isfinite(early.raw), counts)
    for got, want in ((early.best, whole.best), (early.raw, whole.raw)):
        scale = want[counts].abs().amax() if bool(counts.any()) else 1.0
        assert bool(((got - want)[counts].abs() <= 4e-16 * scale).all())


@pytest.mark.parametrize("net", [toy_conv(), toy_residual()], ids=["conv", "residual"])
@pytest.mark.parametrize("batch", [1, 3])
def test_layers_that_no_row_comes_to_are_not_charged(net: Net, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are true at the first check, or none is: then there are several tapes, and all tables."""
    layers = [n.name for n in net if n.op in ("linear", "conv")]
    first = layers[0]
    settled, tables = query(net, ALWAYS, monkeypatch, batch, constants=(-1e6,))
    assert settled.done is not None and bool(settled.done.all()) and not tables.is_charged(first) and len(made(tables)) <= 1
    assert tables.missing_ops(tables.kit.plan.query.steps) > 0
    whole, tables = query(net, NEVER, monkeypatch, batch, constants=(-1e6,))
    assert torch.equal(whole.raw > 0, settled.raw > 0) and tables.is_charged(first)
    unsettled, tables = query(net, ALWAYS, monkeypatch, batch, constants=(1e6,))
    assert unsettled.done is not None and not bool(unsettled.done.any()) and tables.is_charged(first) and len(made(tables)) > 1
    assert tables.missing_ops(tables.kit.plan.query.steps) == 0
