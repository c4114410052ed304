"""Attacks `polytriton check` with forged certificates of properties that are false, and nearly true.

    python -m tests.certificate.attack --networks 10000 --mutants 100000 --seed 0

Of every network all linear regions are enumerated in rationals (`regions.py`), which gives the exact value at which a property turns false.
One is taken there or a little above it: an input, computed exactly, or a float32 execution, computed operation by operation, shows it
false. Another a little below it is true, and the writer finds its certificate; what is forged of that for the false property (`forge.py`)
must be refused. The writer has a twentieth of a second, so that a slower machine forges of other certificates.
One summary, JSON, on standard output; exit code 1 where a false property was confirmed or the checker failed otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from hashlib import sha256
from types import ModuleType
from typing import Any

import numpy as np
import onnx

from polytriton import __version__, checker_exact
from polytriton import checker as ours
from polytriton.certificate import guide as guides
from polytriton.certificate.guide import Guide, complete
from polytriton.certificate.write import certify
from tests.certificate.cases import Case, Piece, above, changed, coarse, draw, execution, located, model, pick, written
from tests.certificate.forge import KINDS, RARE, Mutant, Rng, Tree, Victim, forge, judged
from tests.certificate.nodes import Node


class Held:
    """A file in memory, as far as the checker asks for it."""

    suffix = ""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_bytes(self) -> bytes:
        return self.data


@contextmanager
def remembered(checker: ModuleType) -> Iterator[None]:
    """Networks and properties are parsed once, the machine is probed with three numbers: a mutant costs a millisecond or two."""
    load, prover, probe, rounded = checker.load, checker.Prover, checker.PROBE, checker.ROUNDED
    loaded, provers = dict[Any, Any](), dict[Any, Any]()

    def load_once(*files: Held) -> Any:
        key = tuple(f.data for f in files)
        if key not in loaded:
            if len(loaded) > 16:
                loaded.clear()
                provers.clear()
            loaded[key] = load(*files)
        return loaded[key]

    def prover_once(data: bytes, semantics: str) -> Any:
        if (data, semantics) not in provers:
            provers[data, semantics] = prover(data, semantics)
        return provers[data, semantics]

    checker.load, checker.Prover, checker.PROBE, checker.ROUNDED = load_once, prover_once, probe[:3], rounded[:3]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        checker.load, checker.Prover, checker.PROBE, checker.ROUNDED = load, prover, probe, rounded  # type: ignore[attr-defined]


@dataclass
class Tally:
    networks: int = 0
    regions_of: Counter[str] = field(default_factory=Counter)
    true: int = 0
    confirmed: int = 0
    false: int = 0
    shown: int = 0  # false as a float32 execution shows
    tried: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    harmless: Counter[str] = field(default_factory=Counter)  # the true property, or semantics under which the false one is true
    again: int = 0  # mutants held against the true property too
    proved: int = 0  # false properties confirmed
    wrong: list[str] = field(default_factory=list)  # those, true certificates refused, and exceptions other than refusals


def donor(case: Case, rng: Rng, semantics: str, limit: Fraction) -> tuple[list[Piece], bytes | None, Any]:
    """A true property as near as the writer can: what it is, its certificate, its files."""
    some = case.pieces
    size = max(Fraction(1), abs(limit))
    for gap in [pick(rng, [size / 2**30, size / 2**20, size / 2**12, size / 2**6]), size / 4, size * 4, size * 2**40]:
        some = [p.raised(p.least - gap if k else coarse(limit - gap)) for k, p in enumerate(case.pieces)]
        some = [p if k == 0 else case.pieces[k].raised(coarse(case.pieces[k].least - size / 4)) for k, p in enumerate(some)]
        files = Held(model(case.net, case.form, case.skip)), Held(written(case, some))
        try:
            return some, certify(*files, semantics, seconds=0.05), files  # type: ignore[arg-type]
        except ours.Refused:
            continue
    return some, None, files


def attack_one(rng: Rng, checker: ModuleType, mutants: int, kinds: Sequence[str], real: bool, tally: Tally) -> None:
    """One network: a true property with its certificate, a false one, and mutants between them."""
    semantics = "real" if rng.random() < 0.6 or real else "float32"
    case = draw(rng, semantics)
    first = case.pieces[0]
    tally.networks += 1
    tally.regions_of[case.form] += 1
    guides.FEW = 64 if rng.random() < 0.6 else 0  # divided by inputs, or by signs
    true, data, files = donor(case, rng, "real" if semantics == "float32" and rng.random() < 0.3 else semantics, first.least)
    if data is not None:
        tally.true += 1
        found, why = judged(checker, files, Mutant("", data), Held)
        tally.confirmed += bool(found)
        tally.wrong += [] if found else [f"a true property refused: {why}"]
    victim_case, witness, least = case, first.at, first.least
    if rng.random() < 0.3:  # another network, one weight beside it
        net = changed(rng, case.net)
        moved = located(net, first.box, first.forms, case.skip, {})
        victim_case, witness, least = replace(case, net=net), moved.at, moved.least
    if semantics == "float32":
        shown = execution(rng, victim_case.net, replace(first, at=witness))
        if shown is None:
            semantics = "real"
        else:
            limit, witness = shown
    limit = least if semantics == "real" else limit
    t = above(rng, limit)
    names = ("real", "float32") if t >= least else ("float32",)
    tally.false += 1
    tally.shown += semantics == "float32"
    wrong = written(victim_case, [first.raised(t), *true[1:]])
    attacked = Held(model(victim_case.net, case.form, case.skip)), Held(wrong)
    _, pieces, hashes = checker.load(*attacked)
    prover = checker.Prover(attacked[0].data, semantics)
    boxes, sides = list(pieces.items()), [tuple(map(tuple, b)) for b in pieces]
    trees: list[Tree] = ours.read(data)[1] if data is not None else []
    trees = trees or [Node(0, 0, [(p, 0) for p in range(len(group))]).arrays(b) for b, (_, group) in enumerate(boxes)]
    at = tuple(float(v) for v in witness)
    victim = Victim(case.net.inputs, int(prover.first[-1]), boxes, at, sides.index(first.box), semantics, names, hashes, prover)
    for _ in range(mutants):
        kind = kinds[tally.tried.total() % len(kinds)]
        if kind in RARE and rng.random() < 0.75:
            kind = "closing in"
        strike(rng, checker, kind, trees, victim, attacked, files if data is not None else None, tally)


def strike(rng: Rng, checker: ModuleType, kind: str, trees: list[Tree], victim: Victim, false: Any, true: Any, tally: Tally) -> None:
    """One mutant against the false property, one in eight against the true one too."""
    state = rng.bit_generator.state
    mutant = forge(rng, kind, trees, victim)
    tally.tried[kind] += 1
    try:
        found, _ = judged(checker, false, mutant, Held)
        if found in victim.false:
            tally.proved += 1
            tally.wrong.append(f"{kind}: a false property confirmed for {found}: {false[1].data.decode()}")
        tally.harmless[kind] += bool(found) and found not in victim.false
        tally.refused[kind] += not found
        turn = tally.tried.total()
        if true is not None and (turn + turn // len(KINDS)) % 8 == 0:
            rng.bit_generator.state = state
            hashes = {k: sha256(f.data).hexdigest() for k, f in zip(("onnx", "vnnlib"), true, strict=True)}
            tally.again += 1
            tally.harmless[kind] += bool(judged(checker, true, forge(rng, kind, trees, replace(victim, hashes=hashes)), Held)[0])
    except Exception as error:  # anything but a refusal is a fault of the checker
        tally.wrong.append(f"{kind}: {error!r}")


def attack(
    networks: int,
    mutants: int,
    seed: int,
    seconds: float = math.inf,
    *,
    checker: ModuleType = ours,
    kinds: Sequence[str] = KINDS,
    real: bool = False,
    told: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Every network from its own seed; ends early where something was wrongly confirmed, or the CPU seconds are up."""
    tally, few = Tally(), guides.FEW
    begun = time.process_time()
    try:
        with remembered(ours), remembered(checker), np.errstate(all="ignore"):
            for k in range(networks):
                share = mutants * (k + 1) // networks - mutants * k // networks
                attack_one(np.random.default_rng([seed, k]), checker, share, kinds, real, tally)
                told(tally)
                if tally.wrong or time.process_time() - begun > seconds:
                    break
    finally:
        guides.FEW = few
    return tally


