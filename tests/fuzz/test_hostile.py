"""What the fuzzer found, and what hostile files are known for: bombs, lies about sizes, paths that lead out, code."""

from __future__ import annotations

import ast
import gzip
import io
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import polytriton
from polytriton.artifact import read_artifact, write_artifact
from polytriton.errors import ArtifactError, InvalidIR, PolytritonError, ResourceError, UnsupportedModel, UsageError, out_of_memory
from polytriton.explain import explain
from polytriton.frontend.images import load_images
from polytriton.frontend.onnx import load_onnx
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.ir.check import MAX_CELLS, check_net
from polytriton.ir.plan_text import parse_plan
from polytriton.ir.text import parse_net
from polytriton.kernels.files import emit_files
from polytriton.runs.records import CsvSink, JsonSink
from tests.cli import tiny
from tests.cli.conftest import Cli, cli, here  # noqa: F401
from tests.frontend.onnx_models import model, node
from tests.fuzz.limits import bounded

PACKAGE = Path(polytriton.__file__).parent
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory and time are limited as Linux does it")


# ---- bombs ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@linux
@pytest.mark.parametrize("text", [b" ", b")", b"(assert ", b"; \n"])
def test_gz_bombs_of_properties_and_models(tmp_path: Path, text: bytes) -> None:
    data = gzip.compress(text * ((200 << 20) // len(text)), 9)
    assert len(data) < 1 << 20
    for name, read in (("p.vnnlib.gz", read_vnnlib), ("n.onnx.gz", load_onnx)):
        (tmp_path / name).write_bytes(data)
        with bounded(10.0, 1 << 29), pytest.raises(UsageError, match="unpacks to more than"):
            read(tmp_path / name)


def _npz(path: Path, size: int) -> None:
    """An array of zeros, as much as `size` bytes unpacked."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed,
        packed.open("images.npy", "w", force_zip64=True) as file,
    ):
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (size >> 20, 1 << 20)})
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))


@linux
def test_npz_bombs(tmp_path: Path) -> None:
    _npz(tmp_path / "i.npz", 256 << 20)
    with bounded(10.0, 1 << 27), pytest.raises(UsageError, match="unpacks to 256 MiB"):
        load_images(tmp_path / "i.npz")
    _npz(tmp_path / "small.npz", 2 << 20)
    assert load_images(tmp_path / "small.npz").pixels.shape == (2, 1 << 20)


def _npy(shape: tuple[int, ...], descr: str, data: bytes = b"") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


@linux
@pytest.mark.parametrize(
    "data",
    [
        _npy((1 << 40, 4), "|u1"), _npy((1 << 20, 1 << 20), "<f8", b"x" * 64), _npy((2, -2), "|u1", b"xxxx"), _npy((1 << 40, 1), "|V0"),
        _npy((2, 2), "|O", b"cos\nsystem\n(S'false'\ntR."), _npy((0, 3), "|u1"), _npy((3, 0), "<f4"), b"\x93NUMPY\x01\x00\xff\xff{",
        b"\x93NUMPY\x03\x00\x10\x00\x00\x00", b"\x93NUMPY\x01\x00\x06\x00((((((", b"", b"\x93NUMPY\x01\x00\x04\x00 \n\t]",
    ],
)  # fmt: skip
def test_arrays_that_lie(tmp_path: Path, data: bytes) -> None:
    for name in ("i.npy", "i.npz"):
        path = tmp_path / name
        if name == "i.npy":
            path.write_bytes(data)
        else:
            with zipfile.ZipFile(path, "w") as packed:
                packed.writestr("images.npy", data)
        with bounded(5.0, 1 << 28), pytest.raises(UsageError) as refused:
            load_images(path)
        assert refused.value.remedy


@pytest.mark.parametrize("method, flags", [(99, 0), (8, 1)])
def test_zip_members_that_cannot_be_unpacked(tmp_path: Path, method: int, flags: int) -> None:
    """An unknown compression, and an encrypted member."""
    path = tmp_path / "i.npz"
    np.savez(path, images=np.zeros((2, 2), np.uint8))
    data = bytearray(path.read_bytes())
    for at, place in ((data.index(b"PK\x03\x04"), 6), (data.index(b"PK\x01\x02"), 8)):
        struct.pack_into("<HH", data, at + place, flags, method)
    path.write_bytes(bytes(data))
    with pytest.raises(UsageError, match="cannot read the images"):
        load_images(path)


@pytest.mark.thinned(3)
@linux
@pytest.mark.parametrize(
    "nodes, shape, weights",
    [
        (node("Expand", "x s"), [1, 3, 1], {"s": np.array([2, 1, 2359300])}),
        (node("Mul", "x c"), [5, 1 << 20], {"c": np.ones((2, 1, 1), np.float32)}),
        (node("Relu"), [1, 3, 3, 1 << 20], {}),
        ([node("Relu", "x" if k == 0 else f"r{k}", "y" if k == 19 else f"r{k + 1}") for k in range(20)], [1, 1 << 21], {}),
    ],
)
def test_small_models_of_large_networks(nodes, shape: list[int], weights: dict[str, np.ndarray]) -> None:  # type: ignore[no-untyped-def]
    """They are refused, or compared with onnxruntime without holding every layer's values at once."""
    data = model(nodes, shape, weights).SerializeToString()
    assert len(data) < 2048
    with bounded(30.0, 3 << 29):
        try:
            said: object = polytriton.compile(data)
        except PolytritonError as error:
            said = error
    assert isinstance(said, (polytriton.Verifier, UnsupportedModel))
    assert not isinstance(said, UnsupportedModel) or not out_of_memory(said.__cause__)


# ---- what was found ---------------------------------------------------------------------------------------------

NET = "net @n(%x: f32[{x}]) -> f32[4] {{\n  %y = {y} : f32[4]\n  return %y\n}}\n"


@linux
@pytest.mark.parametrize(
    "x, y",
    [
        ("4", "linear %x {w=@w, b=@b, to=4}"), ("999999999999999", "linear %x {w=@w, b=@b}"), ("2147483648x4", "scale %x {a=@a, c=@c}"),
        ("3x4x4", "conv %x {w=@w, b=@b, k=2147483647x3}"), ("3x4x4", "conv %x {w=@w, b=@b, k=-1x3}"), ("", "conv %x {w=@w, b=@b, k=1x1}"),
        ("x".join(["1"] * 2000), "scale %x {a=@a, c=@c}"), ("999999999999999x999999999999999", "gather %x {index=@i, to=4}"),
        ("1x4x4", "maxpool %x {k=1000000000000x1, p=999999999999,0,999999999999,0}"), ("4", "gather %x {index=@i, to=999999999999}"),
    ],
)  # fmt: skip
def test_opt_makes_up_no_gigabytes(cli: Cli, here: Path, x: str, y: str) -> None:  # noqa: F811
    Path("n.ptir").write_text(NET.format(x=x, y=y))
    with bounded(10.0, 1 << 29):
        assert cli("opt", "n.ptir").code in (0, 2, 3)


def test_sizes_do_not_wrap_around() -> None:
    """2^32 x 2^32 x 4 cells are 0 in int64, and 2^64 + 4 are 4."""
    for shape in ("4294967296x4294967296x4", "2x9223372036854775x1000000000"):
        with pytest.raises(InvalidIR):
            check_net(parse_net(f"net @n(%x: f32[4]) -> f32[{shape}] {{\n %y = reshape %x {{to={shape}}} : f32[{shape}]\n return %y\n}}"))
    with pytest.raises(InvalidIR, match=f"limit {MAX_CELLS}"):
        check_net(parse_net(f"net @n(%x: f32[{MAX_CELLS + 1}]) -> f32[{MAX_CELLS + 1}] {{\n return %x\n}}"))


@linux
@pytest.mark.parametrize("parse", [parse_net, parse_plan])
def test_long_gaps_are_read_in_no_time(parse: Callable[[str], object]) -> None:
    gap = " " * 20_000
    for line in (
        f"halo %x{gap}1",
        f"conv %x{gap}->{gap}%y [1 x 1]{gap}check{gap}",
        f"%y = conv{gap}%x,{gap}%x{gap}{{{gap}k=1{gap}}}{gap}:{gap}",
    ):
        for head in ("plan @p candidates=all {\n bound %x {\n", "net @n(%x: f32[4]) -> f32[4] {\n"):
            with bounded(2.0, 1 << 28), pytest.raises(InvalidIR):
                parse(f"{head} {line}\n")


@pytest.mark.parametrize(
    "line", [b'{"network": "\xff"}\n', b"[" * 100_000 + b"\n", b'{"network":"n","property":"p","verdict":"proved"}\n', b"\xc9\n"]
)
def test_results_of_another_hand(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "r").write_bytes(line)
    for kind in (JsonSink, CsvSink):
        with pytest.raises(UsageError, match="not a result of polytriton"):
            kind(tmp_path / "r", resume=True, overwrite=False)


@pytest.mark.parametrize(
    "change", [lambda m: m.replace(b'"bytes": ', b'"bytes": -', 1), lambda m: m.replace(b"polytriton", b"poly\xfftriton", 1)]
)
def test_manifests_of_another_hand(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = polytriton.compile(tiny.brightest(tmp_path / "net.onnx")).save(tmp_path / "net.poly") / "manifest.json"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ArtifactError):
        read_artifact(path.parent)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), OSError(12, "Cannot allocate memory"), RuntimeError("CUDA error: out of memory"), RuntimeError("std::bad_alloc"),
     RuntimeError("can't start new thread"), ImportError("libx.so: failed to map segment from shared object")],
)  # fmt: skip
def test_every_shortage_of_memory_is_one(error: Exception) -> None:
    assert isinstance(explain(error), ResourceError)
    wrapped = OSError("a library's own words")
    wrapped.__cause__ = error
    assert isinstance(explain(wrapped), ResourceError)
    assert not out_of_memory(UsageError("out of memory", "a user's text")) and not out_of_memory(KeyError("x"))


