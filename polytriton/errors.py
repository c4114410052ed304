"""Every message a user can meet. Each says what is wrong, where, and what to do next; each class owns one exit code."""

from __future__ import annotations

import errno
import re

USAGE, UNSUPPORTED, INTERNAL = 2, 3, 4


class PolytritonError(Exception):
    """Base of all errors meant for a user: one message, one remedy, one exit code.

    `limit` is the limit that was met, a word of `results.ENDS`, where it was one.
    """

    exit_code = INTERNAL
    limit = ""

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
    """The memory does not suffice."""

    exit_code = USAGE
    limit = "memory"


class NoSpace(ResourceError):
    """The disk does not suffice."""

    limit = ""


class Spoiled(ResourceError):
    """The process, or a library in it, does not compute as the proofs assume."""

    limit = ""


NO_MEMORY = re.compile(
    r"can't allocate memory|Cannot allocate memory|out of memory|bad_alloc|bad allocation|Failed to allocate memory"
    r"|can't start new thread|failed to map segment"
)


NOT_IMPLEMENTED = re.compile(r"Could not find an implementation for (\w+)\(\d+\) node with name '(.*?)'")


def out_of_memory(error: BaseException | None) -> bool:
    """Whether it, or what it came from, is a failed allocation: libraries have messages for it, but no common class."""
    while error is not None and not isinstance(error, PolytritonError):
        code = error.errno if isinstance(error, OSError) else None
        if code == errno.ENOMEM or isinstance(error, MemoryError) or (code is None and NO_MEMORY.search(str(error))):
            return True
        error = error.__cause__ or error.__context__
    return False


def runtime_refusal(error: Exception) -> PolytritonError:
    """What is said of a model that onnxruntime does not run; its own classes of errors are not public."""
    if out_of_memory(error):
        return ResourceError("the model does not fit into memory", "make the model smaller")
    said = " ".join(str(error).split())[:300]
    if lacking := NOT_IMPLEMENTED.search(said):
        return UnsupportedModel(
            f"onnxruntime has no {lacking[1]} for the types of node {lacking[2]!r}, so it does not run the model",
            "export the network with float32 weights; or do without onnxruntime: polytriton compile NET.onnx --no-check, "
            "then polytriton run NET.poly --no-falsify",
        )
    return UnsupportedModel(f"onnxruntime refuses the model: {said}", "check it with onnx.checker, or export it again")
