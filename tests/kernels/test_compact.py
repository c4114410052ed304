"""Finished rows leave by a stable prefix sum: against numpy, in blocks smaller and larger than the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu.places import Places
from tests.kernels.steps import blocks, draw, run
from tests.kernels.test_device_runs import small_net

pytest.importorskip("triton", reason="Triton is not installed")
NAMES = ("image", "row_h", "row_w", "constant", "error", "sign", "channel")
EMPTY = -7  # what lies past the rows that stayed
seeds = st.integers(0, 2**32 - 1)
Arrays = dict[str, np.ndarray]


def rows(rng: np.random.Generator, count: int) -> Arrays:
    """`count` rows and a few places more, each row somewhere in the results."""
    n = count + int(rng.integers(0, 4))
    made: Arrays = {name: rng.integers(0, 100, n) for name in NAMES}
    for name in ("constant", "error", "sign"):
        made[name] = draw(rng, (n,), "mixed")
    return {**made, "index": rng.permutation(n + 2)[:n], "count": np.array([count])}


def compacted(old: Arrays, group: np.ndarray, done: np.ndarray, b: int, neuron: bool = True) -> Arrays:
    """Both launches; the row arrays of the next state, and `from`."""
    n = len(old["index"])
    programs, shared = blocks(n, b) + 1, {"group": group, "done": done}
    counts = run("count_staying", {"B": b}, "float32", (programs, 1), {**old, **shared, "blocks": np.full(programs, EMPTY)})["blocks"]
    to: Arrays = {f"to_{name}": np.full(n, EMPTY, old[name].dtype) for name in (*NAMES, "index")}
    nb = 1 << int(programs - 1).bit_length()
    constants = {"NEURON": neuron, "B": b, "NB": nb}
    moved = {**to, "to_count": np.full(1, EMPTY), "from": np.full(n, EMPTY), "blocks": counts}
    found = run("move_rows", constants, "float32", (programs, 1), {**old, **shared, **moved})
    return {name.removeprefix("to_"): found[name] for name in moved if name != "blocks"}


def check(old: Arrays, group: np.ndarray, done: np.ndarray, new: Arrays, neuron: bool = True) -> np.ndarray:
    """New arrays hold the rows that stay, in their order, and nothing else; which these were."""
    count = int(old["count"][0])
    stay = np.flatnonzero(done[group[old["index"][:count]]] == 0)
    assert new["count"].tolist() == [len(stay)]
    for name in (*NAMES, "index", "from"):
        want = np.full(len(old["index"]), EMPTY, new[name].dtype)
        if neuron or name not in ("sign", "channel"):
            want[: len(stay)] = stay if name == "from" else old[name][stay]
        assert np.array_equal(new[name], want), name
    return stay


@given(
    seeds,
    st.sampled_from((0, 1, 2, 15, 16, 17, 50)),
    st.sampled_from((1, 4, 16, 64)),
    st.sampled_from(("all", "none", "some")),
    st.booleans(),
)
@limits(max_examples=60)
def test_rows_that_stay_keep_their_order(seed: int, count: int, b: int, leave: str, neuron: bool) -> None:
    rng = np.random.default_rng(seed)
    old, groups = rows(rng, count), int(rng.integers(1, 20))
    group = rng.integers(0, groups, len(old["index"]) + 2)
    done = {"all": np.ones(groups), "none": np.zeros(groups), "some": rng.random(groups) < 0.5}[leave].astype(np.int8)
    new = compacted(old, group, done, b, neuron)
    stay = check(old, group, done, new, neuron)
    assert len(stay) == {"all": 0, "none": count}.get(leave, len(stay))


@given(seeds, st.sampled_from((1, 4, 64)))
@limits(max_examples=15)
def test_slots_are_followed_through_three_compactions(seed: int, b: int) -> None:
    """Coefficients written before the first, second and third compaction are all found afterwards."""
    rng = np.random.default_rng(seed)
    state, count = rows(rng, 12), 12
    group = np.arange(len(state["index"]) + 2)
    done = np.zeros(len(group), np.int8)
    slots: list[np.ndarray] = []
    written: list[np.ndarray] = []
    for _ in range(3):
        written.append(state["index"][:count].copy())  # the coefficients name the row that they belong to
        done |= (rng.random(len(done)) < 0.3).astype(np.int8)
        state = compacted(state, group, done, b)
        count, n = int(state["count"][0]), len(state["index"])
        followed = []
        for slot in slots:
            values = {"from": state["from"], "slot": slot, "to_slot": np.full(n, EMPTY), "count": state["count"]}
            followed.append(run("follow_slots", {"B": b}, "float32", (blocks(n, b) + 1, 1), values)["to_slot"])
            assert (followed[-1][count:] == EMPTY).all()
        slots = [*followed, state["from"]]
        for name in NAMES:
            state[name][count:] = 0
        state["index"][count:] = 0
        for coefficients, slot in zip(written, slots, strict=True):
            assert np.array_equal(coefficients[slot[:count]], state["index"][:count])


def test_a_single_block_is_not_counted() -> None:
    """Where one program takes all rows, or all cells of a batch, nobody reads what counts blocks; with two, somebody does."""
    compiled = compile_net(small_net(), "all")
    backend = Engine(compiled, kernels="interpret").kernels
    assert backend is not None
    program = next(p for p in compiled.plan if p.kind == "bound")
    steps = backend.ready(program).launches.steps
    (counter,) = {s.block for s in steps if s.function == "count_staying"}
    for step in steps:
        assert step.is_idle(counter) == (step.function == "count_staying") and not step.is_idle(counter + 1)
    entries = [e.launch for e in backend.script.sections["refine"] if e.launch is not None and e.launch.function == "find_open"]
    idle = replace(entries[0], kernel=replace(entries[0].kernel, family="count_open"))
    assert idle.is_idle(1) and not idle.is_idle(2)
    played = list[str]()
    call = backend.call
    backend.call = lambda launch, count, tensor: (played.append(launch.function), call(launch, count, tensor))[1]  # type: ignore[method-assign]
    places = Places(backend, 1)
    for capacity in (counter, 2 * counter):
        backend.bound(places, program, capacity, capacity)
        assert ("count_staying" in played) == (capacity > counter) and "move_rows" in played


@given(seeds, st.sampled_from((0, 1, 15, 16)), st.booleans())
@limits(max_examples=15)
def test_a_single_block_needs_no_counts(seed: int, count: int, neuron: bool) -> None:
    rng = np.random.default_rng(seed)
    old = rows(rng, count)
    n = len(old["index"])
    group, done = rng.integers(0, 5, n + 2), (rng.random(5) < 0.5).astype(np.int8)
    to: Arrays = {f"to_{name}": np.full(n, EMPTY, old[name].dtype) for name in (*NAMES, "index")}
    moved = {**to, "to_count": np.full(1, EMPTY), "from": np.full(n, EMPTY), "blocks": np.full(4, 1 << 40)}
    constants = {"NEURON": neuron, "B": 1 << int(n).bit_length(), "NB": 4}
    found = run("move_rows", constants, "float32", (1, 1), {**old, "group": group, "done": done, **moved})
    check(old, group, done, {name.removeprefix("to_"): found[name] for name in moved if name != "blocks"}, neuron)
