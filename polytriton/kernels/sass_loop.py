"""What the machine code of one loop makes an SM do: the innermost loop around the matrix instructions, and its busiest pipe.

A warp instruction keeps a pipe of L lanes busy for 32 / L cycles of the SM, and a scheduler for one; there are four schedulers. Lanes
are those of the CUDA C++ programming guide (throughput of native arithmetic instructions), and of integer work by what is known of the
two pipes that share it. Latencies, bank conflicts and stalls are left out: no loop is faster than this, many are slower.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)([^;]*);", re.MULTILINE)
NEVER = "@!PT"  # the predicate of an instruction that is there for its slot alone
SCHEDULERS, WARP, PORT = 4, 32, 128  # of an SM; threads of a warp; bytes a cycle of an SM's shared memory and L1
MATRIX = ("DMMA", "HGMMA", "HMMA")
PACKED = {"884": (8, 8, 4), "1684": (16, 8, 4), "1688": (16, 8, 8), "16816": (16, 8, 16)}  # HMMA's shapes are written so


@dataclass(frozen=True)
class Instruction:
    address: int
    opcode: str  # with its modifiers
    operands: str = ""
    idle: bool = False  # issued, never executed

    @property
    def base(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def jump(self) -> int | None:
        """Where a branch goes."""
        found = re.search(r"0x([0-9a-f]+)\s*$", self.operands) if self.base == "BRA" else None
        return int(found[1], 16) if found else None

    @property
    def flops(self) -> float:
        """Of a matrix instruction, by one warp; an HGMMA is shared by four."""
        if self.base not in MATRIX:
            return 0.0
        shape = re.search(r"\.(\d+)x(\d+)x(\d+)", self.opcode)
        if shape:
            m, n, k = (int(d) for d in shape.groups())
        else:
            m, n, k = next((PACKED[p] for p in self.opcode.split(".") if p in PACKED), (0, 0, 0))
            if not m:
                raise ValueError(f"the shape of {self.opcode} is not known")
        return 2.0 * m * n * k / (4 if self.base == "HGMMA" else 1)

    @property
    def moved(self) -> int:
        """Bytes that a warp moves through the SM's memory port."""
        if self.base not in ("LDS", "STS", "LDSM", "STSM", "LDG", "STG", "LDGSTS", "LDL", "STL"):
            return 0
        if self.base in ("LDSM", "STSM"):  # so many matrices of 8 x 8 values of 16 bits
            count = re.search(r"\.([124])$", self.opcode)
            return 128 * (int(count[1]) if count else 1)
        width = re.search(r"\.(?:[US]?)(128|64|16|8)\b", self.opcode)
        return WARP * (int(width[1]) // 8 if width else 4)


def read(text: str) -> list[Instruction]:
    """The instructions that `cuobjdump -sass` shows of a cubin with one kernel."""
    found = LINE.findall(text)
    return [Instruction(int(at, 16), opcode, operands.strip(), predicate.strip() == NEVER) for at, predicate, opcode, operands in found]


def instructions(cubin: bytes) -> list[Instruction]:
    """Those of a cubin's one kernel."""
    from polytriton.kernels.worker import dump

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        return read(dump(file))


def mix(code: Sequence[Instruction]) -> Counter[str]:
    return Counter(i.base for i in code)


def inner_loop(code: Sequence[Instruction], wanted: Sequence[str]) -> list[Instruction]:
    """The shortest loop that holds the most of these instructions; empty where no loop holds any.

    A loop is what lies between a branch and the earlier instruction it goes back to. The loop at the end of every kernel, a branch to
    itself, holds nothing.
    """
    loops = []
    for at in code:
        to = at.jump
        if to is not None and to <= at.address:
            body = [i for i in code if to <= i.address <= at.address]
            loops.append((-sum(i.base in wanted for i in body), len(body), body))
    best = min(loops, key=lambda found: found[:2], default=(0, 0, []))
    return best[2] if best[0] else []


@dataclass(frozen=True)
class Lanes:
    """Results a cycle of one SM."""

    float32: int
    float64: int
    integer: int = 64
    convert: int = 16  # from and to 64 bits, and special functions


LANES = {"cuda:80": Lanes(64, 32), "cuda:90": Lanes(128, 64)}


ALONE = ("BAR", "BRA", "BSSY", "BSYNC", "DEPBAR", "EXIT", "LDGDEPBAR", "NOP", "WARPGROUP", "WARPSYNC")  # take a slot and nothing else


INTEGERS = 2048  # products of 8 bits that an SM's tensor cores make a cycle, by A100's data sheet; H100's makes twice as many


def pipe_cycles(loop: Sequence[Instruction], warps: int, lanes: Lanes, matrix_rate: float) -> dict[str, float]:
    """Cycles of an SM that one turn of the loop by a block of `warps` takes of each pipe; `matrix_rate`: operations a cycle.

    The operands of a product by FFMA are read by many threads of a warp at once: such a load counts one line of the port at least.
    """
    cycles: dict[str, float] = defaultdict(float)
    shared = not any(i.base in MATRIX for i in loop) and any(i.base == "FFMA" for i in loop)
    for i in loop:
        cycles["issue"] += 1 / SCHEDULERS
        if i.idle or i.base in ALONE or i.base.startswith("U"):
            continue
        if i.base in MATRIX:
            cycles["matrix"] += i.flops / matrix_rate
        elif i.base == "IMMA":
            cycles["matrix"] += 16 * 8 * 32 / INTEGERS
        elif i.base in ("F2F", "I2F", "F2I", "MUFU", "FRND"):
            wide = "64" in i.opcode or i.base == "MUFU"
            cycles["convert"] += WARP / (lanes.convert if wide else lanes.integer)
        elif i.base in ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX"):
            cycles["float64"] += WARP / lanes.float64
        elif i.base in ("FFMA", "FMUL", "FADD"):
            cycles["float32"] += WARP / lanes.float32
        elif i.base == "IMAD":
            cycles["float32"] += WARP / lanes.integer  # on the same pipe, at half its width
        elif i.moved:
            cycles["port"] += 1 if shared and i.base == "LDS" else i.moved / PORT
        else:
            cycles["integer"] += WARP / lanes.integer
    return {pipe: warps * n for pipe, n in cycles.items()}
