"""Several networks as one: two copies for monotonicity, a network beside its pruned or quantised twin."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from polytriton.api import Verifier
from polytriton.cache import cached_joined
from polytriton.errors import UsageError
from polytriton.frontend.input_maps import InputMap
from polytriton.frontend.joint import JointProperty, check_isomorphic, model_of, read_joint
from polytriton.frontend.onnx import Imported, cross_check, load_onnx
from polytriton.frontend.onnx_joined import join_models
from polytriton.frontend.onnx_mapped import map_input
from polytriton.guard import guard
from polytriton.limit import sha256
from polytriton.passes.pipeline import compile_net
from polytriton.prove.options import Options
from polytriton.runtime.attack import Replay, replayer
from polytriton.runtime.config import DEFAULT


@guard
def join(
    networks: Mapping[str, Verifier] | Sequence[Verifier],
    property: str | os.PathLike[str] | None = None,
    *,
    maps: Sequence[InputMap] | None = None,
) -> Verifier:
    """One network of several: its output is theirs, one after another.

    property: VNN-LIB 2.0 over the networks, by their names there; it says how their inputs are tied, and `joint` of the verifier that is
    returned is what to `verify`. Without one all networks read one input x, or, with `maps`, each what its own map makes of z.
    """
    return _join(networks, property, maps, keep=False)


@guard
def cached_join(networks: Mapping[str, Verifier], property: str | os.PathLike[str]) -> Verifier:
    """The same for a property; from the cache where these networks were tied together in this way before, else kept there."""
    return _join(networks, property, None, keep=True)


def _join(
    networks: Mapping[str, Verifier] | Sequence[Verifier],
    property: str | os.PathLike[str] | None,
    maps: Sequence[InputMap] | None,
    *,
    keep: bool,
) -> Verifier:
    named = dict(networks) if isinstance(networks, Mapping) else {f"network {k}": v for k, v in enumerate(networks)}
    if not named:
        raise UsageError("no networks to join", "give one or more")
    models = {name: _require_import(name, verifier) for name, verifier in named.items()}
    first = next(iter(named.values()))
    options = replace(first.options, config=DEFAULT, semantics=_common_semantics([v.options.semantics for v in named.values()]))
    if property is not None:
        if maps is not None:
            raise UsageError("a property says itself how inputs are tied", "leave the maps out")
        joint = read_joint(property if isinstance(property, str) else Path(property), {name: m.source for name, m in models.items()})
        check_isomorphic(joint, models)
        return _joined_for(joint, models, options, keep=keep)
    sizes = [prod(m.source.input_shape) for m in models.values()]
    if maps is not None:
        return _joined_behind(list(models.items()), list(maps), sizes, options)
    if len(set(sizes)) > 1:
        raise UsageError(f"the networks take {', '.join(map(str, sizes))} inputs", "give maps=[InputMap(...), ...] that make them of a few")
    joined = _Joined("_".join(models), join_models(list(models.items()), [np.arange(sizes[0])] * len(sizes), sizes[0]))
    return _verifier(joined, options, list(models.values()), lambda x: [x] * len(sizes))


@dataclass(frozen=True)
class _Joined:
    """What a joined network is made from: the models as one, and the map before it."""

    name: str
    model: bytes
    given: InputMap | None = None

    def sha256(self) -> str:
        """Of all of it."""
        if self.given is None:
            return sha256(self.model)
        a, b, rounded = self.given.matrix, self.given.shift, self.given.rounded
        behind = repr((sha256(self.model), a.shape, rounded)).encode() + a.tobytes() + b.tobytes()
        return hashlib.sha256(behind).hexdigest()

    def load(self) -> Imported:
        """Imported, and compared with onnxruntime."""
        found = load_onnx(self.model)
        if self.given is not None:
            found = map_input(found, self.given)
        cross_check(found)
        return replace(found, source=replace(found.source, sha256=self.sha256()))


def _joined_for(joint: JointProperty, models: Mapping[str, Imported], options: Options, *, keep: bool) -> Verifier:
    """The networks of the property's variables."""
    chosen = [(n.name, models[model_of(n)]) for n in joint.networks]
    cuts = np.cumsum([prod(m.source.input_shape) for _, m in chosen])[:-1]
    model = join_models(chosen, np.split(joint.ties.variable, cuts), joint.n_in)
    given = InputMap(joint.ties.matrix()) if bool((joint.ties.parent >= 0).any()) else None
    joined = _Joined("_".join(name for name, _ in chosen), model, given)
    made = _verifier(joined, options, [m for _, m in chosen], lambda z: np.split(joint.ties.values(z, joint.dtype), cuts), keep=keep)
    made.joint = joint
    return made


