"""Whose kernels are run: those that this user's polytriton made, or made again and found the same."""

from __future__ import annotations

import json
import os
import re
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
from polytriton.kernels.emit import blank_name, kernel_name
from polytriton.kernels.files import FOLDER, INDEX, LAUNCHES, REPORT, Kernels, emit_files
from polytriton.knobs import scope
from tests.artifact.test_artifact_kernels import rehash, reseal, with_reports
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


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often kernels were made again."""
    seen, own = list[str](), known.differing

    def counted(*given: object) -> list[str]:
        seen.append("again")
        return own(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(known, "differing", counted)
    return seen


def sealed(verifier: polytriton.Verifier, kernels: Kernels) -> Manifest:
    assert verifier.imported is not None
    return pack(verifier.compiled, verifier.imported, kernels)[0]


def test_made_elsewhere_they_are_made_again_once(
    verifier: polytriton.Verifier, kernels: Kernels, cache: Path, tmp_path: Path, compared: list[str]
) -> None:
    path = write_artifact(verifier, tmp_path / "net.poly", kernels)
    polytriton.load(path)
    assert compared == [], "nothing of it is run on the CPU"
    for _ in range(2):
        held = polytriton.load(path, device="interpret").compiled.filed
        assert held == replace(kernels.filed, code={}, triton="")
        assert compared == ["again"]
    with scope(cache=None):
        polytriton.load(path, device="interpret")
    assert compared == ["again"] * 2


def test_ones_own_are_known(verifier: polytriton.Verifier, kernels: Kernels, cache: Path, tmp_path: Path, compared: list[str]) -> None:
    path = write_artifact(verifier, tmp_path / "net.poly", kernels)
    known.remember(sealed(verifier, kernels), known.TEXTS, known.MACHINE)
    assert polytriton.load(path, device="interpret").compiled.filed == kernels.filed
    assert compared == []


@pytest.mark.parametrize("what", ["library", "kernel", "network", "code"])
def test_a_mark_is_of_everything_that_decides(
    verifier: polytriton.Verifier, kernels: Kernels, cache: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    manifest = sealed(verifier, kernels)
    known.remember(manifest, known.TEXTS, known.MACHINE)
    assert known.is_known(manifest, known.TEXTS) and known.is_known(manifest, known.MACHINE)
    if what == "library":
        monkeypatch.setattr(known, "library_digest", lambda: "0" * 64)
    else:
        name = {"kernel": next(iter(kernels.files)), "network": "net.ptir", "code": f"{FOLDER}/cuda_90.safetensors"}[what]
        manifest.files[name] = type(manifest.files[name])("0" * 64, 1)
    assert known.is_known(manifest, known.TEXTS) == (what == "code")
    assert not known.is_known(manifest, known.MACHINE)


def forge(path: Path, marker: Path) -> None:
    """Code of somebody who knows everything about artifacts: name, hashes, index and manifest fit."""
    kernel = next((path / FOLDER).glob("*.py"))
    old, index = kernel.stem, json.loads((path / INDEX).read_text())
    entry = index["kernels"].pop(old)
    text = rehash(re.sub(r"(#   sha256 .*\n)", rf"\1open({str(marker)!r}, 'w')\n", kernel.read_text(), count=1))
    function, source = old.rpartition("_")[0], text.partition("#   sha256    ")[2].partition("\n")[2]
    new = kernel_name(function, source.replace(old, blank_name(function)), tuple(entry["types"]), entry["warps"], entry["stages"])
    (path / FOLDER / f"{new}.py").write_text(rehash(text.replace(old, new)))
    kernel.unlink()
    index["kernels"] = {**index["kernels"], new: entry}
    (path / INDEX).write_text(json.dumps(index))
    launches = path / FOLDER / "launches.ptir"
    launches.write_text(launches.read_text().replace(old, new))
    names = set(json.loads((path / "manifest.json").read_bytes())["files"]) - {f"{FOLDER}/{old}.py"} | {f"{FOLDER}/{new}.py"}
    reseal(path, names)


def test_a_forgery_is_read_but_never_run(verifier: polytriton.Verifier, cache: Path, tmp_path: Path) -> None:
    path = write_artifact(verifier, tmp_path / "net.poly", emit_files(verifier.compiled, ("interpret",), ("float32",)))
    forge(path, tmp_path / "ran")
    assert read_artifact(path).kernels is not None
    for _ in range(2):
        with pytest.raises(ArtifactError, match="is not what this version makes of its network"):
            polytriton.load(path, device="interpret")
    assert not (tmp_path / "ran").exists()


def test_a_cache_that_cannot_be_written_costs_time(
    verifier: polytriton.Verifier, kernels: Kernels, tmp_path: Path, compared: list[str]
) -> None:
    path = write_artifact(verifier, tmp_path / "net.poly", kernels)
    (tmp_path / "file").write_text("no folder")
    with scope(cache=tmp_path / "file"):
        for _ in range(2):
            assert polytriton.load(path, device="interpret").compiled.filed is not None
    assert compared == ["again"] * 2


@pytest.mark.parametrize("mode", [0o777, 0o720, "link"])
def test_a_mark_that_another_user_may_have_made_is_none(
    verifier: polytriton.Verifier, kernels: Kernels, cache: Path, tmp_path: Path, mode: int | str
) -> None:
    manifest = sealed(verifier, kernels)
    assert known.remember(manifest, known.TEXTS)
    if mode == "link":
        (cache / "known").rename(tmp_path / "elsewhere")
        (cache / "known").symlink_to(tmp_path / "elsewhere")
    else:
        os.chmod(cache / "known", int(mode))
    assert not known.is_known(manifest, known.TEXTS)
    assert not known.remember(manifest, known.TEXTS)


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
        known.remember(msgspec.structs.replace(manifest, options={"output": str(k)}), known.TEXTS)
    assert len(list((cache / "known").iterdir())) == 3
