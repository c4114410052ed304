"""The rules a Net obeys before and after every pass."""

from __future__ import annotations

import numpy as np

from polytriton.errors import InvalidIR
from polytriton.ir.net import Net, Ref
from polytriton.ir.ops import OPS, infer_shape


def check_net(net: Net) -> None:
    """Raises InvalidIR at the first broken rule, naming the node."""
    if not net.nodes or net.nodes[0].op != "input":
        raise InvalidIR(f"net @{net.name} does not begin with its input", "put the input node first")
    shapes: dict[str, tuple[int, ...]] = {}
    for node in net:
        if node.name in shapes:
            raise InvalidIR(f"%{node.name} is defined twice", "give every node its own name")
        if node.op == "input" and shapes:
            raise InvalidIR(f"%{node.name} is a second input", "polytriton nets have exactly one")
        for i in node.inputs:
            if i not in shapes:
                raise InvalidIR(f"%{node.name} reads %{i} before it is defined", "sort the nodes topologically")
        got = infer_shape(node, [shapes[i] for i in node.inputs], net.weights)
        if got != node.shape:
            raise InvalidIR(f"%{node.name} = {node.op}: declared {list(node.shape)}, inferred {list(got)}", "correct the declared shape")
        for key, value in node.attrs.items():
            if isinstance(value, Ref):
                _check_weight(net, node.name, OPS[node.op].kind, key, value)
        shapes[node.name] = node.shape
    if net.output not in shapes:
        raise InvalidIR(f"net @{net.name} returns %{net.output}, which is not defined", "return a defined node")


def _check_weight(net: Net, name: str, kind: str, key: str, ref: Ref) -> None:
    if ref.name not in net.weights:
        raise InvalidIR(f"%{name}: weight @{ref.name} is missing", "load the weights with the text")
    array = net.weights[ref.name]
    integral = key in ("take", "index")
    if integral != np.issubdtype(array.dtype, np.integer) or not (integral or array.dtype in (np.float32, np.float64)):
        raise InvalidIR(f"%{name}: weight @{ref.name} has type {array.dtype}", "indices are int64, weights float32 or float64")
    if not integral and not np.isfinite(array).all():
        raise InvalidIR(f"%{name}: weight @{ref.name} holds NaN or infinity", "no bound can be certified; repair or retrain the network")
