"""What the tests of back-substitution kernels share: rows on windows of a node, drawn small, and specialised kernels run on them.

Tensors lie between guards (NaN, or a number no index has), so that a kernel that reads or writes past them shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Constant, Constants, Kernel
from polytriton.ir.net import Net
from polytriton.ir.plan import Axis, Window
from polytriton.kernels import catalogue
from polytriton.kernels.ascent import TurnLowering
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.load import function, prepare
from polytriton.passes.pipeline import compile_net
from polytriton.passes.windows import overhang
from polytriton.rounding import dot_error

FLOATS = {"float64": np.float64, "float32": np.float32, "tf32x3": np.float32}
ETA = {np.float64: 2.0**-1022, np.float32: 2.0**-126}
KINDS = ("mixed", "mixed", "integers", "one sign", "cancelling", "subnormal", "huge")
GUARD, POISON = 32, 77
Array = np.ndarray


# ---- kernels --------------------------------------------------------------------------------------------------------


def guarded(values: Array) -> Tensor:
    """The values in a tensor of their own, guards before and after."""
    flat = torch.from_numpy(np.ascontiguousarray(values)).reshape(-1)
    around = torch.full((len(flat) + 2 * GUARD,), float("nan") if flat.is_floating_point() else POISON, dtype=flat.dtype)
    around[GUARD : GUARD + len(flat)] = flat
    return around[GUARD : GUARD + len(flat)]


def intact(tensor: Tensor) -> bool:
    """Whether nothing was written to the guards around a tensor."""
    n = tensor.numel()
    around = torch.as_strided(tensor, (n + 2 * GUARD,), (1,), tensor.storage_offset() - GUARD)
    guards = torch.cat((around[:GUARD], around[GUARD + n :]))
    return bool((torch.isnan(guards) if guards.is_floating_point() else guards == POISON).all())


def run(
    name: str, constants: Mapping[str, Constant], numerics: str, grid: tuple[int, int], values: Mapping[str, Array | Tensor]
) -> dict[str, Array]:
    """One launch of a specialised kernel in Triton's interpreter: what the values are afterwards, by parameter without "_ptr".

    A value that is a tensor is used in place; what no constant asks for may be left out.
    """
    prepare(interpret=True)
    kernel = catalogue.make_kernel(name, tuple(sorted(constants.items())), numerics, 4, 1)
    tensors = {p: values[p.removesuffix("_ptr")] if p.removesuffix("_ptr") in values else np.zeros(0) for p in kernel.parameters}
    made = {p: v if isinstance(v, Tensor) else guarded(v) for p, v in tensors.items()}
    function(kernel)[grid](*(made[p] for p in kernel.parameters), num_warps=4, num_stages=1)
    for p, tensor in made.items():
        if not isinstance(tensors[p], Tensor):
            assert intact(tensor), f"{kernel.name} writes past {p}"
    after = {p.removesuffix("_ptr"): v.numpy().reshape(np.shape(tensors[p])) for p, v in made.items()}
    return {k: after.get(k, np.asarray(v)) for k, v in values.items()}


def turn_kernels(net: Net, signed: bool) -> list[Kernel]:
    """A turn's for rows over the output; `signed`: of parts with assumed signs, whose rows bring coefficients over the input along."""
    emitter, compiled = Emitter(), compile_net(net)
    relus = [n.name for n in compiled.net if n.op == "relu"] if signed else []
    TurnLowering(emitter, compiled.net, ARITHMETICS["float32"], compiled.net.output, relus, signed).turn()
    return list(emitter.kernels.values())


