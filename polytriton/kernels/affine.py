"""The interval pass's affine layers: which kernel each takes, told from the network alone; see kernels/device/forward.py."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from polytriton.ir.launches import Constants
from polytriton.ir.net import Node
from polytriton.ir.plan import extent
from polytriton.kernels.choose import Tiles, power

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


def choose(node: Node, source: Node, cancelled: bool, terms: str) -> AffineKernel:
    """The kernel of a layer whose summands are counted as `count_source` says; `cancelled`: its magnitudes have weights of their own."""
    h, w, c = extent(source)
    tiles = _tiles(node, cancelled)
    shared: Constants = {"CANCELLED": cancelled, "TERMS": "present" if terms == "present" else "none", **tiles.constants}
    if node.op == "linear":
        return AffineKernel("forward_dense", {"K": h * w * c, "N": node.size, **shared}, tiles)
    (ho, wo, co), (kh, kw), p = extent(node), node.ints("k"), node.ints("p", (0, 0, 0, 0))
    (sh, sw), (dh, dw) = node.ints("s", (1, 1)), node.ints("d", (1, 1))
    constants: Constants = {
        "H": h, "W": w, "C": c, "HO": ho, "WO": wo, "CO": co, "G": node.integer("g", 1),
        "KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw, "TOP": p[0], "LEFT": p[1], **shared,
    }  # fmt: skip
    return AffineKernel("forward_conv", constants, tiles)


def _tiles(node: Node, cancelled: bool) -> Tiles:
    """Three accumulators, four where a block of operands waits: tiles that leave no register to spill, for two blocks in flight.

    A cancelled layer's third set of weights takes the room of the second block.
    """
    outputs = node.size if node.op == "linear" else node.shape[0] // node.integer("g", 1)
    bm = 32 if node.op == "linear" else power(prod(node.shape[1:]), 32, 64)
    constants = {"BM": bm, "BN": power(outputs, 16, 32), "BK": 16}
    return Tiles(bm, constants, warps=bm // 8, stages=1 if cancelled else 2)
