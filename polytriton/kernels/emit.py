"""Specialised kernels as text: one readable file for every distinct set of constants, shared by all steps that need it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from polytriton.ir.launches import Kernel
from polytriton.kernels.specialise import Constant, specialise
from polytriton.rounding import INNER

Constants = dict[str, Constant]
MODULES = {
    "relax_rows": "rows", "dense_step": "dense", "conv_step": "conv", "concretize_rows": "concretize", "count_staying": "compact",
    "move_rows": "compact", "follow_slots": "compact", "join_rows": "join", "start_rows": "start", "pay_neurons": "start",
    "merge_scalars": "join", "sum_parts": "dense", "forward_dense": "forward", "forward_conv": "forward", "slope_rows": "elementwise",
    "scale_rows": "elementwise", "pool_rows": "maxpool", "part_rows": "route", "gather_rows": "route",
    "interval_dense": "interval", "interval_conv": "interval", "interval_relax": "interval", "interval_concretize": "interval",
    "interval_neurons": "interval_steps", "interval_join": "interval_steps", "interval_scale": "interval_steps",
    "interval_check": "interval_steps", "measure_boxes": "boxes", "tell_boxes": "boxes", "affine_boxes": "boxes", "relu_boxes": "boxes",
    "sum_boxes": "boxes",
    "relu_tables": "tables", "box_tables": "tables", "charge_table": "tables", "floors": "tables",
    "open_forms": "forms", "count_open": "neurons", "find_open": "neurons", "open_neurons": "neurons", "close_neurons": "neurons",
}  # fmt: skip
PRODUCTS = ("dense_step", "conv_step", "forward_dense", "forward_conv", "interval_dense", "interval_conv")
HELPERS = ("numerics", "products", "rows", "forward", "boxes")
DIRECTED = ("numerics", "directed", "interval")  # what the interval modules take from others
COEFFICIENTS = (
    "lo_m_ptr", "hi_m_ptr", "out_lo_ptr", "out_hi_ptr",
    "m_ptr", "out_ptr", "w_ptr", "below_ptr", "above_ptr", "lower_ptr", "cut_ptr", "t_ptr", "lo_ptr", "hi_ptr", "a_ptr", "b_ptr",
    "factor_ptr", "most_ptr", "largest_ptr", "parts_ptr", "start_ptr",
)  # fmt: skip
WORDS = (
    "image_ptr", "row_h_ptr", "row_w_ptr", "slot_ptr", "index_ptr", "channel_ptr", "count_ptr", "group_ptr", "from_ptr", "blocks_ptr",
    "winner_ptr", "starts_ptr", "readers_ptr", "at_ptr", "begin_ptr", "found_ptr", "room_ptr", "rows_ptr", "of_ptr", "group_of_ptr",
)  # fmt: skip
BYTES = ("done_ptr",)
DIGITS = 10  # of the hash in a kernel's name


@dataclass(frozen=True)
class Numerics:
    """The arithmetic of the coefficients. `inner`: additions after which a product is carried on in float64; 0 for never."""

    name: str
    type: str
    form: str
    u: float
    instruction: str
    inner: int = 0
    fuse_taps: int = 1
    stages: int = 3


INTERVAL = "interval"  # the form of the paper's arithmetic: intervals, every operation rounded outward

NUMERICS = {
    n.name: n
    for n in (
        Numerics("float64", "tl.float64", "ieee", 2.0**-53, "DMMA"),
        Numerics("float32", "tl.float32", "ieee", 2.0**-24, "FFMA", inner=INNER),
        Numerics("tf32x3", "tl.float32", "tf32x3", 2.0**-24, "HGMMA", inner=INNER),
        Numerics("bf16x6", "tl.float32", "bf16x6", 2.0**-24, "HGMMA", inner=INNER),
        Numerics("interval64", "tl.float64", INTERVAL, 2.0**-53, "DFMA"),
        Numerics("interval32", "tl.float32", INTERVAL, 2.0**-24, "FFMA"),
    )
}


@cache
def module_text(module: str) -> str:
    return resources.files("polytriton.kernels.device").joinpath(f"{module}.py").read_text()


def blank_name(function: str) -> str:
    """What a kernel is called in the text that its name is a hash of."""
    return f"{function}_{'0' * DIGITS}"


def kernel_name(function: str, text: str, types: tuple[str, ...], warps: int, stages: int) -> str:
    return f"{function}_{hashlib.sha256(repr((text, types, warps, stages)).encode()).hexdigest()[:DIGITS]}"


@cache
def make_kernel(function: str, constants: tuple[tuple[str, Constant], ...], numerics: str, warps: int, stages: int) -> Kernel:
    """The kernel under a name that tells what it is made of: its text, its parameters' types and how it is launched.

    The text is made once, under a name of the same length, so that its lines are broken where the final name wants it.
    """
    module, arithmetic, blank = MODULES[function], NUMERICS[numerics], blank_name(function)
    helpers = {f"polytriton.kernels.device.{h}": module_text(h) for h in (DIRECTED if "interval" in module else HELPERS) if h != module}
    made = specialise(module_text(module), function, dict(constants), blank, helpers=helpers)
    types = tuple(pointer(p, arithmetic) for p in made.parameters)
    name = kernel_name(function, made.text, types, warps, stages)
    instruction = arithmetic.instruction if function in PRODUCTS else ""
    return Kernel(name, made.text.replace(blank, name), made.parameters, types, warps, stages, instruction, made.parameters)


def pointer(parameter: str, numerics: Numerics) -> str:
    """Triton's type of a parameter: a name means one type everywhere."""
    name = parameter.removeprefix("to_").removeprefix("a_").removeprefix("b_") if parameter not in COEFFICIENTS else parameter
    if name in COEFFICIENTS:
        return {"tl.float64": "*fp64", "tl.float32": "*fp32"}[numerics.type]
    return "*i64" if name in WORDS else "*i8" if name in BYTES else "*fp64"


def tile_key(function: str, constants: Mapping[str, Constant], numerics: str) -> str:
    """A kernel before its tiles are chosen: what it computes, from what shapes, in which arithmetic."""
    given = repr((tuple(sorted(constants.items())), numerics))
    return f"{function}:{numerics}:{hashlib.sha256(given.encode()).hexdigest()[:DIGITS]}"
