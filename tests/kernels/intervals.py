"""What the tests of the interval kernels share: numbers of every size, exact values as integers, and a dense product to run."""

from __future__ import annotations

import math

import numpy as np
import torch
import triton.language as tl
from hypothesis import strategies as st

from polytriton.kernels.device.interval_products import interval_dense

TYPES = {np.float32: tl.float32, np.float64: tl.float64}
UNIT = 1074  # exact values are integers, in units of 2**-UNIT (a number), 2**-2*UNIT (a product of two)
FLAVOURS = ("plain", "wide", "subnormal", "huge", "cancel")

BLOCK = {"BM": 4, "BN": 4, "BK": 8, "RM": 2, "RN": 2, "INTERPRET": True}
flavours, types, seeds = st.sampled_from(FLAVOURS), st.sampled_from(list(TYPES)), st.integers(0, 2**32)


def exact(x: float) -> int:
    top, bottom = float(x).as_integer_ratio()
    return top * (2**UNIT // bottom)


def integers(x: np.ndarray) -> np.ndarray:
    """The same numbers as Python integers in units of 2**-UNIT."""
    return np.array([exact(v) for v in x.ravel().tolist()], dtype=object).reshape(x.shape)


def numbers(draw: np.random.Generator, shape: tuple[int, ...], flavour: str, dtype: type) -> np.ndarray:
    info = np.finfo(dtype)
    plain = draw.standard_normal(shape)
    if flavour == "wide":
        plain = plain * 2.0 ** draw.integers(-40, 40, shape)
    elif flavour == "subnormal":
        plain = plain * float(info.tiny) * 2.0 ** draw.integers(-20, 4, shape)
    elif flavour == "huge":
        plain = np.clip(plain * (float(info.max) / 4), -float(info.max), float(info.max))
    elif flavour == "cancel":
        plain = np.where(draw.random(shape) < 0.5, 1.0, -1.0) * 2.0 ** draw.integers(0, info.nmant + 4, shape)
    return np.where(draw.random(shape) < 0.1, 0.0, plain).astype(dtype)


def intervals(draw: np.random.Generator, shape: tuple[int, ...], flavour: str, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Points, neighbours, intervals of like sign and of both."""
    lo = numbers(draw, shape, flavour, dtype)
    far = np.maximum(lo, numbers(draw, shape, flavour, dtype))
    kind = draw.integers(0, 3, shape)
    near = np.where(kind == 0, lo, np.nextafter(lo, dtype(np.inf)))
    return lo, np.where(kind == 2, far, near).astype(dtype)


def choices(draw: np.random.Generator, lo: np.ndarray, hi: np.ndarray) -> list[np.ndarray]:
    """Eight times exact coefficients inside the intervals: both ends, ends at random, points between."""
    low, high = integers(lo), integers(hi)
    weights = [np.zeros(lo.shape, int), np.full(lo.shape, 8), 8 * draw.integers(0, 2, lo.shape), draw.integers(0, 9, lo.shape)]
    return [low * (8 - w) + high * w for w in weights]


def below(bound: float, value: int) -> bool:
    """bound <= value; `value` in units of an eighth of 2**-2*UNIT. NaN is below nothing."""
    return bound == -math.inf or (math.isfinite(bound) and 8 * exact(bound) << UNIT <= value)


def above(bound: float, value: int) -> bool:
    return below(-bound, -value)


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]


def rows_in_use(n: int) -> torch.Tensor:
    return torch.tensor([n], dtype=torch.int64)


def run_dense(lo: np.ndarray, hi: np.ndarray, w: np.ndarray, used: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    (rows, k), n = lo.shape, w.shape[1]
    out = tensors(*(np.full((rows, n), 7, lo.dtype) for _ in range(2)))
    grid = (max(1, -(-rows // BLOCK["BM"])), -(-n // BLOCK["BN"]))
    count = rows_in_use(rows if used is None else used)
    slot = torch.zeros(1, dtype=torch.int64)
    interval_dense[grid](*tensors(lo, hi), slot, *tensors(w), *out, count, T=TYPES[lo.dtype.type], SLOT=False, K=k, N=n, **BLOCK)
    return out[0].numpy(), out[1].numpy()
