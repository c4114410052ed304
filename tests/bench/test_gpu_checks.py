"""The GPU bench's checks find what is wrong in kernels and replays, and nothing on a GPU that is not there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from bench.gpu import ascent as gpu_ascent
from bench.gpu import first
from bench.gpu import kernels as gpu_kernels
from bench.gpu.reference import Oracle
from bench.gpu.setting import Setting
from bench.nets.grow import NETWORKS
from polytriton.arithmetic import ARITHMETICS
from polytriton.kernels import load
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.gpu.player import Player, RunState
from polytriton.runtime.results import Results
from tests.bench.test_gpu import ROOT, needs_triton
from tests.kernels.fake_cuda import FakeCuda
from tests.processes import quick_environment

SIZE = 6


def relax(change: str = "", by: float = 0.0) -> dict[str, float]:
    """What the oracle says to a relax_rows made in plain torch, one of whose results is off."""
    g = torch.Generator().manual_seed(0)
    n = 5
    m, below, above, cut, t = (torch.randn(n if k == 0 else 1, SIZE, generator=g, dtype=torch.float64) for k in range(5))
    t = t.abs()
    constant, error = torch.randn(n, generator=g, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    was = {
        "m_ptr": m.flatten(), "image_ptr": torch.zeros(n, dtype=torch.int64), "below_ptr": below, "above_ptr": above, "cut_ptr": cut,
        "t_ptr": t, "floor_ptr": torch.zeros(1, dtype=torch.float64), "constant_ptr": constant, "error_ptr": error,
    }  # fmt: skip
    out = m * torch.where(m < 0, above, below)
    now = {
        "constant_ptr": constant + torch.where(m < 0, m * cut, 0.0).sum(1),
        "error_ptr": error + (out.abs() * t).sum(1),
        "out_ptr": out.flatten(),
    }
    if change:
        now[change][2] += by
    constants = {
        "RELU": True, "CHARGE": True, "SIZE": SIZE, "LINE": SIZE, "C": SIZE, "RH": 0, "OH": 0, "RW": 0, "OW": 0, "BIAS": "none",
        "SUM_ERROR": 1.0, **{p + k: 0 if k == "START" else SIZE for p in ("", "T_") for k in ("START", "PLANE", "PITCH")},
    }  # fmt: skip
    return dict(Oracle(constants, was, now, n, ARITHMETICS["float64"]).check("relax_rows"))


def test_the_oracle_passes_what_is_right() -> None:
    assert max(relax().values()) <= 1


@pytest.mark.parametrize(
    "change, by, what",
    [
        ("constant_ptr", 1e-13, "constant"),
        ("error_ptr", 1e-12, "error"),
        ("error_ptr", -1e-13, "error paid"),
        ("out_ptr", 1e-15, "rows"),
        ("out_ptr", float("nan"), "rows"),
    ],
)
def test_the_oracle_finds_what_is_wrong(change: str, by: float, what: str) -> None:
    assert relax(change, by)[what] > 1


# a library kernel's line, the same line wrong, and the step and quantity that show it
WRONG = [
    ("conv", "y = y0 - tap_h * c.DH", "y = y0 + tap_h * c.DH", "conv_step", "product"),
    ("dense", "acc = multiply(x, w, acc, c.T, c.FORM)", "acc = multiply(x * 0.999, w, acc, c.T, c.FORM)", "dense_step", "product"),
    ("rows", "tl.where(x >= 0, 0.0, ", "tl.where(x < 0, 0.0, ", "relax_rows", "constant"),
    ("rows", "tl.sum(charged, 1) * c.SUM_ERROR + floor", "tl.sum(charged, 1) * 0.999 + floor", "dense_step", "error paid"),
    ("join", "c.A_OH - c.OH", "c.A_OH - c.OH + 1", "join_rows", "rows"),
    ("start", "- (row_h * c.GAP_RH + c.GAP_H)", "- (row_h * c.GAP_RH - c.GAP_H - 1)", "start_rows", "rows"),
    ("concretize", "tl.where(x < 0, hi, lo)", "tl.where(x < 0, lo, hi)", "concretize_rows", "sound"),
    ("concretize", "value - slack", "value - slack - 1", "concretize_rows", "bound"),
    ("compact", "before + tl.cumsum", "before + 1 + tl.cumsum", "move_rows", "rows"),
]
MUTATE = """
import sys, time
from bench.gpu.kernels import _steps
from bench.nets.grow import tiny
from bench.gpu.setting import Setting
from polytriton.kernels import load
from polytriton.passes.pipeline import compile_net
from tests.kernels.planted import planted
compiled = compile_net(tiny())
for module, right, wrong, step, what in {WRONG}:
    with planted(module, right, wrong):
        rows = list(_steps(compiled, "float64", Setting(True, time.time() + 300)))
    found = {{(row["step"], row["what"]) for row in rows if not row["fraction"] <= 1}}
    assert (step, what) in found, (wrong, found)
