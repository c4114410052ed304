"""The documentation as a site: it builds without a warning, its links and anchors lead somewhere, it loads nothing from other hosts."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
LOADS = {("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src"), ("object", "data"), ("use", "href")}
FETCHED = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "icon", "modulepreload"}


@dataclass
class Page(HTMLParser):
    """What a page links to, what a browser loads for it, and the anchors it offers."""

    links: set[str] = field(default_factory=set)
    loads: set[str] = field(default_factory=set)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {k: v for k, v in attrs if v}
        self.anchors |= {given[k] for k in ("id", "name") if k in given}
        self.loads |= {v for k, v in given.items() if (tag, k) in LOADS}
        if tag == "link" and FETCHED & set(given.get("rel", "").split()):
            self.loads.add(given["href"])
        if tag == "a" and "href" in given:
            self.links.add(given["href"])


def read(file: Path) -> Page:
    page = Page()
    page.feed(file.read_text(encoding="utf-8"))
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        reason = "mkdocs-material is not installed: pip install -e '.[dev]'"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, cwd=folder)
    assert built.returncode == 0, built.stderr
    return folder


def problems(site: Path) -> Iterator[str]:
    pages = {file: read(file) for file in site.rglob("*.html")}
    for file, page in pages.items():
        here = file.relative_to(site)
        for target in sorted(page.loads):
            if urlsplit(target).netloc:
                yield f"{here} loads {target}"
        for target in sorted(page.links | page.loads):
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            path = unquote(parts.path)
            found = (site / path.lstrip("/") if path.startswith("/") else file.parent / path).resolve() if path else file
            found = found / "index.html" if found.is_dir() else found
            if not found.is_file():
                yield f"{here} links to {target}, which is not there"
            elif parts.fragment and found in pages and unquote(parts.fragment) not in pages[found].anchors:
                yield f"{here} links to {target}, which has no such anchor"


def test_every_page_of_the_folder_is_in_the_site(site: Path) -> None:
    made = {p.parent.name if p.parent != site else "index" for p in site.glob("**/index.html")}
    assert {p.stem for p in (ROOT / "docs").glob("*.md")} <= made


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert not list(problems(site))


def test_style_sheets_load_nothing_from_elsewhere(site: Path) -> None:
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        for target in re.findall(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)", sheet.read_text(encoding="utf-8")):
            assert not urlsplit("".join(target)).netloc, (sheet.name, target)


def test_what_counts_as_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    good = "<h2 id=one>1</h2><a href='../'>up</a><a href='#one'>1</a><a href='https://example.org'>out</a>"
    bad = "<a href='a/#one'>1</a><img src='a.png'><script src='https://example.org/x.js'></script><a href='a/#two'>2</a>"
    (tmp_path / "a" / "index.html").write_text(good)
    (tmp_path / "index.html").write_text(bad)
    assert sorted(problems(tmp_path)) == [
        "index.html links to a.png, which is not there",
        "index.html links to a/#two, which has no such anchor",
        "index.html loads https://example.org/x.js",
    ]
