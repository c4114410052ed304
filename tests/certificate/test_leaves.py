"""Leaves of a certificate as properties: they say what the whole says, exactly, and another verifier decides them."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from math import prod
from pathlib import Path

import numpy as np
import pytest

import polytriton
from polytriton import checker
from polytriton.certificate import leaves
from polytriton.certificate.write import pack
from polytriton.checker_files import Box, unsafe
from tests.certificate.models import certify, dense, prop
from tests.certificate.nodes import Node
from tests.cli.conftest import Cli, cli, here  # noqa: F401  fixtures

IDENTITY = [(np.eye(2), np.zeros(2)), (np.eye(2), np.zeros(2))]
ODD = [("0.1", "0.9"), ("-0.30000000000000004", "1e-3")]
UNSAFE = "(or (and (<= Y_0 (* 0.5 X_0)) (<= (+ (* 0.1 Y_0) (* 2.5 X_1)) -1.0)) (and (>= Y_0 2) (<= Y_0 Y_1)))"


def divided(rng: np.random.Generator, box: list[list[float]], depth: int) -> Node:
    """Any tree of cuts; its leaves refute the first piece by its second row, the other by its first."""
    node = Node(-1, 0)
    if depth == 0 or rng.random() < 0.1:
        node.closed = [(0, 1), (1, 0)]
        return node
    i = int(rng.integers(len(box)))
    at = float(rng.uniform(*box[i]))
    halves = ([*box[:i], [box[i][0], at], *box[i + 1 :]], [*box[:i], [at, box[i][1]], *box[i + 1 :]])
    below = [divided(rng, half, depth - 1) for half in halves]
    node.divide(i, at, *below)
    return node


def certificate(folder: Path, tree: Node) -> tuple[Path, Path, Path]:
    files = dense(folder / "net.onnx", IDENTITY), prop(folder / "odd.vnnlib", ODD, 2, UNSAFE)
    target = folder / "a.cert"
    target.write_bytes(pack([tree.arrays()], "real", checker.load(*files)[2]))
    return *files, target


def volume(box: Box) -> Fraction:
    return prod((b - a for a, b in zip(*box, strict=True)), start=Fraction(1))


@pytest.mark.parametrize("seed", range(4))
def test_leaves_together_are_the_property(tmp_path: Path, seed: int) -> None:
    """Boxes lie in the root, overlap in faces at most, and have its volume; rows are those of the property, to the last digit."""
    tree = divided(np.random.default_rng(seed), [[0.1001, 0.8999], [-0.3, 0.0009]], 5)
    files = certificate(tmp_path, tree)
    assert min(checker.check(*files).margins) > 0
    count = leaves.export(*files, tmp_path / "out")
    index = json.loads((tmp_path / "out" / leaves.INDEX).read_text())
    assert len(index["leaves"]) == count == len((tmp_path / "out" / leaves.LIST).read_text().splitlines())
    ((root, pieces),) = unsafe(files[1].read_text(), 2, 2).items()
    found = []
    for leaf in index["leaves"]:
        written = tmp_path / "out" / leaf["file"]
        ((box, rows),) = unsafe(written.read_text(), 2, 2).items()
        assert rows == pieces
        read = polytriton.read_vnnlib(written)
        assert {(d.exact_lo, d.exact_hi) for d in read.disjuncts} == {box}
        found.append(box)
    assert sum(map(volume, found)) == volume(root)
    for lo, hi in found:
        assert all(a <= b <= c <= d for a, b, c, d in zip(root[0], lo, hi, root[1], strict=True))
    for one, other in combinations(found, 2):
        shared = [min(b, d) - max(a, c) for a, b, c, d in zip(*one, *other, strict=True)]
        assert min(shared) <= 0


@pytest.mark.parametrize("value", ["0.1", "-0.30000000000000004", "1e-3", "12", "0", "-7.5", "1e20", "3.0e-300"])
def test_decimals_are_exact(value: str) -> None:
    assert Fraction(leaves.decimal(Fraction(value))) == Fraction(value)


@pytest.mark.parametrize("value", [0.1, -1 / 3, 2.0**-300, 1e100, np.nextafter(1.0, 2.0)])
def test_floats_are_exact(value: float) -> None:
    assert Fraction(leaves.decimal(Fraction(value))) == Fraction(value)


@pytest.mark.parametrize("value", [Fraction(1, 3), Fraction(2) ** -500, Fraction(10) ** 401])
def test_numbers_that_cannot_be_written_are_refused(value: Fraction) -> None:
    with pytest.raises(checker.Refused):
        leaves.decimal(value)


def break_sign(tree: Node) -> None:
    tree.children[1].divide(2, 0.0, Node(closed=[(0, 1), (1, 0)]), Node(closed=[(0, 1), (1, 0)]))  # type: ignore[index]


def break_cut(tree: Node) -> None:
    tree.cut = 0.95


@pytest.mark.parametrize(("change", "says"), [(break_sign, "sign of a neuron"), (break_cut, "outside its box")])
def test_what_boxes_cannot_say_is_refused_and_leaves_nothing(tmp_path: Path, change: Callable[[Node], None], says: str) -> None:
    tree = Node()
    tree.divide(0, 0.5, Node(closed=[(0, 1), (1, 0)]), Node(closed=[(0, 1), (1, 0)]))
    change(tree)
    with pytest.raises(checker.Refused, match=says):
        leaves.export(*certificate(tmp_path, tree), tmp_path / "out")
    assert {p.name for p in tmp_path.iterdir()} == {"net.onnx", "odd.vnnlib", "a.cert"}


def test_another_verifier_decides_the_leaves(cli: Cli, here: Path) -> None:  # noqa: F811
    """`check --export`, and the search-free verifier on the list that it writes."""
    hashes = checker.load(here / "net.onnx", here / "safe.vnnlib")[2]
    tree = Node(closed=[])
    first, second = tree.divide(0, 0.875)
    third, fourth = second.divide(2, 0.1875)
    for leaf in (first, third, fourth):
        leaf.inner, leaf.query, leaf.closed = 0, 0, [(0, 0), (1, 0)]
    (here / "a.cert").write_bytes(pack([tree.arrays()], "float32", hashes))
    said = cli("check", "net.onnx", "safe.vnnlib", "a.cert", "--export", "out")
    assert (said.code, said.out) == (0, "unsat\n")
    assert "3 properties" in said.err
    said = cli("run", "--instances", "out/instances.csv", "--workers", "1", "--json", "r.jsonl", "--search", "none")
    assert [json.loads(line)["verdict"] for line in (here / "r.jsonl").read_text().splitlines()] == ["unsat"] * 3
    said = cli("check", "net.onnx", "safe.vnnlib", "a.cert", "--export", "out")
    assert (said.code, said.out) == (2, "")
    assert "new folder" in said.err
    assert cli("check", "net.onnx", "safe.vnnlib", "a.cert", "--export", "none/out").code == 2
    assert cli("check", ".", "--export", "other").code == 2


def test_signs_are_no_properties(cli: Cli, here: Path) -> None:  # noqa: F811
    """A certificate with a neuron's sign is confirmed, and not exported."""
    hashes = checker.load(here / "net.onnx", here / "safe.vnnlib")[2]
    tree = Node()
    for half in tree.divide(4, 0.0):
        half.inner, half.closed = 0, [(0, 0), (1, 0)]
    (here / "a.cert").write_bytes(pack([tree.arrays()], "real", hashes))
    said = cli("check", "net.onnx", "safe.vnnlib", "a.cert", "--export", "out")
    assert (said.code, said.out) == (3, "unsat\n")
    assert "sign of a neuron" in said.err
    assert not (here / "out").exists()


