"""One specialised kernel as the compiler gets it, and what is known of it once it is machine code."""

from __future__ import annotations

from dataclasses import dataclass

COUNTED = ("DMMA", "HGMMA", "HMMA", "FFMA", "DFMA")  # the instructions that do a kernel's arithmetic

FUSION = {"enable_fp_fusion": True}  # the bounds hold with and without it; never left to Triton's changing default


@dataclass(frozen=True)
class Kernel:
    """Ready to compile or launch: no constexpr parameter is left.

    `types` are Triton's names ("*fp64", "*i64", "i32"), one a parameter; `instruction` is the one of COUNTED the kernel was
    written for, "" where none is asked; `divisible` parameters are 16-byte aligned pointers or multiples of 16.
    """

    name: str
    source: str
    parameters: tuple[str, ...]
    types: tuple[str, ...]
    warps: int = 4
    stages: int = 3
    instruction: str = ""
    divisible: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"a kernel's name is an identifier, not {self.name!r}")
        if len(self.types) != len(self.parameters):
            raise ValueError(f"kernel {self.name} has {len(self.parameters)} parameters and {len(self.types)} types")
        if strange := set(self.divisible) - set(self.parameters):
            raise ValueError(f"kernel {self.name} has no parameter {', '.join(sorted(strange))} to be divisible")
        if self.instruction and self.instruction not in COUNTED:
            raise ValueError(f"kernel {self.name} asks for {self.instruction}: only {', '.join(COUNTED)} are counted")

    @property
    def options(self) -> dict[str, int]:
        """What Triton is told besides the source."""
        return {"num_warps": self.warps, "num_stages": self.stages}


def room(blocks: int) -> dict[str, str]:
    """What Triton is told so that ptxas makes room for so many blocks on an SM; nothing for none."""
    return {"ptx_options": f"--minnctapersm {blocks}"} if blocks else {}


@dataclass(frozen=True)
class Report:
    """The machine code of one kernel: what a thread and a block take, and what is in it.

    `registers` and `stack` (bytes) are of a thread, `shared` (bytes) of a block. Spills are counted in the code, not in the run:
    loads from (LDL) and stores to (STL) the stack. `occupancy` is the warps that registers and shared memory let live on one SM.
    `blocks`: how many blocks on an SM ptxas had to make room for, where its own choice spilled; 0 for its own choice.
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

    @property
    def spills(self) -> int:
        return self.spill_loads + self.spill_stores
