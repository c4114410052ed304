"""Records as a run would write them, without running one."""

from __future__ import annotations

import random

import numpy as np

from polytriton.results import LayerStats, Level, Sample, SearchStats
from polytriton.runs.records import Certified, Image, Point, Record
from polytriton.show.pixels import pack

HOSTILE = "<script>alert(1)</script>\"><img src=x onerror=alert(2)>'&amp;\u202e</script><!--]]>"


def stats(scale: int = 1) -> tuple[LayerStats, ...]:
    return (
        LayerStats("y", "interval", rows=9, left=(9, 9), seconds=0.01),
        LayerStats("conv0", "bound", 1024, (100, 100), (0.5, 0.5), 0, (), 0.001),
        LayerStats("conv2", "bound", 256, (80 * scale, 20 * scale), (2.0, 1.0), 100, (60, 10), 0.02 * scale),
        LayerStats("pool", "bound", 64, None, (None, 3.0), 128, (), 0.03),
        LayerStats("y", "query", rows=9, left=(6, 1), seconds=0.02),
    )


def record(k: int, verdict: str = "unsat", **more: object) -> Record:
    given = {
        "network": "nets/a.onnx", "property": f"digits[{k}]", "verdict": verdict, "margin": 0.5 - 0.1 * k, "seconds": 0.1 * (k + 1),
        "key": f"key{k}", "semantics": "float32", "version": "0.1.0", "statistics": stats(), **more,
    }  # fmt: skip
    return Record(**given)  # type: ignore[arg-type]


def searched(k: int, verdict: str = "timeout", ended: str = "time", kind: str = "neurons", rounds: int = 20) -> Record:
    """A search whose every round refutes one part of each depth, and divides another."""
    open_ = int(verdict != "unsat")
    samples = tuple(
        Sample(0.5 * i, 3 * i, 1 + i, i, -2.0 / (i + 1), 1 - 0.5**i if open_ or i < rounds else 1.0) for i in range(rounds + 1)
    )
    levels = tuple(Level(int(d > 0), open_ * (d == rounds)) for d in range(rounds + 1))
    last = samples[-1]
    return record(
        k, verdict, network="nets/s.onnx", property=f"hard_{k}", key=f"s{k}",
        search=SearchStats(kind, last.domains, open_, rounds, last.share, last.worst, last.seconds, ended, samples, levels),
    )  # fmt: skip


def image(k: int, verdict: str, side: int = 6, channels: int = 1) -> Record:
    """A ball around a random image; `sat` comes with a corner of it."""
    pixels = np.random.default_rng(k).random((channels, side, side))
    found = None
    if verdict == "sat":
        found = Point((np.clip(pixels + 0.05, 0, 1).ravel() * 2 - 1).tolist(), [0.1, 0.9, 0.3])
    return record(
        k, verdict, label=0, epsilon="1/20", counterexample=found, margins=[0.25, None, -0.5], rivals=[1, 2, 3],
        image=Image("digits.npz", k, list(pixels.shape), ("1/2",), ("1/2",), ("0", "1"), pack(pixels)),
        radius=Certified("43/1000", "11/250", "unknown", True, 9, 1.5) if verdict == "unsat" else Certified(None, "0", "sat"),
    )  # fmt: skip


def mixed() -> list[Record]:
    verdicts = ["unsat", "sat", "unknown", "unsat", "sat", "timeout"]
    own = [image(k, v) for k, v in enumerate(verdicts)]
    other = [record(k, "unsat", network="nets/b.onnx", property=f"prop_{k}", key=f"b{k}") for k in range(3)]
    return [*own, *other, record(9, "error", margin=None, note="no such file", network="nets/b.onnx", property="prop_10", statistics=())]


def many(count: int) -> list[Record]:
    """A large file, in which every name is hostile."""
    rng = random.Random(0)
    return [
        record(
            k, rng.choice(["unsat", "unsat", "sat", "unknown", "timeout", "error"]), network=f"nets/{k % 7}.onnx",
            property=f"prop_{k} {HOSTILE}", margin=rng.gauss(1, 2), seconds=10 ** rng.uniform(-3, 3), epsilon="8/255",
            note="a remark" if k % 9 == 0 else "",
        )
        for k in range(count)
    ]  # fmt: skip
