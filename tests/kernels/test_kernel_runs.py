"""Whole programs by kernels in Triton's interpreter: the bounds of the tensor form, to within rounding; and DeepPoly's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polytriton.frontend.onnx import load_onnx
from polytriton.ir.net import Builder, Net
from polytriton.ir.text import parse_net, print_net
from polytriton.passes.pipeline import Compiled, compile_net, fold_net
from polytriton.runtime.cpu.walk import Results
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.results import Forms
from tests.oracle.deeppoly import DeepPoly
from tests.oracle.nets import random_box, random_net, toy_dense

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
EXAMPLES = Path(__file__).parents[2] / "examples"
WIDE = {"float64": 1e-9, "float32": 1e-3}  # differences allowed, relative to the widest box of a node


def engines(compiled: Compiled, **options: Any) -> tuple[Engine, Engine]:
    return Engine(compiled, kernels="interpret", **options), Engine(compiled, **options)


def boxes(net: Net, seed: int, batch: int, kind: str = "ordinary") -> tuple[Tensor, Tensor]:
    lo, hi = random_box(np.random.default_rng(seed), net, kind, batch)
    return torch.from_numpy(lo).reshape(batch, -1), torch.from_numpy(hi).reshape(batch, -1)


def close(a: Tensor, b: Tensor, room: Tensor | float) -> bool:
    return bool(((a == b) | ((a - b).abs() <= room)).all())


def same_boxes(net: Net, got: Boxes, want: Boxes, dtype: str) -> None:
    for node in net:
        a, b = (got.lo[node.name], got.hi[node.name]), (want.lo[node.name], want.hi[node.name])
        width = float((b[1] - b[0]).abs().nan_to_num(posinf=0.0).max()) + float(want.absmax(node.name).nan_to_num(posinf=0.0).max()) * 1e-3
        for side, (x, y) in enumerate(zip(a, b, strict=True)):
            assert close(x, y, WIDE[dtype] * width), (node.name, side, float((x - y).abs().max()), width)


def forms(engine: Engine, seed: int, batch: int, each: int = 3) -> Forms:
    n = engine.nodes[engine.plan.query.target].size
    c = np.random.default_rng(seed).standard_normal((batch * each, n))
    constant = torch.linspace(-0.5, 0.5, batch * each, dtype=torch.float64)
    return Forms(torch.arange(batch * each) // each, torch.from_numpy(c), constant=constant)


def same_results(got: Results, want: Results, dtype: str) -> None:
    """Where both are bounds: as near as the roundings each has charged, which is what raw - best tells."""
    finite = torch.isfinite(want.best)
    assert torch.equal(torch.isfinite(got.best), finite)
    charged = (got.raw - got.best).abs() + (want.raw - want.best).abs()
    room = charged + (1e-9 if dtype == "float64" else 1e-4) * (1 + want.raw.abs())
    assert close(got.best[finite], want.best[finite], room[finite]) and close(got.raw[finite], want.raw[finite], room[finite])
    assert (got.best[finite] <= got.raw[finite] + 1e-9 * (1 + got.raw[finite].abs())).all()


def agree(net: Net, seed: int, dtype: str, batch: int = 2, kind: str = "ordinary", candidates: str = "all", **options: Any) -> Engine:
    compiled = compile_net(net, candidates=candidates)
    ours, theirs = engines(compiled, dtype=dtype, **options)
    lo, hi = boxes(net, seed, batch, kind)
    a, b = ours.refine(lo, hi), theirs.refine(lo, hi)
    same_boxes(compiled.net, a, b, dtype)
    asked = forms(ours, seed, batch)
    same_results(ours.query(a, asked), theirs.query(a, asked), dtype)
    return ours


# eight of them meet every semantics, type and mode
@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", [pytest.param(s, marks=() if s < 8 else pytest.mark.slow) for s in range(24)])
def test_random_networks(seed: int) -> None:
    """Every operator; the semantics, the types and the modes in turn."""
    semantics = ("float32", "real", "float16")[seed % 3]
    more: dict[str, Any] = {"semantics": semantics, "tight": seed % 5 == 4, "candidates": ("all", "input")[seed % 7 == 6]}
    agree(random_net(seed + 40, scale="normal", limit=60, steps=5), seed, ("float64", "float32")[seed % 2], **more)


@pytest.mark.parametrize("kind", ["zero", "tiny", "huge", "touching"])
def test_boxes_of_other_kinds(kind: str) -> None:
    agree(random_net(3, scale="normal", limit=60, image=True), 5, "float64", kind=kind)


def small(pool: bool = False, slope: float = 0.0, residual: bool = False) -> Net:
    """5x5x2 through two convolutions to three outputs, in forms that take different kernels."""
    rng, b = np.random.default_rng(6), Builder("small")
    x = b.input((2, 5, 5))

    def conv(x: str, out: int, **attrs: Any) -> str:
        w = rng.standard_normal((out, b.shape(x)[0], 3, 3)).astype(np.float32) / 3
        return b.add("conv", (x,), w=b.constant(w), b=b.constant(rng.standard_normal(out).astype(np.float32) / 3), k=(3, 3), **attrs)

    h = b.add("relu", (conv(x, 3, p=(1, 1, 1, 1)),), slope=slope)
    y = conv(h, 3, p=(1, 1, 1, 1))
    if residual:
        y = b.add("add", (y, h))
    if pool:
        y = b.add("maxpool", (y,), k=(2, 2), s=(2, 2))
    y = conv(b.add("relu", (y,)), 2, s=(2, 1), p=(0, 1, 1, 0))
    n = int(np.prod(b.shape(y)))
    w = rng.standard_normal((3, n)).astype(np.float32)
    return b.build(b.add("linear", (b.add("relu", (y,)),), w=b.constant(w), b=b.constant(np.zeros(3, np.float32))))


@pytest.mark.parametrize("form", [{}, {"pool": True}, {"slope": 0.125}, {"residual": True}], ids=["plain", "pool", "leaky", "residual"])
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_forms_of_a_small_network(form: dict[str, Any], dtype: str) -> None:
    engine = agree(small(**form), 8, dtype, early="pool" not in form)
    assert engine.kernels is not None
    steps = [s for r in engine.kernels._ready.values() for s in r.launches.steps]
    assert any("b_ptr" in s.kernel.parameters for s in steps) == ("residual" in form)  # two windows are added up
    functions = {s.function for s in steps}
    assert ("pool_rows" in functions, "slope_rows" in functions) == ("pool" in form, "slope" in form)


def proved(best: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """By group."""
    return torch.stack([(best[groups == g] > 0).any() for g in range(int(groups.max()) + 1)])


@pytest.mark.parametrize("split", [False, True])
def test_rows_of_proved_groups_leave(split: bool) -> None:
    """As without groups, where a group is not proved; several blocks of rows share the groups."""
    compiled = compile_net(small(residual=True))
    ours, theirs = engines(compiled, dtype="float64")
    lo, hi = boxes(compiled.net, 2, 3)
    found = theirs.refine(lo, hi)
    asked, groups = forms(ours, 4, 3, each=50), torch.arange(150) % 5
    assert ours.kernels is not None
    if split:
        ours.kernels.memory = 70 * ours.kernels.row_bytes(ours.plan.query)
        assert ours.kernels.capacity(ours.plan.query, 150) < 150
    asked.constant = torch.tensor([-1000.0, 1000.0, 0.0, 30.0, 1000.0], dtype=torch.float64)[groups]
    free, left, want = ours.query(found, asked), ours.query(found, asked, groups), theirs.query(found, asked, groups)
    done = proved(left.best, groups)
    assert want.done is not None and torch.equal(done, want.done)
    assert done[0] and not done[1] and not done[4]
    undone = ~done[groups]
    assert torch.equal(left.best[undone], free.best[undone]) and (left.best <= free.best).all()


def test_unbounded_inputs_end_as_no_bound() -> None:
    """One image's box is infinite: it gets no finite bound that depends on it, the other image all of its own."""
    net = small()
    ours, _ = engines(compile_net(net), dtype="float32")
    lo, hi = boxes(net, 2, 2)
    alone = ours.refine(lo[1:], hi[1:])
    asked = forms(ours, 1, 1)
    want = ours.query(alone, asked).best
    lo[0], hi[0] = -float("inf"), float("inf")
    found = ours.refine(lo, hi)
    assert asked.constant is not None
    both = Forms(torch.tensor([0] * 3 + [1] * 3), asked.over_output.repeat(2, 1), constant=asked.constant.repeat(2))
    got = ours.query(found, both).best
    assert (got[:3] == -float("inf")).all() and close(got[3:], want, 1e-5)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", [*range(6), -1])
