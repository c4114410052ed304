"""The Net against onnxruntime, number by number: the independent witness that nothing was mistranslated.

Every ONNX node is judged alone, on the operands that onnxruntime gave it: the IR nodes that the importer made for it are
evaluated on these, and each number must lie within that node's own rounding of onnxruntime's. A large number beside it
hides nothing, and what rounding did before the node is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from polytriton.errors import UnsupportedModel, UsageError, runtime_refusal
from polytriton.frontend.onnx_enclosure import ARITHMETIC, Numbers, enclose
from polytriton.ir.curves import CURVES
from polytriton.ir.net import Net, Node, Shape
from polytriton.limit import go_on

if TYPE_CHECKING:
    from polytriton.frontend.onnx import Source

INPUTS = 24  # at most
WORK = 1 << 25  # multiplications, about, that more inputs than asked for may cost
ROWS = 1 << 18  # cells of a tensor over all inputs that are evaluated together
SPREAD = 0.6180339887498949  # multiples of the golden section lie evenly, however many there are
REPORT = "please report it with the model; until then, `polytriton inspect --operators` lists alternatives"


@dataclass(frozen=True)
class Held:
    """An ONNX tensor whose cells IR node `node` holds."""

    tensor: str
    node: str
    shape: Shape
    dtype: str


@dataclass(frozen=True)
class OnnxStep:
    """One ONNX node: the activations it reads and writes, and the IR nodes that were made for it."""

    label: str
    operands: tuple[Held, ...]
    nodes: tuple[str, ...]
    outputs: tuple[Held, ...]


def compare(
    net: Net,
    model: bytes,
    source: Source,
    steps: Sequence[OnnxStep],
    samples: int,
    seed: int,
    box: tuple[np.ndarray, np.ndarray] | None,
) -> float:
    """The largest share of its allowed difference that any number takes; `steps` are the ONNX nodes in order."""
    given = Held(source.input_name, net.input.name, source.input_shape, source.input_dtype)
    last = next((h for s in reversed(steps) for h in s.outputs if h.tensor == source.output_name), given)
    steps = [
        *steps,
        OnnxStep(f"output {source.output_name!r}", (last,), _flat(net, last), (Held(last.tensor, net.output, last.shape, last.dtype),)),
    ]
    most = max(samples, min(INPUTS, WORK // max(1, _work(net))))
    partial = sorted({n.op for n in net if n.op in CURVES and CURVES[n.op].domain[0] > -np.inf})  # functions that not every number has
    x, ordinary = _inputs(source, most, seed, box, above=bool(partial))
    wanted = list(dict.fromkeys([source.output_name, *(h.tensor for s in steps for h in (*s.operands, *s.outputs))]))
    wanted = [t for t in wanted if t != source.input_name] or wanted
    answer = _runner(model, source, wanted)
    together = max(1, ROWS // max(n.size for n in net))
    nodes, worst, defined = net.by_name, 0.0, 0
    for at in range(0, len(x), together):
        rows = x[at : at + together]
        theirs = {source.input_name: rows, **_stack(wanted, [answer(row) for row in rows])}
        go_on()
        usual = theirs[source.output_name][: max(0, ordinary - at)]
        known = np.isfinite(usual).all(tuple(range(1, usual.ndim)))  # of no input too
        defined += int(known.sum())
        if not partial and not known.all():
            raise UnsupportedModel(
                "onnxruntime's result is not finite", "the network overflows its own type on these inputs: no bound covers that"
            )
        for step, spent in zip(steps, _list_spent(steps), strict=True):
            go_on()
            worst = max(worst, _judge(step, net, nodes, theirs))
            for tensor in spent:
                theirs.pop(tensor, None)
    if partial and not defined:
        raise UnsupportedModel(
            f"onnxruntime's result is a number at none of the {ordinary} ordinary inputs tried: it takes {', '.join(partial)} of what is "
            "not above 0 there",
            "leave the comparison out (polytriton compile --no-check, in Python check=False), and ask about boxes where it is defined",
        )
    return worst


def _flat(net: Net, last: Held) -> tuple[str, ...]:
    """The reshape that ends the Net, where its last node's cells are no vector."""
    made = net.node(net.output)
    return (made.name,) if made.op == "reshape" and made.inputs == (last.node,) and made.name != last.node else ()


