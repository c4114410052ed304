"""The largest certified radius of an image, by bisection.

A ball holds every smaller ball, so one proof at a radius is a proof below it: what is reported as proved is a radius at which
a query of its own was proved, never a number in between. Above it nothing is claimed: the verifier is incomplete, and where it
fails once it may yet succeed further up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from polytriton.errors import UsageError
from polytriton.frontend.arrays import Images, Number, Numbers, as_pixels, as_radius, exact_numbers
from polytriton.frontend.norm_balls import L1, L2, LINF, check_norm
from polytriton.frontend.numbers import as_fraction
from polytriton.guard import guard
from polytriton.prove.prover import NetProver
from polytriton.results import Radius
from polytriton.runtime.engine import Progress, _silent

LEAST = Fraction(1, 10**6)  # below this a radius is not told from nothing
TOLERANCE = Fraction(1, 100)


def bisect(
    ask: Callable[[Fraction], str],
    start: Fraction,
    *,
    tolerance: Fraction = TOLERANCE,
    known: Sequence[tuple[Fraction, str]] = (),
    top: Fraction = Fraction(1),
) -> Radius:
    """Doubles from `start` to the first failure, or halves to the first success, then bisects the bracket.

    It ends when the bracket is at most `tolerance` times its upper end wide, when `top` is proved, or when `ask` answers "timeout".
    `known` are verdicts of queries asked before.
    """
    begin, queries = time.monotonic(), 0
    proved: Fraction | None = None
    above: Fraction | None = None
    verdict, finished = "", True
    for seen, said in known:
        if said == "unsat":
            proved = seen if proved is None else max(proved, seen)
    for seen, said in known:
        if said in ("sat", "unknown") and (proved is None or seen > proved) and (above is None or seen < above):
            above, verdict = seen, said
    while (radius := _next(proved, above, start, tolerance, top)) is not None:
        said, queries = ask(radius), queries + 1
        if said == "unsat":
            proved = radius
            continue
        if said != "timeout" or above is None:
            above, verdict = radius, said
        if said == "timeout":
            finished = False
            break
    return Radius(proved, above, verdict, finished, queries, round(time.monotonic() - begin, 6))


@guard
def top_radius(norm: str, inputs: int) -> Fraction:
    """A radius that holds the whole pixel range [0,1] around any image."""
    return Fraction({LINF: 1, L2: math.isqrt(inputs) + 1, L1: inputs}[check_norm(norm)])


def _next(proved: Fraction | None, above: Fraction | None, start: Fraction, tolerance: Fraction, top: Fraction) -> Fraction | None:
    """The radius to ask next; None when the bracket is narrow enough."""
    if proved is None:
        return None if above == 0 else Fraction(0)  # the image itself first: where that fails, so would all balls
    if above is None:
        return None if proved >= top else min(top, max(start, LEAST) if proved == 0 else 2 * proved)
    if above <= LEAST or above - proved <= tolerance * above:
        return None
    return _middle(proved, above)


def _middle(lo: Fraction, hi: Fraction) -> Fraction:
    """About the middle, with as few decimals as tell it from both ends."""
    step = Fraction(10) ** (math.floor(math.log10(hi - lo)) - 1)
    return round((lo + hi) / 2 / step) * step


@guard
def certify_radius(
    verifier: NetProver,
    image: np.ndarray,
    label: int,
    *,
    start: Fraction = Fraction(1, 100),
    clip: Sequence[Number] | None = None,
    mean: Numbers = (0,),
    std: Numbers = (1,),
    targets: Sequence[int] | None = None,
    tolerance: Fraction = TOLERANCE,
    timeout: float | None = None,
    known: Sequence[tuple[Fraction, str]] = (),
    progress: Progress = _silent,
    norm: str = LINF,
) -> Radius:
    """The bracket for one image without an image axis, every radius asked by `verify_property`; `timeout` is for all of them."""
    check(tolerance, timeout)
    deadline = None if timeout is None else time.monotonic() + timeout

    def ask(radius: Fraction) -> str:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return "timeout"
        prop = verifier.ball_property(image, radius, label, clip=clip, mean=mean, std=std, targets=targets, norm=norm)
        return str(verifier.verify_property(prop, timeout=left, falsifier=False, progress=progress, label=label, search="none").verdict)

    return bisect(ask, start, tolerance=tolerance, known=known, top=top_radius(norm, verifier.inputs))


@guard
def radii(
    verifier: NetProver,
    x: Images,
    label: int | Sequence[int] | None = None,
    *,
    epsilon: Number = "0.01",
    clip: Sequence[Number] | None = None,
    mean: Numbers = 0,
    std: Numbers = 1,
    targets: Sequence[int] | None = None,
    tolerance: Number = "0.01",
    timeout: float | None = None,
    progress: Progress = _silent,
    norm: str = LINF,
) -> Radius | list[Radius]:
    """The same for whatever `Verifier.verify` takes; the search begins at `epsilon`, `timeout` is for each image."""
    images = as_pixels(x, verifier.input_shape)
    means, stds = exact_numbers(mean), exact_numbers(std)
    start, share = as_radius(epsilon, norm), as_fraction(tolerance, "tolerance")
    found = [
        certify_radius(
            verifier, image, wanted, start=start, clip=clip, mean=means, std=stds, targets=targets, tolerance=share, timeout=timeout,
            progress=progress, norm=norm,
        )
        for image, wanted in zip(
            images.values, verifier._labels(images.labels if label is None else label, images.values, means, stds), strict=True
        )
    ]  # fmt: skip
    return found[0] if images.single else found


def check(tolerance: Fraction, timeout: float | None) -> None:
    if not 0 < tolerance < 1:
        raise UsageError(f"a radius tolerance of {float(tolerance):g} is out of range", "give a share of the radius between 0 and 1: 0.01")
    if timeout is not None and not 0 < timeout < math.inf:
        raise UsageError(f"a radius timeout of {timeout:g} is no time", "give seconds above 0, or leave it out for no limit")
