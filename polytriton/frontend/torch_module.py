"""A torch module becomes an ONNX model, by torch's own exporter, with the module's own answers beside it as witnesses.

Two exporters are tried. The newer one (`torch.export`, needs onnxscript) refuses a module whose path depends on its input's
values. The older one traces a single path; it is believed only where its tracer saw no value being looked at. Neither may fuse
batch norms: that rounds weights, and the rounding would be nobody's to account for.
"""

from __future__ import annotations

import logging
import re
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from polytriton.errors import PolytritonError, UnsupportedModel, UsageError
from polytriton.frontend.arrays import as_array

_LOG = logging.getLogger(__name__)
_EXPORTING = threading.Lock()  # an export sets training flags and filters warnings: one at a time
INPUT, RANDOM = "input", 4
TOLERANCE = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-9}  # of the largest answer
INSTALL = "pip install onnxscript, which torch's newer exporter needs"


@dataclass(frozen=True, eq=False)
class Exported:
    """An ONNX model of one module; `answers[k]` is what the module itself says to the single input `points[k]`."""

    model: bytes
    output: str
    name: str
    points: np.ndarray
    answers: np.ndarray

    def check(self, answers: np.ndarray, dtype: str) -> None:
        """The exported model's answers are the module's, to within its arithmetic."""
        scale = max(float(np.abs(self.answers).max(initial=0.0)), 1e-30)
        same = answers.shape == self.answers.shape
        gap = float(np.abs(answers - self.answers).max(initial=0.0)) / scale if same else float("inf")
        if not gap <= TOLERANCE[dtype]:
            raise UnsupportedModel(
                f"the exported model's answers differ from the module's own by {gap:.3g} of the largest",
                "does the module look at its input's values, or draw random numbers? write it with tensor operations alone",
            )


def export_module(module: Any, example: Any, output: str | None = None) -> Exported:
    """Exports the module as it answers in eval mode; training flags are put back. `output` names one of several outputs.

    A program of torch.export has its mode and its example in it.
    """
    program = isinstance(module, torch.export.ExportedProgram)
    if program:
        module, example = _unlift(module, example)
    if example is None:
        raise UsageError(
            "a torch module needs an example input", "polytriton.compile(module, torch.rand(1, 3, 32, 32)), with the input's own shape"
        )
    with _EXPORTING, _evaluating(module, not program):
        points = _points(module, example)
        names, answers = _answers(module, points)
        chosen = names[0] if output is None else output
        if chosen not in names:
            raise UsageError(f"the module has no output {output!r}", f"choose one of: {', '.join(names)}")
        model = _strip(_export(module, points[:1], names))
    made = np.stack([a[names.index(chosen)] for a in answers])
    return Exported(model, chosen, type(module).__name__, points.double().cpu().numpy(), made)


def _unlift(program: torch.export.ExportedProgram, example: Any) -> tuple[nn.Module, Any]:
    """The program as a module, and an example of its input."""
    if example is None:
        held: tuple[Sequence[Any], Mapping[str, Any]] = program.example_inputs or ((), {})
        if len(held[0]) != 1 or held[1]:
            raise UsageError(
                f"the program takes {len(held[0]) + len(held[1])} inputs", "export a module of one tensor, given by position"
            )
        example = held[0][0]
    module = program.module()
    with torch.no_grad():
        try:
            module(example[:1])
        except Exception as why:  # its guards may be any
            raise UsageError(
                f"the program refuses a batch of one: {_first_line(why)}",
                'export it for a batch of one, or of any size: dynamic_shapes=({0: torch.export.Dim("batch")},)',
            ) from why
    return module, example


@contextmanager
def _evaluating(module: nn.Module, switch: bool) -> Iterator[None]:
    """Eval mode where it can be switched, no gradients, no autocast; afterwards every submodule's own flag again."""
    training = [(m, m.training) for m in module.modules()]
    device = _device(module).type
    try:
        if switch:
            module.eval()
        with torch.no_grad(), torch.autocast(device, enabled=False), torch.inference_mode(False):
            yield
    finally:
        for m, flag in training:
            m.training = flag


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _device(module: nn.Module) -> torch.device:
    return next((t.device for t in _tensors(module)), torch.device("cpu"))


# ---- the module's own answers -----------------------------------------------------------------------------


def _points(module: nn.Module, example: Any) -> Tensor:
    """Single inputs to ask the module about, [points, *shape]: some of the example, some random, of the module's type and device."""
    if isinstance(example, (tuple, list)) and any(isinstance(v, (Tensor, np.ndarray)) for v in example):
        if len(example) != 1:
            raise UsageError(f"the example holds {len(example)} inputs", "networks of one input are supported: give one tensor")
        example = example[0]
    array = as_array(example, "example_input")
    if array.ndim == 0 or array.size == 0:
        raise UsageError(f"example_input has shape {list(array.shape)}", "give one input as the module takes it, batch axis first")
    if array.ndim == 1:
        array = array[None]
    dtype = next((t.dtype for t in _tensors(module) if t.is_floating_point()), torch.float32)
    rng, shape = np.random.default_rng(0), (RANDOM, *array.shape[1:])
    random = np.where(np.arange(RANDOM).reshape(-1, *[1] * (array.ndim - 1)) % 2, rng.random(shape), rng.standard_normal(shape))
    return torch.tensor(np.concatenate([array[:RANDOM], random]), dtype=dtype, device=_device(module))


