"""Plays a run as its script lists it (ir/script.py): an interval pass, a refinement, the tables of boxes that somebody brings.

Between two entries at which the host comes in (`host`, `wait`, `every`, `known`) nothing depends on what the host learns: these
launches are a stretch, on the same tensors whenever a batch of that size comes, and on a GPU a graph from the second time on.

The host waits once a layer, or once in all where it expects nothing that it must answer (leaps.py). In the first batch it waits for the
number of neurons. From then on a stretch goes ahead with room for some more than an image had, plays the likelier sign's first launches
and waits behind them for two numbers at once: how many neurons there are, and how many of their rows are left. Where none is left, every
neuron is settled: what would follow, the rest of the program and the other sign, is never launched. In a robust network that is most of
it (python -m bench.roofline zoo). How far to go before the wait is what settled the neurons the last time. None of this shows in a bound:
launches that find no rows write nothing. Where there are more neurons than room, the layer goes through its rows block by block, for then
their number is known.

What lies in the places is the batch's that was played there last; while one is being played it is nobody's. Where memory runs out the
batch begins anew from its input: a stretch that was broken off must never be played again, since what narrows a box reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from weakref import proxy

import torch
from torch import Tensor

from polytriton.errors import ResourceError
from polytriton.ir.launches import Launch
from polytriton.ir.plan import Program
from polytriton.ir.script import ROWS, ScriptEntry
from polytriton.runtime.forward import Boxes
from polytriton.runtime.gpu.binding import BELOW_ZERO, Bound, Call, Part, round_size
from polytriton.runtime.gpu.habits import Habit, expect
from polytriton.runtime.gpu.leaps import Leaps
from polytriton.runtime.gpu.places import NOBODY, Places, by_kind, copy_boxes
from polytriton.runtime.results import Results, Stopped
from polytriton.runtime.settings import on_device
from polytriton.runtime.tables import Tables
from polytriton.runtime.trace import Mark, Told, Trace

if TYPE_CHECKING:
    from polytriton.runtime.gpu.triton_backend import TritonBackend

Expire = Callable[[], None]
Progress = Callable[[str, int, int], None]  # stage, done, total
Known = Mapping[str, tuple[Tensor, Tensor]]  # bounds of nodes that hold anyway


@dataclass(frozen=True)
class Ahead:
    """What is launched before the number of neurons is known: rows for as many as there is room for, and `parts` of the program."""

    bound: Bound
    launch: Launch
    parts: int

    @property
    def states(self) -> int:
        """In how many states the rows are counted then."""
        return self.bound.parts[self.parts - 1].states


@dataclass
class RunState:
    """One batch on its way through a section."""

    section: str
    places: Places
    boxes: Boxes  # of the nodes made so far, where they lie
    tables: Tables
    expire: Expire = lambda: None
    closing: tuple[Bound, Launch] | None = None  # the last layer's neurons, still to be brought back
    played: int = 0  # entries
    results: dict[str, tuple[int, list[Results]]] = field(default_factory=dict)  # a layer's neurons, and what their rows found
    marks: dict[str, tuple[Mark, Mark]] = field(default_factory=dict)


def stretches(entries: list[ScriptEntry], known: Known) -> Iterator[tuple[int, int]]:
    """The plays between two stops: begin, and the place of the stop. A layer's rows and their end belong to its wait."""
    begin = 0
    for k, entry in enumerate(entries):
        if entry.verb in (*ROWS, "close"):
            begin = k + 1
        elif entry.verb != "play" and (entry.verb != "known" or _node(entry) in known):
            yield begin, k
            begin = k + 1
    yield begin, len(entries)


def _node(entry: ScriptEntry) -> str:
    """Whose box an entry makes or measures."""
    return entry.writes[0].partition(":")[2]


