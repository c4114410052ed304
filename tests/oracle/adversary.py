"""A float32 machine that wants to leave the certificate: every operation is rounded, fused, ordered and flushed against it.

Standards leave an execution free in its order of summation, in fusing, in the rounding mode and in flushing subnormal numbers.
Here these choices serve a goal: a linear form of one node is to become as large, or as small, as it can. The sign of the
form's derivative by a cell says in which direction that cell's operations round. `exact.Machine` draws its choices at random;
this one searches, and its loops are compiled where Numba is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from polytriton.ir.net import Net, Node
from tests.oracle.exact import FORMATS, Terms, pool_cells, round_to, terms, user_cells

numba: Any
try:
    import numba
except ImportError:  # the loops below are plain Python then: slow, the same
    numba = None

ORDERS = ("forward", "backward", "largest first", "smallest first", "rising", "falling", "shuffled", "pairwise")
DRAWN, NEAREST, TOWARD_ZERO = 0, 2, 3  # directions besides -1 (down) and +1 (up)


def _compiled(function: Callable[..., Any]) -> Any:
    if numba is None:
        return function
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # no writable place for the cache
        return numba.njit(function)


@_compiled
def _narrow(s, e, direction, flush):  # type: ignore[no-untyped-def]
    """s + e (e the error of the float64 sum s) rounded once to float32; flush: 0 never, 1 always, 2 where that serves."""
    if not np.isfinite(s):
        return s
    if e != 0.0 and np.isfinite(e) and np.float64(s).view(np.int64) & 1 == 0:
        s = np.nextafter(s, np.inf if e > 0 else -np.inf)  # rounded to odd: rounding this again rounds s + e once
    near = np.float32(s)
    if direction == 3:
        direction = -1 if s > 0 else 1
    if direction == 1 and near < s:
        near = np.nextafter(near, np.float32(np.inf))
    elif direction == -1 and near > s:
        near = np.nextafter(near, np.float32(-np.inf))
    f = np.float64(near)
    if abs(f) < 2.0**-126 and (flush == 1 or (flush == 2 and f * direction < 0)):
        return 0.0
    return f


@_compiled
def _drawn(direction, state):  # type: ignore[no-untyped-def]
    """A direction drawn anew for every operation where none is wanted (a linear congruential generator)."""
    if direction != 0:
        return direction
    state[0] = state[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return 1 if state[0] >> np.uint64(63) else -1


@_compiled
def _add(a, b, direction, flush, state):  # type: ignore[no-untyped-def]
    s = a + b
    z = s - a
    return _narrow(s, (a - (s - z)) + (b - z), _drawn(direction, state), flush)


@_compiled
def _mul_add(a, b, c, direction, flush, fma, state):  # type: ignore[no-untyped-def]
    """a*b is exact in float64 (48 bits, or an underflow far below what float32 keeps)."""
    product = a * b
    if not fma:
        product = _narrow(product, 0.0, _drawn(direction, state), flush)
    return _add(product, c, direction, flush, state)


@_compiled
def _rising(key, n, turn, spare):  # type: ignore[no-untyped-def]
    """turn[:n] becomes the order in which the keys rise, equal ones as they come.

    By hand: making machine code of np.argsort takes seconds.
    """
    for k in range(n):
        turn[k] = k
    width = 1
    while width < n:
        for begin in range(0, n, 2 * width):
            middle, end = min(begin + width, n), min(begin + 2 * width, n)
            i, j = begin, middle
            for k in range(begin, end):
                if i < middle and (j >= end or not key[turn[i]] > key[turn[j]]):
                    spare[k] = turn[i]
                    i += 1
                else:
                    spare[k] = turn[j]
                    j += 1
        for k in range(n):
            turn[k] = spare[k]
        width *= 2


@_compiled
def dots(w, cell, v, bias, direction, order, fma, bias_first, flush, state, out):  # type: ignore[no-untyped-def]
    """out[b, i] = sum_k w[i, k] v[b, cell[i, k]] + bias[i]; order by its place in ORDERS; fma 2: every other operation."""
    taps = w.shape[1]
    left, right, key = np.empty(taps), np.empty(taps), np.empty(taps)
    parts, turn, spare = np.empty(taps + 1), np.empty(taps, np.int64), np.empty(taps, np.int64)
    for b in range(v.shape[0]):
        for i in range(w.shape[0]):
            n = np.int64(0)  # not the literal 0, of which another machine code would be made
            for k in range(taps):
                if cell[i, k] >= 0:
                    left[n], right[n] = w[i, k], v[b, cell[i, k]]
                    n += 1
            d = direction[b, i]
            for k in range(n):
                p = left[k] * right[k]
                if order == 0 or order == 7:
                    key[k] = k
                elif order == 1:
                    key[k] = -k
                elif order == 2:
                    key[k] = -abs(p)
                elif order == 3:
                    key[k] = abs(p)
                elif order == 4:
                    key[k] = p
                elif order == 5:
                    key[k] = -p
                else:
                    state[0] = state[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                    key[k] = np.float64(state[0] >> np.uint64(11))
            _rising(key, n, turn, spare)
            total = bias[i] if bias_first else 0.0
            if order == 7:
                for k in range(n):
                    parts[k] = _narrow(left[k] * right[k], 0.0, _drawn(d, state), flush)
                parts[n] = total
                size = n + 1
                while size > 1:
                    for k in range(size // 2):
                        parts[k] = _add(parts[2 * k], parts[2 * k + 1], d, flush, state)
                    if size % 2:
                        parts[size // 2] = parts[size - 1]
                    size = (size + 1) // 2
                total = parts[0]
            else:
                for k in range(n):
                    q = turn[k]
                    total = _mul_add(left[q], right[q], total, d, flush, fma == 1 or (fma == 2 and k % 2 == 0), state)
            out[b, i] = total if bias_first else _add(total, bias[i], d, flush, state)


@_compiled
def products(a, v, c, direction, fma, flush, state, out):  # type: ignore[no-untyped-def]
    """out[b, i] = a[i] v[b, i] + c[i]."""
    for b in range(v.shape[0]):
        for i in range(v.shape[1]):
            out[b, i] = _mul_add(a[i], v[b, i], c[i], direction[b, i], flush, fma == 1, state)


@_compiled
def leaks(slope, v, direction, flush, state, out):  # type: ignore[no-untyped-def]
    """out[b, i] = v[b, i] where that is not negative, slope * v[b, i] below; NaN stays."""
    for b in range(v.shape[0]):
        for i in range(v.shape[1]):
            x = v[b, i]
            if x < 0:
                x = _narrow(slope * x, 0.0, _drawn(direction[b, i], state), flush) if slope != 0.0 else 0.0
            out[b, i] = x


@_compiled
def sums(x, y, direction, flush, state, out):  # type: ignore[no-untyped-def]
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[b, i] = _add(x[b, i], y[b, i], direction[b, i], flush, state)


# ---- a network as an opponent ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """Make form @ node large: form [points, cells]."""

    node: str
    form: np.ndarray


@dataclass(frozen=True)
class Choice:
    """What is free besides rounding directions; `inputs` as for exact.Machine; `plain` a direction for all, or None for the goal's."""

    order: int = 0
    fma: int = 0
    bias_first: bool = False
    flush: int = 0
    inputs: str = "float32"
    weights: str = "nearest"  # how a tensor core converts weights
    plain: int | None = None


