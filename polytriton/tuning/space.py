"""What can be chosen: for the Plan, for every form of its convolutions, and for every generated kernel of a GPU.

A point is a dict from a dimension's name to a choice; leaving a dimension out leaves its default. Only what is sound may be
named here, and the runtime ignores or refuses the rest: see runtime/config.py, kernels/choose.py.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.net import Net
from polytriton.ir.plan import Plan, Window
from polytriton.runtime.config import AUTO, DEFAULT, GATHER, LIBRARY, PLANAR, PLANES, SHIFTS, Config, Tile, conv_key
from polytriton.runtime.cpu.products import conv_shape
from polytriton.runtime.cpu.torch_backend import TorchBackend

Point = dict[str, Any]
MIB = 1 << 20
PLAN = {  # ordered as they usually matter; the default of each is runtime/config.py's
    "block": tuple(k * MIB for k in (6, 12, 24, 32, 48, 64, 96, 192, 384)),
    "leave": (0.0, 0.02, 0.05, 0.1, 0.25, 0.5),
    "taps": tuple(1 << k for k in range(15, 22)),
    "counts": (2, 3, 4, 5, 6),
    "least": (4, 8, 16, 32, 64),
    "narrow": (0, 4, 8, 16),
    "short": (0, 64, 128, 256, 512),
    "split": (1 << 12, 1 << 14, 1 << 16, 1 << 18),
}
CONV, TILE = "conv ", "tile "  # prefixes of the dimensions of single convolutions and kernels


@dataclass(frozen=True)
class Conv:
    """A convolution as back-substitution meets it: window, channels and kernel; `ops` a row, and how many programs have it."""

    key: str
    window: tuple[int, int]
    out: tuple[int, int]
    channels: int
    inputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    programs: int = 1

    @property
    def ops(self) -> int:
        """Multiplications and additions a row: every cell of the window meets every tap."""
        return 2 * self.size * self.inputs * self.kernel[0] * self.kernel[1]

    @property
    def size(self) -> int:
        """Coefficients a row."""
        return self.window[0] * self.window[1] * self.channels


PlanStep = tuple[str, str, str]  # a step: its program's kind and target, its node


@dataclass(frozen=True)
class Space:
    """Choices by dimension, the default first. `first`: the default's coefficients, where generated kernels differ by them."""

    choices: Mapping[str, Sequence[Any]]
    convs: Mapping[str, Conv]
    first: str = ""

    def config(self, point: Point) -> Config:
        """ValueError where the point names what a configuration cannot be."""
        plain = {k: v for k, v in point.items() if not k.startswith((CONV, TILE))}
        convs = {k.removeprefix(CONV): v for k, v in point.items() if k.startswith(CONV) and v != AUTO}
        tiles = {k.removeprefix(TILE): Tile(**v) for k, v in point.items() if k.startswith(TILE) and v}
        return Config(**plain, convs=convs, tiles=tiles)

    def point(self, config: Config) -> Point:
        """The point of a configuration, as far as this space has its dimensions."""
        changes = config.changes()
        named = {CONV + k: v for k, v in changes.pop("convs", {}).items()}
        for key, tile in changes.pop("tiles", {}).items():  # as the choice is written, which leaves defaults out
            named[TILE + key] = next((c for c in self.choices.get(TILE + key, ()) if Tile(**c) == Tile(**tile)), tile)
        return {k: v for k, v in {**changes, **named}.items() if k in self.choices}

    @property
    def size(self) -> int:
        product = 1
        for choices in self.choices.values():
            product *= len(choices)
        return product

    def neighbours(self, point: Point) -> Iterator[Point]:
        """Every point that differs in one dimension."""
        for name, choices in self.choices.items():
            if not self.counts(name, point):
                continue
            for choice in choices:
                if choice != point.get(name, choices[0]):
                    yield self.plain({**point, name: choice})

    def counts(self, name: str, point: Point) -> bool:
        """Whether a dimension means anything beside the point's others: kernels of other coefficients are not run."""
        if not self.first or not name.startswith(TILE):
            return True
        return name.removeprefix(TILE).split(":")[1] == (point.get("dtype") or self.first)

    def sample(self, rng: random.Random, around: Point, share: float) -> Point:
        """`around` with this share of the dimensions (at least two) drawn anew."""
        names = rng.sample(list(self.choices), max(2, round(share * len(self.choices)))) if len(self.choices) > 1 else list(self.choices)
        return self.plain({**around, **{name: rng.choice(self.choices[name]) for name in names}})

    def plain(self, point: Point) -> Point:
        """Without what is the default anyway or means nothing, in the order of the dimensions: equal points are equal texts."""
        return {k: point[k] for k, choices in self.choices.items() if k in point and point[k] != choices[0] and self.counts(k, point)}


