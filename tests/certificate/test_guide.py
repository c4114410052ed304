"""What divides a certificate's tree further: it finds trees that need nobody, within limits, and whatever it says proves nothing false."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from polytriton import checker, checker_slopes
from polytriton.certificate import guide as guides
from polytriton.certificate.draft import Draft
from polytriton.certificate.guide import Guide, complete
from polytriton.checker_slopes import Choice
from tests.certificate.models import NODE, certify, change, dense, model, prop, random_tree
from tests.prove.piecewise import Form, Small, drawn, least

Files = tuple[Path, Path]
DIVIDED = ("real", "float32")  # what others convert, no division of these small networks makes up for


def case(folder: Path, seed: int, gap: float, rows: int = 1) -> tuple[Files, Small]:
    """A small network, and that its output stays above its exact minimum less `gap`."""
    rng = np.random.default_rng(seed)
    net = drawn(rng, 2, (5, 4))
    onnx.save(net.model(), path := folder / "n.onnx")
    best, _ = least(net, [Form((Fraction(1),), (Fraction(0),) * 2, Fraction(0))], [Fraction(-1)] * 2, [Fraction(1)] * 2)
    asked = " ".join(["(<= Y_0 1e6)"] * (rows - 1) + [f"(<= Y_0 {float(best) - gap})"])
    return (path, prop(folder / "p.vnnlib", [(-1, 1)] * 2, 1, f"(and {asked})" if rows > 1 else asked)), net


def opened(files: Files, semantics: str) -> tuple[checker.Prover, Any, Any]:
    net, pieces, _ = checker.load(*files)
    ((box, group),) = pieces.items()
    return checker.plain(checker.Prover)(net.data, semantics), box, group


def follow(prover: checker.Prover, box: Any, group: Any, tree: checker.Tree, guide: checker.Divider | None = None) -> dict[int, float]:
    return checker.plain(checker.follow)(prover, box, group, tree, np.ones(len(tree.split), bool), lambda n: None, guide)  # type: ignore[no-any-return]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("few", [64, 0])
@pytest.mark.parametrize("semantics", DIVIDED)
@pytest.mark.parametrize("seed", range(4))
def test_a_completed_tree_needs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int, semantics: str, seed: int) -> None:
    """By cuts or signs, from a root or from any tree that says nothing false; margins are the same, and every row is named."""
    monkeypatch.setattr(guides, "FEW", few)
    files, net = case(tmp_path, seed, 0.05, rows=1 + seed % 2)
    prover, box, group = opened(files, semantics)
    divided = 0
    for k in range(4):
        root = checker.Tree(Draft(0, [0]).arrays())
        if k:
            drawn_ = random_tree(np.random.default_rng(k), 2, sum(len(b) for _, b in net.layers[:-1]), 1)
            try:
                root = checker.Tree(drawn_.arrays())
                follow(prover, box, group, root, Guide(1000))
            except checker.Refused:  # cuts outside their boxes, signs assumed twice
                continue
        guide = Guide(1000)
        margins = follow(prover, box, group, root, guide)
        tree = checker.Tree(guide.complete(root).arrays())
        assert follow(prover, box, group, tree) == pytest.approx(margins, rel=1e-3)
        more = sum(split >= 0 for (split, *_), _ in guide.below.values())
        assert len(tree.split) == len(root.split) + 2 * more
        divided += more
        ends = set(np.flatnonzero(tree.child < 0).tolist())
        assert all(len(tree.rows_at(n, frozenset([0]), group)) == 1 for n in ends & set(tree.node.tolist()))
    assert divided


def test_it_ends_where_it_must(tmp_path: Path) -> None:
    files, _ = case(tmp_path, 1, 0.0)  # reached: nobody ends
    prover, box, group = opened(files, "real")
    root = checker.Tree(Draft(0, [0]).arrays())
    seen: list[int] = []
    with pytest.raises(checker.Refused, match="still open after 40 divisions"):
        follow(prover, box, group, root, Guide(40, progress=lambda stage, done, total: seen.append(done)))
    assert max(seen) <= 41
    with pytest.raises(checker.Refused, match="time"):
        follow(prover, box, group, root, Guide(1 << 40, time.monotonic() - 1))
    with pytest.raises(checker.Refused, match="left open"):
        follow(prover, box, group, root)


def test_a_point_is_not_divided(tmp_path: Path) -> None:
    path = dense(tmp_path / "n.onnx", [(np.array([[1.0]]), np.zeros(1))])
    files = path, prop(tmp_path / "p.vnnlib", [("0.1", "0.1")], 1, "(<= Y_0 0.1)")
    prover, box, group = opened(files, "real")
    with pytest.raises(checker.Refused, match=r"divides|undecided"):
        follow(prover, box, group, checker.Tree(Draft(0, [0]).arrays()), Guide(1000))


class Liar:
    """Says whatever comes to its mind."""

    def __init__(self, rng: np.random.Generator, cells: int) -> None:
        self.rng, self.cells, self.left, self.cuts = rng, cells, 40, bool(rng.random() < 0.5)

    def divide(self, prover: checker.Prover, pieces: Any, boxes: checker.Boxes, left: list[Any], at: np.ndarray) -> list[checker.Hint]:
        self.left -= len(left)
        checker.need(self.left > 0, "enough", checker.Refused)
        rng = self.rng
        splits = [-1, *range(2 + self.cells)] if rng.random() < 0.97 else [2 + self.cells, 10**9]
        cuts = [float(rng.normal() / 3)] if rng.random() < 0.97 else [np.nan, np.inf, -1.0, 1.0]
        hints = [(int(rng.choice(splits)), float(rng.choice(cuts)), int(rng.integers(-3, 3)), int(rng.integers(-2, 3))) for _ in left]
        return hints if rng.random() < 0.99 else hints[1:]

    def note(self, node: int, piece: int, row: int) -> None:
        pass


def count_proved(folder: Path, semantics: str, seeds: range) -> int:
    """How often a liar proved what is true, by chance; what is reached is never proved."""
    proved = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        for gap in (0.0, 0.2 if semantics in DIVIDED else 2.0):
            files, net = case(folder, seed, gap)
            prover, box, group = opened(files, semantics)
            for _ in range(6):
                tree = checker.Tree(random_tree(rng, 2, 9, 1, int(rng.integers(0, 3))).arrays())
                with suppress(checker.Refused, ValueError):  # the latter where answers are fewer than questions
                    follow(prover, box, group, tree, Liar(rng, sum(len(b) for _, b in net.layers[:-1])))
                    assert gap
                    proved += 1
    return proved


@pytest.mark.parametrize("semantics", checker.SEMANTICS)
def test_whatever_it_says_proves_nothing_false(tmp_path: Path, semantics: str) -> None:
    assert count_proved(tmp_path, semantics, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("semantics", checker.SEMANTICS)
def test_much_that_it_says_proves_nothing_false(tmp_path: Path, semantics: str) -> None:
    assert count_proved(tmp_path, semantics, range(3, 12)) > 3


def test_it_changes_nothing_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does what chooses slopes: whoever need not be trusted must not write to what the checker reads afterwards."""
    asked = [0]

    def lock(boxes: checker.Boxes) -> None:
        asked[0] += 1
        held = [v for some in (boxes.lo, boxes.hi, boxes.mid, boxes.rad, boxes.mag, boxes.R, boxes.T, boxes.M, boxes.E) for v in some]
        for v in (*held, *(v for some in (*boxes.z.values(), *boxes.lines.values()) for v in some), *boxes.signs.values()):
            v.setflags(write=False)

    def choose(boxes: checker.Boxes, draft: Any, start: Any, at: Any, steps: int, goal: Any) -> Choice:
        lock(boxes)
        for v in (*start.values(), at, goal):
            v.setflags(write=False)
        empty = boxes.empty.copy()  # the checker writes here itself
        made = checker_slopes.ascend(boxes, draft, start, at, steps, goal)
        assert (boxes.empty == empty).all()
        return made

    class Locked(Guide):
        def divide(self, prover: checker.Prover, pieces: Any, boxes: checker.Boxes, left: list[Any], at: np.ndarray) -> list[checker.Hint]:
            lock(boxes)
            for part in (w.part for w in left):
                for v in (part.lo, part.hi, part.signs, part.low, part.high):
                    v.setflags(write=False)
            return super().divide(prover, pieces, boxes, left, at)

    monkeypatch.setattr(checker.Boxes, "choose", choose)
    for few in (64, 0):
        monkeypatch.setattr(guides, "FEW", few)
        files, _ = case(tmp_path, 2, 0.05)
        prover, box, group = opened(files, "float32")
        guide = Locked(1000)
        follow(prover, box, group, checker.Tree(Draft(0, [0]).arrays()), guide)
        assert guide.count
    assert asked[0] > 20


