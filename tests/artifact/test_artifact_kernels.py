"""Kernels in an artifact: which they are, and none is read but those this version makes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import polytriton
from polytriton import artifact as A
from polytriton.errors import ArtifactError, ResourceError, UsageError
from polytriton.ir.launches import COUNTED
from polytriton.kernels import stock
from polytriton.kernels.files import INDEX, LAUNCHES, REPORT, Kernels, code_path, differing, emit_files
from polytriton.kernels.spec import Report
from tests.artifact.test_artifact import DAMAGE
from tests.cli import tiny

ROOT = Path(__file__).parents[2]


def with_reports(kernels: Kernels) -> Kernels:
    """As after compilation."""
    counts = dict.fromkeys(COUNTED, 1)
    made = [Report(k.name, t, 40, 128, 0, 0, 0, counts, 48, 9000, 1.5, False) for t in kernels.gpus for k in kernels.machine]
    cubins = {t: {k.name: f"{t} {k.name}".encode() for k in kernels.machine} for t in kernels.gpus}
    return kernels.with_code(made, cubins, "3.7.1")


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> polytriton.Verifier:
    return polytriton.compile(tiny.brightest(tmp_path_factory.mktemp("model") / "net.onnx"))


@pytest.fixture(scope="module")
def kernels(verifier: polytriton.Verifier) -> Kernels:
    return with_reports(emit_files(verifier.compiled, ("cuda:80", "cuda:90"), ("float64", "float32")))


@pytest.fixture
def poly(verifier: polytriton.Verifier, kernels: Kernels, tmp_path: Path) -> Path:
    return A.write_artifact(verifier, tmp_path / "net.poly", kernels)


def contents(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def reseal(path: Path, files: set[str] | None = None, **changes: Any) -> None:
    """A manifest whose hashes fit what lies there, as a forger would leave it; `files` instead of those it named."""
    manifest = msgspec.json.decode((path / A.MANIFEST).read_bytes(), type=A.Manifest)
    held = contents(path)
    names = manifest.files.keys() if files is None else files
    entries = {n: A.FileEntry(hashlib.sha256(held.get(n, b"")).hexdigest(), len(held.get(n, b""))) for n in names}
    (path / A.MANIFEST).write_bytes(msgspec.structs.replace(manifest, files=entries, **changes).seal().encode())


def named(path: Path) -> set[str]:
    return set(json.loads((path / A.MANIFEST).read_bytes())["files"])


def test_a_compiled_kernel_says_what_became_of_it(kernels: Kernels) -> None:
    text = kernels.kernel_text(next(k.name for k in kernels.machine))
    for target in kernels.gpus:
        assert re.search(rf"^#   {target}   40 registers, 0 spills, 1 DMMA", text, re.M)


# ---- round trip -------------------------------------------------------------------------------------------------


def test_reads_back_what_was_written(verifier: polytriton.Verifier, kernels: Kernels, poly: Path, tmp_path: Path) -> None:
    back = A.read_artifact(poly)
    assert back.kernels is not None
    assert back.compiled == verifier.compiled
    assert back.kernels.used == kernels.used
    assert back.kernels.steps == kernels.steps
    assert back.kernels.machine == kernels.machine
    assert back.kernels.triton == "3.7.1"
    assert back.kernels.reports == tuple(replace(r, seconds=0.0, cached=True) for r in kernels.reports)
    assert back.manifest.options == {"output": "y", "candidates": "all", "target": "cuda:80,cuda:90", "numerics": "float64,float32"}
    assert back.kernels.filed == kernels.filed
    assert back.compiled.filed is None
    assert set(contents(poly)) == {A.MANIFEST, *A.FILES, REPORT, INDEX, LAUNCHES, *map(code_path, kernels.gpus)}
    again = replace(kernels, reports=tuple(replace(r, seconds=9.0, cached=True) for r in kernels.reports))
    assert contents(A.write_artifact(verifier, tmp_path / "again.poly", again)) == contents(poly)
    assert contents(polytriton.load(poly).save(tmp_path / "saved.poly")) == contents(poly)
    moved = shutil.move(poly, tmp_path / "moved.poly")
    x = np.array(tiny.BRIGHT).reshape(1, 2, 2)
    assert polytriton.load(moved).verify(x, 0.1).verdict == "unsat"


def test_emitted_kernels_need_no_report(verifier: polytriton.Verifier, tmp_path: Path) -> None:
    made = emit_files(verifier.compiled, ("interpret",), ("float32",))
    assert made.machine == made.gpus == ()
    path = A.write_artifact(verifier, tmp_path / "net.poly", made)
    assert not (path / REPORT).exists()
    assert A.read_artifact(path).kernels == made
    both = emit_files(verifier.compiled, ("interpret", "cuda:90"), ("float32",))
    assert both.steps.keys() == made.steps.keys() | emit_files(verifier.compiled, ("cuda:90",), ("float32",)).steps.keys()
    assert len(both.machine) < len(both.steps)


def test_without_kernels_nothing_is_added(verifier: polytriton.Verifier, tmp_path: Path) -> None:
    path = verifier.save(tmp_path / "net.poly")
    assert set(contents(path)) == {A.MANIFEST, *A.FILES}
    assert A.read_artifact(path).kernels is None
    assert A.read_artifact(path).manifest.options == {"output": "y", "candidates": "all"}


# ---- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("file", [REPORT, INDEX, LAUNCHES, code_path("cuda:90")])
def test_damage_is_refused(poly: Path, file: str, kind: str) -> None:
    path = poly / file
    DAMAGE[kind](path)
    with pytest.raises(ArtifactError) as refused:
        polytriton.load(poly)
    assert path.name in refused.value.message
    assert "polytriton compile" in refused.value.remedy


def changed(entry: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    return {**entry, "constants": {**entry["constants"], name: value}}


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: {**entry, "family": "measure_boxes"},
        lambda entry: {**entry, "family": "os.system"},
        lambda entry: {**entry, "numerics": []},
        lambda entry: {**entry, "numerics": ["float8"]},
        lambda entry: {**entry, "parameters": dict(reversed(entry["parameters"].items()))},
        lambda entry: {**entry, "parameters": {**entry["parameters"], "out_ptr": "*i64"}},
        lambda entry: {**entry, "parameters": {}},
        lambda entry: {**entry, "warps": 2},
        lambda entry: {**entry, "stages": 2},
        lambda entry: changed(entry, "SUM_ERROR", 1.0),
        lambda entry: changed(entry, "MORE", 1),
        lambda entry: changed(entry, "BR", "tl.float64"),
    ],
)  # fmt: skip
def test_a_kernel_is_what_its_name_says(poly: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    index = json.loads((poly / INDEX).read_text())
    name = next(n for n in index["kernels"] if n.startswith("dense_step"))
    index["kernels"][name] = change(index["kernels"][name])
    (poly / INDEX).write_text(json.dumps(index))
    reseal(poly)
    with pytest.raises(ArtifactError, match=r"the kernels of .* do not fit each other") as refused:
        polytriton.load(poly)
    assert "--target cuda:80,cuda:90" in refused.value.remedy


@pytest.mark.parametrize("text", ["", "[]", "{", '{"library": 1}'])
def test_an_index_of_another_hand_is_refused(poly: Path, text: str) -> None:
    (poly / INDEX).write_text(text)
    reseal(poly)
    with pytest.raises(ArtifactError, match=r"the kernels of .* do not fit each other"):
        A.read_artifact(poly)


def test_kernels_of_another_library_are_stale(poly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytriton.kernels.files.library_digest", lambda: "0" * 64)
    with pytest.raises(ArtifactError, match=r"are stale: another version of polytriton made them") as refused:
        polytriton.load(poly)
    assert "polytriton compile NET.onnx" in refused.value.remedy


def test_the_library_is_all_that_decides_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name for name, _ in stock._sources(resources.files("polytriton.kernels"), "")}
    assert {"catalogue.py", "launches.py", "device/dense.py", "device/numerics.py"} <= names
    before = stock.library_digest()
    monkeypatch.setattr(stock, "_sources", lambda *_: [("dense.py", b"else")])
    stock.library_digest.cache_clear()
    try:
        assert stock.library_digest() != before
    finally:
        stock.library_digest.cache_clear()


@pytest.mark.parametrize("change", ["steps", "launches", "kernels"])
def test_made_again_whatever_was_written_otherwise_shows(verifier: polytriton.Verifier, kernels: Kernels, change: str) -> None:
    assert differing(kernels, verifier.compiled) == []
    filed = kernels.filed
    first = next(iter(filed.kernels))
    if change == "steps":
        other, name = replace(kernels, steps={**kernels.steps, first: ("%else",)}), INDEX
    elif change == "launches":
        key, text = next(iter(filed.programs.items()))
        other, name = replace(kernels, filed=replace(filed, programs={**filed.programs, key: text + "// mine\n"})), LAUNCHES
    else:
        other, name = replace(kernels, filed=replace(filed, kernels={k: v for k, v in filed.kernels.items() if k != first})), INDEX
    assert differing(other, verifier.compiled) == [name]


def test_files_the_manifest_does_not_name_are_ignored(poly: Path) -> None:
    before = A.read_artifact(poly)
    (poly / "kernels" / "notes.txt").write_text("mine")
    (poly / "kernels" / "__pycache__").mkdir()
    (poly / "kernels" / "another_0123456789.py").write_text("raise SystemExit")
    assert A.read_artifact(poly) == before


@pytest.mark.parametrize(
    "name",
    [
        "kernels/../evil.py",
        "kernels/../../evil.py",
        "/etc/kernels/evil.py",
        "../kernels/evil.py",
        "kernels//evil.py",
        "kernels/sub/evil.py",
        "kernels\\evil.py",
        "kernels/evil.py\n",
        "kernels/evil.pyc",
        "kernels/Evil.py",
        "kernels/.py",
        "kernels/.hidden.py",
        "kernels/évil.py",
        "kernels/report.json/x.py",
        "kernels/reportXjson",
        "kernels/" + "a" * 300 + ".py",
        "kernels",
        "evil.py",
    ],
)
def test_no_name_leads_outside(poly: Path, name: str) -> None:
    reseal(poly, named(poly) | {name})
    with pytest.raises(ArtifactError, match=r"manifest\.json is damaged"):
        A.read_artifact(poly)


@pytest.mark.parametrize(
    "options",
    [
        {"target": "cuda:90,tpu", "numerics": "float64"},
        {"target": "", "numerics": "float64"},
        {"target": "cuda:80,cuda:90", "numerics": "float8"},
        {"target": "cuda:80,cuda:90"},
        {"target": "interpret", "numerics": "float64,float32"},
        {},
    ],
)
def test_options_that_do_not_fit_are_refused(poly: Path, options: dict[str, str]) -> None:
    reseal(poly, options={"output": "y", "candidates": "all", **options})
    with pytest.raises(ArtifactError, match=r"manifest\.json is damaged"):
        A.read_artifact(poly)


def test_other_numerics_have_other_kernels(poly: Path) -> None:
    reseal(poly, options={"output": "y", "candidates": "all", "target": "cuda:80,cuda:90", "numerics": "float64"})
    with pytest.raises(ArtifactError, match=r"index\.json is of cuda:80, cuda:90 in float64, float32"):
        A.read_artifact(poly)


def _first(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda report: {**report, "kernels": [{**report["kernels"][0], **changes}, *report["kernels"][1:]]}


@pytest.mark.parametrize(
    "change",
    [
        _first(name="another"),
        _first(target="cuda:86"),
        _first(registers="many"),
        lambda report: {**report, "kernels": report["kernels"][1:]},
        lambda report: {**report, "kernels": [{"name": "x"}]},
        lambda report: {**report, "kernels": None},
        lambda report: {"kernels": report["kernels"]},
        lambda report: {**report, "more": 1},
        lambda report: [],
    ],
)
def test_a_report_on_something_else_is_refused(poly: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    (poly / REPORT).write_text(json.dumps(change(json.loads((poly / REPORT).read_text()))))
    reseal(poly)
    with pytest.raises(ArtifactError, match=r"report\.json is not the report on these kernels"):
        A.read_artifact(poly)


# ---- writing ----------------------------------------------------------------------------------------------------


def test_replaces_an_artifact_with_kernels_even_a_damaged_one(verifier: polytriton.Verifier, kernels: Kernels, poly: Path) -> None:
    before = contents(poly)
    (poly / INDEX).write_text("?")
    (poly / "kernels" / "conv_step_0123456789.py").write_text("as artifacts of earlier formats hold them")
    (poly / REPORT).unlink()
    (poly / A.MANIFEST).unlink()
    A.write_artifact(verifier, poly, kernels)
    assert contents(poly) == before
    verifier.save(poly)
    assert set(contents(poly)) == {A.MANIFEST, *A.FILES}
    assert [p.name for p in poly.parent.iterdir()] == ["net.poly"]


def test_never_replaces_what_is_not_its_own(verifier: polytriton.Verifier, poly: Path) -> None:
    (poly / "kernels" / "notes.txt").write_text("precious")
    before = contents(poly)
    with pytest.raises(UsageError, match="not overwritten"):
        verifier.save(poly)
    assert contents(poly) == before
    shutil.rmtree(poly / "kernels")
    (poly / "kernels").write_text("a file")
    with pytest.raises(UsageError, match="not overwritten"):
        verifier.save(poly)
    assert (poly / "kernels").read_text() == "a file"


@pytest.mark.parametrize("at", [0, 5, -3, -1])
@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_leaves_nothing_behind(
    verifier: polytriton.Verifier, kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, existing: bool
) -> None:
    """Whichever file it is that no longer fits: that of a kernel, or the folder itself."""
    path = tmp_path / "net.poly"
    before = contents(verifier.save(path)) if existing else {}
    total = len(A.FILES) + 1 + len(kernels.contents()) + 2  # every file once, both folders
    calls = 0

    def fail(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls - 1 == at % total:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(ResourceError, match="disk is full"):
            A.write_artifact(verifier, path, kernels)
    assert [p.name for p in tmp_path.iterdir()] == ["net.poly"] * existing
    assert (contents(path) if existing else {}) == before
