"""The independent checker of certificates (`polytriton check`): numpy, exact rationals, and `checker_files.py`, which reads files.

A property's unsafe set is a union of pieces {x in a box, every row C y + D x <= k}. A certificate gives trees, each about some pieces of
one box, every piece in some. The root is every execution of every x in the box. A node's children are two boxes that share a number in an
input's range, or the executions with a neuron's operand >= 0 and those with it <= 0. Nothing is lost, so a piece is empty if on every path
some node refutes it: one of its rows exceeds k there, or it has no execution. The checker makes children and bounds; the certificate says
where to divide, how hard to work, which rows to try. An end with open pieces is refused, or cut (5) and divided as a `Divider` says; it and
who proposes slopes (`checker_slopes.py`) may say anything, but write nothing. Bounds of a node hold for its children.
1. The network comes from the ONNX file, the unsafe set from the VNN-LIB file in exact rationals, its boxes rounded outward.
2. In the network's order each value gets an interval from its operands' (`Boxes.interval`). Operands of ReLUs are bounded again by
   backward substitution (`Boxes.lower`); two bounds that cross, both being proved, show that the node has no execution.
3. Where a ReLU's operand z may have both signs, the line below is s z, the line above t z + m (`Boxes.relax`). Any s in [0, 1] is right,
   row by row; relu is convex, so a line above both ends, m >= -t l and m >= u (1 - t), is above it between them. Otherwise the ReLU is the
   identity or zero. Where all executions have sigma z >= 0, sigma = 1 or -1, A.z >= A.z - b sigma z: a row may lose any b sigma, b >= 0.
4. A row's least value, by the same substitution, exceeds k, compared in exact rationals.
5. At the input a row is >= A.x + c >= L over the box. Let x_i lie d above its lower end, where A_i > 0, or below its upper one, where
   A_i < 0: A.x + c >= L + |A_i| d, so the row is <= k only where d <= (k - L) / |A_i| (`margins`, moved up). A piece wants all rows <= k:
   the box around what each open piece leaves holds all that reach one, and the node, its margins too, is of these from then on (`cut`).
Rounding. u = 2^-53, n the largest number of terms of any sum. A sum of n products in any order, fused or not, is off by at most g times
the sum of magnitudes, g = n u / (1 - n u) (Higham, section 3.1). G = 4 (n + 64) u > 3.9 g + 250 u. |z| is the largest magnitude in z's
interval. A row (A, c) means: target >= A.z + c for every execution of the node; z are values of operators, A floats as stored:
  z = W y + b: A.z = (A W).y + A.b; fl(A W) and fl(A.b) are off by g |A|(|W||y| + |b|) in all, and weights of `scale` are rounded up to
    8 times. T = G (|W||y| + |b|) + FLOOR leaves room for T's own rounding and the dot product's: c becomes c + fl(A.b) - fl(|A|.T).
  v = relu(z): A v >= A s z where A >= 0, and A (t z + m) where A < 0. The products' rounding costs u |A'||z|; 4 u |z| is charged. The sum
    of A m has only terms <= 0: enlarged by the factor 1 + G it is below the exact one. b is taken where s and t are 0 or 1: the product
    rounds nothing there, and fl(A' - sigma b) lies on the right side of A', since rounding is monotone.
  z = y +- y': coefficients are copied. Where two contributions to one node meet and are added, 4 u |z| is charged again.
  Bound: A.z >= A.mid - |A|.rad; with R = rad + G (|mid| + rad) + FLOOR, fl(A.mid) - fl(|A|.R) lies below it.
Scalars move one float down after each addition. What is not finite is no bound. An underflow loses 2^-1075 at most; bounds, weights and
constants stay below 1e100 (else refused), so a row loses less than FLOOR = 1e-100 in all; FLOOR in T and R pays for theirs.
Semantics. Under `real` an execution is the exact function. Under `float32` it is any in which every operator of the file computes float32
products and sums of them in any order, fused or not, each result rounded in any IEEE mode (v = 2^-23 bounds it), operands and results below
ETA = 2^-126 kept or flushed; affine operators in a row, but no convolution with a layer, may be merged if no product is rounded more often;
a constant, or the number that a sum's operand is, may be one more addend of the layers before, as runtimes start sums. Under `tf32`, `bf16`
and `float16`, of float32 files, layers (Conv, Gemm, MatMul) convert weights and operands besides, no addends: to 11, 8, 11 bits, up or
down, numbers below the normal range to any next to them or zero; tensor cores cut off what they add: v = 2^-22. A number w moves by at most
unit |w| + min(|w|, tiny) + step =: shift(w): in float16 to zero below 2^-14, by 2^-24, beyond 65504 anywhere; else by ETA. Then
  z (of an affine operator or a sum) stands for the exact function of what the input and the last ReLUs, or `stored` values, before it gave.
    The executed value is z + d, |d| <= E. M bounds the magnitudes of all terms of z, before any cancels. The operand is y + d, no cell has
    more than f products with cells that differ from zero (a zero rounds nothing): with `ops` roundings more a term passes f + 1 + ops, and
    with gamma_n = n v / (1 - n v), x = M + E + ETA, S = |W| x + |b| and, where it converts, C = |W| shift(x) + shift(W) (x + shift(x))
      M' = S,   E' = |W|(E + ETA) + C + gamma_(f + 1 + ops) (S + C) + sum_y gamma_passed (|y| + E) + lost.
    First the operand's own error and flush, weighted; then conversions, w'y' - wy = w (y' - y) + (w' - w) y'; all is rounded. Factors
    multiply, those of merged operators too, where fewer numbers convert: (1 + gamma_j)(1 + gamma_k) <= 1 + gamma_(j + k). An addend y (a
    sum's operand; b) of layers before passes, besides what its own operator rounds, an addition for each of their f + 1 terms at most, as
    many as all there pass since the last ReLUs (`chain`), and their terms one more (f = 1). Each of 2 (f + ops + passed) + 16 operations
    may lose ETA times 1 + max(M + E), or LOST = 2^60 ETA for later factors, all since the last ReLUs below 2^60 (else `strange`) times (1 +
    unit)^2 a layer; in a first layer, ops = 0, none comes later: 2 ETA pays for f products, f + 1 sums, f flushed weights. A flushed weight
    loses ETA times 2^26 operands below 2^36 (else refused): < LOST. Float16 may flush merged weights: there no affine operator reads
    another (`merged`) but a stored one, and past a sum of two values nobody merges.
  A ReLU is handed z' = z + d, |d| <= E + 2 ETA =: Z, where a result that is flushed counts as z' <= 0. Lines and signs are those of z': its
    box is z's, Z wider. A row over z' is a row over z that costs |A'| Z more; a row over the output costs |C| Z. ReLUs of one operand are
    one: an operator's result is one number to them, but for what each may flush, and who reads theirs is charged ETA for that.
  Where layers alone read one (Conv, Gemm, MatMul), and of it and each of them one is a convolution, nobody merges it: it is `stored`, one
    number z' = z + d to all, |d| <= Z, and means z' to them. Its box is z's, Z wider, M |z'|, E 0; T counts Z: a row costs |A| Z more.
Assumed: IEEE float64, to nearest, gradual underflow (`plain` sets them, `check` tries them), matrix products that sum products."""

