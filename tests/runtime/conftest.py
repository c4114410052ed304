"""Shared by tests of the runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def three() -> Iterator[int]:
    """Threads of which torch, too, has as many."""
    given = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(given)
