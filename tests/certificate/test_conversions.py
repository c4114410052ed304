"""Certificates of tf32, bf16 and float16 executions: what layers convert, and what tensor cores round."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import polytriton
from polytriton import checker
from polytriton.errors import UnsupportedModel
from tests.certificate.deployed import LOST, MODES, Machine
from tests.certificate.models import NODE, bounded, certify, change, dense, model, prop, refused

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # `check` runs with numpy's errors ignored
CONVERTING = ("tf32", "bf16", "float16")
UNIT = {"tf32": 2.0**-10, "bf16": 2.0**-7, "float16": 2.0**-10}
LADDER = ("real", "float32", "tf32", "bf16")  # each of these may err further than those before


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Of few magnitudes or of many, subnormal in float16 and in float32, some of them zero."""
    w = rng.normal(size=shape) * 2.0 ** rng.integers(-18, 2, shape if rng.random() < 0.5 else ())
    w = np.where(rng.random(shape) < 0.1, w * 2.0**-120, w)
    return np.asarray(np.where(rng.random(shape) < 0.1, 0, w), np.float32)


def network(rng: np.random.Generator, path: Path, kind: str) -> tuple[Path, int]:
    """A file, and how many inputs it has."""
    if kind == "dense":
        sizes = [int(n) for n in rng.integers(1, 6, 4)]
        return dense(path, [(weights(rng, m, n), weights(rng, m)) for n, m in pairwise(sizes)]), sizes[0]
    shapes = {"w": (3, 4), "b": (3,), "v": (3, 3), "c": (3,), "a": (3,)}
    if kind != "merged":
        shapes = {"w": (2, 1, 2, 2), "b": (2,), "v": (2, 2, 3, 3), "c": (2,), "o": (2, 18)}
    held: dict[str, Any] = {name: weights(rng, *shape) for name, shape in shapes.items()}
    if kind == "merged":
        nodes = [NODE("MatMul", ["x", "w"], ["p"]), NODE("Add", ["p", "b"], ["q"]), NODE("Relu", ["q"], ["r"])]
        nodes += [NODE("Mul", ["r", "a"], ["s"]), NODE("Gemm", ["s", "v", "c"], ["t"]), NODE("Gemm", ["t", "v"], ["y"])]
        held["w"] = held["w"].T
        return model(path, nodes, [1, 4], held), 4
    first = [NODE("Conv", ["x", "w", "b"], ["p"]), *([] if kind == "apart" else [NODE("Relu", ["p"], ["q"])])]
    second = [NODE("Conv", ["p" if kind == "apart" else "q", "v", "c"], ["r"], pads=[1, 1, 1, 1])]
    second += [] if kind == "apart" else [NODE("Add", ["r", "q"], ["s"])]
    last = [NODE("Relu", ["r" if kind == "apart" else "s"], ["t"]), NODE("Flatten", ["t"], ["f"])]
    return model(path, [*first, *second, *last, NODE("Gemm", ["f", "o"], ["y"], transB=1)], [1, 1, 4, 4], held), 16


