"""What every measurement carries: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import polytriton

ROOT = Path(__file__).resolve().parents[2]


def found_data() -> Path | None:
    """The verification data: $POLYTRITON_DATA, or ../shared/data beside the checkout; None where there is none."""
    folder = Path(os.environ.get("POLYTRITON_DATA") or ROOT.parent / "shared" / "data")
    return folder if (folder / "instances.csv").exists() else None


def data_folder() -> Path:
    """The same, where nothing can be done without it."""
    folder = found_data()
    if folder is None:
        raise SystemExit("no verification data: set POLYTRITON_DATA to a folder with instances.csv")
    return folder


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit(folder: Path = ROOT) -> str:
    """The checkout's commit, with a + where files that git tracks differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True).stdout.strip()

    try:
        return (git("rev-parse", "--short", "HEAD") or "unknown") + "+" * bool(git("status", "--porcelain", "--untracked-files=no"))
    except OSError:  # no git here
        return "unknown"


def installed_version(*names: str) -> str:
    """The version of the first that is there: some packages are published under several names."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "none"


def describe(device: str = "cpu", threads: int = 0) -> dict[str, str]:
    """Columns that every row of a file carries. `threads` where they are those of another process."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "device": device,
        "machine": f"{processor()}, {os.cpu_count()} cores, {capability}",
        "threads": str(threads or torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": installed_version("triton", "pytorch-triton"),
        "polytriton": polytriton.__version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }
