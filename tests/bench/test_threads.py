"""One thread beside several: a row a network and batch, the same margins, and the setting put back."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import threads


def test_both_sides_answer_alike_and_the_setting_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BATCH", 2)
    for name in threads.NETS:  # one that is quick to ask
        shutil.copy("examples/digits_conv_ibp.onnx", tmp_path / f"{name}.onnx")
    np.save(tmp_path / "mnist_x.npy", np.load("examples/digits.npz")["images"][:1].astype(np.float64))
    given, out = torch.get_num_threads(), tmp_path / "out.csv"
    assert threads.main(["--nets", str(tmp_path), "--only", "fc6x500", "--rounds", "2", "--csv", str(out)]) == 0
    assert torch.get_num_threads() == given
    with out.open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert [(r["network"], r["batch"], r["several"]) for r in rows] == [("fc6x500", "1", "2"), ("fc6x500", "2", "2")]
    for row in rows:
        lo, middle, hi, alone, shared, gap = (float(row[c]) for c in ("gain_lo", "gain", "gain_hi", "alone", "shared", "gap"))
        assert 0 < float(row["apart"]) < 4
        assert lo <= middle <= hi and min(alone, shared) > 0 and 0 <= gap < 1e-5 and "threads" not in row


@pytest.mark.parametrize("wrong", [["--only", "nonsense"], ["--threads", "1"], ["--rounds", "1"]])
def test_wrong_usage_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        threads.main(wrong)
    assert caught.value.code == 2 and "error:" in capsys.readouterr().err
