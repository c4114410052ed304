"""`polytriton opt`: runs passes on IR text, for those who work on the compiler."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from polytriton.commands.options import argument, option
from polytriton.errors import InvalidIR, ResourceError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from polytriton.ir.net import Net, Node, Shape
    from polytriton.ir.plan import Plan

WEIGHTS = "weights.safetensors"
MAX_INVENTED = 1 << 24  # numbers made up for one network


def opt(
    file: Annotated[Path, argument(metavar="FILE.ptir", help="A network as text.")],
    passes: Annotated[str, option("-p", "--passes", metavar="PASS,...", help="fold, layout, then lower, schedule, charge, memory.")] = "",
    weights: Annotated[
        Path | None, option("--weights", metavar="FILE", help="A .safetensors file; by default the one beside FILE, else made-up numbers.")
    ] = None,
    candidates: Annotated[str, option("--candidates", help="For schedule: all or input.")] = "all",
) -> int:
    """Run passes on a network's text and print the result: a network, or from `lower` on a plan."""
    from polytriton.ir.check import check_net
    from polytriton.ir.plan_text import print_plan
    from polytriton.ir.text import parse_net, print_net

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {file}: {getattr(error, 'strerror', None) or 'it is no text'}", "give a .ptir file of --dump-ir"
        ) from error
    net = parse_net(text, {})
    net = type(net)(net.name, net.nodes, net.output, _weights(net, file, weights))
    check_net(net)
    net, plan = run_passes(net, [p for p in (p.strip() for p in passes.split(",")) if p], candidates)
    print(print_net(net) if plan is None else print_plan(plan), end="")
    return 0


def run_passes(net: Net, names: list[str], candidates: str) -> tuple[Net, Plan | None]:
    """The network and, from `lower` on, the plan. A pass that does not apply yet is the caller's mistake."""
    from polytriton.passes import lower, schedule
    from polytriton.passes.pipeline import NET_PASSES, PLAN_PASSES, run_net_pass, run_plan_pass

    plan: Plan | None = None
    done: list[str] = []
    for name in names:
        if name in NET_PASSES:
            if plan is not None:
                raise UsageError(f"pass {name} works on a network, and {done[-1]} left a plan", "put it before lower")
            _refuse(name, NET_PASSES[name].requires(net))
            net = run_net_pass(name, net, done)
        elif name == "lower":
            _refuse(name, lower.requires(net))
            plan = run_plan_pass(name, net, None, done)
        elif name not in PLAN_PASSES:
            raise UsageError(f"there is no pass {name!r}", f"passes: {', '.join([*NET_PASSES, *PLAN_PASSES])}")
        elif plan is None:
            raise UsageError(f"pass {name} works on a plan", f"put lower before it: -p fold,layout,fold,lower,{name}")
        else:
            if name == "schedule" and candidates not in schedule.CHOICES:
                raise UsageError(f"candidates={candidates!r} is unknown", f"use one of: {', '.join(schedule.CHOICES)}")
            plan = run_plan_pass(name, net, plan, done, candidates)
        done.append(name)
    return net, plan


def _refuse(name: str, problem: str | None) -> None:
    if problem:
        raise UsageError(
            f"pass {name} cannot run: {problem}", "run the earlier passes first: -p fold,layout,fold,lower,schedule,charge,memory"
        )


# ---- weights ----------------------------------------------------------------------------------------------------


def _weights(net: Net, file: Path, given: Path | None) -> dict[str, np.ndarray]:
    """The file asked for, the one beside the text, or numbers made up from a fixed seed."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    beside = [p for p in (file.with_suffix(".safetensors"), file.parent / WEIGHTS) if p.is_file()]
    path = given or next(iter(beside), None)
    if path is not None:
        try:
            held = load(path.read_bytes())
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}", "check the path") from error
        except (SafetensorError, ValueError) as error:
            raise UsageError(f"{path} is no safetensors file: {error}", "take the weights.safetensors of an artifact") from error
        if given is not None or _names(net) <= held.keys():
            return {k: v for k, v in held.items() if k in _names(net)}
    made = invent(net)
    if made:
        print("polytriton: no weights given: they are random numbers from a fixed seed", file=sys.stderr)
    return made


def _names(net: Net) -> set[str]:
    from polytriton.ir.net import Ref

    return {v.name for n in net for v in n.attrs.values() if isinstance(v, Ref)}


def invent(net: Net) -> dict[str, np.ndarray]:
    """Seeded weights whose shapes follow from the operators' shapes. Magnitudes (`wabs`, `babs`) enclose what they belong to."""
    import numpy as np

    from polytriton.ir.net import Ref

    rng, made = np.random.default_rng(0), dict[str, np.ndarray]()
    nodes = net.by_name
    for n in net:
        source = nodes[n.inputs[0]].shape if n.inputs and n.inputs[0] in nodes else n.shape
        for key in sorted(n.attrs, key=lambda k: k.endswith("abs")):
            ref = n.attrs[key]
            if isinstance(ref, Ref) and ref.name not in made:
                made[ref.name] = _invent(n, key, source, made, rng)
    return made


def _check_invented(n: Node, shape: Shape, made: dict[str, np.ndarray]) -> None:
    """A short text must not ask for gigabytes of random numbers."""
    if min(shape, default=1) < 1 or len(shape) > 16:
        raise InvalidIR(f"%{n.name} = {n.op}: no weight has the shape {list(shape)[:16]}", "correct the node's attributes")
    count = math.prod(shape) + sum(a.size for a in made.values())
    if count > MAX_INVENTED:
        raise ResourceError(f"%{n.name} = {n.op}: {count} weights would be made up (limit {MAX_INVENTED})", "give --weights FILE")


def _invent(n: Node, key: str, source: Shape, made: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    import numpy as np

    from polytriton.ir.net import Ref

    if key in ("index", "take"):
        cells = math.prod(source if key == "index" else n.ints("of") or n.shape)
        _check_invented(n, (n.size,), made)
        return np.arange(n.size, dtype=np.int64) % min(max(1, cells), MAX_INVENTED)
    if key.endswith("abs"):
        base = n.attrs.get({"wabs": "w", "babs": "c" if n.op == "scale" else "b"}[key])
        if isinstance(base, Ref):
            return np.abs(made[base.name])
        _check_invented(n, n.shape, made)
        return np.zeros(n.shape)
    if n.op == "linear":
        shape: Shape = (n.size, math.prod(source)) if key == "w" else (n.size,)
    elif n.op == "conv":
        if not n.shape or not source:
            raise InvalidIR(f"%{n.name} = conv: needs [channels, height, width]", "correct the shapes")
        shape = (n.shape[0], max(1, source[0] // max(1, n.integer("g", 1))), *n.ints("k")) if key == "w" else (n.shape[0],)
    else:
        shape = (n.shape[0], 1, 1) if len(n.shape) == 3 else n.shape
    _check_invented(n, shape, made)
    fan = max(1, math.prod(shape[1:]))
    return (rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)
