"""polytriton: a compiler from neural networks to fast, floating-point-sound robustness verifiers."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from polytriton.guard import plain

if TYPE_CHECKING:
    from polytriton import torch as torch
    from polytriton.api import Verifier, compile, load
    from polytriton.errors import PolytritonError
    from polytriton.frontend.expressions import Condition, Expression, Variables, variables
    from polytriton.frontend.input_maps import InputMap
    from polytriton.frontend.nnet import read_nnet
    from polytriton.frontend.norm_balls import NormBall
    from polytriton.frontend.query import Property
    from polytriton.frontend.vnnlib import read_vnnlib
    from polytriton.pages.file import report
    from polytriton.pages.reach import draw_reach as draw_reach
    from polytriton.prove.reach import reach
    from polytriton.results import Bounds, Counterexample, Interval, LayerStats, Picture, Radius, Result, ResultList
    from polytriton.results.frames import to_pandas
    from polytriton.results.reach import Reach
    from polytriton.runs.saved import save_results as save_results
    from polytriton.several import join

logging.getLogger(__name__).addHandler(logging.NullHandler())  # the application decides what is shown

__version__ = "0.2.0"
__all__ = [
    "Bounds", "Condition", "Counterexample", "Expression", "InputMap", "Interval", "LayerStats", "NormBall", "Picture", "PolytritonError",
    "Property", "Radius", "Reach", "Result", "ResultList", "Variables", "Verifier", "__version__", "compile", "join", "load", "reach",
    "read_nnet", "read_vnnlib", "report", "to_pandas", "variables",
]  # fmt: skip

_HOMES = {
    **dict.fromkeys(("Verifier", "compile", "load"), "polytriton.api"),
    **dict.fromkeys(("Bounds", "Counterexample", "Interval", "LayerStats", "Picture"), "polytriton.results"),
    **dict.fromkeys(("Radius", "Result", "ResultList"), "polytriton.results"),
    **dict.fromkeys(("Condition", "Expression", "Variables", "variables"), "polytriton.frontend.expressions"),
    "InputMap": "polytriton.frontend.input_maps",
    "NormBall": "polytriton.frontend.norm_balls",
    "Property": "polytriton.frontend.query",
    "Reach": "polytriton.results.reach",
    "reach": "polytriton.prove.reach",
    "read_nnet": "polytriton.frontend.nnet",
    "read_vnnlib": "polytriton.frontend.vnnlib",
    "report": "polytriton.pages.file",
    "draw_reach": "polytriton.pages.reach",  # as `Reach.svg`
    "to_pandas": "polytriton.results.frames",
    "save_results": "polytriton.runs.saved",  # as `ResultList.save`
    "PolytritonError": "polytriton.errors",
    "join": "polytriton.several",
}
# what newcomers look for here, and where it is
_ELSEWHERE = dict.fromkeys(("verify", "bounds", "margins", "radius"), ": it is a method of what polytriton.compile(NET) returns")


def __getattr__(name: str) -> Any:
    """Public names are imported when first used: `polytriton --help` need not wait for torch."""
    if name == "torch":  # differentiable bounds, a module of its own
        return import_module("polytriton.torch")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_ELSEWHERE.get(name, '')}")
    with plain():  # what a module works out when it is loaded is plain too
        value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