def exact(program: ModuleType = checker_exact) -> ModuleType:
    """The checker in whole numbers (`check --exact`), in the other's place."""
    made = ModuleType("exact")
    made.__dict__.update(vars(ours))

    def check(*files: Any, guide: Guide | None = None) -> ours.Checked:
        return program.check(*files, **({} if guide is None else {"complete": lambda *tree: complete(*tree, guide)}))

    made.check = check  # type: ignore[attr-defined]
    return made


def summary(tally: Tally, seed: int, seconds: float) -> dict[str, Any]:
    kinds = {k: {"tried": tally.tried[k], "refused": tally.refused[k], "confirmed where true": tally.harmless[k]} for k in KINDS}
    return {
        "networks": tally.networks, "true properties": tally.true, "confirmed": tally.confirmed,
        "false properties": tally.false, "shown by a float32 execution": tally.shown,
        "mutants": tally.tried.total(), "refused": tally.refused.total(), "false ones confirmed": tally.proved,
        "mutants held against the true property too": tally.again, "confirmed where true": tally.harmless.total(),
        "seed": seed, "CPU seconds": round(seconds, 1), "forms": dict(tally.regions_of), "kinds": kinds, "wrong": tally.wrong[:3],
        "polytriton": __version__, "python": platform.python_version(), "numpy": np.__version__, "onnx": onnx.__version__,
    }  # fmt: skip


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("networks", 10_000), ("mutants", 100_000), ("seed", 0)):
        ask.add_argument(f"--{name}", type=int, default=value)
    ask.add_argument("--seconds", type=float, default=math.inf, help="CPU seconds after which no further network is drawn")
    ask.add_argument("--exact", action="store_true", help="attack `check --exact`: properties of exact arithmetic alone")
    given = ask.parse_args()
    begun = last = time.process_time()

    def told(t: Tally) -> None:
        nonlocal last
        if time.process_time() - last > 5:
            last = time.process_time()
            line = f"{t.networks:,} networks, {t.tried.total():,} mutants, {t.proved} false ones confirmed, {last - begun:.0f} s"
            print(line, file=sys.stderr, flush=True)

    checker = exact() if given.exact else ours
    tally = attack(given.networks, given.mutants, given.seed, given.seconds, checker=checker, real=given.exact, told=told)
    print(json.dumps(summary(tally, given.seed, time.process_time() - begun), indent=1))
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
