"""Sums of activations that a deployment makes inside a layer: onnxruntime starts a convolution's accumulators with the residual, and a
Gemm's with its C.

Then the other operand is no addend of one last sum but of all of them: it passes as many roundings as a product of the layer does, and
each product one more. Scales and further sums on the way may have been merged into the layer before.
"""

from __future__ import annotations

from math import prod

from polytriton.ir.net import Net, Node
from polytriton.ir.ops import OPS

SUMS = ("add", "sub")


def sum_roundings(net: Net) -> dict[str, int]:
    """For every sum the most roundings that an operand may pass in it, as one more addend of whatever computes the other operand."""
    passed: dict[str, int] = {}
    for n in net:
        before = max((passed[i] for i in n.inputs), default=0)
        if n.op in ("linear", "conv"):
            passed[n.name] = max(_products(net, n), n.integer("summands")) + n.integer("ops") + 1
        elif n.op == "scale":
            passed[n.name] = before + n.integer("ops") + 2
        elif n.op in SUMS:
            passed[n.name] = before + 1
        else:
            passed[n.name] = 0 if OPS[n.op].kind in ("nonlinear", "input") else before
    return {n.name: passed[n.name] for n in net if n.op in SUMS}


def sums_behind(net: Net) -> dict[str, int]:
    """For every node the most sums that its value meets before a nonlinear operator or a layer reads it: addends of its own by then."""
    users, by_name, behind = net.users(), net.by_name, dict[str, int]()
    for n in reversed(list(net)):
        readers = [r for r in (by_name[u] for u in users[n.name]) if OPS[r.op].kind != "nonlinear" and r.op not in ("linear", "conv")]
        behind[n.name] = max((behind[r.name] + (r.op in SUMS) for r in readers), default=0)
    return behind


def _products(net: Net, node: Node) -> int:
    """Of one output."""
    source = net.node(node.inputs[0])
    return source.size if node.op == "linear" else prod(node.ints("k")) * source.shape[0] // node.integer("g", 1)
