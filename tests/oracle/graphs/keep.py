"""One graph's trial, and escapes on disk: the model's bytes, its boxes as exact numbers, and what was found."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path

import numpy as np

from tests.oracle.graphs.draw import Graph
from tests.oracle.graphs.judge import Outcome, judge


def attempt(graph: Graph, semantics: str) -> tuple[Outcome | None, list[str]]:
    """The outcome, and what is wrong with it: escapes, or the error that ended the trial."""
    try:
        outcome = judge(graph, semantics)
    except Exception:
        return None, [traceback.format_exc(limit=-4)]
    return outcome, outcome.escapes


def _hex(values: np.ndarray) -> dict[str, object]:
    return {"shape": values.shape, "values": [float(v).hex() for v in values.ravel()]}


def _unhex(held: dict[str, list[str]]) -> np.ndarray:
    return np.array([float.fromhex(v) for v in held["values"]]).reshape(held["shape"])


def store(graph: Graph, semantics: str, found: list[str], folder: Path) -> Path:
    """folder/SEED/: model.onnx and case.json, whole or not at all."""
    final, draft = folder / str(graph.seed), folder / f".{graph.seed}.{os.getpid()}"
    draft.mkdir(parents=True)
    (draft / "model.onnx").write_bytes(graph.model)
    rest = {"rule": graph.rule, "seed": graph.seed, "dtype": graph.dtype, "semantics": semantics, "found": found}
    arrays = {k: _hex(getattr(graph, k)) for k in ("lo", "hi", "forms")}
    (draft / "case.json").write_text(json.dumps({**rest, **arrays}, indent=1))
    if final.exists():
        for old in final.iterdir():
            old.unlink()
        final.rmdir()
    draft.rename(final)
    return final


def restore(folder: Path) -> tuple[Graph, str]:
    held = json.loads((folder / "case.json").read_text())
    lo, hi, forms = (_unhex(held[k]) for k in ("lo", "hi", "forms"))
    return Graph(held["rule"], held["seed"], (folder / "model.onnx").read_bytes(), lo, hi, forms, held["dtype"]), held["semantics"]
