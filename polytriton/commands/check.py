"""`polytriton check`, and what `polytriton verify --certificate` does besides verifying."""

from __future__ import annotations

import json as json_
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from polytriton.commands.options import argument, option
from polytriton.commands.screen import complain
from polytriton.errors import ArtifactError, UnsupportedModel, UsageError

REMEDY = "verify without --certificate, or see docs/certificates.md for what the checker reads"


def check(
    network: Annotated[Path, argument(metavar="NET.onnx", help="The network's ONNX file.")],
    prop: Annotated[Path, argument(metavar="PROP.vnnlib", help="The property: .vnnlib or .vnnlib.gz.")],
    certificate: Annotated[Path, argument(metavar="CERT", help="What verify --certificate wrote.")],
    *,
    json: Annotated[bool, option("--json", help="Say what was found as one JSON document.")] = False,
) -> int:
    """Check a certificate of an unsat verdict, trusting nothing of the verifier that wrote it.

    The first line is unsat if the certificate proves the property in exact arithmetic, else refused, with exit code 2. That
    a certificate is refused does not say that the property is violated.
    """
    from polytriton.checker import Refused, Unsupported
    from polytriton.checker import check as confirm

    for file in (network, prop, certificate):
        if not file.is_file():
            raise UsageError(f"there is no file {file}", "polytriton check NET.onnx PROP.vnnlib CERT")
    began = time.monotonic()
    try:
        margins, substitutions = confirm(network, prop, certificate)
    except Unsupported as error:
        raise UnsupportedModel(f"the checker does not read this: {error}", "see docs/certificates.md for what it reads") from error
    except Refused as error:
        print(json_.dumps({"verdict": "refused", "reason": str(error)}) if json else "refused")
        return complain(ArtifactError(f"certificate refused: {error}", "write it again: verify --semantics real --certificate FILE"))
    seconds = time.monotonic() - began
    found = {"verdict": "unsat", "semantics": "real", "margins": margins, "substitutions": substitutions, "seconds": round(seconds, 6)}
    print(json_.dumps(found) if json else "unsat")
    least = f"least margin {min(margins):.6g} of {len(margins)}" if margins else "the unsafe set has no piece"
    print(f"confirmed in exact arithmetic: {least}, {substitutions} substitutions, {seconds:.3f} s", file=sys.stderr)
    return 0


def certifiable(network: Path, prop: Path, target: Path, semantics: str) -> None:
    """Says before a long run what would keep its certificate from being written."""
    from polytriton.checker import Refused, load

    if semantics != "real":
        raise UsageError(f"certificates cover exact arithmetic, not {semantics} executions", "add --semantics real")
    if network.is_dir() or network.suffix == ".poly":
        raise UsageError(f"a certificate is about an ONNX file, {network} is compiled", "give NET.onnx; the cache keeps its compilation")
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise UsageError(f"cannot write a certificate to {target}", "name a file in an existing folder")
    try:
        load(network, prop)
    except Refused as error:
        raise UnsupportedModel(f"no certificate can be made: {error}", REMEDY) from error


def certify(network: Path, prop: Path, target: Path, verdict: str, progress: Callable[[str, int, int], None]) -> int:
    """Writes the certificate of an unsat; the exit code."""
    from polytriton.certificate.write import write
    from polytriton.checker import Refused

    if verdict != "unsat":
        print(f"polytriton: no certificate of {verdict}; {target} is left as it was", file=sys.stderr)
        return 0
    began = time.monotonic()
    try:
        size = write(network, prop, target, progress)
    except Refused as error:
        return complain(UnsupportedModel(f"unsat stands, but there is no certificate: {error}", "POLYTRITON_DEBUG=1 shows where it failed"))
    print(f"{target}: {size:,} bytes, {time.monotonic() - began:.3f} s", file=sys.stderr)
    return 0
