"""Queries by generated kernels: linear forms become rows in one launch, and their bounds are copied out of the device's buffers.

The host waits for nothing: how many groups there are it learns from the caller's own numbers, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polytriton.ir.plan import Program
from polytriton.runtime.gpu.binding import round_size
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
            return backend.fitting(program, rows, lambda capacity: self._ask(tables, program, forms, groups, capacity, expire))

    def _ask(
        self, tables: Tables, program: Program, forms: Forms, groups: Tensor | None, capacity: int, expire: Callable[[], None]
    ) -> Results:
        backend, rows = self.backend, len(forms.image)
        number = 1 if groups is None else int(groups.max()) + 1
        places = backend.player.bring(tables, program)
        bound = backend.bound(places, program, capacity, round_size(max(rows, number)))
        backend.limit(bound, float("inf") if groups is None else 0.0)
        given, verb = self._row_sources(forms, groups), "forms" if forms.coefficient_error is None else "gaps"
        (launch,) = (e.launch for e in backend.script.sections["query"] if e.verb == verb and e.launch is not None)

        def tensor(symbol: str) -> Tensor:
            found = given.get(symbol, bound.begin(symbol))
            return places.tensor(symbol) if found is None else found

        if rows > capacity or number > rows:
            bound.starts["done"].zero_()
        left: list[list[int] | Tensor] = []
        for begin in range(0, rows, capacity):
            expire()
            count = min(capacity, rows - begin)
            for clear in bound.clears():
                clear()
            given["block"] = self._block(begin, count)
            backend.call(launch, count, tensor)()
            backend.begin_rows(bound, tables, forms, begin, count)
            backend.play(bound)
            counts = backend.count_rows(bound)
            if groups is not None:
                left.append(counts)
        best, raw = torch.stack((bound.starts["best"][:rows], bound.starts["raw_best"][:rows]))
        return Results(best, raw, left=left)

    def _row_sources(self, forms: Forms, groups: Tensor | None) -> dict[str, Tensor]:
        """By symbol, what rows are made of."""
        backend, semantics = self.backend, self.backend.kit.forward.semantics
        # the deployed output itself may be flushed to zero
        flushed, gap = backend.number(0.0 if semantics.real else 2 * semantics.eta), forms.coefficient_error
        nothing = round_size(len(forms.image))  # zeros that nobody writes
        return {
            "of": _align(forms.image), "forms": _align(forms.over_output),
            "flushed": flushed, "gap": flushed if gap is None else _align(gap),
            "minus": backend.keep("minus", nothing, torch.float64) if forms.constant is None else _align(forms.constant),
            "group_of": backend.keep("group_of", nothing, torch.int64) if groups is None else _align(groups.to(backend.device)),
        }  # fmt: skip

    def _block(self, begin: int, count: int) -> Tensor:
        if (begin, count) not in self._blocks:
            if len(self._blocks) >= KEPT:
                self._blocks.clear()
            self._blocks[begin, count] = torch.tensor([begin, count], dtype=torch.int64, device=self.backend.device)
        return self._blocks[begin, count]


def _align(given: Tensor) -> Tensor:
    """Contiguous, and beginning where the kernels' wide loads may: a slice may begin in between."""
    given = given.contiguous()
    return given if given.data_ptr() % 16 == 0 else given.clone()
