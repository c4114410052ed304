"""Several devices: boxes are dealt out among them, one worker thread and one set of engines each."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock

import numpy as np

from polytriton.errors import UsageError
from polytriton.passes.pipeline import Compiled
from polytriton.prove.attempt import Answers
from polytriton.prove.decider import Decider, Try
from polytriton.prove.options import INTERPRET, Options, pick_device
from polytriton.prove.questions import Questions
from polytriton.prove.trail import Trail
from polytriton.runtime.cpu import loops
from polytriton.runtime.engine import Progress, _silent


def make_decider(compiled: Compiled, options: Options) -> Decider:
    if options.device == "cpu":
        loops.prepare()  # before any query's clock runs
    return Fleet(compiled, options) if "," in options.device else Decider(compiled, options)


def check_devices(names: str) -> None:
    """Every device of a comma-separated list can be used here."""
    parts = names.split(",")
    for name in parts:
        pick_device(name)
    if len(parts) > 1 and INTERPRET in parts:
        raise UsageError(f"device {names!r}: Triton's interpreter serves one worker at a time", f"use --device {INTERPRET} alone")


class Fleet(Decider):
    """Proves on all devices at once; what is not split (bounds of layers, margins of one box) runs on the first."""

    def __init__(self, compiled: Compiled, options: Options) -> None:
        check_devices(options.device)
        first, *others = options.device.split(",")
        super().__init__(compiled, replace(options, device=first))
        self.members = [self, *(Decider(compiled, replace(options, device=d)) for d in others)]

    def prove(
        self,
        q: Questions,
        tries: Sequence[Try] | None = None,
        *,
        answers: Answers | None = None,
        deadline: float | None = None,
        progress: Progress = _silent,
        exhaustive: bool = False,
        slopes: bool = False,
        statistics: bool = True,
        trail: Trail | None = None,
    ) -> Answers:
        """A box, with all the groups over it, is one member's: what members find never overlaps. Their proofs are not on the `trail`."""
        shares = [share for share in np.array_split(np.unique(q.image), len(self.members)) if len(share)]
        if len(shares) < 2:
            return super().prove(
                q, tries, answers=answers, deadline=deadline, progress=progress, exhaustive=exhaustive, slopes=slopes,
                statistics=statistics, trail=trail,
            )  # fmt: skip
        groups = int(q.group.max()) + 1
        none = np.full(len(q.image), -np.inf)
        whole = answers or Answers(none, none.copy(), np.zeros(groups, dtype=bool), trail=trail)
        lock = Lock()

        def tell(stage: str, done: int, total: int) -> None:
            with lock:
                progress(stage, done, total)

        def work(member: Decider, share: np.ndarray) -> tuple[np.ndarray, np.ndarray, Answers]:
            rows = np.flatnonzero(np.isin(q.image, share))
            mine, group = np.unique(q.group[rows], return_inverse=True)
            part = Answers(whole.best[rows], whole.raw[rows], whole.settled[mine], whole.expired)
            some = _rows(q, rows, group)
            found = Decider.prove(
                member, some, tries, answers=part, deadline=deadline, progress=tell, exhaustive=exhaustive, slopes=slopes,
                statistics=statistics,
            )  # fmt: skip
            return rows, mine, found

        with ThreadPoolExecutor(len(shares), thread_name_prefix="polytriton-device") as pool:
            for rows, mine, found in pool.map(work, self.members, shares):
                whole.best[rows], whole.raw[rows], whole.settled[mine] = found.best, found.raw, found.settled
                whole.expired |= found.expired
                if found.slopes is not None:
                    whole.slopes = {**(whole.slopes or {}), **{int(rows[k]): s for k, s in found.slopes.items()}}
        return whole


def _rows(q: Questions, rows: np.ndarray, group: np.ndarray) -> Questions:
    """Some of the forms, their groups numbered anew; boxes keep their places."""

    def some(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[rows]

    return replace(
        q,
        image=q.image[rows],
        over_output=q.over_output[rows],
        constant=q.constant[rows],
        group=group.astype(q.group.dtype),
        over_input=some(q.over_input),
        output_error=some(q.output_error),
        input_error=some(q.input_error),
    )
