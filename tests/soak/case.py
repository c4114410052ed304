"""One case of the soak: a network, boxes around hostile points, forms and settings, all drawn from one number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from polytriton.ir.interp import user_shape
from polytriton.ir.net import Net, Ref
from tests.oracle.nets import BOXES, MOVES, random_box, random_net
from tests.oracle.onnx_model import expressible

VERSION, STREAM = 5, 2  # of what a number stands for, and of the drawing of nets
GRAPHS = 10  # one case in so many is a graph of smooth functions and products
BATCH = 2
DEPLOYED = ("float32", "float32", "float32", "tf32", "bf16", "float16")
KINDS = (*BOXES, *BOXES, "subnormal", "float64", "signed zero", "far")
INTERPRET, ONNX, POISON = 400, 40, 150  # one case in so many
HAS_TRITON = find_spec("triton") is not None  # where it has no wheels such cases go another way in


@dataclass(frozen=True)
class GraphCase:
    """The graph of this number in `oracle/product_graphs.py`, as far as its `most`th step."""

    seed: int
    most: int = 10


def draw_any(seed: int) -> Case | GraphCase:
    """What this number stands for."""
    return GraphCase(seed) if seed % GRAPHS == 8 else draw(seed)


@dataclass(frozen=True)
class Case:
    """`lo`, `hi` are [images, values] in the user's order; forms [images, rows, outputs]; `over_input` likewise or None."""

    seed: int
    net: Net
    lo: np.ndarray
    hi: np.ndarray
    forms: np.ndarray
    over_input: np.ndarray | None = None
    knobs: dict[str, Any] = field(default_factory=dict)
    via: str = "net"  # net, public, onnx, interpret
    poisoned: bool = False

    def part(self, image: int) -> Case:
        over = None if self.over_input is None else self.over_input[image : image + 1]
        one = slice(image, image + 1)
        return replace(self, lo=self.lo[one], hi=self.hi[one], forms=self.forms[one], over_input=over)


def draw(seed: int) -> Case:
    """The same number always makes the same case."""
    rng = np.random.default_rng([STREAM, seed])
    via = "interpret" if seed % INTERPRET == 7 and HAS_TRITON else "onnx" if seed % ONNX == 3 else "public" if rng.random() < 0.1 else "net"
    poisoned = via in ("net", "public") and seed % POISON == 11
    steps, limit = int(rng.integers(0, 7)), int(rng.choice([12, 40, 40, 80]))
    interval = via == "interpret" and seed // INTERPRET % 3 == 0  # an operation there costs milliseconds
    if via == "interpret":
        steps, limit = min(steps, 1 if interval else 3), 6 if interval else 12
    net = random_net(int(rng.integers(1 << 31)), steps=steps, limit=limit, moves=(*MOVES, "postact"))
    if via == "onnx" and not expressible(net):
        via = "public"
    if rng.random() < 0.5:
        net = hurt(net, rng)
    if poisoned:
        net = poison(net, rng)
    boxes = [box(net, rng, str(rng.choice(KINDS))) for _ in range(BATCH)]
    lo, hi = (np.stack([b[k] for b in boxes]) for k in (0, 1))
    outputs, inputs = net.node(net.output).size, lo.shape[1]
    forms = rng.standard_normal((BATCH, 2, outputs))
    forms[:, 0] = 0
    for k in range(BATCH):  # a difference of outputs, as robustness asks
        np.add.at(forms[k, 0], rng.integers(outputs, size=2), [1, -1])
    if rng.random() < 0.3:
        forms *= 2.0 ** rng.integers(-40, 41, forms.shape)
    mixed = via == "net" and "take" not in net.input.attrs and rng.random() < 0.2
    over_input = rng.standard_normal((BATCH, 2, inputs)) if mixed else None
    knobs = {
        "deployed": str(rng.choice(DEPLOYED)),
        "dtype": str(rng.choice(["float32", "float64", "auto"], p=[0.5, 0.4, 0.1])),
        "candidates": str(rng.choice(["all", "input"], p=[0.7, 0.3])),
        "early": bool(rng.random() < 0.7),
        "tight": bool(rng.random() < 0.2),
        "loops": bool(rng.random() < 0.8),  # the compiled row passes, or torch's
        "library": bool(rng.random() < 0.7),  # whose convolutions
        "every": bool(rng.random() < 0.5),  # else rows of settled neurons are read from both ends
    }
    if interval:
        knobs["numerics"] = "interval"
    return Case(seed, net, lo, hi, forms, over_input, knobs, via, poisoned)


# ---- weights that hurt -----------------------------------------------------------------------------------------------

Numbers = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def _cancel(rng: np.random.Generator, w: np.ndarray) -> np.ndarray:
    """[B, 1, -B] spread over pairs: neighbours cancel but for a small number."""
    big = 2.0 ** rng.integers(10, 40)
    flat = w.ravel().copy()
    half = flat.size // 2
    flat[:half], flat[half : 2 * half] = flat[:half] * big, -(flat[:half] * big)
    return flat[rng.permutation(flat.size)].reshape(w.shape)


