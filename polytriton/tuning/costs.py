"""`polytriton inspect --cost`: predicted against measured time of every kernel of a run, and which limit binds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polytriton.api import Verifier
from polytriton.prove.decider import Try
from polytriton.tuning import work
from polytriton.tuning.cpu_cost import conv_cost, form_of, pass_cost
from polytriton.tuning.device import SHEETS, Cpu, this_cpu
from polytriton.tuning.gpu_cost import kernel_cost
from polytriton.tuning.profile import CONV, LINEAR, Spent, profile_engine
from polytriton.tuning.space import Conv, plan_convs

if TYPE_CHECKING:
    from polytriton.kernels.files import Kernels

ROWS = 1024


def measure_costs(verifier: Verifier, seed: int = 0) -> dict[str, Any]:
    """One run of the default workload on this CPU, kernel by kernel, in the order of the time they took."""
    q = work.default_work(verifier, seed)
    work.run(verifier, q)
    decider = verifier._decider
    engine = decider.engine(Try(decider.first_dtype(), verifier.options.candidates))
    with profile_engine(engine) as profile:
        work.run(verifier, q)
    cpu, convs = this_cpu(), plan_convs(verifier.net, engine.plan)
    threads = engine.walker.backend.threads
    lines = [_line(name, spent, convs, verifier, cpu, threads) for name, spent in profile.kernels.items()]
    return {
        "source": cpu.source,
        "seconds": profile.seconds,
        "roofline": profile.ops / (cpu.peak * threads) / profile.seconds if profile.seconds else 0.0,
        "kernels": sorted(lines, key=lambda line: -line["measured"]),
        "others": max(0.0, profile.seconds - sum(s.seconds for s in profile.kernels.values())),
    }


def _line(name: str, spent: Spent, convs: dict[str, Conv], verifier: Verifier, cpu: Cpu, threads: int) -> dict[str, Any]:
    predicted, limit, form = None, "", ""
    each = max(1, round(spent.rows / spent.calls))
    config = verifier.options.config
    if spent.kind == CONV and name in convs:
        form = form_of(convs[name], config)
        cost = conv_cost(convs[name], form, each, config, cpu, threads)
        predicted, limit = cost.seconds * spent.calls, cost.limit
    elif spent.kind == LINEAR:
        inputs, outputs = (int(v) for v in name.split(" ")[1].split("x"))
        predicted, limit = 2.0 * spent.rows * inputs * outputs / (cpu.peak * threads), "operations"
    elif spent.kind != CONV:
        far = spent.values if 4 * spent.values / spent.calls > cpu.cache * threads else 0
        cost = pass_cost(spent.values, spent.calls, far, cpu, threads)
        predicted, limit = cost.seconds, cost.limit
    return {
        "kernel": f"{spent.kind} {name}" if spent.kind == CONV else name, "form": form, "rows": spent.rows, "calls": spent.calls,
        "predicted": predicted, "measured": spent.seconds, "limit": limit,
    }  # fmt: skip


def artifact_costs(verifier: Verifier, kernels: Kernels) -> list[dict[str, Any]]:
    """The kernels of an artifact on the GPUs they were compiled for: predicted only, from their reports."""
    from polytriton.tuning.cross import Kind, kinds

    found: dict[str, tuple[Kind, dict[str, int]]] = {}
    for numerics in kernels.numerics:
        made, emitter = kinds(verifier.compiled, numerics)
        by_key = {kind.key: kind for kind in made}
        for name, uses in emitter.uses.items():
            for kind in by_key.values():
                every = {**kind.constants, **emitter.asked[kind.key].constants}
                if any(dict(use.constants) == every and use.function == kind.function for use in uses):
                    found[name] = kind, every
    lines = []
    for report in kernels.reports:
        if report.name in found:
            kind, every = found[report.name]
            cost = kernel_cost(kind.function, every, kind.numerics, ROWS, SHEETS[report.target], report, report.target)
            lines.append(
                {"kernel": report.name, "target": report.target, "rows": ROWS, "predicted": cost.seconds, "limit": cost.limit}
            )
    return lines
