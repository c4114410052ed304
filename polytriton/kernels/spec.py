"""What the compiler is told of a kernel beside its family, constants and types, and what is known of it once it is machine code."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

# Triton's release: 3.2 knows no tuples of pointers, 3.3 no fields of a record of constants; only from 3.6 on is a float64 `tl.dot` on
# tensor cores
OLDEST = (3, 6)
FUSION = {"enable_fp_fusion": True}  # the bounds hold with and without it; never left to Triton's changing default


def room(blocks: int) -> dict[str, str]:
    """What Triton is told so that ptxas makes room for so many blocks on an SM; nothing for none."""
    return {"ptx_options": f"--minnctapersm {blocks}"} if blocks else {}


@dataclass(frozen=True)
class Report:
    """The machine code of one kernel: what a thread and a block take, and what is in it.

    `registers` and `stack` (bytes) are of a thread, `shared` (bytes) of a block. Spills are counted in the code, not in the run:
    loads from (LDL) and stores to (STL) the stack. `occupancy` is the warps that registers and shared memory let live on one SM.
    `blocks`: how many blocks on an SM ptxas had to make room for, where its own choice spilled; 0 for its own choice. `launch`: what
    Triton's launcher wants to know of the code, as JSON.
    """

    name: str
    target: str
    registers: int
    shared: int
    spill_loads: int
    spill_stores: int
    stack: int
    instructions: dict[str, int]
    occupancy: int
    cubin_bytes: int
    seconds: float
    cached: bool
    blocks: int = 0
    launch: str = ""

    @property
    def spills(self) -> int:
        return self.spill_loads + self.spill_stores

    def encode(self, cubin: bytes) -> bytes:
        """With its machine code, by the standard library: msgspec is not on every machine that has a GPU."""
        return json.dumps(asdict(self)).encode() + b"\n" + cubin

    @staticmethod
    def decode(data: bytes) -> tuple[Report, bytes]:
        """ValueError where these are no report and machine code."""
        report, _, cubin = data.partition(b"\n")
        try:
            return Report(**json.loads(report)), cubin
        except TypeError as error:
            raise ValueError(f"no report: {error}") from error