def test_kernels_bound_as_the_oracle_does(seed: int) -> None:
    """Real semantics, float64 coefficients: DeepPoly's margins to 1e-6."""
    net = toy_dense() if seed < 0 else random_net(seed, scale="normal", limit=60, steps=5, image=seed % 2 == 0)
    ours, _ = engines(compile_net(net), dtype="float64", semantics="real", early=False)
    lo, hi = boxes(net, 7, 1)
    found = ours.refine(lo, hi)
    asked = forms(ours, 3, 1)
    asked.constant = None
    got = ours.query(found, asked).best.numpy()
    reference = fold_net(net)
    shape = random_box(np.random.default_rng(0), net, "zero")[0].shape[1:]
    poly = DeepPoly(reference, "all", early=False)
    result = poly.bounds(lo[0].numpy().reshape(shape), hi[0].numpy().reshape(shape))
    want, mass = poly.margins(result, asked.over_output.numpy())
    assert (np.abs(got - want) <= 1e-6 * np.abs(want) + 1e-9 * mass + 1e-12).all(), (got, want)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["digits_conv_normal", "digits_resnet_normal"])
def test_examples(model: str) -> None:
    compiled = compile_net(load_onnx(EXAMPLES / f"{model}.onnx").net)
    images = torch.from_numpy(np.load(EXAMPLES / "digits.npz")["images"][:2]).double().reshape(2, -1)
    ours, theirs = engines(compiled, dtype="float64")
    lo, hi = (images - 0.003).clamp(min=0), (images + 0.003).clamp(max=1)
    a, b = ours.refine(lo, hi), theirs.refine(lo, hi)
    same_boxes(compiled.net, a, b, "float64")
    same_results(ours.query(a, forms(ours, 1, 2)), theirs.query(a, forms(ours, 1, 2)), "float64")


def numbered(net: Net) -> Net:
    """The same network whose nodes are called 2, 3, 4 and so on, as exporters call them."""
    to = {f"%{n.name}": f"%{k}" for k, n in enumerate(net.nodes[1:], 2)}
    return parse_net(re.sub(r"%\w+", lambda m: to.get(m[0], m[0]), print_net(net)), net.weights)


def test_names_that_are_numbers_change_nothing() -> None:
    """What a launch reads of a node called 4 is no row array of state 4."""
    named, found = toy_dense(), []
    for net in (named, numbered(named)):
        engine = Engine(compile_net(net, "all"), dtype="float64", semantics="real", kernels="interpret")
        assert engine.net.output == ("linear_2" if net is named else "6")
        refined = engine.refine(*boxes(net, 3, 2))
        found.append([engine.query(refined, forms(engine, 4, 2)).best, *refined.lo.values(), *refined.hi.values()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
