"""Whose launches and machine code are run: what this user's polytriton has made, or has made again and found the same.

Kernels are the library's own, whoever filed them: an artifact says which family and which constants, and their names are digests of
that. But launches say what runs on what, and machine code is anything. A mark in the cache's folder names a digest of all that decides
and holds them. Without a mark the launches are made again and compared, once, and machine code, which takes a compiler to compare, is
left to Triton to compile, or to the user to trust.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from polytriton.artifact import CODE, NET, PLAN, WEIGHTS, Artifact, Manifest
from polytriton.errors import ArtifactError
from polytriton.ir.launches import Filed
from polytriton.kernels.files import FOLDER, REPORT, differing
from polytriton.kernels.stock import library_digest
from polytriton.knobs import knobs, tell

LAUNCHED, MACHINE = "launches", "machine"  # what a mark is about
MARKS = 4096  # the oldest beyond these are dropped


def kernels_digest(manifest: Manifest, what: str) -> str:
    """Of the network, the plan and the library, which decide the launches, and of the launches; or of machine code as well."""
    compiled = {REPORT, *CODE.values()}
    held = {name for name in manifest.files if name in (NET, PLAN, WEIGHTS) or name.startswith(f"{FOLDER}/")}
    if what == LAUNCHED:
        held -= compiled
    lines = [f"{name} {manifest.files[name].sha256}" for name in sorted(held)]
    return hashlib.sha256("\n".join([what, library_digest(), str(sorted(manifest.options.items())), *lines]).encode()).hexdigest()


def remember(manifest: Manifest, *what: str) -> bool:
    """Marks an artifact's kernels as this user's own. False where nothing can be kept: they are made again the next time."""
    folder = knobs().cache
    if folder is None:
        return False
    with suppress(OSError):
        (folder / "known").mkdir(mode=0o700, parents=True, exist_ok=True)
        for one in what:
            (folder / "known" / kernels_digest(manifest, one)).touch()
        marks = sorted((folder / "known").iterdir(), key=lambda path: path.stat().st_mtime)
        for old in marks[:-MARKS]:
            old.unlink(missing_ok=True)
    return all(is_known(manifest, one) for one in what)


def is_known(manifest: Manifest, what: str) -> bool:
    """Whether there is a mark, in a folder that is this user's own: whoever else could write there could make one."""
    folder = knobs().cache
    return folder is not None and _own(folder / "known") and os.path.isfile(folder / "known" / kernels_digest(manifest, what))


def _own(folder: Path) -> bool:
    """Whether it is a folder of this user's that nobody else may write to; systems without such modes are believed."""
    try:
        info = os.lstat(folder)
    except (OSError, ValueError):
        return False
    if not stat.S_ISDIR(info.st_mode):
        return False
    return os.name != "posix" or (info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def compare_kernels(artifact: Artifact) -> None:
    """ArtifactError where this version would take another kernel or other launches for the network; else they are known from now on."""
    assert artifact.kernels is not None
    odd = differing(artifact.kernels, artifact.compiled)
    if odd:
        more = f", nor are {len(odd) - 1} more" if len(odd) > 1 else ""
        targets = ",".join(artifact.kernels.targets)
        again = f"compile it again: polytriton compile NET.onnx -o NET.poly --target {targets}"
        raise ArtifactError(f"the artifact's {odd[0]} is not what this version makes of its network{more}", again)
    remember(artifact.manifest, LAUNCHED)


def filed_kernels(artifact: Artifact) -> Filed | None:
    """What a run may take from the artifact's kernels."""
    if artifact.kernels is None:
        return None
    if not is_known(artifact.manifest, LAUNCHED):
        tell("the artifact's launches were made elsewhere: making them again to compare them, once")
        compare_kernels(artifact)
    filed = replace(artifact.kernels.filed, plan=artifact.compiled.plan)
    if not filed.code or is_known(artifact.manifest, MACHINE):
        return filed
    tell("the artifact's machine code was made elsewhere and is not run: trust it by `polytriton inspect NET.poly --trust`, once")
    return replace(filed, code={}, triton="")
