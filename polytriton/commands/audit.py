"""`polytriton check RUN`: which `unsat` rows of a run have a certificate that confirms them.

The results file is believed in nothing but what it claims: which files, which executions. Whether the claim is proved is said by the
checker, which reads the files that are named.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from polytriton.commands.check import certificate_file
from polytriton.commands.screen import Live, as_text, complain, seconds, table
from polytriton.errors import ArtifactError, UnsupportedModel, UsageError

if TYPE_CHECKING:
    from polytriton.runs.records import Record

RESULTS, CERTIFICATES = "results.jsonl", "certificates"
KEY = re.compile(r"[0-9a-f]{24}", re.ASCII)  # what a record calls its query; it names the certificate's file
CHECKED, REFUSED, MISSING = "checked", "refused", "missing"


@dataclass
class Claim:
    """An `unsat` of the results, its files, and what came of it."""

    network: str
    property: str
    semantics: str
    certificate: str
    state: str = MISSING
    note: str = ""
    margin: float | None = None
    nodes: int = 0
    seconds: float = 0.0


def audit(run: Path, certificates: Path | None, root: Path, workers: int | None, *, json: bool) -> int:
    """Checks every certificate of a run; the exit code is 0 if each `unsat` is confirmed, 2 if one is refused, else 3."""
    from polytriton.runs.records import read_records

    results = run / RESULTS if run.is_dir() else run
    folder = certificates or results.parent / CERTIFICATES
    if certificates is not None and not certificates.is_dir():
        raise UsageError(f"there is no folder {certificates}", "name the folder that `polytriton run --certificates` wrote")
    records = read_records(results)
    if not records:
        raise UsageError(f"{results} holds no results", "write some first: polytriton run ... --json FILE")
    claimed = [r for r in records if r.verdict == "unsat"]
    began = time.monotonic()
    claims = [_claim(r, root, folder) for r in claimed]
    work = [(c, r) for c, r in zip(claims, claimed, strict=True) if not c.note]
    with Live(1) as live:
        for k, (claim, record) in enumerate(work, 1):
            _confirm(claim, record, root, workers, live.stage)
            left = (time.monotonic() - began) / k * (len(work) - k)
            more = f", {seconds(left)} left" if k < len(work) else ""
            print(f"[{k}/{len(work)}] {claim.property}: {claim.state} ({seconds(claim.seconds)}){more}", file=sys.stderr, flush=True)
    counts = Counter(c.state for c in claims)
    told = {"results": str(results), "unsat": len(claims), **{state: counts[state] for state in (CHECKED, REFUSED, MISSING)}}
    if json:
        print(as_text(told | {"seconds": round(time.monotonic() - began, 6), "rows": [asdict(c) for c in claims]}))
    else:
        _show(claims)
        counted = ", ".join(f"{counts[state]} {state}" for state in (CHECKED, REFUSED, MISSING))
        print(f"{len(claims)} unsat of {len(records)} results: {counted}; {seconds(time.monotonic() - began)}")
    if counts[REFUSED]:
        what = f"{counts[REFUSED]} of {len(claims)} certificates are refused"
        again = "the table says why; what is damaged or foreign is written again: polytriton run ... --certificates FOLDER --overwrite"
        return complain(ArtifactError(what, again))
    if counts[MISSING]:
        what = f"{counts[MISSING]} of {len(claims)} unsat have no certificate that could be checked"
        return complain(UnsupportedModel(what, "the table says why; docs/certificates.md says what has a certificate"))
    return 0


def _files(record: Record, root: Path) -> tuple[Path, Path]:
    """The network and the property as the run found them."""
    from polytriton.frontend.instances import named_network, shipped_file

    return shipped_file(root / named_network(record.onnx)[1]), shipped_file(root / record.vnnlib)


def _claim(record: Record, root: Path, folder: Path) -> Claim:
    """What is claimed; `note` says why nothing can be checked."""
    from polytriton.checker_boxes import SEMANTICS

    claim = Claim(record.onnx or record.network, record.property, record.semantics, "")
    if not record.vnnlib:
        claim.note = "a ball around an image has no property file"
    elif record.semantics not in SEMANTICS:
        claim.note = f"certificates cover {', '.join(SEMANTICS)} executions"
    elif not KEY.fullmatch(record.key):
        claim.note = "the record has no key that names its certificate"
    else:
        target = certificate_file(folder, record)
        claim.certificate = str(target)
        absent = [f for f in (target, *_files(record, root)) if not f.is_file()]
        claim.note = f"there is no file {absent[0]}" if absent else ""
    return claim


def _confirm(claim: Claim, record: Record, root: Path, workers: int | None, progress: Callable[[str, int, int], None]) -> None:
    """Has the checker look at the certificate."""
    from polytriton.checker_files import Refused
    from polytriton.commands.shares import confirm

    net, prop = _files(record, root)
    began = time.monotonic()
    try:
        if record.sha256 and hashlib.sha256(net.read_bytes()).hexdigest() != record.sha256:
            raise Refused(f"{net} is not the network that was asked about")
        found = confirm(net, prop, Path(claim.certificate), workers, progress)
        if found.semantics != record.semantics:
            raise Refused(f"it is about {found.semantics} executions")
    except (Refused, OSError) as error:
        claim.state, claim.note = REFUSED, str(error)
    else:
        least = min(found.margins, default=math.inf)
        claim.state, claim.nodes, claim.margin = CHECKED, found.nodes, least if math.isfinite(least) else None
    claim.seconds = round(time.monotonic() - began, 6)


def _show(claims: Sequence[Claim]) -> None:
    rows = [
        [
            Path(c.network).name,
            c.property,
            c.semantics,
            c.state,
            "-" if c.margin is None else f"{c.margin:.6g}",
            c.nodes or "-",
            f"{c.seconds:.3f}" if c.seconds else "-",
            c.note[:100],
        ]
        for c in claims
    ]
    if rows:
        table(["network", "property", "semantics", "certificate", "margin", "nodes", "seconds", "note"], rows, right=(4, 5, 6))
