"""bench.interval on the device: the paper's interval arithmetic beside folded errors, layer by layer and for whole networks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.core.table import Row, first_line
from bench.gpu.setting import Setting, lost
from polytriton.runtime.settings import pin_settings

COLUMNS = (
    "layer", "type", "rows", "interval loss", "folded loss", "interval MB", "folded MB", "interval ms", "folded ms", "note",
)  # fmt: skip
SHOWN = COLUMNS


def groups(dry: bool) -> list[str]:
    return ["layers", "networks"]


def work(group: str, setting: Setting) -> Iterator[Row]:
    from bench.interval import FULL, LARGE, SMALL, TINY, Whole, measure, whole

    cases = (SMALL[:1] if setting.dry else LARGE) if group == "layers" else (TINY[:1] if setting.dry else FULL)
    for case in cases:
        for dtype in (torch.float32, torch.float64):
            if setting.left < 0:
                return
            name = str(dtype).removeprefix("torch.")
            try:
                with pin_settings():
                    if isinstance(case, Whole):
                        yield whole(case, name, setting.device.type)
                    else:
                        yield measure(case, dtype, 4 if setting.dry else 4096, setting.device.type)
            except Exception as error:
                if lost(error):
                    raise
                yield {"layer": case.name, "type": name, "note": first_line(error)}
