"""What a network computes: exactly, in dyadic rationals; and as a float32 machine might, in any order and rounding mode.

Everything stands on one table a layer, written from the operators' definitions and not from `ir.ops`: which operand cell
meets which weight in each output cell. Weights and inputs are floats, so every exact value is an integer over a power of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from polytriton.ir.interp import evaluate, user_shape
from polytriton.ir.net import Net, Node

F64 = np.ndarray


# ---- layers as tables of terms ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Terms:
    """Output cell i is sum_k weight[i,k] * v[cell[i,k]] + bias[i], v the operands end to end; absent terms have cell -1."""

    cell: np.ndarray
    weight: F64
    bias: F64


def _window(node: Node, shape: tuple[int, ...]) -> Iterator[tuple[int, int, np.ndarray]]:
    """For every tap (i, j) of the window its cell in [H, W] under every output position, -1 off the image."""
    (kh, kw), (sh, sw), (dh, dw) = node.ints("k"), node.ints("s", (1, 1)), node.ints("d", (1, 1))
    top, left = node.ints("p", (0, 0, 0, 0))[:2]
    height, width = shape[1:]
    for i in range(kh):
        for j in range(kw):
            r = np.arange(node.shape[1])[:, None] * sh - top + i * dh
            c = np.arange(node.shape[2])[None, :] * sw - left + j * dw
            yield i, j, np.where((r >= 0) & (r < height) & (c >= 0) & (c < width), r * width + c, -1)


def terms(net: Net, node: Node) -> Terms:
    """The table of an affine or layout node."""
    moved: np.ndarray
    shapes = [net.node(i).shape for i in node.inputs]
    n, first = node.size, shapes[0]
    here = np.arange(int(np.prod(first))).reshape(first)

    def number(key: str) -> F64:
        w = net.weight(node, key)
        assert w is not None
        return w.astype(np.float64)

    if node.op == "linear":
        w = number("w")
        return Terms(np.broadcast_to(here.reshape(-1), w.shape), w, number("b"))
    if node.op == "conv":
        w, g, plane = number("w"), node.integer("g", 1), first[1] * first[2]
        per, outs = first[0] // g, w.shape[0]
        table = (outs, *node.shape[1:], *w.shape[1:])
        cell, weight = np.full(table, -1), np.zeros(table)
        for i, j, at in _window(node, first):
            for o in range(outs):
                for c in range(per):
                    cell[o, :, :, c, i, j] = np.where(at >= 0, (o // (outs // g) * per + c) * plane + at, -1)
                    weight[o, :, :, c, i, j] = w[o, c, i, j]
        return Terms(cell.reshape(n, -1), weight.reshape(n, -1), np.repeat(number("b"), node.shape[1] * node.shape[2]))
    if node.op == "scale":
        factor, shift = (np.broadcast_to(number(k), first).reshape(-1) for k in ("a", "c"))
        return Terms(here.reshape(-1, 1), factor[:, None], shift)
    if node.op in ("add", "sub"):
        pair = np.stack([np.arange(n), np.arange(n, 2 * n)], 1)
        return Terms(pair, np.broadcast_to([1.0, 1.0 if node.op == "add" else -1.0], (n, 2)), np.zeros(n))
    if node.op == "gather":
        index = net.weight(node, "index")
        assert index is not None
        moved = index
    elif node.op == "concat":
        ends = np.cumsum([int(np.prod(s)) for s in shapes])
        parts = [np.arange(end - int(np.prod(s)), end).reshape(s) for end, s in zip(ends, shapes, strict=True)]
        moved = np.concatenate(parts, axis=node.integer("axis"))
    elif node.op == "slice":
        cells = [node.integer("start") + q * node.integer("step") for q in range(node.integer("size"))]
        moved = np.take(here, cells, axis=node.integer("axis"))
    elif node.op == "transpose":
        moved = here.transpose(node.ints("perm"))
    elif node.op == "pad":
        moved = np.full(node.shape, -1)
        moved[tuple(slice(a, a + s) for a, s in zip(node.ints("lo"), first, strict=True))] = here
    else:
        assert node.op == "reshape", node.op
        moved = here
    return Terms(moved.reshape(-1, 1), np.ones((n, 1)), np.zeros(n))


def pool_cells(net: Net, node: Node) -> np.ndarray:
    """The cells under every window of a max pool, [outputs, taps], -1 off the image."""
    shape = net.node(node.inputs[0]).shape
    plane = shape[1] * shape[2]
    taps = [np.stack([np.where(at >= 0, c * plane + at, -1) for c in range(shape[0])]) for _, _, at in _window(node, shape)]
    return np.stack([t.reshape(-1) for t in taps], 1)


def user_cells(net: Net, x: np.ndarray) -> np.ndarray:
    """[batch, cells of the input node] in the dtype of x."""
    flat = x.reshape(-1, int(np.prod(user_shape(net))))
    take = net.weight(net.input, "take")
    return flat if take is None else np.where(take >= 0, flat[:, np.maximum(take, 0)], flat.dtype.type(0))


# ---- exact values -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dyadic:
    """An array of exact values num * 2^-exp, num integers of any size."""

    num: np.ndarray
    exp: int

    @staticmethod
    def of(x: np.ndarray) -> Dyadic:
        m, e = np.frexp(np.asarray(x, dtype=np.float64))
        n = np.ldexp(m, 53).astype(np.int64).astype(object)
        low = int(min(e[m != 0].min(initial=0), 0)) - 53
        return Dyadic(n * (1 << np.where(m != 0, e - 53 - low, 0).astype(object)), -low)

    def to(self, exp: int) -> np.ndarray:
        """The integers at a finer exponent."""
        return self.num * (1 << (exp - self.exp))

    def fraction(self, *at: int) -> Fraction:
        return Fraction(int(self.num[at]), 1 << self.exp)

    def nearest(self) -> F64:
        """float64, each value within one ulp."""
        return self._round()[0]

    def down(self) -> F64:
        """The largest float64 not above each value: `lo <= down` says exactly `lo <= value`."""
        near, below = self._round()
        return np.where(below < 0, np.nextafter(near, -np.inf), near)

    def up(self) -> F64:
        near, below = self._round()
        return np.where(below > 0, np.nextafter(near, np.inf), near)

    def _round(self) -> tuple[F64, np.ndarray]:
        """Nearest float64 and the sign of value - nearest; +-inf where float64 ends."""
        near, sign, one = np.empty(self.num.shape), np.zeros(self.num.shape, np.int8), 1 << self.exp
        for at, n in np.ndenumerate(self.num):
            try:
                f = n / one
            except OverflowError:
                f = np.inf if n > 0 else -np.inf
                near[at], sign[at] = f, -1 if n > 0 else 1
                continue
            p, q = f.as_integer_ratio()
            gap = n * q - p * one
            near[at], sign[at] = f, (gap > 0) - (gap < 0)
        return near, sign


def exact(net: Net, x: np.ndarray, tables: Mapping[str, Terms] | None = None) -> dict[str, Dyadic]:
    """Every node's exact value at a batch of float64 points, [batch, *shape]; `tables` as made by `terms`, where at hand."""
    values: dict[str, Dyadic] = {}
    for node in net:
        if node.op == "input":
            y = Dyadic.of(user_cells(net, np.asarray(x, np.float64)))
        elif node.op == "relu":
            v, slope = values[node.inputs[0]], Dyadic.of(np.array([node.number("slope")]))
            y = Dyadic(np.where(v.num >= 0, v.num << slope.exp, v.num * slope.num[0]), v.exp + slope.exp)
        elif node.op == "maxpool":
            v = values[node.inputs[0]]
            cells = pool_cells(net, node)
            flat = v.num.reshape(len(v.num), -1)
            best = [np.maximum.reduce(flat[:, row[row >= 0]], axis=1) for row in cells]
            y = Dyadic(np.stack(best, 1), v.exp)
        else:
            operands = [values[i] for i in node.inputs]
            top = max(v.exp for v in operands)
            flat = np.concatenate([v.to(top).reshape(len(v.num), -1) for v in operands], axis=1)
            t = terms(net, node) if tables is None else tables[node.name]
            w, b = Dyadic.of(t.weight), Dyadic.of(t.bias)
            under = np.where(t.cell >= 0, flat[:, np.maximum(t.cell, 0)], 0)
            exp = max(w.exp + top, b.exp)
            y = Dyadic(((under * w.num).sum(axis=-1) << (exp - w.exp - top)) + b.to(exp), exp)
        values[node.name] = _trim(Dyadic(y.num.reshape(len(y.num), *node.shape), y.exp))
    return values


