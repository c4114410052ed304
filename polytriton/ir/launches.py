"""Launches: the third of the intermediate representations. Which kernel runs on which buffers, in what order.

Everything is static: buffers, slots, tables and the order depend on no image, and on no count that is known on the device alone.
Symbols name tensors: `buf:3` coefficients, `image:1` a row array of state 1, `from:1` where the rows of state 1 lay in the state
before, `lo:conv1` a table, `weight:conv1` a layer's; none stands for a parameter that is not read. A node may be called 19: the kind
tells what a symbol is, never how the rest of it looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polytriton.ir.plan import Plan, Program

COUNTED = ("DMMA", "HGMMA", "HMMA", "FFMA", "DFMA")  # the instructions that do a kernel's arithmetic
COUNTERS = ("count_staying", "count_open")  # families that count blocks, for those behind them
ROW_ARRAYS = ("image", "row_h", "row_w", "constant", "error", "index", "sign", "channel", "count", "from")  # kinds by row state

Constant = int | float | bool | str | None
Constants = dict[str, Constant]


@dataclass(frozen=True)
class Kernel:
    """A family of the library under constants: ready to compile or launch.

    `parameters` are the pointers that the family reads under them, all of them 16-byte aligned, in its own order; those it does not
    read are no arguments of the machine code. `types` are Triton's names ("*fp64", "*i64"), one a parameter. A constant "tl.float64"
    is that Triton type. `instruction` is the one of COUNTED that the kernel was written for, "" where none is asked.
    """

    name: str
    family: str
    constants: tuple[tuple[str, Constant], ...]
    parameters: tuple[str, ...]
    types: tuple[str, ...]
    warps: int = 4
    stages: int = 3
    instruction: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"a kernel's name is an identifier, not {self.name!r}")
        if len(self.types) != len(self.parameters):
            raise ValueError(f"kernel {self.name} has {len(self.parameters)} parameters and {len(self.types)} types")
        if self.instruction and self.instruction not in COUNTED:
            raise ValueError(f"kernel {self.name} asks for {self.instruction}: only {', '.join(COUNTED)} are counted")

    @property
    def options(self) -> dict[str, int]:
        """What Triton is told besides the family, its constants and types."""
        return {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class Launch:
    """Grid: (ceil(capacity * cells / block) * times, columns) programs. `bind` names the tensor of every parameter.

    Launches of one region (lanes.py; 0: none) with different lanes may run at the same time.
    """

    kernel: Kernel
    bind: tuple[str, ...]
    block: int
    cells: int = 1
    times: int = 1
    columns: int = 1
    lane: int = 0
    region: int = 0

    @property
    def function(self) -> str:
        """The library's function that it launches."""
        return self.kernel.family

    def is_idle(self, capacity: int) -> bool:
        """Whether nobody reads what it writes: counts of blocks, where there is one."""
        return self.function in COUNTERS and self.grid(capacity) == (1, 1)

    def grid(self, capacity: int) -> tuple[int, int]:
        """CUDA's limits: a launcher beyond them may launch nothing and say nothing."""
        rows = -(-capacity * self.cells // self.block) * self.times
        assert rows * self.columns < 1 << 31 and self.columns <= 65535, f"{self.kernel.name}: {rows} x {self.columns} programs"
        return rows, self.columns


@dataclass
class Launches:
    """One program: its launches, the values a row takes in each buffer, the row states it passes through."""

    program: Program
    steps: list[Launch] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    lives: list[list[int]] = field(default_factory=list)  # first and last launch that touches each buffer
    slots: list[str] = field(default_factory=list)
    begins: list[int] = field(default_factory=lambda: [0])  # the first launch of every state
    ops: dict[int, int] = field(default_factory=dict)  # operations the Plan counts a row, by the state the row has reached

    @property
    def states(self) -> int:
        return len(self.begins)

    def spans(self) -> list[tuple[int, int]]:
        """By state, its launches: from the first up to the next state's."""
        return list(zip(self.begins, [*self.begins[1:], len(self.steps)], strict=True))

    def parts(self) -> list[tuple[int, int, int]]:
        """The launches cut behind the compactions into states 2, 4, 8, ...: begin, end, and how many states have been reached there.

        Between two parts a host may stop where no row is left. A part is twice the one before, so that they are few.
        """
        cuts = [2**k for k in range(1, len(self.begins).bit_length()) if 2**k < len(self.begins)]
        ends = [*((self.begins[s], s + 1) for s in cuts), (len(self.steps), self.states)]
        return [(begin, end, states) for begin, (end, states) in zip([0, *(e for e, _ in ends[:-1])], ends, strict=True)]


@dataclass(frozen=True)
class MachineCode:
    """One kernel for one target: what a driver loads, and what a launcher wants to know of it, as JSON."""

    cubin: bytes
    launch: str


@dataclass(frozen=True)
class Filed:
    """What compiling left for runs: kernels by name, the launches of programs and of whole runs as text (kernels/stock.py), and
    kernels' machine code by target, made by the release `triton`. `plan`: the one whose programs they are. `trusted`: the machine code was
    made elsewhere.
    """

    kernels: Mapping[str, Kernel]
    programs: Mapping[str, str]
    code: Mapping[str, Mapping[str, MachineCode]] = field(default_factory=dict)
    triton: str = ""
    plan: Plan | None = field(default=None, compare=False, repr=False)
    trusted: bool = False

    def serves(self, target: str, triton: str) -> bool:
        """Whether that GPU runs this machine code by that release, whose launcher knows what its own compiler wrote."""
        return target in self.code and triton == self.triton
