"""Blocks of rows that several threads walk: each of them once, the same bounds, within the memory, and nobody works on after an error."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch

from polytriton.ir.net import Builder, Net, Ref
from polytriton.passes.pipeline import compile_net
from polytriton.runtime import budget, layer_products, settings, walker
from polytriton.runtime.config import Config
from polytriton.runtime.cpu import blocks, tape_player
from polytriton.runtime.cpu.sharing import share_out
from polytriton.runtime.cpu.tape import Tape
from polytriton.runtime.cpu.walk import Walk
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Forward
from polytriton.runtime.layers import to_physical
from polytriton.runtime.results import Forms, Results
from polytriton.runtime.soundness import find_semantics
from polytriton.runtime.trace import Trace
from polytriton.runtime.walker import Walker
from tests.oracle.nets import random_box, toy_conv, toy_residual
from tests.oracle.small import dense

THREADS = 3
pytestmark = pytest.mark.usefixtures("three")  # threads of torch


@pytest.mark.parametrize("threads", [1, 2, THREADS])
def test_every_job_is_done_once(threads: int) -> None:
    done: Counter[int] = Counter()
    share_out(lambda k: done.update([k]), range(100), threads)
    assert done == Counter(range(100))
    share_out(lambda k: done.update([k]), [], threads)
    assert done.total() == 100


def test_threads_work_at_a_time_and_are_given_one_of_torchs() -> None:
    """Every thread waits until all have begun."""
    meeting, seen = threading.Barrier(THREADS, timeout=30), list[int]()

    def work(_: int) -> None:
        meeting.wait()
        seen.append(torch.get_num_threads())

    share_out(work, range(THREADS), THREADS)
    assert torch.get_num_threads() == THREADS and seen == [1] * THREADS


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_an_error_ends_the_others_before_it_is_raised(where: str) -> None:
    """Whoever meets it, no job is begun behind it and none goes on when the caller hears of it."""
    begun, ended, main = list[int](), list[int](), threading.get_ident()
    meeting = threading.Barrier(2, timeout=30)

    def work(k: int) -> None:
        begun.append(k)
        meeting.wait()
        if (threading.get_ident() == main) == (where == "here"):
            raise RuntimeError("no more")
        time.sleep(0.05)
        ended.append(k)

    with pytest.raises(RuntimeError, match="no more"):
        share_out(work, range(100), 2)
    assert sorted(begun) == [0, 1] and len(ended) == 1


def bounds(net: Net, threads: int, dtype: str, candidates: str) -> tuple[dict[str, np.ndarray], Engine, Trace]:
    e = Engine(compile_net(net, candidates), semantics="real", dtype=dtype, threads=threads, config=Config(least=4))
    lo, hi = (torch.from_numpy(v).reshape(5, -1) for v in random_box(np.random.default_rng(4), net, "ordinary", 5))
    trace = Trace(torch.device("cpu"))
    boxes = e.refine(lo, hi, trace=trace)
    return {f"{n}.{s}": getattr(boxes, s)[n].numpy() for n in e.bounded_nodes() for s in ("lo", "hi")}, e, trace


@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("net", [toy_conv(), toy_residual()], ids=lambda n: n.name)
def test_bounds_and_counts_are_those_of_one_thread(net: Net, dtype: str, candidates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries may sum a block of another size in another order, within what their products are charged."""
    monkeypatch.setattr(budget, "WORTH", 1)
    monkeypatch.setattr(Walk, "plays", False)  # rows that are played are divided inside their block
    asked = list[int]()

    def note(work: Callable[[int], None], jobs: range, threads: int) -> None:
        asked.append(threads)
        share_out(work, jobs, threads)

    monkeypatch.setattr(walker, "share_out", note)
    alone, one, before = bounds(net, 1, dtype, candidates)
    assert set(asked) == {1}
    shared, several, after = bounds(net, THREADS, dtype, candidates)
    assert THREADS in asked
    for name, want in alone.items():
        scale = max(1.0, float(np.abs(want).max()))
        assert np.abs(shared[name] - want).max() <= (1e-5 if dtype == "float32" else 1e-12) * scale, name
    assert several.tally.rows == one.tally.rows
    assert one.tally.ops > 0 and (candidates == "all" or several.tally.ops == one.tally.ops)  # rows that stay are padded by block
    assert [(e.name, e.rows) for e in after.entries] == [(e.name, e.rows) for e in before.entries]


