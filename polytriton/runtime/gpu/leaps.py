"""A refinement in one stretch: the rows of every layer go ahead, and the host waits once, behind the last.

A batch like those before it needs no answer on the way. From them is expected how many neurons a layer has, after which part of its
program no row of the likelier sign is left, and whether the other sign follows (habits.py). Behind each layer its counts are copied into
a log, which the host reads at the end. The batch stands where the log says of every layer that there was room for its neurons, and that
no row was left unless both signs went all the way: then the launches were those of the way from wait to wait (player.py), and some that
found no rows and wrote nothing. Else none of it is believed, and the batch is played again from wait to wait: every box and table is made
anew from the input's.

Whatever the numbers turn out to be, launches stay within their tensors: as many rows go ahead as there is room for, and these are
brought back (`open_neurons`, `close_neurons`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polytriton.ir.launches import Launch, Launches
from polytriton.ir.plan import Program
from polytriton.runtime.gpu.binding import BELOW_ZERO, Bound, Call, Part, round_size
from polytriton.runtime.gpu.habits import WINDOW
from polytriton.runtime.gpu.places import Places
from polytriton.runtime.results import Results

if TYPE_CHECKING:
    from polytriton.runtime.gpu.player import Player, RunState

LAUNCHES = 64  # a layer: empty ones take what a wait costs, too
WORTH = 5 * 10**9  # operations a layer, which a leap that fails has made for nothing: about what a wait costs


@dataclass(frozen=True)
class Stop:
    """Where the host would wait: behind the entries from `begin` to `end` of a section, for this program's neurons."""

    begin: int
    end: int
    program: Program
    launches: dict[str, Launch]


@dataclass(frozen=True)
class Stride:
    """What is launched of a layer: room for so many neurons, parts of the likelier sign's program, and whether the other sign follows."""

    room: int
    parts: int
    both: bool


@dataclass
class Landing:
    """A layer's program as it was launched, and where in the log each sign's counts begin and end: neurons found, then rows by state."""

    stop: Stop
    stride: Stride
    bound: Bound
    logs: list[tuple[int, int]]

    def stands(self, counts: Sequence[list[int]]) -> bool:
        """Whether nothing more had to be launched."""
        n, *rows = counts[0]
        return n <= self.stride.room and (self.stride.both or 0 in rows)


@dataclass(kw_only=True)
class Leap(Part):
    """A section as one part, for one batch size; `stood`: how often so far."""

    log: Tensor
    landings: list[Landing]
    stood: int = 0


def stride_cost(launches: Launches, parts: int, both: bool, neurons: float) -> tuple[int, float]:
    """The launches of a layer's program, and operations for so many neurons: `parts` of the likelier sign's, all of `both` signs'."""
    _, end, states = launches.parts()[parts - 1]
    return end * (1 + both), neurons * (1 + both) * sum(ops for state, ops in launches.ops.items() if state < states)


def is_worth(layers: int, launches: int, ops: float) -> bool:
    """Whether a leap over so many layers costs no more than waiting behind each."""
    return launches <= LAUNCHES * layers and ops <= WORTH * layers


