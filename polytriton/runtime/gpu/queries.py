"""Queries by generated kernels: linear forms become rows in one launch, and their bounds are copied out of the device's buffers.

The host waits for nothing: how many groups there are it learns from the caller's own numbers, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polytriton.ir.plan import Program
from polytriton.kernels import cell_kernels
from polytriton.kernels.cell_kernels import cell_kernel
from polytriton.runtime.gpu.binding import round_size
from polytriton.runtime.gpu.forward_kernels import _aligned
from polytriton.runtime.gpu.recording import launch
from polytriton.runtime.results import Forms, Results
from polytriton.runtime.settings import on_device
from polytriton.runtime.tables import Tables

if TYPE_CHECKING:
    from polytriton.runtime.gpu.triton_backend import TritonBackend

KEPT = 4096  # blocks of rows whose numbers are kept


class Queries:
    """Of one backend."""

    def __init__(self, backend: TritonBackend) -> None:
        self.backend = backend
        self._blocks: dict[tuple[int, int], Tensor] = {}  # [begin, count] on the device

    def ask(self, tables: Tables, program: Program, forms: Forms, groups: Tensor | None, expire: Callable[[], None]) -> Results:
        """Lower bounds of all forms; with `groups` (on the CPU) rows leave once one of their group is above zero."""
        backend, rows = self.backend, len(forms.image)
        program = backend.program_for(program, forms)
        with on_device(backend.device):
            if not rows:
                none = torch.empty(0, dtype=torch.float64, device=backend.device)
                return Results(none, none.clone())
            return backend.fitting(program, rows, lambda capacity: self._asked(tables, program, forms, groups, capacity, expire))

    def _asked(
        self, tables: Tables, program: Program, forms: Forms, groups: Tensor | None, capacity: int, expire: Callable[[], None]
    ) -> Results:
        backend, rows = self.backend, len(forms.image)
        number = 1 if groups is None else int(groups.max()) + 1
        bound = backend.bound(tables, program, capacity, round_size(max(rows, number)))
        backend.limit(bound, float("inf") if groups is None else 0.0)
        kernel, given = self._given(tables, program, forms, groups, bound.starts)
        if rows > capacity or number > rows:
            bound.starts["done"].zero_()
        left: list[list[int] | Tensor] = []
        for begin in range(0, rows, capacity):
            expire()
            count = min(capacity, rows - begin)
            backend.clear_own(bound.starts)
            block = {"rows_ptr": self._block(begin, count)}
            launch(backend.stock, kernel, (-(-count // cell_kernels.forms(backend.sizes.emulate)),), given | block, backend.device)
            backend.opened(bound, tables, forms, begin, count)
            backend.play(bound)
            counts = backend.count_rows(bound)
            if groups is not None:
                left.append(counts)
        best, raw = torch.stack((bound.starts["best"][:rows], bound.starts["raw_best"][:rows]))
        return Results(best, raw, left=left)

    def _given(
        self, tables: Tables, program: Program, forms: Forms, groups: Tensor | None, to: dict[str, Tensor]
    ) -> tuple[cell_kernels.Kernel, dict[str, Tensor]]:
        """The kernel that makes rows of forms, and all that it reads and writes but the rows' numbers."""
        backend, rows, boxes = self.backend, len(forms.image), tables.boxes
        semantics = backend.kit.forward.semantics
        gap, node = forms.coefficient_error, backend.kit.nodes[program.target]
        constants = cell_kernels.open_forms(node, gap is not None, backend.numerics, backend.sizes.emulate)
        # the deployed output itself may be flushed to zero
        flushed = self.backend.number(0.0 if semantics.real else 2 * semantics.eta)
        nothing = round_size(rows)  # zeros that nobody writes
        given = {
            "of_ptr": _aligned(forms.image), "forms_ptr": _aligned(forms.over_output), "numbers_ptr": flushed,
            "gap_ptr": flushed if gap is None else _aligned(gap),
            "minus_ptr": backend.kept("minus", nothing, torch.float64) if forms.constant is None else _aligned(forms.constant),
            "group_of_ptr": backend.kept("group_of", nothing, torch.int64) if groups is None else _aligned(groups.to(backend.device)),
            "box_lo_ptr": _aligned(boxes.lo[node.name]), "box_hi_ptr": _aligned(boxes.hi[node.name]),
        }  # fmt: skip
        return cell_kernel(backend.stock, "open_forms", constants, backend.numerics.name), given | {f"{k}_ptr": v for k, v in to.items()}

    def _block(self, begin: int, count: int) -> Tensor:
        if (begin, count) not in self._blocks:
            if len(self._blocks) >= KEPT:
                self._blocks.clear()
            self._blocks[begin, count] = torch.tensor([begin, count], dtype=torch.int64, device=self.backend.device)
        return self._blocks[begin, count]
