"""Predicted time on a CPU: every form of a convolution is a sum of counts, each times what the machine takes for one.

The counts (operations of the product, values moved, lines, calls) are known before anything runs; the seconds for each come from
device.py, where `--calibrate` fits them by non-negative least squares to the forms' times on shapes of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from polytriton.runtime.config import AUTO, GATHER, LIBRARY, PLANAR, PLANES, SHIFTS, Config
from polytriton.runtime.cpu.torch_backend import FEW, LONG
from polytriton.tuning.device import Cpu
from polytriton.tuning.space import Conv

LINES = 3  # of taps that a run of shifted sums takes at once
VECTOR = 16  # float32 values in a vector: libraries pad channels to whole ones
LIMITS = {
    LIBRARY: ("operations", "line starts", "rows", "calls"),
    PLANAR: ("operations", "line starts", "copies", "calls"),
    SHIFTS: ("operations", "sums", "short runs", "memory", "calls"),
    PLANES: ("operations", "sums", "lines", "memory", "calls"),
    GATHER: ("operations", "copies", "sums", "memory", "calls"),
}


@dataclass(frozen=True)
class Cost:
    """Seconds, and which count they mostly go to."""

    seconds: float
    limit: str


def _pad(n: int) -> int:
    return -(-n // VECTOR) * VECTOR


def features(conv: Conv, form: str, rows: int, config: Config, cpu: Cpu, threads: int = 1) -> list[float]:
    """The counts of `rows` rows, in the order of LIMITS."""
    (h, w), (ho, wo), (kh, kw), (sh, sw) = conv.window, conv.out, conv.kernel, conv.stride
    cells, ci, co = h * w, conv.inputs, conv.channels
    taps = kh * kw * ci
    if form in (LIBRARY, PLANAR):
        padded = 2 * cells * _pad(co) * _pad(ci) * kh * kw
        lines = ho * sw * kh * _pad(co) // VECTOR  # each phase of an output line is one strip over the kernel's rows
        moved = cells * co + ho * wo * ci if form == PLANAR else 1
        return [rows * padded, rows * lines, rows * moved, 1]
    if form == GATHER:
        q = ceil(kh / sh) * ceil(kw / sw)
        each, product = ho * wo * q * co, 2 * ho * wo * q * co * _pad(ci)
    else:
        each = cells * taps
        product = 2 * cells * co * (_pad(taps) if form == SHIFTS else taps)
    some = max(1, threads * config.taps // max(1, each))
    far = rows * each if min(some, rows) * each * 4 > cpu.cache * threads else 0
    calls = ceil(rows / some) * (sh * sw if form == GATHER else 1)
    if form == GATHER:
        return [rows * product, rows * each, rows * ho * wo * ci, far, calls]
    if form == PLANES:
        return [rows * product, rows * each, rows * ho * ceil(kh / sh) * kw * ci, far, calls]
    runs = w * ho * ceil(ceil(kh / sh) / LINES) * (1 if conv.dilation[1] == 1 else kw)
    return [rows * product, rows * each, rows * runs, far, calls]


def form_of(conv: Conv, config: Config, library: bool = True) -> str:
    """The form that the backend takes, as TorchBackend.form decides."""
    asked = config.convs.get(conv.key, AUTO)
    if asked != AUTO:
        return asked
    narrow = conv.groups == 1 and (conv.inputs <= config.narrow or conv.window[1] * conv.inputs <= config.short)
    if library and not narrow:
        return LIBRARY
    return PLANES if conv.groups == 1 and conv.stride[1] == 1 and conv.inputs <= FEW and conv.window[1] >= LONG else SHIFTS


def conv_cost(conv: Conv, form: str, rows: int, config: Config, cpu: Cpu, threads: int = 1) -> Cost:
    """One call on `rows` rows."""
    parts = np.array(features(conv, form, rows, config, cpu, threads)) * np.array(cpu.forms[form])
    parts[:-1] /= threads
    return Cost(float(parts.sum()), LIMITS[form][int(parts.argmax())])


PASS_LIMITS = ("values", "memory", "calls")


def pass_cost(values: float, calls: float, far: float, cpu: Cpu, threads: int = 1) -> Cost:
    """Row passes (bounds, ReLUs, scalars) over so many values, `far` of them out of the near cache."""
    parts = np.array([values / threads, far / threads, calls]) * np.array(cpu.passes)
    return Cost(float(parts.sum()), PASS_LIMITS[int(parts.argmax())])


@dataclass(frozen=True)
class Load:
    """What a run of the default configuration did: rows and calls of every convolution, values of row passes, other seconds."""

    rows: Mapping[str, int]
    calls: Mapping[str, int]
    values: float
    passes: int
    others: float
    block: int


def plan_cost(convs: Mapping[str, Conv], load: Load, config: Config, cpu: Cpu, threads: int = 1, library: bool = True) -> float:
    """Predicted seconds of the run under another configuration.

    Blocks scale with the configuration's; where rows stay until a share of them may leave, half of that share is work done in vain.
    """
    threads = min(threads, config.threads or threads)
    scale = config.block / load.block
    waste = 1 + config.leave / 2
    total = load.others
    for key, rows in load.rows.items():
        conv, calls = convs[key], max(1, round(load.calls[key] / scale))
        form = form_of(conv, config, library)
        total += calls * conv_cost(conv, form, ceil(waste * rows / calls), config, cpu, threads).seconds
    calls = max(1, round(load.passes / scale))
    far = load.values if 4 * load.values / calls > cpu.cache * threads else 0.0
    return total + pass_cost(waste * load.values, calls, far, cpu, threads).seconds


def nonnegative(a: np.ndarray, b: np.ndarray, rounds: int = 2000) -> np.ndarray:
    """The x >= 0 that makes a x closest to b, by coordinate descent; columns are scaled first."""
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1.0
    a = a / scale
    x = np.zeros(a.shape[1])
    gram, right = a.T @ a, a.T @ b
    for _ in range(rounds):
        for k in range(len(x)):
            x[k] = max(0.0, x[k] + (right[k] - gram[k] @ x) / max(gram[k, k], 1e-30))
    return x / scale


def fit(samples: Sequence[tuple[list[float], float]]) -> list[float]:
    """Seconds a feature from (features, measured seconds): relative errors count, so that small shapes do as much as large ones."""
    a = np.array([[v / seconds for v in counts] for counts, seconds in samples])
    return [float(v) for v in nonnegative(a, np.ones(len(a)))]
