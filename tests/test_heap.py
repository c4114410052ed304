"""polytriton's programs keep the memory that they free; whoever only imports it decides for himself."""

from __future__ import annotations

import gc
import mmap
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from polytriton.heap import pause_collection

ROOT = Path(__file__).parents[1]
GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
CHURN = """
import resource, sys
import torch
torch.set_num_threads(1)
{before}
def churn():
    for _ in range(20):
        torch.empty(6 << 20).fill_(1.0)
churn()
start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
churn()
torch.empty(60 << 20).fill_(1.0)
churn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start)
"""


def ran(text: str) -> str:
    return subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_an_import_and_a_verdict_leave_the_allocator_alone() -> None:
    text = """
import numpy as np, polytriton
from polytriton.heap import keeps_memory
from tests.oracle.nets import toy_dense
v = polytriton.Verifier.from_net(toy_dense())
v.bounds(np.zeros((1, v.inputs)), np.ones((1, v.inputs)))
print(keeps_memory())
"""
    assert ran(text) == "False"


@GLIBC
def test_the_command_keeps_its_memory() -> None:
    assert ran(
        "from polytriton.cli import main\nfrom polytriton.heap import keeps_memory\nmain(['--name'])\nprint(keeps_memory())"
    ).endswith("True")


@pytest.mark.slow
@GLIBC
def test_blocks_come_back_without_new_pages() -> None:
    kept = int(ran(CHURN.format(before="from polytriton.heap import keep_memory; keep_memory()")))
    # the large block is new, the 40 small ones before and behind it are not; a few pages more may be the interpreter's
    assert kept <= (240 << 20) // mmap.PAGESIZE + 64


def test_larger_blocks_than_the_default_wait_for_kept_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from polytriton.passes.pipeline import compile_net
    from polytriton.runtime import budget, engine
    from polytriton.runtime.config import DEFAULT, Config
    from tests.oracle.nets import toy_conv

    made = engine.Engine(compile_net(toy_conv()), config=Config(block=2 * DEFAULT.block))
    program = next(p for p in made.plan if p.kind == "bound")
    sizes = []
    for kept in (False, True):
        monkeypatch.setattr(budget, "keeps_memory", lambda kept=kept: kept)
        sizes.append(len(made.walker.blocks(1 << 20, program)[0]))
    assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.01)


@pause_collection()
def divide_by_zero() -> float:
    with pause_collection():
        assert not gc.isenabled()
    assert not gc.isenabled()
    return 1 / 0


@pytest.mark.parametrize("before", [True, False])
def test_cycles_are_looked_for_as_before_whatever_happened_meanwhile(before: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        with pytest.raises(ZeroDivisionError):
            divide_by_zero()
        assert gc.isenabled() == before
    finally:
        (gc.enable if was else gc.disable)()
