"""A kernel that was compiled with room for fewer blocks is launched with it on the device it was compiled for, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import polytriton
from polytriton.errors import UsageError
from polytriton.ir.launches import COUNTED, Filed, Kernel, Launch
from polytriton.kernels.files import Kernels
from polytriton.kernels.load import makes_room, prepare
from polytriton.kernels.spec import Report, room
from polytriton.prove.options import capability
from polytriton.runtime.config import Config
from polytriton.runtime.gpu.triton_backend import TritonBackend

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_conv_ibp.onnx"
KERNEL = Kernel("copy", "copy", (), ("a_ptr",), ("*fp64",))
REPORT = Report("copy", "cuda:90", 40, 0, 0, 0, 0, dict.fromkeys(COUNTED, 0), 48, 9, 0.0, False, blocks=9)


def test_reports_tell_the_rooms_of_their_target() -> None:
    plain = replace(REPORT, name="plain", blocks=0)
    reports = (REPORT, plain, replace(REPORT, target="cuda:80", blocks=3))
    kernels = Kernels(("cuda:80", "cuda:90"), ("float64",), {}, {}, (KERNEL,), Filed({}, {}), reports)
    assert (kernels.rooms("cuda:90"), kernels.rooms("cuda:80"), kernels.rooms("")) == ({"copy": 9}, {"copy": 3}, {})
    assert room(9) == {"ptx_options": "--minnctapersm 9"} and room(0) == {}


def test_the_cpu_has_no_target_and_a_missing_gpu_is_said() -> None:
    assert capability("cpu") == capability("interpret") == ""
    with pytest.raises(UsageError):
        capability("cuda:99")


@pytest.mark.parametrize("rooms", [{"copy": 0}, {"copy": -1}, {"copy": "9"}])
def test_room_for_no_block_is_refused(rooms: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="one block"):
        Config(rooms=rooms)


@pytest.mark.parametrize("rooms, asked", [({"copy": 9}, {"ptx_options": "--minnctapersm 9"}), ({"other": 9}, {}), ({}, {})])
def test_launches_ask_for_room(rooms: dict[str, int], asked: dict[str, str]) -> None:
    told: list[dict[str, Any]] = []

    class Function:
        def __getitem__(self, grid: tuple[int, int]) -> Any:
            return lambda *tensors, **options: told.append(options)

    stock = SimpleNamespace(function=lambda kernel: Function())
    made = cast(TritonBackend, SimpleNamespace(rooms=rooms, stock=stock))
    TritonBackend.call(made, Launch(KERNEL, ("buf:0",), 64), 64, lambda symbol: torch.zeros(1))()
    assert told == [{"num_warps": 4, "num_stages": 3, "enable_fp_fusion": True, **asked}]  # as ahead of time


def test_this_triton_takes_the_option() -> None:
    """Those that compile ahead do (kernels.spec.OLDEST); a verifier on the CPU asks none."""
    prepare(True)
    assert makes_room()
    assert polytriton.compile(EXAMPLE, check=False).options.config.rooms == {}
