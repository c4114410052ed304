"""A box and conditions in Python as a property: they become the asserts of a document, as if a VNN-LIB file had stated them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from math import prod

from polytriton.errors import UsageError
from polytriton.frontend.expressions import JOIN, Condition, Numbers, Shapes, check_same, shown_value
from polytriton.frontend.norm_balls import NormBall
from polytriton.frontend.numbers import exact_values
from polytriton.frontend.query import Disjunct, Exact, Property, Tensor
from polytriton.frontend.vnnlib import _show, made_property
from polytriton.frontend.vnnlib_dnf import Formula, Junction, Leaf
from polytriton.frontend.vnnlib_linear import ONE
from polytriton.frontend.vnnlib_parse import Document

APART = "no input lies in both: move the ball, or widen the box"
NONE = "give unsafe=[...], what must not happen, or safe=[...], what must hold"


def stated_property(
    box: tuple[Numbers, Numbers] | None,
    unsafe: Condition | Iterable[Condition],
    safe: Condition | Iterable[Condition],
    name: str,
    ball: NormBall | None = None,
) -> Property:
    """{(x, y) : x in the box and the ball, and some unsafe condition holds or some safe one does not}."""
    bad, good = _conditions(unsafe, "unsafe"), _conditions(safe, "safe")
    if not bad and not good:
        raise UsageError("a property without conditions says nothing", NONE)
    shapes = (bad + good)[0].shapes
    for condition in bad + good:
        check_same(shapes, condition.shapes)
    violations: list[Formula] = [c.formula for c in bad] + [Junction("not", (c.formula,)) for c in good]
    asserts: list[Formula] = [*_bounds(box, ball, shapes), Junction("or", violations)]
    tensors = Tensor("X", shape=shapes.inputs), Tensor("Y", shape=shapes.outputs)
    made = made_property(Document("1.0", asserts, *tensors, prod(shapes.inputs), prod(shapes.outputs)), _name(name))
    if ball is None:
        return made
    return Property.from_disjuncts(
        made.name, made.n_in, made.n_out, _pieces_in(made, ball), made.version, made.input, made.output
    )


def _pieces_in(made: Property, ball: NormBall) -> tuple[Disjunct, ...]:
    """The pieces that have an input in the ball: conditions on inputs cut boxes, and may leave none, as they may leave no box."""
    known: dict[tuple[int, ...], bool] = {}
    for d in made.disjuncts:
        if d.where not in known:
            known[d.where] = ball.meets(d.exact_lo, d.exact_hi)
    return tuple(replace(d, ball=ball) for d in made.disjuncts if known[d.where])


def _name(name: str) -> str:
    if not isinstance(name, str):
        raise UsageError(f"a property's name is {shown_value(name)}", "give a text")
    return name


def _conditions(given: Condition | Iterable[Condition], what: str) -> list[Condition]:
    if isinstance(given, Condition):
        return [given]
    try:
        listed = list(given)
    except TypeError:
        raise UsageError(f"{what}={shown_value(given)} is no list of conditions", NONE) from None
    for k, condition in enumerate(listed):
        if not isinstance(condition, Condition):
            raise UsageError(f"{what}[{k}] is {shown_value(condition)}, no condition", f"compare expressions of net.variables(); {JOIN}")
    return listed


def _bounds(box: tuple[Numbers, Numbers] | None, ball: NormBall | None, shapes: Shapes) -> list[Leaf]:
    """x_i <= hi_i and -x_i <= -lo_i, of the box and of the box around the ball."""
    made: list[Leaf] = []
    if ball is not None:
        if not isinstance(ball, NormBall):
            raise UsageError(f"ball={shown_value(ball)} is no ball", "give polytriton.NormBall(centre, radius, 'l2')")
        if len(ball) != prod(shapes.inputs):
            raise UsageError(f"a ball around {len(ball)} numbers, the network has {prod(shapes.inputs)} inputs", "give a number an input")
        around = ball.box()
        made = _leaves(*around)
    if ball is not None and box is None:
        return made
    if not isinstance(box, tuple | list) or len(box) != 2:
        raise UsageError(f"a box of {shown_value(box)}", "give the ends: box=(lo, hi), two arrays, or two numbers for all inputs")
    lows, highs = (_end(end, what, shapes) for end, what in zip(box, ("the box's lower end", "the box's upper end"), strict=True))
    for i, (lo, hi) in enumerate(zip(lows, highs, strict=True)):
        if lo > hi:
            raise UsageError(f"inverted box for {shapes.element(i)}: {_show(lo)} > {_show(hi)}", "swap the bounds: box=(lo, hi)")
    if ball is not None:
        for i, (lo, hi, least, most) in enumerate(zip(lows, highs, *around, strict=True)):
            if lo > most or hi < least:
                where = shapes.element(i)
                raise UsageError(f"the ball misses the box at {where}", APART)
        if not ball.meets(lows, highs):
            raise UsageError("the ball misses the box, whose nearest corner or side lies beyond the radius", APART)
    return made + _leaves(lows, highs)


def _leaves(lows: Exact, highs: Exact) -> list[Leaf]:
    return [Leaf({i: -ONE}, -lo, False) for i, lo in enumerate(lows)] + [Leaf({i: ONE}, hi, False) for i, hi in enumerate(highs)]


def _end(values: Numbers, what: str, shapes: Shapes) -> list[Fraction]:
    """One number an input: given in the inputs' shape, but for axes of one element, or flat; a single number is everyone's."""
    found, shape = exact_values(values, what)
    size = prod(shapes.inputs)
    if not shape:
        return found * size
    if shape != (size,) and [k for k in shape if k != 1] != [k for k in shapes.inputs if k != 1]:
        raise UsageError(f"{what} has shape {list(shape)}, the inputs have {list(shapes.inputs)}", "give it in the inputs' shape or flat")
    return found
