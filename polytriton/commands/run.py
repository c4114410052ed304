"""`polytriton run`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from polytriton.commands.check import RunCertificates
from polytriton.commands.groups import Asking, Competition, EngineOptions, ImageOptions, ResultOptions, Spread
from polytriton.commands.options import argument, option
from polytriton.commands.screen import INTERRUPTED, Live, summary
from polytriton.errors import UnsupportedModel, UsageError
from polytriton.whole import told_of_writing

if TYPE_CHECKING:
    from polytriton.frontend.instances import Instance
    from polytriton.runs.asker import Networks
    from polytriton.runs.queries import Query
    from polytriton.runs.runner import Run


def run(
    network: Annotated[
        Path | None, argument(metavar="NET.poly", help="A compiled network (or NET.onnx, compiled now).")
    ] = None,
    vnnlib: Annotated[list[Path] | None, option("--vnnlib", metavar="FILE...", help="Properties: .vnnlib or .vnnlib.gz.")] = None,
    instances: Annotated[
        Path | None,
        option("--instances", metavar="FILE", help="A list of network,property,timeout lines; with NET.poly only its own lines."),
    ] = None,
    certificates: Annotated[
        Path | None,
        option("--certificates", metavar="FOLDER", help="Write of every unsat what polytriton check needs to confirm it."),
    ] = None,
    *,
    images: ImageOptions,
    asking: Asking,
    spread: Spread,
    engine: EngineOptions,
    results: ResultOptions,
    competition: Competition,
) -> int:
    """Answer queries about a compiled network: unsat (proved), sat (with a counterexample), unknown or timeout.

    Give the queries by --vnnlib, --instances or --images. Results are written as they come; an interrupted run goes on
    with --resume. A list of instances is worked by several processes within --memory, or by a Ray cluster. Exit code 0
    whatever the verdicts; 3 where a certificate that --certificates asks for could not be written.
    """
    spread.check(asking.timeout)
    asking.check()
    balls = images.balls()
    if spread.batch is not None and balls is None:
        raise UsageError("--batch belongs to --images", "leave it out: properties and instances are proved one by one")
    if sum(bool(q) for q in (vnnlib, instances, balls)) != 1:
        raise UsageError("give one kind of queries", "one of --vnnlib FILE..., --instances FILE, --images FILE --epsilon E")
    if network is None and instances is None:
        raise UsageError("which network?", "polytriton run NET.poly ...; only --instances names networks itself")
    if results.json == "-" and results.resume and not results.csv:
        raise UsageError("--resume needs a results file to go on with", "name it with --json FILE or --csv FILE")
    if instances is not None and not instances.exists():
        raise UsageError(f"no instance list {instances}", "check the path")
    from polytriton.runs.asker import Asker, Networks  # seconds, which wrong usage does not wait for
    from polytriton.runs.choose import make_engine
    from polytriton.runs.local import Local
    from polytriton.runs.records import open_sinks
    from polytriton.runs.runner import Run

    if certificates is not None:
        _certifiable(certificates, network, engine.semantics, images=balls is not None)
    notes = None if certificates is None else str(certificates.absolute())
    settings = replace(asking.settings(engine, here=spread.engine != "ray"), trail=notes)
    here = {"device": "cpu", "dtype": "auto", "numerics": "folded"} if spread.engine == "ray" else {}
    networks = Networks({**settings.engine, **here})
    listed: list[Instance] = []
    if balls is not None:
        assert network is not None
        _check_norm_runs(balls.norm, {**settings.engine, **here}["device"])
        queries = balls.queries(network, networks(network))
    else:
        queries, listed = _properties(network, vnnlib or [], instances, networks)
    sinks = open_sinks(results.json, results.csv, resume=results.resume, overwrite=results.overwrite)
    try:
        official = competition.file(listed, instances, network, results)
        asker = Asker(networks, settings)
        workers = spread.workers if spread.workers is not None or instances is not None or spread.engine == "ray" else 1
        work = make_engine(
            spread.engine, asker, queries=len(queries), workers=workers, threads=engine.threads, address=spread.address, batch=spread.batch
        )
        if not isinstance(work, Local):
            networks.close()  # they are opened elsewhere
            if spread.engine != "ray" and settings.engine["device"] == "cpu":
                from polytriton.runtime.cpu import loops

                loops.prepare()  # once, not by every worker
        asked = Run(work, settings, sinks)
        if official is not None:
            asked.listeners.append(official.add)
        try:
            with Live(len(queries), radii=balls is not None and len(balls.epsilons) > 1) as live:
                asker.progress, asked.began = live.stage, live.show_query
                asked.troubled = lambda message: print(f"polytriton: {message}", file=sys.stderr)
                asked.listeners.append(live.show_answer)
                if certificates is not None:
                    asked.listeners.append((writer := RunCertificates(certificates, engine.semantics, live.stage)).add)
                stopped = _ask(asked, queries)
        finally:
            work.close()
        summary(asked.answers, file=sys.stderr if results.json == "-" else sys.stdout)
        if stopped:
            print(
                f"polytriton: interrupted after {len(asked.answers)} of {len(queries)} queries; --resume goes on with a results file",
                file=sys.stderr,
            )
            return INTERRUPTED
        if certificates is not None:
            print(writer.summary(), file=sys.stderr)
            return max(asked.exit_code(), writer.exit_code())
        return asked.exit_code()
    finally:
        for sink in sinks:
            sink.close()


def _certifiable(folder: Path, network: Path | None, semantics: str, *, images: bool) -> None:
    """Says before the run what would keep certificates from being written."""
    if images:
        raise UsageError("--certificates: a ball around an image has no property file", "write the balls as .vnnlib, or leave it out")
    from polytriton.certificate.ask import check_covered, check_writable

    check_covered(semantics, network)
    with told_of_writing(f"to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder, f"certificates to {folder}")


def _check_norm_runs(norm: str, device: str) -> None:
    """Before the run: else it would be said of every image."""
    from polytriton.frontend.norm_balls import LINF, kernel_refusal

    if norm != LINF and device != "cpu":
        raise kernel_refusal(norm)


def _ask(run: Run, queries: Sequence[Query]) -> bool:
    """Whether Ctrl-C stopped it: what has been answered then still makes a table."""
    try:
        run.ask(queries)
        return False
    except KeyboardInterrupt:
        return True


def _properties(
    network: Path | None, files: Sequence[Path], instances: Path | None, networks: Networks
) -> tuple[list[Query], list[Instance]]:
    from polytriton.frontend.instances import read_instances, require_properties
    from polytriton.runs.queries import instance_queries, vnnlib_query

    if instances is not None:
        listed = read_instances(instances)
        if network is not None:
            listed = _own(listed, network, networks)
        return instance_queries(listed, network), listed
    assert network is not None
    networks(network)  # a network that cannot be opened is one error, not one a property
    require_properties(files)
    return [vnnlib_query(network, f) for f in files], []


def _own(listed: list[Instance], network: Path, networks: Networks) -> list[Instance]:
    """The lines that name the very model this artifact was compiled from."""
    from polytriton.frontend.onnx import load_onnx

    source = networks(network).source
    assert source is not None
    same = {}
    for path in {i.onnx for i in listed}:
        try:
            same[path] = load_onnx(path, output=source.output_name).source.sha256 == source.sha256
        except (UnsupportedModel, UsageError):
            same[path] = False
    own = [i for i in listed if same[i.onnx]]
    if not own:
        raise UsageError(
            f"no line of the list names the network that {network} was compiled from", "leave NET.poly out: each line names its network"
        )
    if len(own) < len(listed):
        print(f"polytriton: {len(listed) - len(own)} of {len(listed)} lines name other networks and are skipped", file=sys.stderr)
    return own
