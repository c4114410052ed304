"""An ONNX file becomes a Net: read it, keep what the chosen output needs, translate node by node.

A model is foreign input. Whatever is wrong with it ends in one PolytritonError that names the node, never in a
wrong Net; and no file makes the importer allocate much more than its own size.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from polytriton.errors import PolytritonError, ResourceError, UnsupportedModel, UsageError
from polytriton.frontend.model_files import DAMAGED, MAX_MODEL, foreign, model_bytes
from polytriton.frontend.nnet import is_nnet, read_nnet
from polytriton.frontend.onnx_compare import Held, OnnxStep, compare
from polytriton.frontend.onnx_constants import tensor
from polytriton.frontend.onnx_ops import operators, rounds_to_half, translate
from polytriton.frontend.onnx_values import FREE_BYTES, REMEDY, Act, Shape, Site, State, cells, core, widen
from polytriton.ir.check import MAX_CELLS, check_net
from polytriton.ir.net import Attr, Builder, Net
from polytriton.limit import go_on, sha256

__all__ = ["Imported", "Source", "cross_check", "load_onnx", "model_bytes", "operators"]

OLDEST_OPSET, NEWEST_OPSET = 7, 26
INPUT_TYPES = {int(TensorProto.FLOAT): "float32", int(TensorProto.DOUBLE): "float64", int(TensorProto.FLOAT16): "float16"}


@dataclass(frozen=True)
class Source:
    """What a runtime must know about the original model.

    Shapes are as onnxruntime wants them: a batch axis (symbolic, 0 or 1 in the file) is the leading 1 of `input_shape`.
    `sha256` is of the file, or, where the file keeps weights in others, of the model with them inlined.
    """

    sha256: str
    input_name: str
    input_shape: tuple[int, ...]
    input_dtype: str
    output_name: str
    output_shape: tuple[int, ...]
    opset: int
    has_batch: bool
    outputs: tuple[str, ...] = ()  # of the file; one of them was chosen


@dataclass(frozen=True)
class Imported:
    """`model` is the serialised ModelProto of the chosen output alone, with all weights inline; `steps` say which IR nodes
    each of its nodes became (an artifact does not keep them)."""

    net: Net
    source: Source
    model: bytes
    steps: tuple[OnnxStep, ...] = field(default=(), compare=False, repr=False)


def load_onnx(model: str | os.PathLike[str] | bytes | onnx.ModelProto, *, output: str | None = None, name: str | None = None) -> Imported:
    """Reads a model for one of its outputs, by default the first."""
    return _load(model, output, name)


def cross_check(imported: Imported, *, samples: int = 4, seed: int = 0, box: tuple[np.ndarray, np.ndarray] | None = None) -> float:
    """Runs every ONNX node's translation on onnxruntime's own operands and compares each number within that node's rounding.

    At least `samples` inputs (more where the network is small): random ones (from `box`, where given), large beside small, single
    ones, constant ones. Returns the largest share of its allowed difference that a number takes, at most 1; raises UnsupportedModel
    naming the first node that differs.
    """
    steps = imported.steps or _load(imported.model, imported.source.output_name, imported.net.name).steps
    try:
        return compare(imported.net, imported.model, imported.source, steps, samples, seed, box)
    except MemoryError as e:
        raise ResourceError("the comparison with onnxruntime does not fit into memory", "make the model smaller, or leave it out") from e


def _load(model: Any, output: str | None, name: str | None) -> Imported:
    try:
        proto, data, folder = _read(model)
        stem = name or (Path(str(model).removesuffix(".gz")).stem if isinstance(model, (str, os.PathLike)) else proto.graph.name)
        return _translate(proto, data, folder, output, re.sub(r"\W", "_", str(stem), flags=re.ASCII).strip("_") or "net")
    except PolytritonError:
        raise
    except MemoryError as e:
        raise ResourceError("the model does not fit into memory", "make the model smaller") from e
    except Exception as e:  # the protobuf may hold anything anywhere
        raise UnsupportedModel(f"the model is malformed: {type(e).__name__}: {str(e)[:200]}", DAMAGED) from e


# ---- reading ----------------------------------------------------------------------------------------------


def _read(model: Any) -> tuple[onnx.ModelProto, bytes | None, Path | None]:
    """The parsed model, its bytes (None for a ModelProto) and the folder of its external data."""
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy, None, None
    folder = None
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if is_nnet(path):
            return read_nnet(path), None, None
        data, folder = model_bytes(path), path.resolve().parent
    elif isinstance(model, (bytes, bytearray, memoryview)):
        data, path = bytes(model), Path("the given bytes")
    else:
        if isinstance(model, dict):
            raise UsageError("these are weights without a network (a state_dict)", "give the module itself: compile(module, example)")
        raise UsageError(f"a model cannot be read from {type(model).__name__}", "give a path, bytes or an onnx.ModelProto")
    proto = onnx.ModelProto()
    go_on()
    try:
        proto.ParseFromString(data)
        fits = proto.HasField("graph") and bool(proto.graph.output) and bool(proto.opset_import)
    except Exception as e:
        raise UsageError(*foreign(path, data, str(e))) from e
    if not fits:
        raise UsageError(f"{path} is not an ONNX model: it has no graph, no output or no opset", DAMAGED)
    return proto, data, folder


def _inline(tensors: Iterable[onnx.TensorProto], folder: Path | None) -> bool:
    """Brings external data into the tensors. The files named must lie in the model's own folder: a model must not read others."""
    total, found = 0, False
    for t in tensors:
        if t.data_location != TensorProto.EXTERNAL:
            continue
        go_on()
        found = True
        keys = {e.key: e.value for e in t.external_data}
        where = keys.get("location", "")
        if folder is None:
            raise UsageError(
                f"tensor {t.name!r} keeps its data in {where!r}, but the model was not given as a path", "give the model's path"
            )
        path = (folder / where).resolve()
        if not where or os.path.isabs(where) or not path.is_relative_to(folder):
            raise UsageError(f"tensor {t.name!r} keeps its data in {where!r}, outside the model's folder", "move the data beside the model")
        if not path.is_file():
            raise UsageError(f"tensor {t.name!r}: the model's data file {where!r} is missing", f"put it into {folder}, beside the model")
        size = path.stat().st_size
        offset = int(keys.get("offset", 0))
        length = int(keys.get("length", max(0, size - offset)))
        total += length
        if total > MAX_MODEL:
            raise ResourceError("the model's external data exceed 2 GiB", "make the model smaller")
        if offset < 0 or length < 0 or offset + length > size:
            raise UsageError(
                f"tensor {t.name!r}: {where!r} does not hold bytes {offset}..{offset + length}", "restore the data file beside the model"
            )
        with path.open("rb") as f:
            f.seek(offset)
            t.raw_data = f.read(length)
        t.ClearField("external_data")
        t.data_location = TensorProto.DEFAULT
    return found


