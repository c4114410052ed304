"""The row passes of a step fused into one loop each, compiled by Numba where it is installed.

Every kernel walks the cells of each row's window: rows M are flat [row, height, width*channels]; tables are flat
[image, padded height, padded width, channels] and a row's window starts at base[row] (in values), one image line every
`pitch` values. Sums are float64 over exact products of coefficients of either type; re-association is allowed, since the
bound counts any order, but NaN and infinity keep their meaning. What is written never lies in the memory that is read, or the loops
would not be vectorised. The two passes that most time goes to have machine code of their own (row_code.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from polytriton.runtime.cpu import loops
from polytriton.runtime.cpu.outside import Routine
from polytriton.runtime.cpu.row_code import arrays_at, text_of_loop, text_of_routine
from polytriton.runtime.cpu.row_passes import CONCRETIZE, RELAX

AVAILABLE = loops.AVAILABLE
REORDERED = {"reassoc", "contract", "nsz"}
PLAIN: set[str] = set()  # nothing is reordered or contracted


def compile_loop(form: str, flags: set[str] = REORDERED) -> Callable[[Callable[..., Any]], Any]:
    """A loop of this form (see `loops.Loop`); without Numba the torch forms in torch_backend.py serve instead."""
    return loops.loop(form, flags)


def _concretize(m, base, pitch, height, line, lo, hi, point, ends, value, weight, at, most):  # type: ignore[no-untyped-def]
    """value = sum of m*lo where m > 0 and m*hi where m < 0; weight = sum of |m| max(|lo|, |hi|); at = sum of m*point, 0 without one;
    most = sum of m*hi where m > 0 and m*lo where m < 0, 0 where only one of the `ends` is asked for.
    """
    asked = len(point) > 0
    for r in range(len(base)):
        total = 0.0
        large = 0.0
        there = 0.0
        top = 0.0
        for i in range(height):
            a = (r * height + i) * line
            t = base[r] + i * pitch
            mm, ll, hh, pp = m[a : a + line], lo[t : t + line], hi[t : t + line], point[t : t + line]
            for q in range(line):
                x = np.float64(mm[q])
                low = np.float64(ll[q])
                high = np.float64(hh[q])
                total += x * (high if x < 0 else low)
                large += abs(x) * max(abs(low), abs(high))
                if asked:
                    there += x * np.float64(pp[q])
                if ends:
                    top += x * (low if x < 0 else high)
        value[r] = total
        weight[r] = large
        at[r] = there
        most[r] = top


@compile_loop("T I i i i T D")
def weigh(m, base, pitch, height, line, xabs, weight):  # type: ignore[no-untyped-def]
    """weight = sum of |m| xabs."""
    for r in range(len(base)):
        size = 0.0
        for i in range(height):
            a = (r * height + i) * line
            t = base[r] + i * pitch
            mm, xx = m[a : a + line], xabs[t : t + line]
            for q in range(line):
                size += np.float64(abs(mm[q])) * np.float64(xx[q])
        weight[r] = size


@compile_loop("T I i i i T T T D")
def relax(m, base, pitch, height, line, below, above, cut, total):  # type: ignore[no-untyped-def]
    """m *= slope chosen by the sign of m, in place; total = sum of m * upper cut over m < 0."""
    for r in range(len(base)):
        acc = 0.0
        for i in range(height):
            a = (r * height + i) * line
            t = base[r] + i * pitch
            mm, bb, aa, cc = m[a : a + line], below[t : t + line], above[t : t + line], cut[t : t + line]
            for q in range(line):
                x = mm[q]
                acc += np.float64(x) * np.float64(cc[q]) if x < 0 else 0.0
                mm[q] = x * (aa[q] if x < 0 else bb[q])
        total[r] = acc


@compile_loop("T I i i i T I I T T T T I i T T T T D", {"reassoc", "nsz"})
def relax_chosen(  # type: ignore[no-untyped-def]
    out, base, pitch, height, line, m, start, mine, own, below, above, cut, then, next_pitch, lo, hi, less, may, total
):  # fmt: skip
    """`relax` of the rows that begin at start[r] in m, written one behind the other, with a slope of the row's own, moved into [0, 1],
    where the box [lo, hi] of the operand leaves the ReLU undecided.

    A row's own numbers begin at mine[r], its operand's at then[r]. Where the batch says that rows `may`, and the box shows the sign of
    the row's multiplier `less`, that leaves the coefficient; `less` is empty where there are none.
    """
    signed = len(less) > 0
    for r in range(len(base)):
        acc = 0.0
        for i in range(height):
            a, b = start[r] + i * line, (r * height + i) * line
            t, o, s = base[r] + i * pitch, mine[r] + i * pitch, then[r] + i * next_pitch
            mm, nn, kk, ll, hh = m[a : a + line], out[b : b + line], own[o : o + line], lo[s : s + line], hi[s : s + line]
            bb, aa, cc, vv, yy = below[t : t + line], above[t : t + line], cut[t : t + line], less[o : o + line], may[t : t + line]
            for q in range(line):
                x, low, high, k = mm[q], ll[q], hh[q], kk[q]
                k = np.float32(0) if k <= 0 else k if k < 1 else np.float32(1)  # 1 for what is no number
                acc += np.float64(x) * np.float64(cc[q]) if x < 0 else 0.0
                n = x * (aa[q] if x < 0 else k if (low < 0) & (high > 0) else bb[q])
                if signed:
                    v = vv[q]
                    shown = ((v > 0) & (low >= 0)) | ((v < 0) & (high <= 0))
                    n = n - v if shown & (yy[q] != 0) & (abs(v) < np.inf) else n
                nn[q] = n
        total[r] = acc


@compile_loop("T I i i i T D")
def positive_dot(m, base, pitch, height, line, cut, total):  # type: ignore[no-untyped-def]
    """total = sum of m * cut over m > 0."""
    for r in range(len(base)):
        acc = 0.0
        for i in range(height):
            a = (r * height + i) * line
            t = base[r] + i * pitch
            mm, cc = m[a : a + line], cut[t : t + line]
            for q in range(line):
                x = mm[q]
                acc += np.float64(x) * np.float64(cc[q]) if x > 0 else 0.0
        total[r] = acc


@compile_loop("T I i i i T D I2 D D")
def charge(m, base, pitch, height, line, t_table, bias, lines, constant, error):  # type: ignore[no-untyped-def]
    """constant = sum of m * bias, error = sum of |m| t: what an affine step pays. A row's lines of bias begin at lines[r, 0],
    lines[r, 1] apart.
    """
    for r in range(len(base)):
        acc = 0.0
        err = 0.0
        for i in range(height):
            a = (r * height + i) * line
            t = base[r] + i * pitch
            b = lines[r, 0] + i * lines[r, 1]
            mm, tt, bb = m[a : a + line], t_table[t : t + line], bias[b : b + line]
            for q in range(line):
                x = np.float64(mm[q])
                acc += x * np.float64(bb[q])
                err += abs(x) * np.float64(tt[q])
        constant[r] = acc
        error[r] = err


def _relax_and_charge(  # type: ignore[no-untyped-def]
    out, base, pitch, height, line, m, below, above, cut, gap, point, next_pitch, t_table, bias, lines,
    total, constant, error, at, beyond,
):  # fmt: skip
    """`relax` of rows of m, written one behind the other, and `charge` for the affine node behind it; at = sum of m*point before that, 0
    without one; beyond = sum of m*gap over m > 0, 0 without one. lines[r]: where a row's lines of bias begin and how far they lie apart, as
    `charge` reads them, where the row begins in m, and where its operand's window does.
    """
    asked, ends = len(point) > 0, len(gap) > 0
    for r in range(len(base)):
        acc = 0.0
        con = 0.0
        err = 0.0
        there = 0.0
        over = 0.0
        for i in range(height):
            t = base[r] + i * pitch
            s = lines[r, 3] + i * next_pitch
            b = lines[r, 0] + i * lines[r, 1]
            lo, hi, cc, pp = below[t : t + line], above[t : t + line], cut[t : t + line], point[t : t + line]
            gg, tt, bb = gap[t : t + line], t_table[s : s + line], bias[b : b + line]
            a, o = lines[r, 2] + i * line, (r * height + i) * line
            mm, oo = m[a : a + line], out[o : o + line]
            for q in range(line):
                x = mm[q]
                if asked:
                    there += np.float64(x) * np.float64(pp[q])
                if ends:
                    over += np.float64(x) * np.float64(gg[q]) if x > 0 else 0.0
                acc += np.float64(x) * np.float64(cc[q]) if x < 0 else 0.0
                n = x * (hi[q] if x < 0 else lo[q])
                oo[q] = n
                con += np.float64(n) * np.float64(bb[q])
                err += abs(np.float64(n)) * np.float64(tt[q])
        total[r] = acc
        constant[r] = con
        error[r] = err
        at[r] = there
        beyond[r] = over


concretize = loops.loop(CONCRETIZE.form, REORDERED, partial(text_of_loop, CONCRETIZE), ("row_code", "row_passes"))(_concretize)
relax_and_charge = loops.loop(RELAX.form, REORDERED, partial(text_of_loop, RELAX), ("row_code", "row_passes"))(_relax_and_charge)


# ---- the same for a loop that has addresses ----------------------------------------------------------------------


def _concretize_at(rows: int, *given: int) -> None:
    concretize(*arrays_at(CONCRETIZE, rows, given))


def _relax_and_charge_at(rows: int, *given: int) -> None:
    relax_and_charge(*arrays_at(RELAX, rows, given))


concretize_rows = Routine("polytriton_concretize_rows", len(CONCRETIZE.kinds) + 1, _concretize_at)
relax_rows = Routine("polytriton_relax_rows", len(RELAX.kinds) + 1, _relax_and_charge_at)

ROUTINES = partial(text_of_routine, CONCRETIZE, concretize_rows.name), partial(text_of_routine, RELAX, relax_rows.name)


@dataclass(frozen=True)
class PerRow:
    """An argument with one value a row, cut with the rows."""

    values: np.ndarray


def _part(value: Any, a: int, b: int) -> Any:
    return value.values[a:b] if isinstance(value, PerRow) else value


@cache
def kept_threads(threads: int, name: str = "polytriton") -> ThreadPoolExecutor:
    """Kept for the process: a kernel call is shorter than the start of a thread. A forked child makes its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=kept_threads.cache_clear)


