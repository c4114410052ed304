"""The page about results: what was asked, distributions, layers, queries, searches, images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polytriton.pages import html, plots
from polytriton.pages.document import document
from polytriton.pages.facts import Facts, Quantiles, RadiusFacts, network_names, number, proved_radius, radius_name, radius_text
from polytriton.pages.facts import title as title_of
from polytriton.pages.gallery import Find, Gallery, gallery
from polytriton.pages.layers import Described, layers
from polytriton.pages.script import SCRIPT
from polytriton.pages.searches import Cards, cards
from polytriton.runs.records import Record
from polytriton.show.verdicts import name_verdict
from polytriton.show.words import decimal_above, decimal_below, plural, share

LONG = 60  # rows above which the table scrolls in a box of its own
SHARES = 8  # radii whose share is told in large figures; a table holds them all
CHARTS = 12  # of sweeps, one a network
STEP = 500  # rows listed at a time: browsers take seconds to lay out ten thousand
MAKER = "polytriton report"


def page(
    records: Sequence[Record],
    found: Facts,
    *,
    title: str | None,
    source: str,
    known: Mapping[str, Described],
    pictures: int,
    find: Find = lambda image: None,
) -> str:
    """`known` describes layers by network path; `find` looks for pixels that records do not hold. Without a title the
    page says what was asked."""
    title = title or title_of(found)
    made, searched = gallery(records, pictures, find), cards(records)
    parts = [("summary", "Summary", _summary(found)), ("plots", "Distributions", _plots(records, found))]
    if any(n.layers for n in found.networks):
        parts.append(("layers", "Layers", "".join(layers(n, known.get(n.path, {})) for n in found.networks)))
    parts.append(("answers", "Queries", _queries(records, found, made, searched)))
    if searched.made:
        parts.append(("searches", "Searches", _searches(searched)))
    if made.cards:
        parts.append(("images", "Images", _images(made)))
    return document(
        MAKER, title, f'<p class="meta">{_settings(found)}</p>', parts, script=SCRIPT, source=source,
        skip='<a class="skip" href="#answers">To the queries</a>',
    )  # fmt: skip


def _settings(found: Facts) -> str:
    words = [f"{found.queries:,} queries", f"{len(found.networks):,} network{'s' * (len(found.networks) > 1)}"]
    words += [f"{key} {', '.join(values)}" for key, values in found.settings.items() if values]
    return " · ".join(html.text(w, 300) for w in words)


# ---- summary ----------------------------------------------------------------------------------------------------


def _accuracy(found: Facts) -> str:
    """Of a run over images what people look for first: which share is right, and proved to stay so."""
    if not found.radii:
        return ""
    names, several = {n.path: n.name for n in found.networks}, len({f.network for f in found.radii}) > 1
    made = []
    for f in found.radii[:SHARES]:
        where = f"{f.verified:,} of {f.images:,} at epsilon {f.name}" + f", {names[f.network]}" * several
        made.append(_figure("unsat", share(f.verified / f.images), "verified accuracy", where))
    if len(found.radii) == 1:
        (f,) = found.radii
        if f.misclassified:
            right = f.images - f.misclassified
            made.append(_figure("", share(right / f.images), "accuracy", f"{right:,} of {f.images:,} as they are"))
        made.append(_figure("sat", share(f.falsified / f.images), "falsified", f"{f.falsified:,} of {f.images:,}"))
        made.append(_figure("unknown", share(f.open / f.images), "open", f"{f.open:,} of {f.images:,}"))
    return f'<ul class="tally" id="accuracy">{"".join(made)}</ul>'


def _figure(css: str, large: str, words: str, small: str) -> str:
    return f'<li class="{css}"><b>{html.text(large)}</b>{html.text(words)}<br><small>{html.text(small, 300)}</small></li>'


def _summary(found: Facts) -> str:
    tally = "".join(
        f'<li class="{html.text(v)}"><b>{html.count(n)}</b>{html.chip(v)}<br><small>{share(n / found.queries)}</small></li>'
        for v, n in found.verdicts.items()
    )
    bars, x = [], 0.0
    for v, n in found.verdicts.items():
        wide = 1000 * n / found.queries
        bars.append(html.rect(x, 0, max(wide - 2, 1), 12, html.text(v), f"{name_verdict(v)}: {n}"))
        x += wide
    said = ", ".join(f"{n} {name_verdict(v)}" for v, n in found.verdicts.items())
    stack = html.svg(1000, 12, said, bars, "stack").replace("<svg ", '<svg preserveAspectRatio="none" ', 1)
    spreads = [
        ("seconds a query", found.seconds), ("worst margin", found.margin), ("certified radius", found.radius),
        ("seconds a search for it", found.radius_seconds),
    ]  # fmt: skip
    rows = "".join(_spread(name, q) for name, q in spreads if q is not None)
    head = html.head(["", "results", "least", "median", "90 %", "most"])
    wrong = f"<p>{plural(found.misclassified, 'image')} misclassified without any change.</p>" if found.misclassified else ""
    of = found.radius_seconds
    searched = "" if of is None else f", {html.time(of.total)} of it for {found.radius_queries:,} queries that searched largest radii"
    total = f"<p>All queries together took {html.time(found.total)}{searched}.</p>"
    limits = ", ".join(f"{html.count(n)} by {html.text(limit)}" for limit, n in found.ended_by.items())
    ended = f"<p>Undecided queries were ended {limits}.</p>" if limits else ""
    networks = _networks(found) if len(found.networks) > 1 else ""
    radii = _radii(found) if found.radii else ""
    return (
        f'{_accuracy(found)}<ul class="tally" id="verdicts">{tally}</ul>{stack}{wrong}{ended}{total}'
        f"{html.table('Quantiles', head, rows)}{radii}{networks}"
    )


def _spread(name: str, q: Quantiles) -> str:
    shown = radius_text if "radius" in name else html.short
    values = "".join(f"<td>{shown(v, 3)}</td>" for v in (q.least, q.median, q.p90, q.most))
    return f'<tr><th scope="row">{name}</th><td>{html.count(q.count)}</td>{values}</tr>'


def _networks(found: Facts) -> str:
    verdicts = list(found.verdicts)
    rows = "".join(
        f'<tr><th scope="row">{html.text(n.name)}</th><td>{html.count(n.queries)}</td>'
        + "".join(f"<td>{html.count(n.verdicts.get(v, 0))}</td>" for v in verdicts)
        + f"<td>{html.time(n.seconds)}</td></tr>"
        for n in found.networks
    )
    head = html.head(["network", "queries", *map(html.words, verdicts), "time"])
    return html.table("Networks", head, rows)


def _radii(found: Facts) -> str:
    names, several = {n.path: n.name for n in found.networks}, len({f.network for f in found.radii}) > 1
    rows = "".join(
        f'<tr><th scope="row">{html.text(f.name)}</th>'
        + (f"<td>{html.text(names[f.network], 300)}</td>" if several else "")
        + "".join(f"<td>{html.count(n)}</td>" for n in (f.images, f.verified, f.falsified, f.open, f.misclassified, f.asked))
        + f"<td>{html.time(f.seconds)}</td></tr>"
        for f in found.radii
    )
    network = ["network"] if several else []
    head = html.head(["epsilon", *network, "images", "verified", "falsified", "open", "misclassified", "asked", "time"])
    return html.table("Radii", head, rows)


def _plots(records: Sequence[Record], found: Facts) -> str:
    made = [("Runtime", "results answered within a time", plots.runtimes(records))]
    if len({(f.norm, f.epsilon) for f in found.radii}) > 1:
        made[:0] = _sweeps(found)
    margins = [r.margin for r in records if r.margin is not None]
    if margins:
        made.append(("Margins", "results by worst margin", plots.margins(margins)))
    if any(r.radius is not None for r in records):
        made.append(("Certified radius", "images proved at a radius", plots.radii(records)))
    return html.plots(html.figure(f"{a} <small>{b}</small>", c) for a, b, c in made)


def _sweeps(found: Facts) -> list[tuple[str, str, str]]:
    """A chart a network and norm: two curves each in the colours of their verdicts, and no chart in which networks had to share them."""
    curves: dict[tuple[str, str], list[RadiusFacts]] = {}
    for f in found.radii:
        curves.setdefault((f.network, f.norm), []).append(f)
    names = {n.path: n.name for n in found.networks}
    shown = [(path, norm, own) for (path, norm), own in curves.items() if len(own) > 1][:CHARTS]
    several = len(curves) > 1
    return [
        ("Verified", " in ".join(["share of the images, by radius", norm][: 1 + bool(norm)]) + f": {html.text(names[path], 80)}" * several,
         plots.sweep(own))
        for path, norm, own in shown
    ]


# ---- queries ----------------------------------------------------------------------------------------------------


def _queries(records: Sequence[Record], found: Facts, made: Gallery, searched: Cards) -> str:
    names = network_names(records)
    place = {path: k for k, path in enumerate(names)}
    shown = {
        "network": len(names) > 1,
        "epsilon": any(r.epsilon for r in records),
        "certified": any(r.radius is not None for r in records),
        "ended by": any(r.ended_by for r in records),
        "note": any(r.note for r in records),
    }
    columns = [("query", ""), ("verdict", ""), ("margin", "n"), ("seconds", "n")]
    columns[:0] = [("network", "")] if shown["network"] else []
    columns += [(name, "n") for name in ("epsilon", "certified") if shown[name]]
    columns += [(name, "") for name in ("ended by", "note") if shown[name]]
    head = "".join(
        f'<th scope="col" aria-sort="none"{" class=" + chr(34) + css + chr(34) if css else ""}><button type="button">{name}</button></th>'
        for name, css in columns
    )
    cards = {**{k: f"s{k}" for k in searched.made}, **{k: f"i{k}" for k in made.cards}}
    rows = "".join(_row(k, r, place[r.network], names[r.network], shown, cards.get(k, "")) for k, r in enumerate(records))
    queries = f'class="queries" id="queries" data-step="{STEP}"'
    return (
        f"{_filters(names, found, [name for name, _ in columns])}"
        f'<p class="note"><span id="shown" role="status">{len(records):,} queries</span></p>'
        f'{html.table("Queries", f"<thead><tr>{head}</tr></thead>", rows, queries, long=len(records) > LONG)}'
        '<p id="none" hidden>No query passes the filters.</p>'
        f"{_more(len(records))}"
    )


def _more(count: int) -> str:
    rest = f"<noscript><p>The first {STEP:,} queries are listed; the others need the page's script.</p></noscript>" if count > STEP else ""
    buttons = '<button type="button">Show more</button> <button type="button">Show all</button>'
    return f'<p id="more" class="more" hidden><span></span> {buttons}</p>{rest}'


def _filters(names: Mapping[str, str], found: Facts, columns: Sequence[str]) -> str:
    """Hidden until the script runs: without it they would do nothing."""
    networks = ""
    if len(names) > 1:
        options = "".join(f'<option value="{k}">{html.text(name)}</option>' for k, name in enumerate(names.values()))
        networks = f'<label>Network<select name="network"><option value="">all</option>{options}</select></label>'
    boxes = "".join(
        f'<label><input type="checkbox" name="verdict" value="{v}" checked> {html.chip(v)}</label>' for v in found.verdicts
    )
    orders = "".join(
        f'<option value="{k} {way}">{name}, {way}</option>' for k, name in enumerate(columns) for way in ("ascending", "descending")
    )
    return (
        f'<form class="filters" id="filters" hidden>{networks}<fieldset><legend>Verdict</legend><div>{boxes}</div></fieldset>'
        '<label>Text<input type="search" name="text" autocomplete="off" placeholder="name or note"></label>'
        f'<label class="sorter">Order<select id="sorter"><option value="">as in the file</option>{orders}</select></label>'
        '<button type="reset">Clear</button></form>'
    )


def _row(k: int, r: Record, network: int, name: str, shown: Mapping[str, bool], card: str) -> str:
    asked = html.text(r.property, 300)
    if card:
        asked = f'<a href="#{card}">{asked}</a>'
    cells = [f'<td class="wide">{html.text(name, 300)}</td>'] if shown["network"] else []
    cells += [f"<td>{asked}</td>", f"<td>{html.chip(r.verdict)}</td>", _number("margin", r.margin, html.short(r.margin, 6))]
    cells.append(_number("seconds", r.seconds, f"{r.seconds:.3f}"))
    if shown["epsilon"]:
        epsilon = number(r.epsilon)
        cells.append(_number("epsilon", epsilon, "" if epsilon is None else html.text(radius_name(r.epsilon or "", r.norm))))
    if shown["certified"]:
        radius = proved_radius(r)
        cells.append(_number("certified", radius, _bracket(r)))
    if shown["ended by"]:
        cells.append(f"<td>{html.text(r.ended_by)}</td>")
    if shown["note"]:
        cells.append(f'<td class="wide">{html.text(r.note, 300)}</td>')
    hidden = " hidden" if k >= STEP else ""
    return f'<tr data-q="{k}" data-n="{network}" data-v="{html.text(r.verdict)}"{hidden}>{"".join(cells)}</tr>'


def _number(name: str, value: object, words: str) -> str:
    if value is None:
        return '<td class="n" data-s=""></td>'
    return f'<td class="n" data-h="{name}" data-s="{float(value):.9g}">{words}</td>'  # type: ignore[arg-type]


def _bracket(r: Record) -> str:
    """The radius that was proved, and how much the search left open."""
    proved = proved_radius(r)
    above = None if r.radius is None else number(r.radius.not_proved)
    if proved is None:
        return ""
    return decimal_below(proved) if above is None else f"{decimal_below(proved)} <small>… {decimal_above(above)}</small>"


def _searches(searched: Cards) -> str:
    left = f' <p class="note">{searched.left_out:,} more searches are not shown.</p>' if searched.left_out else ""
    note = (
        '<p class="note">In a tree every row is a depth, as wide as what of the tree reaches it: green parts are refuted there, amber ones '
        "left, grey ones divided. Numbers are parts refuted and left.</p>"
    )
    return f'{note}{left}<div class="cards">{"".join(searched.made.values())}</div>'


def _images(made: Gallery) -> str:
    left = f' <p class="note">{made.left_out:,} more images are not shown.</p>' if made.left_out else ""
    note = (
        '<p class="note">The ball is shown by its two extreme corners. In a difference red pixels rose, blue ones fell; '
        "colours of the largest change are full.</p>"
    )
    return f'{note}{left}<div class="cards">{"".join(made.cards.values())}</div><p id="nocards" hidden>No image passes the filters.</p>'
