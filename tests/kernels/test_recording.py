"""Recordings of launches: what they hold, what spoils them, and whose they are."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from polytriton.runtime.gpu.recording import Recording, issue, pause_recording, record_launches, recording


@pytest.fixture
def tensor() -> torch.Tensor:
    return torch.zeros(4)


def test_a_recording_holds_what_was_issued_and_nothing_else(tensor: torch.Tensor) -> None:
    with record_launches() as made:
        issue(lambda: tensor.add_(1))
        view, empty = tensor[1:].view(3), torch.empty(5)
        with pause_recording():
            tensor.mul_(3)
            issue(lambda: tensor.add_(10))  # made, not remembered
        issue(lambda: tensor.mul_(2))
        assert len(view) == 3 and len(empty) == 5
    assert not made.spoiled and len(made.calls) == 2 and tensor.tolist() == [26.0] * 4
    for call in made.cut():
        call()
    assert tensor.tolist() == [54.0] * 4 and not made.calls


@pytest.mark.parametrize("spoils", ["add_", "clone", "nonzero", "tolist", "zero_"])
def test_an_operation_of_the_hosts_spoils_it(spoils: str, tensor: torch.Tensor) -> None:
    with record_launches() as made:
        tensor.add_(1) if spoils == "add_" else tensor[0].item() if spoils == "tolist" else getattr(tensor, spoils)()
    assert made.spoiled


def test_threads_record_for_themselves(tensor: torch.Tensor) -> None:
    found: list[Recording | None] = []
    with record_launches() as made:
        other = threading.Thread(target=lambda: (found.append(recording()), issue(lambda: tensor.add_(1)), tensor.add_(1)))
        other.start()
        other.join()
        assert recording() is made
    assert found == [None] and not made.calls and not made.spoiled and recording() is None


def test_what_breaks_a_recording_off_ends_it() -> None:
    with pytest.raises(KeyError), record_launches():
        raise KeyError
    assert recording() is None


def test_recording_does_not_import_torchs_compiler() -> None:
    """It would take the better part of a second, in the third batch of whoever runs one."""
    script = """
import sys, torch
from polytriton.runtime.gpu.recording import record_launches
before = "torch._dynamo" in sys.modules
with record_launches() as made:
    torch.zeros(3).add_(1)
assert made.spoiled
print(before, "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    before, after = done.stdout.split() if done.returncode == 0 else (done.stderr, "")
    assert after == "False" or before == "True", done.stderr
