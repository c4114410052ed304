"""Blocks of rows that several threads walk: each of them once, the same bounds, within the memory, and nobody works on after an error."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from polytriton.ir.net import Net
from polytriton.passes.pipeline import compile_net
from polytriton.runtime import budget, engine
from polytriton.runtime.config import Config
from polytriton.runtime.cpu.sharing import share_out
from polytriton.runtime.engine import Engine
from polytriton.runtime.results import Results
from polytriton.runtime.trace import Trace
from tests.oracle.nets import random_box, toy_conv, toy_residual

THREADS = 3


@pytest.fixture(autouse=True)
def torch_may_have_as_many() -> Iterator[None]:
    given = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(given)


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
    asked = list[int]()

    def note(work: Callable[[int], None], jobs: range, threads: int) -> None:
        asked.append(threads)
        share_out(work, jobs, threads)

    monkeypatch.setattr(engine, "share_out", note)
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

        def note(self: Engine, *given: object) -> Results:
            made.append(side(self, *given))  # type: ignore[arg-type]
            return made[-1]

        monkeypatch.setattr(Engine, "_side", note)
        bounds(toy_residual(), THREADS, "float64", "all")
        return [(r.ops, list(r.left)) for r in made]

    side = Engine._side
    shared = told()
    monkeypatch.setattr(engine, "share_out", in_turn)
    assert told() == shared and max(len({tuple(b) for b in left}) for _, left in shared) > 1  # type: ignore[arg-type]


def test_blocks_of_all_threads_fit_the_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """And there are as many for each thread, of about the same rows; a thread that has little to do is not asked."""
    e = Engine(compile_net(toy_conv()), semantics="real", dtype="float64", config=Config(least=1))
    program = max(e.plan, key=lambda p: p.row_bytes)
    budget_of_rows = 40
    memory = budget_of_rows * program.row_bytes
    threads = budget.count_sharers(10**6, program, e.kit, memory, e.config, THREADS)
    assert threads == THREADS
    sizes = [len(b) for b in budget.row_blocks(1000, program, e.kit, memory, e.config, e.device, threads)]
    assert sum(sizes) == 1000 and len(sizes) % threads == 0
    assert max(sizes) * threads <= budget_of_rows and max(sizes) - min(sizes) <= 1
    assert budget.count_sharers(10**6, program, e.kit, 2 * program.row_bytes, e.config, THREADS) == 2
    assert budget.count_sharers(10**6, program, e.kit, program.row_bytes // 2, e.config, THREADS) == 1  # whose message says what is lacking
    assert budget.count_sharers(8, program, e.kit, memory, Config(least=4), THREADS) == 1
    monkeypatch.setattr(budget, "WORTH", 1)
    assert budget.count_sharers(8, program, e.kit, memory, Config(least=4), THREADS) == 2
    assert budget.count_sharers(1, program, e.kit, memory, e.config, THREADS) == 1
