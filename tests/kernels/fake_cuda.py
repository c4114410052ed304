"""A GPU that is not there: torch.cuda and Triton's launcher, played on the CPU in Triton's interpreter, every launch and value watched.

Tensors are the CPU's; those that were asked for on "cuda" lie in a memory of their own (shadow.py) and say that they are on cuda:0. What
runs on a stream is known to have run only behind a wait for it. A graph keeps addresses and no tensors: what is freed or moved after it
was captured is missed when it is replayed. What torch or CUDA would refuse, or do wrong and not say, is a fault (`FakeCuda.faults`).

Results are right, bit for bit those of the interpreter. Times mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from polytriton.ir.launches import Kernel
from polytriton.kernels import load
from polytriton.kernels.catalogue import place
from polytriton.kernels.closure import read_function
from polytriton.kernels.spec import FUSION
from tests.kernels.fake_graph import Captured, FakeEvent, FakeGraph, FakeStream, HostGenerator, Place
from tests.kernels.grids import Launched, Traffic, interpreter, meetings
from tests.kernels.shadow import Fault, Memory, Operation, Stream, addresses

CUDA = torch.device("cuda", 0)
TYPES = {"*fp64": torch.float64, "*fp32": torch.float32, "*i64": torch.int64, "*i8": torch.int8}
_DEVICE, _IS_CUDA = Tensor.device.__get__, Tensor.is_cuda.__get__  # type: ignore[attr-defined]
FLAGS = frozenset({"done_ptr"})  # many programs may write the same 1 there; who reads it is another launch
WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero")
TAKES_HOSTS = ("aten::copy_", "aten::_foreach_copy_", "aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::_to_copy")
OVERWRITES = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_copy_", "aten::normal_", "aten::uniform_", "aten::random_")
FRESH = ("aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided", "aten::new_empty_strided")


@dataclass
class FakeCuda:
    """`limit`: bytes of its memory."""

    limit: int = 1 << 30
    faults: list[Fault] = field(default_factory=list)
    graphs: list[FakeGraph] = field(default_factory=list)
    launched: dict[str, int] = field(default_factory=dict)  # by family
    waits: list[str] = field(default_factory=list)  # of the host for the device: how
    capturing: FakeGraph | None = None
    beside: int = 0  # streams beside the default one

    def __post_init__(self) -> None:
        self.memory = Memory(self.limit, self.tell)
        self.default = self.stream = Stream("the default stream")
        self.making: str | None = None  # where what a function makes is to lie
        self.traffic = Traffic(self._seen)
        self._now: Operation | None = None

    def tell(self, fault: Fault) -> None:
        if fault not in self.faults:
            self.faults.append(fault)

    @property
    def kinds(self) -> set[str]:
        return {f.kind for f in self.faults}

    # ---- torch.cuda -------------------------------------------------------------------------------------

    @contextmanager
    def present(self) -> Iterator[FakeCuda]:
        """There is such a GPU."""
        with self.traffic.watched(), pytest.MonkeyPatch.context() as patch:
            for name, value in self._module().items():
                patch.setattr(torch.cuda, name, value)
            patch.setattr(torch, "Generator", HostGenerator)
            patch.setattr(load, "function", lambda kernel: FakeLaunchable(self, kernel))
            for name in ("create_masked_load", "create_masked_store"):
                patch.setattr(interpreter().InterpreterBuilder, name, self._guarded(name))
            with _Functions(self), _Operations(self):
                yield self

    def _module(self) -> dict[str, Any]:
        """What of torch.cuda is asked for."""

        @contextmanager
        def stream(given: FakeStream) -> Iterator[None]:
            before, self.stream = self.stream, given.made
            try:
                yield
            finally:
                self.stream = before

        @contextmanager
        def device(given: torch.device) -> Iterator[None]:
            assert torch.device(given).type == "cuda"
            yield

        class NewStream(FakeStream):
            def __init__(own, device: object = None) -> None:
                self.beside += 1
                super().__init__(self, Stream(f"stream {self.beside}"))

        class NewEvent(FakeEvent):
            def __init__(own, **options: Any) -> None:
                super().__init__(self, **options)

        class NewGraph(FakeGraph):
            def __init__(own) -> None:
                super().__init__(self)

        free = lambda device=None: (self.limit - self._held(), self.limit)  # noqa: E731
        return {
            "Stream": NewStream, "Event": NewEvent, "CUDAGraph": NewGraph, "stream": stream, "device": device, "mem_get_info": free,
            "current_stream": lambda device=None: FakeStream(self, self.stream),
            "synchronize": lambda device=None: self.synchronized("torch.cuda.synchronize"), "empty_cache": self.memory.free,
            "get_device_capability": lambda device=None: (9, 0), "get_device_name": lambda device=None: "Fake H100",
            "max_memory_allocated": lambda device=None: self.memory.peak, "reset_peak_memory_stats": lambda device=None: None,
            "get_device_properties": lambda device=None: SimpleNamespace(name="Fake H100", multi_processor_count=132),
        }  # fmt: skip

    def _held(self) -> int:
        self.memory.free()
        return self.memory.bytes

    def wait(self, waiting: Stream, other: Stream) -> None:
        """What comes on one stream comes behind all that was asked of the other."""
        self.memory.free()
        graph = self.capturing
        if graph is None or not {waiting.number, other.number} & graph.open.keys():
            waiting.after(other.clock)
        elif other.number not in graph.open:
            self.tell(Fault("a capture waits for what is no part of it", f"{waiting.name} for {other.name}"))
        else:
            graph.open[waiting.number] = waiting is not graph.origin
            if waiting is graph.origin:
                graph.open[other.number] = False
            graph.nodes.append(Captured("a wait", waiting, behind=other))

    def synchronized(self, how: str) -> None:
        """The host waits for all that it has asked for."""
        self.waits.append(how)
        if self.capturing is not None:
            self.tell(Fault("the host waits in a capture", how))

    # ---- tensors ----------------------------------------------------------------------------------------

    def holds(self, tensor: Tensor) -> bool:
        return self.memory.of(tensor) is not None

    def fix(self, tensors: Sequence[Tensor]) -> None:
        """Nobody may write these from now on."""
        for tensor in tensors:
            buffer = self.memory.of(tensor)
            assert buffer is not None, "on the device"
            buffer.fixed = True

    def operate(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A tensor operation: on this device, or the CPU's own."""
        name, tensors = func._schema.name, [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        mine = [t for t in tensors if self.holds(t)]
        if not mine:
            made = func(*args, **kwargs)
            if self.making == "cuda":
                self._adopt(made, None if name in FRESH else self.memory.begin(name, self.stream))
            return made
        if func.is_view:
            made = func(*args, **kwargs)
            if all(self.holds(t) for t in tree_leaves(made) if isinstance(t, Tensor)):
                return made  # and nothing was touched; else a copy was made, as `contiguous` may
        if len(mine) < len(tensors) and name not in TAKES_HOSTS:
            if any(t.dim() and t.numel() for t in tensors if not self.holds(t)):
                self.tell(Fault("tensors of two devices meet", f"in {name}"))
        masks = name.startswith("aten::index") and any(t.dtype == torch.bool for t in tree_leaves(args[1:2]) if isinstance(t, Tensor))
        to_host = self.making == "cpu" or (
            name in ("aten::copy_", "aten::_foreach_copy_") and len(mine) < len(tensors) and self._reads(func, args)[0]
        )
        if name in WAITS or masks or to_host:
            self.synchronized(name)
        if self.capturing is not None:
            return self._capture(func, args, kwargs)
        return self._perform(self.stream, func, args, kwargs)

    def _capture(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Of tensor operations a graph takes those that write where they are told."""
        written = self._reads(func, args)[1]
        if not written:
            self.tell(Fault("memory is allocated in a capture", f"by {func._schema.name}"))
            return self._perform(self.stream, func, args, kwargs)
        self.record(func._schema.name, lambda stream, args, kwargs: self._perform(stream, func, args, kwargs), args, kwargs)
        return args[0]

    def record(self, name: str, run: Callable[..., Any], *given: Any) -> None:
        graph, stream = self.capturing, self.stream
        assert graph is not None
        if stream.number not in graph.open:
            self.tell(Fault("a launch beside the capture", f"{name} on {stream.name}"))
        graph.nodes.append(Captured(name, stream, run, tree_map_only(Tensor, Place.of, given)))

    def _perform(self, stream: Stream, func: Any, args: Any, kwargs: Any) -> Any:
        by = self.memory.begin(func._schema.name, stream)
        read, written = self._reads(func, args)
        for group, write in ((read, False), (written, True)):
            for tensor in group:
                self.memory.touch(by, addresses(tensor), write)
        made = func(*args, **kwargs)
        if self.making != "cpu":
            self._adopt(made, None if func._schema.name in FRESH else by)
        return made

    def _reads(self, func: Any, args: tuple[Any, ...]) -> tuple[list[Tensor], list[Tensor]]:
        """Of this device's tensors, those that an operation reads and those that it writes."""
        read, written = [], []
        for argument, given in zip(func._schema.arguments, args, strict=False):
            tensors = [t for t in tree_leaves(given) if isinstance(t, Tensor) and t.numel() and self.holds(t)]
            writes = argument.alias_info is not None and argument.alias_info.is_write
            written += tensors if writes else []
            read += [] if writes and func._schema.name in OVERWRITES else tensors
        return ([] if func._schema.name in FRESH or "_like" in func._schema.name or "::new_" in func._schema.name else read), written

    def _adopt(self, made: Any, by: Operation | None) -> None:
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and not self.holds(tensor):
                self.memory.take(tensor, self.stream, by)

    # ---- launches ---------------------------------------------------------------------------------------

    def launch(self, stream: Stream, run: Callable[..., Any], name: str, tensors: Sequence[Tensor]) -> None:
        self._now = self.memory.begin(name, stream)
        self.launched[name] = self.launched.get(name, 0) + 1
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            run(*(t if t.is_contiguous() else t.as_strided((1,), (1,)) for t in tensors))  # with gaps: one value is meant
        self._now = None

    def _guarded(self, name: str) -> Callable[..., Any]:
        """A load or store that keeps to what its launch was given: the rest is told, and not done."""
        own, store = getattr(interpreter().InterpreterBuilder, name), name.endswith("store")

        def guarded(builder: Any, ptrs: Any, *given: Any) -> Any:
            mask, one = given[store], self.traffic.now
            assert one is not None
            at, on = ptrs.data, np.broadcast_to(mask.data, ptrs.data.shape).astype(bool)
            inside = np.zeros(at.shape, bool)
            for _, first, end in one.tensors:
                inside |= (at >= first) & (at < end)
            if lost := int((on & ~inside).sum()):
                verb = "writes" if store else "reads"
                self.tell(Fault("outside of its tensors", f"{one.name} {verb} {lost} cells of nothing it was given"))
            kept = replace(mask, data=on & inside)
            return own(builder, ptrs, *((given[0], kept, *given[2:]) if store else (kept, *given[1:])))

        return guarded

    def _seen(self, one: Launched) -> None:
        """What its programs touched."""
        by = self._now
        assert by is not None
        for text in meetings(one, FLAGS):
            self.tell(Fault("programs of a launch meet", text))
        for touched, write in ((one.reads, False), (one.writes, True)):
            if touched:
                self.memory.touch(by, np.concatenate([a for _, a, _ in touched]).astype(np.int64), write, one.parameter)


class FakeLaunchable:
    """A kernel: launched in the interpreter, or recorded where a graph is being captured."""

    def __init__(self, cuda: FakeCuda, kernel: Kernel) -> None:
        self.cuda, self.kernel, self.own = cuda, kernel, load.GivenConstants(kernel)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        cuda, name, run = self.cuda, self.kernel.family, self.own[grid]

        def launch(*tensors: Tensor, **options: Any) -> None:
            self._check(grid, tensors, options)

            def now(stream: Stream, *given: Tensor) -> None:
                cuda.launch(stream, lambda *on: run(*on, **options), name, given)

            if cuda.capturing is not None:
                cuda.record(name, now, *tensors)
            else:
                now(cuda.stream, *tensors)

        return launch

    def _check(self, grid: tuple[int, ...], tensors: Sequence[Tensor], options: dict[str, Any]) -> None:
        """What machine code takes for granted."""
        kernel, tell = self.kernel, self.cuda.tell
        taken = [p for p in read_function(*place(kernel.family)).flat if p in kernel.parameters]
        if tuple(taken) != kernel.parameters or len(tensors) != len(taken):
            tell(Fault("other parameters than the kernel's", f"{kernel.name} takes ({', '.join(taken)})"))
        for parameter, kind, tensor in zip(kernel.parameters, kernel.types, tensors, strict=False):
            who = f"{kernel.family}: {parameter}"
            if TYPES[kind] != tensor.dtype:
                tell(Fault("a tensor of another type", f"{who} is {kind}, and {tensor.dtype} is given"))
            if not self.cuda.holds(tensor):
                tell(Fault("a tensor of another device", f"{who} lies on the host"))
            if tensor.numel() and tensor.data_ptr() % 16:
                tell(Fault("begins at no multiple of 16 bytes", who))
        if {k: options.get(k) for k in (*kernel.options, *FUSION)} != {**kernel.options, **FUSION}:
            tell(Fault("other options than the kernel's", f"{kernel.name}: {options}"))
        if not 0 < np.prod(grid) < 1 << 31 or (len(grid) > 1 and grid[1] > 65535):
            tell(Fault("a grid beyond CUDA's limits", f"{kernel.name}: {grid}"))


class _Operations(TorchDispatchMode):
    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self.cuda = cuda

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.cuda.operate(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Where a function is told a device, and where one is asked for."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self.cuda = cuda

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, cuda = dict(kwargs or {}), self.cuda
        given = args[0] if args and isinstance(args[0], Tensor) else None
        mine, name = given is not None and cuda.holds(given), getattr(func, "__name__", "")
        if func == _DEVICE and mine:
            return CUDA
        if func == _IS_CUDA:
            return mine
        if name in ("numpy", "__array__") and mine:
            raise TypeError(f"can't convert {CUDA} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")
        if given is not None and name in ("to", "cpu", "cuda"):
            return self._moved(given, mine, name, args[1:], kwargs)
        if name == "tolist" and mine:
            return self._moved(given, True, "cpu", (), {}).tolist()
        if (device := kwargs.get("device")) is not None:
            del kwargs["device"]
            return self._making(torch.device(device).type, func, args, kwargs)
        return func(*args, **kwargs)

    def _making(self, device: str, func: Any, args: Any, kwargs: Any) -> Any:
        before, self.cuda.making = self.cuda.making, device
        try:
            made = func(*args, **kwargs)
        finally:
            self.cuda.making = before
        if device == "cuda":
            self.cuda._adopt(made, self.cuda.memory.begin(getattr(func, "__name__", "made"), self.cuda.stream))
        return made

    def _moved(self, given: Tensor, mine: bool, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        """Between the devices, and to another type."""
        told = [a.device for a in args if isinstance(a, Tensor)] + [torch.device(a) for a in args if isinstance(a, (str, torch.device))]
        told += [torch.device(kwargs["device"])] if kwargs.get("device") is not None else []
        to = {"cpu": "cpu", "cuda": "cuda"}.get(name) or (told[0].type if told else "cuda" if mine else "cpu")
        if args and isinstance(args[0], Tensor):
            to = "cuda" if self.cuda.holds(args[0]) else "cpu"
        dtype = next((a for a in args if isinstance(a, torch.dtype)), kwargs.get("dtype"))
        dtype = args[0].dtype if args and isinstance(args[0], Tensor) else dtype or given.dtype
        if (to == "cuda") == mine:
            return given if dtype == given.dtype else given.to(dtype)
        return self._making(to, torch.clone, (given.to(dtype) if not mine else given,), {}).to(dtype)
