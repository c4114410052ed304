"""What the falsifier is told and where it looks: slopes, several properties at once, small boxes, thin boxes, accounts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from polytriton import api
from polytriton.frontend.query import Disjunct, Property, Row, float_bounds
from polytriton.ir import interp
from polytriton.ir.net import Builder, Net
from polytriton.prove.hints import aim
from polytriton.prove.questions import questions
from polytriton.runtime.attack import Aim, Attack, Replay, falsify, falsify_all
from polytriton.runtime.attack.box import exact_point, nearest_box
from polytriton.runtime.attack.sample import Sampler
from polytriton.runtime.attack.search import NEAR, point_operations
from polytriton.runtime.executor import torch_forward
from tests.oracle.nets import random_net

NOTHING = Attack(restarts=0, steps=0, samples=0)
F32 = np.dtype("float32")


def replay_of(net: Net) -> Replay:
    return lambda x: interp.run(net, x[None])[0].astype(np.float32)


def piece(lo: list[Fraction], hi: list[Fraction], *rows: Row, open_lo: frozenset[int] = frozenset()) -> Disjunct:
    ends = np.array([float_bounds(v)[0] for v in lo]), np.array([float_bounds(v)[1] for v in hi])
    return Disjunct(*ends, tuple(lo), tuple(hi), rows, open_lo)


def at_least(i: int, value: Fraction | float) -> Row:
    return Row(((i, Fraction(-1)),), (), -Fraction(value))


def signed(signs: np.ndarray) -> Net:
    """y = signs . x"""
    b = Builder("signed")
    x = b.input((signs.size,))
    return b.build(b.add("linear", (x,), w=b.constant(signs[None].astype(np.float32)), b=b.constant(np.zeros(1, np.float32))))


def identity(n: int = 1) -> Net:
    b = Builder("identity")
    x = b.input((n,))
    return b.build(b.add("linear", (x,), w=b.constant(np.eye(n, dtype=np.float32)), b=b.constant(np.zeros(n, np.float32))))


# ---- slopes ----


def test_the_corner_of_the_linear_bounds_is_tried_first() -> None:
    signs = np.random.default_rng(0).choice([-1.0, 1.0], 100)
    net, box = signed(signs), ([Fraction(-1)] * 100, [Fraction(1)] * 100)
    prop = Property.from_disjuncts("corner", 100, 1, (piece(*box, at_least(0, 100)),))
    assert falsify(net, prop, replay_of(net), attack=NOTHING) is None
    (got,) = falsify_all(net, [Aim(prop, slopes={0: -signs[None]})], replay_of(net), attack=NOTHING)
    assert got is not None
    np.testing.assert_array_equal(got.x, signs)


def slopes_are_the_gradient(seed: int, device: str) -> bool:
    """Over a tiny box the network is affine: the linear bound of a form is the form's own gradient, whatever moves cells on the way.

    Returns whether there was anything to compare.
    """
    net = random_net(seed)
    size, outputs = int(np.prod(interp.user_shape(net))), net.node(net.output).size
    x = np.random.default_rng(seed).standard_normal(size)
    box = [Fraction(v - 1e-9) for v in x], [Fraction(v + 1e-9) for v in x]
    form = np.round(4 * np.random.default_rng(seed + 1).standard_normal(outputs))
    terms = tuple((i, Fraction(c)) for i, c in enumerate(form) if c)
    prop = Property.from_disjuncts("tiny", size, outputs, (piece(*box, Row(terms, (), Fraction(10**9))),))
    verifier = api.Verifier.from_net(net, semantics="real", dtype="float64", device=device)
    q = questions(prop)
    assert q is not None
    answers = verifier._decider.prove(q, slopes=True)
    assert verifier._decider.prove(q).slopes is None
    point = torch.tensor(x[None], requires_grad=True)
    (slope,) = torch.autograd.grad((torch_forward(net, torch.float64)(point) * torch.tensor(form)).sum(), point)
    want, clear = np.sign(slope.numpy().ravel()), np.abs(slope.numpy().ravel()) > 1e-9
    got = aim(prop, q, answers).slopes
    if 0 not in got or not np.isfinite(answers.best).all():
        return False
    np.testing.assert_array_equal(np.sign(got[0][0][clear]), want[clear], err_msg=f"seed {seed}")
    return bool(clear.any())


def test_slopes_are_the_gradient_where_every_relu_is_decided() -> None:
    assert sum(slopes_are_the_gradient(seed, "cpu") for seed in range(25)) >= 12


def test_several_devices_tell_what_one_tells() -> None:
    net = random_dense(20)
    box = np.random.default_rng(0).standard_normal((3, 20))
    pieces = [piece([Fraction(v - 1) for v in x], [Fraction(v + 1) for v in x], at_least(k, 1), at_least(0, 2)) for k, x in enumerate(box)]
    prop = Property.from_disjuncts("three", 20, 3, tuple(pieces))
    told = []
    for device in ("cpu", "cpu,cpu"):
        verifier = api.Verifier.from_net(net, semantics="real", dtype="float64", device=device)
        q = questions(prop)
        assert q is not None
        told.append(aim(prop, q, verifier._decider.prove(q, slopes=True)))
    assert told[0].pieces == told[1].pieces == [0, 1, 2]
    assert list(told[0].slopes) == list(told[1].slopes) == [0, 1, 2]
    for k in range(3):
        assert told[0].slopes[k].shape == (2, 20)
        np.testing.assert_array_equal(told[0].slopes[k], told[1].slopes[k])


def test_near_misses_are_replayed_once() -> None:
    """The least value is just above the unsafe set: descents that end there again need not be replayed again."""
    net = signed(np.ones(30))
    prop = Property.from_disjuncts(
        "near", 30, 1, (piece([Fraction(0)] * 30, [Fraction(1)] * 30, at_least(0, Fraction(30) + Fraction(1, 10**4))),)
    )
    calls = []
    assert falsify(net, prop, lambda x: calls.append(x) or replay_of(net)(x), attack=Attack(restarts=30, steps=30)) is None  # type: ignore[func-returns-value]
    assert len(calls) == 1


def test_only_open_pieces_are_aimed_at() -> None:
    net = identity(2)
    box = [Fraction(0)] * 2, [Fraction(1)] * 2
    prop = Property.from_disjuncts("two", 2, 2, (piece(*box, at_least(0, Fraction(1, 2))), piece(*box, at_least(1, Fraction(1, 2)))))
    for only in ([0], [1]):
        (got,) = falsify_all(net, [Aim(prop, only)], lambda x, k=only[0]: np.eye(2, dtype=np.float32)[k])
        assert got is not None
        assert got.disjunct == only[0]
    assert falsify_all(net, [Aim(prop, [])], replay_of(net)) == [None]


# ---- several properties, seeds, accounts ----


def test_several_properties_share_one_search() -> None:
    rng = np.random.default_rng(4)
    nets = signed(rng.choice([-1.0, 1.0], 40))
    pieces = [piece([Fraction(k)] * 40, [Fraction(k + 1)] * 40, at_least(0, v)) for k, v in enumerate((5, 500, 8))]
    props = [Property.from_disjuncts(f"p{k}", 40, 1, (d,)) for k, d in enumerate(pieces)]
    found = falsify_all(nets, [Aim(p) for p in props], replay_of(nets))
    assert [f is not None for f in found] == [True, False, True]
    for p, f in zip(props, found, strict=True):
        assert f is None or p.violated(f.x, f.y) == 0


@pytest.mark.parametrize("inputs", [3, 60])
def test_a_seed_decides_everything(inputs: int) -> None:
    net = random_dense(inputs)
    prop = Property.from_disjuncts(
        "p", inputs, 3, (piece([Fraction(-1)] * inputs, [Fraction(1)] * inputs, at_least(0, 0.2), at_least(1, 0.1)),)
    )
    runs = [falsify(net, prop, replay_of(net), attack=Attack(seed=seed)) for seed in (0, 0, 1)]
    assert all(r is not None for r in runs)
    np.testing.assert_array_equal(runs[0].x, runs[1].x)  # type: ignore[union-attr]


def random_dense(inputs: int) -> Net:
    rng = np.random.default_rng(inputs)
    b = Builder("dense")
    x = b.input((inputs,))
    h = b.add("linear", (x,), w=b.constant(rng.standard_normal((20, inputs)).astype(np.float32)), b=b.constant(np.zeros(20, np.float32)))
    h = b.add("relu", (h,))
    y = b.add("linear", (h,), w=b.constant(rng.standard_normal((3, 20)).astype(np.float32)), b=b.constant(np.zeros(3, np.float32)))
    return b.build(y)


def test_operations_bound_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    net = random_dense(60)
    assert point_operations(net) == 2 * 20 * 60 + 2 * 20 + 2 * 3 * 20 + 2 * 60
    prop = Property.from_disjuncts("never", 60, 3, (piece([Fraction(-1)] * 60, [Fraction(1)] * 60, at_least(0, 10**6)),))
    points = 0
    made = torch_forward(net, torch.float32)

    def counted(*args: object) -> object:
        def forward(x: torch.Tensor) -> torch.Tensor:
            nonlocal points
            points += len(x)
            return made(x)

        return forward

    monkeypatch.setattr("polytriton.runtime.attack.search.torch_forward", counted)
    budget = 2000 * point_operations(net)
    assert falsify(net, prop, replay_of(net), attack=Attack(restarts=10**6, operations=budget)) is None
    assert 2000 / 3 - 300 < points <= 2000 + 300  # a gradient costs two more; a batch may overrun


def test_finds_lie_clearly_inside_where_they_can() -> None:
    net = random_dense(30)
    prop = Property.from_disjuncts("deep", 30, 3, (piece([Fraction(-1)] * 30, [Fraction(1)] * 30, at_least(0, 0.5)),))
    got = falsify(net, prop, replay_of(net))
    assert got is not None
    assert got.y[0] - 0.5 >= NEAR * (1 + np.abs(got.y).max())


# ---- small boxes ----


def test_samples_find_a_narrow_basin_that_gradients_do_not_lead_to() -> None:
    """min(|x - a|, 8 |x - b| - 1/4) has its wide basin around a and the only negative values near b."""
    a, b = np.array([0.2, 0.3, 0.7]), np.array([0.8, 0.75, 0.2])
    n = Builder("basins")
    x = n.input((3,))

    def distance(centre: np.ndarray, scale: float, offset: float) -> str:
        eye, shift = (np.concatenate([v, -v]).astype(np.float32) for v in (np.eye(3), -centre))
        parts = n.add("linear", (x,), w=n.constant(eye), b=n.constant(shift))
        ones = np.full((1, 6), scale, np.float32)
        return n.add("linear", (n.add("relu", (parts,)),), w=n.constant(ones), b=n.constant(np.array([offset], np.float32)))

    u, v = distance(a, 1.0, 0.0), distance(b, 8.0, -0.25)
    net = n.build(n.add("sub", (u, n.add("relu", (n.add("sub", (u, v)),)))))
    row = Row(((0, Fraction(1)),), (), Fraction(-6, 25))
    prop = Property.from_disjuncts("basin", 3, 1, (piece([Fraction(0)] * 3, [Fraction(1)] * 3, row),))
    got = falsify(net, prop, replay_of(net), attack=Attack(restarts=0, steps=0, samples=1 << 12))
    assert got is not None
    assert np.abs(got.x - b).sum() < 0.01
    assert falsify(net, prop, replay_of(net), attack=Attack(restarts=0, samples=0)) is None  # the middle leads to the other basin


def test_a_box_is_small_by_its_free_inputs() -> None:
    lo, hi = np.zeros(500, np.float32), np.zeros(500, np.float32)
    assert not Sampler.pays((lo, hi))
    hi[[3, 400]] = 1
    assert Sampler.pays((lo, hi))
    assert Sampler.corners((lo, hi)).shape == (4, 500)
    assert len(np.unique(Sampler.corners((lo, hi)), axis=0)) == 4
    assert not Sampler.pays((lo, lo + 1))
    assert Sampler.corners((lo, lo + 1)).shape == (2, 500)


# ---- boxes without a number of the model's type ----

TENTH = Fraction(1, 10)


def test_the_nearest_box_and_the_point_it_stands_for() -> None:
    d = piece([TENTH, Fraction(0), Fraction(1, 3)], [TENTH, Fraction(1), Fraction(1, 3) + Fraction(1, 10**12)])
    box = nearest_box(d, F32)
    assert box is not None
    np.testing.assert_array_equal(box[0], np.array([0.1, 0, 1 / 3], F32))
    np.testing.assert_array_equal(box[1], np.array([0.1, 1, 1 / 3], F32))
    where = exact_point(d, np.array([0.1, 0.25, 1 / 3], F32))
    assert where is not None
    assert where[:2] == (TENTH, Fraction(1, 4))
    assert d.exact_lo[2] <= where[2] <= d.exact_hi[2]
    strict = piece([TENTH], [Fraction(2, 10)], open_lo=frozenset({0}))
    assert exact_point(strict, np.array([0.05], F32)) is None
    assert exact_point(strict, np.array([0.15], F32)) is not None


def test_a_decimal_input_is_judged_by_the_exact_network_and_the_model() -> None:
    net, near = identity(), Fraction(float(np.float32(0.1)))
    assert near > TENTH

    def ask(semantics: str, row: Row, **kinds: frozenset[int]) -> api.Result:
        verifier = api.Verifier.from_net(net, semantics=semantics)
        verifier._replay = replay_of(net)
        return verifier.verify_property(Property.from_disjuncts("decimal", 1, 1, (piece([TENTH], [TENTH], row, **kinds),)))

    row = at_least(0, Fraction(9, 100))
    got = ask("real", row)
    assert got.verdict == "sat"
    assert got.counterexample is not None
    assert got.counterexample.x.tolist() == [0.1]  # as the property writes it; float32 rounds it to what the model ran on
    assert Property.from_disjuncts("p", 1, 1, (piece([TENTH], [TENTH], row),)).violated([0.1], got.counterexample.y, rounded=True) == 0
    assert ask("float32", row).verdict == "unknown"  # no float32 execution starts in the box
    # the run at the nearest float32 is unsafe, the exact network at the decimal is not: nothing is claimed
    assert ask("real", at_least(0, near)).verdict != "sat"
    assert ask("real", row, open_lo=frozenset({0})).verdict != "sat"  # a strict bound leaves the box empty


def test_thin_boxes_need_both_judges() -> None:
    net = identity()
    prop = Property.from_disjuncts("thin", 1, 1, (piece([TENTH], [TENTH], at_least(0, Fraction(9, 100))),))
    seen = []
    assert falsify(net, prop, replay_of(net), certify=lambda d, x: seen.append(x) or False) is None  # type: ignore[func-returns-value]
    assert seen
    assert set(seen) == {(TENTH,)}
    assert falsify(net, prop, lambda x: np.zeros(1, F32), certify=lambda d, x: True) is None
    assert falsify(net, prop, lambda x: np.full(1, np.nan, F32), certify=lambda d, x: True) is None
    assert falsify(net, prop, replay_of(net), certify=lambda d, x: True) is not None
