"""Steps that multiply no matrix as launches: a ReLU with a slope of its own, scale, max pool, concat and gather.

Each function is a method of a Lowering (launches.py), which owns the frontier, the buffers and the list of launches.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from polytriton.ir.launches import Constants
from polytriton.ir.net import Node
from polytriton.ir.plan import Step, Window, extent
from polytriton.kernels.sequence import FrontierEntry, phases, place
from polytriton.passes.windows import windows_per_cell
from polytriton.rounding import dot_error, gamma, sum_error

if TYPE_CHECKING:
    from polytriton.kernels.launches import Lowering


def slope(lower: Lowering, node: Node, step: Step, entry: FrontierEntry) -> None:
    """A ReLU whose lower line has a cut, or whose own output a nonlinear operator reads: a pass of its own, never fused."""
    name, window = node.name, entry.window
    terms = lower._terms(name, window)
    constants: Constants = {
        "LOWER": node.number("slope") not in (0.0, 1.0), "PENDING": lower._pending(step) * sum_error(terms),
        "SLOT": entry.slot is not None, **lower._size(name, window), **place(window), **lower.frames.geometry(name),
        "SUM_ERROR": sum_error(terms),
    }  # fmt: skip
    out = lower._buffer(node.inputs[0], window)
    tables = {f"{t}_ptr": f"{t}:{name}" for t in ("below", "above", "lower", "cut", "lo", "hi")}
    bind = {**lower._rows(), **lower._entry(entry), **tables, "floor_ptr": f"underflow:{name}", "out_ptr": f"buf:{out}"}
    lower._launch("slope_rows", constants, bind, lower.sizes.rows(terms))
    lower._give(step, FrontierEntry(window, out, due=step.pays("behind")))


def scale(lower: Lowering, node: Node, step: Step) -> None:
    name = node.name
    assert step.pays("product"), "the kernel charges it"
    entry = lower._write(name, lower.frontier.pop(name))
    terms = lower._terms(name, entry.window)
    constants: Constants = {
        "SLOT": entry.slot is not None, **lower._size(name, entry.window), **place(entry.window), **lower.frames.geometry(name),
        "SUM_ERROR": sum_error(terms),
    }  # fmt: skip
    out = lower._buffer(step.to[0], entry.window)
    tables = {f"{t}_ptr": f"{t}:{name}" for t in ("factor", "shift", "t", "floor")}
    bind = {**lower._rows(), **lower._entry(entry), **tables, "out_ptr": f"buf:{out}"}
    lower._launch("scale_rows", constants, bind, lower.sizes.rows(terms))
    lower._give(step, FrontierEntry(entry.window, out))


def pool_shape(lower: Lowering, node: Node, entry: FrontierEntry, to: Window) -> Constants:
    """What every kernel of a max pool is told: the windows before and after, taps, where the tables lie."""
    (kh, kw), (sh, sw), (dh, dw) = node.ints("k"), node.ints("s", (1, 1)), node.ints("d", (1, 1))
    window, p, (ph, pw) = entry.window, node.ints("p", (0, 0, 0, 0)), phases(node)
    return {
        "T": lower.numerics.type, "SLOT": entry.slot is not None, "H": window.h.size, "W": window.w.size, "C": extent(node)[2],
        "HO": to.h.size, "WO": to.w.size, "KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw,
        "TOP": window.h.offset * sh + p[0] - to.h.offset, "LEFT": window.w.offset * sw + p[1] - to.w.offset,
        "PH": ph, "PW": pw, **place(window), **lower.frames.geometry(node.name),
    }  # fmt: skip


def maxpool(lower: Lowering, node: Node, step: Step) -> None:
    name, source, to = node.name, node.inputs[0], step.windows[0]
    entry = lower._write(name, lower.frontier.pop(name))
    terms, values = lower._terms(name, entry.window), to.cells * extent(node)[2]
    (kh, kw), (sh, sw), (dh, dw) = node.ints("k"), node.ints("s", (1, 1)), node.ints("d", (1, 1))
    meets = windows_per_cell(kh, sh, dh) * windows_per_cell(kw, sw, dw)
    constants: Constants = {
        **pool_shape(lower, node, entry, to), "PENDING": lower._pending(step) * sum_error(terms),
        "REL": gamma(meets - 1, lower.numerics.u) + dot_error(terms), "SUM_ERROR": sum_error(terms),
    }  # fmt: skip
    out = lower._buffer(source, to)
    tables = {f"{t}_ptr": f"{t}:{name}" for t in ("winner", "most", "largest", "lo", "hi")}
    floors = {"floor_ptr": f"underflow:{source}", "own_floor_ptr": f"underflow:{name}"}
    tiles = lower.sizes.rows(max(values, terms))
    columns = -(-values // int(tiles.constants["BQ"])) + 1
    bind = {**lower._rows(), **lower._entry(entry), **tables, **floors, "out_ptr": f"buf:{out}"}
    lower._launch("pool_rows", constants, bind, tiles, columns=columns)
    lower._give(step, FrontierEntry(to, out))


def concat(lower: Lowering, node: Node, step: Step) -> None:
    """Whole images are cut along any axis, windows by channel: as flat values, every part is a regular run of them."""
    entry, begin, made = _pay(lower, node, step), 0, []
    for name, window in zip(step.to, step.windows, strict=True):
        part = lower.nodes[name]
        inner, outer = part_run(part, node)
        size = lower._terms(name, window)
        out = lower._buffer(name, window)
        constants: Constants = {
            "SLOT": entry.slot is not None, "FROM": lower._terms(node.name, entry.window), "SIZE": size, "INNER": inner,
            "OUTER": outer, "BEGIN": begin,
        }  # fmt: skip
        _move(lower, "part_rows", constants, entry, {}, out, size)
        begin += inner
        made.append(FrontierEntry(window, out))
    lower._give(step, *made)


def gather(lower: Lowering, node: Node, step: Step) -> None:
    """Whole channels move on any window, single cells on the whole image."""
    entry, source, window = _pay(lower, node, step), step.to[0], step.windows[0]
    index = lower.frames.net.weight(node, "index")
    assert index is not None
    size, cells = lower._terms(source, window), window.cells if not window.whole else 1
    constants: Constants = {
        "T": lower.numerics.type, "SLOT": entry.slot is not None, "FROM": lower._terms(node.name, entry.window), "SIZE": size,
        "CO": lower._terms(node.name, entry.window) // cells, "CI": size // cells,
        "REPEATS": int(np.bincount(index[index >= 0]).max(initial=0)),
    }  # fmt: skip
    out = lower._buffer(source, window)
    kind = "cell" if window.whole else "channel"
    readers = {"starts_ptr": f"{kind}_starts:{node.name}", "readers_ptr": f"{kind}_readers:{node.name}"}
    _move(lower, "gather_rows", constants, entry, readers, out, size)
    lower._give(step, FrontierEntry(window, out))


def _pay(lower: Lowering, node: Node, step: Step) -> FrontierEntry:
    """The node's coefficients, their scalars paid: it has no bias, but what is pending on them and sums to come are charged."""
    entry = lower._write(node.name, lower.frontier.pop(node.name))
    if step.pays("product"):
        lower._row_pass(entry, node.name, "", True, None)
    return entry


def _move(lower: Lowering, function: str, constants: Constants, entry: FrontierEntry, more: dict[str, str], out: int, size: int) -> None:
    tiles = lower.sizes.rows(size)
    bind = {**lower._rows(), **lower._entry(entry), **more, "out_ptr": f"buf:{out}"}
    lower._launch(function, constants, bind, tiles, columns=-(-size // int(tiles.constants["BQ"])))


def part_run(part: Node, node: Node) -> tuple[int, int]:
    """Of how many consecutive values of the concatenation how many belong to the part."""
    axis = node.integer("axis")
    if len(node.shape) == 3:  # channels, height, width: they lie as height, width, channels
        after = {0: 1, 1: node.shape[2] * node.shape[0], 2: node.shape[0]}[axis]
    else:
        after = prod(node.shape[axis + 1 :])
    return part.shape[axis] * after, node.shape[axis] * after
