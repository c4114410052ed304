"""The page of the architecture draws what there is: every path in its drawings exists. Its table is held by test_docs.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "polytriton"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DRAWINGS = re.findall(r"^```rooms\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PATH = re.compile(r"[a-z_]+(?:/[a-z_]+)*(?:\.py|/)")


def paths(drawing: str) -> list[str]:
    return PATH.findall(drawing)


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_what_is_drawn_exists(drawing: str) -> None:
    drawn = paths(drawing)
    assert not [p for p in drawn if not (PACKAGE / p).exists()]
    assert all(paths(line)[:1] == [line.split()[0]] for line in drawing.splitlines()), "a line begins with a file or a folder"


def test_the_drawings_are_two_and_stand_on_a_page() -> None:
    assert len(DRAWINGS) == 2 and all(len(paths(d)) > 10 for d in DRAWINGS)
    assert sum(len(d.splitlines()) for d in DRAWINGS) <= 50


def test_a_drawing_that_lies_is_noticed() -> None:
    assert paths("  prove/nothing.py   Net -> ir/net.py, then kernels/") == ["prove/nothing.py", "ir/net.py", "kernels/"]
    assert not (PACKAGE / "prove" / "nothing.py").exists()
