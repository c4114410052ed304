"""What Triton's interpreter does for every launch and every step of a program, in fewer operations; the same bits come out."""

from __future__ import annotations

import ctypes
import inspect
from typing import Any

import numpy as np
import torch

FEW = 64  # values that Triton's own load reads faster


def quick_builder(interpreter: Any) -> None:
    """The most frequent steps; handles check their sizes against what was found for their type."""
    handle, sizes, numpys = interpreter.TensorHandle, dict[str, int](), dict[str, Any]()
    kind, plain_load = interpreter.InterpreterBuilder, interpreter._interpreter.load
    plain_cast = kind.cast_impl

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
        """Reads all at once, as elements of an array over everything from the lowest address on."""
        if ptrs.size < FEW or other.dtype != dtype:
            return plain_load(ptrs, mask, other, dtype)
        mask = mask.astype(bool, copy=False)
        whole = mask.all()
        if not whole and not mask.any():
            return plain_load(ptrs, mask, other, dtype)
        live = ptrs if whole else ptrs[mask]
        first = live.min()
        at = np.subtract(live, first, order="C")  # the order that products sum in is that of memory
        if int(first) % dtype.itemsize or (at % dtype.itemsize).any():
            return plain_load(ptrs, mask, other, dtype)
        at //= dtype.itemsize
        reach = (int(at.max()) + 1) * dtype.itemsize
        read = np.frombuffer((ctypes.c_char * reach).from_address(int(first)), dtype)[at]
        if whole:
            return read
        found = np.array(np.broadcast_to(other, ptrs.shape), dtype, order="C")
        found[mask] = read
        return found

    def create_masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *_: Any) -> Any:
        element = ptrs.get_element_ty()
        dtype = numpy_of(element)
        rest = np.zeros(ptrs.data.shape, dtype) if other is None else other.data
        return handle(load(ptrs.data, mask.data, rest, dtype), element)

    handle.__init__ = make
    kind.binary_op, kind.cast_impl, kind.create_splat, kind.create_masked_load = binary_op, cast_impl, create_splat, create_masked_load


def quick_launch(interpreter: Any) -> None:
    """A launch over tensors in this machine's memory: they are not copied there and back, nor is a function's signature read again."""
    executor, plain = interpreter.GridExecutor, interpreter.GridExecutor.__call__
    core, handle, builder = interpreter.tl.core, interpreter.TensorHandle, interpreter.interpreter_builder
    signatures: dict[Any, tuple[tuple[str, ...], dict[str, Any]]] = {}
    pointers: dict[torch.dtype, Any] = {}

    def given_as(value: Any) -> Any:
        if value.__class__ is not torch.Tensor:
            return interpreter._implicit_cvt(value)
        if value.dtype not in pointers:
            pointers[value.dtype] = interpreter._implicit_cvt(value).type
        ty = pointers[value.dtype]
        return core.tensor(handle(np.array([value.data_ptr()], np.uint64), ty), ty)

    def call(self: Any, *given: Any, **options: Any) -> None:
        values = [*given, *options.values()]
        simple = all(v.__class__ in (int, float, bool, str, type(None), core.dtype) or _is_near(v) for v in values)
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
    return value.__class__ is torch.Tensor and value.device.type == "cpu"
