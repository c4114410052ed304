"""The cache under files that are replaced while they are read: an entry is what its bytes say, for ever."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from polytriton import artifact, cache
from polytriton.api import Verifier
from polytriton.artifact import read_artifact
from polytriton.cache import cached_artifact
from polytriton.knobs import scope
from tests.cli import tiny

SAFE, UNSAFE = 1.0, -1.0  # the scale of `brightest`: its label is right, or all outputs are equal


def verdict(folder: Path, net: Any) -> str:
    return Verifier.from_artifact(net, semantics="real").verify_vnnlib(tiny.robust(folder / "p.vnnlib", 0.1)).verdict


@pytest.mark.parametrize("hook", ["_read", "_entry", "_find", "_keep", "read_artifact"])
def test_a_file_replaced_in_between_is_never_kept_as_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str) -> None:
    """Read as an unsafe network, replaced by a safe one at every step, put back: it is still unsafe."""
    net, other = tiny.brightest(tmp_path / "net.onnx", UNSAFE), tiny.brightest(tmp_path / "other.onnx", SAFE)
    unsafe, safe = net.read_bytes(), other.read_bytes()
    step = getattr(cache, hook)

    def replaced(*args: Any, **options: Any) -> Any:
        made = step(*args, **options)
        net.write_bytes(safe)
        return made

    with scope(cache=tmp_path / "c"):
        monkeypatch.setattr(cache, hook, replaced)
        for _ in range(2):  # compiled, then found
            net.write_bytes(unsafe)
            assert verdict(tmp_path, cached_artifact(net)) == "sat"
        monkeypatch.setattr(cache, hook, step)
        net.write_bytes(unsafe)
        assert verdict(tmp_path, cached_artifact(net)) == "sat"
        net.write_bytes(safe)
        assert verdict(tmp_path, cached_artifact(net)) == "unsat"
    assert cached_artifact(net).imported.net.name == "net"


def test_an_entry_of_another_file_is_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What an older release kept under a wrong name, or somebody moved."""
    net, other = tiny.brightest(tmp_path / "net.onnx", UNSAFE), tiny.brightest(tmp_path / "other.onnx", SAFE)
    with scope(cache=tmp_path / "c", debug=1):
        cached_artifact(net)
        (entry,) = (tmp_path / "c").glob("*.poly")
        cached_artifact(other)
        (wrong,) = (p for p in (tmp_path / "c").glob("*.poly") if p != entry)
        for name in os.listdir(wrong):
            (entry / name).write_bytes((wrong / name).read_bytes())
        capsys.readouterr()
        assert verdict(tmp_path, cached_artifact(net)) == "sat"
        assert "made from another file" in capsys.readouterr().err
        assert read_artifact(entry).imported.source == cached_artifact(net).imported.source  # and is put right


def test_weights_in_other_files_are_those_that_the_verdict_is_about(tmp_path: Path) -> None:
    proto = onnx.load(tiny.brightest(tmp_path / "plain.onnx", UNSAFE))
    onnx.save(proto, tmp_path / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    with scope(cache=tmp_path / "c"):
        first = cached_artifact(tmp_path / "net.onnx")
        weights = np.fromfile(tmp_path / "net.bin", np.float32)
        np.abs(weights).tofile(tmp_path / "net.bin")
        again = cached_artifact(tmp_path / "net.onnx")
    assert verdict(tmp_path, first) == "sat" and verdict(tmp_path, again) == "unsat"
    assert first.imported.source.sha256 != again.imported.source.sha256
    assert not (tmp_path / "c").exists()


def test_the_model_an_artifact_replays_is_that_of_its_manifest(tmp_path: Path) -> None:
    """A file of another artifact, and a manifest that has been written anew around it."""
    nets = [tiny.brightest(tmp_path / f"{k}.onnx", scale) for k, scale in enumerate((SAFE, UNSAFE))]
    made = [Verifier.save(Verifier.from_artifact(cached_artifact(net)), tmp_path / f"{k}.poly") for k, net in enumerate(nets)]
    (made[0] / artifact.MODEL).write_bytes((made[1] / artifact.MODEL).read_bytes())
    with pytest.raises(artifact.ArtifactError, match="damaged"):
        read_artifact(made[0])


def test_replacements_without_end(tmp_path: Path) -> None:
    """One thread replaces the file all the time: what is found is one of the two networks, under its own hash."""
    net, other = tiny.brightest(tmp_path / "net.onnx", UNSAFE), tiny.brightest(tmp_path / "other.onnx", SAFE)
    texts, stop = [net.read_bytes(), other.read_bytes()], threading.Event()

    def replace() -> None:
        for k in range(1 << 30):
            if stop.is_set():
                return
            (tmp_path / "part").write_bytes(texts[k % 2])
            os.replace(tmp_path / "part", net)
            time.sleep(0.0005)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        with scope(cache=tmp_path / "c"):
            signs = set()
            for k in range(40):
                found = cached_artifact(net, candidates=("all", "input")[k % 2])
                sign = {round(float(w.sum())) for name, w in found.compiled.net.weights.items() if w.shape == (4, 4)}
                signs.add((found.imported.source.sha256, *sign))
    finally:
        stop.set()
        thread.join()
    assert len({sha for sha, *_ in signs}) == len(signs) <= 2