def _answers(module: nn.Module, points: Tensor) -> tuple[list[str], list[list[np.ndarray]]]:
    """Names of the module's outputs, and all of them, flat, for every point on its own."""
    names: list[str] = []
    answers = []
    for x in [*points, *points]:
        try:
            held = _flat(module(x[None]))
        except PolytritonError:
            raise
        except Exception as why:  # the module is foreign code
            raise UsageError(
                f"the module refuses an input of shape {[1, *x.shape]}: {_first_line(why)}",
                "give example_input in the shape the module takes, batch axis first, for example torch.rand(1, 3, 32, 32)",
            ) from why
        if any(len(v.shape) < 2 or v.shape[0] != 1 for v in held.values()):
            shapes = ", ".join(str(list(v.shape)) for v in held.values())
            raise UsageError(
                f"for an input of shape {[1, *x.shape]} the module answers {shapes}: the first axis is not the batch",
                "give example_input with its batch axis, for example torch.rand(1, 1, 28, 28), and let the module keep that axis",
            )
        names = list(held)
        answers.append([v.detach().double().cpu().numpy().reshape(-1) for v in held.values()])
    answers, again = answers[: len(points)], answers[len(points) :]
    if any(not np.array_equal(a, b, equal_nan=True) for pair in zip(answers, again, strict=True) for a, b in zip(*pair, strict=True)):
        raise UnsupportedModel(
            "the module gives one input two different answers in eval mode",
            "dropout must follow self.training (nn.Dropout, or F.dropout(x, training=self.training)); export a program after module.eval()",
        )
    return names, answers


def _flat(made: Any) -> dict[str, Tensor]:
    """Output tensors by the names they get."""
    if isinstance(made, Tensor):
        return {"output": made}
    if isinstance(made, Mapping) and made and all(isinstance(v, Tensor) for v in made.values()):
        return {str(k): v for k, v in made.items()}
    if isinstance(made, Sequence) and made and all(isinstance(v, Tensor) for v in made):
        return {f"output_{k}": v for k, v in enumerate(made)}
    raise UnsupportedModel(f"the module answers with {type(made).__name__}", "let it return a tensor, or a tuple or dict of tensors")


# ---- the exporters ----------------------------------------------------------------------------------------


class _Absent(Exception):
    """This exporter does not exist here."""


def _export(module: nn.Module, x: Tensor, names: list[str]) -> onnx.ModelProto:
    reasons, absent = [], False
    for title, exporter in (("torch.export", _by_torch_export), ("tracing", _by_tracing)):
        try:
            with _quietly() as seen:
                made = exporter(module, x, names)
            looked = next((w for w in seen if issubclass(w.category, torch.jit.TracerWarning)), None)
            if looked is not None:  # the trace holds one path of several; torch.export of some releases traces too
                raise UnsupportedModel(f"the path depends on the input's values ({_first_line(looked.message)})")
            _LOG.info("exported %s by %s", type(module).__name__, title)
            return made
        except _Absent:
            absent = absent or exporter is _by_torch_export
        except UnsupportedModel as why:
            reasons.append(f"{title}: {why.message}")
        except Exception as why:  # whatever an exporter of some release raises
            reasons.append(f"{title}: {_first_line(why)}")
            _LOG.debug("%s failed", title, exc_info=why)
    if not reasons:
        raise UsageError(f"torch {torch.__version__} cannot export a module here", INSTALL)
    raise UnsupportedModel(
        f"{type(module).__name__} cannot be exported to ONNX ({'; '.join(reasons)})",
        INSTALL if absent else "write the module with tensor operations alone, or export it to an .onnx file yourself and give its path",
    )


def _by_torch_export(module: nn.Module, x: Tensor, names: list[str]) -> onnx.ModelProto:
    if find_spec("onnxscript") is None:
        raise _Absent
    from onnxscript import optimizer

    program: Any = torch.onnx.export(
        module, (x,), dynamo=True, verbose=False, optimize=False, input_names=[INPUT], output_names=names
    )  # fmt: skip
    optimizer.fold_constants(program.model)  # shapes and such; the exporter's own optimiser would fuse batch norms
    return program.model_proto


def _by_tracing(module: nn.Module, x: Tensor, names: list[str]) -> onnx.ModelProto:
    if not hasattr(torch.onnx, "TrainingMode"):  # a release without this exporter
        raise _Absent
    training = torch.onnx.TrainingMode.PRESERVE  # the eval mode it is in: asked for EVAL, the exporter fuses batch norms
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "module.onnx")
        torch.onnx.export(module, (x,), file, dynamo=False, training=training, input_names=[INPUT], output_names=names)
        return onnx.load(file)


@contextmanager
def _quietly() -> Iterator[list[warnings.WarningMessage]]:
    """Without the exporters' remarks on packages nobody asked for; their warnings are handed over."""
    names = ["torch", *(n for n in logging.root.manager.loggerDict if n.startswith("torch."))]
    handlers = {h for name in names for h in logging.getLogger(name).handlers}
    for h in handlers:
        h.addFilter(_nothing)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            yield seen
    finally:
        for h in handlers:
            h.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


def _strip(model: onnx.ModelProto) -> bytes:
    """The model without the stack traces and file names that exporters note down: they are no part of the network."""
    known = "metadata_props" in onnx.NodeProto.DESCRIPTOR.fields_by_name  # onnx 1.16 and later
    graph = model.graph
    for part in (*graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output, graph):
        part.ClearField("doc_string")
        if known:
            part.ClearField("metadata_props")
    return model.SerializeToString(deterministic=True)


def _first_line(why: object) -> str:
    """The first sentence of what an exception says, or the one that caused it: exporters wrap the reason in advice."""
    while isinstance(why, torch.onnx.OnnxExporterError) and why.__cause__ is not None:
        why = why.__cause__
    text = next((line for line in str(why).splitlines() if line.strip()), type(why).__name__)
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip().split(". ")[0][:200]
