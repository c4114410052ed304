"""tuned.json: the configurations that tuning sessions chose, and which of them belongs to a plan on a machine.

An entry counts for the same plan (whatever its weights), the same device and the same versions of what runs it: elsewhere the
default configuration runs. `polytriton tune` writes it; everything else only reads.
"""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

import polytriton
from polytriton.ir.plan_text import print_plan
from polytriton.ir.text import print_net
from polytriton.knobs import SUMMARY, note
from polytriton.runtime.config import DEFAULT, Config

if TYPE_CHECKING:
    from polytriton.passes.pipeline import Compiled

FORMAT, VERSION = "polytriton tuned configurations", 1
TUNED = "tuned.json"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One session's result: `config` is what differs from the default; seconds are medians of the session's workload."""

    plan: str
    device: str
    versions: dict[str, str]
    config: dict[str, Any]
    seconds: float
    default_seconds: float
    trials: int
    seed: int

    @property
    def place(self) -> tuple[str, str, dict[str, str]]:
        return self.plan, self.device, self.versions


class Tuned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: str = FORMAT
    version: int = VERSION
    entries: tuple[Entry, ...]

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    def with_entry(self, entry: Entry) -> Tuned:
        """The entry takes the place of an older one for the same plan, device and versions."""
        return Tuned(entries=(*(e for e in self.entries if e.place != entry.place), entry))

    def entry(self, compiled: Compiled, device: str) -> Entry | None:
        """What was found for this plan on this device by these versions."""
        plan, name, made = plan_key(compiled), device_name(device), versions(device)
        # a GPU takes what was predicted for its capability where nobody measured on one of its name
        names = (name, name.split(" ", 1)[0]) if device.startswith("cuda") else (name,)
        return next((e for n in names for e in self.entries if e.place == (plan, n, made)), None)


def decode(data: bytes) -> Tuned:
    """ValueError where these are no configurations of this version."""
    try:
        tuned = msgspec.json.decode(data, type=Tuned)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if (tuned.format, tuned.version) != (FORMAT, VERSION):
        raise ValueError(f"{tuned.format!r} of version {tuned.version}")
    try:
        for entry in tuned.entries:
            Config.of(entry.config)
    except TypeError as error:  # a value of another type than a configuration's
        raise ValueError(str(error)) from error
    return tuned


def config_here(tuned: Tuned | None, compiled: Compiled, device: str) -> Config:
    """The configuration for this plan on this machine; the default where nobody looked for one here."""
    if tuned is None or not tuned.entries:
        return DEFAULT
    entry = tuned.entry(compiled, device)
    if entry is None:
        note(SUMMARY, f"tuned for {tuned.entries[-1].device}, not for {device_name(device)} by these versions: the default runs")
        return DEFAULT
    return Config.of(entry.config)


def plan_key(compiled: Compiled) -> str:
    """The hash of what a configuration is about: layers, shapes and programs. Weights and names of files do not matter."""
    net = compiled.net
    text = print_net(net).split("{", 1)[1] + print_plan(compiled.plan).split("{", 1)[1] + compiled.plan.candidates
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def device_name(device: str) -> str:
    """A CPU by its model, cores and vector instructions, a GPU by its capability and name."""
    if device.startswith("cuda"):
        index = torch.device(device.split(",", maxsplit=1)[0]).index or 0
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            return device
        return "cuda:{}{} {}".format(*torch.cuda.get_device_capability(index), torch.cuda.get_device_name(index))
    return f"{device}: {_processor()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text(errors="replace").splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions(device: str) -> dict[str, str]:
    """Of everything whose speed a session measures."""
    library = "numba" if device == "cpu" else "triton"
    try:
        found = version(library)
    except PackageNotFoundError:
        found = "none"
    return {"polytriton": polytriton.__version__, "torch": str(torch.__version__), library: found}
