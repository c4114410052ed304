"""What the tests of lanes share: networks with branches, and a checker of what launches that may run at the same time touch.

The checker knows nothing of kernels/lanes.py: what a launch reads and writes is told by the source of its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from polytriton.ir.launches import Launch, Launches
from polytriton.ir.net import Builder, Net
from polytriton.kernels.arena import Arena
from tests.kernels.accesses import WRITTEN, accesses

Place = tuple[str, int, int]  # a memory, and the first and the last but one of its cells that are meant
Where = Callable[[str], Place]
ROWS = ("image", "row_h", "row_w", "constant", "error", "index", "sign", "channel")


# ---- networks -------------------------------------------------------------------------------------------------------


class Layers:
    """A Builder with random weights."""

    def __init__(self, seed: int, name: str) -> None:
        self.rng, self.b = np.random.default_rng(seed), Builder(name)

    def he(self, *shape: int) -> np.ndarray:
        return (self.rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)

    def conv(self, x: str, out: int, k: int, s: int = 1, p: int = 0) -> str:
        w, bias = self.b.constant(self.he(out, self.b.shape(x)[0], k, k)), self.b.constant(0.1 * self.he(out))
        return self.b.add("conv", (x,), w=w, b=bias, k=(k, k), s=(s, s), p=(p, p, p, p))

    def linear(self, x: str, out: int) -> str:
        w = self.b.constant(self.he(out, int(np.prod(self.b.shape(x)))))
        return self.b.add("linear", (x,), w=w, b=self.b.constant(0.1 * self.he(out)))

    def relu(self, x: str) -> str:
        return self.b.add("relu", (x,))


def projections(seed: int = 0, blocks: int = 2) -> Net:
    """Residual blocks whose shortcut is a strided convolution; programs of the later block walk back through the earlier one."""
    n = Layers(seed, "projections")
    y = n.relu(n.conv(n.b.input((2, 6, 6)), 3, 3, 1, 1))
    for block in range(blocks):
        out = 4 + block
        branch = n.conv(n.relu(n.conv(y, out, 3, 2, 1)), out, 3, 1, 1)
        y = n.relu(n.b.add("add", (branch, n.conv(y, out, 1, 2))))
    return n.b.build(n.linear(y, 3))


def dense_branches(seed: int = 0) -> Net:
    """Three dense branches, one of them subtracted, one a bare shortcut."""
    n = Layers(seed, "dense_branches")
    x = n.relu(n.linear(n.b.input((5,)), 6))
    long = n.linear(n.relu(n.linear(x, 7)), 6)
    y = n.b.add("sub", (n.b.add("add", (long, n.linear(x, 6))), x))
    return n.b.build(n.linear(n.relu(y), 3))


def twins(seed: int = 0) -> Net:
    """Both branches are two convolutions long, with a ReLU between."""
    n = Layers(seed, "twins")
    x = n.relu(n.conv(n.b.input((1, 5, 5)), 2, 3, 1, 1))
    left, right = (n.conv(n.relu(n.conv(x, c, 3, 1, 1)), 2, 3, 1, 1) for c in (2, 3))
    return n.b.build(n.linear(n.relu(n.b.add("add", (left, right))), 2))


# ---- what launches touch -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """One symbol that a launch touches."""

    symbol: str
    place: Place
    written: bool


def touched(step: Launch, where: Where) -> list[Access]:
    how = accesses(step.kernel)
    return [Access(s, where(s), WRITTEN in how[p]) for p, s in zip(step.kernel.parameters, step.bind, strict=True)]


def places(launches: Launches, arena: Arena) -> Where:
    """Where symbols lie, as the runtime has it: buffers in the arena, row arrays of every second state in one tensor."""

    def where(symbol: str) -> Place:
        kind, _, name = symbol.partition(":")
        if kind == "buf":
            begin = arena.offsets[int(name)]
            return "arena", begin, begin + launches.buffers[int(name)]
        return (f"{kind}:{int(name) % 2}" if kind in ROWS and name.isdigit() else symbol), 0, 1

    return where


# ---- the checker ----------------------------------------------------------------------------------------------------


def overlap(a: Place, b: Place) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def regions(launches: Launches) -> Iterator[tuple[int, list[Launch]]]:
    """Every region: the index of its first launch, and its launches."""
    at: dict[int, list[int]] = {}
    for k, step in enumerate(launches.steps):
        if isinstance(step, Launch) and step.region:
            at.setdefault(step.region, []).append(k)
    for indices in at.values():
        yield indices[0], [s for k in indices if isinstance(s := launches.steps[k], Launch)]


def faults(launches: Launches, where: Where) -> list[str]:
    """What could go wrong in a program with lanes, in words; nothing where it is right."""
    found = []
    clean = True  # whether lane 1's scalars hold zeros
    for step in launches.steps:
        own = {a.symbol for a in touched(step, where) if a.symbol.startswith("lane_")}
        if step.function == "merge_scalars":
            found += [f"{step.function} in region {step.region}"] if step.region or step.lane else []
            clean = True
        elif own:
            found += [] if step.lane == 1 else [f"{step.function} of lane {step.lane} touches {sorted(own)}"]
            clean = False
        if not clean and not step.region:
            found.append(f"{step.function}: scalars of lane 1 are outstanding outside a region")
    found += [] if clean else ["scalars of lane 1 are never merged"]
    for first, together in regions(launches):
        found += [] if launches.steps[first : first + len(together)] == together else [f"region {together[0].region} is in pieces"]
        lanes = {s.lane for s in together}
        found += [] if lanes == {0, 1} else [f"lanes {sorted(lanes)}"]
        for k, a in enumerate(together):
            for b in together[k + 1 :]:
                if a.lane != b.lane:
                    found += list(_meetings(a, b, where))
    return found


def _meetings(a: Launch, b: Launch, where: Where) -> Iterator[str]:
    for x in touched(a, where):
        for y in touched(b, where):
            if (x.written or y.written) and overlap(x.place, y.place):
                yield f"{a.function} of lane {a.lane} and {b.function} of lane {b.lane}: {x.symbol}, {y.symbol}"
