"""What a model's file holds: its bytes, read within limits, or what else it is and which command makes ONNX of it."""

from __future__ import annotations

import gzip
import stat
import zlib
from importlib.util import find_spec
from pathlib import Path

from polytriton.errors import UsageError
from polytriton.frontend.packed import read_file

MAX_MODEL = (1 << 31) - 1  # bytes; protobuf's own limit
DAMAGED = "the file is damaged or not an ONNX model: export it again"


def foreign(path: Path, data: bytes, said: str) -> tuple[str, str]:
    """What a file is that is no ONNX model, and what to do about it."""
    if data.startswith(b"\x89HDF\r\n\x1a\n"):
        return f"{path} is a Keras or HDF5 file, not an ONNX model", _convert(path, "--keras")
    if data[4:8] == b"TFL3":
        return f"{path} is a TensorFlow Lite file, not an ONNX model", _convert(path, "--tflite")
    if data.startswith(b"PK\x03\x04"):
        if path.suffix == ".keras":
            return f"{path} is a Keras file, a zip archive, not an ONNX model", _convert(path, "--keras")
        return f"{path} is a zip archive (of torch, Keras or NumPy), not an ONNX model", "torch: compile(module, example); Keras: tf2onnx"
    if data.lstrip()[:1] == b"<":
        return f"{path} is a page of the web, not an ONNX model", "download the file itself: a site's page about it has a link for that"
    if path.name.removesuffix(".gz").endswith(".vnnlib"):
        return f"{path} is a property, not a network", "give the network first, then the property: polytriton verify NET.onnx PROP.vnnlib"
    return f"{path} is not an ONNX model ({said[:120]})", DAMAGED


def torch_file(path: str) -> tuple[str, str]:
    """Opening one may run what its maker wrote into it, so its owner opens it."""
    how = f'compile(torch.export.load("{path}")), if you trust it' if path.endswith(".pt2") else "compile(module, example_input)"
    return f"{path} is a torch file, not an ONNX model", f"load it in Python: {how}"


def _convert(path: Path, kind: str) -> str:
    """The command that converts the file, once its converter is there."""
    missing = [name for name in ("tf2onnx", "tensorflow") if find_spec(name) is None]
    install = f"pip install {' '.join(missing)}, then " if missing else ""
    return f"{install}python -m tf2onnx.convert {kind} {path} --output {path.with_suffix('.onnx')}"


def model_bytes(path: Path) -> bytes:
    """A model file's contents, unpacked where it is a .gz."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise UsageError(f"model {path} is not a file", "give the path of an .onnx file; polytriton.load opens artifacts")
        data = read_file(path, MAX_MODEL) if info.st_size <= MAX_MODEL else b""
    except (OSError, EOFError, zlib.error, ValueError) as e:  # ValueError: a null byte in the path
        packed = isinstance(e, (EOFError, zlib.error, gzip.BadGzipFile))
        remedy = "the file is damaged, or no .gz: fetch it again, or rename it" if packed else "check the path and its permissions"
        raise UsageError(f"cannot read model {path}: {getattr(e, 'strerror', None) or e}", remedy) from e
    if max(info.st_size, len(data)) > MAX_MODEL:
        raise UsageError(f"model {path} has {max(info.st_size, len(data)) >> 20} MiB (limit 2 GiB)", "make the model smaller")
    return data