"""


@pytest.mark.slow
def test_a_wrong_kernel_fails() -> None:
    needs_triton()
    env = quick_environment(TRITON_INTERPRET="1")
    script = [sys.executable, "-c", MUTATE.format(WRONG=WRONG)]
    done = subprocess.run(script, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wrong_replay_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's bounds that are not brought back where rows went ahead."""
    needs_triton()
    compiled, setting = compile_net(NETWORKS["tiny"]()), Setting(True, time.time() + 600)
    (row,) = gpu_kernels.replay(compiled, "float64", setting)
    assert row["fraction"] == 0.0 and row["note"].endswith("captured: no") and "again: 0" not in row["note"]
    finish = Player._finish

    def forgets(self: Player, run: RunState, *given: Any) -> Results:
        found = finish(self, run, *given)
        run.closing = None
        return found

    monkeypatch.setattr(Player, "_finish", forgets)
    (row,) = gpu_kernels.replay(compiled, "float64", setting)
    assert row["fraction"] == float("inf") and row["note"].startswith("refine of batch")


class OnFake(Setting):
    """A dry run on a GPU that is not there."""

    device, kernels = torch.device("cuda"), "interpret"  # type: ignore[assignment]


@contextmanager
def on_fake(patch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Settings are pinned beneath torch's own functions, where such a GPU is not seen."""
    patch.setattr(first, "plain_products", lambda device: True)
    for part in (gpu_kernels, gpu_ascent):
        patch.setattr(part, "pin_settings", nullcontext)
    with FakeCuda().present() as cuda:
        yield cuda


@pytest.mark.parametrize("group", ["driver", "triton", *(pytest.param(g, marks=pytest.mark.slow) for g in ("rows", "runs", "ascent"))])
def test_the_first_minute_is_clean_on_a_gpu_that_is_not_there(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_triton()
    load.prepare(interpret=True)
    with on_fake(monkeypatch) as cuda:
        rows = list(first.work(group, OnFake(True, time.time() + 600)))
    assert rows and all(row["verdict"] == "pass" for row in rows), rows
    # the oracle copies what is yet to be written too
    assert not [f for f in cuda.faults if not f.text.startswith("aten::clone reads")]
    assert group in ("rows", "ascent") or cuda.graphs or group == "driver"


@pytest.mark.slow
@pytest.mark.parametrize("part", [gpu_kernels, gpu_ascent])
def test_parts_are_clean_on_a_gpu_that_is_not_there(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_triton()
    load.prepare(interpret=True)
    with on_fake(monkeypatch) as cuda:
        rows = list(part.work("tiny", OnFake(True, time.time() + 600)))
    assert rows and all(row["verdict"] in ("pass", "") for row in rows), rows
    # the oracle copies what is yet to be written too
    assert not [f for f in cuda.faults if not f.text.startswith("aten::clone reads")]
