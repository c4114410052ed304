"""Whatever a caller has set, every public function finds what it finds in a fresh process, bit for bit, and leaves the settings alone."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polytriton
from polytriton import checker, guard
from polytriton.api import Verifier
from polytriton.cli import main
from polytriton.errors import PolytritonError
from polytriton.ir.net import Builder, Net
from polytriton.runtime import settings
from tests import hostile
from tests.cli import tiny

ROOT = Path(__file__).parents[2]
MODULES = (
    "api", "artifact", "cache", "certificate.write", "frontend.arrays", "frontend.balls", "frontend.images", "frontend.numbers",
    "frontend.query", "frontend.vnnlib", "prove.prover", "prove.radius", "prove.together", "results",
    "runs.asker", "runs.runner", "runs.saved", "results.frames", "runs.worker",
)  # fmt: skip
PLAIN = {  # what has no guard, and why it needs none
    # types, paths and exact rationals: nothing is rounded
    "is_path", "is_property", "parse_fraction", "parse_epsilon", "parse_list", "check_epsilon", "normalisation", "check_range",
    "as_rationals", "load_text", "limits_of", "digest", "check_output", "Row", "Tensor", "Matrix", "Images", "Pixels", "Side",
    "Interval", "Counterexample", "LayerStats", "Origin", "Knobs",
    "Instance",
    # parts of others that are guarded: called for every number, or by them alone
    "float_bounds", "enclosure", "error_above", "matrix", "classification", "lazy_ball", "bisect", "check", "failed_answer",
    "late_answer", "silent", "lines", "claim", "attempt",
    # plain data
    "Settings", "Opened", "Answer", "Begun", "Manifest", "FileEntry", "Artifact", "Hello", "Attempt",
}  # fmt: skip


def entries() -> Iterator[tuple[str, Any]]:
    """Every public function and class of the package and of the modules through which it is entered."""
    for name in polytriton.__all__:
        if not name.startswith("_"):
            yield name, getattr(polytriton, name)
    yield "main", main
    for module in MODULES:
        home = import_module(f"polytriton.{module}")
        for name, value in vars(home).items():
            if not name.startswith("_") and getattr(value, "__module__", None) == home.__name__ and callable(value):
                yield name, value


def members(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        if name.startswith("_") and name not in guard.OWN:
            continue
        if isinstance(value, staticmethod | classmethod):
            yield name, value.__func__
        elif isinstance(value, property):
            yield name, value.fget
        elif inspect.isfunction(value):
            yield name, value


def test_every_public_function_is_guarded() -> None:
    seen = set()
    for name, value in entries():
        seen.add(name)
        if name in PLAIN or (isinstance(value, type) and issubclass(value, Exception)):
            continue
        if isinstance(value, type):
            for member, function in members(value):
                made = dataclasses.is_dataclass(value) and member == "__init__"
                assert made or getattr(function, "guarded", False), f"{name}.{member} has no guard"
        elif inspect.isfunction(value):
            assert getattr(value, "guarded", False), f"{name} has no guard"
    assert {"compile", "load", "Verifier", "read_vnnlib", "Property", "main", "cached_artifact", "decide_together", "Host"} <= seen


def steep() -> Net:
    """y = 1e38 x: subnormal inputs reach ordinary outputs."""
    b = Builder("steep")
    x = b.input((1,))
    return b.build(b.add("linear", (x,), w=b.constant(np.array([[1e38]])), b=b.constant(np.zeros(1))))


def small(folder: Path) -> Path:
    tiny.brightest(folder / "net.onnx")
    tiny.robust(folder / "safe.vnnlib", 0.1)
    tiny.robust(folder / "unsafe.vnnlib", 0.5)
    return folder


def bits(value: Any) -> Any:
    """Everything that a result holds but its times and where its files lie, with floats as bits."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, list | tuple):
        return [bits(v) for v in value]
    if isinstance(value, dict):
        return {k: bits(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value):
        fields = (f.name for f in dataclasses.fields(value) if f.name not in ("seconds", "statistics", "origin"))
        return [(name, bits(getattr(value, name))) for name in fields]
    return value


class Toy(torch.nn.Module):
    """Its answer depends on the default type and device: a fresh process makes float32 on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        with torch.device("cpu"):
            self.first = torch.nn.Linear(4, 3, dtype=torch.float32)
        with torch.no_grad():
            self.first.weight.copy_(torch.arange(12, dtype=torch.float32, device="cpu").reshape(3, 4) / 7 - 0.6)
            self.first.bias.copy_(torch.full((3,), 1e-41, device="cpu", dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.first(x))


X = np.array([0.9, 0.1, 0.2, 0.5])
LO, HI, TOP, BELOW, ABOVE, BOTH = X - 0.07, X + 0.07, X + 0.1, X - 1, X + 1, np.stack([X, X[::-1]])

TOY = Toy()


# an export of a module takes longer than all the rest: it is made in every state of torch that "everything" does not hold, and there
EXPORTED = {"default float64", "device", "no gradients", "inference", "everything"}


def found(folder: Path, exports: bool = True) -> dict[str, Any]:
    """What every public function makes of numbers that any of the states would change."""
    made: dict[str, Any] = {}
    net = polytriton.compile(folder / "net.onnx", semantics="real")
    made["compile"] = {name: bits(w) for name, w in net.net.weights.items()}
    made["bounds"] = bits(net.bounds(LO, HI))
    made["margins"] = bits(net.margins(LO, HI, [[1, -1, 0], [0.1, 0.2, -0.3]]))
    made["verify"] = [bits(net.verify(X, "0.1", 0)), bits(net.verify(X, "0.5", 0)), bits(net.verify(X, 0.1, mean=0.1307, std=0.3081))]
    made["together"] = bits(net.verify(BOTH, "0.12"))
    made["vnnlib"] = [bits(net.verify_vnnlib(folder / f"{name}.vnnlib")) for name in ("safe", "unsafe")]
    made["radius"] = bits(net.radius(X, 0))
    made["predict"] = bits(net.predict(X, mean=0.1307, std=0.3081))
    made["ball"] = bits(net.ball_property(X, polytriton.frontend.images.parse_epsilon("0.1"), 0, mean=0.1, std=0.3).disjuncts[0].lo)
    prop = polytriton.read_vnnlib(folder / "unsafe.vnnlib")
    made["violated"] = prop.violated(X, [1, 2, 1]), prop.disjuncts[0].contains(X)
    made["text"] = bits(polytriton.read_vnnlib(
        "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(assert (>= X_0 1e-310))\n(assert (<= X_0 0.1))\n(assert (<= Y_0 1e-320))"
    ).disjuncts[0])  # fmt: skip
    net.save(folder / "net.poly")
    made["load"] = bits(polytriton.load(folder / "net.poly", semantics="real").bounds(X, TOP))
    ramp = Verifier.from_net(steep(), semantics="real")
    made["from_net"] = [bits(ramp.bounds([0.0], [1e-40])), bits(ramp.predict([1e-40])), bits(ramp.margins([5e-324], [1e-310], [[1.0]]))]
    if exports:
        made["module"] = bits(polytriton.compile(TOY, np.zeros((1, 4), np.float32)).bounds(BELOW, ABOVE))
    made["together too"] = [(k, bits(r)) for k, r in polytriton.prove.together.decide_together(net, [prop], [0])]
    made["shown"] = net._repr_html_()
    target = folder / "a.cert"
    with open(folder / "said", "w") as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        files = [str(folder / name) for name in ("net.onnx", "safe.vnnlib")]
        made["main"] = main(["verify", *files, "--semantics", "real", "--certificate", str(target)])
        made["main check"] = main(["check", *files, str(target)])
    made["certificate"] = target.read_bytes()
    made["check"] = bits(checker.check(Path(files[0]), Path(files[1]), target))
    return made


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return found(small(tmp_path_factory.mktemp("clean")))


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTRITON_CACHE", "off")


@pytest.mark.parametrize("state", [pytest.param(s, marks=pytest.mark.slow if k % 2 else ()) for k, s in enumerate(hostile.STATES)])
def test_no_state_reaches_a_result(state: str, clean: dict[str, Any], tmp_path: Path) -> None:
    small(tmp_path)
    before = hostile.seen()
    with hostile.STATES[state]():
        inside = hostile.seen()
        got = found(tmp_path, state in EXPORTED)
        assert hostile.seen() == inside
    assert hostile.seen() == before
    assert got.keys() == clean.keys() - (set() if state in EXPORTED else {"module"})
    for name, value in got.items():
        assert value == clean[name], name
    assert settings._holders == 0


@pytest.mark.parametrize("state", ["flush", "upward", "everything"])
def test_a_callers_own_thread(state: str, clean: dict[str, Any], tmp_path: Path) -> None:
    small(tmp_path)
    ended: list[Any] = []

    def work() -> None:
        with hostile.STATES[state]():
            inside = hostile.seen()
            ended.extend((found(tmp_path, state in EXPORTED), hostile.seen() == inside))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended[1]
    assert ended[0] == {name: wanted for name, wanted in clean.items() if name != "module" or state in EXPORTED}


def test_an_untouched_bound_is_where_it_belongs() -> None:
    """1e38 x over [0, 1e-40] reaches 0.01: flushed inputs left it at zero."""
    with hostile.flushing():
        b = Verifier.from_net(steep(), semantics="real").bounds([0.0], [1e-40])
    assert 0.01 <= b.hi[0, 0] <= 0.0100001


@pytest.mark.parametrize("state", ["flush", "upward", "default float16", "default device", "numpy raises", "inference", "everything"])
def test_settings_come_back_after_an_error(state: str, tmp_path: Path) -> None:
    net = Verifier.from_net(steep())

    def stop(*_: object) -> None:
        raise ValueError("stop here")

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    with hostile.STATES[state]():
        inside = hostile.seen()
        for call, kind in (
            (lambda: net.bounds([1.0], [0.0]), PolytritonError), (lambda: net.bounds([0.0], [1.0], progress=stop), ValueError),
            (lambda: polytriton.compile(tmp_path / "none.onnx"), PolytritonError), (lambda: polytriton.load(tmp_path), PolytritonError),
        ):  # fmt: skip
            with pytest.raises(kind):
                call()
            assert hostile.seen() == inside
        net._decider.output_bounds = broken  # type: ignore[method-assign,assignment]
        with pytest.raises(RuntimeError) as kept:  # whose frames live on
            net.bounds([0.0], [1.0])
        assert hostile.seen() == inside and kept
    assert settings._holders == 0


def test_a_generators_caller_has_its_own_settings_between_the_steps() -> None:
    steps = []

    @guard.guard
    def work() -> Iterator[tuple[bool, torch.dtype]]:
        try:
            for _ in range(3):
                yield guard._exact(), torch.get_default_dtype()
        finally:
            steps.append((guard._exact(), torch.get_default_dtype()))

    with hostile.STATES["flush"](), hostile.STATES["upward"](), hostile.STATES["default float64"]():
        inside = hostile.seen()
        running = work()
        for _ in range(2):
            assert next(running) == (True, torch.float32)
            assert hostile.seen() == inside
        running.close()
        assert hostile.seen() == inside
        assert list(work()) == [(True, torch.float32)] * 3
    assert steps == [(True, torch.float32)] * 2


def test_what_a_callback_changes_does_not_pass_unseen() -> None:
    """A verdict that was reached in arithmetic that changed on the way is none."""
    net = Verifier.from_net(steep())
    try:
        with pytest.raises(PolytritonError, match="changed how this thread rounds"):
            net.bounds([0.0], [1.0], progress=lambda *_: torch.set_flush_denormal(True))
        assert guard._exact()
        inner: list[Any] = []

        def again(*_: object) -> None:
            with hostile.rounding("upward"):
                inner.append(Verifier.from_net(steep()).bounds([0.1], [0.3]))

        net.bounds([0.0], [1.0], progress=again)
        assert inner and bits(inner[0]) == bits(Verifier.from_net(steep()).bounds([0.1], [0.3]))
    finally:
        torch.set_flush_denormal(False)


def test_where_the_processor_cannot_be_told_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_environment", lambda: None)
    with hostile.rounding("upward"), pytest.raises(PolytritonError, match="nearest") as told:
        polytriton.read_vnnlib("(declare-const X_0 Real)\n")
    assert told.value.remedy
    with hostile.flushing():  # torch can
        assert bits(Verifier.from_net(steep(), semantics="real").bounds([0.0], [1e-40]))
        assert not guard._exact()


def test_coming_in_again_costs_little() -> None:
    @guard.guard
    def nothing() -> None:
        pass

    @guard.guard
    def inside() -> float:
        return min(timeit.repeat(nothing, number=1000, repeat=5, timer=time.thread_time)) / 1000  # its own: others may compute beside it

    assert inside() < 50e-6


def fresh(script: str, **env: str) -> str:
    """The last line that a new process says."""
    env = {"PATH": "", "PYTHONPATH": str(ROOT), "POLYTRITON_CACHE": "off", **env}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]


WORKERS = """
import torch, numpy as np
torch.set_num_threads({threads})
{before}
from polytriton.api import Verifier
from polytriton.ir.net import Builder
b = Builder("wide")
def linear(x, w, c):
    return b.add("linear", (x,), w=b.constant(w), b=b.constant(c))
h = b.add("relu", (linear(b.input((32,)), np.eye(32) * 1e-30, np.full(32, 1e-310)),))
net = Verifier.from_net(b.build(linear(h, np.ones((300, 32)) * 1e-300, np.zeros(300))), semantics="real", dtype="float64")
lo = np.linspace(-1e-10, 1e-10, 200 * 32).reshape(200, 32)
found = net.bounds(lo, lo + 1e-10)
print(torch.get_num_threads(), found.lo.tobytes().hex()[:4096], hash(found.lo.tobytes() + found.hi.tobytes()))
"""
SPOILT = """
{change}
(torch.ones(1 << 20, dtype=torch.float64) * 0.5).sum()  # its workers begin
{back}
tiny = torch.full((1 << 20,), 2.0**-1060, dtype=torch.float64)
made = [(tiny * 0.75).view(torch.int64), (tiny + 1).view(torch.int64)]
assert any((v != v[0]).any() for v in made), "no worker was spoilt"
"""


@pytest.mark.parametrize(
    ("change", "back"),
    [
        pytest.param("torch.set_flush_denormal(True)", "torch.set_flush_denormal(False)", marks=pytest.mark.slow),
        ("import ctypes; fenv = ctypes.CDLL(None); fenv.fesetround(0x800)", "fenv.fesetround(0)"),
    ],
    ids=["flush", "upward"],
)
def test_workers_of_torch_that_began_in_another_arithmetic(change: str, back: str) -> None:
    env = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "3"}
    threads, *alone = fresh(WORKERS.format(threads=1, before=""), **env).split(" ", 1)
    assert threads == "1"
    threads, *got = fresh(WORKERS.format(threads=3, before=SPOILT.format(change=change, back=back)), **env).split(" ", 1)
    assert threads == "3" and got == alone


@pytest.mark.slow
def test_workers_of_numpy_that_began_in_another_arithmetic() -> None:
    script = """
import ctypes, sys
fenv = ctypes.CDLL(None)
fenv.fesetround(0x800)
import numpy as np
fenv.fesetround(0)
import torch
from polytriton.errors import PolytritonError
from polytriton.runtime import settings
try:
    settings._check_blas(0)
    print("exact")
except PolytritonError as error:
    print("refused" if "OPENBLAS_NUM_THREADS" in error.remedy else error)
"""
    assert fresh(script, OPENBLAS_NUM_THREADS="1") == "exact"
    assert fresh(script, OPENBLAS_NUM_THREADS="2") in ("refused", "exact")  # exact: of a numpy that starts them later, or none


def test_help_needs_no_torch() -> None:
    assert fresh("import sys\nfrom polytriton.cli import main\nmain(['--help'])\nprint('torch' in sys.modules)") == "False"
