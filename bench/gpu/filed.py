"""What `compile --target` stores, beside kernels that Triton compiles as they are launched."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.core.table import Row
from bench.gpu import kernels as whole
from bench.gpu.code import compile_code, with_code
from bench.gpu.setting import Setting
from bench.nets.grow import NETWORKS
from polytriton.passes.pipeline import compile_net
from polytriton.prove.options import capability
from polytriton.runtime.results import Forms
from polytriton.runtime.settings import pin_settings


def compare(setting: Setting, numerics: str) -> Iterator[Row]:
    """Boxes and answers of one network by both: the same bits."""
    compiled = compile_net(NETWORKS["tiny"]())
    files = compile_code(compiled, capability("cuda"), [numerics], cache=None)
    held = with_code(compiled, files)
    own, filed = (whole.engine_of(c, numerics, setting) for c in (compiled, held))
    assert filed.kernels is not None and all(map(filed.kernels.stock.has_code, filed.kernels.kernels()))
    lo, hi = whole.balls(compiled.net, 2, seed=3)
    outputs = compiled.net.node(compiled.net.output).size
    eye = torch.eye(outputs, dtype=torch.float64, device=setting.device)
    forms = Forms(torch.zeros(outputs, dtype=torch.int64, device=setting.device), eye)
    with pin_settings():
        pairs = [(engine.refine(lo, hi), engine) for engine in (own, filed)]
        (a, b), answers = (boxes for boxes, _ in pairs), [engine.query(boxes, forms).best for boxes, engine in pairs]
    same = torch.equal(*answers) and all(torch.equal(a.lo[n], b.lo[n]) and torch.equal(a.hi[n], b.hi[n]) for n in a.lo)
    yield {"what": "bits", "fraction": 0.0 if same else float("inf"), "note": f"{len(files.machine)} kernels"}
