"""Single launches by their machine code and the model: the cases of bench/gpu/micro.py, compiled ahead of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench.core.table import Row, say
from bench.gpu.micro import MicroCase, compiled_case, variants
from bench.gpu.micro import cases as micro_cases
from bench.gpu.stage import Note, Noted, NotedInterval, carry
from bench.roofline.model import Code, estimate, peak, traffic
from polytriton.arithmetic import ARITHMETICS, INTERVAL
from polytriton.ir.launches import COUNTED, Kernel, Launch, Launches
from polytriton.kernels.build import Built, Failed, compile_each
from polytriton.kernels.choose import GPU
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.sass import LIMITS
from polytriton.kernels.sass_loop import MATRIX, inner_loop, instructions, mix
from polytriton.kernels.sequence import Frames
from polytriton.tuning.device import SHEETS
from polytriton.tuning.gpu_cost import INTERVAL_PRODUCTS, PRODUCTS, interval_loops

LOOP = ("issue", "integer", "float32", "float64", "convert", "port")  # what may hold up the matrix instructions of a loop
COLUMNS = (
    "case", "numerics", "step", "variant", "rows", "registers", "shared", "spills", "warps", "of_warps", "blocks",
    *COUNTED, "of_code", "loop", "of_loop", "repeated", *(f"peak_by_{pipe}" for pipe in LOOP),
    "gflop", "tiles_gflop", "useful", "mb", "flop_byte", "binds", "microseconds", "of_peak", "of_memory", "goal", "reached", "note",
)  # fmt: skip
SHOWN = ("case", "numerics", "step", "variant", "registers", "warps", "of_loop", "repeated", "useful", "binds", "microseconds", "of_peak",
         "of_memory", "goal", "reached", "note")  # fmt: skip
INTERVALS = ("interval64", "interval32")
GOALS = {  # of the peak, in operations that the Plan counts
    ("conv_step", "float64"): 0.60, ("conv_step", "tf32x3"): 0.50,
    **{(function, numerics): 0.60 for function in INTERVAL_PRODUCTS for numerics in INTERVALS},
}  # fmt: skip
PASS_GOAL, LEAST_ROWS, GOAL_CHANNELS = 0.80, 4096, (64, 256)  # of a copy's bandwidth, for passes of so many rows; of convolutions
BATCH = 2  # boxes, as in bench/gpu/stage.py


def cases() -> dict[str, list[MicroCase]]:
    """Those of bench.gpu micro, and the same products in the paper's interval arithmetic."""
    found = micro_cases(False)
    paper = [replace(case, numerics=INTERVALS, functions=INTERVAL_PRODUCTS, fuse=(None,)) for case in (*found["dense"], *found["conv"])]
    return {**found, "interval": paper}


def groups() -> list[str]:
    """The tile shapes are many kernels: only where they are asked for."""
    return [name for name in cases() if name != "tiles"]


@dataclass(frozen=True)
class Timed:
    """One launch of a case."""

    case: MicroCase
    numerics: str
    variant: str
    launch: Launch
    launches: Launches
    note: Note
    frames: Frames


def work(group: str, target: str, cache: Path | None, jobs: int) -> Iterator[Row]:
    """A row for every launch of a group's cases."""
    timed = [t for case in cases()[group] for t in launches_of(case)]
    kernels = list({t.launch.kernel.name: t.launch.kernel for t in timed}.values())
    say(f"   {group}: {len(kernels)} kernels")
    made = {m.kernel.name: m for m in compile_each(kernels, target, cache=cache, jobs=jobs)}
    for t in timed:
        yield describe(t, made[t.launch.kernel.name], target)


