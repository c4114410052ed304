"""What a Jupyter notebook shows of results and verifiers: self-contained HTML, every text escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

import numpy as np

from polytriton.passes.pipeline import Compiled
from polytriton.results import Picture, Result
from polytriton.results.oneline import radius_words
from polytriton.show.picture import difference, figure, is_picture, plane
from polytriton.show.verdicts import look, name_verdict

ROWS = 20  # of a list of results


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
        facts.insert(0, f"epsilon {result.picture.around}")
    if result.radius is not None:
        facts.append(f"radius {radius_words(result.radius)}")
    parts = [f"<p>{chip(result.verdict)} &middot; {escape(', '.join(facts))}</p>"]
    if result.picture is not None and is_picture(result.picture.pixels.shape):
        parts.append(_images(result, result.picture))
    if result.rivals and len(result.rivals) == len(result.margins):
        parts.append(table(("rival label", "margin"), [(str(k), f"{m:.6g}") for k, m in zip(result.rivals, result.margins, strict=True)]))
    return f"<div>{''.join(parts)}</div>"


def chip(verdict: str) -> str:
    """Word and term in the verdict's colour; white on it, which is read on light and dark pages alike."""
    one = look(verdict)
    style = f"background:{one.light};color:#fff;padding:0 .45em;border-radius:3px"
    word = f"{one.sign} {one.word}".strip() if one.word else one.sign
    term = f" <small>{escape(verdict)}</small>" if one.word != verdict else ""
    return f'<b style="{style}">{word}</b>{term}'


def results_html(results: Sequence[Result]) -> str:
    """How many there are of each verdict, and a line for each of the first."""
    counts = Counter(r.verdict for r in results)
    head = " &middot; ".join(f"{n:,} {chip(v)}" for v, n in counts.items())
    columns = ("", "verdict", "label", "epsilon", "margin", "radius", "seconds")
    rows = []
    for k, r in enumerate(results[:ROWS]):
        label = "" if r.label is None else str(r.label)
        epsilon = "" if r.picture is None else r.picture.around
        radius = "" if r.radius is None else radius_words(r.radius)
        rows.append((str(k), name_verdict(r.verdict), label, epsilon, f"{r.margin:.6g}", radius, f"{r.seconds:.3f}"))
    more = f"<p>and {len(results) - ROWS:,} more</p>" if len(results) > ROWS else ""
    return f"<div><p>{head or 'no results'}</p>{table(columns, rows) if rows else ''}{more}</div>"


def _images(result: Result, clean: Picture) -> str:
    tags = [figure(plane(clean.shown), "image")]
    if result.counterexample is not None:
        found = clean.restored(result.counterexample.x)
        answer = int(np.argmax(result.counterexample.y))
        tags.append(figure(plane(found), f"counterexample: {answer}"))
        change = float(np.abs(found - clean.shown).max(initial=0.0))
        tags.append(figure(difference(clean.shown, found), f"difference, at most {change:.3g}"))
    return f"<p>{''.join(tags)}</p>"


def verifier_html(compiled: Compiled, title: str) -> str:
    """The folded network, one line a layer; rows are what bounding a layer takes at most, two a neuron."""
    programs = {p.target for p in compiled.plan if p.kind == "bound"}
    rows = []
    for node in compiled.net:
        parameters, rows_most = compiled.net.parameters(node), 2 * node.size if node.name in programs else 0
        numbers = (f"{n:,}" if n else "" for n in (parameters, rows_most))
        rows.append((node.name, node.op, "x".join(map(str, node.shape)), *numbers))
    return f"<div><p>{escape(title)}</p>{table(('layer', 'operator', 'shape', 'parameters', 'rows'), rows)}</div>"
