"""Many images of one network, each decided once: the distribution of runtimes, as the paper's appendix plots it.

Zoo networks answer random images of their size at the radius of the paper's table; real ones answer the image instances of the data.
No falsifier runs, and what is proved early leaves early, as in a user's run. The first image is decided once more beforehand,
untimed. A network gets three times --budget seconds, and as many images as fit (one at least).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import polytriton
from bench import zoo
from bench.core.machine import data_folder, found_data
from bench.core.measure import PartJob
from bench.core.table import NETWORK, Row, read_rows
from bench.suite.zoo import split

COLUMNS = (*NETWORK, "image", "seconds", "verdict", "margin", "note")
SHOWN = ("network", "kind", "image", "seconds", "verdict", "margin", "note")
IMAGES, QUICK = 100, 5


def instances(data: Path) -> dict[str, list[dict[str, str]]]:
    """Image instances by network."""
    rows = sorted(read_rows(data / "image_instances.csv"), key=lambda r: r["net"])
    return {Path(net).stem: list(some) for net, some in groupby(rows, key=lambda r: r["net"])}


def groups(quick: bool) -> list[str]:
    """The zoo, and the data's networks where there is data."""
    data = found_data()
    real = list(instances(data)) if data else []
    return ["mnist-6x500-robust", *real[:1]] if quick else [*(f"{n}-{k}" for k in ("robust", "normal") for n in zoo.NETS), *real]


def work(group: str, job: PartJob) -> Iterator[Row]:
    name, kind = split(group)
    if name in zoo.NETS:
        net = polytriton.compile(zoo.build(name, kind), **job.options(), check=False)
        eps = zoo.EPS[name, kind]
        about: Row = {"network": name, "kind": kind, "eps": str(eps), "weights": "synthetic"}
        asked: list[dict[str, Any]] = [{"x": x, "epsilon": eps, "clip": (0, 1)} for x in zoo.image(name, count=IMAGES)]
    else:
        data = data_folder()
        rows = instances(data)[group]
        net = polytriton.compile(data / rows[0]["net"], **job.options(), check=False)
        about = {"network": group, "eps": rows[0]["eps"], "weights": "published"}
        pixels = {r["images"]: np.load(data / r["images"])["images"] for r in rows}
        asked = [
            {
                "x": pixels[r["images"]][int(r["index"])], "epsilon": r["eps"], "label": int(r["label"]), "clip": (0, 1),
                "mean": r["mean"].split(), "std": r["std"].split(),
            }
            for r in rows
        ]  # fmt: skip
    about |= {"engine": job.engine, "numerics": net._decider.first_dtype(), "batch": 1}
    timeout = 2 * job.budget
    net.verify(**asked[0], falsifier=False, timeout=timeout)
    begin = job.now()
    for k, question in enumerate(asked[: QUICK if job.quick else IMAGES]):
        job.synchronize()
        start = job.now()
        r = net.verify(**question, falsifier=False, timeout=timeout)
        job.synchronize()
        yield {**about, "image": k, "seconds": job.now() - start, "verdict": r.verdict, "margin": r.margin}
        if job.now() - begin > 3 * job.budget:
            return