def test_the_command_divides_further(tmp_path: Path) -> None:
    """Leaves that name no row, and a root in place of a tree."""
    files, _ = case(tmp_path, 3, 0.05)
    data = certify(*files)
    none = change(data, lambda t: t.update({f"0.{n}": t[f"0.{n}"][:0].copy() for n in ("node", "piece", "row")}))
    first = {"split": -1, "cut": 0.0, "inner": 0, "query": 0}

    def root(t: dict[str, Any]) -> None:
        t.update({f"0.{n}": np.array([v], t[f"0.{n}"].dtype) for n, v in first.items()})
        t.update({f"0.{n}": t[f"0.{n}"][:0].copy() for n in ("node", "piece", "row")})

    (cert := tmp_path / "c").write_bytes(none)
    assert checker.check(*files, cert).margins[0] > 0
    cert.write_bytes(change(data, root))
    with pytest.raises(checker.Refused, match="left open"):
        checker.check(*files, cert)
    found = checker.check(*files, cert, guide=Guide(1000))
    assert found.margins[0] > 0 and found.nodes == found.leaves == 1


def test_of_several_pieces_none_is_forgotten(tmp_path: Path) -> None:
    """Trees about one piece each, or about the same; and one that leaves a piece out."""
    path = dense(tmp_path / "n.onnx", [(np.array([[1.0]]), np.zeros(1))])
    files = path, prop(tmp_path / "p.vnnlib", [(0, 1)], 1, "(or (<= Y_0 -1) (>= Y_0 2))")
    from polytriton.certificate.write import pack

    hashes = checker.load(*files)[2]
    cert = tmp_path / "c"
    for own, right in (([[0], [1]], True), ([[0, 1], [1]], True), ([[1, 0]], True), ([[0]], False), ([[1], [1]], False), ([], False)):
        cert.write_bytes(pack([Draft(0, some).arrays() for some in own], "real", hashes))
        if right:
            assert min(checker.check(*files, cert).margins) == pytest.approx(1, abs=1e-6)
        else:
            with pytest.raises(checker.Refused, match="no tree is about"):
                checker.check(*files, cert)


