"""What people read first on a page: its title, shares of images, verdicts in words and in one colour each, times that leave nothing out."""

from __future__ import annotations

import re
import time

import msgspec
import numpy as np
import pytest

from polytriton.pages import plots
from polytriton.pages.facts import facts, radius_facts, title, whole_seconds
from polytriton.pages.style import STYLE
from polytriton.runs.records import VERDICTS, Certified, Image, Point, Record
from polytriton.show.pixels import pack
from polytriton.show.verdicts import LOOKS, name_verdict
from tests.pages.made import image, mixed, record
from tests.pages.test_page import checked, made


def ball(k: int, verdict: str, epsilon: str = "1/20", **more: object) -> Record:
    return record(k, verdict, epsilon=epsilon, **{"image": Image("i.npz", k, [1, 2, 2]), **more})


# ---- words ----


def test_every_verdict_has_a_word_a_sign_and_a_colour() -> None:
    assert tuple(LOOKS) == VERDICTS
    assert [one.word for one in LOOKS.values()] == ["proved", "violated", "open", "open", "error"]
    assert [name_verdict(v) for v in VERDICTS] == ["proved (unsat)", "violated (sat)", "open (unknown)", "open (timeout)", "error"]
    for ground in ("light", "dark"):
        assert len({getattr(one, ground) for one in LOOKS.values()}) == len(LOOKS)


def test_a_style_sheet_takes_every_colour_from_the_table() -> None:
    for verdict, one in LOOKS.items():
        assert STYLE.count(f"--{verdict}: {one.light};") == 2 and STYLE.count(f"--{verdict}: {one.dark};") == 1  # screen and paper
        for what in (f".v.{verdict}", f".tally .{verdict} b", f".stack .{verdict}", f".bar.{verdict}", f".curve.{verdict}"):
            assert what in STYLE
    rest = re.sub(r"--\w+: #\w+;", "", STYLE)
    assert not re.search(r"#[0-9a-f]{3,6}\b", rest), "a colour that is no variable"


def test_words_stand_beside_the_terms() -> None:
    reader = checked(made(mixed()))
    for verdict in ("unsat", "sat", "unknown", "timeout"):
        assert f"{LOOKS[verdict].word} {verdict}" in reader.said
    assert "error error" not in reader.said
    assert "5 proved (unsat)" in made(mixed())


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([record(0)], "Properties of a.onnx: 1 query"),
        ([record(k, network=f"{k}.onnx") for k in range(3)], "Properties of 3 networks: 3 queries"),
        ([ball(k, "unsat", network="x/b.onnx") for k in range(4)], "Robustness of b.onnx: 4 images at epsilon 0.05"),
        ([ball(k, "sat", e) for k in range(2) for e in ("8/255", "1/10")], "Robustness of a.onnx: 2 images at 2 radii"),
        ([ball(0, "sat"), record(1, network="b.onnx")], "Robustness of a.onnx and b.onnx: 1 image at epsilon 0.05, and 1 other query"),
    ],
)
def test_a_title_says_what_was_asked(records: list[Record], words: str) -> None:
    assert title(facts(records)) == words
    page = made(records, title=None)
    assert f"<title>{words}</title>" in page and f"<h1>{words}</h1>" in page


# ---- images ----


def test_verified_accuracy_comes_first() -> None:
    verdicts = ["unsat"] * 6 + ["sat"] * 2 + ["timeout"]
    records = [ball(k, v, note="misclassified as 3" if k == 7 else "") for k, v in enumerate(verdicts)]
    said = " ".join(checked(made(records)).said.split())
    body = made(records)
    assert body.index('id="accuracy"') < body.index('id="verdicts"')
    assert "66.6 %verified accuracy6 of 9 at epsilon 0.05" in said
    assert "88.8 %accuracy8 of 9" in said and "11.1 %falsified1 of 9" in said and "11.1 %open1 of 9" in said
    assert 'id="accuracy"' not in made([record(0)])


def test_a_sweep_tells_what_is_verified_at_each_radius() -> None:
    records = [ball(k, "unsat" if k < 10 - j else "unknown", f"{j}/255") for k in range(10) for j in range(1, 11)]
    body = made(records)
    assert body.count("verified accuracy") == 8
    assert "90.0 %</b>verified accuracy<br><small>9 of 10 at epsilon 1/255" in body
    assert "10/255" in checked(body).said


