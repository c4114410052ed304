"""Notes of a search: none is lost or changes places, memory holds a block of them, and a full disk costs the notes alone."""

from __future__ import annotations

import tracemalloc
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import pytest

import polytriton
from polytriton.prove import notes
from polytriton.prove.notes import Notes
from polytriton.prove.trail import Trail
from tests.certificate.models import prop
from tests.prove.piecewise import drawn

KIND = (("node", "<i8"), ("cut", "<f8"))


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of notes lies on a disk that is full."""
    monkeypatch.setattr(notes.tempfile, "TemporaryFile", lambda **_: open("/dev/full", "r+b", buffering=0))  # noqa: SIM115


@pytest.mark.parametrize("block", [1, 100, 1 << 20])
def test_records_come_back_as_they_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(notes, "BLOCK", block)
    rng, plain, filed, other = np.random.default_rng(0), Notes(KIND), Notes(KIND, tmp_path), Notes(KIND)
    for size in (0, 1, 3, 0, 50, 2):
        some = rng.integers(1 << 40, size=size), rng.normal(size=size)
        for each in (plain, filed) if size != 3 else (plain, other):
            each.add(*some)
        filed.extend(other)
        other.clear()
        assert filed.records().tolist() == plain.records().tolist()
    assert len(filed) == len(plain) == 56 and filed.records().dtype == np.dtype(list(KIND))
    assert isinstance(filed.records(), np.memmap) == (block < 1 << 20)
    assert not any(tmp_path.iterdir())


def test_memory_holds_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of records that come one by one, and of many at once; read back, all of them are there."""
    monkeypatch.setattr(notes, "BLOCK", 1 << 14)
    monkeypatch.setattr(notes, "PARTS", 32)
    filed, peaks = Notes(KIND, tmp_path), list[int]()
    for size, times in ((1, 8000), (1000, 100)):
        tracemalloc.start()
        for k in range(times):
            filed.add(np.full(size, k), np.zeros(size))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert len(filed) == 108_000 and max(peaks) < 5 << 14 < filed.records().nbytes / 20
    assert filed.records()["node"].sum() == 8000 * 7999 // 2 + 1000 * (100 * 99 // 2)


@pytest.mark.slow
def test_memory_holds_a_block_of_a_searchs_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that notes keep, whenever a search tells how it goes: a block and a batch, while all of them are twenty blocks and more."""
    monkeypatch.setattr(notes, "BLOCK", 1 << 13)
    monkeypatch.setattr(notes, "PARTS", 16)
    monkeypatch.setattr("polytriton.prove.refute.MOST", 64)
    onnx.save(drawn(np.random.default_rng(3), 4, (16, 16)).model(), path := tmp_path / "n.onnx")
    verifier = polytriton.compile(path, device="cpu")
    x = np.random.default_rng(0).uniform(-1, 1, (20_000, 4)).astype(np.float32)
    text = prop(tmp_path / "p.vnnlib", [(-1.0, 1.0)] * 4, 1, f"(<= Y_0 {float(verifier.predict(x)[:, 0].min()) - 1.5:.6f})")
    trail, held, mine, calls = Trail(tmp_path), list[int](), tracemalloc.Filter(True, notes.__file__), count()

    class Enough(Exception):
        pass

    def look(*_: object) -> None:
        if next(calls) % 8:
            return
        held.append(sum(s.size for s in tracemalloc.take_snapshot().filter_traces([mine]).statistics("filename")))
        if len(trail._divided) * trail._divided.kind.itemsize > 20 * (1 << 13):
            raise Enough

    tracemalloc.start()
    try:
        with pytest.raises(Enough):
            verifier.verify_property(text, timeout=300, falsifier=False, search="input", trail=trail, progress=look)
    finally:
        tracemalloc.stop()
    assert 0 < max(held) < 3 * (1 << 13)


def test_a_full_disk_costs_the_notes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full(monkeypatch)
    monkeypatch.setattr(notes, "BLOCK", 100)
    some = np.arange(20)
    for trail in (Trail(tmp_path), Trail(tmp_path)):
        trail.divide(some, some, some * 1.0, some, some)
        assert trail.lost == f"notes of the search could not be written to {tmp_path}: No space left on device"
        trail.close(some, some)
        trail.add(Trail())
        assert not len(trail.divisions()) and not len(trail.refutations()) and trail.names(3).tolist() == [0, 1, 2]
        assert Trail.unpack(trail.pack()).lost == trail.lost
    monkeypatch.setattr(notes, "BLOCK", 1 << 20)
    late = Trail(tmp_path)
    late.divide(some, some, some * 1.0, some, some)
    assert not late.lost and len(late.divisions()) == 20  # so few need no disk


def test_nothing_is_noted_that_nobody_wants(tmp_path: Path) -> None:
    some, trail = np.arange(20), Trail(tmp_path, wanted=False)
    trail.divide(some, some, some * 1.0, some, some)
    trail.close(some, some)
    assert not len(trail.divisions()) and not len(trail.refutations()) and trail.names(2).tolist() == [0, 1]
