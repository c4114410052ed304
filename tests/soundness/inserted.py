"""Networks in which a runtime may put an addend of one into the sums of layers before it, and how often it is rounded there.

Every product there is negative and too small to be seen beside one: rounding toward zero, each addition takes 2^-24.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SMALL = 2.0**-60
TERMS = 96


@dataclass
class Graph:
    """Of one input, 1 at the point that is looked at."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, op: str, *inputs: str | np.ndarray, **attributes: object) -> str:
        names = []
        for value in inputs:
            if isinstance(value, np.ndarray):
                self.weights[f"w{len(self.weights)}"] = value.astype(np.int64 if value.dtype == np.int64 else np.float32)
                value = f"w{len(self.weights) - 1}"
            names.append(value)
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [out], **attributes))
        return out

    def hidden(self, value: float = 1.0, terms: int = TERMS) -> str:
        """So many neurons of that value."""
        return self.add("Relu", self.add("MatMul", "x", np.full((1, terms), value)))

    def tiny(self, h: str, terms: int = TERMS, outputs: int = TERMS, by: float = -SMALL) -> str:
        return self.add("MatMul", h, np.full((terms, outputs), by))

    def model(self, shape: list[int]) -> bytes:
        self.nodes[-1].output[0] = "y"
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 1]), ("y", shape))]
        held = [numpy_helper.from_array(v, k) for k, v in self.weights.items()]
        graph = helper.make_graph(self.nodes, "inserted", ends[:1], ends[1:], held)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        onnx.checker.check_model(model)
        return model.SerializeToString()


def _constant(g: Graph) -> list[int]:
    g.add("Add", g.tiny(g.hidden()), np.ones(TERMS))
    return [1, TERMS]


def _constant_less_layer(g: Graph) -> list[int]:
    g.add("Sub", np.ones(TERMS), g.tiny(g.hidden(), by=SMALL))
    return [1, TERMS]


def _norm(g: Graph, gains: np.ndarray) -> list[int]:
    one, zero = np.ones(TERMS), np.zeros(TERMS)
    g.add("BatchNormalization", g.tiny(g.hidden()), gains, one, zero, one, epsilon=0.0)
    return [1, TERMS]


def _two_layers(g: Graph) -> list[int]:
    """The product of both has as many terms as the first, but few numbers lie between them."""
    h = g.hidden()
    g.add("Add", h, g.tiny(g.tiny(h, outputs=4, by=2.0**-30), terms=4, by=-(2.0**-30)))
    return [1, TERMS]


def _nested(g: Graph) -> list[int]:
    """In the sums of the first layer, and with its result in those of the second."""
    h = g.hidden()
    g.add("Add", g.add("Add", g.tiny(h), g.tiny(h, by=-2 * SMALL)), h)
    return [1, TERMS]


def _behind_a_sum(g: Graph) -> list[int]:
    g.add("Add", g.add("Add", g.hidden(SMALL), g.tiny(g.hidden())), np.ones(TERMS))
    return [1, TERMS]


def _over_space(g: Graph) -> list[int]:
    x = g.add("Reshape", "x", np.array([1, 1, 1, 1]))
    h = g.add("Relu", g.add("Conv", x, np.ones((TERMS, 1, 1, 1)), kernel_shape=[1, 1], pads=[1] * 4))
    made = g.add("Conv", h, np.full((2, TERMS, 1, 1), -SMALL), kernel_shape=[1, 1])
    constant = np.linspace(1, 2, 18).reshape(1, 2, 3, 3)
    constant[0, 0, 1, 1] = 1
    g.add("Add", made, constant)
    return [1, 2, 3, 3]


@dataclass(frozen=True)
class Inserted:
    """`at`: the output that is looked at, where the exact value is one less what cannot be seen."""

    name: str
    make: Callable[[Graph], list[int]]
    roundings: int = TERMS
    at: int = 0

    def model(self) -> bytes:
        graph = Graph()
        shape = self.make(graph)
        return graph.model(shape)

    def reached(self) -> float:
        value = np.float32(1)
        for _ in range(self.roundings):
            value = np.nextafter(value, np.float32(0))
        return float(value)


CASES = [
    Inserted("a constant behind a layer", _constant),
    Inserted("a constant less a layer", _constant_less_layer),
    Inserted("a batch norm", lambda g: _norm(g, np.ones(TERMS))),
    Inserted("a batch norm with a gain of zero", lambda g: _norm(g, np.where(np.arange(TERMS) == 1, 0.0, 1.0))),
    Inserted("a residual beside two layers", _two_layers),
    Inserted("a sum beside two", _nested, 2 * TERMS),
    Inserted("a constant behind a sum", _behind_a_sum),
    Inserted("a constant that varies over space", _over_space, at=4),
]
