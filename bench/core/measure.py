"""Times, memory and counts of one network's margins; what the parts of bench.suite share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from bench import zoo
from bench.core.peak import Peak
from bench.core.table import Row
from polytriton.api import Verifier

COLD = 60.0  # seconds below which a first run, which compiles and fills caches, is never the result: on a busy machine it is slow, too
SHORT = 0.02  # seconds below which a run is repeated within one measurement: a clock and a scheduler blur less


Clock = Literal["wall", "processor"]  # the processor's runs for this process alone, whatever else the machine does, once for each thread


def now_by(clock: Clock) -> float:
    return time.process_time() if clock == "processor" else time.perf_counter()


@dataclass(frozen=True)
class PartJob:
    """How a part runs. `budget`: seconds that the repetitions of one row may take; `conv_gflops`: the rate of `convolution_rate`; `clock`:
    whose seconds all these are."""

    device: str
    threads: int
    quick: bool
    runs: int
    budget: float
    conv_gflops: float = 0.0
    nets: Path | None = None
    clock: Clock = "wall"

    def now(self) -> float:
        return now_by(self.clock)

    def synchronize(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    @property
    def engine(self) -> str:
        """What rows call it."""
        return "torch" if self.device == "cpu" else "kernels"

    def options(self) -> dict[str, Any]:
        """What every network of the suites is compiled with: the fastest sound setting, with one kind of coefficients."""
        return {"device": self.device, "semantics": "real", "dtype": "float32" if self.device == "cpu" else "auto"}


def repeat(run: Callable[[], object], job: PartJob) -> list[float]:
    """Seconds of `job.runs` runs, or of as many as the budget allows; quick ones are averaged over several."""

    def time_runs(times: int) -> float:
        job.synchronize()
        start = job.now()
        for _ in range(times):
            run()
        job.synchronize()
        return (job.now() - start) / times

    begin = job.now()
    probe = time_runs(1)
    each = max(1, min(100, int(SHORT / max(probe, 1e-6))))
    out = [probe] if each == 1 else []
    while len(out) < job.runs and (not out or job.now() - begin + out[-1] * each < job.budget):
        out.append(time_runs(each))
    return out


def summary(times: Sequence[float], share: int = 1) -> Row:
    """Median and spread of one of `share` images."""
    return {"seconds": statistics.median(times) / share, "spread": (max(times) - min(times)) / share, "runs": len(times)}


def convolution_rate(threads: int, clock: Clock = "wall") -> Iterator[Row]:
    """The best float32 transposed convolution of convbig's shapes, GFLOP/s: one row."""
    torch.set_num_threads(threads)
    best = 0.0
    for co, ci, n, k, s, p in ((64, 32, 16, 3, 1, 1), (64, 64, 8, 4, 2, 1), (32, 32, 16, 4, 2, 1)):
        m = torch.randn(64, co, n, n).contiguous(memory_format=torch.channels_last)
        w = torch.randn(co, ci, k, k).contiguous(memory_format=torch.channels_last)
        times = []
        for _ in range(8):
            start = now_by(clock)
            F.conv_transpose2d(m, w, stride=s, padding=p)
            times.append(now_by(clock) - start)
        best = max(best, 2 * 64 * co * n * n * ci * k * k / statistics.median(times[1:]) / 1e9)
    yield {"conv_gflops": best}


class Case:
    """A network, images in [0, 1] with a box around each, and the margins of the class it answers over the others."""

    def __init__(self, net: Verifier, images: np.ndarray, eps: float) -> None:
        self.net = net
        self.x = images.reshape(len(images), -1).astype(np.float64)
        self.lo, self.hi = np.clip(self.x - eps, 0, 1), np.clip(self.x + eps, 0, 1)
        self.forms = zoo.margins_of(net.predict(self.x))

    def worst(self, batch: int) -> float:
        """The least bound of the first `batch` images' margins."""
        return float(self.net.margins(self.lo[:batch], self.hi[:batch], self.forms[:batch], effort="quick").min())

    def measure(self, batch: int, job: PartJob) -> Row:
        """A first run, watched and counted, which also compiles and fills caches; then the timed ones, if it left them time."""
        return {**measure_runs(self.net, lambda: self.worst(batch), batch, job), "batch": batch}


def measure_runs(net: Verifier, run: Callable[[], float], share: int, job: PartJob) -> Row:
    """`run` answers the worst margin of `share` images; counts are those of one run."""
    rows, gflop = 0, 0.0
    engines = net._decider._engines
    before = {key: (e.operations, sum(e.tally.rows.values())) for key, e in engines.items()}
    with Peak(job.device) as watch:
        job.synchronize()
        start = job.now()
        worst = run()
        job.synchronize()
        first = job.now() - start
    for key, e in engines.items():
        ops, made = before.get(key, (0, 0))
        gflop, rows = gflop + (e.operations - ops) / 1e9, rows + sum(e.tally.rows.values()) - made
    warm = first < max(job.budget, COLD)
    times = repeat(run, job) if warm else [first]
    row = summary(times, share) | ({} if warm else {"note": "one run, not warmed up"})
    row |= {"first": first, "worst": worst, "rows": rows, "gflop": gflop, "peak_mb": watch.mb}
    row |= {"numerics": net._decider.first_dtype(), "tflops": gflop / statistics.median(times) / 1e3}
    if job.conv_gflops:
        row["of_peak"] = 1e3 * row["tflops"] / job.conv_gflops
    return row
