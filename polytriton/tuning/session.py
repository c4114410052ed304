"""A tuning session: proposes configurations by predicted time, has them run and checked, keeps the best.

Descent one dimension at a time from the best so far, the most promising neighbour first; every fourth trial is a random jump from
the best, so that what only helps together is found too. Each is timed in turns with the default, and its time is told as its share of
the default's at the start. The best is no winner before it has won a duel (`duel.py`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from polytriton.errors import UsageError
from polytriton.runtime.config import Config
from polytriton.tuned import Entry
from polytriton.tuning.duel import GAIN, ROUNDS, Duel, Pair, duel
from polytriton.tuning.evidence import Evidence, Reference
from polytriton.tuning.profile import Profile
from polytriton.tuning.space import Point, Space
from polytriton.tuning.space import name as point_name
from polytriton.tuning.store import WORK, Folder, Trial, trial
from polytriton.tuning.trials import TrialFailed, TrialProcess
from polytriton.tuning.worker import TrialAnswer, TrialJob

JUMP = 4  # every so many trials one is random
SHARE = 0.25  # of the dimensions that a jump draws anew
HOPELESS = 1.6  # predicted times beyond so many times the best's are not tried
SLOW = 20.0  # times the default's time that a trial may take, at least
LEAST = 60.0  # seconds
PATIENCE = 30  # trials without one that gains enough after which the default is good enough
RUNS, LONG = 3, 0.5  # timed runs of each side a round of the duel, of which the middle one counts; of more seconds, one


@dataclass(frozen=True)
class SessionSettings:
    """What a session depends on besides the network and the work."""

    options: dict[str, Any]
    threads: int
    seed: int = 0
    budget: float = 300.0
    most: int = 0  # trials; 0: as many as the budget holds
    runs: int = 5
    workload: str = "verify"
    allow: tuple[str, ...] = ()  # coefficients that may be tried besides the options' own: split products, by name


@dataclass
class SessionState:
    """What a watcher may show. `start` and `best` are seconds of the default and of the best so far."""

    done: int = 0
    start: float = 0.0
    best: float = 0.0
    peak: float = 0.0
    left: float = 0.0
    verdict: str = ""


Watch = Callable[[SessionState], None]
Predict = Callable[[Config, Profile], float]


@dataclass
class Outcome:
    """`entry` is what the artifact gets: the default's configuration where nothing beat it beyond noise, in the `duel` at the end."""

    entry: Entry
    best: Point
    config: Config
    trials: list[Trial]
    profile: Profile
    interrupted: bool = False
    duel: Duel | None = None
    early: bool = False  # ended before its time: nothing gained enough


