"""What a GPU must have before a query's clock runs: its kernels, compiled once a machine."""

from __future__ import annotations

import time

from polytriton.ir.launches import Kernel
from polytriton.prove.decider import Decider
from polytriton.prove.fleet import Fleet
from polytriton.prove.tight import DENSE
from polytriton.runtime.gpu.ascent_kernels import turn_kernels
from polytriton.runtime.gpu.triton_backend import TritonBackend


def prepare_kernels(decider: Decider) -> float:
    """Compiles what tries and searches launch and nobody has compiled yet, on every device; the seconds that it took."""
    begin = time.monotonic()
    for member in decider.members if isinstance(decider, Fleet) else [decider]:
        if member.device.type == "cuda":
            with member.turn:
                backends_of(member)[0].stock.compile_ahead(kernels_of(member))
    return time.monotonic() - begin


def backends_of(decider: Decider) -> list[TritonBackend]:
    """Of every way to ask."""
    tries = [*decider.tries(patient=False), *decider.tries(patient=True)]
    return [b for how in tries if (b := decider.engine(how).kernels) is not None]


def kernels_of(decider: Decider) -> list[Kernel]:
    """All that tries launch, and a search's turns."""
    net, plan, backends = decider.compiled.net, decider.compiled.plan, backends_of(decider)
    inner = sum(n.size for n in net) <= DENSE  # neurons then get slopes of their own
    targets = [p.target for p in plan if p.kind == "query" or inner]
    found = [k for b in backends for k in b.kernels()]
    return list(dict.fromkeys(found + turn_kernels(net, targets, backends[0].sizes)))
