"""What the row passes of fused.py do with a vector of cells, for row_code.py to write down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polytriton.runtime.cpu.row_code import Code


@dataclass(frozen=True)
class Table:
    """Values that rows read at their windows: where a row's begins and how far its lines lie apart, as names of parameters or columns of
    `lines`.
    """

    begin: str
    pitch: str
    real: str = ""  # that of the coefficients


OWN = Table("base", "pitch")


class Cells:
    """A vector of cells: what is read of the tables, and one row's coefficients and sums after the others'."""

    def __init__(self, code: Code, tables: dict[str, str]) -> None:
        self.code, self.tables, self.asked = code, tables, code.asked
        self.wide = {name: code.double(value, name) for name, value in tables.items() if name in code.what.shared}
        self.sums: dict[str, str] = {}

    def add(self, name: str, value: str, factor: str) -> None:
        """The sum with the product of two vectors of doubles, rounded once where the processor does that."""
        kind = self.code.vector("double")
        self.sums[name] = self.code.call("fmuladd", *(f"{kind} {v}" for v in (value, factor, self.sums[name])))

    def add_where(self, name: str, mask: str, value: str, factor: str) -> None:
        """The sum with the products of some cells."""
        kind = self.code.vector("double")
        product = self.code.where(mask, self.code.fresh(f"fmul {kind} {value}, {factor}"), real="double")
        self.sums[name] = self.code.fresh(f"fadd {kind} {self.sums[name]}, {product}")


class Pass:
    """A pass over rows. `parameters` are a loop's, with their kinds; `choices` those which may be absent (an array of no values, or false),
    where sums of theirs are zero; `sums` arrays with a value a row. Rows that are `alike` in their tables' places are taken together.
    """

    parameters: tuple[str, ...]
    kinds: tuple[str, ...]
    choices: tuple[str, ...]
    tables: dict[str, Table]
    shared: tuple[str, ...]  # tables that rows read in float64
    sums: dict[str, str]  # and the choice that each is of
    alike: tuple[str, ...]
    moved = False  # whether rows begin where `lines` say, and go on elsewhere

    @property
    def form(self) -> str:
        return " ".join(self.kinds)

    def row(self, cells: Cells, x: str) -> str:
        """Adds a row's cells to its sums; returns what becomes of them."""
        raise NotImplementedError


class Relax(Pass):
    """`fused.relax_and_charge`."""

    parameters = (
        "out", "base", "pitch", "height", "line", "m", "below", "above", "cut", "gap", "point", "next_pitch", "t_table", "bias", "lines",
        "total", "constant", "error", "at", "beyond",
    )  # fmt: skip
    kinds = ("T", "I", "i", "i", "i", "T", "T", "T", "T", "T", "T", "i", "T", "D", "I2", "D", "D", "D", "D", "D")
    choices = ("point", "gap")
    tables = {  # noqa: RUF012
        **dict.fromkeys(("below", "above", "cut", "point", "gap"), OWN),
        "t_table": Table("lines.3", "next_pitch"), "bias": Table("lines.0", "lines.1", "double"),
    }  # fmt: skip
    shared = ("cut", "gap", "point", "t_table", "bias")
    sums = {"total": "", "constant": "", "error": "", "at": "point", "beyond": "gap"}  # noqa: RUF012
    alike = ("base", "lines.3", "lines.0")
    moved = True

    def row(self, cells: Cells, x: str) -> str:
        code, tables, wide, negative = cells.code, cells.tables, cells.code.double(x), cells.code.compare("olt", x)
        if "point" in cells.asked:
            cells.add("at", wide, cells.wide["point"])
        if "gap" in cells.asked:
            cells.add_where("beyond", code.compare("ogt", x), wide, cells.wide["gap"])
        cells.add_where("total", negative, wide, cells.wide["cut"])
        slope = code.where(negative, tables["above"], tables["below"])
        n = code.fresh(f"fmul {code.vector(code.real)} {x}, {slope}")
        behind = code.double(n)
        cells.add("constant", behind, cells.wide["bias"])
        cells.add("error", code.magnitude(behind), cells.wide["t_table"])
        return n


class Concretize(Pass):
    """`fused.concretize`."""

    parameters = ("m", "base", "pitch", "height", "line", "lo", "hi", "point", "ends", "value", "weight", "at", "most")
    kinds = ("T", "I", "i", "i", "i", "T", "T", "T", "b", "D", "D", "D", "D")
    choices = ("point", "ends")
    tables = dict.fromkeys(("lo", "hi", "point"), OWN)
    shared = ("lo", "hi", "point")
    sums = {"value": "", "weight": "", "at": "point", "most": "ends"}  # noqa: RUF012
    alike = ("base",)

    def row(self, cells: Cells, x: str) -> str:
        code, low, high = cells.code, cells.wide["lo"], cells.wide["hi"]
        negative, wide = code.compare("olt", x), code.double(x)
        cells.add("value", wide, code.where(negative, high, low, "double"))
        if "largest" not in cells.wide:
            a, b = code.magnitude(low), code.magnitude(high)
            cells.wide["largest"] = code.where(code.fresh(f"fcmp ogt {code.vector('double')} {a}, {b}"), a, b, "double")
        cells.add("weight", code.magnitude(wide), cells.wide["largest"])
        if "point" in cells.asked:
            cells.add("at", wide, cells.wide["point"])
        if "ends" in cells.asked:
            cells.add("most", wide, code.where(negative, low, high, "double"))
        return ""


RELAX, CONCRETIZE = Relax(), Concretize()
