"""The independent checker of certificates (`polytriton check`): numpy, exact rationals, and onnx's description of its files.

A property's unsafe set is a union of pieces {x in a box, every row C y + D x <= k}. A certificate names one row of each piece and gives,
for each box and ReLU, bounds of operands and lines below and above the ReLU. Nothing in it is believed:
1. The network comes from the ONNX file, the unsafe set from the VNN-LIB file in exact rationals, its boxes rounded outward.
2. In the network's order each value gets an interval from its operands' (`Boxes.interval`). A claimed bound that this does not imply must
   follow by backward substitution with lines accepted before (`Boxes.lower`); only then does it count (`Boxes.accept`).
3. Where a ReLU's operand z may have both signs, the line below is s z, 0 <= s <= 1, the line above t z + m, in exact rationals >= 0 at the
   lower bound and >= z at the upper: relu is convex, so it lies below that line. Other ReLUs are the identity or zero.
4. The named row's least value, by the same substitution, exceeds k, compared in exact rationals.
Rounding. u = 2^-53, n the largest number of terms of any sum. A sum of n products in any order, fused or not, is off by at most g times
the sum of magnitudes, g = n u / (1 - n u) (Higham, section 3.1). G = 4 (n + 64) u > 3.9 g + 250 u. |z| is the largest magnitude in z's
interval. A row (A, c) means: target >= A.z + c for every x of the box; z are values of some nodes, A floats as stored. Each step keeps it:
  z = W y + b: A.z = (A W).y + A.b; fl(A W) and fl(A.b) are off by g |A|(|W||y| + |b|) in all, and weights of `scale` are rounded up to
    8 times. T = G (|W||y| + |b|) + FLOOR leaves room for T's own rounding and the dot product's: c becomes c + fl(A.b) - fl(|A|.T).
  z = relu(y): A z >= A s y where A >= 0, and A (t y + m) where A < 0. The products' rounding costs u |A'||y|; 4 u |y| is charged. The sum
    of A m has only terms <= 0: enlarged by the factor 1 + G it is below the exact one.
  z = y +- y': coefficients are copied. Where two contributions to one node meet and are added, 4 u |z| is charged again.
  Bound: A.z >= A.mid - |A|.rad; with R = rad + G (|mid| + rad) + FLOOR, fl(A.mid) - fl(|A|.R) lies below it.
Scalars move one float down after each addition. What is not finite is no bound. An underflow loses 2^-1075 at most; bounds, weights and
constants stay below 1e100 (else refused), so a row loses less than FLOOR = 1e-100 in all; FLOOR in T and R pays for theirs.
Assumed: IEEE float64, to nearest, gradual underflow (`plain` sets them, `check` tries them), matrix products that sum products."""

from __future__ import annotations

import ctypes
import functools
import gzip
import hashlib
import json
import math
import re
import runpy
import sys
from collections import namedtuple
from fractions import Fraction
from importlib.util import find_spec
from itertools import product
from operator import gt, lt
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = {"format": "polytriton certificate", "version": "1", "semantics": "real"}
U, FLOOR, HUGE, SMALL, LIMIT = 2.0**-53, 1e-100, 1e100, 1e-290, 1 << 20_000  # the last: of both parts of an exact number
BLOCK, MAX_CELLS, MAX_ATOMS = 1 << 22, 1 << 26, 30_000_000  # coefficients of a node at a time; values of a node; comparisons of all pieces
NUMBER = re.compile(r"[+-]?(\d{1,400}\.?\d{0,400}|\.\d{1,400})([eE][+-]?\d{1,3})?", re.ASCII)
MODEL: Any = runpy.run_path(str(getattr(find_spec("onnx"), "origin", "")).replace("__init__.py", "onnx_ml_pb2.py"))["ModelProto"]
STORED = {1: ("<f4", "float"), 6: ("<i4", "int32"), 7: ("<i8", "int64"), 10: ("<f2", "int32"), 11: ("<f8", "double")}  # of tensors
VALUE = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints"}  # attributes by their types; no other is read
Array = np.ndarray[Any, np.dtype[Any]]
Atom = tuple[dict[int, Fraction], Fraction]  # sum c v <= k; variable i is X_i, ~i is Y_i
Box = tuple[tuple[Fraction, ...], tuple[Fraction, ...]]
Pieces = dict[Box, list[list[Atom]]]  # by box the rows of each piece
NONE: Array = np.zeros(0)
PROBE, ROUNDED = (np.resize(np.array(bits), 255) for bits in ([1 << 30, 0x3FFC << 48, (0x3FF << 52) + 1], [0, 2, 1]))  # tiny, 1.75, 1 + 2 u
class Refused(Exception):
    """The certificate does not prove the property of this network."""
