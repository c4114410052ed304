"""Several networks as people join them: Python, the command line, and what is refused."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import polytriton
from polytriton import InputMap
from polytriton.artifact import NET, read_artifact
from polytriton.errors import PolytritonError
from polytriton.frontend import onnx as imports
from tests.cli.conftest import Cli, cli, here  # noqa: F401  fixtures
from tests.soundness.test_input_maps import two_layers

TIED = """(vnnlib-version <2.0>)
(declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 [1,1]))
(declare-network g {like}(declare-input U float32 [1,2]) (declare-output V float32 [1,1]))
(assert (and (>= X[0,0] 0.1) (<= X[0,0] 0.7) (>= X[0,1] 0.1) (<= X[0,1] 0.7)))
(assert (and (>= U[0,0] 0.1) (<= U[0,0] 0.7)))
(assert (and (<= X[0,0] U[0,0]) (== X[0,1] U[0,1])))
(assert (>= Y[0,0] (+ V[0,0] {by})))
"""


def network(first: float, offset: float = 0.0) -> bytes:
    """relu(first x0 + x1) + offset in its second weight; falling in x0 where `first` is negative."""
    return two_layers(np.array([[first, 1.0], [0.0, 1.0]]), np.zeros(2), np.array([[1.0, offset]]))


@pytest.fixture
def files(here: Path) -> Path:  # noqa: F811
    for name, data in (("rises", network(1)), ("falls", network(-1)), ("twin", network(1, 0.25)), ("odd", network(1))):
        model = onnx.ModelProto.FromString(data)
        if name == "odd":
            model.graph.node[1].op_type = "Sigmoid"
        onnx.save(model, here / f"{name}.onnx")
    for by in ("0", "0.001", "0.3"):
        (here / f"equal{by}.vnnlib").write_text(TIED.format(like="(equal-to f) ", by=by))
        (here / f"two{by}.vnnlib").write_text(TIED.format(like="", by=by))
    (here / "iso.vnnlib").write_text(TIED.format(like="(isomorphic-to f) ", by=0.3))
    return here


def told(out: str) -> dict[str, np.ndarray]:
    """The assignment that is printed."""
    found = {}
    for name, shape, text in re.findall(r"^(\w+) float32 \[([\d,]+)\]\n((?:[-\d.e]+\n)+)", out, re.M):
        found[name] = np.array([float(v) for v in text.split()]).reshape([int(k) for k in shape.split(",")])
    return found


def test_monotone_in_an_input(cli: Cli, files: Path) -> None:  # noqa: F811
    said = cli("verify", "--network", "f=rises.onnx", "equal0.001.vnnlib", "--timeout", "60")
    assert (said.code, said.out) == (0, "unsat\n"), said.err


@pytest.mark.parametrize("args", [("--network", "f=falls.onnx"), ("[('f', 'falls.onnx')]",)])
def test_counterexamples_are_of_both_networks(cli: Cli, files: Path, args: tuple[str, ...]) -> None:  # noqa: F811
    """Ties and boxes hold of the float32 numbers printed, and onnxruntime gives the outputs printed."""
    said = cli("verify", *args, "equal0.3.vnnlib", "--timeout", "60")
    assert said.out.startswith("sat\n"), said.err
    found = told(said.out)
    assert list(found) == ["X", "Y", "U", "V"]
    x, u = found["X"][0], found["U"][0]
    assert x[0] <= u[0] and x[1] == u[1] and min(*x, *u) >= 0.1 and max(*x, *u) <= 0.7
    session = onnxruntime.InferenceSession("falls.onnx", providers=["CPUExecutionProvider"])
    y, v = (session.run(None, {"x": k.astype(np.float32)})[0] for k in (found["X"], found["U"]))
    assert (y == found["Y"]).all() and (v == found["V"]).all() and float(y[0, 0]) >= float(v[0, 0]) + 0.3
    assert (found["X"] == found["X"].astype(np.float32)).all() and (found["U"] == found["U"].astype(np.float32)).all()


def test_two_files(cli: Cli, files: Path) -> None:  # noqa: F811
    both = ("--network", "f=twin.onnx", "--network", "g=rises.onnx")
    assert cli("verify", *both, "two0.3.vnnlib", "--timeout", "60").out == "unsat\n"
    assert cli("verify", *both, "two0.vnnlib", "--timeout", "60", "--serialise-assignments", "found").out == "sat\n"
    held = {p.stem: numpy_helper.to_array(onnx.TensorProto.FromString(p.read_bytes())) for p in (files / "found").iterdir()}
    assert sorted(held) == ["U", "V", "X", "Y"] and all(v.dtype == np.float32 for v in held.values())
    assert held["X"][0, 0] <= held["U"][0, 0] and held["Y"][0, 0] >= held["V"][0, 0]
    for file, x, y in (("twin", "X", "Y"), ("rises", "U", "V")):
        session = onnxruntime.InferenceSession(f"{file}.onnx", providers=["CPUExecutionProvider"])
        assert (session.run(None, {"x": held[x]})[0] == held[y]).all()
    assert (
        cli("verify", "[('f', 'twin.onnx'), ('g', 'rises.onnx')]", "two0.3.vnnlib", "--timeout", "60", "--json", "r.jsonl").out == "unsat\n"
    )
    assert "('g', 'rises.onnx')" in (files / "r.jsonl").read_text()
    assert cli("verify", *both, "two0.vnnlib", "--prepare").out == ""
    assert cli("verify", *both, "two0.vnnlib", "--timeout", "1e-9").out == "timed-out\n"
    assert cli("verify", *both, "iso.vnnlib", "--timeout", "60").out == "unsat\n"


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a model is imported, and how often an import is compared with onnxruntime."""
    done = Counter[str]()

    def count(name: str) -> None:
        plain = getattr(imports, name)

        def counted(*args: Any) -> Any:
            done[name] += 1
            return plain(*args)

        monkeypatch.setattr(imports, name, counted)

    count("_load")
    count("compare")
    return done