def any_choice(rng: np.random.Generator, inputs: str = "float32") -> Choice:
    """Mostly goal-driven rounding; sometimes one of the four modes for everything, or a mode drawn anew at every operation."""
    plain = None if rng.random() < 0.7 else int(rng.choice([-1, DRAWN, 1, NEAREST, TOWARD_ZERO]))
    weights = str(rng.choice(["nearest", "up", "down", "zero", "mixed"]))
    flush = int(rng.choice([0, 0, 1, 2]))
    return Choice(int(rng.integers(len(ORDERS))), int(rng.integers(3)), bool(rng.random() < 0.5), flush, inputs, weights, plain)


class Opponent:
    """One network's tables, made once: float64 values and derivatives, and float32 executions with a goal. All are [points, cells]."""

    def __init__(self, net: Net) -> None:
        self.net, self.nodes = net, net.by_name
        self.tables: dict[str, Terms] = {}
        self.matrices: dict[str, np.ndarray] = {}
        self.pools: dict[str, np.ndarray] = {}
        for n in net:
            if n.op == "maxpool":
                self.pools[n.name] = pool_cells(net, n)
            elif n.op not in ("input", "relu"):
                t = terms(net, n)
                self.tables[n.name] = t = Terms(*(np.ascontiguousarray(v) for v in (t.cell, t.weight, t.bias)))
                dense = np.zeros((n.size, sum(self.nodes[i].size for i in n.inputs)))
                at = np.nonzero(t.cell >= 0)
                np.add.at(dense, (at[0], t.cell[at]), t.weight[at])
                self.matrices[n.name] = dense

    def _operand(self, node: Node, values: dict[str, np.ndarray]) -> np.ndarray:
        parts = [values[i] for i in node.inputs]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """float64, rounded to nearest: near the truth, no more."""
        found: dict[str, np.ndarray] = {}
        with np.errstate(all="ignore"):
            for n in self.net:
                if n.op == "input":
                    y = user_cells(self.net, np.asarray(x, np.float64))
                elif n.op == "relu":
                    v = found[n.inputs[0]]
                    y = np.where(v >= 0, v, n.number("slope") * v)
                elif n.op == "maxpool":
                    cells = self.pools[n.name]
                    y = np.where(cells >= 0, found[n.inputs[0]][:, np.maximum(cells, 0)], -np.inf).max(axis=-1)
                else:
                    y = self._operand(n, found) @ self.matrices[n.name].T + self.tables[n.name].bias
                found[n.name] = y
        return found

    def derivatives(self, values: dict[str, np.ndarray], goal: Goal) -> dict[str, np.ndarray]:
        """Of the goal by every node's cells, at the points that `values` belong to; zero where nothing depends on them."""
        points = len(goal.form)
        found = {n.name: np.zeros((points, n.size)) for n in self.net}
        found[goal.node] = np.asarray(goal.form, np.float64)
        with np.errstate(all="ignore"):
            for n in reversed(self.net.nodes):
                d = found[n.name]
                if n.op == "relu":
                    found[n.inputs[0]] += np.where(values[n.inputs[0]] >= 0, d, n.number("slope") * d)
                elif n.op == "maxpool":
                    cells, v = self.pools[n.name], values[n.inputs[0]]
                    under = np.where(cells >= 0, v[:, np.maximum(cells, 0)], -np.inf)
                    winner = np.take_along_axis(np.broadcast_to(cells, under.shape), under.argmax(-1)[..., None], -1)[..., 0]
                    np.add.at(found[n.inputs[0]], (np.arange(points)[:, None], winner), d)
                elif n.op != "input":
                    back, at = d @ self.matrices[n.name], 0
                    for i in n.inputs:
                        size = self.nodes[i].size
                        found[i] += back[:, at : at + size]
                        at += size
        return found

    def corners(self, lo: np.ndarray, hi: np.ndarray, goal: Goal, start: np.ndarray, rounds: int = 2) -> np.ndarray:
        """Points of the user's input from [points, values] on, every coordinate moved to the end that serves the goal."""
        net, at = self.net, start
        take = net.weight(net.input, "take")
        for _ in range(rounds):
            d = self.derivatives(self.values(at), goal)[net.input.name]
            if take is not None:
                mine = np.zeros_like(at)
                used = take.ravel() >= 0
                np.add.at(mine.T, take.ravel()[used], d[:, used].T)
                d = mine
            at = np.where(d > 0, hi, np.where(d < 0, lo, at))
        return at

    def run(
        self, x: np.ndarray, goal: Goal, choice: Choice, rng: np.random.Generator, near: dict[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """One execution at float32 points, every cell rounded in the goal's favour; `near` are `values(x)` where at hand."""
        near = near or self.values(x)
        wanted = {k: np.sign(np.nan_to_num(d)).astype(np.int8) for k, d in self.derivatives(near, goal).items()}
        state = rng.integers(1, 1 << 62, 1).astype(np.uint64)
        found: dict[str, np.ndarray] = {}
        flush = choice.flush

        def clean(v: np.ndarray) -> np.ndarray:
            return np.where(np.abs(v) < 2.0**-126, 0.0, v) if flush == 1 else v

        with np.errstate(all="ignore"):
            for n in self.net:
                d = wanted[n.name] if choice.plain is None else np.full((len(x), n.size), choice.plain, np.int8)
                out = np.empty((len(x), n.size))
                if n.op == "input":
                    out = user_cells(self.net, np.asarray(x, np.float64))
                    assert (out == out.astype(np.float32)).all(), "a float32 network reads float32 inputs"
                elif n.op == "relu":
                    leaks(n.number("slope"), clean(found[n.inputs[0]]), d, flush, state, out)
                elif n.op == "maxpool":
                    cells = self.pools[n.name]
                    out = np.where(cells >= 0, clean(found[n.inputs[0]])[:, np.maximum(cells, 0)], -np.inf).max(axis=-1)
                elif n.op in ("linear", "conv"):
                    t, v = self.tables[n.name], found[n.inputs[0]]
                    w = t.weight
                    if choice.inputs != "float32":
                        w = round_to(w, FORMATS[choice.inputs], choice.weights, rng)
                        v = self._converted(v, wanted[n.inputs[0]], choice, rng)
                    v, w, b = clean(v), clean(w), clean(t.bias)
                    dots(w, t.cell, v, b, d, choice.order, choice.fma, choice.bias_first, flush, state, out)
                elif n.op == "scale":
                    t = self.tables[n.name]
                    products(clean(t.weight[:, 0]), clean(found[n.inputs[0]]), clean(t.bias), d, choice.fma, flush, state, out)
                elif n.op in ("add", "sub"):
                    a, b = (clean(found[i]) for i in n.inputs)
                    sums(a, b if n.op == "add" else -b, d, flush, state, out)
                else:
                    t = self.tables[n.name]
                    out = np.where(t.cell[:, 0] >= 0, self._operand(n, found)[:, np.maximum(t.cell[:, 0], 0)], 0.0)
                found[n.name] = out
        return found

    def _converted(self, v: np.ndarray, wanted: np.ndarray, choice: Choice, rng: np.random.Generator) -> np.ndarray:
        """Operands as a tensor core reads them, each converted once."""
        fmt = FORMATS[choice.inputs]
        if choice.plain is not None:
            mode = {-1: "down", DRAWN: "mixed", 1: "up", NEAREST: "nearest", TOWARD_ZERO: "zero"}[choice.plain]
            return round_to(v, fmt, mode, rng)
        down, near, up = (round_to(v, fmt, mode, rng) for mode in ("down", "nearest", "up"))
        return np.where(wanted > 0, up, np.where(wanted < 0, down, near))
