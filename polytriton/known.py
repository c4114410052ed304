"""Whose machine code is run: what this user's polytriton has compiled, or what the user trusts.

Kernels are the library's own, whoever filed them: an artifact says which family and which constants, and their names are digests of that.
A mark in the cache's folder names a digest of all that decides and holds an artifact's launches and machine code: with it they run as they
are, and where the user's trust alone made it, every record says so. Without it launches, which say what runs on what, are made again and
compared; machine code may be anything and takes a compiler to compare: it is left to Triton to compile, or to the user to trust.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace

from polytriton.artifact import NET, PLAN, WEIGHTS, Artifact, Manifest
from polytriton.errors import ArtifactError
from polytriton.ir.launches import Filed
from polytriton.kernels.files import FOLDER, differing
from polytriton.kernels.stock import library_digest
from polytriton.knobs import is_own, knobs, tell

MARKS = 4096  # the oldest beyond these are dropped
TRUSTED = "trusted"  # what the mark of machine code from elsewhere says


def code_digest(manifest: Manifest) -> str:
    """Of the network, the plan and the library, which decide the kernels, and of the kernels with their machine code."""
    held = {name for name in manifest.files if name in (NET, PLAN, WEIGHTS) or name.startswith(f"{FOLDER}/")}
    lines = [f"{name} {manifest.files[name].sha256}" for name in sorted(held)]
    return hashlib.sha256("\n".join([library_digest(), str(sorted(manifest.options.items())), *lines]).encode()).hexdigest()


def remember(manifest: Manifest, trusted: bool = False) -> bool:
    """Marks an artifact's launches and machine code as this user's own, or as trusted. False where nothing can be kept."""
    folder = knobs().cache
    if folder is None:
        return False
    with suppress(OSError):
        (folder / "known").mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = folder / "known" / code_digest(manifest)
        if not trusted or not mark.exists():  # what was compiled here needs nobody's trust
            mark.write_text(TRUSTED if trusted else "")
        marks = sorted((folder / "known").iterdir(), key=lambda path: path.stat().st_mtime)
        for old in marks[:-MARKS]:
            old.unlink(missing_ok=True)
    return is_known(manifest)


def is_known(manifest: Manifest) -> bool:
    return _read_mark(manifest) is not None


def _read_mark(manifest: Manifest) -> str | None:
    """What the mark says, if there is one, in a folder that is this user's own: whoever else could write there could make one."""
    folder = knobs().cache
    if folder is None or not is_own(folder / "known"):
        return None
    with suppress(OSError, UnicodeDecodeError):
        return (folder / "known" / code_digest(manifest)).read_text()
    return None


def compare_kernels(artifact: Artifact) -> None:
    """ArtifactError where this version would take another kernel or other launches for the network."""
    assert artifact.kernels is not None
    odd = differing(artifact.kernels, artifact.compiled)
    if odd:
        more = f", nor are {len(odd) - 1} more" if len(odd) > 1 else ""
        targets = ",".join(artifact.kernels.targets)
        again = f"compile it again: polytriton compile NET.onnx -o NET.poly --target {targets}"
        raise ArtifactError(f"the artifact's {odd[0]} is not what this version makes of its network{more}", again)


def filed_kernels(artifact: Artifact) -> Filed | None:
    """What a run may take from the artifact's kernels."""
    if artifact.kernels is None:
        return None
    mark = _read_mark(artifact.manifest)
    if mark is None:
        compare_kernels(artifact)
    filed = replace(artifact.kernels.filed, plan=artifact.compiled.plan)
    if not filed.code or mark is not None:
        return replace(filed, trusted=bool(filed.code) and mark == TRUSTED)
    tell("the artifact's machine code was made elsewhere and is not run: trust it by `polytriton inspect NET.poly --trust`, once")
    return replace(filed, code={}, triton="")
