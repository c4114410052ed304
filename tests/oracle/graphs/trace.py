"""An ONNX model onto a tape, node by node in the file's order. Nothing here knows polytriton."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.oracle.graphs.cellwise import CELLWISE
from tests.oracle.graphs.execute import Program, peek
from tests.oracle.graphs.layers import LAYERS
from tests.oracle.graphs.node import NodeView
from tests.oracle.graphs.pieces import PIECES
from tests.oracle.graphs.smooth import SMOOTH
from tests.oracle.graphs.tape import FORMATS, Forms, NotCovered, Tape, Value

OPERATORS: dict[str, Any] = {**LAYERS, **CELLWISE, **PIECES, **SMOOTH}


def program(model: onnx.ModelProto | bytes, forms: Forms | None = None, convert: bool = False) -> Program:
    """The model's first output (and any others after it) as a program; an input of unknown batch has a batch of one."""
    if isinstance(model, bytes):
        model = onnx.load_from_string(model)
    tape = Tape(forms or Forms(), convert)
    graph = model.graph
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    for tensor in graph.initializer:
        tape.values[tensor.name] = tape.constant(numpy_helper.to_array(tensor))
    for held in graph.input:
        if held.name in tape.values:
            continue
        kind = held.type.tensor_type
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        shape = tuple(d.dim_value or 1 for d in kind.shape.dim)
        if dtype not in FORMATS:
            raise NotCovered(f"an input of {dtype}")
        size = int(np.prod(shape, dtype=np.int64))
        start = tape.fresh(size)
        tape.values[held.name] = Value(np.arange(start, start + size, dtype=np.int32).reshape(shape), dtype)
        tape.inputs.append(held.name)
    for node in graph.node:
        if node.op_type not in OPERATORS:
            raise NotCovered(node.op_type)
        inputs = [tape.values[i] if i else None for i in node.input]
        view = NodeView(node, inputs, opset, lambda v: peek(tape, v))
        made = OPERATORS[node.op_type](tape, view)
        for name, value in zip(node.output, made if isinstance(made, list) else [made], strict=False):
            tape.values[name] = value
    tape.outputs = [o.name for o in graph.output]
    return Program(tape)
