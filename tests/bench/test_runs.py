"""Runs from their CSV files, what changed between them, and the page."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bench.core.table import END_TO_END, Table
from bench.report import __main__ as report
from bench.report.runs import Unreadable, compare, read_run, same_place

ABOUT = {"device": "cpu", "machine": "M", "threads": "1", "commit": "abc", "date": "2026-01-01 00:00", "conv_gflops": "100"}
ROW = {"network": "net", "kind": "robust", "eps": "1/255", "engine": "torch", "numerics": "float32", "batch": 1}
ROW |= {"seconds": 1.0, "spread": 0.02, "runs": 5, "worst": -2.0, "peak_mb": 100.0, "gflop": 3.0}


def write(folder: Path, part: str, rows: list[dict[str, Any]], columns: tuple[str, ...] = END_TO_END, **about: str) -> Path:
    table = Table(columns, folder / f"{part}.csv", {"part": part, **ABOUT, **about})
    for row in rows:
        table.add(row)
    table.close()
    return folder


def changed(
    tmp_path: Path, part: str, old: list[dict[str, Any]], new: list[dict[str, Any]], columns: tuple[str, ...] = END_TO_END
) -> list[str]:
    a, b = (read_run(write(tmp_path / name, part, rows, columns)) for name, rows in (("a", old), ("b", new)))
    return [f"{f.what}: {f.label}" for f in compare(a, b) if f.what != "same"]


@pytest.mark.parametrize(
    "change, found",
    [
        ({}, []),
        ({"seconds": 1.04}, []),
        ({"seconds": 1.3}, ["slower: net robust"]),
        ({"seconds": 0.7}, ["faster: net robust"]),
        ({"seconds": 1.3, "spread": 0.5}, []),
        ({"seconds": 1.3, "runs": 1}, ["one run: net robust"]),
        ({"worst": -2.1}, ["looser: net robust"]),
        ({"worst": -1.9}, ["tighter: net robust"]),
        ({"worst": -2.00001}, []),
        ({"peak_mb": 112.0}, []),
        ({"peak_mb": 120.0}, ["more memory: net robust"]),
        ({"seconds": "", "note": "stopped: over its time"}, ["failed: net robust"]),
        ({"batch": 8, "seconds": 9.0}, []),
    ],
)
def test_changes_of_a_row(tmp_path: Path, change: dict[str, Any], found: list[str]) -> None:
    assert changed(tmp_path, "zoo", [ROW], [{**ROW, **change}]) == found


def test_a_group_that_died_has_failed(tmp_path: Path) -> None:
    dead = {"network": "net-robust", "note": "its process ended with code -9"}
    assert changed(tmp_path, "zoo", [ROW], [dead]) == ["failed: net robust"]
    assert changed(tmp_path / "other", "zoo", [ROW], [{**dead, "network": "net-normal"}]) == []


def test_growth_rows_are_told_apart_by_their_size(tmp_path: Path) -> None:
    columns = ("network", "axis", "value", *END_TO_END[1:])
    old = [{**ROW, "axis": "depth", "value": v} for v in (1, 2)]
    new = [old[0], {**old[1], "seconds": 2.0}]
    assert changed(tmp_path, "growth", old, new, columns) == ["slower: depth 2"]


def test_images_are_paired_and_lost_verdicts_named(tmp_path: Path) -> None:
    columns = ("network", "kind", "image", "seconds", "verdict", "note")
    old = [{"network": "n", "image": k, "seconds": 10.0 ** (k % 4), "verdict": "unsat"} for k in range(20)]
    slow = [{**r, "seconds": 1.5 * r["seconds"]} for r in old]
    assert changed(tmp_path / "slow", "distribution", old, slow, columns) == ["slower: n, 20 images"]
    lost = [{**old[0], "verdict": "unknown"}, *old[1:]]
    assert changed(tmp_path / "lost", "distribution", old, lost, columns) == ["lost: n 0"]
    assert changed(tmp_path / "won", "distribution", lost, old, columns) == ["won: n 0"]


def test_microseconds_of_a_gpu_file(tmp_path: Path) -> None:
    columns = ("case", "numerics", "step", "variant", "rows", "microseconds", "spread", "note")
    row = {
        "case": "conv 64",
        "numerics": "float64",
        "step": "conv_step",
        "variant": "fused",
        "rows": 64,
        "microseconds": 100.0,
        "spread": 1.0,
    }
    assert changed(tmp_path, "micro", [row], [{**row, "microseconds": 150.0}], columns) == ["slower: conv 64 float64 conv_step fused 64"]


def test_a_file_without_parts_is_named_by_its_end(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-h100_zoo.csv"
    path.write_text("network,seconds\nnet,0.5\n")
    assert list(read_run(path).parts) == ["zoo"]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="no measurements"):
        read_run(tmp_path)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Unreadable, match="cannot read"):
        read_run(tmp_path)
    mixed = write(write(tmp_path / "mixed", "zoo", [ROW]), "goals", [ROW], threads="2")
    with pytest.raises(Unreadable, match="mixes runs: threads"):
        read_run(mixed)


@pytest.mark.parametrize("other", [{"machine": "N"}, {"clock": "processor"}])
def test_other_machines_and_clocks_are_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, str]) -> None:
    a, b = write(tmp_path / "a", "zoo", [ROW]), write(tmp_path / "b", "zoo", [{**ROW, "seconds": 9.0}], **other)
    assert not same_place(read_run(a), read_run(b))
    capsys.readouterr()
    assert report.main([str(a), str(b), "--out", str(tmp_path / "x.html"), "--check"]) == 0
    assert "times are not judged" in capsys.readouterr().out


# ---- the page ----------------------------------------------------------------------------------------------------------


class Outside(HTMLParser):
    """Everything that a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.found += [f"{tag} {k}" for k in values if k.startswith("on") or k == "style"]
        self.found += [
            f"{tag} {k}={values[k]}" for k in ("src", "href") if values.get(k) and not str(values[k]).startswith(("#", "data:,"))
        ]
        self.found += [tag] * (tag in ("script", "iframe", "object", "img"))


