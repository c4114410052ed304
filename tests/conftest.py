"""Shared by all tests: the data folder, hypothesis that repeats itself, and no more threads than the machine has.

Kernels run in Triton's interpreter here: it must be asked for before anything imports triton, torch included.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"

# how long drawing an example takes is the machine's load, not the test's fault
settings.register_profile("polytriton", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("polytriton")


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data() -> Path:
    """Real networks and properties: POLYTRITON_DATA, or shared/data beside the repository."""
    folder = Path(os.environ.get("POLYTRITON_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (folder / "instances.csv").is_file():
        reason = f"no data in {folder}: set POLYTRITON_DATA to a folder with instances.csv"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder
