"""Predicted time of a generated kernel on a GPU: what its arithmetic, its memory traffic and its launch take at least.

A dense step whose terms are split over SK programs has SK times as many of them, and writes, reads and adds SK stretches.
A tile of BM pairs by BN columns by K terms is computed whole; a convolution's goes through the taps that its cell meets. Operands
are read once a tile from the cache, coefficients and results once from memory. Below a quarter of the warps an SM
can hold, latency is not hidden and the rates fall in proportion. From the data sheet alone this ranks tiles; it does not foretell
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from polytriton.arithmetic import ARITHMETICS
from polytriton.kernels.sass import LIMITS
from polytriton.kernels.spec import Report
from polytriton.tuning.cpu_cost import Cost
from polytriton.tuning.device import Gpu

HIDING = 0.25  # of an SM's warps that hide the latency of memory
SPILL = 0.05  # of the time, for every spilled register's load or store


@dataclass(frozen=True)
class LaunchWork:
    """What a launch does for all rows: operations in whole tiles, bytes from memory, bytes from the cache."""

    ops: float
    memory: float
    cache: float
    programs: int


def pairs(c: dict[str, int], axis: str) -> int:
    """Pairs of a cell and a tap along H or W that meet a cell of the old window: see kernels.conv."""
    lead = c["TOP" if axis == "H" else "LEFT"]
    old, new, k, s, d = (c[name] for name in (axis, f"{axis}O", f"K{axis}", f"S{axis}", f"D{axis}"))
    ends = (to + lead - tap * d for to in range(new) for tap in range(k))
    return sum(1 for full in ends if full % s == 0 and 0 <= full <= (old - 1) * s)


def work(function: str, constants: dict[str, int], numerics: str, rows: int) -> LaunchWork:
    """From the kernel's constants alone: windows, channels, taps and tiles."""
    arithmetic = ARITHMETICS[numerics]
    word = 8 if arithmetic.type == "tl.float64" else 4
    parts = {"tf32x3": 3, "bf16x6": 6}.get(arithmetic.form, 1)
    c = constants
    if function == "dense_step":
        terms, columns, split = c["K"], c["N"], c["SK"]
        moved = rows * (c["K"] + c["N"]) + c["K"] * c["N"] + (2 * rows * c["N"] * split if split > 1 else 0)
    elif function == "conv_step":
        span, across = c["SPAN"], ceil(c["CI"] // c["G"] / c["BN"]) * c["G"]
        cells = ceil(ceil(c["HO"] / c["PH"]) * ceil(c["WO"] / c["PW"]) / span) * c["PH"] * c["PW"]
        blocks = ceil(rows / (c["BM"] // span)) * cells
        taps = pairs(c, "H") * pairs(c, "W") / (c["HO"] * c["WO"]) if span == 1 else ceil(c["KH"] / c["PH"]) * ceil(c["KW"] / c["PW"])
        depth = blocks * across * taps * ceil(c["CO"] // c["G"] / c["BK"]) * c["BK"]  # of all tiles together
        moved = rows * (c["H"] * c["W"] * c["CO"] + c["HO"] * c["WO"] * c["CI"])
        ops, read = 2.0 * parts * c["BM"] * c["BN"] * depth, depth * (c["BM"] + c["BN"])
        return LaunchWork(ops, float(word * moved), float(word * read), blocks * (across + 1))
    else:
        size = c["SIZE"]
        return LaunchWork(8.0 * rows * size, float(word * rows * size * 2), float(word * rows * size * 5), ceil(rows / c["BR"]))
    blocks, across = ceil(rows / c["BM"]), ceil(columns / c["BN"])
    tiles = blocks * across * split
    depth = tiles * ceil(terms / (c["BK"] * split)) * c["BK"]
    ops = 2.0 * parts * c["BM"] * c["BN"] * depth
    return LaunchWork(ops, float(word * moved), float(word * depth * (c["BM"] + c["BN"])), tiles + blocks)


def kernel_cost(function: str, constants: dict[str, int], numerics: str, rows: int, gpu: Gpu, report: Report | None, target: str) -> Cost:
    """Seconds of one launch over `rows` rows. Without a report (not compiled yet) registers are taken to let enough warps live."""
    does = work(function, constants, numerics, rows)
    instruction = ARITHMETICS[numerics].instruction if function in ("dense_step", "conv_step") else "DFMA"
    hidden, spills = 1.0, 0
    if report is not None:
        if not report.occupancy:
            return Cost(float("inf"), "too large")
        hidden, spills = min(1.0, report.occupancy / (HIDING * LIMITS[target].warps)), report.spills
    waves = does.programs / gpu.sms
    tail = ceil(waves) / waves if waves else 1.0  # the last wave leaves SMs idle
    parts = {
        "arithmetic": does.ops * tail / (gpu.rates[instruction] * hidden),
        "memory": does.memory / (gpu.bandwidth * hidden),
        "cache": does.cache * tail / (gpu.cache_bandwidth * hidden),
        "launch": gpu.launch,
    }
    limit = max(parts, key=lambda name: parts[name])
    more = gpu.launch if constants.get("SK", 1) > 1 else 0.0  # of the kernel that adds the stretches
    return Cost(max(parts.values()) * (1 + SPILL * spills) + (0.0 if limit == "launch" else gpu.launch) + more, limit)
