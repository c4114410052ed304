"""`polytriton report` and `run --certify-radius` as a user meets them."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import polytriton
from polytriton.runs.records import read_records
from tests.cli import tiny
from tests.cli.conftest import Cli

BALLS = ("--images", "images.npz", "--epsilon", "0.1", "--clip", "0,1", "--engine", "local")


@pytest.fixture
def images(here: Path) -> Path:
    """Labels 0, 0 and a wrong one; the first is robust up to 0.35."""
    pixels = np.array([tiny.BRIGHT, (0.55, 0.5, 0.2, 0.4), (0.9, 0.1, 0.1, 0.1)], np.float32).reshape(-1, 1, 2, 2)
    np.savez(here / "images.npz", images=pixels, labels=np.array([0, 0, 2]))
    return here / "images.npz"


@pytest.fixture
def results(cli: Cli, poly: Path, images: Path) -> Path:
    assert cli("run", poly, *BALLS, "--certify-radius", "--json", "r.jsonl", "--csv", "r.csv").code == 0
    return Path("r.jsonl")


def test_radii_are_in_the_record_and_were_proved(results: Path, poly: Path) -> None:
    first, second, wrong = read_records(results)
    assert [r.verdict for r in (first, second, wrong)] == ["unsat", "sat", "sat"]
    assert first.radius is not None and first.radius.proved is not None
    radius = Fraction(first.radius.proved)
    assert Fraction("0.345") < radius < Fraction("0.35") <= Fraction(first.radius.not_proved or 0)
    verifier = polytriton.load(poly)
    image = np.array(tiny.BRIGHT, np.float32).reshape(1, 2, 2)
    assert verifier.verify_property(verifier.ball_property(image, radius, 0, clip=(0, 1)), falsifier=False).verdict == "unsat"
    assert second.radius is not None and second.radius.proved is not None
    assert Fraction("0.024") < Fraction(second.radius.proved) < Fraction("0.025")
    assert wrong.radius is not None and (wrong.radius.proved, wrong.radius.queries) == (None, 0)


def test_the_table_of_a_run_shows_radii(cli: Cli, poly: Path, images: Path) -> None:
    said = cli("run", poly, *BALLS, "--certify-radius", "--radius-tolerance", "1/10", "--end", "1").out.splitlines()
    assert said[0].split() == ["property", "verdict", "margin", "seconds", "radius"]
    assert 0.3 < float(said[1].split()[-1]) < 0.35


def test_a_run_without_radii_is_not_taken_for_one_with_them(cli: Cli, poly: Path, images: Path) -> None:
    assert cli("run", poly, *BALLS, "--json", "r.jsonl").code == 0
    assert all(r.radius is None and r.image is not None for r in read_records(Path("r.jsonl")))
    assert cli("run", poly, *BALLS, "--certify-radius", "--json", "r.jsonl", "--resume").code == 0
    radii = [r.radius for r in read_records(Path("r.jsonl"))]
    assert sum(r is not None for r in radii) == 3
    assert "3 from an earlier run" in cli("run", poly, *BALLS, "--certify-radius", "--json", "r.jsonl", "--resume").out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--images", "images.npz", "--epsilon", "0.1", "--radius-tolerance", "0.1"), "--certify-radius"),
        (("--images", "images.npz", "--epsilon", "0.1", "--certify-radius", "--radius-tolerance", "2"), "between 0 and 1"),
        (("--images", "images.npz", "--epsilon", "0.1", "--certify-radius", "--radius-timeout", "0"), "no time"),
        (("--vnnlib", "safe.vnnlib", "--certify-radius"), "--certify-radius belongs to --images"),
    ],
)
def test_wrong_radius_options(cli: Cli, poly: Path, images: Path, options: tuple[str, ...], says: str) -> None:
    said = cli("run", poly, *options)
    assert said.code == 2 and says in said.err


# ---- report -----------------------------------------------------------------------------------------------------


def test_a_page_is_written_and_its_name_said(cli: Cli, results: Path) -> None:
    said = cli("report", results)
    assert (said.code, said.out) == (0, "report.html\n")
    assert "images[0]" in Path("report.html").read_text()
    assert cli("report", "r.csv", "-o", "report.html").code == 0  # an earlier page is replaced
    assert cli("report", results, "r.csv", "-o", "both.html", "--title", "Both <b>").code == 0
    assert "<title>Both &lt;b&gt;</title>" in Path("both.html").read_text()
    assert [p.name for p in Path().iterdir() if ".part" in p.name] == []


def test_nothing_but_a_page_is_overwritten(cli: Cli, results: Path) -> None:
    before = results.read_bytes()
    said = cli("report", results, "-o", results)
    assert said.code == 2 and "not overwritten" in said.err
    assert results.read_bytes() == before
    assert cli("report", results, "-o", ".").code == 2


def test_a_folder_that_cannot_be_written_is_one_message(cli: Cli, results: Path) -> None:
    assert "no such file or directory" in cli("report", results, "-o", "none/report.html").err.lower()
    if os.name == "posix" and os.geteuid() != 0:
        Path("locked").mkdir(mode=0o500)
        assert cli("report", results, "-o", "locked/report.html").code == 2


def test_tables_in_the_terminal(cli: Cli, results: Path) -> None:
    said = cli("report", results, "--text")
    assert said.code == 0 and not Path("report.html").exists()
    assert said.out.splitlines()[-1].startswith("3 queries: 1 unsat, 2 sat; 1 misclassified; ")
    for word in ("seconds", "margin", "radius", "query, interval bounds", "\nh  ", "rows left"):
        assert word in said.out


def test_a_summary_for_programs(cli: Cli, results: Path) -> None:
    said = cli("report", results, "--json", "-o", "page.html")
    found = json.loads(said.out)
    assert found["verdicts"] == {"unsat": 1, "sat": 2} and found["radius"]["count"] == 2
    assert found["networks"][0]["layers"][0]["stage"] == "interval"
    assert "page.html" in said.err and Path("page.html").is_file()


def test_an_artifact_describes_layers(cli: Cli, results: Path, poly: Path) -> None:
    assert cli("report", results, "--artifact", poly).code == 0
    text = Path("report.html").read_text()
    assert "linear 4" in text and "after r" in text
    tiny.zero(Path("other.onnx"))
    assert cli("compile", "other.onnx").code == 0
    said = cli("report", results, "--artifact", "other.poly")
    assert said.code == 2 and "no result is about the network" in said.err


def test_large_images_are_found_in_their_file(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = np.tile(np.array([[0.9, 0.1]], np.float32), (8, 4)).reshape(1, 1, 8, 8)
    np.savez(here / "wide.npz", images=wide, labels=[0])
    tiny.save(
        here / "wide.onnx",
        [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Gemm", ["f", "w"], ["y"])],
        [1, 1, 8, 8], 2, {"w": np.eye(64)[:, :2]},
    )  # fmt: skip
    monkeypatch.setattr("polytriton.show.pixels.MOST", 10)
    options = ("--images", "wide.npz", "--epsilon", "0.01", "--engine", "local", "--json", "w.jsonl")
    assert cli("run", "wide.onnx", *options).code == 0
    assert cli("report", "w.jsonl").code == 0
    assert "<article" not in Path("report.html").read_text()
    assert cli("report", "w.jsonl", "--images", "wide.npz").code == 0
    assert "<article" in Path("report.html").read_text()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("none.jsonl",), "cannot read none.jsonl"),
        (("safe.vnnlib",), "not a result of polytriton"),
        (("empty.jsonl",), "holds no results"),
        (("r.jsonl", "--text", "--json"), "exclude each other"),
        (("r.jsonl", "--pictures", "-1"), "negative"),
        (("r.jsonl", "--artifact", "none.poly"), "none.poly"),
        (("r.jsonl", "--images", "none.npz"), "no image file none.npz"),
    ],
)
def test_mistakes_meet_a_remedy(cli: Cli, results: Path, args: tuple[str, ...], says: str) -> None:
    Path("empty.jsonl").touch()
    said = cli("report", *args)
    assert said.code == 2 and says in said.err
    assert not Path("report.html").exists()
