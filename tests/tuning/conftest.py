"""One artifact that all tests of tuning copy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import polytriton
from polytriton.knobs import scope

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tuning") / "net.poly"
    return polytriton.compile(ROOT / "examples" / "digits_conv_normal.onnx", check=False).save(place)


@pytest.fixture
def poly(compiled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compiled, tmp_path / "net.poly"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("POLYTRITON_CACHE", str(tmp_path / "cache"))
    with scope(cache=tmp_path / "cache"):
        yield