# ---- the graph --------------------------------------------------------------------------------------------


def _opset(proto: onnx.ModelProto) -> int:
    """A model may name the default domain twice: tools that cut models write that."""
    found = sorted({o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")})
    if len(found) > 1:
        raise UnsupportedModel(f"the model says that it uses opsets {found[0]} and {found[-1]}", "export it again: it has one opset")
    if not found or not OLDEST_OPSET <= found[0] <= NEWEST_OPSET:
        raise UnsupportedModel(
            f"the model uses opset {found[0] if found else 'none'}; {OLDEST_OPSET} to {NEWEST_OPSET} are supported",
            "export it for one of these, or use onnx.version_converter",
        )
    return found[0]


def _find_needed(graph: onnx.GraphProto, output: str) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes the output needs, in topological order, and every tensor they and the output read."""
    producer: dict[str, int] = {}
    for i, n in enumerate(graph.node):
        for o in n.output:
            if o and o in producer:
                raise UnsupportedModel(f"tensor {o!r} is computed by two nodes", DAMAGED)
            producer[o] = i
    order: list[onnx.NodeProto] = []
    state: dict[int, bool] = {}  # False: being visited, True: placed
    read, stack = {output}, [producer[output]] if output in producer else []
    while stack:
        i = stack[-1]
        node = graph.node[i]
        if i not in state:
            state[i] = False
            read.update(t for t in node.input if t)
            before = [producer[t] for t in node.input if t and t in producer]
            if any(state.get(j) is False for j in before):
                raise UnsupportedModel(f"node {node.name or node.output[0]!r} ({node.op_type}) depends on itself", DAMAGED)
            stack += [j for j in reversed(before) if j not in state]
        else:
            stack.pop()
            if not state[i]:
                state[i] = True
                order.append(node)
    return order, read


def _attributes(node: onnx.NodeProto, context: Any) -> dict[str, Any]:
    """A node's attributes, once ONNX's own schema agrees with its operands and with every attribute it carries."""
    label, op = node.name or next((o for o in node.output if o), "?"), node.op_type
    if node.domain not in ("", "ai.onnx"):
        raise UnsupportedModel(f"node {label!r} ({node.domain}.{op}): operators of domain {node.domain!r} are not supported", REMEDY)
    for a in node.attribute:
        if a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) or a.ref_attr_name:
            raise UnsupportedModel(f"node {label!r} ({op}): control flow and subgraphs are not supported", REMEDY)
    try:
        onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as e:
        raise UnsupportedModel(f"node {label!r} ({op}): {str(e).splitlines()[0]}", REMEDY) from e
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _input(graph: onnx.GraphProto, read: set[str], known: set[str]) -> tuple[onnx.ValueInfoProto, Shape, bool]:
    """The one input the output reads, its shape with batch 1, and whether there is a batch axis."""
    found = [i for i in graph.input if i.name in read and i.name not in known]
    if len(found) != 1:
        names = ", ".join(repr(i.name) for i in found) or "none"
        raise UnsupportedModel(
            f"the output needs {len(found)} inputs ({names}); exactly one is supported", "fix the others to constants and export again"
        )
    kind = found[0].type.tensor_type
    if not found[0].type.HasField("tensor_type") or kind.elem_type not in INPUT_TYPES:
        raise UnsupportedModel(
            f"input {found[0].name!r} is not a tensor of float16, float32 or float64", "export the model with a floating input"
        )
    if not kind.HasField("shape") or not kind.shape.dim:
        raise UnsupportedModel(
            f"input {found[0].name!r} has no shape", "give it a fixed shape, e.g. with onnxruntime.tools.make_dynamic_shape_fixed"
        )
    dims = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]
    batch = dims[0] <= 0 or (len(dims) > 1 and dims[0] == 1)
    if min(dims[1:], default=1) <= 0:
        raise UnsupportedModel(
            f"input {found[0].name!r} has a symbolic axis besides the batch",
            "give it a fixed shape, e.g. with onnxruntime.tools.make_dynamic_shape_fixed",
        )
    return found[0], (1, *dims[1:]) if batch else tuple(dims), batch


def _choose(graph: onnx.GraphProto, output: str | None) -> onnx.ValueInfoProto:
    names = [o.name for o in graph.output]
    if output is not None and output not in names:
        raise UsageError(f"the model has no output {output!r}", f"choose one of: {', '.join(map(repr, names))}")
    return graph.output[0 if output is None else names.index(output)]


def _translate(proto: onnx.ModelProto, data: bytes | None, folder: Path | None, output: str | None, name: str) -> Imported:
    graph, opset = proto.graph, _opset(proto)
    wanted = _choose(graph, output)
    nodes, read = _find_needed(graph, wanted.name)
    initial = [t for t in graph.initializer if t.name in read]
    attached = [a.t for n in nodes for a in n.attribute if a.type == onnx.AttributeProto.TENSOR]
    external = _inline([*initial, *attached], folder)
    go_on()
    sparse = [t.values.name for t in graph.sparse_initializer if t.values.name in read]
    if sparse:
        raise UnsupportedModel(f"initialiser {sparse[0]!r} is sparse", "store it densely")
    x, shape, batch = _input(graph, read, {t.name for t in initial})

    pruned = _prune(proto, nodes, initial, x, shape, wanted)
    sha = sha256(pruned if external or data is None else data)

    state = State(Builder(name, {o for n in nodes for o in n.output} | {x.name}), opset, FREE_BYTES + 8 * len(pruned))
    names = {t.name for t in initial}
    if len(names) != len(initial) or names & {o for n in nodes for o in n.output}:
        raise UnsupportedModel("two tensors have the same name", DAMAGED)
    for t in initial:
        go_on()
        state.values[t.name] = widen(tensor(t, t.name))
    if cells(shape) > MAX_CELLS:
        raise UnsupportedModel(f"input {x.name!r} of shape {list(shape)} is too large", "give it a smaller shape")
    dtype = np.dtype(INPUT_TYPES[x.type.tensor_type.elem_type])
    form = core(shape)
    state.values[x.name] = Act(state.builder.input(form if len(form) == 3 else (cells(form),), x.name), shape, dtype)

    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = max(proto.ir_version, 3), {"": opset}
    steps = [_step(state, node, _attributes(node, context), read) for node in nodes]
    outputs = tuple(o.name for o in graph.output)
    return _finish(state, pruned, sha, x, shape, batch, wanted, tuple(s for s in steps if s.outputs), dtype, outputs)


def _step(state: State, node: onnx.NodeProto, attrs: dict[str, Any], read: set[str]) -> OnnxStep:
    go_on()
    missing = [t for t in node.input if t and t not in state.values]
    label = node.name or next((o for o in node.output if o), "?")
    if missing:
        raise UnsupportedModel(f"node {label!r} ({node.op_type}) reads {missing[0]!r}, which nothing defines", DAMAGED)
    site, before = Site(state, node, attrs, read), len(state.builder.nodes)
    try:
        for out, value in zip(node.output, translate(site), strict=False):
            if out and value is not None:
                state.values[out] = value
                state.half |= rounds_to_half(site, value)
    except (UnsupportedModel, UsageError, ResourceError):
        raise
    except MemoryError as e:
        raise ResourceError(f"node {label!r} ({node.op_type}) does not fit into memory", "make the model smaller") from e
    except PolytritonError as e:
        raise site.fail(e.message) from e
    except Exception as e:  # operands and attributes may hold anything
        raise site.fail(f"it is malformed ({type(e).__name__}: {str(e)[:200]})") from e
    made = tuple(n.name for n in state.builder.nodes[before:])
    return OnnxStep(f"node {label!r} ({node.op_type})", _find_held(state, node.input), made, _find_held(state, node.output))


def _find_held(state: State, tensors: Iterable[str]) -> tuple[Held, ...]:
    """Those of the tensors that are activations."""
    found = ((t, state.values.get(t)) for t in dict.fromkeys(tensors))
    return tuple(Held(t, v.node, v.shape, str(v.dtype)) for t, v in found if isinstance(v, Act))


def _finish(
    state: State,
    pruned: bytes,
    sha: str,
    x: onnx.ValueInfoProto,
    shape: Shape,
    batch: bool,
    wanted: onnx.ValueInfoProto,
    steps: tuple[OnnxStep, ...],
    dtype: np.dtype,
    outputs: tuple[str, ...],
) -> Imported:
    y = state.values.get(wanted.name)
    if not isinstance(y, Act):
        raise UnsupportedModel(f"output {wanted.name!r} does not depend on the input", "choose another output")
    b = state.builder
    last = b.shape(y.node) if len(b.shape(y.node)) == 1 else (cells(y.shape),)
    net = b.build(y.node if b.shape(y.node) == last else b.add("reshape", (y.node,), f"{wanted.name}_flat", False, to=last))
    told: dict[str, Attr] = {**({"half": 1} if state.half else {}), **({"unstated": state.unstated} if state.unstated else {})}
    net = net.rebuild([net.input.with_attrs(**told), *net.nodes[1:]])
    try:
        check_net(net)
    except PolytritonError as e:
        raise UnsupportedModel(f"the translated model does not check: {e.message}", REMEDY) from e
    source = Source(sha, x.name, shape, str(dtype), wanted.name, y.shape, state.opset, batch, outputs)
    return Imported(net, source, pruned, steps)


def _prune(
    proto: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    initial: list[onnx.TensorProto],
    x: onnx.ValueInfoProto,
    shape: Shape,
    y: onnx.ValueInfoProto,
) -> bytes:
    """The model of these nodes alone; only a batch axis that is written as 0 or less is changed, to 1."""
    m = onnx.ModelProto()
    m.ir_version, m.producer_name = proto.ir_version, proto.producer_name
    m.opset_import.add(domain="", version=_opset(proto))
    m.graph.name = proto.graph.name or "graph"
    m.graph.node.extend(nodes)
    for t in initial:
        go_on()
        m.graph.initializer.append(t)
    names = {t.name for t in initial}
    m.graph.input.extend(i for i in proto.graph.input if i.name == x.name or i.name in names)
    first = next(i for i in m.graph.input if i.name == x.name).type.tensor_type.shape.dim[0]
    if first.HasField("dim_value"):
        first.dim_value = shape[0]
    m.graph.output.append(y)
    if m.ByteSize() > MAX_MODEL:
        raise ResourceError("the model with its weights exceeds 2 GiB", "make the model smaller")
    go_on()
    return m.SerializeToString(deterministic=True)
