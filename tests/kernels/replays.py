"""What tests of replays share: small networks, batches, and engines that have recorded some."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polytriton.ir.net import Net
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.gpu import replay
from polytriton.runtime.gpu.replay import BEFORE, REFINED, Script
from polytriton.runtime.results import Forms
from tests.kernels.test_device_runs import small_net
from tests.kernels.test_kernel_runs import small
from tests.kernels.test_neurons import settling

NETS = {"small": small_net, "other": small, "settling": lambda: settling(2)}
SLOW = [("small", "float64", "real"), ("small", "float32", "float32"), ("other", "float64", "float32"), ("other", "float32", "real")]
KINDS = [("settling", "float32", "float32"), *(pytest.param(*k, marks=pytest.mark.slow) for k in SLOW)]


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


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_net(settling(2), "all")


@pytest.fixture(scope="module")
def ready(compiled: Compiled) -> Engine:
    """An engine that has recorded batches of two, and goes on doing so."""
    return having_recorded(engine(compiled), 2)


@pytest.fixture
def lost(compiled: Compiled) -> Engine:
    """The same, for one test."""
    return having_recorded(engine(compiled), 2)


@pytest.fixture(scope="module")
def plain(compiled: Compiled) -> Engine:
    return launching(engine(compiled))


def launching(ours: Engine) -> Engine:
    """Every batch launch by launch, as test_neurons.py has it."""
    ours.replays = None
    return ours


def having_recorded(ours: Engine, batch: int, radius: float = 0.1) -> Engine:
    """Layers without neurons are gone through ahead, and their launches bound, while the first recording is made: that spoils it."""
    assert ours.replays is not None
    for seed in range(BEFORE + replay.TRIES):
        ours.refine(*balls(ours.net, seed, batch, radius))
        if (REFINED, batch) in ours.replays.scripts:
            return ours
    raise AssertionError("nothing was recorded")


def script(ours: Engine, batch: int = 2) -> Script:
    assert ours.replays is not None
    return ours.replays.scripts[REFINED, batch]
