"""bench.interval on the device: the paper's interval arithmetic beside folded errors, layer by layer and for whole networks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from bench import interval
from bench.core.table import Row, first_line
from bench.gpu.setting import Setting, is_lost

COLUMNS = SHOWN = (*interval.COLUMNS, "note")


def groups(dry: bool) -> list[str]:
    return list(interval.CASES)


def work(group: str, setting: Setting) -> Iterator[Row]:
    small, large = interval.CASES[group]
    for case, dtype in product(small[:1] if setting.dry else large, interval.TYPES):
        if setting.left < 0:
            return
        try:
            yield interval.measure_case(case, dtype, 4 if setting.dry else 4096, setting.device.type)
        except Exception as error:
            if is_lost(error):
                raise
            yield {"layer": case.name, "type": str(dtype).removeprefix("torch."), "note": first_line(error)}
