"""Small random networks from a seed, with every operator and oddity, boxes around them, and three fixed networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from polytriton.errors import InvalidIR
from polytriton.ir.check import check_net
from polytriton.ir.interp import user_shape
from polytriton.ir.net import Builder, Net, Ref

SCALES = ("normal", "range", "cancel", "zeros", "ties", "positive", "negative", "subnormal")
BOXES = ("ordinary", "zero", "ulp", "tiny", "huge", "touching")
SLOPES = tuple(float(np.float32(s)) for s in (0.1, 0.01, 1.0, 1.5, 4.0, -0.25, -2.0))


class _Grower:
    """A Builder, its random source and the limits; every move takes the node grown last and returns the new one."""

    def __init__(self, rng: np.random.Generator, scale: str, limit: int, leaky: float) -> None:
        self.rng, self.scale, self.limit, self.leaky = rng, scale, limit, leaky
        self.b = Builder("random")

    # ---- numbers ----

    def pick(self, items: Sequence[int]) -> int:
        return int(self.rng.choice(items))

    def weights(self, shape: tuple[int, ...], fan: int) -> np.ndarray:
        rng = self.rng
        kind = self.scale if self.scale in ("ties", "subnormal") or rng.random() < 0.7 else "normal"
        w = rng.standard_normal(shape) * np.sqrt(2 / max(fan, 1))
        if kind == "range":
            w *= 2.0 ** rng.integers(-20, 21, shape)
        elif kind == "cancel" and w.size >= 3:
            rows = w.reshape(shape[0], -1) if w.ndim > 1 and w[0].size >= 3 else w.reshape(1, -1)
            big = 2.0 ** self.pick((10, 24, 27))
            down = big if rng.random() < 0.5 else 1.0
            for row in rows:
                row[rng.choice(row.size, 3, replace=False)] = (big / down, 1 / down, -big / down)
        elif kind == "zeros":
            w = np.where(rng.random(shape) < 0.6, np.where(rng.random(shape) < 0.5, 0.0, -0.0), w)
        elif kind == "ties":
            w = rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], shape)
        elif kind in ("positive", "negative"):
            w = np.abs(w) * (1 if kind == "positive" else -1)
        elif kind == "subnormal":
            w = np.where(rng.random(shape) < 0.5, w * 1e-41, w * 1e-37)
        return np.asarray(w, dtype=np.float32)

    # ---- moves that fit any shape ----

    def relu(self, x: str) -> str:
        slope = float(self.rng.choice(SLOPES)) if self.rng.random() < self.leaky else 0.0
        return self.b.add("relu", (x,), slope=slope) if slope else self.b.add("relu", (x,))

    def scale_cells(self, x: str) -> str:
        shape = self.b.shape(x)
        forms = [(1,) * len(shape), shape, *([(shape[0], 1, 1)] * 2 if len(shape) == 3 else [])]
        a, c = forms[self.pick(range(len(forms)))], forms[self.pick(range(len(forms)))]
        return self.b.add("scale", (x,), a=self.b.constant(self.weights(a, 2)), c=self.b.constant(self.weights(c, 8)))

    def linear(self, x: str, outputs: int | None = None) -> str:
        n = int(np.prod(self.b.shape(x)))
        m = outputs or self.pick((1, 3, 8, 12, 20))
        flat = bool(outputs) or self.rng.random() < 0.6 or m % 4 > 0
        w, b = self.b.constant(self.weights((m, n), n)), self.b.constant(self.weights((m,), 8))
        return self.b.add("linear", (x,), w=w, b=b) if flat else self.b.add("linear", (x,), w=w, b=b, to=(m // 4, 2, 2))

    def layout(self, x: str) -> str:
        b, rng, shape = self.b, self.rng, self.b.shape(x)
        kind = self.pick(range(5))
        axis = self.pick(range(len(shape)))
        if kind == 0 and shape[axis] > 1:
            step = self.pick((1, 2, -1)) if shape[axis] > 2 else 1
            size = max(1, (shape[axis] - 1) // abs(step))
            start = (size - 1) * -step if step < 0 else shape[axis] - 1 - (size - 1) * step
            return b.add("slice", (x,), axis=axis, start=start, step=step, size=size)
        if kind == 1:
            lo, hi = (tuple(int(v) for v in rng.integers(0, 2, len(shape))) for _ in range(2))
            return b.add("pad", (x,), lo=lo, hi=hi)
        if kind == 2 and len(shape) > 1:
            return b.add("transpose", (x,), perm=tuple(int(i) for i in rng.permutation(len(shape))))
        size = int(np.prod(shape))
        if kind == 3:
            index = rng.integers(-1, size, self.pick((size, max(1, size // 2))))
            return b.add("gather", (x,), index=b.constant(index, "index"), to=(len(index),))
        return b.add("reshape", (x,), to=(size,) if len(shape) > 1 else (1, size, 1) if size % 4 else (size // 4, 2, 2))

    def same(self, x: str) -> str:
        """An affine step that keeps the shape."""
        shape = self.b.shape(x)
        if len(shape) == 3 and self.rng.random() < 0.8:
            return self.conv(x, keep=True)
        if len(shape) == 1:
            return self.linear(x, shape[0])
        return self.scale_cells(x)

    # ---- moves that fit images ----

    def conv(self, x: str, keep: bool = False, depthwise: bool = False, grouped: bool = False) -> str:
        b, rng = self.b, self.rng
        shape = b.shape(x)
        if len(shape) != 3:
            return self.linear(x)
        c = shape[0]
        k = (self.pick(range(1, 5)), self.pick(range(1, 5)))
        s = (self.pick((1, 1, 2, 3)), self.pick((1, 1, 2, 3)))
        d = (self.pick((1, 1, 2)), self.pick((1, 1, 2)))
        p = tuple(self.pick((0, 0, 1, 2)) for _ in range(4))
        if rng.random() < 0.1:
            p = (p[0], -1, p[2], p[3])
        out = self.pick((1, 2, 4, 6)) if rng.random() < 0.9 else 17
        g = c if depthwise else next((q for q in (3, 2) if c % q == 0), 1) if grouped else 1
        out = c * self.pick((1, 2)) if depthwise else g * max(1, out // g)
        if keep:
            s, out = (1, 1), c
            top, left = (self.pick(range((k[i] - 1) * d[i] + 1)) for i in (0, 1))
            p = (top, left, (k[0] - 1) * d[0] - top, (k[1] - 1) * d[1] - left)
        w = self.weights((out, c // g, *k), c // g * k[0] * k[1])
        if depthwise and rng.random() < 0.5:
            w = np.full_like(w, 1 / (k[0] * k[1]))
        return b.add("conv", (x,), w=b.constant(w), b=b.constant(self.weights((out,), 8)), k=k, s=s, p=p, d=d, g=g)

    def maxpool(self, x: str) -> str:
        k = (self.pick((1, 2, 3)), self.pick((2, 3)))
        p = tuple(self.pick((0, 0, 1)) for _ in range(4))
        return self.b.add("maxpool", (x,), k=k, s=(self.pick((1, 2)), self.pick((1, 2))), p=p, d=(self.pick((1, 1, 2)), 1))

    # ---- joins ----

    def branch(self, x: str, length: int) -> str:
        for _ in range(length):
            x = self.same(self.relu(x) if self.rng.random() < 0.6 else x)
        return x

    def join(self, x: str, y: str) -> str:
        return self.b.add("add" if self.rng.random() < 0.7 else "sub", (x, y) if self.rng.random() < 0.7 else (y, x))

    def residual(self, x: str) -> str:
        return self.join(self.branch(x, self.pick((1, 2))), x)

    def shortcut(self, x: str) -> str:
        """Both sides affine, of different depth; on images often a strided pair of convolutions of one shape."""
        y = self.conv(x)
        if len(self.b.shape(x)) != 3 or len(self.b.shape(y)) != 3:
            return self.join(self.branch(x, 2), self.same(x))
        node = self.b.nodes[-1]
        ref = node.attrs["w"]
        assert isinstance(ref, Ref)
        shape = self.b.weights[ref.name].shape
        attrs: dict[str, Any] = {**node.attrs, "w": self.b.constant(self.weights(shape, int(np.prod(shape[1:]))))}
        other = self.b.add("conv", (x,), **attrs)
        return self.join(self.branch(y, self.pick((0, 1, 2))), other)

    def nested(self, x: str) -> str:
        return self.join(self.residual(self.same(x)), x)

    def preact(self, x: str) -> str:
        """The node before the activation is read twice: by it and by a shortcut."""
        y = self.same(x)
        return self.join(self.same(self.relu(y)), y)

    def postact(self, x: str) -> str:
        """A shortcut past an activation: the sum's operands share coefficients until the ReLU multiplies its own."""
        return self.join(self.relu(self.same(x)), x)

    def twice(self, x: str) -> str:
        return self.b.add("add" if self.rng.random() < 0.8 else "sub", (x, x))

    def concat(self, x: str) -> str:
        axis = self.pick(range(len(self.b.shape(x))))
        parts = [x, self.branch(x, 1), self.relu(x)]
        order = [parts[int(i)] for i in self.rng.permutation(3)[: self.pick((2, 3))]]
        return self.b.add("concat", tuple(order), axis=axis)

    # ---- growing ----

    def attempt(self, move: Callable[[str], str], x: str) -> str:
        """The move, thrown up to four times until it fits the shapes and the size limit, or else what stood before it."""
        b = self.b
        for _ in range(4):
            kept = (list(b.nodes), dict(b.weights), set(b._taken), dict(b._shapes))
            try:
                y = move(x)
                if all(1 <= n.size <= self.limit for n in b.nodes):
                    return y
            except InvalidIR:
                pass
            b.nodes, b.weights, b._taken, b._shapes = kept
        return x


