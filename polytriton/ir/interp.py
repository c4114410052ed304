"""The float64 reference meaning of a Net: slow, plain, and what every pass is held against."""

from __future__ import annotations

import numpy as np

from polytriton.errors import InvalidIR
from polytriton.ir.net import Net
from polytriton.ir.ops import OPS


def user_shape(net: Net) -> tuple[int, ...]:
    """The shape in which a user gives one input."""
    return net.input.ints("of") or net.input.shape


def evaluate(net: Net, x: np.ndarray) -> dict[str, np.ndarray]:
    """Every node's value, [batch, *shape], for a batch of inputs."""
    return _evaluate(net, x, keep=True)


def _evaluate(net: Net, x: np.ndarray, keep: bool) -> dict[str, np.ndarray]:
    """Without `keep` a value lives as long as a node that reads it is still to come."""
    x = np.asarray(x, dtype=np.float64)
    size = int(np.prod(user_shape(net), dtype=np.int64))
    if x.size == 0 or x.size % size:
        wanted = ", ".join(["batch", *map(str, user_shape(net))])
        raise InvalidIR(f"net @{net.name} takes inputs of {size} values, got {list(x.shape)}", f"reshape to [{wanted}]")
    last = {} if keep else {i: n.name for n in net for i in n.inputs}
    values: dict[str, np.ndarray] = {}
    for node in net:
        operands = [values[i] for i in node.inputs] if node.inputs else [x.reshape(-1, size)]
        values[node.name] = OPS[node.op].run(node, operands, net.weights)
        del operands
        for i in node.inputs:
            if last.get(i) == node.name and i != net.output:
                values.pop(i, None)
    return values


def run(net: Net, x: np.ndarray) -> np.ndarray:
    """The network's output, [batch, outputs]."""
    out = _evaluate(net, x, keep=False)[net.output]
    return out.reshape(len(out), -1)
