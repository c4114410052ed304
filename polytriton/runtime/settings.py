"""The process's torch settings: pinned while a bound is computed, put back afterwards, and tested rather than trusted.

A user may have asked torch for "fast float32" (TF32, bf16), deterministic algorithms or gradients. None of it may reach a
certificate, and nothing of theirs may change. Settings are process-wide, so concurrent callers share one pin. An
environment variable can lower the precision of oneDNN beneath torch's own switches: `exact_float32` multiplies and looks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

_LOCK = threading.Lock()
_holders = 0
_restore: list[Callable[[], None]] = []
_probe: bool | None = None


def _pin_attribute(owner: Any, name: str, value: Any) -> None:
    """Sets a setting where this torch has it, and notes how to put it back."""
    try:
        old = getattr(owner, name)
        setattr(owner, name, value)
    except (AttributeError, RuntimeError):  # another torch release: the probe below judges what is left
        return
    _restore.append(lambda: setattr(owner, name, old))


def _pin_precision(owner: Any) -> None:
    """Full precision for one family of kernels; a value inherited from torch's general setting goes back to being inherited."""
    try:
        old = owner.fp32_precision
        owner.fp32_precision = "ieee"
    except (AttributeError, RuntimeError):
        return

    def restore() -> None:
        owner.fp32_precision = "none"
        if owner.fp32_precision != old:
            owner.fp32_precision = old

    _restore.append(restore)


def _pin() -> None:
    backends = torch.backends
    cuda = torch.cuda.is_available()
    if hasattr(backends, "fp32_precision"):  # the older switch shows through these, and mixing both is refused
        for family in (backends.mkldnn, *((backends.cuda, backends.cudnn) if cuda else ())):
            for part in ("matmul", "conv"):
                _pin_precision(getattr(family, part, None))
    else:
        old = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        _restore.append(lambda: torch.set_float32_matmul_precision(old))
        if cuda:
            _pin_attribute(backends.cuda.matmul, "allow_tf32", False)
            _pin_attribute(backends.cudnn, "allow_tf32", False)
    if torch.cuda.is_available():
        _pin_attribute(backends.cudnn, "enabled", False)  # it may choose Winograd or FFT
    if torch.are_deterministic_algorithms_enabled():
        warn = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(False)
        _restore.append(lambda: torch.use_deterministic_algorithms(True, warn_only=warn))


@contextmanager
def _gradual_underflow(workers: bool) -> Iterator[None]:
    """This thread keeps subnormal numbers: outward rounding relies on them. Torch tells nobody the setting, so it is tried."""
    flushing = bool((torch.tensor(2.0**-1060, dtype=torch.float64, device="cpu") * 0.5 == 0).item())
    if flushing:
        torch.set_flush_denormal(False)
    threads = torch.get_num_threads() if workers else 1
    if threads > 1:  # workers that began while the setting was on keep it: then this thread works alone
        wide = torch.full((threads << 16,), 2.0**-1060, dtype=torch.float64, device="cpu")
        alone = bool((wide * 0.5 == 0).any())
    else:
        alone = False
    if alone:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if alone:
            torch.set_num_threads(threads)
        if flushing:
            torch.set_flush_denormal(True)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the thread's current GPU: this makes it the one whose tensors are meant."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def pinned(device: torch.device | None = None) -> Iterator[None]:
    """Full float32 precision, no gradients, plain algorithms; every setting is put back.

    Where `device` is a GPU no worker thread computes a bound, and none is tried: that takes longer than a robust network's query.
    """
    workers = device is None or device.type == "cpu"
    global _holders
    with _LOCK:
        if _holders == 0:
            _pin()
        _holders += 1
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), _gradual_underflow(workers):
            yield
    finally:
        with _LOCK:
            _holders -= 1
            if _holders == 0:
                while _restore:
                    _restore.pop()()


def exact_float32() -> bool:
    """Whether this process's float32 products keep 24 bits while pinned."""
    global _probe
    if _probe is None:
        with pinned():
            _probe = _keeps_24_bits()
    return _probe


@cache
def plain_products(device: torch.device) -> bool:
    """Whether this device's own matrix products are sums of rounded products: emulations round to the largest number of a row."""
    with pinned(device):
        made = {}
        for kind, unit in ((torch.float64, 2.0**-52), (torch.float32, 2.0**-23)):
            a, b = (torch.zeros(256, 256, dtype=kind, device=device) for _ in range(2))
            a[:, 0], a[:, 1], b[1] = 2.0**60, 1.0, 1 + unit
            made[kind] = bool((a @ b == b[1]).all())
        return all(made.values())


def _keeps_24_bits() -> bool:
    """Ones just above 1 are multiplied and summed."""
    x = 1 + 2.0**-12
    a = torch.full((256, 256), x, dtype=torch.float32, device="cpu")
    image = torch.full((8, 32, 16, 16), x, dtype=torch.float32, device="cpu").contiguous(memory_format=torch.channels_last)
    w = torch.full((32, 32, 3, 3), x, dtype=torch.float32, device="cpu")
    sums = (
        ((a @ a)[5, 5].item(), 256),
        (F.conv_transpose2d(image, w)[1, 1, 8, 8].item(), 288),
        (F.conv_transpose2d(image, w, stride=2)[1, 1, 8, 8].item(), 128),
    )
    return all(abs(got - n * x * x) <= n * n * 2.0**-24 * x * x for got, n in sums)
