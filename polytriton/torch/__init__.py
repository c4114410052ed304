"""Bounds of a torch module that can be differentiated, to train it by.

Plain tensor arithmetic in the module's own type, rounded to nearest: they err by some units of rounding, on either side. They are for a
loss and are no verdict. What a trained network is proved to do, `polytriton.compile(module, example).verify(...)` says.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polytriton.errors import UsageError
from polytriton.torch.forms import substitute_back
from polytriton.torch.intervals import Walked, walk_intervals

__all__ = ["bounds", "margins"]

METHODS = ("ibp", "crown-ibp")


def bounds(module: nn.Module, lo: Tensor, hi: Tensor, *, method: str = "crown-ibp") -> tuple[Tensor, Tensor]:
    """Least and greatest outputs over the boxes lo..hi [batch, *input], each [batch, *output], differentiable; for training, no verdict.

    "ibp" carries intervals through the module. "crown-ibp" substitutes the outputs back to the input, over intervals of the inner layers;
    that is not always the tighter.
    """
    walked = _walk(module, lo, hi, method)
    if method == "ibp":
        return walked.output.lo, walked.output.hi
    n = walked.output.lo[0].numel()
    eye = torch.eye(n, dtype=walked.output.lo.dtype, device=walked.output.lo.device)
    both = substitute_back(walked, torch.cat([eye, -eye]).expand(len(lo), -1, -1))
    return both[:, :n].reshape(walked.output.lo.shape), -both[:, n:].reshape(walked.output.hi.shape)


def margins(module: nn.Module, lo: Tensor, hi: Tensor, forms: Tensor, *, method: str = "crown-ibp") -> Tensor:
    """Lower bounds of forms @ y over the boxes, [batch, rows], differentiable; for training, no verdict.

    `forms` is [rows, outputs] or [batch, rows, outputs]. `method` as for `bounds`; under "ibp" forms are taken over the box of the outputs.
    """
    walked = _walk(module, lo, hi, method)
    n = walked.output.lo[0].numel()
    if not isinstance(forms, Tensor) or forms.ndim not in (2, 3) or forms.shape[-1] != n or (forms.ndim == 3 and len(forms) != len(lo)):
        given = list(forms.shape) if isinstance(forms, Tensor) else type(forms).__name__
        raise UsageError(
            f"forms of shape {given} do not fit {len(lo)} boxes and {n} outputs", f"give a tensor [rows, {n}] or [batch, rows, {n}]"
        )
    forms = forms.to(walked.output.lo).expand(len(lo), -1, -1)
    if method == "crown-ibp":
        return substitute_back(walked, forms)
    low, high = walked.output.lo.flatten(1)[:, None], walked.output.hi.flatten(1)[:, None]
    return (forms.clamp(min=0) * low + forms.clamp(max=0) * high).sum(-1)


def _walk(module: nn.Module, lo: Tensor, hi: Tensor, method: str) -> Walked:
    if method not in METHODS:
        raise UsageError(f"method={method!r} is unknown", f"use one of: {', '.join(METHODS)}")
    if not isinstance(module, nn.Module):
        raise UsageError(f"{type(module).__name__} is no torch module", "give the torch.nn.Module that is trained")
    for name, end in (("lo", lo), ("hi", hi)):
        if not isinstance(end, Tensor) or not end.is_floating_point() or end.ndim < 2:
            raise UsageError(f"{name} is no batch of floating-point boxes", "give tensors [batch, *input], as the module takes them")
    if lo.shape != hi.shape or lo.dtype != hi.dtype or lo.device != hi.device:
        kinds = (f"{end.dtype} {list(end.shape)} on {end.device}" for end in (lo, hi))
        raise UsageError("lo is {}, hi {}".format(*kinds), "give two tensors of one kind")
    if not bool((lo <= hi).all()):
        low, high = (end[~(lo <= hi)][0].item() for end in (lo, hi))
        raise UsageError(f"inverted box: lo {low!r}, hi {high!r}", "swap the bounds, and let none be NaN")
    return walk_intervals(module, lo, hi)
