"""Affine layers over boxes and points: which kernel each takes, told from the network alone; see kernels/device/forward.py."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from polytriton.arithmetic import Arithmetic
from polytriton.ir.launches import Constants
from polytriton.ir.net import Node
from polytriton.ir.plan import extent
from polytriton.kernels.choose import Sizes, Tiles, power

WHERE = "the interval pass"
AFFINE = ("linear", "conv")  # a scale is a pass over memory, which torch does as well


@dataclass(frozen=True)
class AffineKernel:
    """A kernel of the library with the constants of a layer; `block` and `columns` of outputs a program takes are in the tiles."""

    function: str
    constants: Constants
    tiles: Tiles


def count_source(node: Node, real: bool) -> str:
    """Where an output's count of summands comes from: nowhere in exact arithmetic, the node where it gives one, else what is present."""
    return "none" if real else "given" if "summands" in node.attrs else "present"


def choose(node: Node, source: Node, cancelled: bool, terms: str, emulate: bool) -> AffineKernel:
    """The kernel of a layer whose summands are counted as `count_source` says; `cancelled`: its magnitudes have weights of their own."""
    counted = "present" if terms == "present" else "none"
    shared: Constants = {"CANCELLED": cancelled, "TERMS": counted, "T": "tl.float64", "FORM": ""}
    return _kernel(node, source, _tiles(node, source, cancelled, emulate), shared)


def choose_points(node: Node, source: Node, numerics: Arithmetic, sizes: Sizes) -> AffineKernel:
    """The kernel that takes points through a layer, with no claim of its roundings."""
    tiles = sizes.product(numerics, 0, source.size, node.size if node.op == "linear" else node.shape[0] // node.integer("g", 1))
    kept = {name: tiles.constants[name] for name in ("BM", "BN", "BK")}
    warps = 4 if kept["BM"] * kept["BN"] <= 1 << 11 else tiles.warps
    shared: Constants = {"CANCELLED": False, "TERMS": "none", "T": numerics.type, "FORM": numerics.form}
    return _kernel(node, source, Tiles(kept["BM"], kept, warps, tiles.stages), shared)


def _kernel(node: Node, source: Node, tiles: Tiles, shared: Constants) -> AffineKernel:
    h, w, c = extent(source)
    shared = {**shared, **tiles.constants}
    if node.op == "linear":
        return AffineKernel("forward_dense", {"K": h * w * c, "N": node.size, **shared}, tiles)
    (ho, wo, co), (kh, kw), p = extent(node), node.ints("k"), node.ints("p", (0, 0, 0, 0))
    (sh, sw), (dh, dw) = node.ints("s", (1, 1)), node.ints("d", (1, 1))
    constants: Constants = {
        "H": h, "W": w, "C": c, "HO": ho, "WO": wo, "CO": co, "G": node.integer("g", 1),
        "KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw, "TOP": p[0], "LEFT": p[1], **shared,
    }  # fmt: skip
    return AffineKernel("forward_conv", constants, tiles)


def _tiles(node: Node, source: Node, cancelled: bool, emulate: bool) -> Tiles:
    """Three accumulators, four where a block of operands waits, in small tiles: a few images have few outputs, and who computes them waits
    for memory, block after block. A cancelled layer's third set of weights takes the room of a block that is on its way.
    """
    cells, terms, outputs = 1, source.size, node.size
    if node.op == "conv":
        groups = node.integer("g", 1)
        cells, terms, outputs = prod(node.shape[1:]), prod(node.ints("k")) * source.shape[0] // groups, node.shape[0] // groups
    bm, bn, bk = 16, power(outputs, 16, 32), 32
    if emulate:  # programs and blocks cost much the same, whatever their size
        bm, bn, bk = power(cells, 32, 1 << 10), power(outputs, 16, 1 << 9), power(terms, 16, 1 << 9)
    return Tiles(bm, {"BM": bm, "BN": bn, "BK": bk}, warps=4, stages=2 if cancelled else 3)
