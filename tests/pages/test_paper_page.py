"""The page of the paper's evaluation in headless Chromium: it loads nothing, complains of nothing, and its tables and plots are seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.paper.ask import Answer
from bench.paper.rows import ROWS
from bench.paper.tables import Measured, page


def measured(key: str, method: str, factor: float) -> Measured:
    answers = [Answer(key, "0" * 64, method, "1/100", k, "unsat" if k % 3 else "unknown", factor * (1 + k), 0.1) for k in range(9)]
    about = {"neurons": 3010, "seen": 640, "accuracy": 0.97, "data": "<b>digits</b>", "sha256": "0" * 64}
    return Measured(ROWS[key], about, method, "1/100", False, answers)


def test_tables_and_plots_are_seen(chromium: Any, tmp_path: Path) -> None:
    some = [measured(key, m, f) for key in ("mnist-6x500", "resnet18-pgd") for m, f in (("polytriton", 1e-3), ("crown-ibp", 1e-4))]
    path = tmp_path / "paper.html"
    path.write_text(page(some, {"machine": "a <machine>", "device": "cpu"}, {"mnist-convbig": "too large"}), encoding="utf-8")
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
