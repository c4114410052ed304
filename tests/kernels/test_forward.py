"""The interval pass's kernels: against the tensor form, against exact ranges, on boxes that are no boxes, and as machine code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polytriton import rounding
from polytriton.errors import KernelError
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.launches import Kernel
from polytriton.ir.net import Attr, Builder, Net
from polytriton.kernels.affine import choose, count_source
from polytriton.kernels.build import check, compile_all, triton_version
from polytriton.kernels.catalogue import make_kernel
from polytriton.kernels.header import source
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import AffineParts, Boxes
from polytriton.runtime.gpu.places import Places
from polytriton.runtime.gpu.queries import _align
from polytriton.runtime.layers import Layer, from_physical, load_layer, to_physical
from polytriton.runtime.soundness import SEMANTICS, deployed_error, gamma
from tests.kernels.nodes import NodeRun
from tests.oracle.exact import Dyadic, terms

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
CPU, INF = torch.device("cpu"), float("inf")
EXAMPLES = Path(__file__).parents[2] / "examples"
U64, TINY = 2.0**-53, 2e-300
KINDS = ("ordinary", "point", "settled", "subnormal", "huge", "holes")


@dataclass(frozen=True)
class Case:
    """A network of one layer, and boxes [batch, *shape] of its input."""

    net: Net
    lo: np.ndarray
    hi: np.ndarray
    semantics: str = "real"

    @property
    def layer(self) -> Layer:
        return load_layer(self.net, self.net.nodes[1], CPU)

    def boxes(self, kernels: bool) -> Boxes:
        run = NodeRun(self.net, self.semantics)
        boxes = run.forward.start(*(torch.from_numpy(v).reshape(len(v), -1) for v in (self.lo, self.hi)))
        (run if kernels else run.forward).transfer(self.net.nodes[1], boxes)
        return boxes


def one_layer(
    op: str,
    shape: tuple[int, ...],
    outputs: int,
    k: tuple[int, ...] = (1, 1),
    g: int = 1,
    seed: int = 0,
    cancelled: bool = False,
    **attrs: Attr,
) -> Net:
    """float32 weights, some of them zero, or float64 ones far from 1."""
    rng = np.random.default_rng(seed)
    size = (outputs, int(np.prod(shape))) if op == "linear" else (outputs, shape[0] // g, *k)
    w = np.where(rng.random(size) < 0.2, 0.0, rng.standard_normal(size)).astype(np.float32)
    if seed % 5 == 4:
        w = w.astype(np.float64) * 2.0 ** rng.integers(-300, 60, size)
    b = Builder("layer")
    x = b.input(shape)
    if cancelled:
        attrs = {"wabs": b.constant(np.abs(w) * (1 + rng.integers(0, 4, size))), **attrs}
    if op == "conv":
        attrs = {"k": k, "g": g, **attrs}
    return b.build(b.add(op, (x,), w=b.constant(w), b=b.constant(rng.standard_normal(outputs).astype(np.float32)), **attrs))


def box(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> tuple[np.ndarray, np.ndarray]:
    x, r = rng.standard_normal(shape), rng.random(shape)
    if kind == "point":
        r = np.zeros(shape)
    elif kind == "settled":
        gone = rng.random(shape) < 0.5
        x, r = np.where(gone, 0.0, np.abs(x) + r), np.where(gone, 0.0, r)
    elif kind == "subnormal":
        x, r = (rng.integers(-4, 5, shape) * 5e-324, rng.integers(0, 3, shape) * 5e-324)
    elif kind == "huge":
        scale = 2.0 ** rng.choice([0, 500, 1010, 1022], shape)
        x, r = x * scale, r * scale
    lo, hi = x - r, x + r
    if kind == "holes":
        broken = rng.random(shape) < 0.1
        lo = np.where(broken, rng.choice([-INF, INF, np.nan, 0.0], shape), lo)
        hi = np.where(broken, rng.choice([-INF, INF, np.nan, 0.0], shape), hi)
    return lo, hi


@st.composite
def cases(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> Case:
    seed, batch = draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, 3))
    # a layer may give its count of summands; others count the operands that are present, and real semantics counts none
    more: dict[str, Attr] = {"summands": 7} if draw(st.booleans()) else {}
    cancelled, small = draw(st.booleans()), st.integers(1, 3)
    if draw(st.integers(0, 3)) == 0:
        shape: tuple[int, ...] = draw(st.sampled_from([(1,), (5,), (37,), (3, 2, 2)]))
        net = one_layer("linear", shape, draw(st.sampled_from((1, 6, 33))), seed=seed, cancelled=cancelled, **more)
    else:
        k, s, d = ((draw(small), draw(small)) for _ in range(3))
        p = tuple(draw(st.sampled_from((0, 0, 1, 2, -1))) for _ in range(4))
        h, w = (max(1, (k[i] - 1) * d[i] + 1 - p[i] - p[2 + i], 1 - p[i], 1 - p[2 + i]) + draw(st.integers(0, 3)) for i in (0, 1))
        c = draw(st.sampled_from((1, 3, 17, 4, 6)))
        g = draw(st.sampled_from((1, 1, c, {4: 2, 6: 3}.get(c, 1))))
        outputs = g * draw(st.sampled_from((1, 2, 5))) if g > 1 else draw(st.sampled_from((1, 4, 34)))
        net = one_layer("conv", (c, h, w), outputs, k, g, seed, cancelled, s=s, d=d, p=p, **more)
    lo, hi = box(np.random.default_rng(seed), (batch, *net.input.shape), draw(st.sampled_from(kinds)))
    return Case(net, lo, hi, draw(st.sampled_from(("real", "float32", "float16"))))


def parts(case: Case) -> tuple[AffineParts, AffineParts]:
    """By the kernel and by tensor operations."""
    layer, run = case.layer, NodeRun(case.net, case.semantics)
    lo, hi = (to_physical(torch.from_numpy(v), case.net.input.shape) for v in (case.lo, case.hi))
    mid = 0.5 * lo + 0.5 * hi
    rad = torch.maximum(hi - mid, mid - lo) * rounding.GROW
    name, counted = case.net.input.name, count_source(layer.node, run.forward.semantics.real)
    made = run.sums(layer.node, Boxes({name: lo}, {name: hi}))
    return made, run.forward._parts(layer, mid, torch.cat([rad, mid.abs() + rad]), counted)


def near(a: Tensor, b: Tensor, room: Tensor | float) -> bool:
    """Equal to within `room` wherever it is finite."""
    return bool((((a - b).abs() <= room) | ~torch.isfinite(torch.as_tensor(room))).all())


# ---- against the tensor form ----------------------------------------------------------------------------------------


@given(cases())
@settings(max_examples=50)
def test_parts_are_those_of_the_tensor_form(case: Case) -> None:
    got, want = parts(case)
    for a, b in ((got.spread, want.spread), (got.magnitude, want.magnitude)):
        assert a.shape == b.shape and a.dtype == torch.float64
        assert (torch.isfinite(a) == torch.isfinite(b)).all()
        assert near(a, b, 2.0**-40 * b + TINY)
    assert got.centre.shape == want.centre.shape
    assert near(got.centre, want.centre, 2 * gamma(case.layer.terms + 4, U64) * (want.magnitude + case.layer.babs) + TINY)
    assert (got.terms is None) == (want.terms is None) == (case.semantics == "real")
    if got.terms is not None and want.terms is not None:
        assert torch.equal(got.terms.expand_as(got.centre), want.terms.expand_as(got.centre))


@given(cases())
@settings(max_examples=25)
def test_boxes_are_those_of_the_tensor_form(case: Case) -> None:
    name, layer = case.net.output, case.layer
    got, want = case.boxes(True), case.boxes(False)
    error = got.error.get(name, torch.zeros_like(want.error[name]))  # exact arithmetic has none
    assert (name in got.error) == (case.semantics != "real")
    room = 4 * gamma(layer.terms + 4, U64) * (want.magnitude[name] + layer.babs) + 2.0**-40 * want.error[name] + TINY
    for a, b in ((got.lo[name], want.lo[name]), (got.hi[name], want.hi[name])):
        assert not torch.isnan(a).any()
        assert (torch.isfinite(a) == torch.isfinite(b)).all()
        assert near(a, b, torch.where(torch.isfinite(b), room, INF))
    assert near(error, want.error[name], 2.0**-30 * want.error[name])


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize(("given", "counted"), [({}, 3), ({"summands": 5}, 5), ({"summands": 100}, 100)])
def test_rounding_is_charged_for_the_operands_that_take_part(given: dict[str, int], counted: int, kernels: bool) -> None:
    """Two of five operands are exactly zero: they round nothing, unless the deployed sum has constants there, or more summands."""
    net, sem = one_layer("linear", (5,), 3, **given), SEMANTICS["float32"]
    case = Case(net, np.array([[0.0, -1, 0, 2, 1]]), np.array([[0.0, 1, 0, 3, 1]]), sem.name)
    assert case.layer.most == max(5, counted), "terms that may each flush an operand"
    boxes, layer, name = case.boxes(kernels), case.layer, net.output
    magnitude, widest = boxes.magnitude[name], torch.full((1, 1, 1, 1), 3.0, dtype=torch.float64)
    nonzero = torch.tensor(float(counted), dtype=torch.float64)
    want = deployed_error(sem, layer.most, nonzero, layer.ops, 1, magnitude, layer.babs, widest, layer.w_rowsum, None, layer.w_max)
    assert near(boxes.error[name], want, 1e-9 * want)


def test_a_given_count_is_of_its_own_layer_and_batch() -> None:
    """Counts stay where they are: one an image, or a cell and group of a convolution; another layer or batch must not find them."""
    b = Builder("two")
    y = b.add("linear", (b.input((3,)),), w=b.constant(np.ones((2, 3))), b=b.constant(np.zeros(2)), summands=7)
    net = b.build(b.add("linear", (y,), w=b.constant(np.ones((2, 2))), b=b.constant(np.zeros(2)), summands=9))
    run = NodeRun(net, "float32")
    for batch in (1, 2):
        places = Places(run.backend, batch)
        for name, count in ((y, 7), (net.output, 9)):
            got = places.tensor(f"given:{name}")
            assert got.shape == (batch,) and (got == count).all()
    grouped = one_layer("conv", (4, 5, 5), 4, (3, 3), 2, summands=8)
    got = Places(NodeRun(grouped, "float32").backend, 3).tensor(f"given:{grouped.output}")
    assert got.shape == (3 * 3 * 3 * 2,) and (got == 8).all()


# ---- against exact numbers ------------------------------------------------------------------------------------------


def exact_range(case: Case) -> tuple[Dyadic, Dyadic]:
    """The least and the greatest value of every output over the box, each taken at a corner; [batch, outputs]."""
    t, ends = terms(case.net, case.net.nodes[1]), [Dyadic.of(v.reshape(len(v), -1)) for v in (case.lo, case.hi)]
    top = max(e.exp for e in ends)
    lo, hi = (np.where(t.cell >= 0, e.to(top)[:, np.maximum(t.cell, 0)], 0) for e in ends)
    w, b = Dyadic.of(t.weight), Dyadic.of(t.bias)
    exp = max(w.exp + top, b.exp)
    least, most = (((np.where(w.num >= 0, p, q) * w.num).sum(axis=-1) << (exp - w.exp - top)) + b.to(exp) for p, q in ((lo, hi), (hi, lo)))
    return Dyadic(least, exp), Dyadic(most, exp)


@given(cases(tuple(k for k in KINDS if k != "holes")))
@settings(max_examples=40)
def test_boxes_hold_the_exact_range_and_little_more(case: Case) -> None:
    boxes, name = case.boxes(True), case.net.output
    least, most = exact_range(case)
    shape, size = case.net.nodes[1].shape, (boxes.batch, -1)
    none = {name: torch.zeros_like(boxes.lo[name])} if case.semantics == "real" else boxes.error
    lo, hi, magnitude, e = (from_physical(d[name], shape).reshape(size).numpy() for d in (boxes.lo, boxes.hi, boxes.magnitude, none))
    assert (lo <= least.down()).all() and (most.up() <= hi).all()
    babs = np.abs(terms(case.net, case.net.nodes[1]).bias)
    room = (2.0**-32 + 4 * gamma(case.layer.terms + 4, U64)) * (magnitude + babs + e) + e + TINY
    limited = np.isfinite(room)
    assert (np.isfinite(lo) & np.isfinite(hi))[limited].all()
    assert ((least.nearest() - lo) <= room)[limited].all() and ((hi - most.nearest()) <= room)[limited].all()


def test_a_reader_of_something_unbounded_has_no_bound() -> None:
    """One cell of the first image is broken; the outputs that read it, all channels of its group, and no others lose their bounds."""
    net = one_layer("conv", (4, 5, 5), 4, (3, 3), 2, s=(2, 1), p=(1, 0, 0, 1))
    for lo, hi in ((-INF, INF), (-INF, 1.0), (1.0, INF), (INF, INF), (np.nan, 1.0), (0.0, np.nan)):
        case = Case(net, np.zeros((2, 4, 5, 5)), np.ones((2, 4, 5, 5)), "float32")
        case.lo[0, 3, 2, 2], case.hi[0, 3, 2, 2] = lo, hi
        got, want = parts(case)
        assert got.terms is not None and want.terms is not None and torch.equal(got.terms, want.terms)
        boxes = replace(case, semantics="real").boxes(True)  # deployed, an operand that may overflow leaves no output of its image a bound
        low, high = (from_physical(d[net.output], (4, *net.nodes[1].shape[1:])) for d in (boxes.lo, boxes.hi))
        reads = torch.zeros(low.shape, dtype=torch.bool)
        reads[0, 2:, 1:2, 0:3] = True  # rows 1 to 3 of the image under output row 1, columns x to x + 2 under output column x
        assert (torch.isneginf(low) == reads).all() and (torch.isposinf(high) == reads).all()


def test_sums_keep_their_enlargement() -> None:
    """GROW is no float32 number: had it become one, both sums would be exact."""
    b = Builder("one")
    net = b.build(b.add("linear", (b.input((1,)),), w=b.constant(np.ones((1, 1))), b=b.constant(np.zeros(1))))
    got, _ = parts(Case(net, np.full((1, 1), -1.0), np.full((1, 1), 1.0), "float32"))
    assert got.terms is not None and got.terms.item() == 1
    assert got.centre.item() == 0 and got.spread.item() == got.magnitude.item() == rounding.GROW * rounding.GROW
    kernel = kernel_of(net, "none")
    assert "GROW = tl.constexpr(1 + 2.0**-34)" in source(kernel) and rounding.GROW == 1 + 2.0**-34


def test_slices_of_a_batch_start_where_wide_loads_may() -> None:
    batch = torch.arange(9, dtype=torch.float64).reshape(3, 3)
    assert batch[1:].data_ptr() % 16 != batch.data_ptr() % 16
    for some in (batch, batch[1:], batch.T):
        assert _align(some).data_ptr() % 16 == 0 and torch.equal(_align(some), some) and _align(some).is_contiguous()


def kernel_of(net: Net, counted: str, cancelled: bool = False, emulate: bool = False) -> Kernel:
    """Of the only layer."""
    made = choose(net.nodes[1], net.input, cancelled, counted, emulate)
    return make_kernel(made.function, tuple(sorted(made.constants.items())), "float64", made.tiles.warps, made.tiles.stages)


# ---- whole networks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["digits_conv_normal", "digits_resnet_normal"])
def test_the_interval_pass_of_the_examples(model: str) -> None:
    """The same bounds to far less than the reported errors."""
    images = torch.from_numpy(np.load(EXAMPLES / "digits.npz")["images"][:2]).double().reshape(2, -1)
    compiled = compile_net(load_onnx(EXAMPLES / f"{model}.onnx").net)
    net, (ours, theirs) = compiled.net, (Engine(compiled, dtype="float64", kernels=k) for k in ("interpret", ""))
    a, b = (e.interval((images - 0.01).clamp(min=0), (images + 0.01).clamp(max=1)) for e in (ours, theirs))
    layers = [n.name for n in net if n.op in ("linear", "conv")]
    assert layers and a.error.keys() == b.error.keys() and set(layers) <= a.error.keys()
    for name in a.error:
        assert torch.isfinite(b.lo[name]).all() and (b.lo[name] < b.hi[name]).any()
        for got, want in ((a.lo[name], b.lo[name]), (a.hi[name], b.hi[name]), (a.error[name], b.error[name])):
            assert near(got, want, 1e-6 * b.error[name])
    assert ours.kernels is not None
    launched = [e.launch for e in ours.kernels.script.sections["interval"] if e.launch and e.launch.function.startswith("forward_")]
    names = {launch.kernel.name for launch in launched}
    assert len(launched) == len(layers)
    assert (len(names) < len(layers)) == (model == "digits_resnet_normal")  # layers of one shape share a kernel


# ---- machine code ---------------------------------------------------------------------------------------------------


def some_kernels() -> Iterator[Kernel]:
    for net, cancelled, counted in (
        (one_layer("conv", (64, 16, 16), 64, (3, 3), p=(1, 1, 1, 1)), False, "present"),
        (one_layer("conv", (17, 9, 9), 34, (3, 3), s=(2, 2), d=(2, 1)), True, "present"),
        (one_layer("conv", (6, 8, 8), 9, (3, 3), 3, p=(0, 2, 1, 0)), False, "all"),
        (one_layer("linear", (784,), 500), False, "none"),
    ):
        yield kernel_of(net, counted, cancelled)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_machine_code_multiplies_on_tensor_cores_and_spills_nothing(target: str, tmp_path: Path) -> None:
    try:
        triton_version()
    except KernelError as error:
        pytest.skip(error.message)
    kernels = list(some_kernels())
    assert all(k.instruction == "DMMA" for k in kernels)
    check([m.report for m in compile_all(kernels, target, cache=tmp_path, jobs=1)], kernels)