def test_networks_are_joined_once(cli: Cli, files: Path, work: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Another property of the same networks, tied alike, finds them joined; another tie or another file does not."""

    def ask(prop: str, f: str = "twin", g: str = "rises") -> tuple[str, int, int]:
        work.clear()
        said = cli("verify", "--network", f"f={f}.onnx", "--network", f"g={g}.onnx", prop, "--timeout", "60")
        return said.out.split("\n")[0] or said.err, work["_load"], work["compare"]

    tie = (files / "two0.vnnlib").read_text()
    (files / "same.vnnlib").write_text(tie.replace("<= X[0,0] U[0,0]", "== X[0,0] U[0,0]"))
    (files / "free.vnnlib").write_text(tie.replace("(<= X[0,0] U[0,0]) ", ""))
    for name, above in (("even", "(<= X[0,0] U[0,0]) (<= X[0,1] U[0,1])"), ("crossed", "(<= X[0,0] U[0,1]) (<= X[0,1] U[0,0])")):
        (files / f"{name}.vnnlib").write_text(tie.replace("(<= X[0,0] U[0,0]) (== X[0,1] U[0,1])", f"{above} (<= U[0,1] 0.7)"))
    assert ask("two0.3.vnnlib") == ("unsat", 3, 3)
    assert ask("two0.3.vnnlib") == ("unsat", 0, 0)
    assert ask("two0.vnnlib") == ("sat", 0, 0)
    assert ask("same.vnnlib") == ("sat", 1, 1)  # without a map before it
    assert ask("free.vnnlib") == ("sat", 1, 1)  # the same inputs are one, no other is a sum
    assert ask("even.vnnlib") == ask("crossed.vnnlib") == ("sat", 1, 1)  # as many sums, of others
    assert ask("same.vnnlib") == ask("two0.vnnlib") == ("sat", 0, 0)
    assert ask("two0.3.vnnlib", g="falls") == ("sat", 2, 2)
    (files / "twin.onnx").write_bytes(network(1, 0.125))
    assert ask("two0.3.vnnlib") == ("unsat", 2, 2)
    assert ask("two0.3.vnnlib", f="rises", g="twin") == ("unsat", 1, 1)
    assert len(list((files / "cache").glob("*.poly"))) == 4 + 8
    monkeypatch.setenv("POLYTRITON_CACHE", "off")
    assert ask("two0.3.vnnlib") == ("unsat", 3, 3)


def test_networks_that_were_tied_otherwise_are_not_used(cli: Cli, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """An entry says itself what it was joined from: where it lies is not believed."""
    both = ("verify", "--network", "f=rises.onnx", "--network", "g=falls.onnx")
    tie = (files / "two0.3.vnnlib").read_text()
    (files / "same.vnnlib").write_text(tie.replace("<= X[0,0] U[0,0]", "== X[0,0] U[0,0]"))
    made: list[Path] = []
    for prop in ("two0.3.vnnlib", "same.vnnlib"):
        assert cli(*both, prop, "--timeout", "60").out[:3] == "sat"
        made += [p for p in (files / "cache").glob("*.poly") if p not in made and "@f_g(" in (p / NET).read_text()]
    first, second = made
    for name in os.listdir(second):
        (first / name).write_bytes((second / name).read_bytes())
    monkeypatch.setenv("POLYTRITON_DEBUG", "1")
    said = cli(*both, "two0.3.vnnlib", "--timeout", "60")
    assert (said.out[:3], "made from another file" in said.err) == ("sat", True), said.err
    assert read_artifact(first).imported.net.input.shape == (3,) != read_artifact(second).imported.net.input.shape


@pytest.mark.parametrize(
    "args, code, word",
    [
        (("--network", "f=rises.onnx", "two0.vnnlib"), 2, "needs the networks f, g, given are f"),
        (("--network", "f=rises.onnx", "--network", "g=rises.onnx", "equal0.vnnlib"), 2, "needs the networks f, given are f, g"),
        (("--network", "f=rises.onnx", "--network", "f=twin.onnx", "two0.vnnlib"), 2, "--network f is given twice"),
        (("rises.onnx", "two0.vnnlib"), 3, "is about 2 networks, and one was given"),
        (
            ("--network", "f=rises.onnx", "--network", "g=odd.onnx", "iso.vnnlib"),
            3,
            "g is declared isomorphic-to f, but runs other operators",
        ),
        (
            ("--network", "f=rises.onnx", "equal0.vnnlib", "--certificate", "c.cert"),
            3,
            "no certificate is written of a property over several",
        ),
        (("--network", "f=rises.onnx", "--network", "g=none.onnx", "two0.vnnlib"), 2, "no network none.onnx"),
    ],
)
def test_mistakes_are_told(cli: Cli, files: Path, args: tuple[str, ...], code: int, word: str) -> None:  # noqa: F811
    said = cli("verify", *args)
    assert (said.code, word in said.err, said.out) == (code, True, ""), said.err
    assert "Traceback" not in said.err


def test_a_list_of_instances_names_one_network_a_line(cli: Cli, files: Path) -> None:  # noqa: F811
    (files / "list.csv").write_text("\"[('f', 'rises.onnx'), ('g', 'twin.onnx')]\",two0.vnnlib,60\n")
    said = cli("run", "--instances", "list.csv")
    assert (said.code, "a run asks about one network a query" in said.err, "polytriton verify --network" in said.err) == (2, True, True)


def test_joining_is_refused_with_a_reason() -> None:
    net, wide = polytriton.compile(network(1)), polytriton.compile(two_layers(np.ones((1, 3)), np.zeros(1), np.ones((1, 1))))
    other = onnx.ModelProto.FromString(network(1))
    other.opset_import[0].version = 17
    double = onnx.ModelProto.FromString(network(1))
    for t in double.graph.initializer:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name))
    for end in (*double.graph.input, *double.graph.output):
        end.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for networks, maps, message in (
        ([], None, "no networks"),
        ([net, wide], None, "take 2, 3 inputs"),
        ([net, polytriton.compile(other)], None, "differ in opset: network 0 has 13, network 1 has 17"),
        ([net, polytriton.compile(double)], None, "differ in input type"),
        ([net, polytriton.compile(network(1), semantics="real")], None, "different semantics"),
        ([net, polytriton.join([net, net])], None, None),
        ([net, net.map_input(InputMap([[1], [2]]))], None, "behind an input map already"),
        ([net, wide], [InputMap([[1], [2]])], "maps of 1 parameters to 2 inputs for networks of 2, 3 inputs"),
        ([net, polytriton.Verifier.from_net(net.net)], None, "network 1 has no model behind it"),
    ):
        if message is None:
            assert polytriton.join(networks).outputs == 3  # joined networks without a property may be joined again
            continue
        with pytest.raises(PolytritonError) as caught:
            polytriton.join(networks, maps=maps)
        assert message in str(caught.value) and caught.value.remedy


def test_maps_that_round_are_known_to() -> None:
    """A tenth is no float64: that one map rounds says the joined one; the other, of floats alone, does not."""
    net = polytriton.compile(network(1))
    maps = [InputMap([[1], [2]]), InputMap([["0.1"], [2]])]
    slack = [polytriton.join([net, net], maps=given).net.node("x").integer("slack") for given in (maps, [maps[0]] * 2)]
    assert slack == [1, 0]


def test_smooth_functions_state_their_errors() -> None:
    """Each network's own, together; one function has one error."""
    models = []
    for op in ("Sigmoid", "Tanh"):
        model = onnx.ModelProto.FromString(network(1))
        model.graph.node[1].op_type = op
        models.append(model)
    nets = [polytriton.compile(m, semantics=f"float32,{f}=9") for m, f in zip(models, ("sigmoid", "tanh"), strict=True)]
    assert polytriton.join([*nets, polytriton.compile(network(1))]).options.semantics == "float32,sigmoid=9,tanh=9"
    with pytest.raises(PolytritonError, match="different semantics"):
        polytriton.join([nets[0], polytriton.compile(models[0])])
