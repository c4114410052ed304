"""States in which a caller may have left its thread or its process: none of them may reach a result, and all of them stay as they were."""

from __future__ import annotations

import ctypes
import decimal
import platform
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

DIRECTIONS = {"upward": 2, "downward": 1, "to zero": 3}
SHIFT = 22 if platform.machine() in ("aarch64", "arm64") else 10  # of the direction in what fesetround takes
_C = ctypes.PyDLL(None)


def set_direction(name: str) -> None:
    """Sets how this thread rounds; "" is to nearest."""
    if _C.fesetround(DIRECTIONS.get(name, 0) << SHIFT):
        raise OSError(f"this machine does not round {name}")


@contextmanager
def rounding(name: str) -> Iterator[None]:
    set_direction(name)
    try:
        yield
    finally:
        set_direction("")


@contextmanager
def flushing() -> Iterator[None]:
    """Subnormal numbers are zero, in this thread and those that it starts."""
    assert torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def _switched(get: Callable[[], Any], put: Callable[[Any], object], value: Any) -> Iterator[None]:
    old = get()
    put(value)
    try:
        yield
    finally:
        put(old)


@contextmanager
def _precision(value: str) -> Iterator[None]:
    owner = getattr(torch.backends.mkldnn, "matmul", None)
    raw = getattr(owner, "fp32_precision", None)
    with _switched(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, value):
        yield
    if raw is not None:  # the older switch leaves a value behind in the newer one
        owner.fp32_precision = raw  # type: ignore[union-attr]


@contextmanager
def _default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def _everything() -> Iterator[None]:
    with ExitStack() as stack:
        for name in ("flush", "upward", "default float16", "default device", "autocast", "matmul medium", "deterministic", "numpy raises"):
            stack.enter_context(STATES[name]())
        yield


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "flush": flushing,
    **{name: (lambda name=name: rounding(name)) for name in DIRECTIONS},  # type: ignore[misc]
    "default float64": lambda: _switched(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "default float16": lambda: _switched(torch.get_default_dtype, torch.set_default_dtype, torch.float16),
    "default device": lambda: _default_device("meta"),
    "device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "matmul medium": lambda: _precision("medium"),
    "deterministic": lambda: _switched(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "gradients": torch.enable_grad,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "numpy raises": lambda: np.errstate(all="raise"),
    "decimals": lambda: decimal.localcontext(decimal.Context(prec=2, traps=[decimal.Inexact])),
    "everything": _everything,
}


def seen() -> dict[str, Any]:
    """What can be read of those states, the arithmetic as bits of what it makes."""
    tiny, above = struct.unpack("<2d", bytes.fromhex("0000004000000000010000000000f03f"))
    made = struct.pack("<4d", tiny * above, 1.75 * above, above * above, -1.75 * above)
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    return {
        "arithmetic": made.hex(),
        "direction": _C.fegetround(),
        "dtype": torch.get_default_dtype(),
        "device": str(torch.get_default_device()),
        "modes": len(torch.overrides._get_current_function_mode_stack()),
        "autocast": torch.is_autocast_enabled("cpu"),
        "matmul": torch.get_float32_matmul_precision(),
        "mkldnn": getattr(matmul, "fp32_precision", None),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "numpy": np.geterr(),
        "decimals": decimal.getcontext().prec,
        "threads": torch.get_num_threads(),
    }
