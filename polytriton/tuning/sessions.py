"""Puts a session together for the device that is here, and its result into the artifact and the user's cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch

import polytriton
from polytriton.api import Verifier
from polytriton.artifact import Artifact, write_artifact
from polytriton.errors import UsageError
from polytriton.runtime.config import LIBRARY, Config
from polytriton.runtime.soundness import KERNELS
from polytriton.runtime.torch_backend import TorchBackend
from polytriton.tuned import Tuned, device_name, plan_key, versions
from polytriton.tuning import work
from polytriton.tuning.check import Reference
from polytriton.tuning.cpu_cost import plan_cost
from polytriton.tuning.device import SHEETS, this_cpu
from polytriton.tuning.profile import Profile
from polytriton.tuning.session import Outcome, Session, Settings, State
from polytriton.tuning.space import Space, conv_shape_of, cpu_space, gpu_space
from polytriton.tuning.store import Folder, recall, remember
from polytriton.tuning.trials import Worker
from polytriton.verifier import Try


def tune_device(
    network: Path,
    held: Artifact,
    verifier: Verifier,
    packed: bytes,
    settings: Settings,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[State], None] = lambda state: None,
    worker: Worker | None = None,
) -> Outcome:
    """Runs the session; the artifact is replaced in one step when it is over."""
    device = settings.options["device"]
    place = plan_key(held.compiled), device_name(device), versions(device)
    identity = {
        "polytriton": polytriton.__version__, "plan": place[0], "device": place[1], "versions": place[2], "options": settings.options,
        "threads": settings.threads, "seed": settings.seed, "runs": settings.runs,
        "weights": hashlib.sha256(held.imported.model).hexdigest(),
    }  # fmt: skip
    space, predict, peak = (_cpu if device == "cpu" else _gpu)(verifier, settings)
    kept = Folder(folder, identity, packed, resume=resume, overwrite=overwrite)
    try:
        known = recall(place)
        begin = None if known is None else space.point(Config.of(known.config)) or None
        q = work.unpack(packed)
        reference = Reference(verifier, q, settings.seed)
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


Predict = Callable[[Config, Profile], float]


def _cpu(verifier: Verifier, settings: Settings) -> tuple[Space, Predict, float]:
    first = verifier._decider.first_dtype()
    numerics = ("float32", "float64") if settings.options.get("dtype", "auto") == "auto" and first == "float32" else (first,)
    space = cpu_space(verifier.net, verifier.compiled.plan, first, settings.threads, numerics)
    cpu = this_cpu()
    backend = TorchBackend(torch.device("cpu"))
    plain = any(LIBRARY in backend.forms(torch.float32, conv_shape_of(c)) for c in space.convs.values()) and first == "float32"

    def predict(config: Config, profile: Profile) -> float:
        seconds = plan_cost(space.convs, profile.load(), config, cpu, settings.threads, plain)
        return 2 * seconds if config.dtype == "float64" and first == "float32" else seconds

    return space, predict, cpu.peak * settings.threads


def _gpu(verifier: Verifier, settings: Settings) -> tuple[Space, Predict, float]:
    """The kernels that the programs launch here; which is fastest is for the device to say, in the order of the space."""
    if not torch.cuda.is_available():
        raise UsageError("there is no GPU here to run trials on", "polytriton tune NET.poly --target cuda:90 chooses by predicted time")
    engine = verifier._decider.engine(Try(verifier._decider.first_dtype(), verifier.options.candidates))
    assert engine.kernels is not None
    for program in engine.plan:
        engine.kernels.ready(program)
    space = gpu_space(engine.kernels.emitter.asked, {name: c.inner for name, c in KERNELS.items()})
    sheet = SHEETS.get(device_name(settings.options["device"]).split(" ", 1)[0])
    instruction = engine.kernels.numerics.instruction
    return space, lambda config, profile: 1.0, sheet.rates[instruction] if sheet else 0.0
