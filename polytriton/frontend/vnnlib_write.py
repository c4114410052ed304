"""Properties as VNN-LIB text. Read back, it gives the same boxes and rows: every number is written at its exact value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from polytriton.errors import UnsupportedProperty, UsageError
from polytriton.frontend.norm_balls import L1
from polytriton.frontend.query import Disjunct, Property, Row
from polytriton.frontend.vnnlib_linear import MAX_DIGITS, MAX_EXPONENT
from polytriton.whole import save_whole

PLAIN = 20  # digits before the point, and zeros behind it, up to which a number is written without an exponent
WRITTEN = 10  # inputs up to which the rows of an l1 ball are written
LONGEST = 3 * MAX_DIGITS  # bits of what has that many digits, and no more than twice as many behind the point
Bound = tuple[Fraction, bool]  # value, and whether it is excluded
Side = Sequence[Bound]


def text_of(prop: Property) -> str:
    """Bounds that all disjuncts share stand alone, the rest in one disjunction in the disjuncts' order."""
    return "\n".join([*_declarations(prop), *(f"(assert {a})" for a in _asserts(prop)), ""])


def save_text(prop: Property, path: Path, overwrite: bool) -> Path:
    """Writes the text; a file that holds something already is kept, unless it may be overwritten."""
    if path.suffix != ".vnnlib":
        raise UsageError(f"a property is saved as VNN-LIB text, which {path} does not sound like", 'name the file like "property.vnnlib"')
    return save_whole(path, text_of(prop).encode(), "the property", overwrite=overwrite)


def _declarations(prop: Property) -> Iterator[str]:
    ends = (("input", prop.input, prop.n_in), ("output", prop.output, prop.n_out))
    if prop.version.startswith("1"):
        yield from (f"(declare-const {tensor.element(i, prop.version)} Real)" for _, tensor, size in ends for i in range(size))
        return
    yield f"(vnnlib-version <{prop.version}>)"
    told = (f"(declare-{role} {t.name} {t.dtype} [{','.join(map(str, t.shape))}])" for role, t, _ in ends)
    yield f"(declare-network {prop.network or 'network'} {' '.join(told)})"


def _asserts(prop: Property) -> Iterator[str]:
    if not prop.disjuncts:
        yield "false"
        return
    distinct = {_box(d): d for d in prop.disjuncts}
    boxes = {key: (_side(d.exact_lo, d.open_lo), _side(d.exact_hi, d.open_hi)) for key, d in distinct.items()}
    shared = [[all(b == bounds[0] for b in bounds) for bounds in zip(*sides, strict=True)] for sides in zip(*boxes.values(), strict=True)]
    first = boxes[_box(prop.disjuncts[0])]
    yield from _bounds(prop, first, shared, True)
    yield from _ball(prop)
    own = {key: list(_bounds(prop, sides, shared, False)) for key, sides in boxes.items()}
    if len(prop.disjuncts) == 1:
        yield from (_row(prop, row) for row in prop.disjuncts[0].rows)
        return
    pieces = []
    for d in prop.disjuncts:
        parts = [*own[_box(d)], *(_row(prop, row) for row in d.rows)]
        parts = parts or [next(_bounds(prop, first, shared, True))]  # the whole box is unsafe: one of its bounds says it again
        pieces.append(f"(and {' '.join(parts)})" if len(parts) > 1 else parts[0])
    yield "\n".join(["(or", *(f"  {piece}" for piece in pieces)]) + ")"


def _ball(prop: Property) -> Iterator[str]:
    """An l1 ball, which all disjuncts share, as the linear rows whose meeting it is: one for every choice of signs."""
    balls = {id(d.ball): d for d in prop.disjuncts}
    for d in balls.values():
        if d.ball is None:
            continue
        norm = d.ball.norm
        if norm != L1 or len(balls) > 1:
            what = f"an {norm} ball is no set that linear inequalities describe"
            raise UnsupportedProperty(what, "write the box around it: leave the ball out")
        free = [i for i, (lo, hi) in enumerate(zip(d.exact_lo, d.exact_hi, strict=True)) if lo != hi]
        if len(free) > WRITTEN:
            raise UnsupportedProperty(
                f"an l1 ball of {len(free)} inputs takes 2^{len(free)} linear inequalities",
                f"up to {WRITTEN} inputs are written; write the box around it: leave the ball out",
            )
        yield from (_row(prop, row) for row in d.ball.rows(free, d.exact_lo))