def everything(folder: Path, factor: float = 1.0) -> Path:
    """A run with every part."""
    write(folder, "goals", [{**ROW, "seconds": factor, "goal": 2.0, "of_goal": factor / 2}])
    growth = [{**ROW, "axis": "depth", "value": v, "seconds": factor * v**2} for v in (1, 2, 4, 8)]
    write(folder, "growth", growth, ("network", "axis", "value", *END_TO_END[1:]))
    images = [{"network": "<script>alert(1)</script>", "image": k, "seconds": factor * (k + 1), "verdict": "unsat"} for k in range(12)]
    write(folder, "distribution", images, ("network", "kind", "image", "seconds", "verdict", "note"))
    data = [{"network": "n", "benchmark": "b", "id": f"v{k}", "verdict": "unsat", "seconds": factor, "note": ""} for k in range(6)]
    write(folder, "data", data, ("network", "benchmark", "id", "verdict", "seconds", "note"))
    columns = (*END_TO_END, "ratio", "ratio_lo", "ratio_hi", "tighter", "looser", "gap", "peer")
    ours = {**ROW, "engine": "polytriton", "ratio": 3.0, "ratio_lo": 2.5, "ratio_hi": 3.5, "tighter": 1, "looser": 2, "peer": "P 1"}
    write(folder, "peer", [ours, {**ROW, "engine": "P", "seconds": 3.0, "peer": "P 1"}], columns)
    return folder


def test_one_page_holds_everything_and_fetches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, out = everything(tmp_path / "a"), everything(tmp_path / "b", 1.5), tmp_path / "deep" / "x.html"
    capsys.readouterr()
    assert report.main([str(a), str(b), "--out", str(out), "--check"]) == report.WORSE
    said = capsys.readouterr().out
    assert "slower: goals net robust: 1 s before, 1.5 s after, 1.50x" in said and "11 worse" not in said
    text = out.read_text()
    outside = Outside()
    outside.feed(text)
    assert outside.found == []
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style is not None
    assert f"sha256-{base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()}" in text
    assert "<script>" not in text and "&lt;script&gt;alert(1)" in text
    for part in ("goals", "growth", "distribution", "data", "peer"):
        assert f'id="part-{part}"' in text
    assert "2.00 +- 0.00" in text and "exponent 2.00" in text
    assert "half of 12 within" in text and "3.00x" in text and "2.5 to 3.5" in text
    assert not [p for p in out.parent.iterdir() if p != out], "no scratch file is left"


def test_one_run_has_a_page_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = everything(tmp_path / "a")
    capsys.readouterr()
    assert report.main([str(run), "--out", str(tmp_path / "x.html"), "--check"]) == 0
    assert capsys.readouterr().out == "" and "What changed" not in (tmp_path / "x.html").read_text()


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write(tmp_path / "a", "zoo", [ROW]), write(tmp_path / "b", "zoo", [{**ROW, "seconds": 2.0}])
    capsys.readouterr()
    assert report.main([str(a), str(b), "--json", "--out", str(tmp_path / "x.html")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == {"slower": 1} and found["findings"][0]["ratio"] == 2.0


def test_mistakes_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "a", "zoo", [ROW])
    (tmp_path / "file").write_text("")
    for arguments, words in (
        (["absent"], "cannot read absent"),
        ([str(run), "--floor", "-1"], "--floor is a fraction"),
        ([str(run), "--out", str(tmp_path / "file" / "x.html")], "cannot write"),
    ):
        with pytest.raises(SystemExit) as stopped:
            report.main(arguments)
        assert stopped.value.code == 2 and words in capsys.readouterr().err


def test_columns_of_every_suite_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a", "zoo", [ROW])
    with (tmp_path / "a" / "zoo.csv").open(newline="") as f:
        heads = csv.DictReader(f).fieldnames
    assert heads is not None and {"machine", "threads", "commit", "seconds", "spread"} <= set(heads)
