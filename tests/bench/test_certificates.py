"""The table of certificates: it goes on where it was cut off, and its summary tells what is missing."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import numpy as np
import pytest

from bench import certificates
from bench.core.table import read_rows
from polytriton import checker
from polytriton.certificate.guide import Guide
from polytriton.checker_files import Refused
from tests.certificate.models import dense, prop

LAYERS = [(np.array([[1.0, -1.0], [1.0, 1.0]]), np.zeros(2)), (np.array([[1.0, -1.0]]), np.zeros(1))]  # at most 2 over the unit box


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three published properties, one of which one bound proves, and one that is violated."""
    dense(tmp_path / "n.onnx", LAYERS)
    with (tmp_path / "instances.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("id", "group", "net", "spec", "verdict", "kind", "crown_verified"))
        for k, (limit, verdict, crown) in enumerate(((9, "unsat", 1), (2.2, "unsat", 0), (2.1, "unsat", 0), (0.5, "sat", 0))):
            prop(tmp_path / f"p{k}.vnnlib", [(-1, 1)] * 2, 1, f"(>= Y_0 {limit})")
            rows.writerow((f"v{k}", "g", "n.onnx", f"p{k}.vnnlib", verdict, "official", crown))
    monkeypatch.setattr(certificates, "data_folder", lambda: tmp_path)
    return tmp_path


def table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: Path, *words: str) -> list[str]:
    """The last lines: what is told of the table."""
    monkeypatch.setattr("sys.argv", ["bench.certificates", "--out", str(out), *words])
    certificates.main()
    lines = capsys.readouterr().out.splitlines()
    return lines[next(k for k, line in enumerate(lines) if line.startswith(("real: ", "float32: "))) :]


def test_a_table_that_was_cut_off_goes_on(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out, own, asked = data / "t.csv", certificates.measure_row, list[tuple[str, str]]()

    def measured(row: dict[str, str], semantics: str, timeout: float, checking: float, folder: Path) -> dict[str, object]:
        asked.append((row["id"], semantics))
        if asked[-1] == ("v2", "real"):  # it took too long
            return {"id": "v2", "group": "g", "network": "n", "semantics": "real", "verdict": "timeout", "search_s": 60.0}
        return own(row, semantics, timeout, checking, folder)

    monkeypatch.setattr(certificates, "measure_row", measured)
    told = table(monkeypatch, capsys, out, "--semantics", "real")
    assert asked == [("v1", "real"), ("v2", "real")]
    assert len(told) == 1 and told[0].startswith("real: 1 of 1 proofs confirmed, 1 searches ended without one; CPU seconds: search ")
    told = table(monkeypatch, capsys, out, "--every")
    assert asked[2:] == [("v0", "real"), ("v0", "float32"), ("v1", "float32"), ("v2", "float32")]
    assert [line.partition(" proofs")[0] for line in told] == ["real: 2 of 2", "float32: 3 of 3", "both: 5 of 5"]
    assert told == table(monkeypatch, capsys, out, "--every") and len(asked) == 6
    rows = read_rows(out)
    assert len(rows) == 6 and all(float(r["margin"]) > 0 and int(r["bytes"]) > 0 for r in rows if r["verdict"] == "unsat")


def test_a_check_may_take_so_many_cpu_seconds(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of its own, whatever the clock says: a busy machine refuses no proof."""
    seen = list[bool]()

    def left_open(*_: object, guide: Guide) -> object:
        began = time.process_time()
        while time.process_time() - began < 0.05:
            pass
        seen.append(guide.deadline is not None and guide.clock() < guide.deadline)
        net, pieces, _ = checker.load(data / "n.onnx", data / "p1.vnnlib")
        prover, ((box, group),) = checker.Prover(net.data, "real"), pieces.items()
        boxes, (part,) = prover.bound([prover.root(box, [0])], -1)
        guide.divide(prover, group, boxes, [checker.Work(0, -1, 0, part)], np.zeros(1, np.int64))
        raise Refused("divided")

    monkeypatch.setattr(certificates.checker, "check", left_open)
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    words = ("--semantics", "real", "--ids", "v1", "--checking")
    assert table(monkeypatch, capsys, data / "a.csv", *words, "100")[1].endswith("Refused: divided") and seen == [True]
    assert table(monkeypatch, capsys, data / "b.csv", *words, "0.01")[1].endswith("the time for its search is up") and seen == [True, False]


def test_a_proof_that_is_not_confirmed_is_told(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A checker that refuses, and a disk that is full."""
    errors = iter([Refused("not so"), OSError("no room")])

    def refuse(*_: object, **__: object) -> object:
        raise next(errors)

    monkeypatch.setattr(certificates.checker, "check", refuse)
    told = table(monkeypatch, capsys, data / "t.csv", "--semantics", "real")
    assert told == [
        "real: 0 of 2 proofs confirmed, 0 searches ended without one",
        "  v1 real is not confirmed: Refused: not so",
        "  v2 real is not confirmed: OSError: no room",
    ]


def test_what_writing_costs_is_told(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench.certificates", "--notes", "1", "--semantics", "real", "--ids", "v1"])
    certificates.main()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("v1 real: 0 divisions; search ") and line.endswith(" of the search")
