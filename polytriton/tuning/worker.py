"""Runs configurations one after the other: what runs in a worker of trials.py. Answers are numbers; the session judges them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec


class TrialJob(msgspec.Struct, frozen=True):
    """`options` are of the verifier, `config` what differs from the default; `best` is the share of the default's time to beat (0: none
    yet). `race`: a configuration that loses against the default is given up early. Of one thread its own time counts: when it had to wait
    for others, that is no configuration's doing."""

    artifact: str
    work: str
    options: dict[str, Any]
    config: dict[str, Any]
    threads: int
    seed: int
    runs: int = 5
    best: float = 0.0
    profile: bool = False
    check: bool = True
    race: bool = True
    workload: str = "verify"


class TrialAnswer(msgspec.Struct, frozen=True):
    """`compile` seconds until the first run was done; `times` of the others, `base` those of the default in turns with them; `evidence`
    is evidence.Evidence in msgpack."""

    compile: float = 0.0
    times: list[float] = []
    base: list[float] = []
    ops: int = 0
    evidence: bytes = b""
    profile: bytes = b""


def handler() -> Callable[[bytes], bytes]:
    import torch  # noqa: F401  so that a worker that is ready has imported everything

    import polytriton.artifact
    import polytriton.tuning.evidence  # noqa: F401
    from polytriton.heap import keep_memory

    keep_memory()
    return lambda data: msgspec.msgpack.encode(carry_out(msgspec.msgpack.decode(data, type=TrialJob)))


def carry_out(job: TrialJob) -> TrialAnswer:
    """Builds the verifier with the job's configuration, runs the work, and gathers what the session checks."""
    import torch

    from polytriton.api import Verifier
    from polytriton.artifact import read_artifact
    from polytriton.prove.decider import Try
    from polytriton.prove.options import Options
    from polytriton.runtime.config import Config
    from polytriton.tuning import work
    from polytriton.tuning.duel import is_lost
    from polytriton.tuning.evidence import gather_evidence
    from polytriton.tuning.profile import profile_engine

    torch.set_num_threads(job.threads)
    held = read_artifact(Path(job.artifact))
    q = work.unpack(Path(job.work).read_bytes())
    began = time.perf_counter()
    options = Options(**job.options, config=Config.of(job.config))
    verifier = Verifier(held.compiled, options, held.imported)
    bounds = work.run(verifier, q)
    compiled = time.perf_counter() - began
    plain = Verifier(held.compiled, Options(**job.options), held.imported) if job.config else verifier
    engine = verifier._decider.engine(Try(verifier._decider.first_dtype(), options.candidates))
    for one in (verifier, plain):  # what is made at first use is none's time
        work.decide(one, q, job.workload)
    ops = engine.operations
    work.decide(verifier, q, job.workload)
    ops = engine.operations - ops
    clock = time.process_time if options.device == "cpu" and job.threads == 1 else time.perf_counter
    times, base, ratios = list[float](), list[float](), list[float]()
    for k in range(2 * job.runs):
        taken = dict[int, float]()
        for side in (0, 1) if k % 2 == 0 else (1, 0):  # who comes second may find a warmer machine
            start = clock()
            work.decide((verifier, plain)[side], q, job.workload)
            taken[side] = clock() - start
        times.append(taken[0])
        base.append(taken[1] if job.config else taken[0])
        ratios.append(times[-1] / base[-1])
        if job.race and job.config and is_lost(ratios):
            break
        if k + 1 >= job.runs and not (job.race and job.best and median(ratios) < job.best):  # what seems to win is run as often again
            break
    found = b""
    if job.check and (not job.best or median(ratios) < job.best):  # only what may win is worth checking
        found = msgspec.msgpack.encode(gather_evidence(verifier, q, job.seed, bounds))
    shares = b""
    if job.profile and engine.kernels is None:
        with profile_engine(engine) as profile:
            work.decide(verifier, q, job.workload)
        shares = msgspec.msgpack.encode(profile)
    return TrialAnswer(compiled, times, base, ops, found, shares)
