"""Makes a failing case small, and keeps it as text, weights and settings that anyone can run again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from polytriton.errors import PolytritonError
from polytriton.ir.check import check_net
from polytriton.ir.net import Net, Ref
from polytriton.ir.text import parse_net, print_net
from polytriton.passes.layout import drop_dead
from tests.oracle.product_graphs import Graph
from tests.soak.case import Case, GraphCase

Fails = Callable[[Case], bool]
PLAIN = {"candidates": "all", "tight": False, "early": True, "every": True, "loops": True, "library": True, "dtype": "float64"}


def shrink(case: Case, fails: Fails, patience: int = 400) -> Case:
    """The smallest case found that still fails, by the first step that helps, over and over; at most `patience` tries."""
    tries = 0
    again = True
    while again:
        again = False
        for smaller in _smaller(case):
            if tries >= patience:
                return case
            tries += 1
            if fails(smaller):
                case, again = smaller, True
                break
    return case


def shorten(case: GraphCase, fails: Callable[[GraphCase], bool]) -> GraphCase:
    """The fewest steps of the graph that still fail."""
    return next((c for c in (GraphCase(case.seed, k) for k in range(1, case.most)) if fails(c)), case)


def _smaller(case: Case) -> Iterator[Case]:
    if len(case.lo) > 1:
        yield from (case.part(k) for k in range(len(case.lo)))
    if case.over_input is not None:
        yield replace(case, over_input=None)
    for key, plain in PLAIN.items():
        if case.knobs[key] != plain:
            yield replace(case, knobs={**case.knobs, key: plain})
    if case.via in ("onnx", "public"):
        yield replace(case, via="net")
    if case.forms.shape[1] > 1:
        yield from (replace(case, forms=case.forms[:, k : k + 1], over_input=None) for k in range(case.forms.shape[1]))
    yield from (_with_net(case, net) for net in _smaller_nets(case.net))
    for end in (case.lo, case.hi):
        if (case.lo != case.hi).any():
            yield replace(case, lo=end, hi=end)
            for j in np.flatnonzero((case.lo != case.hi).any(axis=0)):
                lo, hi = case.lo.copy(), case.hi.copy()
                lo[:, j] = hi[:, j] = end[:, j]
                yield replace(case, lo=lo, hi=hi)
    whole = np.trunc(case.lo), np.trunc(case.hi)
    if any((a != b).any() for a, b in zip(whole, (case.lo, case.hi), strict=True)):
        yield replace(case, lo=whole[0], hi=whole[1])


def _with_net(case: Case, net: Net) -> Case:
    outputs = net.node(net.output).size
    if outputs == case.forms.shape[-1]:
        return replace(case, net=net)
    rows = np.resize(case.forms, (len(case.lo), case.forms.shape[1], outputs))
    return replace(case, net=net, forms=rows)


def _smaller_nets(net: Net) -> Iterator[Net]:
    """An earlier output, a node bypassed, weights zero or round. Shapes stay as they are, so every result is checked."""
    by = net.by_name
    drafts: list[Net] = []
    for n in net.nodes[1:-1]:
        if n.name != net.output:
            drafts.append(net.rebuild(net.nodes, output=n.name))
    for n in net.nodes[1:]:
        if n.inputs and by[n.inputs[0]].shape == n.shape:
            to = n.inputs[0]
            nodes = [replace(m, inputs=tuple(to if i == n.name else i for i in m.inputs)) for m in net if m is not n]
            drafts.append(net.rebuild(nodes, output=to if net.output == n.name else None))
    for draft in drafts:
        try:
            kept = drop_dead(draft)
            check_net(kept)
        except PolytritonError:
            continue
        if len(kept.nodes) > 1 or len(net.nodes) > 1:
            yield kept
    for n in net:
        for key in ("w", "a", "b", "c"):
            ref = n.attrs.get(key)
            if not isinstance(ref, Ref):
                continue
            w = net.weights[ref.name]
            for made in (np.zeros_like(w), np.ones_like(w), np.sign(w) * np.exp2(np.round(np.log2(np.maximum(np.abs(w), 1e-45))))):
                made = np.asarray(np.where(w == 0, w, made), w.dtype)
                if np.isfinite(made).all() and (made != w).any():
                    yield replace(net, weights={**net.weights, ref.name: made})


# ---- on disk -----------------------------------------------------------------------------------------------------------


def _hex(values: np.ndarray | None) -> Any:
    return None if values is None else {"shape": values.shape, "values": [float(v).hex() for v in values.ravel()]}


def _unhex(held: Any) -> np.ndarray | None:
    return None if held is None else np.array([float.fromhex(v) for v in held["values"]]).reshape(held["shape"])


def store(case: Case | GraphCase, found: list[str], folder: Path) -> Path:
    """folder/SEED/: net.ptir, net.safetensors and case.json, of a graph net.onnx and case.json, whole or not at all."""
    final, draft = folder / str(case.seed), folder / f".{case.seed}.{os.getpid()}"
    draft.mkdir(parents=True)
    told: dict[str, Any] = {"seed": case.seed, "found": found}
    if isinstance(case, GraphCase):
        (draft / "net.onnx").write_bytes(Graph.draw(case.seed, case.most).model())
        told["most"] = case.most
    else:
        (draft / "net.ptir").write_text(print_net(case.net))
        save_file({k: np.ascontiguousarray(v) for k, v in case.net.weights.items()}, draft / "net.safetensors")
        told |= {k: _hex(getattr(case, k)) for k in ("lo", "hi", "forms", "over_input")}
        told |= {"knobs": case.knobs, "via": case.via, "poisoned": case.poisoned}
    (draft / "case.json").write_text(json.dumps(told, indent=1))
    if final.exists():
        for old in final.iterdir():
            old.unlink()
        final.rmdir()
    draft.rename(final)
    return final


def restore(folder: Path) -> Case | GraphCase:
    held = json.loads((folder / "case.json").read_text())
    if "most" in held:
        return GraphCase(held["seed"], held["most"])
    net = parse_net((folder / "net.ptir").read_text(), load_file(folder / "net.safetensors"))
    lo, hi, forms = (_unhex(held[k]) for k in ("lo", "hi", "forms"))
    assert lo is not None and hi is not None and forms is not None
    return Case(held["seed"], net, lo, hi, forms, _unhex(held["over_input"]), held["knobs"], held["via"], held["poisoned"])
