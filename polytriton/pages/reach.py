"""A picture of a reachable set in two outputs: a file of its own, light and dark by the reader's setting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polytriton.errors import UsageError
from polytriton.guard import guard
from polytriton.pages import html, plots
from polytriton.results.reach import Plane, Reach
from polytriton.show.words import plural

STYLE = """<style>
svg { background: #fff; color-scheme: light dark; font-family: system-ui, sans-serif; }
.set { fill: #a9c3e2; stroke: #2a64a8; stroke-width: .5; stroke-linejoin: round; } .dot { fill: #1d2126; }
.tick, .name { fill: #5b6470; font-size: 12px; } .grid { stroke: #dcdfe3; } .axis { stroke: #5b6470; }
@media (prefers-color-scheme: dark) {
  svg { background: #1c2025; } .set { fill: #3d5f88; stroke: #7fb0ea; } .dot { fill: #e6e8eb; }
  .tick, .name { fill: #a0a8b2; } .grid { stroke: #343a42; } .axis { stroke: #a0a8b2; }
}
</style>"""


@guard
def draw_reach(reach: Reach, planes: Sequence[Plane]) -> str:
    """SVG: the pieces in each plane, over one another in one frame, and the samples as dots."""
    if not planes:
        raise UsageError("a picture needs two outputs", "name them: planes=[(0, 1)]")
    shapes = [p for plane in planes for p in reach.polygons(plane)]
    dots = np.concatenate([reach.samples[:, list(plane)] for plane in planes])
    seen = np.concatenate([*shapes, dots])
    if not len(seen):
        raise UsageError("no piece has bounds on all sides: there is nothing to draw", "bound a smaller box")
    x, y = (_limits(seen[:, k]) for k in (0, 1))
    axes = plots.Axes(x, y)
    first = planes[0]
    name = f"output {first[0]} (across), output {first[1]} (up)" + f", and {plural(len(planes) - 1, 'plane')} more" * (len(planes) > 1)
    across, up = ([(v, html.short(v, 3)) for v in plots.nice(*ends)] for ends in (x, y))
    parts = [STYLE, *axes.frame(across, up, name)]
    parts += [html.polygon([axes.place(a, b) for a, b in shape.tolist()], "set") for shape in shapes]
    parts += [html.dot(*axes.place(a, b), "dot") for a, b in dots.tolist()]
    missing = len(reach.least) * len(planes) - len(shapes)
    said = (
        f"Outputs {first[0]} and {first[1]} of {reach.network} over a box, enclosed by {plural(len(shapes), 'piece')}; "
        f"{plural(len(reach.samples), 'execution')} as dots." + f" {plural(missing, 'piece')} without an end: not drawn." * (missing > 0)
    )
    return html.svg(plots.W, plots.H, said, parts).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Both ends, and a little room."""
    lo, hi = float(values.min()), float(values.max())
    room = 0.04 * (hi - lo) or 0.5 * max(abs(lo), 1e-6)
    return lo - room, hi + room