@pytest.mark.parametrize("backwards", [False, True])
def test_rows_that_leave_are_told_by_block_whoever_came_first(backwards: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "WORTH", 1)

    def in_turn(work: Callable[[int], None], jobs: range, threads: int) -> None:
        for k in reversed(jobs) if backwards else jobs:
            work(k)

    def told() -> list[tuple[int, list[object]]]:
        made = list[Results]()

        def note(self: Engine, *given: object, ends: bool) -> Results:
            made.append(side(self, *given, ends=ends))  # type: ignore[arg-type]
            return made[-1]

        monkeypatch.setattr(Walker, "bound_side", note)
        bounds(toy_residual(), THREADS, "float64", "all")
        return [(r.ops, list(r.left)) for r in made]

    side = Walker.bound_side
    shared = told()
    monkeypatch.setattr(walker, "share_out", in_turn)
    assert told() == shared and max(len({tuple(b) for b in left}) for _, left in shared) > 1  # type: ignore[arg-type]


def test_blocks_of_all_threads_fit_the_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """And there are as many for each thread, of about the same rows; a thread that has little to do is not asked."""
    e = Engine(compile_net(toy_conv()), semantics="real", dtype="float64", config=Config(least=1))
    program = max(e.plan, key=lambda p: p.row_bytes)
    budget_of_rows = 40
    memory = budget_of_rows * program.row_bytes
    assert budget.count_sharers(10**6, program, e.kit, memory, THREADS) == THREADS
    sizes = [len(b) for b in budget.row_blocks(1000, program, e.kit, memory, e.config, e.device, THREADS)]
    assert sum(sizes) == 1000 and len(sizes) % THREADS == 0
    assert max(sizes) * THREADS <= budget_of_rows and max(sizes) - min(sizes) <= 1
    assert budget.count_sharers(10**6, program, e.kit, 2 * program.row_bytes, THREADS) == 2
    assert budget.count_sharers(10**6, program, e.kit, program.row_bytes // 2, THREADS) == 1  # whose message says what is lacking
    assert budget.count_sharers(8, program, e.kit, memory, THREADS) == 1
    monkeypatch.setattr(budget, "WORTH", 1)
    assert budget.count_sharers(8, program, e.kit, memory, THREADS) == THREADS
    assert budget.count_sharers(2, program, e.kit, memory, THREADS) == 2
    assert budget.count_sharers(0, program, e.kit, memory, THREADS) == 1


# ---- rows of several images -----------------------------------------------------------------------------------


def dense_chain(width: int = 160) -> Net:
    rng = np.random.default_rng(3)
    w = [rng.standard_normal(shape) / np.sqrt(shape[1]) for shape in ((width, 20), (width, width), (width, width), (3, width))]
    return dense(*((v.astype(np.float32), np.zeros(len(v), np.float32)) for v in w))


@pytest.mark.parametrize("threads", [1, THREADS])
def test_rows_of_dense_layers_are_cut_by_image(threads: int) -> None:
    """There each image leaves out cells of its own: blocks hold all rows, in order, of one image each, if it has many."""
    e = Engine(compile_net(dense_chain()), semantics="real", dtype="float32")
    program = [p for p in e.plan if p.kind == "bound"][-1]

    def blocks(*rows: int) -> list[list[int]]:
        images = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(rows))
        found = budget.row_blocks(sum(rows), program, e.kit, 1 << 30, e.config, e.device, threads, images)
        assert torch.cat(found).tolist() == list(range(sum(rows)))
        return [images[b].unique().tolist() for b in found]

    assert blocks(100, 0, 90, 80, 70) == [[0], [2], [3], [4]]
    assert blocks(200) == [[0]] * threads
    few = blocks(3, 2, 1, 4)  # none of their own
    assert len(few) == threads and any(len(b) > 1 for b in few)
    pixels = Engine(compile_net(toy_conv()), semantics="real", dtype="float32")
    images = torch.arange(4).repeat_interleave(100)
    assert len(budget.row_blocks(400, pixels.plan.query, pixels.kit, 1 << 30, pixels.config, pixels.device, 1, images)) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_batchs_bounds_are_those_of_its_images(dtype: str) -> None:
    """Blocks of one image leave out cells, and blocks of several never did."""
    net, rng = dense_chain(), np.random.default_rng(1)
    e = Engine(compile_net(net, "input"), semantics="real", dtype=dtype)
    centre = torch.from_numpy(rng.uniform(-1, 1, (6, 20)))
    boxes = e.refine(centre - 0.02, centre + 0.02)
    for k in range(6):
        alone = e.refine(centre[k : k + 1] - 0.02, centre[k : k + 1] + 0.02)
        for name in e.bounded_nodes():
            for side in ("lo", "hi"):
                one, many = getattr(alone, side)[name][0], getattr(boxes, side)[name][k]
                assert (one - many).abs().max() <= (1e-5 if dtype == "float32" else 1e-12) * one.abs().max(), (name, k)


