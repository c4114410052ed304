"""net.poly/: the same bytes every time, whole or not at all, and nothing but intact bytes is read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

import polytriton
from polytriton import artifact as A
from polytriton.cache import cached_artifact
from polytriton.errors import ArtifactError, PolytritonError, ResourceError, UnsupportedModel, UsageError
from polytriton.knobs import Knobs, knobs, read, scope
from tests.cli import tiny
from tests.processes import plain_environment

ALL = (A.MANIFEST, *A.FILES)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.brightest(tmp_path_factory.mktemp("model") / "net.onnx")


@pytest.fixture(scope="module")
def verifier(model: Path) -> polytriton.Verifier:
    return polytriton.compile(model)


@pytest.fixture
def poly(verifier: polytriton.Verifier, tmp_path: Path) -> Path:
    return verifier.save(tmp_path / "net.poly")


def contents(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir()}


def reseal(path: Path, **changes: object) -> None:
    """A manifest whose hashes fit again, as a forger would leave it."""
    manifest = msgspec.json.decode((path / A.MANIFEST).read_bytes(), type=A.Manifest)
    entries = {n: A.FileEntry(hashlib.sha256(d).hexdigest(), len(d)) for n, d in contents(path).items() if n in A.FILES}
    manifest = msgspec.structs.replace(manifest, **{"files": entries, **changes})
    (path / A.MANIFEST).write_bytes(manifest.seal().encode())


# ---- round trip -------------------------------------------------------------------------------------------------


def test_reads_back_what_was_written(verifier: polytriton.Verifier, poly: Path) -> None:
    back = polytriton.load(poly)
    assert back.net == verifier.net
    assert back.compiled.plan == verifier.compiled.plan
    assert back.source == verifier.source
    assert back.net.weights.keys() == verifier.net.weights.keys()
    for name, array in verifier.net.weights.items():
        assert back.net.weights[name].dtype == array.dtype
        np.testing.assert_array_equal(back.net.weights[name], array)
    x = np.array(tiny.BRIGHT).reshape(1, 2, 2)
    for v in (verifier, back):
        assert v.verify(x, 0.1).verdict == "unsat"
        assert v.verify(x, 0.5).verdict == "sat"
    np.testing.assert_array_equal(back.bounds(x - 0.1, x + 0.1).lo, verifier.bounds(x - 0.1, x + 0.1).lo)
    assert set(contents(poly)) == set(ALL)


def test_candidates_are_kept(model: Path, tmp_path: Path) -> None:
    path = polytriton.compile(model, candidates="input").save(tmp_path / "a.poly")
    assert polytriton.load(path).options.candidates == "input"
    assert polytriton.load(path, candidates="all").options.candidates == "all"


@pytest.mark.slow
def test_same_bytes_in_every_process(model: Path, poly: Path, tmp_path: Path) -> None:
    """This one, and another in which sets have another order."""
    seed, path = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1", tmp_path / "other.poly"
    code = f"import polytriton; polytriton.compile({str(model)!r}).save({str(path)!r})"
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, env=plain_environment(PYTHONHASHSEED=seed))
    assert contents(path) == contents(poly)


def test_needs_the_original_model(verifier: polytriton.Verifier, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel):
        polytriton.Verifier.from_net(verifier.net).save(tmp_path / "a.poly")


# ---- damage -----------------------------------------------------------------------------------------------------


def _flip(at: float) -> Callable[[Path], object]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int(at * (len(data) - 1))] ^= 1
        path.write_bytes(bytes(data))

    return flip


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda p: p.unlink(),
    "empty": lambda p: p.write_bytes(b""),
    "truncated": lambda p: p.write_bytes(p.read_bytes()[:-1]),
    "longer": lambda p: p.write_bytes(p.read_bytes() + b"\n"),
    "first bit": _flip(0),
    "middle bit": _flip(0.5),
    "last bit": _flip(1),
    "folder": lambda p: (p.unlink(), p.mkdir()),
    "dangling link": lambda p: (p.unlink(), p.symlink_to("nowhere")),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", ALL)
def test_damage_is_refused(poly: Path, name: str, kind: str) -> None:
    DAMAGE[kind](poly / name)
    with pytest.raises(ArtifactError) as refused:
        polytriton.load(poly)
    assert name in refused.value.message
    assert "polytriton compile" in refused.value.remedy


def test_every_byte_of_the_manifest_counts(poly: Path) -> None:
    data = (poly / A.MANIFEST).read_bytes()
    for k in range(0, len(data), 7):
        (poly / A.MANIFEST).write_bytes(data[:k] + bytes([data[k] ^ 4]) + data[k + 1 :])
        with pytest.raises(ArtifactError):
            A.read_artifact(poly)


def test_a_plan_of_another_hand_never_runs(poly: Path) -> None:
    plan = poly / A.PLAN
    plan.write_text(plan.read_text().replace(" check", "", 1))
    reseal(poly)
    with pytest.raises(ArtifactError, match="not the plan"):
        A.read_artifact(poly)


@pytest.mark.parametrize("name", [A.NET, A.WEIGHTS])
def test_a_net_that_does_not_check_is_refused(poly: Path, name: str) -> None:
    data = (poly / name).read_bytes()
    (poly / name).write_bytes(data.replace(b"relu", b"rely") if name == A.NET else data[:40])
    reseal(poly)
    with pytest.raises(ArtifactError, match="does not check"):
        A.read_artifact(poly)


@pytest.mark.parametrize("extra", ["../model.onnx", "/etc/passwd", "more.txt"])
def test_no_file_but_its_own_is_named(poly: Path, extra: str) -> None:
    manifest = msgspec.json.decode((poly / A.MANIFEST).read_bytes(), type=A.Manifest)
    reseal(poly, files={**manifest.files, extra: A.FileEntry("0" * 64, 1)})
    with pytest.raises(ArtifactError, match=r"manifest\.json is damaged"):
        A.read_artifact(poly)


@pytest.mark.parametrize("change", [{"version": 99}, {"polytriton": "0.0.1"}])
def test_stale_is_refused(poly: Path, change: dict[str, object]) -> None:
    reseal(poly, **change)
    with pytest.raises(ArtifactError, match="stale"):
        A.read_artifact(poly)


@pytest.mark.parametrize("text", ["{}", "[]", '{"name": "web app"}', "null", "[" * 100000, '{"format": "polytriton artifact"}', "\x00"])
def test_foreign_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError):
        A.read_artifact(tmp_path)


def test_no_artifact_at_all(tmp_path: Path, model: Path) -> None:
    for path, word in ((tmp_path / "none.poly", "no artifact"), (tmp_path, "not an artifact"), (model, "is a file")):
        with pytest.raises(ArtifactError, match=word):
            A.read_artifact(path)


# ---- writing ----------------------------------------------------------------------------------------------------


def test_replaces_an_artifact_even_a_damaged_one(verifier: polytriton.Verifier, poly: Path) -> None:
    before = contents(poly)
    (poly / A.MANIFEST).unlink()
    (poly / A.PLAN).write_text("?")
    verifier.save(poly)
    assert contents(poly) == before
    assert [p.name for p in poly.parent.iterdir()] == ["net.poly"]


def test_follows_a_link_and_fills_an_empty_folder(verifier: polytriton.Verifier, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.poly").symlink_to("real")
    verifier.save(tmp_path / "link.poly")
    assert (tmp_path / "link.poly").is_symlink()
    assert set(contents(tmp_path / "real")) == set(ALL)


@pytest.mark.parametrize("held", ["notes.txt", "manifest.json", "model.onnx"])
def test_never_replaces_what_is_no_artifact(verifier: polytriton.Verifier, tmp_path: Path, held: str) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    (place / held).write_text("precious")
    with pytest.raises(UsageError, match="not overwritten"):
        verifier.save(place)
    assert contents(place) == {held: b"precious"}
    with pytest.raises(UsageError, match="not overwritten"):
        verifier.save(place / held)
    with pytest.raises(UsageError, match="no folder"):
        verifier.save(tmp_path / "nowhere" / "net.poly")


@pytest.mark.parametrize(
    "call, code, kind, word",
    [
        ("fsync", errno.ENOSPC, ResourceError, "disk is full"),
        ("mkdir", errno.EROFS, UsageError, "cannot write"),
        ("mkdir", errno.EACCES, UsageError, "cannot write"),
        ("rename", errno.EIO, UsageError, "cannot write"),
    ],
)
@pytest.mark.parametrize("existing", [False, True])
def test_a_failed_write_leaves_nothing_behind(
    verifier: polytriton.Verifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    code: int,
    kind: type,
    word: str,
    existing: bool,
) -> None:
    path = tmp_path / "net.poly"
    before = contents(verifier.save(path)) if existing else None

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        patch.setattr(A, "_exchange", lambda made, target: False)  # as where the system swaps no folders
        with pytest.raises(kind, match=word):
            verifier.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["net.poly"] * existing
    if existing:
        assert contents(path) == before


def test_the_old_artifact_comes_back_where_the_new_one_cannot_enter(
    verifier: polytriton.Verifier, poly: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rename = contents(poly), os.rename

    def once(a: Path, b: Path) -> None:
        if str(a).endswith(".tmp"):
            raise OSError(errno.EIO, "broken disk")
        rename(a, b)

    monkeypatch.setattr(os, "rename", once)
    monkeypatch.setattr(A, "_exchange", lambda made, target: False)
    with pytest.raises(UsageError, match="broken disk"):
        verifier.save(poly)
    assert contents(poly) == before
    assert [p.name for p in poly.parent.iterdir()] == ["net.poly"]


def test_writers_of_one_place_do_not_mix(verifier: polytriton.Verifier, tmp_path: Path) -> None:
    path = tmp_path / "net.poly"
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: verifier.save(path), range(16))) == [path] * 16
    assert A.read_artifact(path).compiled == verifier.compiled
    assert [p.name for p in tmp_path.iterdir()] == ["net.poly"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(verifier: polytriton.Verifier, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UsageError, match="cannot write"):
            verifier.save(tmp_path / "net.poly")
    finally:
        tmp_path.chmod(0o700)


# ---- cache ------------------------------------------------------------------------------------------------------


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.poly"))


def test_cache_keeps_and_finds(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with scope(cache=tmp_path / "c", debug=1):
        first = cached_artifact(model)
        assert "cached as" in capsys.readouterr().err
        monkeypatch.setattr("polytriton.api.compile_bytes", lambda *a, **k: pytest.fail("compiled again"))
        again = cached_artifact(model)
        assert "cache hit" in capsys.readouterr().err
    assert again.compiled == first.compiled
    assert again.manifest == first.manifest


def test_cache_knows_other_options_and_contents(model: Path, tmp_path: Path) -> None:
    other = tiny.brightest(tmp_path / "net.onnx", 2.0)
    with scope(cache=tmp_path / "c"):
        made = [cached_artifact(model), cached_artifact(model, candidates="input"), cached_artifact(other)]
        assert len(entries(tmp_path / "c")) == 3
        assert made[0].imported.source.sha256 != made[2].imported.source.sha256
        tiny.brightest(other, 3.0)
        assert cached_artifact(other).imported.source != made[2].imported.source


def test_damaged_cache_entry_is_replaced(model: Path, tmp_path: Path) -> None:
    with scope(cache=tmp_path / "c"):
        cached_artifact(model)
        (entry,) = entries(tmp_path / "c")
        good = contents(entry)
        (entry / A.WEIGHTS).write_bytes(b"?")
        cached_artifact(model)
        assert contents(entry) == good


def test_unusable_cache_is_no_obstacle(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    with scope(cache=tmp_path / "file" / "cache"):
        assert cached_artifact(model).compiled.net.nodes
    with scope(cache=None):
        assert cached_artifact(model).compiled.net.nodes
    assert capsys.readouterr().err == ""
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_cache_drops_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytriton.cache.ENTRIES", 2)
    with scope(cache=tmp_path / "c"):
        for k in range(3):
            cached_artifact(tiny.brightest(tmp_path / f"{k}.onnx", 1 + k))
            for entry in entries(tmp_path / "c"):
                os.utime(entry, (entry.stat().st_mtime - 10,) * 2)
        assert len(entries(tmp_path / "c")) == 2
        assert {A.read_artifact(e).imported.net.name for e in entries(tmp_path / "c")} == {"1", "2"}


def test_models_in_several_files_are_not_cached(model: Path, tmp_path: Path) -> None:
    proto = onnx.load(model)
    onnx.save(proto, tmp_path / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    with scope(cache=tmp_path / "c"):
        first = cached_artifact(tmp_path / "net.onnx")
        assert not entries(tmp_path / "c")
        data = np.fromfile(tmp_path / "net.bin", np.float32)
        (2 * data).tofile(tmp_path / "net.bin")
        assert cached_artifact(tmp_path / "net.onnx").imported.source.sha256 != first.imported.source.sha256


def test_broken_models_say_so_with_a_cache(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"no model")
    with scope(cache=tmp_path / "c"):
        for path in (tmp_path / "net.onnx", tmp_path / "none.onnx", tiny.unsupported(tmp_path / "t.onnx")):
            with pytest.raises(PolytritonError):
                cached_artifact(path)
    assert not (tmp_path / "c").exists()


# ---- knobs ------------------------------------------------------------------------------------------------------


def test_knobs_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert read({}) == Knobs(0, None)
    assert read({"POLYTRITON_DEBUG": "3", "POLYTRITON_CACHE": "off"}) == Knobs(3, None)
    assert read({"POLYTRITON_CACHE": "/a"}).cache == Path("/a")
    assert read({"HOME": "/h"}).cache == Path("/h/.cache/polytriton")
    assert read({"HOME": "/h", "XDG_CACHE_HOME": "/x"}).cache == Path("/x/polytriton")
    assert read({"HOME": "/h", "XDG_CACHE_HOME": "relative"}).cache is None
    monkeypatch.setattr(sys, "platform", "darwin")
    assert read({"HOME": "/h"}).cache == Path("/h/Library/Caches/polytriton")
    for bad in ("6", "-1", "yes"):
        with pytest.raises(UsageError, match="POLYTRITON_DEBUG"):
            read({"POLYTRITON_DEBUG": bad})


def test_knobs_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTRITON_DEBUG", "1")
    with scope(debug=2), scope(cache=None):
        assert knobs().debug == 2
    assert knobs().debug == 1


def test_manifest_is_plain_json(poly: Path) -> None:
    manifest = json.loads((poly / A.MANIFEST).read_text())
    assert manifest["source"]["input_shape"] == [1, 1, 2, 2]
    assert manifest["options"] == {"output": "y", "candidates": "all"}
