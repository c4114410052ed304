"""Networks from text with weights made up to fit, and passes run on them by name."""

from __future__ import annotations

import math

import numpy as np

from polytriton.ir.check import check_net
from polytriton.ir.net import Net, Ref
from polytriton.ir.plan import Plan
from polytriton.ir.plan_text import print_plan
from polytriton.ir.text import parse_net, print_net
from polytriton.passes.pipeline import fold_net, make_plan, run_net_pass


def read(text: str, seed: int = 0, **given: object) -> Net:
    """The network of the text. Weights that are not given are drawn: scale factors near one, float32."""
    rng = np.random.default_rng(seed)
    draft = parse_net(text)
    shapes = {n.name: n.shape for n in draft}
    weights = {k: np.asarray(v) for k, v in given.items()}

    def draw(ref: object, shape: tuple[int, ...], low: float = -1.0) -> None:
        assert isinstance(ref, Ref)
        weights.setdefault(ref.name, rng.uniform(low, 1.5, shape).astype(np.float32))

    for n in draft:
        source = shapes[n.inputs[0]] if n.inputs else ()
        if n.op == "linear":
            draw(n.attrs["w"], (math.prod(n.shape), math.prod(source)))
            draw(n.attrs["b"], (math.prod(n.shape),))
        elif n.op == "conv":
            draw(n.attrs["w"], (n.shape[0], source[0] // n.integer("g", 1), *n.ints("k")))
            draw(n.attrs["b"], (n.shape[0],))
        elif n.op == "scale":
            shape = (n.shape[0], 1, 1) if len(n.shape) == 3 else n.shape
            draw(n.attrs["a"], shape, 0.5)
            draw(n.attrs["c"], shape)
    net = Net(draft.name, draft.nodes, draft.output, weights)
    check_net(net)
    return net


def passed(net: Net, *names: str) -> str:
    """The text after the passes, each between its own checks."""
    return print_net(after(net, *names))


def after(net: Net, *names: str) -> Net:
    done: list[str] = []
    for name in names:
        net = run_net_pass(name, net, done)
        done.append(name)
    return net


def plan_of(net: Net, candidates: str = "all") -> Plan:
    return make_plan(fold_net(net), candidates)


def plan_text(net: Net, candidates: str = "all") -> str:
    return print_plan(plan_of(net, candidates))
