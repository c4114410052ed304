"""Kernels in an artifact: which they are, as a person reads them, and none is read but those this version makes.

After a change that is meant to be seen in the heads: `python -m tests.artifact.test_artifact_kernels` writes them anew; read the diff.
"""

from __future__ import annotations

import ast
import builtins
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import polytriton
from polytriton import artifact as A
from polytriton.errors import ArtifactError, ResourceError, UsageError
from polytriton.ir.launches import COUNTED, Constant
from polytriton.kernels import catalogue, stock
from polytriton.kernels.catalogue import make_kernel
from polytriton.kernels.choose import Sizes
from polytriton.kernels.closure import read_function
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.files import INDEX, LAUNCHES, REPORT, Kernels, code_path, differing, emit_files
from polytriton.kernels.header import header
from polytriton.kernels.network import network_kernels
from polytriton.kernels.spec import Report
from polytriton.passes.pipeline import Compiled, compile_net
from tests.artifact.test_artifact import DAMAGE
from tests.cli import tiny
from tests.oracle.nets import random_net, toy_residual

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "toy_residual_headers.txt"
HASH = re.compile(r"(?<=_)[0-9a-f]{10}\b|\b[0-9a-f]{64}\b")
EXAMPLE: dict[str, Constant] = {
    "RELU": True, "CHARGE": True, "SLOT": False, "SIZE": 21, "LINE": 21, "C": 21, "RH": 0, "OH": 0, "RW": 0, "OW": 0, "START": 0,
    "PLANE": 21, "PITCH": 21, "T_START": 0, "T_PLANE": 21, "T_PITCH": 21, "BIAS": "none", "SUM_ERROR": 1.5, "BR": 4, "BQ": 32,
}  # fmt: skip
TILES = Sizes(values=512, line=512, pairs=64, columns=64, terms=16)  # whatever the tuned ones are


def with_reports(kernels: Kernels) -> Kernels:
    """As after compilation."""
    counts = dict.fromkeys(COUNTED, 1)
    made = [Report(k.name, t, 40, 128, 0, 0, 0, counts, 48, 9000, 1.5, False) for t in kernels.gpus for k in kernels.machine]
    cubins = {t: {k.name: f"{t} {k.name}".encode() for k in kernels.machine} for t in kernels.gpus}
    return kernels.with_code(made, cubins, "3.7.1")


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> polytriton.Verifier:
    return polytriton.compile(tiny.brightest(tmp_path_factory.mktemp("model") / "net.onnx"))


@pytest.fixture(scope="module")
def kernels(verifier: polytriton.Verifier) -> Kernels:
    return with_reports(emit_files(verifier.compiled, ("cuda:80", "cuda:90"), ("float64", "float32")))


@pytest.fixture
def poly(verifier: polytriton.Verifier, kernels: Kernels, tmp_path: Path) -> Path:
    return A.write_artifact(verifier, tmp_path / "net.poly", kernels)


