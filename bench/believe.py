"""Whether what tuning tells can be believed: sessions of small networks, and their winners timed again.

    python -m bench.believe NET.onnx [NET.poly ...] [--sessions 20] [--trials 8] [--budget 60s] [--slowed 0.2] [--out FOLDER]

Sessions take turns among the networks, each with a seed of its own, on this machine as it is: best a busy one. A winner is timed against
the default once more, in a process of its own, in many rounds in turns. With --slowed every second session has a default that takes so much
longer than it need (bench.slowed), in its trials, its duel and the re-timing: one that it has to find. FOLDER/believe.csv grows by a line a
session, and the same command goes on where it stopped; FOLDER/believe.html shows it. Exit code 1 where a session told more than 3 % above
what its winner showed again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import polytriton
from bench import slowed
from bench.core.command import FAILED, parser
from bench.core.machine import describe
from bench.core.table import Row, Table, read_rows, say
from bench.report.page import ALL_STYLE, table
from polytriton.errors import PolytritonError
from polytriton.pages import html
from polytriton.pages.document import document
from polytriton.tuning.duel import MOST, Duel, Pair, duel
from polytriton.tuning.store import SETTINGS, WORK
from polytriton.tuning.trials import TrialProcess
from polytriton.tuning.worker import TrialJob

TOLD = 0.03  # what a session tells may be so much above the truth
COLUMNS = (
    "network", "seed", "budget", "slowed", "trials", "rounds", "default_seconds", "told", "low", "high", "again", "again_low", "again_high",
    "over", "seconds", "load",
)  # fmt: skip
SHOWN = ("network", "seed", "slowed", "trials", "rounds", "told", "low", "high", "again", "over", "seconds", "load")


@dataclass(frozen=True)
class BelieveSettings:
    """What a session of a network depends on."""

    budget: str
    trials: int
    threads: int
    slowed: float = 0.0


def artifact(network: Path, folder: Path) -> Path:
    """Of a model, compiled into the folder; or what is one already."""
    if network.suffix != ".onnx":
        return network
    made = folder / f"{network.stem}.poly"
    if not made.exists():
        polytriton.compile(network, semantics="float32").save(made)
    return made


def session(network: Path, seed: int, settings: BelieveSettings) -> Row:
    """One session by its command, and its winner again."""
    began = time.monotonic()
    module = [slowed.NAME, str(settings.slowed)] if settings.slowed else ["polytriton.cli"]
    command = [sys.executable, "-m", *module, "tune", str(network), "--budget", settings.budget, "--overwrite", "--json"]
    command += ["--trials", str(settings.trials), "--seed", str(seed), "--threads", str(settings.threads)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if ran.returncode:
        raise SystemExit(f"bench.believe: the session of {network.name} ended with code {ran.returncode}")
    found = json.loads(ran.stdout)
    row = {
        "network": network.stem, "seed": seed, "budget": settings.budget, "slowed": settings.slowed, "trials": found["trials"],
        "rounds": len(found["duel"]["default"]) if found["duel"] else 0, "default_seconds": found["default_seconds"],
    }  # fmt: skip
    if found["config"]:
        told, again = float(found["speedup"]), retime(network, found["config"], seed, settings.slowed)
        truth = 1 / median(again.ratios)
        row |= {"told": told, "low": found["interval"][0], "high": found["interval"][1], "again": truth, "over": told / truth - 1}
        row |= {"again_low": 1 / again.interval[1], "again_high": 1 / again.interval[0]}
    return {**row, "seconds": time.monotonic() - began, "load": os.getloadavg()[0]}


def retime(network: Path, config: dict[str, Any], seed: int, slower: float) -> Duel:
    """A configuration against the default, on the session's own work."""
    folder = network.with_name(network.name + ".tune")
    held = json.loads((folder / SETTINGS).read_text())
    job = TrialJob(
        str(network.absolute()), str(folder / WORK), held["options"], config, held["threads"], seed, 3, check=False, race=False,
        workload=held["workload"],
    )  # fmt: skip
    worker = TrialProcess(slowed.NAME, [str(slower)]) if slower else TrialProcess()

    def pair() -> Pair:
        found = worker.ask(job, 600.0)
        return median(found.base), median(found.times)

    try:
        return duel(pair, MOST, MOST)
    finally:
        worker.end()


