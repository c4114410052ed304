"""From a search to a certificate: the tree that is written is the one that was searched, and the checker follows it with little to add."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import polytriton
from polytriton import checker
from polytriton.certificate import write
from polytriton.certificate.guide import Guide
from polytriton.certificate.trees import PieceNumbers, _plant
from polytriton.cli import main
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.prove.trail import Branch, Planted, Trail
from tests.certificate.models import NODE, model, prop
from tests.prove.piecewise import drawn

Files = tuple[Path, Path]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes of small trees go to the disk too."""
    monkeypatch.setattr("polytriton.prove.notes.BLOCK", 1)


def proved(files: Files, semantics: str, search: str) -> tuple[polytriton.Result, Trail, Any]:
    verifier = polytriton.compile(files[0], semantics=semantics, device="cpu")
    asked, trail = read_vnnlib(files[1], n_in=verifier.inputs, n_out=verifier.outputs), Trail(files[0].parent)
    result = verifier.verify_property(asked, timeout=60, falsifier=False, search=search, trail=trail)
    assert result.verdict == "unsat"
    return result, trail, asked


def confirmed(files: Files, semantics: str, trail: Trail, asked: Any, folder: Path) -> tuple[checker.Checked, Guide]:
    (cert := folder / "c").write_bytes(write.certify(*files, semantics, trail=trail, prop=asked))
    guide = Guide(10_000)
    return checker.check(*files, cert, guide=guide), guide


def sampled(path: Path, inputs: tuple[int, ...], box: list[tuple[float, float]]) -> float:
    """The least first output among many inputs, by onnxruntime."""
    session = polytriton.compile(path, device="cpu")
    low, high = np.array(box).T
    x = np.random.default_rng(0).uniform(low, high, (3000, len(box))).astype(np.float32)
    return float(session.predict(x.reshape(-1, *inputs))[:, 0].min())


def flat(seed: int, path: Path) -> tuple[int, ...]:
    """Dense layers over two inputs."""
    rng = np.random.default_rng(seed)
    onnx.save(drawn(rng, 2, (8, 8)).model(), path)
    return (2,)


def images(path: Path, seed: int, residual: bool) -> tuple[int, ...]:
    """Two convolutions on an image of 2 x 4 x 3 cells, perhaps with a sum around one of them, then dense layers."""
    rng = np.random.default_rng(seed)
    weights = {
        "w": rng.normal(size=(3, 2, 3, 3)) / 3, "b": rng.normal(size=3) / 3,
        "v": rng.normal(size=(3, 3, 3, 3)) / 4, "c": rng.normal(size=3) / 4,
        "m": rng.normal(size=(36, 6)) / 4, "d": rng.normal(size=6) / 4, "n": rng.normal(size=(6, 2)), "e": np.zeros(2),
    }  # fmt: skip
    pads = [1, 1, 1, 1]
    nodes = [NODE("Conv", ["x", "w", "b"], ["p"], pads=pads), NODE("Relu", ["p"], ["q"]), NODE("Conv", ["q", "v", "c"], ["r"], pads=pads)]
    nodes += [NODE("Add", ["r", "q"], ["s"])] if residual else []
    nodes += [NODE("Relu", ["s" if residual else "r"], ["t"]), NODE("Flatten", ["t"], ["f"]), NODE("Gemm", ["f", "m", "d"], ["g"])]
    nodes += [NODE("Relu", ["g"], ["h"]), NODE("Gemm", ["h", "n", "e"], ["y"])]
    model(path, nodes, [1, 2, 4, 3], weights)
    return 2, 4, 3


SEARCHED = [("input", 1.0, 0.05, 10), ("neurons", 1.0, 0.1, 2), ("neurons of images", 0.2, 0.4, 50), ("neurons of sums", 0.2, 0.8, 50)]


