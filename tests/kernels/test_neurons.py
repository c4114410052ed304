"""Rows of single neurons made on the device: the kernels against plain Python, blocks and memory that runs out, and graphs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.ir.net import Builder, Net
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.gpu import triton_backend
from polytriton.runtime.gpu.binding import Bound
from polytriton.runtime.gpu.player import Ahead, RunState
from polytriton.runtime.gpu.triton_backend import TritonBackend, out_of_memory
from polytriton.runtime.results import Stopped
from tests.kernels.steps import run
from tests.kernels.test_boxes import UNSHRUNK
from tests.kernels.test_device_runs import asking, boxes_of, small_net
from tests.kernels.test_kernel_runs import boxes as some_boxes
from tests.kernels.test_kernel_runs import same_boxes, small

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
INF = float("inf")
H, W, C = 3, 2, 4
SIZE = H * W * C
Array = np.ndarray


def drawn(seed: int) -> tuple[Array, Array, Array]:
    """Boxes of two images and the cells that are to be narrowed."""
    rng = np.random.default_rng(seed)
    lo, hi = -rng.random((2, SIZE)), rng.random((2, SIZE))
    special = rng.random((2, SIZE)) < 0.2
    lo, hi = np.where(special, rng.choice([-INF, -0.5, 0.25], (2, SIZE)), lo), np.where(special, rng.choice([INF, 0.5], (2, SIZE)), hi)
    return lo, hi, np.sort(rng.permutation(2 * SIZE)[: int(rng.integers(1, 2 * SIZE))])


def likelier(lo: float, hi: float, leaves: bool) -> float:
    return 1.0 if not leaves or lo >= -hi else -1.0


@given(st.integers(0, 2**32 - 1), st.sampled_from(("first", "second", "ahead")), st.booleans(), st.sampled_from((16, 64)))
@settings(max_examples=40, phases=UNSHRUNK)
def test_rows_are_those_of_their_neurons(seed: int, which: str, leaves: bool, block: int) -> None:
    """Rows begin to begin + count - 1 of the list, and nothing past them is touched; results are reset by the first sign alone.

    Ahead of the count they are the first that were found, as many as have room.
    """
    second, ahead = which == "second", which == "ahead"
    rng = np.random.default_rng(seed)
    lo, hi, at = drawn(seed)
    begin = 0 if ahead else int(rng.integers(0, len(at)))
    count = int(rng.integers(1, len(at) - begin + 1))
    room = count if count < len(at) or not seed % 2 else count + int(rng.integers(1, 20))
    rows, results = count + 5, 2 * len(at) + 4
    words = {k: np.full(rows, 77) for k in ("image", "row_h", "row_w", "channel", "index")}
    reals = {k: np.full(rows, 77.0) for k in ("sign", "constant", "error")}
    kept = {
        "best": np.full(results, 77.0),
        "raw_best": np.full(results, 77.0),
        "group": np.full(results, 77),
        "done": np.full(len(at) + 4, 77, np.int8),
    }
    constants = {"SECOND": second, "AHEAD": ahead, "LEAVES": leaves, "SIZE": SIZE, "LINE": W * C, "C": C, "BLOCK": block}
    numbers = {"begin": np.array([77 if ahead else begin]), "count": np.array([78 if ahead else count])}
    numbers |= {"found": np.array([len(at) if ahead else 79]), "room": np.array([room if ahead else 80])}
    given_ = {"at": at, "box_lo": lo, "box_hi": hi, **numbers, **words, **reals, **kept}
    found = run("open_neurons", constants, "float64", (-(-(room if ahead else count) // block), 1), given_)
    assert (found["begin"][0], found["count"][0]) == (begin, count)
    for r in range(count):
        image, cell = divmod(int(at[begin + r]), SIZE)
        sign = likelier(lo[image, cell], hi[image, cell], leaves) * (-1 if second else 1)
        where = (image, cell // (W * C), cell // C % W, cell % C)
        assert tuple(int(found[k][r]) for k in ("image", "row_h", "row_w", "channel")) == where
        assert (found["sign"][r], found["constant"][r], found["error"][r]) == (sign, 0.0, 0.0)
        assert found["index"][r] == 2 * (begin + r) + second
    for name in (*words, *reals):
        assert (found[name][count:] == 77).all(), name
    mine = np.zeros(results, dtype=bool)
    mine[2 * begin : 2 * (begin + count)] = not second
    for name, fresh in (("best", -INF), ("raw_best", -INF), ("group", np.arange(results) // 2)):
        assert np.array_equal(found[name], np.where(mine, fresh, 77)), name
    opened = np.zeros(len(at) + 4, dtype=bool)
    opened[begin : begin + count] = not second
    assert np.array_equal(found["done"], np.where(opened, 0, 77))


@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans(), st.sampled_from((16, 64)))
@settings(max_examples=25, phases=UNSHRUNK)
def test_bounds_go_back_to_the_boxes(seed: int, every: bool, leaves: bool, block: int) -> None:
    rng = np.random.default_rng(seed)
    lo, hi, at = drawn(seed)
    best = rng.standard_normal(2 * len(at))
    best = np.where(rng.random(len(best)) < 0.3, rng.choice([-INF, np.nan, INF], len(best)) if not every else -INF, best)
    constants = {"ALL": every, "LEAVES": leaves, "BLOCK": block}
    found = run(
        "close_neurons",
        constants,
        "float64",
        (-(-len(at) // block), 1),
        {"at": at, "best": best, "box_lo": lo, "box_hi": hi, "count": np.array([len(at)])},
    )
    want = {"box_lo": lo.copy(), "box_hi": hi.copy()}
    for k, place in enumerate(at):
        image, cell = divmod(int(place), SIZE)
        low, high = float(lo[image, cell]), float(hi[image, cell])
        first = 0 if likelier(low, high, leaves) > 0 else 1
        found_low, found_high = float(best[2 * k + first]), -float(best[2 * k + 1 - first])
        if every:
            want["box_lo"][image, cell], want["box_hi"][image, cell] = max(low, found_low), min(high, found_high)
        else:
            want["box_lo"][image, cell] = found_low if math.isfinite(found_low) else low
            want["box_hi"][image, cell] = found_high if math.isfinite(found_high) else high
    for name, value in want.items():
        assert np.array_equal(found[name], value), name


@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(1, 5), st.sampled_from((1, 7, 16, 40)), st.sampled_from((16, 64)))
@settings(max_examples=25, phases=UNSHRUNK)
def test_undecided_neurons_are_found_in_order(seed: int, tight: bool, images: int, size: int, block: int) -> None:
    """Cells of NaN, infinite and touching boxes among them; of every block the count, and nothing is written past the last."""
    rng = np.random.default_rng(seed)
    lo, hi = -rng.random((images, size)), rng.random((images, size))
    special = [-INF, -0.5, -0.0, 0.0, 5e-324, 0.5, INF, np.nan]
    lo, hi = (np.where(rng.random(v.shape) < 0.4, rng.choice(special, v.shape), v) for v in (lo, hi))
    parts = -(-size // block)
    constants = {"TIGHT": tight, "SIZE": size, "BLOCK": block}
    given_ = {"box_lo": lo, "box_hi": hi, "blocks": np.full(images * parts + 3, 77)}
    counted = run("count_open", constants, "float64", (images * parts, 1), given_)["blocks"]
    want = (hi > 0) if tight else (lo < 0) & (hi > 0)
    by_block = [int(w[k * block : (k + 1) * block].sum()) for w in want for k in range(parts)]
    assert counted.tolist() == [*by_block, 77, 77, 77]
    for earlier in (4, 1024):  # blocks that a program adds up at once
        given_ |= {"blocks": counted, "at": np.full(images * size + 3, 77), "found": np.array([77, 78])}
        found = run("find_open", {**constants, "NB": earlier}, "float64", (images * parts, 1), given_)
        cells = np.flatnonzero(want)
        assert found["found"].tolist() == [len(cells), 78]
        assert found["at"].tolist() == [*cells, *[77] * (images * size + 3 - len(cells))]


# ---- whole layers ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled() -> dict[str, Compiled]:
    return {c: compile_net(small_net(), c) for c in ("all", "input")}


@pytest.fixture(scope="module")
def wanted(compiled: dict[str, Compiled]) -> dict[str, Boxes]:
    """What one block of all neurons finds, the likelier sign first."""
    return {c: Engine(net, dtype="float64", kernels="interpret").refine(*boxes_of(5, 4)) for c, net in compiled.items()}


def equal(a: Boxes, b: Boxes) -> bool:
    return a.lo.keys() == b.lo.keys() and all(torch.equal(a.lo[n], b.lo[n]) and torch.equal(a.hi[n], b.hi[n]) for n in a.lo)


@pytest.mark.slow
@pytest.mark.parametrize(("candidates", "early"), [("all", True), ("all", False), ("input", True)])
def test_blocks_of_neurons_find_what_one_block_finds(
    compiled: dict[str, Compiled], wanted: dict[str, Boxes], candidates: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every neuron's rows are independent of the others'; with the tensor form to within rounding."""
    ours, plain = (Engine(compiled[candidates], dtype="float64", kernels=k, early=early) for k in ("interpret", ""))
    assert ours.kernels is not None
    rows: list[int] = []
    play = ours.kernels.play

    def counted(bound: Bound, *parts: int) -> None:
        rows.append(int(bound.starts["count"][0]))
        play(bound, *parts)

    monkeypatch.setattr(triton_backend, "MOST", 64)
    monkeypatch.setattr(ours.kernels, "play", counted)
    found = ours.refine(*boxes_of(5, 4))
    assert max(rows) == 64 and min(rows) < 64 and len(rows) > 2 * len(ours.programs)
    assert equal(found, wanted[candidates]) or not early
    same_boxes(compiled[candidates].net, found, plain.refine(*boxes_of(5, 4)), "float64")


