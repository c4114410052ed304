"""`polytriton inspect`: layers, windows and costs of a compiled network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from polytriton.commands.options import argument, option
from polytriton.commands.screen import as_text, table
from polytriton.commands.targets import describe_kernels
from polytriton.errors import UsageError

if TYPE_CHECKING:
    from polytriton.api import Verifier
    from polytriton.ir.net import Net, Node
    from polytriton.ir.plan import Program
    from polytriton.kernels.files import Kernels


def inspect(
    network: Annotated[Path | None, argument(metavar="NET.poly|NET.onnx", help="What to look at.")] = None,
    operators: Annotated[bool, option("--operators", help="List the supported ONNX operators.")] = False,
    as_json: Annotated[bool, option("--json", help="The same as one JSON document.")] = False,
    ir: Annotated[bool, option("--ir", help="Print the folded network and the plan as text.")] = False,
    cost: Annotated[bool, option("--cost", help="Predicted and measured time of every kernel of a run, and which limit binds.")] = False,
    kernel: Annotated[
        str | None, option("--kernel", metavar="NAME", help="Print one kernel of the artifact: its family's source and its constants.")
    ] = None,
    launches: Annotated[bool, option("--launches", help="Print the artifact's launches: which kernel runs on what, in order.")] = False,
    remake: Annotated[bool, option("--remake", help="Make the artifact's kernels and launches again and compare every byte.")] = False,
    trust: Annotated[bool, option("--trust", help="The same, and run its machine code from now on: you trust who made it.")] = False,
) -> int:
    """Show a network's layers, for every program its windows, operations and bytes a row, and the artifact's kernels."""
    if operators:
        return _operators(as_json)
    if network is None:
        raise UsageError("which network?", "polytriton inspect NET.poly or NET.onnx; or --operators")
    if remake or trust:
        return _remake(network, trust)
    verifier, kernels = _open(network)
    if kernel is not None:
        print(_source(network, kernels, kernel), end="")
        return 0
    if launches:
        print(_require_kernels(network, kernels).launches_text(), end="")
        return 0
    if ir:
        from polytriton.ir.plan_text import print_plan
        from polytriton.ir.text import print_net

        print(print_net(verifier.net), print_plan(verifier.compiled.plan), sep="\n", end="")
        return 0
    if cost:
        _cost(verifier, kernels, as_json)
        return 0
    document = describe(verifier, kernels)
    if as_json:
        print(as_text(document))
    else:
        _show(document)
    return 0


def _open(path: Path) -> tuple[Verifier, Kernels | None]:
    import polytriton
    from polytriton.artifact import read_artifact

    if path.is_dir() or path.suffix == ".poly":
        artifact = read_artifact(path)
        return polytriton.Verifier.from_artifact(artifact), artifact.kernels
    if not path.exists():
        raise UsageError(f"there is no network {path}", "check the path; it is taken relative to the current folder")
    return polytriton.compile(path, check=False), None


def _require_kernels(path: Path, kernels: Kernels | None) -> Kernels:
    if kernels is None:
        model = path if path.suffix == ".onnx" else "NET.onnx"
        raise UsageError(f"{path} holds no kernels", f"compile it for a target that has some: polytriton compile {model} --target cuda:90")
    return kernels


def _remake(path: Path, trust: bool) -> int:
    """Says that the kernels are this version's own, and whose the machine code is from now on."""
    from polytriton.artifact import read_artifact
    from polytriton.known import compare_kernels, remember

    artifact = read_artifact(path)
    kernels = _require_kernels(path, artifact.kernels)
    compare_kernels(artifact)
    print(f"{path}: {len(kernels.steps)} kernels and their launches, made again and the same in every byte")
    if trust:
        if not remember(artifact.manifest, trusted=True):
            raise UsageError("there is no cache to remember it in", "set POLYTRITON_CACHE to a folder that is yours alone")
        print(f"{path}: machine code for {', '.join(kernels.gpus) or 'no GPU'}, run as it is from now on")
    return 0


def _source(path: Path, kernels: Kernels | None, name: str) -> str:
    """A kernel to read; the beginning of its name will do where no other begins so."""
    kernels = _require_kernels(path, kernels)
    found = [k for k in kernels.steps if k == name] or [k for k in kernels.steps if k.startswith(name)]
    if len(found) != 1:
        problem = f"{len(found)} kernels in {path} begin with {name!r}" if found else f"there is no kernel {name!r} in {path}"
        some = ", ".join((found or list(kernels.steps))[:6])
        raise UsageError(problem, f"name one of: {some}{', ...' if len(found or kernels.steps) > 6 else ''}")
    return kernels.kernel_text(found[0])


def _operators(as_json: bool) -> int:
    from polytriton.frontend.onnx import operators

    if as_json:
        print(as_text([{"operator": n, "limits": d} for n, d in operators()]))
    else:
        table(("operator", "what is supported"), operators())
    return 0


def describe(verifier: Verifier, kernels: Kernels | None = None) -> dict[str, Any]:
    """Everything `inspect` shows, as plain data."""
    net, plan, source = verifier.net, verifier.compiled.plan, verifier.source
    return {
        "name": net.name,
        "sha256": source.sha256 if source else "",
        "input": {"name": source.input_name, "shape": source.input_shape, "dtype": source.input_dtype}
        if source
        else {"shape": net.input.shape},
        "output": {"name": source.output_name, "shape": source.output_shape} if source else {"shape": net.node(net.output).shape},
        "opset": source.opset if source else None,
        "parameters": sum(map(net.parameters, net)),
        "candidates": plan.candidates,
        "layers": [
            {"name": n.name, "op": n.op, "reads": n.inputs, "shape": n.shape, "parameters": net.parameters(n), "detail": _detail(n)}
            for n in net
        ],
        "programs": [_program(net, p) for p in plan],
        **describe_kernels(kernels),
    }


