"""What a GPU does and Triton's interpreter does not, done in the interpreter: programs of a launch run in no order, memory that
nobody wrote holds anything, a maximum loses a NaN. And a record of which program of a launch touches which cell of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from polytriton.kernels import interval_launches
from polytriton.kernels.choose import GPU
from polytriton.kernels.closure import read_function
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu.player import Ahead, RunState
from polytriton.runtime.gpu.triton_backend import TritonBackend

Order = Callable[[int], np.ndarray]  # of so many programs: the place in the usual order of the one that runs k-th
ORDERS: dict[str, Order] = {
    "forward": np.arange, "reversed": lambda n: np.arange(n)[::-1], "shuffled": lambda n: np.random.default_rng(n).permutation(n),
}  # fmt: skip
FEW = 256  # values of an interval product's tile, so that a small network takes several
OWN = {  # tensors that a program is to write before it reads them: everything kept but weights, tables and their margins
    "image", "row_h", "row_w", "constant", "error", "index", "sign", "channel", "count", "from", "slot", "value", "raw", "slack",
    "blocks", "best", "raw_best", "group", "done", "lane_constant", "lane_error",
}  # fmt: skip
WILD = {torch.int64: 1 << 40, torch.int8: 77}  # no cell of any tensor; a flag that is neither 0 nor 1


def interpreter() -> Any:
    from triton.runtime import interpreter as module

    return module


def small_tiles(engine: Engine, patch: pytest.MonkeyPatch) -> Engine:
    """The engine with a GPU's tiles, so that its launches have many programs, in the interpreter."""
    assert engine.kernels is not None
    engine.kernels.sizes = replace(GPU, emulate=True)
    patch.setattr(interval_launches, "EMULATED", FEW)
    return engine


# ---- order of programs ----------------------------------------------------------------------------------------------


@contextmanager
def ordered(order: Order) -> Iterator[dict[str, int]]:
    """Every launch runs its programs in this order. Tells, by library kernel, of how many programs its largest launch was."""
    module, most = interpreter(), dict[str, int]()
    builder, call = module.interpreter_builder, module.GridExecutor.__call__
    dim, place = builder.set_grid_dim, builder.set_grid_idx
    running: list[Any] = [None, "", (1, 1, 1)]

    def note(self: Any, *given: Any, **options: Any) -> None:
        running[1] = self.fn.__name__
        call(self, *given, **options)

    def set_grid_dim(*grid: int) -> None:
        running[0], running[2] = order(int(np.prod(grid))), grid
        most[running[1]] = max(most.get(running[1], 0), int(np.prod(grid)))
        dim(*grid)

    def set_grid_idx(*at: int) -> None:
        place(*(int(v) for v in np.unravel_index(running[0][np.ravel_multi_index(at, running[2])], running[2])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.GridExecutor, "__call__", note)
        patch.setattr(builder, "set_grid_dim", set_grid_dim)
        patch.setattr(builder, "set_grid_idx", set_grid_idx)
        yield most


# ---- memory that nobody wrote, and NaN ------------------------------------------------------------------------------


def soil(backend: TritonBackend) -> None:
    """Whatever a program is to write before it reads it: NaN, and places where nothing lies."""
    if backend._arena.numel():
        backend._arena.view(backend.kit.coefficients.dtype).fill_(float("nan"))
    found = backend.counts()[:1].clone()
    for (name, _), tensor in backend._kept.items():
        if name.partition(":")[0] in OWN:
            tensor.fill_(WILD.get(tensor.dtype, float("nan")))
    backend.counts()[:1] = found  # rows that go ahead are made of it


@contextmanager
def soiled(engine: Engine) -> Iterator[list[int]]:
    """Every block of rows begins in such memory; counts them."""
    backend, blocks = engine.kernels, [0]
    assert backend is not None
    bound, layer, stretch, closing = backend.bound, backend.player._layer, backend.player._stretch, [False]

    def begin() -> None:
        blocks[0] += 1
        soil(backend)

    def found(*given: Any) -> Any:
        made = bound(*given)
        if not closing[0]:  # else the last layer's results are still to be brought back: below
            begin()
        return made

    def noted(run: RunState, *given: Any) -> Any:
        closing[0] = run.closing is not None
        return layer(run, *given)

    def split(run: RunState, first: int, end: int, ahead: Ahead | None = None) -> None:
        stretch(run, first, end)
        closing[0] = False
        if ahead is not None:
            begin()
            stretch(run, end, end, ahead)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "bound", found)
        patch.setattr(backend.player, "_layer", noted)
        patch.setattr(backend.player, "_stretch", split)
        yield blocks


@contextmanager
def nan_is_lost() -> Iterator[None]:
    """tl.maximum and tl.minimum as machine code has them: of a NaN and a number the number. The interpreter keeps the NaN."""
    builder = interpreter().InterpreterBuilder
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_maxnumf", lambda self, a, b: self.binary_op(a, b, np.fmax))
        patch.setattr(builder, "create_minnumf", lambda self, a, b: self.binary_op(a, b, np.fmin))
        yield


# ---- who touches what -----------------------------------------------------------------------------------------------

Touch = tuple[int, np.ndarray, np.ndarray]  # program, addresses, values as bytes (of a read: none)


