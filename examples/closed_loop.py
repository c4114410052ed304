"""A controller in its loop: a small network steers a double integrator for ten steps, and all states it can reach are enclosed.

    python examples/closed_loop.py [tube.svg]

One step is x' = A x + B u(x). Controller and dynamics become one network, ten times one behind the other, whose outputs are the ten states;
so no step is bounded from the box of the one before, which would lose how position and velocity go together. The default semantics covers
every float32 execution of controller and simulation; with `semantics="real"` it is exact arithmetic on the numbers in the file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import polytriton

A, B = np.array([[1.0, 0.2], [0.0, 1.0]]), np.array([0.02, 0.2])  # position and velocity, 0.2 s a step, an acceleration
CONTROLLER = Path(__file__).with_name("controller.onnx")
STEPS = 10
START = np.array([2.4, -0.1]), np.array([2.6, 0.1])
SAFE = np.array([3.0, 1.5])  # |position|, |velocity|


def unroll(controller: onnx.ModelProto, steps: int) -> onnx.ModelProto:
    """The network from a state to the next `steps` states; the controller may be any model with one input and one output."""
    graph = controller.graph
    state, control = graph.input[0].name, graph.output[0].name
    held = [*graph.initializer, numpy_helper.from_array(np.float32(A), "A"), numpy_helper.from_array(np.float32(B)[:, None], "B")]
    shared = {i.name for i in held}
    nodes, at = [], state
    for t in range(1, steps + 1):
        names = {state: at}
        for node in graph.node:
            made = onnx.NodeProto()
            made.CopyFrom(node)
            made.name = ""
            made.input[:] = [v if v in shared or not v else names[v] for v in node.input]
            made.output[:] = [names.setdefault(v, f"{v}.{t}") for v in node.output]
            nodes.append(made)
        nodes += [
            helper.make_node("Gemm", [at, "A"], [f"drift.{t}"], transB=1),
            helper.make_node("Gemm", [names[control], "B"], [f"push.{t}"], transB=1),
            helper.make_node("Add", [f"drift.{t}", f"push.{t}"], [f"{state}.{t}"]),
        ]
        at = f"{state}.{t}"
    nodes.append(helper.make_node("Concat", [f"{state}.{t}" for t in range(1, steps + 1)], ["states"], axis=1))
    size = len(A)
    ends = [helper.make_tensor_value_info(name, 1, [1, n]) for name, n in ((state, size), ("states", size * steps))]
    loop = helper.make_graph(nodes, "loop", ends[:1], ends[1:], held)
    return helper.make_model(loop, opset_imports=controller.opset_import, ir_version=controller.ir_version)


def main() -> int:
    net = polytriton.compile(unroll(onnx.load(CONTROLLER), STEPS))
    planes = [(2 * t, 2 * t + 1) for t in range(STEPS)]
    tube = polytriton.reach(net, START, planes=planes, angles=12, pieces=32, samples=100)

    (p, v), (p1, v1) = START
    print(f"start: position [{p}, {p1}], velocity [{v}, {v1}]")
    for t, (a, b) in enumerate(planes, 1):
        lo, hi = tube.lo[[a, b]], tube.hi[[a, b]]
        print(f"step {t}: position [{lo[0]:.3f}, {hi[0]:.3f}], velocity [{lo[1]:.3f}, {hi[1]:.3f}]")
    if len(sys.argv) > 1:
        tube.save(sys.argv[1], overwrite=True)

    _, y = net.variables()
    safe = polytriton.Property(START, safe=[c for a, b in planes for k, s in ((a, SAFE[0]), (b, SAFE[1])) for c in (y[k] <= s, y[k] >= -s)])
    enclosed = bool((np.abs([tube.lo, tube.hi]).reshape(2, STEPS, 2) <= SAFE).all())
    verdict = net.verify_property(safe, timeout=60).verdict
    if enclosed and verdict == "unsat":
        print(f"safe: position within {SAFE[0]:g}, velocity within {SAFE[1]:g}, at every step")
        return 0
    print(f"not shown to be safe: enclosed {enclosed}, the property {verdict}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
