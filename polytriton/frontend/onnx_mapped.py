"""A network behind an input map: the same network, of z instead of x = A z + b.

The map is a layer `outside` the network: its result is what the network is given, and nothing here says who computes it. The model
that judges counterexamples computes it in float64 and rounds once to its own type.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from polytriton.errors import UnsupportedModel, UsageError
from polytriton.frontend.input_maps import InputMap
from polytriton.frontend.onnx import Imported, Source, load_onnx
from polytriton.frontend.onnx_compare import Held, OnnxStep
from polytriton.ir.net import Attr, Net, Node, Ref

TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}
HINT = "z"


def map_input(imported: Imported, given: InputMap) -> Imported:
    """The network of the map's parameters."""
    source = imported.source
    if source.input_dtype not in TYPES:
        raise UnsupportedModel(f"an input map before a {source.input_dtype} input", "convert the model to float32")
    if any(n.integer("outside") for n in imported.net):
        raise UsageError("the network has an input map already", "multiply the matrices: A1 A2 and A1 b2 + b1 make one map")
    if not imported.steps:  # an artifact's, whose network is folded
        imported = load_onnx(imported.model, output=source.output_name, name=imported.net.name)
    size = imported.net.input.size
    if len(given.matrix) != size:
        raise UsageError(
            f"the map has {len(given.matrix)} rows, the network takes {size} values an input",
            f"A is [{size}, parameters] and b [{size}]",
        )
    net, (z, x) = _joined_net(imported.net, given)
    model, tensor = _joined_model(imported.model, source, given)
    told = replace(
        source, sha256=hashlib.sha256(model).hexdigest(), input_name=tensor, input_shape=(1, given.parameters), input_dtype="float64",
        has_batch=True,
    )  # fmt: skip
    before = OnnxStep(
        "the input map",
        (Held(tensor, z, told.input_shape, told.input_dtype),),
        (x,),
        (Held(source.input_name, x, source.input_shape, source.input_dtype),),
    )
    return Imported(net, told, model, (before, *imported.steps))


def _fresh(taken: set[str], hint: str) -> str:
    return next(name for name in (hint, *(f"{hint}_{k}" for k in range(len(taken) + 1))) if name not in taken)


def _joined_net(net: Net, given: InputMap) -> tuple[Net, tuple[str, str]]:
    """The map takes the name of the input that it makes; who reads that stays as it is."""
    old = net.input
    z = _fresh(set(net.by_name), HINT)
    w, b = (_fresh(set(net.weights), f"map_{key}") for key in "Ab")
    attrs: dict[str, Attr] = {"w": Ref(w), "b": Ref(b), "outside": 1}
    if given.rounded:
        attrs["slack"] = 1
    if len(old.shape) != 1:
        attrs["to"] = old.shape
    first = Node(z, "input", (), (given.parameters,), old.attrs)
    made = net.rebuild([first, Node(old.name, "linear", (z,), old.shape, attrs), *net.nodes[1:]], {w: given.matrix, b: given.shift})
    return made, (z, old.name)


def _joined_model(model: bytes, source: Source, given: InputMap) -> tuple[bytes, str]:
    """The model with the map before it, in float64, and the name of its new input."""
    proto = onnx.ModelProto()
    proto.ParseFromString(model)
    graph = proto.graph
    taken = {source.input_name, *(t.name for t in (*graph.initializer, *graph.input)), *(o for n in graph.node for o in n.output)}
    names: list[str] = []
    for hint in (HINT, "map_A", "map_b", "map_shape", "map_product", "map_sum", "map_x"):
        names.append(_fresh(taken, hint))
        taken.add(names[-1])
    z, a, b, to, times, total, shaped = names
    constants = ((a, np.ascontiguousarray(given.matrix.T)), (b, given.shift), (to, np.array(source.input_shape, dtype=np.int64)))
    nodes = [
        *(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name)) for name, array in constants),
        helper.make_node("MatMul", [z, a], [times]),
        helper.make_node("Add", [times, b], [total]),
        helper.make_node("Reshape", [total, to], [shaped]),
        helper.make_node("Cast", [shaped], [source.input_name], to=TYPES[source.input_dtype]),
        *graph.node,
    ]
    others = [i for i in graph.input if i.name != source.input_name]
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.input.extend([helper.make_tensor_value_info(z, TensorProto.DOUBLE, [1, given.parameters]), *others])
    return proto.SerializeToString(deterministic=True), z
