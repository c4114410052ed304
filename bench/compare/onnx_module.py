"""An ONNX network as a torch module that a tracing library can read: the peer's side of bench.compare.

It reads the file by itself, neither through polytriton nor through a converter, so that all three may be held against each other. The
operators are those of feed-forward networks of ReLUs, sigmoids and tanhs; anything else is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import Tensor, nn


class UnsupportedNetwork(ValueError):
    """A network that this module cannot hold."""


class OnnxModule(nn.Module):
    """Weights are parameters in the dtype of the module; integers (shapes, axes) stay numpy arrays, known when the file is read."""

    def __init__(self, net: str | onnx.ModelProto) -> None:
        super().__init__()
        graph = (onnx.load(net) if isinstance(net, str) else net).graph
        self.constants: dict[str, np.ndarray] = {}
        self.weights: dict[str, str] = {}
        for held in graph.initializer:
            self._hold(held.name, numpy_helper.to_array(held))
        inputs = [i for i in graph.input if i.name not in self.constants and i.name not in self.weights]
        if len(inputs) != 1 or len(graph.output) != 1:
            raise UnsupportedNetwork(f"a network of {len(inputs)} inputs and {len(graph.output)} outputs")
        self.input, self.output = inputs[0].name, graph.output[0].name
        self.shape = tuple(d.dim_value or 1 for d in inputs[0].type.tensor_type.shape.dim)[1:]
        self.steps: list[tuple[str, list[str], str, dict[str, Any]]] = []
        for node in graph.node:
            attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            if node.op_type == "Constant":
                self._hold(node.output[0], numpy_helper.to_array(attrs["value"]))
            elif not hasattr(self, f"op_{node.op_type.lower()}"):
                raise UnsupportedNetwork(f"operator {node.op_type}")
            else:
                self.steps.append((f"op_{node.op_type.lower()}", list(node.input), node.output[0], attrs))

    def _hold(self, name: str, array: np.ndarray) -> None:
        if array.dtype.kind == "f":
            self.weights[name] = f"w{len(self.weights)}"
            self.register_parameter(self.weights[name], nn.Parameter(torch.from_numpy(np.array(array)), requires_grad=False))
        else:
            self.constants[name] = array

    def forward(self, x: Tensor) -> Tensor:
        values: dict[str, Any] = {**self.constants, **{k: getattr(self, v) for k, v in self.weights.items()}, self.input: x, "": None}
        for op, inputs, output, attrs in self.steps:
            values[output] = getattr(self, op)(*(values[i] for i in inputs), **attrs)
        result: Tensor = values[self.output]
        return result

    # ---- operators, as ONNX names their attributes --------------------------------------------------------------

    def op_relu(self, x: Tensor) -> Tensor:
        return F.relu(x)

    def op_sigmoid(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def op_tanh(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def op_add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def op_sub(self, a: Tensor, b: Tensor) -> Tensor:
        return a - b

    def op_div(self, a: Tensor, b: Tensor) -> Tensor:
        return a / b

    def op_mul(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def op_identity(self, x: Tensor) -> Tensor:
        return x

    def op_matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return F.linear(a, b.t())

    def op_gemm(self, x: Tensor, w: Tensor, b: Tensor, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0) -> Tensor:
        if (alpha, beta, transA) != (1.0, 1.0, 0):
            raise UnsupportedNetwork("a Gemm with factors, or of a transposed input")
        return F.linear(x, w if transB else w.t(), b)

    def op_flatten(self, x: Tensor, axis: int = 1) -> Tensor:
        if axis != 1:
            raise UnsupportedNetwork(f"Flatten with axis {axis}")
        return x.flatten(1)

    def op_reshape(self, x: Tensor, shape: np.ndarray, allowzero: int = 0) -> Tensor:
        return x.reshape(len(x), *(int(n) for n in shape[1:]))

    def op_conv(
        self, x: Tensor, w: Tensor, b: Tensor | None = None, *, strides: Any = (1, 1), pads: Any = (0, 0, 0, 0), dilations: Any = (1, 1),
        group: int = 1, kernel_shape: Any = None, auto_pad: bytes = b"NOTSET",
    ) -> Tensor:  # fmt: skip
        top, left, bottom, right = pads
        if (top, left) != (bottom, right) or auto_pad != b"NOTSET":
            raise UnsupportedNetwork("a convolution padded differently on opposite sides")
        return F.conv2d(x, w, b, tuple(strides), (top, left), tuple(dilations), group)

    def op_batchnormalization(
        self, x: Tensor, scale: Tensor, b: Tensor, mean: Tensor, var: Tensor, epsilon: float = 1e-5, **_: Any
    ) -> Tensor:  # fmt: skip
        return F.batch_norm(x, mean, var, scale, b, eps=epsilon)
