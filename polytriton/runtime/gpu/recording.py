"""Launches are made here, and remembered while somebody records.

A recording is a list of launches with their tensors, which can be played again on other numbers in the same places, or captured as
a graph. That is all of it only if the host asked for nothing else meanwhile: a recording that met a tensor operation is spoiled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from polytriton.ir.launches import Kernel
from polytriton.kernels.spec import FUSION
from polytriton.kernels.stock import Stock
from polytriton.runtime.settings import on_device

Call = Callable[[], Any]

# no work on a device: views of a tensor, and memory for a new one
NOTHING = {
    "alias", "as_strided", "detach", "expand", "permute", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "t",
    "transpose", "unbind", "unsqueeze", "view", "_reshape_alias", "_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty",
}  # fmt: skip


class Recording(TorchDispatchMode):
    """Launches of one thread, in order; `spoiled` names an operation that is not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.spoiled = ""
        self.aside = 0  # inside a launch, or where what happens is no part of the recording

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Skipping it would import torch's compiler at the first recording, the better part of a second; nothing is compiled here."""
        return False

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = call._schema.name.rpartition("::")[2]
        if not self.aside and name not in NOTHING:
            self.spoiled = self.spoiled or name
        return call(*args, **(kwargs or {}))

    def make(self, call: Call) -> None:
        self.calls.append(call)
        with self.paused():
            call()

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.aside += 1
        try:
            yield
        finally:
            self.aside -= 1

    def cut(self) -> list[Call]:
        """What has been recorded since the last cut."""
        calls, self.calls = self.calls, []
        return calls


class _Mine(threading.local):
    recording: Recording | None = None


_mine = _Mine()


def recording() -> Recording | None:
    """What this thread's launches are being remembered in."""
    found = _mine.recording
    return None if found is None or found.aside else found


@contextmanager
def record_launches() -> Iterator[Recording]:
    """This thread's launches are remembered while it lasts."""
    assert _mine.recording is None
    _mine.recording = found = Recording()
    try:
        with found:
            yield found
    finally:
        _mine.recording = None


@contextmanager
def pause_recording() -> Iterator[None]:
    """What happens here is no part of a recording."""
    found = _mine.recording
    if found is None:
        yield
        return
    with found.paused():
        yield


def launch(stock: Stock, kernel: Kernel, grid: tuple[int, ...], tensors: dict[str, Tensor], device: torch.device) -> None:
    """`tensors` may hold more than the kernel reads; a grid without programs launches nothing."""
    made: Any = stock.function(kernel)
    if not all(grid):
        return
    run, given, options = made[grid], [tensors[p] for p in kernel.parameters], {**kernel.options, **FUSION}

    def call() -> None:
        with on_device(device):
            run(*given, **options)

    issue(call)


def issue(call: Call) -> None:
    """Makes a launch: one that reads and writes the same tensors whenever it is made."""
    found = recording()
    if found is None:
        call()
    else:
        found.make(call)
