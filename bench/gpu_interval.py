"""bench.interval on the device: the paper's interval arithmetic beside folded errors, one layer at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.gpu_report import Setting, lost
from bench.table import Row, first_line
from polytriton.runtime.settings import pinned

COLUMNS = (
    "layer", "type", "rows", "interval loss", "folded loss", "interval MB", "folded MB", "interval ms", "folded ms", "note",
)  # fmt: skip
SHOWN = COLUMNS


def groups(dry: bool) -> list[str]:
    return ["layers"]


def work(group: str, setting: Setting) -> Iterator[Row]:
    from bench.interval import LARGE, SMALL, measure

    for layer in SMALL[:1] if setting.dry else LARGE:
        for dtype in (torch.float32, torch.float64):
            if setting.left < 0:
                return
            try:
                with pinned():
                    yield measure(layer, dtype, 4 if setting.dry else 4096, setting.device.type)
            except Exception as error:
                if lost(error):
                    raise
                yield {"layer": layer.name, "type": str(dtype).removeprefix("torch."), "note": first_line(error)}
