"""What more threads gain: the networks of `bench.cpu`, one image and a batch of eight, by one thread and by several in turns.

    python -m bench.threads [--threads 2] [--rounds 7] [--dtype float32] [--only NET ...] [--nets FOLDER] [--csv OUT.csv]

`alone` and `shared` are medians of the rounds' seconds, `gain` that of their ratios, `gain_lo` and `gain_hi` the quartiles. `apart`: what
as many processes of one thread gain that ask the same at the same time, the most that this machine gives. Whoever begins a round ends the
one before. Margins are compared: `gap` is the largest difference, relative to the largest margin.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import polytriton
from bench.core.children import MeasuringChild
from bench.core.command import check_known, parser
from bench.core.machine import describe
from bench.core.table import Row, Table
from bench.cpu import BATCH, EPS, NETS, folder
from bench.zoo import margins_of
from polytriton.heap import keep_memory

COLUMNS = ("network", "numerics", "batch", "several", "alone", "shared", "gain", "gain_lo", "gain_hi", "apart", "rounds", "gap")
LIMIT = 600.0  # seconds of one answer of another process


def main(arguments: Sequence[str] | None = None) -> int:
    p = parser("threads", __doc__)
    p.add_argument("--threads", type=int, default=2, help="of the side with several (%(default)s)")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    p.add_argument("--only", nargs="*", default=list(NETS), metavar="NET")
    p.add_argument("--nets", type=Path, help="folder of bench.cpu's networks")
    p.add_argument("--csv", type=Path)
    a = p.parse_args(arguments)
    check_known(p, "network", a.only, NETS)
    if a.threads < 2 or a.rounds < 2:
        p.error("give --threads and --rounds at least 2")
    keep_memory()  # as the commands do
    place, given = folder(a.nets), torch.get_num_threads()
    table = Table(COLUMNS, a.csv, {k: v for k, v in describe().items() if k != "threads"}, COLUMNS)
    try:
        for name in a.only:
            image = np.load(place / f"{NETS[name][0]}.npy").reshape(1, -1)
            images = np.concatenate([image, np.random.default_rng(8).random((BATCH - 1, image.shape[1]))])
            for batch in (1, BATCH):
                about = {"network": name, "numerics": a.dtype, "batch": batch, "several": a.threads, "rounds": a.rounds}
                table.add(about | compare(place / f"{name}.onnx", images[:batch], a.dtype, a.threads, a.rounds))
    finally:
        torch.set_num_threads(given)
    table.close()
    return 0


def compare(path: Path, images: np.ndarray, dtype: str, threads: int, rounds: int) -> Row:
    """Each side has a verifier of its own, made and warmed under its threads."""
    sides, margins = dict[int, polytriton.Verifier](), dict[int, np.ndarray]()
    seconds: dict[int, list[float]] = {1: [], threads: []}
    lo, hi = np.clip(images - EPS, 0, 1), np.clip(images + EPS, 0, 1)

    def ask(count: int) -> float:
        torch.set_num_threads(count)
        begin = time.perf_counter()
        margins[count] = sides[count].margins(lo, hi, forms, effort="quick")
        return time.perf_counter() - begin

    for count in seconds:
        torch.set_num_threads(count)
        sides[count] = polytriton.compile(path, semantics="real", dtype=dtype, device="cpu", check=False)
        forms = margins_of(sides[count].predict(images))
        ask(count)
    apart = []
    with _twins(path, dtype, images, lo, hi, forms, threads - 1) as twins, ThreadPoolExecutor(threads) as askers:
        for k in range(rounds):
            for count in sorted(seconds, reverse=bool(k % 2)):
                seconds[count].append(ask(count))
            others = [askers.submit(twin.ask, {"run": True}, LIMIT) for twin in twins]
            took = [ask(1), *(float(other.result()["seconds"]) for other in others)]
            apart.append(sum(seconds[1][-1] / t for t in took))
    ratios = [one / many for one, many in zip(seconds[1], seconds[threads], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    gap = float(np.abs(margins[1] - margins[threads]).max() / np.abs(margins[1]).max())
    alone, shared = (statistics.median(seconds[count]) for count in (1, threads))
    gains = {"gain": middle, "gain_lo": low, "gain_hi": high, "apart": statistics.median(apart)}
    return {"alone": alone, "shared": shared, "gap": gap, **gains}


@contextmanager
def _twins(
    path: Path, dtype: str, images: np.ndarray, lo: np.ndarray, hi: np.ndarray, forms: np.ndarray, count: int
) -> Iterator[list[MeasuringChild]]:
    """Processes of one thread that have answered the same question once."""
    with TemporaryDirectory() as place, ExitStack() as stack:
        boxes = Path(place) / "boxes.npz"
        np.savez(boxes, x=images, lo=lo, hi=hi, forms=forms)
        about = {"net": str(path), "boxes": str(boxes), "dtype": dtype, "device": "cpu", "candidates": "all"}
        twins = [stack.enter_context(MeasuringChild("bench.compare.side", ["polytriton"], threads=1)) for _ in range(count)]
        for twin in twins:
            for question in (about, {"run": True}):
                if "error" in (answer := twin.ask(question, LIMIT)):
                    raise RuntimeError(f"{path.name} in another process: {answer['error']}")
        yield twins


if __name__ == "__main__":
    raise SystemExit(main())
