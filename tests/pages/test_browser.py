"""The page in headless Chromium: it loads nothing, logs nothing, filters, sorts, fits a phone and a sheet of paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polytriton.pages.facts import facts
from polytriton.pages.page import STEP, page
from polytriton.runs.records import Record
from tests.pages.made import HOSTILE, image, many, mixed, record


class Seen:
    """One page open in a browser, with all it asked for and all it complained about."""

    def __init__(self, browser: Any, path: Path, width: int = 1200, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.tab = self.context.new_page()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.tab.on("request", lambda r: self.asked.append(r.url))
        self.tab.on("console", lambda m: self.complaints.append(m.text))
        self.tab.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.tab.on("dialog", lambda d: (self.complaints.append(f"dialog {d.message}"), d.dismiss()))
        self.tab.goto(path.as_uri())
        self.tab.wait_for_selector("#filters:not([hidden])")

    def clean(self, path: Path) -> None:
        assert self.complaints == []
        assert [u for u in self.asked if not u.startswith("data:")] == [path.as_uri()]

    def rows(self) -> list[str]:
        """Names of the queries that are listed, in their order."""
        return self.tab.eval_on_selector_all(
            "#queries tbody tr:not([hidden])", "rows => rows.map(r => r.querySelector('a, td').textContent)"
        )

    def names(self) -> list[str]:
        return self.tab.eval_on_selector_all(
            "#queries tbody tr:not([hidden])", "rows => rows.map(r => r.cells[r.cells.length > 6 ? 1 : 0].textContent)"
        )

    def expect(self, words: str) -> None:
        self.tab.locator("#shown", has_text=re.compile(f"^{words}")).wait_for(timeout=30_000)


def wrote(path: Path, records: list[Record]) -> Path:
    path.write_text(page(records, facts(records), title="Results", source="made by a test", known={}, pictures=50), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wrote(tmp_path_factory.mktemp("page") / "report.html", mixed())


@pytest.fixture
def seen(chromium: Any, file: Path) -> Iterator[Seen]:
    made = Seen(chromium, file)
    yield made
    made.clean(file)
    made.context.close()


def test_it_opens_from_disk_and_shows_everything(seen: Seen) -> None:
    assert seen.tab.title() == "Results"
    assert len(seen.names()) == 10
    assert seen.tab.locator("svg.plot").count() == 3
    for plot in seen.tab.locator("svg.plot").all():
        box = plot.bounding_box()
        assert box["width"] > 200 and box["height"] > 100
    pictures = seen.tab.eval_on_selector_all("img", "all => all.map(i => [i.complete, i.naturalWidth])")
    assert pictures and all(complete and width in (6, 12) for complete, width in pictures)


def test_filters(seen: Seen) -> None:
    seen.tab.locator("[name=network]").select_option(label="b.onnx")
    seen.expect("4 of 10")
    assert seen.names() == ["prop_0", "prop_1", "prop_2", "prop_10"]
    assert seen.tab.locator("article:visible").count() == 0
    assert seen.tab.locator("#nocards").is_visible()
    seen.tab.locator("[name=network]").select_option(label="all")
    seen.tab.get_by_label("proved unsat", exact=True).uncheck()
    seen.tab.get_by_label("error", exact=True).uncheck()
    seen.expect("4 of 10")
    assert seen.names() == ["digits[1]", "digits[2]", "digits[4]", "digits[5]"]
    assert seen.tab.locator("article:visible").count() == 4
    seen.tab.get_by_label("Text").fill("DIGITS[4]")
    seen.expect("1 of 10")
    seen.tab.get_by_label("Text").fill("nothing like it")
    seen.expect("0 of 10")
    assert seen.tab.locator("#none").is_visible()
    seen.tab.get_by_role("button", name="Clear").click()
    seen.expect("10 of 10")
    assert seen.tab.locator("#none").is_hidden()


def test_text_finds_notes(seen: Seen) -> None:
    seen.tab.get_by_label("Text").fill("no such")
    seen.expect("1 of 10")
    assert seen.names() == ["prop_10"]


def test_sorting_by_mouse_and_keyboard(seen: Seen) -> None:
    names = seen.names()
    head = seen.tab.locator("#queries th", has_text="query")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert seen.names()[-4:] == ["prop_0", "prop_1", "prop_2", "prop_10"]  # numbers in names count as numbers
    margin = seen.tab.locator("#queries th", has_text="margin")
    margin.get_by_role("button").focus()
    seen.tab.keyboard.press("Enter")
    assert (head.get_attribute("aria-sort"), margin.get_attribute("aria-sort")) == ("none", "ascending")
    assert seen.names()[0] == "digits[5]" and seen.names()[-1] == "prop_10"  # what has no margin comes last
    seen.tab.keyboard.press("Enter")
    assert margin.get_attribute("aria-sort") == "descending"
    assert seen.names()[0] in ("digits[0]", "prop_0") and seen.names()[-1] == "prop_10"
    seen.tab.keyboard.press("Enter")
    assert seen.names() == names


def test_every_control_has_a_name_and_can_be_reached(seen: Seen) -> None:
    reached = set()
    for _ in range(60):
        seen.tab.keyboard.press("Tab")
        reached.add(seen.tab.evaluate("(document.activeElement.textContent || document.activeElement.name).trim().slice(0, 20)"))
    assert {"To the queries", "margin", "seconds", "verdict", "Clear", "digits[0]"} <= reached
    for role in ("combobox", "checkbox", "searchbox", "button", "img", "region"):
        for element in seen.tab.get_by_role(role).all():
            name = element.get_attribute("aria-label") or element.get_attribute("alt") or element.evaluate(
                "e => e.labels && e.labels.length ? e.labels[0].textContent : e.textContent"
            )  # fmt: skip
            assert name and name.strip(), element.evaluate("e => e.outerHTML.slice(0, 200)")
    assert seen.tab.locator("th:not([scope])").count() == 0


def test_it_fits_a_phone(chromium: Any, file: Path) -> None:
    phone = Seen(chromium, file, width=390)
    assert phone.tab.evaluate("document.documentElement.scrollWidth") <= 390
    phone.tab.get_by_label("Order").select_option(label="seconds, descending")
    assert phone.names()[0] == "prop_10"
    assert phone.tab.evaluate("getComputedStyle(document.querySelector('#queries tbody tr')).display") == "grid"
    phone.clean(file)
    phone.context.close()


def test_dark_and_light_can_both_be_read(chromium: Any, file: Path) -> None:
    """Contrast of at least 4.5 between words and ground."""
    script = """() => {
      const rgb = c => c.match(/[\\d.]+/g).map(Number);
      const light = c => { const [r, g, b] = rgb(c).map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const ground = getComputedStyle(document.body).backgroundColor;
      return ["body", "small", ".v.unsat", ".v.sat", ".v.unknown", ".v.timeout", ".v.error", "a"].map(s => {
        const [a, b] = [light(getComputedStyle(document.querySelector(s)).color), light(ground)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      });
    }"""
    grounds = set()
    for scheme in ("light", "dark"):
        page_ = Seen(chromium, file, scheme=scheme)
        assert min(page_.tab.evaluate(script)) >= 4.5
        grounds.add(page_.tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        page_.context.close()
    assert len(grounds) == 2


def test_paper_shows_all_columns_and_no_controls(seen: Seen) -> None:
    seen.tab.emulate_media(media="print", color_scheme="dark")
    assert seen.tab.locator("#filters").is_hidden() and seen.tab.locator("nav").is_hidden()
    assert seen.tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(seen.tab.pdf(format="A4")) > 10_000
    assert seen.tab.evaluate("[...document.querySelectorAll('.scroll')].every(e => getComputedStyle(e).overflow === 'visible')")


@pytest.mark.parametrize(("count", "named"), [(1_100, 11), pytest.param(10_000, 111, marks=pytest.mark.slow)])
def test_many_results_can_be_worked_with(chromium: Any, tmp_path: Path, count: int, named: int) -> None:
    """Names are hostile throughout: none of them does anything."""
    path = wrote(tmp_path / "big.html", many(count))
    big = Seen(chromium, path)
    assert len(big.rows()) == STEP
    big.tab.get_by_label("Text").fill("prop_77")
    big.expect(f"{named} of {count:,}")
    assert len(big.rows()) == named
    big.tab.get_by_label("Text").fill("")
    big.expect(f"{count:,} of {count:,}")
    big.tab.get_by_role("button", name="Show more").click()
    assert len(big.rows()) == 2 * STEP
    big.tab.evaluate("document.querySelector('#queries th:nth-child(5) button').click()")
    times = big.tab.eval_on_selector_all("#queries tbody tr:not([hidden])", "rows => rows.map(r => Number(r.cells[4].dataset.s))")
    assert times == sorted(times) and len(times) == 2 * STEP
    big.clean(path)
    big.context.close()


def test_hostile_records_do_nothing(chromium: Any, tmp_path: Path) -> None:
    path = wrote(tmp_path / "x.html", [record(0, property=HOSTILE, network=HOSTILE, note=HOSTILE), image(1, "sat")])
    page_ = Seen(chromium, path)
    assert page_.tab.locator("#queries").get_by_text("<script>alert(1)</script>").count() > 0
    page_.tab.get_by_label("Text").fill("<script>")
    page_.expect("1 of 2")
    page_.clean(path)
    page_.context.close()
