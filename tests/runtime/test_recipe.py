"""Recipes: boxes, tables and bounds are bit for bit those of the engine that makes every table when it is asked for."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch

from polytriton.ir.net import Builder, Net
from polytriton.passes.pipeline import compile_net
from polytriton.runtime import centres, kit
from polytriton.runtime.cpu import blocks, recipe, recipe_loop, recipe_record, tape_record, vectors
from polytriton.runtime.cpu.walk import Walk
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.lines import input_lines
from polytriton.runtime.results import Forms
from polytriton.runtime.walker import Walker
from tests.oracle.nets import random_box, random_net

Numbers = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def _machine() -> None:
    if not blocks.is_available():
        pytest.skip("LLVM makes no tiles here")


def chain(sizes: tuple[int, ...], seed: int = 1, like: type = np.float32, attrs: dict[str, int] | None = None) -> Net:
    rng, b = np.random.default_rng(seed), Builder("chain")
    x, before = b.input((sizes[0],)), sizes[0]
    for k, size in enumerate(sizes[1:]):
        x = x if k == 0 else b.add("relu", (x,))
        w, c = rng.standard_normal((size, before)) / np.sqrt(before), rng.standard_normal(size) * 0.3
        x, before = b.add("linear", (x,), w=b.constant(w.astype(like)), b=b.constant(c.astype(like)), **(attrs or {})), size
    return b.build(x)


def first_relu() -> Net:
    """A ReLU of the input itself, and inputs in an order of their own."""
    b = Builder("first")
    rng = np.random.default_rng(3)
    x = b.add("relu", (b.input((1, 2, 3)),))
    for size, before in ((7, 6), (5, 7), (2, 5)):
        w = rng.standard_normal((size, before)).astype(np.float32)
        x = b.add("linear", (x,), w=b.constant(w), b=b.constant(np.zeros(size, np.float32)))
        x = x if size == 2 else b.add("relu", (x,))
    return b.build(x)


NETS: dict[str, Callable[[], Net]] = {
    "acas": lambda: chain((5, 12, 13, 12, 5)),
    "one hidden": lambda: chain((4, 9, 3)),
    "centred": lambda: chain((6, 40, 66, 61, 4), seed=2),
    "float64 weights": lambda: chain((5, 11, 12, 3), like=np.float64),
    "merged": lambda: chain((5, 11, 12, 3), attrs={"slack": 3, "ops": 2, "products": 2}),
    "given summands": lambda: chain((5, 11, 12, 3), attrs={"summands": 40}),
    "first": first_relu,
}


def asked_tables(engine: Engine, boxes: Boxes) -> dict[str, torch.Tensor]:
    """Every table that programs of dense layers and ReLUs may read."""
    made, found = engine.tables(boxes), dict[str, torch.Tensor]()
    for node in engine.net:
        name = node.name
        several = {"box": made.box(name), "sizes": (made.absmax(name), made.sum_absmax(name), made.floor(name))}
        if node.op == "relu":
            lines = made.lines(node)
            several["lines"] = tuple(v for v in (lines.below, lines.above, lines.lower_cut, lines.upper_cut, lines.gap) if v is not None)
        if node.op == "linear":
            several |= {"charge": made.charge(name), "first": (made.first(name),), "centre": made.centre_tables(name) or ()}
        found |= {f"{what} {k} of {name}": v for what, those in several.items() for k, v in enumerate(those)}
    return found


def ask(net: Net, semantics: str, candidates: str, batch: int, every: bool, kind: str, threads: int) -> Numbers:
    """Everything that a batch is told, and all tables."""
    engine, rng = Engine(compile_net(net, candidates), semantics=semantics, threads=threads), np.random.default_rng(5)
    found: Numbers = {}
    for turn in range(2):  # the first of a network writes its recipe
        count = batch + turn
        lo, hi = (torch.from_numpy(v).reshape(count, -1) for v in random_box(rng, net, kind, count))
        known = None
        if turn:
            wide = engine.interval(lo, hi)
            known = {name: (wide.lo[name] * 0.75, wide.hi[name] * 0.75) for name in list(engine.programs)[:1]}
        boxes = engine.refine(lo, hi, known=known, every=every)
        outputs = net.by_name[net.output].size
        forms = Forms(torch.arange(count).repeat_interleave(3), torch.from_numpy(rng.standard_normal((3 * count, outputs))))
        for groups in (None, torch.arange(3 * count) // 2):
            results = engine.query(boxes, forms, groups)
            found |= {f"{turn} best {groups is None}": results.best.numpy(), f"{turn} raw {groups is None}": results.raw.numpy()}
        lines = input_lines(engine, boxes, forms, None)
        found |= {f"{turn} slopes": lines.slopes.numpy(), f"{turn} constant": lines.constant.numpy(), f"{turn} slack": lines.slack.numpy()}
        for what in ("lo", "hi", "magnitude", "error"):
            found |= {f"{turn} {what} {name}": v.numpy().copy() for name, v in getattr(boxes, what).items()}
        found |= {f"{turn} {what}": v.numpy().copy() for what, v in asked_tables(engine, boxes).items()}
        found[f"{turn} counts"] = np.array([engine.tally.ops, *engine.tally.rows.values()])
    return found


def compare(net: Net, monkeypatch: pytest.MonkeyPatch, *how: object) -> int:
    """How many batches were made by a recipe; the others' numbers are the same."""
    begun = list[int]()

    class Noted(recipe.Filling):
        def __init__(self, made: recipe.Recipe, own: kit.Kit, start: Boxes) -> None:
            begun.append(start.batch)
            super().__init__(made, own, start)

    with monkeypatch.context() as patch:
        patch.setattr("polytriton.runtime.walker.Filling", Noted)
        got = ask(net, *how)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(Walker, "begin_recipe", lambda self, start: None)
        want = ask(net, *how)  # type: ignore[arg-type]
    assert want.keys() <= got.keys()
    for name, value in want.items():
        assert got[name].shape == value.shape and np.array_equal(got[name], value, equal_nan=True), name
    return len(begun)


