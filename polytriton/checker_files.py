"""What the independent checker reads (`checker.py`): an ONNX file as a list of operators, a VNN-LIB file as exact rationals.

What is not understood is refused, never guessed. Weights and constants are exact and below HUGE; those of `scale` were rounded 8 times at
most, relative to `babs` for constants. The proofs in `checker.py` and `checker_boxes.py` assume no more."""

from __future__ import annotations

import json
import math
import re
import runpy
from collections import namedtuple
from fractions import Fraction
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np

HUGE, SMALL, LIMIT, TINY, WIDE, GAIN = 1e100, 1e-290, 1 << 20_000, 2.0**-100, 2.0**50, 2.0**60  # LIMIT: of an exact number's parts
MAX_CELLS, MAX_WORK, MAX_ATOMS, MAX_TEXT = 1 << 25, 1 << 32, 30_000_000, 1 << 27  # values; products of a layer; of a property
NUMBER = re.compile(r"[+-]?(\d{1,400}\.?\d{0,400}|\.\d{1,400})([eE][+-]?\d{1,3})?", re.ASCII)
MODEL: Any = runpy.run_path(str(getattr(find_spec("onnx"), "origin", "")).replace("__init__.py", "onnx_ml_pb2.py"))["ModelProto"]
STORED = {1: ("<f4", "float"), 6: ("<i4", "int32"), 7: ("<i8", "int64"), 10: ("<f2", "int32"), 11: ("<f8", "double")}  # of tensors
VALUE = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints"}  # attributes by their types; no other is read
WHOLE: Any = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Cast": np.asarray, "Gather": np.take, "Concat": np.concatenate,
              "Squeeze": np.squeeze, "Unsqueeze": np.expand_dims, "Slice": None}  # of integers
Array = np.ndarray[Any, np.dtype[Any]]
Atom = tuple[dict[int, Fraction], Fraction]  # sum c v <= k; variable i is X_i, ~i is Y_i
Box = tuple[tuple[Fraction, ...], tuple[Fraction, ...]]
Pieces = dict[Box, list[list[Atom]]]  # by box the rows of each piece
NONE: Array = np.zeros(0)
class Refused(Exception):
    """The certificate does not prove the property of this network."""
class Unsupported(Refused):
    """The network or the property lies outside what this checker reads."""
class Divides(Unsupported):
    """The property divides, and this checker reads decimals alone."""
def need(holds: Any, message: str, kind: type[Refused] = Unsupported) -> None:
    if not holds:
        raise kind(message)
# input; relu; add: signs_0 y + signs_1 y'; layers, conv and dense, and scale: W y + b. push(x, f) is f(W) x for columns x, pull(a) is W^T
# a; no sum has more than `terms` products, none of W y more than `fan`; b was computed from magnitudes babs. An execution rounds a term
# `ops` times more often than the sum does; b, or a sum's operand, `passed` times as an addend of the layers before. Values are row-major.
Op = namedtuple("Op", "kind inputs shape push pull b babs signs terms fan ops passed", defaults=(None, None, NONE, NONE, (), 0, 1, 0, ()))
def conv(k: int, shape: Any, w: Array, b: Array, groups: int, strides: Any, dilations: Any, pads: Any) -> Op:
    """Coefficients go one kernel cell at a time; rows and columns of an image where all are zero are left out."""
    (c, height, width), (top, left, bottom, right) = shape[1:], pads
    spare = [shape[i + 2] + pads[i] + pads[i + 2] - (w.shape[i + 2] - 1) * dilations[i] - 1 for i in (0, 1)]
    h, v = (s // stride + 1 for s, stride in zip(spare, strides, strict=True))
    need(min(spare) >= 0 and c == groups * w.shape[1] and len(w) % groups == 0, "a kernel that does not fit its image or groups")
    need(len(w) * h * v * max(w[0].size, 256) <= MAX_WORK, f"a convolution of more than {MAX_WORK} products")
    g, co, ci = (weights := w.reshape(groups, -1, *w.shape[1:])).shape[:3]
    def taps(*outputs: tuple[int, int]) -> Any:  # of each kernel cell the weights [groups, out, in], and what outputs from..to read by it
        for tap in np.ndindex(*w.shape[2:]):
            at = zip(tap, outputs, strides, dilations, strict=True)
            cells = (slice(i * d + a * s, i * d + (z - 1) * s + 1, s) for i, (a, z), s, d in at)
            yield weights[..., tap[0], tap[1]], (..., *cells, slice(None))
    def push(x: Array, f: Any) -> Array:
        x = np.pad(x.reshape(g, ci, height, width, -1), ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0)))
        return sum((f(m) @ x[at].reshape(g, ci, -1) for m, at in taps((0, h), (0, v))), np.zeros((), x.dtype)).reshape(len(w) * h * v, -1)
    def pull(a: Array) -> Array:
        a = a.reshape(g, co, h, v, a.shape[1])
        out = np.zeros((g, ci, height + top + bottom, width + left + right, a.shape[-1]), a.dtype)
        live = (a != 0).any(axis=(0, 1, 4))
        (y, z), (p, q) = ((int(n.argmax()), len(n) - int(n[::-1].argmax())) if n.any() else (0, 1) for n in (live.any(1), live.any(0)))
        part = np.ascontiguousarray(a[:, :, y:z, p:q]).reshape(g, co, -1)
        for m, at in taps((y, z), (p, q)):
            out[at] += (m.swapaxes(1, 2) @ part).reshape(out[at].shape)
        return out[:, :, top : top + height, left : left + width].reshape(c * height * width, -1)
    terms, bias = max(w[0].size, w[:, 0].size), (b.repeat(h * v), np.abs(b).repeat(h * v))
    return Op("conv", (k,), (1, len(w), h, v), push, pull, *bias, terms=terms, fan=w[0].size)
