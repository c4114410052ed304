"""One answered query as a record, and the files records are streamed to.

A record is one line, written by one system call when its query ends: a killed run keeps every line it reported. JSON files
are JSON Lines, one object a line. What a killed or full disk cut off in the middle is dropped when the file is opened again.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from polytriton.errors import UsageError
from polytriton.results import ENDS, LayerStats, SearchStats
from polytriton.whole import LineFile, csv_line

VERDICTS = ("unsat", "sat", "unknown", "timeout", "error")
FULL_REMEDY = "free some space; --resume then goes on where this run stopped"


class Point(msgspec.Struct, frozen=True):
    """A counterexample: the input in the network's own order, and what the original model answers."""

    x: list[float]
    y: list[float]


class Image(msgspec.Struct, frozen=True):
    """The image of a ball, for those who draw it: `pixels` (see `pixels.py`), else that number of the file."""

    file: str
    index: int
    shape: list[int]
    mean: tuple[str, ...] = ("0",)
    std: tuple[str, ...] = ("1",)
    clip: tuple[str, str] | None = None
    pixels: str = ""


class Certified(msgspec.Struct, frozen=True):
    """A certified radius as `results.Radius` has it; numbers are exact, as ratios or decimals."""

    proved: str | None
    not_proved: str | None = None
    verdict: str = ""
    finished: bool = True
    queries: int = 0
    seconds: float = 0.0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """`margin` is None where no finite bound was proved or none was needed; `key` names the query and everything its answer depends on.

    `onnx` and `vnnlib` are the two files as the list of instances or the command line spells them, so that results can be joined with it.
    `decided_at` is the radius of another query, whose answer is this one's too: nothing was asked here.
    `method` is what bounds were computed by, where that was not polytriton's own.
    `norm` is that of the radius, where it is another than l-infinity.
    `ended_by` is what kept the query from being decided, a word of ENDS: without it nobody could tell a verdict that more time changes.
    """

    network: str
    property: str
    verdict: str
    margin: float | None = None
    seconds: float = 0.0
    label: int | None = None
    epsilon: str | None = None
    note: str = ""
    semantics: str = ""
    dtype: str = ""
    numerics: str = ""
    candidates: str = ""
    timeout: float | None = None
    sha256: str = ""
    version: str = ""
    key: str = ""
    margins: list[float | None] = []
    rivals: list[int] = []
    counterexample: Point | None = None
    statistics: tuple[LayerStats, ...] = ()
    onnx: str = ""
    vnnlib: str = ""
    image: Image | None = None
    radius: Certified | None = None
    ended_by: str = ""
    search: SearchStats | None = None
    decided_at: str | None = None
    method: str = ""
    norm: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.verdict!r} is no verdict")
        if self.ended_by not in ENDS:
            raise ValueError(f"{self.ended_by!r} is nothing that ends a query")

    def final(self, timeout: float | None) -> bool:
        """Whether another run need not ask again: errors are tried again, timeouts where there is more time."""
        if self.verdict == "timeout":
            return self.timeout is not None and timeout is not None and timeout <= self.timeout
        return self.verdict != "error"


NESTED = ("margins", "rivals", "counterexample", "statistics", "image", "radius", "search")  # in JSON only
COLUMNS = [f for f in Record.__struct_fields__ if f not in NESTED]


