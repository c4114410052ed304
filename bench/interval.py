"""The paper's interval arithmetic beside folded errors: what one layer's back-substitution costs, and what it loses.

    python -m bench.interval [--csv OUT.csv]

Scalar rows go back through random layers to inputs in a box of radius 0.002. Loss is what roundings take from a row's bound: the
widths of its coefficient intervals times |x|, against the folded err = sum over layers of |M| . gamma_K |W| |y|; means over rows,
relative to sum |M||x|. MB is what must be read and written: two ends of the rows, against rows, weights, error vector. The folded
product is torch's. Times need a CUDA device; without one the interval kernels run in Triton's interpreter, on smaller layers.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.machine import describe
from bench.table import Table
from polytriton.runtime.settings import pinned
from polytriton.runtime.soundness import gamma


@dataclass(frozen=True)
class Layer:
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

    def folded(self, m: Tensor, w: Tensor) -> Tensor:
        """M W, each entry to nearest."""
        if not self.kernel:
            return m @ w
        windows = m.view(-1, self.size, self.size, self.source).permute(0, 3, 1, 2)
        return F.conv_transpose2d(windows, w, stride=self.stride).permute(0, 2, 3, 1).reshape(len(m), -1)

    def interval(self, lo: Tensor, hi: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """[lo, hi] W, rounded outward."""
        import triton
        import triton.language as tl

        from polytriton.kernels.interval import interval_conv, interval_dense

        rows, cells, block = len(lo), self.new_size**2, min(128, triton.next_power_of_2(self.to))
        out = lo.new_empty(rows, cells * self.to), lo.new_empty(rows, cells * self.to)
        kind = tl.float32 if lo.dtype == torch.float32 else tl.float64
        shared = {"T": kind, "BM": 8, "BN": block, "INTERPRET": lo.device.type == "cpu", "num_warps": 1}
        grid, given = (-(-rows // 8), -(-self.to // block)), (lo, hi, w, *out, torch.tensor([rows], device=lo.device))
        if not self.kernel:
            interval_dense[grid](*given, K=self.source, N=self.to, **shared)
            return out
        window = {"H": self.size, "W": self.size, "CO": self.source, "G": 1, "HO": self.new_size, "WO": self.new_size, "CI": self.to}
        taps = {"KH": self.kernel, "KW": self.kernel, "SH": self.stride, "SW": self.stride, "DH": 1, "DW": 1, "TOP": 0, "LEFT": 0}
        interval_conv[(grid[0] * cells, grid[1])](*given, **window, **taps, **shared)
        return out


DENSE, CONV = Layer("dense 64", 64, 64), Layer("conv 3x3, 8 to 4", 8, 4, kernel=3, size=2)
SMALL = (DENSE, replace(DENSE, name="dense 64, 4 in a row", depth=4), CONV, Layer("conv 4x4 by 2, 8 to 3", 8, 3, 4, 2, size=2))
WIDE, DEEP = Layer("dense 500 to 784", 500, 784), Layer("dense 500, 4 in a row", 500, 500, depth=4)
LARGE = (WIDE, DEEP, Layer("conv 3x3, 64 to 64", 64, 64, 3, size=5), Layer("conv 4x4 by 2, 32 to 32", 32, 32, 4, 2, size=4))


def losses(layer: Layer, m: Tensor, w: Tensor) -> tuple[float, float]:
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
        m = layer.folded(m, w)
    size, width = (m.double().abs() * reach[0]).sum(1), ((hi.double() - lo.double()) * reach[0]).sum(1)
    return (width / size).mean().item(), (error / size).mean().item()


def measure(layer: Layer, dtype: torch.dtype, rows: int, device: str) -> dict[str, object]:
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
        "folded ms": time(lambda: (layer.folded(m, w), m.double().abs() @ t)),
    }  # fmt: skip


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--csv", type=Path)
    a = p.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    about = describe(torch.cuda.get_device_name() if device == "cuda" else "cpu")
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    print(f"{about['machine']}; {about['device']}")
    table = None
    for layer in LARGE if device == "cuda" else SMALL:
        for dtype in (torch.float32, torch.float64):
            with pinned():
                row = measure(layer, dtype, 4096 if device == "cuda" else 8, device)
            table = table or Table(list(row), a.csv, {"part": "interval", **about})
            table.add(row)
    if table is not None:
        table.close()


if __name__ == "__main__":
    main()