class Network:
    """An ONNX graph as a list of operators. `kind`: of weights, for drafts. Why executions are refused: `strange`, `wide`, `merged`."""
    def __init__(self, data: bytes, kind: type = np.float64) -> None:
        model, self.data, self.kind, self.strange = MODEL.FromString(data), data, kind, list[str]()
        g, domains = model.graph, {o.domain or "ai.onnx": o.version for o in model.opset_import}
        need(7 <= domains.get("ai.onnx", 0) <= 25 and not model.functions, "an opset outside 7 to 25, or functions")
        self.consts = {t.name: self._array(t) for t in g.initializer}
        inputs = [v for v in g.input if v.name not in self.consts]
        need(len(inputs) == len(g.output) == 1 and not g.sparse_initializer, f"{len(inputs)} inputs, {len(g.output)} outputs (not 1 and 1)")
        given, types = inputs[0].type.tensor_type, {t.data_type for t in [*g.initializer, *(a.t for n in g.node for a in n.attribute)]}
        self.note(10 not in types and given.elem_type in (1, 11), "numbers that are neither float32 nor float64")
        self.wide = ["float64 numbers, which are float32 before any layer converts them"] * (11 in {given.elem_type, *types})
        dims = [d.dim_value for d in given.shape.dim]
        shape = (dims[0] or 1, *dims[1:])
        need(min(shape) > 0 and math.prod(shape) <= MAX_CELLS, f"input shape {dims}")
        self.ops, self.sizes, self.env = [Op("input", (), shape)], [math.prod(shape)], {inputs[0].name: (0, shape)}  # operator and shape
        self.made, self.chain, self.names = 0, [(0, 1.0)], ["input"]  # constants' size; since the last ReLUs: a term's roundings, growth
        for node in g.node:
            self._node(node)
        self.output = self.env[g.output[0].name][0]
        self.terms = max(*self.sizes, *(op.terms for op in self.ops))
        need(self.output > 0, "a network without operators")
        rank = [2 if o.kind == "conv" else int(o.fan > 1) for o in self.ops]  # convolutions; dense layers; whatever merges with all
        reads = [(i, rank[i] * rank[k] > 1) for k, o in enumerate(self.ops) for i in o.inputs]
        self.stored = {i for i, apart in reads if apart} - {i for i, apart in reads if not apart}
        merged = [k for k, o in enumerate(self.ops) if o.push and self.ops[i := o.inputs[0]].push and i not in self.stored]
        self.merged = [f"{self.names[k]} reads {self.names[self.ops[k].inputs[0]]}, weights that may be merged and flushed" for k in merged]
    def note(self, holds: Any, message: str) -> None:
        self.strange += [] if holds else [message]
    def _array(self, t: Any) -> Array:
        need(t.data_type in STORED and not (t.data_location or t.HasField("segment")), f"{t.name}: its type, or weights outside the file")
        (kind, field), raw = STORED[t.data_type], t.HasField("raw_data")
        a = np.frombuffer(t.raw_data, kind) if raw else np.array(getattr(t, f"{field}_data"), kind.replace("f2", "u2")).view(kind)
        return a.reshape(t.dims).astype(np.float64 if kind[1] == "f" else np.int64)
    def _node(self, n: Any) -> None:
        (out,) = (o for o in n.output if o)
        attrs, name = {a.name: getattr(a, VALUE[a.type * (not a.ref_attr_name)]) for a in n.attribute}, f"{n.op_type} {n.name or out}"
        need(n.domain in ("", "ai.onnx") and out not in self.env and out not in self.consts, f"{n.domain}{name}, output {out}")
        made = self._array(attrs.pop("value")) if n.op_type == "Constant" else self._make(n.op_type, list(n.input), attrs.pop)
        if isinstance(made, Op):
            self.chain, self.sizes = [*self.chain, self._extend_chain(made)], [*self.sizes, math.prod(made.shape)]
            made = made._replace(passed=made.passed or (self.chain[made.inputs[0]][0],))
            self.ops, self.names, few = [*self.ops, made], [*self.names, name], min(self.sizes) > 0 and sum(self.sizes) <= MAX_CELLS
            need(few and (made.babs <= HUGE).all(), f"{name}: shape {made.shape}, or its weights")
        known: Any = self.consts if isinstance(made, np.ndarray) else self.env
        known[out] = (len(self.ops) - 1, made.shape) if isinstance(made, Op) else made
        need(not attrs, f"{name}: attribute {list(attrs)[:1]}")
    def _extend_chain(self, op: Op) -> tuple[int, float]:
        met, gain = (sum(v) for v in zip(*(self.chain[i] for i in op.inputs), strict=True))
        gain *= max(1.0, float(op.push(np.ones((self.sizes[op.inputs[0]], 1)), np.abs).max())) if op.push else 1.0
        self.note(gain <= GAIN, f"weights that grow beyond {GAIN} between two ReLUs")
        return (0, 1.0) if op.kind == "relu" else (met + (2 if op.kind == "add" else op.fan + op.ops + 1), gain)
    def _make(self, op: str, x: list[str], take: Any) -> Any:
        """An operator, an activation in another shape (operator, shape), or a constant. It takes the attributes that it understands."""
        if all(v in self.consts for v in x):
            return self._constant(op, [self.consts[v] for v in x], take)
        if op in ("Add", "Sub", "Mul", "Div"):
            return self._elementwise(op, x)
        k, shape = self.env[x[0]]
        if op == "Relu":
            return next(((j, shape) for j, o in enumerate(self.ops) if o[:2] == ("relu", (k,))), Op("relu", (k,), shape))
        if op == "Shape":
            return np.array(shape[slice(take("start", 0), take("end", None))], dtype=np.int64)
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
            w: Array = (self._weight(x[1]) if take("transB", 0) else self._weight(x[1]).T).astype(self.kind, copy=False)
            need(w.ndim == len(shape[-2:]) == 2 and math.prod(shape) == shape[-1] == w.shape[1], f"a product of {shape} and {w.T.shape}")
            b = np.broadcast_to(self._weight(x[2]) if len(x) > 2 else np.zeros(1), (1, len(w)))[0].astype(self.kind)
            return Op("dense", (k,), (*shape[:-1], len(w)), lambda v, f: f(w) @ v, lambda a: w.T @ a, b, np.abs(b), fan=w.shape[1])
        if op == "BatchNormalization":  # at most 8 roundings, relative to the magnitudes |beta| and |mean w|
            need(take("training_mode", 0) == 0 and take("spatial", 1) == 1 and take("momentum", 0) is not None, f"{op} in training")
            gain, beta, mean, var = (self._weight(v).reshape(-1, *[1] * (len(shape) - 2)) for v in x[1:])
            var = var + take("epsilon", float(np.float32(1e-5)))
            need((var >= SMALL).all() and ((gain == 0) | (np.abs(gain) >= 1e-140)).all(), "a variance or a gain is too small")
            w = gain / np.sqrt(var)
            usual = ((gain == 0) | (np.abs(gain) >= TINY)).all() and (var >= TINY).all() and (np.abs(w) <= WIDE).all()
            self.note(usual and (self._weight(x[4]) >= 0).all(), f"{op}: its gains or variances")
            return self._scale(x[0], w, beta - mean * w, np.abs(beta) + np.abs(mean * w), ops=8)
        need(op == "Conv", f"operator {op}")
        w, pads = self._weight(x[1]).astype(self.kind, copy=False), take("pads", [0] * 4)
        b, steps = self._weight(x[2]) if len(x) > 2 else np.zeros(len(w)), (take("strides", [1, 1]), take("dilations", [1, 1]))
        kernel, auto = take("kernel_shape", [*w.shape[2:]]), take("auto_pad", b"NOTSET")
        same = (len(shape), shape[0], w.ndim, *map(len, steps), len(pads), kernel, auto)
        need(same == (4, 1, 4, 2, 2, 4, [*w.shape[2:]], b"NOTSET") and b.shape == (len(w),), f"Conv of {shape}: sizes or automatic padding")
        need(min(*steps[0], *steps[1], *w.shape) > 0 <= min(pads) and max(*pads, *steps[0], *steps[1]) < 1000, "Conv: strides or padding")
        return conv(k, shape, w, b.astype(self.kind), take("group", 1), *steps, pads)
    def _constant(self, op: str, x: list[Array], take: Any) -> Array:
        """What graphs compute of shapes, exactly: of constants that are whole numbers below 2^31; where a slice ends may be more."""
        self.made += math.prod(a.size for a in x)
        few = all(a.dtype == np.int64 and (np.abs(a / 1) < 2**31).all() for a in (x[:1] if op == "Slice" else x))
        need(few and op in WHOLE and (op != "Cast" or take("to") in (6, 7)) and self.made <= MAX_CELLS, f"operator {op} of constants")
        if op == "Slice":
            (start, end, *rest) = (a.tolist() for a in x[1:])
            need(x[0].ndim == len(start) == len(end) == 1 and rest in ([], [[0]], [[0], [1]]), "a Slice of constants with steps")
            return x[0][start[0] : end[0]]
        if op in ("Squeeze", "Unsqueeze"):
            return WHOLE[op](x[0], tuple(x[1].tolist() if len(x) > 1 else take("axes")))
        return np.asarray(WHOLE[op](x, take("axis")) if op == "Concat" else WHOLE[op](*x, *[take("axis", 0)] * (op == "Gather")))
    def _elementwise(self, op: str, x: list[str]) -> Op:
        first, sign = x[0] in self.env, -1.0 if op == "Sub" else 1.0
        if first and x[1] in self.env:
            (i, shape), (j, other) = self.env[x[0]], self.env[x[1]]
            need(shape == other and op in ("Add", "Sub"), f"{op} of activations of shapes {shape} and {other}")
            return Op("add", (i, j), shape, signs=(1.0, sign), passed=(self.chain[j][0], self.chain[i][0]))
        name, c, one, zero = x[not first], self._weight(x[first]), np.ones(1), np.zeros(1)
        if op in ("Add", "Sub"):
            return self._scale(name, one if first else sign * one, sign * c if first else c, np.abs(c))
        need(op == "Mul" or (first and (np.abs(c) >= 1 / HUGE).all()), "a division by an activation, or by a tiny number")
        self.note(op == "Mul" or (np.abs(c) >= 1 / WIDE).all(), "a division by a tiny number")
        return self._scale(name, c if op == "Mul" else 1 / c, zero, zero, ops=int(op == "Div"))
    def _weight(self, name: str) -> Array:
        need((c := self.consts[name]).dtype == np.float64 and (np.abs(c) <= HUGE).all(), f"weights {name}: integers, or beyond {HUGE}")
        self.note((np.abs(c) <= WIDE).all(), f"weights {name} beyond {WIDE}")
        return c
    def _scale(self, name: str, *weights: Array, ops: int = 0) -> Op:
        k, shape = self.env[name]
        w, b, babs = [np.array(np.broadcast_to(v, shape), dtype=np.dtype(self.kind)).reshape(-1, 1) for v in weights]
        return Op("scale", (k,), shape, lambda x, f: f(w) * x, lambda a: w * a, b[:, 0], babs[:, 0], ops=ops)
