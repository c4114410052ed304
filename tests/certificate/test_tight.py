"""What intervals decide is bounded by substitution too where float32 executions need it: magnitudes shrink, and what is charged by them."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polytriton
from polytriton import checker
from polytriton.certificate.draft import Draft
from polytriton.certificate.guide import DENSE, Guide, complete, part_steps, whole_steps
from polytriton.certificate.trees import _plant
from polytriton.checker import TIGHT
from polytriton.prove.trail import Trail
from tests.certificate.models import NODE, dense, exact_dense, model, prop

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # `check` runs with numpy's errors ignored


class Numbers:
    """One group of one form: the first piece and its only row."""

    def __init__(self) -> None:
        self.places = self.rows = {0: [(0, 0)]}


def drawn(rng: np.random.Generator, path: Path, ops: str, n: int = 6) -> Path:
    """Operators in a row, of random constants."""
    held, nodes, name = dict[str, Any](), list[Any](), "x"
    for k, op in enumerate(ops.split()):
        shapes = {"Gemm": [(n, n), (n,)], "MatMul": [(n, n)], "BatchNormalization": [(n,)] * 4}.get(op, [(n,)])
        names = [f"c{k}_{j}" for j in range(len(shapes))]
        signed = op in ("Gemm", "MatMul", "Add")
        held |= {c: rng.normal(size=s) if signed else rng.uniform(0.5, 2, s) for c, s in zip(names, shapes, strict=True)}
        nodes.append(NODE(op, [name, *names], [name := "y" if k + 1 == len(ops.split()) else f"h{k}"]))
    return model(path, nodes, [1, n], held)


@pytest.mark.parametrize(
    "ops",
    [
        "Gemm", "MatMul Add", "Gemm BatchNormalization", "MatMul BatchNormalization", "Gemm Mul", "Mul Gemm", "Add Gemm", "Sub Div Gemm",
        "Gemm Gemm", "Gemm Gemm Add",
    ],
)  # fmt: skip
def test_what_the_verifier_proves_by_a_hair_is_confirmed(tmp_path: Path, ops: str) -> None:
    """Merged operators too: both count the same roundings, and no division makes up for one more."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        net = polytriton.compile(drawn(rng, tmp_path / "n.onnx", ops))
        lo = rng.normal(size=6)
        ends = [(f"{a:.60f}", f"{b:.60f}") for a, b in zip(lo, lo + 0.1, strict=True)]
        limit = float(np.asarray(net.bounds(lo, lo + 0.1).lo).min()) - 1e-10
        asked = prop(tmp_path / "p.vnnlib", ends, 6, f"(or {' '.join(f'(<= Y_{j} {limit:.40f})' for j in range(6))})")
        assert net.certify(asked, tmp_path / "a.cert").verdict == "unsat"
        assert 0 < min(checker.check(tmp_path / "n.onnx", asked, tmp_path / "a.cert").margins) < 1e-5


def cancelling(folder: Path, up: float) -> Path:
    """relu(x + 2) twice, their difference by a million, and `up`; then what is on is read."""
    layers = [(np.ones((2, 1)), np.full(2, 2.0)), (np.array([[2.0**20, -(2.0**20)]]), np.array([up])), (np.ones((1, 1)), np.zeros(1))]
    return dense(folder / "n.onnx", layers)


@pytest.mark.parametrize("semantics", ["real", "float32"])
@pytest.mark.parametrize("up", [1.0, 2.0**22, -(2.0**22)])
def test_what_is_on_is_bounded_from_above(tmp_path: Path, up: float, semantics: str) -> None:
    """The operand is `up` whatever x is; intervals know it to a million or two, and decide its sign where that is far away."""
    prover = checker.Prover(cancelling(tmp_path, up).read_bytes(), semantics)
    part = prover.root(((Fraction(-1),), (Fraction(1),)), [0])
    (usual, told), (tight, _) = (prover.bound([part], inner) for inner in (0, TIGHT))
    assert usual.lo[3][0, 0] <= tight.lo[3][0, 0] <= up <= tight.hi[3][0, 0] <= usual.hi[3][0, 0]
    if up > 0:
        assert tight.hi[3][0, 0] < up + 10 and (usual.hi[3][0, 0] > up + 2.0**20 or up == 1)
        assert prover.bound([told[0]], 0)[0].hi[3][0, 0] == usual.hi[3][0, 0]  # what was bounded is not bounded again,
        assert prover.bound([told[0]], TIGHT)[0].hi[3][0, 0] < up + 10  # but where it is asked for


