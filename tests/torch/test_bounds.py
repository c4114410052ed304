"""Differentiable bounds: the verifier's own numbers, gradients that finite differences confirm, and one message for what is not bounded."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import polytriton
from polytriton.errors import PolytritonError, UnsupportedModel, UsageError

ROOT = Path(__file__).parents[2]
METHODS = ("ibp", "crown-ibp")


class Residual(nn.Module):
    """Normalisation, batch norms, a residual sum, both pools, an in-place ReLU and reshaping by sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.second, self.shortcut = nn.Conv2d(6, 4, 3, stride=2, padding=1), nn.Conv2d(6, 4, 1, stride=2)
        self.most, self.mean, self.relu = nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(2), nn.ReLU(inplace=True)
        self.last = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.first((x - 0.3) / 0.7)))
        x = self.most(F.relu(self.second(x) + self.shortcut(x)))
        x = self.mean(x)
        return self.last(x.view(x.size(0), -1))


def residual() -> nn.Module:
    module = Residual()
    module.norm.running_mean.normal_()
    module.norm.running_var.uniform_(0.5, 2)
    return module.eval()


def dense() -> nn.Module:
    layers = [nn.Flatten(), nn.Linear(64, 12), nn.LeakyReLU(0.1), nn.Linear(12, 12), nn.ReLU(), nn.Dropout(), nn.Linear(12, 5)]
    return nn.Sequential(*layers).eval()


MODULES = {"residual": residual, "dense": dense}


def drawn(name: str, seed: int = 0, boxes: int = 3) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    module, x = MODULES[name](), torch.rand(boxes, 1, 8, 8)
    radius = 0.05 * torch.rand(boxes, 1, 1, 1)
    return module, x - radius, x + radius


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODULES)
def test_values_are_the_verifiers(name: str, method: str) -> None:
    module, lo, hi = drawn(name)
    verifier = polytriton.compile(module, lo[:1], method=method, candidates="input", semantics="real", dtype="float64")
    theirs = verifier.bounds(lo.numpy(), hi.numpy())
    low, high = polytriton.torch.bounds(module, lo, hi, method=method)
    assert np.abs(low.detach().numpy() - theirs.lo).max() < 1e-4 > np.abs(high.detach().numpy() - theirs.hi).max()
    for forms in (torch.randn(4, 5), torch.randn(3, 4, 5)):
        wanted = verifier.margins(lo.numpy(), hi.numpy(), forms.numpy())
        found = polytriton.torch.margins(module, lo, hi, forms, method=method).detach().numpy()
        assert found.shape == (3, 4) and np.abs(found - wanted).max() < 1e-4
    assert theirs.hi.min() > theirs.lo.min() + 1e-2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODULES)
def test_answers_lie_between(name: str, method: str) -> None:
    module, lo, hi = drawn(name, seed=1)
    low, high = polytriton.torch.bounds(module, lo, hi, method=method)
    for _ in range(50):
        y = module(lo + (hi - lo) * torch.randint(0, 2, lo.shape))
        assert bool((low <= y + 1e-4).all() and (y - 1e-4 <= high).all())
    point, same = polytriton.torch.bounds(module, lo, lo, method=method)
    assert torch.allclose(point, module(lo), atol=1e-4) and torch.allclose(same, point, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODULES)
def test_gradients_are_those_of_finite_differences(name: str, method: str) -> None:
    module, lo, hi = drawn(name, seed=2)
    module, ends = module.double(), [lo.double().requires_grad_(), hi.double().requires_grad_()]
    forms = torch.randn(4, 5, dtype=torch.float64)

    def loss() -> Tensor:
        return polytriton.torch.margins(module, *ends, forms, method=method).sum()

    known = [*module.parameters(), *ends]
    gradients = torch.autograd.grad(loss(), known)
    for value, gradient in zip(known, gradients, strict=True):
        step = 1e-6 * torch.randn_like(value)
        with torch.no_grad():
            value += step
            above = loss()
            value -= 2 * step
            slope = (above - loss()) / 2
            value += step
        assert abs(float(slope - (gradient * step).sum())) < 1e-4 * float(gradient.norm() * step.norm()) + 1e-12
        assert float(gradient.norm()) > 0


def test_forms_of_one_sample_stay_with_it() -> None:
    module, lo, hi = drawn("residual")
    low, high = polytriton.torch.bounds(module, lo, hi)
    for k in range(3):
        alone = polytriton.torch.bounds(module, lo[k : k + 1], hi[k : k + 1])
        assert torch.allclose(alone[0][0], low[k], atol=1e-5) and torch.allclose(alone[1][0], high[k], atol=1e-5)


