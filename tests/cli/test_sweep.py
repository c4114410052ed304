"""`run --epsilon A,B,...`: verdicts as one run a radius gives them, the tables, the last line, resuming, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Cli
from tests.cli.test_run import records

RADII = ("0.05", "8/255", "0.3", "0.2")


def images(here: Path) -> Path:
    """Eight images, the last of which is labelled wrongly."""
    pixels = np.random.default_rng(5).integers(0, 256, (8, 1, 2, 2)).astype(np.uint8)
    labels = pixels.reshape(8, 4)[:, :3].argmax(1)
    labels[7] = (labels[7] + 1) % 3
    np.savez(here / "s.npz", images=pixels, labels=labels)
    return here / "s.npz"


def by_query(path: str) -> dict[tuple[str, str], str]:
    return {(r["property"], r["epsilon"]): r["verdict"] for r in records(path)}


@pytest.mark.parametrize("extra", [[], ["--batch", 4], pytest.param(["--engine", "processes", "--workers", 2], marks=pytest.mark.slow)])
def test_a_sweep_answers_as_a_run_for_each_radius(cli: Cli, poly: Path, here: Path, extra: list[object]) -> None:
    asked = ["run", poly, "--images", images(here), "--clip", "0,1", "--json"]
    one = {}
    for radius in RADII:
        assert cli(*asked, "one.jsonl", "--overwrite", "--epsilon", radius).code == 0
        one |= by_query("one.jsonl")
    assert cli(*asked, "all.jsonl", "--epsilon", ",".join(RADII[:3]), "--epsilon", RADII[3], *extra).code == 0
    assert by_query("all.jsonl") == one
    told = [r for r in records("all.jsonl") if r["decided_at"]]
    assert told and all(r["seconds"] == 0 and r["image"] is not None for r in told)


def test_what_is_said(cli: Cli, poly: Path, here: Path) -> None:
    said = cli("run", poly, "--images", images(here), "--epsilon", "8/255,0.2,0.02", "--clip", "0,1", "--json", "r.jsonl")
    lines = said.out.splitlines()
    assert lines[0].split() == ["image", "0.02", "8/255", "0.2", "seconds", "note"]
    assert lines[1].split()[0] == "s[0]" and len(lines[1].split()) == 5
    table = [line.split() for line in lines if line.startswith(("0.02", "8/255", "0.2 "))]
    held = records("r.jsonl")
    for row, radius in zip(table, ("1/50", "8/255", "1/5"), strict=True):
        own = [r for r in held if r["epsilon"] == radius]
        wrong = sum(r["note"].startswith("misclassified") for r in own)
        counts = [sum(r["verdict"] == v for r in own) for v in ("unsat", "sat")]
        assert list(map(int, row[1:6])) == [8, counts[0], counts[1] - wrong, 8 - sum(counts), 1]
        assert int(row[6]) == sum(r["decided_at"] is None for r in own)
    assert "24 queries" in lines[-2] and "1 misclassified" in lines[-2]
    assert lines[-1].startswith("accuracy 87.5 %, verified ") and lines[-1].count(" at ") == 3
    assert "s[0] at 8/255" in said.err and "(not asked)" in said.err
    text = cli("report", "r.jsonl", "--text").out
    assert "misclassified" in text and "8/255" in text
    page = cli("report", "r.jsonl", "-o", "r.html")
    assert page.code == 0 and "share of the images, by radius" in Path("r.html").read_text()


def test_accuracy_needs_labels(cli: Cli, poly: Path, here: Path) -> None:
    np.savez(here / "n.npz", images=np.load(images(here))["images"])
    said = cli("run", poly, "--images", here / "n.npz", "--epsilon", "0.02")
    assert said.out.splitlines()[-1].startswith("verified ")


def test_a_sweep_goes_on_with_what_is_known(cli: Cli, poly: Path, here: Path) -> None:
    asked = ["run", poly, "--images", images(here), "--clip", "0,1", "--csv", "r.csv", "--json", "r.jsonl"]
    assert cli(*asked, "--epsilon", "0.02,0.05").code == 0
    assert cli(*asked, "--epsilon", "0.02,0.03,0.05", "--resume").code == 0
    new = [r for r in records("r.jsonl") if r["epsilon"] == "3/100"]
    assert len(new) == 8
    known = {r["property"]: r["verdict"] for r in records("r.jsonl") if r["epsilon"] == "1/20"}
    for r in new:
        assert known[r["property"]] != "unsat" or r["decided_at"] == "1/20"
    assert len(Path("r.csv").read_text().splitlines()) == 25


def test_a_radius_given_twice_is_one(cli: Cli, poly: Path, here: Path) -> None:
    said = cli("run", poly, "--images", images(here), "--epsilon", "0.02,1/50", "--end", "1", "--json", "-")
    assert len([json.loads(line) for line in said.out.splitlines()]) == 1


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--epsilon", "0.1,0.2", "--certify-radius"], "give one --epsilon"),
        (["--epsilon", "0.1,,0.2"], "epsilon"),
        (["--epsilon", "0.1,2"], "epsilon 2 is larger than the whole pixel range"),
        ([], "needs a radius"),
    ],
)
def test_what_is_no_sweep(cli: Cli, poly: Path, here: Path, extra: list[object], words: str) -> None:
    said = cli("run", poly, "--images", images(here), *extra)
    assert said.code == 2 and words in said.err and not said.out