def _trim(v: Dyadic) -> Dyadic:
    """The same values without common factors of two."""
    low = min(((n & -n).bit_length() - 1 for n in v.num.reshape(-1) if n), default=v.exp)
    drop = min(low, v.exp)
    return Dyadic(v.num >> drop, v.exp - drop) if drop > 0 else v


def exact_forms(y: Dyadic, C: np.ndarray) -> Dyadic:
    """C @ y exactly: y [batch, outputs], C [rows, outputs] -> [batch, rows]."""
    c = Dyadic.of(C)
    return Dyadic((y.num.reshape(len(y.num), 1, -1) * c.num).sum(axis=-1), y.exp + c.exp)


# ---- float32 machines -----------------------------------------------------------------------------------------

MODES = ("nearest", "down", "up", "zero", "mixed")
ORDERS = ("forward", "backward", "shuffled", "pairwise", "lanes")


@dataclass(frozen=True)
class Format:
    """A binary float type by its precision, exponent range and largest number."""

    bits: int
    emin: int
    big: float


FORMATS = {
    "float32": Format(24, -126, float(np.finfo(np.float32).max)),
    "tf32": Format(11, -126, (2 - 2.0**-10) * 2.0**127),
    "bf16": Format(8, -126, (2 - 2.0**-7) * 2.0**127),
    "float16": Format(11, -14, 65504.0),
}