def test_bounds_enclose_what_is_reached(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for seed in range(20):
        layers = [(rng.normal(size=(6, n)), rng.normal(size=6) + rng.choice([0, 4])) for n in (3, 6, 6)]
        layers = [(w.astype(np.float32), b.astype(np.float32)) for w, b in layers]
        prover = checker.Prover(dense(tmp_path / "n.onnx", layers).read_bytes(), ("real", "float32")[seed % 2])
        boxes, _ = prover.bound([prover.root(((Fraction(-1),) * 3, (Fraction(1),) * 3), [0])], TIGHT + int(seed % 3))
        operands = [prover.net.ops[k].inputs[0] for k in prover.relus] + [prover.net.output]
        for x in rng.integers(-8, 9, (20, 3)).tolist():
            for k, values in zip(operands, exact_dense(layers, [Fraction(v, 8) for v in x]), strict=True):
                room = boxes.execution_error(k)[:, 0] if seed % 2 else np.zeros(len(values))
                for lo, v, hi, e in zip(boxes.lo[k][:, 0].tolist(), values, boxes.hi[k][:, 0].tolist(), room.tolist(), strict=False):
                    assert Fraction(lo) - Fraction(e) <= v <= Fraction(hi) + Fraction(e)


@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_where_rounding_stands_in_the_way_it_is_asked_for(tmp_path: Path, semantics: str) -> None:
    """The output exceeds the limit by less than rounding costs, or by less than nothing: then a box is divided."""
    for limit, hint in ((1 - 2.0**-12, TIGHT if semantics == "float32" else None), (1 + 2.0**10, 0)):
        prover = checker.Prover(cancelling(tmp_path, 1.0).read_bytes(), semantics)
        guide, box, root = Guide(2), ((Fraction(-1),), (Fraction(1),)), Draft(0, [0], inner=np.zeros(1, np.int64))
        with suppress(checker.Refused):
            complete(prover, box, [[({~0: Fraction(1)}, Fraction(limit))]], checker.Tree(root.arrays()), guide)
        assert (guide.below[0][0][2] if 0 in guide.below else None) == hint


def test_the_writer_asks_for_it_where_the_search_did() -> None:
    """Once on every path, at the first node that is bounded."""
    trail = Trail()
    root = trail.plant(0, [0], signs=False)
    a, b, c, d, e, f = trail.names(6)
    trail.divide(np.array([root, a, b]), np.zeros(3, np.int64), np.zeros(3), np.array([a, c, e]), np.array([b, d, f]))
    trail.close(np.array([a]), np.array([0]))
    usual, asked = [-1, 0, -1, 0, 0, 0, 0], [-1, TIGHT, -1, 0, 0, TIGHT, TIGHT]
    for rounds, tight, wanted in ((False, True, usual), (True, False, usual), (True, True, asked)):
        trail.tight = tight
        (tree,) = _plant(trail.planted, trail, Numbers(), [1, 1], rounds)  # type: ignore[arg-type]
        assert tree.inner.tolist() == wanted


@pytest.mark.parametrize("cells", [1, DENSE])
def test_boxes_that_signs_divide_are_always_asked_for_it_where_executions_round(cells: int) -> None:
    """Parts are bounded from what the box had, in networks too large to bound each anew: a check of 55 seconds took an hour without."""
    trail = Trail(relus=(("r", 1),))
    root = trail.plant(0, [0], signs=True)
    on, off = trail.names(2)
    trail.divide(np.array([root]), np.array([~0]), np.zeros(1), np.array([on]), np.array([off]))
    trail.close(np.array([on, off]), np.array([0, 0]))
    for rounds in (False, True):
        (tree,) = _plant(trail.planted, trail, Numbers(), [1, cells], rounds)  # type: ignore[arg-type]
        whole, part = whole_steps(1 + cells)[0], part_steps(1 + cells)[0]
        assert tree.inner.tolist() == [whole + TIGHT * rounds, part, part]


def test_a_shared_search_tells_it_too() -> None:
    trail, helper = Trail(), Trail()
    helper.tight = True
    trail.add(Trail.unpack(helper.pack()))
    assert trail.tight and Trail.unpack(trail.pack()).tight


@pytest.mark.parametrize(("inner", "query", "fits"), [(TIGHT + 1000, 1000, True), (TIGHT + 1001, 0, False), (0, TIGHT, False)])
def test_steps_have_an_end(inner: int, query: int, fits: bool) -> None:
    draft = Draft(0, [0], inner=np.array([inner]), query=np.array([query]))
    if fits:
        checker.Tree(draft.arrays())
    else:
        with pytest.raises(checker.Refused, match="steps"):
            checker.Tree(draft.arrays())
