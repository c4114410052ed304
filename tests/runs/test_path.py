"""The way of one query in this process: whoever follows it from the command to the engine opens few files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import polytriton
from polytriton.cli import main
from polytriton.runtime.engine import Engine

MOST = 15


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_the_local_path_of_one_query_crosses_few_files(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, query, met = Path(polytriton.__file__).parent, Engine.query, list[str]()

    def asked(*args: Any, **kwargs: Any) -> Any:
        for frame in outwards(sys._getframe(1)):
            path = Path(frame.f_code.co_filename)
            if package in path.parents:
                met.append(path.relative_to(package).as_posix())
                if met[-1] == "commands/verify.py":
                    break
        return query(*args, **kwargs)

    monkeypatch.setattr(Engine, "query", asked)
    assert main(["verify", "net.onnx", "safe.vnnlib"]) == 0
    files = {"runtime/engine.py", *met}
    assert "commands/verify.py" in files and len(files) <= MOST, sorted(files)
