"""The synthetic networks of the benches: the paper's shapes, the promised share of unstable neurons, and no trouble compiling them."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import polytriton
from bench import zoo
from polytriton.frontend.onnx import cross_check, load_onnx
from polytriton.ir import interp
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from tests.processes import plain_environment

ROOT = Path(__file__).parents[2]
SMALL = ("mnist-6x500", "mnist-convbig")
ALL = [pytest.param(n, marks=() if n in SMALL else pytest.mark.slow) for n in zoo.NETS]
# exact counts; the paper prints thousands, some cut off and some rounded
COUNTS = {
    "mnist-6x500": 3010,
    "cifar-6x500": 3010,
    "mnist-convbig": 48074,
    "cifar-convbig": 62474,
    "mnist-convsuper": 88554,
    "mnist-ibplarge": 176138,
    "cifar-convlarge": 229898,
    "cifar-ibplarge": 229898,
    "resnettiny": 311806,
    "resnet18": 558090,
    "skipnet18": 558090,
    "resnet34": 967690,
}


@lru_cache(maxsize=4)  # a hundred megabytes each
def built(name: str, kind: zoo.Kind) -> bytes:
    return bytes(zoo.build(name, kind).SerializeToString())


def ball(name: str, kind: zoo.Kind, count: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = zoo.image(name, count=count).astype(np.float64).reshape(count, -1)
    eps = float(zoo.EPS[name, kind])
    return x, np.clip(x - eps, 0, 1), np.clip(x + eps, 0, 1)


# ---- shapes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", zoo.NETS)
def test_the_neurons_are_as_many_as_the_paper_prints(name: str) -> None:
    count, printed = zoo.neurons(zoo.network(name)), zoo.NETS[name][2]
    assert count == COUNTS[name]
    assert printed in ({f"{count // 1000}K", f"{round(count / 1000)}K"} if printed.endswith("K") else {f"{count:,}"})


@pytest.mark.parametrize("name", ALL)
def test_the_onnx_graph_has_as_many(name: str) -> None:
    """Counted anew, from the shapes that ONNX infers."""
    model = onnx.ModelProto.FromString(built(name, "normal"))
    onnx.checker.check_model(model)
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    size = {v.name: int(np.prod([d.dim_value for d in v.type.tensor_type.shape.dim])) for v in [*graph.value_info, *graph.output]}
    assert sum(size[n.input[0]] for n in graph.node if n.op_type == "Relu") + size["output"] == COUNTS[name]
    assert {n.op_type for n in graph.node} <= {"Conv", "Relu", "Gemm", "Add", "Flatten"}
    assert len({n.name for n in graph.node}) == len(graph.node)


@pytest.mark.parametrize("name, adds, projections", [("resnettiny", 5, 5), ("resnet18", 8, 3), ("skipnet18", 3, 3), ("resnet34", 16, 3)])
def test_residual_networks_have_their_shortcuts(name: str, adds: int, projections: int) -> None:
    layers = zoo.network(name)
    assert sum(n.op == "add" for n in layers) == adds
    assert sum(n.op == "conv" and n.weight[2:] == (1, 1) for n in layers) == projections


# ---- weights ------------------------------------------------------------------------------------------------


def test_a_seed_decides_everything() -> None:
    for kind in zoo.KINDS:
        first, again, other = (zoo.weights("mnist-convbig", kind, seed) for seed in (0, 0, 1))
        assert all((a == b).all() for k in first for a, b in zip(first[k], again[k], strict=True))
        assert all((first[k][0] != other[k][0]).any() for k in first)
    some, more = zoo.image("resnet18", count=2), zoo.image("resnet18", count=5)
    assert (more[:2] == some).all() and some.min() >= 0 and some.max() < 1 and some.std() > 0.25


def test_normal_weights_keep_the_scale_of_he() -> None:
    for n in zoo.network("cifar-convbig"):
        weight, bias = zoo.weights("cifar-convbig", "normal")[n.name]
        assert weight.std() * np.sqrt(np.prod(n.weight[1:]) / 2) == pytest.approx(1, rel=0.1)
        assert 0.01 < bias.std() < 0.1


def undecided(name: str, kind: zoo.Kind, count: int) -> np.ndarray:
    """What polytriton's interval pass leaves open, [ReLUs, images]."""
    compiled = compile_net(load_onnx(built(name, kind)).net)
    boxes = Engine(compiled, semantics="real").interval(*(torch.from_numpy(b) for b in ball(name, kind, count)[1:]))
    targets = [n.inputs[0] for n in compiled.net if n.op == "relu"]
    return np.array([((boxes.lo[t] < 0) & (boxes.hi[t] > 0)).sum((1, 2, 3)).numpy() for t in targets])


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(n, marks=pytest.mark.slow) for n in ("resnettiny", "resnet34"))])
def test_robust_networks_keep_the_promised_share_unstable(name: str) -> None:
    """On the published image and on others, in every layer."""
    found = undecided(name, "robust", 6)
    share = found.sum(0) / COUNTS[name]
    assert zoo.ALLOWED[0] <= share.min() <= share.max() <= zoo.ALLOWED[1], share
    sizes = np.array([n.size for n in zoo.network(name) if n.relu])
    layers = found.mean(1) / sizes
    assert 0.002 < layers.min() <= layers.max() < 0.05, layers


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, kind",
    [
        ("mnist-convbig", "normal"),
        ("resnettiny", "robust"),
        ("resnet34", "normal"),  # its intervals exceed float32
        ("resnet34", "robust"),
    ],
)
def test_the_bench_counts_unstable_neurons_as_polytriton_does(name: str, kind: zoo.Kind) -> None:
    theirs = undecided(name, kind, 2).mean(1)
    ours = zoo.unstable(name, zoo.weights(name, kind), float(zoo.EPS[name, kind]), zoo.image(name, count=2))
    assert len(ours) == len(theirs)
    for layer, want in zip((n for n in zoo.network(name) if n.relu), theirs, strict=True):
        assert ours[layer.name] == pytest.approx(want, abs=0.5 + 1e-4 * layer.size), layer.name


