"""The Net against onnxruntime, number by number: the independent witness that nothing was mistranslated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from polytriton.errors import ResourceError, UnsupportedModel, UsageError, out_of_memory
from polytriton.ir.interp import evaluate, run
from polytriton.ir.net import Net

if TYPE_CHECKING:
    from polytriton.frontend.onnx import Source

TOLERANCE = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-9}  # of the largest number in the tensor


def compare(
    net: Net,
    model: bytes,
    source: Source,
    acts: Mapping[str, str],
    nodes: Sequence[onnx.NodeProto],
    samples: int,
    seed: int,
    box: tuple[np.ndarray, np.ndarray] | None,
) -> float:
    """The largest relative difference of the output; `acts` maps ONNX tensors to the IR nodes that hold them."""
    x = _inputs(source, samples, seed, box)
    result = np.concatenate([run(net, row) for row in x])
    (theirs,) = _run(model, source, x, [])
    worst = _difference(result, theirs)
    if worst <= TOLERANCE[source.input_dtype]:
        return worst
    ours = evaluate(net, x)
    if not np.isfinite(theirs).all() and all(np.isfinite(v).all() for v in ours.values()):
        raise UnsupportedModel(
            "onnxruntime's result is not finite", "the network overflows its own type on these inputs: no bound covers that"
        )
    names = [o for n in nodes for o in n.output if acts.get(o) in ours]
    found = dict(zip(names, _run(model, source, x, names)[1:], strict=True))
    for n in nodes:
        for o in n.output:
            gap = _difference(ours[acts[o]], found[o]) if o in found else 0.0
            if gap > TOLERANCE[source.input_dtype]:
                raise _differs(f"node {n.name or o!r} ({n.op_type}), IR node %{acts[o]}", gap)
    raise _differs(f"output {source.output_name!r}, IR node %{net.output}", worst)


def _differs(where: str, gap: float) -> UnsupportedModel:
    return UnsupportedModel(
        f"{where}: the translation differs from onnxruntime by {gap:.3g}",
        "please report it with the model; until then, `polytriton inspect --operators` lists alternatives",
    )


def _inputs(source: Source, samples: int, seed: int, box: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    rng = np.random.default_rng(seed)
    size = int(np.prod(source.input_shape))
    if box is not None:
        lo, hi = (np.asarray(b, dtype=np.float64).reshape(-1) for b in box)
        if lo.size != size or hi.size != size:
            raise UsageError(
                f"the box has {lo.size} and {hi.size} numbers, the input {size}", "give one lower and one upper bound an input"
            )
        x = lo + (hi - lo) * rng.random((samples, size))
    else:
        x = np.where(np.arange(samples)[:, None] % 2, rng.random((samples, size)), rng.standard_normal((samples, size)))
    return x.astype(source.input_dtype).astype(np.float64)


def _run(model: bytes, source: Source, x: np.ndarray, extra: Sequence[str]) -> list[np.ndarray]:
    """onnxruntime's output, then the tensors in `extra`, each [samples, cells]."""
    try:
        import onnxruntime as ort
    except ImportError as e:
        raise UsageError("the cross-check needs onnxruntime", "pip install onnxruntime") from e
    if extra:
        proto = onnx.ModelProto.FromString(model)
        taken = {o.name for o in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in extra if n not in taken)
        model = proto.SerializeToString()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 2, 4
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        shaped = x.reshape(len(x), *source.input_shape).astype(source.input_dtype)
        wanted = [source.output_name, *extra]
        rows: list[list[Any]] = [session.run(wanted, {source.input_name: row}) for row in shaped]
    except Exception as e:  # onnxruntime's own classes are not public
        if out_of_memory(e):
            raise ResourceError("the model does not fit into memory", "make the model smaller") from e
        raise UnsupportedModel(
            f"onnxruntime refuses the model: {' '.join(str(e).split())[:300]}", "check it with onnx.checker, or export it again"
        ) from e
    return [np.stack([np.asarray(r[i], dtype=np.float64).reshape(-1) for r in rows]) for i in range(len(wanted))]


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    ours = ours.reshape(len(ours), -1)
    if ours.shape != theirs.shape:
        return float("inf")
    scale = max(float(np.abs(theirs).max()), 1e-30)
    gap = float(np.abs(ours - theirs).max()) / scale
    return gap if np.isfinite(gap) else float("inf")