# ---- code and paths ---------------------------------------------------------------------------------------------


def dotted(func: ast.expr) -> str:
    """A name with its owners, as far as they are names."""
    return f"{dotted(func.value)}.{func.attr}" if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def test_nothing_unpickles_or_evaluates() -> None:
    """No reader of the package can be made to run what a file says. A process and the one it has started speak in pickles, by pipes."""
    bad = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml"}
    calls = {"eval", "exec", "__import__"}
    loads = set()
    for path in PACKAGE.rglob("*.py"):
        for at in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = (
                [a.name for a in at.names] if isinstance(at, ast.Import) else [at.module or ""] if isinstance(at, ast.ImportFrom) else []
            )
            own = {"pickle"} if path == PACKAGE / "prove" / "crew.py" else set()
            assert not (bad - own) & {n.split(".")[0] for n in names}, path
            if isinstance(at, ast.Call):
                called = dotted(at.func)
                assert called not in calls and called not in ("torch.load", "builtins.eval"), (path, called)
                said = [ast.unparse(k.value) for k in at.keywords if k.arg == "allow_pickle"]
                assert said == ["False"] if called in ("np.load", "numpy.load") else set(said) <= {"False"}, path
                assert not (called.endswith(("loadtxt", "genfromtxt")) and any(k.arg == "converters" for k in at.keywords)), path
                if called.endswith("exec_module"):
                    loads.add(path.relative_to(PACKAGE).as_posix())
    assert not loads


