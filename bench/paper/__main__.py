"""The paper's evaluation in one command: its networks' shapes, trained; its radii; its methods; its tables and curves beside ours.

    python -m bench.paper [PART ...] [--budget SECONDS] [--images N] [--mnist FOLDER] [--cifar FOLDER] [--device cpu] [--out FOLDER]

PARTS

Networks are trained where FOLDER/nets has none (bench.paper.standins), then asked about correctly classified images of the held-out ones,
one at a time, by every method, in balls of the paper's radius, met with [0, 1]; where that proves less than 5 % or more than 95 % of them,
in balls of a stated one too, which is found on the first few images (bench.paper.radii). A network gets --budget seconds a method and
radius, on a CPU of its own time, and as many images as fit. FOLDER/answers.jsonl grows by a line an image, FOLDER/radii.json holds the
radii found, and the same command goes on where it stopped. At the end: FOLDER/paper.csv and FOLDER/paper.html, and the table on standard
output.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import torch

from bench.core.command import check_known, parser
from bench.core.machine import describe
from bench.core.table import say
from bench.paper import standins
from bench.paper.ask import BOXES, Answer, Answers, Question, ask
from bench.paper.images import Images, images_for
from bench.paper.radii import WHOLE, Share, share_of_few, stated_radius
from bench.paper.rows import EVERY, METHODS, PARTS, PaperRow
from bench.paper.tables import COLUMNS, GROWTH, Measured, csv_rows, growth_rows, page
from polytriton.errors import PolytritonError
from polytriton.whole import write_whole

LARGE = 50_000  # neurons: larger networks take minutes to train on a CPU, and are left out unless asked for by name or --large
FEW = (0.05, 0.95)  # shares of proved images beyond which a radius tells nothing of a network
RADII = "radii.json"  # of the folder: those found
QUICK_SEEN = 3_200  # images in the training of a network of the part quick; a longer one's is kept
HOPELESS = 5  # images of which none is proved, after which no more are asked at that radius
HOPELESS_NOTE = f"none of the first {HOPELESS} is proved: no more were asked"


def main(arguments: Sequence[str] | None = None) -> int:
    listed = "\n".join(f"{k:8s} {said}: {', '.join(rows)}" for k, (said, rows) in PARTS.items())
    p = parser("paper", (__doc__ or "").replace("PARTS", listed, 1))
    p.add_argument("parts", nargs="*", metavar="PART", help="default: table2 table3 table4")
    p.add_argument("--rows", nargs="+", choices=EVERY, default=[], metavar="ROW", help="these networks, however large")
    p.add_argument("--large", action="store_true", help=f"networks of more than {LARGE:,} neurons on a CPU too: hours of training")
    p.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD", help=", ".join(METHODS))
    p.add_argument("--images", type=int, default=100, help="of each network at most (%(default)s; quick: 12)")
    p.add_argument("--budget", type=float, default=60.0, help="seconds a network, method and radius (%(default)g; quick: 3)")
    p.add_argument("--limit", type=float, metavar="SECONDS", help="of an image by the clock: what is not proved by then is not proved")
    p.add_argument("--near", type=_radius, metavar="RADIUS", help="where the search for a radius begins: a start for large --rows")
    p.add_argument("--seen", type=int, metavar="IMAGES", help="in training, each pass counted")
    p.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    p.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (%(default)s)")
    p.add_argument("--out", type=Path, default=Path("build/paper"), help="folder of networks, answers and pages (%(default)s)")
    standins.add_data(p)
    a = p.parse_args(arguments)
    check_known(p, "part", a.parts, PARTS)
    if a.threads < 1 or a.images < 1 or a.budget <= 0 or (a.limit is not None and a.limit <= 0):
        p.error("--threads, --images, --budget and --limit must be above 0")
    torch.set_num_threads(a.threads)
    if a.parts == ["quick"]:
        a.images, a.budget = min(a.images, 12), min(a.budget, 3.0)
    try:
        return _run(a)
    except PolytritonError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say(f"\nstopped; the same command goes on (answers are in {a.out})")
        return 130


def _radius(text: str) -> Fraction:
    try:
        radius = Fraction(text)
    except (ValueError, ZeroDivisionError):
        radius = Fraction(0)
    if not 0 < radius <= WHOLE:
        raise argparse.ArgumentTypeError(f"{text!r} is no radius: a fraction or a number above 0, 1 at most, such as 1/500")
    return radius


def _run(a: argparse.Namespace) -> int:
    wanted = a.rows or [k for part in a.parts or ["table2", "table3", "table4"] for k in PARTS[part][1]]
    rows = [EVERY[k] for k in dict.fromkeys(wanted)]
    missing = {r.key: "not asked for" for r in EVERY.values() if r not in rows}
    if a.device == "cpu" and not a.large and not a.rows:
        missing |= {r.key: f"more than {LARGE:,} neurons on a CPU (--large)" for r in rows if _neurons(r) > LARGE}
    rows = [r for r in rows if r.key not in missing]
    answers, measured = Answers(a.out / "answers.jsonl"), list[Measured]()
    begin, todo = time.monotonic(), len(rows) * len(a.methods)
    for k, row in enumerate(rows):
        images = images_for(row.dataset, a.mnist if row.dataset == "mnist" else a.cifar)
        about = standins.make(row, images, a.out / "nets", a.seen, most=QUICK_SEEN if a.parts == ["quick"] else None)
        say(f"{row.key}: {about['neurons']:,} neurons, {100 * about['accuracy']:.1f} % of held-out {about['data']}")
        for j, m in enumerate(_measure(a, row, about, images, answers)):
            measured.append(m)
            done = min(todo, k * len(a.methods) + j + 1)
            left = (time.monotonic() - begin) / done * (todo - done)
            say(f"  {METHODS[m.method]:10s} at {m.radius}: {m.verified} of {len(m.candidates)} proved {m.note}  ({left:.0f} s left)")
            _write(a, measured, missing)
    if not rows:
        say("nothing to run: the networks asked for are large; --large runs them")
        return 2
    _print(measured)
    _print_growth(measured)
    say(f"{a.out / 'paper.html'}, {a.out / 'paper.csv'}")
    return 0


def _neurons(row: PaperRow) -> int:
    from bench import zoo

    return zoo.neurons(zoo.network(row.zoo))


def _measure(a: argparse.Namespace, row: PaperRow, about: dict[str, object], images: Images, answers: Answers) -> Iterator[Measured]:
    """Every method at the paper's radius, and at a stated one where the paper's tells nothing of this network."""

    def answers_of(method: str, radius: Fraction, count: int) -> Iterator[Answer]:
        q = Question(row.key, a.out / "nets" / f"{row.key}.onnx", str(about["sha256"]), method, radius, count, a.budget, a.device, a.limit)
        for answer in ask(q, images.held, images.held_labels, answers):
            print(f"\r  {METHODS[method]} at {radius}: image {answer.image + 1} ", end="", file=sys.stderr, flush=True)
            yield answer
        print("\r", end="", file=sys.stderr)

    def share_at(method: str) -> Share:
        def share(radius: Fraction, most: int) -> float:
            return share_of_few((x.proved for x in answers_of(method, radius, a.images) if x.verdict != "wrong"), most)

        return share

    def measure(radius: Fraction) -> Iterator[Measured]:
        """All methods are asked about the images that polytriton was asked about."""
        own = list(_until_hopeless(answers_of("polytriton", radius, a.images)))
        why = HOPELESS_NOTE if _hopeless(own) and len(own) < a.images else ""
        for method in a.methods:
            if method != "deeppoly" or row.deeppoly:
                found = own if method == "polytriton" else list(answers_of(method, radius, len(own)))
                yield Measured(row, about, method, str(radius), not row.table or radius != row.epsilon, found, why)

    if row.table:  # other rows have no radius of the paper's
        own = list(_until_hopeless(answers_of("polytriton", row.epsilon, a.images)))
        yield from measure(row.epsilon)
        if FEW[0] < _share(own) < FEW[1]:
            return
    name = f"{row.key} {about['sha256']} {BOXES}"
    if name not in _radii_found(a.out) or a.near:
        found = {name: stated_radius(share_at("polytriton"), share_at("crown-ibp"), row.epsilon, a.near)}
        now = _radii_found(a.out) | found  # other rows may be asked at the same time
        write_whole(a.out / RADII, json.dumps({k: str(v or "") for k, v in now.items()}, indent=1).encode() + b"\n")
    radius = _radii_found(a.out)[name]
    if radius is not None and not (row.table and radius == row.epsilon):
        yield from measure(radius)


def _radii_found(out: Path) -> dict[str, Fraction | None]:
    """Of earlier runs too, by row, file and boxes; None where images never part."""
    path = out / RADII
    return {k: Fraction(v) if v else None for k, v in json.loads(path.read_text()).items()} if path.exists() else {}


def _hopeless(some: Sequence[Answer]) -> bool:
    held = [x for x in some if x.candidate]
    return len(held) >= HOPELESS and not any(x.proved for x in held)


def _until_hopeless(some: Iterable[Answer]) -> Iterator[Answer]:
    seen: list[Answer] = []
    for answer in some:
        seen.append(answer)
        yield answer
        if _hopeless(seen):
            return


def _share(some: Sequence[Answer]) -> float:
    held = [x for x in some if x.candidate]
    return sum(x.proved for x in held) / len(held) if held else 0.0


def _write(a: argparse.Namespace, measured: Sequence[Measured], missing: dict[str, str]) -> None:
    about = describe(a.device, a.threads)
    a.out.mkdir(parents=True, exist_ok=True)
    with (a.out / "paper.csv").open("w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, [*COLUMNS, *about])
        writer.writeheader()
        writer.writerows({**row, **about} for row in csv_rows(measured))
    (a.out / "paper.html").write_text(page(measured, about, missing), encoding="utf-8")


def _print(measured: Sequence[Measured]) -> None:
    print("| network | radius | method | candidates | verified | median s | paper: verified | median s |")
    print("|---|---|---|---|---|---|---|---|")
    for row in csv_rows(measured):
        median = f"{row['median_seconds']:.4f}" if row["median_seconds"] != "" else row["note"]
        name, paper = METHODS[row["method"]], " | "
        if row["paper_verified"] != "":
            paper = f"{row['paper_verified']} of {row['paper_candidates']} | {row['paper_seconds']:.4g}"
        print(f"| {row['row']} | {row['radius']} | {name} | {row['candidates']} | {row['verified']} | {median} | {paper} |")


def _print_growth(measured: Sequence[Measured]) -> None:
    if rows := growth_rows(measured):
        print("\n| " + " | ".join(GROWTH) + " |\n|" + "---|" * len(GROWTH))
        for cells in rows:
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    raise SystemExit(main())
