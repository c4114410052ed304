"""Several devices share the work of a batch and find what one finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polytriton
from polytriton.errors import ResourceError, UsageError
from polytriton.prove import fleet
from polytriton.prove.decider import Decider
from polytriton.prove.questions import Questions

NET = Path(__file__).parents[2] / "examples" / "digits_conv_ibp.onnx"


def test_two_workers_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((5, 64))
    lo, hi = np.clip(x - 0.02, 0, 1), np.clip(x + 0.02, 0, 1)
    forms = np.eye(10) - np.roll(np.eye(10), 1, axis=1)
    one = polytriton.compile(NET).margins(lo, hi, forms, effort="quick")
    shares: list[int] = []
    prove = Decider.prove

    def watched(self: Decider, q: Questions, *args: object, **named: object) -> object:
        shares.append(len(np.unique(q.image)))
        return prove(self, q, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(fleet.Decider, "prove", watched)
    two = polytriton.compile(NET, device="cpu,cpu").margins(lo, hi, forms, effort="quick")
    assert sorted(shares) == [2, 3]
    np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5)


def test_a_failure_in_one_worker_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = polytriton.compile(NET, device="cpu,cpu")
    second = verifier._decider.members[1]  # type: ignore[attr-defined]

    def scarce(*args: object) -> object:
        raise ResourceError("planted", "none")

    monkeypatch.setattr(second, "batches", scarce)
    lo = np.zeros((4, 64))
    with pytest.raises(ResourceError, match="planted"):
        verifier.margins(lo, lo + 1, np.eye(10))


def test_every_device_of_the_list_must_exist() -> None:
    with pytest.raises(UsageError, match="'tpu'"):
        polytriton.compile(NET, device="cpu,tpu")
    with pytest.raises(UsageError, match="one worker"):
        polytriton.compile(NET, device="cpu,interpret")
