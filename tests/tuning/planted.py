"""A worker with something planted in it, a KIND. Only configurations other than the default are affected.

What is planted in steps is met where rows are walked step by step, so no tape is played.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.runtime.cpu.walk import Walk
from polytriton.tuning import worker


def scaled(share: float, least: int = 1) -> None:
    """Rounding terms of affine steps over windows of so many cells are charged this share of what is due."""
    charge, both = TorchBackend.charge, TorchBackend.relax_and_charge

    def kept(self: TorchBackend, m: Any) -> float:
        return share if self.config.changes() and m.shape[1] * m.shape[2] >= least else 1.0

    def less(self: TorchBackend, m: Any, *rest: Any) -> Any:
        constant, error = charge(self, m, *rest)
        return constant, error * kept(self, m)

    def less_both(self: TorchBackend, m: Any, *rest: Any) -> Any:
        m, total, constant, error, *others = both(self, m, *rest)
        return m, total, constant, error * kept(self, m), *others

    TorchBackend.charge, TorchBackend.relax_and_charge = less, less_both  # type: ignore[method-assign]


def no_term() -> None:
    """No row is charged anything at all."""
    check = Walk._check

    def free(self: Walk, last: bool) -> bool:
        if self.backend.config.changes():
            self.rows.error.zero_()
        return check(self, last)

    Walk._check = free  # type: ignore[method-assign]


def shifted() -> None:
    """Bounds are a little better than can be proved."""
    check = Walk._check

    def better(self: Walk, last: bool) -> bool:
        if self.backend.config.changes():
            self.rows.constant = self.rows.constant + 1e-2
        return check(self, last)

    Walk._check = better  # type: ignore[method-assign]


def in_steps(what: Callable[[], None]) -> Callable[[], None]:
    def planted() -> None:
        Walk.plays = False
        what()

    return planted


def instead(what: Callable[[], Any]) -> None:
    carry_out = worker.carry_out

    def planted(job: worker.TrialJob) -> worker.TrialAnswer:
        if job.config:
            what()
        return carry_out(job)

    worker.carry_out = planted


def fail() -> None:
    raise RuntimeError("a launch failed")


def slow_default() -> None:
    """The default decides a little later than it could."""
    from polytriton.tuning import work

    decide = work.decide

    def later(verifier: Any, q: Any, workload: str) -> None:
        if not verifier.options.config.changes():
            ended = time.process_time() + 0.05
            while time.process_time() < ended:
                pass
        decide(verifier, q, workload)

    work.decide = later


KINDS: dict[str, Callable[[], None]] = {
    "no term": in_steps(no_term),
    "half": in_steps(lambda: scaled(0.5)),
    "convolutions": in_steps(lambda: scaled(0.0, least=2)),
    "shifted": in_steps(shifted),
    "slow default": slow_default,
    "crash": lambda: instead(lambda: os.kill(os.getpid(), signal.SIGSEGV)),
    "exit": lambda: instead(lambda: os._exit(7)),
    "hang": lambda: instead(lambda: time.sleep(3600)),
    "fail": lambda: instead(fail),
}


def handler() -> Callable[[bytes], bytes]:
    KINDS[sys.argv[1]]()
    return worker.handler()
