"""The results file of the verification competitions: one line an instance, `category,onnx,vnnlib,prepare_time,result,run_time`."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from polytriton.errors import NoSpace, UsageError
from polytriton.runs.asker import Answer
from polytriton.runs.queries import Query, VnnlibFile
from polytriton.runs.records import FULL_REMEDY, VERDICTS
from polytriton.whole import csv_line, write_whole

Pair = tuple[str, str]
Key = tuple[str, str, int]


class CompetitionFile:
    """Written line by line as queries end. No header, as the competitions have it; paths as the list of instances spells them.

    On resuming it keeps its lines; one whose result has changed (more time for a timeout) is replaced.
    """

    def __init__(self, path: Path, names: Mapping[Pair, Pair], category: str, *, resume: bool, overwrite: bool) -> None:
        """`names`: how the list spells a query's network and property."""
        self.path, self.category, self._names = Path(os.path.realpath(path)), category, names
        if self.path.exists() and not self.path.is_file():
            raise UsageError(f"{path} is not a file", "name a file that may be replaced")
        self._lines: dict[Key, list[str]] = {}
        self._seen: Counter[Pair] = Counter()
        try:
            existing = self.path.read_text(encoding="utf-8") if self.path.is_file() and not overwrite else ""
            if existing and not resume:
                raise UsageError(f"{path} holds results already", "--resume goes on with it, --overwrite starts again")
            self._read(existing[: existing.rfind("\n") + 1])
            self._replace()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot write results to {path}: {why}", "choose a file in a folder you may write to") from error

    def add(self, answer: Answer) -> None:
        query, record = answer.query, answer.record
        assert query is not None
        names = self._pair(query)
        self._seen[names] += 1
        key = (*names, self._seen[names])
        line = [self.category, *names, f"{answer.prepare:.6f}", record.verdict, f"{record.seconds:.6f}"]
        old = self._lines.get(key)
        if old is not None and old[4] == record.verdict and answer.resumed:
            return
        self._lines[key] = line
        try:
            if old is not None:
                self._replace()
            else:
                with open(self.path, "ab") as file:
                    file.write(csv_line(line))
        except OSError as error:
            raise NoSpace(f"cannot write results to {self.path}: {error.strerror or error}", FULL_REMEDY) from error

    def _pair(self, query: Query) -> Pair:
        path = query.subject.path if isinstance(query.subject, VnnlibFile) else query.name
        return self._names.get((query.network, path), (query.network, path))

    def _read(self, text: str) -> None:
        seen: Counter[Pair] = Counter()
        for row, cells in enumerate(csv.reader(io.StringIO(text, newline="")), 1):
            if len(cells) != 6 or cells[4] not in VERDICTS:
                raise UsageError(f"{self.path}, line {row}: not a competition's result", "choose another file, or --overwrite this one")
            seen[cells[1], cells[2]] += 1
            self._lines[cells[1], cells[2], seen[cells[1], cells[2]]] = cells

    def _replace(self) -> None:
        write_whole(self.path, b"".join(map(csv_line, self._lines.values())))