def summary(rows: Sequence[Row]) -> tuple[str, bool]:
    """In words, and whether the goal is met. Cells are numbers, or text where a file was read."""
    over = [float(r["over"]) for r in rows if r.get("over") not in (None, "")]
    worst = max(over, default=0.0)
    met = worst <= TOLD
    said = f"told at most {100 * worst:.1f} % above the re-timing: {'pass' if met else 'FAIL'}" if over else "nothing to believe"
    return f"{len(rows)} sessions, {len(over)} winners; {said}", met


def page(rows: Sequence[Row], about: dict[str, str]) -> str:
    heads = ("network", "seed", "slowed", "trials", "rounds", "default", "told", "interval", "again", "interval", "told above it", "load")
    lines = []
    for r in rows:
        number = {c: float(r[c]) for c in COLUMNS[2:] if c != "budget" and r.get(c) not in (None, "")}
        lines.append([
            ("", str(r["network"])), ("num", str(r["seed"])), ("num", f"{100 * number['slowed']:.0f} %"),
            *(("num", f"{number[c]:.0f}") for c in ("trials", "rounds")), ("num", html.time(number["default_seconds"])),
            *(("num", c) for c in _ratios(number)), ("num", f"{number['load']:.1f}"),
        ])  # fmt: skip
    told = ", ".join(about[k] for k in ("machine", "threads", "torch", "polytriton", "commit", "date"))
    rule = "Ratios are the default's time over the winner's, in turns. Sessions without a ratio said that nothing beats the default."
    beginning = f"<p>{html.text(told)}</p><p>{html.text(summary(rows)[0])}</p><p class=note>{rule}</p>"
    return document("bench.believe", "Tuning, believed", beginning, [("sessions", "Sessions", table(heads, lines))], style=ALL_STYLE)


def _ratios(number: dict[str, float]) -> tuple[str, ...]:
    if "told" not in number:
        return ("",) * 5
    first, second = (f"{number[a]:.3f} to {number[b]:.3f}" for a, b in (("low", "high"), ("again_low", "again_high")))
    return f"{number['told']:.3f}", first, f"{number['again']:.3f}", second, f"{100 * number['over']:+.1f} %"


def main(arguments: Sequence[str] | None = None) -> int:
    p = parser("believe", __doc__)
    p.add_argument("networks", type=Path, nargs="+", metavar="NET")
    p.add_argument("--sessions", type=int, default=20, help="of all networks together (%(default)s)")
    p.add_argument("--budget", default="60s", help="of a session at most (%(default)s)")
    p.add_argument("--trials", type=int, default=8, help="of a session at most (%(default)s)")
    p.add_argument("--slowed", type=float, default=0.0, metavar="SHARE", help="of every second session's default (%(default)g)")
    p.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    p.add_argument("--out", type=Path, default=Path("build/believe"), help="folder of artifacts, sessions and results (%(default)s)")
    a = p.parse_args(arguments)
    if missing := [n for n in a.networks if not n.exists()]:
        p.error(f"there is no network {missing[0]}")
    a.out.mkdir(parents=True, exist_ok=True)
    path, about = a.out / "believe.csv", describe(threads=a.threads)
    held: list[Row] = list(read_rows(path)) if path.exists() else []
    done = {(r["network"], int(r["seed"]), r["budget"], float(r["slowed"])) for r in held}
    rows = Table(COLUMNS, path, about, SHOWN, goes_on=True)
    try:
        for k in range(a.sessions):
            network = artifact(a.networks[k % len(a.networks)], a.out)
            settings = BelieveSettings(a.budget, a.trials, a.threads, a.slowed * (k % 2))
            if (network.stem, k, settings.budget, settings.slowed) in done:
                continue
            rows.add(session(network, k, settings))
            (a.out / "believe.html").write_text(page([*held, *rows.rows], about), encoding="utf-8")
    except PolytritonError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say(f"\nstopped; the same command goes on ({path})")
        return 130
    finally:
        rows.close()
    said, met = summary([*held, *rows.rows])
    print(said)
    return 0 if met else FAILED


if __name__ == "__main__":
    raise SystemExit(main())
