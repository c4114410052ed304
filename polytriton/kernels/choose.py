"""Default tile sizes: what a kernel is emitted with when nobody has tuned it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from polytriton.rounding import PARTS

if TYPE_CHECKING:
    from polytriton.arithmetic import Arithmetic


NARROW = 64  # columns
FEW = 128  # terms
LARGEST = 1 << 20  # values of a product's tile that Triton takes
SHORTEST = 16  # terms in a block of a product that is made in parts, see dense.sum_parts


@dataclass(frozen=True)
class Tiles:
    """`block`: rows (or row and cell pairs) a program takes along the grid's first axis."""

    block: int
    constants: dict[str, int] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3


class Tiling(Protocol):
    """Sizes in place of the defaults; 0 warps or stages keep theirs."""

    @property
    def constants(self) -> dict[str, int]: ...
    @property
    def warps(self) -> int: ...
    @property
    def stages(self) -> int: ...


def retile(default: Tiles, other: Tiling, numerics: Arithmetic) -> Tiles:
    """The default with other sizes. ValueError where a kernel cannot have them, or where its rounding term would not cover them:
    a block of an `inner` numerics is charged `inner` additions, so it may have no more terms.
    """
    if strange := sorted(other.constants.keys() - default.constants.keys()):
        raise ValueError(f"this kernel has no size {strange[0]}")
    made = {**default.constants, **other.constants}
    if "BR" in made and "BM" in made and "BR" not in other.constants:
        made["BR"] = min(made["BR"], made["BM"])
    if "BK" in made and numerics.inner and made["BK"] > numerics.inner:
        raise ValueError(f"BK={made['BK']}: the rounding term of {numerics.name} covers blocks of {numerics.inner} terms")
    if made.get("BR", 0) > made.get("BM", made.get("BR", 0)):
        raise ValueError(f"BR={made['BR']}: two programs of {made['BM']} pairs would charge the same rows")
    if made.get("SK", 1) > 1 and made["BK"] < SHORTEST:
        raise ValueError(f"BK={made['BK']}: a split product's rounding term covers blocks of {SHORTEST} terms or more")
    if "BM" in made and made["BM"] * made["BN"] > LARGEST:
        raise ValueError(f"a tile of {made['BM']} x {made['BN']} is larger than {LARGEST} values")
    if "RM" in made and made["BK"] % 2:
        raise ValueError(f"BK={made['BK']}: a product of intervals reads two terms at a time")
    for size, part in (("BM", "RM"), ("BN", "RN")):
        if made.get(part, 1) > made.get(size, 1):
            raise ValueError(f"{part}={made[part]}: one thread has no more of a tile than its {size}={made[size]}")
    if "BS" in made:  # see `product`: the scalars' programs are no more than the others
        made["BS"] = max(made["BS"] * made["BM"] // default.constants["BM"], made["BR"], 1)
    block = made["BM"] if "BM" in made else made.get("BR", default.block)
    return Tiles(block, made, other.warps or default.warps, other.stages or default.stages)


def power(n: int, least: int, most: int) -> int:
    """The power of two that holds n, between two others."""
    return max(least, min(most, 1 << max(0, n - 1).bit_length()))


@dataclass(frozen=True)
class Sizes:
    """`values`: of a row pass in flight a program; `pairs`, `columns`, `terms`: a product's tile at most (0 columns: as many as suit the
    arithmetic); `emulate`: no PTX runs there.

    On a GPU a product with the ReLU in front keeps three operand tiles in registers: 32 float64 terms of 64 rows spill, 16 do not.
    """

    values: int = 512
    line: int = 512
    pairs: int = 64
    columns: int = 0
    terms: int = 16
    emulate: bool = False

    def rows(self, size: int, tensors: int = 1) -> Tiles:
        """Row passes: rows shorter than `line` share a program; with several tensors of coefficients at once, fewer of each."""
        bq = power(size, 32, self.line // tensors)
        br = max(1, self.values // tensors // bq)
        return Tiles(br, {"BR": br, "BQ": bq}, warps=4)

    def product(self, numerics: Arithmetic, cells: int, k: int, n: int, phases: int = 1) -> Tiles:
        """Matrix products: `cells` output cells a row (0: rows without cells), k terms of a tap, n columns. Where a stride puts cells in
        several `phases`, or few terms fill no block, what finds them takes the registers that a wide tile needs.
        """
        # split products: 64 pairs for 8 warps would have them repeat two of the three products
        split = numerics.form in PARTS and not self.emulate
        bn, bm = self.product_columns(numerics, k, n, phases), self.pairs * (2 if split else 1)
        bk = power(k, 16, numerics.inner or self.terms)
        bq = power(k, 32, min(self.line, 256))
        constants = {"BM": bm, "BN": bn, "BK": bk, "BR": min(bm, max(1, self.values // 2 // bq)), "BQ": bq}
        if not cells:
            constants["SK"] = 1
        else:  # the scalars' programs share the grid's first axis: they must be no more than the others
            constants["BS"] = max(constants["BR"], power(-(-bm // cells), 1, bm))
            constants["SPAN"] = max(1, bm // 64) if self.emulate else 1  # a GPU's tile is one cell: it meets the fewest taps
        return Tiles(bm, constants, warps=8 if self.emulate else numerics.warps, stages=numerics.stages)

    def product_columns(self, numerics: Arithmetic, k: int, n: int, phases: int) -> int:
        """Of its tile."""
        narrow = not self.emulate and (phases > 1 or (k < FEW and k % SHORTEST > 0))
        return power(n, 16, NARROW if narrow else self.columns or numerics.columns)


GPU = Sizes()
# the interpreter's cost is a fixed one an operation, whatever its size: few programs with large tiles
INTERPRETER = Sizes(values=1 << 16, line=1 << 12, pairs=1 << 10, columns=1 << 9, terms=1 << 9, emulate=True)
