"""`polytriton tune` and `inspect --cost` as a user meets them, mistakes included."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from polytriton.artifact import MANIFEST, Manifest, read_artifact
from polytriton.cli import main
from polytriton.commands.tune import parse_time
from polytriton.errors import ArtifactError, UsageError
from polytriton.tuned import TUNED


@pytest.mark.parametrize(
    "more, code, word",
    [
        ([], 2, "which network?"),
        (["NET", "--budget", "soon"], 2, "is no time"),
        (["NET", "--trials", "0"], 2, "is none"),
        (["NET", "--runs", "0"], 2, "out of range"),
        (["NET", "--resume", "--overwrite"], 2, "exclude each other"),
        (["NET", "--target", "cuda:1"], 2, "no such GPU"),
        (["NET", "--device", "interpret"], 2, "nothing to tune"),
        (["NET", "--epsilon", "0.1"], 2, "belongs to --images"),
        (["NET", "--vnnlib", "nowhere.vnnlib"], 2, "no property file"),
        (["nowhere.poly"], 2, "no artifact"),
        (["net.onnx"], 2, "is a model"),
    ],
)
def test_mistakes(poly: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, word: str) -> None:
    before = sorted(p.name for p in poly.parent.iterdir())
    assert main(["tune", *(str(poly) if m == "NET" else m for m in more)]) == code
    said = capsys.readouterr()
    assert word in said.err and "remedy" in said.err and not said.out
    assert sorted(p.name for p in poly.parent.iterdir()) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_its_tuning_says_what_works(poly: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(poly), "--device", "cuda"]) == 2
    assert "no CUDA GPU" in capsys.readouterr().err


def test_times() -> None:
    assert [parse_time(t) for t in ("90", "90s", "5m", "1.5h", " 2 m ")] == [90, 90, 300, 5400, 120]
    for wrong in ("", "m", "5d", "-1s", "1e3"):
        with pytest.raises(UsageError):
            parse_time(wrong)


@pytest.mark.slow
def test_a_session_by_its_command(poly: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its result is one JSON document, its progress goes to stderr, and the artifact has its file."""
    assert main(["tune", str(poly), "--trials", "2", "--runs", "1", "--threads", "1", "--json"]) == 0
    said = capfd.readouterr()
    document = json.loads(said.out)
    assert document["trials"] == 2 and document["default_seconds"] > 0 and not document["interrupted"]
    assert "trials, default" in said.err and "of the roofline" in said.err and "s left" in said.err
    held = read_artifact(poly)
    assert held.tuned is not None and held.tuned.entries[0].config == document["config"]
    assert TUNED in held.manifest.files
    assert main(["tune", str(poly)]) == 2  # the folder holds a session
    assert "--resume" in capfd.readouterr().err
    _damaged(poly)


def _damaged(poly: Path) -> None:
    good = (poly / TUNED).read_bytes()
    (poly / TUNED).write_bytes(good.replace(b'"seed": 0', b'"seed": 1'))
    with pytest.raises(ArtifactError, match="damaged"):
        read_artifact(poly)
    (poly / TUNED).unlink()
    with pytest.raises(ArtifactError, match="missing"):
        read_artifact(poly)
    (poly / TUNED).write_bytes(good)
    read_artifact(poly)


@pytest.mark.parametrize(
    "data", [b"{}", b"[]", b"\xff", b'{"format": "x", "version": 1, "entries": []}', b'{"version": 2, "entries": []}']
)
def test_foreign_configurations_are_refused(poly: Path, data: bytes) -> None:
    """Even where the manifest vouches for them."""
    import hashlib

    import msgspec

    from polytriton.artifact import FileEntry

    manifest = msgspec.json.decode((poly / MANIFEST).read_bytes(), type=Manifest)
    (poly / TUNED).write_bytes(data)
    files = {**manifest.files, TUNED: FileEntry(hashlib.sha256(data).hexdigest(), len(data))}
    (poly / MANIFEST).write_bytes(msgspec.structs.replace(manifest, files=files).seal().encode())
    with pytest.raises(ArtifactError, match="no configurations of this version"):
        read_artifact(poly)


def test_costs_are_shown(poly: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(poly), "--cost"]) == 0
    shown = capsys.readouterr().out
    assert "predicted ms" in shown and "measured ms" in shown and "everything else" in shown
    assert main(["inspect", str(poly), "--cost", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cpu"]["kernels"][0]["measured"] > 0
    shutil.rmtree(poly)
