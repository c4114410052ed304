"""Rows of measurements, to a CSV file and to the screen as they come; the columns that every suite shares."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# One measurement of a network: what was measured, then what was found. `seconds` are of one image, the median of `runs`;
# `spread` is the longest less the shortest of them. The suites put columns of their own among these.
NETWORK = ("network", "kind", "eps", "weights", "engine", "numerics", "batch")
FOUND = (
    "seconds", "spread", "runs", "first", "goal", "of_goal", "worst", "rows", "gflop", "tflops", "of_peak", "peak_mb",
)  # fmt: skip
END_TO_END = (*NETWORK, *FOUND, "kernels", "note")


@dataclass
class Table:
    """Rows of one part: each goes to the file and the screen as soon as it is known. `path` None: to the screen alone. `goes_on`: behind
    the rows that are in the file."""

    columns: Sequence[str]
    path: Path | None
    about: Mapping[str, Any]
    shown: Sequence[str] = ()
    goes_on: bool = False
    rows: list[Row] = field(default_factory=list)
    _file: TextIOWrapper | None = None

    def add(self, row: Row) -> None:
        if strange := row.keys() - set(self.columns):
            raise ValueError(f"no such columns: {', '.join(sorted(strange))}")
        if not self.rows:
            print("  ".join(f"{c:>{width(c)}}" for c in self._shown), flush=True)
        self.rows.append(row)
        print("  ".join(f"{text(row.get(c, '')):>{width(c)}}" for c in self._shown), flush=True)
        if self.path is not None:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                begun = self.goes_on and self.path.exists()
                self._file = self.path.open("a" if begun else "w", newline="", encoding="utf-8")
                if not begun:
                    csv.DictWriter(self._file, [*self.columns, *self.about]).writeheader()
            csv.DictWriter(self._file, [*self.columns, *self.about]).writerow({**row, **self.about})
            self._file.flush()

    @property
    def _shown(self) -> Sequence[str]:
        return self.shown or self.columns

    def close(self) -> None:
        """What is added afterwards goes behind the rows that are there."""
        if self._file is not None:
            self._file.close()
            self._file, self.goes_on = None, True


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def width(column: str) -> int:
    return max(len(column), 22 if column in ("case", "network", "layer") else 15 if column in ("step", "program", "numerics") else 9)


def text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def slug(device: str) -> str:
    """A device's name as a file's."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def first_line(error: BaseException) -> str:
    """What went wrong, short enough for a table's cell."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip()[:160]}" if lines else type(error).__name__


def say(message: str) -> None:
    """Progress, and whatever is no result."""
    print(message, file=sys.stderr, flush=True)
