"""One node of an ONNX graph with its inputs looked up and its attributes by their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.oracle.graphs.tape import Value


class NodeView:
    """`inputs` holds None for one left out; `numbers` gives a constant's numbers."""

    def __init__(self, node: onnx.NodeProto, inputs: list[Any], opset: int, numbers: Callable[[Value], np.ndarray]) -> None:
        self.op, self.inputs, self.opset, self.numbers = node.op_type, inputs, opset, numbers
        self.outputs = list(node.output)
        self.attributes = {a.name: a for a in node.attribute}

    def number(self, name: str, default: float) -> float:
        """A float attribute: a float32 number."""
        return float(self.attributes[name].f) if name in self.attributes else float(np.float32(default))

    def integer(self, name: str, default: int) -> int:
        return int(self.attributes[name].i) if name in self.attributes else default

    def integers(self, name: str, default: list[int]) -> list[int]:
        return list(self.attributes[name].ints) if name in self.attributes else default

    def text(self, name: str, default: str) -> str:
        return self.attributes[name].s.decode() if name in self.attributes else default

    def tensor(self, name: str) -> np.ndarray | None:
        return numpy_helper.to_array(self.attributes[name].t) if name in self.attributes else None

    def has(self, name: str) -> bool:
        return name in self.attributes

    def given(self, k: int) -> np.ndarray | None:
        """The numbers of constant input k, if there is one."""
        return self.numbers(self.inputs[k]) if len(self.inputs) > k and self.inputs[k] is not None else None

    def axes(self, k: int = 1) -> list[int] | None:
        """Axes from the attribute of older versions or the input of newer ones."""
        if self.has("axes"):
            return self.integers("axes", [])
        found = self.given(k)
        return None if found is None or not found.size else [int(v) for v in found]
