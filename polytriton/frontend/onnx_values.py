"""The values an ONNX graph is translated in: activations (an IR node seen in some ONNX shape) and constants.

Batch is always 1 and everything is row-major, so an ONNX shape is only a view of an IR node's cells: reshapes cost
nothing, and an IR `reshape` appears only where an operator needs another node shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from polytriton.errors import ResourceError, UnsupportedModel
from polytriton.ir.check import MAX_CELLS
from polytriton.ir.net import Attr, Builder, Ref, Shape

REMEDY = "`polytriton inspect --operators` lists what is supported; simplify the model (e.g. with onnxsim) or re-export it"
MAX_CONSTANT = 256 << 20  # bytes of one computed constant
MAX_RANK = 16
FREE_BYTES = 512 << 20  # made up by the translation, whatever the size of the file
FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))
ONE, ZERO = np.ones((), np.float32), np.zeros((), np.float32)  # of no rank: they raise nobody else's


@dataclass(frozen=True)
class Act:
    """An activation: the cells of IR node `node`, in row-major order, seen in the ONNX shape `shape`."""

    node: str
    shape: Shape
    dtype: np.dtype


@dataclass(frozen=True)
class Const:
    """A known tensor. A stored float is exact; one computed from others lies within k factors (1+-2^-53)^+-1 of the
    exact value (`slack`), and a deployed network reaches it through up to `ops` roundings of its own."""

    value: np.ndarray
    dtype: np.dtype
    slack: int = 0
    ops: int = 0

    @property
    def shape(self) -> Shape:
        return self.value.shape

    @property
    def exact(self) -> bool:
        return self.slack == 0 and self.ops == 0

    @property
    def floating(self) -> bool:
        return self.dtype in FLOATS


Value = Act | Const
Result = Value | None | Sequence[Value | None]  # of a node: the value of its first output, or of each; None where nobody wants it


def widen(array: np.ndarray) -> Const:
    """A tensor as the file holds it; float16 is widened, which is exact."""
    return Const(array.astype(np.float32) if array.dtype == np.float16 else array, array.dtype)


def cells(shape: Sequence[int]) -> int:
    return math.prod(int(d) for d in shape)


def core(shape: Shape) -> Shape:
    """The IR shape of an ONNX shape: a leading batch axis of 1 is dropped."""
    return (shape[1:] if len(shape) > 1 and shape[0] == 1 else shape) or (1,)


def rounding(*consts: Const, slack: int = 0, ops: int = 0) -> dict[str, int]:
    """The IR rounding attributes of a layer whose weights are `consts`, changed by `slack` roundings here."""
    made = {"slack": slack + max((c.slack for c in consts), default=0), "ops": ops + max((c.ops for c in consts), default=0)}
    return {k: v for k, v in made.items() if v}


def share(count: int) -> tuple[np.ndarray, dict[str, int]]:
    """1 / count as a factor, and the IR rounding attributes of a layer of it. It rounds once unless `count` is a power of two; a runtime
    may divide, or multiply by its own rounded 1 / count: one rounding beyond the sum and product of the layer either way."""
    power = count & (count - 1) == 0
    made = {} if count == 1 else {"ops": 1} if power else {"slack": 1, "ops": 1}
    return np.asarray(1.0 / count, np.float32 if power else np.float64), made


@dataclass
class State:
    """What one translation shares: the growing net, the values by tensor name, and the memory still allowed."""

    builder: Builder
    opset: int
    budget: int
    half: bool = False  # whether the network stores in float16 what it computed
    unstated: str = ""  # an operator of which no deployed semantics tells how far a kernel may be off
    values: dict[str, Value] = field(default_factory=dict)
    refs: dict[int, tuple[np.ndarray, Ref]] = field(default_factory=dict)
    views: dict[tuple[str, Shape], str] = field(default_factory=dict)


class Site:
    """One ONNX node under translation: its operands and attributes, and the few ways to build values from them."""

    def __init__(self, state: State, node: onnx.NodeProto, attrs: dict[str, Any], wanted: set[str]) -> None:
        self.state, self.op, self.opset, self.attrs = state, node.op_type, state.opset, attrs
        self.label = node.name or next((o for o in node.output if o), "?")
        self.outputs = list(node.output)
        self.wanted = [bool(o) and o in wanted for o in node.output]
        self.inputs: list[Value | None] = [state.values[i] if i else None for i in node.input]

    # ---- errors and limits

    def fail(self, why: str, remedy: str = REMEDY) -> UnsupportedModel:
        return UnsupportedModel(f"node {self.label!r} ({self.op}): {why}", remedy)

    def need(self, ok: bool, why: str) -> None:
        if not ok:
            raise self.fail(why)

    def leave_unstated(self) -> None:
        """The node is exact, and no deployed semantics says what a kernel makes of it: the network is for `real` alone."""
        self.state.unstated = self.state.unstated or self.op

    def spend(self, nbytes: int) -> None:
        """Called before anything sizeable is allocated: a small file must not make large tensors."""
        self.state.budget -= nbytes
        if self.state.budget < 0:
            raise ResourceError(f"node {self.label!r} ({self.op}): translating the model takes too much memory", "make the model smaller")

    def check_const(self, shape: Sequence[int], itemsize: int = 8) -> None:
        self.need(len(shape) <= MAX_RANK, f"a tensor of rank {len(shape)} (limit {MAX_RANK})")
        size = cells(shape) * itemsize
        self.need(size <= MAX_CONSTANT, f"it computes a constant of {size >> 20} MiB (limit {MAX_CONSTANT >> 20})")
        self.spend(size)

    def check_act(self, shape: Sequence[int]) -> None:
        self.need(len(shape) <= MAX_RANK, f"a tensor of rank {len(shape)} (limit {MAX_RANK})")
        self.need(0 < cells(shape) <= MAX_CELLS, f"an activation of shape {list(shape)} has {cells(shape)} cells (limit 1..{MAX_CELLS})")

    # ---- operands and attributes

    def get(self, key: str, default: Any = None) -> Any:
        return self.attrs.get(key, default)

    def flag(self, key: str, default: int) -> bool:
        """An attribute that means no or yes; runtimes disagree on what any other number means."""
        found = self.attrs.get(key, default)
        self.need(found in (0, 1), f"{key} is {found}, neither 0 nor 1")
        return bool(found)

    def maybe(self, i: int) -> Value | None:
        return self.inputs[i] if i < len(self.inputs) else None

    def value(self, i: int) -> Value:
        found = self.maybe(i)
        if found is None:
            raise self.fail(f"operand {i} is missing")
        return found

    def act(self, i: int) -> Act:
        found = self.value(i)
        if not isinstance(found, Act):
            raise self.fail(
                "it computes with constants only in a way that is not folded here", "fold the model's constants first, e.g. with onnxsim"
            )
        return found

    def const(self, i: int, what: str) -> Const:
        found = self.value(i)
        if not isinstance(found, Const):
            raise self.fail(f"its {what} depends on the network's input; only a constant is supported")
        return found

    def weight(self, i: int, what: str) -> Const:
        """A constant of floating type, about to become a weight."""
        found = self.const(i, what)
        self.need(found.floating, f"its {what} has type {found.dtype}, not a floating type")
        return found

    def maybe_const(self, i: int, what: str) -> Const | None:
        return None if self.maybe(i) is None else self.const(i, what)

    def ints(self, i: int, what: str) -> list[int]:
        found = self.const(i, what)
        self.need(np.issubdtype(found.dtype, np.integer) and found.value.size <= 1 << 20, f"its {what} is not a short list of integers")
        return [int(v) for v in found.value.reshape(-1)]

    def axis(self, axis: int, rank: int) -> int:
        self.need(-rank <= axis < rank, f"axis {axis} is outside a tensor of rank {rank}")
        return axis + rank if axis < 0 else axis

    def axes(self, axes: Sequence[int], rank: int) -> list[int]:
        found = [self.axis(a, rank) for a in axes]
        self.need(len(set(found)) == len(found), f"axes {list(axes)} repeat")
        return found

    def broadcast(self, *shapes: Shape) -> Shape:
        try:
            return tuple(np.broadcast_shapes(*shapes))
        except ValueError:
            raise self.fail(f"shapes {[list(s) for s in shapes]} do not broadcast") from None

    # ---- building IR

    def ref(self, array: np.ndarray, tag: str) -> Ref:
        """The net's copy of an array, shared where the same array is used again."""
        known = self.state.refs.get(id(array))
        if known is None:
            self.spend(array.nbytes)
            known = array, self.state.builder.constant(array, f"{self.outputs[0]}_{tag}")  # holding the array keeps its id its own
            self.state.refs[id(array)] = known
        return known[1]

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] | None = None, tag: str = "", out: int = 0) -> str:
        """An IR node named after the ONNX output it computes (a `tag` marks steps on the way)."""
        return self.state.builder.add(op, tuple(inputs), self.outputs[out] + (f"_{tag}" if tag else ""), not tag, **(attrs or {}))

    def node_shape(self, act: Act) -> Shape:
        return self.state.builder.shape(act.node)

    def view(self, act: Act, shape: Shape) -> str:
        """The IR node with the activation's cells in exactly this shape."""
        if self.node_shape(act) == shape:
            return act.node
        key = act.node, shape
        if key not in self.state.views:
            self.state.views[key] = self.emit("reshape", [act.node], {"to": shape}, "view")
        return self.state.views[key]

    def result(self, node: str, shape: Shape, dtype: np.dtype) -> Act:
        self.check_act(shape)
        self.need(cells(shape) == cells(self.state.builder.shape(node)), f"internal: {list(shape)} is not the size of %{node}")
        return Act(node, shape, dtype)

    def spread(self, array: np.ndarray, shape: Shape, node_shape: Shape) -> np.ndarray:
        """A constant that broadcasts to the ONNX shape, so that it broadcasts to the node's own shape."""
        if array.size == 1:
            return array.reshape(1)
        full = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        lead = len(shape) - len(node_shape)
        if lead >= 0 and shape[lead:] == node_shape:
            return full.reshape(full.shape[lead:])
        self.spend(array.itemsize * cells(shape))
        return np.broadcast_to(full, shape).reshape(node_shape)

    def scale(
        self,
        act: Act,
        a: np.ndarray,
        c: np.ndarray,
        made: dict[str, int],
        babs: np.ndarray | None = None,
        tag: str = "",
        wabs: np.ndarray | None = None,
    ) -> Act:
        """a * x + c, where both broadcast against the activation's ONNX shape and may enlarge it."""
        shape = self.broadcast(act.shape, a.shape, c.shape)
        act = self.expand(act, shape, "wide")
        to = self.node_shape(act)
        for name, array in (("factor", a), ("constant", c)):
            self.need(bool(np.isfinite(array).all()), f"its {name} is not finite")
        attrs: dict[str, Attr] = {"a": self.ref(self.spread(a, shape, to), "a"), "c": self.ref(self.spread(c, shape, to), "c"), **made}
        if babs is not None:
            attrs["babs"] = self.ref(self.spread(babs, shape, to), "babs")
        if wabs is not None:
            attrs["wabs"] = self.ref(self.spread(wabs, shape, to), "wabs")
        return self.result(self.emit("scale", [act.node], attrs, tag), shape, act.dtype)

    # ---- re-orderings, the same for activations and constants

    def relabel(self, v: Value, shape: Sequence[int]) -> Value:
        to = tuple(int(d) for d in shape)
        self.need(cells(to) == cells(v.shape) and min(to, default=0) >= 0, f"{list(v.shape)} cannot become {list(to)}")
        self.need(len(to) <= MAX_RANK, f"a tensor of rank {len(to)} (limit {MAX_RANK})")
        return replace(v, shape=to) if isinstance(v, Act) else replace(v, value=v.value.reshape(to))

    def reorder(self, act: Act, index: np.ndarray, tag: str = "") -> Act:
        """The activation whose cell i is cell index[i] of `act`."""
        self.check_act(index.shape)
        flat = np.ascontiguousarray(index, dtype=np.int64).reshape(-1)
        if flat.size == cells(act.shape) and bool((flat == np.arange(flat.size)).all()):
            return replace(act, shape=index.shape)
        node = self.emit("gather", [act.node], {"index": self.ref(flat, "index"), "to": core(index.shape)}, tag)
        return self.result(node, index.shape, act.dtype)

    def order(self, act: Act) -> np.ndarray:
        """The positions of the activation's cells, in its shape; every caller allocates a few times as much."""
        self.spend(8 * cells(act.shape))
        return np.arange(cells(act.shape), dtype=np.int64).reshape(act.shape)

    def expand(self, v: Value, shape: Shape, tag: str = "") -> Any:
        """Broadcast; cells are repeated only where the size grows."""
        if v.shape == shape:
            return v
        if isinstance(v, Const):
            self.check_const(shape)
            return replace(v, value=np.broadcast_to(v.value, shape))
        self.check_act(shape)
        if cells(shape) == cells(v.shape):
            return replace(v, shape=shape)
        return self.reorder(v, np.broadcast_to(self.order(v), shape), tag)

    def transpose(self, v: Value, perm: Sequence[int], tag: str = "") -> Value:
        self.need(sorted(perm) == list(range(len(v.shape))), f"perm {list(perm)} does not permute {len(v.shape)} axes")
        shape = tuple(v.shape[p] for p in perm)
        if isinstance(v, Const):
            return replace(v, value=v.value.transpose(perm))
        kept = [p for p in perm if v.shape[p] != 1]
        if kept == sorted(kept):
            return replace(v, shape=shape)
        if v.shape[0] == 1 and perm[0] == 0:
            node = self.emit("transpose", [self.view(v, v.shape[1:])], {"perm": tuple(p - 1 for p in perm[1:])}, tag)
        else:
            axes = sorted(kept)
            node = self.emit(
                "transpose", [self.view(v, tuple(v.shape[a] for a in axes))], {"perm": tuple(axes.index(p) for p in kept)}, tag
            )
        return self.result(node, shape, v.dtype)

    def cut(self, v: Value, axis: int, start: int, step: int, size: int, out: int = 0, tag: str = "") -> Value:
        """Cells start, start+step, ... of one axis."""
        if isinstance(v, Const):
            at, stop = [slice(None)] * len(v.shape), start + size * step
            at[axis] = slice(start, stop if stop >= 0 else None, step) if size else slice(0, 0)
            return replace(v, value=v.value[tuple(at)])
        self.need(size > 0, "it selects nothing from an activation")
        shape = (*v.shape[:axis], size, *v.shape[axis + 1 :])
        if (start, step, size) == (0, 1, v.shape[axis]) or v.shape[axis] == size == 1:
            return v
        to = core(v.shape)
        at_axis = axis - (len(v.shape) - len(to))
        node = self.emit("slice", [self.view(v, to)], {"axis": at_axis, "start": start, "step": step, "size": size}, tag, out)
        return self.result(node, shape, v.dtype)

    def pick(self, v: Value, axis: int, index: np.ndarray) -> Value:
        """numpy.take with indices already in range."""
        shape = (*v.shape[:axis], *index.shape, *v.shape[axis + 1 :])
        if isinstance(v, Const):
            self.check_const(shape, v.value.itemsize)
            return replace(v, value=np.take(v.value, index, axis=axis))
        self.check_act(shape)
        flat = index.reshape(-1)
        step = int(flat[1] - flat[0]) if flat.size > 1 else 1
        if step and bool((np.diff(flat) == step).all()):
            return self.relabel(self.cut(v, axis, int(flat[0]), step, flat.size), shape)
        return self.reorder(v, np.take(self.order(v), index, axis=axis))

    def pad(self, v: Value, lo: Sequence[int], hi: Sequence[int], tag: str = "") -> Value:
        """Zeros around."""
        if not any(lo) and not any(hi):
            return v
        shape = tuple(d + a + b for d, a, b in zip(v.shape, lo, hi, strict=True))
        if isinstance(v, Const):
            self.check_const(shape, v.value.itemsize)
            return replace(v, value=np.pad(v.value, list(zip(lo, hi, strict=True))))
        self.check_act(shape)
        drop = 1 if len(v.shape) > 1 and v.shape[0] == 1 and lo[0] == hi[0] == 0 else 0
        node = self.emit("pad", [self.view(v, v.shape[drop:])], {"lo": tuple(lo[drop:]), "hi": tuple(hi[drop:])}, tag)
        return self.result(node, shape, v.dtype)
