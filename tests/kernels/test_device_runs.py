"""Whole programs by generated kernels in the interpreter: blocks, batches, memory that runs out, and the host's waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from polytriton.errors import ResourceError
from polytriton.ir.net import Builder, Net
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.gpu import triton_backend
from polytriton.runtime.gpu.triton_backend import TritonBackend
from polytriton.runtime.results import Forms

EPS = 0.06
CAUGHT = "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"  # what makes the host wait for a device


def small_net(seed: int = 0) -> Net:
    """Convolution, residual block with a stride, dense head: every kind of launch."""
    rng = np.random.default_rng(seed)
    b = Builder("small")

    def conv(x: str, i: int, o: int, k: int, s: int, p: int) -> str:
        w = b.constant((rng.standard_normal((o, i, k, k)) * np.sqrt(2 / (i * k * k))).astype(np.float32))
        bias = b.constant((rng.standard_normal(o) * 0.1).astype(np.float32))
        return b.add("conv", [x], w=w, b=bias, k=(k, k), s=(s, s), p=(p, p, p, p))

    x = b.input((2, 5, 5))
    y = b.add("relu", [conv(x, 2, 3, 3, 1, 1)])
    left = conv(b.add("relu", [conv(y, 3, 4, 3, 2, 1)]), 4, 4, 3, 1, 1)
    z = b.add("relu", [b.add("add", [left, conv(y, 3, 4, 1, 2, 0)])])
    w = b.constant((rng.standard_normal((4, 36)) / 6).astype(np.float32))
    bias = b.constant((rng.standard_normal(4) * 0.1).astype(np.float32))
    return b.build(b.add("linear", [z], w=w, b=bias))


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_net(small_net(), "all")


def boxes_of(seed: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(batch, 50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x - EPS, x + EPS


def answer(engine: Engine, seed: int, batch: int = 2) -> tuple[Boxes, torch.Tensor]:
    boxes = engine.refine(*boxes_of(seed, batch))
    forms = torch.eye(4, dtype=torch.float64).repeat(batch, 1)
    image = torch.arange(batch).repeat_interleave(4)
    return boxes, engine.query(boxes, Forms(image, forms)).best


def same(a: tuple[Boxes, torch.Tensor], b: tuple[Boxes, torch.Tensor], tolerance: float = 1e-11) -> None:
    for name in a[0].lo:
        torch.testing.assert_close(a[0].lo[name], b[0].lo[name], rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(a[0].hi[name], b[0].hi[name], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a[1], b[1], rtol=tolerance, atol=tolerance)
    assert bool(torch.isfinite(b[1]).all())


def engines(compiled: Compiled, **options: Any) -> tuple[Engine, Engine]:
    options = {"dtype": "float64", "semantics": "float32", **options}
    return Engine(compiled, **options), Engine(compiled, kernels="interpret", **options)


def test_later_batches_use_their_own_tables(compiled: Compiled) -> None:
    """Launches stay bound to tensors; what a batch brings is copied into them, also where the batch size changes and returns."""
    torch_, kernels = engines(compiled)
    for seed, batch in ((1, 2), (2, 1), (3, 2)):
        same(answer(torch_, seed, batch), answer(kernels, seed, batch))


def test_rows_in_blocks(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows at a time as memory holds: several blocks give what one gives."""
    torch_, kernels = engines(compiled)
    assert kernels.kernels is not None
    sizes: list[int] = []
    capacity = kernels.kernels.capacity
    monkeypatch.setattr(triton_backend, "MOST", 64)
    monkeypatch.setattr(kernels.kernels, "capacity", lambda p, n: sizes.append(-(-n // capacity(p, n))) or capacity(p, n))
    same(answer(torch_, 5, 6), answer(kernels, 5, 6))
    assert max(sizes) > 1


def test_out_of_memory_goes_on_with_half(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_, kernels = engines(compiled)
    backend = kernels.kernels
    assert backend is not None
    arena, asked = backend.arena, []

    def scarce(size: int) -> torch.Tensor:
        asked.append(size)
        if size > 200_000:
            raise torch.OutOfMemoryError("planted")
        return arena(size)

    monkeypatch.setattr(backend, "arena", scarce)
    same(answer(torch_, 6, 6), answer(kernels, 6, 6))
    assert max(asked) > 200_000


def test_out_of_memory_for_the_fewest_rows_is_an_error(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = engines(compiled)[1]

    def none(size: int) -> torch.Tensor:
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(kernels.kernels, "arena", none)
    with pytest.raises(ResourceError, match="out of memory with 64 rows"):
        answer(kernels, 7)


def test_a_budget_too_small_says_how_much_is_needed(compiled: Compiled) -> None:
    kernels = Engine(compiled, dtype="float64", kernels="interpret", memory=1 << 16)
    with pytest.raises(ResourceError, match="--memory"):
        answer(kernels, 7)


@pytest.mark.slow
def test_what_is_kept_does_not_grow_with_every_batch_size(compiled: Compiled) -> None:
    """Tensors bound for other batch sizes are given back once they fill half of the budget; answers stay right."""
    torch_, kernels = engines(compiled)
    backend = kernels.kernels
    assert backend is not None
    answer(kernels, 1, 1)

    def held() -> int:
        return sum(t.nbytes for t in backend._kept.values()) + sum(p.bytes for p in backend.player.places.values())

    one = held()
    backend.memory = 4 * one
    for batch in (2, 3, 4, 5, 1):
        same(answer(torch_, batch, batch), answer(kernels, batch, batch))
        assert held() < 6 * one


class Waits(TorchDispatchMode):
    """Counts what would make the host wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = any(isinstance(t, torch.Tensor) and t.dtype == torch.bool for t in tree_leaves(args[1:2]))
        self.count += func._schema.name in CAUGHT or (func._schema.name in ("aten::index", "aten::index_put_") and masks)
        return func(*args, **(kwargs or {}))


def asking(backend: TritonBackend, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What the host is told each time it waits for numbers of rows."""
    told: list[list[int]] = []
    ask = backend.ask

    def asked(states: int) -> list[int]:
        told.append(ask(states))
        return told[-1]

    monkeypatch.setattr(backend, "ask", asked)
    return told


def test_one_wait_a_layer(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refining asks the device once a bounded layer: how many neurons are undecided and, from the second batch on, how many rows are
    left, with as many neurons as expected or more. Masks that index count as such a question.
    """
    kernels = engines(compiled)[1]
    backend = kernels.kernels
    assert backend is not None
    answer(kernels, 8)  # makes what stays
    backend.player.habits.clear()
    told = asking(backend, monkeypatch)
    for seed, batch, known in ((8, 2, False), (9, 2, True), (10, 1, True), (11, 4, True)):
        told.clear()
        if seed == 11:
            for habit in backend.player.habits.values():
                habit.neurons = 0.25  # room for fewer than there are
        with Waits() as waits:
            kernels.refine(*boxes_of(seed, batch))
        assert waits.count == 0
        assert len(told) == len(kernels.programs)
        assert all((len(one) > 1) == known for one in told)


def test_operations_are_those_of_the_rows_that_were_left(compiled: Compiled) -> None:
    torch_, kernels = engines(compiled)
    answer(torch_, 10)
    answer(kernels, 10)
    assert kernels.operations == pytest.approx(torch_.operations, rel=0.1)
