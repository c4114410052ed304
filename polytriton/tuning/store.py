"""What a session keeps: its settings, its workload, one CSV line a trial, and its result in the user's cache.

A trial's line is written by one system call when the trial ends: a killed session keeps every finished trial, and what was cut
off in the middle is dropped when the file is opened again.
"""

from __future__ import annotations

import csv
import hashlib
import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from polytriton.errors import UsageError
from polytriton.knobs import SUMMARY, knobs, note
from polytriton.tuned import Entry, Tuned, decode
from polytriton.tuning.profile import Profile
from polytriton.tuning.space import Point
from polytriton.tuning.space import name as point_name
from polytriton.whole import LineFile, csv_line, write_whole

SETTINGS, WORK, TRIALS, PROFILE = "session.json", "work.npz", "trials.csv", "profile.json"
KEPT = "tuned"  # the folder in the user's cache


class Trial(msgspec.Struct, frozen=True):
    """`verdict`: ok; slower (given up after its first run); or why the configuration may not win. Seconds 0: never measured."""

    key: str
    config: str
    predicted: float
    compile: float
    median: float
    spread: float
    peak: float
    verdict: str

    @property
    def point(self) -> Point:
        held: Point = msgspec.json.decode(self.config)
        return held

    @property
    def won(self) -> bool:
        return self.verdict == "ok"


HEADER = ("key", "config", "predicted_s", "compile_s", "median_s", "spread_s", "peak_fraction", "verdict")


def trial(
    point: Point, predicted: float, verdict: str, *, compile: float = 0.0, times: tuple[float, float] = (0.0, 0.0), peak: float = 0.0
) -> Trial:
    """`times`: median and spread. Numbers are as the file keeps them, so that a resumed session decides alike."""
    guess, made, middle, spread, share = (float(f"{v:.6g}") for v in (predicted, compile, *times, peak))
    return Trial(point_name(point), msgspec.json.encode(point).decode(), guess, made, middle, spread, share, verdict)


class Folder:
    """A session's folder; `settings` are everything its trials depend on."""

    def __init__(self, path: Path, settings: dict[str, Any], work: bytes, *, resume: bool, overwrite: bool) -> None:
        self.path, self.trials = path, list[Trial]()
        settings = {**settings, "work": hashlib.sha256(work).hexdigest()}
        try:
            path.mkdir(parents=True, exist_ok=True)
            held = path / TRIALS
            if held.exists() and not (resume or overwrite):
                raise UsageError(f"{path} holds a session already", "--resume goes on with it, --overwrite starts again")
            if overwrite:
                held.unlink(missing_ok=True)
            if held.exists():
                self._same(settings)
            else:
                write_whole(path / SETTINGS, msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n")
                write_whole(path / WORK, work)
            self._file = LineFile(held, self._read, fresh=False, what=f"to {held}", full="free some space, then --resume")
            if self._file.empty:
                self._append(HEADER)
        except OSError as error:
            raise UsageError(f"cannot write to {path}: {error.strerror or error}", "choose another folder with --session") from error

    def _same(self, settings: dict[str, Any]) -> None:
        try:
            old = msgspec.json.decode((self.path / SETTINGS).read_bytes())
        except (OSError, msgspec.MsgspecError):
            old = {}
        wanted = msgspec.json.decode(msgspec.json.encode(settings))
        odd = sorted(k for k in wanted if not isinstance(old, dict) or old.get(k) != wanted[k])
        if odd:
            remedy = "give the same options, or --overwrite to start again"
            raise UsageError(f"{self.path} holds another session: its {', '.join(odd)} differ", remedy)

    def _read(self, data: bytes) -> None:
        path = self.path / TRIALS
        rows = list(csv.reader(io.StringIO(data.decode(errors="replace"), newline="")))
        if rows and tuple(rows[0]) != HEADER:
            raise UsageError(f"{path} is no list of trials", "choose another folder with --session, or --overwrite")
        for row in rows[1:]:
            try:
                numbers = [float(v) for v in row[2:7]]
                held = Trial(row[0], row[1], numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], row[7])
                if point_name(held.point) != held.key:
                    raise ValueError
            except (ValueError, IndexError, msgspec.MsgspecError):
                raise UsageError(f"{path}: the line of {row[0][:20]!r} is damaged", "--overwrite starts again") from None
            self.trials.append(held)

    def keep_profile(self, profile: Profile) -> None:
        write_whole(self.path / PROFILE, msgspec.json.encode(profile))

    def profile(self) -> Profile | None:
        """What the default's run was found to spend its time on."""
        try:
            return msgspec.json.decode((self.path / PROFILE).read_bytes(), type=Profile)
        except (OSError, msgspec.MsgspecError):
            return None

    def add(self, made: Trial) -> None:
        numbers = made.predicted, made.compile, made.median, made.spread, made.peak
        self._append((made.key, made.config, *(f"{v:.6g}" for v in numbers), made.verdict.replace("\n", " ")))
        self.trials.append(made)

    def _append(self, cells: tuple[str, ...]) -> None:
        self._file.append(csv_line(cells), sync=True)

    def close(self) -> None:
        self._file.close()


def _store_path(place: tuple[str, str, dict[str, str]]) -> Path | None:
    folder = knobs().cache
    if folder is None:
        return None
    return folder / KEPT / f"{hashlib.sha256(msgspec.json.encode(place, order='sorted')).hexdigest()[:32]}.json"


def recall(place: tuple[str, str, dict[str, str]]) -> Entry | None:
    """What an earlier session found for the same plan, device and versions, for this artifact or another."""
    path = _store_path(place)
    if path is None or not path.is_file():
        return None
    try:
        entry = decode(path.read_bytes()).entries[0]
        return entry if entry.place == place else None
    except (OSError, ValueError, IndexError) as error:
        note(SUMMARY, f"the cached {path} is not used: {error}")
        return None


def remember(entry: Entry) -> None:
    """Keeps a result for other artifacts; a cache that cannot be written costs them a session, nothing else."""
    path = _store_path(entry.place)
    if path is None:
        return
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, Tuned(entries=(entry,)).encode())
