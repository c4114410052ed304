"""The paper's networks, synthetic, end to end: generated kernels beside the torch engine and auto_LiRPA on the same device.

One run: the interval pass, bounds of every ReLU input that it leaves undecided, nine margins an image. `gflop` is what the Plan
counts for the rows that ran. Seconds are of one image, the median of the runs that the time allows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from onnx import ModelProto
from torch import Tensor

from bench import zoo
from bench.compare.side import AutoLirpa
from bench.core.table import END_TO_END, Row, first_line, say
from bench.gpu.setting import Setting, ceiling, device_name, is_lost
from bench.gpu.warm import warm
from bench.nets import grow
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.net import Net
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.results import Forms, Stopped
from polytriton.runtime.settings import pin_settings
from polytriton.runtime.walker import Tally

COLUMNS = END_TO_END
SHOWN = ("network", "kind", "engine", "numerics", "batch", "seconds", "goal", "worst", "gflop", "of_peak", "note")
RUNS = 7
SETTLED = 5  # runs: the first asks for every number, the next go ahead, and what has been played is captured
# seconds an image to reach on one H100: alone, and in a batch of 100
GOALS = {
    ("mnist-6x500", "normal"): (1e-3, 0.1e-3),
    ("mnist-convbig", "robust"): (0.2e-3, 0.02e-3),
    ("cifar-convlarge", "robust"): (0.8e-3, 0.2e-3),
    ("resnet18", "robust"): (2.5e-3, 1e-3),
    ("resnet34", "robust"): (5e-3, 2e-3),
    ("mnist-convsuper", "normal"): (25e-3, 15e-3),
    ("resnettiny", "normal"): (0.8, 0.6),
    ("resnet18", "normal"): (20.0, 15.0),
}
ENGINES = (
    ("kernels", "float64"), ("kernels", "tf32x3"), ("torch", "float64"), ("torch", "float32"), ("auto_LiRPA", "float32"),
    ("kernels", "float32"), ("kernels", "bf16x6"),
)  # fmt: skip
LEAST = 150.0  # seconds a network gets at least: a deep one has hundreds of kernels to compile
BATCH = 100


def groups(dry: bool) -> list[str]:
    """Networks with a goal first, then every other, the cheaper kind before the other."""
    if dry:
        return ["tiny-normal"]
    others = [(n, k) for k in ("robust", "normal") for n in zoo.NETS if (n, k) not in GOALS]
    return [f"{n}-{k}" for n, k in (*GOALS, *others)]


class Problem:
    """A network with images, boxes and margins."""

    def __init__(self, name: str, kind: str, count: int) -> None:
        self.name, self.kind = name, kind
        self.model: ModelProto | None = None
        if name in zoo.NETS:
            self.model = zoo.build(name, kind)  # type: ignore[arg-type]
            self.eps = zoo.EPS[name, kind]  # type: ignore[index]
            self.net: Net = load_onnx(self.model).net
            self.images = torch.from_numpy(zoo.image(name, count=count).reshape(count, -1)).double()
        else:
            self.eps, self.net = 1 / 255, grow.NETWORKS[name]()  # type: ignore[assignment]
            self.images = torch.from_numpy(np.random.default_rng(0).random((count, self.net.input.size)))
        self.compiled: Compiled = compile_net(self.net)

    def boxes(self, batch: int) -> tuple[Tensor, Tensor]:
        x = self.images[:batch]
        return (x - float(self.eps)).clamp(0, 1), (x + float(self.eps)).clamp(0, 1)


def problem_of(group: str, setting: Setting) -> Problem:
    """A network, with machine code that was made before where there is some."""
    name, _, kind = group.rpartition("-")
    problem = Problem(name, kind, 2 if setting.dry else BATCH)
    if setting.code is not None and (path := setting.code / f"{group}.zip").exists():
        from bench.gpu.code import read_code  # needs msgspec, which a bare machine has not

        problem.compiled = read_code(problem.compiled, path)
    return problem


def work(group: str, setting: Setting) -> Iterator[Row]:
    problem = problem_of(group, setting)
    name, kind = problem.name, problem.kind
    about: Row = {"network": name, "kind": kind, "eps": str(problem.eps), "weights": "synthetic"}
    for engine, numerics in (e for e in ENGINES[:: 2 if setting.dry else 1] if setting.wants(e[1])):
        part = replace(setting, end=time.time() + setting.left / 2)  # a slow one leaves as much to those behind it
        row: Row = {**about, "engine": engine, "numerics": numerics, "batch": 1}
        made: Ours | Peer | None = None
        try:
            if part.left < 0:
                yield {**row, "note": "left out, no time"}
                continue
            made = Peer(problem, part) if engine == "auto_LiRPA" else Ours(problem, engine, numerics, part)
            alone = measure(made, 1, part)
            yield {**row, **alone, **goal(name, kind, 1, alone["seconds"])}
            batch = min(2 if setting.dry else BATCH, int(part.left / 3 / alone["seconds"]))
            row["batch"] = batch
            if batch > 1:
                many = measure(made, batch, part)
                yield {**row, **many, **goal(name, kind, batch, many["seconds"])}
            else:
                say(f"   {group}, {engine} {numerics}: no time for a batch")
        except ImportError as error:
            yield {**row, "note": f"skipped: {error}"}
        except Stopped:
            yield {**row, "note": "over the time limit"}
        except Exception as error:
            if is_lost(error):
                raise
            yield {**row, "note": first_line(error)}
        made = None
        setting.give_back()


def goal(name: str, kind: str, batch: int, seconds: float) -> Row:
    """What was to be reached, and the time as a multiple of it."""
    goals = GOALS.get((name, kind))
    return {} if goals is None else {"goal": goals[batch > 1], "of_goal": seconds / goals[batch > 1]}


class Ours:
    """polytriton on the device: by generated kernels or by torch."""

    def __init__(self, problem: Problem, engine: str, numerics: str, setting: Setting) -> None:
        self.problem, self.setting, self.numerics = problem, setting, numerics
        kernels = setting.kernels if engine == "kernels" else ""
        self.engine = Engine(
            problem.compiled, semantics="real", dtype=numerics, device=setting.device, kernels=kernels, memory=setting.memory()
        )
        self.kernels = warm([self.engine], setting) if kernels else 0
        self.end = time.monotonic() + setting.left

    def prepare(self, batch: int) -> None:
        """Boxes and margins against the class that the network answers at each image; counts begin anew."""
        self.engine.tally, self.before = Tally(), self.engine.operations - self.engine.tally.ops
        lo, hi = self.problem.boxes(batch)
        self.lo, self.hi = lo.to(self.setting.device), hi.to(self.setting.device)
        over = torch.from_numpy(zoo.margins_of(answers(self.engine, self.problem.images[:batch]))).to(self.setting.device)
        image = torch.arange(batch, device=self.setting.device).repeat_interleave(over.shape[1])
        self.forms = Forms(image, over.flatten(0, 1))

    def run(self) -> float:
        """The worst margin."""
        with pin_settings(self.setting.device):
            boxes = self.engine.refine(self.lo, self.hi, deadline=self.end)
            return float(self.engine.query(boxes, self.forms, deadline=self.end).best.min())

    def details(self, batch: int, seconds: float, runs: int) -> Row:
        gflop = (self.engine.operations - self.before) / runs / 1e9
        row: Row = {"rows": sum(self.engine.tally.rows.values()) // runs, "gflop": gflop, "tflops": gflop / seconds / 1e3}
        device = ceiling(device_name(self.setting.dry))
        if device is not None:
            row["of_peak"] = gflop * 1e9 / seconds / device.flops(self.numerics)
        return {**row, "kernels": self.kernels} if self.kernels else row


def answers(engine: Engine, images: Tensor) -> np.ndarray:
    """The network's at the images themselves."""
    with pin_settings():
        boxes = engine.interval(images, images)
        output = engine.net.output
        return (boxes.lo[output] + boxes.hi[output]).flatten(1).cpu().numpy()


