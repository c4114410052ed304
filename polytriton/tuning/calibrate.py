"""Measures what this CPU takes for the counts that predicted times are made of: `polytriton tune --calibrate`."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable

import torch

from polytriton.ir.plan import Axis, Window
from polytriton.runtime.config import GATHER, LIBRARY, PLANAR, PLANES, SHIFTS, Config
from polytriton.runtime.cpu.torch_backend import ConvShape, Frame, Rows, TorchBackend
from polytriton.tuned import device_name
from polytriton.tuning.cpu_cost import features, fit
from polytriton.tuning.device import TYPICAL, Cpu
from polytriton.tuning.space import Conv, conv_key

# channels, operand's channels, kernel, stride, window: small and large, wide and narrow, none of them the bench's held-out layer
SHAPES = (
    (16, 16, 3, 1, 14), (48, 24, 3, 1, 8), (96, 64, 3, 1, 8), (24, 3, 3, 1, 24), (16, 1, 5, 1, 12), (32, 4, 4, 2, 8),
    (16, 32, 4, 2, 5), (64, 48, 4, 2, 6), (24, 24, 4, 2, 12), (64, 64, 1, 1, 8), (128, 64, 3, 2, 4), (20, 8, 3, 1, 5),
)  # fmt: skip
VALUES = (1 << 18, 1 << 21)  # coefficients of the operand: within a cache, and beyond it
TAPS = (1 << 16, 1 << 19)


def shape(channels: int, inputs: int, kernel: int, stride: int, window: int) -> Conv:
    """A convolution whose window grows by its whole kernel."""
    out = (window - 1) * stride + kernel
    key = conv_key((window, window, channels), (channels, inputs, kernel, kernel), (stride, stride), 1)
    return Conv(key, (window, window), (out, out), channels, inputs, (kernel, kernel), (stride, stride), (1, 1), 1)


def seconds(work: Callable[[], object], runs: int = 5, least: float = 0.002) -> float:
    """The least of a few runs on one thread, each repeated until it takes a while; what others do meanwhile does not count."""
    work()
    start = time.thread_time()
    work()
    times = max(1, int(least / max(1e-6, time.thread_time() - start)))
    found = []
    for _ in range(runs):
        start = time.thread_time()
        for _ in range(times):
            work()
        found.append((time.thread_time() - start) / times)
    return min(found)


def measure(conv: Conv, form: str, rows: int, config: Config, threads: int = 1) -> float | None:
    """Seconds of one call; None where this machine has no such form."""
    backend = TorchBackend(torch.device("cpu"), threads, config)
    (h, w), (kh, kw) = conv.window, conv.kernel
    generator = torch.Generator().manual_seed(rows)
    m = torch.randn(rows, h, w, conv.channels, generator=generator)
    weight = torch.randn(conv.channels, conv.inputs, kh, kw, generator=generator).contiguous(memory_format=torch.channels_last)
    source = Window(Axis(h, 1, 0), Axis(w, 1, 0))
    window = Window(Axis(conv.out[0], conv.stride[0], 0), Axis(conv.out[1], conv.stride[1], 0))
    asked = ConvShape(conv.kernel, conv.stride, conv.dilation, (0, 0, 0, 0), conv.groups, source)
    if backend.form(m, weight, asked) != form:
        return None
    return seconds(lambda: backend.conv(m, weight, asked, window))


def calibrate() -> Cpu:
    """One thread's table: about a minute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return _calibrate()
    finally:
        torch.set_num_threads(threads)


def _calibrate() -> Cpu:
    forms: dict[str, list[float]] = {}
    peak = 0.0
    for form in (LIBRARY, PLANAR, SHIFTS, PLANES, GATHER):
        samples = []
        for given in SHAPES:
            conv = shape(*given)
            for rows, taps in _settings(conv, form):
                config = Config(convs={conv.key: form}, taps=taps)
                took = measure(conv, form, rows, config)
                if took is not None:
                    samples.append((features(conv, form, rows, config, TYPICAL), took))
                    peak = max(peak, rows * conv.ops / took)
        forms[form] = fit(samples) if samples else TYPICAL.forms[form]
    passes = fit(list(_passes()))
    return Cpu(f"measured on {device_name('cpu')}, {platform.system()}, torch {torch.__version__}", peak, forms, passes)


def _settings(conv: Conv, form: str) -> Iterable[tuple[int, int]]:
    for values in VALUES:
        rows = max(1, values // (conv.window[0] * conv.window[1] * conv.channels))
        for taps in TAPS if form not in (LIBRARY, PLANAR) else TAPS[:1]:
            yield rows, taps


def _passes() -> Iterable[tuple[list[float], float]]:
    """A ReLU with the scalars behind it: its values, those far away, and the call."""
    backend = TorchBackend(torch.device("cpu"))
    for rows, cells in ((4, 64), (64, 256), (256, 1024), (64, 32768)):
        frame = Frame(1, 1, cells, (0, 0, 0, 0))
        zero = torch.zeros(rows, dtype=torch.int64)
        scalar = torch.zeros(rows, dtype=torch.float64)
        made = Rows(zero, zero, zero, scalar, scalar, zero)
        window = Window(Axis(1, 0, 0), Axis(1, 0, 0))
        m, table = torch.randn(rows, 1, 1, cells), torch.rand(1, 1, 1, cells)
        place = frame.place(made, window)
        values = float(rows * cells)
        took = seconds(lambda m=m, place=place, table=table: backend.concretize(m, place, table, table))  # type: ignore[misc]
        yield [values, values if 4 * values > TYPICAL.cache else 0.0, 1], took
