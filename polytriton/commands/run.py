"""`polytriton run` and `polytriton verify`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polytriton.commands.groups import Asking, Engine, Images, Results
from polytriton.commands.screen import Live, complain, summary
from polytriton.errors import UnsupportedModel, UsageError

if TYPE_CHECKING:
    from polytriton.frontend.instances import Instance
    from polytriton.runner import Networks, Query, Run

INTERRUPTED = 130


def run(
    network: Annotated[
        Path | None, typer.Argument(metavar="NET.poly", help="A compiled network (or NET.onnx, compiled now).", show_default=False)
    ] = None,
    vnnlib: Annotated[list[Path] | None, typer.Option("--vnnlib", metavar="FILE...", help="Properties: .vnnlib or .vnnlib.gz.")] = None,
    instances: Annotated[
        Path | None,
        typer.Option("--instances", metavar="FILE", help="A list of network,property,timeout lines; with NET.poly only its own lines."),
    ] = None,
    *,
    images: Images,
    asking: Asking,
    engine: Engine,
    results: Results,
) -> int:
    """Answer queries about a compiled network: unsat (proved), sat (with a counterexample), unknown or timeout.

    Give the queries by --vnnlib, --instances or --images. Results are written as they come; an interrupted run goes on
    with --resume. Exit code 0 whatever the verdicts.
    """
    from polytriton.records import open_sinks
    from polytriton.runner import Networks, Run

    balls = images.balls()
    if sum(bool(q) for q in (vnnlib, instances, balls)) != 1:
        raise UsageError("give one kind of queries", "one of --vnnlib FILE..., --instances FILE, --images FILE --epsilon E")
    if network is None and instances is None:
        raise UsageError("which network?", "polytriton run NET.poly ...; only --instances names networks itself")
    if results.json == "-" and results.resume and not results.csv:
        raise UsageError("--resume needs a results file to go on with", "name it with --json FILE or --csv FILE")
    settings = asking.settings(engine)
    networks = Networks(settings.engine)
    if balls is not None:
        assert network is not None
        queries = balls.queries(network, networks(network))
    else:
        queries = _properties(network, vnnlib or [], instances, networks)
    sinks = open_sinks(results.json, results.csv, resume=results.resume, overwrite=results.overwrite)
    try:
        return _ask(Run(networks, settings, sinks), queries, quiet=results.json == "-")
    finally:
        for sink in sinks:
            sink.close()


def _properties(network: Path | None, files: Sequence[Path], instances: Path | None, networks: Networks) -> list[Query]:
    from polytriton.frontend.instances import read_instances
    from polytriton.runner import instance_queries, vnnlib_query

    if instances is not None:
        listed = read_instances(instances)
        return instance_queries(listed if network is None else _own(listed, network, networks), network)
    assert network is not None
    networks(network)  # a network that cannot be opened is one error, not one a property
    if missing := [f for f in files if not f.is_file()]:
        raise UsageError(f"no property file {missing[0]}", "check the path; it is taken relative to the current folder")
    return [vnnlib_query(network, f) for f in files]


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


def _ask(run: Run, queries: Sequence[Query], *, quiet: bool) -> int:
    """Asks with live progress; the table comes in any case, also after Ctrl-C."""
    stopped = False
    with Live(len(queries)) as live:
        run.began, run.answered, run.progress = live.began, live.answered, live.stage
        try:
            run.ask(queries)
        except KeyboardInterrupt:
            stopped = True
    summary(run.answers, file=sys.stderr if quiet else sys.stdout)
    if stopped:
        print(
            f"polytriton: interrupted after {len(run.answers)} of {len(queries)} queries; --resume goes on with a results file",
            file=sys.stderr,
        )
        return INTERRUPTED
    return run.exit_code()


def verify(
    network: Annotated[Path, typer.Argument(metavar="NET.onnx", help="The network (or a compiled NET.poly).", show_default=False)],
    prop: Annotated[Path, typer.Argument(metavar="PROP.vnnlib", help="The property: .vnnlib or .vnnlib.gz.", show_default=False)],
    *,
    asking: Asking,
    engine: Engine,
    results: Results,
) -> int:
    """Answer one query; the verdict is the first line, a counterexample in VNN-LIB form follows.

    The compiled network is kept in the cache (POLYTRITON_CACHE) for the next time.
    """
    from polytriton.frontend.vnnlib import write_counterexample
    from polytriton.records import open_sinks
    from polytriton.runner import Networks, Run, vnnlib_query

    settings = asking.settings(engine)
    if not prop.is_file():
        raise UsageError(f"no property file {prop}", "check the path; it is taken relative to the current folder")
    networks = Networks(settings.engine)
    networks(network)
    sinks = open_sinks(results.json, results.csv, resume=results.resume, overwrite=results.overwrite)
    run = Run(networks, settings, sinks)
    try:
        with Live(1) as live:
            run.progress = live.stage
            answer = run.ask([vnnlib_query(network, prop)])[0]
    finally:
        for sink in sinks:
            sink.close()
    if answer.error is not None:
        return complain(answer.error)
    record = answer.record
    if results.json != "-":
        print(record.verdict)
        if answer.prop is not None and record.counterexample is not None:
            print(write_counterexample(answer.prop, record.counterexample.x, record.counterexample.y), end="")
    margin = "" if record.margin is None else f"worst margin {record.margin:.6g}, "
    print(f"{record.property}: {record.verdict}, {margin}{record.seconds:.3f} s{', from an earlier run' * answer.resumed}", file=sys.stderr)
    return 0
