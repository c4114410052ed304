"""How far onnxruntime's and torch's float32 kernels of smooth functions are from the exact functions, over float32's numbers.

    python -m tools.function_errors [--stride 97] [--only tanh ...]

prints, for each function and library, the largest error in units of 2^-23 max(1, |f|), or max(1, |f|, |x|) where f is x times another
function, and where it is. `--stride 1` takes every finite float32; a prime one meets every binade and every residue. The exact function is
float64's, whose own error is 2^-29 of such a unit. The defaults of ir/curves.py (`ulps`) stand above what this prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper

from polytriton.ir.curves import CURVES, STATED
from polytriton.runtime.executor import SMOOTH

BLOCK = 1 << 20
DEPLOYED = [name for name in CURVES if name in STATED and name != "share"]  # a step that no library has
OPERATORS = {
    "sigmoid": "Sigmoid", "tanh": "Tanh", "erf": "Erf", "softsign": "Softsign", "softplus": "Softplus", "exp": "Exp", "log": "Log",
    "sqrt": "Sqrt", "reciprocal": "Reciprocal", "hardswish": "HardSwish", "elu": "Elu", "gelu": "Gelu",
    "sin": "Sin", "cos": "Cos", "mish": "Mish", "gelu_tanh": "Gelu",
}  # fmt: skip
POWERS = {"square": 2.0, "cube": 3.0, "fourth": 4.0, "three_halves": 1.5}
Kernel = Callable[[np.ndarray], np.ndarray]


def onnx_kernel(name: str) -> Kernel:
    """onnxruntime's kernel; powers by Pow, SiLU as exporters write it."""
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy"]
    constants = []
    if name in OPERATORS:
        how = {"approximate": "tanh"} if name == "gelu_tanh" else {}
        nodes = [helper.make_node(OPERATORS[name], ["x"], ["y"], **how)]
    elif name == "silu":
        nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    else:
        nodes = [helper.make_node("Pow", ["x", "n"], ["y"])]
        constants = [helper.make_tensor("n", TensorProto.FLOAT, [], [POWERS[name]])]
    graph = helper.make_graph(nodes, name, value[:1], value[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda x: np.asarray(session.run(["y"], {"x": x})[0])


def torch_kernel(name: str) -> Kernel:
    if name in ("fourth", "three_halves"):
        return lambda x: np.asarray(torch.pow(torch.from_numpy(x), POWERS[name]).numpy())
    function = torch.nn.functional.elu if name == "elu" else SMOOTH[name]
    return lambda x: np.asarray(function(torch.from_numpy(x)).numpy())


def numbers(stride: int) -> Iterator[np.ndarray]:
    """Finite float32 numbers, a block at a time."""
    for start in range(0, 1 << 32, BLOCK * stride):
        bits = np.arange(start, min(start + BLOCK * stride, 1 << 32), stride, dtype=np.uint64).astype(np.uint32)
        x = bits.view(np.float32)
        yield x[np.isfinite(x)]


def measure(name: str, kernel: Kernel, stride: int) -> tuple[float, float]:
    """The largest error, and where; a result that is not finite where the exact one is within float32 counts as infinite."""
    curve, worst, where = CURVES[name], 0.0, 0.0
    for x in numbers(stride):
        x = x[(x > curve.domain[0]) & (np.abs(x) >= 2.0**-126)]
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            f = curve.value(wide, curve.parameter[1])
            size = np.maximum(np.abs(f), np.abs(wide) if curve.made_of else 0)
            unit = size * 2.0**-23 + 2.0**-125 if curve.relative else np.maximum(1, size) * 2.0**-23
            off = np.abs(kernel(x).astype(np.float64) - f) / unit
        off = np.where(np.abs(f) <= 2.0**60, np.nan_to_num(off, nan=np.inf), 0)
        if off.size and off.max() > worst:
            worst, where = float(off.max()), float(x[off.argmax()])
    return worst, where


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stride", type=int, default=97)
    parser.add_argument("--only", nargs="*", choices=DEPLOYED, default=DEPLOYED)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"onnxruntime {ort.__version__}, torch {torch.__version__}, every {args.stride}th float32")
    print("function     charged  onnxruntime                torch")
    for name in args.only:
        found = [measure(name, kernel(name), args.stride) for kernel in (onnx_kernel, torch_kernel)]
        told = "  ".join(f"{worst:8.3f} at {where:<14.6g}" for worst, where in found)
        print(f"{name:12s} {CURVES[name].ulps:7.1f}  {told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
