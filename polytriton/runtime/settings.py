"""The process's torch settings: held while polytriton computes (guard.py), put back afterwards, and tested rather than trusted.

A user may have asked torch for "fast float32" (TF32, bf16), deterministic algorithms or gradients. None of it may reach a
certificate, and nothing of theirs may change. Settings are process-wide, so concurrent callers share one pin. An
environment variable can lower the precision of oneDNN beneath torch's own switches: `exact_float32` multiplies and looks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.overrides
from torch import Tensor

from polytriton.errors import Spoiled
from polytriton.guard import FACTOR, RIGHT, TRIED, plain

APART = 512  # values between those that tell a worker's arithmetic: subnormal numbers are slow
LOAD = Path("/proc/loadavg")
BLAS = 256  # rows of a product that numpy divides among its workers
_LOCK = threading.Lock()
_holders = 0
_restore: list[Callable[[], None]] = []
_probe: bool | None = None


class _Tried(threading.local):
    """Whether this thread's workers have been tried by whom it is inside of."""

    inside = False


_TRIED = _Tried()


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
    dtype = torch.get_default_dtype()
    if dtype != torch.float32:
        torch.set_default_dtype(torch.float32)
        _restore.append(lambda: torch.set_default_dtype(dtype))


@contextmanager
def _process() -> Iterator[None]:
    """What is one for all threads, pinned by the first who comes and put back by the last who goes."""
    global _holders
    with _LOCK:
        if _holders == 0:
            try:
                _pin()
            except BaseException:
                _put_back()
                raise
        _holders += 1
    try:
        yield
    finally:
        with _LOCK:
            _holders -= 1
            if _holders == 0:
                _put_back()


def _put_back() -> None:
    while _restore:
        _restore.pop()()


@contextmanager
def hold_settings() -> Iterator[None]:
    """Full float32 precision, no gradients, plain algorithms, tensors on the CPU and in float32 where nothing else is asked for."""
    with _process(), _thread():
        _check_blas(os.getpid())
        yield


@contextmanager
def _thread() -> Iterator[None]:
    """What is this thread's own: gradients, automatic types, and what stands between it and torch's functions (a default device does)."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for _ in torch.overrides._get_current_function_mode_stack():
            stack.enter_context(torch.overrides._pop_mode_temporarily())
        yield


@cache
def _check_blas(process: int) -> None:
    """Numpy's worker threads began when it was imported, and keep the arithmetic of that moment: their products are tried once."""
    diagonal = np.resize(np.array(TRIED), BLAS)
    product = np.ascontiguousarray((np.diag(diagonal) @ np.diag(np.full(BLAS, FACTOR))).diagonal())
    if not np.array_equal(product.view(np.int64), np.resize(np.frombuffer(RIGHT, np.int64), BLAS)):
        raise Spoiled(
            "numpy's worker threads round in another direction than to nearest, or flush subnormal numbers to zero",
            "import numpy before the library that changes this, or set OPENBLAS_NUM_THREADS=1",
        )


@cache
def _probe_numbers(threads: int) -> tuple[Tensor, Tensor]:
    """Numbers for so many workers, each of whom meets some that tell how it rounds, and the bits of their products."""
    size = threads << 16
    given, right = np.ones(size), np.full(size, FACTOR)
    at = (np.arange(0, size, APART)[:, None] + np.arange(len(TRIED))).ravel()
    given[at], right[at] = np.resize(np.array(TRIED), len(at)), np.resize(np.frombuffer(RIGHT), len(at))
    return torch.from_numpy(given), torch.from_numpy(right.view(np.int64))


@contextmanager
def _workers() -> Iterator[None]:
    """Torch's worker threads keep the arithmetic in which they began: where that is another, this thread works alone."""
    threads = torch.get_num_threads()
    if threads == 1 or _TRIED.inside:
        yield
        return
    given, right = _probe_numbers(threads)
    alone = not torch.equal((given * FACTOR).view(torch.int64), right)
    if alone:
        torch.set_num_threads(1)
    _TRIED.inside = True
    try:
        yield
    finally:
        _TRIED.inside = False
        if alone:
            torch.set_num_threads(threads)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the thread's current GPU: this makes it the one whose tensors are meant."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def pin_settings(device: torch.device | None = None) -> Iterator[None]:
    """Plain arithmetic and the settings above, also for torch's workers; every setting is put back.

    Where `device` is a GPU no worker thread computes a bound, and none is tried: that takes longer than a robust network's query.
    """
    workers = device is None or device.type == "cpu"
    with plain(), _thread(), _workers() if workers else nullcontext():
        yield


def exact_float32() -> bool:
    """Whether this process's float32 products keep 24 bits while pinned."""
    global _probe
    if _probe is None:
        with pin_settings():
            _probe = _keeps_24_bits()
    return _probe


@cache
def plain_products(device: torch.device) -> bool:
    """Whether this device's own matrix products are sums of rounded products: emulations round to the largest number of a row."""
    with pin_settings(device):
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


@contextmanager
def threads(most: int) -> Iterator[None]:
    """At most so many of torch's threads."""
    given = torch.get_num_threads()
    if most >= given:
        yield
        return
    torch.set_num_threads(most)
    try:
        yield
    finally:
        torch.set_num_threads(given)


class _Own(threading.local):
    """How many threads may work for this one while torch works alone; 0 where it does not."""

    count = 0


_OWN = _Own()


def allowed_threads() -> int:
    """How many threads may share this one's work: as many as torch has, or had before `own_threads`."""
    return _OWN.count or torch.get_num_threads()


@contextmanager
def own_threads() -> Iterator[None]:
    """Torch works alone, and its threads' share of the processors is for whoever shares out work himself (`allowed_threads`). Torch's own
    threads spin where they wait for its next operation: beside another program a query of a residual network took ten times as long.
    """
    given, before = torch.get_num_threads(), _OWN.count
    with threads(1):
        _OWN.count = before if given == 1 else given
        try:
            yield
        finally:
            _OWN.count = before


def idle_processors(looks: int = 3, apart: float = 0.001) -> int:
    """Processors of this machine that nobody else is using: the least of a few looks. All of them where the system does not tell."""
    count = os.cpu_count() or 1
    try:
        seen = []
        for k in range(looks):
            time.sleep(apart * (k > 0))
            seen.append(int(LOAD.read_text().split()[3].partition("/")[0]) - 1)  # that runs or could; one of them asks
    except (OSError, ValueError, IndexError):
        return count
    return max(1, count - max(seen))