class Player:
    """Of one backend."""

    def __init__(self, backend: TritonBackend) -> None:
        self.backend = backend
        self.habits: dict[str, Habit] = {}
        self.places: dict[int, Places] = {}  # by batch size
        self.parts: dict[tuple[object, ...], Part] = {}
        self._written: dict[str, frozenset[str]] = {}  # by section, all that its entries write
        self._busy: tuple[Program, int] | None = None  # rows that are under way, so many at a time
        self._cuts: dict[str, list[tuple[int, int]]] = {}  # by section, its stretches where nobody brings bounds
        self.programs = {p.target: p for p in backend.kit.plan if p.kind == "bound"}
        self.leaps = Leaps(proxy(self))

    # ---- a batch ----------------------------------------------------------------------------------------

    def interval(self, lo: Tensor, hi: Tensor) -> Boxes:
        return self._find("interval", lo, hi, lambda run: self._go(run))[0]

    def refine(
        self, lo: Tensor, hi: Tensor, progress: Progress, expire: Expire, trace: Trace | None, known: Known
    ) -> tuple[Boxes, dict[str, int]]:
        """Refined boxes, and by layer how many neurons had rows."""

        def go(run: RunState) -> None:
            run.expire = expire
            try:
                if trace is not None or known or not self.backend.leaps or not self.leaps.take(run):
                    self._go(run, progress, trace, known)
                else:
                    progress("bounds", len(self.programs), len(self.programs))
            except Stopped:
                if trace is not None:
                    self._tell(run, trace)
                raise
            if trace is not None:
                self._tell(run, trace)

        found, run = self._find("refine", lo, hi, go)
        return found, {name: n for name, (n, _) in run.results.items()}

    def bring(self, tables: Tables, program: Program) -> Places:
        """Where a batch's boxes lie, with the tables that the program reads."""
        backend, batch = self.backend, tables.boxes.batch
        places, reads = self._places(batch), backend.ready(program).reads
        if places.serial == tables.serial and reads <= places.held:
            return places
        places.serial = NOBODY
        with on_device(backend.device):
            for kind, values in by_kind(tables.boxes).items():
                for name, value in values.items():
                    places.tensor(f"{kind}:{name}").copy_(value)
            self._go(RunState("tables", places, tables.boxes, tables))
        self._fill(places, "tables", tables)
        assert reads <= places.held, reads - places.held
        return places

    def _find(self, section: str, lo: Tensor, hi: Tensor, go: Callable[[RunState], None]) -> tuple[Boxes, RunState]:
        """A batch's boxes as its caller's own; the places hold its numbers. Where memory runs out it begins anew, with half as many rows
        at a time if rows were under way.
        """
        backend, again = self.backend, False
        while True:
            try:
                return self._once(section, lo, hi, go)
            except (RuntimeError, MemoryError) as error:
                if self._busy is not None:
                    backend.shrink(*self._busy, error)
                    continue
                backend.give_back(error)
                if again:
                    raise ResourceError(
                        f"the device is out of memory with {len(lo)} boxes at a time", "free memory on it, or give less --memory"
                    ) from error
                again = True

    def _once(self, section: str, lo: Tensor, hi: Tensor, go: Callable[[RunState], None]) -> tuple[Boxes, RunState]:
        backend, self._busy = self.backend, None
        given, places = backend.kit.forward.start(lo.to(backend.device), hi.to(backend.device)), self._places(len(lo))
        places.serial = NOBODY
        run, name = RunState(section, places, boxes := Boxes({}, {}), Tables(backend.kit, boxes)), backend.kit.net.input.name
        with on_device(backend.device):
            for end, values in (("low", given.lo), ("high", given.hi)):
                places.put(f"{end}:{name}", values[name])
                places.view(f"{end}:{name}", boxes)
            go(run)
            found = copy_boxes(boxes)
        found.tables = tables = Tables(backend.kit, replace(found))  # the same bounds; a cycle would outlive its batch
        self._fill(places, section, tables)
        return found, run

    def _fill(self, places: Places, section: str, tables: Tables) -> None:
        if section not in self._written:
            self._written[section] = frozenset(s for entry in self.backend.script.sections[section] for s in entry.writes)
        places.serial, places.held = tables.serial, self._written[section]

    def _places(self, batch: int) -> Places:
        """Those of a batch size. What is kept for others goes whole where it fills half of the memory, and never in the middle of a run."""
        if batch not in self.places:
            self.backend.make_room(sum(p.bytes for p in self.places.values()))
            self.places[batch] = Places(self.backend, batch)
        return self.places[batch]

    # ---- a section --------------------------------------------------------------------------------------

    def _go(self, run: RunState, progress: Progress = lambda *_: None, trace: Trace | None = None, known: Known | None = None) -> None:
        entries, done, mark = self.backend.script.sections[run.section], 0, None if trace is None else trace.mark()
        for begin, end in stretches(entries, known or {}):
            stop = entries[end] if end < len(entries) else None
            if stop is None or stop.verb in ("host", "known"):
                self._stretch(run, begin, end)
                if stop is not None and known and stop.verb == "known":
                    self._narrow(run, stop, *known[_node(stop)])
                elif stop is not None:
                    self._host(run, stop)
                continue
            run.expire()
            progress(f"bounds of {stop.target}", done, len(self.programs))
            done += 1
            run.results[stop.target] = self._layer(run, begin, end)
            if trace is not None and mark is not None:
                run.marks[stop.target] = mark, (mark := trace.mark())
        progress("bounds", done, len(self.programs))

    def _stretch(self, run: RunState, begin: int, end: int, ahead: Ahead | None = None) -> None:
        """The last layer's neurons are brought back, the entries played, and rows go ahead."""
        places, closing = run.places, run.closing
        key = (
            run.section, places.batch, begin, end, None if closing is None else closing[0].key,
            None if ahead is None else (ahead.bound.key, ahead.parts),
        )  # fmt: skip
        if key not in self.parts:
            calls = self.stretch_calls(places, run.section, begin, end, closing)
            if ahead is not None:
                calls += self.program_calls(places, ahead.bound, ahead.launch, ahead.parts)
            self.parts[key] = Part(calls, 0)
        if self.parts[key].calls:
            self.backend.part(self.parts[key])
        run.closing, run.played = None, end
        places.show(run.section, begin, end, run.boxes)

    def stretch_calls(self, places: Places, section: str, begin: int, end: int, closing: tuple[Bound, Launch] | None) -> list[Call]:
        """What brings the last layer's neurons back, then the entries."""
        backend = self.backend
        calls = [] if closing is None else [self.rows_call(places, *closing, closing[0].capacity)]
        for entry in backend.script.sections[section][begin:end]:
            if entry.verb == "play" and entry.launch is not None and not entry.launch.is_idle(places.batch):
                calls.append(backend.call(entry.launch, places.batch, places.tensor))
        return calls

    def program_calls(self, places: Places, bound: Bound, launch: Launch, parts: int) -> list[Call]:
        """As many rows as there is room for, and so many parts of their program."""
        calls = [*bound.clears(), self.rows_call(places, bound, launch, bound.capacity)]
        return calls + [call for part in bound.parts[:parts] for call in part.calls]

    def cuts(self, section: str) -> list[tuple[int, int]]:
        """Its stretches, where nobody brings bounds."""
        if section not in self._cuts:
            self._cuts[section] = list(stretches(self.backend.script.sections[section], {}))
        return self._cuts[section]

    def launches(self, section: str, stop: int) -> dict[str, Launch]:
        """By verb, what makes rows of the neurons for which the host waits there, and brings back what they found."""
        entries = self.backend.script.sections[section]
        until = next(k for k in range(stop, len(entries)) if entries[k].verb == "close")
        return {e.verb: e.launch for e in entries[stop : until + 1] if e.launch is not None}

    def _host(self, run: RunState, entry: ScriptEntry) -> None:
        """A node's box or a table by tensor operations."""
        places, kit, name = run.places, self.backend.kit, _node(entry)
        if not entry.made[0].startswith("low:"):
            places.put(entry.made[0], self.backend.table(run.tables, entry.made[0].partition(":")[0], name))
            return
        made = run.boxes
        kit.forward.transfer(kit.nodes[name], made, places.sums(name) if "centre" in entry.given else None)
        for symbol in entry.made:
            places.tensor(symbol).copy_(by_kind(made)[symbol.partition(":")[0]][name])
            places.view(symbol, made)

    def _narrow(self, run: RunState, entry: ScriptEntry, lo: Tensor, hi: Tensor) -> None:
        """Both bounds of the node hold, so the better of each does; its sizes are another box's until they are measured."""
        low, high = (run.places.tensor(f"{end}:{_node(entry)}") for end in ("low", "high"))
        torch.maximum(low, lo.to(low.device), out=low)
        torch.minimum(high, hi.to(high.device), out=high)
        assert entry.launch is not None
        self.backend.call(entry.launch, run.places.batch, run.places.tensor)()

    # ---- a layer's neurons ------------------------------------------------------------------------------

    def _layer(self, run: RunState, begin: int, end: int) -> tuple[int, list[Results]]:
        """How many neurons had rows, and what these found."""
        backend, places, stop = self.backend, run.places, self.backend.script.sections[run.section][end]
        program, launches = self.programs[stop.target], self.launches(run.section, end)
        room = self._room(program, places) if "ahead" in launches else 0
        if stop.verb == "every":
            self._stretch(run, begin, end)
            n = places.tensor(f"low:{program.target}").numel()
            places.tensor("at")[:n] = torch.arange(n, device=backend.device)
        elif room:
            self._busy = program, room
            bound = backend.bound(places, program, room, round_size(2 * room))
            ahead = Ahead(bound, launches["ahead"], min(self.habits[program.target].parts, len(bound.parts)))
            backend.limit(bound, BELOW_ZERO)
            self._stretch(run, begin, end, ahead)
            n, *rows = backend.ask(ahead.states)
            habit = self._learn(program, n, places)
            if n <= room:
                run.closing = bound, launches["close"]
                results = [self._finish(run, ahead, launches["second"], n, rows)] if n else []
                habit.see(habit.parts, 0 not in rows)
                self._busy = None
                return n, results
        else:
            self._stretch(run, begin, end)
            (n,) = backend.ask(0)
        if "ahead" in launches:
            habit = self._learn(program, n, places)
            habit.see(habit.parts, n > 0)
        results = [self._blocks(run, program, launches, n)] if n else []
        self._busy = None
        return n, results

    def _learn(self, program: Program, n: int, places: Places) -> Habit:
        habit = self.habits.setdefault(program.target, Habit(0.0))
        habit.neurons = n / places.batch
        return habit

    def _room(self, program: Program, places: Places) -> int:
        """Rows to go ahead with; none where that does not pay: none or nothing is expected, or they take several blocks."""
        habit = self.habits.get(program.target)
        return 0 if habit is None or not habit.neurons else self.room_for(program, places, habit.neurons)

    def room_for(self, program: Program, places: Places, neurons: float) -> int:
        """Rows for so many neurons an image, and some more; none where they take several blocks."""
        wanted = min(places.tensor(f"low:{program.target}").numel(), expect(neurons, places.batch))
        capacity = self.backend.capacity(program, wanted)
        return capacity if capacity >= wanted else 0

    def rows_call(self, places: Places, bound: Bound, launch: Launch, count: int) -> Call:
        """A launch that makes rows, or brings back what they found, of so many neurons at most."""

        def tensor(symbol: str) -> Tensor:
            found = bound.begin(symbol)
            return places.tensor(symbol) if found is None else found

        return self.backend.call(launch, count, tensor)

    def _blocks(self, run: RunState, program: Program, launches: dict[str, Launch], n: int) -> Results:
        """A number that the host knows: as many at a time as memory holds."""
        backend, places = self.backend, run.places
        capacity = backend.capacity(program, n)
        self._busy = program, capacity
        bound = backend.bound(places, program, capacity, round_size(2 * n))
        backend.limit(bound, BELOW_ZERO if "ahead" in launches else float("inf"))
        to, leaves = bound.starts, "ahead" in launches
        results = Results(to["best"][: 2 * n], to["raw_best"][: 2 * n])
        for verb in ("first", "second"):
            for begin in range(0, n, capacity):
                run.expire()
                count = min(capacity, n - begin)
                to["begin"].fill_(begin)
                to["count"][0].fill_(count)
                self._open(places, bound, launches[verb], count)
                backend.play(bound)
                self._count(bound, results, leaves)
        to["count"][0].fill_(n)
        self.rows_call(places, bound, launches["close"], n)()
        return results

    def _open(self, places: Places, bound: Bound, launch: Launch, count: int) -> None:
        for clear in bound.clears():
            clear()
        self.rows_call(places, bound, launch, count)()

    def _count(self, bound: Bound, results: Results, leaves: bool) -> None:
        left = self.backend.count_rows(bound)
        if leaves:
            results.left.append(left)

    def _finish(self, run: RunState, ahead: Ahead, second: Launch, n: int, rows: list[int]) -> Results:
        """What follows behind the wait; `rows` are those in every state until there."""
        backend, bound, habit = self.backend, ahead.bound, self.habits[ahead.bound.ready.launches.program.target]
        results = Results(bound.starts["best"][: 2 * n], bound.starts["raw_best"][: 2 * n])
        if 0 in rows:  # all have left, so all are settled
            backend.add_rows(bound, rows)
            results.left.append(torch.tensor(rows[1:], dtype=torch.int64))
            habit.parts = bound.count_parts(rows)
            return results
        run.expire()
        backend.play(bound, ahead.parts)
        self._count(bound, results, True)
        self._open(run.places, bound, second, n)
        backend.play(bound)
        self._count(bound, results, True)
        habit.parts = ahead.parts % len(bound.parts) + 1
        return results

    # ---- what is told -----------------------------------------------------------------------------------

    def _tell(self, run: RunState, trace: Trace) -> None:
        """Of the network's layers in order, as far as the run came; not in the places, which the next batch takes."""
        ends = {s for entry in self.backend.script.sections[run.section][: run.played] for s in entry.writes}
        names = [s.partition(":")[2] for s in ends if s.startswith("told:")]
        told: dict[str, Told] = {}
        for node in self.backend.kit.net:
            name, after = node.name, f"told_after:{node.name}"
            if name in names and (after in ends or name not in self.programs):
                before = run.places.tensor(f"told:{name}").clone()
                told[name] = before, run.places.tensor(after).clone() if after in ends else before
        now = trace.mark()
        for name, pair in told.items():
            _, results = run.results.get(name, (0, []))
            neurons = run.boxes.lo[name].numel()
            trace.add_layer(name, run.marks.get(name, (now, now)), neurons, pair, results, name in self.backend.unsettled)
