"""polytriton: a compiler from neural networks to fast, floating-point-sound robustness verifiers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polytriton.api import Verifier, compile, load
    from polytriton.errors import PolytritonError
    from polytriton.results import Bounds, Counterexample, Interval, Result

__version__ = "0.1.0"
__all__ = ["Bounds", "Counterexample", "Interval", "PolytritonError", "Result", "Verifier", "__version__", "compile", "load"]

_HOMES = {
    **dict.fromkeys(("Verifier", "compile", "load"), "polytriton.api"),
    **dict.fromkeys(("Bounds", "Counterexample", "Interval", "Result"), "polytriton.results"),
    "PolytritonError": "polytriton.errors",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when first used: `polytriton --help` need not wait for torch."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
