"""polytriton: a compiler from neural networks to fast, floating-point-sound robustness verifiers."""

__version__ = "0.1.0"
