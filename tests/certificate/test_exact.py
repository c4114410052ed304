"""`check --exact`: the same certificates, in whole numbers. Against exact regions, and under the same attack."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

from polytriton import checker, checker_exact
from polytriton.certificate.write import pack
from polytriton.checker_exact import GRID, STEP, Ends, Whole, layers, steps, whole
from polytriton.cli import main
from tests.certificate import regions
from tests.certificate.attack import attack, exact
from tests.certificate.cases import draw, model
from tests.certificate.models import NODE, certify, dense, prop
from tests.certificate.models import model as written
from tests.certificate.nodes import Node
from tests.prove.piecewise import Form, drawn, uneven


def test_no_false_property_is_confirmed() -> None:
    tally = attack(10, 100, 1, checker=exact(), real=True)
    assert not tally.wrong
    assert tally.confirmed == tally.true > 5 and tally.tried.total() == 100


SOURCE = Path(checker_exact.__file__).read_text()
FAULTS = {
    "a slope above 1": ("posinf=most, neginf=0.0), 0.0, most)", "posinf=most, neginf=0.0), 0.0, 8.0)"),
    "a slope below 0": ("posinf=most, neginf=0.0), 0.0, most)", "posinf=most, neginf=0.0), -3.0, most)"),
    "multipliers without a sign": ("-self.signs.get(k, 0) * b", "-b"),
    "the chord without its intercept": ("c = c + Whole(below @ m,", "c = c + Whole(0 * below @ m,"),
    "a leaf is ignored": ("need(not node.open,", "need(True,"),
    "a bound is not compared": ("if margin > 0}", "if True}"),
    "the second half is lost": ("for side, half in enumerate(both)]", "for side, half in enumerate(both[:1])]"),
    "constants are forgotten": ("c = c + Whole(a.n @ shift.n,", "c = c + Whole(0 * (a.n @ shift.n),"),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n == "a slope above 1" else ()) for n in FAULTS])
def test_a_planted_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = FAULTS[name]
    assert SOURCE.count(old) == 1
    planted = ModuleType("planted")
    planted.__file__ = checker_exact.__file__
    monkeypatch.setitem(sys.modules, "planted", planted)  # where dataclasses look for their annotations
    exec(compile(SOURCE.replace(old, new), checker_exact.__file__, "exec"), planted.__dict__)
    faulty = exact(planted)
    kinds = ("slopes", "slopes in a forged tree") if "slope" in name or "multiplier" in name else ("as it is", "closing in", "rows dropped")
    tally = attack(200, 2000, 0, checker=faulty, real=True, kinds=kinds)
    assert tally.proved or any("true property refused" in w for w in tally.wrong)
    assert tally.proved or "slope" not in name


@pytest.mark.parametrize("seed", range(30))
def test_bounds_hold_at_every_corner_of_the_regions(seed: int) -> None:
    """Of all values of some networks, on every region's corners; and where no neuron is undecided they are attained."""
    rng = np.random.default_rng(seed)
    net = (drawn, uneven)[seed % 2](rng, 2, [4, 3][: 1 + seed % 3 % 2], 1)
    prover = checker.plain(checker.Prover)(net.model().SerializeToString(), False)
    lo, hi = (Fraction(-1, 3), Fraction(0)), (Fraction(1, 3), Fraction(1, 2 if seed % 4 else 2**30))
    grid = [np.array([(q * 2**GRID).__floor__() + up for q in side], object) for side, up in ((lo, 0), (hi, 1))]
    bounds = Ends(prover.net, layers(prover.net), *grid, {})
    for k, op in enumerate(prover.net.ops[1:], 1):
        if op.kind == "relu":
            bounds.narrow(k, None, None)
            bounds.relax(k, steps(rng.random((prover.net.sizes[k], 1)), 1.0)[0])
        bounds.interval(k)
    corners, free = regions.cells(net, lo, hi)
    for sign in (1, -1):
        (found,) = bounds.lower({prover.net.output: Whole(np.array([[sign]], object), 0)}, Whole(np.zeros(1, object), 0), {})
        least, _ = regions.least(corners, free, [Form((Fraction(sign),), (Fraction(0),) * 2, Fraction(0))])
        assert found <= least
        if not any((m != 0).any() for _, _, m in bounds.lines.values()):
            assert least - found < Fraction(1, 2**40)
    end = prover.net.output
    for cell in corners:
        assert all(bounds.lo[end][0] <= c.h[0] * 2**GRID <= bounds.hi[end][0] for c in cell)