def _work(net: Net) -> int:
    """Multiplications of one input, and what it costs to pass over every cell a few times."""
    found = sum(64 * n.size for n in net)
    for n in net:
        w = net.weight(n, "w") if n.op in ("linear", "conv") else None
        found += 0 if w is None else n.size * (w.size // len(w))
    return found


def _list_spent(steps: Sequence[OnnxStep]) -> Iterator[list[str]]:
    """The tensors no later step reads."""
    last = {h.tensor: i for i, s in enumerate(steps) for h in (*s.operands, *s.outputs)}
    for i in range(len(steps)):
        yield [t for t, at in last.items() if at == i]


# ---- one node ---------------------------------------------------------------------------------------------


def _judge(step: OnnxStep, net: Net, nodes: dict[str, Node], theirs: dict[str, np.ndarray]) -> float:
    """The largest share of the allowed difference in this step's outputs; raises where it is exceeded."""
    kinds = [ARITHMETIC[h.dtype] for h in (*step.operands, *step.outputs)]
    arithmetic = max(kinds, key=lambda k: k.unit)
    known: dict[str, Numbers] = {}
    for h in step.operands:
        tensor, node = theirs[h.tensor], nodes.get(h.node)
        if tensor.shape[1:] != h.shape or node is None:
            raise _misshapen(step, h, tensor.shape[1:])
        theirs[h.tensor] = tensor = tensor.astype(np.float64, copy=False)
        known[h.node] = Numbers(tensor).reshape(node.shape)
    with np.errstate(all="ignore"):  # a number that overflows is one without a statement
        for name in step.nodes:
            if name not in nodes:
                raise UnsupportedModel(f"{step.label}: its translation lacks %{name}", REPORT)
            node = nodes[name]
            known[name] = enclose(node, net, [_find(i, known, nodes, step) for i in node.inputs], arithmetic)
        worst = 0.0
        for h in step.outputs:
            tensor, ours = theirs[h.tensor], _find(h.node, known, nodes, step)
            if tensor.shape[1:] != h.shape or ours.value.size != tensor.size:
                raise _misshapen(step, h, tensor.shape[1:])
            ours = ours.reshape(h.shape)
            worst = max(worst, _share(f"{step.label}, IR node %{h.node}", ours.value, tensor, ours.allowance(arithmetic)))
    return worst


def _find(name: str, known: dict[str, Numbers], nodes: dict[str, Node], step: OnnxStep) -> Numbers:
    node = nodes.get(name)
    if name not in known and node is not None and node.op == "reshape":  # made for an earlier reader of the same tensor
        known[name] = _find(node.inputs[0], known, nodes, step).reshape(node.shape)
    if name not in known:
        raise UnsupportedModel(f"{step.label}: its translation reads %{name}, which holds none of its operands", REPORT)
    return known[name]


def _share(where: str, ours: np.ndarray, theirs: np.ndarray, allowed: np.ndarray) -> float:
    gap = np.abs(ours - theirs)
    bad = ~((gap <= allowed) | (allowed == np.inf))
    if not bad.any():
        return float(np.divide(gap, allowed, out=np.zeros_like(gap), where=(allowed > 0) & (allowed < np.inf)).max(initial=0.0))
    excess = np.where(bad, np.nan_to_num(gap / np.maximum(allowed, np.finfo(np.float64).tiny), nan=np.inf), -1.0)
    at = tuple(int(i) for i in np.unravel_index(int(excess.argmax()), excess.shape))
    raise UnsupportedModel(
        f"{where}: the translation differs from onnxruntime at {list(at[1:])}: {ours[at]:.9g} instead of {theirs[at]:.9g}, "
        f"where rounding explains {allowed[at]:.3g}",
        REPORT,
    )


def _misshapen(step: OnnxStep, held: Held, found: Shape) -> UnsupportedModel:
    return UnsupportedModel(
        f"{step.label}: tensor {held.tensor!r} has shape {list(held.shape)} in the translation and {list(found)} in onnxruntime", REPORT
    )


# ---- inputs and answers -----------------------------------------------------------------------------------


def _inputs(
    source: Source, most: int, seed: int, box: tuple[np.ndarray, np.ndarray] | None, *, above: bool = False
) -> tuple[np.ndarray, int]:
    """Inputs in the model's own type, the telling ones first; on so many of them a result that is not finite is an error.

    `above`: the network may be defined for numbers above 0 alone: ordinary ones are such then, but for one; one result has to be finite.
    """
    rng = np.random.default_rng(seed)
    size = int(np.prod(source.input_shape))
    reach = 8 if source.input_dtype == "float16" else 20
    if box is not None:
        lo, hi = (np.asarray(b, dtype=np.float64).reshape(-1) for b in box)
        if lo.size != size or hi.size != size:
            raise UsageError(
                f"the box has {lo.size} and {hi.size} numbers, the input {size}", "give one lower and one upper bound an input"
            )
        usual = [lo + (hi - lo) * rng.random(size), np.where(rng.random(size) < 0.5, lo, hi), lo, hi]
    elif above:
        usual = [0.5 + rng.random(size), np.abs(rng.standard_normal(size)) + 2.0**-6, rng.random(size), rng.standard_normal(size)]
    else:
        usual = [rng.standard_normal(size), rng.random(size)]
    signs = rng.choice([-1.0, 1.0], (3, size))
    hot = list(range(size)) if size <= 8 else [0, size - 1, *(int(SPREAD * k * size) % size for k in range(1, 9))]
    unit = [np.where(np.arange(size) == i, 1.0, 0.0) for i in dict.fromkeys(hot)]
    rows = [
        *usual,
        signs[0] * 2.0 ** rng.integers(-reach, reach + 1, size),  # large beside small
        unit[-1],
        np.zeros(size),
        np.ones(size),
        -np.ones(size),
        signs[1] * 2.0**reach,
        signs[2] * 2.0**-reach,
        *unit[:-1],
        *(rng.standard_normal(size) for _ in range(INPUTS)),
    ]
    return np.stack(rows[:most]).astype(source.input_dtype).reshape(-1, *source.input_shape), min(most, len(usual))


def _runner(model: bytes, source: Source, wanted: Sequence[str]) -> Callable[[np.ndarray], list[np.ndarray]]:
    """What computes these tensors of one input, each node apart: onnxruntime without its optimisations."""
    try:
        import onnxruntime as ort
    except ImportError as e:
        raise UsageError("the cross-check needs onnxruntime", "pip install onnxruntime") from e
    more = onnx.ModelProto()
    more.graph.output.extend(onnx.ValueInfoProto(name=n) for n in wanted if n != source.output_name)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4  # more threads would spin beside the rest

    go_on()
    try:
        # serialised messages one after another read as one: outputs are added without a copy of the weights' message
        session = ort.InferenceSession(model + more.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as e:
        raise runtime_refusal(e) from e

    def answer(x: np.ndarray) -> list[np.ndarray]:
        go_on()
        try:
            found: list[Any] = session.run(list(wanted), {source.input_name: x})
        except Exception as e:
            raise runtime_refusal(e) from e
        return [np.asarray(t) for t in found]

    return answer


def _stack(names: Sequence[str], rows: list[list[np.ndarray]]) -> dict[str, np.ndarray]:
    """[batch, *shape] of each tensor; the rows are emptied on the way, so that nothing is held twice for long."""
    found = {}
    for name in reversed(names):
        each = [row.pop() for row in rows]
        if len({t.shape for t in each}) > 1:
            raise UnsupportedModel(f"onnxruntime's tensor {name!r} changes its shape with the input", "export the model with fixed shapes")
        found[name] = each[0][None] if len(each) == 1 else np.stack(each)
    return found
