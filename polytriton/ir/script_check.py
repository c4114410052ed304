"""What every script keeps to; one that does not would read numbers of another batch or node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from polytriton.errors import InvalidIR
from polytriton.ir.launch_check import check_regions
from polytriton.ir.launches import Launch, Launches
from polytriton.ir.net import Net
from polytriton.ir.script import ROWS, SECTIONS, HeldSymbols, RunScript, ScriptEntry, changes, given_symbols

ALLOWED = {"interval": ("play", "host"), "refine": ("play", "host", "known", "wait", "every", *ROWS, "close"),
           "tables": ("play", "host"), "query": ("forms", "gaps")}  # fmt: skip


def program_reads(launches: Launches) -> list[str]:
    """A batch's tables that a program's launches read, in order."""
    return list(dict.fromkeys(s for step in launches.steps for s in step.bind if changes(s)))


def check_script(script: RunScript, net: Net, programs: Iterable[Launches]) -> None:
    """InvalidIR at the first entry that breaks a rule; `programs` are the launches of the plan's."""
    by_target = {p.program.target if p.program.kind == "bound" else "": program_reads(p) for p in programs}
    for section in SECTIONS:
        entries = script.sections.get(section, [])
        held = HeldSymbols(given_symbols(section, script, net.input.name, net.output))
        for problem in (*_entries(section, entries), *_order(section, entries, held, by_target), *_regions(entries)):
            raise InvalidIR(f"script of @{script.name}, {section}: {problem}", "please report the network")


def _entries(section: str, entries: list[ScriptEntry]) -> Iterator[str]:
    for k, entry in enumerate(entries):
        step = entry.launch
        if entry.verb not in ALLOWED[section]:
            yield f"entry {k} is `{entry.verb}`"
        elif entry.verb == "known" and (step is None or step.function != "measure_boxes"):
            yield f"entry {k} does not measure what is known"
        elif step is not None and (
            len(step.bind) != len(step.kernel.parameters) or min(step.block, step.cells, step.times, step.columns) < 1
        ):
            yield f"entry {k} binds {len(step.bind)} tensors to {len(step.kernel.parameters)} parameters, or has a size below 1"


def _order(section: str, entries: list[ScriptEntry], held: HeldSymbols, programs: dict[str, list[str]]) -> Iterator[str]:
    """Written before it is read, for the node that reads it; rows only once their number is known, closed once, for one node at a time."""
    target, due = "", list[str]()
    for k, entry in enumerate(entries):
        if entry.verb in ("wait", "every"):
            if due:
                yield f"entry {k} comes before %{target} is closed"
            target, due = entry.target, ["first", "second", "close"]
            for symbol in programs.get(target, [f"the program of %{target}"]):
                if symbol not in held:
                    yield f"entry {k}: the program of %{target} reads {symbol} before an entry has written it"
        elif entry.verb == "ahead":
            if due[:1] != ["first"] or entries[k - 1].verb != "wait":
                yield f"entry {k} goes ahead of no wait"
        elif entry.verb in (*ROWS, "close"):
            if due[:1] != [entry.verb]:
                yield f"entry {k} is `{entry.verb}` of neurons whose number is not known, or out of turn"
            due = due[1:]
        elif due:
            yield f"entry {k} comes before %{target} is closed"
        if entry.verb == "close" and set(entry.writes) != {f"low:{target}", f"high:{target}"}:
            yield f"entry {k} closes another node than %{target}"
        for symbol in entry.reads:
            if symbol not in held:
                yield f"entry {k} reads {symbol} before an entry has written it"
        held.take(entry)
    if due:
        yield f"%{target} is not closed"
    asked = {"interval": [""], "refine": [""], "tables": list(programs)}.get(section, [])
    for name in asked:
        for symbol in programs[name]:
            if symbol not in held:
                yield f"nothing has written {symbol} for the {f'program of %{name}' if name else 'query'}"


def _regions(entries: list[ScriptEntry]) -> Iterator[str]:
    """Lanes are as in programs; a region ends where the host comes in."""
    steps, begins, written = list[Launch](), set[int](), list[set[str]]()
    for entry in entries:
        if entry.verb != "play":
            begins.add(len(steps))
        if entry.launch is not None:
            steps.append(entry.launch)
            written.append(set(entry.writes))
    yield from check_regions(steps, begins, written)