from __future__ import annotations

import ctypes
import functools
import gzip
import hashlib
import io
import json
import math
import sys
from collections import namedtuple
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from polytriton.checker_files import HUGE, MAX_TEXT, NONE, SMALL, Array, Atom, Box, Network, Pieces, Refused, Unsupported, need, unsafe
from polytriton.checker_slopes import Divider, Progress, StillOpen, ascend

FORMAT = {"format": "polytriton certificate", "version": "3"}
U, FLOOR, ETA, LOST, ROOM, MOST = 2.0**-53, 1e-100, 2.0**-126, 2.0**-66, 1 + 2.0**-20, 2.0**36
Deployed = namedtuple("Deployed", "v unit tiny step most")  # what an addition rounds; what a conversion does to numbers up to `most`
SEMANTICS = {"real": None, "float32": Deployed(2.0**-23, 0.0, 0.0, 0.0, MOST), "tf32": Deployed(2.0**-22, 2.0**-10, 0.0, ETA, MOST),
             "bf16": Deployed(2.0**-22, 2.0**-7, 0.0, ETA, MOST), "float16": Deployed(2.0**-22, 2.0**-10, 2.0**-14, 2.0**-24, 65504.0)}
BLOCK, BATCH, STEPS, TIGHT, NODES, WAYS = 1 << 21, 1 << 18, 1000, 1001, 1 << 24, 64  # coefficients, values at a time; what may be asked
PROBE, ROUNDED = (np.resize(np.array(bits), 255) for bits in ([1 << 30, 0x3FFC << 48, (0x3FF << 52) + 1], [0, 2, 1]))  # tiny, 1.75, 1 + 2 u
TENSORS = dict.fromkeys(("own", "split", "inner", "query", "node", "piece", "row"), "<i4") | {"cut": "<f8"}
def plain(function: Any) -> Any:
    """It runs where this thread rounds to nearest, keeps subnormal numbers and traps nothing; its caller gets back what was set."""
    @functools.wraps(function)
    def run(*given: Any, **named: Any) -> Any:
        old, libc = ctypes.create_string_buffer(512), ctypes.PyDLL(None) if sys.platform == "linux" else None
        _ = libc and (libc.fegetenv(old), libc.fesetenv(ctypes.c_void_p(-1)))
        try:
            return np.errstate(all="ignore")(function)(*given, **named)
        finally:
            _ = libc and libc.fesetenv(old)
    return run
down, up = (functools.partial(lambda end, x: np.nextafter(x, np.where(np.isinf(x), x, end)), end) for end in (-np.inf, np.inf))
def pick(v: Array, at: Array | None) -> Array:  # a box's column for each row; one that is the same for all is not copied
    return v if at is None or v.shape[1] == 1 else v[:, at[:1] if (at == at[:1]).all() else at]
def dot(v: Array, a: Array, at: Array | None = None) -> Array:  # of each column of `a` with its box's, or with its own
    return v[:, 0] @ a if (v := pick(v, at)).shape[1] == 1 else np.einsum("ij,ij->j", v, a)