class Unsupported(Refused):
    """The network or the property lies outside what this checker reads."""
def plain(function: Any) -> Any:
    """It runs where this thread rounds to nearest, keeps subnormal numbers and traps nothing; its caller gets back what was set."""
    @functools.wraps(function)
    def run(*given: Any) -> Any:
        old, libc = ctypes.create_string_buffer(512), ctypes.PyDLL(None) if sys.platform == "linux" else None
        _ = libc and (libc.fegetenv(old), libc.fesetenv(ctypes.c_void_p(-1)))
        try:
            return np.errstate(all="ignore")(function)(*given)
        finally:
            _ = libc and libc.fesetenv(old)
    return run
def need(holds: Any, message: str, kind: type[Refused] = Unsupported) -> None:
    if not holds:
        raise kind(message)

# input; relu; add: signs_0 y + signs_1 y'; affine: W y + b. push(x, magnitudes) is W x or |W| x for columns x, pull(a) is W^T a; no sum has
# more than `terms` products; b was computed from magnitudes babs. Values are flat, row-major.
Op = namedtuple("Op", "kind inputs shape push pull b babs signs terms", defaults=(None, None, NONE, NONE, (), 0))

def conv(k: int, shape: Any, w: Array, b: Array, groups: int, strides: Any, dilations: Any, pads: Any) -> Op:
    """Coefficients go one kernel cell at a time; rows and columns of an image where all are zero are left out."""
    (c, height, width), (top, left, bottom, right) = shape[1:], pads
    spare = [shape[i + 2] + pads[i] + pads[i + 2] - (w.shape[i + 2] - 1) * dilations[i] - 1 for i in (0, 1)]
    need(min(spare) >= 0 and c == groups * w.shape[1] and len(w) % groups == 0, "a kernel that does not fit its image or groups")
    h, v = (s // stride + 1 for s, stride in zip(spare, strides, strict=True))
    g, co, ci = (weights := w.reshape(groups, -1, *w.shape[1:])).shape[:3]
    def taps(*outputs: tuple[int, int]) -> Any:
        """Weights [groups, out, in] of each kernel cell, and what outputs (from, to) x (from, to) read with it in the padded operand."""
        for tap in np.ndindex(*w.shape[2:]):
            at = zip(tap, outputs, strides, dilations, strict=True)
            cells = (slice(i * d + a * s, i * d + (z - 1) * s + 1, s) for i, (a, z), s, d in at)
            yield weights[..., tap[0], tap[1]], (..., *cells, slice(None))
    def push(x: Array, magnitudes: bool) -> Array:
        x = np.pad(x.reshape(g, ci, height, width, -1), ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0)))
        cells = ((np.abs(m) if magnitudes else m) @ x[at].reshape(g, ci, -1) for m, at in taps((0, h), (0, v)))
        return sum(cells, np.zeros(())).reshape(len(w) * h * v, -1)
    def pull(a: Array) -> Array:
        a = a.reshape(g, co, h, v, a.shape[1])
        out = np.zeros((g, ci, height + top + bottom, width + left + right, a.shape[-1]))
        live = (a != 0).any(axis=(0, 1, 4))
        (y, z), (p, q) = ((int(n.argmax()), len(n) - int(n[::-1].argmax())) if n.any() else (0, 1) for n in (live.any(1), live.any(0)))
        part = np.ascontiguousarray(a[:, :, y:z, p:q]).reshape(g, co, -1)
        for m, at in taps((y, z), (p, q)):
            out[at] += (m.swapaxes(1, 2) @ part).reshape(out[at].shape)
        return out[:, :, top : top + height, left : left + width].reshape(c * height * width, -1)
    return Op("affine", (k,), (1, len(w), h, v), push, pull, b.repeat(h * v), np.abs(b).repeat(h * v), (), max(w[0].size, w[:, 0].size))

