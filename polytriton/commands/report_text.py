"""The same facts as compact tables in a terminal."""

from __future__ import annotations

import sys
from typing import TextIO

from polytriton.commands.image_table import show_radii
from polytriton.commands.screen import seconds, table
from polytriton.pages.facts import Facts, LayerFacts, NetworkFacts, radius_text


def show(found: Facts, file: TextIO | None = None) -> None:
    out = file or sys.stdout
    if len(found.networks) > 1:
        verdicts = list(found.verdicts)
        rows = [[n.name, n.queries, *(n.verdicts.get(v, 0) for v in verdicts), f"{n.seconds:.3f}"] for n in found.networks]
        table(["network", "queries", *verdicts, "seconds"], rows, file=out, right=range(1, len(verdicts) + 3))
        print(file=out)
    spreads = [(name, q) for name, q in (("seconds", found.seconds), ("margin", found.margin), ("radius", found.radius)) if q is not None]
    if spreads:
        rows = [
            [name, q.count, *(radius_text(v) if name == "radius" else f"{v:.4g}" for v in (q.least, q.median, q.p90, q.most))]
            for name, q in spreads
        ]
        table(["", "results", "least", "median", "90 %", "most"], rows, file=out, right=range(1, 6))
        print(file=out)
    if found.radii:
        show_radii(found.radii, {n.path: n.name for n in found.networks}, out)
    for network in found.networks:
        if network.layers:
            _layers(network, out)
    print(total(found), file=out)


def _layers(network: NetworkFacts, out: TextIO) -> None:
    print(f"{network.name}: means over the queries that ran each step", file=out)
    rows = [
        [
            title(layer), layer.queries, f"{layer.neurons:.0f}" if layer.stage == "bound" else "",
            arrow(layer.unstable, ".0f"), arrow(layer.width, ".3g"),
            " > ".join(f"{v:.0f}" for v in (layer.rows, *layer.left)), f"{layer.seconds:.3f}",
        ]
        for layer in network.layers
    ]  # fmt: skip
    table(["layer", "queries", "neurons", "undecided", "mean width", "rows left", "seconds"], rows, file=out, right=(1, 2, 6))
    print(file=out)


def title(layer: LayerFacts) -> str:
    return {"interval": "query, interval bounds", "query": "query"}.get(layer.stage, layer.name)


def arrow(pair: tuple[float | None, float | None] | None, form: str) -> str:
    """Before and after refining."""
    if pair is None or pair == (None, None):
        return ""
    return " to ".join("infinite" if v is None else format(v, form) for v in pair)


def total(found: Facts) -> str:
    verdicts = ", ".join(f"{n} {v}" for v, n in found.verdicts.items())
    wrong = f"; {found.misclassified} misclassified" if found.misclassified else ""
    limits = ", ".join(f"{n} by {limit}" for limit, n in found.ended_by.items())
    ended = f"; ended {limits}" if limits else ""
    of = found.radius_seconds
    searched = "" if of is None else f", {seconds(of.total)} of it for {found.radius_queries} queries of radii"
    return f"{found.queries} queries: {verdicts}{wrong}{ended}; {seconds(found.total)}{searched}"