def test_what_floats_do_not_prove_is_left_as_it_is(tmp_path: Path) -> None:
    files, _ = case(tmp_path, 1, 0.0)
    prover, box, group = opened(files, "real")
    root = checker.Tree(Draft(0, [0]).arrays())
    assert guides.Completion()(prover, box, group, checker.Tree(Draft(0, [0]).arrays())).split.tolist() == root.split.tolist()
    with pytest.raises(checker.Refused):
        complete(prover, box, group, root, Guide(10))


@pytest.mark.parametrize(("margin", "right"), [(Fraction(0), False), (Fraction(1, 10**40), True), (Fraction(-1), False)])
def test_a_bound_of_zero_refutes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, margin: Fraction, right: bool) -> None:
    files, _ = case(tmp_path, 1, 0.0)
    prover, box, group = opened(files, "real")
    ends = np.full(2, -np.inf), np.full(2, np.inf)
    monkeypatch.setattr(checker.Boxes, "margins", lambda boxes, draft, rows, at, steps: ([margin] * len(rows), [ends] * len(rows)))
    root = checker.Tree(Draft(0, [0]).arrays())
    if right:
        assert follow(prover, box, group, root)[0] > 0
    else:
        with pytest.raises(checker.Refused, match="left open"):
            follow(prover, box, group, root)


