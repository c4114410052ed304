"""Tensor operations that the host asks for beside the generated kernels, counted in Triton's interpreter.

    python -m bench.host_ops NET.onnx [--leap]

prints those of one refinement and one query of a small network with the layers of that one (or of a net's text, NET.ptir), as
JSON: of one that waits behind every layer, or with --leap once in all (runtime/gpu/leaps.py). On a GPU each is a launch, and the
host's time; views and memory taken are neither. The count depends on the layers and on whether they have undecided neurons, not on
sizes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.core.command import parser
from bench.core.machine import ROOT
from bench.nets.grow import NetGrower
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.launches import Kernel
from polytriton.ir.net import Net
from polytriton.ir.text import parse_net, print_net
from polytriton.kernels import load
from polytriton.passes.pipeline import compile_net

# no work on a device: views of a tensor, memory for a new one, and constants that become tensors
VIEWS = {
    "alias", "as_strided", "detach", "expand", "permute", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "t",
    "transpose", "unbind", "unsqueeze", "view", "_reshape_alias", "_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty",
    "lift_fresh",
}  # fmt: skip
# kernels over rows, which are counted and left out: bounds then stay the interval pass's, and every layer has its rows all the same.
# Those of the compaction do run: no row leaves, so the host goes the longest way, both signs and all parts
ROWS = {
    "relax_rows", "slope_rows", "scale_rows", "pool_rows", "part_rows", "gather_rows", "join_rows", "merge_scalars", "start_rows",
    "pay_neurons", "dense_step", "sum_parts", "conv_step", "concretize_rows",
}  # fmt: skip
CHANNELS, CELLS, HIDDEN = 2, 14, 6  # of the small network: enough cells for four unpadded layers


@dataclass(frozen=True)
class HostOps:
    """`tensor` operations outside of kernels, `kernels` launched, and how many of them `single`: in no graph."""

    tensor: int
    kernels: int
    single: int


class _Counting(TorchDispatchMode):
    def __init__(self, inside: list[int]) -> None:
        super().__init__()
        self.inside, self.found = inside, Counter[str]()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(call).split(".")[1]
        if not self.inside[0] and name not in VIEWS:
            self.found[name] += 1
        return call(*args, **(kwargs or {}))


@dataclass
class _Launched:
    """Whether a kernel or a graph's launches are running, and how many kernels have been launched in graphs and one by one."""

    inside: list[int]
    graph: bool = False
    in_graphs: int = 0
    single: int = 0


@contextmanager
def _watch() -> Iterator[_Launched]:
    """Kernels are counted while it lasts. What is captured on a GPU (`TritonBackend.part`) stands for a graph."""
    from polytriton.runtime.gpu.triton_backend import TritonBackend

    seen, plain, part = _Launched([0]), load.function, TritonBackend.part

    class Launchable:
        def __init__(self, kernel: Kernel) -> None:
            self.kernel = None if kernel.name.rpartition("_")[0] in ROWS else plain(kernel)

        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def run(*given: Any, **options: Any) -> None:
                seen.in_graphs += seen.graph
                seen.single += not seen.graph
                if self.kernel is None:
                    return
                seen.inside[0] += 1
                try:
                    self.kernel[grid](*given, **options)
                finally:
                    seen.inside[0] -= 1

            return run

    def as_graph(self: TritonBackend, some: Any) -> None:
        seen.graph = True
        seen.inside[0] += 1  # tensor operations among the launches are captured with them
        try:
            part(self, some)
        finally:
            seen.graph = False
            seen.inside[0] -= 1

    users = [m for name, m in list(sys.modules.items()) if name.startswith("polytriton.") and getattr(m, "function", None) is plain]
    try:
        TritonBackend.part = as_graph  # type: ignore[method-assign, assignment]
        for m in users:
            m.function = Launchable  # type: ignore[attr-defined]
        yield seen
    finally:
        TritonBackend.part = part  # type: ignore[method-assign]
        for m in users:
            m.function = plain  # type: ignore[attr-defined]


