"""What a Jupyter notebook shows of results and verifiers: self-contained HTML, every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from polytriton.ir.net import Ref
from polytriton.results import Picture, Result
from polytriton.show.picture import difference, figure, is_picture, plane

if TYPE_CHECKING:
    from polytriton.api import Verifier


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["".join(f"<{tag}>{escape(v)}</{tag}>" for v in row) for tag, row in [("th", head), *(("td", r) for r in rows)]]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def result_html(result: Result) -> str:
    """Verdict, margins and, where the query was a ball around an image, the pictures."""
    facts = [f"margin {result.margin:.6g}", f"semantics {result.semantics}", f"{result.seconds:.3f} s"]
    if result.numerics != "folded":
        facts.insert(2, f"numerics {result.numerics}")
    if result.label is not None:
        facts.insert(0, f"label {result.label}")
    if result.picture is not None:
        facts.insert(0, f"epsilon {result.picture.epsilon}")
    parts = [f"<p><b>{escape(result.verdict)}</b> &middot; {escape(', '.join(facts))}</p>"]
    if result.picture is not None and is_picture(result.picture.pixels.shape):
        parts.append(_images(result, result.picture))
    if result.rivals and len(result.rivals) == len(result.margins):
        parts.append(table(("rival label", "margin"), [(str(k), f"{m:.6g}") for k, m in zip(result.rivals, result.margins, strict=True)]))
    return f"<div>{''.join(parts)}</div>"


def _images(result: Result, clean: Picture) -> str:
    tags = [figure(plane(clean.shown), "image")]
    if result.counterexample is not None:
        found = clean.restored(result.counterexample.x)
        answer = int(np.argmax(result.counterexample.y))
        tags.append(figure(plane(found), f"counterexample: {answer}"))
        change = float(np.abs(found - clean.shown).max(initial=0.0))
        tags.append(figure(difference(clean.shown, found), f"difference, at most {change:.3g}"))
    return f"<p>{''.join(tags)}</p>"


def verifier_html(verifier: Verifier) -> str:
    """The folded network, one line a layer; rows are what bounding a layer takes at most, two a neuron."""
    programs = {p.target: p for p in verifier.compiled.plan if p.kind == "bound"}
    rows = []
    for node in verifier.net:
        program = programs.get(node.name)
        parameters = sum(
            verifier.net.weights[ref.name].size for key, ref in node.attrs.items() if key in ("w", "b", "a", "c") and isinstance(ref, Ref)
        )
        rows.append(
            (
                node.name,
                node.op,
                "x".join(map(str, node.shape)),
                f"{parameters:,}" if parameters else "",
                f"{2 * node.size:,}" if program else "",
            )
        )
    return f"<div><p>{escape(repr(verifier)[1:-1])}</p>{table(('layer', 'operator', 'shape', 'parameters', 'rows'), rows)}</div>"