IMAGE_MOVES = ("conv", "conv", "depthwise", "grouped", "relu", "relu", "relu", "maxpool", "scale_cells", "layout", "linear")
JOIN_MOVES = ("residual", "shortcut", "nested", "preact", "twice", "concat")
MOVES = IMAGE_MOVES + JOIN_MOVES
PLAIN = ("conv", "depthwise", "grouped", "relu", "maxpool", "residual", "preact")
HEADS = ("linear", "linear", "linear", "relu", "read", "layout", "join", "asis")


def _move(g: _Grower, name: str) -> Callable[[str], str]:
    if name in ("depthwise", "grouped"):
        return lambda x: g.conv(x, depthwise=name == "depthwise", grouped=name == "grouped")
    found: Callable[[str], str] = getattr(g, name)
    return found


def _input(g: _Grower, image: bool) -> str:
    rng = g.rng
    if not image:
        n = g.pick(range(1, 13))
        if rng.random() < 0.2:
            return g.b.input((n,), take=g.b.constant(rng.integers(-1, n + 2, n), "take"), of=(n + 2,))
        return g.b.input((n,))
    c = g.pick((1, 1, 2, 3, 17))
    h, w = (g.pick(range(1, 3)), g.pick(range(1, 4))) if c == 17 else (g.pick(range(2, 7)), g.pick(range(2, 7)))
    if rng.random() < 0.15:  # the user's image is channels last, as a frontend leaves it
        cells = np.arange(c * h * w).reshape(h, w, c).transpose(2, 0, 1).ravel()
        return g.b.input((c, h, w), take=g.b.constant(cells, "take"), of=(h, w, c))
    return g.b.input((c, h, w))