def test_a_grown_tree_is_exported(tmp_path: Path) -> None:
    """What the writer finds for a property that one bound does not prove."""
    net = dense(tmp_path / "net.onnx", [([[1.0], [1.0]], [0.0, -0.5]), ([[1.0, -2.0]], [0.0])])
    spec = prop(tmp_path / "tent.vnnlib", [("0", "1")], 1, "(>= Y_0 0.55)")
    (tmp_path / "a.cert").write_bytes(certify(net, spec))
    assert leaves.export(net, spec, tmp_path / "a.cert", tmp_path / "out") >= 1
    prop(spec, [("0", "1")], 1, "(>= Y_0 0.56)")
    with pytest.raises(checker.Refused, match="belongs to another"):
        leaves.export(net, spec, tmp_path / "a.cert", tmp_path / "more")


def test_each_trees_leaves_are_of_its_own_box_and_pieces(tmp_path: Path) -> None:
    """Trees of two boxes, the second's first, and of one piece each."""
    halves = [f"(and (>= X_0 {k}) (<= X_0 {k + 1}) (or (<= Y_0 {k - 2}) (and (<= Y_0 -99) (>= Y_0 {k}))))" for k in (0, 5)]
    declared = "(declare-const X_0 Real)(declare-const Y_0 Real)"
    files = dense(tmp_path / "n.onnx", [(np.eye(1), np.zeros(1))]), tmp_path / "p.vnnlib", tmp_path / "c"
    files[1].write_text(f"{declared}(assert (or {' '.join(halves)}))")
    boxes = list(checker.load(*files[:2])[1].items())
    trees = [Node(0, 0, [(p, 0)]).arrays(b, [p]) for b in (1, 0) for p in (0, 1)]
    files[2].write_bytes(pack(trees, "real", checker.load(*files[:2])[2]))
    assert min(checker.check(*files).margins) > 0
    assert leaves.export(*files, tmp_path / "out") == 4
    found = []
    for leaf in json.loads((tmp_path / "out" / leaves.INDEX).read_text())["leaves"]:
        ((box, rows),) = unsafe((tmp_path / "out" / leaf["file"]).read_text(), 1, 1).items()
        found.append((box, rows))
    assert found == [(boxes[b][0], [boxes[b][1][p]]) for b in (1, 0) for p in (0, 1)]
