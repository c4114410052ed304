"""The original model as the judge of candidates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polytriton.errors import runtime_refusal

if TYPE_CHECKING:
    from polytriton.frontend.onnx import Source

Replay = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class UnsafePoint:
    """A point in the model's own shape, what the original model answers there, and the unsafe piece it lies in.

    `x` has the model's type and lies in the exact box; or it is float64, where no number of the model's type does (`box.nearest_box`).
    """

    x: np.ndarray
    y: np.ndarray
    disjunct: int


def replayer(model: bytes, source: Source) -> Replay:
    """The original model in onnxruntime, on one thread: a flat output for an input of any shape that fits."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as e:
        raise runtime_refusal(e) from e

    def replay(x: np.ndarray) -> np.ndarray:
        feed = {source.input_name: np.asarray(x, dtype=source.input_dtype).reshape(source.input_shape)}
        return np.asarray(session.run([source.output_name], feed)[0]).ravel()

    return replay
