"""What a kernel's machine code depends on, as bytes to hash. The standard library writes them: a bare GPU machine has no msgspec."""

from __future__ import annotations

import json
from collections.abc import Mapping

from polytriton.ir.launches import Kernel
from polytriton.kernels.catalogue import place
from polytriton.kernels.closure import closure_digest

TOOLS = ("TRITON_PTXAS_PATH", "TRITON_CUOBJDUMP_PATH", "TRITON_LIBDEVICE_PATH")


def tools(env: Mapping[str, str]) -> dict[str, str]:
    """The compilers a user put in the place of those in Triton's wheel."""
    return {name: env[name] for name in TOOLS if env.get(name)}


def identity(kernel: Kernel, target: str, triton: str, tools: Mapping[str, str]) -> bytes:
    """Everything the machine code depends on. `instruction` is not among it: it is asked of a report, not of the compiler."""
    made_of = closure_digest(*place(kernel.family))
    asked = (kernel.name, made_of, kernel.constants, kernel.parameters, kernel.types, sorted(kernel.options.items()))
    return json.dumps((asked, target, triton, sorted(tools.items())), separators=(",", ":"), ensure_ascii=False).encode()
