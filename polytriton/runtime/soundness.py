"""The rounding argument as numbers: gamma constants, the deployed network's own error `e`, the step vector `t`.

Invariant (numerics): a row (M, c, err) over a frontier promises target >= M.x + c - err for every reachable x. An affine
step x = W y + b + delta, |delta| <= e, replaces M by M' = fl(M W) and keeps the promise when err grows by |M|.t with

    t = e + (gamma_K + rho + nu) S + (rho + gamma64) babs + tails,   S = wabs |y|
    gamma_K   summation of the K terms of an entry of M', any order, FMA or not (u = 2^-24 or 2^-53)
    rho       gamma64_slack: roundings made when layers were merged
    nu        u where the stored float64 weights are no coefficients of the run's type
    tails     u |x| for the product M_j lambda_j when x is read by a ReLU, and underflow (eta: the smallest normal number)

Everything here is float64, non-negative, and rounded up by `up`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polytriton.errors import UsageError
from polytriton.ir.curves import CURVES, STATED
from polytriton.ir.net import Net, Node
from polytriton.ir.ops import curve_of, stated_name
from polytriton.rounding import BIG, GROW, U64, flush_loss, gamma, gammas


def up(x: Tensor) -> Tensor:
    """A non-negative float64 result, rounded up past the roundings that made it."""
    return x * GROW


@dataclass(frozen=True)
class Semantics:
    """A deployment: sums in float32 under any rounding mode (u = 2^-23), operands first rounded to `u_in`.

    `functions`: how many ulps a smooth function's result may be off, where that is not what ir/curves.py says.
    """

    name: str
    real: bool = False
    u: float = 2.0**-23
    eta: float = 2.0**-126
    u_in: float = 0.0  # relative error of converting an operand, any direction
    eta_in: float = 0.0  # below this an operand may be flushed to zero
    sub_in: float = 0.0  # what rounding a smaller operand away from zero may add
    big_in: float = float("inf")  # above this the conversion overflows
    functions: Mapping[str, float] = field(default_factory=dict)

    @property
    def plain(self) -> Semantics:
        """The same deployment where no operand is converted."""
        return replace(self, u_in=0.0, eta_in=0.0, sub_in=0.0, big_in=float("inf"))

    @property
    def passes(self) -> int:
        """How often one addition may round: tensor cores align their addends and cut them off."""
        return 2 if self.u_in else 1

    def ulps(self, name: str) -> float:
        """How far the deployed function may lie from the exact one; what is made of another is off by that one's errors as well."""
        parts = CURVES[name].made_of if name in CURVES else ()
        return self.functions.get(name, max(STATED[name], *(self.ulps(part) + 2 for part in parts)) if parts else STATED[name])

    def function_error(self, node: Node, size: Tensor, operand: Tensor) -> Tensor:
        """e of a smooth function: so many units of 2^-23 max(1, |f|), or of |x| where f is x times another function of x.

        `size` is the greatest |f|, `operand` the greatest |x|. A flush of either moves the result by less than a unit. An elu is `alpha`
        times a difference that cancels: its unit is 2^-23 max(1, |f|, alpha). What is `relative` (ir/curves.py) errs by its own size.
        """
        name = stated_name(node)
        if self.real or name == "nothing":
            return torch.zeros_like(size)
        curve, parameter = curve_of(node)
        if curve.relative and name == node.op:
            error = self.ulps(name) * 2.0**-23 * size + 2.0**-125
        else:
            unit = torch.maximum(size, operand) if curve.made_of else size
            error = self.ulps(name) * 2.0**-23 * unit.clamp(min=max(1.0, parameter))
        return torch.where((size <= BIG) & (operand <= BIG), up(error), torch.full_like(error, float("inf")))


SEMANTICS = {
    s.name: s
    for s in (
        Semantics("real", real=True, u=0.0, eta=0.0),
        Semantics("float32"),
        Semantics("tf32", u_in=2.0**-10, eta_in=2.0**-126),
        Semantics("bf16", u_in=2.0**-7, eta_in=2.0**-126, big_in=2.0**127),
        Semantics("float16", u_in=2.0**-10, eta_in=2.0**-14, sub_in=2.0**-24, big_in=65504.0),
    )
}


def find_semantics(name: str) -> Semantics:
    """`float32`, or with errors of smooth functions `float32,sigmoid=2,tanh=8` (in ulps); UsageError where there is none of that name."""
    base, *given = name.split(",")
    if base not in SEMANTICS:
        raise UsageError(f"semantics={base!r} is unknown", f"use one of: {', '.join(SEMANTICS)}")
    functions = {}
    for item in given:
        op, _, text = item.partition("=")
        try:
            ulps = float(text.removesuffix("ulp"))
        except ValueError:
            ulps = -1.0
        if op not in STATED or not 0.5 <= ulps <= 2.0**20:
            raise UsageError(
                f"{item!r} is no function error",
                f"write NAME=ULPS with 1/2 to 2^20 ulps, as in tanh=2; the functions are {', '.join(STATED)}",
            )
        functions[op] = ulps
    if functions and SEMANTICS[base].real:
        raise UsageError("real functions have no error", "leave the function errors out, or choose a deployed --semantics")
    return replace(SEMANTICS[base], name=name, functions=functions)


