"""What Triton's interpreter does for every launch and every step of a program, in fewer operations; the same bits come out."""

from __future__ import annotations

import ctypes
import inspect
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch

FEW = 64  # values that Triton's own load reads faster
PLAIN = (int, float, bool, str, type(None))
MEMORY = ctypes.c_char * (1 << 46)  # from any address on: of one type, since making one takes longer than reading


def quick_builder(interpreter: Any) -> None:
    """The most frequent steps; handles check their sizes against what was found for their type."""
    handle, sizes, numpys = interpreter.TensorHandle, dict[str, int](), dict[str, Any]()
    kind, plain_load = interpreter.InterpreterBuilder, interpreter._interpreter.load
    plain_cast, plain_expand, plain_fabs = kind.cast_impl, kind.create_expand_dims, kind.create_fabs
    widths = dict[str, int]()  # in bytes, of what a pointer leads to

    def fits(data: Any, dtype: Any) -> bool:
        if dtype.name not in sizes:
            pointer = isinstance(dtype, interpreter.tl.pointer_type)
            sizes[dtype.name] = 1 << 30 if pointer else max(8, dtype.primitive_bitwidth) // 8
        return bool(data.itemsize <= sizes[dtype.name])

    def make(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        if data.itemsize > sizes.get(dtype.name, 0) and not fits(data, dtype):
            self.__post_init__()  # says why

    def numpy_of(dtype: Any) -> Any:
        found = numpys.get(dtype.name)
        if found is None:
            found = numpys[dtype.name] = interpreter._get_np_dtype(dtype)
        return found

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        output, dtype = op(lhs.data, rhs.data), lhs.dtype.scalar
        if output.itemsize > sizes.get(dtype.name, 0) and not fits(output, dtype):
            output = output.astype(numpy_of(dtype))
        return handle(output, dtype)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        to = dst_type.scalar
        if "bf16" in (src.dtype.scalar.name, to.name):
            return plain_cast(self, src, dst_type)
        return handle(src.data.astype(numpy_of(dst_type)), to)

    def create_splat(self: Any, ret_ty: Any, arg: Any) -> Any:
        data = np.empty(ret_ty.shape.values, numpy_of(arg.dtype))
        data[...] = arg.data[0] if arg.dtype.is_block() else arg.data
        return handle(data, arg.dtype.scalar)

    def load(ptrs: Any, mask: Any, other: Any, dtype: Any) -> Any:
        """Reads all at once, as elements of an array over everything from the lowest address on; zeros where there is no `other`."""
        few = ptrs.size < FEW or (other is not None and other.dtype != dtype)
        if not few:
            mask = mask.astype(bool, copy=False)
            whole = mask.all()
            few = not whole and not mask.any()
        if not few:
            live = ptrs if whole else ptrs[mask]
            first = live.min()
            at = np.subtract(live, first, order="C")  # the order that products sum in is that of memory
            few = (int(first) | int(np.bitwise_or.reduce(at, None))) & (dtype.itemsize - 1)  # between elements
        if few:
            return plain_load(ptrs, mask, np.zeros(ptrs.shape, dtype) if other is None else other, dtype)
        at >>= dtype.itemsize.bit_length() - 1
        at = at.view(np.int64)
        read = np.frombuffer(MEMORY.from_address(int(first)), dtype, int(at.max()) + 1).take(at)
        if whole:
            return read
        if other is None:
            found = np.zeros(ptrs.shape, dtype)
        elif other.shape == ptrs.shape:
            found = np.array(other, dtype, order="C")
        else:
            found = np.array(np.broadcast_to(other, ptrs.shape), dtype, order="C")
        found[mask] = read
        return found

    def create_masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *_: Any) -> Any:
        element = ptrs.get_element_ty()
        return handle(load(ptrs.data, mask.data, None if other is None else other.data, numpy_of(element)), element)

    def create_addptr(self: Any, ptr: Any, offset: Any) -> Any:
        width = widths.get(ptr.dtype.name)
        if width is None:
            width = widths[ptr.dtype.name] = max(1, ptr.get_element_ty().primitive_bitwidth // 8)
        at = offset.data.astype(np.uint64)
        at *= width
        return handle(ptr.data + at, ptr.dtype)

    def create_expand_dims(self: Any, arg: Any, axis: int) -> Any:
        shape = arg.data.shape
        if axis < 0:
            return plain_expand(self, arg, axis)
        return handle(arg.data.reshape(shape[:axis] + (1,) + shape[axis:]), arg.dtype.scalar)

    def create_fabs(self: Any, arg: Any) -> Any:
        data = arg.data
        if data.dtype not in (np.float32, np.float64):
            return plain_fabs(self, arg)
        return handle(np.abs(data), arg.dtype.scalar)

    def ternary_op(self: Any, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        output, dtype = op(lhs.data, rhs.data, other.data), other.dtype.scalar
        if output.itemsize > sizes.get(dtype.name, 0) and not fits(output, dtype):
            output = output.astype(numpy_of(dtype))
        return handle(output, dtype)

    handle.__init__ = make
    for step in (binary_op, ternary_op, cast_impl, create_splat, create_masked_load, create_addptr, create_expand_dims, create_fabs):
        setattr(kind, step.__name__, step)


def quick_launch(interpreter: Any) -> None:
    """A launch over tensors in this machine's memory: they are not copied there and back, nor is a function's signature read again."""
    executor, plain = interpreter.GridExecutor, interpreter.GridExecutor.__call__
    core, handle, builder = interpreter.tl.core, interpreter.TensorHandle, interpreter.interpreter_builder
    signatures: dict[Any, tuple[tuple[str, ...], dict[str, Any]]] = {}
    pointers: dict[torch.dtype, Any] = {}

    def given_as(value: Any) -> Any:
        if value.__class__ is tuple:
            return tuple(map(given_as, value))
        if value.__class__ is not torch.Tensor:
            return interpreter._implicit_cvt(value)
        if value.dtype not in pointers:
            pointers[value.dtype] = interpreter._implicit_cvt(value).type
        ty = pointers[value.dtype]
        return core.tensor(handle(np.array([value.data_ptr()], np.uint64), ty), ty)

    def call(self: Any, *given: Any, **options: Any) -> None:
        values = [*given, *options.values()]
        simple = all(v.__class__ in PLAIN or v.__class__ is core.dtype or is_dataclass(v) or _is_near(v) for v in values)
        if not simple or self.pre_run_hooks:
            return plain(self, *given, **options)
        if self.fn not in signatures:
            spec = inspect.getfullargspec(self.fn)
            defaults = dict(zip(spec.args[len(spec.args) - len(spec.defaults or ()) :], spec.defaults or (), strict=True))
            signatures[self.fn] = tuple(spec.args), defaults
        names, defaults = signatures[self.fn]
        args = {**defaults, **dict(zip(names, given, strict=False)), **{k: v for k, v in options.items() if k in names}}
        if len(args) < len(names) or len(given) > len(names) or any(k in options for k in names[: len(given)]):
            return plain(self, *given, **options)  # says what is wrong
        scope = interpreter._patch_lang(self.fn)
        try:
            args = {name: value if name in self.constexprs else given_as(value) for name, value in args.items()}
            grid = self.grid(args) if callable(self.grid) else self.grid
            assert len(grid) <= 3, "grid must have at most 3 dimensions"
            grid = grid + (1,) * (3 - len(grid))
            builder.set_grid_dim(*grid)
            try:
                for x in range(grid[0]):
                    for y in range(grid[1]):
                        for z in range(grid[2]):
                            builder.set_grid_idx(x, y, z)
                            self.fn(**args)
            except Exception as e:
                if interpreter.triton.knobs.compilation.front_end_debugging:
                    raise
                raise interpreter.InterpreterError(repr(e)) from e
        finally:
            scope.restore()
        return None

    executor.__call__ = call


def _is_near(value: Any) -> bool:
    if value.__class__ is tuple:
        return all(v is None or _is_near(v) for v in value)
    return value.__class__ is torch.Tensor and value.device.type == "cpu"
