"""The kernel families, a row each: where the function is, what it is told of, which of its pointers it reads, what it computes.

A family is a function of kernels/device whose shapes are constants: parameters (tl.constexpr) or, where they are many, fields of one
record `c`, a class of the function's name beside it. Under constants it becomes a kernel: Triton folds
them and drops the branches that they decide. A pointer that no branch taken reads is given as None and is no argument of the machine
code; `reads` says under which constants each is read, and a test holds it against what Triton makes (test_reads.py among the tests).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace

from polytriton.arithmetic import ARITHMETICS, Arithmetic
from polytriton.ir.launches import Constant, Kernel
from polytriton.kernels import facts
from polytriton.kernels.closure import closure_digest, read_function
from polytriton.kernels.facts import Facts

LIBRARY = "polytriton.kernels.device"
DIGITS = 10  # of the hash in a kernel's name
Given = tuple[tuple[str, Constant], ...]
Condition = Callable[[SimpleNamespace], object]


@dataclass(frozen=True)
class Family:
    """`reads`: pointers, without `_ptr`, that are read under some constants only; `product`: its time goes into matrix products."""

    module: str
    facts: Facts
    reads: Mapping[str, Condition] = field(default_factory=dict)
    product: bool = False

    def is_read(self, pointer: str, constants: Mapping[str, Constant]) -> bool:
        condition = self.reads.get(pointer.removesuffix("_ptr"))
        return condition is None or bool(condition(SimpleNamespace(**constants)))


def _when(names: str, condition: Condition) -> dict[str, Condition]:
    return dict.fromkeys(names.split(), condition)


SLOT = _when("slot", lambda c: c.SLOT)
WINDOW = {**_when("row_h", lambda c: c.RH), **_when("row_w", lambda c: c.RW)}  # a whole image begins at zero, whatever the row
ROWS = {**SLOT, **WINDOW}
SCALARS = {  # of rows.row_scalars
    **SLOT, **_when("below above cut", lambda c: c.RELU), **_when("t floor", lambda c: c.CHARGE),
    **_when("bias", lambda c: c.CHARGE and c.BIAS != "none"), **_when("image constant error", lambda c: c.RELU or c.CHARGE),
}  # fmt: skip
PENDING = _when("lo hi", lambda c: c.PENDING)
CHECK = {  # of a node's part in a candidate bound
    **ROWS, **_when("value raw slack", lambda c: not (c.FIRST and c.LAST)),
    **_when("index group best raw_best done limit", lambda c: c.LAST),
}  # fmt: skip
SECOND_BRANCH = {
    **_when("a_slot", lambda c: c.A_SLOT), **_when("b_slot", lambda c: c.SECOND and c.B_SLOT),
    **_when("b b_lo b_hi image lo hi floor constant error", lambda c: c.SECOND),
}  # fmt: skip
NEURON = _when("image bias first constant error", lambda c: c.CHARGE)
NOTED = {**_when("told", lambda c: c.TELL), **_when("blocks", lambda c: c.OPEN)}  # of boxes
UNDECIDED = _when("box_lo", lambda c: not c.TIGHT)
SUMS = {
    **_when("wabs", lambda c: c.CANCELLED), **_when("terms", lambda c: c.TERMS != "none"),
    **_when("hi centre spread magnitude", lambda c: not c.FORM), **_when("out", lambda c: c.FORM),
}
SIGNED = _when("side", lambda c: c.SIGNED)

CATALOGUE = {
    # ---- rows walk back ----
    "start_rows": Family("start", facts.start, {
        **NEURON, **_when("bias", lambda c: c.CHARGE and c.BIAS != "none"), **_when("w", lambda c: c.SLICE),
        **_when("row_h", lambda c: c.CHARGE or (c.SLICE and (c.GAP_RH or (c.MASK and c.RH)))),
        **_when("row_w", lambda c: c.CHARGE or (c.SLICE and (c.GAP_RW or (c.MASK and c.RW)))),
    }),
    "pay_neurons": Family("start", facts.neurons, _when("bias", lambda c: c.BIAS != "none")),
    "relax_rows": Family("rows", facts.relax, {**SCALARS, **WINDOW, **_when("out", lambda c: c.RELU)}),
    "dense_step": Family("dense", facts.dense, SCALARS, product=True),
    "sum_parts": Family("dense", facts.parts),
    "conv_step": Family("conv", facts.conv, {
        **SCALARS, **_when("row_h", lambda c: ((c.RELU or c.CHARGE) and c.RH) or (c.MASK and c.TO_RH)),
        **_when("row_w", lambda c: ((c.RELU or c.CHARGE) and c.RW) or (c.MASK and c.TO_RW)),
    }, product=True),
    "slope_rows": Family("elementwise", facts.slope, {
        **ROWS, **PENDING, **_when("lower", lambda c: c.LOWER), **_when("floor", lambda c: c.PENDING),
    }),
    "scale_rows": Family("elementwise", facts.scale, ROWS),
    "pool_rows": Family("maxpool", facts.pool, {**ROWS, **PENDING, **_when("own_floor", lambda c: c.PENDING)}),
    "part_rows": Family("route", facts.part, SLOT),
    "gather_rows": Family("route", facts.gather, SLOT),
    "join_rows": Family("join", facts.join, {
        **SECOND_BRANCH, **_when("image lo hi floor constant error", lambda c: c.SECOND and (c.A_REL or c.B_REL or c.OUT_REL)),
        **_when("row_h", lambda c: c.RH or c.A_RH or c.B_RH if c.SECOND else c.A_RH != c.RH),
        **_when("row_w", lambda c: c.RW or c.A_RW or c.B_RW if c.SECOND else c.A_RW != c.RW),
    }),
    "merge_scalars": Family("join", facts.merge),
    "concretize_rows": Family("concretize", facts.concretize, {**CHECK, **_when("constant error", lambda c: c.FIRST or c.LAST)}),
    "count_staying": Family("compact", facts.move),
    "move_rows": Family("compact", facts.move, _when("sign channel to_sign to_channel", lambda c: c.NEURON)),
    "follow_slots": Family("compact", facts.move),
    # ---- the paper's interval arithmetic ----
    "interval_dense": Family("interval_products", facts.interval_dense, SLOT, product=True),
    "interval_conv": Family("interval_products", facts.interval_conv, {
        **SLOT, **_when("row_h", lambda c: c.MASK and c.TO_RH), **_when("row_w", lambda c: c.MASK and c.TO_RW),
    }, product=True),
    "interval_relax": Family("interval", facts.interval_row, {**ROWS, **_when("lower", lambda c: c.LOWER)}),
    "interval_concretize": Family("interval", facts.interval_row, ROWS),
    "interval_neurons": Family("interval_steps", facts.interval_neurons),
    "interval_join": Family("interval_steps", facts.interval_join, {
        **SECOND_BRANCH, **_when("row_h", lambda c: c.A_RH != c.RH or (c.SECOND and c.B_RH != c.RH)),
        **_when("row_w", lambda c: c.A_RW != c.RW or (c.SECOND and c.B_RW != c.RW)),
    }),
    "interval_scale": Family("interval_steps", facts.interval_row, ROWS),
    "interval_pool": Family("interval_route", facts.interval_pool, ROWS),
    "interval_gather": Family("interval_route", facts.interval_gather, SLOT),
    "interval_check": Family("interval_steps", facts.interval_row, {**CHECK, **_when("constant_lo constant_hi", lambda c: c.FIRST)}),
    # ---- the interval pass and the tables of a batch ----
    "forward_dense": Family("forward", facts.forward_dense, SUMS, product=True),
    "forward_conv": Family("forward", facts.forward_conv, SUMS, product=True),
    "measure_boxes": Family("boxes", facts.boxes, NOTED),
    "tell_boxes": Family("boxes", facts.report),
    "affine_boxes": Family("boxes", facts.boxes, {
        **NOTED, **_when("terms operand error", lambda c: not c.REAL), **_when("own_numbers first", lambda c: c.FIRST),
        **_when("summed", lambda c: c.FLUSH),
    }),
    "sum_boxes": Family("boxes", facts.boxes, NOTED),
    "relu_boxes": Family("relus", facts.boxes, {
        **_when("error", lambda c: c.SLOPE not in (0.0, 1.0)), **_when("y_biggest y_total", lambda c: c.MEASURE),
        **_when("told", lambda c: c.TELL), **_when("below above cut", lambda c: c.LINES), **_when("lower", lambda c: c.LOWER),
        **_when("lo hi", lambda c: c.ENDS), **_when("t", lambda c: c.CHARGE), **_when("magnitude babs", lambda c: c.AFFINE),
        **_when("own_error", lambda c: c.DEPLOYED), **_when("operand", lambda c: c.FLUSH),
        **_when("numbers", lambda c: c.PENDING or c.AFFINE or c.FLUSH),
    }),
    "relu_tables": Family("tables", facts.table, {
        **_when("lower", lambda c: c.LOWER), **_when("own_error", lambda c: c.DEPLOYED),
    }),
    "box_tables": Family("tables", facts.table),
    "charge_table": Family("tables", facts.table, {
        **_when("box_lo box_hi", lambda c: c.PENDING), **_when("magnitude babs", lambda c: c.AFFINE), **_when("operand", lambda c: c.FLUSH),
        **_when("own_error", lambda c: c.DEPLOYED), **_when("numbers", lambda c: c.PENDING or c.AFFINE or c.FLUSH),
    }),
    "floors": Family("tables", facts.floors, {
        **_when("operand", lambda c: c.AFFINE), **_when("other_total other_numbers other_floor", lambda c: c.OTHER),
        **_when("other_operand", lambda c: c.OTHER_AFFINE),
    }),
    # ---- rows begin ----
    "open_forms": Family("forms", facts.forms, _when("gap", lambda c: c.GAP)),
    "count_open": Family("neurons", facts.search, UNDECIDED),
    "find_open": Family("neurons", facts.search, UNDECIDED),
    "open_neurons": Family("neurons", facts.open_rows, {
        **_when("found room", lambda c: c.AHEAD), **_when("box_lo box_hi", lambda c: c.LEAVES),
        **_when("group best raw_best done", lambda c: not c.SECOND),
    }),
    "close_neurons": Family("neurons", facts.move),
    # ---- slopes and multipliers climb ----
    "relax_own": Family("ascent", facts.proposal, SIGNED),
    "take_corners": Family("ascent", facts.proposal, _when("over", lambda c: c.OVER)),
    "follow_own": Family("ascent", facts.proposal, {**SIGNED, **_when("worth", lambda c: c.SIGNED)}),
    "judge_rows": Family("ascent", facts.proposal),
    "climb_rows": Family("ascent", facts.proposal, SIGNED),
    "end_turn": Family("ascent", facts.turn),
}  # fmt: skip

# a pointer's name means one type everywhere: float64 but for these
COEFFICIENTS = frozenset((
    *("m", "out", "w", "lo_m", "hi_m", "out_lo", "out_hi", "a", "b", "a_lo", "a_hi", "b_lo", "b_hi", "parts", "start"),
    *("below", "above", "lower", "cut", "t", "lo", "hi", "factor", "most", "largest"),
    *("x", "z", "over", "free", "mean", "square", "kept", "loss", "corner"),
))  # fmt: skip
WORDS = frozenset((
    *("image", "row_h", "row_w", "channel", "index", "group", "slot", "a_slot", "b_slot", "from", "blocks", "count"),
    *("winner", "starts", "readers", "at", "begin", "found", "room", "rows", "of", "group_of", "turn"),
))  # fmt: skip
BYTES = frozenset({"done", "side", "better"})


def pointer_type(parameter: str, numerics: Arithmetic) -> str:
    """Triton's type of a pointer."""
    name = parameter.removesuffix("_ptr").removeprefix("to_")
    if name in COEFFICIENTS:
        return {"tl.float64": "*fp64", "tl.float32": "*fp32"}[numerics.type]
    return "*i64" if name in WORDS else "*i8" if name in BYTES else "*fp64"