def shift(v: Array, how: Any) -> Array:  # by how much a conversion does at most
    return np.where((size := np.abs(v)) <= how.most, how.unit * size + np.minimum(size, how.tiny) + how.step, np.inf)
def live(a: Array) -> Any:  # cells where any row has a coefficient; all of them, if most are
    return some if 2 * len(some := np.flatnonzero(a.any(1))) < len(a) else slice(None)
def outward(box: Box) -> tuple[Array, Array]:
    need(all(abs(v) <= HUGE for v in (*box[0], *box[1])), f"an input bound beyond {HUGE}")
    lo, hi = (np.array(side, dtype=np.float64) for side in box)  # to the nearest; then outward where that lies inside, exactly
    above, below = ([s * v < s * f for f, v in zip(e.tolist(), t, strict=True)] for s, e, t in ((1, lo, box[0]), (-1, hi, box[1])))
    return np.where(above, down(lo), lo), np.where(below, up(hi), hi)
class Boxes:
    """Bounds of every value over some boxes of inputs, columns of [cells, boxes], and the vectors of the proof above, by operator. `signs`:
    sigma of a ReLU's operand [cells, boxes], where it is assumed. `empty`: boxes shown to have no execution."""
    def __init__(self, net: Network, lo: Array, hi: Array, semantics: str = "real", signs: dict[int, Array] | None = None) -> None:
        self.net, self.semantics, self.how, self.signs = net, semantics, (how := SEMANTICS[semantics]), signs or {}
        self.lo, self.hi, self.mid, self.rad, self.mag, self.R, self.T, self.M, self.E = ([NONE] * len(net.ops) for _ in range(9))
        self.z, self.lines = dict[int, Any](), dict[int, Any]()  # of a ReLU: its operand's box as executed, and Z; s, t, m
        self.G, self.empty = 4 * (net.terms + 64) * U, np.zeros(lo.shape[1], dtype=bool)
        self.signed = np.any([self.empty, *((sigma != 0).any(0) for sigma in self.signs.values())], axis=0)
        why = net.strange * bool(how) + net.wide * bool(how and how.unit) + net.merged * bool(how and how.tiny)
        need(not why, f"{semantics} executions: {''.join(why[:1])}")
        self.put(0, lo, hi)
        self._rounding(0)
    def check_ends(self, lo: Array, hi: Array, message: str) -> tuple[Array, Array]:
        """Ends that are proved; where they cross there is no execution, and any box will do."""
        need((np.maximum(np.abs(lo), np.abs(hi)) <= HUGE).all(), f"{message} are too large", Refused)
        crossed = (lo > hi).any(0)
        need(not (crossed & ~self.signed).any(), f"{message} cross", Refused)
        self.empty |= crossed
        return (np.minimum(lo, hi), hi) if crossed.any() else (lo, hi)
    def put(self, k: int, lo: Array, hi: Array) -> None:
        lo, hi = self.check_ends(lo, hi, f"bounds of {self.net.names[k]}")
        self.lo[k], self.hi[k], self.mid[k], self.mag[k] = lo, hi, lo / 2 + hi / 2, np.maximum(np.abs(lo), np.abs(hi))
        self.rad[k] = up(np.maximum(up(hi - self.mid[k]), up(self.mid[k] - lo)))
        self.R[k] = self.rad[k] + self.G * (np.abs(self.mid[k]) + self.rad[k]) + FLOOR
    def interval(self, k: int) -> None:
        op, i = self.net.ops[k], self.net.ops[k].inputs[0]
        if op.kind == "relu":
            self.put(k, np.maximum(self.z[k][0], 0), np.maximum(self.z[k][1], 0))
        elif op.kind == "add":
            lo, hi = (op.signs[1] * v[op.inputs[1]] for v in ((self.lo, self.hi) if op.signs[1] > 0 else (self.hi, self.lo)))
            self.put(k, down(self.lo[i] + lo), up(self.hi[i] + hi))
        else:
            self.T[k] = self.G * (op.push(self.mag[i], np.abs) + op.babs[:, None]) + FLOOR
            mid, rad = op.push(self.mid[i], np.asarray) + op.b[:, None], up(op.push(self.rad[i], np.abs) + self.T[k])
            self.put(k, down(mid - rad), up(mid + rad))
        self._rounding(k)
    def _rounding(self, k: int) -> None:
        op, how, name = self.net.ops[k], self.how, self.net.names[k]
        self.M[k], self.E[k] = self.mag[k], (zero := np.zeros((1, 1)))
        if how and op.kind not in ("input", "relu"):
            x, e = sum((self.M[i] + self.E[i] for i in op.inputs), zero), sum((self.E[i] + ETA for i in op.inputs), zero)
            terms, size, addends, c = zero + 2 * how.v, x + 2 * ETA, [self.mag[i] + self.E[i] for i in op.inputs], zero
            if op.push:
                size, e = op.push(x + ETA, np.abs) + op.babs[:, None], op.push(np.broadcast_to(e, x.shape), np.abs)
                terms, addends = (op.push(np.where(x > 0, 1.0, 0.0), np.ones_like) + 1 + op.ops) * how.v, [op.babs[:, None]]
            if how.unit and op.kind in ("conv", "dense"):
                c = op.push(by := shift(x + ETA, how), np.abs) + op.push(x + ETA + by, functools.partial(shift, how=how))
            need(terms.max() < 0.5 > max(op.passed) * how.v, f"{name} sums too many terms for float32")
            e = e + sum(n * how.v / (1 - n * how.v) * v for n, v in zip(op.passed, addends, strict=True))
            lost = LOST * np.power(1 + how.unit, 2 * len(self.net.ops)) if op.ops or any(op.passed) else 2 * ETA
            lost = lost * (2 * (op.fan + op.ops + sum(op.passed)) + 16) * (1 + x.max(0))
            self.M[k], self.E[k] = size * ROOM, (e + c + terms / (1 - terms) * (size + c) + lost) * ROOM
            if k in self.net.stored:
                self.T[k] = self.T[k] + (e := self.execution_error(k)) * (1 + self.G)
                self.put(k, down(self.lo[k] - e), up(self.hi[k] + e))
                self.M[k], self.E[k] = self.mag[k], zero
        need(not how or (self.M[k] + self.E[k] <= MOST).all(), f"{self.semantics}: {name} may exceed {how and how.most}", Refused)
    def execution_error(self, k: int) -> Array:
        return (self.E[k] + 2 * ETA) * ROOM if self.how else self.E[k]
    def narrow(self, k: int, lo: Array, hi: Array) -> None:
        """The operand of ReLU k between these bounds too; its box as executed, with the sign that is assumed of it."""
        i = self.net.ops[k].inputs[0]
        e, sigma = self.execution_error(i), self.signs.get(k, np.zeros((1, 1)))
        self.put(i, np.maximum(np.maximum(self.lo[i], lo), np.where(sigma > 0, -e, -HUGE)),
                 np.minimum(np.minimum(self.hi[i], hi), np.where(sigma < 0, e, HUGE)))  # fmt: skip
        low, high = (down(self.lo[i] - e), up(self.hi[i] + e)) if self.how else (self.lo[i], self.hi[i])
        ends: Any = np.where(sigma > 0, np.maximum(low, 0), low), np.where(sigma < 0, np.minimum(high, 0), high)
        self.z[k] = (*self.check_ends(ends[0], ends[1], f"bounds of what {self.net.names[k]} reads"), e)
    def relax(self, k: int) -> None:
        """Lines of ReLU k: the smaller area below, the chord above. Each product and 1 - t is rounded once, then moved up."""
        l, h, _ = self.z[k]
        mixed, on = (l < 0) & (h > 0), (l >= 0).astype(np.float64)
        t = np.where(mixed, np.clip(h / np.where(mixed, h - l, 1.0), 0, 1), on)
        m = np.where(mixed, np.maximum(up(t * -l), up(h * up(1 - t))), 0.0)
        self.lines[k] = np.where(mixed, (h > -l).astype(np.float64), on), t, m
    def lower(self, frontier: dict[int, Array], c: Array, goal: Array, at: Array, chosen: dict[int, tuple[Array, Array]]) -> Any:
        """Lower bounds of rows, coefficients in columns, over boxes `at`: the best of all frontiers till each goal is reached; of rows left
        then the last frontier's, and coefficients at the input. `chosen`: slopes and multipliers by ReLU; what is none is made one."""
        best, open_, c = np.full(len(c), -np.inf), np.arange(len(c)), down(c - FLOOR)
        while True:
            op = self.net.ops[k := max(frontier)]
            if op.kind in ("input", "relu"):
                found, cells = c, {n: slice(None) if n in chosen else live(a) for n, a in frontier.items()}
                for n, a in frontier.items():
                    mid, R, a = self.mid[n][cells[n]], self.R[n][cells[n]], a[cells[n]]
                    found = down(down(found + dot(mid, a, at)) - dot(R, np.abs(a), at))
                found = np.where(np.isfinite(found), found, -np.inf)  # no sum on the way overflowed
                best[open_] = np.where(best[open_] < goal[open_], np.maximum(best[open_], found), best[open_])
                left = best[open_] < goal[open_]
                if op.kind == "input" or not left.any():
                    return best, found, frontier[k]
                if left.mean() < 0.8:
                    open_, c, at, frontier = open_[left], c[left], at[left], {n: a[:, left] for n, a in frontier.items()}
            a = frontier.pop(k)
            if op.kind == "relu":
                few, n = cells[k], len(a)
                (low, high, e), (s, t, m) = ((pick(v[few] if len(v) == n else v, at) for v in some) for some in (self.z[k], self.lines[k]))
                a, b = a[few], np.zeros((1, 1))
                if k in chosen:
                    own, b = (v if len(open_) == v.shape[1] else v[:, open_] for v in chosen[k])
                    s = np.where((low < 0) & (high > 0), np.clip(np.fmax(own, 0.0), 0.0, 1.0), s)
                    sigma = pick(self.signs.get(k, np.zeros((1, 1))), at)
                    b = sigma * np.where(((sigma > 0) & (low >= 0)) | ((sigma < 0) & (high <= 0)), np.fmax(b, 0.0), 0.0)
                c = down(c + dot(m, below := np.minimum(a, 0)) * (1 + self.G))
                a = np.maximum(a, 0) * s + below * t - b
                charge = (4 * U * pick(self.mag[op.inputs[0]][few], at) + FLOOR + e * (1 + 8 * U)) * (1 + self.G)
                c = down(c - dot(charge, np.abs(a)))
                (whole := np.zeros((n, len(c))))[few] = a
                c = self._give(frontier, op.inputs[0], whole, c, at)
            elif op.kind == "add":
                for i, sign in zip(op.inputs, op.signs, strict=True):
                    c = self._give(frontier, i, sign * a, c, at)
            else:
                c = down(down(c + op.b @ a) - dot(self.T[k], np.abs(a), at))
                c = self._give(frontier, op.inputs[0], op.pull(a), c, at)
    def _give(self, frontier: dict[int, Array], k: int, a: Array, c: Array, at: Array) -> Array:
        """Adds coefficients to the frontier; their sum with others is rounded, and charged."""
        met, frontier[k] = k in frontier, a + frontier[k] if k in frontier else a
        return down(c - dot(4 * U * self.mag[k] + FLOOR, np.abs(frontier[k]), at)) if met else c
    choose = ascend  # whose word nobody need take
    def neurons(self, draft: Network, k: int, at: Array, box: Array, sign: Array, goal: Array, steps: int) -> Array:
        """Lower bounds of sign * value `at` of operator k over a box each. Neighbours in an image go together: their zeros coincide."""
        best, order = np.full(len(at), -np.inf), np.lexsort((at % math.prod(self.net.ops[k].shape[2:]), box))
        size = max(1, BLOCK // (sum if steps else max)(self.net.sizes[: k + 1]))
        for some in (order[a : a + size] for a in range(0, len(order), size)):
            rows = np.zeros((self.net.sizes[k], len(some)))
            rows[at[some], np.arange(len(some))] = sign[some]
            chosen = self.choose(draft, {k: rows}, box[some], steps, goal[some]).lines if steps else {}
            best[some] = self.lower({k: rows}, np.zeros(len(some)), goal[some], box[some], chosen)[0]
        return best
    def start(self, rows: list[Atom], at: Array) -> tuple[dict[int, Array], Array]:
        """Rows C y + D x as a frontier: coefficients rounded to floats, and what that costs, and what the network rounds."""
        output, c = self.net.output, np.zeros(len(rows))
        frontier = {k: np.zeros((self.net.sizes[k], len(rows))) for k in (0, output)}
        for j, (row, _) in enumerate(rows):
            need(all(SMALL <= abs(q) <= HUGE for q in row.values()), f"a coefficient outside {SMALL} to {HUGE}")
            for v, q in row.items():
                frontier[0 if v >= 0 else output][max(v, ~v), j] = float(q)
        for k, a in frontier.items():
            charge = 4 * U * self.mag[k] + FLOOR + (self.execution_error(k) * (1 + 8 * U) if k == output else 0.0)
            c = down(c - dot(charge * (1 + self.G), np.abs(a), at))
        return frontier, c
    def margins(self, draft: Network, rows: list[Atom], at: Array, steps: int) -> tuple[list[Fraction], list[tuple[Array, Array]]]:
        """Lower bounds of C y + D x - k, each over its box, -1 where there is none; and boxes behind which each row exceeds k."""
        found, cuts = list[Fraction](), list[tuple[Array, Array]]()
        size = max(1, BLOCK // (sum if steps else max)(self.net.sizes))
        for a in range(0, len(rows), size):
            some, box = rows[a : a + size], at[a : a + size]
            frontier, c = self.start(some, box)
            goal = np.array([float(max(min(k, Fraction(HUGE)), Fraction(-HUGE))) for _, k in some])
            chosen = self.choose(draft, frontier, box, steps, goal).lines if steps else {}
            least, last, slope = self.lower(dict(frontier), c, np.full(len(some), np.inf), box, chosen)
            found += [Fraction(v) - k if math.isfinite(v) else Fraction(-1) for v, (_, k) in zip(least.tolist(), some, strict=True)]
            reach = np.maximum(up(up(np.where(goal < HUGE, up(goal), np.inf) - last) / np.abs(slope)), 0)
            lo, hi = pick(self.lo[0], box), pick(self.hi[0], box)  # what is no number cuts nothing
            ends = np.where(slope < 0, np.fmax(lo, down(hi - reach)), lo), np.where(slope > 0, np.fmin(hi, up(lo + reach)), hi)
            cuts += zip(ends[0].T, ends[1].T, strict=True)
        return found, cuts
# a box's executions, some neurons' signs; bounds of ReLU operands; open pieces; ReLUs behind the `since`-th are to be bounded again
Part = namedtuple("Part", "lo hi signs low high open since")
class Prover:
    def __init__(self, model: bytes, semantics: str) -> None:
        self.net, self.draft, self.semantics = Network(model), Network(model, np.float32), semantics
        self.relus = [k for k, op in enumerate(self.net.ops) if op.kind == "relu"]
        self.first, self.batch = np.cumsum([0, *(self.net.sizes[k] for k in self.relus)]), max(1, BATCH // sum(self.net.sizes))
    def root(self, box: Box, pieces: Iterable[int]) -> Part:
        return Part(*outward(box), np.zeros(n := self.first[-1], np.int8), np.full(n, -np.inf), np.full(n, np.inf), frozenset(pieces), -1)
    def divide(self, part: Part, split: int, cut: float) -> tuple[Part, ...]:
        """Both halves; the whole for split -1."""
        if split < 0:
            return (part,)
        if split < len(part.lo):
            need(part.lo[split] < cut < part.hi[split], f"a cut of input {split} outside its box", Refused)
            lo, hi = (np.where(np.arange(len(side)) == split, cut, side) for side in (part.lo, part.hi))
            return part._replace(hi=hi, since=-1), part._replace(lo=lo, since=-1)
        known = (neuron := split - len(part.lo)) >= self.first[-1] or part.signs[neuron] != 0
        need(not known, f"neuron {neuron}: there is none, or its sign is assumed already", Refused)
        on, off = (np.where(np.arange(len(part.signs)) == neuron, np.int8(sign), part.signs) for sign in (1, -1))
        since = min(part.since, int(np.searchsorted(self.first, neuron, "right")) - 1)
        return part._replace(signs=on, since=since), part._replace(signs=off, since=since)
    def cut(self, part: Part, cuts: list[list[tuple[Array, Array]]]) -> Part:
        """What of a part any open piece can reach: the box around what all rows of each leave. Where none is left, nothing is cut."""
        lows, highs = (np.array([f([part[k], *(c[k] for c in some)], 0) for some in cuts]) for k, f in enumerate((np.max, np.min)))
        lo, hi = (lows.min(0), highs.max(0)) if (lows <= highs).all() else part[:2]
        return part._replace(lo=lo, hi=hi, since=-1 if (hi - lo < 0.9 * (part.hi - part.lo)).any() else part.since)
    def bound(self, parts: list[Part], inner: int) -> tuple[Boxes, list[Part]]:
        """Bounds of all values, and the parts with what was learnt. `inner` < 0: from intervals and what is known alone; else what ReLUs
        read is bounded by substitution, where it is undecided still with so many steps of ascent; from TIGHT on where it is on too."""
        lo, hi, signs, low, high = (np.stack([getattr(p, name) for p in parts], 1) for name in ("lo", "hi", "signs", "low", "high"))
        since, pairs = np.array([p.since for p in parts]), [slice(*self.first[r : r + 2]) for r in range(len(self.relus))]
        sigma = {k: signs[at].astype(np.float64) for k, at in zip(self.relus, pairs, strict=True) if signs[at].any()}
        boxes = Boxes(self.net, lo, hi, self.semantics, sigma)
        for k in range(1, len(self.net.ops)):
            if self.net.ops[k].kind == "relu":
                r, i = self.relus.index(k), self.net.ops[k].inputs[0]
                boxes.narrow(k, low[pairs[r]], high[pairs[r]])
                if inner >= 0 and i and not (self.net.ops[i].push and self.net.ops[i].inputs[0] == 0):
                    self._operands(boxes, k, (since < r) | (inner >= TIGHT), *divmod(inner, TIGHT))
                boxes.relax(k)
                low[pairs[r]], high[pairs[r]] = boxes.lo[i], boxes.hi[i]
            boxes.interval(k)
        told = zip(parts, low.T, high.T, strict=True)
        return boxes, [p._replace(low=l, high=h, since=len(self.relus) if inner >= 0 else p.since) for p, l, h in told]
    def _operands(self, boxes: Boxes, k: int, wanted: Array, whole: int, steps: int) -> None:
        i = self.net.ops[k].inputs[0]
        for tried in sorted({0, steps}):
            low, high, e = boxes.z[k]
            at, box = np.nonzero(((low < 0) | bool(whole)) & (high > 0) & wanted & ~boxes.empty)
            found = np.stack([boxes.lo[i][at, box], -boxes.hi[i][at, box]])
            goal = np.broadcast_to(2 * e, low.shape)[at, box]
            first = (found[1] > found[0]).astype(int)
            for n, side in enumerate((first, 1 - first, first | 1)[: 2 + whole]):  # last the upper ends of what is on
                open_ = np.flatnonzero(((found < goal).all(0) if n < 2 else found[0] >= goal) if len(at) else at)
                which = side[open_]
                got = boxes.neurons(self.draft, i, at[open_], box[open_], np.where(which == 0, 1.0, -1.0), goal[open_], tried)
                found[which, open_] = np.maximum(found[which, open_], got)
            lo, hi = boxes.lo[i].copy(), boxes.hi[i].copy()
            lo[at, box], hi[at, box] = found[0], -found[1]
            boxes.narrow(k, lo, hi)
class Tree:
    """Of which box and of which of its pieces it is; by node how it is divided and bounded, and which rows of which pieces it refutes.
    Node 0 is the root; the children of the j-th divided node are nodes 2 j + 1 and 2 j + 2, so none can be missing."""
    def __init__(self, tensors: dict[str, Array]) -> None:
        own, self.split, self.inner, self.query, self.node, self.piece, self.row, self.cut = (tensors[name] for name in TENSORS)
        self.box, self.own, n, divided = int([*own, 0][0]), own[1:].tolist(), len(self.split), np.flatnonzero(self.split >= 0)
        same = len({n, len(self.cut), len(self.inner), len(self.query)}) == len({len(self.node), len(self.piece), len(self.row)}) == 1
        need(same and self.own and n == 2 * len(divided) + 1 <= NODES, "a tree whose nodes do not fit together", Refused)
        need((np.arange(len(divided)) * 2 + 1 > divided).all(), "a node above its parent", Refused)
        ordered = (np.diff(self.node, prepend=0, append=n - 1) >= 0).all()
        few, pairs = max(self.inner.max() - TIGHT, self.query.max()) <= STEPS, zip(self.inner.tolist(), self.query.tolist(), strict=True)
        need(ordered and few and len({*pairs}) <= WAYS, f"more than {STEPS} steps, {WAYS} ways to bound, or rows out of order", Refused)
        self.child = np.where(self.split >= 0, 2 * np.cumsum(self.split >= 0) - 1, -1)
        self.closed = np.searchsorted(self.node, np.arange(n + 1))
    def ends(self, n: int) -> bool:
        return n < 0 or bool(self.child[n] < 0)
    def rows_at(self, n: int, open_: frozenset[int], pieces: list[list[Atom]]) -> list[tuple[int, int]]:
        """Rows worth bounding at a node: those named; at an end, and below it, all rows of an open piece for which none is."""
        at = slice(*self.closed[n : n + 2]) if n >= 0 else slice(0)
        named = list(zip(self.piece[at].tolist(), self.row[at].tolist(), strict=True))
        need(all(0 <= p < len(pieces) and 0 <= r < len(pieces[p]) for p, r in named), f"node {n}: a row that is none", Refused)
        rest = open_.difference(p for p, _ in named) if self.ends(n) else ()
        return [(p, r) for p, r in named if p in open_] + [(p, r) for p in sorted(rest) for r in range(len(pieces[p]))]
Work = namedtuple("Work", "node inner query part")  # nodes below the ends of a tree have numbers below 0
def _children(prover: Prover, tree: Tree, w: Work, part: Part, wanted: Array) -> list[Work]:
    both = prover.divide(part, int(tree.split[w.node]), float(tree.cut[w.node]))
    return [Work(n, int(tree.inner[n]), int(tree.query[n]), half) for n, half in enumerate(both, int(tree.child[w.node])) if wanted[n]]
def follow(prover: Prover, box: Box, pieces: list[list[Atom]], tree: Tree, wanted: Array, told: Callable[[int], None],
           guide: Divider | None = None) -> dict[int, float]:  # fmt: skip
    """Walks a tree, or its `wanted` nodes; the least margin proved for each of its pieces. An end that is left open is divided further, or
    bounded once more, as `guide` says, which may say anything. Raises Refused where anything does not follow."""
    least, stacks, done, below = dict.fromkeys(tree.own, math.inf), dict[tuple[int, ...], list[Work]](), 0, 0
    def push(some: Iterable[Work]) -> None:  # by how they are bounded; () are those that are divided and no more
        for w in some:
            passes = w.inner < 0 and not tree.ends(w.node) and tree.closed[w.node] == tree.closed[w.node + 1]
            stacks.setdefault(() if passes else w[1:3], []).append(w)
    push([Work(0, int(tree.inner[0]), int(tree.query[0]), prover.root(box, tree.own))])
    while stacks:
        full = (how for how, some in stacks.items() if how and len(some) >= prover.batch)
        how = next(full, () if () in stacks else next(reversed(stacks)))
        work = [stacks[how].pop() for _ in range(min(len(stacks[how]), prover.batch if how else 1))]
        _ = stacks[how] or stacks.pop(how)
        if not how:
            push(_children(prover, tree, work[0], work[0].part, wanted))
            done += 1
            continue
        asked = [(j, p, r) for j, w in enumerate(work) for p, r in tree.rows_at(w.node, w.part.open, pieces)]
        boxes, parts = prover.bound([w.part for w in work], how[0])
        rows, at = [pieces[p][r] for _, p, r in asked], np.array([j for j, _, _ in asked], dtype=np.int64)
        met, closed = dict[tuple[int, int], list[Any]](), [set(w.part.open) if boxes.empty[j] else set() for j, w in enumerate(work)]
        for (j, p, r), margin, c in zip(asked, *boxes.margins(prover.draft, rows, at, max(0, how[1])), strict=True):
            met.setdefault((j, p), []).append((margin, r, c))
        for (j, p), some in met.items():
            margin, r = max(found[:2] for found in some)
            if margin > 0 and not boxes.empty[j]:
                least[p] = min(least[p], float(min(margin, Fraction(HUGE))))
                closed[j].add(p)
                if guide:
                    guide.note(work[j].node, p, r)
        parts, left = [p._replace(open=p.open - c) for p, c in zip(parts, closed, strict=True)], list[int]()
        for j, (w, part) in enumerate(zip(work, parts, strict=True)):
            if not tree.ends(w.node):
                push(_children(prover, tree, w, part, wanted))
            elif part.open:
                need(guide, f"node {w.node}: pieces {sorted(part.open)[:3]} are left open", StillOpen)
                left.append(j)
                parts[j] = prover.cut(part, [[c for *_, c in met.get((j, p), ())] for p in part.open]) if guide and guide.cuts else part
        open_ = [work[j]._replace(part=parts[j]) for j in left]
        hints = guide.divide(prover, pieces, boxes, open_, np.array(left)) if guide and left else []
        for j, (split, cut, inner, query) in zip(left, hints, strict=True):
            push(Work(below := below - 1, inner, query, half) for half in prover.divide(parts[j], split, cut))
        told(done := done + sum(w.node >= 0 for w in work))
    return least
def digest(meta: dict[str, Any], body: bytes) -> str:
    return hashlib.sha256(json.dumps([meta[k] for k in ("semantics", "onnx", "vnnlib", "trees")]).encode() + body).hexdigest()
def read(data: bytes) -> tuple[dict[str, str], list[dict[str, Array]]]:
    """A safetensors file: header length, JSON header, numbers. Tensor `T.NAME` is of tree T."""
    try:
        body = data[(end := 8 + int.from_bytes(data[:8], "little")) :]
        header = json.loads(data[8:end], object_pairs_hook=lambda p: dict(p) if len(dict(p)) == len(p) else {})  # a name twice: none at all
        meta = header.pop("__metadata__")
        need(FORMAT.items() <= meta.items(), f"no {FORMAT}: written by another version of polytriton", Refused)
        need(meta["data"] == digest(meta, body) and meta["semantics"] in SEMANTICS, "a damaged certificate, or other semantics", Refused)
        need(len(header) == len(TENSORS) * (count := int(meta["trees"])) and count < NODES, "tensors missing, or others", Refused)
        spans = [t["data_offsets"] for t in header.values()]
        need(all(0 <= a <= b for a, b in spans) and sum(b - a for a, b in spans) == len(body), "numbers named twice, or never", Refused)
        need(all(("F64" if n.endswith(".cut") else "I32") == t["dtype"] for n, t in header.items()), "a tensor of another type", Refused)
        trees = [{n: np.frombuffer(body[slice(*header[f"{b}.{n}"]["data_offsets"])], TENSORS[n]) for n in TENSORS} for b in range(count)]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
        raise Refused(f"no certificate: {type(error).__name__} in its header") from None
    return meta, trees
@plain
def load(onnx_file: Path, vnnlib_file: Path) -> tuple[Network, Pieces, dict[str, str]]:
    model, text = onnx_file.read_bytes(), vnnlib_file.read_bytes()
    try:
        net = Network(model)
        plainly = gzip.GzipFile(fileobj=io.BytesIO(text)).read(MAX_TEXT + 1) if vnnlib_file.suffix == ".gz" else text
        pieces = unsafe(plainly.decode(), net.sizes[0], net.sizes[net.output])
    except Exception as error:  # of a parser, on a file that is none
        raise error if isinstance(error, Refused) else Unsupported(f"the network or property cannot be read: {repr(error)[:400]}") from None
    return net, pieces, {"onnx": hashlib.sha256(model).hexdigest(), "vnnlib": hashlib.sha256(text).hexdigest()}
def open_files(onnx: Path, vnnlib: Path, certificate: Path) -> tuple[str, Prover, Pieces, list[Tree]]:
    """Semantics, what bounds nodes, the unsafe set, and by box a tree that nobody has followed yet; or Refused."""
    tried: Array = np.diag(PROBE.view(np.float64)) @ np.diag(np.resize(PROBE[2:3].view(np.float64), len(PROBE)))  # numpy's workers too
    need((np.diag(tried).copy().view(np.int64) == PROBE + ROUNDED).all(), "this machine flushes subnormal numbers, or rounds otherwise")
    (net, pieces, hashes), (meta, tensors) = load(onnx, vnnlib), read(certificate.read_bytes())
    trees, every = list(map(Tree, tensors)), {(b, p) for b, group in enumerate(pieces.values()) for p in range(len(group))}
    need(meta | hashes == meta, "the certificate belongs to another network or property file", Refused)
    need(every == {(t.box, p) for t in trees for p in t.own}, "a piece that no tree is about, or that is none", Refused)
    return meta["semantics"], Prover(net.data, meta["semantics"]), pieces, trees
Checked = namedtuple("Checked", "semantics margins nodes leaves")  # by piece the least margin, nodes walked, leaves among them
@plain
def check(onnx: Path, vnnlib: Path, certificate: Path, progress: Progress = lambda *_: None, guide: Divider | None = None,
          some: Callable[[list[Tree]], list[Array]] | None = None) -> Checked:  # fmt: skip
    """What the certificate proves, or Refused. `some`: only these nodes of each tree are looked at: evidence, not proof."""
    semantics, prover, pieces, trees = open_files(onnx, vnnlib, certificate)
    wanted = some(trees) if some else [np.ones(len(tree.child), dtype=bool) for tree in trees]
    margins = {(b, p): math.inf for b, group in enumerate(pieces.values()) for p in range(len(group))}
    total, groups = int(sum(w.sum() for w in wanted)), list(pieces.items())
    for tree, mine in zip(trees, wanted, strict=True):
        found = follow(prover, *groups[tree.box], tree, mine, lambda n: progress("nodes", n, total), guide) if mine.any() else {}
        margins |= {(tree.box, p): min(margins[tree.box, p], m) for p, m in found.items()}
    return Checked(semantics, list(margins.values()), total, sum(int(w[t.child < 0].sum()) for t, w in zip(trees, wanted, strict=True)))
