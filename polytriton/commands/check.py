"""`polytriton check`, and what `polytriton verify --certificate` does besides verifying."""

from __future__ import annotations

import json as json_
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from polytriton.commands.options import argument, option
from polytriton.commands.screen import Live, complain
from polytriton.errors import UNSUPPORTED, ArtifactError, UnsupportedModel, UsageError

if TYPE_CHECKING:
    from polytriton.certificate.write import Read
    from polytriton.checker import Checked
    from polytriton.runs.asker import Answer
    from polytriton.runs.records import Record

Way = Callable[..., "Checked"]
AGAIN = "write it again: verify --certificate FILE"
WEAKER = "the checker's own bounds do not reach as far: certify a slightly weaker property, or --semantics real"


def check(
    files: Annotated[
        list[Path],
        argument(metavar="NET.onnx PROP.vnnlib CERT | RUN", help="What verify --certificate was about and wrote; or a whole run."),
    ],
    *,
    json: Annotated[bool, option("--json", help="Say what was found as one JSON document.")] = False,
    sample: Annotated[int | None, option("--sample", metavar="N", help="Look at N leaves drawn at random: evidence, not proof.")] = None,
    workers: Annotated[
        int | None, option("--workers", metavar="N", help="Processes that share the tree; by default one for each CPU where that pays.")
    ] = None,
    exact: Annotated[bool, option("--exact", help="Without rounding, in integers: real certificates of small networks.")] = False,
    export: Annotated[
        Path | None, option("--export", metavar="FOLDER", help="Write the tree's leaves as properties that any verifier can decide.")
    ] = None,
    certificates: Annotated[
        Path | None, option("--certificates", metavar="FOLDER", help="Of a run: what run --certificates wrote; else beside the results.")
    ] = None,
    root: Annotated[
        Path | None, option("--root", metavar="FOLDER", help="Of a run: where the paths in its results start, as in its list of instances.")
    ] = None,
) -> int:
    """Check a certificate of an unsat verdict, trusting nothing of the verifier that wrote it.

    The first line is unsat if the certificate proves the property for the executions that it names, else refused, with exit
    code 2. That a certificate is refused does not say that the property is violated. With --sample the first line is sampled.
    Of a run, a results file or a folder with results.jsonl, every unsat is looked up: a table says which are confirmed; exit
    code 2 says that a certificate is refused, 3 that none is but some are missing.
    """
    if sample is not None and sample < 1:
        raise UsageError(f"--sample {sample}: at least one leaf is looked at", "--sample 100")
    if workers is not None and (workers < 1 or sample is not None or exact):
        raise UsageError("--workers takes at least 1, and goes with neither --sample nor --exact", "--workers 4")
    if exact and sample is not None:
        raise UsageError("--exact looks at every leaf", "leave --sample out")
    if len(files) == 1:
        from polytriton.commands.audit import audit

        if sample is not None or export is not None or exact:
            raise UsageError("--sample, --exact, --export: of one certificate", "polytriton check NET.onnx PROP.vnnlib CERT")
        return audit(files[0], certificates, root or Path(), workers, json=json)
    if len(files) != 3:
        usage = "polytriton check NET.onnx PROP.vnnlib CERT"
        raise UsageError(f"a network, a property and a certificate are needed, {len(files)} files given", usage)
    if certificates is not None or root is not None:
        raise UsageError("--certificates and --root belong to a run", "polytriton check RUN")
    if export is not None and (not export.absolute().parent.is_dir() or (export.exists() and not _empty(export))):
        raise UsageError(f"cannot export to {export}", "name a new folder, in one that there is")
    network, prop, certificate = files
    code = _check_one(network, prop, certificate, _way(sample, workers, exact), sample, json=json)
    return code if code or export is None else _export(network, prop, certificate, export)


def _empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _export(network: Path, prop: Path, certificate: Path, folder: Path) -> int:
    """The leaves of a certificate that was confirmed, for other verifiers."""
    from polytriton.certificate.leaves import LIST, export
    from polytriton.checker_files import Refused

    try:
        count = export(network, prop, certificate, folder)
    except Refused as error:
        return complain(UnsupportedModel(f"the certificate stands, but it is not exported: {error}", "see docs/certificates.md"))
    print(f"{folder / LIST}: {count:,} properties", file=sys.stderr)
    return 0


def _way(sample: int | None, workers: int | None, exact: bool) -> Way:
    """Which program confirms a certificate."""
    if exact:
        from polytriton import checker_exact
        from polytriton.certificate.guide import Completion

        return lambda *files, progress: checker_exact.check(*files, progress, Completion())
    from polytriton.commands import shares

    if sample is not None:
        from polytriton import checker
        from polytriton.certificate.guide import LEAST, Guide

        return partial(checker.check, some=partial(shares.draw_leaves, sample), guide=Guide(LEAST, cuts=True))
    return partial(shares.confirm, workers=workers)