class Peer(AutoLirpa):
    """auto_LiRPA's CROWN with the adaptive lower slope, float32, not sound against rounding: bench.compare's other side."""

    def __init__(self, problem: Problem, setting: Setting) -> None:
        if problem.model is None:
            raise ImportError("needs a network of the zoo")
        self.problem, self.setting = problem, setting

    def prepare(self, batch: int) -> None:
        lo, hi = self.problem.boxes(batch)
        held = {"x": self.problem.images[:batch].numpy(), "lo": lo.numpy(), "hi": hi.numpy(), "forms": np.zeros((batch, 0, 0))}
        super().__init__(self.problem.model, held, "float32", str(self.setting.device), "input")
        self.forms = torch.from_numpy(zoo.margins_of(self.answers())).to(self.x)

    def run(self) -> float:
        return float(self.margins().min())

    def details(self, batch: int, seconds: float, runs: int) -> Row:
        return {}


def time_run(run: Callable[[], float], setting: Setting) -> tuple[float, float]:
    """Seconds, and what it answers."""
    setting.synchronize()
    start = time.perf_counter()
    worst = run()
    setting.synchronize()
    return time.perf_counter() - start, worst


def measure(made: Ours | Peer, batch: int, setting: Setting) -> Row:
    """A first run, which compiles, those until nothing is new (recordings, then their graphs), then as many as the time allows."""
    made.prepare(batch)
    if not setting.dry:
        torch.cuda.reset_peak_memory_stats()
    first, worst = time_run(made.run, setting)
    early = [first]
    while len(early) < (2 if setting.dry else SETTLED) and setting.left > early[-1] and sum(early[1:]) < 20:
        early.append(time_run(made.run, setting)[0])
    more: list[float] = []
    while not setting.dry and len(more) < RUNS and setting.left > 2 * early[-1] and sum(more) < 20:
        more.append(time_run(made.run, setting)[0])
    times, done = more or early[-1:], len(early)
    seconds = statistics.median(times)
    row: Row = {
        "seconds": seconds / batch, "spread": (max(times) - min(times)) / batch, "runs": len(times), "first": first, "worst": worst,
        "peak_mb": 0.0 if setting.dry else torch.cuda.max_memory_allocated() / 2**20,
    }  # fmt: skip
    return row | made.details(batch, seconds, done + len(more))
