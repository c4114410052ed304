"""`polytriton verify`: one query, by its two files or as the VNN-LIB 2.0 standard has solvers called."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from polytriton.commands.check import certify
from polytriton.commands.clock import start_time
from polytriton.commands.groups import Asking, EngineOptions, ResultOptions, Sharing
from polytriton.commands.options import argument, option
from polytriton.commands.screen import Live, complain
from polytriton.errors import UnsupportedProperty, UsageError
from polytriton.show.words import share
from polytriton.whole import told_of_writing

if TYPE_CHECKING:
    from polytriton.api import Verifier
    from polytriton.certificate.write import Read
    from polytriton.frontend.query import Property
    from polytriton.runs.asker import Answer
    from polytriton.runs.records import Record

TIMED_OUT = "timed-out"  # the standard's word for timeout


def verify(
    files: Annotated[
        list[Path],
        argument(metavar="[NET.onnx] PROP.vnnlib", help="The network (or a compiled NET.poly) and the property."),
    ],
    network: Annotated[
        list[str] | None,
        option(
            "--network",
            metavar="NAME=NET.onnx",
            help="The network that the property calls NAME; then only PROP is given. Once for each network of the property.",
        ),
    ] = None,
    serialise_assignments: Annotated[
        Path | None,
        option(
            "--serialise-assignments", metavar="DIR", help="Write a counterexample as one TensorProto file a tensor instead of printing it."
        ),
    ] = None,
    prepare: Annotated[
        bool, option("--prepare", help="Compile the network into the cache, check the property, answer nothing.")
    ] = False,
    certificate: Annotated[
        Path | None,
        option("--certificate", metavar="FILE", help="For unsat, write what polytriton check needs to confirm it."),
    ] = None,
    *,
    asking: Asking,
    engine: EngineOptions,
    sharing: Sharing,
    results: ResultOptions,
) -> int:
    """Answer one query; the verdict is the first line, a counterexample in VNN-LIB form follows.

    The compiled network is kept in the cache (POLYTRITON_CACHE) for the next time. --timeout counts from the start of the
    program, but for compiling the CPU's loops or a GPU's kernels, once a machine. With --network, element types must be those of
    the network, and a timeout is called timed-out.
    """
    from polytriton.frontend.instances import require_properties, shipped_file

    given, path = _files(files, network or [])  # wrong usage is told before the engine is loaded, which takes seconds
    standard = bool(network)
    given, path = [(name, shipped_file(net)) for name, net in given], shipped_file(path)
    require_properties([path])
    sharing.check()
    asking.check()
    from polytriton.limit import OutOfTime, time_limit
    from polytriton.runs.asker import Asker, Networks
    from polytriton.runs.local import Local
    from polytriton.runs.queries import vnnlib_query
    from polytriton.runs.records import open_sinks
    from polytriton.runs.runner import Run
    from polytriton.runs.sharers import sharers
    from polytriton.several import cached_join

    settings = replace(asking.settings(engine, search="auto"), trail=None if certificate is None else str(certificate.absolute().parent))
    name, net = given[0]
    several = len(given) > 1 or (bool(name) and _declares_several(path))
    read = None
    if certificate is not None:
        if several:
            raise UnsupportedProperty("no certificate is written of a property over several networks", "leave --certificate out")
        read = _certifiable(net, path, certificate, engine.semantics)
    networks = Networks(settings.engine)
    begin = start_time()
    if engine.device == "cpu":
        from polytriton.runtime.cpu import loops

        begin += loops.prepare()  # once a machine, and no part of any query
    limit = None if settings.timeout is None or prepare else begin + settings.timeout
    with time_limit(limit), suppress(OutOfTime):  # the query meets the same limit, and answers timeout
        if several:
            net = Path(str([(name, str(file)) for name, file in given]))
            networks.keep(str(net), cached_join({name: networks(file) for name, file in given}, path))
        else:
            verifier = networks(net)
            if name or prepare:
                _check(read_property(path, verifier), verifier, name or None)
        made = networks(net).prepare()  # as for the CPU
        begin, limit = begin + made, None if limit is None else limit + made
    if prepare:
        return 0
    sinks = open_sinks(results.json, results.csv, resume=results.resume, overwrite=results.overwrite)
    try:
        with sharers(sharing.engine, sharing.workers, sharing.address) as others, Live(1) as live, time_limit(limit):
            asker = Asker(networks, settings, live.stage, begin, others)
            run = Run(Local(asker), settings, sinks)
            told: list[Answer] = []
            run.listeners.append(told.append)
            run.ask([vnnlib_query(net, path)])
    finally:
        for sink in sinks:
            sink.close()
    (answer,) = told
    if answer.error is not None:
        return complain(answer.error)
    if results.json != "-":
        _tell(answer, standard=standard, folder=serialise_assignments)
    record = answer.record
    margin = "" if record.margin is None else f"worst margin {record.margin:.6g}, "
    how = f"by {record.method}, " * bool(record.method) + "interval arithmetic, " * (record.numerics == "interval")
    earlier = ", from an earlier run" * answer.resumed
    print(f"{record.property}: {record.verdict}, {margin}{how}{_describe_search(record)}{record.seconds:.3f} s{earlier}", file=sys.stderr)
    if record.verdict in ("unknown", "timeout"):
        print("polytriton: what to try next: docs/unknown.md", file=sys.stderr)
    if certificate is not None and read is not None:
        with Live(1) as live:
            return certify(net, path, certificate, engine.semantics, answer, read, live.stage)
    return 0


def _certifiable(net: Path, path: Path, certificate: Path, semantics: str) -> Read:
    from polytriton.certificate.ask import certifiable

    return certifiable(net, path, certificate, semantics)


def _describe_search(record: Record) -> str:
    """What a search did, for the last line."""
    s = record.search
    if s is None:
        return ""
    left = f", {s.open:,} open, {share(s.share)} proved" * bool(s.open)
    return f"{s.domains:,} boxes{left}, "


def _files(files: list[Path], networks: list[str]) -> tuple[list[tuple[str, Path]], Path]:
    """The networks by their names in the property, "" where none was given, and the property."""
    from polytriton.frontend.instances import is_property, named_networks

    if not networks:
        if len(files) != 2:
            raise UsageError(f"a network and a property are needed, {len(files)} given", "polytriton verify NET.onnx PROP.vnnlib")
        if is_property(files[0].name) and not is_property(files[1].name):
            raise UsageError(f"{files[0]} stands where the network belongs", f"polytriton verify {files[1]} {files[0]}")
        return [(name, Path(file)) for name, file in named_networks(str(files[0]))], files[1]
    usage = "polytriton verify --network f=NET.onnx PROP.vnnlib"
    if len(files) != 1:
        raise UsageError("with --network only the property is given besides", usage)
    made: list[tuple[str, Path]] = []
    for text in networks:
        name, sign, path = text.partition("=")
        if not (name and sign and path):
            raise UsageError(f"--network {text[:80]} is not NAME=FILE", usage)
        if any(name == other for other, _ in made):
            raise UsageError(f"--network {name[:80]} is given twice", usage)
        made.append((name, Path(path)))
    return made, files[0]


def _declares_several(path: Path) -> bool:
    from polytriton.frontend.vnnlib import load_text

    return load_text(path).count("(declare-network") > 1


def read_property(path: Path, verifier: Verifier) -> Property:
    """Of that network's sizes."""
    from polytriton.frontend.vnnlib import read_vnnlib

    return read_vnnlib(path, n_in=verifier.inputs, n_out=verifier.outputs)


def _check(prop: Property, verifier: Verifier, name: str | None) -> None:
    """What the standard has a solver refuse: another network's name, other element types."""
    from polytriton.frontend.joint import check_type

    if name is not None and prop.network and name != prop.network:
        raise UsageError(f"the property calls its network {prop.network}, not {name}", f"--network {prop.network}=NET.onnx")
    if name is None or not prop.network or verifier.source is None:
        return
    for tensor in (prop.input, prop.output):
        check_type(tensor, verifier.source)


def _tell(answer: Answer, *, standard: bool, folder: Path | None) -> None:
    from polytriton.frontend.vnnlib import assignments, write_counterexample

    record = answer.record
    found, prop = record.counterexample, answer.prop
    print(TIMED_OUT if standard and record.verdict == "timeout" else record.verdict)
    if found is None or prop is None:
        return
    if folder is None:
        print(write_counterexample(prop, found.x, found.y), end="")
        return
    with told_of_writing(f"to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for tensor, data in assignments(prop, found.x, found.y).items():
            (folder / f"{tensor}.pb").write_bytes(data)
