"""Machine code from an artifact is loaded and launched as Triton does with its own: the driver is asked for the same, byte by byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")


def test_the_driver_is_asked_for_the_same() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kernels.fake_driver"],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(ran.stdout)
    if "skipped" in told:
        pytest.skip(told["skipped"])
    own, filed, release, gpu, odd = told["seen"]
    assert [s["by"] for s in told["seen"]] == ["own", "filed", "other release", "other GPU", "odd"]
    assert [s["filed"] for s in (own, filed, release, gpu)] == [False, True, False, False]
    assert len(own["loaded"]) == len(own["launched"]) == 1
    assert filed["loaded"] == own["loaded"]
    assert filed["launched"] == release["launched"] == gpu["launched"] == own["launched"]
    assert release["loaded"] == gpu["loaded"] == [], "Triton has it already"
    assert not odd["filed"], "tensors that begin elsewhere need other code"
