"""One side of bench.compare: a verifier kept warm in a process of its own, asked over a pipe. It is started with the side's NAME.

    {"about": true}                                                 -> {"version": ..., "torch": ..., "threads": ...}
    {"net": FILE, "boxes": FILE.npz, "dtype": ..., "device": ..., "candidates": ...} -> {"y": answers at the images}
    {"run": true}                                                   -> {"seconds": ..., "cpu_seconds": ..., "margins": [...]}
    {"run": true, "watched": true}                                  -> {..., "mb": ...}

The boxes' file holds x, lo, hi [images, values] and forms [images, margins, outputs]. Every run computes all margins anew; one that is
watched for its memory is not one to be timed. The peer's side imports nothing of polytriton: its interpreter may lack what polytriton
needs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from bench.core.peak import Peak
from bench.core.serve import Message, speak_json


class PairSide(Protocol):
    """A network ready to be asked."""

    def answers(self) -> np.ndarray:
        """The network's outputs at the images."""
        ...

    def margins(self) -> np.ndarray:
        """Lower bounds of every form over every box."""
        ...


class Polytriton:
    """float32 coefficients, real semantics: margins are floating-point sound for the exact network."""

    def __init__(self, net: str, held: Any, dtype: str, device: str, candidates: str) -> None:
        import polytriton
        from polytriton.heap import keep_memory

        keep_memory()  # as the commands do
        self.net = polytriton.compile(net, semantics="real", dtype=dtype, device=device, candidates=candidates, check=False)
        self.held = {k: held[k] for k in ("x", "lo", "hi", "forms")}

    def answers(self) -> np.ndarray:
        return self.net.predict(self.held["x"])

    def margins(self) -> np.ndarray:
        return self.net.margins(self.held["lo"], self.held["hi"], self.held["forms"], effort="quick")

    @staticmethod
    def version() -> str:
        import polytriton

        return polytriton.__version__


class AutoLirpa:
    """CROWN with the adaptive lower slope (DeepPoly's), not sound against rounding."""

    def __init__(self, net: Any, held: Any, dtype: str, device: str, candidates: str) -> None:
        from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm

        from bench.compare.onnx_module import OnnxModule

        self.kind = torch.float64 if dtype == "float64" else torch.float32
        torch.set_default_dtype(self.kind)  # it makes constants of its own
        self.module = OnnxModule(net).to(device, self.kind)
        shape = (len(held["x"]), *self.module.shape)
        self.x, lo, hi = (torch.tensor(held[k], dtype=self.kind, device=device).view(shape) for k in ("x", "lo", "hi"))
        self.forms = torch.tensor(held["forms"], dtype=self.kind, device=device)
        options = {"conv_mode": "patches", "activation_bound_option": "adaptive"}
        self.bounded = BoundedModule(self.module, torch.zeros_like(self.x), bound_opts=options, device=device)
        self.boxed = lambda: BoundedTensor(self.x, PerturbationLpNorm(norm=np.inf, x_L=lo, x_U=hi))

    def answers(self) -> np.ndarray:
        with torch.no_grad():
            return self.module(self.x).flatten(1).double().cpu().numpy()

    def margins(self) -> np.ndarray:
        with torch.no_grad():
            found, _ = self.bounded.compute_bounds(x=(self.boxed(),), C=self.forms, method="CROWN", bound_upper=False)
        return found.double().cpu().numpy()

    @staticmethod
    def version() -> str:
        import auto_LiRPA

        return str(getattr(auto_LiRPA, "__version__", "unknown"))


SIDES: dict[str, Any] = {"polytriton": Polytriton, "auto_lirpa": AutoLirpa}


def answerer(kind: Any) -> Callable[[Message], Message]:
    side: list[PairSide] = []

    def answer(question: Message) -> Message:
        if "about" in question:
            torch.set_num_threads(question["threads"])
            return {"version": kind.version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
        if "net" in question:
            side[:] = []
            with np.load(question["boxes"]) as held:
                side.append(kind(held=held, **{k: question[k] for k in ("net", "dtype", "device", "candidates")}))
            return {"y": side[0].answers().tolist()}
        on_gpu = torch.cuda.is_available()
        if "watched" in question:
            with Peak("cuda" if on_gpu else "cpu") as watch:
                told = answer({"run": True})
            return {**told, "mb": watch.mb}
        start, cpu = time.perf_counter(), time.process_time()
        margins = side[0].margins()
        if on_gpu:
            torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu, "margins": margins.tolist()}

    return answer


def handler() -> Callable[[bytes], bytes]:
    return speak_json(answerer(SIDES[sys.argv[1]]))