@pytest.mark.thinned(5)
@pytest.mark.parametrize("semantics", CONVERTING)
@pytest.mark.parametrize("kind", ["dense", "merged", "residual", "apart"])
def test_no_execution_lies_outside_of_what_is_said(tmp_path: Path, kind: str, semantics: str) -> None:
    """Of nodes and of outputs, whatever is up, down, flushed, and in which order sums are made."""
    if (kind, semantics) == ("merged", "float16"):
        return
    for seed in range(12 if kind in ("dense", "merged") else 4):
        rng = np.random.default_rng([seed, *semantics.encode()])
        path, inputs = network(rng, tmp_path / "n.onnx", kind)
        held, shape = onnx.load(path), (1, inputs) if kind in ("dense", "merged") else (1, 1, 4, 4)
        x = (rng.normal(size=inputs) * 2.0 ** rng.integers(-16, 3)).astype(np.float32)
        wide = [Fraction(v) + d * int(rng.integers(2)) / 2**12 for v in x.tolist() for d in (-1, 1)]
        prover = checker.Prover(path.read_bytes(), semantics)
        boxes, _ = prover.bound([prover.root((tuple(wide[::2]), tuple(wide[1::2])), [0])], seed % 3 - 1)
        rows = [({~j: Fraction(sign)}, Fraction(0)) for j in range(prover.net.sizes[prover.net.output]) for sign in (1, -1)]
        least, _ = boxes.margins(prover.draft, rows, np.zeros(len(rows), dtype=np.int64), 1)
        for turn in range(24):
            machine = Machine(semantics, rng, MODES[turn % 4], flush=bool(turn // 4 % 2))
            handed, y = machine.run(held, x.reshape(shape))
            for values, (low, high, _) in zip(handed, boxes.z.values(), strict=True):
                assert (low[:, 0] <= values).all() and (values <= high[:, 0]).all()
            for (row, _), bound in zip(rows, least, strict=True):
                assert bound <= sum(c * Fraction(float(y[~v])) for v, c in row.items())


def reach(path: Path, semantics: str, at: np.ndarray) -> tuple[float, float]:
    """Between which numbers every execution's output lies."""
    column = np.asarray(at, np.float64).reshape(-1, 1)
    boxes = bounded(checker.Boxes(checker.Network(path.read_bytes()), column, column, semantics))
    out = boxes.net.output
    e = boxes.execution_error(out)
    return float((boxes.lo[out] - e).max()), float((boxes.hi[out] + e).min())


@pytest.mark.parametrize("semantics", CONVERTING)
@pytest.mark.parametrize("kind", ["dense", "conv"])
@pytest.mark.parametrize("layers", [1, 2])
def test_conversions_are_charged_what_they_do(tmp_path: Path, semantics: str, kind: str, layers: int) -> None:
    """Weights and operands that all move by a unit, to one side; and little more is charged."""
    if layers == 2 and (semantics, kind) == ("float16", "dense"):
        return
    unit = UNIT[semantics]
    for mode, edge in (("down", 1 + unit - 2.0**-22), ("up", 1 + 2.0**-22)):
        w, last = np.full((1, 1, 1, 1), edge), "x"
        nodes = []
        for k in range(layers):
            name = f"h{k}" if k + 1 < layers else "y"
            nodes.append(NODE("Conv", [last, "w"], [name]) if kind == "conv" else NODE("Gemm", [last, "w"], [name]))
            last = name
        path = model(tmp_path / "n.onnx", nodes, [1, 1, 1, 1] if kind == "conv" else [1, 1], {"w": w if kind == "conv" else w[0, 0]})
        x = np.full((1, 1, 1, 1) if kind == "conv" else (1, 1), edge, np.float32)
        runs = [Machine(semantics, np.random.default_rng(k), mode, flush=False).run(onnx.load(path), x)[1] for k in range(8)]
        low, high = reach(path, semantics, x)
        reached = min(map(float, map(np.min, runs))) if mode == "down" else max(map(float, map(np.max, runs)))
        exact, end = float(x.ravel()[0]) ** (layers + 1), low if mode == "down" else high
        assert low <= reached <= high
        assert abs(exact - reached) > layers * unit
        room = 1 + 4 * unit if layers == 1 else 1.5  # what the second layer gets is near a number that no conversion moves
        assert abs(exact - end) < abs(exact - reached) * room + (2.0**-10 if semantics == "float16" else 2.0**-18)


@pytest.mark.parametrize("semantics", CONVERTING)
def test_tensor_cores_round_more_often_than_plain_sums(tmp_path: Path, semantics: str) -> None:
    """Four addends and the sum, aligned and cut off: five roundings of one unit for four products."""
    n = 1 << 12
    path, one = dense(tmp_path / "n.onnx", [(np.ones((1, n)), np.zeros(1))]), np.ones((n, 1))
    boxes = bounded(checker.Boxes(checker.Network(path.read_bytes()), one, one, semantics))
    u = Fraction(UNIT[semantics])
    more = (1 + u) ** 2 * (1 + Fraction(5, 4) * n * Fraction(1, 2**23)) - 1
    assert Fraction(float(boxes.E[1].min())) >= n * more


# ---- float16's range -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1e-9, 4e-8, 3.1 * 2.0**-24, 6e-5])
@pytest.mark.parametrize("of", ["weight", "operand"])
def test_what_float16_flushes_or_rounds_up_is_paid(tmp_path: Path, weight: float, of: str) -> None:
    """To zero, or to its smallest number, where it meets a large one."""
    small, large = np.float32(weight), np.float32(60000)
    path = dense(tmp_path / "n.onnx", [(np.array([[small if of == "weight" else large]]), np.zeros(1))])
    x = np.array([[large if of == "weight" else small]], np.float32)
    low, high = reach(path, "float16", x)
    up = float(Machine("float16", np.random.default_rng(0), "up", flush=False).run(onnx.load(path), x)[1][0])
    assert low <= 0 < up <= high and high < 4 * max(up, float(small) * 60000)
    for turn in range(20):
        machine = Machine("float16", np.random.default_rng(turn), MODES[turn % 4])
        assert low <= machine.run(onnx.load(path), x)[1][0] <= high


def test_what_float16_cannot_hold_has_no_bound(tmp_path: Path) -> None:
    """A weight or an operand that a conversion makes infinite; tf32 and bf16 hold both."""
    for w, x in ((65505.0, 0.5), (0.5, 65505.0)):
        path = dense(tmp_path / "n.onnx", [(np.array([[w]]), np.zeros(1))])
        for semantics in ("float32", "tf32", "bf16"):
            low, high = reach(path, semantics, np.array([[x]]))
            assert low <= w * x <= high
        with pytest.raises(checker.Refused, match="float16: Gemm y may exceed 65504"):
            reach(path, "float16", np.array([[x]]))
    path = dense(tmp_path / "n.onnx", [(np.array([[2.0**15]]), np.zeros(1))])
    assert reach(path, "float16", np.array([[2.0**15]]))[0] > 2.0**29  # sums are float32


def rows(*ops: str) -> tuple[list[Any], dict[str, Any]]:
    held = {"w": np.eye(2), "b": np.ones(2), "f": np.full(2, 2.0)}
    nodes, last = [], "x"
    for k, op in enumerate(ops):
        name = "y" if k == len(ops) - 1 else f"h{k}"
        second = {"MatMul": ["w"], "Gemm": ["w", "b"], "Add": ["b"], "Mul": ["f"], "Relu": [], "Residual": ["x"]}[op]
        nodes.append(NODE("Add" if op == "Residual" else op, [last, *second], [name]))
        last = name
    return nodes, held


@pytest.mark.parametrize(
    ("ops", "covered"),
    [
        (("Gemm", "Relu", "Gemm"), True), (("Gemm", "Residual", "Relu", "Gemm"), True), (("Gemm", "Residual", "Gemm"), True),
        (("MatMul", "Add", "Relu", "Gemm"), False), (("Gemm", "Gemm"), False), (("Gemm", "Relu", "Mul", "Gemm"), False),
        (("Mul", "Gemm", "Relu", "Gemm"), False),
    ],
)  # fmt: skip
def test_what_may_be_merged_under_float16_is_refused(tmp_path: Path, ops: tuple[str, ...], covered: bool) -> None:
    """A merged weight may be flushed though neither of its factors is; said before the search, and by the checker."""
    nodes, held = rows(*ops)
    path, asked = model(tmp_path / "n.onnx", nodes, [1, 2], held), prop(tmp_path / "p.vnnlib", [(0, 1)] * 2, 2, "(>= Y_0 90.0)")
    for semantics in ("tf32", "bf16", "float16"):
        if semantics != "float16" or covered:
            (tmp_path / "c.cert").write_bytes(certify(path, asked, semantics=semantics))
            assert checker.check(path, asked, tmp_path / "c.cert").semantics == semantics
            continue
        second = "Add h1" if ops[1] == "Add" else f"{ops[-1]} y" if ops[-2] != "Relu" else "Gemm h1"
        with pytest.raises(checker.Refused, match=f"{second} reads {'.*'}, weights that may be merged and flushed"):
            certify(path, asked, semantics=semantics)
        with pytest.raises(UnsupportedModel, match="merged and flushed") as said:
            polytriton.compile(path, semantics="float16").certify(asked, tmp_path / "a.cert")
        assert said.value.remedy == "add --semantics tf32, bf16, float32 or real, or fold operators in a row into one Gemm or Conv"


@pytest.mark.parametrize("semantics", checker.SEMANTICS)
def test_float64_numbers_are_not_what_layers_convert(tmp_path: Path, semantics: str) -> None:
    """Somebody would have rounded them to float32 before, biases too: more than is charged."""
    path = dense(tmp_path / "n.onnx", [(np.eye(2), np.ones(2)), (np.ones((1, 2)), np.ones(1))], np.float64)
    asked, target = prop(tmp_path / "p.vnnlib", [(0, 1)] * 2, 1, "(>= Y_0 90.0)"), tmp_path / "a.cert"
    if semantics not in CONVERTING:
        assert polytriton.compile(path, semantics=semantics).certify(asked, target).verdict == "unsat"
        assert checker.check(path, asked, target).semantics == semantics
        return
    with pytest.raises(UnsupportedModel, match="float64 numbers") as said:
        polytriton.compile(path, semantics=semantics).certify(asked, target)
    assert said.value.remedy == "add --semantics float32 or real, or export the model in float32"
    stronger = change(certify(path, asked, semantics="float32"), meta=lambda m: m.update(semantics=semantics))
    assert "float64 numbers" in str(refused((path, asked), stronger, tmp_path))


def test_convolutions_that_are_stored_between_may_follow_each_other_under_float16(tmp_path: Path) -> None:
    path, inputs = network(np.random.default_rng(0), tmp_path / "n.onnx", "apart")
    asked = prop(tmp_path / "p.vnnlib", [(0, 1)] * inputs, 2, "(>= Y_0 90000.0)")
    (tmp_path / "c.cert").write_bytes(certify(path, asked, semantics="float16"))
    assert min(checker.check(path, asked, tmp_path / "c.cert").margins) > 0


# ---- certificates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("semantics", CONVERTING)
def test_a_verifier_writes_them(tmp_path: Path, semantics: str) -> None:
    """The more an execution may err, the smaller the margin."""
    rng = np.random.default_rng(3)
    layers = [(rng.normal(size=(m, n)) / 2, rng.normal(size=m) / 4) for n, m in pairwise([2, 8, 8, 1])]
    path = dense(tmp_path / "n.onnx", layers)
    asked, margins = prop(tmp_path / "p.vnnlib", [(-1, 1)] * 2, 1, "(>= Y_0 4.0)"), list[float]()
    for name in ("real", "float32", semantics):
        target = tmp_path / f"{name}.cert"
        assert polytriton.compile(path, semantics=name).certify(asked, target).verdict == "unsat"
        found = checker.check(path, asked, target)
        assert found.semantics == name
        margins += map(float, found.margins)
    assert margins[0] > margins[1] > margins[2] + 1e-4 > 0


@pytest.mark.parametrize(("weaker", "stronger"), [*pairwise(LADDER), ("float32", "float16"), ("real", "bf16"), ("float16", "bf16")])
def test_one_of_weaker_semantics_proves_nothing_of_stronger(tmp_path: Path, weaker: str, stronger: str) -> None:
    """A limit that the stronger one's executions reach, and the weaker one's do not: the checker charges what the certificate says."""
    edge = 1 + (UNIT.get(stronger, 2.0**-23) - 2.0**-22 if stronger != "float32" else 2.0**-23)
    n = 64
    path = dense(tmp_path / "n.onnx", [(np.full((1, n), edge), np.zeros(1))])
    at = np.full((1, n), np.float32(edge))
    low = {name: reach(path, name, at)[0] for name in (weaker, stronger)}
    if stronger in UNIT:
        low[stronger] = max(low[stronger], float(Machine(stronger, np.random.default_rng(0), "down").run(onnx.load(path), at)[1][0]))
    assert low[stronger] < low[weaker]
    limit = (low[stronger] + low[weaker]) / 2
    asked = prop(tmp_path / "p.vnnlib", [(f"{edge:.30f}", f"{edge:.30f}")] * n, 1, f"(<= Y_0 {limit:.30f})")
    data = certify(path, asked, semantics=weaker)
    assert refused((path, asked), data, tmp_path) is None
    assert "left open" in str(refused((path, asked), change(data, meta=lambda m: m.update(semantics=stronger)), tmp_path))


def test_every_conversion_is_tried() -> None:
    """Of the executions here: each keeps so many bits, and moves numbers both ways."""
    v = np.array([1 + 2.0**-12 + 2.0**-20, -3.3, 1e-6, 1.1 * 2.0**-130], np.float32)
    for semantics, bits in LOST.items():
        down, up = (Machine(semantics, np.random.default_rng(0), mode, flush=False).convert(v) for mode in ("down", "up"))
        assert (np.abs(down) < np.abs(v)).all() and (np.abs(up) > np.abs(v)).all()
        assert not (down[:2].view(np.uint32) % (1 << bits)).any() and (up[:1] - down[:1] == 2.0 ** (bits - 23)).all()
        flushed = [Machine(semantics, np.random.default_rng(k)).convert(v) for k in range(20)]
        assert any(f[3] == 0 for f in flushed) and any(f[2] == 0 for f in flushed) == (semantics == "float16")
