"""The library with one line wrong: what runs then must be found by whoever looks at its numbers."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polytriton.kernels import load
from polytriton.kernels.catalogue import LIBRARY, place
from polytriton.kernels.closure import find_spec


@contextmanager
def planted(module: str, right: str, wrong: str) -> Iterator[None]:
    """Kernels of the module are taken from a copy of it with `wrong` in the place of `right`."""
    spec = find_spec(f"{LIBRARY}.{module}")
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).read_text()
    assert right in text, (module, right)
    own = load.library_function

    def other(family: str) -> Any:
        return getattr(copy, family) if place(family)[0] == f"{LIBRARY}.{module}" else own(family)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"planted_{module}.py")
        file.write_text(text.replace(right, wrong))
        made = importlib.util.spec_from_file_location(file.stem, file)
        assert made is not None and made.loader is not None
        copy = importlib.util.module_from_spec(made)
        made.loader.exec_module(copy)
        load.library_function = other
        _forget()
        try:
            yield
        finally:
            load.library_function = own
            _forget()


def _forget() -> None:
    load._named.cache_clear()
    load._given.cache_clear()
