"""Damaged and hostile ONNX files: refused in words, and none takes much memory or time."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from polytriton.errors import PolytritonError, ResourceError, UnsupportedModel, UsageError
from polytriton.frontend.onnx import load_onnx
from tests.frontend.onnx_models import ints, model, node, rand, small


@pytest.mark.parametrize("content", [b"", b"hello", b"\x08\x07", bytes(100), b"\x7fELF" + bytes(64), b"PK\x03\x04", "ünï".encode()])
def test_not_a_model(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.onnx").write_bytes(content)
    for given_as in (tmp_path / "a.onnx", content):
        with pytest.raises(UsageError, match="not an ONNX model"):
            load_onnx(given_as)


def test_not_a_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no.onnx", tmp_path / "no" / "no.onnx", "a\0b"):
        with pytest.raises(UsageError, match="model"):
            load_onnx(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a file"):
        load_onnx(tmp_path / "pipe")


def test_truncated() -> None:
    data = small().SerializeToString()
    for end in range(len(data)):
        with pytest.raises(PolytritonError):
            load_onnx(data[:end])


RICH = model(
    [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("BatchNormalization", "c b b b v", "n"),
        node("AveragePool", "n", "p", kernel_shape=[2, 2]), node("Shape", "p", "s"), node("Gather", "s z", "k"),
        node("Concat", "k m", "t", axis=0), node("Reshape", "p t", "f"), node("Slice", "f z q q", "g"),
        node("Constant", "", "u", value=numpy_helper.from_array(rand(19, 2))), node("MatMul", "g u", "h"), node("Transpose", "h", "y"),
    ],
    ["N", 2, 5, 6], {"w": rand(2, 2, 3, 3), "b": rand(2), "v": rand(2) ** 2, "z": ints(0), "m": ints(-1), "q": ints(1)},
).SerializeToString()  # fmt: skip


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, len(RICH) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes(edits: list[tuple[int, int]]) -> None:
    data = bytearray(RICH)
    for at, value in edits:
        data[at] = value
    try:
        load_onnx(bytes(data))
    except PolytritonError as e:
        assert e.message  # noqa: PT017
        assert e.remedy  # noqa: PT017


BIG = 1 << 40
RELU = [node("Relu", "x", "t0"), node("Relu", "t60")]
ADDS = [node("Add", f"t{i} c{i % 2}", f"t{i + 1}") for i in range(60)]
CONCATS = [node("Concat", f"t{i} t{i}", f"t{i + 1}", axis=0) for i in range(60)]
FOLDS = [
    node("Expand", "c s", "t0"),
    *(node("Add", f"t{i} t{i}", f"t{i + 1}") for i in range(90)),
    node("Gather", "t90 z", "k"),
    node("Add", "x k"),
]
BOMBS = {
    "fill": ([node("ConstantOfShape", "s", "k"), node("Add", "x k")], [1], {"s": ints(BIG)}),
    "fill-rank": ([node("ConstantOfShape", "s", "k"), node("Add", "x k")], [1], {"s": ints(*[1] * 60)}),
    "range": ([node("Range", "a b c", "k"), node("Gather", "x k")], [1], {"a": np.array(0), "b": np.array(BIG), "c": np.array(1)}),
    "expand-const": ([node("Expand", "c s", "k"), node("Add", "x k")], [1], {"c": rand(1), "s": ints(BIG)}),
    "expand": ([node("Expand", "x s", "k"), node("Relu", "k")], [1], {"s": ints(1 << 20, 1 << 20)}),
    "tile": ([node("Tile", "x s", "k"), node("Relu", "k")], [1], {"s": ints(BIG)}),
    "tile-const": ([node("Tile", "c s", "k"), node("Add", "x k")], [1], {"c": rand(1), "s": ints(BIG)}),
    "pad": ([node("Pad", "x s", "k"), node("Relu", "k")], [1], {"s": ints(0, BIG)}),
    "input": (node("Relu"), [1, 1 << 40], {}),
    "input-product": (node("Relu"), [1, *[1 << 10] * 6], {}),
    "kron": (node("MatMul", "x w"), [1, 1 << 24, 1], {"w": rand(1, 100)}),
    "broadcast": ([node("Add", "x c", "k"), node("Transpose", "k", "t"), node("Add", "k t")], [1 << 12, 1], {"c": rand(1)}),
    "broadcast-many": ([*ADDS, *RELU], [1 << 12, 1], {"c0": rand(1, 1, 4096), "c1": rand(2, 1, 1)}),
    "fold-many": (FOLDS, [1], {"c": ints(1), "s": ints(1 << 24), "z": ints(0)}),
    "concat-doubling": ([*CONCATS, *RELU], [1], {}),
    "window": (node("AveragePool", kernel_shape=[4000, 4000], pads=[3999] * 4), [1, 1, 4000, 4000], {}),
    "max-window": (node("MaxPool", kernel_shape=[2000, 2000]), [1, 1, 4000, 4000], {}),
    "max-pad": (node("MaxPool", kernel_shape=[1 << 30], pads=[(1 << 30) - 1] * 2), [1, 1, 4000], {}),
    "conv-pad": (node("Conv", "x w", pads=[1 << 30] * 4), [1, 1, 40, 40], {"w": rand(1, 1, 1, 1)}),
    "dilation": (node("Conv", "x w", dilations=[1 << 62, 1], pads=[1 << 62, 0, 1 << 62, 0]), [1, 1, 40, 40], {"w": rand(1, 1, 2, 1)}),
    "gather": (node("Gather", "x i", axis=0), [1 << 23], {"i": np.zeros((64,), np.int64)}),
    "gather-many": (node("Gather", "x i", axis=1), [1, 2, 1 << 20], {"i": np.tile(ints(1, 0, 0), 30)}),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bomb(name: str) -> None:
    """A small file takes neither much memory nor much time; refusal is the likely end, not the required one."""
    nodes, shape, weights = BOMBS[name]
    data = model(nodes, shape, weights).SerializeToString()
    assert len(data) < 100_000
    tracemalloc.start()
    began = time.process_time()
    try:
        load_onnx(data)
    except (UnsupportedModel, ResourceError):
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1_500_000_000
    assert time.process_time() - began < 10


@pytest.mark.parametrize("dims", [[1 << 40], [1 << 20, 1 << 20], [-3], [1 << 62, 4], [4]])
def test_initialiser_that_lies_about_its_size(dims: list[int]) -> None:
    for field in ("raw_data", "float_data"):
        m = small()
        t = m.graph.initializer[1]
        values = numpy_helper.to_array(t)[:3]
        t.ClearField("raw_data")
        setattr(t, "raw_data", values.tobytes()) if field == "raw_data" else t.float_data.extend(values)
        t.ClearField("dims")
        t.dims.extend(dims)
        with pytest.raises(UnsupportedModel, match="'b' declares shape"):
            load_onnx(m)
