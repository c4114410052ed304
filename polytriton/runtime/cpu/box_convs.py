"""A convolution over boxes in float64: what the interval pass and a layer's charge sum, by one compiled loop.

    sum of w x_0,   sum of |w| x_1,   sum of |w| x_2

of two or three operands' cells: a box's centre, its half width and its magnitude, or a point of it and how far the box reaches from there.
A weight is read once for all of them, as float32. Cells whose operands are all exactly zero, as settled ReLUs' outputs are, are left out:
a product with zero is zero, and adding it changes no sum. The products of a sum are added one after another, each fused with its addition
where the processor does that: one of the orders that `forward.interval_rounds` charges.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from polytriton.ir.plan import extent
from polytriton.runtime.cpu import fused, loops
from polytriton.runtime.cpu.blocks import PANEL
from polytriton.runtime.cpu.outside import Routine, doubles, floats, integers
from polytriton.runtime.cpu.sharing import share_out
from polytriton.runtime.layers import Layer

LIVE, BEGINS, PANELS, TERMS, SIGNED, SIZES, MORE, SIGNED_SUMS, SIZES_SUMS, MORE_SUMS = range(10)  # addresses; MORE: 0 without a third
BOXES, H, W, CI, HO, WO, COUNT, KH, KW, SH, SW, DH, DW, TOP, LEFT = range(10, 25)  # sizes; COUNT: panels of outputs
ATTRIBUTES = 1002  # a number that no other text gives to attributes of its own


def is_available() -> bool:
    """Whether the loop is there: compiled ahead, on this machine, by this release of LLVM."""
    if loops.AVAILABLE and _sum._found is None:
        loops.prepare()
    return loops.AVAILABLE and bool(_sum._found)


def serves(layer: Layer, like: Tensor) -> bool:
    """Whether there is a loop for a layer: its weights are float32 numbers, and nothing beside them counts as their magnitudes."""
    fits = layer.node.op == "conv" and layer.exact32 and not layer.cancelled and layer.node.integer("g", 1) == 1
    return fits and like.device.type == "cpu" and is_available()


def sum_products(layer: Layer, shape: tuple[int, ...], operands: Sequence[Tensor], threads: int) -> tuple[list[Tensor], Tensor]:
    """Of every operand, [boxes, *shape] with shape [height, width, channels], the products with W of the first, with |W| of the others,
    [boxes, height, width, outputs]; and how many cells that are not zero an output sums, [boxes, height, width, 1]. A third operand is zero
    where the first two are: nobody looks at it to see what is left out.
    """
    node, given, panels = layer.node, [x.contiguous() for x in operands], layer.panels
    (h, w, ci), (ho, wo, co), (count, *_), boxes = shape, extent(node), panels.shape, len(given[0])
    (kh, kw), p = node.ints("k"), node.ints("p", (0, 0, 0, 0))
    assert all(x.shape == (boxes, *shape) for x in given) and panels.shape == (-(-co // PANEL), kh * kw * ci, PANEL)
    live, begins = np.empty(given[0].numel(), dtype=np.int64), np.empty(boxes * h * (w + 1), dtype=np.int64)
    _list_live(given[0].view(-1).numpy(), given[1].view(-1).numpy(), w, ci, live, begins)
    sums, terms = given[0].new_zeros(len(given), boxes, ho, wo, count * PANEL), given[0].new_zeros(boxes, ho, wo, 1)
    of = [[v.data_ptr() for v in some] + [0] * (3 - len(given)) for some in (given, sums)]
    addresses = *(v.__array_interface__["data"][0] for v in (live, begins)), panels.data_ptr(), terms.data_ptr(), *of[0], *of[1]
    sizes = boxes, h, w, ci, ho, wo, count, kh, kw, *node.ints("s", (1, 1)), *node.ints("d", (1, 1)), *p[:2]
    asked, cuts = np.array([*addresses, *sizes], dtype=np.int64), [boxes * ho * k // threads for k in range(threads + 1)]
    share_out(lambda k: _sum(asked, cuts[k], cuts[k + 1]), range(threads), threads)
    return [v[..., :co].contiguous() for v in sums], terms


# ---- the loops ---------------------------------------------------------------------------------------------------


@loops.loop("D D i i I I", fused.PLAIN)
def _list_live(one, other, width, channels, live, begins):  # type: ignore[no-untyped-def]
    """Of every line of cells those that are not zero in either operand, as places in the line, and where each column's begin."""
    each = width * channels
    for line in range(len(one) // each):
        first = line * each
        n = first
        for column in range(width):
            begins[line * (width + 1) + column] = n - first
            for q in range(column * channels, (column + 1) * channels):
                live[n] = q
                n += 1 if one[first + q] != 0 or other[first + q] != 0 else 0  # NaN is not
        begins[line * (width + 1) + width] = n - first


def _sum_lines(f, first, last):  # type: ignore[no-untyped-def]
    """Lines `first` to `last` of the outputs of all boxes, whose sums are zero so far: a panel of outputs and a line of its kernel at a
    time, whose weights stay near while all cells pass. Cells that neighbours of the kernel meet lie one behind another in the list.
    """
    height, width, channels = f[H], f[W], f[CI]
    together = f[KW] if f[DW] == 1 else 1
    begins, terms = integers(f[BEGINS], f[BOXES] * height * (width + 1)), doubles(f[TERMS], f[BOXES] * f[HO] * f[WO])
    for panel in range(f[COUNT]):
        for i in range(f[KH]):
            for j in range(0, f[KW], together):
                weights = f[PANELS] + 4 * PANEL * channels * ((panel * f[KH] + i) * f[KW] + j)
                for line in range(first, last):
                    down = line % f[HO] * f[SH] - f[TOP] + i * f[DH]
                    if down < 0 or down >= height:
                        continue
                    own = line // f[HO] * height + down
                    for column in range(f[WO]):
                        across = column * f[SW] - f[LEFT] + j * f[DW]
                        a, b = max(across, 0), min(across + together, width)
                        if a >= b:
                            continue
                        begin, end = begins[own * (width + 1) + a], begins[own * (width + 1) + b]
                        cell, at = line * f[WO] + column, 8 * own * width * channels
                        to = 8 * PANEL * (cell * f[COUNT] + panel)
                        if panel == 0:
                            terms[cell] += end - begin
                        live, panel_at = f[LIVE] + at + 8 * begin, weights - 4 * PANEL * channels * across
                        if f[MORE] != 0:
                            add_three(
                                live, end - begin, panel_at, f[SIGNED] + at, f[SIZES] + at, f[MORE] + at,
                                f[SIGNED_SUMS] + to, f[SIZES_SUMS] + to, f[MORE_SUMS] + to,
                            )  # fmt: skip
                        else:
                            add_two(live, end - begin, panel_at, f[SIGNED] + at, f[SIZES] + at, f[SIGNED_SUMS] + to, f[SIZES_SUMS] + to)


# ---- cells times a panel -----------------------------------------------------------------------------------------


def _add_products(live: int, count: int, panel: int, *given: int) -> None:
    """Adds the products of so many cells of a line, at the places `live`, with a panel's weights to a cell's outputs. given: where the
    line's operands begin, and the sums; `panel` is where the weights of the line's first cell would lie.
    """
    at, operands, sums = integers(live, count), given[: len(given) // 2], given[len(given) // 2 :]
    if not len(at):
        return
    first, reach = int(at[0]), int(at[-1]) + 1
    w = floats(panel + 4 * PANEL * first, PANEL * (reach - first)).reshape(-1, PANEL)[at - first].astype(np.float64)
    with np.errstate(invalid="ignore"):
        for k, (x, out) in enumerate(zip(operands, sums, strict=True)):
            doubles(out, PANEL)[:] += doubles(x, reach)[at] @ (np.abs(w) if k else w)


add_two = Routine("polytriton_add_two", 7, _add_products)
add_three = Routine("polytriton_add_three", 9, _add_products)


def text_of_routines(name: str, lanes: int = 0) -> str:
    """LLVM's text of `add_two` and `add_three`, in vectors of so many numbers; 0: of what this processor has."""
    lanes = lanes or (8 if "+avx512f" in loops.features() else 4)
    wide = ' "min-legal-vector-width"="512" "prefer-vector-width"="512"' if lanes == 8 else ""
    head = [f"declare <{lanes} x double> @llvm.fmuladd.v{lanes}f64(<{lanes} x double>, <{lanes} x double>, <{lanes} x double>)"]
    head.append(f"attributes #{ATTRIBUTES} = {{ nounwind{wide} }}")
    return "\n".join([*head, *(_text(routine, lanes) for routine in (add_two, add_three))])


def _text(routine: Routine, lanes: int) -> str:
    """All sums stay in registers while cells pass: twelve vectors of four numbers, three operands and a weight are all that AVX2 has. So
    each vector of weights loses its signs by a mask of its own that stays in memory: one that all shared would be kept in a register.
    """
    vector, bits, parts = f"<{lanes} x double>", f"<{lanes} x i64>", range(PANEL // lanes)
    count = (routine.arguments - 3) // 2
    code = [f"define void @{routine.name}({', '.join(f'i64 %a{k}' for k in range(routine.arguments))}) #{ATTRIBUTES} {{", "entry:"]
    code += [f"  %{what} = inttoptr i64 %a{k} to ptr" for k, what in ((0, "live"), (2, "panel"))]
    for j in parts:
        code.append(f"  %mask{j} = alloca {bits}, align {8 * lanes}")
        code.append(f"  store {bits} <{', '.join([f'i64 {2**63 - 1}'] * lanes)}>, ptr %mask{j}, align {8 * lanes}")
    for k in range(count):
        code += [f"  %x{k} = inttoptr i64 %a{3 + k} to ptr", f"  %to{k} = inttoptr i64 %a{3 + count + k} to ptr"]
        for j in parts:
            code.append(f"  %p{k}.{j} = getelementptr double, ptr %to{k}, i64 {lanes * j}")
            code.append(f"  %b{k}.{j} = load {vector}, ptr %p{k}.{j}, align 8")
    sums = [f"{k}.{j}" for k in range(count) for j in parts]
    code += ["  %any = icmp sgt i64 %a1, 0", "  br i1 %any, label %cell, label %end", "cell:"]
    code.append("  %i = phi i64 [ 0, %entry ], [ %next, %cell ]")
    code += [f"  %v{s} = phi {vector} [ %b{s}, %entry ], [ %n{s}, %cell ]" for s in sums]
    code += ["  %place = getelementptr i64, ptr %live, i64 %i", "  %at = load i64, ptr %place, align 8"]
    for k in range(count):
        code += [
            f"  %xp{k} = getelementptr double, ptr %x{k}, i64 %at",
            f"  %xs{k} = load double, ptr %xp{k}, align 8",
            f"  %xi{k} = insertelement {vector} poison, double %xs{k}, i32 0",
            f"  %xv{k} = shufflevector {vector} %xi{k}, {vector} poison, <{lanes} x i32> zeroinitializer",
        ]
    code.append(f"  %wo = mul i64 %at, {PANEL}")
    for j in parts:
        code += [
            f"  %wi{j} = add i64 %wo, {lanes * j}",
            f"  %wp{j} = getelementptr float, ptr %panel, i64 %wi{j}",
            f"  %wf{j} = load <{lanes} x float>, ptr %wp{j}, align 4",
            f"  %w{j} = fpext <{lanes} x float> %wf{j} to {vector}",
            f"  %wb{j} = bitcast {vector} %w{j} to {bits}",
            f"  %m{j} = load {bits}, ptr %mask{j}, align {8 * lanes}",
            f"  %sb{j} = and {bits} %wb{j}, %m{j}",
            f"  %s{j} = bitcast {bits} %sb{j} to {vector}",
        ]
        for k in range(count):
            factors = f"{vector} %xv{k}, {vector} %{'s' if k else 'w'}{j}"
            code.append(f"  %n{k}.{j} = call {vector} @llvm.fmuladd.v{lanes}f64({factors}, {vector} %v{k}.{j})")
    code += ["  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %a1", "  br i1 %more, label %cell, label %end", "end:"]
    code += [f"  %e{s} = phi {vector} [ %b{s}, %entry ], [ %n{s}, %cell ]" for s in sums]
    code += [f"  store {vector} %e{s}, ptr %p{s}, align 8" for s in sums]
    return "\n".join([*code, "  ret void", "}"])


_sum = loops.loop("I i i", fused.PLAIN, parts=("blocks", "outside"), beside=(text_of_routines,))(_sum_lines)
