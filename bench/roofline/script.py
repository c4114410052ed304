"""What a run launches beside its programs (ir/script.py), by the model: boxes, tables, and rows of neurons that begin and end."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, prod

from bench.roofline.sums import Sum
from polytriton.ir.launches import Launch
from polytriton.ir.net import Net, Node
from polytriton.ir.plan import extent
from polytriton.ir.script import RunScript, ScriptEntry
from polytriton.kernels.cell_kernels import TABLES
from polytriton.tuning.device import Gpu

BOXES = ("low", "high", "magnitude", "own", "first", "centre", "spread")  # float64 numbers, one a cell
ONCE = ("play", "ahead", "close")


def add_script(script: RunScript, net: Net, batch: int, word: int, gpu: Gpu, to: Sum, both: Collection[str]) -> None:
    """The launches of one refinement, as they are listed; `both`: layers whose neurons get rows of the other sign, too.

    An affine layer takes what its three products in float64 take, tiles and all, every other launch what it reads and writes.
    """
    target = ""
    for entry in script.sections["refine"]:
        target = entry.target or target
        if entry.launch is None or not (entry.verb in ONCE or (entry.verb == "second" and target in both)):
            continue
        if entry.launch.is_idle(batch):
            continue
        moved = _traffic(entry, net, batch, word)
        times = {"memory": moved / gpu.bandwidth}
        ops = tiles = 0.0
        if entry.launch.function.startswith("forward_"):
            programs, tiles, ops = _products(entry.launch, net, batch)
            waves = programs / gpu.sms
            times["arithmetic"] = tiles * ceil(waves) / waves / gpu.rates["DMMA"]
        limit = max(times, key=lambda name: times[name])
        to.add(times[limit], limit, ops=ops, tiles=tiles, moved=moved)


def _traffic(entry: ScriptEntry, net: Net, batch: int, word: int) -> float:
    """Bytes of its cells, each once, and of a layer's weights. A layer's sums have no name of their own: they are as large as its
    magnitude.
    """
    assert entry.launch is not None
    named = [symbol.partition(":") for symbol in entry.launch.bind]
    summed = next((net.node(name).size for kind, _, name in named if kind == "magnitude"), 0)
    moved = 0.0
    for kind, _, name in named:
        if kind in ("w", "wabs"):
            moved += 8.0 * _weights(net, net.node(name))
        elif kind in BOXES:
            moved += 8.0 * batch * (net.node(name).size if name else summed)
        elif kind in TABLES and kind not in ("floor", "underflow"):
            moved += float(word) * batch * net.node(name).size
    return moved


def _products(launch: Launch, net: Net, batch: int) -> tuple[int, float, float]:
    """Programs of an affine layer's kernel, the operations of their three products, and those that count."""
    sizes = {name: value for name, value in launch.kernel.constants if isinstance(value, int)}
    node = next(net.node(s.partition(":")[2]) for s in launch.bind if s.startswith("w:"))
    terms = _weights(net, node) // node.shape[0]
    programs = prod(launch.grid(batch))
    tiles = 6.0 * programs * sizes["BM"] * sizes["BN"] * ceil(terms / sizes["BK"]) * sizes["BK"]
    return programs, tiles, 6.0 * batch * prod(extent(node)) * terms


def _weights(net: Net, node: Node) -> int:
    weight = net.weight(node, "w")
    assert weight is not None
    return int(weight.size)
