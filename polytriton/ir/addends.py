"""Addends that a deployment puts into the layers before a sum: onnxruntime starts a convolution's accumulators with the residual, a Gemm's
with its C, and makes a Gemm of a matrix product and the constant added to it, be that a bias or what a batch norm leaves.

Then the addend is none of one last sum but of all of them: it passes as many roundings as a product of the layer does, and each product one
more. Scales, layers and further sums on the way may have been merged, or make room for it one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from polytriton.ir.curves import CURVES
from polytriton.ir.net import Net, Node
from polytriton.ir.ops import OPS

SUMS = ("add", "sub")
LAYERS = ("linear", "conv")
UNROUNDED = ("mul", *CURVES)  # nobody knows how a library's function ends: SiLU and x^2 end in a product


@dataclass(frozen=True)
class Addends:
    """By node. `sums`: of a sum, the roundings of `sum_roundings`. `beside`: of every node, addends that its own terms may meet: those of
    sums behind it, and of a layer what its constants pass, for all terms of a layer are charged alike. `late`: of a scale, what its
    constants pass before it. `shared`: the operands of `shared_operands`."""

    sums: dict[str, int]
    beside: dict[str, int]
    late: dict[str, int]
    shared: dict[str, tuple[str, ...]]


def find_addends(net: Net) -> Addends:
    passed = roundings_before(net)
    constants = constants_before(net, passed)
    layers = {name: count for name, count in constants.items() if net.node(name).op in LAYERS}
    beside = {name: count + layers.get(name, 0) for name, count in sums_behind(net).items()}
    late = {name: count for name, count in constants.items() if name not in layers}
    return Addends(sum_roundings(net, passed), beside, late, shared_operands(net))


def is_settled(node: Node) -> bool:
    """Whether a nonlinear operator, or the user, gave the value: then it is one number for all who read it."""
    return OPS[node.op].kind in ("nonlinear", "input") or bool(node.integer("outside"))


def roundings_before(net: Net) -> dict[str, int]:
    """For every node the most roundings that an addend passes which is put into the layers that make it, back to nonlinear operators.

    What enters a sum's operand may leave it as part of an addend of the other: both operands' roundings count.
    """
    passed: dict[str, int] = {}
    for n in net:
        before = [passed[i] for i in n.inputs]
        if n.op in LAYERS and not is_settled(n):
            passed[n.name] = max(before) + max(_products(net, n), n.integer("summands")) + n.integer("ops") + 1
        elif n.op == "scale":
            passed[n.name] = max(before) + n.integer("ops") + 2
        elif n.op in SUMS:
            passed[n.name] = sum(before) + n.integer("ops") + 1
        else:
            passed[n.name] = 0 if is_settled(n) else max(before)
    return passed


def sum_roundings(net: Net, passed: Mapping[str, int]) -> dict[str, int]:
    """For every sum the most roundings that an operand may pass in it, as one more addend of whatever computes the other operand.

    An operand that is computed from the other cannot have been put into it: the other is a number by then.
    """
    found = dict[str, int]()
    made_of: dict[str, set[str]] = {}
    for n in net:
        made_of[n.name] = set(n.inputs).union(*(made_of[i] for i in n.inputs))
        if n.op in SUMS:
            a, b = n.inputs
            found[n.name] = 1 + n.integer("ops") + max(0 if other in made_of[own] else passed[other] for own, other in ((a, b), (b, a)))
    return found


def constants_before(net: Net, passed: Mapping[str, int]) -> dict[str, int]:
    """For every layer and scale the roundings that its constants may pass besides its own: those of what makes its operand."""
    return {n.name: passed[n.inputs[0]] for n in net if n.op in (*LAYERS, "scale")}


def sums_behind(net: Net) -> dict[str, int]:
    """For every node the most sums that its value meets before a nonlinear operator or a layer reads it: addends of its own by then."""
    users, by_name, behind = net.users(), net.by_name, dict[str, int]()
    for n in reversed(list(net)):
        readers = [r for r in (by_name[u] for u in users[n.name]) if not is_settled(r) and r.op not in LAYERS]
        behind[n.name] = max((behind[r.name] + (r.op in SUMS) for r in readers), default=0)
    return behind


def shared_operands(net: Net) -> dict[str, tuple[str, ...]]:
    """For every layer, scale and sum the operands that others read too, and that are no one number for all: no nonlinear operator gave
    them, or one whose last operation may be a product, which a sum takes in without rounding it first (FMA), and another reader not.

    Whoever makes such an operand once more inside itself rounds it otherwise. With exact value z, one reader has z + d, another z + d',
    both at most E away. Rows charge |A + A'| E, for both have been added up by then; |A| 2 E more on one side covers |A d| + |A' d'|.
    """
    users, found = net.users(), dict[str, tuple[str, ...]]()
    many: dict[str, bool] = {}  # nodes of whose value there may be two
    for n in net:
        sums = n.op in (*LAYERS, "scale", *SUMS)
        moves = not is_settled(n) and not sums
        anew = not is_settled(n) or n.op in UNROUNDED
        many[n.name] = anew and (len(users[n.name]) > 1 or (moves and any(many[i] for i in n.inputs)))
        if sums:
            found[n.name] = tuple(i for i in n.inputs if many[i])
    return {name: some for name, some in found.items() if some}


def _products(net: Net, node: Node) -> int:
    """Of one output."""
    source = net.node(node.inputs[0])
    return source.size if node.op == "linear" else prod(node.ints("k")) * source.shape[0] // node.integer("g", 1)
