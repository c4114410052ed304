"""How many threads of torch's a query takes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from polytriton.api import Verifier
from polytriton.prove.strategy import Decision
from tests.oracle.small import dense


def test_small_dense_networks_are_decided_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a busy neighbour two threads that wait for each other cost more than they gain. Afterwards the setting is as it was."""
    seen: list[int] = []
    decide = Decision._decide

    def note(self: Decision, q: object) -> None:
        seen.append(torch.get_num_threads())
        decide(self, q)  # type: ignore[arg-type]

    monkeypatch.setattr(Decision, "_decide", note)
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
