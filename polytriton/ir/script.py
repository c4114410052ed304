"""Scripts: what a whole run of a network launches, in order. The launches of its programs (ir/launches.py) are referred to.

A script has four sections. `interval` makes every node's box and the query's tables; `refine` narrows boxes on the way; `tables` makes
every program's tables of boxes that somebody brings; `query` makes rows of forms. Entries:

    play LAUNCH          a launch; its grid counts the images of the batch
    host MADE = READ     tensor operations, for what has no kernel; no graph can reach over them
    known LAUNCH         only where somebody brings bounds of the node: its box is narrowed here, and measured anew
    wait %NODE           the host learns how many neurons of the node are undecided (`found`)
    every %NODE          all of them get rows (`at` is every cell): nobody waits
    first, second, ahead LAUNCH    rows of either sign, over which the node's program runs; `ahead` of the wait, as far as there is room
    close LAUNCH         the neurons' bounds go back into the box; these grids count neurons
    forms, gaps LAUNCH   rows of a query, whose coefficients are exact or come with an error; its grid counts forms

Symbols name tensors: `low:conv1` and `high:conv1` the box, `magnitude:`, `own:` (the deployed error), `biggest:` and `total:` (its
sizes), `told:` (for reports); tables and rows as in programs; `w:conv1`, `numbers:conv1` and such are known from the network alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from polytriton.ir.launches import ROW_ARRAYS, Launch

SECTIONS = ("interval", "refine", "tables", "query")
ROWS = ("ahead", "first", "second")
LAUNCHED = ("play", "known", *ROWS, "close", "forms", "gaps")
BOXES = ("low", "high", "magnitude", "own")  # kinds that are handed on: the rest can be made of them
CONSTANTS = (  # kinds that no batch changes
    "w", "wabs", "b", "babs", "numbers", "factors", "own_factors", "given", "weight", "rows", "factor", "shift", "bias",
    "cell_starts", "cell_readers", "channel_starts", "channel_readers", "buf", "slot",
)  # fmt: skip
SUMS, FOUND = ("centre", "spread", "terms"), ("open", "at", "found")  # scratch: a layer's sums, a layer's undecided neurons
_BOX = "box_lo_ptr box_hi_ptr error_ptr biggest_ptr total_ptr"
_NOTED, _LINES = "told_ptr blocks_ptr", "below_ptr above_ptr lower_ptr cut_ptr"
_SUMMED = "centre_ptr spread_ptr magnitude_ptr terms_ptr"
WRITES = {  # parameters through which library kernels store; rows are left out
    "forward_dense": _SUMMED, "forward_conv": _SUMMED, "affine_boxes": f"{_BOX} {_NOTED} first_ptr", "sum_boxes": f"{_BOX} {_NOTED}",
    "relu_boxes": f"{_BOX} y_biggest_ptr y_total_ptr told_ptr {_LINES} lo_ptr hi_ptr t_ptr",
    "measure_boxes": f"biggest_ptr total_ptr {_NOTED}", "tell_boxes": "told_ptr", "relu_tables": _LINES, "box_tables": "lo_ptr hi_ptr",
    "charge_table": "t_ptr", "floors": "floor_ptr other_floor_ptr", "count_open": "blocks_ptr",
    "find_open": "at_ptr found_ptr", "close_neurons": "box_lo_ptr box_hi_ptr", "open_neurons": "", "open_forms": "",
}  # fmt: skip


def changes(symbol: str) -> bool:
    """Whether a script's launches must have written it before it is read: what belongs to a batch, but no rows."""
    kind, _, name = symbol.partition(":")
    return symbol in (*SUMS, *FOUND) or bool(name and kind not in (*CONSTANTS, *ROW_ARRAYS))


@dataclass(frozen=True)
class ScriptEntry:
    verb: str
    launch: Launch | None = None
    target: str = ""
    made: tuple[str, ...] = ()
    given: tuple[str, ...] = ()

    @cached_property
    def writes(self) -> tuple[str, ...]:
        if self.launch is None:
            return ("at",) if self.verb == "every" else self.made
        out = WRITES.get(self.launch.function, "").split()
        return tuple(s for p, s in zip(self.launch.kernel.parameters, self.launch.bind, strict=True) if p in out)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Of what changes; what is narrowed in place is read too."""
        if self.launch is None:
            return ("at", "found") if self.verb == "wait" else self.given
        written = set(self.writes) if self.verb in ("play", "known") else set()
        return tuple(s for s in self.launch.bind if changes(s) and s not in written)


@dataclass
class RunScript:
    """`name`: the network's."""

    name: str
    sections: dict[str, list[ScriptEntry]] = field(default_factory=dict)


class HeldSymbols:
    """Which symbols hold this batch's numbers. A table of a box that has been narrowed since still holds; the box's sizes do not, and
    are measured anew.
    """

    def __init__(self, given: Iterable[str]) -> None:
        """`given`: what is there at first."""
        self.symbols = set(given)

    def __contains__(self, symbol: str) -> bool:
        return symbol in self.symbols

    def take(self, entry: ScriptEntry) -> None:
        """What holds behind an entry: scratch only until the node that it is of has been served."""
        if entry.verb == "known":  # played or not, the sizes are as valid as before
            return
        made = set(entry.writes)
        changed = {name for kind, _, name in (s.partition(":") for s in made) if kind in ("low", "high")}
        self.symbols -= {f"{kind}:{name}" for name in changed for kind in ("biggest", "total")}
        self.symbols -= set(FOUND if entry.verb == "close" else SUMS if made & {f"low:{name}" for name in changed} else ())
        self.symbols |= made


def given_symbols(section: str, script: RunScript, given: str, output: str) -> set[str]:
    """What is there when a section begins: the box of the input `given` or of the output, or all boxes with what is said of them."""
    if section != "tables":
        name = output if section == "query" else given
        return {f"low:{name}", f"high:{name}"}
    made = {s for entry in script.sections["interval"] for s in entry.writes if s.partition(":")[0] in BOXES}
    return made | {f"low:{given}", f"high:{given}"}
