"""Programs played in one call: the bounds, the rows and what they owe are those of the walk that goes step by step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import numpy as np
import pytest
import torch

from polytriton.ir.net import Builder, Net
from polytriton.ir.plan import Axis, Window
from polytriton.passes.pipeline import compile_net
from polytriton.runtime import kit
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.cpu import blocks, play_loop, sides, tape_code, tape_loop, tape_player, tape_record
from polytriton.runtime.cpu.tape import Ending, Tape
from polytriton.runtime.cpu.walk import Walk
from polytriton.runtime.engine import Engine
from polytriton.runtime.results import Forms
from polytriton.runtime.trace import Trace
from tests.oracle.nets import random_box, random_net, toy_conv, toy_residual
from tests.oracle.small import dense
from tests.runtime.test_narrow import deep

pytestmark = pytest.mark.usefixtures("small_layers_count")


@dataclass
class Answer:
    numbers: dict[str, np.ndarray] = field(default_factory=dict)
    left: list[object] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    ops: int = 0
    tapes: list[Tape] = field(default_factory=list)


def ask(
    net: Net,
    plays: bool,
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    candidates: str,
    config: Config,
    threads: int = 1,
    traced: bool = True,
    width: float = 1.0,
) -> Answer:
    """`traced`: what became of every row is noted, so that each side of a node's neurons is walked on its own. `width`: of the boxes."""
    monkeypatch.setattr(Walk, "plays", plays)
    engine = Engine(compile_net(net, candidates), semantics="real", config=config, threads=threads)
    found, rng = Answer(), np.random.default_rng(5)
    lo, hi = (torch.from_numpy(v).reshape(batch, -1) for v in random_box(rng, net, "ordinary", batch))
    if width < 1.0:
        lo, hi = (lo + hi) / 2 - width * (hi - lo) / 2, (lo + hi) / 2 + width * (hi - lo) / 2
    boxes = engine.refine(lo, hi, trace=Trace(torch.device("cpu")) if traced else None, every=False)
    for name in engine.bounded_nodes():
        found.numbers |= {f"{name}.lo": boxes.lo[name].numpy(), f"{name}.hi": boxes.hi[name].numpy()}
    outputs = net.by_name[net.output].size
    forms = Forms(torch.arange(batch).repeat_interleave(3), torch.from_numpy(rng.standard_normal((3 * batch, outputs))))
    for groups in (None, torch.arange(3 * batch) // 2):
        results = engine.query(boxes, forms, groups)
        # what decided rows are told besides depends on when they leave, so only that they are
        best = (
            results.best.numpy()
            if groups is None
            else np.array([results.best[groups == k].max() > 0 for k in range(int(groups.max()) + 1)])
        )
        found.numbers |= {f"best of {groups is None}": best, f"raw {groups is None}": results.raw.numpy() if groups is None else best}
        found.left += results.left
    found.rows, found.ops = engine.tally.rows, engine.tally.ops
    made = engine.tables(boxes).tapes.values()
    found.tapes = [tape for tape in made if tape is not None]
    return found


def agree(
    net: Net, monkeypatch: pytest.MonkeyPatch, batch: int, candidates: str, config: Config = DEFAULT, threads: int = 1, width: float = 1.0
) -> list[Tape]:  # fmt: skip
    """Bounds of neurons that stay undecided are the same; those of others too, unless decided rows stay with the others for a while."""
    walked = ask(net, False, monkeypatch, batch, candidates, config, width=width)
    played = ask(net, True, monkeypatch, batch, candidates, config, threads, width=width)
    sides = ask(net, True, monkeypatch, batch, candidates, config, threads, traced=False, width=width)
    assert not walked.tapes and (sides.rows, sides.ops, sides.left) == (played.rows, played.ops, played.left)
    by_image = batch > 1 and any(kit.COMPACT <= v.size for v in net.weights.values())  # then sides' rows of an image stay by themselves
    for name, want in played.numbers.items():
        near = 1e-6 * np.abs(want[np.isfinite(want)]).max(initial=0.0) if by_image else 0.0
        np.testing.assert_allclose(sides.numbers[name], want, rtol=0.0, atol=near, err_msg=name)
    for name, want in walked.numbers.items():
        got, stem = played.numbers[name], name[:-3]
        counts = np.isfinite(want)
        assert np.array_equal(np.isfinite(got), counts) and np.array_equal(got[~counts], want[~counts], equal_nan=True), name
        if config.leave and name.endswith((".lo", ".hi")):
            low, high = (walked.numbers[f"{stem}.{side}"] for side in ("lo", "hi"))
            assert np.array_equal((low < 0) & (high > 0), (played.numbers[f"{stem}.lo"] < 0) & (played.numbers[f"{stem}.hi"] > 0)), name
            counts = counts & (low < 0) & (high > 0)
        scale, near = np.abs(want[counts]).max(initial=1e-300), 1e-6 if config.leave else 4e-16
        assert np.abs(got[counts].astype(float) - want[counts]).max(initial=0.0) <= near * scale, name
    assert played.rows == walked.rows
    return played.tapes


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", range(60))
def test_any_network(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net = random_net(seed)
    agree(net, monkeypatch, 1 + seed % 3, ("all", "input")[seed % 2], Config(leave=(0.0, 0.4)[seed % 5 == 0], least=4))


@pytest.mark.parametrize("seed", range(100, 140))
def test_any_network_whose_rows_are_divided(seed: int, three: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among threads, and in each of them into rows that take each other's place."""
    monkeypatch.setattr(tape_player, "WORTH", 1)
    monkeypatch.setattr(tape_player, "NEAR", 1)
    monkeypatch.setattr(tape_player, "LEAST", 1 + seed % 3)
    leave = (0.0, 0.4)[seed % 5 == 0]
    agree(random_net(seed), monkeypatch, 1 + seed % 3, ("all", "input")[seed % 2], Config(leave=leave, least=4), three)


def test_a_part_may_lose_all_of_its_rows(three: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts of three are decided where twins cancel; the last goes on by itself, through what no tape knows."""
    rng, b = np.random.default_rng(3), Builder("twins")

    def dense(x: str, w: np.ndarray, up: float) -> str:
        return b.add("linear", (x,), w=b.constant(w.astype(np.float32)), b=b.constant(np.full(len(w), up, np.float32)))

    x = b.add("relu", (dense(b.input((8,)), rng.standard_normal((18, 8)), 0.0),), slope=2.0)
    x = b.add("relu", (dense(x, rng.standard_normal((18, 18)), 0.0),))
    x = b.add("relu", (dense(x, np.tile(rng.random((10, 18)), (2, 1)), 1.0),))
    twins = np.tile(np.concatenate((np.eye(10), -np.eye(10)), axis=1), (4, 1))
    x = b.add("relu", (dense(x, np.concatenate((twins, np.eye(20) - np.roll(np.eye(20), 1, axis=1))), 0.1),))
    net = b.build(dense(x, rng.standard_normal((3, 60)), 0.0))
    emptied, entry = Counter[bool](), tape_player.PlayedRows.entry

    def note(self: tape_player.PlayedRows, slot: int) -> torch.Tensor:
        emptied[self.left == 0] += 1
        return entry(self, slot)

    monkeypatch.setattr(tape_player.PlayedRows, "entry", note)
    monkeypatch.setattr(tape_player, "WORTH", 1)
    lo, hi, name = torch.full((1, 8), -1.0).double(), torch.full((1, 8), 1.0).double(), net.by_name[net.output].inputs[0]
    name, low = net.by_name[name].inputs[0], list[torch.Tensor]()
    for threads in (1, three):
        engine = Engine(compile_net(net, "all"), semantics="real", threads=threads)
        low.append(engine.refine(lo, hi).lo[name].view(-1))
    assert emptied[True] >= 2 and emptied[False] > 0
    assert (low[0][:40] > 0).all() and (low[0][40:] < 0).all() and torch.allclose(low[0], low[1], rtol=1e-12, atol=1e-12)


def skips() -> Net:
    """Sums of a branch with two ReLUs inside, and of what it began with: as it is, behind a convolution, and negated."""
    rng, b = np.random.default_rng(1), Builder("skips")

    def conv(x: str, made: int, k: int, stride: int = 1) -> str:
        given, pad = b.shape(x)[0], k // 2
        w = (rng.standard_normal((made, given, k, k)) * np.sqrt(2 / (given * k * k))).astype(np.float32)
        c = rng.standard_normal(made).astype(np.float32) / 4
        return b.add("conv", (x,), w=b.constant(w), b=b.constant(c), k=(k, k), s=(stride, stride), p=(pad,) * 4, d=(1, 1), g=1)

    def branch(x: str, made: int, stride: int = 1) -> str:
        x = b.add("relu", (conv(x, made, 3, stride),))
        return conv(b.add("relu", (conv(x, made, 1),)), made, 3)

    x = b.add("relu", (conv(b.input((2, 7, 6)), 6, 3),))
    x = b.add("relu", (b.add("add", (x, branch(x, 6))),))
    skip = conv(x, 7, 1, 2)
    x = b.add("relu", (b.add("sub", (skip, branch(x, 7, 2))),))
    x = b.add("relu", (b.add("sub", (branch(x, 7), x)),))
    w = rng.standard_normal((4, 7 * 4 * 3)).astype(np.float32) / 9
    return b.build(b.add("linear", (x,), w=b.constant(w), b=b.constant(np.zeros(4, np.float32))))


def wide() -> Net:
    """Convolutions whose windows and strides differ, a sum and a difference of branches, dense layers that leave cells out."""
    rng, b = np.random.default_rng(8), Builder("wide")

    def conv(x: str, given: int, made: int, k: int, stride: int, pad: int) -> str:
        w = (rng.standard_normal((made, given, k, k)) / np.sqrt(given * k * k)).astype(np.float32)
        return b.add(
            "conv", (x,), w=b.constant(w), b=b.constant(rng.standard_normal(made).astype(np.float32) / 4), k=(k, k), s=(stride, stride),
            p=(pad, pad, pad, pad), d=(1, 1), g=1,
        )  # fmt: skip

    def dense(x: str, given: int, made: int) -> str:
        w = (rng.standard_normal((made, given)) / np.sqrt(given)).astype(np.float32)
        return b.add("linear", (x,), w=b.constant(w), b=b.constant((rng.standard_normal(made) / 2 - 0.4).astype(np.float32)))

    x = b.add("relu", (conv(b.input((2, 9, 8)), 2, 6, 3, 1, 1),))
    y = b.add("relu", (conv(x, 6, 7, 3, 2, 1),))
    inner = conv(b.add("relu", (conv(y, 7, 7, 3, 1, 1),)), 7, 7, 3, 1, 1)
    z = b.add("relu", (b.add("sub", (inner, conv(y, 7, 7, 1, 1, 0))),))
    z = b.add("relu", (b.add("add", (conv(z, 7, 7, 3, 1, 1), z)),))
    f = b.add("relu", (dense(z, 7 * 5 * 4, 60),))
    f = b.add("relu", (dense(f, 60, 50),))
    return b.build(dense(f, 50, 4))


@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("net", [deep(), wide(), toy_conv(), toy_residual()], ids=lambda n: n.name)
def test_whole_programs_are_played(net: Net, batch: int, candidates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tapes = agree(net, monkeypatch, batch, candidates)
    plan = compile_net(net, candidates).plan
    reached = {len(program.steps) for program in plan}
    assert tapes and max(len(tape.before) + tape.steps for tape in tapes) + 1 >= max(reached)


def test_every_instruction_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[int] = Counter()
    for net in (deep(), wide(), toy_residual(), random_net(49), random_net(4, image=True, limit=400)):
        for tape in agree(net, monkeypatch, 2, "all"):
            seen.update(tape.code[:, tape_loop.OP].tolist())
    assert set(seen) == set(range(tape_loop.KINDS))


@pytest.mark.parametrize("width", [0.1, 0.03])
@pytest.mark.parametrize("batch", [1, 3])
def test_single_neurons_stay_over_checks(batch: int, width: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a sum rows leave while what they begin with is still one neuron of each: at itself, at a convolution, and negated."""
    net, told, play = skips(), dict[str, np.ndarray](), sides.Sides.play
    sums = [n.name for n in net if n.op in ("add", "sub")]

    def note(self: sides.Sides, part: sides.SidesPart, memory: np.ndarray) -> None:
        play(self, part, memory)
        if self.program.target in sums:
            told[self.program.target] = part.told[:2, 1]

    monkeypatch.setattr(sides.Sides, "play", note)
    agree(net, monkeypatch, batch, "all", Config(least=4), width=width)
    if not blocks.is_available():
        assert not told
        return
    for name in sums:
        ops = [s.op for s in compile_net(net, "all").plan.bound(name).steps if s.op != "dense"]
        assert ops[2:7] == ["conv", "relu", "conv", "relu", "conv"], "the neuron is substituted before a row may leave"
    assert sum(second < first for first, second in told.values()) > 1


@pytest.mark.parametrize("seed", range(20))
def test_windows_join_where_each_rows_lie(seed: int) -> None:
    """Windows of other strides, or the whole image: every cell goes where it is on the image, and those off it nowhere."""
    rng = np.random.default_rng(seed)
    rows, channels, image = 7, int(rng.integers(1, 4)), rng.integers(3, 9, 2)
    drawn = zip(*rng.integers(1, 6, (3, 2)), image, strict=True)
    axes = [(Axis(int(size), int(stride), int(offset)), int(n)) for size, stride, offset, n in drawn]
    old = Window(*(axis for axis, _ in axes))
    new = Window(*(Axis(n, 0, 0) if rng.random() < 0.6 else Axis(n + 9, max(0, axis.stride - 1), 4) for axis, n in axes))
    at = rng.integers(0, 4, (2, rows))
    m = rng.standard_normal((rows, old.h.size, old.w.size, channels)).astype(np.float32)
    want = rng.standard_normal((rows, new.h.size, new.w.size, channels)).astype(np.float32)
    got = want.copy()
    for r, i, j in product(range(rows), range(old.h.size), range(old.w.size)):
        y = at[0, r] * (old.h.stride - new.h.stride) - old.h.offset + new.h.offset + i
        x = at[1, r] * (old.w.stride - new.w.stride) - old.w.offset + new.w.offset + j
        if 0 <= y < new.h.size and 0 <= x < new.w.size:
            want[r, y, x] += m[r, i, j]
    top, left = new.h.offset - old.h.offset, (new.w.offset - old.w.offset) * channels
    down, across = old.h.stride - new.h.stride, (old.w.stride - new.w.stride) * channels
    shapes = old.h.size, old.w.size * channels, got.reshape(-1), new.h.size, new.w.size * channels
    tape_loop.join_windows(m.reshape(-1), *shapes, top, left, down, across, *at)
    assert np.array_equal(got, want)


def test_the_machine_code_is_what_the_interpreter_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for net in (toy_residual(), random_net(82)):
        compiled = ask(net, True, monkeypatch, 2, "all", DEFAULT)
        with monkeypatch.context() as patch:
            for player in (tape_player, sides):
                patch.setattr(player, "play", play_loop.play.function)
            read = ask(net, True, monkeypatch, 2, "all", DEFAULT)
        for name, want in compiled.numbers.items():  # the loops inside may be vectorised in another way
            got, told = read.numbers[name], np.isfinite(want)
            assert np.array_equal(got[~told], want[~told], equal_nan=True), name
            assert np.abs(got[told].astype(float) - want[told]).max(initial=0.0) <= 4e-16 * np.abs(want[told]).max(initial=1e-300), name
        assert read.left == compiled.left and compiled.tapes


@pytest.mark.parametrize("net", [deep(), wide(), toy_residual()], ids=lambda n: n.name)
def test_rows_take_the_place_of_others(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    want, some = ask(net, True, monkeypatch, 2, "all", DEFAULT), Counter[int]()
    begin = tape_player.PlayedRows.begin

    def note(*given: object, **how: bool) -> tape_player.PlayedRows:
        made = begin(*given, **how)  # type: ignore[arg-type]
        some[len(made.whole)] += 1
        assert made.room.memory.nbytes <= 4 * (made.tape.taps + made.tape.row * made.room.some)
        return made

    monkeypatch.setattr(tape_player.PlayedRows, "begin", note)
    monkeypatch.setattr(tape_player, "NEAR", 1)
    monkeypatch.setattr(tape_player, "LEAST", 4)
    got = ask(net, True, monkeypatch, 2, "all", DEFAULT)
    for name, value in want.numbers.items():
        counts = np.isfinite(value)
        assert np.abs(got.numbers[name][counts].astype(float) - value[counts]).max() <= 4e-15 * np.abs(value[counts]).max(), name
    assert got.left == want.left and got.rows == want.rows and max(some) > 3


def test_slots_that_live_at_a_time_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instruction reads no number that another has written over: every slot is zeroed when its last entry is gone."""
    taken = tape_code.TapeCode.drop

    def spoil(self: tape_code.TapeCode, slot: int) -> None:
        taken(self, slot)
        if not self.uses[slot]:
            self.emit(tape_loop.ZERO, slot, slot)

    for net in (deep(), wide(), toy_residual()):
        want = ask(net, True, monkeypatch, 2, "all", DEFAULT)
        with monkeypatch.context() as patch:
            patch.setattr(tape_code.TapeCode, "drop", spoil)
            got = ask(net, True, monkeypatch, 2, "all", DEFAULT)
        assert all(np.array_equal(got.numbers[name], value) for name, value in want.numbers.items())


def chain(layers: int) -> Net:
    weights = np.random.default_rng(1).standard_normal((layers + 1, 7, 6)).astype(np.float32)
    return dense(*((w[:6] / 2, w[6] / 16) for w in weights))


def around() -> Net:
    """Dense layers around which their input goes on: behind the sum rows have all cells, behind a neuron those alone that are not off."""
    rng, b = np.random.default_rng(4), Builder("around")

    def linear(x: str, size: int, to: int) -> str:
        w = (rng.standard_normal((to, size)) / np.sqrt(size)).astype(np.float32)
        return b.add("linear", (x,), w=b.constant(w), b=b.constant((rng.standard_normal(to) * 0.5 - 0.3).astype(np.float32)))

    x = b.add("relu", (linear(b.input((12,)), 12, 20),))
    x = b.add("relu", (linear(x, 20, 30),))
    y = linear(b.add("relu", (linear(x, 30, 24),)), 24, 30)
    x = b.add("relu", (b.add("add", (y, x)),))
    return b.build(linear(b.add("relu", (linear(x, 30, 9),)), 9, 4))


@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("net", [chain(8), chain(40), deep(), wide(), around()], ids=lambda n: f"{n.name} {len(n.nodes)}")
def test_a_tape_that_goes_on_as_another_says_what_it_would_have(net: Net, candidates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = list[int]()

    def note(tape: Tape, rest: Ending, slot: int) -> Tape:
        joined.append(len(tape.code))
        return tape_code.join(tape, rest, slot)

    monkeypatch.setattr(tape_record, "join", note)
    got = ask(net, True, monkeypatch, 1, candidates, DEFAULT)
    assert joined
    monkeypatch.setattr(tape_record._Writer, "find_rest", lambda self, k: None)
    want = ask(net, True, monkeypatch, 1, candidates, DEFAULT)
    assert all(np.array_equal(got.numbers[name], value, equal_nan=True) for name, value in want.numbers.items())
    assert got.left == want.left and got.rows == want.rows
    for tape in got.tapes:
        for line in tape.code[tape.code[:, tape_loop.OP] == tape_loop.LINEAR][:, tape_loop.REST :]:
            assert all(tape.sizes[line[at + 1]] == size for at, size in ((4, line[2]), (7, line[3])) if line[at])
    if len(net.nodes) == 18:  # of a chain each layer is written twice: behind a neuron, and behind a product
        assert sum(joined) < 0.7 * sum(len(tape.code) for tape in want.tapes)


def test_programs_that_end_in_the_same_steps_have_the_same_numbers() -> None:
    engine = Engine(compile_net(around(), "all"), semantics="real")
    programs = list(engine.plan)
    last = programs[-1]
    programs.append(replace(last, target="other", steps=(*last.steps[:-1], replace(last.steps[-1], ops=last.steps[-1].ops + 1))))
    met = Counter[bool]()
    for first, second in combinations(programs, 2):
        pairs = product(enumerate(engine.kit.endings(first)), enumerate(engine.kit.endings(second)))
        for (j, one), (k, other) in pairs:
            assert (one == other) == (first.steps[j:] == second.steps[k:])
            met[one == other] += 1
    assert min(met.values()) > 9


@pytest.mark.parametrize("layers", [5, 40])
def test_what_may_be_played_ends_in_one_tape(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then are blocks as large as the memory allows, since some of their rows take the place of others."""
    net = chain(layers)
    engine = Engine(compile_net(net, "all"), semantics="real")
    program, found = engine.plan.query, ask(net, True, monkeypatch, 2, "all", DEFAULT).tapes
    assert Walk.may_play(engine.walker.backend, engine.kit, program) == (layers == 5)
    assert (max(tape.steps for tape in found) >= len(program.steps) - 2) == (layers == 5)


def test_where_a_tape_is_full_another_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers of a query on the interval pass's boxes, which no program was written for before."""
    walked = Counter[str]()
    for name in ("_relu", "_linear"):
        monkeypatch.setattr(Walk, name, lambda self, *given, name=name: walked.update([name]))
    engine = Engine(compile_net(chain(40), "all"), semantics="real")
    boxes = engine.interval(torch.full((1, 6), -4.0).double(), torch.full((1, 6), 4.0).double())
    assert engine.query(boxes, Forms(torch.zeros(6, dtype=torch.int64), torch.eye(6, dtype=torch.float64))).best.isfinite().all()
    assert not walked and len(engine.tables(boxes).tapes) > 1


def test_kinds_of_walk_that_look_at_their_steps_are_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    class Looking(Walk):
        plays = False

    engine = Engine(compile_net(toy_conv(), "all"), semantics="real")
    engine.walker.walk = Looking
    monkeypatch.setattr(tape_player, "play", None)
    lo, hi = (torch.from_numpy(v).reshape(1, -1) for v in random_box(np.random.default_rng(1), engine.net, "ordinary", 1))
    assert engine.refine(lo, hi).batch == 1