@pytest.mark.parametrize("name", SMALL)
def test_robust_networks_need_back_substitution_and_no_more(name: str) -> None:
    """No margin is decided by intervals and all by DeepPoly: a bench of the robust kind measures a proof."""
    v = polytriton.compile(built(name, "robust"), check=False)
    x, lo, hi = ball(name, "robust")
    out = interp.run(v.net, x)[0]
    label = int(out.argmax())
    forms = np.delete(np.eye(10)[label] - np.eye(10), label, axis=0)
    boxes = Engine(v.compiled).interval(torch.from_numpy(lo), torch.from_numpy(hi))
    low, high = (d[v.net.output].flatten().numpy() for d in (boxes.lo, boxes.hi))
    assert (low[label] < np.delete(high, label)).all()
    margins = np.asarray(v.margins(lo, hi, forms)).ravel()
    assert (margins > 0).all() and (margins <= forms @ out).all()


# ---- polytriton ---------------------------------------------------------------------------------------------


def test_onnxruntime_agrees_with_the_interpreter() -> None:
    for kind in zoo.KINDS:
        assert cross_check(load_onnx(built("mnist-6x500", kind))) <= 0.51


@pytest.mark.parametrize("kind", zoo.KINDS)
@pytest.mark.parametrize("name", ALL)
def test_every_network_compiles(name: str, kind: zoo.Kind) -> None:
    v = polytriton.compile(built(name, kind))  # with the import check
    assert v.input_shape == zoo.NETS[name][0] and v.outputs == 10
    bounded = {p.target for p in v.compiled.plan if p.kind == "bound"}
    relus = sum(n.relu for n in zoo.network(name))
    assert len(bounded) == relus - 1, "the first ReLU's input has exact interval bounds"


SCRIPT = """
import sys, time
import polytriton, polytriton.api
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 2**10
base, start = peak(), time.perf_counter()
polytriton.compile(sys.argv[1])
print(peak() - base, time.perf_counter() - start)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_the_largest_compiles_in_a_gigabyte_and_a_half(tmp_path: Path) -> None:
    """0.9 GiB and 2.4 s were measured, the import check included; the file has 103 MB."""
    model = tmp_path / "resnet34.onnx"
    model.write_bytes(built("resnet34", "robust"))
    env = plain_environment(OMP_NUM_THREADS="1")
    out = subprocess.run([sys.executable, "-c", SCRIPT, str(model)], env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    mib, seconds = (float(v) for v in out.stdout.split())
    assert 100 < mib < 1536 and seconds < 60, f"{mib:.0f} MiB, {seconds:.1f} s"


# ---- command ------------------------------------------------------------------------------------------------


def test_the_command_writes_networks_and_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["zoo", "--out", str(tmp_path / "nets"), "--nets", "mnist-6x500", "--kinds", "robust", "--stats"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--dry"])
    assert zoo.main() == 0 and not (tmp_path / "nets").exists()
    dry = capsys.readouterr()
    monkeypatch.setattr(sys, "argv", arguments)
    assert zoo.main() == 0
    assert sorted(p.name for p in (tmp_path / "nets").iterdir()) == ["mnist-6x500-robust.onnx", "mnist-6x500.npy"]
    assert (tmp_path / "nets" / "mnist-6x500-robust.onnx").read_bytes() == built("mnist-6x500", "robust")
    x = np.load(tmp_path / "nets" / "mnist-6x500.npy")
    assert x.shape == (1, 1, 28, 28) and x.dtype == np.float32 and (x == zoo.image("mnist-6x500")).all()
    got = capsys.readouterr()
    assert got.out == dry.out
    assert [line.split()[0] for line in got.out.splitlines()] == [f"fc{i}" for i in range(1, 7)]
    assert "3,010 neurons, eps 8/255" in got.err


def test_radii_are_the_papers() -> None:
    third, small, large = Fraction(3, 10), Fraction(1, 500), Fraction(8, 255)
    for kind in zoo.KINDS:
        assert zoo.radii("mnist-convbig", kind) == (third,)
        assert zoo.radii("cifar-6x500", kind) == (small,)
        assert zoo.radii("mnist-ibplarge", kind) == (Fraction("0.258"), third)
        assert zoo.radii("cifar-ibplarge", kind) == (large, Fraction(2, 255))
    assert (zoo.radii("resnettiny", "normal"), zoo.radii("resnettiny", "robust")) == ((small,), (large,))
    assert (zoo.radii("resnet18", "normal"), zoo.radii("resnet18", "robust")) == ((small,), (large,))
