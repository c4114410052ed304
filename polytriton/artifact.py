"""net.poly/: a compiled network on disk, written whole or not at all and read only when every byte is as it was written.

    manifest.json        versions, the ONNX file's hash, options, and hash and size of every other file
    net.ptir             the folded network          plan.ptir     its plan
    weights.safetensors  the arrays `net.ptir` names  model.onnx    the original model, on which counterexamples are replayed
    tuned.json           configurations that `polytriton tune` chose, where it has been run
    kernels/             for targets that run generated kernels: which they are, their launches, machine code and reports

The hashes find damage and mistakes, not forgery: an artifact deserves the trust of the folder it lies in. The plan is made again from
the network and compared. Reading runs nothing: whose kernels are run is said in known.py.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

import polytriton
from polytriton.arithmetic import ARITHMETICS
from polytriton.errors import ArtifactError, NoSpace, PolytritonError, UnsupportedModel, UsageError
from polytriton.frontend.onnx import Imported, Source
from polytriton.guard import guard
from polytriton.ir.check import check_net
from polytriton.ir.net import Net
from polytriton.ir.plan_text import print_plan
from polytriton.ir.text import parse_net, print_net
from polytriton.kernels.files import FOLDER, INDEX, LAUNCHES, REPORT, TARGETS, Kernels, Stale, code_path, read_files
from polytriton.kernels.sass import LIMITS
from polytriton.limit import CHUNK, go_on, sha256
from polytriton.passes.pipeline import Compiled, make_plan
from polytriton.tuned import TUNED, Tuned, decode

FORMAT, VERSION = "polytriton artifact", 7
MANIFEST, NET, PLAN, WEIGHTS, MODEL = "manifest.json", "net.ptir", "plan.ptir", "weights.safetensors", "model.onnx"
FILES = (NET, PLAN, WEIGHTS, MODEL)
CODE = {target: code_path(target) for target in LIMITS}
KERNELS = frozenset({REPORT, INDEX, LAUNCHES, *CODE.values()})  # all that a manifest may add
FORMER = re.compile(rf"{FOLDER}/[a-z][a-z0-9_]{{0,99}}\.py", re.ASCII)  # a kernel in artifacts up to format 6, which may be replaced
MAX_MANIFEST = 1 << 20
AGAIN = "compile it again: polytriton compile NET.onnx -o {path}"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RACE = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT)


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`digest` is of the manifest itself, written with an empty digest."""

    format: str
    version: int
    polytriton: str
    source: Source
    options: dict[str, str]
    files: dict[str, FileEntry]
    digest: str = ""

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    def seal(self) -> Manifest:
        blank = msgspec.structs.replace(self, digest="")
        return msgspec.structs.replace(blank, digest=sha256(blank.encode()))


@dataclass(frozen=True)
class Artifact:
    """What a folder holds. `imported.net` is the folded network: the one before folding is not kept."""

    compiled: Compiled
    imported: Imported
    manifest: Manifest
    kernels: Kernels | None = None
    tuned: Tuned | None = None


# ---- writing --------------------------------------------------------------------------------------------------