def over_rows(
    kernel: Any,
    threads: int,
    m: np.ndarray,
    base: np.ndarray,
    pitch: int,
    height: int,
    line: int,
    *rest: Any,
    outputs: tuple[np.ndarray, ...],
    least: int,
) -> None:
    """Runs a kernel on slices of the rows, one a thread (from `least` values on); the kernels release the interpreter lock."""
    rows, size = len(base), height * line
    if threads <= 1 or rows * size < least:
        kernel(m, base, pitch, height, line, *(_part(v, 0, rows) for v in rest), *outputs)
        return
    cuts = [rows * k // threads for k in range(threads + 1)]
    jobs = [
        kept_threads(threads).submit(
            kernel, m[a * size : b * size], base[a:b], pitch, height, line, *(_part(v, a, b) for v in rest), *(o[a:b] for o in outputs)
        )
        for a, b in pairwise(cuts)
    ]
    for job in jobs:
        job.result()


def over_slices(kernel: Any, threads: int, source: np.ndarray, out: np.ndarray, *rest: Any, least: int) -> None:
    """Runs a kernel on slices of the leading axis of two arrays, one a thread."""
    rows = len(source)
    if threads <= 1 or source.size < least:
        kernel(source, out, *rest)
        return
    cuts = [rows * k // threads for k in range(threads + 1)]
    for job in [kept_threads(threads).submit(kernel, source[a:b], out[a:b], *rest) for a, b in pairwise(cuts)]:
        job.result()


def over_ranges(kernel: Any, threads: int, source: np.ndarray, out: np.ndarray, *rest: Any, least: int) -> None:
    """Runs a kernel on ranges of the rows of `out`, which it is told, one a thread."""
    rows = len(out)
    if threads <= 1 or source.size < least:
        kernel(source, out, *rest, 0, rows)
        return
    cuts = [rows * k // threads for k in range(threads + 1)]
    for job in [kept_threads(threads).submit(kernel, source, out, *(*rest, a, b)) for a, b in pairwise(cuts)]:
        job.result()
