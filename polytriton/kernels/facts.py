"""What a kernel does to its rows, told from its constants: its window, what it adds up, what that is charged. For people to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from polytriton.arithmetic import Arithmetic
from polytriton.ir.launches import Constants
from polytriton.ir.plan import Axis, Window
from polytriton.ir.plan_text import print_window
from polytriton.passes.windows import windows_per_cell
from polytriton.rounding import INNER, PARTS, dot_error, gamma, split_error, sum_error


class StepFacts(NamedTuple):
    """`windows` before and after the step ("" where any will do), what is added up ("" for nothing), the error constants."""

    windows: str
    sums: str
    errors: tuple[str, ...]


Facts = Callable[[Constants, Arithmetic], StepFacts]

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


def _product(numerics: Arithmetic, terms: int, block: int) -> tuple[str, ...]:
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


def dense(c: Constants, numerics: Arithmetic) -> StepFacts:
    k = _int(c, "K")
    sums, error = _product(numerics, k, min(k, _int(c, "BK")))
    return StepFacts(f"{k} -> {c['N']}", sums, (error, *_row_sums(c, k)))


def conv(c: Constants, numerics: Arithmetic) -> StepFacts:
    h, w, channels = (_int(c, name) for name in ("H", "W", "CO"))
    share = channels // _int(c, "G")
    taps = -(-_int(c, "KH") // _int(c, "PH")) * -(-_int(c, "KW") // _int(c, "PW"))
    sums, error = _product(numerics, taps * share, min(share, _int(c, "BK")))
    after = _window(c, _int(c, "HO"), _int(c, "WO"), _int(c, "CI"), "TO_")
    return StepFacts(f"{_window(c, h, w, channels)} -> {after}", sums, (error, *_row_sums(c, h * w * channels)))


def _pass_window(c: Constants) -> tuple[str, int]:
    """The window a row pass runs over, and its coefficients."""
    size, line, channels = (_int(c, name) for name in ("SIZE", "LINE", "C"))
    return _window(c, size // line, line // channels, channels), size


def relax(c: Constants, numerics: Arithmetic) -> StepFacts:
    window, terms = _pass_window(c)
    after = window if c["RELU"] else "charged"
    return StepFacts(f"{window} -> {after}", f"K = {terms} terms a row, in blocks of {min(terms, _int(c, 'BQ'))}", _row_sums(c, terms))


def _pending(c: Constants, numerics: Arithmetic) -> tuple[str, ...]:
    """What a row pays for coefficients that another nonlinear operator multiplied."""
    return (_number(_float(c, "PENDING"), f"{_unit(numerics)} (1 + 2^-20), of sum |M| xabs, was pending"),) if c["PENDING"] else ()


def slope(c: Constants, numerics: Arithmetic) -> StepFacts:
    window, terms = _pass_window(c)
    sums = f"K = {terms} terms a row, in blocks of {min(terms, _int(c, 'BQ'))}"
    return StepFacts(f"{window} -> {window}", sums, (_one_sign(terms), *_pending(c, numerics)))


def scale(c: Constants, numerics: Arithmetic) -> StepFacts:
    window, terms = _pass_window(c)
    sums = f"K = 1 term an entry; {terms} terms a row, in blocks of {min(terms, _int(c, 'BQ'))}"
    return StepFacts(f"{window} -> {window}", sums, (f"{_unit(numerics)}, of |M a|", _one_sign(terms)))


def pool(c: Constants, numerics: Arithmetic) -> StepFacts:
    meets, terms = _pool_meets(c), _pool_size(c)
    error = _number(_float(c, "REL"), f"gamma_{meets - 1}({_unit(numerics)}) + 2 ({terms} + 8) 2^-53, of sum |M| largest")
    sums = f"K = {meets} terms an entry at most; {terms} terms a row, in blocks of {min(terms, _int(c, 'BQ'))}"
    return StepFacts(_pool_windows(c), sums, (error, *_pending(c, numerics)))


def _pool_meets(c: Constants) -> int:
    """How many of a pool's windows meet in a cell at most."""
    of_h, of_w = ([_int(c, name + axis) for name in ("K", "S", "D")] for axis in "HW")
    return windows_per_cell(*of_h) * windows_per_cell(*of_w)


