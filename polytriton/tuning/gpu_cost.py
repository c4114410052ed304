"""Predicted time of a generated kernel on a GPU: what its arithmetic, its memory traffic and its launch take at least.

A dense step whose terms are split over SK programs has SK times as many of them, and writes, reads and adds SK stretches.
A tile of BM pairs by BN columns by K terms is computed whole; a convolution's goes through the taps that its cell meets. Operands
are read once a tile from the cache, coefficients and results once from memory. Below a quarter of the warps an SM
can hold, an eighth where a loop loads ahead, latency is not hidden and the rates fall in proportion; what a loop makes besides its
operations hides as much. From the data sheet alone this ranks tiles; it does not foretell seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from polytriton.arithmetic import ARITHMETICS, INTERVAL
from polytriton.kernels.sass import LIMITS
from polytriton.kernels.sass_loop import LANES, WARP, Instruction, inner_loop, pipe_cycles
from polytriton.kernels.spec import Report
from polytriton.tuning.cpu_cost import Cost
from polytriton.tuning.device import Gpu

INTERVAL_PRODUCTS = ("interval_dense", "interval_conv")
PRODUCTS = ("dense_step", "conv_step", *INTERVAL_PRODUCTS)
ISSUE = {"cuda:80": 2.0}  # instructions that an SM issues for every float32 FMA it makes; 1 elsewhere
HIDING = 0.25  # of an SM's warps that hide the latency of memory
AHEAD = 0.125  # the same where a loop loads ahead: an H200 ran a conv_step of two such blocks at 0.72 of its peak (nvidia-h200_micro.csv)
LOADS_AHEAD = PRODUCTS  # of intervals: a block of terms, whose lines then lie in L1 while thousands of FMAs use them
SPILL = 0.05  # of the time, for every spilled register's load or store


@dataclass(frozen=True)
class LaunchWork:
    """What a launch does for all rows: operations in whole tiles, bytes from memory, bytes from the cache.

    `busy`: how many times as long as the operations take their units are taken; `issued`: instructions of all threads, where known.
    """

    ops: float
    memory: float
    cache: float
    programs: int
    busy: float = 1.0
    issued: float = 0.0


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
    parts = {"tf32x3": 3, "bf16x6": 6, INTERVAL: 2}.get(arithmetic.form, 1)
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
    elif function in INTERVAL_PRODUCTS:
        return interval_work(function, c, word, parts, rows)
    else:
        size = c["SIZE"]
        return LaunchWork(8.0 * rows * size, float(word * rows * size * 2), float(word * rows * size * 5), ceil(rows / c["BR"]))
    blocks, across = ceil(rows / c["BM"]), ceil(columns / c["BN"])
    tiles = blocks * across * split
    depth = tiles * ceil(terms / (c["BK"] * split)) * c["BK"]
    ops = 2.0 * parts * c["BM"] * c["BN"] * depth
    return LaunchWork(ops, float(word * moved), float(word * depth * (c["BM"] + c["BN"])), tiles + blocks)


def interval_work(function: str, c: dict[str, int], word: int, parts: int, rows: int) -> LaunchWork:
    """Of a product of intervals: two ends of every coefficient are read and written, and no tile is longer than its terms.

    For one term a thread makes 2 RM RN FMAs, loads ends and weights, of float32 numbers two ends at a time, and moves on the ends'
    addresses at every fourth. For a block of BK terms it takes its part of the block's widths and weights to whole steps, some ten
    instructions each of which one is an FMA, and adds RM RN numbers of steps, by some five.
    """
    if function == "interval_dense":
        blocks, across, taps, terms = ceil(rows / c["BM"]), ceil(c["N"] / c["BN"]), 1.0, c["K"]
        moved = 2 * rows * (c["K"] + c["N"]) + c["K"] * c["N"]
    else:
        across, terms = ceil(c["CI"] // c["G"] / c["BN"]) * c["G"], c["CO"] // c["G"]
        cells = ceil(ceil(c["HO"] / c["PH"]) * ceil(c["WO"] / c["PW"]) / c["SPAN"]) * c["PH"] * c["PW"]
        blocks = ceil(rows / (c["BM"] // c["SPAN"])) * cells
        taps = pairs(c, "H") * pairs(c, "W") / (c["HO"] * c["WO"]) if c["SPAN"] == 1 else ceil(c["KH"] / c["PH"]) * ceil(c["KW"] / c["PW"])
        moved = 2 * rows * (c["H"] * c["W"] * c["CO"] + c["HO"] * c["WO"] * c["CI"])
    depth, rm, rn = blocks * across * taps * terms, c["RM"], c["RN"]
    tile, once = c["BM"] * c["BN"], ceil(terms / c["BK"]) / terms  # blocks a term
    shared = (c["BM"] + c["BN"]) * c["BK"] * rm * rn / tile  # widths and weights of a block that are a thread's
    own = 2 * rm * rn + (2 * shared + 2 * rm * rn) * once
    issued = 2 * rm * rn + rn + 2 * rm / ends_at_once(word, terms) + rm / 2 + (10 * shared + 5 * rm * rn) * once
    return LaunchWork(
        2.0 * parts * tile * depth, float(word * moved), float(word * depth * (2 * c["BM"] + c["BN"])), blocks * across,
        own / (parts * rm * rn), issued * tile / (rm * rn) * depth,
    )  # fmt: skip


def ends_at_once(word: int, terms: int) -> int:
    """How many terms' ends, of so many bytes each, a thread loads in one go."""
    return 2 if word == 4 and terms % 2 == 0 else 1


