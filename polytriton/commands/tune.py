"""`polytriton tune`: the fastest sound configuration of a compiled network on this machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from polytriton.commands.groups import EngineOptions, ImageOptions
from polytriton.commands.options import argument, option
from polytriton.commands.screen import INTERRUPTED, TerminalBar, as_text
from polytriton.errors import UsageError

if TYPE_CHECKING:
    from polytriton.api import Verifier
    from polytriton.artifact import Artifact
    from polytriton.prove.questions import Questions
    from polytriton.tuning.session import Outcome, SessionState



def tune(
    network: Annotated[
        Path | None, argument(metavar="NET.poly", help="The compiled network; its tuned.json is written.")
    ] = None,
    budget: Annotated[str, option("--budget", metavar="TIME", help="Time for the session: 90s, 5m, 1h.")] = "5m",
    trials: Annotated[int | None, option("--trials", metavar="N", help="At most so many trials; by default what the budget holds.")] = None,
    runs: Annotated[int, option("--runs", metavar="N", help="Timed runs of a trial, at most.")] = 5,
    seed: Annotated[int, option("--seed", help="Seed of the workload and of the search.")] = 0,
    session: Annotated[Path | None, option("--session", metavar="DIR", help="The session's folder; by default NET.poly.tune.")] = None,
    resume: Annotated[bool, option("--resume", help="Go on with the session's folder: no finished trial is repeated.")] = False,
    overwrite: Annotated[bool, option("--overwrite", help="Start the session's folder again.")] = False,
    workload: Annotated[
        str, option("--workload", metavar="KIND", help="What is timed: verify (proofs, which end early) or bounds (all, to the end).")
    ] = "verify",
    vnnlib: Annotated[list[Path] | None, option("--vnnlib", metavar="FILE...", help="Tune on these properties.")] = None,
    target: Annotated[
        str | None, option("--target", metavar="cuda:90", help="Choose kernels for a GPU that is not here, by predicted time alone.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        option("--allow", metavar="tf32x3", help="On a GPU, try these split products too: sound by a model of tensor cores."),
    ] = None,
    calibrate: Annotated[
        bool, option("--calibrate", help="First measure what predictions are made of (a minute); alone: only that.")
    ] = False,
    as_json: Annotated[bool, option("--json", help="The result as one JSON document.")] = False,
    *,
    images: ImageOptions,
    engine: EngineOptions,
) -> int:
    """Find the fastest sound configuration for this network on this machine, and keep it in the artifact.

    Every configuration is checked for soundness before it may win. Ctrl-C keeps the best so far; --resume goes on.
    """
    seconds = parse_time(budget)
    if trials is not None and trials < 1:
        raise UsageError(f"--trials {trials} is none", "give 1 or more")
    if not 1 <= runs <= 1000:
        raise UsageError(f"--runs {runs} is out of range", "give 1 or more")
    if workload not in ("verify", "bounds"):
        raise UsageError(f"--workload {workload} is unknown", "verify or bounds")
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other", "give one of them")
    if calibrate:
        _calibrate()
        if network is None:
            return 0
    if network is None:
        raise UsageError("which network?", "polytriton tune NET.poly; compile it first: polytriton compile NET.onnx")
    if network.suffix == ".onnx":
        raise UsageError(f"{network} is a model, not an artifact", f"compile it first: polytriton compile {network}")
    from polytriton.artifact import read_artifact

    held = read_artifact(network)
    if target is not None:
        return _cross(network, held, target, engine, as_json)
    options = engine.options()
    if engine.numerics != "folded":
        raise UsageError("--numerics interval is not timed", "choose its kernels' tiles by predicted time: add --target cuda:90")
    if "," in options["device"] or options["device"] == "interpret":
        raise UsageError(f"--device {options['device']} is nothing to tune", "tune one device: cpu, cuda or cuda:N")
    if options.get("numerics", "folded") != "folded":
        raise UsageError(f"--numerics {options['numerics']} is nothing to tune: its kernels have one form", "leave --numerics out")
    chosen = _settings(options, seconds, trials, runs, seed, workload, _check_allowed(allow or [], options))
    verifier = _verifier(held, options)
    from polytriton.tuning import work

    q = _work(network, verifier, images, vnnlib or [], seed)
    where = session or network.with_name(network.name + ".tune")
    from polytriton.tuning.sessions import tune_device

    with Watch() as watch:
        outcome = tune_device(network, held, verifier, work.pack(q), chosen, where, resume=resume, overwrite=overwrite, watch=watch.tell)
    _report(network, outcome, as_json)
    return INTERRUPTED if outcome.interrupted else 0


def parse_time(text: str) -> float:
    """Seconds: 90, 90s, 5m, 1.5h."""
    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*([smh]?)\s*", text, re.ASCII)
    if found is None:
        raise UsageError(f"--budget {text[:40]!r} is no time", "write 90s, 5m or 1h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _check_allowed(names: list[str], options: dict[str, Any]) -> tuple[str, ...]:
    """Split products that the session may try."""
    from polytriton.prove.options import SPLIT

    if odd := [n for n in names if n not in SPLIT]:
        raise UsageError(f"--allow {odd[0]}: there is nothing of that name to allow", f"allow {' or '.join(SPLIT)}; others need no leave")
    if names and not options["device"].startswith("cuda"):
        raise UsageError(f"--allow {names[0]} is for tensor cores", "add --device cuda, or leave --allow out")
    if names and options["dtype"] != "auto":
        raise UsageError(f"--allow {names[0]} does not go with --dtype {options['dtype']}", "leave one of them out")
    return tuple(dict.fromkeys(names))


def _settings(
    options: dict[str, Any], seconds: float, trials: int | None, runs: int, seed: int, workload: str, allow: tuple[str, ...]
) -> Any:
    import torch

    from polytriton.tuning.session import SessionSettings

    return SessionSettings(options, torch.get_num_threads(), seed, seconds, trials or 0, runs, workload, allow)


def _verifier(held: Artifact, options: dict[str, Any]) -> Verifier:
    from polytriton.api import Verifier
    from polytriton.runtime.config import DEFAULT

    return Verifier.from_artifact(held, **{**options, "config": DEFAULT})


def _work(network: Path, verifier: Verifier, images: ImageOptions, files: list[Path], seed: int) -> Questions:
    from polytriton.tuning import work

    balls = images.balls()
    if balls is not None and files:
        raise UsageError("give one kind of queries", "--images with --epsilon, or --vnnlib")
    if balls is None and not files:
        return work.default_work(verifier, seed)
    from polytriton.frontend.instances import require_properties
    from polytriton.prove.questions import questions, unite
    from polytriton.runs.queries import vnnlib_query

    require_properties(files)

    queries = balls.queries(network, verifier) if balls is not None else [vnnlib_query(network, f) for f in files]
    asked = [q for q in (questions(q.read(verifier).prop) for q in queries) if q is not None]
    if not asked:
        raise UsageError("there is no query to tune on", "give images or properties, or none at all")
    return unite(asked)[0]


def _calibrate() -> None:
    from polytriton.tuning.calibrate import calibrate
    from polytriton.tuning.device import keep_cpu

    print("polytriton: measuring this CPU", file=sys.stderr)
    path = keep_cpu(calibrate())
    print(f"polytriton: kept as {path}" if path else "polytriton: nothing is kept, since there is no cache", file=sys.stderr)


def _cross(network: Path, held: Artifact, target: str, engine: EngineOptions, as_json: bool) -> int:
    from polytriton.kernels.sass import LIMITS
    from polytriton.tuning.cross import tune_target

    if target not in LIMITS:
        raise UsageError(f"--target {target}: there is no such GPU", f"name one of: {', '.join(LIMITS)}; a GPU that is here: --device cuda")
    dtype = "float64" if engine.dtype == "auto" else engine.dtype
    numerics = dtype if engine.numerics == "folded" else dtype.replace("float", engine.numerics)
    made = tune_target(network, held, target, numerics)
    if as_json:
        print(as_text(made))
        return 0
    for line in made["kernels"]:
        print(f"{line['kernel']}: {line['limit']}, {line['default']:.3g} -> {line['predicted']:.3g} s predicted for {line['rows']} rows")
    print(f"{network}: {made['changed']} of {len(made['kernels'])} kernels for {target} take other tiles than by default (not measured)")
    return 0


class Watch(TerminalBar):
    """Live progress: elsewhere than on a terminal a line where the best changes, and now and then."""

    def __init__(self) -> None:
        super().__init__(("bar", "{task.description}"), "the default configuration")
        self.total, self.best = 0.0, float("inf")

    def tell(self, state: SessionState) -> None:
        best = f"default {state.start:.4g} s, least of a trial {state.best:.4g} s"  # no ratio before the duel
        peak = f", {100 * state.peak:.0f} % of the roofline" if state.peak else ""
        text = f"{state.done} trials, {best}{peak}, {state.left:.0f} s left"
        if self.bar:
            self.total = max(self.total, state.left)
            self.bar.update(self.task, total=self.total, completed=self.total - state.left, description=text)
        elif state.best < self.best or self.line_is_due() or not state.verdict.startswith(("ok", "slower")):
            self.best = state.best
            self.print_line(f"{text}; last: {state.verdict}")


def _report(network: Path, outcome: Outcome, as_json: bool) -> None:
    e = outcome.entry
    if as_json:
        import msgspec

        fought = None if outcome.duel is None else msgspec.to_builtins(outcome.duel)
        speedup = outcome.duel.speedup if e.config and outcome.duel else None  # of a winner, by its duel
        interval = [1 / r for r in reversed(outcome.duel.interval)] if e.config and outcome.duel else None
        gain = {"speedup": speedup, "interval": interval, "duel": fought, "interrupted": outcome.interrupted, "early": outcome.early}
        document = {"artifact": str(network), **msgspec.to_builtins(e), **gain}
        print(as_text(document))
        return
    rejected = [t for t in outcome.trials if t.verdict.startswith(("unsound", "disagrees"))]
    failed = [t for t in outcome.trials if t.verdict.startswith(("crash", "timeout", "failed"))]
    print(f"{len(outcome.trials)} trials, {len(rejected)} rejected by the check, {len(failed)} failed")
    for t in rejected[:5]:
        print(f"  rejected: {t.config}: {t.verdict}")
    fought = outcome.duel
    rounds = 0 if fought is None else len(fought.default)
    if e.config and fought is not None:
        slow, fast = (1 / r for r in reversed(fought.interval))
        print(f"{fought.speedup:.2f}x ({slow:.2f} to {fast:.2f} in {rounds} rounds in turns): "
              f"{e.default_seconds:.4g} s by default, {e.seconds:.4g} s tuned")  # fmt: skip
    else:
        tried = f"; the best of the trials did not win {rounds} rounds against it" if rounds else ""
        early = f" (ended early: {len(outcome.trials)} trials, none 3 % faster)" if outcome.early else ""
        print(f"nothing beats the default beyond noise: {e.default_seconds:.4g} s{tried}{early}")
    print(f"polytriton.load({str(network)!r}, config=polytriton.runtime.config.Config.of({e.config!r}))")
    print(network)
