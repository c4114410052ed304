"""Steps of a program over a block of rows in one compiled call: instructions (tape.py) on coefficients that lie in slots of one memory.

Between the loops that it calls nothing is left for Python to do, so threads that walk blocks of their own do not wait for each other.
An instruction is a line of whole numbers: what it does, the slots it reads and writes, where the rows' windows lie, addresses of tables.
The loops and their order are those of walk.py. play_loop.py calls `play_some`.
"""

from __future__ import annotations

import numpy as np

from polytriton.runtime.cpu.blocks import multiply_rows
from polytriton.runtime.cpu.convs import convolve_rows
from polytriton.runtime.cpu.fused import charge, concretize_rows, positive_dot, relax, relax_rows, weigh
from polytriton.runtime.cpu.outside import doubles, floats, integers
from polytriton.runtime.cpu.scalars import exceed_rows, find_open, pay_rows, settle_rows

KINDS = 18
CANDIDATE, SETTLE, LEAVE, RELAX, CHARGE, LINEAR, CONV, MASK, WEIGH, PAY, POINT, ZERO, JOIN, COPY = range(14)
BEGIN, CHARGE_BEGIN, RELAX_ALONE, UNIT = range(14, KINDS)
OP, M, OUT, PLACE, REST, FIELDS = 0, 1, 2, 3, 10, 28  # of an instruction; a place is seven numbers (`find_windows`)
PITCH, HEIGHT, LINE = PLACE + 4, PLACE + 5, PLACE + 6
REALS, MOST = 6, 4  # real numbers that an instruction has beside them, and entries of a frontier that is checked
TOTAL, CONSTANT, ERROR, AT, BEYOND, RAW, SLACK, LEAST = range(8)  # what is noted of every row; a least value and a weight for each entry
OTHER = LEAST + 2 * MOST  # and its greatest value, negated
NOTES = OTHER + MOST
COUNTS, LINES = 3, 4
BASE, THEN, STAY = range(COUNTS)  # whole numbers of every row; beside them the LINES of `relax_and_charge`
SCALARS, PLACES = 4, 5
TAPS = 0  # the slot of a convolution's products
FAR = 1 << 40  # values: no table is as long


def find_windows(base, image, h, w, f, a):  # type: ignore[no-untyped-def]
    """Where each row's window begins: so much for its image, at first, and for its place down and across."""
    for r in range(len(base)):
        base[r] = image[r] * f[a] + f[a + 1] + h[r] * f[a + 2] + w[r] * f[a + 3]


def find_lines(lines, base, pitch, own, step):  # type: ignore[no-untyped-def]
    """Where each row's lines of a bias begin and how far they lie apart: in a table at its place, or the same for all rows."""
    for r in range(len(lines)):
        lines[r, 0] = base[r] if own else 0
        lines[r, 1] = pitch if own else step


def move_rows(m, size, stay, count):  # type: ignore[no-untyped-def]
    """The rows that stay, one behind the other; none moves to a later place, so each is read before it is written over."""
    for r in range(count):
        if stay[r] != r:
            a, b = r * size, stay[r] * size
            for q in range(size):
                m[a + q] = m[b + q]


def begin_rows(out, sign, factor, channel, weights, height, line, outer, width, top, left, picked, pick):  # type: ignore[no-untyped-def]
    """Rows +x or -x of single neurons behind their affine node: its weights, [height, line] with zeros around, or these columns."""
    for r in range(len(sign)):
        own, to = weights[channel[r] * height * line : (channel[r] + 1) * height * line], out[r * outer * width : (r + 1) * outer * width]
        s = np.float32(sign[r] * factor)
        if picked:
            for q in range(width):
                to[q] = own[pick[q]] * s
            continue
        if height * line != outer * width:
            to[:] = 0
        for i in range(height):
            a, b = i * line, (top + i) * width + left
            mm, oo = own[a : a + line], to[b : b + line]
            for q in range(line):
                oo[q] = mm[q] * s


def write_units(out, size, sign, factor, channel):  # type: ignore[no-untyped-def]
    """The same before it: one on the neuron, or less than nothing, exactly, and zeros on the other channels of its cell."""
    for r in range(len(sign)):
        to = out[r * size : (r + 1) * size]
        to[:] = 0
        to[channel[r]] = np.float32(sign[r] * factor)