@pytest.mark.parametrize("candidates", ["all", "input"])
def test_neurons_that_a_pool_reads_keep_both_bounds(candidates: str) -> None:
    """None of them is settled by a sign: every one gets a bound from below and from above."""
    net = compile_net(small(pool=True), candidates)
    ours, theirs = (Engine(net, dtype="float64", kernels=k) for k in ("interpret", ""))
    lo, hi = some_boxes(net.net, 4, 2)
    found = ours.refine(lo, hi)
    same_boxes(net.net, found, theirs.refine(lo, hi), "float64")
    assert ours.unsettled & set(ours.programs)
    for name in ours.unsettled & set(ours.programs):
        assert ours.tally.rows[name] == 2 * found.lo[name].numel()


@pytest.mark.parametrize(
    ("at", "error"), [(1, torch.OutOfMemoryError("planted")), (2, RuntimeError("CUDA error: out of memory")), (3, MemoryError())]
)
def test_out_of_memory_in_the_middle_begins_again(
    compiled: dict[str, Compiled], wanted: dict[str, Boxes], at: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first block, in a later one, or in the other sign's: half as many rows, and the same boxes."""
    ours, played = Engine(compiled["all"], dtype="float64", kernels="interpret"), 0
    backend = ours.kernels
    assert backend is not None
    play, capacities = backend.play, []

    def scarce(bound: Bound, *parts: int) -> None:
        nonlocal played
        if bound.capacity == 256:
            played += 1
            if played == at:
                bound.starts["best"].fill_(1e30)  # results that nobody may believe
                raise error
        capacities.append(bound.capacity)
        play(bound, *parts)

    monkeypatch.setattr(backend, "capacity", lambda program, rows: 256 if played < at else TritonBackend.capacity(backend, program, rows))
    monkeypatch.setattr(backend, "play", scarce)
    assert equal(ours.refine(*boxes_of(5, 4)), wanted["all"])
    assert played == at and 128 in capacities


def test_another_error_is_no_lack_of_memory(compiled: dict[str, Compiled], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(compiled["all"], dtype="float64", kernels="interpret")

    def broken(bound: Bound) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(engine.kernels, "play", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        engine.refine(*boxes_of(5, 1))


def test_lack_of_memory_is_recognised() -> None:
    """torch's own error; the CUDA runtime's, from a graph; Triton's, from a module; the host's."""
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert out_of_memory(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"))
    assert out_of_memory(RuntimeError("Triton Error [CUDA]: out of memory"))
    assert out_of_memory(MemoryError())
    assert not out_of_memory(RuntimeError("operation not permitted when stream is capturing"))
    assert not out_of_memory(KeyboardInterrupt())


# ---- before the number of neurons is known ---------------------------------------------------------------------------


def settling(depth: int = 9) -> Net:
    """(x, u) -> identities -> (x, x, u) -> identities -> y = (x - x + 0.1, u - 1.5): the difference is settled where both x come from
    one neuron, on the way, u by its box.
    """
    b = Builder("settling")
    at = b.input((2,))

    def dense(at: str, rows: list[list[float]], bias: list[float]) -> str:
        return b.add("linear", [at], w=b.constant(np.array(rows, np.float32)), b=b.constant(np.array(bias, np.float32)))

    for _ in range(depth):
        at = b.add("relu", [dense(at, [[1, 0], [0, 1]], [0, 0])])
    for rows in ([[1, 0], [1, 0], [0, 1]], np.eye(3).tolist(), np.eye(3).tolist()):
        at = b.add("relu", [dense(at, rows, [0, 0, 0])])
    at = b.add("relu", [dense(at, [[1, -1, 0], [0, 0, 1]], [0.1, -1.5])])
    return b.build(dense(at, [[1, 1]], [0]))


def inputs(*least: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x in [1, 2] and u from so much to 2, an image each."""
    lo = torch.tensor([[1.0, u] for u in least], dtype=torch.float64)
    return lo, torch.full_like(lo, 2.0)


EARLY, LATE = inputs(1.9, 1.8, 1.7), inputs(1.9, 1.0, 1.2)  # all rows leave early; two neurons stay undecided
NONE = torch.full((3, 2), 1.9, dtype=torch.float64), torch.full((3, 2), 1.95, dtype=torch.float64)


class Played:
    """Which parts of the last layer's program an engine plays, as (begin, end), and how often it waits."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        assert engine.kernels is not None
        self.engine, self.backend = engine, engine.kernels
        self.parts: list[tuple[int, int | None]] = []
        self.told = asking(self.backend, monkeypatch)
        self.run, self.go = self.backend.play, self.backend.player._stretch
        self.before: Callable[[Bound], None] = lambda bound: None
        monkeypatch.setattr(self.backend, "play", self.play)
        monkeypatch.setattr(self.backend.player, "_stretch", self.stretch)

    def play(self, bound: Bound, begin: int = 0, end: int | None = None) -> None:
        self.parts.append((begin, end))
        self.before(bound)
        self.run(bound, begin, end)

    def stretch(self, run: RunState, begin: int, end: int, ahead: Ahead | None = None) -> None:
        if ahead is not None:
            self.parts.append((0, ahead.parts))
            self.before(ahead.bound)
        self.go(run, begin, end, ahead)

    def boxes(self, lo: torch.Tensor, hi: torch.Tensor, waits: int = 0) -> None:
        """The same as those of an engine that has seen nothing before."""
        self.parts.clear()
        self.told.clear()
        found = self.engine.refine(lo, hi)
        assert len(self.told) == len(self.engine.programs) + waits  # one a layer, of which all but the last have no neurons
        assert equal(found, alone(self.engine, lo, hi))


_ALONE: dict[bytes, Boxes] = {}


def alone(engine: Engine, lo: torch.Tensor, hi: torch.Tensor) -> Boxes:
    """What an engine finds that has seen nothing before; every batch of these tests is asked for once, the network is always the same."""
    key = lo.numpy().tobytes() + hi.numpy().tobytes()
    if key not in _ALONE:
        fresh = Engine(Compiled(engine.net, engine.plan), dtype="float64", kernels="interpret")
        _ALONE[key] = fresh.refine(lo, hi)
    return _ALONE[key]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(Engine(compile_net(settling(4), "all"), dtype="float64", kernels="interpret"), monkeypatch)


def test_what_finds_no_rows_is_not_launched(played: Played) -> None:
    """The first batch is played whole; the next ones as far as rows are left, and never the other sign."""
    played.boxes(*EARLY)
    assert played.parts == [(0, None), (0, None)] and len(played.told[-1]) == 1
    played.boxes(*EARLY)
    assert played.parts == [(0, 1), (1, None), (0, None)]  # too short: rows were left
    played.boxes(*EARLY)
    assert played.parts == [(0, 2)]
    assert played.told[-1][:2] == [3, 3] and played.told[-1][-1] == 0
    operations = played.engine.operations
    played.boxes(*EARLY)
    assert played.parts == [(0, 2)]
    plain = Engine(Compiled(played.engine.net, played.engine.plan), dtype="float64", kernels="interpret")
    plain.refine(*EARLY)
    assert played.engine.operations - operations == plain.operations


def test_rows_that_are_left_go_all_the_way(played: Played) -> None:
    played.boxes(*EARLY)
    plays = []
    for lo, hi in (EARLY, EARLY, LATE, LATE, EARLY):
        played.boxes(lo, hi)
        plays.append(list(played.parts))
    assert plays[1] == [(0, 2)] and len(plays[4]) in (1, 3)
    for one in plays[2:4]:  # the likelier sign's rest from where the wait was, then the other sign
        assert one == [(0, one[0][1]), (one[0][1], None), (0, None)]


@pytest.mark.slow
def test_no_neurons_and_more_than_there_is_room_for(played: Played) -> None:
    """The number is known after the one wait either way: none are closed, too many begin again."""
    played.boxes(*EARLY)
    played.boxes(*NONE)
    assert played.parts == [(0, 1)] and played.told[-1][0] == 0
    played.boxes(*EARLY)  # nothing is expected: the number is asked for
    assert played.parts == [(0, None), (0, None)] and len(played.told[-1]) == 1
    many = inputs(*np.linspace(1.0, 1.4, 36))
    played.boxes(*many)
    assert played.told[-1][0] > 64 and played.told[-1][1] == 64  # rows are no more than there is room for
    assert played.parts == [(0, 1), (0, None), (0, None)]


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1, 2])
def test_out_of_memory_on_the_way_ahead(played: Played, at: int) -> None:
    """In the first parts, in the rest, in the other sign: the batch begins again with half the rows."""
    played.boxes(*LATE)
    count = 0

    def scarce(bound: Bound) -> None:
        nonlocal count
        count += 1
        if count == at + 1:
            bound.starts["best"].fill_(1e30)  # results that nobody may believe
            raise torch.OutOfMemoryError("planted")

    played.before = scarce
    played.backend.capacity = lambda program, rows: 128 if count <= at else TritonBackend.capacity(played.backend, program, rows)  # type: ignore[method-assign]
    played.boxes(*LATE, waits=len(played.engine.programs) - (at == 0))  # the last layer's number had been told, but for the first parts
    assert count == at + 4


def test_a_deadline_on_the_way_ahead(played: Played) -> None:
    played.boxes(*LATE)
    with pytest.raises(Stopped):
        played.engine.refine(*LATE, deadline=0.0)
    played.boxes(*LATE)


@pytest.mark.slow
@pytest.mark.parametrize("early", [True, False])
def test_batches_in_turn_find_what_they_find_alone(early: bool, compiled: dict[str, Compiled]) -> None:
    """Sizes and boxes that change from batch to batch, so that guesses fail in either direction."""
    engine = Engine(compiled["all"], dtype="float64", kernels="interpret", early=early)
    for seed, batch in ((1, 1), (2, 1), (3, 4), (4, 2), (4, 2), (5, 1), (1, 1)):
        lone = Engine(compiled["all"], dtype="float64", kernels="interpret", early=early)
        assert equal(engine.refine(*boxes_of(seed, batch)), lone.refine(*boxes_of(seed, batch)))
