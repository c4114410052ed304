"""Out of memory at every allocation of a run: one message or the right answer, and the verifier is as good as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import polytriton
from polytriton.api import Verifier
from polytriton.errors import USAGE, ResourceError
from polytriton.explain import explain
from polytriton.frontend.query import Property
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.prove.options import Options
from tests.cli import tiny
from tests.faults.inject import SHORTAGES, NumpyFault, TorchFault
from tests.oracle.nets import random_box, toy_conv, toy_residual

Said = tuple[object, ...]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """So that bounds repeat to the bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Case:
    """A compiled network and a question; what it says is compared to the bit."""

    compiled: Compiled
    ask: Callable[[Verifier], Said]
    options: Options = Options()  # noqa: RUF009

    def verifier(self) -> Verifier:
        return Verifier(self.compiled, self.options)


def _bounds(make: Callable[[], polytriton.ir.net.Net], **options: str) -> Case:
    net = make()
    lo, hi = random_box(np.random.default_rng(0), net, "ordinary", batch=2)

    def ask(verifier: Verifier) -> Said:
        b = verifier.bounds(lo, hi)
        return b.lo.tobytes(), b.hi.tobytes(), *(side.tobytes() for layer in b.layers.values() for side in (layer.lo, layer.hi))

    return Case(compile_net(net), ask, Options(**options))


def _verdict(write: Callable[[Path], Path], model: Callable[[Path], Path], folder: Path) -> Case:
    prop: Property = read_vnnlib(write(folder / "p.vnnlib"))

    def ask(verifier: Verifier) -> Said:
        r = verifier.verify_property(prop)
        return r.verdict, r.margins.tobytes(), None if r.counterexample is None else r.counterexample.x.tobytes()

    return Case(polytriton.compile(model(folder / "n.onnx")).compiled, ask)


@cache
def cases(folder: Path) -> dict[str, Case]:
    return {
        "unsat": _verdict(lambda p: tiny.robust(p, 0.1), tiny.brightest, folder),
        "sat": _verdict(lambda p: tiny.robust(p, 0.5), tiny.brightest, folder),
        "conv": _bounds(toy_conv),
        "residual": _bounds(toy_residual, dtype="float64"),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


def starve(case: Case, fault: Callable[[int], object], at: int, wanted: Said) -> bool:
    """One run with the `at`-th allocation failing, and one after it on the same verifier. Whether the fault was felt."""
    verifier = case.verifier()
    said: Said | BaseException
    try:
        with fault(at):  # type: ignore[attr-defined]
            said = case.ask(verifier)
    except Exception as error:
        said = error
    if isinstance(said, BaseException):
        told = explain(said)
        assert isinstance(told, ResourceError) and told.exit_code == USAGE and told.remedy, (at, said)
    else:
        assert said == wanted, at
    assert case.ask(verifier) == wanted, at
    return isinstance(said, BaseException)


def sweep(case: Case, kind: str, step: int) -> int:
    """Every `step`-th operator; how many faults were felt."""
    wanted = case.ask(case.verifier())
    make = SHORTAGES[kind]
    with TorchFault(-1, make) as counter:
        assert case.ask(case.verifier()) == wanted
    assert counter.calls > 50
    first = len(kind) % step
    return sum(starve(case, lambda at: TorchFault(at, make), at, wanted) for at in range(first, counter.calls, step))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", SHORTAGES)
@pytest.mark.parametrize("name", ["unsat", "sat", "conv", pytest.param("residual", marks=pytest.mark.slow)])
def test_some_operators_find_no_memory(folder: Path, name: str, kind: str) -> None:
    assert sweep(cases(folder)[name], kind, 397 if name == "conv" else 197) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name, step", [("unsat", 1), ("sat", 7), ("conv", 23), ("residual", 23)])
def test_many_operators_find_no_memory(folder: Path, name: str, step: int) -> None:
    assert sweep(cases(folder)[name], "cpu", step) > 15


@pytest.fixture(scope="module")
def numpy_fault() -> NumpyFault:
    return NumpyFault()


MANY = [pytest.param(n, 60, marks=pytest.mark.slow) for n in ("sat", "conv")]


@pytest.mark.parametrize(("name", "most"), [("unsat", 60), ("sat", 30), ("conv", 12), *MANY])
def test_arrays_of_a_run_find_no_memory(folder: Path, numpy_fault: NumpyFault, name: str, most: int) -> None:
    case = cases(folder)[name]
    wanted = case.ask(case.verifier())
    with numpy_fault.armed(-1) as counter:
        case.ask(case.verifier())
    assert counter.calls > 10
    felt = sum(starve(case, numpy_fault.armed, at, wanted) for at in range(0, counter.calls, max(1, counter.calls // most)))
    assert felt >= 5


def test_every_array_of_a_compilation_finds_no_memory(folder: Path, numpy_fault: NumpyFault) -> None:
    model = tiny.brightest(folder / "c.onnx")
    want = polytriton.compile(model).compiled
    with numpy_fault.armed(-1) as counter:
        polytriton.compile(model)
    felt = list[BaseException]()
    for at in range(0, counter.calls, 2):
        try:
            with numpy_fault.armed(at):
                got = polytriton.compile(model).compiled
        except Exception as error:
            felt.append(error)
        else:
            assert got == want
    assert len(felt) > 20
    assert all(isinstance(explain(error), ResourceError) for error in felt), felt


def test_the_command_line_says_it_once(cli, poly: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """A query that finds no memory is an error of its own: the others are answered."""
    with TorchFault(10, SHORTAGES["cpu"]):
        said = cli("run", poly, "--vnnlib", "safe.vnnlib", "unsafe.vnnlib", "--json", "r.jsonl")
    assert said.code == 2
    assert said.err.count("memory does not suffice") == 1
    assert "1 sat, 1 error" in said.out
    again = cli("run", poly, "--vnnlib", "safe.vnnlib", "unsafe.vnnlib", "--json", "r.jsonl", "--resume")
    assert again.code == 0
    assert "1 unsat, 1 sat" in again.out and "1 from an earlier run" in again.out