def charge_begun(f, image, h, w, sign, factor, channel, first, bias, con, err):  # type: ignore[no-untyped-def]
    """What such rows bring to the constant, and the error of that: no sum, so no rounding but the table's own."""
    for r in range(len(sign)):
        at = h[r] * f[PLACE + 2] + w[r] * f[PLACE + 3] + channel[r]
        con[r] = sign[r] * factor * bias[channel[r] if f[REST + 2] != 0 else at] if len(bias) > 0 else 0.0
        err[r] = first[image[r] * f[PLACE] + at]


def pick_columns(m, size, pick, out, terms, rows):  # type: ignore[no-untyped-def]
    for r in range(rows):
        for t in range(terms):
            out[r * terms + t] = m[r * size + pick[t]]


def place_columns(m, columns, place, out, size, rows):  # type: ignore[no-untyped-def]
    """Zero but for these columns."""
    for r in range(rows):
        out[r * size : (r + 1) * size] = 0
        for c in range(columns):
            out[r * size + place[c]] = m[r * columns + c]


def multiply_table(m, base, pitch, height, line, table):  # type: ignore[no-untyped-def]
    for r in range(len(base)):
        for i in range(height):
            a, t = (r * height + i) * line, base[r] + i * pitch
            mm, tt = m[a : a + line], table[t : t + line]
            for q in range(line):
                mm[q] = mm[q] * tt[q]


def join_windows(m, height, line, out, outer, width, top, left, down, across, h, w):  # type: ignore[no-untyped-def]
    """Adds windows [height, line] to windows [outer, width], from line `top` and value `left` on, and so many further for every step of a
    row's place down and across. What lies outside of these is dropped: cells off the image.
    """
    for r in range(len(h)):
        t, a = top + h[r] * down, left + w[r] * across
        first = max(0, -a)
        count = max(0, min(line, width - a) - first)
        for i in range(max(0, -t), min(height, outer - t)):
            begin, to = (r * height + i) * line + first, (r * outer + t + i) * width + a + first
            mm, oo = m[begin : begin + count], out[to : to + count]
            for q in range(count):
                oo[q] = oo[q] + mm[q]


def settle_entries(f, g, notes, first, step, image, index, constant, best, raw_best):  # type: ignore[no-untyped-def]
    """A candidate bound: RAW and SLACK are joined by what is noted of each entry, its least value every `step` lines from `first` on."""
    n, last = len(constant), f[REST] - 1
    raw, slack = notes[RAW][:n], notes[SLACK][:n]
    for j in range(last):
        least, weight, floor = notes[first + step * j], notes[LEAST + 2 * j + 1], doubles(f[REST + 1 + j], FAR)
        for r in range(n):
            slack[r] = slack[r] + weight[r] * g[j] + floor[image[r]]
            raw[r] += least[r]
    least, weight, floor = notes[first + step * last], notes[LEAST + 2 * last + 1], doubles(f[REST + 1 + last], FAR)
    settle_rows(least[:n], weight[:n], g[last], floor, image, raw, slack, constant, g[REALS - 1], index, best, raw_best)


