"""A group's process of bench.suite: rows on demand, for the part and the group that it was started with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from bench.measure import PartJob, convolution_rate
from bench.serve import Message, speak_json
from bench.suite import module_of
from bench.table import Row
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


def handler() -> Callable[[bytes], bytes]:
    keep_memory()  # as the commands do
    return speak_json(SuiteWork(*sys.argv[1:]).answer)