def random_net(
    seed: int,
    *,
    steps: int | None = None,
    image: bool | None = None,
    scale: str | None = None,
    moves: Sequence[str] = MOVES,
    heads: Sequence[str] = HEADS,
    leaky: float = 0.25,
    limit: int = 160,
) -> Net:
    """The same seed and knobs always make the same net. `steps` moves are tried; no node grows beyond `limit` cells."""
    rng = np.random.default_rng(seed)
    scale = scale or str(rng.choice(["normal"] * 4 + list(SCALES)))
    g = _Grower(rng, scale, limit, leaky)
    x = _input(g, rng.random() < 0.6 if image is None else image)
    for _ in range(int(rng.integers(2, 9)) if steps is None else steps):
        x = g.attempt(_move(g, str(rng.choice(list(moves)))), x)
    head = str(rng.choice(list(heads)))
    outputs = g.pick((1, 2, 3, 5))
    if head == "linear":
        x = g.linear(x, outputs)
    elif head == "relu":
        x = g.relu(g.linear(x, outputs))
    elif head == "read":  # the output is also read by nodes nothing comes of
        x = g.linear(x, outputs)
        g.linear(g.relu(x), 2)
    elif head == "layout":
        x = g.attempt(g.layout, g.linear(x, 6))
    elif head == "join":
        y = g.linear(x, outputs)
        x = g.join(g.linear(g.relu(y), outputs), y)
    elif len(g.b.nodes) == 1:
        x = g.relu(x)
    net = g.b.build(x)
    check_net(net)
    return net


