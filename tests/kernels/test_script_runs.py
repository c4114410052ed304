"""The script of a run as it is filed, held against what runs launch: the same kernels on the same grids, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from polytriton.ir.launches import Launch
from polytriton.ir.net import Net
from polytriton.ir.script import WRITES, RunScript, ScriptEntry
from polytriton.kernels.choose import INTERPRETER
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.network import network_kernels
from polytriton.kernels.script import deployment
from polytriton.kernels.stock import script_key
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu.binding import Call
from polytriton.runtime.gpu.triton_backend import TritonBackend
from polytriton.runtime.soundness import flushes
from polytriton.runtime.trace import Trace
from tests.kernels.branches import projections
from tests.kernels.plays import balls, forms_of
from tests.kernels.test_interval_runs import small as tiny
from tests.kernels.test_kernel_runs import boxes as boxes_of
from tests.kernels.test_kernel_runs import numbered, small
from tests.kernels.test_neurons import settling
from tests.kernels.test_table_kernels import NETS
from tests.oracle.nets import random_net, toy_dense

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN

PICKED = {f"random {k}": (lambda k=k: random_net(k, scale="normal", limit=40, steps=4)) for k in (40, 43, 51)}
MADE: dict[str, Callable[[], Net]] = {
    **NETS, **PICKED, "settling": lambda: settling(2), "pool": lambda: small(pool=True),
    "residual": lambda: small(residual=True), "projections": lambda: projections(blocks=1),
    "tiny": lambda: tiny(residual=True), "numbered": lambda: numbered(toy_dense()),
}  # fmt: skip
Launched = list[tuple[str, tuple[int, ...]]]  # a kernel's name and its grid


@contextmanager
def heard() -> Iterator[Launched]:
    """What is launched between programs while it lasts, by whatever was bound meanwhile."""
    found: Launched = []
    call = TritonBackend.call

    def bind(self: TritonBackend, launch: Launch, count: int, tensor: Callable[[str], Tensor]) -> Call:
        play = call(self, launch, count, tensor)

        def played() -> None:
            if launch.function in WRITES:
                found.append((launch.kernel.name, launch.grid(count)))
            play()

        return played

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TritonBackend, "call", bind)
        yield found


def compare(found: Launched, entries: list[ScriptEntry], batch: int) -> set[str]:
    """All of `play` was launched, on its grid; launches of rows in their places, as far as there were rows. The verbs of what was."""
    at, verbs = 0, set[str]()
    for entry in entries:
        step = entry.launch
        if step is None:
            continue
        if at < len(found) and found[at][0] == step.kernel.name and (entry.verb != "play" or found[at][1] == step.grid(batch)):
            verbs.add(entry.verb)
            at += 1
        else:
            assert entry.verb != "play", (entry, found[at : at + 1])
    assert at == len(found), found[at:]
    return verbs


def script_of(engine: Engine, numerics: str, candidates: str) -> RunScript:
    emitter, semantics = Emitter(), engine.forward.semantics
    network_kernels(compile_net(engine.net, candidates), (numerics,), INTERPRETER, emitter)
    return emitter.scripts[script_key(numerics, True, deployment(semantics.real, semantics.passes, flushes(semantics)))]


QUICK = [
    ("settling", "float64", "real", "all"), ("small", "float32", "float32", "all"), ("pool", "float64", "float16", "all"),
    ("numbered", "float32", "float32", "all"),
]  # fmt: skip
SLOW = [
    ("small", "float64", "tf32", "input"), ("leaky", "float32", "float32", "all"), ("pools", "float64", "real", "all"),
    ("scales", "float32", "bf16", "all"), ("scales", "float64", "real", "all"), ("concats", "float32", "float16", "all"),
    ("gathers", "float32", "float32", "all"), ("deep", "float32", "tf32", "all"), ("projections", "float32", "float32", "all"),
    ("residual", "float64", "real", "all"),
    ("random 40", "float64", "float32", "all"), ("random 43", "float32", "real", "all"),
    ("random 51", "float64", "float16", "all"),
    ("tiny", "interval32", "float32", "all"), ("tiny", "interval64", "real", "all"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "numerics", "semantics", "candidates"), [*QUICK, *(pytest.param(*c, marks=pytest.mark.slow) for c in SLOW)]
)
def test_a_run_launches_what_its_script_lists(name: str, numerics: str, semantics: str, candidates: str) -> None:
    kind, dtype = ("interval", f"float{numerics[-2:]}") if numerics.startswith("interval") else ("folded", numerics)
    compiled = compile_net(MADE[name](), candidates)
    ours = Engine(compiled, dtype=dtype, semantics=semantics, kernels="interpret", numerics=kind)
    script, seen = script_of(ours, numerics, candidates), set[str]()
    for section in ("interval", "refine", "refine"):  # the second refinement goes ahead of its waits
        ours.kernels._forget()  # type: ignore[union-attr]
        low, high = balls(ours.net, len(seen), 2) if name == "settling" else boxes_of(ours.net, len(seen), 2)
        with heard() as found:
            boxes = ours.interval(low, high) if section == "interval" else ours.refine(low, high, trace=Trace(torch.device("cpu")))
            ours.query(boxes, forms_of(ours, 2))
        seen |= compare(found, [*script.sections[section], *script.sections["query"]], 2)
    assert {"play", "forms"} <= seen
    if name in ("settling", "small") and candidates == "all":
        assert {"first", "second", "ahead", "close"} <= seen
