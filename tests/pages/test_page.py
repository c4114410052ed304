"""The page as text: well-formed, self-contained, and deaf to what records would like to say to a browser."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytriton.pages import plots
from polytriton.pages.facts import facts
from polytriton.pages.page import STEP, page
from polytriton.results import LayerStats, Level, Sample, SearchStats
from polytriton.runs.records import Certified, Image, Point, Record
from tests.pages.made import HOSTILE, image, many, mixed, record

VOID = {"meta", "link", "img", "br", "input"}
TAGS = {"script": 1, "style": 1, "iframe": 0, "object": 0, "base": 0}


class Reader(HTMLParser):
    """Tags that match, and every attribute."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.said = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.said += data


def made(records: list[Record], **options: object) -> str:
    given: dict = {"title": "title", "source": "source", "known": {}, "pictures": 200, **options}
    return page(records, facts(records), **given)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


def checked(text: str) -> Reader:
    """What holds of every page, whatever is in it."""
    reader = read(text)
    assert {t: reader.tags.count(t) for t in TAGS} == TAGS
    ids = [v for _, name, v in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for tag, name, value in reader.attributes:
        assert not name.startswith("on") and name != "style", (tag, name)
        if name in ("src", "href"):
            assert value.startswith(("data:image/png;base64,", "#")) or value == "data:,", (tag, value)
            if value.startswith("#"):
                assert value[1:] in ids
        if name == "for":
            assert value in ids
    assert not re.search(r"https?:|url\(|@import", text)
    return reader


def test_every_section_is_there() -> None:
    reader = checked(made(mixed()))
    for word in ("Summary", "Runtime", "Margins", "Certified radius", "Layers", "Queries", "Images", "undecided", "rows left", "digits[1]"):
        assert word in reader.said
    assert reader.tags.count("article") == 6
    labelled = [v for tag, name, v in reader.attributes if (tag, name) == ("img", "alt")]
    assert len(labelled) == reader.tags.count("img") == 6 * 2 + 2 * 2  # image and ball; counterexample and difference where there is one
    assert all(labelled)


def test_what_records_say_is_text() -> None:
    hostile = record(
        0, "sat", network=HOSTILE, property=HOSTILE, note=HOSTILE, semantics=HOSTILE, dtype=HOSTILE, candidates=HOSTILE, version=HOSTILE,
        epsilon=HOSTILE, statistics=(LayerStats(HOSTILE, HOSTILE, 5, (3, 2), (1, 1), 5, (4,), 1), LayerStats(HOSTILE, "bound", 5, (3, 2))),
        image=Image(HOSTILE, 0, [1, 6, 6], (HOSTILE,), (HOSTILE,), (HOSTILE, HOSTILE), image(0, "sat").image.pixels),  # type: ignore[union-attr]
        radius=Certified(HOSTILE, HOSTILE, HOSTILE), counterexample=Point([0.0] * 36, [1.0, 2.0]),
    )  # fmt: skip
    other = record(1, network="/b/" + HOSTILE)
    reader = checked(made([hostile, other], title=HOSTILE, source=HOSTILE))
    assert "<script>alert(1)</script>" in reader.said  # as words
    assert "\u202e" not in reader.said


def test_only_the_pages_own_script_and_style_may_run() -> None:
    text = made(mixed())
    policy = next(v for _, name, v in read(text).attributes if name == "content" and "default-src" in v)
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_the_same_results_make_the_same_page() -> None:
    assert made(mixed()) == made(mixed())


def test_earlier_records_make_a_page() -> None:
    reader = checked(made([Record(network="net.onnx", property="p", verdict="unsat", seconds=0.5)]))
    assert "Layers" not in reader.said and "Images" not in reader.said


@pytest.mark.slow
def test_ten_thousand_results_stay_small_and_quick() -> None:
    records = many(10_000)
    begin = time.process_time()
    text = made(records)
    assert time.process_time() - begin < 5
    assert len(text.encode()) < 10 << 20
    assert len(re.findall(r"<tr data-q=\"\d+\" data-n=\"\d\" data-v=\"[a-z]+\">", text)) == STEP
    assert len(re.findall(r"<tr data-q=[^>]* hidden>", text)) == 10_000 - STEP
    assert text.count("<script>") == 1


def test_the_most_telling_images_are_kept() -> None:
    records = [image(k, v) for k, v in enumerate(["unsat", "unsat", "unknown", "sat"])]
    text = made(records, pictures=2)
    assert re.findall(r'<article class="card" data-i="(\d)"', text) == ["2", "3"]
    assert "2 more images are not shown" in text
    assert "<article" not in made(records, pictures=0)


def test_a_large_gallery_has_a_limit() -> None:
    records = [image(k, "sat", side=28, channels=3) for k in range(40)]
    for limit, count in ((5 << 20, 40), (100_000, 5)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("polytriton.pages.gallery.BUDGET", limit)
            cards = made(records).count("<article")
        assert cards == 40 if count == 40 else 0 < cards < 20


def test_vectors_of_square_images_are_drawn_as_such() -> None:
    flat = image(0, "sat", side=28)
    assert flat.image is not None
    held = flat.image
    text = made([record(0, "sat", epsilon="1/20", image=Image("m.npz", 0, [784], held.mean, held.std, held.clip, held.pixels))])
    assert 'width="28" height="28"' in text
    assert "<article" not in made([record(0, image=Image("m.npz", 0, [5], pixels=held.pixels))])


def test_curves_end_where_all_are_counted() -> None:
    records = [record(k, seconds=10.0 ** (k % 5), margin=float(k)) for k in range(1000)]
    assert "half of 1,000 results took at most 100 s" in plots.runtimes(records)
    assert "999 above zero, 1 not" in plots.margins([r.margin for r in records if r.margin is not None])


numbers = st.floats(allow_nan=False, allow_infinity=False)
layer = st.builds(
    LayerStats, st.sampled_from(["a", "b"]), st.sampled_from(["bound", "query", "interval", "x"]), st.integers(-5, 2**60),
    st.none() | st.tuples(st.integers(-5, 2**40), st.integers()), st.tuples(st.none() | numbers, st.none() | numbers),
    st.integers(-5, 2**40), st.lists(st.integers(-5, 2**40), max_size=30).map(tuple), numbers,
)  # fmt: skip
text = st.text(max_size=8)
fraction = st.none() | text | st.sampled_from(["0", "1", "1/3", "-1/2", "1/1000000000000", "8/255", "1/0"])
picture = st.builds(
    Image, text, st.integers(), st.sampled_from([[1, 6, 6], [6, 6], [3, 2], [36], [], [-1, -6, 6], [0]]),
    st.tuples(st.sampled_from(["0", "x"])), st.tuples(st.sampled_from(["1", "2", ""])), st.none() | st.tuples(text, text),
    st.sampled_from(["", "u1:x", image(0, "sat").image.pixels]),  # type: ignore[union-attr]
)  # fmt: skip
share = st.floats(-1, 2)
sample = st.builds(Sample, numbers, st.integers(), st.integers(), st.integers(), st.none() | numbers, share)
search = st.builds(
    SearchStats, text, st.integers(), st.integers(), st.integers(), share, st.none() | numbers, numbers,
    st.sampled_from(["", "sat", "time", "steps", "rounding"]) | text, st.lists(sample, max_size=4).map(tuple),
    st.lists(st.builds(Level, st.integers(), st.integers()), max_size=60).map(tuple),
)  # fmt: skip
anything = st.builds(
    Record, network=text, property=text, verdict=st.sampled_from(["unsat", "sat", "unknown", "timeout", "error"]),
    margin=st.none() | numbers, seconds=numbers, label=st.none() | st.integers(), epsilon=fraction, note=text,
    margins=st.lists(st.none() | numbers, max_size=3), rivals=st.lists(st.integers(), max_size=3),
    counterexample=st.none() | st.builds(Point, st.lists(numbers, min_size=36, max_size=36), st.lists(numbers, max_size=2)),
    statistics=st.lists(layer, max_size=4).map(tuple), image=st.none() | picture,
    radius=st.none() | st.builds(Certified, fraction, fraction, text, st.booleans()), search=st.none() | search,
)  # fmt: skip


@settings(max_examples=25)
@given(st.lists(anything, min_size=1, max_size=4))
def test_any_record_makes_a_page(records: list[Record]) -> None:
    checked(made(records))
