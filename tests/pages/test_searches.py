"""Pictures of searches: what the cards of a page say and draw of samples and trees."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polytriton.pages import searches
from polytriton.results import Level, Sample, SearchStats
from polytriton.runs.records import Record
from tests.pages.made import HOSTILE, mixed, searched
from tests.pages.test_browser import Seen, wrote
from tests.pages.test_page import checked, made


def stats(r: Record) -> SearchStats:
    assert r.search is not None
    return r.search


def rects(drawn: str) -> list[tuple[float, float, float, str, str]]:
    """x, y, width, kind and words of every bar."""
    found = re.findall(r'<rect x="([-\d.]+)" y="([-\d.]+)" width="([\d.]+)" height="[\d.]+" class="([a-z ]+)"><title>(.*?)</title>', drawn)
    return [(float(x), float(y), float(w), css, words) for x, y, w, css, words in found]


def test_a_page_shows_searches_and_links_to_them() -> None:
    reader = checked(made([*mixed(), searched(20), searched(21, "unsat", "")]))
    for words in ("Searches", "hard_20", "hard_21", "signs of neurons", "every part was proved", "its time was over"):
        assert words in reader.said
    links = {v for tag, name, v in reader.attributes if (tag, name) == ("a", "href")}
    assert {"#s10", "#s11", "#i0"} <= links


def test_records_without_a_course_have_no_picture() -> None:
    old = searched(0)
    for search in (None, replace(stats(old), samples=(), levels=())):
        assert "Searches" not in checked(made([msgspec.structs.replace(old, search=search)])).said
    bare = msgspec.structs.replace(old, search=replace(stats(old), levels=()))
    assert "Tree:" not in checked(made([bare])).said


def test_a_tree_is_as_wide_as_what_reaches_each_depth() -> None:
    levels = (Level(0, 0), Level(1, 0), Level(0, 1), Level(2, 0))
    drawn = rects(searches.tree(SearchStats("input", 7, 1, 3, 0.75, -1.0, 1.0, "time", (), levels)))
    whole = drawn[0][2]
    by_row: dict[float, list[tuple[float, float, float, str, str]]] = {}
    for bar in drawn:
        by_row.setdefault(bar[1], []).append(bar)
    reached = [max(w for *_, w, _, _ in row) / whole for row in by_row.values()]
    assert reached == pytest.approx([1.0, 1.0, 0.5, 0.25], abs=1e-3)
    refuted = [next(w for _, _, w, css, _ in row if css == "bar unsat") / whole for row in by_row.values()]
    left = [next(w for _, _, w, css, _ in row if css == "bar unknown") / whole for row in by_row.values()]
    assert refuted == pytest.approx([0.0, 0.5, 0.0, 0.25], abs=1e-3) and left == pytest.approx([0.0, 0.0, 0.25, 0.0], abs=1e-3)
    assert [words for *_, words in drawn if "refuted" in words][3] == "depth 3: 2 refuted"


def test_numbers_beside_a_tree_fit_into_the_picture() -> None:
    for levels in ((Level(1, 0), Level(3, 2)), (Level(123_456_789, 0), Level(1_234_567_890, 98_765_432))):
        drawn = searches.tree(replace(stats(searched(0)), levels=levels))
        ends = [float(x) + 7 * len(w) for x, w in re.findall(r'<text x="([-\d.]+)"[^>]*text-anchor="start" class="tick">([^<]*)<', drawn)]
        bars = [x + w for x, _, w, _, _ in rects(drawn)]
        starts = [float(x) for x in re.findall(r'<text x="([-\d.]+)"[^>]*text-anchor="start"', drawn)]
        assert max(ends) <= searches.plots.W and max(bars) < min(starts) and max(bars) > 200


def test_a_deep_tree_tells_several_depths_a_row() -> None:
    s = replace(stats(searched(0)), levels=tuple(Level(3, 1) for _ in range(100)))
    drawn = [words for *_, words in rects(searches.tree(s)) if "refuted" in words]
    assert len(drawn) <= searches.ROWS and drawn[0] == "depths 0 to 2: 9 refuted" and drawn[-1] == "depths 99 to 99: 3 refuted"


@pytest.mark.parametrize(
    ("ended", "kind", "words"),
    [("", "input", "every part was proved"), ("sat", "neurons", "a counterexample"), ("rounding", "input", "no number divides"),
     ("steps", "slopes", "slopes were chosen"), ("steps", "neurons", "no neuron to divide"), ("a later word", "input", "a later word")],
)  # fmt: skip
def test_why_a_search_ended(ended: str, kind: str, words: str) -> None:
    assert words in searches.reason(stats(searched(0, ended=ended, kind=kind)))


def test_a_search_out_of_time_says_whether_its_share_grew() -> None:
    def of(*shares: float) -> str:
        samples = tuple(Sample(float(k), k, 1, k, -1.0, v) for k, v in enumerate(shares))
        return searches.reason(SearchStats("input", 5, 1, 4, shares[-1], -1.0, 4.0, "time", samples))

    assert "grew by 30.0 points" in of(0.1, 0.2, 0.3, 0.4, 0.6)
    assert "stood still" in of(0.1, 0.5, 0.6, 0.6, 0.6)
    assert of(0.6) == "its time was over"


def test_what_a_file_says_is_text_and_numbers_stay_in_the_picture() -> None:
    wild = tuple(Sample(v, -3, 10**18, 5, b, s) for v, b, s in ((5.0, -1e300, 9.0), (-1e308, 5e-324, -4.0), (1e308, None, 0.5)))
    s = replace(stats(searched(0)), kind=HOSTILE, ended=HOSTILE, samples=wild, levels=tuple(Level(10**30, -(10**30)) for _ in range(3000)))
    text = made([msgspec.structs.replace(searched(0), search=s)])
    assert "<script>alert(1)</script>" in checked(text).said
    numbers = [float(v) for d in re.findall(r'<path d="M([^"]*)"', text) for v in re.findall(r"-?[\d.]+", d)]
    assert numbers and all(0 <= v <= 500 for v in numbers)


def test_the_undecided_are_shown_first_where_not_all_fit() -> None:
    many = [searched(k, "unsat", "") for k in range(searches.CARDS)] + [searched(k, "unknown") for k in range(100, 105)]
    found = searches.cards(many)
    assert len(found.made) == searches.CARDS and found.left_out == 5
    assert set(range(searches.CARDS, searches.CARDS + 5)) <= set(found.made)


def test_filters_hide_searches(chromium: Any, tmp_path: Path) -> None:
    path = wrote(tmp_path / "r.html", [*mixed(), searched(20), searched(21, "unsat", "")])
    seen = Seen(chromium, path)
    assert seen.tab.locator("#searches article:visible").count() == 2
    for plot in seen.tab.locator("#searches svg.plot").all():
        assert plot.bounding_box()["width"] > 200
    seen.tab.get_by_label("proved unsat", exact=True).uncheck()
    seen.expect("6 of 12")
    assert seen.tab.locator("#searches article:visible").count() == 1
    seen.clean(path)
    seen.context.close()
