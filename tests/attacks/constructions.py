"""Published attacks on verifiers, rebuilt from their descriptions as small parametrised networks.

Each has a point (and, where it aims at deployed networks, an execution) that violates the property form @ y > 0:

- Zombori, Banhelyi, Csendes, Megyeri, Jelasity: Fooling a complete neural network verifier. ICLR 2021.
- Jia, Rinard: Exploiting verified neural networks via floating point numerical error. 2020.
- Szasz, Banhelyi, Jelasity: No soundness in the real world: on the challenges of the verification of deployed neural
  networks. ICML 2025.
- Zhou, Chen et al.: Testing neural network verifiers, a soundness benchmark with hidden counterexamples (SoundnessBench). 2024.
- The rounding gaps of GPUPoly (Mueller, Serre, Singh, Pueschel, Vechev: Scaling polyhedral neural network verification on GPUs.
  MLSys 2021): one outward step a product, slopes rounded to nearest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from polytriton.ir.net import Net
from tests.oracle.adversary import NEAREST, Choice
from tests.oracle.exact import exact, exact_forms
from tests.oracle.small import dense


@dataclass(frozen=True)
class Attack:
    """`deployed` is the execution that violates a property which holds exactly; None: it is violated exactly."""

    name: str
    net: Net
    lo: np.ndarray
    hi: np.ndarray
    forms: np.ndarray
    at: np.ndarray
    deployed: Choice | None = None
    covered: tuple[str, ...] = ("float32", "tf32", "bf16")  # semantics that cover the execution

    def exact(self) -> Fraction:
        return exact_forms(exact(self.net, self.at[None])[self.net.output], self.forms).fraction(0, 0)


def _box(*ends: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([a for a, _ in ends]), np.array([b for _, b in ends])


# ---- Zombori et al.: a switch that floating-point arithmetic does not see --------------------------------------------


def backdoor(power: int, depth: int, pixels: int = 6, seed: int = 0) -> Attack:
    """A classifier whose other label wins where a pixel is bright, through w x + x - w x with w = 2^power.

    The three lanes get w factor by factor over `depth` layers (the paper's obfuscation); a verifier that adds the lanes' coefficients
    to nearest finds 0 for what is 1. Everything else is an honest layer with a margin of one half.
    """
    rng = np.random.default_rng(seed)
    factors = [2.0 ** (power * (k + 1) // depth - power * k // depth) for k in range(depth)]
    first = np.zeros((3 + pixels, pixels))
    first[:3, 0] = factors[0], 1, factors[0]
    first[3:] = np.eye(pixels)
    layers: list[tuple[np.ndarray, list[float]]] = [(first, [0.0] * (3 + pixels))]
    for f in factors[1:]:
        layers.append((np.diag([f, 1, f, *[1.0] * pixels]), [0.0] * (3 + pixels)))
    last = np.zeros((2, 3 + pixels))
    last[1, :3] = 1, 1, -1
    last[0, 3:] = last[1, 3:] = rng.uniform(-1, 1, pixels)
    layers.append((last, [0.5, 0.0]))
    lo, hi = np.zeros(pixels), np.ones(pixels)
    return Attack(f"backdoor 2^{power}, {depth} layers", dense(*layers), lo, hi, np.array([[1.0, -1.0]]), hi)


# ---- Jia and Rinard: an image put where the verified margin is smaller than rounding -------------------------------------


def brightness(seed: int, pixels: int = 40) -> Attack:
    """A robust network moved until its least margin is a last place above zero: exactly safe, but not in float32.

    Over the box all ReLUs are settled, so the least margin is at the corner that the weights' signs choose.
    """
    rng = np.random.default_rng(seed)
    hidden = 12
    w = np.abs(rng.standard_normal((hidden, pixels))).astype(np.float32)
    v = rng.standard_normal((1, hidden)).astype(np.float32)
    centre = rng.uniform(0.3, 0.7, pixels)
    lo, hi = ((centre + e).astype(np.float32).astype(np.float64) for e in (-0.05, 0.05))
    at = np.where(v.astype(np.float64) @ w.astype(np.float64) > 0, lo, hi)[0]
    form = np.array([[1.0]])
    least = exact(dense((w, [0.0] * hidden), (v, [0.0])), at[None])["layer1"].fraction(0, 0)
    bias = np.float32(-float(least))
    while Fraction(float(bias)) + least <= 0:
        bias = np.nextafter(bias, np.float32(np.inf))
    net = dense((w, [0.0] * hidden), (v, [float(bias)]))
    return Attack(f"brightness, seed {seed}", net, lo, hi, form, at, Choice(order=2))


# ---- Szasz et al.: networks that recognise where they run ----------------------------------------------------------------

ORDER, FMA, FLUSH, ROUNDING, PRECISION = "order", "fused", "flushing", "rounding mode", "precision"


def detector(kind: str) -> Attack:
    """Safe in exact arithmetic; its detector says another thing in one environment, and the other label wins there.

    order     w - w + 1 in sequence is 1; backward it is 1 - w + w = 0
    fused     a a - fl(a a), a = 1 + 2^-12: 0 where the product is rounded, 2^-24 where it is fused
    flushing  2^-130 x is 0 where subnormal numbers are flushed
    rounding  1 + 2^-25 - 1 is 0 to nearest, 2^-23 upward
    precision 1 + 2^-12 - 1 is 0 where a tensor core reads 11 bits
    """
    high = 1 + 2.0**-12
    if kind == ORDER:  # exactly 1
        rows, scale, bias = [2.0**26, -(2.0**26), 1.0], 1.0, -0.5
        lo, hi = _box((1, 1), (1, 1), (1, 1))
        choice = Choice(order=1, plain=NEAREST)
    elif kind == FMA:  # exactly 2^-24
        rows, scale, bias = [-(1 + 2.0**-11), high], 2.0**24, -0.5
        lo, hi = _box((1, 1), (high, high))
        choice = Choice(fma=0, plain=NEAREST)
    elif kind == FLUSH:  # exactly 2^-130
        rows, scale, bias = [2.0**-126], 2.0**110, -(2.0**-21)
        lo, hi = _box((2.0**-4, 2.0**-4))
        choice = Choice(flush=1, plain=NEAREST)
    elif kind == ROUNDING:  # exactly 2^-25
        rows, scale, bias = [1.0, 2.0**-25, -1.0], -(2.0**23), 0.5
        lo, hi = _box((1, 1), (1, 1), (1, 1))
        choice = Choice(plain=1)
    else:
        assert kind == PRECISION, kind  # exactly 2^-12
        rows, scale, bias = [1.0, -1.0], 2.0**12, -0.5
        lo, hi = _box((high, high), (1, 1))
        choice = Choice(inputs="tf32", plain=NEAREST)
    net = dense(([rows], [0.0]), ([[scale]], [bias]))
    covered = ("tf32", "bf16") if kind == PRECISION else ("float32", "tf32", "bf16")
    return Attack(f"detector of {kind}", net, lo, hi, np.array([[1.0]]), lo, choice, covered)


# ---- SoundnessBench: counterexamples that searches do not find ------------------------------------------------------------


def hidden(pixels: int, steep: float, seed: int = 0, offset: float = 0.0) -> Attack:
    """A margin of 1 everywhere but in a spike of height 2 around one point, 1/steep wide: relu(2 - steep sum |x - x*|).

    With an offset |x - x*| is computed beside large numbers that cancel: (x + offset) - (x* + offset).
    """
    rng = np.random.default_rng(seed)
    point = np.round(rng.uniform(-0.9, 0.9, pixels) * 2**10) / 2**10
    eye = np.eye(pixels)
    first = np.concatenate([eye, -eye])
    away = np.concatenate([-point, point])  # |x - x*| by two ReLUs a pixel
    layers: list[tuple[np.ndarray, list[float]]] = [(first, away.tolist())]
    if offset:
        layers.append((np.concatenate([np.eye(2 * pixels), np.zeros((1, 2 * pixels))]), [*[offset] * (2 * pixels), offset]))
        layers.append((np.concatenate([np.full((1, 2 * pixels), -steep), [[2 * pixels * steep]]], axis=1), [2.0]))
    else:
        layers.append((np.full((1, 2 * pixels), -steep), [2.0]))
    layers.append((np.array([[-1.0]]), [1.0]))
    name = f"hidden in {pixels} pixels, steepness {steep:g}" + (f", offset {offset:g}" if offset else "")
    return Attack(name, dense(*layers), -np.ones(pixels), np.ones(pixels), np.array([[1.0]]), point)


# ---- rounding gaps ---------------------------------------------------------------------------------------------------------


def drift(n: int) -> Attack:
    """One step outward a product does not cover n - 1 additions: 1 and n - 1 weights just above half of its last place."""
    w = np.full((1, n), 0.6 * 2.0**-23, np.float32)
    w[0, 0] = 1
    total = sum(Fraction(float(v)) for v in w[0])
    run = float(np.cumsum(w[0])[-1])
    middle = float(np.float32((float(total) + run) / 2))  # exactly w x < middle, in sequence w x > middle
    ones = np.ones(n)
    return Attack(f"drift over {n} terms", dense((-w, [middle])), ones, ones, np.array([[1.0]]), ones, Choice(plain=NEAREST))


def chord(seed: int) -> Attack:
    """The slope u / (u - l) rounded to nearest may pass below (u, u). The form u - relu(x) less a last place is least at u."""
    rng = np.random.default_rng(seed)
    l, u = (np.float32(v) for v in (-rng.uniform(0.5, 4), rng.uniform(0.5, 4)))
    below = float(np.nextafter(u, np.float32(0)))
    net = dense(([[1]], [0]), ([[-1]], [below]))
    return Attack(f"chord, seed {seed}", net, np.array([float(l)]), np.array([float(u)]), np.array([[1.0]]), np.array([float(u)]))


def swallowed(power: int) -> Attack:
    """relu([B, 1, -B] x + 2) <= 2.5 over (1, [0, 1], 1): at (1, 1, 1) it is 3, in round-to-nearest 2."""
    big = 2.0**power
    net = dense(([[big, 1, -big]], [2]), ([[-1]], [2.5]))
    lo, hi = _box((1, 1), (0, 1), (1, 1))
    return Attack(f"swallowed unit, 2^{power}", net, lo, hi, np.array([[1.0]]), hi)


def every() -> Iterator[Attack]:
    """One or a few of each family."""
    for power, depth in ((27, 1), (27, 3), (56, 1), (56, 4)):
        yield backdoor(power, depth)
    for seed in range(6):
        yield brightness(seed)
    for kind in (ORDER, FMA, FLUSH, ROUNDING, PRECISION):
        yield detector(kind)
    for pixels, steep in ((1, 1e3), (4, 1e4), (12, 1e6)):
        yield hidden(pixels, steep)
    yield hidden(3, 64.0, offset=2.0**30)
    for n in (784, 20000):
        yield drift(n)
    for seed in range(4):
        yield chord(seed)
    for power in (27, 56):
        yield swallowed(power)
