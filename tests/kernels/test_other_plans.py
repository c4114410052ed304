"""Generated kernels run the plan that a configuration asks for, and bound as the interpreter of Plans does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polytriton.passes.pipeline import compile_net
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.engine import Engine
from tests.kernels.test_device_runs import answer, boxes_of, same, small_net

pytest.importorskip("triton", reason="Triton is not installed")
CONFIGS: dict[str, dict[str, Any]] = {
    "whole": {"whole": 1e-9},
    "skips": {"skips": {n.name: [m.name for m in small_net() if m.op == "relu"] for n in small_net()}},
    "both": {"whole": 1.0, "skips": {n.name: [m.name for m in small_net() if m.op == "relu"] for n in small_net()}},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_kernels_bound_alike_under_other_plans(name: str) -> None:
    compiled = compile_net(small_net(), "all")
    given: dict[str, Any] = {"dtype": "float64", "semantics": "float32", "config": Config(**CONFIGS[name])}
    theirs, ours = Engine(compiled, **given), Engine(compiled, kernels="interpret", **given)
    assert ours.plan == theirs.plan != compiled.plan
    same(answer(theirs, 3), answer(ours, 3))


def test_skipped_checks_are_not_launched() -> None:
    compiled = compile_net(small_net(), "all")
    launched = []
    for config in (DEFAULT, Config(**CONFIGS["skips"])):
        engine = Engine(compiled, dtype="float64", kernels="interpret", config=config)
        engine.refine(*boxes_of(1, 1))
        assert engine.kernels is not None
        steps = [s for p in engine.plan if p.kind == "bound" for s in engine.kernels.ready(p).launches.steps]
        launched.append([s.function for s in steps])
    plain, fewer = ([f.count(name) for name in ("concretize_rows", "move_rows")] for f in launched)
    assert plain == [5, 4]  # conv_1's last check, add's three, one of them over two nodes; rows move after two, and as programs start
    assert fewer == [2, 2]


@pytest.mark.parametrize("graphs", [True, False])
def test_the_interpreter_has_no_graphs(graphs: bool) -> None:
    engine = Engine(compile_net(small_net(), "all"), dtype="float64", kernels="interpret", config=Config(graphs=graphs))
    assert engine.kernels is not None
    assert engine.kernels.graphs is False and engine.config.graphs is graphs
    assert torch.isfinite(engine.refine(*boxes_of(1, 1)).lo["x"]).all()
