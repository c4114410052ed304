"""ONNX operators that move cells. Each is written once, for activations and constants alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polytriton.frontend.onnx_values import Act, Const, Result, Site, cells, rounding


def identity(s: Site) -> Result:
    return s.value(0)


def dropout(s: Site) -> Result:
    mode = s.maybe_const(2, "training mode")
    s.need(mode is None or not mode.value.any(), "training mode is not supported")
    s.need(not any(s.wanted[1:]), "the mask is not supported")
    return s.value(0)


def flatten(s: Site) -> Result:
    v, axis = s.value(0), s.get("axis", 1)
    axis = axis if axis == len(v.shape) else s.axis(axis, len(v.shape))
    return s.relabel(v, (cells(v.shape[:axis]), cells(v.shape[axis:])))


def reshape(s: Site) -> Result:
    v, to = s.value(0), s.ints(1, "shape")
    if not s.flag("allowzero", 0):
        s.need(all(d != 0 or i < len(v.shape) for i, d in enumerate(to)), f"shape {to} copies an axis that {list(v.shape)} lacks")
        to = [v.shape[i] if d == 0 else d for i, d in enumerate(to)]
    s.need(to.count(-1) <= 1 and min(to, default=0) >= -1, f"shape {to} is not a shape")
    if -1 in to:
        rest = -cells(to)
        s.need(rest > 0 and cells(v.shape) % rest == 0, f"{list(v.shape)} cannot become {to}")
        to = [cells(v.shape) // rest if d == -1 else d for d in to]
    return s.relabel(v, to)


def axes_of(s: Site, i: int) -> list[int] | None:
    """Axes given as an attribute (older opsets) or as operand i."""
    return list(s.attrs["axes"]) if "axes" in s.attrs else None if s.maybe(i) is None else s.ints(i, "axes")


def squeeze(s: Site) -> Result:
    v, axes = s.value(0), axes_of(s, 1)
    s.need(axes is None or len(axes) > 0, "its axes are empty: some runtimes squeeze nothing then, some every axis of 1")
    drop = [i for i, d in enumerate(v.shape) if d == 1] if axes is None else s.axes(axes, len(v.shape))
    s.need(all(v.shape[i] == 1 for i in drop), f"axes {drop} of {list(v.shape)} are not all 1")
    return s.relabel(v, [d for i, d in enumerate(v.shape) if i not in drop])


def unsqueeze(s: Site) -> Result:
    v, axes = s.value(0), axes_of(s, 1)
    if axes is None:
        raise s.fail("the axes are missing")
    rank = len(v.shape) + len(axes)
    new, old = set(s.axes(axes, rank)), iter(v.shape)
    return s.relabel(v, [1 if i in new else next(old) for i in range(rank)])


def transpose(s: Site) -> Result:
    v = s.value(0)
    return s.transpose(v, list(s.get("perm", range(len(v.shape))[::-1])))


def gather(s: Site) -> Result:
    v, index = s.value(0), s.const(1, "index")
    axis = s.axis(s.get("axis", 0), len(v.shape))
    s.need(np.issubdtype(index.dtype, np.integer), "its index is not an integer")
    at = index.value.astype(np.int64)
    s.need(
        at.size == 0 or (at.min() >= -v.shape[axis] and at.max() < v.shape[axis]), f"an index lies outside axis {axis} of {list(v.shape)}"
    )
    return s.pick(v, axis, np.where(at < 0, at + v.shape[axis], at))


def slice_(s: Site) -> Result:
    v = s.value(0)
    if s.opset < 10:
        starts, ends, steps = list(s.get("starts", ())), list(s.get("ends", ())), None
        axes = axes_of(s, len(s.inputs))
    else:
        starts, ends = s.ints(1, "starts"), s.ints(2, "ends")
        axes = None if s.maybe(3) is None else s.ints(3, "axes")
        steps = None if s.maybe(4) is None else s.ints(4, "steps")
    axes = s.axes(list(range(len(starts))) if axes is None else axes, len(v.shape))
    steps = steps or [1] * len(starts)
    s.need(len(starts) == len(ends) == len(axes) == len(steps) and 0 not in steps, "starts, ends, axes and steps do not match")
    for k, (axis, start, end, step) in enumerate(zip(axes, starts, ends, steps, strict=True)):
        at = _cells(start, end, step, v.shape[axis])
        v = s.cut(v, axis, at.start, at.step, len(at), tag="" if k == len(axes) - 1 else f"axis{axis}")
    return v


def _cells(start: int, end: int, step: int, size: int) -> range:
    """As ONNX has it: a start before the axis is its first cell also where the step is negative (Python takes none then)."""
    start, end = start + size * (start < 0), end + size * (end < 0)
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def split(s: Site) -> Result:
    v = s.value(0)
    axis = s.axis(s.get("axis", 0), len(v.shape))
    size, parts = v.shape[axis], len(s.outputs)
    sizes = list(s.attrs["split"]) if "split" in s.attrs else None if s.maybe(1) is None else s.ints(1, "split")
    if sizes is None:
        s.need(
            s.get("num_outputs", parts) == parts and (s.opset >= 18 or size % parts == 0), f"{size} cells do not split into {parts} parts"
        )
        each = -(-size // parts)
        sizes = [each] * (parts - 1) + [size - each * (parts - 1)]
    s.need(len(sizes) == parts and sum(sizes) == size and min(sizes) >= 0, f"parts {sizes} do not make {size} cells in {parts} outputs")
    starts = [sum(sizes[:i]) for i in range(parts)]
    return [s.cut(v, axis, starts[i], 1, sizes[i], out=i) if s.wanted[i] else None for i in range(parts)]


def pad(s: Site) -> Result:
    v, rank = s.value(0), len(s.value(0).shape)
    mode = s.get("mode", b"constant")
    s.need(mode == b"constant", f"mode {mode.decode('utf-8', 'replace')}; only padding with zeros is supported")
    pads, fill = (list(s.attrs["pads"]), float(s.get("value", 0.0))) if s.opset < 11 else (s.ints(1, "pads"), 0.0)
    axes = list(range(rank))
    if s.opset >= 11:
        value, given = s.maybe_const(2, "padding value"), s.maybe_const(3, "axes")
        fill = 0.0 if value is None else float(value.value.reshape(-1)[0])
        axes = axes if given is None else s.axes(s.ints(3, "axes"), rank)
    s.need(fill == 0.0, f"padding with {fill}; only zeros are supported")
    s.need(len(pads) == 2 * len(axes) and min(pads, default=0) >= 0, f"pads {pads}: needs a count >= 0 for both sides of every axis")
    lo, hi = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        lo[axis], hi[axis] = pads[i], pads[len(axes) + i]
    return s.pad(v, lo, hi)


def expand(s: Site) -> Result:
    v = s.value(0)
    to = s.ints(1, "shape")
    s.need(min(to, default=0) >= 0, f"shape {to} is not a shape")
    return s.expand(v, s.broadcast(v.shape, tuple(to)))


def tile(s: Site) -> Result:
    v, times = s.value(0), s.ints(1, "repeats")
    s.need(len(times) == len(v.shape) and min(times, default=1) >= 1, f"repeats {times} do not fit {list(v.shape)}")
    shape = [d * t for d, t in zip(v.shape, times, strict=True)]
    if all(t == 1 for t in times):
        return v
    if isinstance(v, Const):
        s.check_const(shape, v.value.itemsize)
        return replace(v, value=np.tile(v.value, times))
    s.check_act(shape)
    if cells(shape) == cells(v.shape):
        return s.relabel(v, shape)
    s.spend(8 * cells(shape))
    return s.reorder(v, np.tile(s.order(v), times))


def concat(s: Site) -> Result:
    parts = [s.value(i) for i in range(len(s.inputs))]
    rank = len(parts[0].shape)
    axis = s.axis(s.get("axis", 1), rank)
    s.need(
        all(
            len(p.shape) == rank and p.shape[:axis] + p.shape[axis + 1 :] == parts[0].shape[:axis] + parts[0].shape[axis + 1 :]
            for p in parts
        ),
        f"operands differ off axis {axis}",
    )
    s.need(len({p.dtype for p in parts}) == 1, "operands differ in type")
    total = sum(p.shape[axis] for p in parts)
    shape = (*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :])
    acts = [p for p in parts if isinstance(p, Act)]
    known = [p for p in parts if isinstance(p, Const)]
    if not acts:
        s.check_const(shape)
        joined = np.concatenate([k.value for k in known], axis=axis)
        return Const(joined, parts[0].dtype, max(k.slack for k in known), max(k.ops for k in known))
    first = next(i for i, p in enumerate(parts) if isinstance(p, Act))
    s.need(
        all(isinstance(p, Act) for p in parts[first : first + len(acts)]),
        "a constant stands between activations; only constants before or after them are supported",
    )
    s.check_act(shape)
    drop = 1 if rank > 1 and axis > 0 and shape[0] == 1 else 0
    v = acts[0]
    if len(acts) > 1:
        node = s.emit("concat", [s.view(a, a.shape[drop:]) for a in acts], {"axis": axis - drop}, tag="acts" if known else "")
        v = s.result(node, (*shape[:axis], sum(a.shape[axis] for a in acts), *shape[axis + 1 :]), v.dtype)
    if not known:
        return v
    lo, hi = [0] * rank, [0] * rank
    lo[axis] = sum(p.shape[axis] for p in parts[:first])
    hi[axis] = total - lo[axis] - v.shape[axis]
    s.check_const(shape)
    constant = np.concatenate([p.value if isinstance(p, Const) else np.zeros(p.shape, p.dtype) for p in parts], axis=axis)
    padded = s.pad(v, lo, hi, "padded")
    assert isinstance(padded, Act)
    # x * 1 + 0 and 0 * 1 + constant are exact: only the constants' own rounding counts
    return s.scale(padded, np.ones(1, np.float32), constant, rounding(*known))
