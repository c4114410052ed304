"""Everything there is to measure and check on a machine with an NVIDIA GPU, in one command.

    python -m bench.gpu [PART ...] [--out FOLDER] [--minutes 8] [--only GROUP ...] [--dry]

kernels   every launch of small networks against an oracle, whole networks against torch; FAIL where a bound is not kept
micro     single launches: times, fractions of the ceilings, fused and separate ReLUs, tile shapes
zoo       the paper's networks, synthetic, end to end, alone and in batches, beside the torch engine and auto_LiRPA
interval  the paper's interval arithmetic beside folded errors

Every part may take --minutes and leaves out, saying so, what it has no time for. Rows go to FOLDER/DEVICE_PART.csv as they come
and to stdout; progress goes to stderr. Every group of a part runs in a process of its own, since an illegal access loses the device
to its process. --dry does the same on tiny sizes in Triton's interpreter: its times mean nothing and no file is written.

Exit code: 0, 1 where a check failed or a process died, 2 where there is no GPU or no Triton.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from bench.core.command import add_parts, check_known, parser, run_groups
from bench.core.machine import ROOT, describe
from bench.core.remote import rows_of
from bench.core.table import Row, Table, say, slug
from bench.gpu.setting import Setting, all_groups, device_name
from polytriton.knobs import interpret_triton

PARTS = ("kernels", "micro", "zoo", "interval")
LEAST = 45.0  # seconds a group gets at least, where the part has them and names no other number
GRACE = 15.0  # seconds past its end after which a process is stopped
NO_DEVICE = 2


def main() -> int:
    p = parser("gpu", __doc__)
    add_parts(p, PARTS)
    p.add_argument("--out", type=Path, default=ROOT / "build" / "bench-gpu", help="folder of the CSV files (%(default)s)")
    p.add_argument("--minutes", type=float, default=8.0, help="time of a part (%(default)g)")
    p.add_argument("--dry", action="store_true", help="tiny sizes in Triton's interpreter")
    a = p.parse_args()
    check_known(p, "part", a.parts, PARTS)
    if missing := absent(a.dry):
        say(missing)
        return NO_DEVICE
    interpret_triton(a.dry)  # in the groups' processes
    device = device_name(a.dry)
    about = describe(device)
    say(f"{device}; torch {about['torch']}, triton {about['triton']}")
    codes = [run_part(part, a.only, a.minutes * 60, a.dry, a.out, device, about) for part in a.parts or PARTS]
    return max(codes)


def absent(dry: bool) -> str:
    """What is missing for anything to run; "" where nothing is."""
    import torch

    try:
        import triton  # noqa: F401
    except ImportError:
        return "bench.gpu needs Triton: pip install triton"
    if dry:
        return ""
    if torch.cuda.is_available():
        return no_compiler()
    return "bench.gpu needs an NVIDIA GPU and a PyTorch built for CUDA; --dry runs the same code in Triton's interpreter, on tiny sizes"


def no_compiler() -> str:
    """Triton builds in C what launches a kernel."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    if not any(map(shutil.which, compilers)):
        return f"Triton needs a C compiler to launch kernels, and there is none ({', '.join(compilers)}): install one, or name it in CC"
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    return "" if header.exists() else f"Triton needs Python's C headers to launch kernels, and {header} is missing: install them"


def part_module(part: str) -> ModuleType:
    return importlib.import_module(f"bench.gpu.{part}")


def run_part(part: str, only: list[str], seconds: float, dry: bool, out: Path, device: str, about: Row) -> int:
    """All groups of a part, one after another; 0 or FAILED."""
    end = time.time() + seconds
    say(f"== {part}: up to {seconds / 60:g} minutes")
    module = part_module(part)
    least = getattr(module, "LEAST", LEAST)
    print(f"\n{part} on {device}" + (", a dry run: times mean nothing" if dry else ""), flush=True)
    path = None if dry else out / f"{slug(device)}_{part}.csv"
    table = Table(module.COLUMNS, path, {"part": part, **about}, module.SHOWN)
    wanted = [g for g in module.groups(dry) if not only or g in only]
    batches = [wanted] * bool(wanted) if dry else [[g] for g in wanted]  # a dry run can lose no device
    named = {", ".join(some): (some, len(batches) - k) for k, some in enumerate(batches)}

    def rows_within(batch: str) -> Iterator[Row]:
        """Of a process of its own, which gets its share of the time that is left."""
        (some, share), left = named[batch], end - time.time()
        if left < min(LEAST, seconds) / 3:
            say(f"   {batch}: left out, no time")
            return
        limit = min(left, max(least, 2 * left / share))
        say(f"   {batch}: up to {limit:.0f} s")
        until = time.time() + limit
        yield from rows_of(all_groups, module.work, some, Setting(dry, until), seconds=lambda: max(0.0, until - time.time()) + GRACE)

    code = run_groups(table, named, rows_within)
    if path is not None and table.rows:
        say(f"   {len(table.rows)} rows in {path}")
    if not table.rows:
        say(f"   no rows; groups: {', '.join(module.groups(dry))}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
