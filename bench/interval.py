"""The paper's interval arithmetic beside folded errors: what a layer's back-substitution and a whole network cost, and what they lose.

    python -m bench.interval [--csv OUT.csv]

Layers: scalar rows go back through random layers to inputs in a box of radius 0.002. Loss is what roundings take from a row's
bound: the widths of its coefficient intervals times |x|, against the folded err = sum over layers of |M| . gamma_K |W| |y|; means
over rows, relative to sum |M||x|. MB is what must be read and written: two ends of the rows, against rows, weights, error vector.
The folded product is torch's.
Networks: one image through a random ReLU network as `--numerics interval` and `folded` run it, exact semantics: every ReLU input is
refined, then both sides of every output. Loss is how much wider the outputs' bounds are than those of float64 folded rows, as a
share of these; MB is what the rows of the largest program hold, were none to leave.

Columns: layer, type (of the coefficients), rows (of a network: neurons refined), interval loss, folded loss, interval MB, folded MB,
interval ms, folded ms. Times need a CUDA device; without one all kernels run in Triton's interpreter, on smaller shapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.core.command import parser
from bench.core.machine import describe
from bench.core.table import Row, Table
from polytriton.ir.net import Builder, Net, Ref
from polytriton.knobs import interpret_triton
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.results import Forms
from polytriton.runtime.settings import pin_settings
from polytriton.runtime.soundness import gamma


@dataclass(frozen=True)
class WindowLayer:
    """A convolution under windows [size, size, source] of its output; kernel 0 is a dense layer. `depth` of them in a row."""

    name: str
    source: int
    to: int
    kernel: int = 0
    stride: int = 1
    size: int = 1
    depth: int = 1

    @property
    def new_size(self) -> int:
        return (self.size - 1) * self.stride + max(1, self.kernel)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        """The layer itself: [1, new cells] to [1, cells]."""
        if not self.kernel:
            return x @ w.T
        windows = x.view(-1, self.new_size, self.new_size, self.to).permute(0, 3, 1, 2)
        return F.conv2d(windows, w, stride=self.stride).permute(0, 2, 3, 1).reshape(len(x), -1)

    def fold(self, m: Tensor, w: Tensor) -> Tensor:
        """M W, each entry to nearest."""
        if not self.kernel:
            return m @ w
        windows = m.view(-1, self.size, self.size, self.source).permute(0, 3, 1, 2)
        return F.conv_transpose2d(windows, w, stride=self.stride).permute(0, 2, 3, 1).reshape(len(m), -1)

    def interval(self, lo: Tensor, hi: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """[lo, hi] W, rounded outward."""
        import triton.language as tl

        from polytriton.arithmetic import ARITHMETICS
        from polytriton.kernels.choose import GPU, INTERPRETER
        from polytriton.kernels.device.interval_products import IntervalConv, interval_conv, interval_dense
        from polytriton.kernels.interval_launches import product_tiles

        rows, host = len(lo), lo.device.type == "cpu"
        size = self.new_size**2 * self.to
        out = lo.new_empty(rows, size), lo.new_empty(rows, size)
        kind, bits = (tl.float32, "32") if lo.dtype == torch.float32 else (tl.float64, "64")
        cells = (-(-self.new_size // self.stride)) ** 2 if self.kernel else 0
        tiles = product_tiles(ARITHMETICS[f"interval{bits}"], INTERPRETER if host else GPU, self.to, self.source, cells)
        shared = {"T": kind, "SLOT": False, **tiles.constants, "INTERPRET": host}
        count, columns = torch.tensor([rows], device=lo.device), -(-self.to // tiles.constants["BN"])
        none = torch.zeros(1, dtype=torch.int64, device=lo.device)  # every row lies in its own place
        if not self.kernel:
            dense = interval_dense[(-(-rows // tiles.block), columns)]
            dense(lo, hi, none, w, *out, count, K=self.source, N=self.to, **shared, num_warps=tiles.warps)
            return out
        window = {"H": self.size, "W": self.size, "CO": self.source, "G": 1, "HO": self.new_size, "WO": self.new_size, "CI": self.to}
        taps = {"KH": self.kernel, "KW": self.kernel, "SH": self.stride, "SW": self.stride, "DH": 1, "DW": 1, "TOP": 0, "LEFT": 0}
        mask = {"MASK": False, **dict.fromkeys(("IH", "IW", "TO_RH", "TO_OH", "TO_RW", "TO_OW"), 0), "PH": self.stride, "PW": self.stride}
        grid = (-(-rows // tiles.block) * -(-cells // tiles.constants["SPAN"]) * self.stride**2, columns)
        given: dict[str, Any] = {**window, **taps, **mask, **shared}
        constants = IntervalConv(**given)
        weights = w.permute(2, 3, 0, 1).contiguous()
        interval_conv[grid](lo, hi, none, none, none, weights, *out, count, constants, num_warps=tiles.warps)
        return out


DENSE, CONV = WindowLayer("dense 64", 64, 64), WindowLayer("conv 3x3, 8 to 4", 8, 4, kernel=3, size=2)
SMALL = (DENSE, replace(DENSE, name="dense 64, 4 in a row", depth=4), CONV, WindowLayer("conv 4x4 by 2, 8 to 3", 8, 3, 4, 2, size=2))
WIDE, DEEP = WindowLayer("dense 500 to 784", 500, 784), WindowLayer("dense 500, 4 in a row", 500, 500, depth=4)
LARGE = (WIDE, DEEP, WindowLayer("conv 3x3, 64 to 64", 64, 64, 3, size=5), WindowLayer("conv 4x4 by 2, 32 to 32", 32, 32, 4, 2, size=4))


TYPES = (torch.float32, torch.float64)
COLUMNS = ("layer", "type", "rows", "interval loss", "folded loss", "interval MB", "folded MB", "interval ms", "folded ms")


def losses(layer: WindowLayer, m: Tensor, w: Tensor) -> tuple[float, float]:
    """What the intervals and what the folded error take from a row's bound."""
    u, lo, hi, wide = 2.0**-24 if m.dtype == torch.float32 else 2.0**-53, m, m, w.double()
    x = torch.rand(1, layer.new_size**2 * layer.to, dtype=torch.float64, device=m.device)
    radius, reach = torch.full_like(x, 0.002), []
    for _ in range(layer.depth):
        reach.append(x.abs() + radius)
        x, radius = layer.forward(x, wide), layer.forward(radius, wide.abs())
    error, terms = torch.zeros_like(m[:, 0], dtype=torch.float64), layer.source * max(1, (-(-layer.kernel // layer.stride)) ** 2)
    for inputs in reversed(reach):
        error += gamma(terms, u) * (m.double().abs() * layer.forward(inputs, wide.abs())).sum(1)
        lo, hi = layer.interval(lo, hi, w)
        m = layer.fold(m, w)
    size, width = (m.double().abs() * reach[0]).sum(1), ((hi.double() - lo.double()) * reach[0]).sum(1)
    return (width / size).mean().item(), (error / size).mean().item()


def escape_share(layer: WindowLayer, dtype: torch.dtype, rows: int, device: torch.device) -> float:
    """By how much one layer's intervals miss the product of any point of theirs, or are wider than their roundings say; above 1 is wrong.

    The product in float64 lies within gamma_K |m||w| of the exact one; of float32 operands the intervals are wider than that.
    """
    g = torch.Generator().manual_seed(1)
    m = torch.randn(rows, layer.size**2 * layer.source, dtype=torch.float64, generator=g).to(device, dtype)
    taps = (layer.kernel, layer.kernel) if layer.kernel else ()
    w = torch.randn(layer.source, layer.to, *taps, dtype=torch.float64, generator=g).to(device, dtype)
    lo, hi = (v.double() for v in layer.interval(m, m, w))
    want, size = layer.fold(m.double(), w.double()), layer.fold(m.double().abs(), w.double().abs())
    terms, u = layer.source * max(1, layer.kernel**2), 2.0**-24 if dtype == torch.float32 else 2.0**-53
    own = 4 * gamma(terms, 2.0**-53) * size
    if not bool((lo <= want + own).all() and (hi >= want - own).all() and (lo <= hi).all()):
        return float("inf")
    return float(((hi - lo) / (4 * gamma(terms + 1, u) * size + 1e-300)).max())


def measure(layer: WindowLayer, dtype: torch.dtype, rows: int, device: str) -> Row:
    torch.manual_seed(0)
    m = torch.randn(rows, layer.size**2 * layer.source, dtype=torch.float64).to(device, dtype)
    taps = (layer.kernel, layer.kernel) if layer.kernel else ()
    w = torch.randn(layer.source, layer.to, *taps, dtype=torch.float64).to(device, dtype) * (2 / layer.to / max(1, layer.kernel**2)) ** 0.5
    of_intervals, of_errors = losses(layer, m, w)
    from triton.testing import do_bench

    time: Callable[[Callable[[], object]], object] = do_bench if device == "cuda" else lambda run: "-"
    t, numbers = m[0].double().abs(), m.numel() + rows * layer.new_size**2 * layer.to
    return {
        "layer": layer.name, "type": str(dtype)[6:], "rows": rows, "interval loss": of_intervals, "folded loss": of_errors,
        "interval MB": (2 * numbers + w.numel()) * m.element_size() / 1e6,
        "folded MB": ((numbers + w.numel()) * m.element_size() + 8 * t.numel()) / 1e6,
        "interval ms": time(lambda: layer.interval(m, m, w)),
        "folded ms": time(lambda: (layer.fold(m, w), m.double().abs() @ t)),
    }  # fmt: skip


@dataclass(frozen=True)
class Whole:
    """A random network, He-initialised, and a ball around a random image: dense layers behind `channels` 3x3 convolutions by 2."""

    name: str
    inputs: tuple[int, ...]
    channels: tuple[int, ...]
    widths: tuple[int, ...]
    epsilon: float

    def net(self) -> Net:
        rng, b = np.random.default_rng(0), Builder("random")
        x = b.input(self.inputs)

        def weights(*shape: int) -> Ref:
            return b.constant((rng.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5).astype(np.float32))

        def bias(n: int) -> Ref:
            return b.constant((rng.standard_normal(n) / 10).astype(np.float32))

        for c in self.channels:
            x = b.add("conv", (x,), w=weights(c, b.shape(x)[0], 3, 3), b=bias(c), k=(3, 3), s=(2, 2), p=(1, 1, 1, 1))
            x = b.add("relu", (x,))
        for k, n in enumerate(self.widths):
            x = b.add("linear", (x,), w=weights(n, int(np.prod(b.shape(x)))), b=bias(n))
            x = b.add("relu", (x,)) if k + 1 < len(self.widths) else x
        return b.build(x)


TINY = (Whole("net 6-8-8-3", (6,), (), (8, 8, 3), 0.1), Whole("net conv 2-3", (1, 5, 5), (2, 3), (3,), 0.1))
FULL = (
    Whole("net 784-500x5-10", (784,), (), (500, 500, 500, 500, 500, 10), 0.002),
    Whole("net conv 32-64-64-500-10", (3, 32, 32), (32, 64, 64), (500, 10), 0.0005),
)


CASES: dict[str, tuple[Sequence[WindowLayer | Whole], Sequence[WindowLayer | Whole]]] = {"layers": (SMALL, LARGE), "networks": (TINY, FULL)}


def bounds(engine: Engine, lo: Tensor, hi: Tensor) -> tuple[Tensor, int]:
    """Widths of the outputs after refining every layer, and how many neurons that took."""
    boxes = engine.refine(lo, hi)
    eye = torch.eye(engine.nodes[engine.net.output].size, dtype=torch.float64, device=engine.device)
    best = engine.query(boxes, Forms(torch.zeros(2 * len(eye), dtype=torch.int64, device=engine.device), torch.cat([eye, -eye]))).best
    rows = sum(n for name, n in engine.tally.rows.items() if name != "query") // 2
    return -(best[: len(eye)] + best[len(eye) :]).cpu(), rows


def whole(case: Whole, dtype: str, device: str) -> Row:
    """Both arithmetics on the device's kernels, and what they lose against float64 folded rows by torch."""
    compiled = compile_net(case.net())
    centre = torch.rand(1, int(np.prod(case.inputs)), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    lo, hi = centre - case.epsilon, centre + case.epsilon
    best, _ = bounds(Engine(compiled, semantics="real", dtype="float64"), lo, hi)
    row: Row = {"layer": case.name, "type": dtype, "rows": 0}
    for numerics in ("interval", "folded"):
        kernels, where = "triton" if device == "cuda" else "interpret", torch.device(device)
        engine = Engine(compiled, semantics="real", dtype=dtype, device=where, kernels=kernels, numerics=numerics, memory=8 << 30)
        assert engine.kernels is not None
        widths, row["rows"] = bounds(engine, lo, hi)
        row[f"{numerics} loss"] = (widths / best - 1).mean().item()
        held = (engine.kernels.row_bytes(p) * 2 * engine.nodes[p.target].size for p in engine.plan)
        row[f"{numerics} MB"] = max(held) / 1e6
        row[f"{numerics} ms"] = "-"
        if device == "cuda":
            times = []
            for _ in range(5):
                torch.cuda.synchronize()
                start = time.perf_counter()
                bounds(engine, lo, hi)
                torch.cuda.synchronize()
                times.append(1e3 * (time.perf_counter() - start))
            row[f"{numerics} ms"] = sorted(times)[2]
    return {c: row[c] for c in COLUMNS}


def measure_case(case: WindowLayer | Whole, dtype: torch.dtype, rows: int, device: str) -> Row:
    """One case in one type; `rows` of a layer."""
    with pin_settings():
        if isinstance(case, Whole):
            return whole(case, str(dtype).removeprefix("torch."), device)
        return measure(case, dtype, rows, device)


def main() -> None:
    p = parser("interval", __doc__)
    p.add_argument("--csv", type=Path)
    a = p.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    about = describe(torch.cuda.get_device_name() if device == "cuda" else "cpu")
    interpret_triton(device == "cpu")
    print(f"{about['machine']}; {about['device']}")
    table = Table(COLUMNS, a.csv, {"part": "interval", **about})
    cases = [case for sizes in CASES.values() for case in sizes[device == "cuda"]]
    for case, dtype in product(cases, TYPES):
        table.add(measure_case(case, dtype, 4096 if device == "cuda" else 8, device))
    table.close()


if __name__ == "__main__":
    main()
