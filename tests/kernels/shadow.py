"""A device's memory, value by value: who wrote it last, who has read it since, and whether those who touch it now come after them.

Streams keep vector clocks. What happens on one happens in order; another stream has it behind it only once it has waited for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

Clock = dict[int, int]  # by stream, how many of its operations are over
POISON = 255  # of every byte of new memory: NaN, and no place in any tensor


@dataclass(frozen=True)
class Fault:
    """`kind` is its name: the first words of what is said of it."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Stream:
    """One queue of a device. `clock`: what is over when its next operation begins."""

    numbers = count(1)

    def __init__(self, name: str) -> None:
        self.number, self.name = next(self.numbers), name
        self.clock: Clock = {}

    def after(self, clock: Clock) -> None:
        for stream, time in clock.items():
            self.clock[stream] = max(time, self.clock.get(stream, 0))


@dataclass
class Operation:
    """A launch or a tensor operation: when it ran, and what was over when it began."""

    name: str
    stream: Stream
    time: int
    before: Clock
    number: int

    def follows(self, other: Operation) -> bool:
        return other.stream is self.stream or self.before.get(other.stream.number, 0) >= other.time


@dataclass
class Buffer:
    """One allocation. `writer`, and by stream `readers`: of the value that begins at a byte, the last operation's number; 0 for none."""

    key: int
    storage: StorageWeakRef
    address: int
    size: int
    where: str
    stream: Stream
    fixed: bool = False  # nobody may write it any more
    writer: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    readers: dict[int, np.ndarray] = field(default_factory=dict)
    used: dict[int, Operation] = field(default_factory=dict)  # by stream, the last that touched it


class Memory:
    """What has been allocated and not been freed yet."""

    def __init__(self, limit: int, tell: Callable[[Fault], None]) -> None:
        self.limit, self.tell = limit, tell
        self.held: dict[int, Buffer] = {}
        self.operations: list[Operation] = [Operation("nobody", Stream("none"), 0, {}, 0)]
        self.peak = self.lost = 0  # bytes at most; how often there were too few

    # ---- operations -------------------------------------------------------------------------------------

    def begin(self, name: str, stream: Stream) -> Operation:
        before = dict(stream.clock)
        stream.clock[stream.number] = stream.clock.get(stream.number, 0) + 1
        made = Operation(name, stream, stream.clock[stream.number], before, len(self.operations))
        self.operations.append(made)
        return made

    # ---- buffers ----------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        return sum(b.size for b in self.held.values())

    def of(self, tensor: Tensor) -> Buffer | None:
        return self.held.get(tensor.untyped_storage()._cdata)

    def take(self, tensor: Tensor, stream: Stream, by: Operation | None) -> Buffer:
        """New memory: written by an operation, or by nobody."""
        self.free()
        storage = tensor.untyped_storage()
        if self.bytes + storage.nbytes() > self.limit:
            self.lost += 1
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {storage.nbytes()} bytes")
        if by is None and storage.nbytes():
            storage.fill_(POISON)
        made = Buffer(storage._cdata, StorageWeakRef(storage), storage.data_ptr(), storage.nbytes(), _place(), stream)
        made.writer = np.full(made.size, 0 if by is None else by.number, np.int32)
        if by is not None:
            made.used[by.stream.number] = by
        self.held[made.key] = made
        self.peak = max(self.peak, self.bytes)
        return made

    def free(self) -> None:
        """Notes what nobody holds any more. Its memory may be handed out again to the stream that it was taken on."""
        for key, buffer in [(k, b) for k, b in self.held.items() if b.storage.expired()]:
            del self.held[key]
            for last in buffer.used.values():
                if last.stream is not buffer.stream and buffer.stream.clock.get(last.stream.number, 0) < last.time:
                    self.tell(Fault("freed while in use", f"{buffer.where}, while {last.name} may still touch it on {last.stream.name}"))

    def forget(self, tensor: Tensor) -> None:
        """As if nobody had written it."""
        buffer = self.of(tensor)
        assert buffer is not None
        begin = tensor.data_ptr() - buffer.address
        buffer.writer[begin : begin + tensor.nbytes] = 0

    # ---- who touches what -------------------------------------------------------------------------------

    def touch(self, by: Operation, at: np.ndarray, write: bool, what: Callable[[int], str] = lambda _: "memory") -> None:
        """The values that begin at these addresses."""
        for buffer, places in self._split(at):
            self._touch(by, buffer, places, write, what)
            buffer.used[by.stream.number] = by

    def _split(self, at: np.ndarray) -> Iterator[tuple[Buffer, np.ndarray]]:
        if not len(at):
            return
        at = np.unique(at)
        buffers = sorted((b for b in self.held.values() if b.size), key=lambda b: b.address)
        begins = np.array([b.address for b in buffers], np.int64)
        which = np.searchsorted(begins, at.astype(np.int64), "right") - 1
        for k in np.unique(which):
            if k >= 0:
                places = at[which == k].astype(np.int64) - begins[k]
                yield buffers[k], places[places < buffers[k].size]

    def _touch(self, by: Operation, buffer: Buffer, places: np.ndarray, write: bool, what: Callable[[int], str]) -> None:
        first = what(buffer.address + int(places[0])) if len(places) else ""
        if not write and (fresh := buffer.writer[places] == 0).any():
            name = what(buffer.address + int(places[np.argmax(fresh)]))
            self.tell(Fault("read before it was written", f"{by.name} reads {int(fresh.sum())} cells of {name} ({buffer.where})"))
        if write and buffer.fixed:
            self.tell(Fault("a network's own numbers are written", f"{by.name} writes {first} ({buffer.where})"))
        others = [self.operations[k] for k in np.unique(buffer.writer[places]) if k]
        if write:
            readers = (lines[places] for stream, lines in buffer.readers.items() if stream != by.stream.number)
            others += [self.operations[int(lines.max())] for lines in readers if len(lines) and lines.max()]
        for other in others:
            if not by.follows(other):
                verb = "writes" if write else "reads"
                text = f"{by.name} on {by.stream.name} {verb} {first} without having waited for {other.name} on {other.stream.name}"
                self.tell(Fault("no wait between streams", text))
        if write:
            buffer.writer[places] = by.number
        else:
            buffer.readers.setdefault(by.stream.number, np.zeros(buffer.size, np.int32))[places] = by.number


def addresses(tensor: Tensor) -> np.ndarray:
    """Where its values begin: of what a kernel touches no other bytes are known."""
    at = np.array(tensor.data_ptr(), np.int64)
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        at = at[..., None] + np.arange(length, dtype=np.int64) * (stride * tensor.element_size())
    return at.reshape(-1)


def _place() -> str:
    """Where the library, or a bench, took some memory."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "polytriton" in path.parts or "bench" in path.parts:
            return f"taken in {path.name}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "taken by a test"
