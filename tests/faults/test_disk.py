"""A disk that is full, slow to say so, or may only be read: what was reported stays, nothing half-written is left."""

from __future__ import annotations

import builtins
import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import polytriton
from polytriton import artifact as A
from polytriton.cache import cached_artifact
from polytriton.errors import ResourceError, UsageError
from polytriton.knobs import scope
from polytriton.runs.records import Record
from tests.cli import tiny
from tests.cli.conftest import Cli
from tests.processes import plain_environment

ROOT = str(Path(__file__).parents[2])
CALLS = ("write", "fsync", "rename", "replace", "mkdir", "ftruncate")
CODES = {
    errno.ENOSPC: (ResourceError, "disk is full"),
    errno.EDQUOT: (ResourceError, "disk is full"),
    errno.EIO: (UsageError, "cannot write"),
}


class Writing:
    """A file open for writing whose every write and flush may fail."""

    def __init__(self, file: Any, count: Callable[[], None]) -> None:
        self.file, self.count = file, count

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: Any) -> int:
        self.count()
        return self.file.write(data)

    def flush(self) -> None:
        self.count()
        self.file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class Disk:
    """The `at`-th call that changes the disk fails with `code`; below 0 none does."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, code: int) -> None:
        self.calls, self.at, self.code = 0, at, code
        for name in CALLS:
            patch.setattr(os, name, self._failing(getattr(os, name)))
        real = io.open

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wxa"):
                return real(file, mode, *args, **kwargs)
            self.count()
            return Writing(real(file, mode, *args, **kwargs), self.count)

        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)

    def count(self) -> None:
        self.calls += 1
        if self.calls - 1 == self.at:
            raise OSError(self.code, os.strerror(self.code))

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count()
            return real(*args, **kwargs)

        return call


@pytest.fixture(scope="module")
def verifiers(tmp_path_factory: pytest.TempPathFactory) -> tuple[polytriton.Verifier, polytriton.Verifier]:
    folder = tmp_path_factory.mktemp("models")
    return tuple(polytriton.compile(tiny.brightest(folder / f"{k}.onnx", k)) for k in (1, 2))  # type: ignore[return-value]


def faults(act: Callable[[], object], code: int) -> Iterator[int]:
    """Runs `act` unhindered to count its calls, then yields each of them to be the one that fails."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, -1, code)
        act()
    assert disk.calls > 0
    yield from range(disk.calls)


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_an_artifact_is_the_old_or_the_new_one(verifiers: tuple[polytriton.Verifier, ...], tmp_path: Path, code: int) -> None:
    old, new = verifiers
    path = tmp_path / "net.poly"
    old.save(path)
    kept, refused = 0, list[ResourceError | UsageError]()
    for at in faults(lambda: new.save(path), code):
        old.save(path)
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, at, code)
            try:
                new.save(path)
            except (ResourceError, UsageError) as error:
                refused.append(error)
        held = A.read_artifact(path).imported.model
        assert held in (old.imported.model, new.imported.model)  # type: ignore[union-attr]
        kept += held == old.imported.model  # type: ignore[union-attr]
        assert [p.name for p in tmp_path.iterdir()] == ["net.poly"]
    kind, words = CODES[code]
    assert 5 <= kept <= len(refused)
    assert all(isinstance(e, kind) and words in e.message and e.remedy for e in refused)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO], ids=errno.errorcode.get)
def test_a_cache_that_fails_costs_time_only(tmp_path: Path, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    model, count = tiny.brightest(tmp_path / "net.onnx"), iter(range(10**6))
    want = polytriton.compile(model).compiled

    def act() -> None:
        with scope(cache=tmp_path / f"cache{next(count)}"):
            assert cached_artifact(model).compiled == want

    for at in faults(act, code):
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, at, code)
            act()
    assert capsys.readouterr().err == ""
    for folder in tmp_path.glob("cache*"):
        held = list(folder.iterdir())
        assert len(held) <= 1
        assert all(A.read_artifact(entry).compiled == want for entry in held)


