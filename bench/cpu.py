"""Speed and memory on the CPU: three synthetic networks with goals, median of five, float32 coefficients, real semantics.

    python -m bench.cpu [--nets FOLDER] [--threads 1] [--runs 5] [--out FOLDER]

is `python -m bench.suite goals`. FOLDER holds fc6x500.onnx, resnet_small.onnx and convbig.onnx with mnist_x.npy and cifar_x.npy, as
`python -m bench.nets.goals` writes them (done first where no folder is named). Seconds, peak memory over the process's base, operations
counted by the Plan for the rows that ran, and `of_peak`, their rate as a fraction of this machine's own float32 convolution rate
measured in the same run. Goals are for one thread and one image, alone; a batch of eight follows.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import polytriton
from bench.core.measure import Case, PartJob
from bench.core.table import END_TO_END, Row
from bench.nets import goals

NETS = {"fc6x500": ("mnist_x", 0.06), "resnet_small": ("cifar_x", 0.1), "convbig": ("cifar_x", 1.0)}
COLUMNS = END_TO_END
SHOWN = ("network", "batch", "seconds", "spread", "goal", "of_goal", "peak_mb", "worst", "gflop", "of_peak", "note")
BATCH = 8
EPS = 1 / 255


def groups(quick: bool) -> list[str]:
    return list(NETS)[: 2 if quick else None]


def folder(given: Path | None) -> Path:
    """Where the networks are; they are written there first if nobody named a folder."""
    if given is not None:
        if missing := [n for n in NETS if not (given / f"{n}.onnx").exists()]:
            raise SystemExit(f"no {missing[0]}.onnx in {given}: python -m bench.nets.goals {given} writes it")
        return given
    made = Path(tempfile.gettempdir()) / "polytriton-goal-nets"
    if not all((made / f"{name}.npy").exists() for name in goals.INPUTS):  # the last files that are written
        goals.write(made)
    return made


def work(name: str, job: PartJob) -> Iterator[Row]:
    place = folder(job.nets)
    image, goal = NETS[name]
    net = polytriton.compile(place / f"{name}.onnx", **job.options(), check=False)
    x = np.load(place / f"{image}.npy").reshape(1, -1)
    case = Case(net, np.concatenate([x, np.random.default_rng(8).random((BATCH - 1, x.shape[1]))]), EPS)
    about: Row = {"network": name, "kind": "normal", "eps": "1/255", "weights": "synthetic", "engine": job.engine}
    alone = {**about, "batch": 1, **case.measure(1, job)}
    if job.device == "cpu" and job.threads == 1:
        alone |= {"goal": goal, "of_goal": alone["seconds"] / goal}
    yield alone
    yield {**about, "batch": BATCH, **case.measure(BATCH, job)}


if __name__ == "__main__":
    from bench.suite.__main__ import main

    raise SystemExit(main(["goals", *sys.argv[1:]]))