def _odd(s: F64, e: F64) -> F64:
    """s + e rounded to odd in float64: rounding that again, in any mode, is rounding s + e once."""
    even = (s.view(np.int64) & 1) == 0
    return np.where((e != 0) & even & np.isfinite(s), np.nextafter(s, np.where(e > 0, np.inf, -np.inf)), s)


def round_to(x: F64, fmt: Format, mode: str, rng: np.random.Generator) -> F64:
    """x, float64, in a narrower type; overflow becomes infinite or the largest number as IEEE says."""
    with np.errstate(invalid="ignore", over="ignore"):
        _, e = np.frexp(np.where(np.isfinite(x), x, 0))
        quantum = np.ldexp(1.0, np.maximum(e, fmt.emin + 1) - fmt.bits)
        q = x / quantum
        if mode == "nearest":
            y = np.rint(q)
        elif mode == "mixed":
            y = np.where(rng.random(x.shape) < 0.5, np.floor(q), np.ceil(q))
        else:
            y = {"down": np.floor, "up": np.ceil, "zero": np.trunc}[mode](q)
        y = y * quantum
        toward = {"down": x > 0, "up": x < 0, "zero": np.ones(x.shape, bool)}.get(mode, np.zeros(x.shape, bool))
        over = (np.abs(y) > fmt.big) & np.isfinite(x)
        y = np.where(over, np.copysign(np.where(toward, fmt.big, np.inf), x), y)
        return np.where(np.isfinite(x), np.copysign(y, x), x)