def blocks(n: int, block: int) -> int:
    return -(-n // block)


# ---- numbers --------------------------------------------------------------------------------------------------------


def draw(rng: np.random.Generator, shape: tuple[int, ...], kind: str, dtype: type = np.float64) -> Array:
    """Numbers of one kind; a fifth of the mixed ones are zeros of either sign."""
    x = rng.standard_normal(shape)
    if kind == "integers":
        x = rng.integers(-4, 5, shape).astype(np.float64)
    elif kind == "mixed":
        x = x * 10.0 ** rng.integers(-6, 7, shape)
        x = np.where(rng.random(shape) < 0.2, rng.choice([0.0, -0.0], shape), x)
    elif kind == "one sign":
        x = 1 + np.abs(x) * 1e-3
    elif kind == "cancelling":
        x = rng.choice([-1.0, 1.0], shape) * (1e6 + rng.integers(0, 3, shape))
    elif kind == "subnormal":
        x = np.round(4 * x) * float(np.finfo(dtype).smallest_subnormal)
    elif kind == "huge":
        x = x * 10.0 ** (0.9 * np.log10(float(np.finfo(dtype).max)))
    return x.astype(dtype)


def exact(*factors: Iterable[float]) -> Fraction:
    """The sum of products of stored numbers."""
    total = Fraction(0)
    for cell in zip(*(np.asarray(f).astype(np.float64).ravel().tolist() for f in factors), strict=True):
        if all(cell):
            term = Fraction(1)
            for x in cell:
                term *= Fraction(x)
            total += term
    return total


def covers(constant: float, error: float, demand: Fraction, size: Fraction, relative: float = 2.0**-40, absolute: float = 1e-280) -> bool:
    """Whether constant - error promises no more than `demand` allows, and gives away little; True for "no bound"."""
    if not np.isfinite(constant - error):
        return True
    value = Fraction(constant) - Fraction(error)
    return demand - Fraction(relative) * size - Fraction(absolute) <= value <= demand


# ---- rows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """Rows of several images on windows of one node: the first `count` of the row arrays count, the others must stay as they are.

    `slot` tells where a row's coefficients lie; `spare` cells the tables have beyond what the windows read.
    """

    shape: tuple[int, int, int]
    window: Window
    positions: tuple[int, int]
    batch: int
    count: int
    image: Array
    row_h: Array
    row_w: Array
    slot: Array | None
    spare: tuple[int, ...] = (0, 0, 0, 0)  # top, left, bottom, right

    @property
    def capacity(self) -> int:
        return len(self.image)

    @property
    def size(self) -> int:
        return self.window.cells * self.shape[2]

    @property
    def cells(self) -> tuple[int, int, int]:
        return self.window.h.size, self.window.w.size, self.shape[2]

    @property
    def halo(self) -> tuple[int, int, int, int]:
        (top, bottom), (left, right) = (
            overhang(a, p, n) for a, p, n in zip((self.window.h, self.window.w), self.positions, self.shape[:2], strict=True)
        )
        return top + self.spare[0], left + self.spare[1], bottom + self.spare[2], right + self.spare[3]

    @property
    def frame(self) -> tuple[int, int, int]:
        (h, w, c), (top, left, bottom, right) = self.shape, self.halo
        return top + h + bottom, left + w + right, c

    def geometry(self, prefix: str = "") -> Constants:
        (h, w, c), (top, left, _, _) = self.frame, self.halo
        return {f"{prefix}START": (top * w + left) * c, f"{prefix}PLANE": h * w * c, f"{prefix}PITCH": w * c}

    def place(self, prefix: str = "") -> Constants:
        a, b = self.window.h, self.window.w
        return {f"{prefix}RH": a.stride, f"{prefix}OH": a.offset, f"{prefix}RW": b.stride, f"{prefix}OW": b.offset}

    def lengths(self) -> Constants:
        return {"SIZE": self.size, "LINE": self.window.w.size * self.shape[2], "C": self.shape[2]}

    def rows(self) -> dict[str, Array]:
        known = {"image": self.image, "row_h": self.row_h, "row_w": self.row_w, "count": np.array([self.count])}
        return known if self.slot is None else {**known, "slot": self.slot}

    def coefficients(self, rng: np.random.Generator, kind: str, dtype: type) -> Array:
        """What lies in memory, [places, H, W, C]; `taken` picks the rows from it."""
        return draw(rng, (self.capacity if self.slot is None else int(self.slot.max(initial=0)) + 3, *self.cells), kind, dtype)

    def taken(self, m: Array) -> Array:
        return (m if self.slot is None else m[self.slot])[: self.count]

    def origin(self, r: int) -> tuple[int, int]:
        """The image cell that is the first of the row's window."""
        h, w = self.window.h, self.window.w
        return int(self.row_h[r]) * h.stride - h.offset, int(self.row_w[r]) * w.stride - w.offset

    def table(self, rng: np.random.Generator, kind: str, dtype: type) -> Array:
        return draw(rng, (self.batch, *self.frame), kind, dtype)

    def under(self, table: Array) -> Array:
        """The part of a table under every row's window, [count, H, W, C]."""
        out = np.empty((self.count, *self.cells), table.dtype)
        for r in range(self.count):
            y, x = (o + m for o, m in zip(self.origin(r), self.halo[:2], strict=True))
            out[r] = table[self.image[r], y : y + self.cells[0], x : x + self.cells[1]]
        return out

    def on_image(self, r: int) -> Array:
        """Which cells of the row's window lie on the image."""
        at = [o + np.arange(n) for o, n in zip(self.origin(r), self.cells[:2], strict=True)]
        on = [(a >= 0) & (a < n) for a, n in zip(at, self.shape[:2], strict=True)]
        return on[0][:, None] & on[1][None, :]

    def beside(self, rng: np.random.Generator) -> Scene:
        """The same rows on another window of the node, their coefficients lying elsewhere."""
        slot = None if self.slot is None else rng.permutation(self.capacity + 2)[: self.capacity]
        return replace(self, window=some_window(rng, self.shape[:2]), slot=slot)


def scene(rng: np.random.Generator, *, slots: bool = False, channels: int | None = None) -> Scene:
    """No row, one row or several of three images."""
    h, w = (int(n) for n in rng.integers(1, 5, 2))
    c = channels or int(rng.choice([1, 3, 17]))
    positions = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    window = some_window(rng, (h, w))
    count = int(rng.choice([0, 1, 2, 5]))
    capacity = count + int(rng.integers(1, 4))
    at = [rng.integers(0, n, capacity) for n in (3, *positions)]
    slot = rng.permutation(capacity + 2)[:capacity] if slots else None
    return Scene((h, w, c), window, positions, 3, count, at[0], at[1], at[2], slot, tuple(int(n) for n in rng.integers(0, 2, 4)))


def some_window(rng: np.random.Generator, cells: tuple[int, int]) -> Window:
    """From a single cell to larger than the image, or the whole image."""
    if rng.random() < 0.2:
        return Window(*(Axis(n, 0, 0) for n in cells))
    return Window(*(Axis(int(rng.choice([1, 2, 3, n + 2])), int(rng.integers(1, 3)), int(rng.integers(-1, 3))) for n in cells))


# ---- scalars --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scalars:
    """The tensors of a row pass (rows.row_scalars) and what the row invariant demands of its result.

    `t0` is the error vector without its share for the rounding of the bias sum, which the vector has to carry.
    """

    over: Scene
    relu: bool
    charge: bool
    bias_form: str
    tables: dict[str, Array]
    t0: Array
    bias: Array
    then: Scene

    @property
    def constants(self) -> Constants:
        return {
            "RELU": self.relu, "CHARGE": self.charge, "SLOT": self.over.slot is not None, **self.over.geometry(),
            **self.then.geometry("T_"), "BIAS": self.bias_form, "SUM_ERROR": 1 + dot_error(self.over.size) + 2.0**-50,
        }  # fmt: skip

    def substituted(self, m: Array) -> Array:
        """The rows as they stand over the operand of the ReLU."""
        x = self.over.taken(m)
        if not self.relu:
            return x
        with np.errstate(all="ignore"):
            return x * np.where(x < 0, self.over.under(self.tables["above"]), self.over.under(self.tables["below"]))

    def check(self, m: Array, found: Mapping[str, Array], tight: bool = True) -> None:
        """Constant and error after the pass, against exact numbers; the rows past the count are as before."""
        x, n = self.over.taken(m), self.substituted(m)
        cut, t = self.over.under(self.tables["cut"]), self.then.under(self.t0)
        count = self.over.count
        for r in range(count):
            c, e = float(self.tables["constant"][r]), float(self.tables["error"][r])
            demand, size = Fraction(c) - Fraction(e), abs(Fraction(c)) + Fraction(e)
            parts = [(np.minimum(x[r], 0), cut[r])] if self.relu else []
            if self.charge:
                floor = Fraction(float(self.tables["floor"][self.over.image[r]]))
                demand, size = demand - floor, size + floor
                if np.isfinite(n[r]).all():
                    parts += [(n[r], self.bias), (-np.abs(n[r]), t[r])]
                    size += exact(np.abs(n[r]), np.full(n[r].shape, np.abs(self.bias).max(initial=0.0)))
            for a, b in parts:
                demand += exact(a, b)
                size += exact(np.abs(a), np.abs(b))
            constant, error = float(found["constant"][r]), float(found["error"][r])
            assert covers(constant, error, demand, size), (r, constant, error, float(demand))
            assert np.isfinite(constant - error) or not tight
        for name in ("constant", "error"):
            assert np.array_equal(found[name][count:], self.tables[name][count:])


def scalars(rng: np.random.Generator, over: Scene, relu: bool, charge: bool, bias_form: str, kind: str, dtype: type) -> Scalars:
    then = replace(over, spare=tuple(int(n) for n in rng.integers(0, 3, 4)))
    h, w, c = over.cells
    width = {"none": 0, "line": c, "image": over.size}[bias_form]
    bias = draw(rng, (width,), kind, np.float64)
    spread = np.broadcast_to(bias.reshape((h, w, c) if bias_form == "image" else -1), (h, w, c)) if width else np.zeros((h, w, c))
    t0 = np.abs(then.table(rng, kind, dtype))
    largest = 1.001 * dot_error(over.size) * np.abs(spread).max(initial=0.0)
    with np.errstate(over="ignore"):
        t = (t0 + largest * (1 + 1e-6)).astype(dtype)
    tables = {
        "below": rng.choice([0.0, 1.0], (over.batch, *over.frame)).astype(dtype),
        "above": rng.choice([0.0, 0.25, 1 / 3, 1.0], (over.batch, *over.frame)).astype(dtype),
        "cut": np.abs(over.table(rng, kind, dtype)), "t": t, "bias": bias, "floor": np.abs(draw(rng, (over.batch,), kind, np.float64)),
        "constant": draw(rng, (over.capacity,), kind, np.float64), "error": np.abs(draw(rng, (over.capacity,), kind, np.float64)),
    }  # fmt: skip
    return Scalars(over, relu, charge, bias_form, tables, t0, spread, then)
