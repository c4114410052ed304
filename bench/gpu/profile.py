"""Where one run of a network goes: on the device by kernel family, on the host by function.

A row for the whole (`run`: its wall time, how long the device worked, launches), one for each family that took over a hundredth of the
device's time, and one for each of the host's functions that took over a fiftieth of the host's. The device's times are those of torch's
profiler, which slows the host; wall time and the host's are of runs without it.
"""

from __future__ import annotations

import cProfile
import pstats
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator

import torch

from bench.core.table import Row, first_line
from bench.gpu import zoo
from bench.gpu.setting import Setting, is_lost

COLUMNS = SHOWN = ("network", "kind", "numerics", "batch", "where", "what", "count", "microseconds", "share", "note")
NETWORKS = ("mnist-6x500-normal", "mnist-convbig-robust", "cifar-convlarge-robust", "resnet18-robust")
LEAST = 20.0
RUNS = 20
FAMILY, HOST = 0.01, 0.02  # shares that are told
_DIGEST = re.compile(r"_[0-9a-f]{8,}$")


def groups(dry: bool) -> list[str]:
    return ["tiny-normal"] if dry else list(NETWORKS)


def work(group: str, setting: Setting) -> Iterator[Row]:
    problem = zoo.problem_of(group, setting)
    for numerics in filter(setting.wants, ("float64", "tf32x3")):
        made = zoo.Ours(problem, "kernels", numerics, setting)
        for batch in (1, 2 if setting.dry else zoo.BATCH):
            if setting.left < 0:
                return
            about: Row = {"network": problem.name, "kind": problem.kind, "numerics": numerics, "batch": batch}
            try:
                for row in profile(made, batch, setting):
                    yield {**about, **row}
            except Exception as error:
                if is_lost(error):
                    raise
                yield {**about, "note": first_line(error)}


def profile(made: zoo.Ours, batch: int, setting: Setting) -> Iterator[Row]:
    made.prepare(batch)
    for _ in range(2 if setting.dry else zoo.SETTLED):
        made.run()
    runs = 1 if setting.dry or batch > 1 else RUNS
    wall = statistics.median(zoo.time_run(made.run, setting)[0] for _ in range(max(runs, 3)))
    families = {} if setting.dry else device_times(made, runs, setting)
    busy, launches = (sum(v[k] for v in families.values()) for k in (0, 1))
    yield {"where": "run", "what": "wall", "count": runs, "microseconds": 1e6 * wall, "share": 1.0}
    yield {"where": "run", "what": "device", "count": launches, "microseconds": 1e6 * busy, "share": busy / wall}
    for family, (seconds, count) in sorted(families.items(), key=lambda f: -f[1][0]):
        if seconds > FAMILY * busy:
            yield {"where": "device", "what": family, "count": count, "microseconds": 1e6 * seconds, "share": seconds / busy}
    yield from host_times(made, runs)


def device_times(made: zoo.Ours, runs: int, setting: Setting) -> dict[str, tuple[float, int]]:
    """By family, seconds and launches of one run."""
    found = defaultdict[str, list[float]](list)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as told:
        for _ in range(runs):
            made.run()
        setting.synchronize()
    for event in told.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[_DIGEST.sub("", event.name)[:60]].append(event.device_time * 1e-6)
    return {family: (sum(some) / runs, round(len(some) / runs)) for family, some in found.items()}


def host_times(made: zoo.Ours, runs: int) -> Iterator[Row]:
    """Time in a function itself, of one run."""
    watched = cProfile.Profile()
    watched.enable()
    for _ in range(runs):
        made.run()
    watched.disable()
    told = pstats.Stats(watched).stats  # type: ignore[attr-defined]
    every = sum(own for _, _, own, _, _ in told.values())
    for (file, line, name), (_, count, own, _, _) in sorted(told.items(), key=lambda s: -s[1][2]):
        if own < HOST * every:
            return
        where = name if file == "~" else f"{'/'.join(file.split('/')[-2:])}:{line} {name}"
        yield {"where": "host", "what": where[:60], "count": round(count / runs), "microseconds": 1e6 * own / runs, "share": own / every}
