"""Whose kernels are run: launches that are made again and found the same, machine code that this user's polytriton made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import polytriton
from polytriton import known
from polytriton.artifact import Manifest, pack, read_artifact, write_artifact
from polytriton.cli import main
from polytriton.errors import ArtifactError
from polytriton.kernels.files import FOLDER, INDEX, LAUNCHES, REPORT, Kernels, emit_files
from polytriton.knobs import scope
from tests.artifact.test_artifact_kernels import reseal, with_reports
from tests.cli import tiny


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> polytriton.Verifier:
    return polytriton.compile(tiny.brightest(tmp_path_factory.mktemp("model") / "net.onnx"))


@pytest.fixture(scope="module")
def kernels(verifier: polytriton.Verifier) -> Kernels:
    return with_reports(emit_files(verifier.compiled, ("interpret", "cuda:90"), ("float32",)))


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with scope(cache=tmp_path / "cache"):
        yield tmp_path / "cache"


def sealed(verifier: polytriton.Verifier, kernels: Kernels) -> Manifest:
    assert verifier.imported is not None
    return pack(verifier.compiled, verifier.imported, kernels)[0]


def test_machine_code_from_elsewhere_is_not_run(verifier: polytriton.Verifier, kernels: Kernels, cache: Path, tmp_path: Path) -> None:
    path = write_artifact(verifier, tmp_path / "net.poly", kernels)
    assert polytriton.load(path, device="interpret").compiled.filed == replace(kernels.filed, code={}, triton="")


def test_ones_own_is_known(
    verifier: polytriton.Verifier, kernels: Kernels, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its launches are not made again."""
    path = write_artifact(verifier, tmp_path / "net.poly", kernels)
    known.remember(sealed(verifier, kernels))
    monkeypatch.setattr(known, "compare_kernels", None)
    assert polytriton.load(path, device="interpret").compiled.filed == kernels.filed


@pytest.mark.parametrize(("trusts", "compiles", "told"), [(True, False, True), (True, True, False), (False, True, False)])
def test_records_name_machine_code_that_was_trusted(
    verifier: polytriton.Verifier, kernels: Kernels, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    trusts: bool, compiles: bool, told: bool,
) -> None:  # fmt: skip
    """Whichever came first, what was compiled here is one's own; and only where the code runs."""
    path = write_artifact(verifier, tmp_path / "net.poly", kernels)
    if trusts:
        assert main(["inspect", str(path), "--trust"]) == 0
    if compiles:
        known.remember(sealed(verifier, kernels))
    if trusts:
        assert main(["inspect", str(path), "--trust"]) == 0
    found = polytriton.load(path, device="interpret")
    assert found.compiled.filed == replace(kernels.filed, trusted=told) and found.trusted_code == ""
    monkeypatch.setattr("polytriton.api.capability", lambda device: "cuda:90")
    monkeypatch.setattr("polytriton.kernels.load.version", lambda: kernels.triton)
    monkeypatch.setattr(found, "options", replace(found.options, device="cuda"))
    assert bool(found.trusted_code) == told
    monkeypatch.setattr("polytriton.kernels.load.version", lambda: "another")
    assert found.trusted_code == ""


def test_a_record_ends_its_note_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polytriton.Verifier, "trusted_code", "by code of somebody's")
    net, prop, out = tiny.brightest(tmp_path / "net.onnx"), tiny.robust(tmp_path / "p.vnnlib", 0.01), tmp_path / "r.jsonl"
    assert main(["verify", str(net), str(prop), "--json", str(out)]) == 0
    assert json.loads(out.read_text())["note"] == "by code of somebody's"


