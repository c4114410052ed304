"""Tiles for a GPU that is not here: every kernel is compiled in the most promising sizes, and predicted time alone decides.

Its answer is sound, like any tiles': a kernel's rounding term does not depend on them within what `retile` admits. It is not
measured: a session on the device itself replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from polytriton.arithmetic import ARITHMETICS, INTERVAL, Arithmetic
from polytriton.artifact import Artifact, write_artifact
from polytriton.errors import UsageError
from polytriton.ir.launches import Kernel
from polytriton.kernels.build import Built, compile_each
from polytriton.kernels.catalogue import make_kernel, tile_key
from polytriton.kernels.choose import GPU, retile
from polytriton.kernels.emitter import Emitter, Use
from polytriton.kernels.interval_launches import IntervalLowering
from polytriton.kernels.launches import Lowering
from polytriton.kernels.sass_loop import LANES, instructions
from polytriton.kernels.sequence import Frames
from polytriton.knobs import knobs
from polytriton.passes.pipeline import Compiled
from polytriton.runtime.config import TILE_KEYS, Config, Tile
from polytriton.tuned import Entry, Tuned, plan_key, versions
from polytriton.tuning.cpu_cost import Cost
from polytriton.tuning.device import SHEETS, Gpu
from polytriton.tuning.gpu_cost import INTERVAL_PRODUCTS, interval_pipes, kernel_cost
from polytriton.tuning.space import TILE, gpu_space
from polytriton.workers.processors import processors

COMPILED = 3  # sizes of a kernel that are compiled, besides the default's
ROWS = 1024  # at once, where predictions are compared
CHOSEN = ("dense_step", "conv_step", "relax_rows", "concretize_rows", *INTERVAL_PRODUCTS)  # functions whose tiles are looked for


@dataclass(frozen=True)
class Kind:
    """A kernel before its tiles are chosen."""

    key: str
    function: str
    constants: dict[str, Any]
    numerics: str


def kinds(compiled: Compiled, numerics: str) -> tuple[list[Kind], Emitter]:
    """The kernels of a network whose tiles may be chosen; the emitter knows their defaults."""
    emitter, frames = Emitter(), Frames(compiled.net, compiled.plan)
    lowering = IntervalLowering if ARITHMETICS[numerics].form == INTERVAL else Lowering
    for program in compiled.plan:
        lowering(emitter, frames, ARITHMETICS[numerics], program, GPU).run()
    found: dict[str, Kind] = {}
    for uses in emitter.uses.values():
        for use in uses:
            kind = kind_of(use, emitter)
            if kind is not None:
                found.setdefault(kind.key, kind)
    return list(found.values()), emitter


def kind_of(use: Use, emitter: Emitter) -> Kind | None:
    """What a kernel's constants are without its tiles."""
    if use.function not in CHOSEN:
        return None
    plain = {k: v for k, v in use.constants if k not in (*TILE_KEYS, "SPAN")}  # a GPU's convolutions all have the same SPAN
    key = tile_key(use.function, plain, use.numerics)
    return Kind(key, use.function, plain, use.numerics) if key in emitter.asked else None


def candidates(kind: Kind, emitter: Emitter, gpu: Gpu, target: str) -> Iterator[tuple[Tile, Kernel, dict[str, Any]]]:
    """The default and the sizes that promise most before anything is compiled, each with its kernel."""
    arithmetic: Arithmetic = ARITHMETICS[kind.numerics]
    default = emitter.asked[kind.key]
    inner = {name: c.inner for name, c in ARITHMETICS.items()}
    options = gpu_space({kind.key: default}, inner).choices.get(TILE + kind.key, ({},))
    ranked = []
    for k, option in enumerate(options):
        tile = Tile(**option)
        tiles = retile(default, tile, arithmetic)
        every = {**kind.constants, **tiles.constants}
        seconds = kernel_cost(kind.function, every, kind.numerics, ROWS, gpu, None, target).seconds
        ranked.append((0.0 if k == 0 else seconds, k, tile, tiles, every))
    ranked.sort(key=lambda r: r[:2])
    if kind.function in INTERVAL_PRODUCTS:  # what the code of a thread's share becomes is hard to foresee: one of every kind
        ranked = list({(r[1] == 0, r[4]["RM"], r[4]["RN"]): r for r in reversed(ranked)}.values())
    else:
        ranked = ranked[: COMPILED + 1]
    for _, _, tile, tiles, every in ranked:
        given = tuple(sorted(every.items()))
        yield tile, make_kernel(kind.function, given, kind.numerics, tiles.warps, tiles.stages), every


def code_cost(kind: Kind, constants: dict[str, Any], made: Built, rows: int, gpu: Gpu, target: str) -> Cost:
    """A compiled kernel's predicted time; an interval product's by the loop of its machine code, which threads share in many ways."""
    looped = kind.function in INTERVAL_PRODUCTS and target in LANES
    pipes = interval_pipes(instructions(made.cubin), constants, kind.numerics, target) if looped else {}
    return kernel_cost(kind.function, constants, kind.numerics, rows, gpu, made.report, target, pipes)


def tune_target(network: Path, held: Artifact, target: str, numerics: str, as_of: int = ROWS) -> dict[str, Any]:
    """Chooses by predicted time, writes the artifact, and says what was chosen and why."""
    if numerics not in ARITHMETICS:
        raise UsageError(f"--dtype {numerics}: kernels have no such coefficients", f"use one of: {', '.join(ARITHMETICS)}")
    gpu = SHEETS[target]
    found, emitter = kinds(held.compiled, numerics)
    tried = {kind.key: list(candidates(kind, emitter, gpu, target)) for kind in found}
    kernels = {k.name: k for options in tried.values() for _, k, _ in options}
    made = compile_each(list(kernels.values()), target, cache=knobs().cubins, jobs=processors())
    built = {m.kernel.name: m for m in made if isinstance(m, Built)}
    tiles: dict[str, Tile] = {}
    lines = []
    for kind in found:
        costs: list[tuple[Cost, Tile, str]] = []
        for tile, kernel, every in tried[kind.key]:
            if kernel.name in built:  # what Triton refuses is no candidate
                costs.append((code_cost(kind, every, built[kernel.name], as_of, gpu, target), tile, kernel.name))
        if not costs:
            continue
        best = min(costs, key=lambda c: c[0].seconds)
        default = next((c for c in costs if c[1] == Tile()), best)
        if best[1] != Tile() and best[0].seconds < 0.98 * default[0].seconds:
            tiles[kind.key] = best[1]
        else:
            best = default
        lines.append(
            {"kernel": kind.key, "name": best[2], "default": default[0].seconds, "predicted": best[0].seconds, "limit": best[0].limit, "rows": as_of}  # noqa: E501
        )
    before, after = (sum(float(str(line[k])) for line in lines) for k in ("default", "predicted"))
    entry = Entry(plan_key(held.compiled), target, versions("cuda"), {}, after, before, len(kernels), 0)
    tuned = held.tuned or Tuned(entries=())
    others = (Config.of(e.config).tiles for e in tuned.entries if e.place == entry.place)
    kept = {key: tile for old in others for key, tile in old.items() if f":{numerics}:" not in key}  # of other coefficients
    from polytriton.api import Verifier

    entry = structs.replace(entry, config=Config(tiles=kept | tiles).changes())
    write_artifact(Verifier.from_artifact(held), network, held.kernels, tuned.with_entry(entry))
    return {"artifact": str(network), "target": target, "source": gpu.source, "changed": len(tiles), "kernels": lines}
