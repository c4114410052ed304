"""What machines can do: rates from data sheets, or measured by `polytriton tune --calibrate` and kept in the user's cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from polytriton.knobs import SUMMARY, knobs, note
from polytriton.runtime.config import GATHER, LIBRARY, PLANAR, PLANES, SHIFTS
from polytriton.tuned import device_name
from polytriton.whole import write_whole

FILE = "devices"
GIGA = 1e9


class Cpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thread. `forms`: seconds for each feature of a convolution's forms (cpu_cost.py); `passes`: of a row pass.

    peak: the best rate of a float32 convolution or product, operations a second; cache: bytes that a thread has near.
    """

    source: str
    peak: float
    forms: dict[str, list[float]]
    passes: list[float]
    cache: int = 2 << 20


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data-sheet peaks, operations and bytes a second; `rates` by the instruction that does the arithmetic."""

    source: str
    sms: int
    rates: dict[str, float]
    bandwidth: float
    cache_bandwidth: float
    launch: float = 3e-6


# as calibrated on one thread of a server core with AVX-512 at about 3 GHz: the start where nobody has calibrated
TYPICAL = Cpu(
    "one AVX-512 core, not measured here",
    250 * GIGA,
    {
        LIBRARY: [4.7e-12, 2.0e-8, 5.3e-7, 2e-6],
        PLANAR: [3.5e-12, 3.2e-8, 8.8e-10, 2e-6],
        SHIFTS: [4.8e-12, 2.3e-10, 6.4e-9, 0.0, 3e-7],
        PLANES: [3.6e-12, 5.4e-10, 2.0e-9, 0.0, 0.0],
        GATHER: [6.3e-13, 6.8e-10, 5.8e-10, 0.0, 2e-5],
    },
    [2.8e-10, 6.6e-11, 8.9e-6],
)
TERA = 1e12
SHEETS = {
    "cuda:80": Gpu("A100 40 GB SXM data sheet", 108, {"DMMA": 19.5 * TERA, "DFMA": 9.7 * TERA, "FFMA": 19.5 * TERA, "HGMMA": 156 * TERA, "HMMA": 156 * TERA}, 1.555 * TERA, 5 * TERA),  # noqa: E501
    "cuda:86": Gpu("A40 data sheet", 84, {"DMMA": 0.58 * TERA, "DFMA": 0.58 * TERA, "FFMA": 37.4 * TERA, "HGMMA": 74.8 * TERA, "HMMA": 74.8 * TERA}, 0.696 * TERA, 2 * TERA),  # noqa: E501
    "cuda:89": Gpu("L40 data sheet", 142, {"DMMA": 1.41 * TERA, "DFMA": 1.41 * TERA, "FFMA": 90.5 * TERA, "HGMMA": 90.5 * TERA, "HMMA": 90.5 * TERA}, 0.864 * TERA, 4 * TERA),  # noqa: E501
    "cuda:90": Gpu("H100 SXM data sheet", 132, {"DMMA": 67 * TERA, "DFMA": 34 * TERA, "FFMA": 67 * TERA, "HGMMA": 494 * TERA, "HMMA": 494 * TERA}, 3.35 * TERA, 7 * TERA),  # noqa: E501
}  # fmt: skip


def this_cpu() -> Cpu:
    """The measured table of this machine, else the typical one."""
    path = _path()
    if path is not None and path.is_file():
        try:
            return msgspec.json.decode(path.read_bytes(), type=Cpu)
        except (OSError, msgspec.MsgspecError) as error:
            note(SUMMARY, f"{path} is not used: {error}")
    return TYPICAL


def keep_cpu(cpu: Cpu) -> Path | None:
    """Where the table is kept; None where there is no cache."""
    path = _path()
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(cpu), indent=2) + b"\n")
    return path


def _path() -> Path | None:
    folder = knobs().cache
    if folder is None:
        return None
    return folder / FILE / f"{hashlib.sha256(device_name('cpu').encode()).hexdigest()[:16]}.json"
