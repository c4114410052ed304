"""The attack on the checker (`attack.py`): a short one, the oracle behind it, and faults planted in the checker, which it must notice."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from polytriton import checker, checker_boxes
from tests.certificate import regions
from tests.certificate.attack import attack
from tests.certificate.cases import draw, model, written
from tests.certificate.forge import KINDS
from tests.prove import piecewise
from tests.prove.piecewise import Form, Numbers, drawn, uneven

SOURCES = {module: Path(str(module.__file__)).read_text() for module in (checker_boxes, checker)}


def plant(old: str, new: str) -> ModuleType:
    """The checker with a text replaced, which stands in one of its files once."""
    assert sum(text.count(old) for text in SOURCES.values()) == 1
    boxes, planted = ModuleType("boxes"), ModuleType("planted")
    for made, (module, text) in zip((boxes, planted), SOURCES.items(), strict=True):
        made.__file__ = module.__file__
        exec(compile(text.replace(old, new), str(module.__file__), "exec"), made.__dict__)
    planted.__dict__["Boxes"] = boxes.__dict__["Boxes"]
    return planted


def test_no_false_property_is_confirmed() -> None:
    tally = attack(24, 240, 0)
    assert not tally.wrong
    assert tally.confirmed == tally.true > 15
    assert tally.false == tally.networks == 24 and tally.shown > 5
    assert tally.tried.total() == 240 and set(tally.tried) == set(KINDS)
    assert 220 < tally.refused.total() <= 240  # others name semantics under which the property is true
    assert tally.harmless.total() > 240 - tally.refused.total()  # of a true property some still confirm: not everything is refused


@pytest.mark.parametrize(("name", "few"), [("attack", 1), ("attack-exact", 5)])
def test_the_summary_is_of_this_attack(name: str, few: int) -> None:
    told = json.loads((Path(__file__).parent / f"{name}.json").read_text())
    assert set(told["kinds"]) == set(KINDS)
    assert told["false ones confirmed"] == 0 and not told["wrong"]
    assert told["networks"] >= 10_000 / few and told["mutants"] >= 100_000 / few and told["confirmed"] == told["true properties"]


FAULTS = {
    "a slope above 1": ("np.clip(np.fmax(own, 0.0), 0.0, 1.0)", "np.fmax(own, 0.0)", ("slopes", "slopes in a forged tree")),
    "a slope below 0": ("np.clip(np.fmax(own, 0.0), 0.0, 1.0)", "np.minimum(own, 1.0)", ("slopes", "slopes in a forged tree")),
    "a multiplier below 0": ("np.fmax(b, 0.0), 0.0)", "b, 0.0)", ("slopes", "slopes in a forged tree")),
    "a leaf is ignored": ("elif part.open:", "elif False:", KINDS),
    "a child is not walked": ("int(tree.child[w.node])) if wanted[n]]", "int(tree.child[w.node])) if wanted[n]][:1]", KINDS),
    "a bound is not compared": ("if margin > 0 and not", "if not", KINDS),
    "the chord without its intercept": ("np.maximum(up(t * -l), up(h * up(1 - t)))", "0 * l", KINDS),
    "products are exact": ("self.G, self.empty = 4 * (net.terms + 64) * U,", "self.G, self.empty = 0.0,", KINDS),
    "float32 rounds nothing": ("size * ROOM, (e + c + terms / (1 - terms) * (size + c) + lost) * ROOM", "size * ROOM, 0 * size", KINDS),
}  # fmt: skip


LATE = {"a multiplier below 0", "products are exact"}  # shown by few of the networks


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in LATE else ()) for n in FAULTS])
def test_a_planted_fault_is_noticed(name: str) -> None:
    old, new, kinds = FAULTS[name]
    assert attack(300, 3000, 0, checker=plant(old, new), kinds=kinds).proved


@pytest.mark.parametrize("seed", range(8))
def test_two_oracles_agree(seed: int) -> None:
    """Cells of any shape against simplices."""
    rng = np.random.default_rng(seed)
    n = 2 + (seed == 7)
    net = (drawn, uneven)[seed % 2](rng, n, [3, 2] if seed % 3 else [4], 2)
    zero, one = Fraction(0), Fraction(1)
    forms = [Form((one, -one), (zero,) * n, zero), Form((zero, one), (one,) * n, one)]
    lo, hi = (Fraction(-1),) * n, (Fraction(1, 3),) * n
    for some in (forms[:1], forms):
        assert regions.least(*regions.cells(net, lo, hi), some)[0] == piecewise.least(net, some, lo, hi)[0]


def exactly(data: bytes, x: Numbers) -> list[Fraction]:
    """What the file computes, operator by operator, in rationals."""
    graph = onnx.ModelProto.FromString(data).graph
    known = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    known = {k: v if v.dtype.kind == "i" else np.vectorize(lambda c: Fraction(float(c)), otypes=[object])(v) for k, v in known.items()}
    known["x"] = np.array([x], dtype=object)
    ways = {
        "Gemm": lambda a, w, b: a @ w.T + b,
        "MatMul": lambda a, w: a @ w,
        "Add": lambda a, b: a + b,
        "Sub": lambda a, b: a - b,
        "Relu": lambda a: np.maximum(a, Fraction(0)),
        "Reshape": lambda a, shape: a.reshape(shape),
        "Flatten": lambda a: a.reshape(1, -1),
        "Conv": lambda a, w, b: (a[:, :, 0, 0] @ w[:, :, 0, 0].T + b)[:, :, None, None],
    }
    for node in graph.node:
        known[node.output[0]] = ways[node.op_type](*(known[i] for i in node.input))
    return known[graph.output[0].name][0].tolist()  # type: ignore[no-any-return]


def test_every_form_of_a_network_is_that_network() -> None:
    """And the property says where the optimum lies: the checker's reading of it is reached there, in every row."""
    forms = set()
    for seed in range(40):
        case = draw(np.random.default_rng(seed), "real")
        forms.add(case.form)
        piece = case.pieces[0]
        data = model(case.net, case.form, case.skip)
        y = exactly(data, piece.at)
        skipped = [sum((Fraction(float(s)) * v for s, v in zip(row, piece.at, strict=True)), Fraction(0)) for row in
                   (np.zeros((len(y), len(piece.at))) if case.skip is None else case.skip)]  # fmt: skip
        assert y == [a + b for a, b in zip(case.net.value(piece.at), skipped, strict=True)]
        text = written(case, [piece.raised(piece.least)]).decode()
        (((lo, hi), rows),) = checker.unsafe(text, case.net.inputs, case.net.outputs).items()
        assert (lo, hi) == piece.box
        values = [sum(c * (piece.at[v] if v >= 0 else y[~v]) for v, c in row.items()) - k for row, k in rows[0]]
        assert max(values) == 0
    assert forms == {"gemm", "matmul", "conv", "skip", "difference", "cancelling"}
