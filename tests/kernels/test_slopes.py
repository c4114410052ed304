"""Slopes for the falsifier where kernels take the bounds: the interpreter of Plans walks once more."""

from __future__ import annotations

from tests.runtime.test_attack_search import slopes_are_the_gradient


def test_slopes_are_the_gradient_with_kernels_too() -> None:
    assert all(slopes_are_the_gradient(seed, "interpret") for seed in (3, 6))
