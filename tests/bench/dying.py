"""A part whose processes die after a row, or sleep."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from bench.core.table import Row

COLUMNS = SHOWN = ("layer", "note")


def groups(dry: bool) -> list[str]:
    return ["sleep"] if dry else ["layers", "networks"]


def work(group: str, setting: Any) -> Iterator[Row]:
    if group == "sleep":
        time.sleep(60)
    yield {"layer": "a"}
    os._exit(9)
