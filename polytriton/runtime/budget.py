"""What a batch of images takes of the memory, and how many rows fit into it at a time."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from polytriton.errors import ResourceError
from polytriton.heap import keeps_memory
from polytriton.ir.plan import Program
from polytriton.passes.memory import chunk_rows
from polytriton.runtime.config import DEFAULT, Config
from polytriton.runtime.kit import Kit

MANY = 64  # rows of an image from which on a block of its own costs less than the cells that it may leave out
WORTH = 2 * 10**8  # operations: some milliseconds. Threads of fewer wait for each other's Python for longer than they gain


def image_bytes(kit: Kit, kernels: bool) -> int:
    """What one image's boxes, tables and transient values take while a batch runs."""
    total = 0
    for n in kit.net:
        frame = kit.frames[n.name]
        padded = frame.padded[0] * frame.padded[1] * frame.channels
        total += n.size * 8 * (8 if kernels else 4) + padded * kit.coefficients.dtype.itemsize * 6
        total += padded * 12 if kit.coefficients.centred else 0  # its centre, and what the layer makes of it
    return total + 8 * 3 * max(_patch_values(kit, n.name) for n in kit.net)


def _patch_values(kit: Kit, name: str) -> int:
    layer, node = kit.forward.layers.get(name), kit.nodes[name]
    return node.size + (layer.terms * node.size // node.shape[0] if layer is not None and node.op == "conv" else 0)


def count_sharers(rows: int, program: Program, kit: Kit, memory: int, threads: int) -> int:
    """How many threads walk blocks of their own at a time: what fits the memory, and none of them for little."""
    fit = chunk_rows(program, kit.coefficients.dtype.itemsize, memory)
    return max(1, min(threads, rows, fit, rows * program.row_ops // WORTH))


def row_blocks(
    rows: int,
    program: Program,
    kit: Kit,
    memory: int,
    config: Config,
    device: torch.device,
    threads: int = 1,
    images: Tensor | None = None,
    walks: bool = True,
) -> list[Tensor]:
    """Row ranges that fit the memory, and the cache where one `walks` them; as many for each of the threads that walk one at a time."""
    word = kit.coefficients.dtype.itemsize
    fit = chunk_rows(program, word, memory) // threads
    if fit < 1:
        need = program.row_bytes * word // 8
        raise ResourceError(
            f"one row of %{program.target} takes {need / 2**20:.1f} MiB, more than half the budget of {2 * memory / 2**20:.1f} MiB",
            f"give --memory at least {2 * need // 2**20 + 1}M",
        )
    if device.type == "cpu" and walks:
        # blocks above the default were chosen in a process that keeps its memory: elsewhere new pages would cost more
        block = config.block if keeps_memory() else min(config.block, DEFAULT.block)
        fit = min(fit, max(config.least, chunk_rows(program, word, block)))
    found = []
    cuts = between_images(images) if images is not None and kit.narrows(program) else []
    for a, b in pairwise((0, *cuts, rows)):
        count = -(-(b - a) // fit) if len(cuts) >= threads else -(-(b - a) // (fit * threads)) * threads
        found += [torch.arange(a + (b - a) * k // count, a + (b - a) * (k + 1) // count, device=device) for k in range(count)]
    return found


def between_groups(cuts: list[int], groups: Tensor) -> list[int]:
    """Where rows are cut near there such that rows of a group, which leave together, stay together; nowhere where groups mix."""
    if not cuts or bool((groups[1:] < groups[:-1]).any()):
        return []
    ends = (torch.nonzero(groups[1:] != groups[:-1]).flatten() + 1).tolist()
    return sorted({end for cut in cuts if (end := next((e for e in ends if e >= cut), None)) is not None})


def between_images(images: Tensor) -> list[int]:
    """Where the rows of an image end and the next one's begin, in their order, if the images have many each."""
    if len(images) < 2 * MANY or images[0] == images[-1]:
        return []
    cuts: list[int] = (torch.nonzero(images[1:] != images[:-1]).flatten() + 1).tolist()
    return cuts if len(images) >= MANY * (len(cuts) + 1) else []

