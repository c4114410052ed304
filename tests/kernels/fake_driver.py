"""A CUDA driver that loads and launches nothing: it writes down what Triton asks of it. `python -m tests.kernels.fake_driver`

A kernel is launched twice on the same tensors, as Triton compiles it itself and by machine code that was filed; both must ask the
driver for the same binary and the same launch. In a process of its own, since Triton takes its driver for good.
"""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

TARGET = "cuda:90"


class FakeDriver:
    """What Triton 3.7 asks of a driver between a compiled kernel and the C function that launches it."""

    def __init__(self) -> None:
        from triton.backends.nvidia import driver

        self.launcher_cls = driver.CudaLauncher
        driver.PyKernelArg = lambda nested_tuple, type: ("argument", type)
        driver.ARG_CONSTEXPR, driver.ARG_KERNEL = "constexpr", "kernel"
        self.loaded: list[tuple[str, bytes, int]] = []
        self.launched: list[tuple[Any, ...]] = []
        self.utils = SimpleNamespace(
            load_binary=self._load, launch=self._launch, get_device_properties=lambda device: {"max_shared_mem": 227 << 10},
            build_signature_metadata=lambda types: ["signature", *types],
        )  # fmt: skip

    def _load(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        self.loaded.append((name, cubin, shared))
        return 1, 2, 0, 0, 1024

    def _launch(self, *given: Any) -> None:
        """With what becomes an argument of the machine code: constants and pointers that are not read are none."""
        *rest, kinds, (head, *types), tensors = given
        kept = [tensor for kind, tensor in zip(kinds, tensors, strict=True) if kind == ("argument", "kernel")]
        self.launched.append((*rest, head, *zip(types, kept, strict=True)))

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 77

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def plain(value: Any) -> Any:
    """A launch's argument as a thing that can be compared: tensors by where they begin."""
    if hasattr(value, "data_ptr"):
        return "tensor", value.data_ptr()
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return value if isinstance(value, (int, str, bool, bytes, type(None))) else type(value).__name__


def main() -> None:
    import torch
    import triton
    from triton.backends.nvidia.driver import CudaLauncher

    if "utils.launch" not in inspect.getsource(CudaLauncher):
        print(json.dumps({"skipped": f"Triton {triton.__version__} builds its launchers with the driver's library"}))
        return
    from polytriton.ir.launches import Filed, MachineCode
    from polytriton.kernels.load import function
    from polytriton.kernels.spec import FUSION
    from polytriton.kernels.stock import Stock
    from polytriton.kernels.worker import build

    driver = FakeDriver()
    triton.runtime.driver.set_active(driver)
    words, seen = {"*fp64": torch.float64, "*fp32": torch.float32, "*i64": torch.int64, "*i8": torch.int8}, []
    kernel = Stock().kernel(*ORDER)
    with TemporaryDirectory() as folder:
        made = build(kernel, TARGET, Path(folder, kernel.name))
    assert made.report is not None
    code = {TARGET: {kernel.name: MachineCode(made.cubin, made.report.launch)}}
    filed = Filed({kernel.name: kernel}, {}, code, triton.__version__)
    tensors = [torch.zeros(64, dtype=words[t]) for t in kernel.types]
    for name, launchable in {
        "own": function(kernel),
        "filed": Stock(filed, target=TARGET).function(kernel),
        "other release": Stock(replace(filed, triton="3.0.0"), target=TARGET).function(kernel),
        "other GPU": Stock(filed, target="cuda:80").function(kernel),
    }.items():
        loads, launches = len(driver.loaded), len(driver.launched)
        launchable[(5, 3)](*tensors, **kernel.options, **FUSION)
        seen.append(
            {
                "kernel": kernel.name, "by": name, "filed": type(launchable).__name__ == "LoadedCode",
                "loaded": [[n, c.hex(), s] for n, c, s in driver.loaded[loads:]], "launched": plain(driver.launched[launches:]),
            }
        )  # fmt: skip
    odd = [t[1:] if t.dtype != torch.int8 else t for t in tensors]  # begins no more at a multiple of 16 bytes
    loads = len(driver.loaded)
    Stock(filed, target=TARGET).function(kernel)[(5, 3)](*odd, **kernel.options, **FUSION)
    seen.append({"kernel": kernel.name, "by": "odd", "filed": len(driver.loaded) == loads + 1, "loaded": [], "launched": []})
    print(json.dumps({"seen": seen}, default=lambda v: v.hex()))


ORDER = ("close_neurons", {"ALL": True, "LEAVES": True, "BLOCK": 64}, "float64", 4, 1)

if __name__ == "__main__":
    sys.exit(main())