class Session:
    """One network on one device."""

    def __init__(
        self,
        artifact: Path,
        space: Space,
        folder: Folder,
        reference: Reference,
        settings: SessionSettings,
        place: tuple[str, str, dict[str, str]],
        predict: Predict,
        peak: float,
        *,
        worker: TrialProcess | None = None,
        watch: Watch = lambda state: None,
        begin: Point | None = None,
    ) -> None:
        self.artifact, self.space, self.folder, self.reference = artifact, space, folder, reference
        self.settings, self.place, self.predict, self.peak, self.watch = settings, place, predict, peak, watch
        self.worker = worker or TrialProcess()
        self.begin = begin
        self.rng = random.Random(settings.seed)
        self.profile = Profile()
        self.state = SessionState()
        self.ended, self.early = 0.0, False

    def run(self) -> Outcome:
        """Until the budget is spent, the space is, or Ctrl-C; the best so far in any case."""
        began = time.monotonic()
        self.ended = began + self.settings.budget
        interrupted = False
        try:
            default = self._default()
            try:
                self._search()
            except KeyboardInterrupt:
                interrupted = True
            best, seconds, fought = self._best(), (default.median, default.median), None
            if best.point:
                fought = self._again(best)
                interrupted = interrupted or len(fought.default) < ROUNDS
                if fought.won:
                    seconds = (median(fought.default), median(fought.default) / fought.speedup)
                else:
                    best, seconds = default, (median(fought.default or seconds),) * 2
        finally:
            self.worker.end()
        config = self.space.config(best.point)
        entry = Entry(*self.place, config.changes(), seconds[1], seconds[0], len(self.folder.trials), self.settings.seed)
        return Outcome(entry, best.point, config, self.folder.trials, self.profile, interrupted, fought, self.early)

    # ---- trials -----------------------------------------------------------------------------------------

    def _default(self) -> Trial:
        """The start: its own time, profile and, like any other, its check."""
        old = next((t for t in self.folder.trials if not t.point), None)
        held = self.folder.profile()
        if old is not None and held is not None:
            self.profile = held
            self._tell(old.median, old.verdict)
            return old
        answer = self._ask({}, profile=True, timeout=LEAST * 10)
        problem = self._problem(answer)
        if problem:
            raise UsageError(f"the default configuration does not pass the check: {problem}", "please report this network")
        if answer.profile:
            self.profile = msgspec.msgpack.decode(answer.profile, type=Profile)
        self.folder.keep_profile(self.profile)
        made = self._record({}, answer, "ok")
        self.folder.add(made)
        self._tell(made.median, "ok")
        return made

    def _search(self) -> None:
        for point in self._proposals():
            if time.monotonic() > self.ended or (self.settings.most and len(self.folder.trials) >= self.settings.most):
                return
            tried = self.folder.trials
            if not self.settings.most and len(tried) > PATIENCE and min(t.median for t in tried if t.won) > GAIN * self.state.start:
                self.early = True
                return
            self._try(point)

    def _try(self, point: Point) -> None:
        predicted = self.predict(self.space.config(point), self.profile)
        try:
            answer = self._ask(point, timeout=max(LEAST, SLOW * self.state.start))
            verdict = self._problem(answer, bool(self.space.config(point).skips)) if answer.evidence else "slower"
            made = self._record(point, answer, verdict or "ok", predicted)
        except TrialFailed as failed:
            made = trial(point, predicted, str(failed))
        self.folder.add(made)
        self._tell(made.median if made.won else 0.0, made.verdict)

    def _ask(self, point: Point, timeout: float, profile: bool = False, check: bool = True, runs: int = 0) -> TrialAnswer:
        config = self.space.config(point)
        share = self.state.best / self.state.start if self.state.start else 0.0
        job = TrialJob(
            str(self.artifact), str(self.folder.path / WORK), self.settings.options, config.changes(), self.settings.threads,
            self.settings.seed, runs or self.settings.runs, share, profile, check, not runs, self.settings.workload,
        )  # fmt: skip
        return self.worker.ask(job, timeout)

    def _problem(self, answer: TrialAnswer, fewer: bool = False) -> str:
        try:
            return self.reference.problem(msgspec.msgpack.decode(answer.evidence, type=Evidence), fewer)
        except (msgspec.MsgspecError, ValueError) as error:
            return f"unsound: its evidence cannot be read ({error})"

    def _record(self, point: Point, answer: TrialAnswer, verdict: str, predicted: float | None = None) -> Trial:
        share = median(t / b for t, b in zip(answer.times, answer.base, strict=True))
        middle = share * self.state.start if self.state.start else median(answer.times)
        guess = self.predict(self.space.config(point), self.profile) if predicted is None else predicted
        spread = max(answer.times) - min(answer.times)
        peak = answer.ops / median(answer.times) / self.peak if self.peak else 0.0
        return trial(point, guess, verdict, compile=answer.compile, times=(middle, spread), peak=peak)

    def _again(self, best: Trial) -> Duel:
        """The default against the best, on this session's own work, in a new process: what its trials ran in was lucky, too."""
        self.worker.end()

        def pair() -> Pair:
            runs = RUNS if self.state.start < LONG else 1
            found = self._ask(best.point, timeout=max(LEAST, SLOW * runs * self.state.start), check=False, runs=runs)
            return median(found.base), median(found.times)

        try:
            return duel(pair)
        except TrialFailed:
            return Duel((), ())

    # ---- proposals --------------------------------------------------------------------------------------

    def _best(self) -> Trial:
        return min((t for t in self.folder.trials if t.won), key=lambda t: t.median)

    def _proposals(self) -> Iterator[Point]:
        """Points not tried yet. What a session has done decides what comes next, so a resumed one goes on."""
        if self.begin and point_name(self.begin) not in self._done_keys():
            yield self.begin
        while True:
            done = self._done_keys()
            if len(done) >= self.space.size:
                return
            best = self._best()
            fresh = [p for p in self.space.neighbours(best.point) if point_name(p) not in done]
            guesses = [(self.predict(self.space.config(p), self.profile), k, p) for k, p in enumerate(fresh)]
            limit = HOPELESS * self.predict(self.space.config(best.point), self.profile)
            hopeful = sorted(g for g in guesses if g[0] <= limit)
            if hopeful and len(done) % JUMP:
                yield hopeful[0][2]
                continue
            point = self._jump(best.point, done, limit)
            if point is None and not hopeful:
                return
            yield hopeful[0][2] if point is None else point

    def _jump(self, around: Point, done: set[str], limit: float) -> Point | None:
        """The most promising of a few random points."""
        drawn = [self.space.sample(self.rng, around, SHARE) for _ in range(16)]
        fresh = {point_name(p): p for p in drawn if point_name(p) not in done}
        guesses = [(self.predict(self.space.config(p), self.profile), k) for k, p in fresh.items()]
        return fresh[min(guesses)[1]] if guesses and min(guesses)[0] <= limit else None

    def _done_keys(self) -> set[str]:
        return {t.key for t in self.folder.trials}

    def _tell(self, seconds: float, verdict: str) -> None:
        state = self.state
        state.done, state.verdict = len(self.folder.trials), verdict
        if not state.start:
            state.start = seconds
        best = self._best()
        state.best, state.peak = best.median, best.peak
        state.left = max(0.0, self.ended - time.monotonic())
        self.watch(state)
