"""What is claimed of a network at one exact point, against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from polytriton import api
from polytriton.frontend.query import Disjunct, Row
from polytriton.ir.interp import user_shape
from polytriton.prove.decider import Try
from polytriton.prove.hints import reaches
from tests.oracle.exact import exact
from tests.oracle.nets import random_net


def test_rows_are_claimed_at_a_point_only_where_the_exact_network_fulfils_them() -> None:
    """Thresholds at the exact value, a hair below it and clearly above it."""
    claimed = asked = 0
    for seed in range(60):
        net = random_net(seed)
        x = np.random.default_rng(seed).standard_normal(int(np.prod(user_shape(net))))
        true = exact(net, x[None])[net.output]
        value = Fraction(int(true.num.reshape(-1)[0]), 1 << true.exp)
        where = tuple(map(Fraction, x.tolist()))
        decider = api.Verifier.from_net(net, semantics="real")._decider
        how = Try(decider.first_dtype(), "all")

        def holds(const: Fraction, sign: int, strict: bool = False) -> bool:
            row = Row(((0, Fraction(sign)),), (), const, strict)
            return reaches(decider, how, Disjunct(x, x, where, where, (row,)), where)  # noqa: B023

        for sign in (1, -1):
            assert not holds(sign * value - Fraction(1, 2**400), sign), seed
            assert not holds(sign * value, sign, strict=True), seed
            asked += 1
            claimed += holds(sign * value + abs(value) / 1000 + Fraction(1, 1000), sign)
    assert asked == 120
    assert claimed >= 60  # networks whose numbers are huge have bounds too wide for a thousandth