@pytest.mark.parametrize("what", ["library", "kernel", "network", "code"])
def test_a_mark_is_of_everything_that_decides(
    verifier: polytriton.Verifier, kernels: Kernels, cache: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    manifest = sealed(verifier, kernels)
    known.remember(manifest)
    assert known.is_known(manifest)
    if what == "library":
        monkeypatch.setattr(known, "library_digest", lambda: "0" * 64)
    else:
        name = {"kernel": INDEX, "network": "net.ptir", "code": f"{FOLDER}/cuda_90.safetensors"}[what]
        manifest.files[name] = type(manifest.files[name])("0" * 64, 1)
    assert not known.is_known(manifest)


def forge(path: Path, target: str) -> None:
    """Launches of somebody who knows everything about artifacts: a query's rows pay for nothing, and every hash fits."""
    launches = path / LAUNCHES
    begin, _, end = launches.read_text().partition(target)
    assert end
    launches.write_text(begin + target + end.replace("error_ptr=error:0", "error_ptr=constant:0", 1))
    reseal(path)


def test_a_forgery_is_read_but_never_run(verifier: polytriton.Verifier, cache: Path, tmp_path: Path) -> None:
    path = write_artifact(verifier, tmp_path / "net.poly", emit_files(verifier.compiled, ("interpret",), ("float32",)))
    forge(path, "query %")
    assert read_artifact(path).kernels is not None
    for _ in range(2):
        with pytest.raises(ArtifactError, match="is not what this version makes of its network"):
            polytriton.load(path, device="interpret")


@pytest.mark.parametrize("mode", [0o777, 0o720, "link"])
def test_a_mark_that_another_user_may_have_made_is_none(
    verifier: polytriton.Verifier, kernels: Kernels, cache: Path, tmp_path: Path, mode: int | str
) -> None:
    manifest = sealed(verifier, kernels)
    assert known.remember(manifest)
    if mode == "link":
        (cache / "known").rename(tmp_path / "elsewhere")
        (cache / "known").symlink_to(tmp_path / "elsewhere")
    else:
        os.chmod(cache / "known", int(mode))
    assert not known.is_known(manifest)
    assert not known.remember(manifest)


def test_trust_that_cannot_be_kept_is_refused(
    verifier: polytriton.Verifier, kernels: Kernels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_artifact(verifier, tmp_path / "net.poly", kernels)
    for cache in (None, tmp_path / ("n" * 300)):
        with scope(cache=cache):
            assert polytriton.load(path, device="interpret").compiled.filed is not None
            assert main(["inspect", str(path), "--trust"]) == 2
        assert "from now on" not in capsys.readouterr().out


@pytest.mark.parametrize("what", ["steps", "no steps", "launches", "instructions", "triton", "blocks", "registers"])
def test_what_no_compiler_says_is_refused(verifier: polytriton.Verifier, kernels: Kernels, tmp_path: Path, what: str) -> None:
    """Neither a terminal nor ptxas is told what a stranger wrote."""
    path = write_artifact(verifier, tmp_path / "net.poly", kernels)
    index, report = (json.loads((path / name).read_text()) for name in (INDEX, REPORT))
    entry, first = next(iter(index["kernels"].values())), report["kernels"][0]
    if what in ("steps", "no steps"):
        entry["steps"] = ["\x1b[2J"] if what == "steps" else []
    elif what == "launches":
        (path / LAUNCHES).write_text((path / LAUNCHES).read_text() + "// \x1b[2J")
    elif what == "triton":
        report["triton"] = "\x1b[2J"
    else:
        first[what] = {"instructions": {"\x1b[2J": 1}, "blocks": 33, "registers": -1}[what]
    (path / INDEX).write_text(json.dumps(index))
    (path / REPORT).write_text(json.dumps(report))
    reseal(path)
    with pytest.raises(ArtifactError, match="compile it again"):
        read_artifact(path)


def test_marks_do_not_pile_up(verifier: polytriton.Verifier, kernels: Kernels, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MARKS", 3)
    manifest = sealed(verifier, kernels)
    for k in range(6):
        known.remember(msgspec.structs.replace(manifest, options={"output": str(k)}))
    assert len(list((cache / "known").iterdir())) == 3