def launches_of(case: MicroCase) -> list[Timed]:
    compiled, program = compiled_case(case.make)
    frames, emitter, found = Frames(compiled.net, compiled.plan), Emitter(), []
    for numerics, fuse, sizes, inner, variant in variants(case):
        arithmetic, tiles = carry(ARITHMETICS[numerics], inner), sizes or GPU
        lowering = (
            NotedInterval(emitter, frames, arithmetic, program, tiles)
            if arithmetic.form == INTERVAL
            else Noted(emitter, frames, arithmetic, program, tiles, fuse=fuse)
        )
        launches = lowering.run()
        found += [
            Timed(case, numerics, variant, launches.steps[k], launches, note, frames)
            for k, note in lowering.notes.items()
            if note.function in case.functions
        ]
    return found


def describe(t: Timed, built: Built | Failed, target: str) -> Row:
    gpu, rows, function = SHEETS[target], t.case.rows, t.note.function
    row: Row = {"case": t.case.name, "numerics": t.numerics, "step": function, "variant": t.variant, "rows": rows}
    if isinstance(built, Failed):
        return {**row, "note": built.reason.splitlines()[0][:160]}
    code = Code(built.report, instructions(built.cubin))
    moved = traffic(t.launch, t.launches, t.frames, rows, BATCH, ARITHMETICS[t.numerics])
    found = estimate(t.note, t.launch.kernel.warps, moved, t.numerics, rows, gpu, target, code)
    row |= {**resources(t.launch.kernel, code, target), "mb": moved / 1e6, "binds": found.limit, "microseconds": found.seconds * 1e6}
    row["of_memory"] = moved / found.seconds / gpu.bandwidth
    goal = None if found.limit == "launch" else goal_of(t.note, t.numerics, rows)
    if function in PRODUCTS:
        ops = float(t.note.step.ops) * rows
        row |= {f"peak_by_{pipe}": found.pipes[pipe] for pipe in LOOP if pipe in found.pipes}
        row |= {"gflop": ops / 1e9, "tiles_gflop": found.ops / 1e9, "useful": ops / found.ops, "flop_byte": ops / moved}
        row |= {"repeated": found.repeated, "of_peak": ops / found.seconds / peak(gpu, t.numerics)}
    if goal:
        row |= {"goal": goal, "reached": "yes" if float(row["of_peak" if function in PRODUCTS else "of_memory"]) >= goal else "no"}
    return row


def goal_of(note: Note, numerics: str, rows: int) -> float | None:
    if rows < LEAST_ROWS:
        return None
    if note.function in PRODUCTS:
        if note.function == "interval_dense":
            return GOALS[note.function, numerics]
        channels = note.constants.get("CI", 0)
        wide = isinstance(channels, int) and GOAL_CHANNELS[0] <= channels <= GOAL_CHANNELS[1]
        return GOALS.get((note.function, numerics)) if wide else None
    return PASS_GOAL


def resources(kernel: Kernel, code: Code, target: str) -> Row:
    """What the kernel takes of an SM, and what its instructions are; those of its arithmetic as a share of all, and of its loop."""
    report, all_of_it = code.report, mix(code.instructions)
    wanted = MATRIX if any(all_of_it[m] for m in MATRIX) else ("FFMA",) if kernel.instruction == "FFMA" else ("DFMA",)
    if kernel.family in INTERVAL_PRODUCTS:
        loop = mix(interval_loops(code.instructions, wanted[0])[1])
    else:
        loop = mix(inner_loop(code.instructions, wanted if kernel.instruction else ("LDG",)))
    found: Row = {
        "registers": report.registers, "shared": report.shared, "spills": report.spills, "warps": report.occupancy,
        "of_warps": report.occupancy / LIMITS[target].warps, "blocks": report.occupancy // kernel.warps,
        **{name: all_of_it[name] for name in COUNTED}, "of_code": sum(all_of_it[w] for w in wanted) / sum(all_of_it.values()),
    }  # fmt: skip
    if loop:
        found |= {"loop": sum(loop.values()), "of_loop": sum(loop[w] for w in wanted) / sum(loop.values())}
    return found
