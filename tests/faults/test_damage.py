"""An artifact with a bit flipped or a piece missing, anywhere, is refused; time that jumps changes no verdict."""

from __future__ import annotations

import itertools
import random
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import polytriton
from polytriton.artifact import AGAIN, read_artifact, write_artifact
from polytriton.errors import ArtifactError
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.kernels.files import emit_files
from tests.cli import tiny
from tests.cli.conftest import Cli

PACKAGE = Path(polytriton.__file__).parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with kernels: every kind of file there is."""
    folder = tmp_path_factory.mktemp("whole")
    verifier = polytriton.compile(tiny.brightest(folder / "net.onnx"))
    return write_artifact(verifier, folder / "net.poly", emit_files(verifier.compiled, ["interpret"], ["float64"]))


def damaged(data: bytes, rng: random.Random, many: int) -> Iterator[bytes]:
    for _ in range(many):
        at = rng.randrange(len(data))
        yield data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        yield data[:at]
        yield data[:at] + bytes(rng.choice((1, 64, 512))) + data[at:]


def test_no_bit_of_any_file_may_change(whole: Path, tmp_path: Path) -> None:
    path, rng = tmp_path / "net.poly", random.Random(0)
    shutil.copytree(whole, path)
    assert read_artifact(path).kernels is not None
    files = sorted(p for p in path.rglob("*") if p.is_file())
    assert len(files) >= 7
    for file in files:
        good = file.read_bytes()
        for bad in damaged(good, rng, 12):
            file.write_bytes(bad)
            with pytest.raises(ArtifactError) as refused:
                read_artifact(path)
            assert AGAIN.format(path=path) in refused.value.remedy
        file.write_bytes(good)
    read_artifact(path)


def test_the_command_line_says_which_file(cli: Cli, poly: Path) -> None:
    for file in sorted(poly.iterdir()):
        good = file.read_bytes()
        file.write_bytes(good[: len(good) // 2])
        for command in (("inspect", poly), ("run", poly, "--vnnlib", "safe.vnnlib"), ("verify", poly, "safe.vnnlib")):
            said = cli(*command)
            assert said.code == 2 and file.name in said.err and said.err.count("polytriton: ") == 1
            assert "unsat" not in said.out
        file.write_bytes(good)


def test_a_damaged_cache_is_written_again(cli: Cli, here: Path) -> None:
    assert cli("verify", "net.onnx", "safe.vnnlib").out == "unsat\n"
    (entry,) = (here / "cache").glob("*.poly")
    for file in sorted(entry.iterdir()):
        file.write_bytes(file.read_bytes()[:-3])
        said = cli("verify", "net.onnx", "safe.vnnlib")
        assert (said.code, said.out) == (0, "unsat\n")
        read_artifact(entry)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_links_inside_an_artifact_lead_to_nothing_else(whole: Path, tmp_path: Path) -> None:
    """A link is followed, but only its right contents are accepted; writing replaces it and leaves its target alone."""
    path, secret = tmp_path / "net.poly", tmp_path / "secret"
    shutil.copytree(whole, path)
    secret.write_text("precious")
    (path / "model.onnx").unlink()
    (path / "model.onnx").symlink_to(secret)
    with pytest.raises(ArtifactError, match=r"model\.onnx is damaged"):
        read_artifact(path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "conv.py").write_text("precious")
    shutil.rmtree(path / "kernels")
    (path / "kernels").symlink_to(outside)
    with pytest.raises(ArtifactError):
        read_artifact(path)
    polytriton.compile(tiny.brightest(tmp_path / "net.onnx")).save(path)
    read_artifact(path)
    assert secret.read_text() == (outside / "conv.py").read_text() == "precious"


# ---- time -------------------------------------------------------------------------------------------------------


def test_nothing_reads_the_wall_clock_but_the_cache() -> None:
    """Deadlines and durations are of the monotonic clock, which no one sets."""
    found = {
        p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py") if re.search(r"\btime\.time\(|datetime|localtime", p.read_text())
    }
    assert found <= {"cache.py"}


@pytest.mark.parametrize("seed", range(6))
def test_a_clock_that_jumps_changes_no_verdict(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock goes anywhere; the monotonic one may leap ahead, as in a machine that was suspended: that is a timeout at worst."""
    rng, real = random.Random(seed), time.monotonic
    verifier = polytriton.compile(tiny.brightest(tmp_path / "net.onnx"))
    monkeypatch.setattr(time, "time", lambda: rng.uniform(-1e10, 1e10))
    ahead = itertools.accumulate(iter(lambda: 1e6 * (rng.random() < 0.05), None))
    monkeypatch.setattr(time, "monotonic", lambda: real() + next(ahead))
    for epsilon, verdict in ((0.1, "unsat"), (0.3, "unsat"), (0.5, "sat")):
        prop = read_vnnlib(tiny.robust(tmp_path / "p.vnnlib", epsilon))
        for timeout in (None, 60.0):
            result = verifier.verify_property(prop, timeout=timeout)
            assert result.verdict in ((verdict,) if timeout is None else (verdict, "timeout"))
            assert (result.verdict == "unsat") == bool(np.min(result.margins) > 0)
