"""A certificate that cannot be written: the verdict stands, the run goes on, and no half of a file is left."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest

import polytriton
from polytriton.prove import notes
from tests.certificate.models import prop
from tests.cli.conftest import Cli
from tests.prove.piecewise import drawn

UNWRITTEN = "unsat stands, but the certificate could not be written: "


@pytest.fixture
def searched(here: Path) -> None:
    """A property whose box must be divided: a little below the least output that many inputs show."""
    onnx.save(drawn(np.random.default_rng(1), 2, (8, 8)).model(), here / "net.onnx")
    x = np.random.default_rng(0).uniform(-1, 1, (3000, 2)).astype(np.float32)
    least = float(polytriton.compile(here / "net.onnx", device="cpu").predict(x)[:, 0].min())
    prop(here / "far.vnnlib", [(-1, 1)] * 2, 1, f"(<= Y_0 {least - 0.05 * (abs(least) + 0.1):.6f})")
    (here / "list.csv").write_text("net.onnx,far.vnnlib,60\nnet.onnx,near.vnnlib,60\n")
    prop(here / "near.vnnlib", [(0, 0.01)] * 2, 1, f"(<= Y_0 {least - 1:.6f})")


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_notes_that_find_no_room(cli: Cli, here: Path, searched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other certificate of the run needs no notes on a disk, and is written."""
    monkeypatch.setattr(notes, "BLOCK", 1)
    monkeypatch.setattr(notes.tempfile, "TemporaryFile", lambda **_: open("/dev/full", "r+b", buffering=0))  # noqa: SIM115
    said = cli("verify", "net.onnx", "far.vnnlib", "--certificate", "a.cert")
    assert (said.code, said.out) == (3, "unsat\n")
    assert f"{UNWRITTEN}notes of the search could not be written to {here}: No space left on device" in said.err
    assert f"remedy: free some space in {here}, or name a place elsewhere" in said.err
    run = ("run", "--instances", "list.csv", "--search", "auto", "--json", "r.jsonl", "--certificates", "c", "--workers", "1")
    said = cli(*run)
    assert said.code == 3 and "2 unsat" in said.out
    assert f"polytriton: far: {UNWRITTEN}" in said.err and said.err.endswith("c: certificates of 1 of 2 unsat\n")
    assert [json.loads(line)["verdict"] for line in (here / "r.jsonl").read_text().splitlines()] == ["unsat", "unsat"]
    assert len(list((here / "c").iterdir())) == 1 and not (here / "a.cert").exists() and not list(here.glob(".*"))
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert cli(*run, "--resume").code == 0  # room was made: what is missing is written


def test_a_certificate_that_finds_no_room(cli: Cli, here: Path, searched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "a.cert").write_bytes(b"an earlier one")
    with monkeypatch.context() as patch:
        patch.setattr("polytriton.whole.os.fsync", no_room)
        said = cli("verify", "net.onnx", "near.vnnlib", "--certificate", "a.cert")
    assert (said.code, said.out) == (3, "unsat\n")
    assert f"{UNWRITTEN}no space left on the disk" in said.err and f"free some space in {here}" in said.err
    assert (here / "a.cert").read_bytes() == b"an earlier one" and not list(here.glob(".*"))


def test_a_folder_that_nobody_may_write_to_is_said_before_the_search(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("polytriton.certificate.ask.tempfile.TemporaryFile", refused)
    monkeypatch.setattr("polytriton.prove.prover.Decision", None)
    said = cli("verify", "net.onnx", "safe.vnnlib", "--certificate", "a.cert")
    assert said.code == 2 and "cannot write a certificate to a.cert: Permission denied" in said.err
    said = cli("run", "net.onnx", "--vnnlib", "safe.vnnlib", "--certificates", "c")
    assert said.code == 2 and "cannot write certificates to c: Permission denied" in said.err
