"""The library with one line wrong: what runs then must be found by whoever looks at its numbers."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polytriton.kernels import load
from polytriton.kernels.catalogue import LIBRARY


@contextmanager
def planted(module: str, right: str, wrong: str) -> Iterator[None]:
    """Wherever the library reads the module's functions stand those of a copy with `wrong` in the place of `right`."""
    every = [importlib.import_module(f"{LIBRARY}.{m.name}") for m in pkgutil.iter_modules(importlib.import_module(LIBRARY).__path__)]
    own = importlib.import_module(f"{LIBRARY}.{module}")
    text = Path(str(own.__file__)).read_text()
    assert right in text, (module, right)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        file = Path(folder, f"planted_{module}.py")
        file.write_text(text.replace(right, wrong))
        made = importlib.util.spec_from_file_location(file.stem, file)
        assert made is not None and made.loader is not None
        copy = importlib.util.module_from_spec(made)
        made.loader.exec_module(copy)
        for name, function in list(vars(own).items()):
            if getattr(getattr(function, "fn", None), "__module__", "") == own.__name__:
                for other in every:
                    if vars(other).get(name) is function:
                        patch.setattr(other, name, getattr(copy, name))
        _forget()
        yield
    _forget()


def _forget() -> None:
    load._named_function.cache_clear()
    load._given.cache_clear()
