"""What every list of launches keeps to; a list that does not would read numbers that nobody wrote, or another row's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polytriton.errors import InvalidIR
from polytriton.ir.launches import ROW_ARRAYS, Launch, Launches

SCALARS = ("constant", "error", "value", "raw", "slack", "best", "raw_best", "done", "blocks", "group")  # written, beside buffers


def check_launches(launches: Launches) -> None:
    """InvalidIR at the first launch that breaks a rule."""
    for rule in (_begins, _binds, _buffers, _states, _regions):
        for problem in rule(launches):
            of = f"{launches.program.kind} %{launches.program.target}"
            raise InvalidIR(f"launches of {of}: {problem}", "please report the network")


def _begins(launches: Launches) -> Iterator[str]:
    begins = launches.begins
    if begins[:1] != [0] or sorted(set(begins)) != begins or begins[-1] > len(launches.steps):
        yield f"states begin at {begins}: the first at launch 0, each after the one before, none beyond the last launch"
    if odd := [s for s in launches.ops if not 0 <= s < launches.states]:
        yield f"operations are counted for state {odd[0]}, which no row reaches"


def _binds(launches: Launches) -> Iterator[str]:
    for k, step in enumerate(launches.steps):
        if len(step.bind) != len(step.kernel.parameters):
            yield f"launch {k} binds {len(step.bind)} tensors to {len(step.kernel.parameters)} parameters"
        if min(step.block, step.cells, step.times, step.columns) < 1:
            yield f"launch {k} has a size below 1"


def writes(step: Launch) -> set[str]:
    """The symbols of coefficients that a launch writes: those of its `out` parameters."""
    return {symbol for p, symbol in zip(step.kernel.parameters, step.bind, strict=True) if "out" in p}


def _buffers(launches: Launches) -> Iterator[str]:
    """Written before it is read, touched within its life. A query's rows come in buffers that are alive from the start."""
    sizes, lives = launches.buffers, launches.lives
    if len(lives) != len(sizes) or any(len(life) != 2 for life in lives):
        yield f"{len(sizes)} buffers have {len(lives)} lives"
        return
    given = {f"buf:{b}" for b, (first, _) in enumerate(lives) if first == 0 and launches.program.kind != "bound"}
    written = set(given)
    for k, step in enumerate(launches.steps):
        for symbol in step.bind:
            kind, _, name = symbol.partition(":")
            if kind != "buf":
                continue
            if not name.isdigit() or int(name) >= len(sizes):
                yield f"launch {k} binds {symbol}, of {len(sizes)} buffers"
                return
            first, last = lives[int(name)]
            if not first <= k <= last:
                yield f"launch {k} touches {symbol}, which lives from {first} to {last}"
            if symbol not in written | writes(step):
                yield f"launch {k} reads {symbol} before a launch has written it"
        written |= writes(step)


def _states(launches: Launches) -> Iterator[str]:
    """A launch reads the rows of its own state; those of the next only once rows have moved there."""
    for state, (begin, end) in enumerate(launches.spans()):
        moved = False
        for k in range(begin, end):
            step = launches.steps[k]
            moved = moved or step.function == "move_rows"
            for symbol in step.bind:
                kind, _, name = symbol.partition(":")
                if kind not in ROW_ARRAYS or not name.isdigit():
                    continue
                if int(name) != state and not (moved and int(name) == state + 1) and not (kind == "from" and int(name) <= state):
                    yield f"launch {k} binds {symbol} in state {state}"
        if moved == (state + 1 == launches.states):
            yield f"state {state} ends {'with' if moved else 'without'} rows that move"


def _regions(launches: Launches) -> Iterator[str]:
    """A region lies in one state."""
    yield from check_regions(launches.steps, set(launches.begins), [writes(step) for step in launches.steps])


def check_regions(steps: Sequence[Launch], begins: set[int], written_by: Sequence[set[str]]) -> Iterator[str]:
    """Lanes of a region touch nothing in common but what they only read, and a region lies in one piece between two of `begins`."""
    seen = set[int]()
    for k, step in enumerate(steps):
        if step.lane not in (0, 1) or (step.lane and not step.region):
            yield f"launch {k} has lane {step.lane} in region {step.region}"
        if step.region and (k in begins or steps[k - 1].region != step.region if k else True):
            if step.region in seen:
                yield f"region {step.region} is in pieces, or goes on in the next state"
            seen.add(step.region)
    for region in sorted(seen):
        mine = [step for step in steps if step.region == region]
        touched = [{s for step in mine if step.lane == lane for s in step.bind} for lane in (0, 1)]
        written = set().union(*(made for step, made in zip(steps, written_by, strict=True) if step.region == region))
        for symbol in sorted(touched[0] & touched[1]):
            kind = symbol.partition(":")[0]
            if symbol in written or kind in SCALARS:
                yield f"both lanes of region {region} touch {symbol}"
