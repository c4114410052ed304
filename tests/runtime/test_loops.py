"""Loops compiled ahead: the same answers as Numba's own version, nothing touched that does not fit, compiled once a machine."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polytriton.runtime.cpu import cells, fused, loops, sums

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not loops.AVAILABLE, reason="Numba is not installed")


@pytest.fixture(autouse=True)
def _ready() -> None:
    loops.prepare()


def _rows(kind: type, step: int = 1) -> tuple[list[np.ndarray | int], tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(3)
    m, lo = rng.standard_normal(20 * 12 * step).astype(kind)[::step], rng.standard_normal(60).astype(kind)
    return [m, np.arange(20) // 3, 6, 3, 4, lo, lo + np.asarray(1, kind), lo * 3, True], tuple(np.empty((4, 20)))


def test_every_loop_is_there_in_every_version() -> None:
    assert len(loops._known) == 43
    for one in loops._known:
        assert one._found is not None
        assert len(one._found) == len(one.versions), one.name


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_machine_code_is_numbas(kind: type) -> None:
    (m, base, pitch, height, line, lo, *_), (out, again, plain, _) = _rows(kind)
    args = m, base, pitch, height, line, np.abs(lo)
    fused.weigh(*args, out)
    fused.weigh.slow()(*args, again)
    assert np.array_equal(out, again)
    fused.weigh.function(*args, plain)
    assert np.allclose(out, plain, rtol=1e-12)


def test_numba_knows_what_a_loop_calls() -> None:
    """Where nothing is compiled ahead its own dispatcher compiles a loop that calls a plain function."""
    lo, hi = np.array([-1.0, -0.3, 0.2, -2.0]), np.array([0.1, 0.7, 0.5, -1.0])
    ahead, later = ([np.empty(4, np.float32) for _ in range(4)] for _ in range(2))
    cells._relu_cells(lo, hi, *ahead)
    cells._relu_cells.slow()(lo, hi, *later)
    assert all(np.array_equal(a, b) for a, b in zip(ahead, later, strict=True)) and ahead[2].max() > 0


def test_arrays_of_another_type_or_layout_are_left_to_numba() -> None:
    args, outs = _rows(np.float32)
    entry = fused.concretize._found[np.dtype("float32")]
    good = [*args, *outs]

    def call(given: list[object]) -> int:
        slots = [id(v) if isinstance(v, np.ndarray) else v for v in given]
        return int(entry(fused.concretize._slots.pack(*map(id, loops.DTYPES), *slots)))

    assert call(good) == 0
    for k, wrong in ((0, args[0].astype(np.float64)), (0, _rows(np.float32, 2)[0][0]), (1, args[1].astype(np.int32)), (5, args[5][None]),
                     (9, np.empty(20, np.float32)), (10, np.empty(40)[::2])):  # fmt: skip
        for out in outs:
            out[:] = 7
        assert call([*good[:k], wrong, *good[k + 1 :]]) == loops.FAILED, k
        assert all((out == 7).all() for out in outs)
    (other, *rest), _ = _rows(np.float32, 2)
    found = tuple(np.empty(20) for _ in outs)
    fused.concretize(other, *rest, *found)
    fused.concretize(other.copy(), *rest, *outs)
    assert all(np.allclose(a, b) for a, b in zip(found, outs, strict=True))


def test_sums_are_written_where_they_belong_or_not_at_all() -> None:
    taps, out = np.ones((1, 2, 2, 2, 2), np.float32), np.zeros((1, 3, 6), np.float32)
    with pytest.raises(ValueError, match="contiguous"):
        sums.shifted_sums(taps, out[:, :, ::2], 1, 0, 0, 1, 1, 1, 1)


def test_a_damaged_file_is_compiled_again_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding as llvm

    key = loops._key(llvm, "polytriton.runtime.cpu.scalars")
    data = loops._read(key)
    assert data is not None
    (tmp_path / f"loops-{key}.o").write_bytes(hashlib.sha256(data).digest() + data[:-1] + b"?")
    monkeypatch.setattr(loops, "_folders", lambda: [tmp_path / "none" / "here", tmp_path])
    (tmp_path / "none").write_text("no folder")
    assert loops._read(key) is None
    from polytriton.runtime.cpu import loops_build

    def build(known: list[loops.Loop], machine: object, tell: Callable[[int, int], None]) -> bytes:
        assert [one.function.__name__ for one in known] == ["_settle", "_leaving", "_pay", "_exceed", "_keep"]
        tell(0, 4)
        return data

    monkeypatch.setattr(loops_build, "build", build)
    said: list[str] = []
    for _ in range(2):
        assert loops._object(llvm, "polytriton.runtime.cpu.scalars", said.append) == data
    assert said == ["compiling loops of scalars for this machine, once: 0/4"]
    assert loops._read(key) == data


def test_other_compilers_cost_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(tell: object) -> dict[str, object]:
        raise RuntimeError("another LLVM")

    one = loops.Loop(lambda a, n: a * n, "D i", set())
    loops._known.remove(one)
    monkeypatch.setattr(loops, "_known", [one])
    monkeypatch.setattr(loops, "_addresses", broken)
    assert one(np.ones(3), 2).tolist() == [2.0] * 3


@pytest.mark.slow
def test_a_verifier_has_its_loops_before_any_query() -> None:
    code = (
        "import polytriton, sys\n"
        "from polytriton.runtime.cpu import loops\n"
        "assert all(one._found is None for one in loops._known)\n"
        "net = polytriton.compile('examples/digits_conv_ibp.onnx')\n"
        "print(all(one._found for one in loops._known), 'numba' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_a_command_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from polytriton import knobs
    from polytriton.cli import main

    assert main(["--version"]) == 0
    monkeypatch.setattr("polytriton.commands.screen._said", 0.0)
    for k in range(3):
        knobs.tell(f"compiling loops of fused for this machine, once: {k}/12")
    assert capsys.readouterr().err == "polytriton: compiling loops of fused for this machine, once: 0/12\n"
