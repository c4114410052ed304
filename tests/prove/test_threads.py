"""How many threads of torch's a query takes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.prove.strategy import Decision, threads_of
from polytriton.runtime import settings
from tests.oracle.small import dense


def test_small_dense_networks_are_decided_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a busy neighbour two threads that wait for each other cost more than they gain. Afterwards the setting is as it was."""
    seen: list[int] = []
    decide = Decision._decide

    def note(self: Decision, q: object) -> None:
        seen.append(torch.get_num_threads())
        decide(self, q)  # type: ignore[arg-type]

    monkeypatch.setattr(Decision, "_decide", note)
    monkeypatch.setattr(settings, "idle_processors", lambda: 2)
    given = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for widths in ((4, 4, 2), (4, 9000, 2)):
            layers = (np.ones((m, n)) for n, m in pairwise(widths))
            verifier = Verifier.from_net(dense(*((w, [0.0] * len(w)) for w in layers)))
            verifier.verify(np.zeros(4), epsilon=0.1, label=0, timeout=1.0)
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(given)
    assert seen == [1, 2]


def test_others_leave_as_many_threads_as_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wide = Verifier.from_net(dense((np.ones((9000, 4)), [0.0] * 9000), (np.ones((2, 9000)), [0.0] * 2))).net
    load = tmp_path / "loadavg"
    monkeypatch.setattr(settings, "LOAD", load)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    told = []
    for running in ("1/180", "2/180", "3/180", "4/180", "9/180", "none", ""):
        load.write_text(f"0.5 0.4 0.3 {running} 4711\n" if running else "")
        told.append((settings.idle_processors(), threads_of(wide)))
    load.unlink()
    assert told == [(4, 3), (3, 3), (2, 2), (1, 1), (1, 1), (4, 3), (4, 3)]
    assert settings.idle_processors() == 4
