"""Whether the generated kernels do what they say on this device: every launch against an oracle, whole networks against torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from bench.core.table import Row, first_line
from bench.gpu.reference import Oracle
from bench.gpu.setting import Setting, is_lost
from bench.gpu.stage import Stage
from bench.gpu.warm import warm
from bench.nets.grow import NETWORKS
from polytriton.arithmetic import ARITHMETICS, INTERVAL
from polytriton.ir import interp
from polytriton.ir.net import Net
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.forward import Boxes
from polytriton.runtime.relax import Winners
from polytriton.runtime.results import Forms
from polytriton.runtime.settings import pin_settings

COLUMNS = ("network", "numerics", "program", "step", "kernel", "fraction", "what", "verdict", "note")
SHOWN = ("network", "numerics", "program", "step", "fraction", "what", "verdict")
EPS = 1 / 255
INFINITE = float("inf")
LEAVE = 0.2  # of the rows at every check
# how far bounds of a whole run may lie from torch's, relative to the widest of the node: boxes feed the next ones
DRIFT = {"float64": 1e-9, "float32": 1e-3, "tf32x3": 1e-2, "bf16x6": 3e-2}
INTERVALS = {"interval64": 1e-9, "interval32": 2e-2}  # the same for intervals, which lose more from layer to layer
TIES = 5e-3  # as much behind a max pool: of equal lower bounds the last bit chooses the winner


def groups(dry: bool) -> list[str]:
    return ["tiny"] if dry else [n for n in NETWORKS if n != "tiny"]


def arithmetics(setting: Setting) -> tuple[str, ...]:
    """Those of folded errors."""
    return ("float64", "tf32x3") if setting.dry else tuple(name for name, a in ARITHMETICS.items() if a.form != INTERVAL)


def work(group: str, setting: Setting) -> Iterator[Row]:
    compiled = compile_net(NETWORKS[group]())
    every = [n for n in (*arithmetics(setting), *INTERVALS) if setting.wants(n)]
    warm([engine_of(compiled, n, setting) for n in every], replace(setting, end=time.time() + setting.left / 2))
    for numerics in every:
        about, parts = {"network": group, "numerics": numerics}, (compare_interval,) if numerics in INTERVALS else (_steps, compare, replay)
        try:
            for row in chain(*(part(compiled, numerics, setting) for part in parts)):
                yield {**about, **row, "verdict": "pass" if row["fraction"] <= 1 else "FAIL"}
        except Exception as error:
            if is_lost(error):
                raise
            yield {**about, "step": "all", "fraction": INFINITE, "what": type(error).__name__, "verdict": "FAIL", "note": first_line(error)}


def engine_of(compiled: Compiled, numerics: str, setting: Setting) -> Engine:
    form = {"numerics": "interval", "dtype": ARITHMETICS[numerics].type[3:]} if numerics in INTERVALS else {"dtype": numerics}
    return Engine(compiled, semantics="real", device=setting.device, kernels=setting.kernels, memory=setting.memory(), **form)  # type: ignore[arg-type]


# ---- single steps -------------------------------------------------------------------------------------------


def _steps(compiled: Compiled, numerics: str, setting: Setting) -> Iterator[Row]:
    """What every kernel function got most wrong in every program, over all launches of it."""
    programs = list(compiled.plan)
    for program in programs[-1:] if setting.dry and numerics != "float64" else programs:
        if setting.left < 0:
            return
        worst: dict[tuple[str, str], Row] = {}
        for row in launches(Stage(compiled, program, numerics, setting, rows=12 if setting.dry else 200)):
            key = row["step"], row["what"]
            if key not in worst or not row["fraction"] <= worst[key]["fraction"]:
                worst[key] = row
        for row in worst.values():
            yield {"program": f"{program.kind} {program.target}", **row}


def launches(stage: Stage) -> Iterator[Row]:
    """Every launch on random coefficients, against the oracle."""
    for index, step in enumerate(stage.steps):
        note = stage.notes[index]
        given = stage.tensors(index)
        stage.fill(given)
        if note.function == "count_staying":
            given["done_ptr"] |= (stage.uniform(given["done_ptr"]) < LEAVE).to(torch.int8)
        left = stage.count(note.state)
        if not left:
            return
        was = {p: t.clone() for p, t in given.items()}
        stage.play(index)
        stage.setting.synchronize()
        oracle = Oracle(note.constants, was, given, left, stage.coefficients)
        for what, fraction in oracle.check(note.function):
            yield {"step": note.function, "kernel": step.kernel.name, "fraction": fraction, "what": what}


# ---- whole networks -----------------------------------------------------------------------------------------


def compare(compiled: Compiled, numerics: str, setting: Setting) -> Iterator[Row]:
    """Bounds of two boxes against the torch engine on the CPU, and against the network's values at points of the boxes."""
    if setting.left < 0:
        return
    batch = 1 if setting.dry else 2
    lo, hi = balls(compiled.net, batch, seed=1)
    host = Engine(compiled, semantics="real", dtype="float64" if numerics == "float64" else "float32")
    ours = engine_of(compiled, numerics, setting)
    outputs = compiled.net.node(compiled.net.output).size
    image = torch.arange(batch).repeat_interleave(outputs)
    eye = torch.eye(outputs, dtype=torch.float64).repeat(batch, 1)
    with pin_settings():
        boxes = host.refine(lo, hi)
        want = host.query(boxes, Forms(image, eye))
        on_device = _move(boxes, setting.device)
        forms = Forms(image.to(setting.device), eye.to(setting.device))
        got = ours.query(on_device, forms)
        again = [ours.query(on_device, forms) for _ in range(1 if setting.dry else 9)]  # graphs replayed, branches at once
        mine = ours.refine(lo, hi)
        final = ours.query(mine, forms)
    best, raw = got.best.cpu(), got.raw.cpu()
    allowed = (raw - best) + (want.raw - want.best)
    yield {"program": "query", "step": "network", "fraction": _largest((raw - want.raw).abs() / allowed), "what": "same boxes"}
    same = all(torch.equal(got.best, r.best) and torch.equal(got.raw, r.raw) for r in again)
    yield {"program": "query", "step": "network", "fraction": 0.0 if same else INFINITE, "what": "repeated"}
    drift = max(_drift(mine.lo[n].cpu(), mine.hi[n].cpu(), boxes.lo[n], boxes.hi[n]) for n in ours.bounded_nodes())
    yield {"program": "bounds", "step": "network", "fraction": drift / _drift_limit(compiled.net, DRIFT[numerics]), "what": "drift"}
    outside = _find_outside(compiled.net, lo, hi, mine, final.best.view(batch, outputs))
    yield {"program": "all", "step": "network", "fraction": INFINITE if outside else 0.0, "what": "sampled", "note": outside}