class By(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


def _overwritten(x: Tensor) -> Tensor:
    return torch.relu_(x.view(4, 4)) + x


SHAPED: dict[str, Callable[[Tensor], Tensor]] = {
    "same operand twice": lambda x: x + x - torch.cat([x[:, :2], x[:, 2:]], 1),
    "constants": lambda x: 3 - 2 * (-x) * torch.tensor([1.0, -2.0, 3.0, 0.0]) / -4,
    "shapes": lambda x: x.unsqueeze(1).transpose(1, 2).flatten(1).reshape(x.shape[0], 2, 2).mean(2),
    "in place": lambda x: (x + 1).relu_().mul_(-2),
    "padded": lambda x: F.pad(x, (1, 2), value=0.5).sum(1, keepdim=True),
}


@pytest.mark.parametrize("name", SHAPED)
def test_what_stands_between_layers(name: str) -> None:
    """Affine: bounds are exact at the corners; with the ReLU here the box decides its sign or a corner attains them."""
    torch.manual_seed(0)
    module, x = By(SHAPED[name]), torch.rand(4, 4)
    lo, hi = x - 0.1, x + 0.1
    corners = torch.stack([torch.where(torch.tensor([k >> i & 1 for i in range(4)]).bool(), hi, lo) for k in range(16)])
    answers = torch.stack([module(c) for c in corners])
    for method in METHODS:
        low, high = polytriton.torch.bounds(module, lo, hi, method=method)
        assert low.shape == answers.shape[1:]
        assert bool((low <= answers.amin(0) + 1e-5).all() and (high >= answers.amax(0) - 1e-5).all())
    if name != "in place":
        assert torch.allclose(low, answers.amin(0), atol=1e-5) and torch.allclose(high, answers.amax(0), atol=1e-5)


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "sigmoid": (torch.sigmoid, "sigmoid"),
    "squares": (lambda x: x * x, "depends on the input"),
    "reciprocals": (lambda x: 1 / x, "depends on the input"),
    "samples summed": (lambda x: x - x.mean(0, keepdim=True), "mixes the samples"),
    "samples swapped": (lambda x: x.transpose(0, 1), "mixes the samples"),
    "samples turned": (lambda x: x[[3, 2, 1, 0]], "mixes the samples"),
    "samples beside features": (lambda x: x + x.sum(1), "mixes the samples"),
    "overwritten": (_overwritten, "in place"),
    "a path by values": (lambda x: x if x.sum() > 0 else -x, "cannot be traced"),
    "dropout": (F.dropout, "random"),
    "two answers": (lambda x: (x, x), "one tensor"),
    "no answer": (lambda x: torch.ones(4, 4), "one tensor"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, method: str) -> None:
    function, words = REFUSED[name]
    x = torch.rand(4, 4)
    with pytest.raises(PolytritonError, match=words) as caught:
        polytriton.torch.bounds(By(function), x - 0.1, x + 0.1, method=method)
    assert caught.value.remedy and caught.value.exit_code in (2, 3)


def test_layers_that_are_refused() -> None:
    x = torch.rand(4, 2, 4, 4)
    for layer, words in (
        (nn.BatchNorm2d(2), "training mode"), (nn.Sigmoid(), "Sigmoid"), (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), "reflect"),
        (nn.MaxPool2d(2, ceil_mode=True), "ceil_mode"), (nn.Dropout(), "random"), (nn.LeakyReLU(2.0), "slope"),
        (nn.Conv2d(3, 2, 3), "refuses boxes"),
    ):  # fmt: skip
        with pytest.raises(PolytritonError, match=words):
            polytriton.torch.bounds(nn.Sequential(layer), x, x)
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *args: None)
    with pytest.raises(UnsupportedModel, match="hooks"):
        polytriton.torch.bounds(hooked, x, x)


def test_arguments_that_do_not_fit() -> None:
    module, x = nn.Linear(4, 3), torch.rand(2, 4)
    for lo, hi, words in (
        (x, x - 1, "inverted"), (x * float("nan"), x, "inverted"), (x, x[:1], "two tensors|lo is"), (x.double(), x.double(), "float64"),
        (x.numpy(), x, "lo is no batch"), (x[0], x[0], "no batch"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            polytriton.torch.bounds(module, lo, hi)
    for forms in (torch.ones(3, 2), torch.ones(3, 1, 3), np.ones((1, 3))):
        with pytest.raises(UsageError, match="forms"):
            polytriton.torch.margins(module, x, x, forms)
    with pytest.raises(UsageError, match="crown-ibp"):
        polytriton.torch.bounds(module, x, x, method="crown")
    with pytest.raises(UsageError, match="no torch module"):
        polytriton.torch.bounds(len, x, x)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--epochs", "5", "--epsilon", "0.15"), ()], ids=len)
def test_the_example_trains_what_is_proved_twice_as_often(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["certified_training.py", *words])
    runpy.run_path(str(ROOT / "examples" / "certified_training.py"), run_name="__main__")
    usual, robust = (int(line.rsplit(" ", 1)[1].rstrip("%")) for line in capsys.readouterr().out.splitlines())
    assert robust >= 2 * usual and robust >= 30
