"""alpha-beta-CROWN beside polytriton on the published properties: both search until a limit, in turns, a process an instance.

    python -m bench.compare.search --peer FOLDER --peer-python PYTHON --out OUT.csv
        [--open] [--only GROUP_OR_ID ...] [--each N] [--timeout 60] [--threads 1] [--budget SECONDS]

FOLDER is where the peer is installed: it holds complete_verifier/abcrown.py, which runs in PYTHON (or $POLYTRITON_PEER_PYTHON). It is
asked with its authors' configuration of each benchmark, on the CPU and without a solver of other makers (`config`; "nearest" where they
have none). Whoever begins an instance ends the one before, so a machine that drifts hits both alike.

Columns: `verdict`, `wall` (the process, from its start to its end), `seconds` (its own figure, without its start-up) and `cpu_seconds`
are polytriton's, those with `peer_` before them the peer's. `load` is the machine's load before the turn: 0 where nothing else ran.
`--open` asks what plain CROWN leaves open of the official unsats; `--each` takes so many of each family, spread evenly, family after
family in turn. Instances that OUT.csv holds are not asked again, but where the peer failed; `--budget` begins none after so many seconds.

The summary counts an instance that a side does not decide with the whole limit. Exit code: 0, 1 where a side failed or contradicts an
official verdict, 2 for wrong usage or where the peer is not installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.compare.search_side import ERROR, TURN, AlphaBetaCrown, OurSearch, SearchSide, complaint, config, run_turn
from bench.core.command import FAILED, parser
from bench.core.machine import commit, data_folder, describe
from bench.core.table import Row, Table, read_rows, say
from bench.families import family
from bench.instances import CONTRADICTS, TIMEOUT, benchmark, select
from polytriton.show.words import plural

PEER = "peer_"
COLUMNS = (
    "network", "benchmark", "family", "id", "official", "crown_verified", *TURN, *(PEER + name for name in TURN), "config", "first", "load",
    "note", "limit", "peer",
)  # fmt: skip
SHOWN = ("network", "id", "official", "verdict", "wall", "seconds", "peer_verdict", "peer_wall", "peer_seconds", "note")
SAME = ("machine", "threads", "limit", "peer", "polytriton")  # columns that are one in a file
NO_PEER = 2
WARM = 10.0  # seconds of a first answer that is not measured: polytriton compiles loops once for a machine


def main(arguments: Sequence[str] | None = None) -> int:
    p = parser("compare.search", __doc__)
    p.add_argument("--peer", type=Path, required=True, metavar="FOLDER", help="where alpha-beta-CROWN is installed")
    p.add_argument("--peer-python", default=os.environ.get("POLYTRITON_PEER_PYTHON") or sys.executable, help="the interpreter it runs in")
    p.add_argument("--data", type=Path)
    p.add_argument("--only", nargs="*", default=[], metavar="GROUP_OR_ID")
    p.add_argument("--open", action="store_true", help="official unsats that one bound leaves open")
    p.add_argument("--each", type=int, metavar="N", help="of each family so many at most")
    p.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds an instance (%(default)g)")
    p.add_argument("--threads", type=int, default=1, help="of either side (%(default)s)")
    p.add_argument("--budget", type=float, help="seconds after which no further instance begins")
    p.add_argument("--out", type=Path, help="CSV file, gone on with where it is there")
    a = p.parse_args(arguments)
    if min(a.threads, a.timeout, 1 if a.each is None else a.each) <= 0:
        p.error("--threads, --timeout and --each are more than 0")
    data = a.data or data_folder()
    rows = select(read_rows(data / "instances.csv"), a.only, undecided=a.open)
    rows = rows if a.each is None else sample(rows, a.each)
    if not rows:
        p.error("no instance is left: --only names groups or ids of instances.csv")
    ours, theirs = OurSearch(a.threads), AlphaBetaCrown(a.peer, a.peer_python)
    sides: list[SearchSide] = [ours, theirs]
    if not theirs.program.is_file():
        say(f"{theirs.name} is not installed in {a.peer}: there is no {theirs.program}; name its folder with --peer")
        return NO_PEER
    try:
        name = f"{theirs.name} {commit(theirs.program.parent)} ({theirs.version()})"
    except OSError as error:
        p.error(f"--peer-python {a.peer_python}: {error.strerror}")
    except subprocess.CalledProcessError as error:
        said = complaint(f"{error.stdout}{error.stderr}", error.returncode)
        say(f"{theirs.name} does not run in {a.peer_python} ({said}): install what it needs there, or name another with --peer-python")
        return NO_PEER
    about = {"part": "peer-search", **describe("cpu", a.threads)}
    fixed = {"limit": f"{a.timeout:g}", "peer": name}
    earlier = last_rows(a.out)
    if other := next((f"{c} {r[c]!r}" for r in earlier.values() for c in SAME if r[c] != {**about, **fixed}[c]), ""):
        p.error(f"{a.out} was measured with {other}: name another file with --out")
    left = [r for r in rows if r["id"] not in earlier or earlier[r["id"]]["peer_verdict"] == ERROR]
    say(f"polytriton {about['polytriton']} beside {name} on the CPU, {a.threads} thread(s) each, {a.timeout:g} s: {about['machine']}")
    say(plural(len(rows), "instance") + (f", {len(rows) - len(left)} of them in {a.out} already" if earlier else ""))
    table = Table(COLUMNS, a.out, about, SHOWN, goes_on=True)
    begin = time.monotonic()
    try:
        if left:
            run_turn(ours, data / left[0]["net"], data / left[0]["spec"], min(WARM, a.timeout), a.threads)
            begin = time.monotonic()
        for k, r in enumerate(left):
            spent = time.monotonic() - begin
            if a.budget is not None and spent > a.budget:
                say(f"{plural(len(left) - k, 'instance')} left: the same command goes on")
                break
            say(f"{r['id']}, {k + 1} of {len(left)}" + (f", about {spent / k * (len(left) - k) / 60:.0f} min left" if k else ""))
            turns = sides[:: 1 if rows.index(r) % 2 == 0 else -1]  # by its place, whatever an earlier run has asked
            table.add(pair(r, data, turns, a.timeout, a.threads) | fixed)
    except KeyboardInterrupt:
        say("stopped: the same command goes on")
    table.close()
    known: list[Mapping[str, object]] = [*({**earlier, **{r["id"]: r for r in table.rows}}).values()]
    asked = [r for r in known if r["id"] in {row["id"] for row in rows}]
    print("\n".join(["", *summary(asked, a.timeout, name)]))
    return FAILED if any(ERROR in (r["verdict"], r["peer_verdict"]) or "CONTRADICTS" in str(r["note"]) for r in asked) else 0


def sample(rows: Sequence[dict[str, str]], each: int) -> list[dict[str, str]]:
    """So many of each family, spread evenly over its list; the first of every family, then the second, ..."""
    by_family: dict[str, list[dict[str, str]]] = defaultdict(list)
    for r in rows:
        by_family[family(r)].append(r)
    some = [[mine[k * len(mine) // n] for k in range(n)] for mine in by_family.values() for n in [min(each, len(mine))]]
    return [mine[k] for k in range(each) for mine in some if k < len(mine)]


def last_rows(path: Path | None) -> dict[str, dict[str, str]]:
    """The last row of each instance that the file holds."""
    if path is None or not path.exists():
        return {}
    rows = read_rows(path)
    if missing := [c for c in (*COLUMNS, *SAME) for r in rows if c not in r]:
        raise SystemExit(f"{path} is no file of bench.compare.search, it lacks the column {missing[0]}: name another with --out")
    return {r["id"]: r for r in rows}


def pair(r: dict[str, str], data: Path, sides: Sequence[SearchSide], timeout: float, threads: int) -> Row:
    """Both turns at one instance, in this order."""
    load = os.getloadavg()[0]
    turns = {side.name: run_turn(side, data / r["net"], data / r["spec"], timeout, threads) for side in sides}
    notes = [f"{name} CONTRADICTS" for name, turn in turns.items() if (r["verdict"], turn.verdict) in CONTRADICTS]
    net = Path(r["net"])
    return {
        "network": net.stem, "benchmark": benchmark(r), "family": family(r), "id": r["id"], "official": r["verdict"],
        "crown_verified": r["crown_verified"], **turns[OurSearch.name].row(""), **turns[AlphaBetaCrown.name].row(PEER),
        "config": config(net), "first": sides[0].name, "load": round(load, 1),
        "note": "; ".join(notes + [turn.note for turn in turns.values() if turn.note]),
    }  # fmt: skip


def summary(rows: Sequence[Mapping[str, object]], limit: float, peer: str) -> list[str]:
    """Two lines a family, in Markdown: how many each side decides, and in how many seconds."""
    lines = ["| family | | asked | proved | falsified | seconds | without start-up | CPU seconds |", "|---|---|---|---|---|---|---|---|"]
    for name in [*dict.fromkeys(str(r["family"]) for r in rows), "all"]:
        mine = [r for r in rows if name in (r["family"], "all")]
        for prefix, side in (("", "polytriton"), (PEER, peer)):
            verdicts = [str(r[prefix + "verdict"]) for r in mine]
            counts = [len(mine), verdicts.count("unsat"), verdicts.count("sat")]
            seconds = [sum(_seconds(r, prefix, column, limit) for r in mine) for column in ("wall", "seconds")]
            seconds.append(sum(float(str(r[prefix + "cpu_seconds"])) for r in mine))
            lines.append("| " + " | ".join([name, side, *map(str, counts), *(f"{s:.1f}" for s in seconds)]) + " |")
    return lines


def _seconds(r: Mapping[str, object], prefix: str, column: str, limit: float) -> float:
    return float(str(r[prefix + column])) if r[prefix + "verdict"] in ("unsat", "sat") and r[prefix + column] != "" else limit


if __name__ == "__main__":
    sys.exit(main())