def _box(d: Disjunct) -> tuple[int, ...]:
    """Disjuncts of one box hold the same objects: thousands of bounds are compared once."""
    return d.where


def _side(values: Sequence[Fraction], open_at: frozenset[int]) -> Side:
    return [(value, i in open_at) for i, value in enumerate(values)]


def _bounds(prop: Property, sides: tuple[Side, Side], shared: Sequence[Sequence[bool]], wanted: bool) -> Iterator[str]:
    """The bounds that are shared by all boxes, or those that are not, input by input."""
    for i, ends in enumerate(zip(*sides, strict=True)):
        for upper, (value, is_open) in enumerate(ends):
            if shared[upper][i] == wanted:
                yield _bound(prop.input.element(i, prop.version), value, ("<" if upper else ">") + ("" if is_open else "="))


def _bound(name: str, value: Fraction, op: str) -> str:
    """x <= v; 3 x <= 1 where v has no end as a decimal number."""
    if _decimal(value) is not None:
        return f"({op} {name} {_number(value)})"
    return f"({op} (* {_number(Fraction(value.denominator))} {name}) {_number(Fraction(value.numerator))})"


def _row(prop: Property, row: Row) -> str:
    """sum <= const, in the plainest form that reads back as this row."""
    terms = [(c, prop.output.element(i, prop.version)) for i, c in row.y]
    terms += [(c, prop.input.element(i, prop.version)) for i, c in row.x]
    below, above = ("<", ">") if row.strict else ("<=", ">=")
    if len(terms) == 1 and abs(terms[0][0]) == 1:
        c, name = terms[0]
        return f"({below if c > 0 else above} {name} {_number(c * row.const)})"
    if not row.const and sorted(c for c, _ in terms) == [-1, 1]:
        (_, more), (_, less) = sorted(terms)
        return f"({below} {less} {more})"
    parts = [name if c == 1 else f"(* {_number(c)} {name})" for c, name in terms]
    total = f"(+ {' '.join(parts)})" if len(parts) > 1 else parts[0] if parts else _number(Fraction(0))
    return f"({below} {total} {_number(row.const)})"


def _number(value: Fraction) -> str:
    """A decimal number of the same value; a quotient of two where there is none."""
    found = _decimal(value)
    if found is None:
        return f"(/ {_number(Fraction(value.numerator))} {_number(Fraction(value.denominator))})"
    digits, places = found
    exponent = len(digits) - 1 - places  # of the first digit
    if abs(exponent) <= PLAIN:
        digits = digits.rjust(places + 1, "0")
        whole = len(digits) - places
        made = f"{digits[:whole]}.{digits[whole:] or '0'}"
    else:
        digits = digits.rstrip("0")
        made = f"{digits[0]}.{digits[1:] or '0'}e{exponent}"
    _need(len(digits) < MAX_DIGITS and abs(exponent) <= MAX_EXPONENT)
    return "-" + made if value < 0 else made


def _decimal(value: Fraction) -> tuple[str, int] | None:
    """The digits of its magnitude, and how many stand behind the point; None where a decimal number has no end."""
    _need(max(value.numerator.bit_length(), value.denominator.bit_length()) < LONGEST)  # Python prints no numbers of any length
    two = (value.denominator & -value.denominator).bit_length() - 1
    five, rest = 0, value.denominator >> two
    while rest % 5 == 0:
        five, rest = five + 1, rest // 5
    places = max(two, five)
    return (str(abs(value.numerator) * 10**places // value.denominator), places) if rest == 1 else None


def _need(fits: bool) -> None:
    if not fits:
        raise UnsupportedProperty(
            f"a number of the property needs more than {MAX_DIGITS} digits, or an exponent beyond {MAX_EXPONENT}", "use shorter numbers"
        )
