"""What a person sees: progress on stderr, tables on stdout; both plain where nobody looks at a terminal."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from polytriton.explain import explain
from polytriton.knobs import knobs
from polytriton.show.verdicts import LOOKS, look

if TYPE_CHECKING:
    from rich.progress import Progress
    from typing_extensions import Self

    from polytriton.runs.asker import Answer
    from polytriton.runs.queries import Query
    from polytriton.runs.records import Record

INTERRUPTED = 130


_said = 0.0


def say(message: str) -> None:
    """Progress of what is done before any query, at most once in two seconds."""
    global _said
    if time.monotonic() - _said > 2:
        _said = time.monotonic()
        print(f"polytriton: {message}", file=sys.stderr, flush=True)


def complain(error: BaseException) -> int:
    """One message with its remedy on stderr; the exit code."""
    told = explain(error)
    if knobs_debug():
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
    print(f"polytriton: {told}", file=sys.stderr)
    return told.exit_code


def knobs_debug() -> int:
    try:
        return knobs().debug
    except Exception:  # an unreadable setting is what is being reported
        return 0


def as_text(document: object) -> str:
    """JSON for people and programs."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def table(
    head: Sequence[str], rows: Sequence[Sequence[Any]], *, file: TextIO | None = None, right: Sequence[int] = (), verdict: int | None = None
) -> None:
    """A rich table on a terminal, aligned columns elsewhere."""
    out = file or sys.stdout
    cells = [[str(c) for c in row] for row in rows]
    if out.isatty():
        from rich.console import Console
        from rich.table import Table

        drawn = Table(*[], box=None, pad_edge=False)
        for k, name in enumerate(head):
            drawn.add_column(name, justify="right" if k in right else "left", overflow="fold")
        for row in cells:
            drawn.add_row(*row, style=None if verdict is None else look(row[verdict]).terminal or None)
        Console(file=out, markup=False, highlight=False).print(drawn)
        return
    width = [max(len(row[k]) for row in [list(head), *cells]) for k in range(len(head))]
    for row in [list(head), *cells]:
        padded = [c.rjust(w) if k in right else c.ljust(w) for k, (c, w) in enumerate(zip(row, width, strict=True))]
        print("  ".join(padded).rstrip(), file=out)


PAUSE = 10.0  # seconds between lines of progress where nobody looks at a terminal


class TerminalBar:
    """A bar on stderr while it is a terminal; elsewhere `bar` is None, and whoever inherits this prints lines."""

    def __init__(self, columns: Sequence[str], description: str = "", total: float | None = None, **fields: Any) -> None:
        """Columns are "bar", "count", "time" or what a task is told in, as rich writes it."""
        self.bar: Progress | None = None
        self.said = time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            known = {"bar": BarColumn, "count": MofNCompleteColumn, "time": TimeElapsedColumn}
            drawn = (known[c]() if c in known else TextColumn(c, markup=False) for c in columns)
            self.bar = Progress(*drawn, console=Console(file=sys.stderr), transient=True)
            self.task = self.bar.add_task(description, total=total, **fields)

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    def line_is_due(self) -> bool:
        """Whether nothing has been printed for a while."""
        return time.monotonic() - self.said > PAUSE

    def print_line(self, message: str) -> None:
        self.said = time.monotonic()
        print(f"polytriton: {message}", file=sys.stderr, flush=True)