def compare_interval(compiled: Compiled, numerics: str, setting: Setting) -> Iterator[Row]:
    """Interval arithmetic: bounds of two boxes beside torch's of folded errors, twice the same, and the network's values at points."""
    if setting.left < 0:
        return
    batch = 1 if setting.dry else 2
    lo, hi = balls(compiled.net, batch, seed=1)
    host, ours = Engine(compiled, semantics="real", dtype="float64"), engine_of(compiled, numerics, setting)
    outputs = compiled.net.node(compiled.net.output).size
    image = torch.arange(batch).repeat_interleave(outputs)
    eye = torch.eye(outputs, dtype=torch.float64).repeat(batch, 1)
    forms = Forms(image.to(setting.device), eye.to(setting.device))
    with pin_settings():
        want, mine = host.refine(lo, hi), ours.refine(lo, hi)
        most = host.query(want, Forms(image, eye)).best
        first, again = ours.query(mine, forms).best, ours.query(mine, forms).best
    same = torch.equal(first, again)
    yield {"program": "query", "step": "network", "fraction": 0.0 if same else INFINITE, "what": "repeated"}
    drift = max(_drift(mine.lo[n].cpu(), mine.hi[n].cpu(), want.lo[n], want.hi[n]) for n in ours.bounded_nodes())
    width = float((want.hi[compiled.net.output] - want.lo[compiled.net.output]).max()) + 1e-12
    drift = max(drift, _largest((first.cpu() - most).abs() / width))
    yield {"program": "bounds", "step": "network", "fraction": drift / _drift_limit(compiled.net, INTERVALS[numerics]), "what": "drift"}
    outside = _find_outside(compiled.net, lo, hi, mine, first.view(batch, outputs))
    yield {"program": "all", "step": "network", "fraction": INFINITE if outside else 0.0, "what": "sampled", "note": outside}


