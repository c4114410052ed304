"""ONNX files and certificates for these tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load, save

from polytriton import checker
from polytriton.certificate import write
from tests.certificate.nodes import Node

ROOT = Path(__file__).parents[2]
NODE = helper.make_node


def model(path: Path, nodes: Sequence[Any], shape: Sequence[int], weights: dict[str, Any], dtype: type = np.float32) -> Path:
    """One input x, one output y."""
    kind = TensorProto.DOUBLE if dtype is np.float64 else TensorProto.FLOAT
    stored = [numpy_helper.from_array(a if (a := np.asarray(w)).dtype.kind == "i" else a.astype(dtype), k) for k, w in weights.items()]
    ends = [helper.make_tensor_value_info("x", kind, shape)], [helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph(nodes, "net", *ends, stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def dense(path: Path, layers: Sequence[tuple[Any, Any]], dtype: type = np.float32) -> Path:
    """w x + b with ReLUs between."""
    nodes, weights, name = [], {}, "x"
    for k, (w, b) in enumerate(layers):
        weights |= {f"w{k}": np.asarray(w), f"b{k}": np.asarray(b)}
        last = k == len(layers) - 1
        nodes.append(NODE("Gemm", [name, f"w{k}", f"b{k}"], ["y" if last else f"h{k}"], transB=1))
        if not last:
            nodes.append(NODE("Relu", [f"h{k}"], [name := f"r{k}"]))
    return model(path, nodes, [1, np.asarray(layers[0][0]).shape[1]], weights, dtype)


def exact_dense(layers: Sequence[tuple[Any, Any]], x: Sequence[Fraction]) -> list[list[Fraction]]:
    """Every layer's values before its ReLU, in rationals."""
    values, seen = list(x), []
    for w, b in layers:
        rows = zip(np.asarray(w).tolist(), np.asarray(b).tolist(), strict=True)
        seen.append([sum((Fraction(c) * v for c, v in zip(row, values, strict=True)), Fraction(bias)) for row, bias in rows])
        values = [max(v, Fraction(0)) for v in seen[-1]]
    return seen


def prop(path: Path, box: Sequence[tuple[Any, Any]], outputs: int, unsafe: str) -> Path:
    lines = [f"(declare-const X_{i} Real)" for i in range(len(box))] + [f"(declare-const Y_{i} Real)" for i in range(outputs)]
    for i, (lo, hi) in enumerate(box):
        lines += [f"(assert (>= X_{i} {lo}))", f"(assert (<= X_{i} {hi}))"]
    path.write_text("\n".join([*lines, f"(assert {unsafe})", ""]))
    return path


def bounded(boxes: checker.Boxes) -> checker.Boxes:
    """The interval pass, with the usual lines."""
    for k in range(1, len(boxes.net.ops)):
        if boxes.net.ops[k].kind == "relu":
            boxes.narrow(k, np.array(-np.inf), np.array(np.inf))
            boxes.relax(k)
        boxes.interval(k)
    return boxes


def certify(*files: Path, semantics: str = "real", seconds: float = 0.5) -> bytes:
    """A certificate that is found quickly, or none."""
    return write.certify(*files, semantics, seconds=seconds)


def random_tree(rng: np.random.Generator, inputs: int, neurons: int, pieces: int, depth: int = 3) -> Node:
    """Any tree that fits together: cuts and signs anywhere, work and refuted rows where they please."""
    node = Node(int(rng.integers(-1, 5)), int(rng.integers(0, 8)))
    node.closed = [(int(p), 0) for p in range(pieces) if depth == 0 or rng.random() < 0.2]
    if depth and rng.random() < 0.8:
        split = int(rng.integers(inputs + neurons))
        below = (random_tree(rng, inputs, neurons, pieces, depth - 1) for _ in range(2))
        node.divide(split, float(rng.normal() / 2), *below)
    elif not node.closed:
        node.closed = [(int(p), 0) for p in range(pieces)]
    return node


Forge = Callable[[dict[str, Any]], Any]


def change(data: bytes, tensors: Forge | None = None, meta: Forge | None = None) -> bytes:
    """A certificate with other contents and a digest that fits them: what a forger would hand in."""
    size = int.from_bytes(data[:8], "little")
    held = json.loads(data[8 : 8 + size])["__metadata__"]
    numbers = {k: v.copy() for k, v in load(data).items()}
    if tensors is not None:
        tensors(numbers)
    if meta is not None:
        meta(held)
    made = save(numbers, held)
    body = made[8 + int.from_bytes(made[:8], "little") :]
    whole = {"data", "semantics", "onnx", "vnnlib", "trees"} <= set(held)
    return save(numbers, held | ({"data": checker.digest(held, body)} if whole else {}))


def refused(files: tuple[Path, Path], data: bytes, folder: Path) -> str | None:
    """Why the checker refuses these bytes, None where it accepts. Any other exception is a fault of the checker."""
    cert = folder / "forged.cert"
    cert.write_bytes(data)
    try:
        checker.check(*files, cert)
    except checker.Refused as error:
        return str(error)
    return None