def name(point: Point) -> str:
    """What identifies a point in results files."""
    return hashlib.sha256(msgspec.json.encode(sorted(point.items()))).hexdigest()[:12]


def plan_convs(net: Net, plan: Plan) -> dict[str, Conv]:
    """The convolutions that the Plan's programs multiply by, by key. Rows that are single neurons multiply by nothing."""
    found: dict[str, Conv] = {}
    for _, conv in step_convs(net, plan):
        old = found.get(conv.key)
        found[conv.key] = replace(conv, programs=old.programs + 1 if old else 1)
    return found


def step_convs(net: Net, plan: Plan) -> Iterator[tuple[PlanStep, Conv]]:
    """The same step by step."""
    nodes = net.by_name
    for program in plan:
        frontier: dict[str, Window] = {}
        written = program.kind == "query"  # whether the rows have coefficients yet
        for step in program.steps:
            window = frontier.pop(step.node, None) or step.windows[0] if step.windows else None
            if step.op == "conv" and written and window is not None:
                node = nodes[step.node]
                w = net.weight(node, "w")
                assert w is not None
                shape = conv_shape(node, window)
                rows = window.h.size, window.w.size, node.shape[0]
                key = conv_key(rows, w.shape, shape.stride, shape.groups)
                out = step.windows[0].h.size, step.windows[0].w.size
                conv = Conv(key, rows[:2], out, rows[2], w.shape[1], shape.kernel, shape.stride, shape.dilation, shape.groups)
                yield (program.kind, program.target, step.node), conv
            written |= step.op not in ("start", "add", "sub")
            for to, at in zip(step.to, step.windows, strict=True):
                frontier[to] = at


