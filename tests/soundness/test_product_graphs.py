"""Random graphs of products, quotients, Softmax and smooth functions: no execution lies outside its bounds."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.oracle.product_graphs import FUNCTIONS, Graph, judge_graph


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", [*range(16), *(pytest.param(k, marks=pytest.mark.slow) for k in range(16, 80))])
def test_no_execution_of_a_graph_lies_outside_its_bounds(seed: int) -> None:
    assert not judge_graph(seed).escapes


def test_every_operator_is_drawn() -> None:
    seen = Counter(n.op_type for seed in range(120) for n in Graph.draw(seed).nodes)
    assert all(seen[op] >= 3 for op in (*FUNCTIONS, "Mul", "Div", "MatMul", "Softmax", "Gather", "Concat")), seen
