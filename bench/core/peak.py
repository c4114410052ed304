"""The memory of a run, watched from within its process; it needs torch alone, whatever interpreter it runs in."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import torch


class Peak:
    """The most memory held beyond what was held at first, in MB: the resident set, or what torch allocated on a GPU."""

    mb = 0.0

    def __init__(self, device: str) -> None:
        self.gpu = device.startswith("cuda")

    def __enter__(self) -> Peak:
        self.base = self.most = self._memory_held()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        if self.gpu:
            torch.cuda.reset_peak_memory_stats()
        else:
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.gpu:
            self.most = torch.cuda.max_memory_allocated()
        else:
            self.stop.set()
            self.thread.join()
            self.most = max(self.most, self._memory_held())  # a run may be shorter than a look around
        self.mb = (self.most - self.base) / 2**20

    def _watch(self) -> None:
        while not self.stop.wait(0.002):
            self.most = max(self.most, self._memory_held())

    def _memory_held(self) -> int:
        if self.gpu:
            return torch.cuda.memory_allocated()
        statm = Path("/proc/self/statm")
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") if statm.exists() else 0
