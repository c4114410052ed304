"""What torch.cuda hands out, played: graphs that keep addresses and no tensors, streams, events, generators (fake_cuda.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.kernels.shadow import Fault, Stream

if TYPE_CHECKING:
    from tests.kernels.fake_cuda import FakeCuda


class HostGenerator(torch.Generator):
    """Random numbers for either device."""

    def __new__(cls, device: object = "cpu") -> HostGenerator:
        return super().__new__(cls)


@dataclass(frozen=True)
class Place:
    """A tensor as a graph knows it: an address, and not whose it is."""

    storage: StorageWeakRef
    address: int
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @staticmethod
    def of(tensor: Tensor) -> Place:
        storage = tensor.untyped_storage()
        where = storage.data_ptr(), tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())
        return Place(StorageWeakRef(storage), *where)

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.size, self.stride)


@dataclass
class Captured:
    """One node of a graph: what runs there, on the stream that it was captured on; or one stream waits for another (`run` None)."""

    name: str
    stream: Stream
    run: Callable[..., Any] | None = None
    given: tuple[Any, ...] = ()
    behind: Stream | None = None


class FakeGraph:
    """torch.cuda.CUDAGraph."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.nodes = cuda, list[Captured]()
        self.origin: Stream | None = None
        self.open: dict[int, bool] = {}  # by stream that the capture has reached, whether it has yet to be joined
        self.replays = 0

    def capture_begin(self, capture_error_mode: str = "global") -> None:
        cuda = self.cuda
        assert cuda.capturing is None, "one capture at a time"
        if cuda.stream is cuda.default:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        cuda.capturing, self.origin, self.open = self, cuda.stream, {cuda.stream.number: False}
        cuda.graphs.append(self)

    def capture_end(self) -> None:
        cuda, cuda.capturing = self.cuda, None
        if any(self.open.values()):
            cuda.tell(Fault("a capture ends unjoined", "a stream that was forked off has not been waited for"))

    def replay(self) -> None:
        """On the current stream; those that were forked off are this graph's own."""
        cuda, self.replays = self.cuda, self.replays + 1
        streams = {self.origin.number: cuda.stream} if self.origin is not None else {}

        def stream(of: Stream) -> Stream:
            return streams.setdefault(of.number, Stream(f"{of.name} of a graph"))

        for node in self.nodes:
            if node.behind is not None:
                stream(node.stream).after(stream(node.behind).clock)
                continue
            places = [p for p in tree_leaves(node.given, is_leaf=lambda v: isinstance(v, Place)) if isinstance(p, Place)]
            if gone := [p for p in places if p.storage.expired()]:
                cuda.tell(Fault("a graph has a stale pointer", f"{node.name} touches {len(gone)} tensors that have been freed since"))
                continue
            if any(p.tensor().untyped_storage().data_ptr() != p.address for p in places):
                cuda.tell(Fault("a graph has a stale pointer", f"{node.name} touches memory that has been moved since"))
            given = tree_map_only(Place, Place.tensor, node.given, is_leaf=lambda v: isinstance(v, Place))
            assert node.run is not None
            node.run(stream(node.stream), *given)


class FakeStream:
    """torch.cuda.Stream."""

    def __init__(self, cuda: FakeCuda, made: Stream) -> None:
        self.cuda, self.made = cuda, made

    def wait_stream(self, other: FakeStream) -> None:
        self.cuda.wait(self.made, other.made)

    def synchronize(self) -> None:
        self.cuda.synchronized("Stream.synchronize")


class FakeEvent:
    """torch.cuda.Event: times are counts of operations."""

    def __init__(self, cuda: FakeCuda, **_: Any) -> None:
        self.cuda, self.recorded = cuda, 0

    def record(self, stream: FakeStream | None = None) -> None:
        self.recorded = len(self.cuda.memory.operations)

    def synchronize(self) -> None:
        self.cuda.synchronized("Event.synchronize")

    def elapsed_time(self, other: FakeEvent) -> float:
        return float(other.recorded - self.recorded)