@dataclass
class Machine:
    """float32 arithmetic in one rounding mode, on float64 arrays that hold float32 values."""

    mode: str
    fma: bool
    flush: bool  # subnormal operands and results are zero
    rng: np.random.Generator
    inputs: str = "float32"  # the type to which operands of linear and conv are rounded
    fmt: Format = field(default_factory=lambda: FORMATS["float32"])

    def narrow(self, s: F64, e: F64 | float = 0.0) -> F64:
        odd = _odd(np.asarray(s, np.float64), np.where(np.isfinite(e), e, 0.0))
        return self.clean(round_to(odd, self.fmt, self.mode, self.rng))

    def clean(self, x: F64) -> F64:
        return np.where(np.abs(x) < 2.0**-126, np.copysign(0.0, x), x) if self.flush else x

    def operand(self, x: F64) -> F64:
        """As a tensor core reads it."""
        return self.clean(x if self.inputs == "float32" else round_to(x, FORMATS[self.inputs], self.mode, self.rng))

    def add(self, a: F64, b: F64) -> F64:
        with np.errstate(invalid="ignore", over="ignore"):
            s = a + b
            z = s - a
            return self.narrow(s, (a - (s - z)) + (b - z))

    def mul(self, a: F64, b: F64) -> F64:
        with np.errstate(invalid="ignore"):
            return self.narrow(self.clean(a) * self.clean(b))  # 48 bits: exact before the rounding

    def mul_add(self, a: F64, b: F64, c: F64) -> F64:
        if not self.fma:
            return self.add(self.mul(a, b), c)
        with np.errstate(invalid="ignore"):
            return self.add(self.clean(a) * self.clean(b), c)  # exact product, one rounding

    def dot(self, w: F64, v: F64, bias: F64, order: str, bias_first: bool) -> F64:
        """sum_k w[i,k] v[...,i,k] + bias[i] in one of ORDERS, every output cell in an order of its own where shuffled."""
        k = w.shape[-1]
        if order == "shuffled":
            perm = np.argsort(self.rng.random(w.shape), axis=-1)
            w, v = np.take_along_axis(w, perm, -1), np.take_along_axis(v, np.broadcast_to(perm, v.shape), -1)
        elif order == "backward":
            w, v = w[..., ::-1], v[..., ::-1]
        bias = np.broadcast_to(bias, v.shape[:-1])
        start = bias if bias_first else np.zeros(v.shape[:-1])
        if order == "pairwise":
            parts = [self.mul(w[..., i], v[..., i]) for i in range(k)] + [start]
            while len(parts) > 1:
                parts = [self.add(*parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
            total = parts[0]
        else:
            lanes = [start] + [np.zeros(v.shape[:-1])] * (3 if order == "lanes" else 0)
            for i in range(k):
                lanes[i % len(lanes)] = self.mul_add(w[..., i], v[..., i], lanes[i % len(lanes)])
            total = lanes[0]
            for lane in lanes[1:]:
                total = self.add(total, lane)
        return total if bias_first else self.add(total, bias)


def execute(net: Net, x: np.ndarray, machine: Machine, order: str, bias_first: bool) -> dict[str, F64]:
    """One execution of the deployed network at float32 points: every node's value, [batch, *shape], as float64."""
    values: dict[str, F64] = {}
    for node in net:
        v = np.concatenate([values[i].reshape(len(values[i]), -1) for i in node.inputs], axis=1) if node.inputs else user_cells(net, x)
        if node.op == "input":
            assert (v == v.astype(np.float32)).all(), "a float32 network reads float32 inputs"
            y = v.astype(np.float64)
        elif node.op == "relu":
            slope, v = np.float64(node.number("slope")), machine.clean(v)
            y = np.where(v >= 0, v, machine.mul(np.full_like(v, slope), v) if slope else np.where(np.isnan(v), v, 0.0))
        elif node.op == "maxpool":
            cells = pool_cells(net, node)
            y = np.where(cells >= 0, machine.clean(v)[:, np.maximum(cells, 0)], -np.inf).max(axis=-1)
        else:
            t = terms(net, node)
            under = np.where(t.cell >= 0, v[:, np.maximum(t.cell, 0)], 0.0)
            if node.op in ("linear", "conv"):
                y = machine.dot(machine.operand(t.weight), machine.operand(under), machine.clean(t.bias), order, bias_first)
            elif node.op == "scale":
                y = machine.mul_add(t.weight[:, 0], under[..., 0], np.broadcast_to(machine.clean(t.bias), under.shape[:-1]))
            elif node.op in ("add", "sub"):
                y = machine.add(machine.clean(under[..., 0]), t.weight[:, 1] * machine.clean(under[..., 1]))
            else:
                y = under[..., 0]
        values[node.name] = y.reshape(len(v), *node.shape)
    return values


def float32_runs(net: Net, x: np.ndarray, rng: np.random.Generator, k: int, inputs: str = "float32") -> list[dict[str, F64]]:
    """k executions that differ in rounding mode, order, FMA, place of the bias and flushing; `inputs` as on tensor cores."""
    runs = []
    for i in range(k):
        mode = MODES[i % len(MODES)] if i < 2 * len(MODES) else str(rng.choice(MODES))
        machine = Machine(mode, bool(rng.random() < 0.5), bool(rng.random() < 0.3), rng, inputs)
        runs.append(execute(net, x, machine, str(rng.choice(ORDERS)), bool(rng.random() < 0.5)))
    return runs


# ---- points that hurt -------------------------------------------------------------------------------------------


def attack_points(net: Net, lo: np.ndarray, hi: np.ndarray, C: np.ndarray, rng: np.random.Generator, rounds: int = 3) -> F64:
    """[points, ...user shape] inside one box: corners, centre, random, and for each row of C the corner reached by
    setting every coordinate to the end that makes the row smaller (from several starts, all coordinates at once)."""
    shape = user_shape(net)
    low, high = lo.reshape(-1), hi.reshape(-1)
    with np.errstate(invalid="ignore"):
        inner = low + rng.random((4, low.size)) * (high - low)
    points = [low, high, np.clip(low / 2 + high / 2, low, high), *np.clip(inner, low, high)]
    points += [np.where(rng.random(low.size) < 0.5, low, high) for _ in range(3)]
    for row in np.asarray(C, np.float64).reshape(-1, C.shape[-1]):
        at = points[2]
        for _ in range(rounds):
            probes = np.repeat(at[None], 2 * low.size, 0)
            i = np.arange(low.size)
            probes[i, i], probes[low.size + i, i] = low, high
            values = evaluate(net, probes)[net.output].reshape(len(probes), -1) @ row
            at = np.where(values[: low.size] <= values[low.size :], low, high)
            points.append(at)
    return np.unique(np.stack(points), axis=0).reshape(-1, *shape)


def float32_points(points: F64, lo: np.ndarray, hi: np.ndarray) -> F64:
    """The points as float32 numbers, still inside a box with float32 ends."""
    return np.clip(points.astype(np.float32).astype(np.float64), lo, hi)