def test_a_piece_that_is_reached_is_not_refuted_beside_one_that_is_not(tmp_path: Path) -> None:
    """In one tree, in any order; and below nodes that nobody bounds."""
    path = dense(tmp_path / "n.onnx", [(np.array([[1.0]]), np.zeros(1))])
    for k, rows in enumerate(("(<= Y_0 -1) (>= Y_0 1)", "(>= Y_0 1) (<= Y_0 -1)")):
        files = path, prop(tmp_path / f"{k}.vnnlib", [(0, 1)], 1, f"(or {rows})")
        prover, box, group = opened(files, "real")
        split = np.array([0, -1, -1])
        for inner in (-1, 0):
            trees = Draft(0, [0, 1]), Draft(0, [0, 1], split, np.full(3, 0.5), np.full(3, inner), np.zeros(3, np.int64))
            for tree in trees:
                with pytest.raises(checker.Refused, match="left open"):
                    follow(prover, box, group, checker.Tree(tree.arrays()))
                with pytest.raises(checker.Refused, match=r"divides|undecided|divisions"):
                    follow(prover, box, group, checker.Tree(tree.arrays()), Guide(100))


def test_nodes_are_bounded_in_few_ways(tmp_path: Path) -> None:
    """Those of one way are sought together, which must not take as long as there are nodes."""
    n = 2 * checker.WAYS + 1
    split = np.where(np.arange(n) < n // 2, 0, -1)
    steps = np.arange(n)
    with pytest.raises(checker.Refused, match="ways"):
        checker.Tree(Draft(0, [0], split, np.zeros(n), np.zeros(n), steps).arrays())
    checker.Tree(Draft(0, [0], split, np.zeros(n), np.zeros(n), steps % checker.WAYS).arrays())


def test_a_part_without_undecided_neurons_is_bounded_with_more_steps(tmp_path: Path) -> None:
    files, _ = case(tmp_path, 1, 0.0)
    prover, box, group = opened(files, "real")
    n = int(prover.first[-1])
    part = prover.root(box, [0])._replace(signs=np.ones(n, np.int8))
    guide, boxes = Guide(1000), prover.bound([part], 0)[0]
    ((split, _, _, query),) = guide.divide(prover, group, boxes, [checker.Work(-1, 50, 50, part)], np.zeros(1, np.int64))
    assert split == -1 and query == guides.LAST
    with pytest.raises(checker.Refused, match="undecided"):
        guide.divide(prover, group, boxes, [checker.Work(-2, 50, query, part)], np.zeros(1, np.int64))


def test_a_cut_keeps_what_reaches_any_piece(tmp_path: Path) -> None:
    """All rows of a piece together, the box around what each piece leaves; a piece without a row leaves everything."""
    files, _ = case(tmp_path, 0, 0.1)
    prover, box, _ = opened(files, "real")
    part = prover.root(box, [0, 1])

    def cut(*pieces: list[tuple[tuple[float, float], tuple[float, float]]]) -> list[list[float]]:
        made = prover.cut(part, [[(np.array(lo), np.array(hi)) for lo, hi in some] for some in pieces])
        return [made.lo.tolist(), made.hi.tolist()]

    first, second = ((-1.0, -1.0), (-0.5, 1.0)), ((-1.0, 0.25), (1.0, 1.0))
    assert cut([first]) == [[-1, -1], [-0.5, 1]]
    assert cut([first, second]) == [[-1, 0.25], [-0.5, 1]]
    assert cut([first], [second]) == [[-1, -1], [1, 1]]
    assert cut([((0.5, 0.0), (1.0, 0.5))], [((-0.5, 0.25), (0.75, 0.75))]) == [[-0.5, 0.0], [1, 0.75]]
    assert cut([first], []) == cut([first, ((0.0, -1.0), (1.0, 1.0))]) == [[-1, -1], [1, 1]]


def test_a_piece_without_rows_is_reached_everywhere(tmp_path: Path) -> None:
    """Beside one that a row cuts to nothing much: no cut makes it go away."""
    path = dense(tmp_path / "n.onnx", [(np.array([[1.0]]), np.zeros(1))])
    files = path, prop(tmp_path / "p.vnnlib", [(0, 1)], 1, "(or (<= Y_0 0.25) (<= X_0 1))")
    prover, box, group = opened(files, "real")
    seen = []

    class Watching(Guide):
        def divide(self, prover: checker.Prover, pieces: Any, boxes: checker.Boxes, left: list[Any], at: np.ndarray) -> list[checker.Hint]:
            seen.extend((w.part.lo[0], w.part.hi[0]) for w in left)
            raise checker.Refused("enough")

    assert [] in group
    with pytest.raises(checker.Refused, match="enough"):
        follow(prover, box, group, checker.Tree(Draft(0, [0, 1]).arrays()), Watching(10, cuts=True))
    assert seen == [(0.0, 1.0)]


@pytest.mark.parametrize("semantics", DIVIDED)
def test_cuts_spare_divisions(tmp_path: Path, semantics: str) -> None:
    counts = [0, 0]
    for seed in range(4):
        files, _ = case(tmp_path, seed, 0.01)
        prover, box, group = opened(files, semantics)
        for cuts in (False, True):
            follow(prover, box, group, checker.Tree(Draft(0, [0]).arrays()), guide := Guide(1000, cuts=cuts))
            counts[cuts] += guide.count
    assert 0 < counts[True] < 0.8 * counts[False]


@pytest.mark.parametrize("semantics", checker.SEMANTICS)
def test_relus_of_one_value_are_one(tmp_path: Path, semantics: str) -> None:
    """relu(z) - relu(z) is nothing, in one bound, in another shape too; of two values it is something."""
    consts = {"w": [[1.0, -2.0]], "b": [0.5], "v": [[1.0, -1.5]], "s": np.array([1], dtype=np.int64), "t": np.array([1, 1], dtype=np.int64)}
    spec = prop(tmp_path / "p.vnnlib", [(-1, 1)] * 2, 1, "(or (<= Y_0 -1e-4) (>= Y_0 1e-4))")
    for other in ("z", "u"):
        nodes = [
            NODE("Gemm", ["x", "w", "b"], ["z"], transB=1), NODE("Gemm", ["x", "v", "b"], ["u"], transB=1), NODE("Relu", ["z"], ["p"]),
            NODE("Reshape", [other, "s"], ["flat"]), NODE("Relu", ["flat"], ["r"]), NODE("Reshape", ["r", "t"], ["q"]),
            NODE("Sub", ["p", "q"], ["y"]),
        ]  # fmt: skip
        files = model(tmp_path / f"{other}.onnx", nodes, [1, 2], consts), spec
        prover, box, group = opened(files, semantics)
        assert len(prover.relus) == (1 if other == "z" else 2)
        with nullcontext() if other == "z" else pytest.raises(checker.Refused):
            follow(prover, box, group, checker.Tree(Draft(0, [0, 1]).arrays()))


@pytest.mark.parametrize("semantics", checker.SEMANTICS)
def test_a_sum_that_overflows_cuts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, semantics: str) -> None:
    """With a huge multiplier partial sums are infinite where the sum is not: a bound of +inf, or the largest float, which lies below it,
    would cut a box to a corner. The middle plus 1/128 everywhere is unsafe.
    """
    path = dense(tmp_path / "n.onnx", [(np.ones((1, 4)), np.zeros(1)), (np.ones((1, 1)), np.zeros(1))])

    class Cutting(Guide):
        def divide(self, prover: checker.Prover, pieces: Any, boxes: checker.Boxes, left: list[Any], at: np.ndarray) -> list[checker.Hint]:
            self.count += len(left)
            checker.need(self.count < 40, "enough", checker.Refused)
            return [(-1 if w.part.signs[0] else 4, 0.0, 0, 5) for w in left]

    def huge(self: checker.Boxes, draft: object, start: dict[int, np.ndarray], at: np.ndarray, steps: int, goal: object) -> Choice:
        lines = {2: (np.ones((1, len(at))), np.full((1, len(at)), 1e308))}
        return Choice(lines if 2 in self.lines and max(start) > 2 else {}, None, None)

    monkeypatch.setattr(checker.Boxes, "choose", huge)
    for middles in sorted(set(permutations([-1, -1, 1, 1]))):
        spec = prop(tmp_path / "p.vnnlib", [(v - 0.125, v + 0.125) for v in middles], 1, "(and (<= Y_0 0.0625) (>= Y_0 0.015625))")
        prover, box, group = opened((path, spec), semantics)
        with pytest.raises(checker.Refused):
            follow(prover, box, group, checker.Tree(Draft(0, [0]).arrays()), Cutting(100, cuts=True))
