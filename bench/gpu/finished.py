"""What an earlier run has finished: groups that came to their end, and their rows. A file of other code is set aside, not mixed in."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from bench.core.machine import ROOT
from bench.core.table import Row, read_rows
from polytriton.whole import write_whole

GROUP = "group"  # the column that tells whose a row is


@cache
def code_digest() -> str:
    """Of all that is measured and measures: a checkout without git, or with changes, tells no commit."""
    files = sorted(p for room in ("polytriton", "bench") for p in (ROOT / room).rglob("*.py"))
    return hashlib.sha256(b"".join(str(p.relative_to(ROOT)).encode() + p.read_bytes() for p in files)).hexdigest()[:16]


class Finished:
    """Of one part's file, with a list beside it. Rows of groups that did not end, or are to be done again, are taken out."""

    def __init__(self, path: Path | None, again: Sequence[str] = ()) -> None:
        """`again`: groups to be done whether they ended or not."""
        self.path = path
        self.groups: list[str] = []
        self.rows: list[Row] = []
        if path is None or not path.exists():
            return
        rows, ended = read_rows(path), self._list.read_text(encoding="utf-8").splitlines() if self._list.exists() else []
        if ended[:1] != [code_digest()]:
            if rows:
                path.replace(path.with_suffix(f".{rows[0].get('commit') or 'earlier'}.csv"))
            self._note()
            return
        self.groups = [g for g in ended[1:] if g not in again]
        self.rows = [row for row in rows if row.get(GROUP) in self.groups]
        self._write()

    @property
    def _list(self) -> Path:
        assert self.path is not None
        return self.path.with_suffix(".finished")

    def add(self, group: str) -> None:
        self.groups.append(group)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._note()

    def _note(self) -> None:
        write_whole(self._list, "".join(f"{line}\n" for line in (code_digest(), *self.groups)).encode())

    def _write(self) -> None:
        """The rows that stay; no file where none do."""
        assert self.path is not None
        if not self.rows:
            self.path.unlink()
        else:
            text = io.StringIO(newline="")
            out = csv.DictWriter(text, list(self.rows[0]))
            out.writeheader()
            out.writerows(self.rows)
            write_whole(self.path, text.getvalue().encode())
        self._note()