def nets(**knobs: object) -> st.SearchStrategy[Net]:
    """Random nets; hypothesis shrinks towards few moves and normal weights."""
    free: dict[str, st.SearchStrategy[object]] = {
        "seed": st.integers(0, 2**31 - 1),
        "steps": st.integers(0, 8),
        "image": st.booleans(),
        "scale": st.sampled_from(("normal", "normal", *SCALES)),
    }
    return st.builds(random_net, **{**free, **{k: st.just(v) for k, v in knobs.items()}})  # type: ignore[arg-type]


def random_box(rng: np.random.Generator, net: Net, kind: str, batch: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """[batch, ...user shape] lower and upper bounds, float32 numbers held in float64."""
    shape = (batch, *user_shape(net))
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "zero":
        lo, hi = x, x
    elif kind == "ulp":
        lo, hi = x, np.nextafter(x, np.float32(np.inf))
    elif kind == "touching":
        r = np.abs(rng.standard_normal(shape)).astype(np.float32)
        lo, hi = (np.zeros_like(r), r) if rng.random() < 0.5 else (-r, np.zeros_like(r))
    else:
        width = {"ordinary": 10.0 ** rng.uniform(-2, 0), "tiny": 1e-6, "huge": 1e4}[kind]
        r = (width * rng.random(shape)).astype(np.float32)
        r = np.where(rng.random(shape) < 0.2, 0, r).astype(np.float32)
        lo, hi = x - r, x + r
    return lo.astype(np.float64), hi.astype(np.float64)


# ---- fixed networks --------------------------------------------------------------------------------------


def toy_dense() -> Net:
    """The running example of the DeepPoly paper: over [-1,1]^2 the first output lies in [1, 5.5], the second in [0, 2]."""
    b = Builder("toy_dense")
    x = b.input((2,))
    for m, c in (([[1, 1], [1, -1]], [0, 0]), ([[1, 1], [1, -1]], [0, 0]), ([[1, 1], [0, 1]], [1, 0])):
        hidden = x if x == "x" else b.add("relu", (x,))
        x = b.add("linear", (hidden,), w=b.constant(np.array(m, np.float32)), b=b.constant(np.array(c, np.float32)))
    return b.build(x)


def _he(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)


def toy_conv() -> Net:
    """3x8x8 through two convolutions, the second strided with one-sided padding, to 10 outputs."""
    rng, b = np.random.default_rng(1), Builder("toy_conv")
    x = b.input((3, 8, 8))
    h = _conv3(b, rng, x, 6, (1, 1), (1, 1, 1, 1))
    h = _conv3(b, rng, b.add("relu", (h,)), 8, (2, 2), (0, 0, 1, 1))
    return b.build(_classify(b, rng, b.add("relu", (h,))))


def toy_residual() -> Net:
    """The residual net of the architecture page: conv, relu, conv, add, relu, linear."""
    rng, b = np.random.default_rng(2), Builder("toy_residual")
    r = b.add("relu", (_conv3(b, rng, b.input((3, 8, 8)), 8, (1, 1), (1, 1, 1, 1)),))
    h = b.add("relu", (b.add("add", (_conv3(b, rng, r, 8, (1, 1), (1, 1, 1, 1)), r)),))
    return b.build(_classify(b, rng, h))


def _conv3(b: Builder, rng: np.random.Generator, x: str, out: int, s: tuple[int, int], p: tuple[int, int, int, int]) -> str:
    w, c = b.constant(_he(rng, out, b.shape(x)[0], 3, 3)), b.constant(0.1 * _he(rng, out))
    return b.add("conv", (x,), w=w, b=c, k=(3, 3), s=s, p=p)


def _classify(b: Builder, rng: np.random.Generator, x: str) -> str:
    return b.add("linear", (x,), w=b.constant(_he(rng, 10, int(np.prod(b.shape(x))))), b=b.constant(0.1 * _he(rng, 10)))