def test_a_cache_that_may_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.brightest(tmp_path / "net.onnx")
    with scope(cache=tmp_path / "cache"):
        first = cached_artifact(model)

        def refuse(*args: object, **kwargs: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        for name in (*CALLS, "utime"):
            monkeypatch.setattr(os, name, refuse)
        monkeypatch.setattr("polytriton.api.compile", lambda *a, **k: pytest.fail("compiled again"))
        assert cached_artifact(model).compiled == first.compiled


def test_what_a_killed_writer_left_in_the_cache_goes_in_time(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in (".0123.poly.1-ab.tmp", ".4567.poly.2-cd.0.old"):
        (cache / name).mkdir(parents=True)
    os.utime(cache / ".0123.poly.1-ab.tmp", (0, 0))
    with scope(cache=cache):
        cached_artifact(tiny.brightest(tmp_path / "net.onnx"))
    assert [p.name for p in cache.iterdir() if p.name.startswith(".")] == [".4567.poly.2-cd.0.old"]


# ---- results ----------------------------------------------------------------------------------------------------


def held(name: str) -> list[Record]:
    data = Path(name).read_bytes() if Path(name).exists() else b""
    return [msgspec.json.decode(line, type=Record) for line in data[: data.rfind(b"\n") + 1].splitlines()]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_results_that_were_reported_are_on_disk(cli: Cli, poly: Path, code: int) -> None:
    args = ["run", poly, "--vnnlib", "safe.vnnlib", "unsafe.vnnlib", "--json", "r.jsonl", "--csv", "r.csv"]

    def clean() -> None:
        for name in ("r.jsonl", "r.csv"):
            Path(name).unlink(missing_ok=True)

    def act() -> None:
        clean()
        assert cli(*args).code == 0

    seen = set()
    for at in faults(act, code):
        clean()
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, at, code)
            said = cli(*args)
        seen.add(said.code)
        assert said.code in (0, 2)
        assert said.err.count("polytriton: ") == (said.code == 2)
        reported = [line.split()[1].rstrip(":") for line in said.err.splitlines() if line.startswith("[")]
        on_disk = {r.property: r.verdict for r in held("r.jsonl")}
        assert set(reported) <= set(on_disk)
        assert on_disk.items() <= {"safe": "unsat", "unsafe": "sat"}.items()
        again = cli(*args, "--resume")
        assert again.code == 0 and "1 unsat, 1 sat" in again.out
        assert [r.property for r in held("r.jsonl")] == ["safe", "unsafe"]
        assert len(Path("r.csv").read_text().splitlines()) == 3
    assert seen == {2} or seen == {0, 2}


def command(*args: object, limit: int | None = None, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which may write no file beyond `limit` bytes."""

    def confine() -> None:
        import resource

        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    env = plain_environment(POLYTRITON_CACHE="off", OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    return subprocess.run(
        [sys.executable, "-m", "polytriton.cli", *map(str, args)], capture_output=True, text=True, cwd=cwd, env=env, preexec_fn=confine
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no RLIMIT_FSIZE there")
def test_files_that_may_not_grow(cli: Cli, poly: Path, here: Path) -> None:
    """What RLIMIT_FSIZE and quotas do: a write that ends in the middle of a line, or of a file."""
    ran = command("compile", "net.onnx", "-o", "small.poly", limit=300, cwd=here)
    assert ran.returncode == 2 and "the disk is full" in ran.stderr and ran.stderr.count("polytriton: ") == 1
    assert not [p.name for p in here.iterdir() if "small.poly" in p.name]
    ran = command("run", "net.poly", "--vnnlib", "safe.vnnlib", "unsafe.vnnlib", "--json", "r.jsonl", limit=500, cwd=here)
    assert ran.returncode == 2 and "cannot write results" in ran.stderr
    data = Path("r.jsonl").read_bytes()
    assert len(data) <= 500 and (not data or data.endswith(b"\n"))


@pytest.mark.slow
def test_a_small_disk(verifiers: tuple[polytriton.Verifier, ...], tmp_path: Path) -> None:
    """A real file system of 64 KiB, where one may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        first = verifiers[0].save(disk / "net.poly")
        (disk / "filler").write_bytes(b"x" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize - 4096))
        with pytest.raises(ResourceError, match="disk is full"):
            verifiers[1].save(disk / "net.poly")
        assert A.read_artifact(first).imported.model == verifiers[0].imported.model  # type: ignore[union-attr]
        assert sorted(p.name for p in disk.iterdir()) == ["filler", "net.poly"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
