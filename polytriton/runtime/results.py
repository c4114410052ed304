"""What rows are, what they start as, and what becomes of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from polytriton.runtime.cpu import cells


class Stopped(Exception):
    """The deadline passed; what was proved until then stands."""


def expire(deadline: float | None) -> None:
    """Raises Stopped when it has passed."""
    if deadline is not None and time.monotonic() > deadline:
        raise Stopped


@dataclass
class Rows:
    """Which image and position each row belongs to, and what it has gathered: constant and error, both float64; `excess`, where the other
    end is asked for, is how far the target may lie above its row beside the error.
    """

    image: Tensor
    h: Tensor
    w: Tensor
    constant: Tensor
    error: Tensor
    index: Tensor  # where in the program's results the row's bound belongs
    excess: Tensor | None = None

    @classmethod
    def begin(cls, image: Tensor, index: Tensor, h: Tensor, w: Tensor) -> Rows:
        """Rows that have gathered nothing."""
        zero = torch.zeros(len(image), dtype=torch.float64, device=image.device)
        return cls(image, h, w, zero, zero.clone(), index)

    def __len__(self) -> int:
        return self.image.shape[0]  # `len` asks whether torch is tracing

    def keep(self, index: Tensor) -> Rows:
        values = (getattr(self, name) for name in self.__dataclass_fields__)
        return Rows(*(None if v is None else v[index] for v in values))  # type: ignore[arg-type]


@dataclass
class Identity:
    """Rows +x or -x of single neurons, not yet multiplied by anything."""

    sign: Tensor
    channel: Tensor

    def keep(self, index: Tensor) -> Identity:
        return Identity(self.sign[index], self.channel[index])


@dataclass
class Forms:
    """Linear forms to bound from below: sum C y + sum D x, one a row, over the box `image`."""

    image: Tensor  # [rows]
    over_output: Tensor  # [rows, outputs], float64
    over_input: Tensor | None = None  # [rows, physical inputs], float64
    coefficient_error: Tensor | None = None  # [rows, outputs] float64: the exact coefficients lie this far at most
    input_error: Tensor | None = None
    constant: Tensor | None = None  # [rows], float64: subtracted

    def pick(self, rows: Tensor) -> Forms:
        index = rows.to(self.image.device)
        values = (getattr(self, f.name) for f in fields(self))
        return Forms(*(None if v is None else v[index] for v in values))  # type: ignore[arg-type]


def relation_error(forms: Forms, rows: Tensor, absmax: Tensor, dtype: torch.dtype) -> Tensor:
    """What rounding the coefficients over the input to this type may cost these rows; `absmax`: of the input's boxes."""
    assert forms.over_input is not None
    given = forms.over_input[rows]
    gap = (given - given.to(dtype).double()).abs()
    if forms.input_error is not None:
        gap = gap + forms.input_error[rows]
    return (gap * absmax[forms.image[rows]].reshape(len(gap), -1)).sum(1) * (1 + 2.0**-30)


def form_rows(
    forms: Forms, block: Tensor, largest: tuple[Tensor, Tensor | None], flush: float, dtype: torch.dtype
) -> tuple[Rows, Tensor]:
    """Rows of these forms, and their coefficients in this type; what these are off is charged by the `largest` magnitudes of outputs and,
    where a form is over the input too, of inputs. flush: the share of an output that the deployed network may lose to zero.
    """
    (outputs, inputs), image = largest, forms.image[block]
    zero = torch.zeros_like(image)
    if cells.serves(outputs):
        given = forms.over_output, forms.coefficient_error, forms.constant, block, forms.image, outputs
        start, constant, error = cells.form_cells(*given, flush, dtype)
        some = Rows(image, zero, zero, constant, error, block)
        if inputs is not None:
            some.error = some.error + relation_error(forms, block, inputs, dtype)
        return some, start.view(len(block), *outputs.shape[1:])
    constant = torch.zeros(len(image), dtype=torch.float64, device=image.device)
    some = Rows(image, zero, zero, constant, constant.clone(), block)
    if forms.constant is not None:
        some.constant = some.constant - forms.constant[block]
    exact = forms.over_output[block].view(len(block), *outputs.shape[1:])
    start = exact.to(dtype).contiguous()
    off = (exact - start.double()).abs()
    if forms.coefficient_error is not None:
        off = off + forms.coefficient_error[block].view_as(off)
    lost = torch.where(off > 0, off * outputs[image], torch.zeros_like(off)) + exact.abs() * flush
    some.error = some.error + lost.sum((1, 2, 3)) * (1 + 2.0**-30)
    if inputs is not None:
        some.error = some.error + relation_error(forms, block, inputs, dtype)
    return some, start


@dataclass
class Results:
    """Best bound of every row of a program, and what it would be had no rounding been charged; rows of a group leave together. `other`:
    the same of what the rows bound from below, negated: their other end.
    """

    best: Tensor
    raw: Tensor
    group: Tensor | None = None  # None: rows never leave
    done: Tensor | None = None
    ops: int = 0  # operations the plan counts for the rows that each step still had
    strict: bool = False  # a row is decided by best > 0, not by best >= 0
    left: list[list[int] | Tensor] = field(default_factory=list)  # a block: rows left after each check but the last, where rows leave
    other: Results | None = None

    @classmethod
    def begin(cls, rows: int, device: torch.device) -> Results:
        """No bound of so many rows."""
        best, raw = torch.full((2, rows), float("-inf"), dtype=torch.float64, device=device).unbind()
        return cls(best, raw)

    def decide(self, best: Tensor) -> Tensor:
        return best > 0 if self.strict else best >= 0
