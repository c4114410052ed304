"""Kernels compiled before they are launched: none is forgotten, none is asked for twice, and what fails is left to its launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from polytriton import knobs
from polytriton.api import Verifier
from polytriton.ir.launches import Kernel
from polytriton.ir.net import Net
from polytriton.kernels import ahead
from polytriton.kernels.network import network_kernels
from polytriton.kernels.stock import Stock
from polytriton.passes.pipeline import compile_net
from polytriton.prove import neurons, prepare, prover, tight
from polytriton.prove.options import Options
from polytriton.workers.process import JobFailed, WorkerLost
from tests.kernels.branches import Layers
from tests.prove.test_device_search import below, box, shortcut

pytest.importorskip("triton", reason="Triton is not installed")
GPU = torch.device("cuda", 0)


class Compiler:
    """A worker without a GPU: it notes what it is asked for."""

    asked: ClassVar[list[str]] = []
    broken: ClassVar[set[str]] = set()  # kernels that it cannot compile
    lost = False  # whether none can start
    pause = 0.0

    def start(self) -> None:
        if self.lost:
            raise WorkerLost("did not start")

    def ask(self, wanted: ahead._Marked) -> None:
        time.sleep(self.pause)
        Compiler.asked.append(wanted.job.kernel.name)
        if wanted.job.kernel.name in Compiler.broken:
            raise JobFailed("CompilationError", "no such instruction\nand pages more")

    def end(self) -> None:
        """Nothing runs."""

    stop = end

    def alive(self) -> bool:
        return True


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """A GPU and an empty cache of Triton's; what people are told."""
    from triton import knobs as triton_knobs

    monkeypatch.setattr(ahead, "_Warmer", Compiler)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(Compiler, "asked", [])
    monkeypatch.setattr(Compiler, "broken", set())
    said: list[str] = []
    monkeypatch.setattr(knobs, "_watchers", [said.append])
    with triton_knobs.cache.scope():
        triton_knobs.cache.dir = str(tmp_path / "triton")
        yield said


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    return network_kernels(compile_net(shortcut()), ["float64"])


def test_each_kernel_is_compiled_once_a_machine(kernels: list[Kernel], told: list[str]) -> None:
    assert ahead.compile_ahead(kernels, GPU, {}) == len(kernels) > ahead.FEW
    assert sorted(Compiler.asked) == sorted(k.name for k in kernels)
    assert told[0].startswith(f"compiling {len(kernels)} kernels for cuda:90") and told[-1].startswith(f"compiled {len(kernels)} kernels")
    del told[:], Compiler.asked[:]
    assert ahead.compile_ahead(kernels, GPU, {}) == 0
    assert not Compiler.asked and not told
    other = {k.name: 2 for k in kernels}  # as a tuned configuration has them compiled
    assert ahead.compile_ahead(kernels, GPU, other) == len(kernels), "other options are other machine code"


def test_what_cannot_be_compiled_is_left_to_its_launch(kernels: list[Kernel], told: list[str]) -> None:
    Compiler.broken = {kernels[3].name}
    assert ahead.compile_ahead(kernels, GPU, {}) == len(kernels) - 1
    (line,) = (s for s in told if kernels[3].name in s)
    assert line.endswith("cannot be compiled ahead: CompilationError: no such instruction")
    Compiler.broken.clear()
    del Compiler.asked[:]
    assert ahead.compile_ahead(kernels, GPU, {}) == 0 and not Compiler.asked, "one kernel is not worth a process"


def test_a_few_kernels_start_no_process(kernels: list[Kernel], told: list[str]) -> None:
    assert ahead.compile_ahead(kernels[: ahead.FEW], GPU, {}) == 0 and not Compiler.asked and not told


def test_it_stops_when_the_time_is_up(kernels: list[Kernel], told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compiler, "pause", 0.02)
    assert ahead.compile_ahead(kernels, GPU, {}, seconds=0.1) < len(kernels)
    assert "the time is up" in told[-1]


def test_without_workers_launches_compile(kernels: list[Kernel], told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compiler, "lost", True)
    assert ahead.compile_ahead(kernels, GPU, {}) == 0
    assert "with 0 processes: did not start" in told[-1]


def test_a_cache_that_cannot_be_written(kernels: list[Kernel], told: list[str], tmp_path: Path) -> None:
    (tmp_path / "triton").write_text("no folder")
    assert ahead.compile_ahead(kernels, GPU, {}) == 0
    assert not Compiler.asked and "in every run anew" in told[0]


def test_the_cpu_compiles_nothing_ahead(told: list[str]) -> None:
    assert Verifier(compile_net(shortcut()), Options(), None).prepare() < 0.1
    assert not Compiler.asked


def chain() -> Net:
    n = Layers(5, "chain")
    return n.b.build(n.linear(n.relu(n.linear(n.relu(n.linear(n.b.input((4,)), 6)), 5)), 3))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("make", [shortcut, chain])
def test_all_that_a_search_launches_was_named_before(make: Callable[[], Net], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a launch would compile while a query's clock runs."""
    for module, steps in ((tight, "QUERY"), (tight, "INNER"), (neurons, "QUERY"), (neurons, "STEPS")):
        monkeypatch.setattr(module, steps, 2)
    launched = set[str]()
    own = Stock.function
    monkeypatch.setattr(Stock, "function", lambda self, kernel: (launched.add(kernel.name), own(self, kernel))[1])
    net = make()
    verifier = Verifier(compile_net(net), Options("interpret"), None)
    lo, hi = box(net)
    least = float(verifier.margins(lo, hi, np.array([[1.0, -1.0, 0.0]]))[0, 0])
    verifier.verify_property(below(net, lo, hi, least + 0.01), search="neurons", falsifier=False, timeout=2.0)
    named = {k.name for k in prepare.kernels_of(verifier._decider)}
    assert {name.rsplit("_", 1)[0] for name in launched} >= {"dense_step", "take_corners", "climb_rows"}
    assert launched - named == set()


def test_a_querys_clock_starts_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the time limit is shorter than what compiling takes."""
    monkeypatch.setattr(prover, "prepare_kernels", lambda decider: time.sleep(0.4) or 0.4)
    net = shortcut()
    verifier = Verifier(compile_net(net), Options(), None)
    lo, hi = box(net)
    found = verifier.verify_property(below(net, lo, hi, -1e6), timeout=0.3)
    assert found.verdict == "unsat" and found.seconds < 0.3
    assert verifier.prepare() == 0.0, "once"


def test_a_job_arrives_as_it_was_sent() -> None:
    """Every kernel of a network, in the words that another process reads."""
    kernels = network_kernels(compile_net(shortcut()), ["float64", "float32"])
    assert len(kernels) > 5
    for kernel in kernels:
        job = ahead.AheadJob(kernel, "cuda:1", 2)
        assert ahead.AheadJob.decode(job.encode()) == job