@guard
def pack(
    compiled: Compiled, imported: Imported, kernels: Kernels | None = None, tuned: Tuned | None = None
) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest and the contents of the other files; the same network gives the same bytes."""
    net, plan = compiled.net, compiled.plan
    go_on()
    contents = {
        NET: print_net(net).encode(),
        PLAN: print_plan(plan).encode(),
        WEIGHTS: save_tensors({k: np.ascontiguousarray(net.weights[k]) for k in sorted(net.weights)}),
        MODEL: imported.model,
    }
    options = {"output": imported.source.output_name, "candidates": plan.candidates}
    if kernels is not None:
        contents |= kernels.contents()
        options |= {"target": ",".join(kernels.targets), "numerics": ",".join(kernels.numerics)}
    if tuned is not None:
        contents[TUNED] = tuned.encode()
    entries = {}
    for name, data in contents.items():
        entries[name] = FileEntry(sha256(data), len(data))
    return Manifest(FORMAT, VERSION, polytriton.__version__, imported.source, options, entries).seal(), contents


class _Packable(Protocol):
    """What can be written: a Verifier is."""

    compiled: Compiled
    imported: Imported | None


@guard
def write_artifact(verifier: _Packable, path: str | os.PathLike[str], kernels: Kernels | None = None, tuned: Tuned | None = None) -> Path:
    """Writes the artifact beside its place and moves it there; an artifact that lies there is replaced."""
    if verifier.imported is None:
        raise UnsupportedModel("this verifier was made without an ONNX model: there is nothing to replay on", "compile the ONNX file")
    given, target = Path(path), Path(os.path.realpath(path))
    _check_replaceable(target, given)
    manifest, contents = pack(verifier.compiled, verifier.imported, kernels, tuned)
    made = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with _explain(given, sum(map(len, contents.values()))):
        try:
            os.mkdir(made)
            if kernels is not None:
                os.mkdir(made / FOLDER)
            for name, data in {**contents, MANIFEST: manifest.encode()}.items():
                go_on()
                _write(made / name, data)
            if kernels is not None:
                _sync_folder(made / FOLDER)
            _sync_folder(made)
            _move_into_place(made, target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    return given


def _check_replaceable(target: Path, given: Path) -> None:
    """Only what looks like an artifact, even a damaged one, or an empty folder may be overwritten."""
    if not os.path.lexists(target):
        if not target.parent.is_dir():
            raise UsageError(f"cannot write {given}: there is no folder {given.parent}", "make the folder first, or choose another with -o")
        return
    for _ in range(16):  # another writer may be moving the old one aside: a listing counts if the folder stayed in its place
        try:
            before = os.stat(target)
            held = _list_names(target) if target.is_dir() else {""}
            after = os.stat(target)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if (before.st_ino, before.st_dev) != (after.st_ino, after.st_dev):
            continue
        own = {name for name in held if name in (*FILES, MANIFEST, TUNED) or name in KERNELS or FORMER.fullmatch(name)}
        if held and not (held == own and held & {NET, PLAN}):
            what = "a file" if held == {""} else "a folder that is no artifact"
            raise UsageError(f"{given} is {what}: it is not overwritten", "choose another place with -o, for example NET.poly")
        return


def _list_names(folder: Path) -> set[str]:
    """The names in a folder, those of its kernels among them."""
    names = set(os.listdir(folder))
    if (folder / FOLDER).is_dir():
        names = (names - {FOLDER}) | {f"{FOLDER}/{name}" for name in os.listdir(folder / FOLDER)}
    return names


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        for at in range(0, len(data), CHUNK):
            file.write(memoryview(data)[at : at + CHUNK])
            go_on()
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    if os.name == "posix":
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _exchange(made: Path, target: Path) -> bool:
    """Two folders change places in one step, where the system can: no moment without an artifact, even for a killed process."""
    if sys.platform != "linux" or not target.is_dir():
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(made), here, os.fsencode(target), swap) == 0


def _move_into_place(made: Path, target: Path) -> None:
    """A folder cannot be renamed over a full one: the old one steps aside first, and comes back if the new one cannot enter."""
    if _exchange(made, target):
        shutil.rmtree(made, ignore_errors=True)
        _sync_folder(target.parent)
        return
    for attempt in range(16):
        aside = made.with_suffix(f".{attempt}.old")
        try:
            if os.path.lexists(target):
                os.rename(target, aside)
            os.rename(made, target)
            break
        except BaseException as error:
            if aside.exists() and not os.path.lexists(target):
                with suppress(OSError):  # another writer's has just come: then that one stays
                    os.rename(aside, target)
            if not isinstance(error, OSError) or error.errno not in RACE or attempt == 15:
                raise  # otherwise another process put its own there meanwhile
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    _sync_folder(target.parent)


@contextmanager
def _explain(path: Path, size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise NoSpace(
                f"the disk is full: {path} was not written", f"free {size / 2**20:.1f} MiB, or choose another place with -o"
            ) from error
        raise UsageError(f"cannot write {path}: {error.strerror or error}", "choose a folder you may write to with -o") from error


# ---- reading --------------------------------------------------------------------------------------------------


@guard
def read_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Opens an artifact; anything stale, foreign or damaged is refused with the file's name and a remedy."""
    path = Path(path)
    for _ in range(16):  # another process may put its own there meanwhile: half of one and half of the other is no damage
        before = _identity(path)
        try:
            return _read_artifact(path)
        except ArtifactError:
            if _identity(path) == before:
                raise
    return _read_artifact(path)


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_mtime_ns


def _read_artifact(path: Path) -> Artifact:
    again = AGAIN.format(path=path)
    manifest = _manifest(path, again)
    contents = {name: _contents(path, name, entry, again) for name, entry in manifest.files.items()}
    try:
        net = _net(contents[NET], contents[WEIGHTS])
        plan = make_plan(net, manifest.options.get("candidates", ""))
    except (PolytritonError, SafetensorError, ValueError) as error:
        why = error.message if isinstance(error, PolytritonError) else str(error)
        raise ArtifactError(f"{path}: its network does not check: {why[:300]}", again) from error
    if print_plan(plan).encode() != contents[PLAN]:
        raise ArtifactError(f"{path}/{PLAN} is not the plan this version makes for {NET}", again)
    compiled = Compiled(net, plan)
    kernels = _kernels(path, manifest, contents, again)
    try:
        tuned = decode(contents[TUNED]) if TUNED in contents else None
    except ValueError as error:
        raise ArtifactError(f"{path}/{TUNED} holds no configurations of this version: {str(error)[:200]}", again) from error
    return Artifact(compiled, Imported(net, manifest.source, contents[MODEL]), manifest, kernels, tuned)


