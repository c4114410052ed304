"""Every kernel that a network's run launches; what a compiler, or whoever compiles ahead of a run, asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polytriton.arithmetic import ARITHMETICS, INTERVAL
from polytriton.errors import UnsupportedModel
from polytriton.ir.curves import CURVES
from polytriton.ir.launch_check import check_launches
from polytriton.ir.launches import Kernel
from polytriton.ir.net import Net
from polytriton.kernels.choose import GPU, Sizes
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.interval_launches import IntervalLowering
from polytriton.kernels.lanes import add_lanes
from polytriton.kernels.launches import Frames, Lowering
from polytriton.kernels.script import DEPLOYMENTS, ScriptLowering
from polytriton.kernels.stock import program_key, script_key

if TYPE_CHECKING:
    from polytriton.passes.pipeline import Compiled


def check_kernels(net: Net) -> None:
    """UnsupportedModel where an operator has no kernel, folded or interval."""
    for node in net:
        if node.op in (*CURVES, "mul"):
            raise UnsupportedModel(
                f"%{node.name}: there is no generated kernel for {node.op}", "run it on the CPU: leave --target out, or use --device cpu"
            )


def network_kernels(compiled: Compiled, numerics: Sequence[str], sizes: Sizes = GPU, emitter: Emitter | None = None) -> list[Kernel]:
    """Every kernel that a network's run launches, in its programs and between them, as the emitter heard of them."""
    check_kernels(compiled.net)
    emitter, frames = emitter or Emitter(), Frames(compiled.net, compiled.plan)
    launched = set[str]()
    for name in numerics:
        programs = []
        for program in compiled.plan:
            if ARITHMETICS[name].form == INTERVAL:
                launches = IntervalLowering(emitter, frames, ARITHMETICS[name], program, sizes).run()
            else:
                launches = add_lanes(Lowering(emitter, frames, ARITHMETICS[name], program, sizes).run(), emitter, ARITHMETICS[name])
            check_launches(launches)
            programs.append(launches)
            emitter.programs[program_key(name, sizes.emulate, program)] = launches
            launched |= {step.kernel.name for step in launches.steps}
        for kind, how in DEPLOYMENTS.items():
            script = ScriptLowering(emitter, frames, ARITHMETICS[name], how, sizes.emulate).run(programs)
            emitter.scripts[script_key(name, sizes.emulate, kind)] = script
            launched |= {e.launch.kernel.name for entries in script.sections.values() for e in entries if e.launch is not None}
    return [kernel for name, kernel in emitter.kernels.items() if name in launched]
