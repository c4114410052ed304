"""Trains the controller of closed_loop.py: a small ReLU network that imitates a saturated linear-quadratic regulator.

    python examples/train_controller.py [examples/controller.onnx]

The file in this folder is what it wrote; another torch may round a few weights otherwise.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from closed_loop import CONTROLLER, A, B
from onnx import helper, numpy_helper

MOST = 1.0  # of the acceleration


def regulator() -> np.ndarray:
    """The feedback u = -K x of least cost sum(x.x + u u), by iterating the Riccati equation."""
    p = np.eye(2)
    for _ in range(500):
        k = (B @ p @ A) / (1 + B @ p @ B)
        p = np.eye(2) + A.T @ p @ (A - np.outer(B, k))
    return np.asarray(k)


def model(weights: list[tuple[np.ndarray, np.ndarray]]) -> onnx.ModelProto:
    nodes, held, x = [], [], "state"
    for k, (w, b) in enumerate(weights):
        held += [numpy_helper.from_array(w, f"w{k}"), numpy_helper.from_array(b, f"b{k}")]
        last = k + 1 == len(weights)
        nodes.append(helper.make_node("Gemm", [x, f"w{k}", f"b{k}"], ["control" if last else f"h{k}"], transB=1))
        if not last:
            nodes.append(helper.make_node("Relu", [f"h{k}"], [f"r{k}"]))
            x = f"r{k}"
    ends = [helper.make_tensor_value_info(name, 1, [1, size]) for name, size in (("state", 2), ("control", 1))]
    graph = helper.make_graph(nodes, "controller", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def main() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 12), torch.nn.ReLU(), torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    gain = torch.tensor(regulator(), dtype=torch.float32)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3000)
    for _ in range(3000):
        x = (2 * torch.rand(256, 2) - 1) * torch.tensor([4.0, 2.0])
        wanted = (-x @ gain).clamp(-MOST, MOST)
        loss = torch.nn.functional.mse_loss(net(x)[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    layers = [(m.weight.detach().numpy(), m.bias.detach().numpy()) for m in net if isinstance(m, torch.nn.Linear)]
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else CONTROLLER
    onnx.save(model(layers), path)
    print(f"{path}: mean square error {loss.item():.2e}")


if __name__ == "__main__":
    main()