def cpu_space(
    net: Net, plan: Plan, dtype: str, threads: int, numerics: Sequence[str] = (), more: Mapping[str, Sequence[Any]] | None = None
) -> Space:
    """The choices on a CPU with so many threads. `numerics`: the coefficient types that the user's choice of soundness admits; `more`:
    those of the Plan itself (`plan_choices`).
    """
    convs = plan_convs(net, plan)
    backend = TorchBackend(torch.device("cpu"))
    choices: dict[str, Sequence[Any]] = {}
    for key, conv in sorted(convs.items(), key=lambda item: -item[1].ops * item[1].programs):
        shape = conv_shape_of(conv)
        forms = backend.forms(torch.float64 if dtype == "float64" else torch.float32, shape)
        choices[CONV + key] = (AUTO, *(f for f in (LIBRARY, SHIFTS, PLANES, GATHER, PLANAR) if f in forms))
    for key, values in PLAN.items():
        default = getattr(DEFAULT, key)
        if (key in ("taps", "counts", "narrow", "short") and not convs) or (key == "split" and threads == 1):
            continue
        choices[key] = (default, *(v for v in values if v != default))
    if threads > 1:
        choices["threads"] = (0, *sorted({1, threads // 4, threads // 2} - {0}))
    if len(numerics) > 1:
        choices["dtype"] = ("", *(n for n in numerics if n != dtype))
    return Space({**choices, **(more or {})}, convs)


def plan_choices(shares: Sequence[float], skips: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, Sequence[Any]]:
    """The dimensions of the Plan that every backend has: where windows become whole images, and which checks are left out."""
    made: dict[str, Sequence[Any]] = {"skips": skips, "whole": shares}
    return {k: v for k, v in made.items() if len(v) > 1}


def conv_shape_of(conv: Conv) -> Any:
    """The backend's description of it, on a window of its own."""
    from polytriton.ir.plan import Axis
    from polytriton.runtime.cpu.torch_backend import ConvShape

    return ConvShape(
        conv.kernel, conv.stride, conv.dilation, (0, 0, 0, 0), conv.groups, Window(Axis(conv.window[0], 1, 0), Axis(conv.window[1], 1, 0))
    )


def gpu_space(
    asked: Mapping[str, Any], inner: Mapping[str, int], more: Mapping[str, Sequence[Any]] | None = None, first: str = ""
) -> Space:
    """Tiles, warps, stages and reduction split of every generated kernel: `asked` are their defaults by key, `inner` the longest block
    of a numerics. `more`: dimensions of the Plan and of how it is played; `first`: the coefficients of the default.

    Steps that share a key share a kernel. A product's block of terms (BK) is never longer than its rounding term covers.
    """
    choices: dict[str, Sequence[Any]] = {**(more or {})}
    for key, default in asked.items():
        function, numerics, _ = key.split(":")
        options: list[dict[str, Any]] = [{}]
        if function in ("dense_step", "conv_step"):
            longest = inner.get(numerics, 0) or 64
            for bm, bn, bk, warps, stages in PRODUCTS:
                sizes = {"BM": bm, "BN": bn, "BK": min(bk, longest)}
                options.append({"constants": sizes, "warps": warps, "stages": stages})
        if function == "dense_step":
            for parts in PARTS:
                options.append({"constants": {"SK": parts}})
                options += [{"constants": {"BM": bm, "BN": bn, "SK": parts}, "warps": 4} for bm, bn in ((32, 64), (64, 32), (32, 128))]
        elif function in ("interval_dense", "interval_conv"):
            options += [{"constants": sizes, "warps": warps} for warps, sizes in interval_tiles(numerics)]
        elif function in ("relax_rows", "concretize_rows"):
            bq = default.constants["BQ"]
            options += [{"constants": {"BR": max(1, v // bq), "BQ": bq}, "warps": w} for v in (256, 512, 1024, 2048) for w in (2, 4, 8)]
        choices[TILE + key] = [o for k, o in enumerate(options) if o not in options[:k]]
    return Space({k: v for k, v in choices.items() if len(v) > 1}, {}, first)


LINES = 16  # of a tile, at least, for a matrix instruction


def interval_tiles(numerics: str) -> Iterator[tuple[int, dict[str, int]]]:
    """Warps and tiles of an interval product: RM x RN numbers a thread, and so many threads along the columns.

    Stages are no choice: what feeds a matrix instruction is made from several loads, so Triton makes the same code of any number. It
    has none of fewer than LINES rows.
    """
    # numbers whose three sums take 96 registers, and threads along the rows: where they are fewer, Triton moves ends and weights about
    most, along = (16, 8) if ARITHMETICS[numerics].type == "tl.float64" else (32, 16)
    for warps, rm, rn, across in itertools.product((2, 4, 8), (2, 4, 8), (2, 4, 8), (8, 16, 32)):
        if rm * rn in (most // 2, most) and 32 * warps >= along * across and rm * 32 * warps // across >= LINES:
            yield warps, {"BM": rm * 32 * warps // across, "BN": rn * across, "RM": rm, "RN": rn}


PARTS = (2, 4, 8, 16)  # programs that share the terms of a dense tile
PRODUCTS = tuple(
    (bm, bn, bk, warps, stages)
    for bm in (32, 64, 128)
    for bn in (32, 64, 128)
    for bk in (16, 32)
    for warps in (4, 8)
    for stages in (2, 3, 4)
    if bm * bn >= 2048
)
