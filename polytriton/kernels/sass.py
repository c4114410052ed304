"""Reads what cuobjdump prints of a cubin, and tells how many warps of it fit on one SM."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

USAGE = re.compile(r"Function (\S+):\s+REG:(\d+)\s+STACK:(\d+)")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)


@dataclass(frozen=True)
class Limits:
    """One SM (CUDA C++ programming guide, table of technical specifications); shared memory in bytes."""

    shared: int
    shared_block: int
    warps: int
    blocks: int


KIB, REGISTERS, RESERVED = 1024, 65536, 1024  # every block of these targets loses RESERVED bytes of shared memory to the system
LIMITS = {
    "cuda:80": Limits(164 * KIB, 163 * KIB, 64, 32),
    "cuda:86": Limits(100 * KIB, 99 * KIB, 48, 16),
    "cuda:89": Limits(100 * KIB, 99 * KIB, 48, 24),
    "cuda:90": Limits(228 * KIB, 227 * KIB, 64, 32),
}


def usage(text: str, name: str) -> tuple[int, int]:
    """Registers and stack bytes of a thread, from `cuobjdump -res-usage`."""
    for found, registers, stack in USAGE.findall(text):
        if found == name:
            return int(registers), int(stack)
    raise ValueError(f"cuobjdump says nothing about the resources of {name}")


def opcodes(text: str) -> Counter[str]:
    """How often each instruction occurs, modifiers apart, from `cuobjdump -sass`."""
    counts = Counter(INSTRUCTION.findall(text))
    if not counts:
        raise ValueError("cuobjdump shows no instruction")
    return counts


def occupancy(target: str, registers: int, shared: int, warps: int) -> int:
    """Warps that live on one SM; 0 where not even one block fits.

    Registers are dealt in units of 256 a warp and a quarter of them to each of the four schedulers, to which the warps of a block
    go in turn; shared memory in units of 128 bytes a block.
    """
    limits = LIMITS[target]
    if shared > limits.shared_block:
        return 0
    per_warp = -(-max(registers, 1) * 32 // 256) * 256
    by_registers = 4 * (REGISTERS // 4 // per_warp) // warps
    by_shared = limits.shared // (-(-shared // 128) * 128 + RESERVED)
    return warps * min(by_registers, by_shared, limits.warps // warps, limits.blocks)
