"""The command line in this process, in a folder of its own, with a cache of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from polytriton.cli import main
from tests.cli import tiny


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Cli = Callable[..., Said]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYTRITON_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("POLYTRITON_DEBUG", raising=False)
    tiny.brightest(tmp_path / "net.onnx")
    tiny.robust(tmp_path / "safe.vnnlib", 0.1)
    tiny.robust(tmp_path / "unsafe.vnnlib", 0.5)
    return tmp_path


@pytest.fixture
def cli(here: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command. Whatever it says, it never shows a trace."""

    def call(*args: object) -> Said:
        capfd.readouterr()
        code = main([str(a) for a in args])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        if code in (2, 3, 4):
            assert "polytriton: " in err
            assert "remedy: " in err
        return Said(code, out, err)

    return call


@pytest.fixture
def poly(cli: Cli, here: Path) -> Path:
    assert cli("compile", "net.onnx", "-o", "net.poly").code == 0
    return here / "net.poly"
