"""polytriton: a compiler from neural networks to fast, floating-point-sound robustness verifiers."""

from polytriton.api import Verifier, compile, load
from polytriton.errors import PolytritonError
from polytriton.results import Bounds, Counterexample, Interval, Result

__version__ = "0.1.0"
__all__ = ["Bounds", "Counterexample", "Interval", "PolytritonError", "Result", "Verifier", "__version__", "compile", "load"]
