"""The page of the paper's evaluation: it holds its tables and plots, and in headless Chromium it loads nothing, complains of nothing and
shows them."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bench.paper.ask import Answer
from bench.paper.rows import ROWS
from bench.paper.tables import Measured, page


def measured(key: str, method: str, factor: float) -> Measured:
    answers = [Answer(key, "0" * 64, method, "1/100", k, "unsat" if k % 3 else "unknown", factor * (1 + k), 0.1) for k in range(9)]
    about = {"neurons": 3010, "seen": 640, "accuracy": 0.97, "data": "<b>digits</b>", "sha256": "0" * 64}
    return Measured(ROWS[key], about, method, "1/100", False, answers)


@pytest.fixture
def made() -> str:
    some = [measured(key, m, f) for key in ("mnist-6x500", "resnet18-pgd") for m, f in (("polytriton", 1e-3), ("crown-ibp", 1e-4))]
    return page(some, {"machine": "a <machine>", "device": "cpu"}, {"mnist-convbig": "too large"})


class Seen(HTMLParser):
    """Per section the rows of its tables and its text; tags that close what is not open."""

    VOID = frozenset(("meta", "link", "br", "hr", "img", "input", "wbr", "col"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.rows: Counter[str] = Counter()
        self.tags: Counter[str] = Counter()
        self.words: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    @property
    def section(self) -> str:
        return next((name for _, name in reversed(self.open) if name in ("networks", "small", "big")), "")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs).get("id") or ""))
        if tag == "tr" and "tbody" in (t for t, _ in self.open):
            self.rows[self.section] += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1][0] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words[self.section] = self.words.get(self.section, "") + data


def test_tables_and_plots_are_there(made: str) -> None:
    """Without a browser."""
    seen = Seen(made)
    assert seen.tags["svg"] == 2 and seen.rows["small"] == seen.rows["big"] == 2
    assert "7,291" in seen.words["small"] and "too large" in seen.words["networks"]
    assert "<b>digits</b>" in seen.words["networks"] and seen.tags["b"] == 0, "what comes from outside is text"
    assert "a <machine>" in made.replace("&lt;", "<").replace("&gt;", ">") and seen.tags["machine"] == 0


def test_tables_and_plots_are_seen(chromium: Any, made: str, tmp_path: Path) -> None:
    path = tmp_path / "paper.html"
    path.write_text(made, encoding="utf-8")
    for width in (1200, 380):
        tab = chromium.new_context(viewport={"width": width, "height": 900}).new_page()
        complaints: list[str] = []
        asked: list[str] = []
        tab.on("console", lambda m, to=complaints: to.append(m.text))
        tab.on("pageerror", lambda e, to=complaints: to.append(str(e)))
        tab.on("request", lambda r, to=asked: to.append(r.url))
        tab.goto(path.as_uri())
        assert complaints == [] and [u for u in asked if not u.startswith("data:")] == [path.as_uri()]
        assert tab.locator("svg").count() == 2 and all(tab.locator("svg").nth(k).bounding_box()["height"] > 50 for k in range(2))
        assert tab.locator("#small tbody tr").count() == tab.locator("#big tbody tr").count() == 2
        assert "7,291" in tab.locator("#small").inner_text() and "too large" in tab.locator("#networks").inner_text()
        assert "<b>digits</b>" in tab.locator("#networks").inner_text(), "what comes from outside is text"
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "tables scroll on their own"
