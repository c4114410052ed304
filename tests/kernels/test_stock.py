"""A run takes its launches from the artifact: nothing is lowered, every kernel is filed there, and the bounds are the same bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polytriton.ir.launch_text import print_launches
from polytriton.ir.launches import Kernel, Launches, MachineCode
from polytriton.kernels import load, stock
from polytriton.kernels.files import emit_files
from polytriton.kernels.launches import Lowering
from polytriton.kernels.stock import Stock
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.prove.decider import Decider, Try
from polytriton.prove.options import Options
from polytriton.runtime.config import Config
from polytriton.runtime.engine import Engine
from tests.kernels.test_kernel_runs import boxes, forms
from tests.oracle.nets import toy_residual

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    plain = compile_net(toy_residual())
    return replace(plain, filed=emit_files(plain, ("interpret",), ("float32", "interval64")).filed)


class Made:
    """Kernels asked for and programs lowered from here on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels: list[str] = []
        self.programs: list[str] = []
        make: Callable[..., Kernel] = stock.make_kernel
        run = Lowering.run

        def ask(function: str, *given: object) -> Kernel:
            kernel = make(function, *given)
            self.kernels.append(kernel.name)
            return kernel

        def lower(lowering: Lowering) -> Launches:
            self.programs.append(lowering.program.target)
            return run(lowering)

        monkeypatch.setattr(stock, "make_kernel", ask)
        monkeypatch.setattr(Lowering, "run", lower)


def bounds(engine: Engine, refined: bool) -> list[torch.Tensor]:
    ball = boxes(engine.net, 3, 2)
    found = engine.refine(*ball) if refined else engine.interval(*ball)
    return [*found.lo.values(), *found.hi.values(), engine.query(found, forms(engine, 5, 2)).best]


KIND = "float32", "folded", "float32"
OTHERS = [pytest.param(*k, marks=pytest.mark.slow) for k in (("float64", "interval", "real"), ("float32", "folded", "real"))]


@pytest.mark.parametrize(("dtype", "numerics", "semantics"), [KIND, *OTHERS])
def test_a_run_lowers_nothing(compiled: Compiled, monkeypatch: pytest.MonkeyPatch, dtype: str, numerics: str, semantics: str) -> None:
    made, folded = Made(monkeypatch), numerics == "folded"
    options = {"dtype": dtype, "numerics": numerics, "semantics": semantics, "kernels": "interpret"}
    ours = bounds(Engine(compiled, **options), folded)
    assert compiled.filed is not None
    assert not made.kernels and not made.programs
    theirs = bounds(Engine(replace(compiled, filed=None), **options), folded)
    assert made.programs == [p.target for p in compiled.plan] and set(made.kernels) <= compiled.filed.kernels.keys()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    "config",
    [
        Config(lanes=False),
        Config(whole=0.05),
        Config(skips={"relu": []}),
    ],
)
def test_another_plan_or_another_layout_is_lowered(compiled: Compiled, monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    made = Made(monkeypatch)
    engine = Engine(compiled, dtype="float32", kernels="interpret", config=config)
    assert engine.kernels is not None
    engine.kernels.ready(engine.plan.query)
    assert made.programs == ([] if engine.plan == compiled.plan and config.lanes else [engine.plan.query.target])


@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("numerics", ["folded", "interval"])
def test_another_choice_of_candidates_is_another_plan(compiled: Compiled, numerics: str, candidates: str) -> None:
    """A decider asks by both, and the programs of both have the same names: filed launches are taken for the one they are of."""
    how = Try("float32" if numerics == "folded" else "float64", candidates)
    options = Options(device="interpret", numerics=numerics, dtype=how.dtype)
    ours, theirs = (Decider(c, options).engine(how) for c in (compiled, replace(compiled, filed=None)))
    for program in theirs.plan:
        assert ours.kernels is not None and theirs.kernels is not None
        assert print_launches(ours.kernels.ready(program).launches) == print_launches(theirs.kernels.ready(program).launches)


def test_an_arithmetic_that_is_not_filed_is_made(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch)
    engine = Engine(compiled, dtype="float64", kernels="interpret")
    assert engine.kernels is not None
    engine.kernels.ready(engine.plan.query)
    assert made.programs == [engine.plan.query.target]


def test_machine_code_is_of_this_very_kernel(compiled: Compiled) -> None:
    assert compiled.filed is not None
    kernel = next(k for k in compiled.filed.kernels.values() if k.name.startswith("close_neurons"))
    code = {"cuda:90": {kernel.name: MachineCode(b"cubin", "{}")}}
    kept = Stock(replace(compiled.filed, code=code, triton=load.version()), target="cuda:90")
    assert isinstance(kept.function(kernel), load.LoadedCode)
    assert not isinstance(kept.function(replace(kernel, warps=8)), load.LoadedCode)
    assert not isinstance(Stock(replace(compiled.filed, code=code), target="cuda:90").function(kernel), load.LoadedCode)


DECIDES = ["rounding.py", "arithmetic.py", "ir/addends.py", "kernels/device/dense.py", "kernels/catalogue.py", "passes/windows.py"]


@pytest.mark.parametrize("name", DECIDES)
def test_the_library_is_all_that_decides_kernels_and_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A Plan's text does not say what max pools charge, or which rows share an addition: the functions that do belong to the library."""
    shutil.copytree(Path(stock.__file__).parents[1], tmp_path / "polytriton", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(stock.resources, "files", lambda package: tmp_path / package)
    stock.library_digest.cache_clear()
    before = stock.library_digest()
    (tmp_path / "polytriton" / name).write_text((tmp_path / "polytriton" / name).read_text() + "\n")
    stock.library_digest.cache_clear()
    after = stock.library_digest()
    monkeypatch.undo()
    stock.library_digest.cache_clear()
    assert before != after
