"""Constants that several families share. A family of many has them in one frozen record, its parameter `c`: Triton sees its fields.

A record is data alone. What follows from it stands in the kernels: Triton's own cache knows them and a record's fields, no more.
"""

from dataclasses import dataclass

import triton.language as tl


@dataclass(frozen=True)
class MovingWindow:
    """A row's window begins at cell (row_h RH - OH, row_w RW - OW) of its image."""

    RH: int
    OH: int
    RW: int
    OW: int


@dataclass(frozen=True)
class TableLayout:
    """A node's tables: PLANE values an image, lines PITCH apart, from START on."""

    START: int
    PLANE: int
    PITCH: int


@dataclass(frozen=True)
class ChargedNode:
    """What `charges.node_charge` charges of a node whose |b| has a line for every BIAS cells."""

    AFFINE: bool
    DEPLOYED: bool
    FLUSH: bool
    PENDING: bool
    BIAS: int
    OPERAND: int
    WIDE: int


@dataclass(frozen=True)
class RowPass(MovingWindow, TableLayout):
    """A program takes BR rows of SIZE values, BQ at a time: lines of LINE values, C channels deep. SLOT: they lie at `slot`."""

    SLOT: bool
    SIZE: int
    LINE: int
    C: int
    BR: int
    BQ: int


@dataclass(frozen=True)
class Taps:
    """Of a kernel KH x KW: strides, dilations, paddings."""

    KH: int
    KW: int
    SH: int
    SW: int
    DH: int
    DW: int
    TOP: int
    LEFT: int


@dataclass(frozen=True)
class BackThroughConv(Taps):
    """A convolution's, from [H, W, CO] in G groups to [HO, WO, CI], PH x PW phases; tiles of BM (row, cell) pairs and BN channels.

    MASK: cells off the image IH x IW become zero, the new window moving as TO_ says.
    """

    T: tl.dtype
    SLOT: bool
    H: int
    W: int
    CO: int
    G: int
    HO: int
    WO: int
    CI: int
    MASK: bool
    IH: int
    IW: int
    TO_RH: int
    TO_OH: int
    TO_RW: int
    TO_OW: int
    PH: int
    PW: int
    BM: int
    BN: int


@dataclass(frozen=True)
class WindowSum(MovingWindow):
    """a and (SECOND) b, on windows of their own, with signs, on the window [HO, WO, C]."""

    SECOND: bool
    A_SLOT: bool
    B_SLOT: bool
    A_SIGN: int
    B_SIGN: int
    C: int
    HO: int
    WO: int
    AH: int
    AW: int
    A_RH: int
    A_OH: int
    A_RW: int
    A_OW: int
    BH: int
    BW: int
    B_RH: int
    B_OH: int
    B_RW: int
    B_OW: int
    BR: int
    BQ: int
