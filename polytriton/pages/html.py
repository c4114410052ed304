"""Small pieces of HTML and SVG. Whatever comes from a record passes `text` on its way into the page."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from html import escape

from polytriton.show.verdicts import look


def text(value: object, most: int = 2000) -> str:
    """Escaped for content and attributes alike; control characters, which could reorder what is read, are made visible."""
    shown = str(value)
    if len(shown) > most:
        shown = shown[:most] + "…"
    return escape("".join(_visible(c) for c in shown), quote=True)


def _visible(c: str) -> str:
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c


def chip(verdict: str) -> str:
    """Records admit no verdict but the known ones, which are names of classes too."""
    return f'<span class="v {text(verdict)}">{words(verdict)}</span>'


def words(verdict: str) -> str:
    """What the term means, and the term beside it: proved unsat."""
    word = look(verdict).word
    return text(verdict) if word in ("", verdict) else f"{word} <small>{text(verdict)}</small>"


def short(value: float | None, digits: int = 4) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}g}".replace("-", "−")


def time(seconds: float) -> str:
    seconds = min(seconds, 1e12)
    if seconds >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
    return f"{seconds * 1000:.3g} ms" if 0 < seconds < 0.1 else f"{seconds:.3g} s"


def count(value: float) -> str:
    return f"{value:,.0f}"


def head(titles: Iterable[str]) -> str:
    return "<thead><tr>" + "".join(f'<th scope="col">{t}</th>' for t in titles) + "</tr></thead>"


def table(label: str, head: str, rows: str, attributes: str = "", long: bool = False) -> str:
    """In a region that scrolls, by its label; a long table does so in a box of its own."""
    css, within = "scroll long" if long else "scroll", f"<table {attributes}>" if attributes else "<table>"
    return f'<div class="{css}" tabindex="0" role="region" aria-label="{label}">{within}{head}<tbody>{rows}</tbody></table></div>'


def figure(caption: str, picture: str, css: str = "") -> str:
    shown = f' class="{css}"' if css else ""
    return f"<figure{shown}><figcaption>{caption}</figcaption>{picture}</figure>"


def plots(figures: Iterable[str]) -> str:
    return f'<div class="plots">{"".join(figures)}</div>'


def lines(pairs: Iterable[tuple[str, str]]) -> str:
    """What things are called, and what they are."""
    return f"<dl>{''.join(f'<div><dt>{a}</dt><dd>{b}</dd></div>' for a, b in pairs)}</dl>"


def circle(x: float, y: float, css: str, tip: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="{css}"><title>{text(tip)}</title></circle>'


def svg(width: float, height: float, label: str, parts: Iterable[str], css: str = "plot") -> str:
    """A picture that says in words what it shows."""
    return (
        f'<svg class="{css}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{text(label)}">'
        f"<title>{text(label)}</title>{''.join(parts)}</svg>"
    )


def rect(x: float, y: float, width: float, height: float, css: str, tip: str = "") -> str:
    inside = f"<title>{text(tip)}</title>" if tip else ""
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}" height="{max(height, 0):.2f}" class="{css}">{inside}</rect>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" class="{css}"/>'


def label(x: float, y: float, words: str, anchor: str = "middle", css: str = "tick") -> str:
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" class="{css}">{text(words)}</text>'


def path(points: Sequence[tuple[float, float]], css: str) -> str:
    d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="{d}" class="{css}"/>'


def polygon(points: Sequence[tuple[float, float]], css: str) -> str:
    return f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" class="{css}"/>'


def dot(x: float, y: float, css: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.2" class="{css}"/>'