def replay(compiled: Compiled, numerics: str, setting: Setting) -> Iterator[Row]:
    """Batch after batch, soon ahead of counts and as graphs, against an engine to which every batch is the first: bit for bit."""
    if setting.left < 0:
        return
    ours, lone = (engine_of(compiled, numerics, setting) for _ in range(2))
    assert ours.kernels is not None and lone.kernels is not None
    outputs = compiled.net.node(compiled.net.output).size
    eye = torch.eye(outputs, dtype=torch.float64, device=setting.device)
    forms, different = Forms(torch.zeros(outputs, dtype=torch.int64, device=setting.device), eye), ""
    with pin_settings():
        for batch in range(3 if setting.dry else 6):
            lone.kernels.player.habits.clear()
            lone.kernels.player.parts.clear()
            lo, hi = balls(compiled.net, 1, seed=batch)
            for kind in ("interval", "refine"):
                found, want = (getattr(engine, kind)(lo, hi) for engine in (ours, lone))
                answers = ours.query(found, forms).best, lone.query(want, forms).best
                pairs = [answers, *((a[n], b[n]) for a, b in ((found.lo, want.lo), (found.hi, want.hi)) for n in b)]
                if not all(torch.equal(a, b) for a, b in pairs):
                    different = different or f"{kind} of batch {batch}"
    again = sum(part.played > 1 for part in ours.kernels.player.parts.values())
    note = different or f"stretches played again: {again}; captured: {'yes' if ours.kernels.graphs else 'no'}"
    yield {"program": "bounds", "step": "network", "fraction": INFINITE if different else 0.0, "what": "replayed", "note": note}


def balls(net: Net, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    centre = torch.rand(batch, net.input.size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (centre - EPS).clamp(0, 1), (centre + EPS).clamp(0, 1)


def _largest(share: Tensor) -> float:
    return float(torch.nan_to_num(share, nan=float("inf")).max())


def _move(boxes: Boxes, device: torch.device) -> Boxes:
    every = (boxes.lo, boxes.hi, boxes.magnitude, boxes.error)
    lo, hi, magnitude, error = ({k: v.to(device) for k, v in values.items()} for values in every)
    winners = {k: Winners(w.tap.to(device), w.sure.to(device), w.most.to(device)) for k, w in boxes.winners.items()}
    return Boxes(lo, hi, magnitude, error, winners)


def _drift(lo: Tensor, hi: Tensor, other_lo: Tensor, other_hi: Tensor) -> float:
    width = float((other_hi - other_lo).max()) + 1e-12
    return _largest(torch.maximum((lo - other_lo).abs(), (hi - other_hi).abs()) / width)


def _drift_limit(net: Net, drift: float) -> float:
    return max(drift, TIES) if any(node.op == "maxpool" for node in net.nodes) else drift


def _find_outside(net: Net, lo: Tensor, hi: Tensor, boxes: Boxes, outputs: Tensor) -> str:
    """The first node with a value off its box at a corner or a random point; "" where all is well."""
    rng = np.random.default_rng(2)
    for b in range(len(lo)):
        low, high = lo[b].numpy(), hi[b].numpy()
        part = rng.random((24, net.input.size))
        part[:12] = part[:12] > 0.5
        values = interp.evaluate(net, low + part * (high - low))
        for node in net.nodes[1:]:
            v = torch.from_numpy(values[node.name].reshape(len(part), *node.shape)).double()
            v = v.permute(0, 2, 3, 1).reshape(len(part), -1) if v.ndim == 4 else v.reshape(len(part), -1)
            room = 1e-11 * (1 + v.abs().max())  # what evaluating the network in float64 may be off
            if bool((v < boxes.lo[node.name][b].cpu().flatten() - room).any() | (v > boxes.hi[node.name][b].cpu().flatten() + room).any()):
                return f"%{node.name} leaves its box"
            if node.name == net.output and bool((v < outputs[b].cpu() - room).any()):
                return f"%{node.name} falls below the query's bound"
    return ""