def test_networks_of_a_sweep_have_charts_of_their_own() -> None:
    nets = ("nets/a.onnx", "nets/b.onnx")
    records = [ball(k, "unsat", e, network=n) for n in nets for k in range(2) for e in ("1/50", "1/20")]
    body = made(records)
    assert body.count("share of the images, by radius: ") == 2 and body.count("Images verified: ") == 4  # as label and as title
    assert "share of the images, by radius: b.onnx" in checked(body).said


# ---- charts ----


def drawn_charts() -> dict[str, str]:
    records = [record(k, v, seconds=10.0 ** (k % 5)) for k, v in enumerate(["unsat", "sat"] * 20)]
    sweep = radius_facts([ball(k, "unsat", f"{e}/255") for k in range(3) for e in (1, 4, 8)])
    return {"runtimes": plots.runtimes(records), "sweep": plots.sweep(sweep)}


@pytest.mark.parametrize("name", ["runtimes", "sweep"])
def test_a_legend_lies_off_the_curves(name: str) -> None:
    drawn = drawn_charts()[name]
    curves = [float(y) for d in re.findall(r'<path d="M([^"]*)"', drawn) for _, y in re.findall(r"([-\d.]+) ([-\d.]+)", d)]
    keys = [float(y) for y in re.findall(r'<line [^>]*y1="([-\d.]+)"[^>]*class="curve', drawn)]
    words = [float(y) for y in re.findall(r'<text [^>]*y="([-\d.]+)" text-anchor="start"', drawn)]
    assert curves and keys and len(keys) == len(words)
    assert max(keys + words) + 4 < min(curves), "the legend ends above all that is drawn"
    ends = [float(x) + 7 * len(w) for x, w in re.findall(r'<text x="([-\d.]+)"[^>]*text-anchor="start" class="tick">([^<]*)<', drawn)]
    assert max(ends) < plots.W


def test_what_was_not_asked_has_no_runtime() -> None:
    asked = [ball(k, "unsat", seconds=2.0) for k in range(3)]
    told = [ball(k, "unsat", "1/50", seconds=0.0, decided_at="1/20") for k in range(3)]
    assert "half of 3 results took at most 2 s" in plots.runtimes([*asked, *told])


# ---- times ----


def test_the_time_of_radius_queries_is_counted() -> None:
    searched = ball(0, "unsat", seconds=1.0, radius=Certified("1/10", "1/9", "unknown", True, 9, 30.0))
    plain = ball(1, "unsat", seconds=2.0)
    assert (whole_seconds(searched), whole_seconds(plain)) == (31.0, 2.0)
    found = facts([searched, plain])
    assert (found.total, found.networks[0].seconds, found.radius_queries) == (33.0, 33.0, 9)
    assert found.seconds is not None and found.seconds.most == 2.0, "a query's own time is what it was"
    said = checked(made([searched, plain])).said
    assert "took 33 s, 30 s of it for 9 queries that searched largest radii" in said and "seconds a search for it" in said
    assert "searched largest radii" not in made([plain])
    assert "9 queries, 30 s" in made([msgspec.structs.replace(image(0, "unsat"), radius=searched.radius)])


# ---- size ----


def test_a_page_of_five_hundred_images_stays_small_and_quick() -> None:
    """Measured: 0.3 s and 3.8 MB; every image is drawn, a quarter of them with a counterexample."""
    records = []
    for k in range(500):
        pixels = np.random.default_rng(k).integers(0, 256, (1, 28, 28)).astype(np.uint8)
        found = Point((pixels / 255).ravel().tolist(), [0.1, 0.9]) if k % 4 == 0 else None
        records.append(
            ball(
                k, "sat" if found else "unsat", counterexample=found, rivals=list(range(9)), margins=[0.5] * 9,
                image=Image("m.npz", k, [1, 28, 28], clip=("0", "1"), pixels=pack(pixels)),
            )
        )
    begin = time.process_time()
    text = made(records, pictures=500)
    assert time.process_time() - begin < 5
    assert len(text.encode()) < 8 << 20
    assert text.count("<article") == 500 and text.count('decoding="async"') == text.count("<img ")
    assert "content-visibility: auto" in STYLE, "what is not on the screen is not laid out"
