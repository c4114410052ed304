"""How fast single launches are: times by events with the L2 cache flushed, beside data sheet and measured ceilings.

Operations are the Plan's count for the step; bytes are those of every tensor of the launch, once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import torch
from torch import Tensor

from bench.core.table import Row, first_line
from bench.gpu.setting import Setting, ceiling, device_name, is_lost
from bench.gpu.stage import Noted, Shaped, Stage, carry
from bench.gpu.warm import warm_kernels
from bench.nets import grow
from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.net import Net
from polytriton.ir.plan import Program
from polytriton.kernels.choose import GPU, Sizes
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.sequence import Frames
from polytriton.passes.pipeline import Compiled, compile_net
from polytriton.runtime.settings import pin_settings

COLUMNS = (
    "case", "numerics", "step", "variant", "rows", "microseconds", "spread", "gflop", "tflops", "of_peak", "of_gemm", "mb", "tb_s",
    "of_memory", "of_copy", "registers", "spills", "note",
)  # fmt: skip
SHOWN = ("case", "numerics", "step", "variant", "rows", "microseconds", "tflops", "of_peak", "tb_s", "of_memory", "note")
RUNS, SECONDS = 50, 0.5  # repetitions of a launch at most, and the time they may take
FLUSH = 512 << 20  # bytes written between runs: past every L2, and long enough for the host to be ahead of the device


@dataclass(frozen=True)
class MicroCase:
    """One program, and the kernels of it to time."""

    name: str
    make: Callable[[], tuple[Net, str]]
    rows: int
    numerics: tuple[str, ...] = ("float64", "tf32x3")
    functions: tuple[str, ...] = ("conv_step", "dense_step", "relax_rows")
    fuse: tuple[bool | None, ...] = (True,)
    sizes: tuple[tuple[str, Sizes | None, int], ...] = field(default=(("", None, 0),))  # label, tiles, terms between float64 sums


EVERY = ("float64", "float32", "tf32x3", "bf16x6")


def _conv(channels: int, window: int, kernel: int, stride: int, rows: int = 4096) -> MicroCase:
    name = f"conv {channels} {kernel}x{kernel}/{stride} on {window}x{window}"
    middle = (channels, window) == (128, 5)
    return MicroCase(name, lambda: grow.conv_net(channels, window, kernel, stride), rows, EVERY if middle else ("float64", "tf32x3"),
                fuse=(True, False) if window == 5 else (True,))  # fmt: skip


def _dense(rows: int, source: int, to: int) -> MicroCase:
    middle = (rows, source, to) == (4096, 2048, 2048)
    kinds = EVERY if middle else ("float64", "tf32x3")
    return MicroCase(f"dense {source} to {to}", lambda: grow.dense_net(source, to), rows, kinds, fuse=(True, False))


def _passes(channels: int, window: int, rows: int) -> MicroCase:
    every = ("relax_rows", "concretize_rows", "join_rows", "start_rows", "pay_neurons", "count_staying", "move_rows", "follow_slots")
    name, make = f"join {channels} on {window}x{window}", lambda: grow.join_net(channels, window)
    return MicroCase(name, make, rows, ("float64", "float32"), every, (False,))


def _tiles(dry: bool) -> tuple[tuple[str, Sizes | None, int], ...]:
    """Tile shapes worth a look: pairs, columns and terms of a tile, warps, stages."""
    grid = product((64, 128), (64, 128), (16, 32), (4, 8), (2, 3))
    if dry:
        grid = product((64,), (16,), (16,), (4,), (2,))
    made = ((m, n, k, Shaped(pairs=m, columns=n, terms=k, warps=w, stages=s)) for m, n, k, w, s in grid)
    return tuple((f"{m}x{n}x{k} w{z.warps} s{z.stages}", z, k) for m, n, k, z in sorted(made, key=lambda t: t[0] * t[1] != 64 * 128))


def cases(dry: bool) -> dict[str, list[MicroCase]]:
    if dry:
        small = replace(_conv(2, 2, 3, 1, 8), numerics=("float64",), fuse=(True, False))
        others = {"dense": _dense(8, 6, 5), "passes": _passes(2, 2, 8), "tiles": replace(small, fuse=(True,), sizes=_tiles(dry))}
        return {"conv": [small], **{name: [replace(c, numerics=("float64",))] for name, c in others.items()}}
    shapes = product(((3, 1), (4, 2)), (5, 3, 9), (128, 64, 256))
    conv = [_conv(c, w, k, s) for (k, s), w, c in shapes if (c, w) != (256, 9) and (k == 3 or w < 9)]
    dense = [_dense(r, k, n) for r, k, n in ((4096, 2048, 2048), (1024, 500, 500), (16384, 500, 500), (4096, 500, 784), (4096, 512, 4096),
                                             (16384, 4096, 512), (1024, 8192, 8192))]  # fmt: skip
    wide, square = (replace(_dense(*d), fuse=(False,)) for d in ((16384, 500, 500), (4096, 2048, 2048)))
    tuned = wide, replace(_conv(128, 5, 3, 1), fuse=(False,)), square
    tiles = [replace(c, numerics=("float64", "tf32x3"), functions=("conv_step", "dense_step"), sizes=_tiles(dry)) for c in tuned]
    passes = [_passes(64, 5, 8192), _passes(128, 3, 65536)]
    return {"dense": dense, "conv": conv, "passes": passes, "tiles": tiles}


def groups(dry: bool) -> list[str]:
    return ["device", *cases(dry)]


def work(group: str, setting: Setting) -> Iterator[Row]:
    bench = Bench(setting)
    if group == "device":
        yield from bench.ceilings()
        return
    some = [replace(case, numerics=tuple(filter(setting.wants, case.numerics))) for case in cases(setting.dry)[group]]
    made = {case.name: compiled_case(case.make) for case in some}
    emitter = Emitter()
    for case in some:
        compiled, program = made[case.name]
        for numerics, fuse, sizes, inner, _ in variants(case):
            arithmetic = carry(ARITHMETICS[numerics], inner)
            Noted(emitter, Frames(compiled.net, compiled.plan), arithmetic, program, sizes or GPU, fuse=fuse).run()
    warm_kernels(list(emitter.kernels.values()), replace(setting, end=time.time() + setting.left / 2))
    for case in some:
        compiled, program = made.pop(case.name)
        for numerics, fuse, sizes, inner, variant in variants(case):
            if setting.left < 0:
                return
            about: Row = {"case": case.name, "numerics": numerics, "variant": variant, "rows": case.rows}
            try:
                for row in bench.steps(
                    Stage(compiled, program, numerics, setting, case.rows, sizes=sizes, fuse=fuse, inner=inner), numerics, case.functions
                ):
                    yield {**about, **row}
            except Exception as error:
                if is_lost(error):
                    raise
                yield {**about, "note": first_line(error)}
            setting.give_back()  # before the next stage is made


def variants(case: MicroCase) -> Iterator[tuple[str, bool | None, Sizes | None, int, str]]:
    """Coefficients, whether a ReLU is fused, tiles, terms between float64 sums, and what rows call it."""
    for numerics, fuse, (label, sizes, inner) in product(case.numerics, case.fuse, case.sizes):
        yield numerics, fuse, sizes, inner, " ".join(v for v in (label, {True: "fused", False: "apart", None: ""}[fuse]) if v)


def compiled_case(make: Callable[[], tuple[Net, str]]) -> tuple[Compiled, Program]:
    net, target = make()
    compiled = compile_net(net)
    return compiled, compiled.plan.bound(target)


class Bench:
    """A device, what it can do, and a stopwatch."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.ceiling = ceiling(device_name(setting.dry))
        self.scrap = torch.empty(1 << 10 if setting.dry else FLUSH, dtype=torch.int8, device=setting.device)
        with pin_settings():
            self.copy = self._copy()
            self.gemm = {t: self._gemm(t) for t in (torch.float64, torch.float32)}

    def seconds(self, call: Callable[[], object]) -> tuple[float, float]:
        """Median seconds of a call on the device, and the distance between its tenth and ninetieth percentile."""
        if self.setting.dry:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start, 0.0
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        until = time.perf_counter() + SECONDS
        while len(pairs) < 5 or (len(pairs) < RUNS and time.perf_counter() < until):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.scrap.zero_()
            begin.record()
            call()
            end.record()
            pairs.append((begin, end))
            if len(pairs) % 10 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        times = sorted(b.elapsed_time(e) / 1000 for b, e in pairs)
        return statistics.median(times), times[len(times) * 9 // 10] - times[len(times) // 10]

    def _copy(self) -> float:
        """Bytes a second of a large copy, read and written."""
        values = torch.empty(1 << 10 if self.setting.dry else 1 << 30, dtype=torch.int8, device=self.setting.device)
        to = torch.empty_like(values)
        return 2 * values.numel() / self.seconds(lambda: to.copy_(values))[0]

    def _gemm(self, kind: torch.dtype) -> float:
        """Operations a second of the library's own matrix product, full precision."""
        n = 16 if self.setting.dry else 4096
        a, b = (torch.randn(n, n, dtype=kind, device=self.setting.device) for _ in range(2))
        out: Tensor = torch.empty_like(a)
        return 2 * n**3 / self.seconds(lambda: torch.mm(a, b, out=out))[0]

    def ceilings(self) -> Iterator[Row]:
        memory = self.ceiling.bytes if self.ceiling else None
        yield {"case": "copy", "step": "library", "tb_s": self.copy / 1e12, "of_memory": self.copy / memory if memory else ""}
        for kind, rate in self.gemm.items():
            name = str(kind).removeprefix("torch.")
            share = rate / self.ceiling.flops(name) if self.ceiling else ""
            yield {"case": "product 4096", "numerics": name, "step": "library", "tflops": rate / 1e12, "of_peak": share}

    def steps(self, stage: Stage, numerics: str, functions: tuple[str, ...]) -> Iterator[Row]:
        """Every launch of these functions, once all before it have run."""
        for index in range(len(stage.steps)):
            compiled = stage.play(index)
            note = stage.notes.get(index)
            if note is None or note.function not in functions:
                continue
            stage.fill(stage.tensors(index))
            seconds, spread = self.seconds(lambda index=index: stage.play(index))  # type: ignore[misc]
            product = note.function in ("conv_step", "dense_step")
            ops, moved = note.step.ops * stage.rows if product else 0, stage.traffic(index)
            row: Row = {
                "step": note.function, "microseconds": seconds * 1e6, "spread": spread * 1e6, "mb": moved / 1e6,
                "tb_s": moved / seconds / 1e12, "of_copy": moved / seconds / self.copy,
                "registers": getattr(compiled, "n_regs", ""), "spills": getattr(compiled, "n_spills", ""),
            }  # fmt: skip
            if product:
                kind = torch.float64 if numerics == "float64" else torch.float32
                row |= {"gflop": ops / 1e9, "tflops": ops / seconds / 1e12, "of_gemm": ops / seconds / self.gemm[kind]}
            if self.ceiling is not None:
                row["of_memory"] = moved / seconds / self.ceiling.bytes
                if product:
                    row["of_peak"] = ops / seconds / self.ceiling.flops(numerics)
            yield row
