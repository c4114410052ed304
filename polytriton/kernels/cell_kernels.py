"""Which kernels make a node's box and its tables (kernels/device/boxes.py, kernels/device/tables.py), told from the network alone."""

from __future__ import annotations

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


def affine_box(node: Node, source: Node, real: bool, emulate: bool) -> Constants:
    """As kernels.forward leaves its sums: a dense layer counts terms once an image, a convolution once a cell and group."""
    size, (_, _, c) = cells(node, emulate), extent(node)
    dense = node.op == "linear"
    share = size["SIZE"] if dense else c // node.integer("g", 1)
    read: Constants = {"SHARE": share, **read_parts(parts(source, emulate))}
    return {"REAL": real, "BIAS": size["SIZE"] if dense else c, **(dict.fromkeys(read, 1) if real else read), **size}


def elementwise_box(node: Node, operations: int, emulate: bool) -> tuple[str, Constants]:
    """A ReLU's, a sum's or a difference's kernel; charged as runtime.soundness.elementwise_error says. No operations: exact arithmetic."""
    slope = node.number("slope")
    if node.op == "relu" and slope in (0.0, 1.0):
        operations = 0  # exact, deployed or not
    lost = flush_loss(ETA, slope) if operations else 0.0
    of: Constants = {"GAMMA": gamma(operations, 2.0**-23) if operations else 0.0, "LOST": lost, **cells(node, emulate)}
    if node.op == "relu":
        return "relu_boxes", {"SLOPE": slope, **of}
    return "sum_boxes", {"MINUS": node.op == "sub", **of}


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


def floors(net: Net, node: Node, affine: bool, emulate: bool) -> Constants:
    own = parts(node, emulate)
    operand = parts(net.node(node.inputs[0]), emulate) if affine else 1
    return {"OWN": own, "AFFINE": affine, **read_parts(operand, wide=own)}


def table_numerics(kind: str, numerics: Arithmetic) -> Arithmetic:
    """Sums over an image and charges of single neurons are float64 whatever the coefficients are."""
    return ARITHMETICS["float64"] if kind in ("floor", "underflow", "first") else numerics


def table(frames: Frames, node: Node, kind: str, numerics: Arithmetic, emulate: bool, *, real: bool) -> tuple[str, Constants]:
    """The kernel of a table; `real`: nodes have no errors of their own."""
    function, affine = TABLES[kind], node.op in LAYERS
    if function == "relu_tables":
        return function, relu_table(frames, node, numerics, real, emulate)
    if function == "box_tables":
        return function, in_table(frames, node, numerics, emulate)
    if function == "floors":
        return function, floors(frames.net, node, affine and kind == "floor", emulate)
    deployed = not real and node.op in (*LAYERS, "add", "sub")
    return function, charge(frames, node, numerics, emulate, first=kind == "first", deployed=deployed)


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
