"""Asks one network about images by one method, an image at a time, within a budget; every answer is a line of a file at once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import polytriton
from polytriton.whole import LineFile


@dataclass(frozen=True)
class Answer:
    """Of one image; verdict "wrong" where the network's own label is another one, and "over budget" where no answer came in time."""

    row: str
    sha256: str
    method: str
    radius: str
    image: int
    verdict: str
    seconds: float
    margin: float
    cpu_seconds: float = 0.0  # of this process, which another one beside it hardly changes

    @property
    def proved(self) -> bool:
        return self.verdict == "unsat"

    @property
    def candidate(self) -> bool:
        return self.verdict not in ("wrong", "over budget")


@dataclass
class Answers:
    """Those of a file, and of this run."""

    path: Path

    def __post_init__(self) -> None:
        self.held: list[Answer] = []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        full = "free some space; the same command goes on"
        self._file = LineFile(self.path, self._read, fresh=False, what=f"answers to {self.path}", full=full)

    def _read(self, data: bytes) -> None:
        for line in data.splitlines():
            with suppress(ValueError, TypeError):  # a line that was cut by an earlier version
                self.held.append(Answer(**json.loads(line)))

    def add(self, answer: Answer) -> None:
        self._file.append(json.dumps(asdict(answer)).encode() + b"\n")
        self.held.append(answer)

    def of(self, row: str, sha256: str, method: str, radius: str) -> list[Answer]:
        """In the order of the images, each once."""
        found = {a.image: a for a in self.held if (a.row, a.sha256, a.method, a.radius) == (row, sha256, method, radius)}
        return [found[k] for k in sorted(found)]


@dataclass(frozen=True)
class Question:
    """Which network, by which method, at which radius; of how many images, in how many seconds."""

    row: str
    model: Path
    sha256: str
    method: str
    radius: Fraction
    images: int
    budget: float
    device: str = "cpu"

    def key(self) -> tuple[str, str, str, str]:
        return self.row, self.sha256, self.method, str(self.radius)


def ask(question: Question, levels: np.ndarray, labels: np.ndarray, answers: Answers) -> Iterator[Answer]:
    """The answers that are missing, until the budget is spent; what an earlier run spent counts."""
    done = answers.of(*question.key())
    if len(done) >= min(question.images, len(levels)) or any(a.verdict == "over budget" for a in done):
        return
    verifier = polytriton.compile(question.model, method=question.method, device=question.device, check=False)
    guess = verifier.predict(levels[: question.images]).argmax(1)
    spent, warm = sum(a.seconds for a in done), False
    known = {a.image for a in done}
    for k in range(min(question.images, len(levels))):
        if k in known:
            continue
        if spent >= question.budget:
            return
        options: dict[str, Any] = {"epsilon": question.radius, "label": int(labels[k]), "falsifier": False, "search": "none"}
        if int(guess[k]) != int(labels[k]):
            answer = Answer(*question.key(), k, "wrong", 0.0, float("-inf"))
        else:
            if not warm:  # the first answer of a process waits for what is made once
                verifier.verify(levels[k], timeout=max(1.0, question.budget), **options)
                warm = True
            begin, before = time.monotonic(), time.process_time()
            found = verifier.verify(levels[k], timeout=max(1.0, question.budget), **options)
            spent, used = spent + time.monotonic() - begin, time.process_time() - before
            verdict = "over budget" if found.ended_by == "query-time" else found.verdict
            answer = Answer(*question.key(), k, verdict, found.seconds, float(found.margin), used)
        answers.add(answer)
        yield answer
        if answer.verdict == "over budget":
            return
