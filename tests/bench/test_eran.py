"""Networks in ERAN's text format, written here, read and run against plain sums in the format's own order of cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from bench.paper.eran import read_eran
from polytriton.errors import PolytritonError

RNG = np.random.default_rng(3)


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32).astype(np.float64)


def text(*layers: Any) -> str:
    return "\n".join(line if isinstance(line, str) else str(line.tolist()) for line in layers) + "\n"


def window(x: np.ndarray, w: np.ndarray, stride: int, same: bool) -> np.ndarray:
    """[height, width, in] by [height, width, in, out], one output cell after the other."""
    k, size = w.shape[0], x.shape[0]
    out = -(-size // stride) if same else (size - k) // stride + 1
    total = max(0, (out - 1) * stride + k - size) if same else 0
    x = np.pad(x, ((total // 2, total - total // 2),) * 2 + ((0, 0),))
    return np.array(
        [[np.einsum("ijc,ijco->o", x[i * stride : i * stride + k, j * stride : j * stride + k], w) for j in range(out)] for i in range(out)]
    )


def answer(path: Path, image: np.ndarray) -> np.ndarray:
    """The converted network's own, on an image [height, width, channels]."""
    session = ort.InferenceSession(read_eran(path).model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = image.transpose(2, 0, 1)[None].astype(np.float32)
    return np.asarray(session.run(None, {"input": x})[0]).reshape(-1)


@pytest.mark.parametrize("suffix", ["pyt", "tf"])
@pytest.mark.parametrize("stride,same", [(1, True), (2, True), (2, False)])
def test_convolutions_and_dense_layers(tmp_path: Path, suffix: str, stride: int, same: bool) -> None:
    w, b, size = rand(3, 3, 2, 4), rand(4), 7
    image = rand(size, size, 2)
    h = np.maximum(window(image, w, stride, same) + b, 0)
    v, c, u, d = rand(5, h.size), rand(5), rand(3, 5), rand(3)
    settings = f"ReLU, filters=4, kernel_size=[3, 3], input_shape=[{size}, {size}, 2], stride=[{stride}, {stride}], padding={int(same)}"
    path = tmp_path / f"net.{suffix}"
    path.write_text(text("Normalize mean=[0.1307, 0.5] std=[0.3081, 0.25]", "Conv2D", settings, w, b, "ReLU", v, c, "Affine", u, d))
    cells = h.transpose(2, 0, 1).reshape(-1) if suffix == "pyt" else h.reshape(-1)
    wanted = u @ np.maximum(v @ cells + c, 0) + d
    np.testing.assert_allclose(answer(path, image), wanted, rtol=1e-4, atol=1e-4)
    net = read_eran(path)
    assert (net.mean, net.std, net.change) == ("0.1307,0.5", "0.3081,0.25", 0.0)


def test_pools_and_dense_networks_on_images(tmp_path: Path) -> None:
    w, b, v, c = rand(2, 2, 1, 3), rand(3), rand(2, 12), rand(2)
    path = tmp_path / "net.pyt"
    pool = "input_shape=[4, 4, 3], pool_size=[2, 2]"
    first = "ReLU, filters=3, kernel_size=[2, 2], input_shape=[5, 5, 1]"
    path.write_text(text("Conv2D", first, w, b, "MaxPooling2D", pool, "Affine", v, c))
    image = rand(5, 5, 1)
    h = np.maximum(window(image, w, 1, False) + b, 0)
    h = h.reshape(2, 2, 2, 2, 3).max(axis=(1, 3))
    np.testing.assert_allclose(answer(path, image), v @ h.transpose(2, 0, 1).reshape(-1) + c, rtol=1e-4, atol=1e-4)
    dense = tmp_path / "dense.pyt"
    dense.write_text(text("ReLU", rand(4, 784), rand(4), "ReLU", rand(10, 4), rand(10)))
    assert [d.dim_value for d in read_eran(dense).model.graph.input[0].type.tensor_type.shape.dim] == [1, 1, 28, 28]


def test_numbers_that_are_no_floats_are_told(tmp_path: Path) -> None:
    path = tmp_path / "net.tf"
    path.write_text("Affine\n[[0.1, 0.2]]\n[0.3]\n")
    assert 0 < read_eran(path).change < 1e-7


@pytest.mark.parametrize("name,content,why", [
    ("a.pyt", "Sigmoid\n[[1.0]]\n[1.0]\n", "not supported"),
    ("a.pyt", "ParSumComplete\n", "not supported"),
    ("a.pyt", "ReLU\n[[1.0, 2.0]]\n", "ends within"),
    ("a.pyt", "ReLU\n[[1.0, 2.0]\n[1.0]\n", "list of numbers"),
    ("a.pyt", "ReLU\n[[NaN]]\n[1.0]\n", "NaN"),
    ("a.pyt", "ReLU\n[[1.0, 2.0]]\n[1.0]\nReLU\n[[1.0, 2.0]]\n[1.0]\n", "do not fit"),
    ("a.pyt", "Conv2D\nTanh, filters=1, kernel_size=[1,1], input_shape=[2,2,1]\n[[[[1.0]]]]\n[0.0]\n", "Tanh"),
    ("a.pyt", "", "no layer"),
    ("a.onnx", "", "no .pyt or .tf"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str, content: str, why: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(PolytritonError, match=why):
        read_eran(tmp_path / name)
