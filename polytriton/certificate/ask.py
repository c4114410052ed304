"""Certificates of what is about to be asked: what would keep one from being written is said before the search."""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path

import numpy as np

from polytriton.certificate.guide import silent
from polytriton.certificate.write import Read, write
from polytriton.checker import Progress, load
from polytriton.checker_boxes import SEMANTICS, Boxes, outward
from polytriton.checker_files import Divides, Network, Pieces, Refused
from polytriton.errors import NoSpace, UnsupportedModel, UsageError
from polytriton.explain import explain
from polytriton.frontend.nnet import is_nnet
from polytriton.frontend.query import Property
from polytriton.guard import guard
from polytriton.prove.trail import Trail
from polytriton.whole import told_of_writing

REMEDY = "verify without a certificate, or see docs/certificates.md for what the checker reads"
MULTIPLIED = "multiply its inequalities until none needs a quotient: (<= (* 3.0 X_0) 1.0) for a third"
UNWRITTEN = "unsat stands, but the certificate could not be written"
SOME = 16  # boxes of a property that are tried


def term(semantics: str) -> str:
    """What a certificate calls these executions: no network that the checker reads has a smooth function whose error they could state."""
    return semantics.partition(",")[0]


def check_covered(semantics: str, network: Path | None) -> None:
    """Says what no certificate is about."""
    if term(semantics) not in SEMANTICS:
        raise UsageError(f"certificates cover {', '.join(SEMANTICS)}, not {term(semantics)} executions", "add --semantics float32")
    if network is not None and (network.is_dir() or network.suffix == ".poly"):
        raise UsageError(
            f"a certificate is about an ONNX file, {network} is compiled",
            "give NET.onnx, whose compilation the cache keeps; of a network behind an input map there is none",
        )
    if network is not None and is_nnet(network):
        raise UsageError(
            f"a certificate is about an ONNX file, {network} is none", 'in Python: onnx.save(polytriton.read_nnet("NET.nnet"), "NET.onnx")'
        )


def check_writable(folder: Path, what: str) -> None:
    """Files may be written there, as a search's notes will be."""
    with told_of_writing(what), tempfile.TemporaryFile(dir=folder):
        pass


def certifiable(network: Path, prop: Path, target: Path, semantics: str) -> Read:
    """Says before a long run what would keep its certificate from being written; returns both files as the checker reads them."""
    check_covered(semantics, network)
    semantics = term(semantics)
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise UsageError(f"cannot write a certificate to {target}", "name a file in an existing folder")
    check_writable(target.absolute().parent, f"a certificate to {target}")
    try:
        read = load(network, prop)
    except Divides as error:
        divides = "no certificate can be made: the property divides, and the checker reads decimals alone"
        raise UnsupportedModel(divides, MULTIPLIED) from error
    except Refused as error:
        raise UnsupportedModel(f"no certificate can be made: {error}", REMEDY) from error
    if semantics != "real":
        try:
            check_magnitudes(read[0], read[1], semantics)
        except Refused as error:
            raise UnsupportedModel(f"no certificate can be made of {error}", _other(read[0], semantics)) from error
    return read


def _other(net: Network, semantics: str) -> str:
    """What to do where the checker follows no such executions of a network."""
    if net.strange or semantics == "float32":  # beyond the range of float32 all others are too
        return "add --semantics real"
    if net.wide:
        return "add --semantics float32 or real, or export the model in float32"
    if semantics != "float16":
        return "add --semantics real"
    folded = ", or fold operators in a row into one Gemm or Conv" * bool(net.merged)
    return f"add --semantics tf32, bf16, float32 or real{folded}"


@guard
@np.errstate(all="ignore")
def check_magnitudes(net: Network, pieces: Pieces, semantics: str) -> None:
    """Refused where the checker follows no such executions of the network; or where intervals alone leave the range in which it does, over
    a box of the property. What substitution narrows may stay inside, so only the layers before the first ReLUs are asked: there intervals
    are all that there is."""
    for box in islice(pieces, SOME):
        lo, hi = outward(box)
        boxes = Boxes(net, lo[:, None], hi[:, None], semantics)
        for k, op in enumerate(net.ops):
            if op.kind == "relu":
                break
            if k:
                boxes.interval(k)


def write_proof(
    network: Path,
    prop_file: Path,
    target: Path,
    semantics: str,
    trail: Trail | None,
    *,
    progress: Progress = silent,
    prop: Property | None = None,
    read: Read | None = None,
) -> int:
    """After an unsat: the certificate, whole or not at all; returns its size."""
    room = f"free some space in {target.absolute().parent}, or name a place elsewhere"
    try:
        return write(network, prop_file, target, term(semantics), progress, trail=trail, prop=prop, read=read)
    except Refused as error:
        raise UnsupportedModel(f"{UNWRITTEN}: {error}", room if trail is not None and trail.lost else REMEDY) from error
    except (OSError, MemoryError) as error:
        told = explain(error)
        raise UnsupportedModel(f"{UNWRITTEN}: {told.message}", room if isinstance(told, NoSpace) else told.remedy) from error


class Certifying:
    """A question whose proof is to be written to `target`: about files, both as the checker reads them, before it is asked. `derived`: the
    network is made of files, and is none: it lies behind an input map, or is several.
    """

    def __init__(self, network: Path, prop: Path, target: Path, semantics: str, *, derived: bool = False) -> None:
        if derived:
            raise UnsupportedModel(
                "no certificate can be made of a network behind an input map, or of several: it is about one ONNX file",
                "state the property over the network's own inputs, or verify without a certificate",
            )
        if not network.is_file() or not prop.is_file():
            raise UsageError("a certificate is about an ONNX file and a property file", "compile the model's path, and give the .vnnlib's")
        self.files, self.semantics = (network, prop, target), semantics
        self.read = certifiable(*self.files, semantics)
        self.trail = Trail(target.absolute().parent)

    def write(self) -> None:
        """After an unsat."""
        write_proof(*self.files, self.semantics, self.trail, read=self.read)
