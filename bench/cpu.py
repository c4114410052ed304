"""Speed and memory on the CPU: three synthetic networks, one thread, median of five, float32 coefficients, real semantics.

    python -m bench.cpu [--nets FOLDER] [--threads 1] [--runs 5] [--csv OUT.csv]

FOLDER holds what ../shared/peers/make_nets.py writes (made there when absent). Prints seconds, peak memory over the
process's base, operations counted by the Plan for the rows that ran, and their rate as a fraction of this machine's own
float32 convolution rate measured in the same run. The last column is a batch of eight images over eight times one image.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

NETS = (("fc6x500", "mnist_x", 0.06), ("resnet_small", "cifar_x", 0.1), ("convbig", "cifar_x", 1.0))


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--nets", type=Path)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--csv", type=Path)
    p.add_argument("--only", help="measure one network in this process (used by the script itself)")
    a = p.parse_args()
    folder = a.nets or _make_nets()
    if a.only:
        print(_measure(folder, a.only, a.threads, a.runs))
        return 0
    from bench.machine import describe

    rate = _convolution_rate(a.threads)
    print(f"{describe()['machine']}; {a.threads} thread(s); float32 convolution {rate:.0f} GFLOP/s")
    heads = ("seconds", "spread", "goal", "MB", "worst margin", "GFLOP", "GFLOP/s", "of conv", "8 images/8x")
    print(f"{'network':<14}" + "".join(f"{h:>13}" for h in heads))
    rows = []
    for name, _, goal in NETS:
        command = [
            sys.executable,
            "-m",
            "bench.cpu",
            "--nets",
            str(folder),
            "--only",
            name,
            "--threads",
            str(a.threads),
            "--runs",
            str(a.runs),
        ]
        env = {**os.environ, "OMP_NUM_THREADS": str(a.threads), "MKL_NUM_THREADS": str(a.threads)}
        text = subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout.strip().splitlines()[-1]
        seconds, spread, mb, worst, gflop, eight = (float(v) for v in text.split(","))
        cells = (seconds, spread, goal, mb, worst, gflop, gflop / seconds, gflop / seconds / rate, eight / seconds / 8)
        print(f"{name:<14}" + "".join(f"{c:>13.3f}" for c in cells), flush=True)
        rows.append(
            {
                "network": name,
                "seconds": seconds,
                "spread": spread,
                "goal": goal,
                "peak_mb": mb,
                "worst": worst,
                "gflop": gflop,
                "conv_gflops": rate,
                "eight_images_s": eight,
                **describe(),
            }
        )
    if a.csv:
        with a.csv.open("w", newline="") as f:
            w = csv.DictWriter(f, list(rows[0]))
            w.writeheader()
            w.writerows(rows)
    return 0


def _make_nets() -> Path:
    from bench.machine import ROOT

    script = ROOT.parent / "shared" / "peers" / "make_nets.py"
    if not script.exists():
        raise SystemExit("no networks: give --nets FOLDER (written by shared/peers/make_nets.py)")
    folder = Path(tempfile.gettempdir()) / "polytriton-bench-nets"
    if not (folder / "convbig.onnx").exists():
        subprocess.run([sys.executable, str(script), str(folder)], check=True)
    return folder


def _convolution_rate(threads: int) -> float:
    """The best float32 transposed convolution of convbig's shapes, GFLOP/s."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    best = 0.0
    for co, ci, n, k, s, p in ((64, 32, 16, 3, 1, 1), (64, 64, 8, 4, 2, 1), (32, 32, 16, 4, 2, 1)):
        m = torch.randn(64, co, n, n).contiguous(memory_format=torch.channels_last)
        w = torch.randn(co, ci, k, k).contiguous(memory_format=torch.channels_last)
        times = _times(lambda m=m, w=w, s=s, p=p: F.conv_transpose2d(m, w, stride=s, padding=p), 7)  # type: ignore[misc]
        best = max(best, 2 * 64 * co * n * n * ci * k * k / statistics.median(times) / 1e9)
    return best


def _times(f: Callable[[], object], runs: int) -> list[float]:
    f()
    out = []
    for _ in range(runs):
        start = time.perf_counter()
        f()
        out.append(time.perf_counter() - start)
    return out


def _resident() -> float:
    return (
        int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
        if Path("/proc/self/statm").exists()
        else 0.0
    )


class _Peak(threading.Thread):
    """The largest resident set while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.stop = _resident(), False

    def run(self) -> None:
        while not self.stop:
            self.peak = max(self.peak, _resident())
            time.sleep(0.002)


def _measure(folder: Path, name: str, threads: int, runs: int) -> str:
    import numpy as np
    import torch

    import polytriton
    from polytriton.ir import interp
    from polytriton.runtime.engine import Tally
    from polytriton.verifier import Try

    torch.set_num_threads(threads)
    image = next(x for n, x, _ in NETS if n == name)
    net = polytriton.compile(folder / f"{name}.onnx", semantics="real", dtype="float32", check=False)
    x = np.load(folder / f"{image}.npy").astype(np.float64).reshape(1, -1)
    label = int(interp.run(net.net, x)[0].argmax())
    forms = np.array([[(i == label) - (i == j) for i in range(10)] for j in range(10) if j != label], dtype=float)
    lo, hi = np.clip(x - 1 / 255, 0, 1), np.clip(x + 1 / 255, 0, 1)
    base = _resident()
    watch = _Peak()
    watch.start()
    net.margins(lo, hi, forms)  # apart from the timed runs: sampling the memory takes time from them
    watch.stop = True
    watch.join()
    times = _times(lambda: net.margins(lo, hi, forms), runs)
    engine = net._decider.engine(Try("float32", "all"))
    engine.tally = Tally()
    worst = float(net.margins(lo, hi, forms).min())
    gflop = engine.tally.ops / 1e9
    rng = np.random.default_rng(8)
    many = np.concatenate([x, rng.random((7, x.shape[1]))])
    eight = _times(lambda: net.margins(np.clip(many - 1 / 255, 0, 1), np.clip(many + 1 / 255, 0, 1), forms), max(1, runs // 2))
    return f"{statistics.median(times)},{max(times) - min(times)},{watch.peak - base},{worst},{gflop},{statistics.median(eight)}"


if __name__ == "__main__":
    raise SystemExit(main())
