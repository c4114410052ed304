"""The table of a network's layers: what refining them did, and how rows left on their way to the input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polytriton.pages import html
from polytriton.pages.facts import LayerFacts, NetworkFacts


@dataclass(frozen=True)
class ProgramFacts:
    """What an artifact knows of a layer's program: its operator and shape, and the nodes where bounds are taken."""

    about: str
    checkpoints: list[str]


Described = Mapping[tuple[str, str], ProgramFacts]


def layers(network: NetworkFacts, known: Described) -> str:
    """`known` is by (stage, layer): empty without an artifact."""
    asked = max((layer.queries for layer in network.layers), default=0)
    notes = [f"Means over the queries that ran a step, of {html.count(network.queries)}; seconds are sums."]
    if network.direct:
        notes.append(f"{html.count(network.direct)} were decided on interval bounds, without refining a layer.")
    most = max((layer.seconds for layer in network.layers), default=0.0)
    rows = "".join(_row(layer, known.get((layer.stage, layer.name)), most) for layer in network.layers)
    head = html.head(
        [
            "layer", "queries", "neurons", "undecided<br><small>interval → refined</small>",
            "mean width<br><small>interval → refined</small>", "rows left<br><small>at start and after each checkpoint</small>", "seconds",
        ]
    )  # fmt: skip
    if not asked:
        return ""
    name = html.text(network.name)
    table = html.table(f"Layers of {name}", head, rows, 'class="layers"')
    return f'<section class="network"><h3>{name}</h3><p class="note">{" ".join(notes)}</p>{table}</section>'


def _row(layer: LayerFacts, step: ProgramFacts | None, most: float) -> str:
    bound = layer.stage == "bound"
    name = {"interval": "query on interval bounds", "query": "query on refined bounds"}.get(layer.stage, html.text(layer.name))
    about = f"<br><small>{html.text(step.about)}</small>" if step is not None and bound else ""
    named = step.checkpoints if step is not None and len(step.checkpoints) == len(layer.left) else []
    cells = [
        ("queries", html.count(layer.queries)),
        ("neurons", html.count(layer.neurons) if bound else ""),
        ("undecided", _draw_undecided(layer) if bound else ""),
        ("mean width", _width(layer) if bound else ""),
        ("rows left", _rows(layer, named)),
        ("seconds", html.time(layer.seconds) + _share(layer.seconds, most)),
    ]
    shown = "".join(f'<td data-h="{h}">{v}</td>' if v else "<td></td>" for h, v in cells)
    return f'<tr><th scope="row">{name}{about}</th>{shown}</tr>'


def _draw_undecided(layer: LayerFacts) -> str:
    if layer.unstable is None:
        return "<small>read by a max pool</small>"
    before, after = layer.unstable
    scale = 110 / max(layer.neurons, 1)
    parts = [
        html.rect(0, 0, 110, 8, "track"), html.rect(0, 0, before * scale, 8, "bar before"), html.rect(0, 0, after * scale, 8, "bar after")
    ]  # fmt: skip
    said = f"{before:.0f} of {layer.neurons:.0f} undecided before, {after:.0f} after"
    return f"{html.count(before)} → {html.count(after)}{html.svg(110, 8, said, parts, 'inline')}"


def _width(layer: LayerFacts) -> str:
    if layer.width == (None, None):
        return "–"
    before, after = ("infinite" if v is None else html.short(v, 3) for v in layer.width)
    return f"{before} → {after}"


def _rows(layer: LayerFacts, named: list[str]) -> str:
    """Columns as high as the share of rows that is left."""
    if not layer.rows:
        return "<small>no rows</small>"
    values = [layer.rows, *layer.left]
    wide = min(22.0, 150 / len(values))
    parts = []
    for k, v in enumerate(values):
        high = 24 * min(v / layer.rows, 1)
        where = "at the start" if k == 0 else f"after {named[k - 1]}" if named else f"after checkpoint {k}"
        tip = f"{v:,.1f} {where}"
        parts += [html.rect(k * wide, 0, wide - 2, 24, "track", tip), html.rect(k * wide, 24 - high, wide - 2, high, "bar after", tip)]
    said = "rows left: " + ", ".join(f"{v:.0f}" for v in values)
    shown = " → ".join(html.count(v) for v in (values if len(values) <= 4 else [values[0], values[len(values) // 2], values[-1]]))
    dots = " <small>(first, middle, last)</small>" if len(values) > 4 else ""
    return f"{shown}{dots}{html.svg(wide * len(values), 24, said, parts, 'inline tall')}"


def _share(seconds: float, most: float) -> str:
    parts = [html.rect(0, 0, 60, 8, "track"), html.rect(0, 0, 60 * seconds / most if most else 0, 8, "bar before")]
    return html.svg(60, 8, f"{html.time(seconds)} of at most {html.time(most)}", parts, "inline")
