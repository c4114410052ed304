"""Directed rounding on this device against exact rationals: what interval arithmetic rests on.

RD(x) is the number r with r <= x < next(r), RU(x) the one with last(r) < x <= r, -inf and inf among the numbers.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from bench.core.table import Row
from bench.gpu.setting import Setting
from polytriton.kernels.device import directed as d

LANES = 256
OPERATIONS = ("fma_down", "fma_up", "add_down", "add_up", "mul_down", "mul_up")


@triton.jit
def all_operations(a_ptr, b_ptr, c_ptr, out_ptr, COUNT, LANES: tl.constexpr, INTERPRET: tl.constexpr):
    i = tl.program_id(0) * LANES + tl.arange(0, LANES)
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    c = tl.load(c_ptr + i)
    if INTERPRET:
        tl.store(out_ptr + i, d.fma_down_emulated(a, b, c))
        tl.store(out_ptr + COUNT + i, d.fma_up_emulated(a, b, c))
        tl.store(out_ptr + 2 * COUNT + i, d.add_down_emulated(a, b))
        tl.store(out_ptr + 3 * COUNT + i, d.add_up_emulated(a, b))
        tl.store(out_ptr + 4 * COUNT + i, d.mul_down_emulated(a, b))
        tl.store(out_ptr + 5 * COUNT + i, d.mul_up_emulated(a, b))
    else:
        tl.store(out_ptr + i, d.fma_down(a, b, c))
        tl.store(out_ptr + COUNT + i, d.fma_up(a, b, c))
        tl.store(out_ptr + 2 * COUNT + i, d.add_down(a, b))
        tl.store(out_ptr + 3 * COUNT + i, d.add_up(a, b))
        tl.store(out_ptr + 4 * COUNT + i, d.mul_down(a, b))
        tl.store(out_ptr + 5 * COUNT + i, d.mul_up(a, b))


def operands(count: int, bits: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A third any finite bits, a third near one, a third whose sums nearly cancel; some zeros and subnormals."""
    rng, kind = np.random.default_rng(seed), np.float32 if bits == 32 else np.float64
    whole = np.uint32 if bits == 32 else np.uint64
    anything = rng.integers(0, np.iinfo(whole).max, (3, count), whole, endpoint=True).view(kind)
    near = rng.standard_normal((3, count)).astype(kind)
    some = np.where(np.arange(count) % 3 == 0, anything, near)
    some = np.where(np.isfinite(some), some, near)
    with np.errstate(all="ignore"):
        cancelling = -(some[0] * some[1])
        some[2] = np.where((np.arange(count) % 3 == 2) & np.isfinite(cancelling), cancelling, some[2])
        some[:, ::17] *= np.finfo(kind).tiny
    some[2, ::29] = 0
    a, b, c = (torch.from_numpy(v.copy()) for v in some)
    return a, b, c


def wrong(operation: str, a: float, b: float, c: float, got: np.floating) -> bool:
    """Whether the number that came is not the exact value rounded in the operation's direction."""
    kind, way = operation.split("_")
    exact = {"fma": Fraction(a) * Fraction(b) + Fraction(c), "add": Fraction(a) + Fraction(b), "mul": Fraction(a) * Fraction(b)}[kind]
    if np.isnan(got):
        return True
    with np.errstate(all="ignore"):
        beyond = np.nextafter(got, type(got)(np.inf if way == "down" else -np.inf))
    here, there = _place(got), _place(beyond)
    return not (here <= exact < there if way == "down" else there < exact <= here)


def _place(x: np.floating) -> Fraction:
    """A number's place among rationals; infinities lie past every result of the two formats."""
    return Fraction(float(x)) if np.isfinite(x) else Fraction(2) ** 5000 * (1 if x > 0 else -1)


def compare(setting: Setting) -> Iterator[Row]:
    """Every operation in both formats: how many of its results are wrong."""
    count = LANES if setting.dry else 16 * LANES
    for bits in (32, 64):
        given = operands(count, bits, seed=bits)
        a, b, c = (v.to(setting.device) for v in given)
        out = torch.full((6 * count,), float("nan"), dtype=a.dtype, device=setting.device)
        all_operations[(count // LANES,)](a, b, c, out, count, LANES=LANES, INTERPRET=setting.dry)
        setting.synchronize()
        for operation, results in zip(OPERATIONS, out.cpu().numpy().reshape(6, count), strict=True):
            values = zip(*(v.tolist() for v in given), results, strict=True)
            bad = sum(wrong(operation, *each) for each in values)
            yield {"what": f"{operation} {bits}", "fraction": 0.0 if not bad else float("inf"), "note": f"{bad} of {count} wrong"}
