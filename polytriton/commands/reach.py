"""`polytriton reach`: what a network can answer over a box, and a picture of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from polytriton.commands.groups import EngineOptions
from polytriton.commands.options import argument, option
from polytriton.commands.screen import say, table
from polytriton.errors import UsageError
from polytriton.show.words import plural

if TYPE_CHECKING:
    from fractions import Fraction

    import numpy as np

    from polytriton.api import Verifier


def reach(
    network: Annotated[Path, argument(metavar="NET.onnx|NET.poly", help="The network.")],
    prop: Annotated[Path | None, argument(metavar="[PROP.vnnlib]", help="A property: its boxes of inputs are taken.")] = None,
    box: Annotated[
        list[str] | None, option("--box", metavar="LO,HI", help="The inputs' range; repeated, one for every input in their order.")
    ] = None,
    output: Annotated[
        Path | None, option("-o", "--output", metavar="FILE", help="Write the picture (.svg) or all bounds (.json).")
    ] = None,
    planes: Annotated[
        list[str] | None, option("--plane", metavar="I,J", help="Two outputs to bound together and draw, 0,1 by default; may be repeated.")
    ] = None,
    angles: Annotated[int, option("--angles", metavar="N", help="Directions in which each plane is bounded.")] = 32,
    pieces: Annotated[
        int | None, option("--pieces", metavar="N", help="The most parts of the box; by default 64, or 1 where over 16 inputs are free.")
    ] = None,
    timeout: Annotated[float | None, option("--timeout", metavar="S", help="Seconds after which no part is divided any more.")] = None,
    effort: Annotated[str, option("--effort", help="How hard each part is bounded: quick, tight or best.")] = "tight",
    samples: Annotated[int, option("--samples", metavar="N", help="Executions to draw as dots.")] = 400,
    seed: Annotated[int, option("--seed", help="Seed of these.")] = 0,
    as_json: Annotated[bool, option("--json", help="Print all bounds as one JSON document.")] = False,
    overwrite: Annotated[bool, option("--overwrite", help="Replace the file of -o.")] = False,
    *,
    engine: EngineOptions,
) -> int:
    """Enclose the outputs over a box of inputs by pieces: least and greatest outputs are printed, the pieces written."""
    if prop is not None and box:
        raise UsageError(f"the inputs come from --box or from a property, and {prop} is given too", "leave one out")
    if prop is None and not box:
        raise UsageError("the inputs come from a property or from --box", f"polytriton reach {network} --box=0,1")
    chosen = None if planes is None else [_plane(text) for text in planes]
    if output is not None:
        from polytriton.results.reach import saved_kind

        saved_kind(output)  # before the work
    import polytriton
    from polytriton.commands.verify import read_property
    from polytriton.runs.asker import Networks

    net = Networks(engine.options())(network)
    where = read_property(prop, net) if prop is not None else _box(box or [], net)
    found = polytriton.reach(
        net, where, planes=chosen, angles=angles, pieces=pieces, timeout=timeout, effort=effort, samples=samples, seed=seed,
        progress=lambda stage, done, total: say(f"{stage} {done:,} of {total:,}"),
    )  # fmt: skip
    if output is not None:
        found.save(output, overwrite=overwrite)
    if as_json:
        print(found.to_json(), end="")
    else:
        rows = [(k, f"{a:.9g}", f"{b:.9g}") for k, (a, b) in enumerate(zip(found.lo.tolist(), found.hi.tolist(), strict=True))]
        table(["output", "least", "greatest"], rows, right=(0, 1, 2))
    ended = f", ended by {found.ended_by}" * bool(found.ended_by)
    print(f"{network.name}: {plural(len(found.least), 'piece')}, gap {found.gap:.3g}, {found.seconds:.3f} s{ended}", file=sys.stderr)
    return 0


def _plane(text: str) -> tuple[int, int]:
    words = text.split(",")
    if len(words) != 2 or not all(w.strip().isdecimal() for w in words):
        raise UsageError(f"--plane {text[:40]} is no pair of outputs", "give --plane 0,1")
    return int(words[0]), int(words[1])


def _box(texts: list[str], net: Verifier) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    from polytriton.frontend.images import parse_list

    ends: list[tuple[Fraction, ...]] = [parse_list(text) for text in texts]
    if any(len(e) != 2 for e in ends):
        raise UsageError(f"--box {texts[[len(e) != 2 for e in ends].index(True)][:40]} is no range", "give --box=LO,HI")
    if len(ends) not in (1, net.inputs):
        raise UsageError(f"{len(ends)} ranges for {plural(net.inputs, 'input')}", "give --box once for all inputs, or once for each")
    low, high = (np.array([e[k] for e in ends] * (net.inputs if len(ends) == 1 else 1), dtype=object) for k in (0, 1))
    return low, high
