"""One query of a small network, and how much of it is numbers: what lies beside them is Python, the same for every query.

    python -m bench.small [--queries 300] [--dtype float32] [--only NET ...] [--csv OUT.csv]

A query bounds four linear forms of the output over one box, by one pass and one thread. `least` and `median` are milliseconds of a query,
watched by nobody; `calls` and `inside` what compiled loops took of a query like it, `beside` what is left of `least`. acasxu is the first
network of the published data, left out without them; the others are random, of the same kind and of 64 neurons a layer.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

import polytriton
from bench.core.command import check_known, parser
from bench.core.machine import describe, found_data
from bench.core.table import Row, Table
from polytriton.heap import keep_memory
from polytriton.ir.net import Builder, Net
from polytriton.runtime.cpu.loops import watch_calls

CHAINS = {"chain-6x50": (5, 50, 50, 50, 50, 50, 50, 5), "chain-2x64": (6, 64, 64, 5)}
NETS = ("acasxu", *CHAINS)
COLUMNS = ("network", "numerics", "candidates", "queries", "least_ms", "median_ms", "calls", "inside_ms", "beside_ms")
RADIUS, WATCHED = 0.05, 50


def main(arguments: Sequence[str] | None = None) -> int:
    p = parser("small", __doc__)
    p.add_argument("--queries", type=int, default=300)
    p.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    p.add_argument("--only", nargs="*", default=list(NETS), metavar="NET")
    p.add_argument("--csv", type=Path)
    a = p.parse_args(arguments)
    check_known(p, "network", a.only, NETS)
    if a.queries < 2:
        p.error("give --queries at least 2")
    keep_memory()  # as the commands do
    given = torch.get_num_threads()
    table = Table(COLUMNS, a.csv, describe(), COLUMNS)
    torch.set_num_threads(1)
    try:
        for name in a.only:
            net = find_net(name)
            if net is None:
                print(f"{name} is left out: set POLYTRITON_DATA to the folder of the published data", file=sys.stderr)
                continue
            for candidates in ("all", "input"):
                about = {"network": name, "numerics": a.dtype, "candidates": candidates, "queries": a.queries}
                table.add(about | measure(net, a.dtype, candidates, a.queries))
    finally:
        torch.set_num_threads(given)
    table.close()
    return 0


def find_net(name: str) -> Net | Path | None:
    """None where the published data are not there."""
    if name in CHAINS:
        return random_chain(CHAINS[name])
    data = found_data()
    return None if data is None else min((data / "nets" / name).glob("*.onnx*"))


def random_chain(sizes: tuple[int, ...]) -> Net:
    rng, b = np.random.default_rng(1), Builder("chain")
    x = b.input((sizes[0],))
    for k, (before, size) in enumerate(pairwise(sizes)):
        x = b.add("relu", (x,)) if k else x
        w, c = rng.standard_normal((size, before)) * np.sqrt(2 / before), 0.1 * rng.standard_normal(size)
        x = b.add("linear", (x,), w=b.constant(w.astype(np.float32)), b=b.constant(c.astype(np.float32)))
    return b.build(x)


def measure(net: Net | Path, dtype: str, candidates: str, queries: int) -> Row:
    if isinstance(net, Net):
        verifier = polytriton.Verifier.from_net(net, semantics="real", dtype=dtype, candidates=candidates)
    else:
        verifier = polytriton.compile(net, semantics="real", dtype=dtype, candidates=candidates, check=False)
    middle = np.random.default_rng(0).uniform(-0.3, 0.3, (1, int(np.prod(verifier.input_shape))))
    lo, hi, outputs = middle - RADIUS, middle + RADIUS, verifier.predict(middle).shape[1]
    forms = (np.eye(outputs)[0] - np.eye(outputs)[1:5])[None]

    def ask() -> float:
        begin = time.perf_counter()
        verifier.margins(lo, hi, forms, effort="quick")
        return 1e3 * (time.perf_counter() - begin)

    for _ in range(3):
        ask()
    took = [ask() for _ in range(queries)]
    inside = []
    with watch_calls() as calls:
        for _ in range(WATCHED):
            before = calls.seconds
            ask()
            inside.append(1e3 * (calls.seconds - before))
    least, within = min(took), min(inside)
    found = {"least_ms": least, "median_ms": statistics.median(took), "inside_ms": within, "beside_ms": least - within}
    return found | {"calls": calls.calls // WATCHED}


if __name__ == "__main__":
    raise SystemExit(main())
