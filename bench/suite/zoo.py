"""The paper's networks, synthetic, end to end: bounds of every ReLU input, nine margins an image; alone and in a batch.

What the GPU's own programme (bench.gpu zoo) measures beside other engines, with the same columns, through the public interface.
"""

from __future__ import annotations

from collections.abc import Iterator

import polytriton
from bench import zoo
from bench.core.measure import Case, PartJob
from bench.core.table import END_TO_END, Row

COLUMNS = END_TO_END
SHOWN = ("network", "kind", "batch", "seconds", "spread", "peak_mb", "worst", "gflop", "of_peak", "note")
BATCH = 8


def groups(quick: bool) -> list[str]:
    """The cheaper kind first."""
    return [f"{n}-{k}" for k in ("robust", "normal") for n in (["mnist-6x500"] if quick else zoo.NETS)]


def split(group: str) -> tuple[str, zoo.Kind]:
    name, _, kind = group.rpartition("-")
    return name, "robust" if kind == "robust" else "normal"


def work(group: str, job: PartJob) -> Iterator[Row]:
    name, kind = split(group)
    eps = zoo.EPS[name, kind]
    net = polytriton.compile(zoo.build(name, kind), **job.options(), check=False)
    case = Case(net, zoo.image(name, count=BATCH), float(eps))
    about: Row = {"network": name, "kind": kind, "eps": str(eps), "weights": "synthetic", "engine": job.engine}
    alone = case.measure(1, job)
    yield {**about, **alone}
    if alone["seconds"] * BATCH < job.budget:
        yield {**about, **case.measure(BATCH, job)}