def _equal(rng: np.random.Generator, w: np.ndarray) -> np.ndarray:
    return np.full(w.shape, rng.choice([1.0, -1.0, 1 / 3, 0.1, 2.0**-20]))


def _range(rng: np.random.Generator, w: np.ndarray) -> np.ndarray:
    return w * 2.0 ** rng.integers(-60, 31, w.shape)


def _subnormal(rng: np.random.Generator, w: np.ndarray) -> np.ndarray:
    return w * rng.choice([2.0**-140, 2.0**-127, 2.0**-120, 1.0], w.shape)


def _zeros(rng: np.random.Generator, w: np.ndarray) -> np.ndarray:
    return np.where(rng.random(w.shape) < 0.7, rng.choice([0.0, -0.0], w.shape), w)


def _neighbours(rng: np.random.Generator, w: np.ndarray) -> np.ndarray:
    """1 and its float32 neighbours, either sign: ties, and bits that conversions drop."""
    return rng.choice([1.0, -1.0], w.shape) * (1 + rng.integers(-3, 4, w.shape) * 2.0 ** -int(rng.choice([8, 11, 12, 23])))


def _powers(rng: np.random.Generator, w: np.ndarray) -> np.ndarray:
    return np.sign(w) * 2.0 ** rng.integers(-3, 4, w.shape)


def _drift(rng: np.random.Generator, w: np.ndarray) -> np.ndarray:
    """One large number, the rest just below half of its last place: sums in sequence lose all of them."""
    flat = np.full(w.size, 0.6 * 2.0**-23)
    flat[rng.integers(w.size)] = 1
    return flat.reshape(w.shape)


def _onesigned(rng: np.random.Generator, w: np.ndarray) -> np.ndarray:
    return np.abs(w) * rng.choice([-1.0, 1.0])


def _enormous(rng: np.random.Generator, w: np.ndarray) -> np.ndarray:
    return w * 2.0 ** rng.choice([59.0, 61.0, 100.0, 126.0])


HURTS: tuple[Numbers, ...] = (_cancel, _equal, _range, _subnormal, _zeros, _neighbours, _powers, _drift, _onesigned)


def hurt(net: Net, rng: np.random.Generator) -> Net:
    """The network with some of its weights replaced; slopes of scales and biases too."""
    weights = dict(net.weights)
    for n in net:
        for key in ("w", "a", "b", "c"):
            ref = n.attrs.get(key)
            if isinstance(ref, Ref) and rng.random() < (0.6 if key in "wa" else 0.3):
                kind = _enormous if rng.random() < 0.02 else HURTS[int(rng.integers(len(HURTS)))]
                with np.errstate(over="ignore"):
                    made = np.asarray(kind(rng, weights[ref.name].astype(np.float64)), np.float32)
                weights[ref.name] = np.where(np.isfinite(made), made, np.float32(1))
    return replace(net, weights=weights)


def poison(net: Net, rng: np.random.Generator) -> Net:
    """One weight is NaN or infinite."""
    names = [v.name for n in net for k, v in n.attrs.items() if isinstance(v, Ref) and k in ("w", "a", "b", "c")]
    if not names:
        return net
    name = names[int(rng.integers(len(names)))]
    made = net.weights[name].copy()
    made.reshape(-1)[int(rng.integers(made.size))] = rng.choice([np.nan, np.inf, -np.inf])
    return replace(net, weights={**net.weights, name: made})


def box(net: Net, rng: np.random.Generator, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """One box of the user's input, flat; float32 ends except for kind "float64"."""
    values = int(np.prod(user_shape(net)))
    if kind in BOXES:
        lo, hi = random_box(rng, net, kind)
        return lo.reshape(-1), hi.reshape(-1)
    x = rng.standard_normal(values)
    if kind == "float64":
        r = np.abs(rng.standard_normal(values)) * 10.0 ** rng.uniform(-12, 0)
        return x - r, x + r
    if kind == "subnormal":
        ends = np.sort((rng.standard_normal((2, values)) * 2.0**-130).astype(np.float32).astype(np.float64), axis=0)
        return ends[0], ends[1]
    if kind == "signed zero":
        pairs = np.array([(-0.0, 0.0), (0.0, 0.0), (-0.0, -0.0), (-0.0, 1.0), (-1.0, 0.0), (-1.0, 1.0)])
        ends = pairs[rng.integers(len(pairs), size=values)]
        return ends[:, 0].copy(), ends[:, 1].copy()
    assert kind == "far", kind  # large centres and narrow boxes: 2^20 and a few units in the last place
    at = (x * 2.0**20).astype(np.float32)
    up = np.nextafter(at, np.float32(np.inf))
    return at.astype(np.float64), up.astype(np.float64)