def contents(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def reseal(path: Path, files: set[str] | None = None, **changes: Any) -> None:
    """A manifest whose hashes fit what lies there, as a forger would leave it; `files` instead of those it named."""
    manifest = msgspec.json.decode((path / A.MANIFEST).read_bytes(), type=A.Manifest)
    held = contents(path)
    names = manifest.files.keys() if files is None else files
    entries = {n: A.FileEntry(hashlib.sha256(held.get(n, b"")).hexdigest(), len(held.get(n, b""))) for n in names}
    (path / A.MANIFEST).write_bytes(msgspec.structs.replace(manifest, files=entries, **changes).seal().encode())


def named(path: Path) -> set[str]:
    return set(json.loads((path / A.MANIFEST).read_bytes())["files"])


# ---- files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> Compiled:
    return polytriton.compile(ROOT / "examples" / "digits_resnet_ibp.onnx", check=False).compiled


@pytest.fixture(scope="module")
def emitted(example: Compiled) -> Emitter:
    emitter = Emitter()
    network_kernels(example, ("float64", "float32"), emitter=emitter)
    return emitter


def test_every_kernel_is_readable_python_that_needs_only_triton(example: Compiled) -> None:
    held = emit_files(example, ("interpret",), ("float32",))
    assert len(held.steps) > 30
    for name, kernel in held.filed.kernels.items():
        text = held.kernel_text(name)
        tree = ast.parse(text)
        imports = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
        taken = read_function(*catalogue.place(kernel.family))
        data = ["from dataclasses import dataclass"] * bool(taken.record)
        assert [ast.unparse(n) for n in imports] == [*data, "import triton", "import triton.language as tl"]
        last = tree.body[-1]
        assert isinstance(last, ast.FunctionDef)
        assert last.name == kernel.family
        assert set(taken.constants) == dict(kernel.constants).keys() and set(taken.flat) >= set(kernel.parameters)
        constants = [a.arg for a in last.args.args if a.annotation is not None]
        assert constants == (["c"] if taken.record else list(taken.constants))
        names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
        known = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
        known |= {f.name for f in tree.body if isinstance(f, (ast.FunctionDef, ast.ClassDef))}
        known |= {"triton", "tl", "dataclass", *dir(builtins)}
        assert {n.id for n in names} <= known, "all that it calls is there"
        assert max(map(len, text.splitlines())) <= 140
        head = [line for line in text.splitlines() if line.startswith("#")][:2]
        assert head[0] == f"# {name}"
        assert head[1].startswith("#   steps     %")
        assert all(f"{k}={v}" in text for k, v in kernel.constants)


def test_a_compiled_kernel_says_what_became_of_it(kernels: Kernels) -> None:
    text = kernels.kernel_text(next(k.name for k in kernels.machine))
    for target in kernels.gpus:
        assert re.search(rf"^#   {target}   40 registers, 0 spills, 1 DMMA", text, re.M)


def said(emitter: Emitter, name: str) -> str:
    uses = emitter.uses[name]
    steps, numerics = (list(dict.fromkeys(getattr(use, of) for use in uses)) for of in ("step", "numerics"))
    return header(emitter.kernels[name], steps, numerics)


def test_the_same_code_is_one_kernel(emitted: Emitter) -> None:
    made = emitted.kernels.values()
    assert len({replace(k, name="k", instruction="") for k in made}) == len(made)
    moves = [name for name in emitted.kernels if name.startswith("count_staying")]
    assert len(moves) == 1  # of float64 and float32 alike
    assert {use.numerics for use in emitted.uses[moves[0]]} == {"float64", "float32"}
    assert len({use.step for use in emitted.uses[moves[0]]}) > 5
    assert re.search(r"^# +and \d+ more$", said(emitted, moves[0]), re.M)


def test_a_name_tells_all_that_decides_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    order = ("relax_rows", dict(EXAMPLE), "float32", 4, 3)
    others = [
        ("relax_rows", {**EXAMPLE, "BR": 8}, *order[2:]), ("relax_rows", {**EXAMPLE, "RELU": False}, *order[2:]),
        (*order[:2], "float64", 4, 3), (*order[:3], 8, 3), (*order[:4], 2),
    ]  # fmt: skip
    names = {make_kernel(f, tuple(sorted(c.items())), *rest).name for f, c, *rest in (order, *others)}
    assert len(names) == 1 + len(others)
    same = make_kernel("relax_rows", tuple(sorted(EXAMPLE.items())), "tf32x3", 4, 3)
    assert same.name in names, "a row pass is float32 in either"
    digest = catalogue.closure_digest
    monkeypatch.setattr(catalogue, "closure_digest", lambda module, function: digest(module, function)[::-1])
    assert make_kernel.__wrapped__("relax_rows", tuple(sorted(EXAMPLE.items())), "float32", 4, 3).name not in names


def test_constants_that_are_missing_or_strange_are_refused() -> None:
    with pytest.raises(ValueError, match=r"relax_rows: constants do not match: BQ \(missing\), MORE \(no constant of it\)"):
        make_kernel("relax_rows", tuple(sorted({**{k: v for k, v in EXAMPLE.items() if k != "BQ"}, "MORE": 1}.items())), "float64", 4, 3)


def test_no_entry_sums_more_terms_than_its_head_says(emitted: Emitter) -> None:
    """Counted by convolving ones; where the window is large enough for an inner cell, exactly as many."""
    both = Emitter(dict(emitted.kernels), {name: list(uses) for name, uses in emitted.uses.items()})
    for seed in range(4):  # groups, strides and dilations of all kinds
        network_kernels(compile_net(random_net(seed, image=True)), ("float64",), emitter=both)
    seen, tight = set(), 0
    for name in both.kernels:
        for use in both.uses[name] if name.startswith("conv_step") else ():
            c: dict[str, Any] = dict(use.constants)
            seen |= {key for key in ("G", "SH", "DH") if c[key] > 1}
            rows, weights = torch.ones(1, c["CO"], c["H"], c["W"]), torch.ones(c["CO"], c["CI"] // c["G"], c["KH"], c["KW"])
            terms = int(F.conv_transpose2d(rows, weights, stride=(c["SH"], c["SW"]), dilation=(c["DH"], c["DW"]), groups=c["G"]).max())
            found = re.search(r"K = (\d+) terms an entry, in blocks of (\d+)", said(both, name))
            assert found is not None
            assert terms <= int(found[1])
            assert int(found[2]) <= min(c["BK"], c["CO"] // c["G"])
            tight += terms == int(found[1])
    assert seen == {"G", "SH", "DH"}
    assert tight > 3


def headers() -> str:
    emitter = Emitter()
    network_kernels(compile_net(toy_residual()), ("float32", "tf32x3"), TILES, emitter)
    return "\n".join(HASH.sub("HASH", said(emitter, name)) for name in emitter.kernels)


def test_headers_are_as_filed() -> None:
    assert headers() == GOLDEN.read_text(), "run `python -m tests.artifact.test_artifact_kernels` and read the diff"


# ---- round trip -------------------------------------------------------------------------------------------------


def test_reads_back_what_was_written(verifier: polytriton.Verifier, kernels: Kernels, poly: Path, tmp_path: Path) -> None:
    back = A.read_artifact(poly)
    assert back.kernels is not None
    assert back.compiled == verifier.compiled
    assert back.kernels.used == kernels.used
    assert back.kernels.steps == kernels.steps
    assert back.kernels.machine == kernels.machine
    assert back.kernels.triton == "3.7.1"
    assert back.kernels.reports == tuple(replace(r, seconds=0.0, cached=True) for r in kernels.reports)
    assert back.manifest.options == {"output": "y", "candidates": "all", "target": "cuda:80,cuda:90", "numerics": "float64,float32"}
    assert back.kernels.filed == kernels.filed
    assert back.compiled.filed is None
    assert set(contents(poly)) == {A.MANIFEST, *A.FILES, REPORT, INDEX, LAUNCHES, *map(code_path, kernels.gpus)}
    again = replace(kernels, reports=tuple(replace(r, seconds=9.0, cached=True) for r in kernels.reports))
    assert contents(A.write_artifact(verifier, tmp_path / "again.poly", again)) == contents(poly)
    assert contents(polytriton.load(poly).save(tmp_path / "saved.poly")) == contents(poly)
    moved = shutil.move(poly, tmp_path / "moved.poly")
    x = np.array(tiny.BRIGHT).reshape(1, 2, 2)
    assert polytriton.load(moved).verify(x, 0.1).verdict == "unsat"


def test_emitted_kernels_need_no_report(verifier: polytriton.Verifier, tmp_path: Path) -> None:
    made = emit_files(verifier.compiled, ("interpret",), ("float32",))
    assert made.machine == made.gpus == ()
    path = A.write_artifact(verifier, tmp_path / "net.poly", made)
    assert not (path / REPORT).exists()
    assert A.read_artifact(path).kernels == made
    both = emit_files(verifier.compiled, ("interpret", "cuda:90"), ("float32",))
    assert both.steps.keys() == made.steps.keys() | emit_files(verifier.compiled, ("cuda:90",), ("float32",)).steps.keys()
    assert len(both.machine) < len(both.steps)


def test_without_kernels_nothing_is_added(verifier: polytriton.Verifier, tmp_path: Path) -> None:
    path = verifier.save(tmp_path / "net.poly")
    assert set(contents(path)) == {A.MANIFEST, *A.FILES}
    assert A.read_artifact(path).kernels is None
    assert A.read_artifact(path).manifest.options == {"output": "y", "candidates": "all"}


# ---- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("file", [REPORT, INDEX, LAUNCHES, code_path("cuda:90")])
def test_damage_is_refused(poly: Path, file: str, kind: str) -> None:
    path = poly / file
    DAMAGE[kind](path)
    with pytest.raises(ArtifactError) as refused:
        polytriton.load(poly)
    assert path.name in refused.value.message
    assert "polytriton compile" in refused.value.remedy


def changed(entry: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    return {**entry, "constants": {**entry["constants"], name: value}}


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: {**entry, "family": "measure_boxes"},
        lambda entry: {**entry, "family": "os.system"},
        lambda entry: {**entry, "numerics": []},
        lambda entry: {**entry, "numerics": ["float8"]},
        lambda entry: {**entry, "parameters": dict(reversed(entry["parameters"].items()))},
        lambda entry: {**entry, "parameters": {**entry["parameters"], "out_ptr": "*i64"}},
        lambda entry: {**entry, "parameters": {}},
        lambda entry: {**entry, "warps": 2},
        lambda entry: {**entry, "stages": 2},
        lambda entry: changed(entry, "SUM_ERROR", 1.0),
        lambda entry: changed(entry, "MORE", 1),
        lambda entry: changed(entry, "BR", "tl.float64"),
    ],
)  # fmt: skip
def test_a_kernel_is_what_its_name_says(poly: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    index = json.loads((poly / INDEX).read_text())
    name = next(n for n in index["kernels"] if n.startswith("dense_step"))
    index["kernels"][name] = change(index["kernels"][name])
    (poly / INDEX).write_text(json.dumps(index))
    reseal(poly)
    with pytest.raises(ArtifactError, match=r"the kernels of .* do not fit each other") as refused:
        polytriton.load(poly)
    assert "--target cuda:80,cuda:90" in refused.value.remedy


@pytest.mark.parametrize("text", ["", "[]", "{", '{"library": 1}'])
def test_an_index_of_another_hand_is_refused(poly: Path, text: str) -> None:
    (poly / INDEX).write_text(text)
    reseal(poly)
    with pytest.raises(ArtifactError, match=r"the kernels of .* do not fit each other"):
        A.read_artifact(poly)


def test_kernels_of_another_library_are_stale(poly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytriton.kernels.files.library_digest", lambda: "0" * 64)
    with pytest.raises(ArtifactError, match=r"are stale: another version of polytriton made them") as refused:
        polytriton.load(poly)
    assert "polytriton compile NET.onnx" in refused.value.remedy


def test_the_library_is_all_that_decides_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name for name, _ in stock._sources(resources.files("polytriton.kernels"), "")}
    assert {"catalogue.py", "launches.py", "device/dense.py", "device/numerics.py"} <= names
    before = stock.library_digest()
    monkeypatch.setattr(stock, "_sources", lambda *_: [("dense.py", b"else")])
    stock.library_digest.cache_clear()
    try:
        assert stock.library_digest() != before
    finally:
        stock.library_digest.cache_clear()


@pytest.mark.parametrize("change", ["steps", "launches", "kernels"])
def test_made_again_whatever_was_written_otherwise_shows(verifier: polytriton.Verifier, kernels: Kernels, change: str) -> None:
    assert differing(kernels, verifier.compiled) == []
    filed = kernels.filed
    first = next(iter(filed.kernels))
    if change == "steps":
        other, name = replace(kernels, steps={**kernels.steps, first: ("%else",)}), INDEX
    elif change == "launches":
        key, text = next(iter(filed.programs.items()))
        other, name = replace(kernels, filed=replace(filed, programs={**filed.programs, key: text + "// mine\n"})), LAUNCHES
    else:
        other, name = replace(kernels, filed=replace(filed, kernels={k: v for k, v in filed.kernels.items() if k != first})), INDEX
    assert differing(other, verifier.compiled) == [name]


def test_files_the_manifest_does_not_name_are_ignored(poly: Path) -> None:
    before = A.read_artifact(poly)
    (poly / "kernels" / "notes.txt").write_text("mine")
    (poly / "kernels" / "__pycache__").mkdir()
    (poly / "kernels" / "another_0123456789.py").write_text("raise SystemExit")
    assert A.read_artifact(poly) == before


@pytest.mark.parametrize(
    "name",
    [
        "kernels/../evil.py",
        "kernels/../../evil.py",
        "/etc/kernels/evil.py",
        "../kernels/evil.py",
        "kernels//evil.py",
        "kernels/sub/evil.py",
        "kernels\\evil.py",
        "kernels/evil.py\n",
        "kernels/evil.pyc",
        "kernels/Evil.py",
        "kernels/.py",
        "kernels/.hidden.py",
        "kernels/évil.py",
        "kernels/report.json/x.py",
        "kernels/reportXjson",
        "kernels/" + "a" * 300 + ".py",
        "kernels",
        "evil.py",
    ],
)
def test_no_name_leads_outside(poly: Path, name: str) -> None:
    reseal(poly, named(poly) | {name})
    with pytest.raises(ArtifactError, match=r"manifest\.json is damaged"):
        A.read_artifact(poly)


@pytest.mark.parametrize(
    "options",
    [
        {"target": "cuda:90,tpu", "numerics": "float64"},
        {"target": "", "numerics": "float64"},
        {"target": "cuda:80,cuda:90", "numerics": "float8"},
        {"target": "cuda:80,cuda:90"},
        {"target": "interpret", "numerics": "float64,float32"},
        {},
    ],
)
def test_options_that_do_not_fit_are_refused(poly: Path, options: dict[str, str]) -> None:
    reseal(poly, options={"output": "y", "candidates": "all", **options})
    with pytest.raises(ArtifactError, match=r"manifest\.json is damaged"):
        A.read_artifact(poly)


def test_other_numerics_have_other_kernels(poly: Path) -> None:
    reseal(poly, options={"output": "y", "candidates": "all", "target": "cuda:80,cuda:90", "numerics": "float64"})
    with pytest.raises(ArtifactError, match=r"index\.json is of cuda:80, cuda:90 in float64, float32"):
        A.read_artifact(poly)


def _first(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda report: {**report, "kernels": [{**report["kernels"][0], **changes}, *report["kernels"][1:]]}


@pytest.mark.parametrize(
    "change",
    [
        _first(name="another"),
        _first(target="cuda:86"),
        _first(registers="many"),
        lambda report: {**report, "kernels": report["kernels"][1:]},
        lambda report: {**report, "kernels": [{"name": "x"}]},
        lambda report: {**report, "kernels": None},
        lambda report: {"kernels": report["kernels"]},
        lambda report: {**report, "more": 1},
        lambda report: [],
    ],
)
def test_a_report_on_something_else_is_refused(poly: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    (poly / REPORT).write_text(json.dumps(change(json.loads((poly / REPORT).read_text()))))
    reseal(poly)
    with pytest.raises(ArtifactError, match=r"report\.json is not the report on these kernels"):
        A.read_artifact(poly)


# ---- writing ----------------------------------------------------------------------------------------------------


def test_replaces_an_artifact_with_kernels_even_a_damaged_one(verifier: polytriton.Verifier, kernels: Kernels, poly: Path) -> None:
    before = contents(poly)
    (poly / INDEX).write_text("?")
    (poly / "kernels" / "conv_step_0123456789.py").write_text("as artifacts of earlier formats hold them")
    (poly / REPORT).unlink()
    (poly / A.MANIFEST).unlink()
    A.write_artifact(verifier, poly, kernels)
    assert contents(poly) == before
    verifier.save(poly)
    assert set(contents(poly)) == {A.MANIFEST, *A.FILES}
    assert [p.name for p in poly.parent.iterdir()] == ["net.poly"]


def test_never_replaces_what_is_not_its_own(verifier: polytriton.Verifier, poly: Path) -> None:
    (poly / "kernels" / "notes.txt").write_text("precious")
    before = contents(poly)
    with pytest.raises(UsageError, match="not overwritten"):
        verifier.save(poly)
    assert contents(poly) == before
    shutil.rmtree(poly / "kernels")
    (poly / "kernels").write_text("a file")
    with pytest.raises(UsageError, match="not overwritten"):
        verifier.save(poly)
    assert (poly / "kernels").read_text() == "a file"


@pytest.mark.parametrize("at", [0, 5, -3, -1])
@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_leaves_nothing_behind(
    verifier: polytriton.Verifier, kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, existing: bool
) -> None:
    """Whichever file it is that no longer fits: that of a kernel, or the folder itself."""
    path = tmp_path / "net.poly"
    before = contents(verifier.save(path)) if existing else {}
    total = len(A.FILES) + 1 + len(kernels.contents()) + 2  # every file once, both folders
    calls = 0

    def fail(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls - 1 == at % total:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(ResourceError, match="disk is full"):
            A.write_artifact(verifier, path, kernels)
    assert [p.name for p in tmp_path.iterdir()] == ["net.poly"] * existing
    assert (contents(path) if existing else {}) == before


if __name__ == "__main__":
    GOLDEN.write_text(headers())
