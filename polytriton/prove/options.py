"""How bounds are asked for: options that depend on no network, and the devices of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import torch

from polytriton.errors import UsageError
from polytriton.passes import schedule
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.soundness import find_semantics

DTYPES = ("auto", "float32", "float64", "tf32x3", "bf16x6")
SPLIT = ("tf32x3", "bf16x6")  # float32 products from tensor cores, sound under a stated model of them: only where asked for
NUMERICS = ("folded", "interval")  # one number a coefficient and all rounding in one more, or the paper's intervals
DEFAULT_MEMORY = 4 << 30
METHODS = ("polytriton", "ibp", "crown-ibp", "deeppoly")  # its own, and others to compare with: methods.py
OWN = METHODS[0]
INTERPRET = "interpret"  # the generated kernels on CPU tensors, in Triton's interpreter: slow, for tests and curiosity


@dataclass(frozen=True)
class Options:
    """How bounds are computed; nothing here depends on the network."""

    device: str = "cpu"
    semantics: str = "float32"
    dtype: str = "auto"
    candidates: str = "all"
    memory: int = DEFAULT_MEMORY
    early: bool = True
    config: Config = DEFAULT  # how the machine does it: no bound depends on it beyond rounding
    numerics: str = "folded"
    method: str = OWN

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("numerics", self.numerics, NUMERICS),
            ("method", self.method, METHODS),
            ("dtype", self.dtype, DTYPES),
            ("candidates", self.candidates, schedule.CHOICES),
        ):
            if value not in choices:
                raise UsageError(f"{name}={value!r} is unknown", f"use one of: {', '.join(choices)}")
        find_semantics(self.semantics)
        if self.dtype in SPLIT and not self.device.startswith(("cuda", "interpret")):
            raise UsageError(f"dtype={self.dtype!r} is for tensor cores", "use float32 or float64 on the CPU, or --device cuda")
        if self.dtype == "bf16x6" and self.device == INTERPRET:
            raise UsageError(
                "dtype='bf16x6' is for tensor cores: Triton's interpreter multiplies no parts in bfloat16",
                f"use tf32x3, float32 or float64 with --device {INTERPRET}, or --device cuda",
            )
        if self.numerics == "interval" and not self.device.startswith(("cuda", "interpret")):
            raise UsageError(
                f"numerics='interval' runs by generated kernels, which device {self.device!r} has none of",
                "add --device cuda, or --device interpret for Triton's interpreter (slow); --numerics folded runs everywhere",
            )
        if self.numerics == "interval" and self.dtype in SPLIT:
            raise UsageError(f"dtype={self.dtype!r} rounds on tensor cores, in no direction that could be told", "use float32 or float64")
        if self.memory < 1 << 20:
            raise UsageError(f"a memory budget of {self.memory} bytes is too small", "give at least 1M, for example --memory 2G")


class GivenOptions(TypedDict, total=False):
    """The fields of Options as keywords, for those who give some of them."""

    device: str
    semantics: str
    dtype: str
    candidates: str
    memory: int
    early: bool
    config: Config
    numerics: str
    method: str


def pick_device(name: str) -> torch.device:
    if name == INTERPRET:
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device {name!r} is unknown", f"use cpu, cuda, cuda:N or {INTERPRET}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {name!r}: this machine shows torch no CUDA GPU", "use --device cpu, or install a CUDA build of torch")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise UsageError(f"device {name!r}: this machine has {torch.cuda.device_count()} GPU(s)", "count them from cuda:0")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not supported", f"use cpu, cuda, cuda:N or {INTERPRET}")
    return device


def capability(name: str) -> str:
    """The target that kernels for the (first) device are compiled for; "" for what runs none."""
    if not name.startswith("cuda"):
        return ""
    return "cuda:{}{}".format(*torch.cuda.get_device_capability(pick_device(name.split(",")[0])))
