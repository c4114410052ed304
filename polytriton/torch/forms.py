"""Linear forms over the output are substituted back to the input, through lines above and below nonlinear operators.

A form's lower bound takes the line below where its coefficient is positive, and the line above where it is negative. Between the
ends l < 0 < u of a ReLU the line above is the chord; below it is y or slope*y, whichever leaves less area (the verifier's rule). The
greatest of a window is at least the cell whose lower bound is greatest, and at most that cell where it beats all others, else the
greatest upper bound.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from polytriton.torch.intervals import Passed, Walked
from polytriton.torch.rules import AffineRule, Box, PoolRule, ReluRule


def substitute_back(walked: Walked, forms: Tensor) -> Tensor:
    """Lower bounds [batch, rows] of forms [batch, rows, outputs] over the boxes of the input."""
    shape = walked.output.lo.shape
    batch, rows = forms.shape[0], forms.shape[1]
    coefficients: dict[fx.Node, Tensor] = {walked.end: forms.transpose(0, 1).reshape(rows, batch, *shape[1:])}
    constant = forms.new_zeros(rows, batch)
    for node in reversed(walked.nodes):
        a = coefficients.pop(node, None)
        if a is None:
            continue
        passed = walked.nodes[node]
        if passed.rule is None:
            box = passed.box
            return (constant + _total(a.clamp(min=0) * box.lo + a.clamp(max=0) * box.hi)).transpose(0, 1)
        moved, more = _substitute(passed, [walked.nodes[n].box for n in passed.read], a)
        constant = constant + more
        for operand, part in zip(passed.read, moved, strict=True):
            coefficients[operand] = coefficients[operand] + part if operand in coefficients else part
    return constant.transpose(0, 1)  # no coefficient reached the input


def _total(values: Tensor) -> Tensor:
    return values.flatten(2).sum(-1)


def _substitute(passed: Passed, boxes: list[Box], a: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """Coefficients of what the node read, and the constant that is left, for coefficients a [rows, batch, *shape] of the node."""
    rule = passed.rule
    if isinstance(rule, AffineRule):
        at_zero, pull, *_ = torch.func.vjp(rule.value, *(torch.zeros_like(b.lo) for b in boxes))
        moved: tuple[Tensor, ...] = torch.func.vmap(pull)(a)
        return moved, _total(a * at_zero)
    if isinstance(rule, ReluRule):
        return _relu(rule, boxes[0], a)
    assert isinstance(rule, PoolRule)
    return _pool(rule, boxes[0], a)


def _relu(rule: ReluRule, box: Box, a: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    lo, hi, slope = box.lo, box.hi, rule.slope
    split = (lo < 0) & (hi > 0)
    one, low = torch.ones_like(lo), torch.full_like(lo, slope)
    width = torch.where(split, hi - lo, one)  # a quotient by zero would spoil gradients even where it is not taken
    straight = torch.where(lo >= 0, one, low)
    above = torch.where(split, (hi - slope * lo) / width, straight)
    below = torch.where(split, torch.where(hi > -lo, one, low), straight)
    cut = torch.where(split, (slope - above) * lo, torch.zeros_like(lo))
    up, down = a.clamp(min=0), a.clamp(max=0)
    return (up * below + down * above,), _total(down * cut)


def _pool(rule: PoolRule, box: Box, a: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """Winners as the verifier's: see `runtime.relax.maxpool_winners`."""
    batch, channels, height, width = box.lo.shape
    numbers = torch.arange(1, height * width + 1, dtype=torch.float64, device=a.device).reshape(1, 1, height, width)
    taps = F.unfold(numbers, **rule.windows)[0].long().T  # [windows, taps]; 0 lies off the image
    lo, hi = (F.pad(end.flatten(2), (1, 0), value=float("-inf"))[..., taps] for end in (box.lo, box.hi))
    tap = lo.argmax(-1, keepdim=True)
    others = hi.scatter(-1, tap, float("-inf")).amax(-1)
    sure = lo.gather(-1, tap)[..., 0] >= others
    most = torch.where(sure, torch.zeros_like(others), hi.amax(-1))
    cell = taps.expand(batch, channels, -1, -1).gather(-1, tap)[..., 0] - 1
    flat = a.flatten(3)
    up, down = flat.clamp(min=0), flat.clamp(max=0)
    kept = up + down * sure
    image = a.new_zeros(len(a), batch, channels, height * width).scatter_add(-1, cell.expand(len(a), -1, -1, -1), kept)
    return (image.reshape(len(a), batch, channels, height, width),), _total(down * most)
