"""The public interface: compile, load, and the Verifier they return."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polytriton.errors import UsageError
from polytriton.fleet import make_decider
from polytriton.frontend.images import exact_ball, parse_epsilon
from polytriton.frontend.onnx import Imported, Source, cross_check, load_onnx
from polytriton.frontend.query import Property, matrix
from polytriton.ir import interp
from polytriton.ir.net import Net
from polytriton.passes.pipeline import Compiled, Observer, _quiet, compile_net
from polytriton.results import Bounds, Counterexample, Interval, Result
from polytriton.runtime.attack import Attack, Replay, falsify, replayer
from polytriton.runtime.engine import Progress, _silent
from polytriton.verifier import DEFAULT_MEMORY, Options, Questions

if TYPE_CHECKING:
    from polytriton.artifact import Artifact
    from polytriton.kernels.files import Kernels

QUICK = Attack(restarts=4, steps=20)
THOROUGH = Attack(restarts=20, steps=60)
Epsilon = float | str | Fraction


def compile(
    model: str | os.PathLike[str] | bytes | Any,
    *,
    output: str | None = None,
    check: bool = True,
    device: str = "cpu",
    semantics: str = "float32",
    dtype: str = "auto",
    candidates: str = "all",
    memory: int = DEFAULT_MEMORY,
    observe: Observer = _quiet,
) -> Verifier:
    """Compiles an ONNX model into a verifier; `check` compares the import with onnxruntime on random inputs."""
    options = Options(device, semantics, dtype, candidates, memory)
    imported = load_onnx(model, output=output)
    if check:
        cross_check(imported)
    return Verifier(compile_net(imported.net, candidates, observe), options, imported)


def load(path: str | os.PathLike[str], **options: Any) -> Verifier:
    """Opens a compiled artifact; options as for `compile`."""
    from polytriton.artifact import read_artifact

    return Verifier.from_artifact(read_artifact(Path(path)), **options)


class Verifier:
    """One compiled network; every method is sound for the chosen `semantics`."""

    def __init__(self, compiled: Compiled, options: Options, imported: Imported | None = None, kernels: Kernels | None = None) -> None:
        self.compiled, self.options, self.imported = compiled, options, imported
        self._kernels = kernels  # what the artifact held, to be saved with it again
        self._decider = make_decider(compiled, options)
        self._replay: Replay | None = None

    @staticmethod
    def from_net(net: Net, *, early: bool = True, **options: Any) -> Verifier:
        """A verifier of an IR network; counterexamples are then replayed in the float64 interpreter only."""
        chosen = Options(early=early, **{k: v for k, v in options.items() if v is not None})
        return Verifier(compile_net(net, chosen.candidates), chosen)

    @staticmethod
    def from_artifact(artifact: Artifact, **options: Any) -> Verifier:
        chosen = Options(**{"candidates": artifact.compiled.plan.candidates, **options})
        return Verifier(artifact.compiled, chosen, artifact.imported, artifact.kernels)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the artifact, whole or not at all."""
        from polytriton.artifact import write_artifact

        return write_artifact(self, Path(path), self._kernels)

    # ---- shapes -----------------------------------------------------------------------------------------

    @property
    def net(self) -> Net:
        return self.compiled.net

    @property
    def source(self) -> Source | None:
        return self.imported.source if self.imported else None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """One input's shape, without a batch axis."""
        return interp.user_shape(self.net)

    @property
    def inputs(self) -> int:
        return self._decider.inputs

    @property
    def outputs(self) -> int:
        return self._decider.outputs

    def _batch(self, values: Any, what: str) -> np.ndarray:
        """Any array of one input or a batch of them as float64 [batch, values]."""
        array = np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values, dtype=np.float64)
        if array.size == 0 or array.size % self.inputs:
            raise UsageError(
                f"{what} has shape {list(array.shape)}, the network takes {self.inputs} values an input",
                f"give [batch, {', '.join(map(str, self.input_shape))}]",
            )
        if not np.isfinite(array).all():
            raise UsageError(f"{what} holds NaN or infinity", "give finite numbers")
        return np.ascontiguousarray(array.reshape(-1, self.inputs))

    def _boxes(self, lo: Any, hi: Any) -> tuple[np.ndarray, np.ndarray]:
        low, high = self._batch(lo, "lo"), self._batch(hi, "hi")
        if len(low) != len(high):
            raise UsageError(f"lo holds {len(low)} boxes and hi {len(high)}", "give as many of one as of the other")
        bad = np.argwhere(low > high)
        if len(bad):
            i, j = bad[0]
            raise UsageError(f"inverted box: lo {low[i, j]!r} > hi {high[i, j]!r} at input {j} of box {i}", "swap the bounds")
        return low, high

    # ---- bounds -----------------------------------------------------------------------------------------

    def bounds(self, lo: Any, hi: Any, *, progress: Progress = _silent) -> Bounds:
        """Sound bounds of every output and every nonlinear operator's input, for one box or a batch."""
        low, high = self._boxes(lo, hi)
        parts = []
        for engine, boxes in self._decider.boxes(low, high, progress):
            out = self._decider.output_bounds(engine, boxes)
            parts.append((out, self._decider.layer_bounds(boxes, engine)))
        lows, highs = (np.concatenate([out[k] for out, _ in parts]) for k in (0, 1))
        layers = {name: Interval(*(np.concatenate([held[name][k] for _, held in parts]) for k in (0, 1))) for name in parts[0][1]}
        return Bounds(lows, highs, layers)

    def margins(self, lo: Any, hi: Any, forms: Any, *, progress: Progress = _silent) -> np.ndarray:
        """Sound lower bounds of forms @ y over each box, [batch, rows]; forms is [rows, outputs] or [batch, rows, outputs]."""
        low, high = self._boxes(lo, hi)
        c = np.asarray(forms.detach().cpu().numpy() if hasattr(forms, "detach") else forms, dtype=np.float64)
        if c.ndim not in (2, 3) or c.shape[-1] != self.outputs or (c.ndim == 3 and len(c) != len(low)) or not np.isfinite(c).all():
            raise UsageError(
                f"forms of shape {list(c.shape)} do not fit {len(low)} boxes and {self.outputs} outputs",
                f"give finite [rows, {self.outputs}] or [batch, rows, {self.outputs}]",
            )
        c = np.broadcast_to(c, (len(low), *c.shape[-2:]))
        rows = c.shape[1]
        image = np.repeat(np.arange(len(low)), rows)
        q = Questions(low, high, image, np.ascontiguousarray(c.reshape(-1, self.outputs)), np.zeros(len(image)), np.arange(len(image)))
        return self._decider.prove(q, progress=progress, exhaustive=True).best.reshape(len(low), rows)

    # ---- verdicts ---------------------------------------------------------------------------------------

    def predict(self, x: Any) -> np.ndarray:
        """The network's own outputs, [batch, outputs]: the original model in onnxruntime, or the interpreter without one."""
        flat = self._batch(x, "x")
        replay = self._replayer()
        return np.stack([np.asarray(replay(row), dtype=np.float64).reshape(-1) for row in flat])

    def verify(
        self,
        x: Any,
        epsilon: Epsilon,
        label: int | Sequence[int] | None = None,
        *,
        clip: tuple[float, float] | None = None,
        mean: Sequence[Any] = (0,),
        std: Sequence[Any] = (1,),
        targets: Sequence[int] | None = None,
        timeout: float | None = None,
        falsifier: bool = True,
        progress: Progress = _silent,
    ) -> Any:
        """Robustness of the label over an L-infinity ball: one Result for one image, a list for a batch.

        The ball lies in pixel space, is cut to `clip`, and then normalised by (pixel - mean) / std; without mean and std that
        is the network's own input. label: by default the network's own answer.
        """
        given = np.asarray(x.detach().cpu().numpy() if hasattr(x, "detach") else x)
        flat = self._batch(given, "x")
        single = flat.shape[0] == 1 and given.ndim <= len(self.input_shape)
        radius = epsilon if isinstance(epsilon, Fraction) else parse_epsilon(str(epsilon))
        pixels = flat.reshape(-1, *self.input_shape)
        labels = self._labels(label, pixels, mean, std)
        props = [
            self.ball_property(image, radius, wanted, clip=clip, mean=mean, std=std, targets=targets)
            for image, wanted in zip(pixels, labels, strict=True)
        ]
        proved = self._prove_together(props, labels, progress) if len(props) > 1 and timeout is None else {}
        results = [
            proved[k] if k in proved else self.verify_property(p, timeout=timeout, falsifier=falsifier, progress=progress, label=labels[k])
            for k, p in enumerate(props)
        ]
        return results[0] if single else results

    def _prove_together(self, props: Sequence[Property], labels: Sequence[int], progress: Progress) -> dict[int, Result]:
        """All properties as the rows of one batch; what is proved so needs no query of its own."""
        start = time.monotonic()
        asked = [(k, q) for k, q in ((k, self._questions(p)) for k, p in enumerate(props)) if q is not None]
        boxes = np.cumsum([0, *(len(q.lo) for _, q in asked)])
        groups = np.cumsum([0, *(int(q.group.max()) + 1 for _, q in asked)])
        questions = [q for _, q in asked]
        together = Questions(
            lo=np.concatenate([q.lo for q in questions]),
            hi=np.concatenate([q.hi for q in questions]),
            image=np.concatenate([q.image + b for q, b in zip(questions, boxes[:-1], strict=True)]),
            over_output=np.concatenate([q.over_output for q in questions]),
            constant=np.concatenate([q.constant for q in questions]),
            group=np.concatenate([q.group + g for q, g in zip(questions, groups[:-1], strict=True)]),
        )  # coefficients of a classification are exact and have no input part
        answers = self._decider.prove(together, self._decider.tries(patient=False)[:1], progress=progress)
        seconds = (time.monotonic() - start) / len(props)
        best = np.full(int(groups[-1]), -np.inf)
        np.maximum.at(best, together.group, answers.best)
        return {
            k: Result("unsat", best[a:b], seconds, None, labels[k], _rivals(props[k]), self.options.semantics)
            for (k, _), a, b in zip(asked, groups[:-1], groups[1:], strict=True)
            if answers.settled[a:b].all()
        }

    def _labels(self, label: int | Sequence[int] | None, pixels: np.ndarray, mean: Sequence[Any], std: Sequence[Any]) -> list[int]:
        if label is None:
            channels = pixels.shape[1] if pixels.ndim == 4 else 1
            m, s = (np.broadcast_to(np.array([float(v) for v in values]), (channels,)) for values in (mean, std))
            spread = (1, channels, 1, 1) if pixels.ndim == 4 else (1,) * pixels.ndim
            return [int(v) for v in self.predict((pixels - m.reshape(spread)) / s.reshape(spread)).argmax(1)]
        labels = [int(v) for v in np.atleast_1d(np.asarray(label))]
        if len(labels) == 1:
            labels *= len(pixels)
        if len(labels) != len(pixels):
            raise UsageError(f"{len(labels)} labels for {len(pixels)} images", "give one label, or one an image")
        return labels

    def ball_property(
        self,
        image: np.ndarray,
        epsilon: Fraction,
        label: int,
        *,
        clip: tuple[float, float] | None = None,
        mean: Sequence[Any] = (0,),
        std: Sequence[Any] = (1,),
        targets: Sequence[int] | None = None,
        name: str = "ball",
    ) -> Property:
        """The property `label wins over the ball`, with exact bounds."""
        fractions = [[v if isinstance(v, Fraction) else Fraction(str(v)) for v in values] for values in (mean, std)]
        limits = None if clip is None else (Fraction(str(clip[0])), Fraction(str(clip[1])))
        exact_lo, exact_hi = exact_ball(image, epsilon, mean=fractions[0], std=fractions[1], clip=limits)
        from polytriton.frontend.query import outward

        lo = np.array([outward(v)[0] for v in exact_lo])
        hi = np.array([outward(v)[1] for v in exact_hi])
        return Property.from_box(lo, hi, label, self.outputs, targets, exact_box=(exact_lo, exact_hi), name=name)

    def verify_property(
        self,
        prop: Property,
        *,
        timeout: float | None = None,
        falsifier: bool = True,
        progress: Progress = _silent,
        label: int | None = None,
        seed: int = 0,
    ) -> Result:
        """Proves the unsafe set empty, or finds a point of it that the original model confirms."""
        if prop.n_in != self.inputs or prop.n_out != self.outputs:
            raise UsageError(
                f"property {prop.name} has {prop.n_in} inputs and {prop.n_out} outputs, the network {self.inputs} and {self.outputs}",
                "this property belongs to another network",
            )
        start = time.monotonic()
        deadline = None if timeout is None else start + timeout
        q = self._questions(prop)
        margins = np.full(len(prop.disjuncts), -np.inf)
        found: Counterexample | None = None
        expired = settled = not len(prop.disjuncts)
        if q is not None:
            answers = self._decider.prove(q, deadline=deadline, progress=progress)
            settled, expired = bool(answers.settled.all()), answers.expired
            if not settled and falsifier and not expired:
                progress("looking for a counterexample", 0, 1)
                found = self._falsify(prop, replace(QUICK, seed=seed), deadline)
            if not settled and found is None and not expired:
                patient = self._decider.tries(patient=True)
                answers = self._decider.prove(q, patient, answers=answers, deadline=deadline, progress=progress)
                settled, expired = bool(answers.settled.all()), answers.expired
            if not settled and found is None and falsifier and not expired:
                found = self._falsify(prop, replace(THOROUGH, seed=seed), deadline)
            np.maximum.at(margins, q.group, answers.best)
        late = deadline is not None and time.monotonic() > deadline
        verdict = "sat" if found is not None else "unsat" if settled else "timeout" if expired or late else "unknown"
        rivals = _rivals(prop) if label is not None else ()
        return Result(verdict, margins, time.monotonic() - start, found, label, rivals, self.options.semantics)

    def _questions(self, prop: Property) -> Questions | None:
        """Every disjunct is one group of forms over its box; boxes shared by disjuncts are shared here."""
        if not prop.disjuncts:
            return None
        boxes: dict[tuple[int, int], int] = {}
        lows: list[np.ndarray] = []
        highs: list[np.ndarray] = []
        image: list[int] = []
        group: list[int] = []
        parts: list[tuple[np.ndarray, ...]] = []
        for k, d in enumerate(prop.disjuncts):
            at = boxes.setdefault((id(d.lo), id(d.hi)), len(boxes))
            if at == len(lows):
                lows.append(d.lo)
                highs.append(d.hi)
            if not d.rows:  # the whole box is unsafe: a form that no bound makes positive
                parts.append(
                    (np.zeros((1, prop.n_out)), np.zeros((1, prop.n_in)), np.zeros(1), np.zeros((1, prop.n_out)), np.zeros((1, prop.n_in)))
                )
            else:
                m = matrix(d.rows, prop.n_out, prop.n_in)
                parts.append((m.C, m.D, m.const_up, m.C_err, m.D_err))
            image += [at] * len(parts[-1][2])
            group += [k] * len(parts[-1][2])
        c, d_, const, c_err, d_err = (np.concatenate(v) for v in zip(*parts, strict=True))
        mixed = bool(d_.any() or d_err.any())
        return Questions(
            np.stack(lows),
            np.stack(highs),
            np.array(image),
            c,
            const,
            np.array(group),
            d_ if mixed else None,
            c_err,
            d_err if mixed else None,
        )

    def _replayer(self) -> Replay:
        if self._replay is None:
            if self.imported is not None:
                self._replay = replayer(self.imported.model, self.imported.source)
            else:
                net = self.net
                self._replay = lambda x: interp.run(net, np.asarray(x, dtype=np.float64).reshape(1, -1))[0]
        return self._replay

    def _falsify(self, prop: Property, attack: Attack, deadline: float | None) -> Counterexample | None:
        dtype = self.source.input_dtype if self.source else "float64"
        found = falsify(self.net, prop, self._replayer(), attack=attack, deadline=deadline, input_dtype=dtype)
        return None if found is None else Counterexample(found.x, found.y)


def _rivals(prop: Property) -> tuple[int, ...]:
    """The labels that the pieces of a classification property let win."""
    return tuple(i for d in prop.disjuncts for i, c in d.rows[0].y if c < 0)