def interval_loops(code: Sequence[Instruction], fma: str) -> tuple[list[Instruction], list[Instruction]]:
    """Of an interval product's machine code: what is made for a block of terms at once, and the loop over a block's terms."""
    block = inner_loop(code, (fma,))
    turn = inner_loop(block[:-1], (fma,))
    inside = {i.address for i in turn}
    return [i for i in block if i.address not in inside], turn


def interval_pipes(code: Sequence[Instruction], constants: dict[str, int], numerics: str, target: str) -> dict[str, float]:
    """Of an interval product's loops: the share that each pipe allows of the rate at which FMAs alone, two a product, would run.

    However a kernel encloses a product, one FMA of it is rounded up: the sum of upper ends. A warp's threads are of a few rows and next
    to each other along the columns: a load of ends counts a line of the port for each row, one of weights one line.
    """
    c, fma, lanes = constants, ARITHMETICS[numerics].instruction, LANES[target]
    block, turn = interval_loops(code, fma)
    own, terms = c["RM"] * c["RN"], c["K"] if "K" in c else c["CO"] // c["G"]
    once = sum(i.base == fma and ".RP" in i.opcode for i in turn) // own  # terms of a turn
    if not once:
        return {}
    in_turn, cycles = pipe_cycles(turn, 1, lanes, 1.0), defaultdict[str, float](float)
    in_turn["port"] = once * (2 * c["RM"] / ends_at_once(8 if fma == "DFMA" else 4, terms) * ceil(WARP / (c["BN"] // c["RN"])) + c["RN"])
    for part, times in ((pipe_cycles(block, 1, lanes, 1.0), ceil(terms / c["BK"])), (in_turn, terms / once)):
        for pipe, n in part.items():
            cycles[pipe] += n * times
    ideal = 2 * own * terms * WARP / (lanes.float64 if fma == "DFMA" else lanes.float32)
    return {pipe: min(1.0, ideal / n) for pipe, n in cycles.items() if n}


def kernel_cost(
    function: str, constants: dict[str, int], numerics: str, rows: int, gpu: Gpu, report: Report | None, target: str,
    pipes: Mapping[str, float] | None = None,
) -> Cost:  # fmt: skip
    """Seconds of one launch over `rows` rows. Without a report (not compiled yet) registers are taken to let enough warps live.

    `pipes`: the share of the peak that each pipe allows by the machine code's loops, in place of what the constants let expect. Loads
    and stores of registers that spilled are among their instructions then.
    """
    does = work(function, constants, numerics, rows)
    if pipes:
        does = replace(does, busy=1 / min(pipes.values()), issued=0.0)
    instruction = ARITHMETICS[numerics].instruction if function in PRODUCTS else "DFMA"
    hidden, spills = 1.0, 0
    if report is not None:
        if not report.occupancy:
            return Cost(float("inf"), "too large")
        least = (AHEAD if function in LOADS_AHEAD else HIDING) * LIMITS[target].warps
        hidden, spills = min(1.0, report.occupancy / least), 0 if pipes else report.spills
    waves = does.programs / gpu.sms
    tail = ceil(waves) / waves if waves else 1.0  # the last wave leaves SMs idle
    parts = {
        "arithmetic": does.ops * tail / gpu.rates[instruction] * max(does.busy, 1 / hidden),
        "issue": does.issued * tail / (gpu.rates["FFMA"] / 2 * ISSUE.get(target, 1.0)),
        "memory": does.memory / (gpu.bandwidth * hidden),
        "cache": does.cache * tail / (gpu.cache_bandwidth * hidden),
        "launch": gpu.launch,
    }
    limit = max(parts, key=lambda name: parts[name])
    more = gpu.launch if constants.get("SK", 1) > 1 else 0.0  # of the kernel that adds the stretches
    return Cost(max(parts.values()) * (1 + SPILL * spills) + (0.0 if limit == "launch" else gpu.launch) + more, limit)
