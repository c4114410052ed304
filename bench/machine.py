"""What every measurement carries: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

import polytriton

ROOT = Path(__file__).resolve().parent.parent


def data_folder() -> Path:
    """The verification data: $POLYTRITON_DATA, or ../shared/data beside the checkout."""
    folder = Path(os.environ.get("POLYTRITON_DATA") or ROOT.parent / "shared" / "data")
    if not (folder / "instances.csv").exists():
        raise SystemExit(f"no verification data in {folder}: set POLYTRITON_DATA")
    return folder


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def describe() -> dict[str, str]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "machine": f"{processor()}, {os.cpu_count()} cores, {capability}",
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "polytriton": polytriton.__version__,
        "commit": commit or "unknown",
    }
