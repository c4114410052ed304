"""Kernels compiled before they are launched: none is forgotten, none is asked for twice, and what fails is left to its launch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polytriton import knobs
from polytriton.api import Verifier
from polytriton.errors import KernelError
from polytriton.ir.launches import Kernel
from polytriton.ir.net import Net
from polytriton.kernels import ahead, build, load
from polytriton.kernels.network import network_kernels
from polytriton.kernels.spec import Report
from polytriton.kernels.stock import COMPILED, Stock
from polytriton.kernels.worker import BuildJob, BuildReply
from polytriton.passes.pipeline import compile_net
from polytriton.prove import neurons, prepare, prover, tight
from polytriton.prove.options import Options
from tests.prove.test_device_search import below, box, chain, shortcut

pytest.importorskip("triton", reason="Triton is not installed")
TARGET = "cuda:90"
REPORT = Report("", TARGET, 32, 0, 0, 0, 0, {}, 64, 3, 0.0, False, launch="{}")


class Compilers:
    """In the place of processes that compile: notes what is asked for. `broken`: kernels that cannot be compiled."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken: set[str] = set()
        self.pause, self.lost = 0.0, False

    def work(self, kernels: Sequence[Kernel], target: str, *, jobs: int, timeout: float) -> Iterator[tuple[int, BuildReply]]:
        if self.lost:
            raise KernelError("no kernel can be compiled: did not start", "see why")
        for k, kernel in enumerate(kernels):
            time.sleep(self.pause)
            self.asked.append(kernel.name)
            failed = BuildReply(error="CompilationError: no such instruction\nand pages more")
            yield k, failed if kernel.name in self.broken else BuildReply(replace(REPORT, name=kernel.name), b"abc")


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compilers:
    found = Compilers()
    monkeypatch.setattr(build, "work", found.work)
    monkeypatch.setenv("POLYTRITON_CACHE", str(tmp_path / "cache"))
    return found


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(knobs, "_watchers", [said.append])
    return said


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    return network_kernels(compile_net(shortcut()), ["float64"])


def test_each_kernel_is_compiled_once_a_machine(kernels: list[Kernel], compilers: Compilers, told: list[str]) -> None:
    made = ahead.compile_ahead(kernels, TARGET)
    assert sorted(compilers.asked) == sorted(made) == sorted(k.name for k in kernels)
    assert {(code.cubin, code.launch) for code in made.values()} == {(b"abc", "{}")}
    assert told[0].startswith(f"compiling {len(kernels)} kernels for cuda:90") and told[-1].startswith("compiled kernels for cuda:90 in")
    del told[:], compilers.asked[:]
    assert ahead.compile_ahead(kernels, TARGET) == made and not compilers.asked and not told
    assert len(ahead.compile_ahead(kernels, "cuda:80")) == len(compilers.asked) == len(kernels), "another GPU, other machine code"


def test_what_cannot_be_compiled_is_left_to_its_launch(kernels: list[Kernel], compilers: Compilers, told: list[str]) -> None:
    compilers.broken = {kernels[3].name}
    assert ahead.compile_ahead(kernels, TARGET).keys() == {k.name for k in kernels} - compilers.broken
    (line,) = (s for s in told if kernels[3].name in s)
    assert line.endswith("is not compiled ahead: CompilationError: no such instruction")
    del compilers.asked[:]
    ahead.compile_ahead(kernels, TARGET)
    assert compilers.asked == [kernels[3].name], "what failed is not kept"


def test_it_stops_when_the_time_is_up(kernels: list[Kernel], compilers: Compilers, told: list[str]) -> None:
    compilers.pause = 0.02
    assert 0 < len(ahead.compile_ahead(kernels, TARGET, seconds=0.1)) < len(kernels)
    assert any("the time was up" in line for line in told)


def test_without_workers_launches_compile(kernels: list[Kernel], compilers: Compilers, told: list[str]) -> None:
    compilers.lost = True
    assert ahead.compile_ahead(kernels, TARGET) == {}
    assert told[-1] == "kernels are compiled as they are first launched: no kernel can be compiled: did not start"


def test_a_cache_that_cannot_be_written(kernels: list[Kernel], compilers: Compilers, told: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    assert ahead.compile_ahead(kernels, TARGET) == {} and "as they are first launched" in told[-1]


@pytest.mark.skipif(os.name != "posix", reason="folders have no such modes")
def test_a_folder_that_others_may_write_to_is_not_believed(
    kernels: list[Kernel], compilers: Compilers, told: list[str], tmp_path: Path
) -> None:  # fmt: skip
    """What is read there is run."""
    ahead.compile_ahead(kernels, TARGET)
    folder = tmp_path / "cache" / "cubins"
    before = sorted(folder.glob("*.cubin"))
    del compilers.asked[:]
    folder.chmod(0o777)
    assert len(ahead.compile_ahead(kernels, TARGET)) == len(kernels) == len(compilers.asked) == len(before)
    assert sorted(folder.glob("*.cubin")) == before


def test_what_was_compiled_here_is_loaded(kernels: list[Kernel], compilers: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every engine of the process on such a GPU, and by no other; nobody compiles what is there."""
    monkeypatch.setitem(COMPILED, TARGET, {})
    one, other, cpu = Stock(target=TARGET), Stock(target="cuda:80"), Stock()
    for stock in (one, cpu):
        stock.compile_ahead(kernels)
    assert sorted(compilers.asked) == sorted(k.name for k in kernels)
    again = Stock(target=TARGET)
    again.compile_ahead(kernels)
    assert len(compilers.asked) == len(kernels) and all(map(again.has_code, kernels))
    assert isinstance(again.function(kernels[0]), load.LoadedCode)
    assert not any(s.has_code(kernels[0]) for s in (other, cpu)) and isinstance(cpu.function(kernels[0]), load.GivenConstants)


def test_the_cpu_compiles_nothing_ahead(compilers: Compilers) -> None:
    assert Verifier(compile_net(shortcut()), Options(), None).prepare() < 0.1
    assert not compilers.asked


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


def test_a_job_and_its_answer_arrive_as_they_were_sent() -> None:
    """Every kernel of a network, in the words that another process reads."""
    kernels = network_kernels(compile_net(shortcut()), ["float64", "float32"])
    assert len(kernels) > 5
    for job in (BuildJob(kernel, "cuda:90", k) for k, kernel in enumerate(kernels)):
        assert BuildJob.decode(job.encode()) == job
    for reply in (BuildReply(REPORT, b"a\nb"), BuildReply(error="why\nnot")):
        assert BuildReply.decode(reply.encode()) == reply
