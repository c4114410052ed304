"""Small networks written in a line or two, their bounds, and the exact answers of piecewise linear functions of one number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction as F
from typing import Any

import numpy as np

from polytriton.api import Verifier
from polytriton.ir.net import Builder, Net
from tests.oracle.exact import Machine, execute

MANY = 400



def linear(b: Builder, x: str, w: object, c: object) -> str:
    return b.add("linear", (x,), w=b.constant(np.asarray(w, np.float32)), b=b.constant(np.asarray(c, np.float32)))


def scale(b: Builder, x: str, a: float, c: float) -> str:
    return b.add("scale", (x,), a=b.constant(np.array([a], np.float32)), c=b.constant(np.array([c], np.float32)))


def net_of(make: Callable[[Builder, str], str], inputs: int = 1) -> Net:
    b = Builder("gap")
    return b.build(make(b, b.input((inputs,))))


def output(net: Net, x: object, **knobs: object) -> tuple[float, float]:
    """Bounds of the first output at one point."""
    at = np.atleast_2d(np.asarray(x, np.float64))
    found = Verifier.from_net(net, **knobs).bounds(at, at)
    return float(np.asarray(found.lo)[0, 0]), float(np.asarray(found.hi)[0, 0])


def singles(seed: int, count: int = MANY) -> Iterator[np.ndarray]:
    """Random float32 numbers between 0.5 and 4.5, as float64 arrays of `count`."""
    rng = np.random.default_rng(seed)
    while True:
        yield (rng.random(count) * 4 + 0.5).astype(np.float32).astype(np.float64)


def relu(t: F) -> F:
    return max(t, F(0))


def least(form: Callable[[F], F], lo: float, hi: float) -> F:
    """The least value of a function that is linear on both sides of zero."""
    return min(form(F(lo)), form(F(hi)), *([form(F(0))] if lo < 0 < hi else []))


def too_high(bounds: np.ndarray, true: Sequence[F]) -> list[tuple[int, float]]:
    return [(i, float(F(float(m)) - t)) for i, (m, t) in enumerate(zip(bounds, true, strict=True)) if np.isfinite(m) and F(float(m)) > t]


def dense(*layers: tuple[list[list[float]] | np.ndarray, list[float]], relu_last: bool = False) -> Net:
    """linear, relu, linear, ..."""
    b = Builder("trap")
    x = b.input((np.asarray(layers[0][0]).shape[1],))
    for k, (w, c) in enumerate(layers):
        x = b.add("linear", (x,), hint=f"layer{k}", w=b.constant(np.asarray(w, np.float32)), b=b.constant(np.asarray(c, np.float32)))
        if k + 1 < len(layers) or relu_last:
            x = b.add("relu", (x,), hint=f"relu{k}")
    return b.build(x)


def bounds(net: Net, lo: object, hi: object, **knobs: Any) -> tuple[np.ndarray, np.ndarray]:
    found = Verifier.from_net(net, **knobs).bounds(np.atleast_2d(np.asarray(lo, float)), np.atleast_2d(np.asarray(hi, float)))
    return np.asarray(found.lo)[0], np.asarray(found.hi)[0]


def once(net: Net, x: np.ndarray, mode: str, inputs: str = "float32", flush: bool = False) -> float:
    """The first output of one execution: sums in sequence, the bias last, no FMA."""
    return float(execute(net, x, Machine(mode, False, flush, np.random.default_rng(0), inputs), "forward", False)[net.output][0, 0])
