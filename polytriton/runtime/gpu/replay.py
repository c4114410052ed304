"""An interval pass or a whole refinement as a few recordings: the host's work between two waits becomes one graph.

Beside the programs a batch takes a dozen launches a layer: boxes, tables, the search for undecided neurons. Made one by one they take
the host longer than a GPU needs for a robust network. But between two waits nothing depends on what the host learns, so the third
batch of a size is recorded on its way (runtime/gpu/recording.py): launches and the tensors they read and write, cut where the host
waits (runtime/gpu/neurons.py). Later batches of that size put their boxes where the first one's lay and play these stretches. The last
one ends with the tables of the query, which comes next.

Why what comes out is what launches one by one find: a stretch is their very list, on the very tensors. It holds everything, or it is
not used: a tensor operation on the way spoils a recording. Nobody else writes to the tensors of the recorded boxes, since callers get
copies; rows, counts and tables are shared with other batches, but every stretch writes them before it reads them, and whoever comes
after looks up whose numbers lie in a table (`TritonBackend.tables_of`). When such tensors move the recordings are dropped. More
neurons than there is room for, or a lack of memory: the batch begins again, launch by launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from weakref import WeakMethod

import torch
from torch import Tensor

from polytriton.ir.net import Node
from polytriton.runtime.forward import Boxes
from polytriton.runtime.gpu.binding import Part
from polytriton.runtime.gpu.neurons import Ahead
from polytriton.runtime.gpu.recording import record_launches
from polytriton.runtime.results import Results, Stopped
from polytriton.runtime.settings import on_device
from polytriton.runtime.tables import Tables
from polytriton.runtime.trace import Mark, Told, Trace

if TYPE_CHECKING:
    from polytriton.runtime.engine import Engine
    from polytriton.runtime.gpu.triton_backend import TritonBackend

BEFORE = 2  # batches of a size before one is recorded: the first makes what stays, the second goes ahead of its counts
TRIES = 3  # recordings of a size that may be spoiled
SHARE = 8  # of the memory, for the boxes that recordings hold
INTERVAL, REFINED = "interval", "refined"  # what a recording makes

Key = tuple[str, int]  # which of these, and the size of the batch
Expire = Callable[[], None]
Progress = Callable[[str, int, int], None]  # stage, done, total


@dataclass
class Stretch:
    """What is launched up to a wait: behind it the numbers of a layer, or, at the end, nothing."""

    part: Part
    ahead: Ahead | None


@dataclass
class Script:
    """One batch size: where its input lies, all of its boxes, the stretches in order, the tables that they fill, and what is told of
    the layers.
    """

    boxes: Boxes
    stretches: list[Stretch]
    tables: list[tuple[str, int]]
    told: dict[str, Told]
    values: list[Tensor] = field(init=False)
    places: list[list[tuple[str, torch.Size]]] = field(init=False)  # by group: whose box, and its shape
    split: list[int] = field(init=False)  # of a copy: every tensor and a gap, so that the next begins where wide loads may

    def __post_init__(self) -> None:
        b = self.boxes
        sizes = [{name: pair[k] for name, pair in b.sizes.items()} for k in range(2)]
        groups = [b.lo, b.hi, b.magnitude, b.error, *sizes]
        self.values = [v for group in groups for v in group.values()]
        self.places = [[(name, v.shape) for name, v in group.items()] for group in groups]
        self.split = [n for v in self.values for n in (v.numel(), -v.numel() % 16)]

    def copy(self) -> Boxes:
        """The boxes as they are now, in memory of their own."""
        flat = torch.empty(sum(self.split), dtype=torch.float64, device=self.values[0].device)
        parts = iter(flat.split(self.split)[::2])
        groups = [{name: next(parts).view(shape) for name, shape in group} for group in self.places]
        torch._foreach_copy_([v for group in groups for v in group.values()], self.values)
        lo, hi, magnitude, error, biggest, total = groups
        return Boxes(lo, hi, magnitude, error, sizes={name: (biggest[name], total[name]) for name in biggest})

    def tell(self) -> dict[str, Told]:
        """What is told of the layers now: not in the boxes' memory, which goes before a trace is read."""
        parts = [t for pair in self.told.values() for t in pair]
        copies = iter(torch.cat(parts).split([len(t) for t in parts])) if parts else iter(())
        return {name: (next(copies), next(copies)) for name in self.told}


