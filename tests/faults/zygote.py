"""`python -m tests.faults.zygote WHAT FOLDER ROUNDS`: processes that write, killed at random moments, and others that read meanwhile.

One process imports everything once and forks the others: a round costs milliseconds. Prints one JSON object of counts.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import polytriton
from polytriton.artifact import read_artifact
from polytriton.cache import cached_artifact
from polytriton.errors import PolytritonError
from polytriton.knobs import scope
from tests.cli import tiny

MOST = 20  # times the rounds asked for, before an outcome that was not met is a failure


def forked(act: Callable[[], None]) -> int:
    """A child that runs `act`; exit code 9 says that it raised."""
    child = os.fork()
    if child == 0:
        code = 9
        with suppress(BaseException):
            act()
            code = 0
        os._exit(code)
    return child


def forever(act: Callable[[], object], seconds: float = 60.0, told: int | None = None) -> Callable[[], None]:
    """`told`: a pipe that hears of every time it is done."""

    def loop() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            act()
            if told is not None:
                os.write(told, b".")

    return loop


def killed(act: Callable[[], object], rng: random.Random) -> None:
    """A child that does it again and again is killed at a random moment: the last time it took tells how far off that is at most."""
    hears, tells = os.pipe()
    child = forked(forever(act, told=tells))
    os.close(tells)
    took = 0.0
    for _ in range(rng.randrange(2, 4)):
        start = time.monotonic()
        assert os.read(hears, 1) == b"."
        took = time.monotonic() - start
    time.sleep(rng.uniform(0, took))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(hears)


def compiling(folder: Path, rounds: int) -> dict[str, int]:
    """A writer that replaces one artifact by another is killed: there is always the one or the other.

    `rounds` at least, here and in `caching`; more, until each outcome was met: no share of the rounds is sure to meet it.
    """
    rng, path = random.Random(0), folder / "net.poly"
    both = [polytriton.compile(tiny.brightest(folder / f"{k}.onnx", k)) for k in (1, 2)]
    models = [v.imported.model for v in both if v.imported]
    both[0].save(path)
    found = [0, 0]
    while sum(found) < rounds or (min(found) == 0 and sum(found) < MOST * rounds):
        killed(lambda: [v.save(path) for v in both], rng)
        found[models.index(read_artifact(path).imported.model)] += 1
    both[0].save(path)
    return {"rounds": sum(found), "old": found[0], "new": found[1], "good": int(read_artifact(path).imported.model == models[0])}


def caching(folder: Path, rounds: int) -> dict[str, int]:
    """A process that fills the cache is killed: what it holds afterwards is whole, and the next one answers."""
    rng, model, cache = random.Random(0), tiny.brightest(folder / "net.onnx"), folder / "cache"
    want, found = polytriton.compile(model).compiled, [0, 0]
    with scope(cache=cache):

        def fill() -> None:
            for entry in cache.glob("*.poly"):
                entry.rename(cache / f"gone-{os.getpid()}-{time.monotonic_ns()}")
            for _ in range(8):  # made, and then found for as long as making took
                cached_artifact(model)

        while sum(found) < rounds or (min(found) == 0 and sum(found) < MOST * rounds):
            killed(fill, rng)
            entries = list(cache.glob("*.poly"))
            assert all(read_artifact(entry).compiled == want for entry in entries)
            found[bool(entries)] += 1
            assert cached_artifact(model).compiled == want
    return {"rounds": sum(found), "none": found[0], "whole": found[1]}


def sharing(folder: Path, rounds: int) -> dict[str, int]:
    """Two writers and two readers of one artifact, and two users of one cache, for a tenth of a second a round."""
    path, cache, long = folder / "net.poly", folder / "cache", rounds / 10
    model = tiny.brightest(folder / "1.onnx")
    both = [polytriton.compile(model), polytriton.compile(tiny.brightest(folder / "2.onnx", 2))]
    models = [v.imported.model for v in both if v.imported]
    both[0].save(path)

    def read() -> None:
        assert read_artifact(path).imported.model in models

    def use() -> None:
        with scope(cache=cache):
            assert cached_artifact(model).compiled == both[0].compiled
            if random.random() < 0.2:
                for entry in cache.glob("*.poly"):
                    with suppress(OSError):
                        (entry / "manifest.json").unlink()

    acts = [*(lambda v=v: v.save(path) for v in both), read, read, use, use]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in [forked(forever(act, long)) for act in acts]]
    read()
    left = [p.name for p in (*folder.iterdir(), *cache.iterdir()) if p.name.startswith(".")]
    return {"processes": len(codes), "failed": sum(map(bool, codes)), "left": len(left)}


if __name__ == "__main__":
    try:
        what = {"compiling": compiling, "caching": caching, "sharing": sharing}[sys.argv[1]]
        print(json.dumps(what(Path(sys.argv[2]), int(sys.argv[3]))))
    except PolytritonError as error:
        sys.exit(str(error))
