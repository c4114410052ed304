"""What tuning must show, on this machine: ranks of predicted times, and how good the default is.

    python -m bench.tuning rank                      the cost model on layers that calibration never saw
    python -m bench.tuning default NET.poly [...]    the default against the best of at least 60 sampled configurations

`rank` calibrates first (or takes the kept table with --kept), times every form of a held-out layer in many settings and prints
Spearman's correlation of predicted and measured times. `default` runs a session of at most --budget with --trials configurations and
ends with a line that says pass or FAIL, which its exit code repeats.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.core.command import parser
from bench.core.table import read_rows

HELD_OUT = (32, 32, 4, 2, 6)  # convbig's second convolution seen from the third's neurons
MORE = ((64, 32, 3, 1, 16), (32, 3, 3, 1, 32), (64, 64, 4, 2, 8))
GOAL = 0.6
SAMPLED, WITHIN, FASTER = 60, 0.10, 1.3
MET = ("not met", "met")


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation; equal values share their mean rank."""
    ranks = [_ranks(np.asarray(v, dtype=float)) for v in (a, b)]
    x, y = (r - r.mean() for r in ranks)
    size = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum() / size) if size else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def rank(kept: bool) -> int:
    import torch

    from polytriton.runtime.config import GATHER, LIBRARY, PLANAR, PLANES, SHIFTS, Config
    from polytriton.tuning.calibrate import calibrate, measure, shape
    from polytriton.tuning.cpu_cost import conv_cost
    from polytriton.tuning.device import this_cpu

    torch.set_num_threads(1)
    cpu = this_cpu() if kept else calibrate()
    print(f"rates: {cpu.source}")
    worst = 1.0
    for given in (HELD_OUT, *MORE):
        conv = shape(*given)
        predicted, took = [], []
        for form in (LIBRARY, PLANAR, SHIFTS, PLANES, GATHER):
            for rows in (8, 43, 150):
                for taps in (1 << 16, 1 << 18, 1 << 20):
                    if form in (LIBRARY, PLANAR) and taps != 1 << 16:
                        continue
                    config = Config(convs={conv.key: form}, taps=taps)
                    with torch.inference_mode():
                        seconds = measure(conv, form, rows, config)
                    if seconds is not None:
                        predicted.append(conv_cost(conv, form, rows, config, cpu).seconds / rows)
                        took.append(seconds / rows)
        found = spearman(predicted, took)
        off = max(max(p / t, t / p) for p, t in zip(predicted, took, strict=True))
        print(f"{conv.key:<28} {len(took):3d} configurations, Spearman {found:.3f} (goal {GOAL}), at most {off:.2f} times off", flush=True)
        worst = min(worst, found)
    return 0 if worst >= GOAL else 1


def default(network: Path, budget: str, trials: int, more: list[str]) -> int:
    folder = network.with_name(network.name + ".tune")
    command = [sys.executable, "-m", "polytriton.cli", "tune", str(network), "--budget", budget, "--overwrite", "--json", *more]
    if trials:
        command += ["--trials", str(trials)]
    began = time.monotonic()
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    took = time.monotonic() - began
    if ran.returncode:
        return ran.returncode
    text, met = verdict(json.loads(ran.stdout), folder / "trials.csv")
    print(f"session: {took:.0f} s on {network}")
    print(text)
    return 0 if met else 1


def verdict(result: dict[str, Any], trials: Path) -> tuple[str, bool]:
    """What a session showed, in words: its winner, the best of all trials, beside the default, both timed in turns at its end.

    Trials are minutes apart, in which a machine may come to be a tenth faster or slower: turns count, single trials are only told.
    A trial counts where its configuration was timed and nothing speaks against it; one that was given up as slower was timed too.
    """
    rows = [r for r in read_rows(trials) if float(r["median_s"]) > 0 and r["verdict"] in ("ok", "slower")]
    times = [float(r["median_s"]) for r in rows]
    sampled, speedup = len({r["key"] for r in rows}), float(result["speedup"] or 1.0)  # none where no winner was found beyond noise
    behind = max(0.0, speedup - 1)
    faster, enough = speedup >= FASTER, sampled >= SAMPLED
    close = enough and behind <= WITHIN
    within, enough_said = f"within {100 * WITHIN:.0f} % of the best of at least {SAMPLED}", MET[close] if enough else "not met, too few"
    figures = f"default {times[0]:.4g} s at the start, best {min(times):.4g} s, median {median(times):.4g} s"
    lines = [
        f"configurations sampled: {sampled} distinct ones timed; {figures}",
        f"winner over the default, timed in turns in one run: {speedup:.3f} times faster (goal {FASTER}: {MET[faster]})",
        f"default behind the best of these {sampled}, in the same turns: {100 * behind:.1f} % (goal {within}: {enough_said})",
        f"{'pass' if faster or close else 'FAIL'}: {FASTER} times faster, or the default {within} configurations",
    ]
    return "\n".join(lines), faster or close


def main() -> int:
    p = parser("tuning", __doc__)
    sub = p.add_subparsers(dest="what", required=True)
    sub.add_parser("rank").add_argument("--kept", action="store_true", help="take the table that `tune --calibrate` kept")
    d = sub.add_parser("default")
    d.add_argument("network", type=Path)
    d.add_argument("--budget", default="5m")
    d.add_argument("--trials", type=int, default=0)
    a, more = p.parse_known_args()
    if more and a.what != "default":
        p.error(f"unrecognized arguments: {' '.join(more)}")
    if a.what == "rank":
        return rank(a.kept)
    return default(a.network, a.budget, a.trials, more)


if __name__ == "__main__":
    raise SystemExit(main())
