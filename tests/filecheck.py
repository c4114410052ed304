"""CHECK lines against text, as compiler tests use them.

    CHECK: text        a later line contains it
    CHECK-NEXT: text   the next line contains it
    CHECK-NOT: text    no line before the next match (or the end) contains it

`{{...}}` is a regular expression, runs of blanks count as one, and lines without CHECK are comments.
"""

from __future__ import annotations

import re

_CHECK = re.compile(r"\s*(?://\s*)?CHECK(-NEXT|-NOT)?:\s*(.*?)\s*$")


def _pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"\{\{(.*?)\}\}", re.sub(r"\s+", " ", text))
    return re.compile("".join(p if i % 2 else re.escape(p) for i, p in enumerate(parts)))


def filecheck(text: str, checks: str) -> None:
    """Raises AssertionError at the first CHECK line that does not hold."""
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    found = [m for m in map(_CHECK.match, checks.splitlines()) if m]
    if not found:
        raise AssertionError("no CHECK lines")
    at = 0  # the first line that is still free
    never: list[tuple[str, re.Pattern[str]]] = []

    def refuse(end: int) -> None:
        for what, pattern in never:
            for line in lines[at:end]:
                if pattern.search(line):
                    raise AssertionError(f"CHECK-NOT: {what}\nfound in: {line}\n--- text ---\n{text}")
        never.clear()

    for m in found:
        kind, what = m[1], m[2]
        pattern = _pattern(what)
        if kind == "-NOT":
            never.append((what, pattern))
            continue
        candidates = range(at, min(at + 1, len(lines)) if kind == "-NEXT" else len(lines))
        hit = next((i for i in candidates if pattern.search(lines[i])), None)
        if hit is None:
            near = lines[at] if at < len(lines) else "the end"
            raise AssertionError(f"CHECK{kind or ''}: {what}\nnot found from: {near}\n--- text ---\n{text}")
        refuse(hit)
        at = hit + 1
    refuse(len(lines))
