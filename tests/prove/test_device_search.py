"""Searches whose slopes and multipliers climb by kernels: the verdicts of the CPU, and its bounds to what an optimiser is off by."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.frontend.query import Disjunct, Property, Row
from polytriton.ir.net import Net
from polytriton.passes.pipeline import compile_net
from polytriton.prove import neurons, tight
from polytriton.prove.decider import Decider
from polytriton.prove.options import Options
from polytriton.prove.strategy import divider
from polytriton.runtime.ascent import Ascent
from polytriton.runtime.gpu.ascent_kernels import AscentKernels
from tests.kernels.branches import Layers

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
FORM = np.array([1.0, -1.0, 0.0])


def shortcut() -> Net:
    """No chain, so that the CPU has no ascent of another kind for it."""
    n = Layers(2, "shortcut")
    x = n.relu(n.linear(n.b.input((4,)), 6))
    return n.b.build(n.linear(n.relu(n.b.add("add", (n.linear(x, 6), x))), 3))


def chain() -> Net:
    n = Layers(5, "chain")
    return n.b.build(n.linear(n.relu(n.linear(n.relu(n.linear(n.b.input((4,)), 6)), 5)), 3))


def box(net: Net, seed: int = 1, radius: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    middle = np.random.default_rng(seed).standard_normal(net.input.size).round(3)
    return middle - radius, middle + radius


def below(net: Net, lo: np.ndarray, hi: np.ndarray, least: float) -> Property:
    """Unsafe where the form is at most so much."""
    row = Row(((0, Fraction(1)), (1, Fraction(-1))), (), Fraction(least))
    ends = [Fraction(v) for v in lo.tolist()], [Fraction(v) for v in hi.tolist()]
    return Property.from_disjuncts("below", net.input.size, 3, (Disjunct(lo, hi, *ends, (row,)),))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Few steps: an interpreted launch takes a millisecond. Tells which ascent was asked."""
    asked: list[str] = []
    monkeypatch.setattr(tight, "QUERY", 4)
    monkeypatch.setattr(tight, "INNER", 2)
    monkeypatch.setattr(neurons, "QUERY", 4)
    monkeypatch.setattr(neurons, "STEPS", 2)
    torchs, kernels = Ascent._improve, AscentKernels._climb
    monkeypatch.setattr(Ascent, "_improve", lambda *given: (asked.append("torch"), torchs(*given))[1])
    monkeypatch.setattr(AscentKernels, "_climb", lambda *given: (asked.append("kernels"), kernels(*given))[1])
    return asked


@pytest.mark.parametrize("search", ["slopes", "neurons"])
def test_a_search_decides_as_on_the_cpu(search: str, few: list[str]) -> None:
    """Of a form that one bound leaves open and chosen slopes decide."""
    net = shortcut()
    lo, hi = box(net)
    cpu, device = (Verifier.from_net(net, semantics="real", dtype="float64", device=d) for d in ("cpu", "interpret"))
    quick, best = (cpu.margins(lo, hi, FORM[None], effort=effort)[0, 0] for effort in ("quick", "best"))
    assert best > quick
    few.clear()
    prop = below(net, lo, hi, quick + 0.8 * (best - quick))
    wanted, found = (v.verify_property(prop, search=search, falsifier=False, timeout=120) for v in (cpu, device))
    assert wanted.verdict == found.verdict == "unsat" and {*few} == {"torch", "kernels"}
    assert wanted.search is not None and found.search is not None and wanted.search.domains == found.search.domains
    assert abs(found.margin - wanted.margin) <= 1e-3 * (best - quick)


def test_a_chain_on_a_gpu_is_divided_on_the_host() -> None:
    """By whatever arithmetic the CPU has; other networks, and intervals, stay where they are."""

    def stub(net: Net, **options: str) -> Decider:
        found = Decider.__new__(Decider)
        found.compiled, found.options, found.device = compile_net(net), Options("cuda", **options), torch.device("cuda")  # type: ignore[arg-type]
        return found

    for dtype, host in (("tf32x3", "auto"), ("float32", "float32")):
        made = divider(gpu := stub(chain(), dtype=dtype, semantics="real"))
        assert divider(gpu) is made, "made once"
        assert (made.device.type, made.kernels, made.options.dtype, made.options.semantics) == ("cpu", "", host, "real")
    for kept in (stub(shortcut()), stub(chain(), numerics="interval")):
        assert divider(kept) is kept
    on_host = Decider(compile_net(chain()), Options())
    assert divider(on_host) is on_host
