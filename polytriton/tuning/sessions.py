"""Puts a session together for the device that is here, and its result into the artifact and the user's cache."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

import polytriton
from polytriton.api import Verifier
from polytriton.arithmetic import ARITHMETICS
from polytriton.artifact import Artifact, write_artifact
from polytriton.errors import UsageError
from polytriton.kernels.choose import Tiles
from polytriton.runtime.config import LIBRARY, Config
from polytriton.runtime.cpu.torch_backend import TorchBackend
from polytriton.tuned import Tuned, device_name, plan_key, versions
from polytriton.tuning import work
from polytriton.tuning.checks import Seen
from polytriton.tuning.cpu_cost import plan_cost
from polytriton.tuning.cross import kinds
from polytriton.tuning.device import SHEETS, this_cpu
from polytriton.tuning.evidence import Reference
from polytriton.tuning.gpu_times import GpuTimes
from polytriton.tuning.plans import Plans, shares
from polytriton.tuning.profile import Profile
from polytriton.tuning.session import Outcome, Predict, Session, SessionSettings, SessionState
from polytriton.tuning.space import Space, conv_shape_of, cpu_space, gpu_space, plan_choices
from polytriton.tuning.store import Folder, recall, remember
from polytriton.tuning.trials import TrialProcess


def tune_device(
    network: Path,
    held: Artifact,
    verifier: Verifier,
    packed: bytes,
    settings: SessionSettings,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[SessionState], None] = lambda state: None,
    worker: TrialProcess | None = None,
) -> Outcome:
    """Runs the session; the artifact is replaced in one step when it is over."""
    device = settings.options["device"]
    place = plan_key(held.compiled), device_name(device), versions(device)
    identity = {
        "polytriton": polytriton.__version__, "plan": place[0], "device": place[1], "versions": place[2], "options": settings.options,
        "threads": settings.threads, "seed": settings.seed, "runs": settings.runs, "workload": settings.workload,
        "allow": list(settings.allow),
        "weights": hashlib.sha256(held.imported.model).hexdigest(),
    }  # fmt: skip
    kept = Folder(folder, identity, packed, resume=resume, overwrite=overwrite)
    try:
        began = time.monotonic()
        q = work.unpack(packed)
        reference = Reference(verifier, q, settings.seed)
        seen = reference.watch(verifier._decider.first_dtype())
        space, predict, peak = (_cpu if device == "cpu" else _gpu)(verifier, settings, seen)
        known = recall(place)
        begin = None if known is None else space.point(Config.of(known.config)) or None
        settings = replace(settings, budget=max(0.0, settings.budget - (time.monotonic() - began)))
        session = Session(
            network.absolute(), space, kept, reference, settings, place, predict, peak, worker=worker, watch=watch, begin=begin
        )
        outcome = session.run()
    finally:
        kept.close()
    tuned = (held.tuned or Tuned(entries=())).with_entry(outcome.entry)
    write_artifact(verifier, network, held.kernels, tuned)
    remember(outcome.entry)
    return outcome


def _cpu(verifier: Verifier, settings: SessionSettings, seen: Seen) -> tuple[Space, Predict, float]:
    first = verifier._decider.first_dtype()
    numerics = ("float32", "float64") if settings.options.get("dtype", "auto") == "auto" and first == "float32" else (first,)
    different = shares(verifier.compiled)
    plans = Plans(verifier.compiled, different, seen)
    more = plan_choices(tuple(different), seen.choices())
    space = cpu_space(verifier.net, verifier.compiled.plan, first, settings.threads, numerics, more)
    cpu = this_cpu()
    backend = TorchBackend(torch.device("cpu"))
    plain = any(LIBRARY in backend.forms(torch.float32, conv_shape_of(c)) for c in space.convs.values()) and first == "float32"

    def predict(config: Config, profile: Profile) -> float:
        seconds = plan_cost(plans.shapes, plans.load(profile.load(), config), config, cpu, settings.threads, plain)
        return 2 * seconds if config.dtype == "float64" and first == "float32" else seconds

    return space, predict, cpu.peak * settings.threads


def _gpu(verifier: Verifier, settings: SessionSettings, seen: Seen) -> tuple[Space, Predict, float]:
    """The kernels that the programs launch here, in every arithmetic that the user admits; a data sheet orders the trials."""
    if not torch.cuda.is_available():
        raise UsageError("there is no GPU here to run trials on", "polytriton tune NET.poly --target cuda:90 chooses by predicted time")
    first = verifier._decider.first_dtype()
    numerics = dict.fromkeys((first, *(("float64", "float32") if settings.options.get("dtype", "auto") == "auto" else ()), *settings.allow))
    asked: dict[str, Tiles] = {}
    for name in numerics:
        asked |= kinds(verifier.compiled, name)[1].asked
    more = plan_choices(tuple(shares(verifier.compiled)), seen.choices())
    more |= {"dtype": ("", *(n for n in numerics if n != first))} if len(numerics) > 1 else {}
    more |= {"graphs": (True, False), "lanes": (True, False)}
    space = gpu_space(asked, {name: c.inner for name, c in ARITHMETICS.items()}, more, first)
    target = device_name(settings.options["device"]).split(" ", 1)[0]
    sheet = SHEETS.get(target)
    if sheet is None:
        return space, lambda config, profile: 1.0, 0.0
    times = GpuTimes(verifier.compiled, sheet, target, first)
    return space, lambda config, profile: times.seconds(config), sheet.rates[ARITHMETICS[first].instruction]
