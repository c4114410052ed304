"""Bounds over boxes of inputs, for the independent checker: of every value, and of rows. `checker.py` says what they are (2 to 5 there);
here is the proof that they hold as floats, and of executions that round.

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
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from fractions import Fraction
from typing import Any

import numpy as np

from polytriton.checker_files import HUGE, NONE, SMALL, Array, Atom, Box, Network, Refused, need
from polytriton.checker_slopes import ascend

U, FLOOR, ETA, LOST, ROOM, MOST = 2.0**-53, 1e-100, 2.0**-126, 2.0**-66, 1 + 2.0**-20, 2.0**36
Deployed = namedtuple("Deployed", "v unit tiny step most")  # what an addition rounds; what a conversion does to numbers up to `most`
SEMANTICS = {"real": None, "float32": Deployed(2.0**-23, 0.0, 0.0, 0.0, MOST), "tf32": Deployed(2.0**-22, 2.0**-10, 0.0, ETA, MOST),
             "bf16": Deployed(2.0**-22, 2.0**-7, 0.0, ETA, MOST), "float16": Deployed(2.0**-22, 2.0**-10, 2.0**-14, 2.0**-24, 65504.0)}
BLOCK = 1 << 21  # coefficients at a time
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