def _kernels(path: Path, manifest: Manifest, contents: dict[str, bytes], again: str) -> Kernels | None:
    """The kernels as they were filed, if this library made them."""
    if "target" not in manifest.options:
        return None
    again = f"{again} --target {manifest.options['target']}"
    held = {name: data for name, data in contents.items() if name not in (*FILES, TUNED)}
    try:
        kernels = read_files(held, manifest.options["target"].split(","), manifest.options["numerics"].split(","))
    except Stale as error:
        raise ArtifactError(f"the kernels of {path} are stale: {error}", again) from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise ArtifactError(f"the kernels of {path} do not fit each other: {str(error)[:200]}", again) from error
    try:
        code = {target: contents[path] for target, path in CODE.items() if path in contents}
        return kernels.with_reports(contents[REPORT], code) if REPORT in contents else kernels
    except (msgspec.MsgspecError, ValueError) as error:
        raise ArtifactError(f"{path}/{REPORT} is not the report on these kernels", again) from error


def _net(text: bytes, weights: bytes) -> Net:
    net = parse_net(text.decode(), load_tensors(weights))
    check_net(net)
    if net.rebuild(net.nodes).weights.keys() != net.weights.keys():
        raise ValueError(f"{WEIGHTS} holds arrays that {NET} does not name")
    return net


def _manifest(path: Path, again: str) -> Manifest:
    if not os.path.lexists(path):
        raise ArtifactError(f"there is no artifact {path}", f"check the path, or {again}")
    if not path.is_dir():
        hint = f"compile it first: polytriton compile {path}" if path.suffix == ".onnx" else again
        raise ArtifactError(f"{path} is a file; an artifact is a folder", hint)
    data = _read(path, MANIFEST, MAX_MANIFEST, again, missing=f"{path} is not an artifact, or lost its {MANIFEST}")
    damaged = ArtifactError(f"{path}/{MANIFEST} is damaged", again)
    try:
        head = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ArtifactError(f"{path} is not a polytriton artifact: its {MANIFEST} is another program's, or damaged", again)
    versions = head.get("version"), head.get("polytriton")
    if versions != (VERSION, polytriton.__version__):
        raise ArtifactError(
            f"{path} is stale: polytriton {versions[1]} wrote it (format {versions[0]}), this is {polytriton.__version__} ({VERSION})",
            again,
        )
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise damaged from error
    if manifest.encode() != data or manifest.seal() != manifest or not _whole(manifest):
        raise damaged
    return manifest


def _whole(manifest: Manifest) -> bool:
    """Whether it names the fixed files and, with a target that has kernels, only files of theirs."""
    options, more = manifest.options, manifest.files.keys() - {*FILES, TUNED}
    if min((entry.bytes for entry in manifest.files.values()), default=0) < 0:
        return False
    if not manifest.files.keys() >= set(FILES) or not more <= KERNELS:
        return False
    if "target" not in options:
        return not more and "numerics" not in options
    targets, numerics = options["target"].split(","), options.get("numerics", "").split(",")
    code = {CODE[t] for t in targets if t in CODE}
    known = set(targets) <= set(TARGETS) and set(numerics) <= ARITHMETICS.keys()
    return known and {INDEX, LAUNCHES} <= more and (REPORT in more) == bool(code) and code == more & set(CODE.values())


def _contents(path: Path, name: str, entry: FileEntry, again: str) -> bytes:
    data = _read(path, name, entry.bytes, again, missing=f"{path}/{name} is missing")
    if len(data) != entry.bytes:
        raise ArtifactError(f"{path}/{name} is damaged: it has {len(data)} bytes, {entry.bytes} were written", again)
    if sha256(data) != entry.sha256:
        raise ArtifactError(f"{path}/{name} is damaged: its contents have changed", again)
    return data


def _read(path: Path, name: str, limit: int, again: str, missing: str) -> bytes:
    """One regular file of the artifact. Names are the fixed ones above or of KERNELS: nothing outside is opened."""
    try:
        info = os.stat(path / name)
        if not stat.S_ISREG(info.st_mode):
            raise ArtifactError(f"{path}/{name} is not a file", again)
        with open(path / name, "rb") as file:
            data = file.read(min(limit, info.st_size) + 1)  # a limit is no size to allocate
    except FileNotFoundError:
        raise ArtifactError(missing, again) from None
    except OSError as error:
        raise ArtifactError(f"cannot read {path}/{name}: {error.strerror or error}", "check its permissions, or " + again) from error
    return data
