"""`polytriton report`: results files as a page, as tables, or as a summary for programs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from polytriton.commands.options import argument, option
from polytriton.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from polytriton.artifact import Artifact
    from polytriton.pages.gallery import Find
    from polytriton.pages.layers import Described
    from polytriton.runs.records import Image, Record


def report(
    results: Annotated[list[Path], argument(metavar="RESULTS...", help="What run or verify wrote to --json.")],
    out: Annotated[
        Path | None,
        option("-o", "--output", metavar="FILE.html", help="The page; report.html by default, none with --text or --json."),
    ] = None,
    artifact: Annotated[
        list[Path] | None,
        option("--artifact", metavar="NET.poly", help="Name layers and checkpoints as this network has them; repeatable."),
    ] = None,
    images: Annotated[
        list[Path] | None, option("--images", metavar="FILE", help="Where to find images that are too large for the results; repeatable.")
    ] = None,
    scale: Annotated[str | None, option("--scale", metavar="S", help="For --images: multiply pixels by this, as the run did.")] = None,
    layout: Annotated[str, option("--layout", help="For --images: order of flat pixels, chw or hwc.")] = "chw",
    pictures: Annotated[int, option("--pictures", metavar="N", help="The most images to show; violated ones come first.")] = 200,
    title: Annotated[str | None, option("--title", help="The page's title.")] = None,
    text: Annotated[bool, option("--text", help="Tables on standard output.")] = False,
    as_json: Annotated[bool, option("--json", help="The summary as one JSON document on standard output.")] = False,
) -> int:
    """Write one self-contained HTML page about results: verdicts, runtimes, margins, layers, images, certified radii.

    The page loads nothing and can be sent as a file. --text shows the same facts in the terminal.
    """
    from polytriton.commands.report_text import show
    from polytriton.pages.facts import facts
    from polytriton.runs.records import read_records

    if text and as_json:
        raise UsageError("--text and --json exclude each other", "give one of them")
    if pictures < 0:
        raise UsageError(f"--pictures {pictures} is negative", "give 0 for none")
    names = " and ".join(p.name for p in results)
    records = [r for path in results for r in read_records(path)]
    if not records:
        raise UsageError(f"{names} holds no results", "write some first: polytriton run ... --json FILE")
    found = facts(records)
    if text:
        show(found)
    elif as_json:
        import msgspec

        print(msgspec.json.encode(found).decode())
    if out is None and (text or as_json):
        return 0
    from polytriton.pages.file import check_replaceable, write_page

    target = out or Path("report.html")
    check_replaceable(target)
    from polytriton.pages.page import page

    known = _describe_layers(records, artifact or [])
    find = _finder(images or [], scale, layout)
    made = page(records, found, title=title, source=_source(results, len(records)), known=known, pictures=pictures, find=find)
    write_page(target, made)
    print(target, file=sys.stderr if text or as_json else sys.stdout)
    return 0


def _source(results: Sequence[Path], count: int) -> str:
    import polytriton

    return f"Made by polytriton {polytriton.__version__} from {count:,} results in {', '.join(map(str, results))}."


# ---- what results do not hold -----------------------------------------------------------------------------------


def _describe_layers(records: Sequence[Record], paths: Sequence[Path]) -> Mapping[str, Described]:
    """Layers of the artifacts, by the network's path in the records."""
    if not paths:
        return {}
    from polytriton.artifact import read_artifact

    known: dict[str, Described] = {}
    for path in paths:
        held = read_artifact(path)
        own = {r.network for r in records if r.sha256 == held.imported.source.sha256}
        if not own:
            raise UsageError(f"no result is about the network that {path} was compiled from", "leave --artifact out, or name another")
        known |= dict.fromkeys(own, _describe(held))
    return known


def _describe(held: Artifact) -> Described:
    from polytriton.pages.layers import ProgramFacts

    net, known = held.compiled.net, {}
    for node in net:
        known["bound", node.name] = ProgramFacts(f"{node.op} {'x'.join(map(str, node.shape))}", [])
    for program in held.compiled.plan:
        checkpoints = [s.node for s in program.steps if s.check and s.op != "input"]
        for stage in ("bound",) if program.kind == "bound" else ("interval", "query"):
            about = known.get(("bound", program.target), ProgramFacts("", [])).about
            known[stage, program.target] = ProgramFacts(about, checkpoints)
    return known


def _finder(paths: Sequence[Path], scale: str | None, layout: str) -> Find:
    """Images by file name and number. Only files that the user names are opened, whatever the records say."""
    from polytriton.frontend.images import load_images, parse_fraction

    factor = None if scale is None else parse_fraction(scale, "scale")
    files = {p.name: p for p in paths}
    if missing := [p for p in paths if not p.is_file()]:
        raise UsageError(f"no image file {missing[0]}", "check the path; it is taken relative to the current folder")
    held: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}

    def find(image: Image) -> np.ndarray | None:
        key = image.file, tuple(image.shape)
        if image.file not in files:
            return None
        if key not in held:
            held[key] = load_images(files[image.file], shape=image.shape, scale=factor, layout=layout).pixels
        return held[key][image.index] if 0 <= image.index < len(held[key]) else None

    return find
