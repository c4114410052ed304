"""A group's process of bench.suite: rows on demand. `python -m bench.suite.child [PART GROUP]`, asked over a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from bench.core.measure import PartJob, convolution_rate
from bench.core.serve import Message, serve
from bench.core.table import Row
from bench.suite.__main__ import module_of
from polytriton.heap import keep_memory


class SuiteWork:
    """{"rate": threads}, or {"start": job} and then {"next": true} until the row is null."""

    def __init__(self, part: str = "", group: str = "") -> None:
        self.part, self.group = part, group
        self.rows: Iterator[Row] = iter(())

    def answer(self, question: Message) -> Message:
        if "rate" in question:
            return {"rate": convolution_rate(question["rate"])}
        if "start" in question:
            given = question["start"]
            job = PartJob(**{**given, "nets": Path(given["nets"]) if given["nets"] else None})
            torch.set_num_threads(job.threads)
            self.rows = module_of(self.part).work(self.group, job)
            return {}
        return {"row": next(self.rows, None)}


if __name__ == "__main__":
    keep_memory()  # as the commands do
    serve(SuiteWork(*sys.argv[1:]).answer)
