"""The float32 opponent against float32 arithmetic of the machine, against the random one, and at work."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from polytriton.ir.interp import evaluate, user_shape
from polytriton.ir.net import Net
from tests.oracle import adversary
from tests.oracle.adversary import DRAWN, NEAREST, ORDERS, Choice, Goal, Opponent, any_choice
from tests.oracle.exact import Machine, exact, execute, float32_runs
from tests.oracle.nets import random_net, toy_conv, toy_residual
from tests.oracle.small import dense


def points(net: Net, rng: np.random.Generator, count: int = 3) -> np.ndarray:
    return rng.standard_normal((count, int(np.prod(user_shape(net))))).astype(np.float32).astype(np.float64)


def goal(net: Net, count: int, sign: float = 1.0) -> Goal:
    rows = np.zeros((count, net.node(net.output).size))
    rows[:, 0] = sign
    return Goal(net.output, rows)


@pytest.mark.parametrize("seed", range(25))
def test_values_are_the_interpreters(seed: int) -> None:
    net, rng = random_net(seed, scale="normal"), np.random.default_rng(seed)
    x = points(net, rng)
    near = Opponent(net).values(x)
    for name, value in evaluate(net, x.reshape(-1, *user_shape(net))).items():
        assert np.allclose(near[name], value.reshape(len(x), -1), rtol=1e-9, atol=1e-9)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(k, marks=pytest.mark.slow) for k in range(6, 12))])
@pytest.mark.parametrize("fma", [0, 1])
@pytest.mark.parametrize("mode,plain", [("nearest", NEAREST), ("down", -1), ("up", 1)])
def test_one_direction_for_all_is_the_plain_machine(mode: str, plain: int, fma: int, seed: int) -> None:
    net, rng = random_net(seed), np.random.default_rng(seed)
    x = points(net, rng)
    found = Opponent(net).run(x, goal(net, len(x)), Choice(fma=fma, plain=plain), rng)
    want = execute(net, x, Machine(mode, bool(fma), False, rng), "forward", False)
    for name, value in want.items():
        assert np.array_equal(found[name], value.reshape(len(x), -1), equal_nan=True), name


def test_rounding_to_nearest_is_the_hardware() -> None:
    rng = np.random.default_rng(1)
    w, x = rng.standard_normal((4, 300)).astype(np.float32), rng.standard_normal((1, 300)).astype(np.float32)
    net = dense((w, [0, 0, 0, 0]))
    found = Opponent(net).run(x.astype(np.float64), goal(net, 1), Choice(plain=NEAREST), rng)[net.output]
    assert (found[0] == np.cumsum(w * x, axis=1, dtype=np.float32)[:, -1]).all()


@pytest.mark.parametrize("order", range(len(ORDERS)))
def test_every_order_sums_all_terms_once(order: int) -> None:
    net, rng = toy_conv(), np.random.default_rng(2)
    x = points(net, rng)
    found = Opponent(net).run(x, goal(net, len(x)), Choice(order=order, plain=NEAREST), rng)[net.output]
    true = exact(net, x)[net.output].nearest()
    assert 0 < np.abs(found - true).max() < 1e-4


@pytest.mark.slow
def test_a_goal_beats_chance() -> None:
    net, rng = toy_residual(), np.random.default_rng(3)
    x = points(net, rng, 1)
    opponent = Opponent(net)
    high, low = (opponent.run(x, goal(net, 1, s), Choice(order=2), rng)[net.output][0, 0] for s in (1, -1))
    chance = [run[net.output][0, 0] for run in float32_runs(net, x, rng, 60)]
    assert low < min(chance) and max(chance) < high
    assert high - low > 1.3 * (max(chance) - min(chance))


def test_corners_reach_the_worst_end_of_a_linear_net() -> None:
    rng = np.random.default_rng(4)
    w = rng.standard_normal((1, 9)).astype(np.float32)
    net = dense((w, [0]))
    lo, hi = np.full(9, -1.0), np.full(9, 2.0)
    at = Opponent(net).corners(lo, hi, goal(net, 1), np.zeros((1, 9)))
    assert (at == np.where(w > 0, hi, lo)).all()


def test_derivatives_are_differences() -> None:
    for seed in range(20):
        net, rng = random_net(seed, scale="normal"), np.random.default_rng(seed)
        opponent, x = Opponent(net), points(net, rng, 1)
        form = goal(net, 1)
        if net.weight(net.input, "take") is not None:
            continue
        d = opponent.derivatives(opponent.values(x), form)[net.input.name]
        step = 1e-6 * rng.standard_normal(x.shape)
        change = (opponent.values(x + step)[net.output] - opponent.values(x - step)[net.output])[0, 0] / 2
        assert abs(change - float((d * step).sum())) <= 1e-3 * np.abs(d * step).sum() + 1e-12


def test_flushing_where_it_serves() -> None:
    net = dense(([[2.0**-130]], [0]), relu_last=True)
    rng = np.random.default_rng(5)
    for sign, kept in ((1, True), (-1, False)):
        found = Opponent(net).run(np.ones((1, 1)), goal(net, 1, sign), Choice(flush=2), rng)[net.output][0, 0]
        assert (found > 0) == kept


@pytest.mark.parametrize("inputs,unit", [("tf32", 2.0**-11), ("bf16", 2.0**-8), ("float16", 2.0**-11)])
def test_operands_are_converted(inputs: str, unit: float) -> None:
    net, rng = dense(([[1.0]], [0])), np.random.default_rng(6)
    x = np.array([[1 + 0.75 * 2 * unit]])
    up, down = (
        Opponent(net).run(x, goal(net, 1, s), Choice(inputs=inputs), rng)[net.output][0, 0] for s in (1, -1)
    )
    assert (down, up) == (1.0, 1 + 2 * unit)


@pytest.mark.parametrize("order", range(len(ORDERS)))
def test_loops_are_the_same_without_a_compiler(order: int) -> None:
    if adversary.numba is None:
        pytest.skip("no Numba: the plain loops are all there is")
    rng = np.random.default_rng(order)
    w, v = rng.standard_normal((5, 9)), rng.standard_normal((3, 12))
    cell, bias = rng.integers(-1, 12, (5, 9)), rng.standard_normal(5)
    direction = rng.integers(-1, 4, (3, 5)).astype(np.int8)
    w, v, bias = (x.astype(np.float32).astype(np.float64) for x in (w, v, bias))
    found = []
    for function in (adversary.dots, adversary.dots.py_func):
        out = np.empty((3, 5))
        with np.errstate(over="ignore"):
            function(w, cell, v, bias, direction, order, 2, True, 2, np.array([7], np.uint64), out)
        found.append(out)
    assert np.array_equal(*found)


def test_drawn_choices_differ() -> None:
    net, rng = toy_conv(), np.random.default_rng(7)
    x = points(net, rng, 1)
    runs = {Opponent(net).run(x, goal(net, 1), any_choice(rng), rng)[net.output].tobytes() for _ in range(8)}
    drawn = {Opponent(net).run(x, goal(net, 1), Choice(plain=DRAWN), rng)[net.output].tobytes() for _ in range(3)}
    assert len(runs) >= 6 and len(drawn) == 3
    image = torch.tensor(x.reshape(1, *net.input.shape), dtype=torch.float32)
    conv = net.node("conv")
    w, b = (torch.tensor(np.asarray(net.weight(conv, k))) for k in ("w", "b"))
    plain = functional.conv2d(image, w, b, padding=1).flatten().numpy()
    assert np.allclose(Opponent(net).values(x)["conv"][0], plain, atol=1e-5)