def _check_one(network: Path, prop: Path, certificate: Path, confirm: Way, sample: int | None, *, json: bool) -> int:
    from polytriton.checker_files import Refused, Unsupported
    from polytriton.checker_slopes import StillOpen

    for file in (network, prop, certificate):
        if not file.is_file():
            raise UsageError(f"there is no file {file}", "polytriton check NET.onnx PROP.vnnlib CERT")
    began = time.monotonic()
    try:
        with Live(1) as live:
            found = confirm(network, prop, certificate, progress=live.stage)
    except Unsupported as error:
        raise UnsupportedModel(f"the checker does not read this: {error}", "see docs/certificates.md for what it reads") from error
    except Refused as error:
        print(json_.dumps({"verdict": "refused", "reason": str(error)}) if json else "refused")
        return complain(ArtifactError(f"certificate refused: {error}", WEAKER if isinstance(error, StillOpen) else AGAIN))
    seconds = time.monotonic() - began
    verdict = "unsat" if sample is None else "sampled"
    margins = [float(m) if math.isfinite(m) else None for m in found.margins]
    told = {"verdict": verdict, "semantics": found.semantics, "margins": margins, "nodes": found.nodes, "leaves": found.leaves}
    print(json_.dumps(told | {"seconds": round(seconds, 6)}) if json else verdict)
    print(f"{_summary(found, sample)}, {seconds:.3f} s", file=sys.stderr)
    return 0


def _summary(found: Checked, sample: int | None) -> str:
    """What was confirmed, of which executions."""
    least = float(min(found.margins, default=math.inf))
    margin = f"least margin {least:.6g}" if math.isfinite(least) else "the unsafe set has no piece that an execution reaches"
    kind = "exact arithmetic" if found.semantics == "real" else f"{found.semantics} executions"
    if sample is not None:
        return f"{found.leaves} leaves drawn at random hold under {kind}, the others were not looked at: {margin}"
    return f"confirmed for {kind}: {margin}, {found.nodes} nodes"


def certify(
    network: Path, prop: Path, target: Path, semantics: str, answer: Answer, read: Read, progress: Callable[[str, int, int], None]
) -> int:
    """Writes the certificate of an unsat; the exit code."""
    from polytriton.certificate.ask import write_proof

    if answer.record.verdict != "unsat":
        print(f"polytriton: no certificate of {answer.record.verdict}; {target} is left as it was", file=sys.stderr)
        return 0
    began = time.monotonic()
    try:
        size = write_proof(network, prop, target, semantics, answer.trail, progress=progress, prop=answer.prop, read=read)
    except UnsupportedModel as error:
        return complain(error)
    print(f"{target}: {size:,} bytes, {time.monotonic() - began:.3f} s; next: polytriton check {network} {prop} {target}", file=sys.stderr)
    return 0


def certificate_file(folder: Path, record: Record) -> Path:
    """Where a run's certificate of this record lies."""
    return folder / f"{record.key}.cert"


class RunCertificates:
    """Writes a certificate of every unsat of a run as it comes, named by its record's key; of earlier answers, where there is none."""

    def __init__(self, folder: Path, semantics: str, progress: Callable[[str, int, int], None]) -> None:
        self.folder, self.semantics, self.progress = folder, semantics, progress
        self.proved = self.kept = self.failed = 0

    def add(self, answer: Answer) -> None:
        from polytriton.certificate.ask import write_proof
        from polytriton.runs.queries import VnnlibFile

        record, query, target = answer.record, answer.query, certificate_file(self.folder, answer.record)
        if record.verdict != "unsat" or not record.key:
            return
        self.proved += 1
        if answer.resumed and target.is_file():
            self.kept += 1
            return
        assert query is not None and isinstance(query.subject, VnnlibFile)
        try:
            files = Path(query.network), Path(query.subject.path)
            write_proof(*files, target, self.semantics, answer.trail, progress=self.progress, prop=answer.prop)
        except UnsupportedModel as error:
            self.failed += 1
            print(f"polytriton: {record.property}: {error}", file=sys.stderr, flush=True)

    def summary(self) -> str:
        earlier = f", {self.kept} of them from an earlier run" * bool(self.kept)
        return f"{self.folder}: certificates of {self.proved - self.failed} of {self.proved} unsat{earlier}"

    def exit_code(self) -> int:
        """0 if every unsat has one."""
        return UNSUPPORTED if self.failed else 0
