"""Rows along a tape in one compiled call: those that are given, or both sides of neurons, one side after the other."""

from __future__ import annotations

import numpy as np

from polytriton.runtime.cpu import convs, fused, loops
from polytriton.runtime.cpu.outside import doubles, floats
from polytriton.runtime.cpu.scalars import is_kept
from polytriton.runtime.cpu.tape_loop import FAR, play_some

FIRST, BY_SIGN, KEPT, ENDS, REST = range(5)  # what is asked of neurons
ALL, RUNNING, OPEN = range(3)  # the neurons of which the other side gets rows: all, those not switched off, those not settled


def choose_first(known, by_sign, first, at, signs):  # type: ignore[no-untyped-def]
    """Neurons from number `first` on, and of each the side that goes first: +x, or `by_sign` that whose known bound is the better."""
    for r in range(len(at)):
        k = first + r
        at[r], signs[r] = k, 1 if known[0, k] >= known[1, k] or not by_sign else -1


def begin_side(places, at, signs, whole, scalars):  # type: ignore[no-untyped-def]
    """Rows of the neurons `at` (`places`: cell, image, line, column, channel) as a tape reads them, some at a time."""
    some = whole.shape[2]
    for r in range(len(at)):
        k, piece, q = at[r], r // some, r % some
        whole[piece, 0, q], whole[piece, 1, q], whole[piece, 2, q] = places[1, k], places[2, k], places[3, k]
        whole[piece, 3, q], whole[piece, 4, q] = r, places[4, k]
        for j in range(3):
            scalars[piece, j, q] = 0.0
        scalars[piece, 3, q] = signs[r]


def end_side(best, other, at, signs, known, kept, rest):  # type: ignore[no-untyped-def]
    """Bounds of the rows of neurons `at` join those that are known; returns how many get a row of the other side, which take the place of
    these, with the other sign.
    """
    count = 0
    for r in range(len(at)):
        k, own = at[r], 0 if signs[r] > 0 else 1
        if is_kept(best[r], known[own, k], kept):
            known[own, k] = best[r]
        if len(other) > 0 and is_kept(other[r], known[1 - own, k], True):
            known[1 - own, k] = other[r]
        if rest == ALL or (known[1, k] < 0 and (rest == RUNNING or known[0, k] < 0)):
            at[count], signs[count] = k, -signs[r]
            count += 1
    return count


def _play(  # type: ignore[no-untyped-def]
    tape, reals, slots, rows, whole, scalars, bounds, group, done, strict, leave, notes, counts, lines, near, told, asked, places, known,
    at,
):  # fmt: skip
    """Plays a tape, some rows after others; returns how many of the last are left. told[k]: rows that check k leaves open, and that go on.

    `slots` are addresses of the coefficients, values of a row there, and addresses of what all rows came with. `whole` has, some rows at a
    time, each one's image, its place down and across, its index and, of a row that is a neuron, its channel; `scalars` constants, errors,
    excesses and, of neurons, signs. `bounds` are addresses of what is found of each row: its best bound and what that would be without
    rounding, then the same of its other end, none where nobody asks. `near`: memory for places of a kernel's lines.

    With something `asked`, the rows are of neurons with these `places`, so many from FIRST on, and their bounds join those that are
    `known`, of +x and of -x; where these are lower ones of either sign BY_SIGN, the likelier goes first. Then come rows of the other side,
    of the REST of the neurons; returned is how many these are. KEPT: a bound counts where it is better than the known one. ENDS: rows of
    the first side are read from both ends. `at` is memory for neurons and signs.
    """
    n, neurons = rows, len(asked) > 0
    if neurons:
        choose_first(known, asked[BY_SIGN] != 0, asked[FIRST], at[0, :n], at[1, :n])
    best, raw_best, other, raw_other = doubles(bounds[0], FAR), doubles(bounds[1], FAR), doubles(bounds[2], FAR), doubles(bounds[3], FAR)
    some, sizes, left, second = whole.shape[2], slots[1], 0, 0
    for side in range(2):
        if neurons:
            best[:n], raw_best[:n], other[:n], raw_other[:n] = -np.inf, -np.inf, -np.inf, -np.inf
            done[:] = False
            begin_side(places, at[0, :n], at[1, :n], whole, scalars)
            if side == 1 or asked[ENDS] == 0:
                other, raw_other = other[:0], raw_other[:0]
        for k in range(len(whole)):
            a, b = k * some, min(n, (k + 1) * some)
            if k > 0 and a >= n:
                break
            for s in range(slots.shape[1]):
                if slots[2, s] != 0:
                    to, source = floats(slots[0, s], FAR), floats(slots[2, s], FAR)
                    for q in range((b - a) * sizes[s]):
                        to[q] = source[a * sizes[s] + q]
            left = play_some(
                tape, reals, slots[0], sizes, b - a, whole[k], scalars[k], best, raw_best, other, raw_other, group, done, strict, leave,
                notes, counts, lines, near, told,
            )  # fmt: skip
        if not neurons:
            return left
        count = end_side(best, other, at[0, :n], at[1, :n], known, asked[KEPT] != 0, asked[REST])
        if side == 1 or count == 0:
            break
        second = n = count
    return second


FORM = "I2 D2 I2 i I3 D3 I I B b d D2 I2 I2 I I2 I I2 D2 I2"
PARTS = ("blocks", "convs", "fused", "outside", "row_code", "row_passes", "scalars", "sums", "tape_loop")
play = loops.loop(FORM, fused.PLAIN, parts=PARTS, beside=(convs.text_of_routines, *fused.ROUTINES))(_play)