@dataclass
class Launched:
    """One launch: what its programs read and wrote. `lane` and `region` are those of a program's launch; 0 elsewhere."""

    name: str
    tensors: list[tuple[str, int, int]]  # parameter, first and last but one address
    programs: int = 0
    lane: int = 0
    region: int = 0
    reads: list[Touch] = field(default_factory=list)
    writes: list[Touch] = field(default_factory=list)

    def parameter(self, address: int) -> str:
        return next((p for p, first, end in self.tensors if first <= address < end), f"nothing it was given ({address:#x})")


def _cells(touches: list[Touch]) -> tuple[np.ndarray, np.ndarray]:
    """Addresses and programs, each pair once, by address."""
    if not touches:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    at = np.concatenate([a for _, a, _ in touches])
    who = np.concatenate([np.full(len(a), p) for p, a, _ in touches])
    order = np.lexsort((who, at))
    at, who = at[order], who[order]
    new = np.ones(len(at), bool)
    new[1:] = (at[1:] != at[:-1]) | (who[1:] != who[:-1])
    return at[new], who[new]


def _values(touches: list[Touch], address: int) -> set[bytes]:
    return {v[k].tobytes() for _, a, v in touches for k in np.flatnonzero(a == address)}


def meetings(launched: Launched, flags: frozenset[str]) -> list[str]:
    """Cells that one program writes and another touches, in words. `flags`: parameters into which all may write one and the same value."""
    at, who = _cells(launched.writes)
    read, reader = _cells(launched.reads)
    found = []
    several = np.unique(at[1:][at[1:] == at[:-1]])
    for address in several[:8].tolist() if len(several) else ():
        name = launched.parameter(address)
        if name not in flags or len(_values(launched.writes, address)) > 1:
            found.append(f"{launched.name}: several programs write the same cell of {name}")
    if len(at):
        place = np.searchsorted(at, read)
        mine = np.zeros(len(read), bool)
        inside = place < len(at)
        mine[inside] = at[place[inside]] == read[inside]
        first = who[np.minimum(place, len(at) - 1)]
        others = mine & ((first != reader) | np.isin(read, several))
        names = {launched.parameter(int(a)) for a in read[others][:64]}
        found += [f"{launched.name}: a program reads what another writes in {name}" for name in sorted(names)]
    return list(dict.fromkeys(found))


def outside(launched: Launched) -> list[str]:
    """Parameters past whose tensors a program reads or writes."""
    at = np.concatenate([a for _, a, _ in [*launched.reads, *launched.writes]] or [np.zeros(0, np.uint64)])
    inside = np.zeros(len(at), bool)
    for _, first, end in launched.tensors:
        inside |= (at >= first) & (at < end)
    return [f"{launched.name} touches {int((~inside).sum())} cells of nothing it was given"] if not inside.all() else []


def crooked(launched: Launched) -> list[str]:
    """Tensors that begin at no multiple of 16 bytes: Triton compiles another kernel for such a launch, without its wide loads."""
    return [f"{launched.name}: {p} begins at no multiple of 16 bytes" for p, first, end in launched.tensors if end > first and first % 16]


class Traffic:
    """Records every launch while it is watched, and gives each to `seen` when it has ended."""

    def __init__(self, seen: Callable[[Launched], None]) -> None:
        self.seen = seen
        self.now: Launched | None = None
        self.program = 0
        self.lane = self.region = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        module = interpreter()
        builder, kind = module.interpreter_builder, module.InterpreterBuilder
        call, place = module.GridExecutor.__call__, builder.set_grid_idx
        load, store = kind.create_masked_load, kind.create_masked_store

        def launch(executor: Any, *given: Any, **options: Any) -> None:
            names, flat = executor.arg_names, [t for one in given for t in (one if isinstance(one, tuple) else (one,))]
            if len(flat) > len(given):  # some pointers come in tuples
                names = read_function(executor.fn.__module__, executor.fn.__name__).flat
            pairs = zip(names, flat, strict=False)
            tensors = [(p, t.data_ptr(), t.data_ptr() + t.nbytes) for p, t in pairs if isinstance(t, torch.Tensor)]
            self.now, self.program = Launched(executor.fn.__name__, tensors, 0, self.lane, self.region), -1
            call(executor, *given, **options)
            made, self.now = self.now, None
            made.programs = self.program + 1
            self.seen(made)

        def begin(*at: int) -> None:
            self.program += 1
            place(*at)

        def reads(maker: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
            assert self.now is not None
            self.now.reads.append((self.program, _live(ptrs, mask), np.zeros(0)))
            return load(maker, ptrs, mask, *rest)

        def writes(maker: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
            assert self.now is not None
            on = np.broadcast_to(mask.data, ptrs.data.shape).reshape(-1).astype(bool)
            values = np.broadcast_to(value.data, ptrs.data.shape).reshape(-1)[on]
            self.now.writes.append((self.program, _live(ptrs, mask), values))
            return store(maker, ptrs, value, mask, *rest)

        def atomic(*given: Any) -> None:
            raise AssertionError("an atomic operation: its order is open, and this record does not know it")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module.GridExecutor, "__call__", launch)
            patch.setattr(builder, "set_grid_idx", begin)
            patch.setattr(kind, "create_masked_load", reads)
            patch.setattr(kind, "create_masked_store", writes)
            patch.setattr(kind, "create_atomic_rmw", atomic)
            patch.setattr(kind, "create_atomic_cas", atomic)
            yield


def _live(ptrs: Any, mask: Any) -> np.ndarray:
    # where a scalar's comparison took part, the interpreter's masks are integers
    on = np.broadcast_to(mask.data, ptrs.data.shape).reshape(-1).astype(bool)
    return ptrs.data.reshape(-1)[on].astype(np.uint64)