class Live(TerminalBar):
    """Progress of a run: a bar on a terminal, one line a finished query elsewhere."""

    def __init__(self, total: int, *, radii: bool = False) -> None:
        """`radii`: queries about one image differ in them."""
        super().__init__(("{task.fields[query]}", "bar", "count", "time", "{task.fields[stage]}"), "run", total, query="", stage="")
        self.total, self.radii, self.done, self.shown = total, radii, 0, 0.0

    def show_query(self, query: Query, more: int) -> None:
        if self.bar:
            name = self._name(query.name, query.epsilon, query.norm)
            self.bar.update(self.task, query=f"{name} and {more} more" if more else name, stage="")

    def _name(self, name: str, epsilon: str | None, norm: str) -> str:
        from polytriton.pages.facts import radius_name

        return f"{name} at {radius_name(epsilon, norm)}" if self.radii and epsilon is not None else name

    def stage(self, name: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self.bar and now - self.shown > 0.1:
            self.shown = now
            self.bar.update(self.task, stage=f"{name} {done}/{total}" if total > 1 else name)

    def show_answer(self, answer: Answer) -> None:
        self.done += 1
        if answer.error is not None:
            complain(answer.error)
        if self.bar:
            self.bar.update(self.task, completed=self.done)
        elif not answer.resumed:
            r = answer.record
            how = seconds(r.seconds) if r.decided_at is None else "not asked"
            name = self._name(r.property, r.epsilon, r.norm)
            print(f"[{self.done}/{self.total}] {name}: {r.verdict} ({how})", file=sys.stderr, flush=True)


def seconds(value: float) -> str:
    return f"{value:.3f} s" if value < 10 else f"{value:.1f} s"


def _radius(record: Record) -> str:
    """What was proved, rounded down."""
    from polytriton.pages.facts import proved_radius
    from polytriton.show.words import decimal_below

    proved = proved_radius(record)
    return "-" if proved is None else decimal_below(proved)


def summary(answers: Sequence[Answer], *, file: TextIO | None = None) -> None:
    """One line a query, or of a sweep one an image and one a radius; then the totals."""
    from polytriton.commands.image_table import shares_line, show_images, show_radii
    from polytriton.pages.facts import count_misclassified, network_names, radius_facts, whole_seconds

    records, out = [a.record for a in answers], file or sys.stdout
    radii = radius_facts(records)
    if len({f.name for f in radii}) > 1:
        show_images(records, out)
        show_radii(radii, network_names(records), out)
    else:
        _show_queries(records, out)
    counts, wrong, resumed = Counter(r.verdict for r in records), count_misclassified(records), sum(a.resumed for a in answers)
    parts = [f"{counts[v]} {v}" for v in LOOKS if counts[v]]
    extra = [f"{wrong} misclassified"] if wrong else []
    if resumed:
        extra.append(f"{resumed} from an earlier run")
    total = f"{len(records)} queries: {', '.join(parts) or 'none answered'}; {seconds(sum(map(whole_seconds, records)))}"
    print("".join([total, *(f"; {e}" for e in extra)]), file=out, flush=True)
    if radii and len({f.network for f in radii}) == 1:
        print(shares_line(radii, labelled=_has_labels(answers)), file=out, flush=True)
    if counts["unknown"] or counts["timeout"]:
        asked = "" if any(r.search for r in records) else "--search auto, and "
        print(f"polytriton: what to try where a verdict is open: {asked}docs/unknown.md", file=sys.stderr)
    if wrong > 1 and all(r.note.startswith("misclassified") for r in records):
        print("polytriton: every image is misclassified: their preprocessing is probably not the network's", file=sys.stderr)
        print("  remedy: see --mean, --std, --scale and --layout, and whether labels count from 0", file=sys.stderr)


def _has_labels(answers: Sequence[Answer]) -> bool:
    return all(getattr(a.query.subject, "label", None) is not None for a in answers if a.query is not None)


def _show_queries(records: Sequence[Record], out: TextIO) -> None:
    several = len({r.network for r in records}) > 1
    noted, searched = any(r.note for r in records), any(r.radius is not None for r in records)
    head = [
        *(["network"] if several else []), "property", "verdict", "margin", "seconds",
        *(["radius"] if searched else []), *(["note"] if noted else []),
    ]  # fmt: skip
    first = int(several)
    rows = [
        [
            *([Path(r.network).name] if several else []),
            r.property,
            r.verdict,
            "-" if r.margin is None else f"{r.margin:.6g}",
            f"{r.seconds:.3f}",
            *([_radius(r)] if searched else []),
            *([r.note[:100]] if noted else []),
        ]
        for r in records
    ]
    table(head, rows, file=out, right=(first + 2, first + 3, first + 4) if searched else (first + 2, first + 3), verdict=first + 1)
