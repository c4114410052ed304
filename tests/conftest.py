"""Shared by all tests: the data folder, hypothesis that repeats itself, and no more threads than the machine has.

Kernels run in Triton's interpreter here: it must be asked for before anything imports triton, torch included.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.interpreter import quicken

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"

# how long drawing an example takes is the machine's load, not the test's fault
settings.register_profile("polytriton", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("polytriton")

_STARTED = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files, and the tests of each, in another order")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that only passes behind another one is found by running them in other orders; fixtures of a file are still made once."""
    _thin(items)
    if (seed := config.getoption("--shuffle")) is not None:
        rng = random.Random(seed)
        files = sorted({item.path for item in items})
        rng.shuffle(files)
        rng.shuffle(items)
        items.sort(key=lambda item: files.index(item.path))


def _thin(items: Sequence[pytest.Item]) -> None:
    """Of the quick cases of a test `thinned(n)` every n-th stays one, the first always."""
    seen = Counter[str]()
    for item in items:
        if (mark := item.get_closest_marker("thinned")) is not None and item.get_closest_marker("slow") is None:
            family = item.nodeid.partition("[")[0]
            if seen[family] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[family] += 1


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are found: there is no garbage among them
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: nobody looks through them for garbage again."""
    gc.freeze()
    gc.enable()


def _cpu_seconds() -> float:
    """What this process and its finished children have computed so far."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_STARTED] = _cpu_seconds()
    quicken()  # as soon as a test's imports have brought Triton
    _restart_draws(item.nodeid)
    yield


def _restart_draws(test: str) -> None:
    """What a module's `RNG` draws follows from the test alone, not from which tests its worker ran before."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tests.") and isinstance(rng := vars(module).get("RNG"), np.random.Generator):
            rng.bit_generator.state = np.random.default_rng(zlib.crc32(test.encode())).bit_generator.state


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Every test tells its CPU seconds, fixtures included, to --junitxml: wall-clock time on a shared machine compares nothing.

    python -m tools.durations reads the file.
    """
    if call.when == "teardown":
        item.user_properties.append(("cpu", f"{_cpu_seconds() - item.stash[_STARTED]:.2f}"))
    yield


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
