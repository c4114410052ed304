"""What stands above an emitted kernel: its steps, windows, sums and error constants, and the constants its docstring names."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from polytriton.ir.launches import Kernel
from polytriton.ir.plan import Axis, Window
from polytriton.ir.plan_text import print_window
from polytriton.kernels.emit import NUMERICS, Constants, Numerics
from polytriton.kernels.emitter import Use
from polytriton.passes.windows import windows_per_cell
from polytriton.rounding import INNER, PARTS, dot_error, gamma, split_error, sum_error

STEPS, WIDTH, INDENT = 6, 140, " " * 12  # steps that are named; columns
SHA256 = "#   sha256    "  # begins the last line of a head


class StepFacts(NamedTuple):
    """`windows` before and after the step ("" where any will do), what is added up ("" for nothing), the error constants."""

    windows: str
    sums: str
    errors: tuple[str, ...]


def header(kernel: Kernel, uses: Sequence[Use]) -> str:
    """Comment lines for the top of the kernel's file. The hash is of all that follows them."""
    facts = [FACTS[use.function](dict(use.constants), NUMERICS[use.numerics]) for use in uses]
    steps = list(dict.fromkeys(f"{use.step}: {fact.windows}" if fact.windows else use.step for use, fact in zip(uses, facts, strict=True)))
    constants = [c for c in uses[0].constants if all(c in use.constants for use in uses)]
    types = " ".join(f"{p}:{t}" for p, t in zip(kernel.parameters, kernel.types, strict=True))
    lines = [
        ("steps", [*steps[:STEPS], *([f"and {len(steps) - STEPS} more"] if len(steps) > STEPS else [])]),
        ("numerics", [", ".join(dict.fromkeys(use.numerics for use in uses))]),
        ("sums", dict.fromkeys(fact.sums for fact in facts if fact.sums)),
        ("error", dict.fromkeys(e for fact in facts for e in fact.errors)),
        ("constants", [" ".join(f"{name}={value}" for name, value in constants)]),
        ("pointers", [types]),
        ("launch", [" ".join(f"{k}={v}" for k, v in kernel.options.items())]),
        ("sha256", [hashlib.sha256(kernel.source.encode()).hexdigest()]),
    ]
    out = [f"# {kernel.name}"]
    for head, values in lines:
        for k, value in enumerate(v for v in values if v):
            first = f"#   {head if k == 0 else '':<9} "
            out += textwrap.wrap(
                value, WIDTH, initial_indent=first, subsequent_indent=f"#{INDENT} ", break_long_words=False, break_on_hyphens=False
            )
    return "\n".join([*out, ""])


# ---- the kernels ------------------------------------------------------------------------------------------------


def _int(constants: Constants, name: str) -> int:
    value = constants[name]
    assert isinstance(value, int), name
    return value


def _float(constants: Constants, name: str) -> float:
    value = constants[name]
    assert isinstance(value, float), name
    return value


def _window(constants: Constants, h: int, w: int, channels: int, prefix: str = "") -> str:
    place = [_int(constants, prefix + name) for name in ("RH", "OH", "RW", "OW")]
    return f"{print_window(Window(Axis(h, place[0], place[1]), Axis(w, place[2], place[3])))} x {channels}"


def _number(value: float, formula: str) -> str:
    return f"{value:.4g} = {formula}"


def _row_sums(constants: Constants, terms: int) -> tuple[str, ...]:
    """The scalars that a row pays for a ReLU or an affine step."""
    return (_one_sign(terms),) if constants["RELU"] or constants["CHARGE"] else ()


def _one_sign(terms: int) -> str:
    charged = _number(sum_error(terms) - 1, f"2 ({terms} + 8) 2^-53 + 8 2^-53")
    return f"a row's scalars: {charged} of each float64 sum of {terms} terms of one sign"


def _product(constants: Constants, numerics: Numerics, terms: int, block: int) -> tuple[str, ...]:
    """The sums and their error. See products.multiply and dense.dense_step: a block is added up from zero, the blocks in float64."""
    blocks = f"K = {terms} terms an entry, in blocks of {block}"
    if not numerics.inner:
        return blocks, _number(gamma(terms, numerics.u), f"gamma_{terms}(2^-53), of sum |N||w|")
    if numerics.form == "ieee":
        n = min(terms, block) + 2
        return blocks, _number(gamma(n, numerics.u), f"gamma_{n}(2^-24), of sum |N||w|")
    parts = PARTS[numerics.form]
    value = _number(split_error(parts, numerics.u), f"2^-18 + gamma_{parts * INNER + parts}(2^-22) + 4 2^-24")
    return blocks, f"{value}, of sum |N||w|, by the model of tensor cores in products.multiply"


def _dense(c: Constants, numerics: Numerics) -> StepFacts:
    k = _int(c, "K")
    sums, error = _product(c, numerics, k, min(k, _int(c, "BK")))
    return StepFacts(f"{k} -> {c['N']}", sums, (error, *_row_sums(c, k)))


def _conv(c: Constants, numerics: Numerics) -> StepFacts:
    h, w, channels = (_int(c, name) for name in ("H", "W", "CO"))
    share = channels // _int(c, "G")
    taps = -(-_int(c, "KH") // _int(c, "PH")) * -(-_int(c, "KW") // _int(c, "PW"))
    sums, error = _product(c, numerics, taps * share, min(share, _int(c, "BK")))
    after = _window(c, _int(c, "HO"), _int(c, "WO"), _int(c, "CI"), "TO_")
    return StepFacts(f"{_window(c, h, w, channels)} -> {after}", sums, (error, *_row_sums(c, h * w * channels)))


def _over(c: Constants) -> tuple[str, int]:
    """The window a row pass runs over, and its coefficients."""
    size, line, channels = (_int(c, name) for name in ("SIZE", "LINE", "C"))
    return _window(c, size // line, line // channels, channels), size


def _relax(c: Constants, numerics: Numerics) -> StepFacts:
    window, terms = _over(c)
    after = window if c["RELU"] else "charged"
    return StepFacts(f"{window} -> {after}", f"K = {terms} terms a row, in blocks of {min(terms, _int(c, 'BQ'))}", _row_sums(c, terms))


def _pending(c: Constants, numerics: Numerics) -> tuple[str, ...]:
    """What a row pays for coefficients that another nonlinear operator multiplied."""
    return (_number(_float(c, "PENDING"), f"{_unit(numerics)} (1 + 2^-20), of sum |M| xabs, was pending"),) if c["PENDING"] else ()


def _slope(c: Constants, numerics: Numerics) -> StepFacts:
    window, terms = _over(c)
    sums = f"K = {terms} terms a row, in blocks of {min(terms, _int(c, 'BQ'))}"
    return StepFacts(f"{window} -> {window}", sums, (_one_sign(terms), *_pending(c, numerics)))


def _scale(c: Constants, numerics: Numerics) -> StepFacts:
    window, terms = _over(c)
    sums = f"K = 1 term an entry; {terms} terms a row, in blocks of {min(terms, _int(c, 'BQ'))}"
    return StepFacts(f"{window} -> {window}", sums, (f"{_unit(numerics)}, of |M a|", _one_sign(terms)))


def _pool(c: Constants, numerics: Numerics) -> StepFacts:
    h, w, channels, kh, kw = (_int(c, name) for name in ("H", "W", "C", "KH", "KW"))
    size, unit = h * w * channels, _unit(numerics)
    meets = windows_per_cell(kh, _int(c, "SH"), _int(c, "DH")) * windows_per_cell(kw, _int(c, "SW"), _int(c, "DW"))
    error = _number(_float(c, "REL"), f"gamma_{meets - 1}({unit}) + 2 ({size} + 8) 2^-53, of sum |M| largest")
    sums = f"K = {meets} terms an entry at most; {size} terms a row, in blocks of {min(size, _int(c, 'BQ'))}"
    return StepFacts(f"{_window(c, h, w, channels)} -> {c['HO']} x {c['WO']} x {channels}", sums, (error, *_pending(c, numerics)))


def _part(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts(f"{c['FROM']} -> {c['SIZE']}", "", ("none: coefficients move",))


def _gather(c: Constants, numerics: Numerics) -> StepFacts:
    repeats, windows = _int(c, "REPEATS"), f"{c['FROM']} -> {c['SIZE']}"
    if repeats < 2:
        return StepFacts(windows, "", ("none: coefficients move",))
    error = _number(gamma(repeats - 1, numerics.u), f"gamma_{repeats - 1}({_unit(numerics)}), of sum |M|, charged by t")
    return StepFacts(windows, f"K = {repeats} terms an entry at most", (error,))


def _concretize(c: Constants, numerics: Numerics) -> StepFacts:
    window, terms = _over(c)
    rel, additions = _float(c, "REL"), terms + _int(c, "NODES") - 1
    more = f" + {_unit(numerics)} (1 + 2^-20) for a ReLU's product" if rel > dot_error(additions) else ""
    error = _number(rel, f"2 ({additions} + 8) 2^-53{more}, of sum |M| xabs")
    return StepFacts(f"{window} -> a bound", f"K = {terms} terms a row, in blocks of {min(terms, _int(c, 'BQ'))}", (error,))


def _join(c: Constants, numerics: Numerics) -> StepFacts:
    channels = _int(c, "C")
    a, b = (_window(c, _int(c, f"{s}H"), _int(c, f"{s}W"), channels, f"{s}_") for s in ("A", "B"))
    after = _window(c, _int(c, "HO"), _int(c, "WO"), channels)
    if not c["SECOND"]:
        return StepFacts(f"{a} -> {after}", "", ("none: nothing is rounded",))
    more = " and of each part a ReLU multiplied" if c["A_REL"] or c["B_REL"] else ""
    terms = _int(c, "HO") * _int(c, "WO") * channels
    error = _number(_float(c, "OUT_REL"), f"{_unit(numerics)} (1 + 2^-20) (1 + 2 ({terms} + 16) 2^-53), of sum |out| xabs{more}")
    return StepFacts(f"{a} + {b} -> {after}", "K = 2 terms an entry", (error,))


def _unit(numerics: Numerics) -> str:
    return "2^-53" if numerics.type == "tl.float64" else "2^-24"


def _start(c: Constants, numerics: Numerics) -> StepFacts:
    if not c["SLICE"]:
        return StepFacts(f"a neuron -> {c['CI']}", "", ("none: a coefficient is 1 or -1",))
    after = _window(c, _int(c, "HO"), _int(c, "WO"), _int(c, "CI"))
    return StepFacts(f"a neuron -> {after}", "", ("none: coefficients are weights times 1 or -1",))


def _parts(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts("", f"K = {c['SK']} parts, in float64, in order", (f"{numerics.u:.4g} of |out|, within what the product is charged",))


def _neurons(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts("a neuron -> charged", "", ("none: a coefficient is 1 or -1",))


def _merged(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts("", "K = 2 terms a row", (_number(4 * 2.0**-53, "4 2^-53, of |constant|, and 8 2^-53 of the error"),))


OUTWARD = "every operation is rounded outward; only the lanes of a tile are added to nearest, and charged"


def _interval_dense(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts(f"{c['K']} -> {c['N']}", f"K = {c['K']} terms an entry, one after the other", (OUTWARD,))


def _interval_conv(c: Constants, numerics: Numerics) -> StepFacts:
    h, w, channels = (_int(c, name) for name in ("H", "W", "CO"))
    terms = -(-_int(c, "KH") // _int(c, "PH")) * -(-_int(c, "KW") // _int(c, "PW")) * channels // _int(c, "G")
    after = _window(c, _int(c, "HO"), _int(c, "WO"), _int(c, "CI"), "TO_")
    return StepFacts(f"{h}x{w} x {channels} -> {after}", f"K = {terms} terms an entry, one after the other", (OUTWARD,))


def _interval_row(c: Constants, numerics: Numerics) -> StepFacts:
    window, terms = _over(c)
    return StepFacts(window, f"K = {terms} terms a row, in lanes of {min(terms, _int(c, 'BQ'))}", (OUTWARD,))


def _interval_join(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts(_join({**c, "SECOND": False}, numerics).windows, "K = 2 terms an entry" if c["SECOND"] else "", (OUTWARD,))


def _interval_neurons(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts("a neuron -> charged", "", (OUTWARD,))


def _moved(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts("", "", ("none: rows move, numbers stay",))


def _forward(sums: int, windows: str) -> StepFacts:
    error = _number(gamma(sums + 4, 2.0**-53), f"gamma_{sums + 4}(2^-53), of magnitude + |b|")
    return StepFacts(windows, f"K = {sums} terms an output", (error, "spread and magnitude are enlarged by 1 + 2^-34"))


def _forward_dense(c: Constants, numerics: Numerics) -> StepFacts:
    return _forward(_int(c, "K"), f"{c['K']} -> {c['N']}")


def _forward_conv(c: Constants, numerics: Numerics) -> StepFacts:
    terms = _int(c, "KH") * _int(c, "KW") * _int(c, "C") // _int(c, "G")
    return _forward(terms, f"{c['H']}x{c['W']} x {c['C']} -> {c['HO']}x{c['WO']} x {c['CO']}")


def _boxes(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts("", f"{min(_int(c, 'SIZE'), _int(c, 'BLOCK'))} sizes a program", ("every half width is enlarged by 1 + 2^-34",))


def _told(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts("", f"{min(_int(c, 'SIZE'), _int(c, 'BLOCK'))} cells a program", ("no bound reads what it writes",))


def _table(c: Constants, numerics: Numerics) -> StepFacts:
    line, size = _int(c, "LINE"), _int(c, "SIZE")
    return StepFacts(f"{size // line} lines of {line}", "", (f"float64, then rounded outward to {c['T']}",))


def _found(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts(f"{c['SIZE']} cells -> undecided ones", "", ("none: bounds are compared with 0",))


def _opened(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts(f"{c['SIZE']} cells -> neurons", "", ("none: a row is 1 or -1 times its neuron",))


def _forms(c: Constants, numerics: Numerics) -> StepFacts:
    lost = f"what rounding to {c['T']} took of a coefficient, times its output's box; enlarged by 1 + 2^-34"
    return StepFacts(f"{c['SIZE']} outputs", f"K = {c['SIZE']} terms a row", (lost,))


def _floors(c: Constants, numerics: Numerics) -> StepFacts:
    return StepFacts("", f"{c['OWN']} parts an image", ("enlarged by 1 + 2^-34",))


FACTS: dict[str, Callable[[Constants, Numerics], StepFacts]] = {
    "relax_rows": _relax, "dense_step": _dense, "sum_parts": _parts, "conv_step": _conv, "concretize_rows": _concretize, "join_rows": _join,
    "start_rows": _start, "pay_neurons": _neurons, "count_staying": _moved, "move_rows": _moved, "follow_slots": _moved,
    "merge_scalars": _merged, "forward_dense": _forward_dense, "forward_conv": _forward_conv, "slope_rows": _slope,
    "scale_rows": _scale, "pool_rows": _pool, "part_rows": _part, "gather_rows": _gather,
    "interval_dense": _interval_dense, "interval_conv": _interval_conv, "interval_relax": _interval_row, "interval_join": _interval_join,
    "interval_concretize": _interval_row, "interval_scale": _interval_row, "interval_check": _interval_row,
    "interval_neurons": _interval_neurons, "measure_boxes": _boxes, "tell_boxes": _told, "affine_boxes": _boxes, "relu_boxes": _boxes,
    "sum_boxes": _boxes,
    "relu_tables": _table, "box_tables": _table, "charge_table": _table, "floors": _floors, "count_open": _found, "find_open": _found,
    "open_neurons": _opened, "close_neurons": _moved, "open_forms": _forms,
}  # fmt: skip
