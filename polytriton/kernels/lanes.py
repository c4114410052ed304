"""Launches -> launches: where two branches of a residual network are independent, each gets a lane of its own.

A program's launches are a list that one stream plays in order. Between two points where everything meets (a candidate bound, a
compaction, a sum of both branches) the launches of two branches touch each other in one place only: all
of them add to the rows' scalars. Here such a stretch becomes a region. Its launches have lane 0 or 1; those of lane 1 add to
scalars of their own, zero when the region begins, and `merge_scalars` adds these to the rows' when it has ended.

Independent launches may then run at the same time, and the proof is the same in any order. A launch turns row scalars (c, e) into
(c', e') with  c' - e' <= c - e + d,  d what it demands exactly: that is how kernels pay (numerics.pay), whatever c and e are. So
lane 0 ends with  c0 - e0 <= c - e + D0,  lane 1, which began with (0, 0), with  c1 - e1 <= D1,  and

    target >= sum M x + c - e + D0 + D1 >= sum M x + (c0 + c1) - (e0 + e1).

A region is made only where either lane has a matrix product. Anything smaller costs less than another launch and two events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polytriton.arithmetic import Arithmetic
from polytriton.ir.launches import Launch, Launches
from polytriton.kernels.choose import Tiles
from polytriton.kernels.emitter import Emitter

ADDS = (  # kernels that write a buffer and add to scalars, and nothing else; everything waits for the others
    "relax_rows", "dense_step", "sum_parts", "conv_step", "join_rows", "start_rows", "pay_neurons",
    "slope_rows", "scale_rows", "pool_rows", "part_rows", "gather_rows",
)  # fmt: skip
HEAVY = ("dense_step", "conv_step")
LANES = 2
OWN = {"constant": "lane_constant", "error": "lane_error"}  # the scalars of lane 1, by those of the row
MERGE = Tiles(block=1024, constants={"B": 1024}, warps=4)


@dataclass(frozen=True)
class Region:
    """Launches start to stop - 1, and the lane of each."""

    start: int
    stop: int
    lanes: tuple[int, ...]


@dataclass
class Chain:
    """Launches of one region that hang together: one touches what another writes."""

    members: list[int]
    touched: set[str]
    written: set[str]
    heavy: bool

    def meets(self, other: Chain) -> bool:
        return bool(self.written & other.touched or self.touched & other.written)


def add_lanes(launches: Launches, emitter: Emitter, numerics: Arithmetic) -> Launches:
    """The same program with lanes wherever they can pay."""
    steps: list[Launch] = []
    at: list[int] = []  # where each launch went
    found = regions(launches)
    inside = {k: (number, region) for number, region in enumerate(found, 1) for k in range(region.start, region.stop)}
    for k, step in enumerate(launches.steps):
        at.append(len(steps))
        if k not in inside:
            steps.append(step)
            continue
        number, region = inside[k]
        steps.append(_place(step, region.lanes[k - region.start], number))
        if k == region.stop - 1:
            steps += _merge(launches, region, emitter, numerics)
    at.append(len(steps))
    lives, begins = [[at[first], at[last]] for first, last in launches.lives], [at[k] for k in launches.begins]
    return replace(launches, steps=steps, lives=lives, begins=begins)


def regions(launches: Launches) -> list[Region]:
    """Every stretch of launches that is worth two lanes, in order."""
    found: list[Region] = []
    k = 0
    while k < len(launches.steps):
        region = _region(launches, k)
        if region is not None:
            found.append(region)
        k = region.stop if region is not None else k + 1
    return found


def _region(launches: Launches, start: int) -> Region | None:
    """The longest region that begins here: until something that all wait for, or that joins two chains with products."""
    chains: list[Chain] = []
    stop = start
    for k in range(start, len(launches.steps)):
        step = launches.steps[k]
        if step.function not in ADDS:
            break
        chain = Chain([k], set(buffers(step)), set(buffers(step, ("out_ptr",))), step.function in HEAVY)
        tied = [c for c in chains if c.meets(chain)]
        if sum(c.heavy for c in tied) > 1:
            break
        for c in tied:
            chain = Chain(c.members + chain.members, c.touched | chain.touched, c.written | chain.written, c.heavy or chain.heavy)
        chains = [*(c for c in chains if c not in tied), chain]
        stop = k + 1
    if sum(c.heavy for c in chains) < LANES:
        return None
    lanes = _dealt(launches, chains)
    return Region(start, stop, tuple(lanes[k] for k in range(start, stop)))


def _dealt(launches: Launches, chains: Sequence[Chain]) -> dict[int, int]:
    """Lanes by launch: chains with a product go to the lane that has less to move, the largest first; the others stay on lane 0."""
    moved = [0] * LANES
    lanes: dict[int, int] = {}
    for chain in sorted(chains, key=lambda c: (-_traffic(launches, c), c.members)):
        lane = moved.index(min(moved)) if chain.heavy else 0
        moved[lane] += _traffic(launches, chain)
        lanes |= dict.fromkeys(chain.members, lane)
    return lanes


def _traffic(launches: Launches, chain: Chain) -> int:
    """Coefficients a row that the chain reads and writes."""
    steps = (launches.steps[k] for k in chain.members)
    return sum(launches.buffers[int(s[4:])] for step in steps for s in buffers(step))


def buffers(step: Launch, parameters: Sequence[str] = ()) -> list[str]:
    """The buffers a launch touches, by these parameters or by any."""
    pairs = zip(step.kernel.parameters, step.bind, strict=True)
    return [s for p, s in pairs if s.startswith("buf:") and (not parameters or p in parameters)]


def _place(step: Launch, lane: int, region: int) -> Launch:
    own = tuple(OWN.get(s.partition(":")[0], s) for s in step.bind) if lane else step.bind
    return replace(step, bind=own, lane=lane, region=region)


def _merge(launches: Launches, region: Region, emitter: Emitter, numerics: Arithmetic) -> list[Launch]:
    """What the end of a region costs: nothing where lane 1 paid nothing."""
    beside = (step for step, lane in zip(launches.steps[region.start : region.stop], region.lanes, strict=True) if lane)
    rows: dict[str, str] = {s.partition(":")[0]: s for step in beside for s in step.bind}
    if "constant" not in rows:
        return []
    program = launches.program
    step = f"%{program.target}: branches of its {program.kind}"
    kernel = emitter.kernel("merge_scalars", MERGE.constants, numerics, MERGE, step=step)
    bind = {f"{own}_ptr": own for own in OWN.values()} | {f"{s}_ptr": rows[s] for s in (*OWN, "count")}
    return [Launch(kernel, tuple(bind[p] for p in kernel.parameters), MERGE.block)]
