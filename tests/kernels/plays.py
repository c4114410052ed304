"""What tests of the player share: small networks, batches, and engines that have played some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from polytriton.ir.net import Net
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.gpu.binding import Part
from polytriton.runtime.gpu.player import Player
from polytriton.runtime.results import Forms
from tests.kernels.test_device_runs import small_net
from tests.kernels.test_kernel_runs import small
from tests.kernels.test_neurons import settling

NETS = {"small": small_net, "other": small, "settling": lambda: settling(2)}
SLOW = [("small", "float64", "real"), ("small", "float32", "float32"), ("other", "float64", "float32"), ("other", "float32", "real")]
KINDS = [("settling", "float32", "float32"), *(pytest.param(*k, marks=pytest.mark.slow) for k in SLOW)]
Stop = Callable[[], None]


def engine(compiled: Compiled, dtype: str = "float64", semantics: str = "real", **options: Any) -> Engine:
    return Engine(compiled, dtype=dtype, semantics=semantics, kernels="interpret", **options)


def balls(net: Net, seed: int, batch: int, radius: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """Around random points; those of `settling` lie where one neuron settles on the way, and the other may not."""
    x = torch.rand(batch, net.input.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x + 1.0 if net.input.size == 2 else x
    return x - radius, x + radius


def asked(ours: Engine, boxes: Boxes) -> torch.Tensor:
    return ours.query(boxes, forms_of(ours, boxes.batch)).best


def forms_of(ours: Engine, batch: int) -> Forms:
    out = ours.net.node(ours.net.output).size
    return Forms(torch.arange(batch).repeat_interleave(out), torch.eye(out, dtype=torch.float64).repeat(batch, 1))


def player(ours: Engine) -> Player:
    assert ours.kernels is not None
    return ours.kernels.player


def parts_of(ours: Engine, section: str) -> list[Part]:
    """Of stretches that have been played, in the order in which they were first."""
    return [part for key, part in player(ours).parts.items() if key[0] == section]


def forgetful(ours: Engine) -> Engine:
    """An engine to which every batch is the first."""
    found, mine = player(ours)._find, player(ours)

    def anew(*given: Any) -> Any:
        mine.habits.clear()
        mine.backend._drop()
        return found(*given)

    mine._find = anew  # type: ignore[method-assign]
    return ours


def having_played(ours: Engine, batch: int, radius: float = 0.1) -> Engine:
    for seed in range(3):
        ours.refine(*balls(ours.net, seed, batch, radius))
    return ours


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_net(settling(2), "all")


@pytest.fixture(scope="module")
def ready(compiled: Compiled) -> Engine:
    """An engine that has played batches of two, and goes on doing so."""
    return having_played(engine(compiled), 2)


@pytest.fixture
def lost(compiled: Compiled) -> Engine:
    """The same, for one test."""
    return having_played(engine(compiled), 2)


@pytest.fixture(scope="module")
def plain(compiled: Compiled) -> Engine:
    return forgetful(engine(compiled))