@pytest.mark.parametrize(
    ("kind", "radius", "share", "divided", "semantics"),  # what others convert costs more than these margins
    [
        pytest.param(*case, semantics, marks=pytest.mark.slow if ("of" in case[0], semantics) == (True, "float32") else ())
        for semantics in ("real", "float32")
        for case in SEARCHED
    ],
)
def test_the_searchs_tree_is_the_certificates(tmp_path: Path, kind: str, radius: float, share: float, divided: int, semantics: str) -> None:
    """Little is left for the checker to divide: were neurons numbered otherwise, ten times as much would be."""
    path = tmp_path / "n.onnx"
    shape = images(path, 0, kind == "neurons of sums") if "of" in kind else flat(1, path)
    box = [(-radius, radius)] * math.prod(shape)
    least = sampled(path, shape, box)
    text = prop(tmp_path / "p.vnnlib", box, 2 if "of" in kind else 1, f"(<= Y_0 {least - share * (abs(least) + 0.1):.6f})")
    _, trail, asked = proved((path, text), semantics, kind.partition(" ")[0])
    found, guide = confirmed((path, text), semantics, trail, asked, tmp_path)
    cuts = len(trail.divisions())
    assert isinstance(trail.divisions(), np.memmap) and not list(tmp_path.glob(".notes*"))
    assert found.nodes == 2 * cuts + 1 and cuts >= divided
    assert guide.count <= (cuts if "of" in kind else cuts // 4)
    packed = Trail.unpack(trail.pack())
    assert write.certify(path, text, semantics, trail=packed, prop=asked) == (tmp_path / "c").read_bytes()


PIECES = """
(or (and {box} (<= Y_0 -9))
    (and {box} (>= Y_1 9) (<= Y_0 100))
    (and {other} (<= (* 3.0 Y_0) -27.0))
    (and {box} (<= (- Y_0 X_0) -9.5)))
"""


def several(folder: Path) -> Files:
    """Four pieces over two boxes; rows that one bound refutes, among others."""
    onnx.save(drawn(np.random.default_rng(4), 2, (4, 4), 2).model(), path := folder / "n.onnx")
    ends = [" ".join(f"(>= X_{i} {lo}) (<= X_{i} {hi})" for i in range(2)) for lo, hi in ((-0.1, 0.1), (-0.2, 0.1))]
    return path, prop(folder / "p.vnnlib", [(-1, 1)] * 2, 2, PIECES.format(box=ends[0], other=ends[1]))


def test_pieces_and_rows_are_found_by_what_they_say(tmp_path: Path) -> None:
    files = several(tmp_path)
    verifier = polytriton.compile(files[0], device="cpu")
    asked = read_vnnlib(files[1], n_in=2, n_out=2)
    _, pieces, _ = checker.load(*files)
    numbers = PieceNumbers(asked, pieces)
    groups = list(pieces.values())
    assert [len(numbers.places[g]) for g in range(len(asked.disjuncts))] == [1] * 4
    every = {(b, p) for b, g in enumerate(groups) for p in range(len(g))}
    assert {place for places in numbers.places.values() for place in places} == every
    form = 0
    for g, d in enumerate(asked.disjuncts):
        ((b, p),) = numbers.places[g]
        for row in d.rows:
            ((at, r),) = numbers.rows[form]
            said, k = groups[b][p][r]
            by = next(iter(said.values())) / {**{~i: c for i, c in row.y}, **dict(row.x)}[next(iter(said))]
            assert at == p and {v: c / by for v, c in said.items()} == {**{~i: c for i, c in row.y}, **dict(row.x)} and k / by == row.const
            form += 1
    assert verifier.outputs == 2


@pytest.mark.parametrize("semantics", checker.SEMANTICS)
@pytest.mark.parametrize("search", ["none", "input", "neurons"])
def test_what_several_pieces_need(tmp_path: Path, search: str, semantics: str) -> None:
    files = several(tmp_path)
    result, trail, asked = proved(files, semantics, search)
    found, guide = confirmed(files, semantics, trail, asked, tmp_path)
    assert len(found.margins) == 4 and min(found.margins) > 0 and guide.count == 0
    assert {g for g, _ in trail.bounded.items()} <= set(range(4)) and result.margin > 0


def test_what_was_not_noted_is_left_to_the_checker(tmp_path: Path) -> None:
    """No notes at all; a network whose ReLUs the checker counts otherwise; a property that says something else."""
    files = several(tmp_path)
    _, trail, asked = proved(files, "real", "none")
    bare = Trail()
    signs = Trail(relus=(("r", 3),), planted=[Planted(0, 0, (0,), True)])
    signs.names(1)
    other = read_vnnlib(prop(tmp_path / "q.vnnlib", [(-1, 1)] * 2, 2, "(<= Y_0 -50)"), n_in=2, n_out=2)
    for some, says in ((bare, asked), (signs, asked), (trail, other)):
        found, _ = confirmed(files, "real", some, says, tmp_path)
        assert len(found.margins) == 4 and min(found.margins) > 0


def test_a_tree_that_no_certificate_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = flat(1, path := tmp_path / "n.onnx")
    files = path, prop(tmp_path / "p.vnnlib", box := [(-1.0, 1.0)] * 2, 1, f"(<= Y_0 {sampled(path, shape, box) - 0.5:.6f})")
    _, trail, asked = proved(files, "real", "input")
    monkeypatch.setattr("polytriton.certificate.trees.NODES", 2)
    with pytest.raises(checker.Refused, match="more than 2 nodes"):
        write.certify(*files, "real", trail=trail, prop=asked)


def test_writing_takes_few_bytes_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole tree of 17 levels, noted leaf by leaf: its numbers and those of the file, beside next to nothing for the notes."""

    class Numbers:
        places, rows = {0: [(0, 0)]}, {0: [(0, 0)]}

    monkeypatch.setattr("polytriton.prove.notes.BLOCK", 1 << 20)
    trail = Trail(tmp_path)
    level = np.array([trail.plant(0, [0], signs=False)])
    for _ in range(16):
        names = trail.names(2 * len(level))
        trail.divide(level, np.zeros(len(level)), np.zeros(len(level)), names[::2], names[1::2])
        level = names
    trail.close(level, np.zeros(len(level)))
    tracemalloc.start()
    try:
        (draft,) = _plant(trail.planted, trail, Numbers(), [1, 1], True)  # type: ignore[arg-type]
        data = write.pack([draft.arrays()], "real", {"onnx": "", "vnnlib": ""})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    nodes = len(draft.split)
    assert nodes == (1 << 17) - 1 and np.array_equal(draft.closed[:, 0], np.arange(nodes // 2, nodes))
    assert peak - len(data) < 70 * nodes and len(data) < 27 * nodes


def test_numbers_of_branches_and_of_others_fit_together(tmp_path: Path) -> None:
    """What a helper found out about a batch, and what a search of its own forms did, in one trail."""
    trail = Trail(tmp_path)
    root = trail.plant(3, [5, 6], signs=False)
    names = trail.names(4)
    helper_ = Trail(first=int(names[0]))
    kids = helper_.names(2)
    zero = np.zeros(1)
    helper_.divide(np.array([root]), np.array([1]), zero, kids[:1], kids[1:])
    helper_.close(kids, np.array([8, 9]))
    trail.add(helper_)
    branch = Branch(trail, 7, np.array([20, 21]), np.array([30, 31]))
    below = branch.plant([1])
    pair = trail.names(2)
    trail.divide(np.array([below]), np.array([~2]), zero, pair[:1], pair[1:])
    branch.close(pair, np.array([1, 1]))
    trail.relus = (("r", 4),)
    assert [(p.box, p.groups, p.signs) for p in trail.planted] == [(3, (5, 6), False), (7, (31,), True)]
    assert len({root, *names.tolist(), below, *pair.tolist()}) == 8 == trail.end
    assert trail.divisions().tolist() == [(root, 1, 0.0, kids[0], kids[1]), (below, ~2, 0.0, pair[0], pair[1])]
    assert trail.refutations().tolist() == [*zip([*kids, *pair], [8, 9, 21, 21], strict=True)]
    again = Trail.unpack(trail.pack())
    assert (again.planted, again.end, again.relus, again.bounded) == (trail.planted, trail.end, trail.relus, trail.bounded)
    assert again.divisions().tolist() == trail.divisions().tolist() and again.refutations().tolist() == trail.refutations().tolist()


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_the_commands_write_what_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], workers: str
) -> None:
    """In this process and in others: nobody searches again."""
    monkeypatch.setattr(write, "seek", lambda *_: pytest.fail("a second search"))
    monkeypatch.chdir(tmp_path)
    onnx.save(drawn(np.random.default_rng(0), 2, (8, 8)).model(), path := tmp_path / "n.onnx")
    text = prop(tmp_path / "p.vnnlib", [(-1, 1)] * 2, 1, f"(<= Y_0 {sampled(path, (2,), [(-1, 1)] * 2) - 0.3:.4f})")
    assert main(["verify", str(path), str(text), "--certificate", "a.cert", "--semantics", "real"]) == 0
    told = capfd.readouterr()
    assert told.out.startswith("unsat") and "polytriton check" in told.err
    assert main(["check", str(path), str(text), "a.cert"]) == 0
    (tmp_path / "l.csv").write_text("n.onnx,p.vnnlib,60\n" * 2)
    run = ["run", "--instances", "l.csv", "--search", "auto", "--json", "r.jsonl", "--certificates", "c", "--overwrite"]
    assert main([*run, "--workers", workers]) == 0
    assert "certificates of 2 of 2 unsat" in capfd.readouterr().err
    assert main(["check", "r.jsonl", "--certificates", "c"]) == 0