class Network:
    """An ONNX graph as a list of operators. An operator, attribute or shape that is not understood is refused, never guessed."""
    def __init__(self, data: bytes) -> None:
        model = MODEL.FromString(data)
        g, domains = model.graph, {o.domain or "ai.onnx": o.version for o in model.opset_import}
        need(7 <= domains.get("ai.onnx", 0) <= 25 and not model.functions, "an opset outside 7 to 25, or functions")
        self.consts = {t.name: self._array(t) for t in g.initializer}
        inputs = [v for v in g.input if v.name not in self.consts]
        need(len(inputs) == len(g.output) == 1 and not g.sparse_initializer, f"{len(inputs)} inputs, {len(g.output)} outputs (not 1 and 1)")
        dims = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim]
        shape = (dims[0] or 1, *dims[1:])
        need(min(shape) > 0 and math.prod(shape) <= MAX_CELLS, f"input shape {dims}")
        self.ops, self.env = [Op("input", (), shape)], {inputs[0].name: (0, shape)}  # an activation: operator and shape
        for node in g.node:
            self._node(node)
        self.output = self.env[g.output[0].name][0]
        self.sizes = [math.prod(op.shape) for op in self.ops]
        self.terms = max(*self.sizes, *(op.terms for op in self.ops))
        need(self.output > 0, "a network without operators")
    def _array(self, t: Any) -> Array:
        need(t.data_type in STORED and not (t.data_location or t.HasField("segment")), f"{t.name}: its type, or weights outside the file")
        (kind, field), raw = STORED[t.data_type], t.HasField("raw_data")
        a = np.frombuffer(t.raw_data, kind) if raw else np.array(getattr(t, f"{field}_data"), kind.replace("f2", "u2")).view(kind)
        return a.reshape(t.dims).astype(np.float64 if kind[1] == "f" else np.int64)
    def _node(self, n: Any) -> None:
        attrs, name = {a.name: getattr(a, VALUE[a.type * (not a.ref_attr_name)]) for a in n.attribute}, f"{n.domain}{n.op_type} {n.name}"
        (out,) = (o for o in n.output if o)
        need(n.domain in ("", "ai.onnx") and out not in self.env and out not in self.consts, f"{name}, output {out}")
        if n.op_type == "Constant":
            self.consts[out] = self._array(attrs.pop("value"))
        else:
            made = self._made(n.op_type, list(n.input), attrs.pop)
            if isinstance(made, Op):
                need(0 < math.prod(made.shape) <= MAX_CELLS and (made.babs <= HUGE).all(), f"{name}: shape {made.shape}, or its weights")
                self.ops.append(made)
            self.env[out] = (len(self.ops) - 1, made.shape) if isinstance(made, Op) else made
        need(not attrs, f"{name}: attribute {list(attrs)[:1]}")
    def _made(self, op: str, x: list[str], take: Any) -> Any:
        """An operator, or an activation in another shape (operator, shape). It takes the attributes that it understands."""
        if op in ("Add", "Sub", "Mul", "Div"):
            return self._elementwise(op, x)
        k, shape = self.env[x[0]]
        if op == "Relu":
            return Op("relu", (k,), shape)
        if op == "Flatten":
            need(0 <= (axis := take("axis", 1)) <= len(shape), f"Flatten at axis {axis}")
            return k, (math.prod(shape[:axis]), math.prod(shape[axis:]))
        if op == "Reshape":
            need(take("allowzero", 0) == 0, "Reshape with allowzero")
            dims = [shape[i] if d == 0 else int(d) for i, d in enumerate(self.consts[x[1]].ravel().tolist())]
            dims = [math.prod(shape) // -math.prod(dims) if d == -1 else d for d in dims]
            need(min(dims) > 0 and math.prod(dims) == math.prod(shape), f"Reshape of {shape} to {dims}")
            return k, tuple(dims)
        if op in ("Gemm", "MatMul"):
            need(take("alpha", 1.0) == take("beta", 1.0) == 1 and take("transA", 0) == 0, "Gemm with alpha, beta or transA")
            w = self._weight(x[1]) if take("transB", 0) else self._weight(x[1]).T
            need(w.ndim == len(shape[-2:]) == 2 and math.prod(shape) == shape[-1] == w.shape[1], f"a product of {shape} and {w.T.shape}")
            b = np.broadcast_to(self._weight(x[2]) if len(x) > 2 else np.zeros(1), (1, len(w)))[0]
            push: Any = lambda v, magnitudes: (np.abs(w) if magnitudes else w) @ v  # noqa: E731
            return Op("affine", (k,), (*shape[:-1], len(w)), push, lambda a: w.T @ a, b, np.abs(b))
        if op == "BatchNormalization":  # at most 8 roundings, relative to the magnitudes |beta| and |mean w|
            need(take("training_mode", 0) == 0 and take("spatial", 1) == 1, "BatchNormalization in training")
            take("momentum", None)  # only for training
            gain, beta, mean, var = (self._weight(v).reshape(-1, *[1] * (len(shape) - 2)) for v in x[1:])
            var = var + take("epsilon", float(np.float32(1e-5)))
            need((var >= SMALL).all() and ((gain == 0) | (np.abs(gain) >= 1e-140)).all(), "a variance or a gain is too small")
            w = gain / np.sqrt(var)
            return self._scale(x[0], w, beta - mean * w, np.abs(beta) + np.abs(mean * w))
        need(op == "Conv", f"operator {op}")
        w, pads, steps = self._weight(x[1]), take("pads", [0] * 4), (take("strides", [1, 1]), take("dilations", [1, 1]))
        b = self._weight(x[2]) if len(x) > 2 else np.zeros(len(w))
        kernel, auto = take("kernel_shape", [*w.shape[2:]]), take("auto_pad", b"NOTSET")
        same = (len(shape), shape[0], w.ndim, *map(len, steps), len(pads), kernel, auto)
        need(same == (4, 1, 4, 2, 2, 4, [*w.shape[2:]], b"NOTSET") and b.shape == (len(w),), f"Conv of {shape}: sizes or automatic padding")
        need(min(*steps[0], *steps[1], *w.shape) > 0 <= min(pads) and max(*pads, *steps[0], *steps[1]) < 1000, "Conv: strides or padding")
        return conv(k, shape, w, b, take("group", 1), *steps, pads)
    def _elementwise(self, op: str, x: list[str]) -> Op:
        first, sign = x[0] in self.env, -1.0 if op == "Sub" else 1.0
        if first and x[1] in self.env:
            (i, shape), (j, other) = self.env[x[0]], self.env[x[1]]
            need(shape == other and op in ("Add", "Sub"), f"{op} of activations of shapes {shape} and {other}")
            return Op("add", (i, j), shape, signs=(1.0, sign))
        name, c, one, zero = x[not first], self._weight(x[first]), np.ones(1), np.zeros(1)
        if op in ("Add", "Sub"):
            return self._scale(name, one if first else sign * one, sign * c if first else c, np.abs(c))
        need(op == "Mul" or (first and (np.abs(c) >= 1 / HUGE).all()), "a division by an activation, or by a tiny number")
        return self._scale(name, c if op == "Mul" else 1 / c, zero, zero)
    def _weight(self, name: str) -> Array:
        need((c := self.consts[name]).dtype == np.float64 and (np.abs(c) <= HUGE).all(), f"weights {name}: integers, or beyond {HUGE}")
        return c
    def _scale(self, name: str, *weights: Array) -> Op:
        k, shape = self.env[name]
        w, b, babs = (np.array(np.broadcast_to(v, shape)).reshape(-1, 1) for v in weights)
        return Op("affine", (k,), shape, lambda x, size: (np.abs(w) if size else w) * x, lambda a: w * a, b[:, 0], babs[:, 0])

def unsafe(text: str, n_in: int, n_out: int) -> Pieces:
    """VNN-LIB 1.0: constants X_i and Y_i, assertions of <=, >=, and, or over linear terms. The pieces' rows by box; no empty boxes."""
    quoted = re.sub(r"[^\s()]+", lambda t: json.dumps(t[0]) + ",", re.sub(r";[^\n]*", "", text)).replace("(", "[").replace(")", "],")
    statements = json.loads(re.sub(r",\s*\]", "]", f"[{quoted}]"))
    need(n_in + n_out <= len(text), f"the property does not declare {n_in} inputs and {n_out} outputs")
    names = {f"X_{i}": i for i in range(n_in)} | {f"Y_{i}": ~i for i in range(n_out)}
    declared = [s[1] for s in statements if s[:1] == ["declare-const"] and s[2:] == ["Real"]]
    asserted = [s[1] for s in statements if s[:1] == ["assert"] and len(s) == 2]
    need(len(declared) + len(asserted) == len(statements), "a statement other than (declare-const V Real) and (assert A)")
    need(sorted(declared) == sorted(names), f"the property does not declare the network's {n_in} inputs and {n_out} outputs as X_i and Y_i")
    def term(e: Any) -> dict[int | None, Fraction]:  # coefficients by variable, and the constant
        if isinstance(e, str):
            need(e in names or NUMBER.fullmatch(e), f"`{e[:40]}` is neither a number nor declared")
            return {names[e]: Fraction(1)} if e in names else {None: Fraction(e)}
        need(len(e) >= 2 and e[0] in ("+", "-", "*"), f"the term {str(e)[:60]}")
        parts = list(map(term, e[1:] if len(e) > 2 or e[0] != "-" else ["0", e[1]]))
        if e[0] == "*":
            first, *more = sorted(parts, key=lambda p: p.keys() == {None})  # a term with variables before the factors
            need(len(more) < 20 and all(p.keys() == {None} for p in more), "a product of variables, or of too many numbers")
            by = math.prod((p[None] for p in more), start=Fraction(1))
            need(all(max(abs(c.numerator), c.denominator) < LIMIT for c in (by, *first.values())), "a product that grows beyond any use")
            return {v: c * by for v, c in first.items()}
        signs = [1 if k == 0 or e[0] == "+" else -1 for k in range(len(parts))]
        return {v: sum((s * p[v] for s, p in zip(signs, parts, strict=True) if v in p), Fraction(0)) for v in set().union(*parts)}
    def alternatives(e: Any) -> list[list[Atom]]:
        need(isinstance(e, list) and e[:1] in (["<="], [">="], ["and"], ["or"]), f"`{str(e)[:60]}`: only <=, >=, and, or are read")
        if e[0] in ("<=", ">="):
            a, b = e[1:] if e[0] == "<=" else e[:0:-1]
            row = term(["-", a, b])
            return [[({v: c for v, c in row.items() if v is not None and c}, -row.get(None, Fraction(0)))]]
        parts = [alternatives(part) for part in e[1:]]
        if e[0] == "or":
            return [atoms for part in parts for atoms in part]
        need(math.prod(map(len, parts)) * (len(parts) + 1) <= MAX_ATOMS, "too many combinations of alternatives")
        return [[atom for atoms in combination for atom in atoms] for combination in product(*parts)]
    pieces: Pieces = {}
    for atoms in alternatives(["and", *asserted]):
        sides: list[dict[int, Fraction]] = [{}, {}]  # bounds of x from above, and of -x
        for ((v, c),), k in ((row.items(), k) for row, k in atoms if len(row) == 1 and min(row) >= 0):
            sides[c < 0][v] = min(sides[c < 0].get(v, k / abs(c)), k / abs(c))
        need(all(len(side) == n_in for side in sides), "an input without a lower or an upper bound")
        hi, lo = (tuple(sign * side[i] for i in range(n_in)) for sign, side in zip((1, -1), sides, strict=True))
        if all(a <= b for a, b in zip(lo, hi, strict=True)):
            pieces.setdefault((lo, hi), []).append([(row, k) for row, k in atoms if len(row) != 1 or min(row) < 0])
    return pieces

def down(x: Array) -> Array:
    return np.nextafter(x, -np.inf)
class Boxes:
    """Bounds of every value over one box of inputs, and the vectors of the proof above by operator."""
    def __init__(self, net: Network, box: Box) -> None:
        self.net, self.G = net, 4 * (net.terms + 64) * U
        self.lo, self.hi, self.mid, self.rad, self.mag, self.R, self.T = ([NONE] * len(net.ops) for _ in range(7))
        self.lines: dict[int, tuple[Array, Array, Array]] = {}  # s, t, m
        need(all(abs(v) <= HUGE for v in (*box[0], *box[1])), f"an input bound beyond {HUGE}")
        lo, hi = (np.array(side, dtype=np.float64) for side in box)  # to the nearest; then outward where that lies inside
        above, below = (list(map(op, map(Fraction, f.tolist()), v)) for op, f, v in zip((gt, lt), (lo, hi), box, strict=True))
        self.put(0, np.where(above, down(lo), lo), np.where(below, -down(-hi), hi))
    def put(self, k: int, lo: Array, hi: Array) -> None:
        need((lo <= hi).all() and (np.maximum(-lo, hi) <= HUGE).all(), f"bounds of operator {k} cross or are too large", Refused)
        self.lo[k], self.hi[k], self.mid[k], self.mag[k] = lo, hi, lo / 2 + hi / 2, np.maximum(np.abs(lo), np.abs(hi))
        self.rad[k] = -down(-np.maximum(-down(self.mid[k] - hi), -down(lo - self.mid[k])))
        self.R[k] = self.rad[k] + self.G * (np.abs(self.mid[k]) + self.rad[k]) + FLOOR
    def interval(self, k: int) -> None:
        """Bounds of operator k from those of its operands; for a ReLU after `accept`."""
        op, i = self.net.ops[k], self.net.ops[k].inputs[0]
        if op.kind == "relu":
            self.put(k, np.maximum(self.lo[i], 0), np.maximum(self.hi[i], 0))
        elif op.kind == "add":
            lo, hi = (op.signs[1] * v[op.inputs[1]] for v in ((self.lo, self.hi) if op.signs[1] > 0 else (self.hi, self.lo)))
            self.put(k, down(self.lo[i] + lo), -down(-self.hi[i] - hi))
        else:
            rad, size = op.push(np.stack([self.rad[i], self.mag[i]], 1), True).T
            self.T[k] = self.G * (size + op.babs) + FLOOR
            mid, rad = op.push(self.mid[i][:, None], False)[:, 0] + op.b, -down(-rad - self.T[k])
            self.put(k, down(mid - rad), -down(-mid - rad))
    def lower(self, frontier: dict[int, Array], c: Array, goal: Array) -> Array:
        """Lower bounds of rows, coefficients in columns: the best of all frontiers, until the row's goal is reached."""
        best, open_, c = np.full(len(c), -np.inf), np.arange(len(c)), down(c - FLOOR)
        while True:
            op = self.net.ops[k := max(frontier)]
            if op.kind in ("input", "relu"):
                found = c
                for n, a in frontier.items():
                    found = down(down(found + self.mid[n] @ a) - self.R[n] @ np.abs(a))
                best[open_] = np.fmax(best[open_], np.where(np.isfinite(found), found, -np.inf))
                left = best[open_] < goal[open_]
                if op.kind == "input" or not left.any():
                    return best
                if left.mean() < 0.8:
                    open_, c, frontier = open_[left], c[left], {n: a[:, left] for n, a in frontier.items()}
            a = frontier.pop(k)
            if op.kind == "relu":
                (s, t, m), below = self.lines[k], np.minimum(a, 0)
                c, a = down(c + (m @ below) * (1 + self.G)), np.maximum(a, 0) * s[:, None] + below * t[:, None]
                c = self._give(frontier, op.inputs[0], a, c, rounded=True)
            elif op.kind == "add":
                for i, sign in zip(op.inputs, op.signs, strict=True):
                    c = self._give(frontier, i, sign * a, c)
            else:
                c = down(down(c + op.b @ a) - self.T[k] @ np.abs(a))
                c = self._give(frontier, op.inputs[0], op.pull(a), c)
    def _give(self, frontier: dict[int, Array], k: int, a: Array, c: Array, rounded: bool = False) -> Array:
        """Adds coefficients to the frontier; if they were rounded that is charged, and their sum with others is."""
        parts = [a] * rounded + ([a + frontier[k]] if k in frontier else [])
        frontier[k] = parts[-1] if parts else a
        for v in parts:
            c = down(c - (4 * U * self.mag[k] + FLOOR) @ np.abs(v))
        return c
    def neurons(self, k: int, index: Array, sign: Array, goal: Array) -> Array:
        """Lower bounds of sign * value `index` of operator k. Neighbours in an image go together: their coefficients' zeros coincide."""
        best, order = np.full(len(index), -np.inf), np.argsort(index % math.prod(self.net.ops[k].shape[2:]), kind="stable")
        step = max(1, BLOCK // max(self.net.sizes[: k + 1]))
        for some in (order[a : a + step] for a in range(0, len(order), step)):
            rows = np.zeros((self.net.sizes[k], len(some)))
            rows[index[some], np.arange(len(some))] = sign[some]
            best[some] = self.lower({k: rows}, np.zeros(len(some)), goal[some])
        return best
    def margin(self, row: Atom) -> Fraction | None:
        """A lower bound of C y + D x - k."""
        need(all(SMALL <= abs(q) <= HUGE for q in row[0].values()), f"a coefficient outside {SMALL} to {HUGE}")
        frontier, c = {k: np.zeros((self.net.sizes[k], 1)) for k in (0, self.net.output)}, np.zeros(1)
        for v, q in row[0].items():
            frontier[0 if v >= 0 else self.net.output][max(v, ~v)] = float(q)
        for k, a in frontier.items():
            c = down(c - (4 * U * self.mag[k] + FLOOR) @ np.abs(a))
        found = float(self.lower(frontier, c, np.full(1, np.inf))[0])
        return Fraction(found) - row[1] if math.isfinite(found) else None
    def accept(self, k: int, claim: dict[str, Array], trust: bool = False) -> int:
        """Claims about ReLU k become bounds and lines if they follow; returns how many took a substitution. `trust` is for their author."""
        i, at, lo, hi = self.net.ops[k].inputs[0], claim["index"], claim["lo"], claim["hi"]
        need(at.dtype.kind == "i" and (np.diff(at, prepend=-1, append=self.net.sizes[i]) > 0).all(), f"relu {k}: its indices", Refused)
        need(all(v.shape == at.shape and np.isfinite(v).all() for v in claim.values()), f"relu {k}: its numbers", Refused)
        below, above = (self.lo[i][at] < lo) & (not trust), (self.hi[i][at] > hi) & (not trust)
        index, goal = np.concatenate([at[below], at[above]]), np.concatenate([lo[below], -hi[above]])
        sign = np.repeat([1.0, -1.0], [below.sum(), above.sum()])
        found = self.neurons(i, index, sign, goal)
        for j in np.flatnonzero(~(found >= goal))[:1]:
            raise Refused(f"relu {k}: bound {sign[j] * goal[j]:.9g} of value {index[j]} is claimed, {sign[j] * found[j]:.9g} follows")
        np.put(low := self.lo[i].copy(), at, np.maximum(low[at], lo))
        np.put(high := self.hi[i].copy(), at, np.minimum(high[at], hi))
        self.put(i, low, high)
        mixed, s = (low < 0) & (high > 0), (low >= 0).astype(np.float64)
        t, m, use = s.copy(), np.zeros(len(s)), mixed[at]
        need(use.sum() == mixed.sum(), f"relu {k}: an operand that may have both signs has no lines", Refused)
        for j, *numbers in zip(*(claim[name][use].tolist() for name in ("index", "lo", "hi", "low", "up", "cut")), strict=True):
            l, u, *line = map(Fraction, numbers)
            sound = 0 <= line[0] <= 1 and line[1] * l + line[2] >= 0 and line[1] * u + line[2] >= u
            need(sound, f"relu {k}: the lines of value {j} cut the ReLU", Refused)
            s[j], t[j], m[j] = numbers[2:]
        self.lines[k] = s, t, m
        return len(index)

def read(data: bytes) -> tuple[dict[str, str], list[list[list[Any]]], dict[str, Array]]:
    """A safetensors file: header length, JSON header, numbers. Tensor `B.R.NAME` is of box B and the R-th ReLU; rows are by box too."""
    try:
        size = int.from_bytes(data[:8], "little")
        header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
        meta = header.pop("__metadata__")
        rows = [[[int(row), Fraction(float(margin))] for row, margin in group] for group in json.loads(meta["rows"])]  # short
        tensors = {n: np.frombuffer(body[slice(*t["data_offsets"])], {"I32": "<i4", "F64": "<f8"}[t["dtype"]]) for n, t in header.items()}
        good = FORMAT.items() <= meta.items() and meta["data"] == hashlib.sha256(body).hexdigest()
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Refused(f"no certificate: {type(error).__name__} in its header") from None
    need(good, f"damaged, or no {FORMAT}", Refused)
    return meta, rows, tensors

@plain
def load(onnx_file: Path, vnnlib_file: Path) -> tuple[Network, Pieces, dict[str, str]]:
    """The network, the unsafe set, and the hashes of both files."""
    model, text = onnx_file.read_bytes(), vnnlib_file.read_bytes()
    try:
        net = Network(model)
        pieces = unsafe((gzip.decompress(text) if vnnlib_file.suffix == ".gz" else text).decode(), net.sizes[0], net.sizes[net.output])
    except Exception as error:  # of a parser, on a file that is none
        raise error if isinstance(error, Refused) else Unsupported(f"the network or property cannot be read: {repr(error)[:400]}") from None
    return net, pieces, {"onnx": hashlib.sha256(model).hexdigest(), "vnnlib": hashlib.sha256(text).hexdigest()}

@plain
def check(onnx_file: Path, vnnlib_file: Path, certificate_file: Path) -> tuple[list[float], int]:
    """A proved margin C y + D x - k > 0 of each piece, and the number of substitutions made; raises Refused."""
    tried: Array = np.diag(PROBE.view(np.float64)) @ np.diag(np.resize(PROBE[2:3].view(np.float64), len(PROBE)))  # numpy's workers too
    need((np.diag(tried).copy().view(np.int64) == PROBE + ROUNDED).all(), "this machine flushes subnormal numbers, or rounds otherwise")
    net, pieces, hashes = load(onnx_file, vnnlib_file)
    meta, named, tensors = read(certificate_file.read_bytes())
    need(meta | hashes == meta, "the certificate belongs to another network or property file", Refused)
    need([len(v) for v in named] == [len(v) for v in pieces.values()], "the certificate is of other pieces", Refused)
    margins, substitutions = [], 0
    for b, (box, group) in enumerate(pieces.items()):
        boxes, relus = Boxes(net, box), 0
        for k in range(1, len(net.ops)):
            if net.ops[k].kind == "relu":
                claim = {name: tensors.get(f"{b}.{relus}.{name}", NONE) for name in ("index", "lo", "hi", "low", "up", "cut")}
                substitutions, relus = substitutions + boxes.accept(k, claim), relus + 1
            boxes.interval(k)
        for p, (rows, (row, claimed)) in enumerate(zip(group, named[b], strict=True)):
            found = boxes.margin(rows[row]) if 0 <= row < len(rows) else None
            if found is None or not found >= claimed > 0:
                raise Refused(f"box {b}, piece {p}: the margin claimed for row {row} does not follow")
            margins.append(float(found))
    return margins, substitutions