def unsafe(text: str, n_in: int, n_out: int) -> Pieces:
    """VNN-LIB 1.0: constants X_i and Y_i, assertions of <=, >=, and, or over linear terms. The pieces' rows by box; no empty boxes."""
    need(n_in + n_out <= len(text) <= MAX_TEXT, f"the property does not declare {n_in} inputs and {n_out} outputs, or is too long")
    quoted = re.sub(r"[^\s()]+", lambda t: json.dumps(t[0]) + ",", re.sub(r";[^\n\r]*", "", text)).replace("(", "[").replace(")", "],")
    statements = json.loads(re.sub(r",\s*\]", "]", f"[{quoted}]"))
    names = {f"X_{i}": i for i in range(n_in)} | {f"Y_{i}": ~i for i in range(n_out)}
    declared = [s[1] for s in statements if s[:1] == ["declare-const"] and s[2:] == ["Real"]]
    asserted = [s[1] for s in statements if s[:1] == ["assert"] and len(s) == 2]
    need(len(declared) + len(asserted) == len(statements), "a statement other than (declare-const V Real) and (assert A)")
    need(sorted(declared) == sorted(names), f"the property does not declare the network's {n_in} inputs and {n_out} outputs as X_i and Y_i")
    spent = [0]
    def term(e: Any) -> dict[int | None, Fraction]:  # coefficients by variable, and the constant
        if isinstance(e, str):
            need(e in names or NUMBER.fullmatch(e), f"`{e[:40]}` is neither a number nor declared")
            return {names[e]: Fraction(1)} if e in names else {None: Fraction(e)}
        need(len(e) >= 2 and e[0] in ("+", "-", "*"), f"the term {str(e)[:60]}", Divides if e[:1] == ["/"] else Unsupported)
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
        spent[0] += math.prod(map(len, parts)) * (len(parts) + 1)
        need(spent[0] <= MAX_ATOMS, "too many combinations of alternatives")
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
