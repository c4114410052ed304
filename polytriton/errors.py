"""Every message a user can meet. Each says what is wrong, where, and what to do next; each class owns one exit code."""

from __future__ import annotations

USAGE, UNSUPPORTED, INTERNAL = 2, 3, 4


class PolytritonError(Exception):
    """Base of all errors meant for a user: one message, one remedy, one exit code."""

    exit_code = INTERNAL

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message, self.remedy = message, remedy

    def __str__(self) -> str:
        return f"{self.message}\n  remedy: {self.remedy}" if self.remedy else self.message


class UsageError(PolytritonError):
    """A wrong option, a missing file, an input that does not fit the network."""

    exit_code = USAGE


class UnsupportedModel(PolytritonError):
    """A network outside the supported set, or one whose numbers cannot be certified (NaN weights)."""

    exit_code = UNSUPPORTED


class UnsupportedProperty(PolytritonError):
    """A property outside the supported logic, or one that does not fit the network."""

    exit_code = UNSUPPORTED


class ArtifactError(PolytritonError):
    """A compiled artifact that is stale, foreign or damaged."""

    exit_code = USAGE


class InvalidIR(PolytritonError):
    """A Net or Plan that breaks its own rules; raised by the checker and the text parser."""

    exit_code = UNSUPPORTED


class PassError(PolytritonError):
    """A pass left something that does not check; names itself and the passes that ran before it."""

    exit_code = INTERNAL


class KernelError(PolytritonError):
    """A kernel that cannot be compiled here, spills beyond the limit, or lacks the instruction it was written for."""

    exit_code = UNSUPPORTED


class ResourceError(PolytritonError):
    """The memory budget or the disk does not suffice."""

    exit_code = USAGE
