"""What the host does beside the kernels stays a few operations a layer: a tensor operation more in a loop over layers shows here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import quick_environment

pytest.importorskip("triton", reason="Triton is not installed")
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bounded", "tensor", "single", "leap"),
    [("digits_conv_ibp", 2, 14, 3, False), ("digits_resnet_ibp", 5, 20, 5, False), ("digits_resnet_ibp", 5, 12, 1, True)],
)
def test_tensor_operations_beside_the_kernels(name: str, bounded: int, tensor: int, single: int, leap: bool) -> None:
    env = quick_environment(TRITON_INTERPRET="1")
    command = [sys.executable, "-W", "ignore", "-m", "bench.host_ops", f"examples/{name}.onnx", *["--leap"] * leap]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert bounded < found["tensor"] <= tensor and found["kernels"] > 30 * bounded and 1 <= found["single"] <= single
