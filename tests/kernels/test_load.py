"""Kernels as functions: every device has a thread of its own, and all of them ask for the same kernels at the same time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from polytriton.errors import UnsupportedModel
from polytriton.kernels import load
from polytriton.kernels.catalogue import make_kernel

pytest.importorskip("triton", reason="Triton is not installed")


def test_threads_that_want_the_same_kernel_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    load.prepare(interpret=True)
    asked: list[str] = []
    own = load.library_function

    def slowly(family: str) -> Any:
        asked.append(family)
        time.sleep(0.05)
        return own(family)

    monkeypatch.setattr(load, "library_function", slowly)
    kernel = make_kernel("count_staying", (("B", 17),), "float64", 4, 1)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(load.function, [kernel] * 8))
    assert asked == ["count_staying"] and len({id(m) for m in made}) == 1


@pytest.mark.parametrize(
    "release, old", [("3.2.0", True), ("3.5.1", True), ("3.6.0", False), ("3.10.0+git", False), ("4.0", False), ("main", False)]
)
def test_a_triton_that_cannot_run_the_kernels_is_refused(release: str, old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    load.prepare(interpret=True)
    monkeypatch.setattr("triton.__version__", release)
    if not old:
        return load.prepare(interpret=True)
    with pytest.raises(UnsupportedModel, match=f"needs Triton 3.6 or newer, and {release} is installed"):
        load.prepare(interpret=True)


def test_compiling_ahead_asks_for_what_a_launch_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors at their places, constants at theirs, None for pointers that nobody reads; a device is only asked by the function itself."""
    load.prepare(interpret=True)
    kernel = make_kernel("move_rows", (("B", 16), ("NB", 16), ("NEURON", False)), "float64", 4, 1)
    made, told = load.GivenConstants(kernel), list[tuple[str, list[Any], dict[str, Any]]]()

    class Function:
        arg_names = made.run.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *given, **options: told.append(("launch", list(given), options))

        def warmup(self, *given: Any, grid: tuple[int, ...], **options: Any) -> None:
            told.append(("compile", list(given), options))

    made.run = Function()
    tensors = [f"tensor {p}" for p in kernel.parameters]
    made[(3,)](*tensors, num_warps=4)
    made.compile(*tensors, num_warps=4)
    (_, launched, options), (how, compiled, same) = told
    assert how == "compile" and compiled == launched and same == options == {"num_warps": 4}
    by_name = dict(zip(Function.arg_names, compiled, strict=True))
    assert by_name["NB"] == 16 and by_name["from_ptr"] == "tensor from_ptr"
    assert by_name["old"][0] == "tensor image_ptr" and by_name["old"][5:] == (None, None), "rows of a query have no sign or channel"
    with pytest.raises(ValueError, match="zip"):
        made.compile(*tensors[1:])
