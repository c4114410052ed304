"""What the parts of bench.gpu share: the device and its ceilings, how long a part may take."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from bench.core.table import Row


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
    """How a part runs. `dry`: in Triton's interpreter, on tiny sizes; `end`: time.time() at which it should have finished; `code`: folder
    of machine code made before (gpu.code); `numerics`: arithmetics to look at, all where it names none.
    """

    dry: bool
    end: float
    code: Path | None = None
    numerics: tuple[str, ...] = ()

    def wants(self, numerics: str) -> bool:
        return not self.numerics or numerics in self.numerics

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


def all_groups(work: Callable[[str, Setting], Iterator[Row]], names: Sequence[str], setting: Setting) -> Iterator[Row]:
    """Rows of several groups by one process."""
    return chain.from_iterable(work(name, setting) for name in names)


def device_name(dry: bool) -> str:
    return "interpreter" if dry else torch.cuda.get_device_name()


def is_lost(error: BaseException) -> bool:
    """Whether the device can do no more in this process: after an illegal access every call fails."""
    return "CUDA" in str(error) and not isinstance(error, torch.OutOfMemoryError)
