"""Which kernels make a node's box and its tables (kernels/device/boxes.py, kernels/device/tables.py), told from the network alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polytriton.arithmetic import ARITHMETICS, Arithmetic
from polytriton.ir.launches import Constants
from polytriton.ir.net import Net, Node
from polytriton.ir.plan import extent
from polytriton.kernels.affine import AFFINE
from polytriton.kernels.choose import Tiles, power
from polytriton.kernels.sequence import Frames
from polytriton.rounding import flush_loss, gamma

ONE = Tiles(1, warps=4, stages=1)  # passes over memory: the sizes are in the constants
LAYERS = (*AFFINE, "scale")
ETA = 2.0**-126  # deployed elementwise operations are float32 under every semantics
TABLES = {"below": "relu_tables", "above": "relu_tables", "lower": "relu_tables", "cut": "relu_tables", "lo": "box_tables",
          "hi": "box_tables", "t": "charge_table", "first": "charge_table", "floor": "floors", "underflow": "floors"}  # fmt: skip


def cells(node: Node, emulate: bool) -> dict[str, int]:
    """SIZE and BLOCK: an interpreted operation costs the same for any number of cells."""
    h, w, c = extent(node)
    return {"SIZE": h * w * c, "BLOCK": power(h * w * c, 32, 1 << 16 if emulate else 1024)}


def parts(node: Node, emulate: bool) -> int:
    """Programs an image takes, and so the lines of its sizes."""
    has = cells(node, emulate)
    return -(-has["SIZE"] // has["BLOCK"])


def read_parts(count: int, wide: int = 0) -> Constants:
    return {"OPERAND": count, "WIDE": power(max(count, wide), 1, 1 << 20)}


# ---- boxes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellNotes:
    """What is noted of a box beside its sizes: for reports, and how many neurons are undecided, or (`tight`) can be on."""

    told: bool = False
    open: bool = False
    tight: bool = False

    @property
    def constants(self) -> Constants:
        return {"TELL": self.told, "OPEN": self.open, "TIGHT": self.open and self.tight}


def measured_box(node: Node, noted: CellNotes, emulate: bool) -> Constants:
    return {**noted.constants, **cells(node, emulate)}


def affine_box(node: Node, source: Node, real: bool, numerics: Arithmetic, noted: CellNotes, first: bool, emulate: bool) -> Constants:
    """As kernels.forward leaves its sums: a dense layer counts terms once an image, a convolution once a cell and group. `first`: with
    what rows of its neurons are charged, for coefficients in `numerics`.
    """
    size, (_, _, c) = cells(node, emulate), extent(node)
    dense = node.op == "linear"
    share = size["SIZE"] if dense else c // node.integer("g", 1)
    flush = first and numerics.type == "tl.float32"
    read = read_parts(parts(source, emulate) if flush or not real else 1)
    made: Constants = {"REAL": real, "SHARE": 1 if real else share, "BIAS": size["SIZE"] if dense else c, "FIRST": first, "FLUSH": flush}
    return {**made, **read, **noted.constants, **size}


def elementwise_error(node: Node, operations: int) -> Constants:
    """As runtime.soundness.elementwise_error charges it. No operations: exact arithmetic."""
    slope = node.number("slope")
    if node.op == "relu" and slope in (0.0, 1.0):
        operations = 0  # exact, deployed or not
    return {
        "GAMMA": gamma(operations, 2.0**-23) if operations else 0.0, "LOST": flush_loss(ETA, slope) if operations else 0.0,
    }  # fmt: skip


def sum_box(node: Node, operations: int, noted: CellNotes, emulate: bool) -> Constants:
    return {"MINUS": node.op == "sub", **elementwise_error(node, operations), **noted.constants, **cells(node, emulate)}


@dataclass(frozen=True)
class ReluParts:
    """What a ReLU's kernel makes beside its box: its operand's sizes, report and charge; its own lines and its box in tables."""

    measure: bool = False
    told: bool = False
    lines: bool = False
    ends: bool = False
    charge: bool = False


def relu_box(
    frames: Frames, node: Node, numerics: Arithmetic, real: bool, operations: int, made: ReluParts, emulate: bool
) -> Constants:
    operand = frames.net.node(node.inputs[0])
    lines = relu_table(frames, node, numerics, real, emulate)
    of: Constants = {**lines, **elementwise_error(node, operations)}
    of |= {"LOWER": made.lines and lines["LOWER"], "OFF": made.lines and lines["DEPLOYED"], "LINES": made.lines, "ENDS": made.ends}
    charged = charge(frames, operand, numerics, emulate, first=False, deployed=is_deployed(operand, real))
    placed = {f"T_{name}": value for name, value in charged.items() if name in ("START", "PLANE", "PITCH")}
    own = {name: charged[name] for name in ("AFFINE", "DEPLOYED", "FLUSH", "PENDING", "BIAS", "OPERAND", "WIDE")}
    if not made.charge:
        placed, own = dict.fromkeys(placed, 0), {**dict.fromkeys(own, False), "BIAS": 1, "OPERAND": 1, "WIDE": 1}
    if not (made.lines or made.ends):
        of |= dict.fromkeys(("START", "PLANE", "PITCH"), 0)
    return {**of, **placed, **own, "CHARGE": made.charge, "MEASURE": made.measure, "TELL": made.told}


# ---- tables ---------------------------------------------------------------------------------------------------------


def in_table(frames: Frames, node: Node, numerics: Arithmetic, emulate: bool) -> Constants:
    _, w, c = extent(node)
    return {"T": numerics.type, "LINE": w * c, **frames.geometry(node.name), **cells(node, emulate)}


def relu_table(frames: Frames, node: Node, numerics: Arithmetic, real: bool, emulate: bool) -> Constants:
    slope = node.number("slope")
    exact = slope in (0.0, 1.0)
    return {"SLOPE": slope, "LOWER": not exact, "DEPLOYED": not exact and not real, **in_table(frames, node, numerics, emulate)}


def charge(frames: Frames, node: Node, numerics: Arithmetic, emulate: bool, *, first: bool, deployed: bool) -> Constants:
    """`first`: of rows that are single neurons, whose coefficients are weights and no rounded products; float64 without a margin."""
    affine = node.op in LAYERS
    pending = not first and (node.name in frames.plan.pending or node.op == "gather")
    given: Constants = {"AFFINE": affine, "DEPLOYED": deployed, "PENDING": pending}
    given["BIAS"] = extent(node)[2] if node.op == "conv" else cells(node, emulate)["SIZE"]
    flush = affine and numerics.type == "tl.float32"
    given |= {"FLUSH": flush, **read_parts(parts(frames.net.node(node.inputs[0]), emulate) if flush else 1)}
    if not first:
        return {**given, **in_table(frames, node, numerics, emulate)}
    size = cells(node, emulate)
    return {**given, "T": "tl.float64", "LINE": size["SIZE"], "START": 0, "PLANE": size["SIZE"], "PITCH": size["SIZE"], **size}


def is_deployed(node: Node, real: bool) -> bool:
    """Whether a node has an error of its own that its table is charged."""
    return not real and node.op in (*LAYERS, "add", "sub")


def floors(net: Net, nodes: Sequence[tuple[Node, bool]], emulate: bool) -> Constants:
    """Of one node or of two, each with its operand where it is `affine`."""
    sizes = [(parts(node, emulate), parts(net.node(node.inputs[0]), emulate) if affine else 1, affine) for node, affine in nodes]
    (own, operand, affine), (other, beside, also) = (*sizes, (0, 1, False))[:2]
    given = {**read_parts(operand, wide=max(own, other, beside)), "OTHER": other, "OTHER_OPERAND": beside, "OTHER_AFFINE": also}
    return {"OWN": own, "AFFINE": affine, **given}


def table_numerics(kind: str, numerics: Arithmetic) -> Arithmetic:
    """Sums over an image and charges of single neurons are float64 whatever the coefficients are."""
    return ARITHMETICS["float64"] if kind in ("floor", "underflow", "first") else numerics


def table(frames: Frames, node: Node, kind: str, numerics: Arithmetic, emulate: bool, *, real: bool) -> tuple[str, Constants]:
    """The kernel of a table; `real`: nodes have no errors of their own."""
    function = TABLES[kind]
    assert function != "floors", kind
    if function == "relu_tables":
        return function, relu_table(frames, node, numerics, real, emulate)
    if function == "box_tables":
        return function, in_table(frames, node, numerics, emulate)
    return function, charge(frames, node, numerics, emulate, first=kind == "first", deployed=is_deployed(node, real))


# ---- rows of single neurons -----------------------------------------------------------------------------------------


def neurons(emulate: bool) -> int:
    """How many a program takes."""
    return 1 << 14 if emulate else 256


def open_cells(node: Node, tight: bool, emulate: bool) -> Constants:
    return {"TIGHT": tight, **cells(node, emulate)}


def find_cells(node: Node, tight: bool, emulate: bool) -> Constants:
    return {**open_cells(node, tight, emulate), "NB": 1024}


def open_rows(node: Node, second: bool, ahead: bool, leaves: bool, emulate: bool) -> Constants:
    h, w, c = extent(node)
    return {"SECOND": second, "AHEAD": ahead, "LEAVES": leaves, "SIZE": h * w * c, "LINE": w * c, "C": c, "BLOCK": neurons(emulate)}


def close_rows(every: bool, leaves: bool, emulate: bool) -> Constants:
    return {"ALL": every, "LEAVES": leaves, "BLOCK": neurons(emulate)}


# ---- rows of a query ------------------------------------------------------------------------------------------------


def forms(emulate: bool) -> int:
    """How many a program takes."""
    return 1 << 10 if emulate else 4


def open_forms(node: Node, gap: bool, numerics: Arithmetic, emulate: bool) -> Constants:
    """`gap`: coefficients come with an error of their own."""
    h, w, c = extent(node)
    return {"GAP": gap, "T": numerics.type, "SIZE": h * w * c, "BR": forms(emulate), "BQ": power(h * w * c, 16, 1024 if emulate else 128)}