def _joined_behind(models: list[tuple[str, Imported]], maps: list[InputMap], sizes: list[int], options: Options) -> Verifier:
    """The networks of the maps' parameters."""
    wanted, found = sizes, [len(m.matrix) for m in maps]
    if found != wanted or len({m.parameters for m in maps}) > 1:
        raise UsageError(
            f"maps of {', '.join(f'{m.parameters} parameters to {len(m.matrix)} inputs' for m in maps) or 'nothing'} for networks of "
            f"{', '.join(map(str, wanted))} inputs",
            "give one map a network, all of the same parameters",
        )
    cuts = np.cumsum(sizes)[:-1]
    given = InputMap(np.concatenate([m.matrix for m in maps]), np.concatenate([m.shift for m in maps]))
    given.rounded = any(m.rounded for m in maps)
    joined = _Joined("_".join(name for name, _ in models), join_models(models, np.split(np.arange(sum(sizes)), cuts), sum(sizes)), given)
    dtype = models[0][1].source.input_dtype
    return _verifier(joined, options, [m for _, m in models], lambda z: np.split(given.image(z).astype(dtype), cuts))


def _common_semantics(names: Sequence[str]) -> str:
    """What all were compiled for, with the errors that each states of its own smooth functions (`float32,tanh=4`)."""
    base, *_ = names[0].split(",")
    stated = [part.split("=") for name in names for part in name.split(",")[1:]]
    errors = dict(stated)
    if any(name.split(",")[0] != base for name in names) or any(errors[function] != ulps for function, ulps in stated):
        raise UsageError("the networks were compiled for different semantics", "compile all of them for one")
    return ",".join([base, *(f"{function}={ulps}" for function, ulps in errors.items())])


def _require_import(name: str, verifier: Verifier) -> Imported:
    if verifier.imported is None:
        raise UsageError(f"{name} has no model behind it", "compile it from ONNX or torch")
    if verifier.joint is not None or any(n.integer("outside") for n in verifier.net):
        raise UsageError(f"{name} is joined or behind an input map already", "join the networks themselves; give the maps to join")
    return verifier.imported


def _verifier(
    joined: _Joined, options: Options, models: list[Imported], inputs: Callable[[np.ndarray], list[np.ndarray]], *, keep: bool = False
) -> Verifier:
    """`inputs`: what each network gets at a point. The judge of counterexamples runs the models as they are, each on its own."""

    def compile_joined() -> Verifier:
        imported = joined.load()
        return Verifier(compile_net(imported.net, options.candidates), options, imported)

    if keep:
        compiled, imported = cached_joined(joined.sha256(), joined.name, options.candidates, compile_joined)
        made = Verifier(compiled, options, imported)
    else:
        made = compile_joined()
    replays: list[Replay] = []

    def replay(point: np.ndarray) -> np.ndarray:
        if not replays:
            replays.extend(replayer(m.model, m.source) for m in models)
        given = inputs(np.asarray(point).ravel())
        return np.concatenate([run(x) for run, x in zip(replays, given, strict=True)])

    made._replay = replay
    return made
