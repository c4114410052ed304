"""What the parts of bench.gpu share: the device and its ceilings, how long a part may take, rows to files and to the screen."""

from __future__ import annotations

import csv
import gc
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import torch

from bench.machine import describe

Row = dict[str, Any]


@dataclass(frozen=True)
class Ceiling:
    """Data sheet figures of one device: TFLOP/s of dense products by arithmetic, memory in TB/s."""

    float64: float
    float32: float
    tf32: float
    bf16: float
    memory: float

    def flops(self, numerics: str) -> float:
        """Operations a second; a split product counts once, whatever parts it multiplies."""
        return 1e12 * {"float64": self.float64, "float32": self.float32, "tf32x3": self.tf32 / 3, "bf16x6": self.bf16 / 6}[numerics]

    @property
    def bytes(self) -> float:
        return self.memory * 1e12


# the first whose words are all in the device's name; float64 is on tensor cores
CEILINGS = (
    ("H100 PCIe", Ceiling(51, 51, 378, 756, 2.0)),
    ("H100 NVL", Ceiling(60, 60, 418, 835, 3.9)),
    ("H100", Ceiling(67, 67, 494, 989, 3.35)),
    ("H200", Ceiling(67, 67, 494, 989, 4.8)),
    ("A100 80GB PCIe", Ceiling(19.5, 19.5, 156, 312, 1.935)),
    ("A100 80GB", Ceiling(19.5, 19.5, 156, 312, 2.039)),
    ("A100", Ceiling(19.5, 19.5, 156, 312, 1.555)),
)


def ceiling(device: str) -> Ceiling | None:
    """The device's figures; None where the table has none."""
    words = set(re.split(r"[\s-]+", device))
    return next((c for name, c in CEILINGS if set(name.split()) <= words), None)


@dataclass(frozen=True)
class Setting:
    """How a part runs. `dry`: in Triton's interpreter, on tiny sizes; `end`: time.time() at which it should have finished."""

    dry: bool
    end: float

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry else "cuda")

    @property
    def kernels(self) -> str:
        return "interpret" if self.dry else "triton"

    @property
    def left(self) -> float:
        return self.end - time.time()

    def memory(self) -> int:
        """Bytes for row blocks: half of what is free."""
        return 1 << 30 if self.dry else int(torch.cuda.mem_get_info()[0] // 2)

    def give_back(self) -> None:
        """What no object holds any more goes back to the device."""
        gc.collect()
        if not self.dry:
            torch.cuda.empty_cache()

    def synchronize(self) -> None:
        if not self.dry:
            torch.cuda.synchronize()


def device_name(dry: bool) -> str:
    return "interpreter" if dry else torch.cuda.get_device_name()


def machine(device: str) -> Row:
    """Columns that every row of a file carries."""
    try:
        about = describe()
    except OSError:  # no git here
        about = {"torch": torch.__version__}
    try:
        from triton import __version__ as triton
    except ImportError:
        triton = "none"
    return {"device": device, "triton": triton, **about, "date": time.strftime("%Y-%m-%d")}


def slug(device: str) -> str:
    """A device's name as a file's."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


@dataclass
class Table:
    """Rows of one part: each goes to the file and the screen as soon as it is known. `path` None: to the screen alone."""

    columns: Sequence[str]
    path: Path | None
    about: Mapping[str, Any]
    shown: Sequence[str] = ()
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
                self._file = self.path.open("w", newline="", encoding="utf-8")
                csv.DictWriter(self._file, [*self.columns, *self.about]).writeheader()
            csv.DictWriter(self._file, [*self.columns, *self.about]).writerow({**row, **self.about})
            self._file.flush()

    @property
    def _shown(self) -> Sequence[str]:
        return self.shown or self.columns

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def width(column: str) -> int:
    return max(len(column), 22 if column in ("case", "network", "layer") else 15 if column in ("step", "program", "numerics") else 9)


def text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def first_line(error: BaseException) -> str:
    """What went wrong, short enough for a table's cell."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip()[:160]}" if lines else type(error).__name__


def lost(error: BaseException) -> bool:
    """Whether the device can do no more in this process: after an illegal access every call fails."""
    return "CUDA" in str(error) and not isinstance(error, torch.OutOfMemoryError)


def say(message: str) -> None:
    """Progress, and whatever is no result."""
    print(message, file=sys.stderr, flush=True)
