"""The step vector t and what underflow may cost, rebuilt from docs/soundness.md, section 5, on generated networks.

An execution rarely uses all the room of a bound, so a missing term may go unnoticed by every execution. Here each is counted:
t may not be below the sum of all its terms, computed from dense matrices and the boxes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from polytriton.ir.net import Builder, Net, Node, Ref
from polytriton.ir.ops import OPS
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.layers import from_physical, load_layer, to_physical
from polytriton.runtime.soundness import U64
from polytriton.runtime.tables import Tables
from tests.oracle.adversary import Opponent
from tests.oracle.nets import random_box, random_net

NETS = 30


@dataclass
class Wanted:
    """What t must pay, node by node, from the definitions; flat, in the order of the net."""

    net: Net
    boxes: Boxes
    u: float
    eta: float
    float32: bool
    blocks: bool
    matrices: dict[str, np.ndarray] = field(default_factory=dict)
    signed: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.users = self.net.users()
        self.matrices, self.signed = Opponent(_magnitudes(self.net)).matrices, Opponent(self.net).matrices

    def flat(self, name: str, values: dict[str, torch.Tensor]) -> np.ndarray:
        return from_physical(values[name], self.net.node(name).shape).reshape(-1).numpy()

    def absmax(self, name: str) -> np.ndarray:
        return np.maximum(np.abs(self.flat(name, self.boxes.lo)), np.abs(self.flat(name, self.boxes.hi)))

    def live(self, name: str) -> np.ndarray:
        """Cells over which a row may have a coefficient: not where all that reads them is a ReLU that is off."""
        node = self.net.node(name)
        if name == self.net.output or not self.users[name]:
            return np.ones(node.size, bool)
        found = np.zeros(node.size, bool)
        for reader in (self.net.node(u) for u in self.users[name]):
            if reader.op == "relu" and not reader.number("slope"):
                lo, hi = self.flat(name, self.boxes.lo), self.flat(name, self.boxes.hi)
                found |= (hi > 0) | (lo >= 0)
            elif reader.op in ("add", "sub") and reader.name != self.net.output:
                found |= self.live(reader.name)
            else:
                found[:] = True
        return found

    def vector(self, name: str) -> np.ndarray:
        """t of a node, K being the live outputs that really read a cell."""
        node, x = self.net.node(name), self.absmax(name)
        t = np.zeros(node.size)
        if name in self.boxes.error:
            t += self.flat(name, self.boxes.error)
        if node.op in ("linear", "conv", "scale"):
            layer = load_layer(self.net, node, torch.device("cpu"))
            w, y = self.matrices[name], self.absmax(node.inputs[0])
            stored = self.net.weight(node, "a" if node.op == "scale" else "w")
            plain = stored is not None and (stored.astype(np.float32).astype(np.float64) == stored).all()
            nu = 0.0 if plain or not self.float32 else self.u
            terms = np.count_nonzero(w[self.live(name)], axis=0)
            gamma = terms * self.u / (1 - terms * self.u)
            slack = node.integer("slack")
            rho = slack * U64 / (1 - slack * U64)
            constants = self.net.weight(node, "babs")
            b = self.net.weight(node, "c" if node.op == "scale" else "b")
            assert b is not None
            bias = b.astype(np.float64)
            b = np.abs(bias) if constants is None else constants
            if node.op == "conv":
                b = np.repeat(b, node.shape[1] * node.shape[2])
            elif node.op == "scale":
                b = np.broadcast_to(b, node.shape).reshape(-1)
            held, far = b, y  # what a row's constant takes of the node, and how far the operand may lie from what is exact
            if self.float32 and node.op != "scale":  # centred on the middle of the operand's box
                lo, hi = (self.flat(node.inputs[0], v) for v in (self.boxes.lo, self.boxes.hi))
                point = ((lo + hi) / 2).astype(np.float32).astype(np.float64)
                exact = self.signed[name] @ point + np.repeat(bias, node.size // bias.size)
                held, far = np.abs(exact), np.maximum(hi - point, point - lo)
                t += np.count_nonzero(w, axis=1) * U64 * (w @ np.abs(point) + b)
            t += rho * (w @ y + b) + nu * (w @ far) + node.size * U64 * held
            if self.blocks and node.op != "scale" and node.integer("g", 1) == 1:
                passed = self.roundings(node)
                t += passed * self.u / (1 - passed * self.u) * (w @ far)
            else:
                t += w @ (gamma * far)
            t += self.eta * far.sum() if self.float32 else 0.0
            assert layer.rho >= rho
        if node.op == "gather":
            index = self.net.weight(node, "index")
            assert index is not None
            used = int(np.bincount(index[index >= 0]).max(initial=0))
            t += max(0, used - 1) * self.u * x
        if any(OPS[self.net.node(u).op].kind == "nonlinear" for u in self.users[name]):
            t += self.u * x
        return t

    def roundings(self, node: Node) -> np.ndarray:
        """Through how many each output's products pass, of all its rows' or of those that are live alone."""
        if node.op == "conv":  # channels first, then at least one sum wherever taps meet
            k, s = node.ints("k"), node.ints("s", (1, 1))
            return np.repeat(count_roundings(node.shape[0]) + (k[0] > s[0]) + (k[1] > s[1]), node.size // node.shape[0])
        live = self.live(node.name)
        order = to_physical(torch.arange(node.size)[None], node.shape).reshape(-1).numpy()  # of the columns, as rows have them
        passed = np.zeros(node.size)
        passed[order] = count_roundings(node.size)
        alone = order[live[order]]
        passed[alone] = np.maximum(passed[alone], count_roundings(len(alone)))
        return passed

    def floor(self, name: str) -> float:
        """Underflow of a substituted affine node: eta a coefficient, a product and a sum for each term of an entry."""
        node, own = self.net.node(name), self.absmax(name).sum()
        if node.op not in ("linear", "conv", "scale"):
            return float(self.eta * own)
        w, y = self.matrices[name], self.absmax(node.inputs[0])
        return float(self.eta * (own + (2 * np.count_nonzero(w, axis=0) * y).sum() + (w.sum(axis=0) * y).sum()))


def count_roundings(terms: int) -> np.ndarray:
    """Products are rounded, then chains of 16, their sums in chains of 8, and what those make in one chain: roundings that each meets."""
    passed = np.ones(terms)

    def chain(parts: list[list[int]]) -> list[int]:
        met: list[int] = []
        for part in parts:
            met = met + part
            passed[met] += len(met) > len(part)
        return met

    parts = [[k] for k in range(terms)]
    for length in (16, 8, max(1, terms)):
        parts = [chain(parts[a : a + length]) for a in range(0, len(parts), length)]
    return passed


def _magnitudes(net: Net) -> Net:
    """The network with the magnitudes behind its weights in their place: wabs where terms cancelled in a merge."""
    weights = dict(net.weights)
    for n in net:
        for key in ("w", "a"):
            ref, wide = n.attrs.get(key), net.weight(n, "wabs")
            if isinstance(ref, Ref):
                weights[ref.name] = np.abs(net.weights[ref.name].astype(np.float64)) if wide is None else wide
    return replace(net, weights=weights)


def check_vectors(net: Net, seed: int, dtype: str, semantics: str) -> set[str]:
    """Holds every node's vector and floors to what they are to be; returns the operators that were met."""
    seen = set()
    engine = Engine(compile_net(net), dtype=dtype, semantics=semantics)
    lo, hi = random_box(np.random.default_rng(seed), net, "ordinary")
    with torch.no_grad():
        boxes = engine.refine(torch.from_numpy(lo).flatten(1), torch.from_numpy(hi).flatten(1))
        tables = Tables(engine.kit, boxes)
        c = engine.coefficients
        wanted = Wanted(engine.net, boxes, c.u, c.eta, dtype == "float32", bool(engine.kit.blocks))
        for n in engine.net:
            if OPS[n.op].kind not in ("affine", "layout") or not np.isfinite(wanted.absmax(n.name)).all():
                continue
            seen.add(n.op)
            table, floor = tables.charge(n.name)
            frame = engine.kit.frames[n.name]
            top, left, _, _ = frame.halo
            t = table.double()[:, top : top + frame.h, left : left + frame.w]
            found = from_physical(t, n.shape).reshape(-1).numpy()
            least = wanted.vector(n.name)
            assert (found >= least * (1 - 1e-12)).all(), (seed, n.name, n.op, found - least)
            assert floor[0] >= wanted.floor(n.name), (seed, n.name, n.op)
            assert tables.floor(n.name)[0] >= c.eta * wanted.absmax(n.name).sum()
            lo_table, hi_table = (v.double()[:, top : top + frame.h, left : left + frame.w] for v in tables.box(n.name))
            assert (lo_table <= boxes.lo[n.name]).all()
            assert (boxes.hi[n.name] <= hi_table).all()
    return seen


@pytest.mark.parametrize("semantics", ["real", "float32"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nets", [NETS, pytest.param(2 * NETS, marks=pytest.mark.slow)])
def test_the_step_vector_has_every_term(nets: int, dtype: str, semantics: str) -> None:
    seen = set[str]()
    for seed in range(nets):
        seen |= check_vectors(random_net(seed, steps=6, limit=60, scale="normal"), seed, dtype, semantics)
    assert seen >= {"linear", "conv", "scale", "add", "sub", "concat", "gather"}, seen


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_cell_that_is_read_again_is_charged_for_the_sum(dtype: str) -> None:
    b = Builder("repeats")
    x = b.add("relu", (b.input((4,)),))
    x = b.add("gather", (x,), index=b.constant(np.array([0, 1, 1, 1, 1, 2, 3, 3]), "index"), to=(8,))
    x = b.add("relu", (b.add("add", (x, b.add("relu", (x,))),),))
    assert "gather" in check_vectors(b.build(x), 0, dtype, "real")
