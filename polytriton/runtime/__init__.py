"""A Plan at work. Whoever imports any of it has torch's settings held by every guarded function."""

from __future__ import annotations

from contextlib import AbstractContextManager

from polytriton.guard import hold_too


def _hold_torch() -> AbstractContextManager[None]:
    from polytriton.runtime import settings  # which loads torch

    return settings.hold_settings()


hold_too("torch", _hold_torch)
