"""What each effort of `margins` costs, and what it gains: random balls around digits, one of each effort by turns.

    python -m bench.effort [--runs 7] [--epsilon 0.05] [NET.onnx ...]

By default the networks of examples/. Every line: medians of the seconds, their ratio to quick, and the means of the worst margins.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import polytriton
from bench.core.command import parser
from bench.zoo import margins_of
from polytriton.heap import keep_memory
from polytriton.prove.effort import EFFORTS

NETS = sorted(Path("examples").glob("digits_*.onnx"))


def main(arguments: Sequence[str] | None = None) -> int:
    p = parser("effort", __doc__)
    p.add_argument("nets", nargs="*", type=Path, default=NETS, metavar="NET.onnx")
    p.add_argument("--runs", type=int, default=7, help="images, each asked once with every effort (%(default)s)")
    p.add_argument("--epsilon", type=float, default=0.05)
    a = p.parse_args(arguments)
    keep_memory()  # as the commands do
    print(f"{'network':28}" + "".join(f"{e + ' s':>12}{'ratio':>8}{'margin':>10}" for e in EFFORTS))
    for path in a.nets:
        seconds, margins = compare(path, a.runs, a.epsilon)
        first = statistics.median(seconds["quick"])
        cells = (
            f"{statistics.median(seconds[e]):12.4f}{statistics.median(seconds[e]) / first:8.2f}{np.mean(margins[e]):10.4f}" for e in EFFORTS
        )
        print(f"{path.name:28}" + "".join(cells), flush=True)
    return 0


def compare(path: Path, runs: int, epsilon: float) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """By effort: seconds, and the worst margin of each image."""
    net = polytriton.compile(path, check=False)
    images = np.load("examples/digits.npz")["images"].astype(np.float64).reshape(-1, net.inputs)[: runs + 1]
    seconds: dict[str, list[float]] = {e: [] for e in EFFORTS}
    margins: dict[str, list[float]] = {e: [] for e in EFFORTS}
    for k, x in enumerate(images):
        (forms,) = margins_of(net.predict(x[None]))
        lo, hi = np.clip(x - epsilon, 0, 1), np.clip(x + epsilon, 0, 1)
        for effort in EFFORTS:
            start = time.perf_counter()
            worst = float(net.margins(lo, hi, forms, effort=effort).min())
            if k:  # the first image fills caches
                seconds[effort].append(time.perf_counter() - start)
                margins[effort].append(worst)
    return seconds, margins


if __name__ == "__main__":
    raise SystemExit(main())