class Leaps:
    """Of one player."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.failed, self.rest = 0, 0  # leaps in a row that failed, and batches until the next
        self._stops: dict[str, list[Stop] | None] = {}

    def take(self, run: RunState) -> bool:
        """Plays the whole section. False where it is not worth trying, or has not stood: then nothing has happened."""
        if self.rest:
            self.rest -= 1
            return False
        leap = self._leap(run)
        if leap is None:
            return False
        run.expire()
        backend = self.player.backend
        for landing in leap.landings:
            backend.limit(landing.bound, BELOW_ZERO)
        backend.part(leap)
        numbers = leap.log.tolist()
        found = [[numbers[begin:end] for begin, end in landing.logs] for landing in leap.landings]
        for landing, counts in zip(leap.landings, found, strict=True):
            if not landing.stands(counts):
                self._fail(landing, counts[0], run)
                return False
        self.failed, leap.stood = 0, leap.stood + 1
        for landing, counts in zip(leap.landings, found, strict=True):
            run.results[landing.stop.program.target] = self._note(landing, counts, run.places.batch)
        for begin, end in self.player.cuts(run.section):
            run.places.show(run.section, begin, end, run.boxes)
        run.played = len(backend.script.sections[run.section])
        return True

    def _fail(self, landing: Landing, counts: list[int], run: RunState) -> None:
        """This layer is the first for which not enough was launched."""
        self.failed += 1
        self.rest = min(1 << self.failed, 2 * WINDOW)
        del self.player.parts[self._key(run)]
        habit, (n, *rows) = self.player.habits[landing.stop.program.target], counts
        habit.neurons = n / run.places.batch
        habit.see(len(landing.bound.parts), landing.stride.both or 0 not in rows)

    def _note(self, landing: Landing, counts: list[list[int]], batch: int) -> tuple[int, list[Results]]:
        """How many neurons had rows, and what these found; the next batches go by it."""
        backend, bound, habit = self.player.backend, landing.bound, self.player.habits[landing.stop.program.target]
        n, first = counts[0][0], counts[0][1:]
        habit.neurons = n / batch
        if 0 in first:
            habit.parts = bound.count_parts(first)
        habit.see(habit.parts, 0 not in first)
        if not n:
            return 0, []
        results = Results(bound.starts["best"][: 2 * n], bound.starts["raw_best"][: 2 * n])
        for _, *rows in counts[: 1 if 0 in first else 2]:
            backend.add_rows(bound, rows)
            results.left.append(torch.tensor(rows[1:], dtype=torch.int64))
        return n, [results]

    # ---- what is launched -------------------------------------------------------------------------------

    def _leap(self, run: RunState) -> Leap | None:
        """Measured anew after so many that stood: what was seen by then is exact, and may be less than what was feared."""
        parts, key, stops = self.player.parts, self._key(run), self._find_stops(run.section)
        held = parts.get(key)
        assert held is None or isinstance(held, Leap)
        if stops is None or (held is not None and (held.stood % WINDOW or not held.stood)):
            return held
        strides = self._strides(stops, run.places, generous=held is None) or self._strides(stops, run.places, generous=False)
        if held is not None and [landing.stride for landing in held.landings] == strides:
            return held
        parts.pop(key, None)
        if strides is None:
            return None
        parts[key] = leap = self._lay_out(run.section, run.places, stops, strides)
        return leap

    @staticmethod
    def _key(run: RunState) -> tuple[object, ...]:
        """Among the player's parts, which go when their tensors move."""
        return run.section, run.places.batch, "leap"

    def _find_stops(self, section: str) -> list[Stop] | None:
        """None where something else than waits is between: tensor operations, or rows that never leave."""
        if section not in self._stops:
            player, entries, cuts = self.player, self.player.backend.script.sections[section], self.player.cuts(section)[:-1]
            found = None
            if len(cuts) > 1 and all(entries[end].verb == "wait" for _, end in cuts):
                found = [Stop(a, b, player.programs[entries[b].target], player.launches(section, b)) for a, b in cuts]
            self._stops[section] = found if found and all("ahead" in stop.launches for stop in found) else None
        return self._stops[section]

    def _strides(self, stops: list[Stop], places: Places, generous: bool) -> list[Stride] | None:
        """What the last batches needed at most; all of both signs where that is `generous`. None where a layer is new, its rows take
        several blocks, or a leap costs more than waiting.
        """
        backend, launches, ops, found = self.player.backend, 0, 0.0, list[Stride]()
        for stop in stops:
            habit, ready = self.player.habits.get(stop.program.target), backend.ready(stop.program)
            if habit is None or not habit.needs:
                return None
            most = habit.most()
            both = most.both or generous
            parts = len(ready.launches.parts()) if both else most.parts
            made, counted = stride_cost(ready.launches, parts, both, most.neurons * places.batch)
            launches, ops = launches + made, ops + counted
            room = self.player.room_for(stop.program, places, most.neurons)
            if not room:
                return None
            found.append(Stride(room, parts, both))
        return found if is_worth(len(stops), launches, ops) else None

    def _lay_out(self, section: str, places: Places, stops: list[Stop], strides: list[Stride]) -> Leap:
        """Every stretch's calls, one behind the other."""
        player, backend = self.player, self.player.backend
        pairs = list(zip(stops, strides, strict=True))
        backend.arena(max(backend.arena_bytes(stop.program, stride.room) for stop, stride in pairs))  # it must not move any more
        landings, size = list[Landing](), 0
        for stop, stride in pairs:
            bound = backend.bound(places, stop.program, stride.room, round_size(2 * stride.room))
            landings.append(Landing(stop, stride, bound, []))
            for parts in (stride.parts, len(bound.parts))[: 1 + stride.both]:
                begin, size = size, size + 1 + bound.parts[parts - 1].states
                landings[-1].logs.append((begin, size))
        log, calls = backend.keep(f"log:{section}", size, torch.int64), list[Call]()
        closing: tuple[Bound, Launch] | None = None
        for landing in landings:
            stop, stride, bound = landing.stop, landing.stride, landing.bound
            calls += player.stretch_calls(places, section, stop.begin, stop.end, closing)
            ways = ("ahead", stride.parts), ("second", len(bound.parts))
            for (verb, parts), (begin, end) in zip(ways, landing.logs, strict=False):
                calls += player.program_calls(places, bound, stop.launches[verb], parts)
                calls.append(partial(log[begin:end].copy_, backend.counts()[: end - begin]))
            closing = bound, stop.launches["close"]
        begin, end = player.cuts(section)[-1]
        calls += player.stretch_calls(places, section, begin, end, closing)
        return Leap(calls, 0, log=log, landings=landings)