def test_numbers_and_layers_are_those_of_the_file() -> None:
    values = np.array([0.1, -3.0, 2.0**-300, 0.0])
    made = whole(values)
    assert [Fraction(int(n), 2**made.e) for n in made.n] == [Fraction(v) for v in values.tolist()]
    grid = steps(np.array([[np.nan, np.inf, -np.inf, -1.0, 0.25, 7.0]]).T, 1.0)
    assert grid.tolist() == [[0, 2**STEP, 0, 0, 2 ** (STEP - 2), 2**STEP]]
    for seed in range(30):
        case = draw(np.random.default_rng(seed), "real")
        net = checker.Network(model(case.net, case.form, case.skip))
        for k, layer in layers(net).items():
            x = np.arange(1, net.sizes[net.ops[k].inputs[0]] + 1).astype(object)
            got = [Fraction(int(a), 2**layer.w.e) + Fraction(int(b), 2**layer.b.e) for a, b in zip(layer.w.n @ x, layer.b.n, strict=True)]
            w = net.ops[k].push(np.eye(len(x)), np.asarray)
            assert got == [sum((Fraction(v) * int(i) for v, i in zip(r, x, strict=True)), Fraction(b)) for r, b in
                           zip(w.tolist(), net.ops[k].b.tolist(), strict=True)]  # fmt: skip


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnx.save(drawn(np.random.default_rng(3), 2, (4, 4)).model(), path := tmp_path / "n.onnx")
    text = prop(tmp_path / "p.vnnlib", [(-1, 1)] * 2, 1, "(<= Y_0 -100)")
    files = []
    for semantics in ("real", "float32"):
        files.append(tmp_path / f"{semantics}.cert")
        files[-1].write_bytes(certify(path, text, semantics=semantics))
    assert main(["check", str(path), str(text), str(files[0]), "--exact", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["verdict"] == "unsat" and min(told["margins"]) > 0
    assert main(["check", str(path), str(text), str(files[1]), "--exact"]) == 3
    said = capfd.readouterr().err
    assert "of float32 executions" in said and "check it without --exact" in said
    assert main(["check", str(path), str(text), str(files[0]), "--exact", "--workers", "2"]) == 2
    assert main(["check", str(path), str(text), str(files[0]), "--exact", "--sample", "2"]) == 2
    assert main(["check", str(tmp_path), "--exact"]) == 2


def test_what_is_not_exactly_in_the_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "d.onnx", [NODE("Div", ["x", "w"], ["y"])], [1, 1], {"w": [3.0]})
    text = prop(tmp_path / "p.vnnlib", [(0, 1)], 1, "(>= Y_0 1)")
    (tmp_path / "c").write_bytes(certify(path, text))
    with pytest.raises(checker.Unsupported, match="were computed"):
        checker_exact.check(path, text, tmp_path / "c")


def test_what_touches_by_nothing_is_not_proved(tmp_path: Path) -> None:
    """3 x over [0, 1/4] reaches 3/4, and stays below that and 10^-31."""
    path = dense(tmp_path / "n.onnx", [(np.array([[3.0]]), np.zeros(1))])
    some = [prop(tmp_path / f"{k}.vnnlib", [("0", "0.25")], 1, f"(>= Y_0 {v})") for k, v in enumerate(("0.75", "0.75" + "0" * 28 + "1"))]
    cert = tmp_path / "c"
    for text, proved in zip(some, (False, True), strict=True):
        cert.write_bytes(pack([Node(0, 0, [(0, 0)]).arrays()], "real", checker.load(path, text)[2]))
        if proved:
            assert checker_exact.check(path, text, cert).margins == [Fraction(1, 10**31)]
        with pytest.raises(checker.Refused):  # floats do not tell them apart
            (checker.check if proved else checker_exact.check)(path, text, cert)
