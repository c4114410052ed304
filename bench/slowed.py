"""`polytriton` with a default that takes a known share longer than it need: what a tuning session has to find.

    python -m bench.slowed 0.15 tune NET.poly ...

Every configuration but the default is as fast as ever. As a module of trial processes it is the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

from polytriton.api import Verifier
from polytriton.prove.questions import Questions
from polytriton.tuning import session, work, worker
from polytriton.tuning.trials import TrialProcess

NAME = "bench.slowed"


def handler() -> Callable[[bytes], bytes]:
    share, decide = float(sys.argv[1]), work.decide

    def slower(verifier: Verifier, q: Questions, workload: str) -> None:
        began = time.process_time()
        decide(verifier, q, workload)
        if not verifier.options.config.changes():
            ended = began + (1 + share) * (time.process_time() - began)
            while time.process_time() < ended:
                pass

    work.decide = slower
    return worker.handler()


def main() -> int:
    from polytriton.cli import main as polytriton

    session.TrialProcess = partial(TrialProcess, NAME, [sys.argv[1]])  # type: ignore[misc,assignment]
    return polytriton(sys.argv[2:])


if __name__ == "__main__":
    raise SystemExit(main())
