"""Asks one network about images by one method, an image at a time, within a budget; every answer is a line of a file at once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import polytriton
from polytriton.results import Result
from polytriton.whole import LineFile

PATIENCE = 6  # how many times the budget the clock may run on a CPU that others use too
CLIP = (0, 1)  # pixels' values, which every ball is met with
BOXES = f"balls in {list(CLIP)}"  # of an answer's line: one that says otherwise, or nothing, answered another question


@dataclass(frozen=True)
class Answer:
    """Of one image; verdict "wrong" where the network's own label is another one. `allowed` is how long it might take by the clock:
    without an answer by then it is a "timeout", which counts as not proved, where a limit was asked for, and "over budget" where none was.
    """

    row: str
    sha256: str
    method: str
    radius: str
    image: int
    verdict: str
    seconds: float
    margin: float
    cpu_seconds: float = 0.0  # of this process, which another one beside it hardly changes
    allowed: float = 0.0
    boxes: str = ""

    @property
    def proved(self) -> bool:
        return self.verdict == "unsat"

    @property
    def candidate(self) -> bool:
        return self.verdict not in ("wrong", "over budget")


@dataclass
class Answers:
    """Those of a file that were asked about today's boxes, and of this run."""

    path: Path

    def __post_init__(self) -> None:
        self.held: list[Answer] = []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        full = "free some space; the same command goes on"
        self._file = LineFile(self.path, self._read, fresh=False, what=f"answers to {self.path}", full=full)

    def _read(self, data: bytes) -> None:
        for line in data.splitlines():
            with suppress(ValueError, TypeError):  # a line that was cut by an earlier version
                answer = Answer(**json.loads(line))
                if answer.boxes == BOXES:
                    self.held.append(answer)

    def add(self, answer: Answer) -> None:
        self._file.append(json.dumps(asdict(answer)).encode() + b"\n")
        self.held.append(answer)

    def select(self, row: str, sha256: str, method: str, radius: str) -> list[Answer]:
        """In the order of the images, each once."""
        found = {a.image: a for a in self.held if (a.row, a.sha256, a.method, a.radius) == (row, sha256, method, radius)}
        return [found[k] for k in sorted(found)]


@dataclass(frozen=True)
class Question:
    """Which network, by which method, at which radius; of how many images, in how many seconds: on the CPU of its own time, a thread."""

    row: str
    model: Path
    sha256: str
    method: str
    radius: Fraction
    images: int
    budget: float
    device: str = "cpu"
    limit: float | None = None

    def key(self) -> tuple[str, str, str, str]:
        return self.row, self.sha256, self.method, str(self.radius)

    def cost(self, answer: Answer) -> float:
        """Seconds of the budget; other work beside it stretches the clock of a CPU."""
        return answer.cpu_seconds / torch.get_num_threads() if self.device == "cpu" else answer.seconds

    @property
    def timeout(self) -> float:
        return self.limit or max(1.0, self.budget) * (PATIENCE if self.device == "cpu" else 1)

    def stands(self, answer: Answer) -> bool:
        """Of an earlier run: what had no answer in time is asked again by who gives it more."""
        late = answer.verdict in ("timeout", "over budget")
        return not late or ((answer.verdict == "timeout") == (self.limit is not None) and answer.allowed >= self.timeout)


@dataclass
class _Asked:
    """A network compiled for a method; `warm` once it has answered, since the first answer waits for what is made once."""

    verifier: polytriton.Verifier
    warm: bool = False


@lru_cache(maxsize=2)  # a search for a radius asks two methods by turns
def _prepare(model: Path, sha256: str, method: str, device: str) -> _Asked:
    return _Asked(polytriton.compile(model, method=method, device=device, check=False))


def ask(question: Question, levels: np.ndarray, labels: np.ndarray, answers: Answers) -> Iterator[Answer]:
    """All answers in the order of the images, those of earlier runs too, until the budget is spent."""
    known = {a.image: a for a in answers.select(*question.key()) if question.stands(a)}
    spent, guess = 0.0, None
    for k in range(min(question.images, len(levels))):
        answer = known.get(k)
        if answer is None:
            if spent >= question.budget:
                return
            asked = _prepare(question.model, question.sha256, question.method, question.device)
            if guess is None:
                guess = asked.verifier.predict(levels[: question.images]).argmax(1)
            right = int(guess[k]) == int(labels[k])
            answer = _answer(question, k, asked, levels[k], int(labels[k])) if right else _wrong(question, k)
            answers.add(answer)
        spent += question.cost(answer)
        yield answer
        if answer.verdict == "over budget":
            return


def _wrong(question: Question, image: int) -> Answer:
    return Answer(*question.key(), image, "wrong", 0.0, float("-inf"), boxes=BOXES)


def _answer(question: Question, image: int, asked: _Asked, levels: np.ndarray, label: int) -> Answer:
    options: dict[str, Any] = {"epsilon": question.radius, "clip": CLIP, "label": label, "falsifier": False, "search": "none"}
    if not asked.warm:  # on a CPU nothing is made for a radius, and a point is soon decided
        begin = options | ({"epsilon": 0} if question.device == "cpu" else {})
        asked.verifier.verify(levels, timeout=question.timeout, **begin)
        asked.warm = True
    before = time.process_time()
    found = asked.verifier.verify(levels, timeout=question.timeout, **options)
    used = time.process_time() - before
    assert isinstance(found, Result)  # of one image
    late = "over budget" if question.limit is None else "timeout"
    verdict = late if found.ended_by == "query-time" else found.verdict
    return Answer(*question.key(), image, verdict, found.seconds, float(found.margin), used, question.timeout, BOXES)