def play_some(  # type: ignore[no-untyped-def]
    tape, reals, slots, sizes, n, whole, scalars, best, raw_best, other, raw_other, group, done, strict, leave, notes, counts, lines, near,
    told,
):  # fmt: skip
    """Plays a tape with n rows; returns how many are left."""
    image, h, w, index, channel = whole[0], whole[1], whole[2], whole[3], whole[4]
    constant, error, excess, sign = scalars[0], scalars[1], scalars[2], scalars[3]
    moved, ends = False, len(other) > 0
    base, then, stay = counts[BASE], counts[THEN], counts[STAY]
    none = doubles(0, 0)
    for k in range(len(tape)):
        f, g = tape[k], reals[k]
        op, pitch, height, line = f[OP], f[PITCH], f[HEIGHT], f[LINE]
        if op == SETTLE:
            for r in range(n):
                notes[RAW, r], notes[SLACK, r] = constant[r], error[r]
            settle_entries(f, g, notes, LEAST, 2, image[:n], index[:n], constant[:n], best, raw_best)
            if ends:
                for r in range(n):
                    notes[RAW, r], notes[SLACK, r] = -constant[r], error[r] + excess[r]
                settle_entries(f, g, notes, OTHER, 1, image[:n], index[:n], constant[:n], other, raw_other)
            continue
        if op == LEAVE:
            if len(group) == 0:
                continue
            count = find_open(index[:n], group, best, strict, done, stay[:n])
            if f[REST]:
                return n
            at = f[REST + 3]
            told[at, 0] += count
            if n - count > leave * n or count == 0:
                for r in range(count):
                    s = stay[r]
                    image[r], h[r], w[r], index[r], constant[r], error[r] = image[s], h[s], w[s], index[s], constant[s], error[s]
                    excess[r], channel[r], sign[r] = excess[s], channel[s], sign[s]
                moved = f[REST + 1] != 0
                if not moved:
                    for s in range(len(slots)):
                        if (f[REST + 2] >> s) & 1:
                            move_rows(floats(slots[s], FAR), sizes[s], stay, count)
                n = count
            told[at, 1] += n
            if n == 0:
                return n
            continue
        m, out = floats(slots[f[M]], FAR), floats(slots[f[OUT]], FAR)
        if op == BEGIN:
            line = f[REST + 1]
            begin_rows(
                out, sign[:n], g[0], channel, floats(f[REST + 7], FAR), f[REST], line, f[REST + 2], f[REST + 3], f[REST + 4],
                f[REST + 5], f[REST + 6] != 0, integers(f[REST + 8], f[REST + 3]),
            )  # fmt: skip
        elif op == UNIT:
            write_units(out, sizes[f[OUT]], sign[:n], g[0], channel)
        elif op == CHARGE_BEGIN:
            con, err = notes[CONSTANT][:n], notes[ERROR][:n]
            charge_begun(f, image, h, w, sign[:n], g[0], channel, doubles(f[REST], FAR), doubles(f[REST + 1], FAR), con, err)
            pay_rows(constant[:n], error[:n], con, err, none, 1.0, 1.0, image[:n])
        elif op == ZERO:
            out[: n * sizes[f[OUT]]] = 0
        elif op == COPY:
            for q in range(n * sizes[f[M]]):
                out[q] = m[q] * np.float32(g[0])
        elif op == JOIN:
            join_windows(
                m, height, line, out, f[REST], f[REST + 1], f[REST + 2], f[REST + 3], f[REST + 4], f[REST + 5], h[:n], w[:n]
            )  # fmt: skip
        elif op == LINEAR:
            panels, count, terms, columns, picks, places = f[REST], f[REST + 1], f[REST + 2], f[REST + 3], f[REST + 4], f[REST + 7]
            source, to = slots[f[M]], slots[f[OUT]]
            if picks != 0:
                source = slots[f[REST + 5]]
                pick_columns(m, sizes[f[M]], integers(f[REST + 6], terms), floats(source, FAR), terms, n)
            if places != 0:
                to = slots[f[REST + 8]]
            if terms == 0:
                floats(to, n * columns)[:] = 0
            else:
                multiply_rows(source, n, terms, to, columns, panels, count)
            if places != 0:
                place_columns(floats(to, FAR), columns, integers(f[REST + 9], columns), out, sizes[f[OUT]], n)
        elif op == CONV:
            # kernel's lines, values of one, channels, top, left, strides, dilations, rows at a time, panels, their number, the rows' shape
            convolve_rows(
                slots[f[M]], n, f[REST + 12], f[REST + 13], f[REST + 14], slots[f[OUT]], height, line, f[REST + 10], f[REST + 11],
                slots[TAPS], near.ctypes.data, f[REST], f[REST + 1], f[REST + 2], f[REST + 3], f[REST + 4], f[REST + 5], f[REST + 6],
                f[REST + 7], f[REST + 8], f[REST + 9],
            )  # fmt: skip
        elif op == PAY:
            pay_rows(constant[:n], error[:n], none, notes[CONSTANT][:n], doubles(f[REST], FAR), 0.0, g[0], image[:n])
        else:
            find_windows(base[:n], image, h, w, f, PLACE)
            total, extra, beyond = notes[TOTAL][:n], notes[AT][:n], notes[BEYOND][:n]
            if op == CANDIDATE:
                j, point = LEAST + 2 * f[REST + 3], f[REST + 2]
                most = notes[OTHER + f[REST + 3]][:n]
                concretize_rows(
                    n, slots[f[M]], base.ctypes.data, pitch, height, line, f[REST], f[REST + 1], point, ends, notes[j].ctypes.data,
                    notes[j + 1].ctypes.data, extra.ctypes.data, most.ctypes.data,
                )  # fmt: skip
                if point != 0:
                    pay_rows(constant[:n], error[:n], extra, none, none, -1.0, 1.0, image[:n])
                for r in range(n):
                    most[r] = -most[r]
            elif op == POINT:
                concretize_rows(
                    n, slots[f[M]], base.ctypes.data, pitch, height, line, f[REST], f[REST], 0, 0, total.ctypes.data,
                    notes[CONSTANT].ctypes.data, extra.ctypes.data, beyond.ctypes.data,
                )  # fmt: skip
                pay_rows(constant[:n], error[:n], total, none, none, -1.0, 1.0, image[:n])
            elif op == WEIGH:
                weigh(m, base[:n], pitch, height, line, floats(f[REST], FAR), total)
                weights = notes[CONSTANT]
                for r in range(n):
                    weights[r] = total[r] + (0.0 if f[REST + 1] else weights[r])
            elif op == MASK:
                multiply_table(m, base[:n], pitch, height, line, floats(f[REST], FAR))
            elif op == CHARGE:
                find_lines(lines[:n], base, pitch, f[REST + 3], f[REST + 4])
                t, bias, con, err = floats(f[REST], FAR), doubles(f[REST + 1], FAR), notes[CONSTANT][:n], notes[ERROR][:n]
                charge(m, base[:n], pitch, height, line, t, bias, lines[:n], con, err)
                pay_rows(constant[:n], error[:n], con, err, doubles(f[REST + 2], FAR), 1.0, g[0], image[:n])
            elif op == RELAX_ALONE:
                for q in range(n * height * line):
                    out[q] = m[q]
                if ends:
                    positive_dot(m, base[:n], pitch, height, line, floats(f[REST + 3], FAR), beyond)
                    exceed_rows(excess[:n], beyond, g[0] * g[0])
                relax(out, base[:n], pitch, height, line, floats(f[REST], FAR), floats(f[REST + 1], FAR), floats(f[REST + 2], FAR), total)
                pay_rows(constant[:n], error[:n], total, none, none, g[0], 1.0, image[:n])
                if ends:
                    exceed_rows(excess[:n], total, -g[0] * g[0])
            elif op == RELAX:
                size = height * line
                find_windows(then[:n], image, h, w, f, REST + 9)
                find_lines(lines[:n], then, f[REST + 13], f[REST + 7], f[REST + 8])
                for r in range(n):
                    lines[r, 2], lines[r, 3] = (stay[r] if moved else r) * size, then[r]
                moved = False
                point, gap, con, err = f[REST + 3], f[REST + 14] if ends else 0, notes[CONSTANT][:n], notes[ERROR][:n]
                relax_rows(
                    n, slots[f[OUT]], base.ctypes.data, pitch, height, line, slots[f[M]], f[REST], f[REST + 1], f[REST + 2], gap, point,
                    f[REST + 13], f[REST + 4], f[REST + 5], lines.ctypes.data, total.ctypes.data, con.ctypes.data, err.ctypes.data,
                    extra.ctypes.data, beyond.ctypes.data,
                )  # fmt: skip
                if ends:
                    exceed_rows(excess[:n], beyond, g[0] * g[0])
                if point != 0:
                    pay_rows(constant[:n], error[:n], extra, none, none, -1.0, 1.0, image[:n])
                pay_rows(constant[:n], error[:n], total, none, none, g[0], 1.0, image[:n])
                if ends:
                    exceed_rows(excess[:n], total, -g[0] * g[0])
                pay_rows(constant[:n], error[:n], con, err, doubles(f[REST + 6], FAR), 1.0, g[0], image[:n])
    return n
