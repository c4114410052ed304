"""Any exception as one message with a remedy and an exit code: what a command says instead of a trace."""

from __future__ import annotations

import errno
import sys

from polytriton.errors import NoSpace, PolytritonError, ResourceError, UsageError, out_of_memory

MEMORY = "give a smaller --memory, for example 500M, or fewer images at once"
TRACE = "POLYTRITON_DEBUG=1 shows the trace; please report it with the command and, if you can, the network"


def explain(error: BaseException) -> PolytritonError:
    """The same error in a user's terms."""
    if isinstance(error, PolytritonError):
        return error
    torch = sys.modules.get("torch")  # not imported for this: where it never was, it raised nothing
    gpu = getattr(torch, "OutOfMemoryError", None)
    if gpu is not None and isinstance(error, gpu):
        return ResourceError("the GPU's memory does not suffice", MEMORY)
    if out_of_memory(error):
        return ResourceError("the machine's memory does not suffice", MEMORY)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpace(f"no space left on the disk{_where(error)}", "free some space")
    if isinstance(error, OSError) and error.errno is not None:
        return UsageError(f"{error.strerror or type(error).__name__}{_where(error)}", "check the path and its permissions")
    text = " ".join(str(error).split())[:300]
    return PolytritonError(f"internal error: {type(error).__name__}: {text}", TRACE)


def _where(error: OSError) -> str:
    return f": {error.filename}" if error.filename else ""
