"""Shared by tests of the runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from polytriton.runtime import centres, kit
from polytriton.runtime.cpu import blocks


@pytest.fixture
def three() -> Iterator[int]:
    """Threads of which torch, too, has as many."""
    given = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(given)


@pytest.fixture
def small_layers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of few terms are centred, and leave out what rows do not refer to."""
    if not blocks.is_available():
        pytest.skip("LLVM makes no tiles here")
    monkeypatch.setattr(centres, "FEW", 3)
    monkeypatch.setattr(kit, "COMPACT", 8)
