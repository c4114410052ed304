"""Triton's interpreter is quickened in a test's child too, as soon as a module of kernels has brought it.

Nothing is imported here that the child does not import itself: how it starts is what some tests are about.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class Quickens:
    """Finds nothing by itself; a module of kernels, once executed, is followed by `quicken`."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("polytriton.kernels."):
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if "triton.runtime.interpreter" in sys.modules:
                    from tests.interpreter import quicken

                    quicken()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Quickens())  # type: ignore[arg-type]