def weak_call(method: Callable[[], None]) -> Callable[[], None]:
    """The bound method, of nobody once its object has gone."""
    kept = WeakMethod(method)

    def call() -> None:
        found = kept()
        if found is not None:
            found()

    return call


@dataclass
class Notes:
    """What a trace is to be told of a refinement, once it can be read: every layer's time, from one wait to the next, and rows."""

    trace: Trace
    layers: dict[str, tuple[tuple[Mark, Mark], list[Results]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mark = self.trace.mark()

    def layer(self, name: str, results: list[Results]) -> None:
        begin, self.mark = self.mark, self.trace.mark()
        self.layers[name] = (begin, self.mark), results

    def tell(self, script: Script, stretches: int | None = None) -> None:
        """Of the network's layers in order; those without rows are exact as the interval pass has them.

        `stretches`: how many were played where it was broken off. A layer's last launches are in the next layer's stretch.
        """
        names, told = list(script.told), script.tell()
        if stretches is not None:
            done = list(self.layers)[: max(0, stretches - 1)]
            names = names[: names.index(done[-1]) + 1] if done else []
        for name in names:
            marks, results = self.layers.get(name, ((self.mark, self.mark), []))
            self.trace.add_layer(name, marks, script.boxes.lo[name].numel(), told[name], results, unsettled=False)


class Replays:
    """The recordings of one engine: of interval passes and of refinements, by the size of the batch."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.scripts: dict[Key, Script] = {}
        self._backend.watchers.append(weak_call(self._let_go))
        self.seen: dict[Key, int] = {}  # batches of a size; recordings count only if they are spoiled
        self.possible = all(engine.leaves(name) for name in engine.programs)

    def interval(self, lo: Tensor, hi: Tensor) -> Boxes | None:
        """The interval pass; None where it has to be made launch by launch."""
        if self.engine.unsettled:  # a max pool's winners are tensor operations, and no part of a script's boxes
            return None
        return self._boxes((INTERVAL, len(lo)), lo, hi, lambda *_: None, lambda: None, None)

    def refine(self, lo: Tensor, hi: Tensor, progress: Progress, expire: Expire, trace: Trace | None = None) -> Boxes | None:
        """Refined boxes; None where they have to be made launch by launch."""
        return self._boxes((REFINED, len(lo)), lo, hi, progress, expire, trace) if self.possible else None

    def _boxes(self, key: Key, lo: Tensor, hi: Tensor, progress: Progress, expire: Expire, trace: Trace | None) -> Boxes | None:
        if not len(lo):
            return None
        if key not in self.scripts:
            self.seen[key] = self.seen.get(key, 0) + 1
            if not BEFORE < self.seen[key] <= BEFORE + TRIES:
                return None
        make, notes = self._play if key in self.scripts else self._record, None if trace is None else Notes(trace)
        try:
            return make(key, lo, hi, progress, expire, notes)
        except (RuntimeError, MemoryError) as error:
            self._backend.give_back(error)  # and all recordings with it
            return None

    @property
    def _backend(self) -> TritonBackend:
        assert self.engine.kernels is not None
        return self.engine.kernels

    # ---- again ------------------------------------------------------------------------------------------

    def _play(self, key: Key, lo: Tensor, hi: Tensor, progress: Progress, expire: Expire, notes: Notes | None) -> Boxes | None:
        engine, backend, name, script = self.engine, self._backend, self.engine.net.input.name, self.scripts[key]
        given = engine.forward.start(lo.to(engine.device), hi.to(engine.device))
        script.boxes.lo[name].copy_(given.lo[name])
        script.boxes.hi[name].copy_(given.hi[name])
        backend.tables_of(script.tables, None)
        done = played = 0
        try:
            with on_device(backend.device):
                for stretch in script.stretches:
                    expire()
                    backend.part(stretch.part)
                    played += 1
                    if stretch.ahead is not None:
                        progress(f"bounds of {stretch.ahead.layer.program.target}", done, len(engine.programs))
                        done += 1
                        if not self._behind(stretch.ahead, expire, notes):
                            self._drop(key)
                            return None
        except Stopped:
            if notes is not None:
                notes.tell(script, played)
            raise
        progress("bounds", done, len(engine.programs))
        return self._found(script, notes)

    def _found(self, script: Script, notes: Notes | None) -> Boxes:
        """What a batch found, as its caller's own; the tables hold its numbers."""
        with on_device(self._backend.device):
            found = script.copy()
            if notes is not None:
                notes.tell(script)
        found.tables = tables = Tables(self.engine.kit, replace(found))  # the same bounds; a cycle would outlive its batch
        self._backend.tables_of(script.tables, tables)
        return found

    def _behind(self, ahead: Ahead, expire: Expire, notes: Notes | None) -> bool:
        """The wait of a layer, and what the numbers ask for; whether there was room."""
        engine, backend = self.engine, self._backend
        n, *rows = backend.ask(ahead.states)
        backend.neurons.learn(ahead.layer, n)
        if n > ahead.room:
            return False
        results = [backend.neurons.finish(ahead, n, rows, expire)] if n else []
        engine.count_rows(ahead.layer.program.target, n)
        if notes is not None:
            notes.layer(ahead.layer.program.target, results)
        return True

    def _drop(self, key: Key) -> None:
        self.scripts.pop(key, None)
        self.seen[key] = BEFORE  # and is recorded anew when the next batch of this size comes

    def _let_go(self) -> None:
        """Tensors that recordings read and write are about to move."""
        for key in list(self.scripts):
            self._drop(key)

    # ---- the first time ---------------------------------------------------------------------------------

    def _record(self, key: Key, lo: Tensor, hi: Tensor, progress: Progress, expire: Expire, notes: Notes | None) -> Boxes | None:
        """The batch's boxes made on the way; None, and nothing kept, where a layer has more neurons than room or several blocks of rows."""
        engine, backend = self.engine, self._backend
        boxes = engine.forward.start(lo.to(engine.device), hi.to(engine.device))
        name = engine.net.input.name
        boxes.lo[name], boxes.hi[name] = boxes.lo[name].clone(), boxes.hi[name].clone()  # the script's own
        tables = Tables(engine.kit, boxes)
        stretches: list[Stretch] = []
        told: dict[str, Told] = {}
        programs = engine.programs if key[0] == REFINED else {}
        moved = backend.moved
        with on_device(backend.device), record_launches() as making:
            for node in engine.interval_nodes(boxes):
                before = engine.statistics(boxes, node.name) if programs and node.name in engine.shown else None
                if node.name in programs:
                    expire()
                    progress(f"bounds of {node.name}", len(stretches), len(programs))
                    last = self._layer(node, tables)
                    if last is None:
                        return None
                    stretches.append(Stretch(Part(making.cut(), 0), last))
                    with making.paused():
                        if not self._behind(last, expire, notes):
                            return None
                    self._close(last)
                if before is not None:
                    told[node.name] = before, engine.statistics(boxes, node.name) if node.name in programs else before
            backend.bring(tables, engine.plan.query)
            stretches.append(Stretch(Part(making.cut(), 0), None))
        progress("bounds", len(programs), len(programs))
        made = [place for place, serial in backend.filled().items() if serial == tables.serial]
        script = Script(boxes, stretches, made, told)
        if not making.spoiled and moved == backend.moved and self._fits(script):
            self.scripts[key] = script
        return self._found(script, notes)

    def _layer(self, node: Node, tables: Tables) -> Ahead | None:
        engine, backend = self.engine, self._backend
        layer = engine.layer(node.name, tables, lambda: None)  # a recording outlives its deadline
        room = backend.neurons.room(layer, least=1)
        return backend.neurons.go(layer, room) if room else None

    def _close(self, ahead: Ahead) -> None:
        """Where no neuron was found the count is zero, and nothing is written."""
        name = ahead.layer.program.target
        self._backend.neurons.close(ahead.layer, ahead.bound, ahead.at, ahead.room)
        ahead.layer.tables.boxes.sizes.pop(name, None)

    def _fits(self, script: Script) -> bool:
        """Whether there is memory for it, if need be instead of the oldest."""

        def held() -> int:
            return sum(v.nbytes for s in (script, *self.scripts.values()) for v in s.values)

        while self.scripts and held() * SHARE > self.engine.memory:
            del self.scripts[next(iter(self.scripts))]
        return held() * SHARE <= self.engine.memory