def parse_json(path: Path, data: bytes) -> Iterator[Record]:
    for row, line in enumerate(data.splitlines(), 1):
        try:
            yield msgspec.json.decode(line, type=Record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _foreign(path, row) from None


def parse_csv(path: Path, data: bytes) -> Iterator[Record]:
    rows = csv.reader(io.StringIO(data.decode("utf-8", errors="replace"), newline=""))
    k = 0
    try:
        for k, cells in enumerate(rows, 1):
            if (k == 1 and cells != COLUMNS) or len(cells) != len(COLUMNS):
                raise _foreign(path, k)
            if k > 1:
                yield msgspec.convert({c: v for c, v in zip(COLUMNS, cells, strict=True) if v}, Record, strict=False)
    except (msgspec.ValidationError, csv.Error):
        raise _foreign(path, k) from None


def _foreign(path: Path, row: int) -> UsageError:
    return UsageError(f"{path}, line {row}: not a result of polytriton", "choose another file, or --overwrite this one")


def read_records(path: Path) -> list[Record]:
    """What a results file holds, JSON Lines or CSV: a later line of a query wins, one cut off at the end is left out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", "name a file that `polytriton run --json FILE` wrote") from error
    whole = data[: data.rfind(b"\n") + 1]
    try:
        found = list((parse_csv if path.suffix.lower() == ".csv" else parse_json)(path, whole))
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found.append(msgspec.json.decode(data[len(whole) :], type=Record))
    except UsageError as error:
        raise UsageError(error.message, "name a file that `polytriton run --json FILE` or `--csv FILE` wrote") from None
    held: dict[str, Record] = {}
    for k, record in enumerate(found):
        held[record.key or f"line {k}"] = record
    return list(held.values())


class Sink(ABC):
    """An open results file. `held` are the records already in it, by key; a later line wins."""

    resumable = True

    def __init__(self, path: Path, *, resume: bool, overwrite: bool) -> None:
        self.path, self.held = path, dict[str, Record]()
        try:
            there = not resume and path.is_file() and path.stat().st_size > 0
            if there and not self.may_begin(_first_line(path)):
                raise UsageError(f"{path} is no results file: it is not overwritten", "choose another file")
            if there and not overwrite:
                raise UsageError(f"{path} holds results already", "--resume goes on with it, --overwrite starts again")
            self._file = LineFile(path, self._read, fresh=overwrite, what=f"results to {path}", full=FULL_REMEDY)
        except OSError as error:
            raise UsageError(
                f"cannot write results to {path}: {error.strerror or error}", "choose a file in a folder you may write to"
            ) from error
        if self._file.empty:
            self._append(self.header())

    def _read(self, data: bytes) -> None:
        self.held = {record.key: record for record in self.parse(data)}

    def write(self, record: Record) -> None:
        self._append(self.line(record))
        self.held[record.key] = record

    def close(self) -> None:
        self._file.close()

    def _append(self, data: bytes) -> None:
        self._file.append(data)

    @abstractmethod
    def may_begin(self, line: bytes) -> bool:
        """Whether results of this kind, of any version, may begin so."""

    def header(self) -> bytes:
        return b""

    @abstractmethod
    def line(self, record: Record) -> bytes: ...

    @abstractmethod
    def parse(self, data: bytes) -> Iterator[Record]: ...


class JsonSink(Sink):
    def may_begin(self, line: bytes) -> bool:
        return line.startswith(b"{")

    def line(self, record: Record) -> bytes:
        return msgspec.json.encode(record) + b"\n"

    def parse(self, data: bytes) -> Iterator[Record]:
        return parse_json(self.path, data)


class CsvSink(Sink):
    def may_begin(self, line: bytes) -> bool:
        return b"verdict" in line.split(b",")

    def header(self) -> bytes:
        return csv_line(COLUMNS)

    def line(self, record: Record) -> bytes:
        return csv_line([_cell(getattr(record, c)) for c in COLUMNS])

    def parse(self, data: bytes) -> Iterator[Record]:
        return parse_csv(self.path, data)


class Stdout(JsonSink):
    """`--json -`: one object a line on standard output; nothing to resume."""

    resumable = False

    def __init__(self) -> None:
        self.path, self.held = Path("-"), {}

    def _append(self, data: bytes) -> None:
        sys.stdout.write(data.decode())
        sys.stdout.flush()

    def close(self) -> None:
        pass


def _first_line(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.readline(1 << 12)


def _cell(value: Any) -> str:
    """One physical line a record, whatever a message holds: only then can a torn line be told from a whole one."""
    return "" if value is None else " ".join(value.split()) if isinstance(value, str) else str(value)


def open_sinks(json: str | None, csv_: str | None, *, resume: bool = False, overwrite: bool = False) -> list[Sink]:
    if resume and not (csv_ or (json and json != "-")):
        raise UsageError("--resume needs a results file to go on with", "name it with --json FILE or --csv FILE")
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other", "give one of them")
    if json and csv_ and json != "-" and os.path.realpath(json) == os.path.realpath(csv_):
        raise UsageError("--json and --csv name the same file", "give them different names")
    sinks: list[Sink] = []
    if json:
        sinks.append(Stdout() if json == "-" else JsonSink(Path(json), resume=resume, overwrite=overwrite))
    if csv_:
        sinks.append(CsvSink(Path(csv_), resume=resume, overwrite=overwrite))
    return sinks