def place(family: str) -> tuple[str, str]:
    """The module and the name of a family's function; one of another library is named by both, with a dot between."""
    row = CATALOGUE.get(family)
    if row is not None:
        return f"{LIBRARY}.{row.module}", family
    module, _, function = family.rpartition(".")
    return module, function


def kernel_name(family: str, constants: Given, types: Mapping[str, str], warps: int, stages: int) -> str:
    """What it is called tells all that its machine code depends on, but the compiler and the GPU."""
    made_of = (closure_digest(*place(family)), constants, tuple(types.items()), warps, stages)
    return f"{place(family)[1]}_{hashlib.sha256(repr(made_of).encode()).hexdigest()[:DIGITS]}"


@cache
def make_kernel(family: str, constants: Given, numerics: str, warps: int, stages: int) -> Kernel:
    """The kernel that the constants, sorted by name, make of the family."""
    row, arithmetic, told = CATALOGUE[family], ARITHMETICS[numerics], dict(constants)
    taken = read_function(*place(family))
    wanted = set(taken.constants)
    if odd := sorted(wanted ^ told.keys()):
        kinds = ", ".join(f"{name} ({'missing' if name in wanted else 'no constant of it'})" for name in odd)
        raise ValueError(f"{family}: constants do not match: {kinds}")
    types = {p: pointer_type(p, arithmetic) for p in taken.flat if row.is_read(p, told)}
    name = kernel_name(family, constants, types, warps, stages)
    instruction = arithmetic.instruction if row.product else ""
    return Kernel(name, family, constants, tuple(types), tuple(types.values()), warps, stages, instruction)


def tile_key(family: str, constants: Mapping[str, Constant], numerics: str) -> str:
    """A kernel before its tiles are chosen: what it computes, from what shapes, in which arithmetic."""
    given = repr((tuple(sorted(constants.items())), numerics))
    return f"{family}:{numerics}:{hashlib.sha256(given.encode()).hexdigest()[:DIGITS]}"
