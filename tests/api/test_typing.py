"""A user's typed program against the public interface, and the promises that hold for the whole package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import polytriton

ROOT = Path(__file__).parents[2]
PROGRAM = """
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

import polytriton
import polytriton.torch
from polytriton import (
    Bounds, Condition, Counterexample, Expression, Interval, PolytritonError, Property, Radius, Reach, Result, ResultList, Variables,
    Verifier,
)


def certified(net: Verifier, images: np.ndarray, labels: list[int]) -> list[int]:
    results = net.verify(images, epsilon="2/255", label=labels, clip=(0, "1"), mean=Fraction(1307, 10000), std=(0.3081,))
    assert isinstance(results, ResultList)
    return [k for k, r in enumerate(results) if r.verdict == "unsat" and r.margin > 0]


def widest(bounds: Bounds) -> float:
    layers: dict[str, Interval] = bounds.layers
    return max(float((v.hi - v.lo).max()) for v in layers.values())


def weighted(y: Variables, weights: list[float]) -> Expression:
    return y.dot(weights) - y[0] / 3


def point(result: Result) -> np.ndarray | None:
    found: Counterexample | None = result.counterexample
    return None if found is None else found.x


def worst(module: torch.nn.Module, lo: torch.Tensor, hi: torch.Tensor) -> torch.Tensor:
    least, greatest = polytriton.torch.bounds(module, lo, hi, method="ibp")
    return polytriton.torch.margins(module, lo, hi, torch.eye(10)).min() + (greatest - least).mean()


try:
    net = polytriton.compile("net.onnx", semantics="real", device="cpu", memory=1 << 30)
    again: Verifier = polytriton.load(net.save(Path("net.poly")), dtype="float64")
    prop: Property = polytriton.read_vnnlib("prop.vnnlib", n_in=net.inputs)
    x, y = net.variables()
    either: Condition = (y[0] - 2 * y.sum() >= "0.1") & (x[0, 1] < Fraction(1, 3)) | ~(y[1] == np.float32(0.1) * x.flat[3])
    own = Property(box=(np.zeros(4), [[0, "0.1"], [1, 0.5]]), unsafe=[either, weighted(y, [1.0, 2.0]) >= 0], safe=either)
    written: Path = own.save("own.vnnlib", overwrite=True)
    text: str = own.vnnlib()
    one: Result = net.verify_property(prop, timeout=10)
    other: Result = net.verify_vnnlib("prop.vnnlib")
    shape: tuple[int, ...] = net.input_shape
    margins: np.ndarray = net.margins([0.0], [1.0], [[1.0, -1.0]])
    asked: list[Result] = [net.verify(prop, timeout=3), net.verify(Path("prop.vnnlib.gz"), search="none")]
    asked.append(net.certify("prop.vnnlib", "prop.cert", timeout=5.0, search="input"))
    several = net.verify(np.zeros((3, 4)), epsilon="2/255")
    radii = net.radius("images.npy", epsilon=Fraction(1, 50), tolerance="0.1", mean=(0.5, "0.25"), targets=[1])
    module = polytriton.compile(torch.nn.Linear(4, 3), torch.zeros(1, 4))
    tensors: np.ndarray = module.margins(torch.zeros(4), [[Fraction(1, 3).__float__()] * 4], np.eye(3))
    answers: np.ndarray = module.predict(torch.zeros(2, 4), mean=0.5, std="0.5")
    assert isinstance(several, ResultList) and isinstance(radii, list)
    joined: ResultList = several.with_radii(radii)[:2] + [one]
    proved = None if joined[0].radius is None else joined[0].radius.proved
    saved: Path = joined.save("results.jsonl", overwrite=True)
    page: Path = polytriton.report(joined, "report.html", title="All")
    reached: Reach = polytriton.reach(net, (-1, Fraction(1, 3)), planes=[(0, 1)], directions=[[1.0, 2.0]], timeout=5.0)
    reached = polytriton.reach(net, (np.zeros(4), "hi.npy"))
    drawn: Path = reached.save("reach.svg", planes=[(0, 1)], overwrite=True)
    held: bool = polytriton.reach(net, prop, pieces=4).contains([0.0, 1.0])
    rows = [len(polytriton.to_pandas(radii)), len(joined.to_pandas())]
except PolytritonError as error:
    print(error.message, error.remedy, error.exit_code)
"""
WRONG = """
import polytriton

net = polytriton.compile("net.onnx", semantic="real")
net.bounds([0.0])
polytriton.read_vnnlib(3)
net.verify_vnnlib("a.vnnlib").verdikt
x, y = net.variables()
polytriton.Property((0, 1), [y[0] + x[0, 1]])
polytriton.load("net.poly", semanticks="real")
net.radius([0.0], tolerence="0.1")
net.certify("a.vnnlib", "a.cert", serch="none")
net.verify([0.0], "1/255").verdict
net.verify("a.vnnlib").verdickt
polytriton.reach(net, (0, 1), peaces=3)
polytriton.compile(3)
"""


def mypy(tmp_path: Path, text: str) -> str:
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(text)
    options = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", "--no-color-output"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(tmp_path / "program.py")],
        capture_output=True, text=True, timeout=600, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_typed_program_passes_in_strict_mode(tmp_path: Path) -> None:
    assert "Success" in mypy(tmp_path, PROGRAM)
    found = mypy(tmp_path, WRONG)
    for words in ["semantic", "hi", "int", "verdikt", "Expression", "semanticks", "tolerence", "serch", "verdickt", "peaces"]:
        assert f'"{words}"' in found, found
    assert 'Item "ResultList" of "Result | ResultList" has no attribute "verdict"' in found, "one or several"
    assert 'Argument 1 to "compile" has incompatible type "int"' in found


def test_no_public_signature_says_any() -> None:
    """What a user hands over and gets back has a type: in every module that a public name comes from, and in what `Verifier` inherits."""
    homes = {*polytriton._HOMES.values(), "polytriton.prove.prover", "polytriton.prove.radius"}
    looked = 0
    for home in sorted(homes):
        path = ROOT / (home.replace(".", "/") + ".py")
        path = path if path.exists() else ROOT / home.replace(".", "/") / "__init__.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
        for node in (n for body in (tree.body, *(c.body for c in classes)) for n in body):
            if isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("_")):
                looked += 1
                a = node.args
                given = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
                said = [n for at in (*(p.annotation for p in given), node.returns) if at is not None for n in ast.walk(at)]
                assert not any(isinstance(n, ast.Name) and n.id == "Any" for n in said), f"{home}.{node.name}"
    assert looked > 80


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "polytriton" / "py.typed").is_file()
    assert 'polytriton = ["py.typed"' in (ROOT / "pyproject.toml").read_text()


def test_every_public_name_is_there_and_documented() -> None:
    assert set(polytriton.__all__) <= set(dir(polytriton))
    for name in set(polytriton.__all__) - {"__version__"}:
        assert getattr(polytriton, name).__doc__, name
    with pytest.raises(AttributeError, match="nothing"):
        polytriton.nothing  # noqa: B018


def test_importing_the_package_waits_for_nothing() -> None:
    code = "import polytriton, sys; assert not {'torch', 'numpy', 'onnx', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)