def host_ops(make: Callable[[], Callable[[], object]]) -> HostOps:
    """Of the sixth run of what `make` prepares: by then caches are full and stretches have been captured.

    Kernels must be bound inside, so that they are seen.
    """
    with _watch() as seen:
        run = make()
        for _ in range(5):
            run()
        seen.in_graphs = seen.single = 0
        with _Counting(seen.inside) as counting:
            run()
    return HostOps(sum(counting.found.values()), seen.in_graphs + seen.single, seen.single)


def small(net: Net) -> Net:
    """The same operators in the same order with few channels; every layer of a box of radius 0.1 has undecided neurons."""
    grower = NetGrower("small", CHANNELS, CELLS, CELLS)
    made = {net.input.name: grower.at}
    last = net.output
    for node in net.nodes[1:]:
        grower.at = made[node.inputs[0]]
        if node.op == "conv":
            h, w = (n + a + b for n, a, b in zip(grower.builder.shape(grower.at)[1:], *_pads(node), strict=True))
            k = node.ints("k")
            grower.conv(CHANNELS, min(k[0], h, w), node.ints("s", (1, 1))[0], node.ints("p", (0, 0, 0, 0)))  # type: ignore[arg-type]
        elif node.op == "linear":
            grower.dense(HIDDEN)
        elif node.op == "relu":
            grower.relu()
        elif node.op == "add":
            grower.plus(made[node.inputs[1]])
        else:
            raise ValueError(f"no small form of {node.op}")
        made[node.name] = grower.at
    return grower.builder.build(made[last])


def _pads(node: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    top, left, bottom, right = node.ints("p", (0, 0, 0, 0))
    return (top, left), (bottom, right)


def of_net(net: Net, leap: bool = False, seed: int = 0) -> HostOps:
    """One refinement and one query of nine margins, as bench.gpu.zoo runs them."""
    from polytriton.runtime.engine import Engine
    from polytriton.runtime.gpu import leaps
    from polytriton.runtime.results import Forms
    from polytriton.runtime.settings import pin_settings

    def make() -> Callable[[], object]:
        engine = Engine(compile_net(net), semantics="real", dtype="float64", kernels="interpret")
        assert engine.kernels is not None
        engine.kernels.leaps = leap
        x = torch.rand(1, net.input.size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        outputs = net.node(net.output).size
        eye = torch.eye(outputs, dtype=torch.float64)
        forms = Forms(torch.zeros(outputs - 1, dtype=torch.int64), eye[0] - eye[1:])
        box = (x - 0.1).clamp(0, 1), (x + 0.1).clamp(0, 1)

        def run() -> object:
            with pin_settings():
                return engine.query(engine.refine(*box), forms)

        return run

    limits = leaps.LAUNCHES, leaps.WORTH
    try:
        if leap:  # no row leaves here, so a leap has more launches than the large network's
            leaps.LAUNCHES, leaps.WORTH = sys.maxsize, sys.maxsize
        return host_ops(make)
    finally:
        leaps.LAUNCHES, leaps.WORTH = limits


def of_depth(net: Net, leap: bool = False, timeout: float = 600.0) -> HostOps:
    """The same of a small network with the layers of `net`, in a process of its own: Triton's mode is one for a whole process."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "net.ptir")
        file.write_text(print_net(net))
        command = [sys.executable, "-m", "bench.host_ops", str(file), *["--leap"] * leap]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return HostOps(**json.loads(done.stdout))


def main() -> int:
    p = parser("host_ops", __doc__)
    p.add_argument("net", type=Path, metavar="NET.onnx")
    p.add_argument("--leap", action="store_true", help="of a run that waits once in all")
    a = p.parse_args()
    path = a.net
    net = compile_net(load_onnx(path).net).net if path.suffix == ".onnx" else parse_net(path.read_text())
    print(json.dumps(asdict(of_net(small(net), a.leap))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
