"""The compiled passes of an ascent: slopes, multipliers and values are those of the tensor operations in whose place they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from polytriton.runtime.ascent_lines import ReluLines
from polytriton.runtime.cpu import ascent_loops

pytestmark = pytest.mark.skipif(not ascent_loops.fused.AVAILABLE, reason="Numba is not installed")


def turns(slope: float, signed: bool, permuted: bool, fast: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tensor]:
    """Everything that five turns over the same numbers say. `permuted`: channels lie last in memory, and rows share a box's ends."""
    torch.manual_seed(3)

    def draw(rows: int = 6) -> Tensor:
        made = torch.randn(rows, 4, 3, 5)
        return made.to(memory_format=torch.channels_last) if permuted else made

    lo, hi = (-draw(1).abs(), draw(1).abs()) if permuted else (-draw().abs(), draw().abs())
    lo, hi = (torch.where(draw(len(lo)) > -0.5, v, side * 0.5).expand(6, -1, -1, -1) for v, side in ((lo, 1.0), (hi, 1.0)))
    lo, hi = torch.minimum(lo, hi), torch.maximum(lo, hi)
    sign = torch.where((lo < 0) & (hi > 0), 0.0, draw().sign()) if signed else None
    monkeypatch.setattr(ascent_loops, "serves", lambda device: fast)
    line = ReluLines(lo, hi, slope, sign, None, draw().abs() if signed else None)
    assert line.fast == fast
    for k in range(1, 6):
        z = draw()
        yield from (line.back(draw())[0], line.forward(z), torch.as_tensor(line.penalty(z)))
        line.keep(torch.arange(6) % 3 != k % 3)
        line.step((z,), 0.1 / k, k)
        yield from (v.clone() for v in (line.below, line.proposal().loss, *(() if line.multiplier is None else (line.multiplier,))))
    assert line.kept is not None
    yield from (v for v in (line.kept.slopes, line.kept.loss, line.kept.multipliers) if v is not None)
    assert ((line.below > slope + 0.05) & (line.below < 0.95)).any(), "slopes move, and not to their ends alone"


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("slope", [0.0, 0.25])
def test_the_loops_of_a_relu_are_its_tensor_operations(slope: float, signed: bool, permuted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = list(turns(slope, signed, permuted, False, monkeypatch))
    for ours, theirs in zip(turns(slope, signed, permuted, True, monkeypatch), plain, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