@pytest.mark.parametrize("reseal", [False, True])
def test_code_in_an_artifact_never_runs(tmp_path: Path, reseal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a module that could be imported, named as the family of a kernel."""
    from tests.artifact.test_artifact_kernels import reseal as sealed

    verifier = polytriton.compile(tiny.brightest(tmp_path / "net.onnx"))
    path = write_artifact(verifier, tmp_path / "net.poly", emit_files(verifier.compiled, ["interpret"], ["float64"]))
    marker, index = tmp_path / "ran", path / "kernels" / "index.json"
    code = f"open({str(marker)!r}, 'w')\n"
    (tmp_path / "of_mine.py").write_text(f"{code}def dense_step():\n    {code}")
    monkeypatch.syspath_prepend(tmp_path)
    (path / "__init__.py").write_text(code)
    (path / "kernels" / "dense_step_0123456789.py").write_text(code)
    index.write_text(index.read_text().replace('"family": "dense_step"', '"family": "of_mine.dense_step"'))
    assert "of_mine" in index.read_text()
    if reseal:
        sealed(path)
    with pytest.raises(ArtifactError, match="is of no family" if reseal else "contents have changed|has .* bytes"):
        polytriton.load(path, device="interpret")
    assert not marker.exists() and "of_mine" not in sys.modules


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link", "folder/../../secret", "linked/secret", "", ".", "pipe", "a\0b"])
def test_external_data_stays_in_its_folder(tmp_path: Path, location: str) -> None:
    import os

    import onnx

    place = tmp_path / "model"
    (place / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(bytes(64))
    (place / "link").symlink_to(tmp_path / "secret")
    (place / "linked").symlink_to(tmp_path)
    os.mkfifo(place / "pipe")
    proto = model(node("MatMul", "x w"), [1, 3], {"w": np.ones((3, 2), np.float32)})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    (place / "n.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(PolytritonError):
        load_onnx(place / "n.onnx")
