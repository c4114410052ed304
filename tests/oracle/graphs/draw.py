"""Graphs by number: `draw(rule, seed)` is always the same model with the same boxes."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np
import onnx

from tests.oracle.graphs.build import Builder, Tensor
from tests.oracle.graphs.more_rules import MIXABLE, STAGES, chain
from tests.oracle.graphs.piece_rules import PIECE_STAGES
from tests.oracle.graphs.size_rules import SIZE_STAGES
from tests.oracle.graphs.smooth_rules import SMOOTH_STAGES

VERSION = 2  # of the drawing: another one makes other graphs from the same numbers
MIXED = ("chain", "double_models", "half_models")  # several rules in one graph; one rule in float64, or in float16
ALONE = {**STAGES, **PIECE_STAGES, **SMOOTH_STAGES, **SIZE_STAGES}
RULES = (*ALONE, *MIXED)
NARROW = ("constants_before", "constants_after", "constants_both", "pad_add_matmul", "gather_padded")


@dataclass(frozen=True)
class Graph:
    """A model and its boxes, [boxes, values]; all ends are numbers of the model's type. Forms are [boxes, rows, outputs]."""

    rule: str
    seed: int
    model: bytes
    lo: np.ndarray
    hi: np.ndarray
    forms: np.ndarray
    dtype: str = "float32"

    @property
    def proto(self) -> onnx.ModelProto:
        return onnx.load_from_string(self.model)


def draw(rule: str, seed: int) -> Graph:
    rng = np.random.default_rng([VERSION, crc32(rule.encode()), seed])
    dtype = {"double_models": "float64", "half_models": "float16"}.get(rule, "float32")
    b = Builder(rng, dtype, int(rng.choice([13, 17, 17, 18, 21])))
    name = rule if rule not in MIXED[1:] else str(rng.choice(MIXABLE))
    x = _before(b, _source(b, name))
    x = chain(b, x) if name == "chain" else ALONE[name](b, x)
    if b.chance(0.35):
        x = b.relu(x)
        if b.chance(0.5):
            x = b.linear(x, b.between(1, 3))
    if x.size > 30:
        x = b.linear(x, b.between(1, 4))
    if b.nodes[-1].output[0] != x.name:
        x = b.emit("Identity", [x], x.shape)
    assert b.source is not None
    boxes = [_box(rng, b.source.size, np.dtype(dtype)) for _ in range(2)]
    lo, hi = (np.stack([box[k] for box in boxes]) for k in (0, 1))
    forms = rng.standard_normal((2, 2, x.size))
    for row in forms:  # a difference of outputs, as robustness asks
        row[0] = 0
        np.add.at(row[0], rng.integers(x.size, size=2), [1, -1])
    return Graph(rule, seed, b.model(x).SerializeToString(), lo, hi, forms, dtype)


def _source(b: Builder, rule: str) -> Tensor:
    """Vectors mostly, where products follow; images where windows do."""
    if rule in NARROW and b.chance(0.5):
        return b.input(1, b.between(1, 6))
    if "conv" in rule or "pool" in rule or "mean" in rule or "image" in rule or rule in ("batched_matmul", "plain", "transposes"):
        return b.input(1, b.between(1, 3), b.between(2, 6), b.between(2, 6))
    return b.input(1, b.pick(b.between(2, 12), b.between(12, 60)))


def _before(b: Builder, x: Tensor) -> Tensor:
    """Sometimes ReLUs of which many are off for all inputs, or a layer."""
    how = b.rng.random()
    if how < 0.2:
        shift = np.where(b.rng.random(x.shape[1:]) < 0.6, -100.0, b.pick(0.0, 1.0))
        return b.relu(b.pair("Add", x, b.constant(shift)))
    if how < 0.3:
        return b.relu(x)
    if how < 0.35:
        return b.scale(x)
    return x


def _box(rng: np.random.Generator, n: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Points as often as boxes; zeros and ones as often as numbers."""
    kind = str(rng.choice(["zeros", "ones", "bits", "few", "normal", "unit", "subnormal"], p=[0.2, 0.25, 0.15, 0.1, 0.15, 0.08, 0.07]))
    if kind == "bits":
        middle = rng.integers(0, 2, n).astype(float)
    elif kind == "few":
        middle = np.where(np.isin(np.arange(n), rng.integers(0, n, 3)), 1.0, 0.0)
    elif kind in ("zeros", "ones"):
        middle = np.full(n, float(kind == "ones"))
    else:
        middle = {"normal": rng.standard_normal(n), "unit": rng.random(n), "subnormal": rng.standard_normal(n) * 2.0**-130}[kind]
    radius = np.zeros(n)
    spread = str(rng.choice(["point", "point", "small", "large", "some", "last place"]))
    if spread == "small":
        radius = np.full(n, 2.0 ** -float(rng.integers(4, 24)))
    elif spread == "large":
        radius = np.full(n, float(rng.choice([0.5, 1.0, 8.0])))
    elif spread == "some":
        radius = np.where(rng.random(n) < 0.3, 0.1, 0.0)
    elif spread == "last place":
        radius = np.abs(middle) * 2.0**-23
    if kind == "subnormal" and rng.random() < 0.5:
        radius = radius * 2.0**-126
    lo, hi = (middle - radius).astype(dtype), (middle + radius).astype(dtype)
    return np.minimum(lo, hi).astype(np.float64), np.maximum(lo, hi).astype(np.float64)