def _detail(node: Node) -> str:
    parts = []
    for key, mark in (("k", "x"), ("s", "x"), ("p", ","), ("d", "x")):
        values = node.ints(key)
        if values and not (key in ("s", "d") and set(values) == {1}) and any(values):
            parts.append(f"{key}={mark.join(map(str, values))}")
    if node.integer("g", 1) > 1:
        parts.append(f"g={node.integer('g')}")
    if node.op == "relu" and node.number("slope"):
        parts.append(f"slope={node.number('slope'):g}")
    return " ".join(parts)


def _program(net: Net, program: Program) -> dict[str, Any]:
    """Rows are an upper bound: neurons that the interval pass settles need none. Bytes are those of float64 coefficients."""
    from polytriton.ir.plan_text import print_window

    steps = [
        {
            "op": s.op,
            "node": s.node,
            "windows": [f"{to} {print_window(w)}" for to, w in zip(s.to, s.windows, strict=True)],
            "ops": s.ops,
            "bytes": s.bytes,
        }
        for s in program.steps
    ]
    moving = [w for s in program.steps for w in s.windows if not w.whole]
    widest = max(moving, key=lambda w: w.cells, default=None)
    return {
        "kind": program.kind,
        "target": program.target,
        "rows": None if program.kind == "query" else 2 * net.node(program.target).size,
        "widest_window": f"{widest.h.size}x{widest.w.size}" if widest else "dense",
        "dense_from": next((s.node for s in program.steps if s.op in ("dense", "linear")), None),
        "ops_per_row": program.row_ops,
        "bytes_per_row": program.row_bytes,
        "steps": steps,
    }


def _show(d: dict[str, Any]) -> None:
    def shape(values: tuple[int, ...]) -> str:
        return "x".join(map(str, values))

    ends = f"{shape(d['input']['shape'])} -> {shape(d['output']['shape'])}"
    print(f"{d['name']}: {ends}, {d['parameters']:,} parameters, candidates={d['candidates']}")
    if d["opset"] is not None:
        names = f"input {d['input']['name']!r} {d['input']['dtype']}, output {d['output']['name']!r}"
        print(f"onnx sha256 {d['sha256']}, opset {d['opset']}, {names}")
    print()
    layers = [
        (x["name"], x["op"], ", ".join(x["reads"]), shape(x["shape"]), f"{x['parameters']:,}" if x["parameters"] else "", x["detail"])
        for x in d["layers"]
    ]
    table(("layer", "op", "reads", "shape", "parameters", ""), layers, right=(4,))
    print()
    programs = [
        (
            f"{p['kind']} {p['target']}",
            len(p["steps"]),
            p["rows"] or "",
            p["widest_window"],
            p["dense_from"] or "-",
            f"{p['ops_per_row']:,}",
            f"{p['bytes_per_row']:,}",
        )
        for p in d["programs"]
    ]
    table(("program", "steps", "rows<=", "window", "dense from", "ops a row", "bytes a row"), programs, right=(1, 2, 5, 6))
    if d["kernels"]:
        print()
        _show_kernels(d)


def _cost(verifier: Verifier, kernels: Kernels | None, as_json: bool) -> None:
    from polytriton.tuning.costs import artifact_costs, measure_costs

    here = measure_costs(verifier)
    gpus = artifact_costs(verifier, kernels) if kernels is not None else []
    if as_json:
        print(as_text({"cpu": here, "gpus": gpus}))
        return
    print(f"one random ball, {here['seconds']:.4g} s, {100 * here['roofline']:.0f} % of the roofline; rates: {here['source']}")
    rows = [
        (
            k["kernel"],
            k["form"] or "-",
            f"{k['rows']:,}",
            k["calls"],
            "-" if k["predicted"] is None else f"{1000 * k['predicted']:.2f}",
            f"{1000 * k['measured']:.2f}",
            k["limit"] or "-",
        )
        for k in here["kernels"]
    ]
    rows.append(("everything else", "-", "", "", "-", f"{1000 * here['others']:.2f}", "-"))
    table(("kernel", "form", "rows", "calls", "predicted ms", "measured ms", "limit"), rows, right=(2, 3, 4, 5))
    if gpus:
        print("\nGPUs, predicted from machine code and data sheets")
        lines = [(g["kernel"], g["target"], f"{g['rows']:,}", f"{1e6 * g['predicted']:.2f}", g["limit"]) for g in gpus]
        table(("kernel", "target", "rows", "predicted us", "limit"), lines, right=(2, 3))


def _show_kernels(d: dict[str, Any]) -> None:
    """A line a kernel: its registers and spills on every GPU it was compiled for, and its steps."""
    reports = {(r["target"], r["name"]): r for r in d["reports"]}
    gpus = list(dict.fromkeys(target for target, _ in reports))
    rows = []
    for k in d["kernels"]:
        cells: list[Any] = [k["name"]]
        for target in gpus:
            r = reports.get((target, k["name"]))
            cells += ["", ""] if r is None else [r["registers"], r["spill_loads"] + r["spill_stores"]]
        more = f" and {len(k['steps']) - 1} more" if len(k["steps"]) > 1 else ""
        rows.append((*cells, k["steps"][0] + more))
    print(f"kernels for {', '.join(d['targets'])} in {', '.join(d['numerics'])}")
    columns = [f"{what} {target}" for target in gpus for what in ("registers", "spills")]
    table(("kernel", *columns, "steps"), rows, right=range(1, 1 + len(columns)))