@pytest.mark.parametrize("semantics", ["real", "float32", "tf32", "bf16"])
@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("name", NETS)
def test_a_recipe_makes_the_same_numbers(name: str, candidates: str, semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch, every, kind in ((1, True, "ordinary"), (3, False, "ordinary"), (6, False, "touching")):
        assert compare(NETS[name](), monkeypatch, semantics, candidates, batch, every, kind, 1) == 2


@pytest.mark.parametrize("kind", ["zero", "ulp", "tiny", "huge"])
def test_odd_boxes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(NETS["centred"](), monkeypatch, "float32", "all", 4, False, kind, 1) == 2


def test_numbers_that_are_no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights so large that sums are infinite, and bounds none."""
    b = Builder("wild")
    x = b.add("linear", (b.input((3,)),), w=b.constant(np.full((6, 3), 1e300)), b=b.constant(np.zeros(6)))
    x = b.add("linear", (b.add("relu", (x,)),), w=b.constant(np.full((6, 6), -1e300)), b=b.constant(np.zeros(6)))
    x = b.add("linear", (b.add("relu", (x,)),), w=b.constant(np.eye(2, 6)), b=b.constant(np.zeros(2)))
    for semantics in ("real", "float32"):
        assert compare(b.build(x), monkeypatch, semantics, "all", 3, True, "ordinary", 1) == 2


def test_rows_that_threads_share(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(NETS["centred"](), monkeypatch, "float32", "all", 300, True, "ordinary", 2) == 2


def test_every_centre_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(centres, "FEW", 2)
    assert compare(NETS["acas"](), monkeypatch, "float32", "all", 5, False, "ordinary", 1) == 2


def test_what_has_no_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that leave cells out, float16's flushes, other operators."""
    acas = NETS["acas"]()
    assert compare(acas, monkeypatch, "float16", "all", 2, True, "ordinary", 1) == 0
    with monkeypatch.context() as patch:
        patch.setattr(kit, "COMPACT", 8)
        assert compare(acas, monkeypatch, "real", "all", 1, True, "ordinary", 1) == 0
    with monkeypatch.context() as patch:
        patch.setattr(vectors, "LEAST", 8)
        assert compare(acas, monkeypatch, "real", "all", 1, True, "ordinary", 1) == 0
    for seed in range(12):
        net = random_net(np.random.default_rng(seed))
        if any(n.op not in ("input", "linear", "relu") for n in net):
            assert compare(net, monkeypatch, "real", "all", 2, True, "ordinary", 1) == 0


def test_a_table_that_no_line_makes_is_no_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tape with the address of something that was made for one batch, and that tables do not hold."""
    begin = tape_record._Writer.__init__

    def begin_with_more(self: tape_record._Writer, *given: object) -> None:
        begin(self, *given)  # type: ignore[arg-type]
        self._pay(0.0, torch.zeros(self.tables.boxes.batch, dtype=torch.float64))

    net = NETS["acas"]()
    start = torch.zeros(1, 5).double(), torch.ones(1, 5).double()
    for known in (True, False):
        if not known:
            monkeypatch.setattr(tape_record._Writer, "__init__", begin_with_more)
        engine = Engine(compile_net(net))
        assert recipe_record.is_chain(engine.kit)
        assert (engine.walker.begin_recipe(engine.forward.start(*start)) is not None) == known


def test_a_result_keeps_its_numbers_while_others_are_made() -> None:
    net = NETS["acas"]()
    engine, rng = Engine(compile_net(net)), np.random.default_rng(1)
    lo, hi = (torch.from_numpy(v).reshape(2, -1) for v in random_box(rng, net, "ordinary", 2))
    first = engine.refine(lo, hi)
    kept = {name: v.clone() for name, v in first.lo.items()}
    forms = Forms(torch.arange(2), torch.from_numpy(rng.standard_normal((2, 5))))
    best = engine.query(first, forms).best
    for _ in range(3):
        engine.query(engine.refine(lo - 1, hi + 1), forms)
    assert all(torch.equal(first.lo[name], v) for name, v in kept.items())
    assert torch.equal(engine.query(first, forms).best, best)


def test_memory_is_lent_again_when_nothing_refers_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "WORTH", 10)
    memories = recipe.Memories()
    first = memories.take(100)
    place, view = first.data_ptr(), first.as_strided((10,), (1,), 5).numpy()[2:]
    del first
    other = memories.take(100)  # the view's number must stay
    other.fill_(-1.0)
    kept = view.copy()
    assert other.data_ptr() != place and np.array_equal(view, kept)
    del view
    third = memories.take(60)
    assert third.data_ptr() == place and len(third) == 60
    del other, third
    assert memories.take(1000).data_ptr() != place and memories.take(20).data_ptr() != place  # too small, and too large


def test_a_batch_is_let_go_of_without_a_search_for_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "WORTH", 10)
    net, made = NETS["acas"](), list[weakref.ref[recipe.MadeTables]]()
    engine, begin = Engine(compile_net(net)), recipe.MadeTables.__init__

    def note(self: recipe.MadeTables, own: recipe.Recipe, batch: int) -> None:
        made.append(weakref.ref(self))
        begin(self, own, batch)

    monkeypatch.setattr(recipe.MadeTables, "__init__", note)
    forms = Forms(torch.arange(2), torch.ones(2, 5).double())
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            boxes = engine.refine(torch.zeros(2, 5).double(), torch.ones(2, 5).double())
            engine.query(boxes, forms)
            input_lines(engine, boxes, forms, None)
            del boxes
        assert len(made) == 3 and all(ref() is None for ref in made)
    finally:
        gc.enable()


def test_batches_in_memory_that_was_lent_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "WORTH", 10)
    assert compare(NETS["centred"](), monkeypatch, "float32", "all", 7, False, "ordinary", 1) == 2


def test_tables_are_there_only_once_they_are_made() -> None:
    """Between two nodes nobody is handed memory in which nothing stands yet."""
    net = NETS["centred"]()
    engine = Engine(compile_net(net))
    filling = engine.walker.begin_recipe(engine.forward.start(torch.zeros(1, 6).double(), torch.ones(1, 6).double()))
    assert filling is not None
    seen, whats = {net.input.name}, {what for what, _ in filling.recipe.places}

    def made() -> set[tuple[str, str]]:
        return {(what, n.name) for n in net for what in whats if filling.maker.has(n.name, what)}

    assert not made()
    for node in filling.nodes():
        assert {name for _, name in made()} == seen | ({node.name} if ("first", node.name) in made() else set())
        assert {what for what, name in made() if name == node.name} <= {"first"}
        assert set(filling.boxes.lo) == seen | {node.name}
        seen.add(node.name)
    assert {name for _, name in made()} == seen


def test_lines_say_what_loops_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled loop and the interpreted one."""
    net = NETS["centred"]()
    want = ask(net, "float32", "all", 2, False, "ordinary", 1)
    monkeypatch.setattr(recipe, "follow", recipe_loop._follow)
    got = ask(net, "float32", "all", 2, False, "ordinary", 1)
    assert all(np.allclose(got[name], value, rtol=1e-12, atol=0, equal_nan=True) for name, value in want.items())


def test_small_products() -> None:
    rng = np.random.default_rng(2)
    for rows, terms, outputs in ((1, 1, 1), (2, 5, 3), (3, 4, 7), (5, 50, 50), (7, 3, 66)):
        x, w = rng.standard_normal((rows, terms)), rng.standard_normal((outputs, terms))
        got = vectors.multiply(torch.from_numpy(x), torch.from_numpy(w.T.copy())).numpy()
        exact = np.array([[sum((float(a) * float(b) for a, b in zip(r, c, strict=True)), 0.0) for c in w] for r in x])
        assert np.abs(got - exact).max() <= 1e-14 * terms * np.abs(x).max() * np.abs(w).max()
        x[0, 0] = np.nan
        assert np.isnan(vectors.multiply(torch.from_numpy(x), torch.from_numpy(w.T.copy())).numpy()[0]).all()


@pytest.mark.parametrize("tight", [False, True])
def test_a_node_that_reads_its_own_tables_has_no_recipe(tight: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an image's cells that a dense layer made are charged by its own table, which a recipe makes once the node is bounded."""
    rng, b = np.random.default_rng(0), Builder("image")

    def dense(x: str, size: int, given: int, **how: tuple[int, ...]) -> str:
        w, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((size, given), (size,)))
        return b.add("linear", (x,), w=b.constant(w), b=b.constant(c), **how)

    x = b.add("relu", (dense(dense(b.input((6,)), 3, 6), 20, 3, to=(5, 2, 2)),))
    net = b.build(dense(x, 2, 20))
    lo = torch.from_numpy(rng.standard_normal((3, 6)))
    want = None
    for plays in (False, True):
        monkeypatch.setattr(Walk, "plays", plays)
        engine = Engine(compile_net(net), semantics="real", tight=tight)
        boxes = engine.refine(lo, lo + 0.3)
        assert engine.walker.begin_recipe(engine.forward.start(lo, lo + 0.3)) is None
        found = torch.stack([boxes.lo["linear_1"], boxes.hi["linear_1"]])
        want = found if want is None else want
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)