# ---- arithmetic -----------------------------------------------------------------------------------------------

FLUSHING = """
import torch
from polytriton.runtime.cpu.sharing import share_out
from polytriton.runtime.cpu.tape import Tape
from polytriton.runtime.cpu.walk import Walk
from polytriton.runtime.settings import pin_settings

torch.set_num_threads(4)
assert torch.set_flush_denormal(True)
tiny, seen = torch.full((4,), 512, dtype=torch.int32).view(torch.float32), {}  # 2^-140
assert not (tiny * 1.0).view(torch.int32).any(), "this thread flushes"

def work(k):
    meeting.wait()  # every thread takes one
    seen[threading.get_ident()] = bool(((tiny * 1.0).view(torch.int32) == 512).all())

import threading
meeting = threading.Barrier(4, timeout=60)
with pin_settings():
    share_out(work, range(4), 4)
assert len(seen) == 4 and all(seen.values()), seen
assert not (tiny * 1.0).view(torch.int32).any(), "and does so afterwards"
"""


def test_threads_keep_what_is_subnormal_where_the_user_flushes_it() -> None:
    done = subprocess.run([sys.executable, "-c", FLUSHING], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


GROUPS = [
    ([0, 0, 0, 1, 1, 2, 2, 2], [3, 5]),
    ([0, 0, 0, 0, 0, 0, 0, 0], []),
    ([0, 1, 2, 3, 4, 5, 6, 7], [2, 5]),
    ([0, 1, 0, 1, 2, 2, 2, 2], []),
]


@pytest.mark.parametrize("groups, cuts", GROUPS)
def test_rows_of_a_group_are_one_threads(groups: list[int], cuts: list[int]) -> None:
    assert budget.between_groups([2, 5], torch.tensor(groups)) == cuts
    assert budget.between_groups([], torch.tensor(groups)) == []


def test_the_last_parts_are_small() -> None:
    much = 10**12
    assert tape_player.cut_rows(1000, much, 2) == [250, 500, 624, 750, 812, 874, 936]
    assert tape_player.cut_rows(1000, much, 1) == [] == tape_player.cut_rows(1, much, 2)
    assert tape_player.cut_rows(5, much, 2) == [2, 4]
    assert tape_player.cut_rows(1000, 15 * tape_player.SHARE, 2) == [500]
    assert tape_player.cut_rows(1000, tape_player.WORTH - 1, 2) == []


def test_rows_that_are_played_fit_the_memory_alone() -> None:
    """No cache asks for smaller blocks, since some rows take the place of others within the call."""
    e = Engine(compile_net(toy_conv()), semantics="real", dtype="float32", config=Config(block=1, least=4))
    program, memory = e.plan.query, 1 << 30
    assert len(budget.row_blocks(40, program, e.kit, memory, e.config, e.device)) == 10
    assert len(budget.row_blocks(40, program, e.kit, memory, e.config, e.device, walks=False)) == 1
    assert len(budget.row_blocks(40, program, e.kit, program.row_bytes * 4, e.config, e.device, walks=False)) > 1


@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("net", [toy_conv(), toy_residual()], ids=lambda n: n.name)
def test_rows_that_are_played_are_divided(net: Net, candidates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape_player, "WORTH", 1)
    sizes, begin = list[int](), tape_player.PlayedRows.begin

    def note(tape: Tape, places: list[np.ndarray], *given: object, **how: bool) -> tape_player.PlayedRows:
        sizes.append(len(places[0]))
        return begin(tape, places, *given, **how)  # type: ignore[arg-type]

    alone, one, before = bounds(net, 1, "float32", candidates)
    monkeypatch.setattr(tape_player.PlayedRows, "begin", note)
    shared, several, after = bounds(net, THREADS, "float32", candidates)
    if not blocks.is_available():
        assert not sizes
        return
    assert len(sizes) >= 2 * THREADS and min(sizes) > 0
    for name, want in alone.items():
        assert np.abs(shared[name] - want).max() <= 4e-16 * max(1.0, float(np.abs(want).max())), name
    assert several.tally.rows == one.tally.rows and several.tally.ops == one.tally.ops
    assert [(e.name, e.rows) for e in after.entries] == [(e.name, e.rows) for e in before.entries]


@pytest.mark.parametrize("played", [True, False])
@pytest.mark.parametrize("net", [toy_conv(), toy_residual()], ids=lambda n: n.name)
def test_a_query_shared_is_a_query_asked(net: Net, played: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "WORTH", 1)
    monkeypatch.setattr(tape_player, "WORTH", 1)
    monkeypatch.setattr(Walk, "plays", played)
    played = played and blocks.is_available()
    asked, found = list[tuple[int, int]](), list[Results]()

    def note(work: Callable[[int], None], jobs: range, threads: int) -> None:
        asked.append((len(jobs), threads))
        share_out(work, jobs, threads)

    monkeypatch.setattr(tape_player if played else walker, "share_out", note)
    rng, compiled = np.random.default_rng(9), compile_net(net)
    lo, hi = (torch.from_numpy(v).reshape(2, -1) for v in random_box(rng, net, "ordinary", 2))
    rows = torch.from_numpy(rng.standard_normal((24, net.by_name[net.output].size)))
    forms = Forms(torch.arange(2).repeat_interleave(12), rows)
    for threads in (1, THREADS):
        e = Engine(compiled, semantics="real", dtype="float32", threads=threads)
        boxes = e.interval(lo, hi)
        found += [e.query(boxes, forms), e.query(boxes, forms, torch.arange(24) // 4)]
    assert asked == [(1, 1)] * 2 + [(THREADS, THREADS)] * 2
    assert torch.equal(found[0].best, found[2].best) and torch.isfinite(found[0].best).all()
    decided = [(r.best.view(-1, 4) > 0).any(1) for r in found]
    assert torch.equal(decided[1], decided[3]) and found[2].ops == found[0].ops and len(found[2].left) == (1 if played else THREADS)


def test_torch_works_alone_while_its_share_is_ours() -> None:
    given = torch.get_num_threads()
    with settings.threads(given), settings.own_threads():
        assert torch.get_num_threads() == 1 and settings.allowed_threads() == given
        with settings.own_threads(), settings.threads(1):
            assert settings.allowed_threads() == given
        seen = list[int]()
        other = threading.Thread(target=lambda: seen.append(settings.allowed_threads()))
        other.start()
        other.join()
        assert seen == [1], "a thread that works for this one shares nothing out itself"
    assert torch.get_num_threads() == settings.allowed_threads() == given
    with pytest.raises(KeyError), settings.own_threads():
        raise KeyError
    assert torch.get_num_threads() == settings.allowed_threads() == given


def mixed() -> Net:
    """A convolution, one in groups, a scale that differs from cell to cell, a dense layer."""
    rng, b = np.random.default_rng(1), Builder("mixed")

    def weights(*shape: int) -> Ref:
        return b.constant(rng.standard_normal(shape).astype(np.float32))

    x = b.add("conv", (b.input((2, 7, 6)),), w=weights(6, 2, 3, 3), b=weights(6), k=(3, 3), s=(2, 1), p=(1, 0, 2, 1))
    x = b.add("conv", (b.add("relu", (x,)),), w=weights(4, 3, 3, 3), b=weights(4), k=(3, 3), s=(1, 1), p=(1, 1, 1, 1), g=2)
    x = b.add("scale", (b.add("relu", (x,)),), a=weights(*b.shape(x)), c=weights(*b.shape(x)))
    x = b.add("relu", (x,))
    return b.build(b.add("linear", (x,), w=weights(5, int(np.prod(b.shape(x)))), b=weights(5)))


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_long_products_are_shared(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By boxes, or by outputs where there are fewer boxes than threads; groups of channels stay together."""
    net = mixed()
    forward = Forward(net, find_semantics("real"), torch.device("cpu"))
    rng, shared = np.random.default_rng(3), list[int]()

    def note(work: Callable[[int], None], jobs: range, threads: int) -> None:
        shared.append(len(jobs))
        share_out(work, jobs, threads)

    monkeypatch.setattr(layer_products, "share_out", note)
    for name, layer in forward.layers.items():
        source = net.by_name[layer.node.inputs[0]]
        x = to_physical(torch.from_numpy(rng.standard_normal((batch, *source.shape))), source.shape)
        monkeypatch.setattr(layer_products, "LONG", 1 << 60)
        want = forward.product(layer, layer.w, x)
        assert not shared
        monkeypatch.setattr(layer_products, "LONG", 0)
        got = forward.product(layer, layer.w, x)
        whole = layer.node.op == "scale" or (batch < THREADS and layer.node.integer("g", 1) > 1)
        assert [*shared] == ([] if whole else [min(THREADS, batch if batch >= THREADS else layer.w.shape[0])]), name
        shared.clear()
        torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)