def _shortest(ulps: float) -> str:
    """The same number when it is read again."""
    return str(int(ulps)) if ulps == int(ulps) else repr(ulps)


def state_functions(name: str, net: Net) -> str:
    """The semantics' name with the error of every smooth function of the network: what a result says it is about."""
    sem = find_semantics(name)
    if sem.real:
        return name
    met = {stated_name(n) for n in net if n.op in CURVES}
    return ",".join([name.partition(",")[0], *(f"{function}={_shortest(sem.ulps(function))}" for function in STATED if function in met)])


def converts_nothing(node: Node) -> bool:
    """Whether every deployment computes the layer in float32: elementwise ones, and input maps, which it does not compute at all."""
    return node.op == "scale" or bool(node.integer("outside"))


def flushes(sem: Semantics) -> bool:
    """Whether converting operands may flush ordinary numbers to zero (float16): what is lost then depends on each of them."""
    return not sem.real and sem.eta_in > 2.0**-100


AMPLIFY = BIG  # underflow before a merge is at most 2^60 eta after it


def deployed_error(
    sem: Semantics,
    terms: int,
    nonzero: Tensor,
    ops: int,
    products: int,
    magnitude: Tensor,
    babs: Tensor,
    x_max: Tensor,
    w_rowsum: float,
    flushed: Tensor | None,
    w_max: float,
    late: int = 0,
) -> Tensor:
    """e: how far the deployed layer's result may lie from the exact one.

    Adding an exact zero is exact in every mode and order, so only `nonzero` terms (weight and operand can both differ from
    zero) take part in roundings: nonzero - 1 sums, the product, the bias.

    ops and products count what merging put into the layer (ir/ops.py); its constants may pass `late` roundings more (ir/addends.py).
    magnitude = wabs |x| (any shape [B, ...]), babs broadcast to it, x_max [B, 1, 1, 1] the largest |x|, w_rowsum the
    largest sum of |w| over an output's terms, w_max the largest |w|. `flushed` = sum of |w| |x| over operands that the
    input conversion may flush, given where eta_in matters (float16).
    """
    if sem.real:
        return torch.zeros_like(magnitude)
    # tensor cores align and truncate their addends: up to twice the roundings of plain sums
    g = gammas(sem.passes * (nonzero + ops) + 1, sem.u)
    g_late = gammas(sem.passes * (nonzero + ops + late) + 1, sem.u) if late else g
    enter = (1 + sem.u_in) ** (2 * products)  # every merged product converted its operands, earlier constants among them
    amplify = AMPLIFY if ops else 1.0
    # every operation may lose eta to underflow, every operand eta to a flush of inputs
    lost = sem.eta * amplify * (2 * (terms + ops) + 4 + w_rowsum + terms * x_max)
    factor = enter * (1 + g) - 1 + 16 * products * U64
    factor_late = enter * (1 + g_late) - 1 + 16 * products * U64 if late else factor
    error = magnitude * factor + (factor_late if ops else g_late) * babs + 2 * lost
    if sem.u_in:
        if flushed is None:
            error = error + 2 * sem.eta_in * amplify * (w_rowsum + terms * x_max + terms)
        else:
            error = error + 2 * flushed
        if (ops or products > 1) and flushes(sem):  # merged weights and constants are not the deployed ones: what
            error = error + float("inf")  # a conversion made of them, flushed or rounded away from zero, is not known
        limit = sem.big_in / (AMPLIFY if ops else 1.0)
        if w_max > limit:
            error = error + float("inf")
        error = torch.where(x_max > limit, torch.full_like(error, float("inf")), error)
    # NaN compares false: anything that is not provably small is treated as an overflow
    return torch.where((magnitude + babs <= BIG) & (x_max <= BIG), up(error), torch.full_like(error, float("inf")))


def deployed_numbers(
    sem: Semantics, terms: int, ops: int, behind: int, products: int, w_rowsum: float, w_max: float, widen: float
) -> list[float]:
    """`widen` and the constants of deployed_error, as kernels.boxes.affine_boxes reads them; nothing here flushes operands. `behind`: sums
    that the layer may make itself, and roundings that its constants pass before it (ir/addends.py).
    """
    amplify, limit = (AMPLIFY if ops else 1.0), sem.big_in / (AMPLIFY if ops else 1.0) if sem.u_in else float("inf")
    return [
        widen, float(sem.passes), float(ops + behind), sem.u, (1 + sem.u_in) ** (2 * products), 16 * products * U64, sem.eta * amplify,
        2 * (terms + ops) + 4 + w_rowsum, float(terms), 2 * sem.eta_in * amplify, w_rowsum + terms, limit if w_max <= limit else -1.0,
        float(ops > 0),
    ]  # fmt: skip


def elementwise_error(sem: Semantics, operations: int, magnitude: Tensor, factor: float = 1.0) -> Tensor:
    """e of a sum, a difference or a leaky ReLU's product with `factor`, done in float32 under every semantics but real.

    A flushed operand loses eta, times the factor; a flushed result another eta.
    """
    if sem.real:
        return torch.zeros_like(magnitude)
    error = gamma(operations, sem.u) * magnitude + flush_loss(sem.eta, factor)
    return torch.where(magnitude <= BIG, up(error), torch.full_like(error, float("inf")))