def _pool_size(c: Constants) -> int:
    return _int(c, "H") * _int(c, "W") * _int(c, "C")


def _pool_windows(c: Constants) -> str:
    return f"{_window(c, _int(c, 'H'), _int(c, 'W'), _int(c, 'C'))} -> {c['HO']} x {c['WO']} x {c['C']}"


def part(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts(f"{c['FROM']} -> {c['SIZE']}", "", ("none: coefficients move",))


def gather(c: Constants, numerics: Arithmetic) -> StepFacts:
    repeats, windows = _int(c, "REPEATS"), f"{c['FROM']} -> {c['SIZE']}"
    if repeats < 2:
        return StepFacts(windows, "", ("none: coefficients move",))
    error = _number(gamma(repeats - 1, numerics.u), f"gamma_{repeats - 1}({_unit(numerics)}), of sum |M|, charged by t")
    return StepFacts(windows, f"K = {repeats} terms an entry at most", (error,))


def concretize(c: Constants, numerics: Arithmetic) -> StepFacts:
    window, terms = _pass_window(c)
    rel, additions = _float(c, "REL"), terms + _int(c, "NODES") - 1
    more = f" + {_unit(numerics)} (1 + 2^-20) for a ReLU's product" if rel > dot_error(additions) else ""
    error = _number(rel, f"2 ({additions} + 8) 2^-53{more}, of sum |M| xabs")
    return StepFacts(f"{window} -> a bound", f"K = {terms} terms a row, in blocks of {min(terms, _int(c, 'BQ'))}", (error,))


def join(c: Constants, numerics: Arithmetic) -> StepFacts:
    channels = _int(c, "C")
    a, b = (_window(c, _int(c, f"{s}H"), _int(c, f"{s}W"), channels, f"{s}_") for s in ("A", "B"))
    after = _window(c, _int(c, "HO"), _int(c, "WO"), channels)
    if not c["SECOND"]:
        return StepFacts(f"{a} -> {after}", "", ("none: nothing is rounded",))
    if not (c["A_REL"] or c["B_REL"] or c["OUT_REL"]):
        return StepFacts(f"{a} + {b} -> {after}", "K = 2 terms an entry", (PROPOSED,))
    more = " and of each part a ReLU multiplied" if c["A_REL"] or c["B_REL"] else ""
    terms = _int(c, "HO") * _int(c, "WO") * channels
    error = _number(_float(c, "OUT_REL"), f"{_unit(numerics)} (1 + 2^-20) (1 + 2 ({terms} + 16) 2^-53), of sum |out| xabs{more}")
    return StepFacts(f"{a} + {b} -> {after}", "K = 2 terms an entry", (error,))


def _unit(numerics: Arithmetic) -> str:
    return "2^-53" if numerics.type == "tl.float64" else "2^-24"


def start(c: Constants, numerics: Arithmetic) -> StepFacts:
    if not c["SLICE"]:
        return StepFacts(f"a neuron -> {c['CI']}", "", ("none: a coefficient is 1 or -1",))
    after = _window(c, _int(c, "HO"), _int(c, "WO"), _int(c, "CI"))
    return StepFacts(f"a neuron -> {after}", "", ("none: coefficients are weights times 1 or -1",))


def parts(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts("", f"K = {c['SK']} parts, in float64, in order", (f"{numerics.u:.4g} of |out|, within what the product is charged",))


def neurons(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts("a neuron -> charged", "", ("none: a coefficient is 1 or -1",))


def merge(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts("", "K = 2 terms a row", (_number(4 * 2.0**-53, "4 2^-53, of |constant|, and 8 2^-53 of the error"),))


OUTWARD = "every operation is rounded outward; only the lanes of a tile are added to nearest, and charged"
SPREAD = "sums of both ends are rounded outward; what they share is added in whole steps, exactly, and rounded outward"


def interval_dense(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts(f"{c['K']} -> {c['N']}", f"K = {c['K']} terms an entry, one after the other", (SPREAD,))


def interval_conv(c: Constants, numerics: Arithmetic) -> StepFacts:
    h, w, channels = (_int(c, name) for name in ("H", "W", "CO"))
    terms = -(-_int(c, "KH") // _int(c, "PH")) * -(-_int(c, "KW") // _int(c, "PW")) * channels // _int(c, "G")
    after = _window(c, _int(c, "HO"), _int(c, "WO"), _int(c, "CI"), "TO_")
    return StepFacts(f"{h}x{w} x {channels} -> {after}", f"K = {terms} terms an entry, one after the other", (SPREAD,))


def interval_row(c: Constants, numerics: Arithmetic) -> StepFacts:
    window, terms = _pass_window(c)
    return StepFacts(window, f"K = {terms} terms a row, in lanes of {min(terms, _int(c, 'BQ'))}", (OUTWARD,))


def interval_join(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts(join({**c, "SECOND": False}, numerics).windows, "K = 2 terms an entry" if c["SECOND"] else "", (OUTWARD,))


def interval_pool(c: Constants, numerics: Arithmetic) -> StepFacts:
    terms = _pool_size(c)
    sums = f"K = {_pool_meets(c)} terms an entry at most; {terms} terms a row, in lanes of {min(terms, _int(c, 'BQ'))}"
    return StepFacts(_pool_windows(c), sums, (OUTWARD,))


def interval_gather(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts(f"{c['FROM']} -> {c['SIZE']}", f"K = {c['REPEATS']} terms an entry at most", (OUTWARD,))


def interval_neurons(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts("a neuron -> charged", "", (OUTWARD,))


def move(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts("", "", ("none: rows move, numbers stay",))


PROPOSED = "none: slopes and multipliers are proposals, a walk with them charges what it rounds"


def _forward(sums: int, windows: str) -> StepFacts:
    error = _number(gamma(sums + 4, 2.0**-53), f"gamma_{sums + 4}(2^-53), of magnitude + |b|")
    return StepFacts(windows, f"K = {sums} terms an output", (error, "spread and magnitude are enlarged by 1 + 2^-34"))


def _points(sums: int, windows: str) -> StepFacts:
    return StepFacts(windows, f"K = {sums} terms an output", (PROPOSED,))


def forward_dense(c: Constants, numerics: Arithmetic) -> StepFacts:
    return (_points if c["FORM"] else _forward)(_int(c, "K"), f"{c['K']} -> {c['N']}")


def forward_conv(c: Constants, numerics: Arithmetic) -> StepFacts:
    terms = _int(c, "KH") * _int(c, "KW") * _int(c, "C") // _int(c, "G")
    return (_points if c["FORM"] else _forward)(terms, f"{c['H']}x{c['W']} x {c['C']} -> {c['HO']}x{c['WO']} x {c['CO']}")


def boxes(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts("", f"{min(_int(c, 'SIZE'), _int(c, 'BLOCK'))} sizes a program", ("every half width is enlarged by 1 + 2^-34",))


def report(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts("", f"{min(_int(c, 'SIZE'), _int(c, 'BLOCK'))} cells a program", ("no bound reads what it writes",))


def table(c: Constants, numerics: Arithmetic) -> StepFacts:
    line, size = _int(c, "LINE"), _int(c, "SIZE")
    return StepFacts(f"{size // line} lines of {line}", "", (f"float64, then rounded outward to {c['T']}",))


def search(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts(f"{c['SIZE']} cells -> undecided ones", "", ("none: bounds are compared with 0",))


def open_rows(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts(f"{c['SIZE']} cells -> neurons", "", ("none: a row is 1 or -1 times its neuron",))


def forms(c: Constants, numerics: Arithmetic) -> StepFacts:
    lost = f"what rounding to {c['T']} took of a coefficient, times its output's box; enlarged by 1 + 2^-34"
    return StepFacts(f"{c['SIZE']} outputs", f"K = {c['SIZE']} terms a row", (lost,))


def floors(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts("", f"{c['OWN']} parts an image", ("enlarged by 1 + 2^-34",))


def proposal(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts(f"{c['SIZE']} neurons", "", (PROPOSED,))


def turn(c: Constants, numerics: Arithmetic) -> StepFacts:
    return StepFacts("", "", ("none: bounds are compared with their goals",))
